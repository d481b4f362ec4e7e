/* Sixteen threads on one file, one volume and one cache; each has its own last error. */
#include "check.h"
#include <pthread.h>

#define THREADS 16
#define ROUNDS 200
#define BLOCK 4096

static fby_cache *cache;
static fby_volume *volume;
static fby_file *file, *log_file;

static void *work(void *with) {
    int me = (int)(intptr_t)with;
    unsigned char block[BLOCK], back[BLOCK];
    char name[32], wanted[32];
    fby_file *own;
    fby_stats stats;
    IS(strlen(fby_last_error()), 0);
    snprintf(name, sizeof name, "/own-%d", me);
    snprintf(wanted, sizeof wanted, "offset -%d", me + 1);
    IS(fby_open_in(volume, name, O_RDWR | O_CREAT, NULL, 0, &own), 0);
    for (int round = 0; round < ROUNDS; round++) {
        int64_t at = (int64_t)(round * THREADS + me) * BLOCK;
        uint32_t how = round % 3 == 0 ? FBY_RWF_DONTCACHE : 0;
        memset(block, 1 + (me * ROUNDS + round) % 255, sizeof block);
        IS(write_at(file, block, BLOCK, at, how), BLOCK);
        IS(read_at(file, back, BLOCK, at, round % 2 ? FBY_RWF_DONTCACHE : 0), BLOCK);
        CHECK(memcmp(block, back, BLOCK) == 0);
        IS(write_at(own, block, BLOCK, (int64_t)round * BLOCK, 0), BLOCK);
        int64_t end = fby_append(log_file, block, 16, 0);
        CHECK(end >= 0 && end % 16 == 0);
        FAILS(read_at(file, back, 1, -1 - me, 0), EINVAL, wanted);
        CHECK(fby_cache_stats(cache, &stats, sizeof stats) == sizeof stats);
        if (round % 64 == me)
            IS(fby_fdatasync(round % 2 ? file : own), 0);
    }
    IS(fby_close(own), 0);
    return NULL;
}

int main(int argc, char **argv) {
    pthread_t threads[THREADS];
    fby_volume_config config = {0};
    fby_attr attr;
    CHECK(argc == 2);
    config.size = 128u << 20;
    cache = small_cache();
    IS(fby_open(cache, in_folder(argv[1], "f"), O_RDWR | O_CREAT, NULL, 0, &file), 0);
    IS(fby_volume_create(in_folder(argv[1], "v"), &config, sizeof config), 0);
    IS(fby_volume_open(cache, in_folder(argv[1], "v"), NULL, 0, &volume), 0);
    IS(fby_open_in(volume, "/log", O_RDWR | O_CREAT, NULL, 0, &log_file), 0);
    for (int i = 0; i < THREADS; i++)
        CHECK(pthread_create(&threads[i], NULL, work, (void *)(intptr_t)i) == 0);
    for (int i = 0; i < THREADS; i++)
        CHECK(pthread_join(threads[i], NULL) == 0);
    IS(fby_statx(log_file, &attr, sizeof attr), sizeof attr);
    IS(attr.size, THREADS * ROUNDS * 16);
    IS(fby_close(log_file), 0);
    IS(fby_close(file), 0);
    IS(fby_volume_close(volume), 0);
    IS(fby_cache_close(cache), 0);
    return 0;
}
