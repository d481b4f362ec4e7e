/* A host file: every call on it, their results, and what they refuse. */
#include "check.h"
#include <sys/mman.h>
#include <sys/stat.h>

#define SIZE (1 << 20)

static void reads_and_writes(fby_file *file) {
    char block[4096], back[4096], a[100], b[5000];
    struct iovec two[2] = {{a, sizeof a}, {b, sizeof b}};
    struct iovec odd[3] = {{NULL, 0}, {back, 10}, {NULL, 0}};
    memset(block, 7, sizeof block);
    memset(a, 1, sizeof a);
    memset(b, 2, sizeof b);
    IS(write_at(file, block, sizeof block, 8192, 0), 4096);
    IS(read_at(file, back, sizeof back, 8192, 0), 4096);
    CHECK(memcmp(block, back, sizeof back) == 0);
    IS(fby_pwritev2(file, two, 2, 3, FBY_RWF_DSYNC), 5100);
    memset(a, 0, sizeof a);
    memset(b, 0, sizeof b);
    IS(fby_preadv2(file, two, 2, 3, FBY_RWF_DONTCACHE), 5100);
    CHECK(a[0] == 1 && a[99] == 1 && b[0] == 2 && b[4999] == 2);
    /* NULL is allowed where no bytes are asked for. */
    IS(fby_preadv2(file, odd, 3, 8192, 0), 10);
    IS(fby_pwritev2(file, odd, 3, 8192, 0), 10);
    IS(fby_preadv2(file, NULL, 0, 0, 0), 0);
    IS(read_at(file, NULL, 0, 0, 0), 0);
    IS(fby_append(file, NULL, 0, 0), SIZE);
    /* Buffers may overlap. */
    odd[0].iov_base = back;
    odd[0].iov_len = 4096;
    IS(fby_preadv2(file, odd, 2, 8192, 0), 4106);
    /* At and past the end. */
    IS(read_at(file, back, sizeof back, SIZE - 10, 0), 10);
    IS(read_at(file, back, sizeof back, SIZE, 0), 0);
    FAILS(read_at(file, back, sizeof back, INT64_MAX, 0), EINVAL, "range overflows");
    FAILS(read_at(file, back, sizeof back, -1, 0), EINVAL, "fby_preadv2: read: invalid input: offset -1");
    FAILS(fby_preadv2(file, two, -1, 0, 0), EINVAL, "-1 buffers");
    FAILS(fby_preadv2(file, two, 1025, 0, 0), EINVAL, "1025 buffers");
    FAILS(fby_preadv2(file, NULL, 1, 0, 0), EFAULT, "fby_preadv2: read");
    FAILS(read_at(file, NULL, 1, 0, 0), EFAULT, "read");
    FAILS(write_at(file, NULL, 1, 0, 0), EFAULT, "write");
    FAILS(fby_append(file, NULL, 1, 0), EFAULT, "append");
    two[0].iov_len = two[1].iov_len = (size_t)PTRDIFF_MAX;
    FAILS(fby_pwritev2(file, two, 2, 0, 0), EINVAL, "longer than memory");
}

static void flags(fby_file *file) {
    static char memory[3 * 4096];
    char *aligned = memory + (4096 - (uintptr_t)memory % 4096);
    for (int bit = 0; bit < 32; bit++) {
        uint32_t flag = (uint32_t)1 << bit;
        int known = (flag & 0x9f) != 0 || (flag & 0x70000) != 0;
        int write_only = (flag & 0x16) != 0 || flag == FBY_RWF_START_WRITEBACK;
        int64_t wrote = write_at(file, aligned, 4096, 0, flag);
        int64_t read = read_at(file, aligned, 4096, 0, flag);
        CHECK(known ? wrote > 0 || wrote == -EAGAIN : wrote == -EOPNOTSUPP);
        CHECK(known && !write_only ? read > 0 || read == -EAGAIN : read == -EOPNOTSUPP);
        CHECK(known || strstr(fby_last_error(), "unknown flags") != NULL);
        if (flag == FBY_RWF_APPEND)
            IS(fby_ftruncate(file, SIZE), 0);
    }
    IS(read_at(file, aligned, 4096, 1, FBY_RWF_DIRECT | FBY_RWF_FALLBACK), 4096);
    FAILS(read_at(file, aligned, 4096, 1, FBY_RWF_DIRECT), EINVAL, "at 1+4096");
}

static void sizes_and_ranges(fby_file *file) {
    fby_attr attr;
    char byte = 1, block[4096] = {0};
    IS(fby_ftruncate(file, 3 * SIZE), 0);
    IS(fby_statx(file, &attr, sizeof attr), sizeof attr);
    CHECK(attr.mask == 0x300 && attr.size == 3 * SIZE && attr.block_size == 4096);
    CHECK(attr.ino != 0 && attr.dev != 0);
    IS(fby_lseek(file, 0, SEEK_END), 3 * SIZE);
    IS(fby_lseek(file, -1, SEEK_END), 3 * SIZE - 1);
    FAILS(fby_lseek(file, -3 * SIZE - 1, SEEK_END), EINVAL, "seek");
    FAILS(fby_lseek(file, 0, SEEK_SET), EINVAL, "no position");
    IS(write_at(file, &byte, 1, 2 * SIZE, 0), 1);
    IS(fby_fallocate(file, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, 2 * SIZE), 0);
    IS(fby_lseek(file, 0, SEEK_DATA), 2 * SIZE);
    IS(fby_lseek(file, 0, SEEK_HOLE), 0);
    FAILS(fby_lseek(file, 3 * SIZE, SEEK_DATA), ENXIO, "seek");
    FAILS(fby_fallocate(file, FALLOC_FL_COLLAPSE_RANGE, 0, 4096), EOPNOTSUPP, "mode 0x8");
    FAILS(fby_fallocate(file, FALLOC_FL_PUNCH_HOLE, 0, 4096), EOPNOTSUPP, "mode 0x2");
    FAILS(fby_fallocate(file, 0, 0, 0), EINVAL, "empty range");
    FAILS(fby_fallocate(file, 0, -1, 1), EINVAL, "offset -1");
    FAILS(fby_fallocate(file, 0, INT64_MAX, 2), EFBIG, "fallocate");
    FAILS(fby_ftruncate(file, -1), EINVAL, "offset -1");
    IS(fby_ftruncate(file, SIZE), 0);
    IS(fby_append(file, "end", 3, 0), SIZE);
    IS(read_at(file, block, sizeof block, SIZE, 0), 3);
    CHECK(memcmp(block, "end", 3) == 0);
    IS(fby_ftruncate(file, SIZE), 0);
}

/* The buffers of an append are gathered: as much as the budget at most. */
static void append_larger_than_the_budget_is_refused(fby_file *file) {
    const size_t length = 1u << 30;
    struct iovec many[1024];
    void *memory = mmap(NULL, length, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    CHECK(memory != MAP_FAILED);
    for (int i = 0; i < 1024; i++)
        many[i] = (struct iovec){memory, length};
    FAILS(fby_pwritev2(file, many, 1024, 0, FBY_RWF_APPEND), ENOMEM, "to gather, with a budget of");
    IS(fby_lseek(file, 0, SEEK_END), SIZE);
    CHECK(munmap(memory, length) == 0);
}

static void residency_and_advice(fby_file *file) {
    fby_residency_info info;
    static char buf[SIZE];
    IS(fby_fsync(file), 0);
    IS(fby_fadvise(file, 0, 0, POSIX_FADV_DONTNEED), 0);
    IS(read_at(file, buf, sizeof buf, 0, FBY_RWF_DONTCACHE), SIZE);
    IS(fby_residency(file, 0, 0, &info, sizeof info), sizeof info);
    CHECK(info.block_size == 4096 && info.total_blocks == 256 && info.resident_blocks == 0);
    IS(read_at(file, buf, 4096, 0, 0), 4096);
    IS(write_at(file, buf, 4096, 65536, 0), 4096);
    IS(fby_residency(file, 65536, 4096, &info, sizeof info), sizeof info);
    CHECK(info.total_blocks == 1 && info.resident_blocks == 1 && info.dirty_blocks == 1);
    IS(fby_fdatasync(file), 0);
    IS(fby_fadvise(file, 0, 0, POSIX_FADV_DONTNEED), 0);
    IS(fby_fadvise(file, 0, 0, POSIX_FADV_WILLNEED), 0);
    /* WILLNEED returns before the file is read. A busy machine gets 20 s for that. */
    for (int tries = 0; tries < 20000; tries++) {
        IS(fby_residency(file, 0, SIZE, &info, sizeof info), sizeof info);
        if (info.resident_blocks == 256)
            break;
        usleep(1000);
    }
    CHECK(info.resident_blocks == 256 && info.dirty_blocks == 0);
    IS(fby_fadvise(file, 0, 0, POSIX_FADV_NORMAL), 0);
    FAILS(fby_fadvise(file, 0, 0, POSIX_FADV_RANDOM), EOPNOTSUPP, "advice 1");
    FAILS(fby_fadvise(file, 0, 0, 77), EOPNOTSUPP, "advice 77");
    FAILS(fby_fadvise(file, -1, 0, 0), EINVAL, "offset -1");
}

static unsigned stat_mode(const char *name, struct stat *st) {
    CHECK(stat(name, st) == 0);
    return st->st_mode & 07777;
}

static void opens(fby_cache *cache, const char *folder) {
    const char *name = in_folder(folder, "other");
    fby_file *file = (fby_file *)&file;
    struct stat st;
    fby_open_how how = {0};
    char byte = 9;
    FAILS(fby_open(cache, name, O_RDONLY, NULL, 0, &file), ENOENT, name);
    CHECK(file == NULL);
    FAILS(fby_open(cache, name, O_RDWR | O_NOATIME, NULL, 0, &file), EOPNOTSUPP, "unknown flags");
    FAILS(fby_open(cache, name, O_WRONLY | O_RDWR, NULL, 0, &file), EOPNOTSUPP, "access mode");
    FAILS(fby_open(cache, name, O_CREAT, NULL, 0, &file), EINVAL, "create");
    FAILS(fby_open(cache, NULL, O_RDONLY, NULL, 0, &file), EFAULT, "path");
    FAILS(fby_open(cache, name, O_RDONLY, NULL, 0, NULL), EFAULT, "handle");
    FAILS(fby_open(cache, name, O_RDONLY, NULL, sizeof how, &file), EFAULT, "struct");
    how.mode = 0100600;
    FAILS(fby_open(cache, name, O_RDWR | O_CREAT, &how, sizeof how, &file), EINVAL, "mode 0o100600");
    how.mode = 0600;
    how.rwf = 1u << 30;
    FAILS(fby_open(cache, name, O_RDWR | O_CREAT, &how, sizeof how, &file), EOPNOTSUPP, "0x40000000");
    how.rwf = FBY_RWF_DONTCACHE;
    how.create_size = 8192;
    IS(fby_open(cache, name, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, &how, sizeof how, &file), 0);
    CHECK(stat_mode(name, &st) == 0600 && st.st_size == 8192);
    IS(fby_close(file), 0);
    FAILS(fby_open(cache, name, O_RDWR | O_CREAT | O_EXCL, NULL, 0, &file), EEXIST, name);
    CHECK(symlink(name, in_folder(folder, "link")) == 0);
    FAILS(fby_open(cache, in_folder(folder, "link"), O_RDWR | O_NOFOLLOW, NULL, 0, &file), ELOOP, "link");
    IS(fby_open(cache, name, O_WRONLY | O_TRUNC, NULL, 0, &file), 0);
    FAILS(read_at(file, &byte, 1, 0, 0), EBADF, "not opened");
    FAILS(read_at(file, &byte, 1, 0, 0), EBADF, name);
    IS(fby_close(file), 0);
    IS(fby_open(cache, name, O_RDWR | O_APPEND | O_DSYNC, NULL, 0, &file), 0);
    IS(write_at(file, &byte, 1, 1000, 0), 1);
    IS(fby_lseek(file, 0, SEEK_END), 1);
    IS(fby_close(file), 0);
    IS(fby_open(cache, name, O_RDONLY | O_SYNC, NULL, 0, &file), 0);
    IS(read_at(file, &byte, 1, 0, 0), 1);
    FAILS(write_at(file, &byte, 1, 0, 0), EBADF, "not opened");
    FAILS(fby_ftruncate(file, 0), EBADF, "not opened");
    IS(fby_close(file), 0);
}

/* open(2) of a FIFO waits for its other end; what is no image is refused before. */
static void fifo_is_refused(fby_cache *cache, const char *name) {
    fby_file *file;
    CHECK(mkfifo(name, 0644) == 0);
    alarm(60);
    FAILS(fby_open(cache, name, O_RDONLY, NULL, 0, &file), EINVAL, "neither a regular file nor");
    FAILS(fby_open(cache, name, O_RDWR, NULL, 0, &file), EINVAL, "neither a regular file nor");
    alarm(0);
}

/*
 * The one who makes a file has it open for writing, whatever its permissions are. Root may open any
 * file.
 */
static void permissions_are_for_later_openers(fby_cache *cache, const char *folder) {
    static const mode_t modes[] = {0444, 0400, 0200, 0040};
    const char *name = in_folder(folder, "readonly");
    fby_open_how how = {0};
    const uid_t own = geteuid();
    struct stat found;
    fby_file *file;
    CHECK(own || (chmod(folder, 0777) == 0 && seteuid(1000) == 0));
    for (size_t i = 0; i < sizeof modes / sizeof *modes; i++) {
        how.mode = modes[i];
        IS(fby_open(cache, name, O_RDWR | O_CREAT | O_EXCL, &how, sizeof how, &file), 0);
        IS(write_at(file, "text", 4, 0, 0), 4);
        IS(fby_fdatasync(file), 0);
        CHECK(stat(name, &found) == 0);
        IS(found.st_mode & 07777, how.mode);
        IS(fby_close(file), 0);
        CHECK(unlink(name) == 0);
    }
    CHECK(own || seteuid(0) == 0);
}

/* How it is to be opened, with a size that no version of the struct had. */
static void how_of_wrong_size_is_refused(fby_cache *cache, const char *name) {
    fby_open_how how = {0};
    fby_file *file;
    FAILS(fby_open(cache, name, O_RDWR, &how, 0, &file), EINVAL, "never shorter than 40");
    FAILS(fby_open(cache, name, O_RDWR, &how, sizeof &how, &file), EINVAL, "8 bytes, and it was never");
}

int main(int argc, char **argv) {
    const char *folder = argv[1];
    fby_cache *cache = small_cache();
    fby_file *file;
    fby_open_how how = {0};
    CHECK(argc == 2);
    how.create_size = SIZE;
    IS(fby_open(cache, in_folder(folder, "file"), O_RDWR | O_CREAT, &how, sizeof how, &file), 0);
    reads_and_writes(file);
    flags(file);
    sizes_and_ranges(file);
    append_larger_than_the_budget_is_refused(file);
    residency_and_advice(file);
    opens(cache, folder);
    fifo_is_refused(cache, in_folder(folder, "fifo"));
    permissions_are_for_later_openers(cache, folder);
    how_of_wrong_size_is_refused(cache, in_folder(folder, "any"));
    FAILS(fby_cache_close(cache), EBUSY, "1 files");
    IS(fby_close(file), 0);
    IS(fby_cache_close(cache), 0);
    return 0;
}
