/* Counts the lines of a file in place: the bytes are read where they are cached, without a copy. */
#include <fcntl.h>
#include <forebay.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

static int failed(void) {
    fprintf(stderr, "%s\n", fby_last_error());
    return 1;
}

static uint64_t newlines(const struct iovec *run) {
    const char *at = run->iov_base, *end = at + run->iov_len;
    uint64_t count = 0;
    while ((at = memchr(at, '\n', (size_t)(end - at))) != NULL) {
        count++;
        at++;
    }
    return count;
}

int main(int argc, char **argv) {
    const struct iovec *extents;
    fby_cache *cache;
    fby_file *file;
    fby_pinned *pinned;
    uint64_t lines = 0;
    int64_t got, at;

    if (argc != 2) {
        fprintf(stderr, "usage: %s FILE\n", argv[0]);
        return 2;
    }
    if (fby_cache_create(NULL, 0, &cache) < 0 || fby_open(cache, argv[1], O_RDONLY, NULL, 0, &file) < 0)
        return failed();
    for (at = 0;; at += got) {
        int count;
        if ((got = fby_pin(file, at, 64 << 10, 0, &pinned)) < 0)
            return failed();
        /* One run of memory or several; none at the end of the file. */
        count = fby_pinned_extents(pinned, &extents);
        for (int run = 0; run < count; run++)
            lines += newlines(&extents[run]);
        if (fby_unpin(pinned) < 0)
            return failed();
        if (got == 0)
            break;
    }
    printf("%" PRIu64 " lines\n", lines);
    if (fby_close(file) < 0 || fby_cache_close(cache) < 0)
        return failed();
    return 0;
}
