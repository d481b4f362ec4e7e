/* Pins: what they show while others write, cut off and close; copies; what is refused. */
#include "check.h"
#include <pthread.h>

#define SIZE (1 << 20)
#define BLOCK 4096

static unsigned char pattern(int64_t at) {
    return (unsigned char)(at / BLOCK * 7 + at % 251);
}

static void fill(fby_file *file) {
    static unsigned char buf[SIZE];
    for (int64_t at = 0; at < SIZE; at++)
        buf[at] = pattern(at);
    IS(write_at(file, buf, sizeof buf, 0, 0), SIZE);
}

/* The pin shows the pattern from `at` on, in all its runs. */
static void shows(const fby_pinned *pinned, int64_t at, int64_t len) {
    const struct iovec *extents;
    int count = fby_pinned_extents(pinned, &extents);
    CHECK(count >= 0);
    for (int run = 0; run < count; run++) {
        const unsigned char *bytes = extents[run].iov_base;
        CHECK(extents[run].iov_len > 0);
        for (size_t i = 0; i < extents[run].iov_len; i++, at++, len--)
            CHECK(bytes[i] == pattern(at));
    }
    IS(len, 0);
}

/* One frame is one run; several frames are as many runs as the cache needs. */
static void pin_shows_old_version(fby_file *file) {
    static unsigned char other[SIZE];
    const struct iovec *extents;
    fby_pinned *one, *many;
    fill(file);
    IS(fby_pin(file, BLOCK, BLOCK, FBY_PIN_NO_COPY, &one), BLOCK);
    IS(fby_pinned_extents(one, &extents), 1);
    IS(extents->iov_len, BLOCK);
    IS(fby_pinned_is_copy(one), 0);
    IS(fby_pin(file, 100, 16 * BLOCK, 0, &many), 16 * BLOCK);
    shows(many, 100, 16 * BLOCK);
    memset(other, 0xee, sizeof other);
    IS(write_at(file, other, sizeof other, 0, 0), SIZE);
    IS(fby_fsync(file), 0);
    shows(one, BLOCK, BLOCK);
    IS(fby_ftruncate(file, 0), 0);
    shows(many, 100, 16 * BLOCK);
    IS(fby_unpin(one), 0);
    IS(fby_unpin(many), 0);
    fill(file);
}

static void pin_at_end_is_short(fby_file *file) {
    const struct iovec *extents;
    fby_pinned *pinned;
    IS(fby_pin(file, SIZE - 10, 100, 0, &pinned), 10);
    shows(pinned, SIZE - 10, 10);
    IS(fby_unpin(pinned), 0);
    IS(fby_pin(file, SIZE, 100, 0, &pinned), 0);
    IS(fby_pinned_extents(pinned, &extents), 0);
    CHECK(extents != NULL);
    IS(fby_unpin(pinned), 0);
    IS(fby_pin(file, 0, 0, FBY_PIN_NO_COPY, &pinned), 0);
    IS(fby_unpin(pinned), 0);
}

/* An eighth of the cache is pinned; more is a copy, or refused. */
static void pins_beyond_the_limit_are_copies(fby_cache *cache, const char *name) {
    static fby_pinned *pins[BUDGET / 4 / BLOCK];
    fby_file *file;
    fby_pinned *copy;
    fby_stats stats;
    int64_t got = 0;
    int count = 0;
    IS(fby_open(cache, name, O_RDWR | O_CREAT, NULL, 0, &file), 0);
    IS(fby_ftruncate(file, BUDGET / 4), 0);
    fill(file);
    for (; count < (int)(BUDGET / 4 / BLOCK); count++) {
        got = fby_pin(file, count * BLOCK, BLOCK, FBY_PIN_NO_COPY, &pins[count]);
        if (got < 0)
            break;
        IS(fby_pinned_is_copy(pins[count]), 0);
    }
    IS(got, -ENOBUFS);
    CHECK(count > 100 && pins[count] == NULL);
    CHECK(strstr(fby_last_error(), "pin without a copy") != NULL);
    IS(fby_pin(file, BLOCK, BLOCK, 0, &copy), BLOCK);
    IS(fby_pinned_is_copy(copy), 1);
    shows(copy, BLOCK, BLOCK);
    IS(fby_unpin(copy), 0);
    /* Half the cache has half the limit: it waits for pins, gives up, and leaves the budget. */
    FAILS(fby_cache_resize(cache, BUDGET / 2), EBUSY, "pins hold");
    IS(fby_cache_stats(cache, &stats, sizeof stats), sizeof stats);
    IS(stats.budget_bytes, BUDGET);
    while (count > 0)
        IS(fby_unpin(pins[--count]), 0);
    IS(fby_cache_resize(cache, BUDGET / 2), 0);
    IS(fby_cache_resize(cache, BUDGET), 0);
    IS(fby_close(file), 0);
}

/* A sparse file may be longer than all memory. */
static void copy_larger_than_the_budget_is_refused(fby_file *file, int64_t size) {
    fby_pinned *pinned;
    IS(fby_ftruncate(file, size), 0);
    FAILS(fby_pin(file, 0, (size_t)size, 0, &pinned), ENOMEM, "a copy of");
    CHECK(pinned == NULL);
    IS(fby_pin(file, 0, (size_t)size, FBY_PIN_NO_COPY, &pinned), -ENOBUFS);
    IS(fby_pin(file, 0, BUDGET, 0, &pinned), BUDGET);
    IS(fby_pinned_is_copy(pinned), 1);
    IS(fby_unpin(pinned), 0);
    FAILS(fby_pin(file, 0, BUDGET + 1, 0, &pinned), ENOMEM, "with a budget of");
    IS(fby_ftruncate(file, 0), 0);
}

static void pin_wrong_calls_are_refused(fby_cache *cache, const char *folder, fby_file *file) {
    fby_pinned *pinned = (fby_pinned *)&pinned;
    fby_file *write_only;
    IS(fby_open(cache, in_folder(folder, "w"), O_WRONLY | O_CREAT, NULL, 0, &write_only), 0);
    FAILS(fby_pin(write_only, 0, 1, 0, &pinned), EBADF, "not opened");
    CHECK(pinned == NULL);
    IS(fby_close(write_only), 0);
    FAILS(fby_pin(file, -1, 1, 0, &pinned), EINVAL, "offset -1");
    FAILS(fby_pin(file, 0, BLOCK, FBY_RWF_DIRECT, &pinned), EOPNOTSUPP, "fby_pin");
    FAILS(fby_pin(file, 0, BLOCK, FBY_RWF_DSYNC, &pinned), EOPNOTSUPP, "fby_pin");
    FAILS(fby_pin(file, 0, BLOCK, 1u << 20, &pinned), EOPNOTSUPP, "unknown flags 0x100000");
    FAILS(fby_pin(NULL, 0, BLOCK, 0, &pinned), EBADF, "not an open file");
    FAILS(fby_pin(file, 0, BLOCK, 0, NULL), EFAULT, "handle");
    FAILS(read_at(file, NULL, 0, 0, FBY_PIN_NO_COPY), EOPNOTSUPP, "unknown flags 0x80000");
    FAILS(fby_unpin(NULL), EBADF, "not a pin");
    FAILS(fby_unpin((fby_pinned *)(void *)file), EBADF, "not a pin");
    FAILS(fby_pinned_is_copy(NULL), EBADF, "not a pin");
    IS(fby_pin(file, 0, BLOCK, 0, &pinned), BLOCK);
    FAILS(fby_pinned_extents(pinned, NULL), EFAULT, "extents");
    FAILS(fby_close((fby_file *)(void *)pinned), EBADF, "not an open file");
    IS(fby_unpin(pinned), 0);
}

static void *unpin(void *pinned) {
    shows(pinned, BLOCK, BLOCK);
    IS(fby_unpin(pinned), 0);
    return NULL;
}

/* A pin outlives its file, holds the cache, and ends on any thread. */
static void pin_outlives_file(fby_cache *cache, fby_file *file) {
    fby_pinned *pinned;
    pthread_t thread;
    IS(fby_pin(file, BLOCK, BLOCK, 0, &pinned), BLOCK);
    IS(fby_close(file), 0);
    FAILS(fby_cache_close(cache), EBUSY, "1 files, directories, volumes or pins");
    CHECK(pthread_create(&thread, NULL, unpin, pinned) == 0);
    CHECK(pthread_join(thread, NULL) == 0);
}

/* A pin of a file in a volume outlives file and volume. */
static void pin_in_volume(fby_cache *cache, const char *image) {
    fby_volume_config config = {0};
    fby_volume *volume;
    fby_pinned *pinned;
    fby_file *file;
    config.size = 32u << 20;
    IS(fby_volume_create(image, &config, sizeof config), 0);
    IS(fby_volume_open(cache, image, NULL, 0, &volume), 0);
    IS(fby_open_in(volume, "/f", O_RDWR | O_CREAT, NULL, 0, &file), 0);
    copy_larger_than_the_budget_is_refused(file, 1ll << 50);
    pin_shows_old_version(file);
    IS(fby_pin(file, 3 * BLOCK, BLOCK, FBY_PIN_NO_COPY, &pinned), BLOCK);
    IS(fby_close(file), 0);
    IS(fby_volume_close(volume), 0);
    shows(pinned, 3 * BLOCK, BLOCK);
    IS(fby_unpin(pinned), 0);
}

int main(int argc, char **argv) {
    fby_cache *cache = small_cache();
    fby_file *file;
    CHECK(argc == 2);
    IS(fby_open(cache, in_folder(argv[1], "f"), O_RDWR | O_CREAT, NULL, 0, &file), 0);
    copy_larger_than_the_budget_is_refused(file, 1ll << 40);
    pin_shows_old_version(file);
    pin_at_end_is_short(file);
    pins_beyond_the_limit_are_copies(cache, in_folder(argv[1], "large"));
    pin_wrong_calls_are_refused(cache, argv[1], file);
    pin_outlives_file(cache, file);
    pin_in_volume(cache, in_folder(argv[1], "v"));
    IS(fby_cache_close(cache), 0);
    return 0;
}
