/* What the test programs share: a check that says where it failed, and folders. */
#ifndef CHECK_H
#define CHECK_H

#define _GNU_SOURCE
#include "forebay.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#define CHECK(what)                                                                       \
    do {                                                                                  \
        if (!(what)) {                                                                    \
            fprintf(stderr, "%s:%d: %s; errno %d; last error: %s\n", __FILE__, __LINE__,  \
                    #what, errno, fby_last_error());                                      \
            _exit(1);                                                                     \
        }                                                                                 \
    } while (0)

/* The call gives exactly this. */
#define IS(call, wanted)                                                                  \
    do {                                                                                  \
        long long is_got = (long long)(call), is_wanted = (long long)(wanted);            \
        if (is_got != is_wanted) {                                                        \
            fprintf(stderr, "%s:%d: %s: %lld, not %lld; last error: %s\n", __FILE__,      \
                    __LINE__, #call, is_got, is_wanted, fby_last_error());                \
            _exit(1);                                                                     \
        }                                                                                 \
    } while (0)

/* The call failed like this, and the last error has this text in it. */
#define FAILS(call, errno_wanted, text)                                                   \
    do {                                                                                  \
        IS(call, -(errno_wanted));                                                        \
        CHECK(strstr(fby_last_error(), text) != NULL);                                    \
    } while (0)

/* `call` is the library's function behind one of the same name in the program. */
#define REAL(name)                                                                        \
    __typeof__(&name) call;                                                               \
    *(void **)&call = dlsym(RTLD_NEXT, #name);                                            \
    CHECK(call != NULL)

/* Bytes of the caches: small, so that valgrind and sanitizers are quick. */
#define BUDGET (16u << 20)

static inline fby_cache *small_cache(void) {
    fby_cache_config config;
    fby_cache *cache = NULL;
    memset(&config, 0, sizeof config);
    config.budget = BUDGET;
    config.budget_max = 2 * BUDGET;
    /* valgrind knows too little of io_uring. */
    config.aio = getenv("FOREBAY_TEST_THREADS") ? FBY_AIO_THREADS : FBY_AIO_AUTO;
    IS(fby_cache_create(&config, sizeof config, &cache), 0);
    CHECK(cache != NULL);
    return cache;
}

/* A name in the folder that the test was given. */
static inline const char *in_folder(const char *folder, const char *name) {
    static char path[4][512];
    static int next;
    char *at = path[next++ % 4];
    snprintf(at, sizeof path[0], "%s/%s", folder, name);
    return at;
}

static inline int64_t read_at(fby_file *file, void *buf, size_t len, int64_t at, uint32_t flags) {
    struct iovec iov = {buf, len};
    return fby_preadv2(file, &iov, 1, at, flags);
}

static inline int64_t write_at(fby_file *file, const void *buf, size_t len, int64_t at,
                               uint32_t flags) {
    struct iovec iov = {(void *)(uintptr_t)buf, len};
    return fby_pwritev2(file, &iov, 1, at, flags);
}

/* Descriptors of this process with O_DIRECT that lead to the file. */
static inline int direct_descriptors(const char *name) {
    struct stat file, at;
    int count = 0;
    CHECK(stat(name, &file) == 0);
    for (int fd = 3; fd < 200; fd++)
        count += fstat(fd, &at) == 0 && at.st_ino == file.st_ino && at.st_dev == file.st_dev &&
                 (fcntl(fd, F_GETFL) & O_DIRECT) != 0;
    return count;
}

#endif
