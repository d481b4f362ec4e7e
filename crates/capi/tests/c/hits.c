/* The cost of cached reads of 4 KiB through the C interface; examples/hits.rs is its twin in Rust.
   usage: hits FILE COUNT ROUNDS: prints the nanoseconds of a read, a line for each round.
   scripts/hit-cost runs both. */
#include "check.h"

#include <inttypes.h>
#include <time.h>

#define BLOCK 4096

static uint64_t nanoseconds(void) {
    struct timespec now;
    CHECK(clock_gettime(CLOCK_MONOTONIC, &now) == 0);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

int main(int argc, char **argv) {
    /* On a page of its own, as in its twin. */
    static char block[BLOCK] __attribute__((aligned(BLOCK)));
    fby_cache *cache = small_cache();
    fby_file *file;
    uint64_t count, rounds, blocks = 0, state = 1;

    CHECK(argc == 4);
    count = strtoull(argv[2], NULL, 10);
    rounds = strtoull(argv[3], NULL, 10);
    IS(fby_open(cache, argv[1], O_RDONLY, NULL, 0, &file), 0);
    while (read_at(file, block, BLOCK, (int64_t)(blocks * BLOCK), 0) == BLOCK)
        blocks++;
    CHECK(blocks > 0);
    for (uint64_t round = 0; round < rounds; round++) {
        uint64_t begin = nanoseconds();
        for (uint64_t i = 0; i < count; i++) {
            state = state * 6364136223846793005u + 1442695040888963407u;
            IS(read_at(file, block, BLOCK, (int64_t)((state >> 33) % blocks * BLOCK), 0), BLOCK);
        }
        printf("%.2f\n", (double)(nanoseconds() - begin) / (double)count);
    }
    IS(fby_close(file), 0);
    IS(fby_cache_close(cache), 0);
    return 0;
}
