/* Caches; handles of the wrong kind, NULL, closed; sizes of structs. */
#include "check.h"
#include <sys/resource.h>

/* A struct with bytes that the library does not know, and one of an older program. */
static void sizes(void) {
    struct {
        fby_cache_config known;
        uint64_t later;
    } longer;
    struct {
        fby_stats known;
        uint64_t later;
    } stats;
    fby_cache *cache;
    fby_stats small;
    char *page = calloc(2, 4096);
    memset(&longer, 0, sizeof longer);
    longer.known.budget = BUDGET;
    longer.known.aio = FBY_AIO_THREADS;
    IS(fby_cache_create(&longer.known, sizeof longer, &cache), 0);
    IS(fby_cache_close(cache), 0);
    longer.later = 1;
    FAILS(fby_cache_create(&longer.known, sizeof longer, &cache), E2BIG, "this version knows");
    CHECK(cache == NULL);
    FAILS(fby_cache_create((fby_cache_config *)(void *)page, 4097, &cache), E2BIG, "4097 bytes");
    CHECK(cache == NULL);
    /* Up to the engine's number. */
    IS(fby_cache_create(&longer.known, offsetof(fby_cache_config, flags), &cache), 0);
    memset(&stats, 0x55, sizeof stats);
    IS(fby_cache_stats(cache, &stats.known, sizeof stats), sizeof stats.known);
    CHECK(stats.known.budget_bytes == BUDGET && stats.later == 0x5555555555555555u);
    memset(&small, 0x55, sizeof small);
    IS(fby_cache_stats(cache, &small, 12), sizeof small);
    CHECK(small.budget_bytes == BUDGET && small.arena_bytes >> 32 == 0x55555555u);
    IS(fby_cache_stats(cache, NULL, 0), sizeof small);
    FAILS(fby_cache_stats(cache, NULL, 8), EFAULT, "struct");
    IS(fby_cache_close(cache), 0);
    free(page);
}

static void caches(fby_cache *cache) {
    fby_cache_config config = {0};
    fby_stats stats;
    fby_cache *other;
    config.budget = 1;
    FAILS(fby_cache_create(&config, sizeof config, &other), EINVAL, "fby_cache_create");
    config.budget = BUDGET;
    config.flags = 2;
    FAILS(fby_cache_create(&config, sizeof config, &other), EOPNOTSUPP, "unknown flags 0x2");
    config.flags = FBY_CACHE_PREFAULT;
    config.aio = 9;
    FAILS(fby_cache_create(&config, sizeof config, &other), EINVAL, "number 9");
    config.aio = FBY_AIO_THREADS;
    config.folio_size = 4096;
    config.dirty_expire_centisecs = 100;
    IS(fby_cache_create(&config, sizeof config, &other), 0);
    IS(fby_cache_close(other), 0);
    FAILS(fby_cache_create(NULL, 8, &other), EFAULT, "struct");
    FAILS(fby_cache_create(NULL, 0, NULL), EFAULT, "handle");
    IS(fby_cache_resize(cache, BUDGET / 2), 0);
    IS(fby_cache_stats(cache, &stats, sizeof stats), sizeof stats);
    CHECK(stats.budget_bytes == BUDGET / 2);
    FAILS(fby_cache_resize(cache, 3u * BUDGET), EINVAL, "resize");
    IS(fby_cache_tune(cache, "dirty_bytes", "2M"), 0);
    FAILS(fby_cache_tune(cache, "no_such", "2M"), EINVAL, "no_such");
    FAILS(fby_cache_tune(cache, "dirty_bytes", "many"), EINVAL, "many");
    FAILS(fby_cache_tune(cache, NULL, "2M"), EFAULT, "name");
    FAILS(fby_cache_tune(cache, "dirty_bytes", NULL), EFAULT, "value");
    FAILS(fby_cache_tune(cache, "\xff", "1"), EINVAL, "UTF-8");
}

/* The configuration is checked before the engine starts: with no descriptor left no ring could
 * start, and still the error is that of the budget. The story: the threads and the ring of a
 * refused cache ended some time after the call, and one under valgrind never did. */
static void refused_starts_nothing(void) {
    fby_cache_config config = {0};
    struct rlimit was, none;
    fby_cache *cache;
    CHECK(getrlimit(RLIMIT_NOFILE, &was) == 0);
    none = was;
    none.rlim_cur = 0;
    config.budget = 1;
    config.aio = FBY_AIO_URING;
    CHECK(setrlimit(RLIMIT_NOFILE, &none) == 0);
    FAILS(fby_cache_create(&config, sizeof config, &cache), EINVAL, "budget 1: at least");
    CHECK(setrlimit(RLIMIT_NOFILE, &was) == 0);
}

static void null_handles(void) {
    fby_volume *volume;
    fby_file *file;
    fby_dir *dir;
    FAILS(fby_cache_resize(NULL, 0), EBADF, "NULL is not an open cache");
    IS(fby_cache_tune(NULL, "a", "b"), -EBADF);
    IS(fby_cache_stats(NULL, NULL, 0), -EBADF);
    IS(fby_cache_close(NULL), -EBADF);
    IS(fby_open(NULL, "a", 0, NULL, 0, &file), -EBADF);
    IS(fby_open_in(NULL, "a", 0, NULL, 0, &file), -EBADF);
    IS(fby_volume_open(NULL, "a", NULL, 0, &volume), -EBADF);
    IS(fby_volume_sync(NULL), -EBADF);
    IS(fby_volume_close(NULL), -EBADF);
    IS(fby_stat(NULL, "a", 0, NULL, 0), -EBADF);
    IS(fby_mkdir(NULL, "a", 0), -EBADF);
    IS(fby_rmdir(NULL, "a"), -EBADF);
    IS(fby_unlink(NULL, "a"), -EBADF);
    IS(fby_rename(NULL, "a", "b", 0), -EBADF);
    IS(fby_opendir(NULL, "a", &dir), -EBADF);
    IS(fby_closedir(NULL), -EBADF);
    FAILS(fby_preadv2(NULL, NULL, 0, 0, 0), EBADF, "NULL is not an open file");
    IS(fby_pwritev2(NULL, NULL, 0, 0, 0), -EBADF);
    IS(fby_append(NULL, NULL, 0, 0), -EBADF);
    IS(fby_fsync(NULL), -EBADF);
    IS(fby_fdatasync(NULL), -EBADF);
    IS(fby_ftruncate(NULL, 0), -EBADF);
    IS(fby_fallocate(NULL, 0, 0, 1), -EBADF);
    IS(fby_fadvise(NULL, 0, 0, 0), -EBADF);
    IS(fby_statx(NULL, NULL, 0), -EBADF);
    IS(fby_lseek(NULL, 0, SEEK_END), -EBADF);
    IS(fby_residency(NULL, 0, 0, NULL, 0), -EBADF);
    FAILS(fby_close(NULL), EBADF, "NULL is not an open file");
}

static void other_kinds(fby_cache *cache, const char *folder) {
    fby_file *file;
    fby_dirent entry;
    void *any = cache;
    FAILS(fby_close(any), EBADF, "this is not an open file");
    FAILS(fby_fsync(any), EBADF, "this is not an open file");
    FAILS(fby_volume_close(any), EBADF, "this is not an open volume");
    FAILS(fby_readdir(any, &entry, sizeof entry), EBADF, "this is not an open directory");
    IS(fby_open(cache, in_folder(folder, "f"), O_RDWR | O_CREAT, NULL, 0, &file), 0);
    any = file;
    FAILS(fby_cache_close(any), EBADF, "this is not an open cache");
    IS(fby_close(file), 0);
}

int main(int argc, char **argv) {
    fby_cache *cache;
    CHECK(argc == 2);
    IS(fby_abi_version(), FBY_ABI_VERSION);
    IS(strlen(fby_last_error()), 0);
    null_handles();
    refused_starts_nothing();
    cache = small_cache();
    caches(cache);
    other_kinds(cache, argv[1]);
    IS(fby_cache_close(cache), 0);
    sizes();
    return 0;
}
