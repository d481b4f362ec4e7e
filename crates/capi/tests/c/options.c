/* Options, flags and counters: of each, one effect that is seen from outside. Not here are
 * `uncached_window_bytes` and FBY_RWF_HIPRI, whose effect is only speed. */
#include "check.h"
#include <signal.h>
#include <sys/resource.h>

#define BLOCK 4096
#define SIZE (8 << 20)

static _Alignas(BLOCK) unsigned char bytes[SIZE], back[SIZE];

/* A cache of which nothing is written back for its age, with fields of `given` besides. */
static fby_cache *cache_with(fby_cache_config given) {
    fby_cache *cache;
    given.budget = BUDGET;
    given.budget_max = 2 * BUDGET;
    if (getenv("FOREBAY_TEST_THREADS"))
        given.aio = FBY_AIO_THREADS;
    if (given.dirty_expire_centisecs == 0)
        given.dirty_expire_centisecs = 360000;
    IS(fby_cache_create(&given, sizeof given, &cache), 0);
    return cache;
}

static fby_stats stats(fby_cache *cache) {
    fby_stats now;
    IS(fby_cache_stats(cache, &now, sizeof now), sizeof now);
    return now;
}

/* `counter` has grown by exactly that since `was`. */
#define GREW(cache, was, counter, by) IS(stats(cache).counter - (was).counter, by)

/* Waits for the library's own threads to do it; if they do not, the test fails here. */
#define COMES(what)                                                                       \
    do {                                                                                  \
        int tries = 0;                                                                    \
        while (!(what) && tries++ < 20000)                                                \
            usleep(1000);                                                                 \
        CHECK(what);                                                                      \
    } while (0)

static fby_residency_info residency(fby_file *file, int64_t at, int64_t len) {
    fby_residency_info info;
    IS(fby_residency(file, at, len, &info, sizeof info), sizeof info);
    return info;
}

static uint64_t resident(fby_file *file, int64_t at, int64_t len) {
    return residency(file, at, len).resident_blocks;
}

static void how_of_a_host_file(fby_cache *cache, const char *name) {
    fby_open_how part = {0}, direct = {0}, uncached = {0};
    fby_file *file;
    fby_attr attr;
    part.offset = 2 * BLOCK;
    part.size_limit = 4 * BLOCK;
    part.block_size = 512;
    part.direct_io = FBY_DIRECT_IO_OFF;
    IS(fby_open(cache, name, O_RDWR, &part, sizeof part, &file), 0);
    IS(fby_lseek(file, 0, SEEK_END), 4 * BLOCK);
    IS(read_at(file, back, SIZE, 0, 0), 4 * BLOCK);
    CHECK(memcmp(back, bytes + 2 * BLOCK, 4 * BLOCK) == 0);
    CHECK(fby_append(file, bytes, 1, 0) < 0);
    IS(fby_statx(file, &attr, sizeof attr), sizeof attr);
    IS(attr.block_size, 512);
    IS(resident(file, 512, 512), 1);
    IS(direct_descriptors(name), 0);
    IS(fby_close(file), 0);
    direct.direct_io = FBY_DIRECT_IO_ON;
    /* A file system without direct I/O is refused for that. */
    if (fby_open(cache, name, O_RDWR, &direct, sizeof direct, &file) == 0) {
        CHECK(direct_descriptors(name) > 0);
        IS(fby_close(file), 0);
    } else {
        CHECK(strstr(fby_last_error(), "O_DIRECT") != NULL);
    }
    uncached.rwf = FBY_RWF_DONTCACHE;
    IS(fby_open(cache, name, O_RDONLY, &uncached, sizeof uncached, &file), 0);
    IS(read_at(file, back, BLOCK, 0, 0), BLOCK);
    IS(resident(file, 0, 0), 0);
    IS(fby_close(file), 0);
    IS(fby_open(cache, name, O_RDONLY | O_DIRECT, NULL, 0, &file), 0);
    FAILS(read_at(file, back, BLOCK, 1, 0), EINVAL, "at 1+4096");
    IS(read_at(file, back, BLOCK, 0, 0), BLOCK);
    IS(resident(file, 0, 0), 0);
    IS(fby_close(file), 0);
}

static void counters_of_reads(fby_cache *cache, fby_file *file) {
    fby_stats was = stats(cache);
    IS(was.frames_total * BLOCK, was.arena_bytes);
    IS(was.budget_bytes, BUDGET);
    IS(fby_cache_tune(cache, "readahead_max", "0"), 0);
    IS(read_at(file, back, BLOCK, 64 * BLOCK, FBY_RWF_NOWAIT), -EAGAIN);
    was = stats(cache);
    IS(read_at(file, back, 3 * BLOCK, 64 * BLOCK, 0), 3 * BLOCK);
    GREW(cache, was, misses, 3);
    GREW(cache, was, miss_bytes, 3 * BLOCK);
    GREW(cache, was, hits, 0);
    GREW(cache, was, readahead_bytes, 0);
    GREW(cache, was, frames_free, -3);
    was = stats(cache);
    IS(read_at(file, back, 2 * BLOCK, 64 * BLOCK, FBY_RWF_NOWAIT), 2 * BLOCK);
    GREW(cache, was, hits, 2);
    GREW(cache, was, misses, 0);
    IS(read_at(file, back, 5 * BLOCK, 128 * BLOCK, FBY_RWF_DONTCACHE), 5 * BLOCK);
    GREW(cache, was, uncached_read_bytes, 5 * BLOCK);
    IS(read_at(file, back, 7 * BLOCK, 256 * BLOCK, FBY_RWF_DIRECT), 7 * BLOCK);
    GREW(cache, was, direct_read_bytes, 7 * BLOCK);
    IS(fby_cache_tune(cache, "readahead_max", "1M"), 0);
    IS(read_at(file, back, BLOCK, 0, 0), BLOCK);
    IS(read_at(file, back, BLOCK, BLOCK, 0), BLOCK);
    COMES(stats(cache).readahead_bytes > was.readahead_bytes);
    IS(residency(file, 64 * BLOCK, 3 * BLOCK).referenced_blocks, 3);
    COMES(residency(file, 2 * BLOCK, BLOCK).resident_blocks == 1);
    IS(residency(file, 2 * BLOCK, BLOCK).referenced_blocks, 0);
    IS(read_at(file, back, SIZE, 0, 0), SIZE);
    IS(fby_cache_resize(cache, BUDGET / 4), 0);
    CHECK(stats(cache).evicted_blocks > was.evicted_blocks);
    IS(fby_cache_resize(cache, BUDGET), 0);
}

/* A write through an opening with this flag is durable when it returns. */
static void durable_opening(fby_cache *cache, const char *name, int flag) {
    fby_stats was = stats(cache);
    fby_file *file;
    IS(fby_open(cache, name, O_RDWR | flag, NULL, 0, &file), 0);
    IS(write_at(file, bytes, BLOCK, 0, 0), BLOCK);
    GREW(cache, was, written_bytes, BLOCK);
    CHECK(stats(cache).flushes > was.flushes);
    IS(stats(cache).dirty_bytes, 0);
    IS(fby_close(file), 0);
}

static void counters_of_writes(fby_cache *cache, fby_file *file) {
    const uint32_t durable[] = {FBY_RWF_DSYNC, FBY_RWF_SYNC};
    fby_stats was = stats(cache);
    IS(was.dirty_bytes, 0);
    IS(write_at(file, bytes, 3 * BLOCK, 0, 0), 3 * BLOCK);
    GREW(cache, was, dirtied_bytes, 3 * BLOCK);
    GREW(cache, was, dirty_bytes, 3 * BLOCK);
    GREW(cache, was, written_bytes, 0);
    GREW(cache, was, flushes, 0);
    IS(fby_fsync(file), 0);
    GREW(cache, was, dirty_bytes, 0);
    GREW(cache, was, written_bytes, 3 * BLOCK);
    CHECK(stats(cache).flushes > was.flushes);
    for (int i = 0; i < 2; i++) {
        was = stats(cache);
        IS(write_at(file, bytes, BLOCK, 0, durable[i]), BLOCK);
        GREW(cache, was, written_bytes, BLOCK);
        IS(stats(cache).dirty_bytes, 0);
    }
    IS(write_at(file, bytes, BLOCK, 0, FBY_RWF_START_WRITEBACK), BLOCK);
    COMES(stats(cache).dirty_bytes == 0);
    was = stats(cache);
    IS(write_at(file, bytes, 5 * BLOCK, 0, FBY_RWF_DONTCACHE), 5 * BLOCK);
    GREW(cache, was, uncached_write_bytes, 5 * BLOCK);
    IS(write_at(file, bytes, 7 * BLOCK, 0, FBY_RWF_DIRECT), 7 * BLOCK);
    GREW(cache, was, direct_write_bytes, 7 * BLOCK);
    IS(fby_cache_tune(cache, "dirty_background_bytes", "64K"), 0);
    IS(write_at(file, bytes, 1 << 20, 0, 0), 1 << 20);
    COMES(stats(cache).dirty_bytes <= 65536);
    IS(fby_fsync(file), 0);
    was = stats(cache);
    IS(was.writeback_bytes + was.failed_bytes + was.io_errors, 0);
}

/* Bytes that the host refuses: they stay dirty, are counted, and are written once it takes them. */
static void counters_of_failures(fby_cache *cache, fby_file *file) {
    struct rlimit was, less;
    CHECK(signal(SIGXFSZ, SIG_IGN) != SIG_ERR && getrlimit(RLIMIT_FSIZE, &was) == 0);
    less = was;
    less.rlim_cur = SIZE / 2;
    IS(write_at(file, bytes, 2 * BLOCK, SIZE - 2 * BLOCK, 0), 2 * BLOCK);
    CHECK(setrlimit(RLIMIT_FSIZE, &less) == 0);
    IS(fby_fsync(file), -EFBIG);
    IS(stats(cache).failed_bytes, 2 * BLOCK);
    CHECK(stats(cache).io_errors > 0);
    CHECK(setrlimit(RLIMIT_FSIZE, &was) == 0);
    /* The library has tried again in the meantime: a sync may still report that. */
    COMES(fby_fsync(file) == 0);
    IS(stats(cache).failed_bytes + stats(cache).dirty_bytes, 0);
}

/* Descriptors of this process that are rings of io_uring. */
static int rings(void) {
    char name[40], link[40];
    int count = 0;
    for (int fd = 3; fd < 200; fd++) {
        ssize_t len;
        snprintf(name, sizeof name, "/proc/self/fd/%d", fd);
        len = readlink(name, link, sizeof link - 1);
        link[len > 0 ? len : 0] = 0;
        count += strstr(link, "io_uring") != NULL;
    }
    return count;
}

/* Before any other cache, whose threads may keep a ring for a moment after its end. */
static void engines(void) {
    fby_cache_config config = {0};
    fby_cache *cache;
    int created;
    config.aio = FBY_AIO_THREADS;
    cache = cache_with(config);
    IS(rings(), 0);
    IS(fby_cache_close(cache), 0);
    if (getenv("FOREBAY_TEST_THREADS"))
        return;
    config.aio = FBY_AIO_URING;
    created = fby_cache_create(&config, sizeof config, &cache);
    /* Containers forbid io_uring. */
    if (created < 0) {
        CHECK(strstr(fby_last_error(), "io_uring") != NULL);
        return;
    }
    CHECK(rings() > 0);
    IS(fby_cache_close(cache), 0);
}

/* The limits of dirty bytes, and the size of folios, which the bookkeeping depends on. */
static void sizes_of_a_cache(const char *name) {
    fby_cache_config limit = {0}, background = {0}, small = {0}, large = {0};
    fby_cache *cache, *other;
    fby_file *file;
    limit.dirty_bytes = 256 << 10;
    cache = cache_with(limit);
    IS(fby_open(cache, name, O_RDWR, NULL, 0, &file), 0);
    IS(write_at(file, bytes, SIZE / 2, 0, 0), SIZE / 2);
    CHECK(stats(cache).dirty_bytes <= 256 << 10);
    IS(fby_close(file), 0);
    IS(fby_cache_close(cache), 0);
    background.dirty_background_bytes = 64 << 10;
    cache = cache_with(background);
    IS(fby_open(cache, name, O_RDWR, NULL, 0, &file), 0);
    IS(write_at(file, bytes, 1 << 20, 0, 0), 1 << 20);
    COMES(stats(cache).dirty_bytes <= 64 << 10);
    IS(fby_close(file), 0);
    IS(fby_cache_close(cache), 0);
    small.folio_size = BLOCK;
    large.folio_size = 64 << 10;
    cache = cache_with(small);
    other = cache_with(large);
    CHECK(stats(cache).arena_bytes > stats(other).arena_bytes);
    IS(fby_cache_close(cache), 0);
    IS(fby_cache_close(other), 0);
}

/* Pages of the process that are in memory. */
static long pages(void) {
    long all = 0, now = 0;
    FILE *file = fopen("/proc/self/statm", "r");
    CHECK(file != NULL && fscanf(file, "%ld %ld", &all, &now) == 2);
    fclose(file);
    return now;
}

/* The first cache of the process, so that no other gives memory back meanwhile. */
static void prefault(void) {
    fby_cache_config config = {0};
    fby_cache *cache;
    long before = pages();
    config.flags = FBY_CACHE_PREFAULT;
    cache = cache_with(config);
    CHECK(pages() - before > (BUDGET / 4096) / 2);
    IS(fby_cache_close(cache), 0);
}

static void config_of_a_cache(const char *name) {
    fby_cache_config config = {0}, wrong = {0};
    fby_cache *cache;
    fby_file *file;
    config.dirty_expire_centisecs = 10;
    config.readahead_max = BLOCK;
    config.folio_size = BLOCK;
    cache = cache_with(config);
    IS(fby_open(cache, name, O_RDWR, NULL, 0, &file), 0);
    IS(write_at(file, bytes, BLOCK, 0, 0), BLOCK);
    COMES(stats(cache).dirty_bytes == 0);
    IS(read_at(file, back, BLOCK, 2 * BLOCK, 0), BLOCK);
    IS(read_at(file, back, BLOCK, 3 * BLOCK, 0), BLOCK);
    CHECK(stats(cache).readahead_bytes <= 2 * BLOCK);
    IS(fby_close(file), 0);
    IS(fby_cache_close(cache), 0);
    wrong.folio_size = 5000;
    FAILS(fby_cache_create(&wrong, sizeof wrong, &cache), EINVAL, "folio");
}

int main(int argc, char **argv) {
    const char *name = in_folder(argv[1], "file");
    fby_cache_config config = {0};
    fby_open_how how = {0};
    fby_cache *cache;
    fby_file *file;
    CHECK(argc == 2);
    engines();
    prefault();
    cache = cache_with(config);
    for (uint32_t at = 0, value = 1; at < SIZE; at++, value = value * 1664525u + 1013904223u)
        bytes[at] = (unsigned char)(value >> 24);
    how.create_size = SIZE;
    IS(fby_open(cache, name, O_RDWR | O_CREAT, &how, sizeof how, &file), 0);
    IS(write_at(file, bytes, SIZE, 0, FBY_RWF_DONTCACHE), SIZE);
    IS(fby_close(file), 0);
    how_of_a_host_file(cache, name);
    IS(fby_open(cache, name, O_RDWR, NULL, 0, &file), 0);
    counters_of_reads(cache, file);
    durable_opening(cache, name, O_DSYNC);
    durable_opening(cache, name, O_SYNC);
    counters_of_writes(cache, file);
    counters_of_failures(cache, file);
    IS(fby_close(file), 0);
    IS(fby_cache_close(cache), 0);
    config_of_a_cache(name);
    sizes_of_a_cache(name);
    return 0;
}
