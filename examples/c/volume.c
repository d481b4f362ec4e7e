/* Makes a volume, appends a line to a file in it, durably, and lists its root. */
#include <fcntl.h>
#include <forebay.h>
#include <stdio.h>
#include <string.h>

static int failed(void) {
    fprintf(stderr, "%s\n", fby_last_error());
    return 1;
}

int main(int argc, char **argv) {
    fby_volume_config make = {.size = 64 << 20};
    const char *line = "hello\n";
    fby_cache *cache;
    fby_volume *volume;
    fby_file *file;
    fby_dir *dir;
    fby_dirent entry;
    int64_t got;

    if (argc != 2) {
        fprintf(stderr, "usage: %s NEW_IMAGE\n", argv[0]);
        return 2;
    }
    /* NULL and 0: all defaults. */
    if (fby_cache_create(NULL, 0, &cache) < 0)
        return failed();
    if (fby_volume_create(argv[1], &make, sizeof make) < 0)
        return failed();
    if (fby_volume_open(cache, argv[1], NULL, 0, &volume) < 0)
        return failed();

    if (fby_open_in(volume, "/log", O_RDWR | O_CREAT, NULL, 0, &file) < 0)
        return failed();
    if (fby_append(file, line, strlen(line), FBY_RWF_DSYNC) < 0)
        return failed();
    if (fby_close(file) < 0)
        return failed();

    if (fby_opendir(volume, "/", &dir) < 0)
        return failed();
    while ((got = fby_readdir(dir, &entry, sizeof entry)) > 0)
        printf("%s\n", entry.name);
    if (got < 0 || fby_closedir(dir) < 0)
        return failed();
    /* Closing reports what could not be made durable. */
    if (fby_volume_close(volume) < 0 || fby_cache_close(cache) < 0)
        return failed();
    return 0;
}
