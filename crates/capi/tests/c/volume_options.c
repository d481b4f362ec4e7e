/* Options of a volume, each by its effect; and an image with a byte that has changed. */
#include "check.h"

#define BLOCK 4096
#define IMAGE (32 << 20)
#define SIZE (8 << 20)

static unsigned char bytes[SIZE], back[IMAGE];

/* Makes a volume with one file, and closes it. */
static void made(fby_cache *cache, const char *image, fby_volume_config config) {
    fby_volume *volume;
    fby_file *file;
    config.size = IMAGE;
    IS(fby_volume_create(image, &config, sizeof config), 0);
    IS(fby_volume_open(cache, image, NULL, 0, &volume), 0);
    IS(fby_open_in(volume, "/f", O_RDWR | O_CREAT, NULL, 0, &file), 0);
    IS(write_at(file, bytes, SIZE, 0, 0), SIZE);
    IS(fby_close(file), 0);
    IS(fby_volume_close(volume), 0);
}

/* The image as it is in its file. */
static void load(const char *image) {
    int fd = open(image, O_RDONLY);
    CHECK(fd >= 0);
    IS(pread(fd, back, IMAGE, 0), IMAGE);
    CHECK(close(fd) == 0);
}

static void flip(const char *image, int64_t at) {
    unsigned char byte;
    int fd = open(image, O_RDWR);
    CHECK(fd >= 0 && pread(fd, &byte, 1, at) == 1);
    byte ^= 1;
    CHECK(pwrite(fd, &byte, 1, at) == 1);
    CHECK(close(fd) == 0);
}

/* Where the image has the last block of the file. */
static int64_t place(const char *image) {
    const unsigned char *found;
    load(image);
    found = memmem(back, IMAGE, bytes + SIZE - BLOCK, BLOCK);
    CHECK(found != NULL);
    return found - back;
}

/* Block size and segment size are in the superblock (docs/reference/format.md). */
static void sizes(fby_cache *cache, const char *image) {
    fby_volume_config config = {0};
    fby_volume *volume;
    fby_attr attr;
    config.block_size = 1024;
    config.segment_size = 128 << 10;
    made(cache, image, config);
    load(image);
    CHECK(memcmp(back, "forebay1", 8) == 0);
    CHECK(back[74] == 10 && back[76] == 17);
    IS(fby_volume_open(cache, image, NULL, 0, &volume), 0);
    IS(fby_stat(volume, "/f", 0, &attr, sizeof attr), sizeof attr);
    IS(attr.block_size, 1024);
    IS(fby_volume_close(volume), 0);
}

/* A read of a block whose byte has changed: -EUCLEAN with checksums, that byte without. */
static void changed_byte(fby_cache *cache, const char *image, uint32_t flags) {
    fby_volume_config config = {0};
    fby_volume *volume;
    fby_file *file;
    config.flags = flags;
    made(cache, image, config);
    flip(image, place(image) + 100);
    IS(fby_volume_open(cache, image, NULL, 0, &volume), 0);
    IS(fby_open_in(volume, "/f", O_RDONLY, NULL, 0, &file), 0);
    if (flags == 0) {
        FAILS(read_at(file, back, BLOCK, SIZE - BLOCK, 0), EUCLEAN, "checksum");
        FAILS(read_at(file, back, BLOCK, SIZE - BLOCK, 0), EUCLEAN, "read /f at 8384512+4096: ");
        IS(read_at(file, back, BLOCK, 0, 0), BLOCK);
    } else {
        IS(read_at(file, back, BLOCK, SIZE - BLOCK, 0), BLOCK);
        CHECK(back[100] == (bytes[SIZE - BLOCK + 100] ^ 1));
    }
    IS(fby_close(file), 0);
    IS(fby_volume_close(volume), 0);
}

/* An image none of whose superblock slots is whole. */
static void changed_superblock(fby_cache *cache, const char *image) {
    fby_volume_config config = {0};
    fby_volume *volume;
    made(cache, image, config);
    load(image);
    for (int64_t at = 0; at < IMAGE; at += BLOCK)
        if (memcmp(back + at, "forebay1", 8) == 0)
            flip(image, at + 160);
    FAILS(fby_volume_open(cache, image, NULL, 0, &volume), EUCLEAN, image);
    CHECK(volume == NULL);
}

static void direct_io(fby_cache *cache, const char *image) {
    fby_volume_how how = {0};
    fby_volume *volume;
    how.direct_io = FBY_DIRECT_IO_OFF;
    IS(fby_volume_open(cache, image, &how, sizeof how, &volume), 0);
    IS(direct_descriptors(image), 0);
    IS(fby_volume_close(volume), 0);
    how.direct_io = FBY_DIRECT_IO_ON;
    /* A file system without direct I/O is refused for that. */
    if (fby_volume_open(cache, image, &how, sizeof how, &volume) == 0) {
        CHECK(direct_descriptors(image) > 0);
        IS(fby_volume_close(volume), 0);
    } else {
        CHECK(strstr(fby_last_error(), "O_DIRECT") != NULL);
    }
}

/* Whether a read after a write changes the access time. */
static int atime_moves(fby_cache *cache, const char *image, uint32_t flags) {
    fby_volume_how how = {0};
    fby_volume *volume;
    fby_file *file;
    fby_attr before, after;
    how.flags = flags;
    IS(fby_volume_open(cache, image, &how, sizeof how, &volume), 0);
    IS(fby_open_in(volume, "/f", O_RDWR, NULL, 0, &file), 0);
    IS(write_at(file, bytes, BLOCK, 0, 0), BLOCK);
    IS(fby_statx(file, &before, sizeof before), sizeof before);
    IS(read_at(file, back, BLOCK, 0, 0), BLOCK);
    IS(fby_statx(file, &after, sizeof after), sizeof after);
    IS(fby_close(file), 0);
    IS(fby_volume_close(volume), 0);
    return memcmp(&before.atime, &after.atime, sizeof before.atime) != 0;
}

/* Bytes that the host stores of an image after files have come and gone: freed segments are
 * discarded at later checkpoints, which writing brings. */
static int64_t left_of(fby_cache *cache, const char *image, uint32_t flags) {
    fby_volume_config config = {0};
    fby_volume_how how = {0};
    fby_volume *volume;
    fby_file *file;
    struct stat st;
    made(cache, image, config);
    how.flags = flags;
    IS(fby_volume_open(cache, image, &how, sizeof how, &volume), 0);
    for (int i = 0; i < 5; i++) {
        IS(fby_unlink(volume, "/f"), 0);
        IS(fby_open_in(volume, "/f", O_RDWR | O_CREAT, NULL, 0, &file), 0);
        IS(write_at(file, bytes, SIZE, 0, 0), SIZE);
        IS(fby_fsync(file), 0);
        IS(fby_close(file), 0);
    }
    IS(fby_volume_close(volume), 0);
    CHECK(stat(image, &st) == 0);
    return (int64_t)st.st_blocks * 512;
}

int main(int argc, char **argv) {
    const char *folder = argv[1];
    fby_cache *cache = small_cache();
    CHECK(argc == 2);
    for (uint32_t at = 0, value = 1; at < SIZE; at++, value = value * 1664525u + 1013904223u)
        bytes[at] = (unsigned char)(value >> 24);
    sizes(cache, in_folder(folder, "sizes"));
    direct_io(cache, in_folder(folder, "sizes"));
    changed_byte(cache, in_folder(folder, "sums"), 0);
    changed_byte(cache, in_folder(folder, "no-sums"), FBY_VOLUME_NO_CHECKSUMS);
    changed_superblock(cache, in_folder(folder, "superblock"));
    IS(atime_moves(cache, in_folder(folder, "sizes"), FBY_VOLUME_NOATIME), 0);
    IS(atime_moves(cache, in_folder(folder, "sizes"), 0), 1);
    CHECK(left_of(cache, in_folder(folder, "gone"), FBY_VOLUME_DISCARD) + SIZE / 2 <
          left_of(cache, in_folder(folder, "kept"), 0));
    IS(fby_cache_close(cache), 0);
    return 0;
}
