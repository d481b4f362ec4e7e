/* Reads a file past the cache, one block of it through the cache, and shows what stays cached. */
#include <fcntl.h>
#include <forebay.h>
#include <inttypes.h>
#include <stdio.h>

static char buf[1 << 20];

static int failed(void) {
    fprintf(stderr, "%s\n", fby_last_error());
    return 1;
}

int main(int argc, char **argv) {
    fby_cache_config config = {.budget = 64 << 20};
    fby_residency_info cached;
    fby_cache *cache;
    fby_file *file;
    struct iovec all = {buf, sizeof buf}, block = {buf, 4096};
    int64_t got, at = 0;

    if (argc != 2) {
        fprintf(stderr, "usage: %s FILE\n", argv[0]);
        return 2;
    }
    if (fby_cache_create(&config, sizeof config, &cache) < 0)
        return failed();
    if (fby_open(cache, argv[1], O_RDONLY, NULL, 0, &file) < 0)
        return failed();

    /* Through the cache: the block stays. At offset 0 it would bring its read-ahead along. */
    if (fby_preadv2(file, &block, 1, 65536, 0) < 0)
        return failed();
    /* Uncached: cached blocks are served, the others leave nothing behind. */
    while ((got = fby_preadv2(file, &all, 1, at, FBY_RWF_DONTCACHE)) > 0)
        at += got;
    if (got < 0)
        return failed();

    if (fby_residency(file, 0, 0, &cached, sizeof cached) < 0)
        return failed();
    printf("read %" PRId64 " bytes; %" PRIu64 " of %" PRIu64 " blocks are cached\n", at,
           cached.resident_blocks, cached.total_blocks);
    if (fby_close(file) < 0 || fby_cache_close(cache) < 0)
        return failed();
    return 0;
}
