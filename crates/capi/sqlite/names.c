/* What the VFS does with names: attributes, access, deletion, syncs of folders. */
#include "internal.h"
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* Permissions of a new database, less the umask: as SQLite's own VFS has it. */
#define DATABASE_MODE 0644

static int is_log(const char *name) {
    static const char suffix[] = "-wal";
    size_t length = strlen(name);
    return length >= sizeof suffix && strcmp(name + length - (sizeof suffix - 1), suffix) == 0;
}

/*
 * The cache keeps bytes that a closed file could not write, and tries again, also after the file
 * lost its name. So a log that found no space is truncated before it is deleted. Otherwise its
 * bytes would keep space, and their failures would refuse later writes.
 */
static void drop_failed_content(const char *name) {
    fby_cache *cache;
    fby_file *file;
    Turn turn;
    if (!store_has_failed_close())
        return;
    cache = turn_take(&turn, name);
    if (cache && fby_open(cache, name, O_RDWR | O_NOFOLLOW, NULL, 0, &file) == 0) {
        fby_ftruncate(file, 0);
        fby_close(file);
    }
    turn_end(&turn);
}

int store_delete(const char *name) {
    const char *inner = inner_of(name);
    Store *store;
    int result;
    if (store_is_journal_of_parent(name))
        return SQLITE_IOERR_DELETE;
    if (inner) {
        result = store_hold(name, HOLD_OPEN, &store);
        if (result == 0) {
            result = fby_unlink(store->volume, inner);
            store_end(store);
        }
    } else {
        /* SQLite's own VFS writes rollback journals, so the cache has none of their bytes. */
        if (is_log(name))
            drop_failed_content(name);
        result = unlink(name) == 0 ? 0 : -errno;
    }
    if (result == -ENOENT)
        return SQLITE_IOERR_DELETE_NOENT;
    if (result < 0 && !inner)
        return failed_on_host(result, SQLITE_IOERR_DELETE, name);
    return result < 0 ? failed(NULL, result, SQLITE_IOERR_DELETE, name) : SQLITE_OK;
}

/*
 * Size of a log in the cache, or -errno: while it is 0 on the host, its first bytes may be dirty.
 * The call takes the turn of the name, because a writer of this process would find the file busy
 * while it is open for reading only.
 */
static int64_t cached_size(const char *name) {
    Turn turn;
    fby_file *file;
    fby_cache *cache = turn_take(&turn, name);
    int64_t size = 0;
    if (cache && (size = fby_open(cache, name, O_RDONLY | O_NOFOLLOW, NULL, 0, &file)) == 0) {
        size = fby_lseek(file, 0, SEEK_END);
        fby_close(file);
    }
    turn_end(&turn);
    return size;
}

static int64_t attributes_in(const char *name, Hold how, fby_attr *attr) {
    Store *store;
    int64_t got = store_hold(name, how, &store);
    if (got == 0) {
        got = fby_stat(store->volume, inner_of(name), 0, attr, sizeof *attr);
        store_end(store);
    }
    return got;
}

void store_take_mode(File *file, const char *database) {
    fby_attr attr;
    if (attributes_in(database, HOLD_OPEN, &attr) >= 0)
        file->mode = attr.mode & 0777;
}

/*
 * Gives a journal the owner and the permissions of its database, whatever the umask: users who
 * share a database recover each other's journals.
 */
static int take_owner(int file, const struct stat *database) {
    struct stat own;
    if (fstat(file, &own) != 0)
        return -errno;
    if (geteuid() == 0 && (own.st_uid != database->st_uid || own.st_gid != database->st_gid) &&
        fchown(file, database->st_uid, database->st_gid) != 0)
        return -errno;
    if ((own.st_mode ^ database->st_mode) & 0777 && fchmod(file, database->st_mode & 0777) != 0)
        return -errno;
    return 0;
}

/*
 * Removes the name of a file that was just made, unless another file has that name by now. If the
 * file's attributes cannot be read it removes the name anyway: only a user who may remove files
 * from the folder can have put another one there.
 */
static void unmake(const char *name, int file) {
    struct stat own, found;
    if (fstat(file, &own) != 0 || (lstat(name, &found) == 0 && own.st_dev == found.st_dev &&
                                   own.st_ino == found.st_ino))
        unlink(name);
}

/*
 * O_EXCL follows no link. The owner of the folder can replace the new file, so its owner and
 * permissions are changed by descriptor. A journal that the owner of its database could not open
 * would keep that user out of the database, so none is left behind.
 */
static int make_file(const char *name, mode_t mode, const struct stat *database, Made *made) {
    const int how = O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC;
    int file, result = 0;
    do
        file = open(name, how, mode);
    while (file < 0 && errno == EINTR);
    if (file < 0 && errno == EEXIST) {
        *made = MADE_BEFORE;
        return SQLITE_OK;
    }
    if (file < 0)
        return failed_on_host(-errno, SQLITE_CANTOPEN, name);
    if (database)
        result = take_owner(file, database);
    if (result < 0)
        unmake(name, file);
    close(file);
    *made = result < 0 ? MADE_REFUSED : MADE_NOW;
    return result < 0 ? failed_on_host(result, SQLITE_PERM, name) : SQLITE_OK;
}

/*
 * Takes the turn of the name. Otherwise another connection of this process could open the file
 * before its name is removed again, and its transactions would go to a log that has no name.
 */
int store_make_file(const char *name, const char *database, Made *made) {
    struct stat found;
    Turn turn;
    int result;
    *made = MADE_NOT;
    if (database && stat(database, &found) != 0)
        return failed_on_host(-errno, SQLITE_IOERR_FSTAT, database);
    turn_take(&turn, name);
    if (database)
        result = make_file(name, found.st_mode & 0777, &found, made);
    else
        result = make_file(name, DATABASE_MODE, NULL, made);
    turn_end(&turn);
    return result;
}

static int access_in(const char *name, int flags, Hold how, int *result) {
    fby_attr attr;
    int64_t got = attributes_in(name, how, &attr);
    *result = got >= 0 && (flags != SQLITE_ACCESS_EXISTS || !S_ISREG(attr.mode) || attr.size > 0);
    if (got >= 0 || got == -ENOENT || got == -ENOTDIR)
        return SQLITE_OK;
    return failed(NULL, got, SQLITE_IOERR_ACCESS, name);
}

/* An empty file counts as none: it is a journal whose transaction is over. */
int store_access(const char *name, int flags, Hold how, int *result) {
    struct stat found;
    int64_t size = 0;
    *result = 0;
    if (inner_of(name))
        return access_in(name, flags, how, result);
    if (flags != SQLITE_ACCESS_EXISTS) {
        *result = access(name, R_OK | (flags == SQLITE_ACCESS_READWRITE ? W_OK : 0)) == 0;
        return SQLITE_OK;
    }
    if (stat(name, &found) != 0)
        return SQLITE_OK;
    if (S_ISREG(found.st_mode) && found.st_size == 0 && is_log(name))
        size = cached_size(name);
    /* The file is gone since, or this process may not read it and so has written none of it. */
    if (size < 0 && size != -ENOENT && size != -EACCES)
        return failed(NULL, size, SQLITE_IOERR_ACCESS, name);
    *result = !S_ISREG(found.st_mode) || found.st_size > 0 || size > 0;
    return SQLITE_OK;
}

/* Syncs a directory of a volume, which is opened as a file for that. */
static int sync_in(const char *name, const char *folder) {
    Store *store;
    fby_file *file;
    int result = store_hold(name, HOLD_OPEN, &store);
    if (result < 0)
        return result;
    result = fby_open_in(store->volume, folder, O_RDONLY, NULL, 0, &file);
    if (result == 0) {
        result = fby_fsync(file);
        fby_close(file);
    }
    store_end(store);
    return result;
}

static int sync_host(const char *folder) {
    int result = 0, file = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (file < 0 && errno == EACCES) {
        /*
         * Without the right to read the folder it has no descriptor to sync: everything is synced.
         */
        sync();
        return 0;
    }
    if (file < 0)
        return -errno;
    if (fsync(file) != 0)
        result = -errno;
    close(file);
    return result;
}

int store_sync_directory(const char *name) {
    const char *inner = inner_of(name);
    char *folder = strdup(inner ? inner : name);
    char *last = folder ? strrchr(folder, '/') : NULL;
    int result;
    if (!last) {
        free(folder);
        return SQLITE_IOERR_DIR_FSYNC;
    }
    last[last == folder] = 0;
    result = inner ? sync_in(name, folder) : sync_host(folder);
    free(folder);
    if (result < 0 && !inner)
        return failed_on_host(result, SQLITE_IOERR_DIR_FSYNC, name);
    return result < 0 ? failed(NULL, result, SQLITE_IOERR_DIR_FSYNC, name) : SQLITE_OK;
}

/* Whether another file has the name now, or no file has it. */
int store_has_moved(const File *file) {
    struct stat host;
    fby_attr attr;
    if (!file->node)
        return 0;
    if (file->store) {
        const char *inner = inner_of(file->name);
        int64_t got = fby_stat(file->store->volume, inner, 0, &attr, sizeof attr);
        return got < 0 || attr.ino != file->node->ino;
    }
    if (stat(file->name, &host) != 0)
        return 1;
    /* libforebay identifies a block device by its number, whatever name it has. */
    if (S_ISBLK(host.st_mode))
        return file->node->dev != host.st_rdev || file->node->ino != 0;
    return host.st_dev != file->node->dev || host.st_ino != file->node->ino;
}
