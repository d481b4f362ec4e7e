/* A volume: made, opened, its names and files, what is refused. */
#include "check.h"
#include <dirent.h>

static void names(fby_volume *volume) {
    fby_attr attr;
    fby_dirent entry;
    fby_dir *dir;
    fby_file *file;
    int64_t got;
    int seen = 0;
    IS(fby_mkdir(volume, "/d", 01750), 0);
    IS(fby_stat(volume, "/d", 0, &attr, sizeof attr), sizeof attr);
    CHECK(attr.mode == (040000 | 01750) && attr.nlink == 2 && attr.mask == 0xfff);
    FAILS(fby_mkdir(volume, "/d", 0755), EEXIST, "/d");
    FAILS(fby_mkdir(volume, "/x", 0100755), EINVAL, "mode");
    FAILS(fby_mkdir(volume, NULL, 0755), EFAULT, "path");
    FAILS(fby_mkdir(volume, "", 0755), ENOENT, "fby_mkdir");
    IS(fby_open_in(volume, "/d/f", O_RDWR | O_CREAT, NULL, 0, &file), 0);
    IS(write_at(file, "hello", 5, 0, 0), 5);
    IS(fby_append(file, " world", 6, FBY_RWF_DSYNC), 5);
    IS(fby_statx(file, &attr, sizeof attr), sizeof attr);
    CHECK(attr.size == 11 && attr.ino != 0 && (attr.mode & 07777) == 0644 && attr.mtime.sec > 0);
    IS(fby_close(file), 0);
    IS(fby_rename(volume, "/d/f", "/d/g", 0), 0);
    FAILS(fby_rename(volume, "/d/f", "/d/h", 0), ENOENT, "`f`");
    FAILS(fby_rename(volume, "/d/g", "/d/g", 4), EOPNOTSUPP, "unknown flags 0x4");
    FAILS(fby_rename(volume, "/d/g", "/d/g", 3), EINVAL, "rename");
    FAILS(fby_rename(volume, "/d/g", NULL, 0), EFAULT, "path");
    IS(fby_mkdir(volume, "/d/e", 0755), 0);
    FAILS(fby_rename(volume, "/d/g", "/d/e", 1), EEXIST, "/d/e");
    FAILS(fby_stat(volume, "/d/g", 1, &attr, sizeof attr), EOPNOTSUPP, "unknown flags");
    IS(fby_stat(volume, "/d/g", AT_SYMLINK_NOFOLLOW, &attr, sizeof attr), sizeof attr);
    FAILS(fby_opendir(volume, "/d/g", &dir), ENOTDIR, "/d/g");
    CHECK(dir == NULL);
    IS(fby_opendir(volume, "/d", &dir), 0);
    while ((got = fby_readdir(dir, &entry, sizeof entry)) > 0) {
        IS(got, sizeof entry);
        CHECK(strlen(entry.name) == entry.name_length);
        seen += strcmp(entry.name, "g") == 0 && entry.kind == DT_REG;
        seen += strcmp(entry.name, "e") == 0 && entry.kind == DT_DIR ? 10 : 0;
    }
    IS(got, 0);
    IS(seen, 11);
    IS(fby_readdir(dir, &entry, sizeof entry), 0);
    FAILS(fby_readdir(dir, NULL, 0), EFAULT, "readdir");
    FAILS(fby_volume_close(volume), EBUSY, "1 files or directories");
    IS(fby_closedir(dir), 0);
    FAILS(fby_rmdir(volume, "/d"), ENOTEMPTY, "/d");
    FAILS(fby_unlink(volume, "/d/e"), EISDIR, "/d/e");
    IS(fby_rmdir(volume, "/d/e"), 0);
    FAILS(fby_open_in(volume, "/d", O_RDWR, NULL, 0, &file), EISDIR, "/d");
    IS(fby_open_in(volume, "/d", O_RDONLY, NULL, 0, &file), 0);
    IS(fby_statx(file, &attr, sizeof attr), sizeof attr);
    IS(fby_fsync(file), 0);
    IS(fby_close(file), 0);
}

int main(int argc, char **argv) {
    const char *folder = argv[1], *image = in_folder(folder, "volume");
    fby_cache *cache = small_cache(), *other = small_cache();
    fby_volume *volume, *again;
    fby_volume_config config = {0};
    fby_volume_how how = {0};
    fby_open_how open_how = {0};
    fby_file *file;
    fby_attr attr;
    char back[16] = {0};
    CHECK(argc == 2);
    FAILS(fby_volume_create(image, NULL, 0), EINVAL, "needs a size");
    config.size = 32u << 20;
    config.flags = 1u << 9;
    FAILS(fby_volume_create(image, &config, sizeof config), EOPNOTSUPP, "0x200");
    config.flags = 0;
    config.reserved = 1;
    FAILS(fby_volume_create(image, &config, sizeof config), EINVAL, "reserved");
    config.reserved = 0;
    IS(fby_volume_create(image, &config, sizeof config), 0);
    FAILS(fby_volume_create(image, &config, sizeof config), EEXIST, image);
    config.flags = FBY_VOLUME_FORCE;
    IS(fby_volume_create(image, &config, sizeof config), 0);
    how.flags = 8;
    FAILS(fby_volume_open(cache, image, &how, sizeof how, &volume), EOPNOTSUPP, "0x8");
    how.flags = 0;
    how.direct_io = 3;
    FAILS(fby_volume_open(cache, image, &how, sizeof how, &volume), EINVAL, "direct I/O");
    FAILS(fby_volume_open(cache, in_folder(folder, "none"), NULL, 0, &volume), ENOENT, "none");
    IS(fby_volume_open(cache, image, NULL, 0, &volume), 0);
    FAILS(fby_volume_open(cache, image, NULL, 0, &again), EBUSY, "use that handle");
    FAILS(fby_volume_open(other, image, NULL, 0, &again), EBUSY, image);
    names(volume);
    open_how.block_size = 512;
    FAILS(fby_open_in(volume, "/d/g", O_RDWR, &open_how, sizeof open_how, &file), EINVAL, "block_size");
    IS(fby_volume_sync(volume), 0);
    FAILS(fby_cache_close(cache), EBUSY, "1 files, directories, volumes or pins");
    IS(fby_volume_close(volume), 0);

    how.direct_io = FBY_DIRECT_IO_OFF;
    how.flags = FBY_VOLUME_READ_ONLY;
    IS(fby_volume_open(cache, image, &how, sizeof how, &volume), 0);
    IS(fby_open_in(volume, "/d/g", O_RDONLY, NULL, 0, &file), 0);
    IS(read_at(file, back, sizeof back, 0, 0), 11);
    CHECK(strcmp(back, "hello world") == 0);
    FAILS(fby_unlink(volume, "/d/g"), EROFS, "/d/g");
    IS(fby_close(file), 0);
    IS(fby_volume_close(volume), 0);

    IS(fby_volume_open(other, image, NULL, 0, &volume), 0);
    IS(fby_open_in(volume, "/d/g", O_RDWR, NULL, 0, &file), 0);
    IS(fby_unlink(volume, "/d/g"), 0);
    FAILS(fby_stat(volume, "/d/g", 0, &attr, sizeof attr), ENOENT, "/d/g");
    IS(read_at(file, back, sizeof back, 0, FBY_RWF_DONTCACHE), 11);
    IS(fby_close(file), 0);
    IS(fby_volume_close(volume), 0);
    IS(fby_cache_close(other), 0);
    IS(fby_cache_close(cache), 0);
    return 0;
}
