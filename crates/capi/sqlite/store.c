/*
 * The cache of the process, its volumes and nodes, and how a file of either kind is reached.
 *
 * A name with "//" in it is a file of a volume: the image, then the path. xFullPathname makes such
 * names, and a host's full name has no "//", so journals and super-journals find their volume.
 *
 * Lock: `all.mutex` over the cache, the lists of volumes and nodes, and their counts of users. The
 * mutex of a node is inside it.
 */
#include "internal.h"
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* Bytes of the cache unless the first name says otherwise. */
#define BUDGET_DEFAULT (64ull << 20)

static struct {
    pthread_mutex_t mutex;
    fby_cache *cache;
    int is_callers;
    int files;
    /* Whether a file of the host was ever closed with dirty data that could not be written. */
    int has_failed_close;
    pid_t process;
    Store *stores;
    Node *nodes;
} all = {PTHREAD_MUTEX_INITIALIZER, NULL, 0, 0, 0, 0, NULL, NULL};

int failed(File *file, int64_t result, int code, const char *name) {
    int error = (int)-result;
    if (file)
        file->last_errno = error;
    if (error == ENOMEM)
        code = SQLITE_IOERR_NOMEM;
    else if (error == EUCLEAN && code == SQLITE_IOERR_READ)
        code = SQLITE_IOERR_DATA;
    else if ((error == ENOSPC || error == EDQUOT || error == EFBIG) &&
             (code == SQLITE_IOERR_WRITE || code == SQLITE_IOERR_TRUNCATE))
        code = SQLITE_FULL;
    else if (error == EBUSY && (code == SQLITE_CANTOPEN || code == SQLITE_IOERR_ACCESS))
        code = SQLITE_BUSY;
    if (code != SQLITE_BUSY && !(code == SQLITE_CANTOPEN && error == ENOENT))
        sqlite3_log(code, "forebay: %s: %s", name, fby_last_error());
    return code;
}

/* In a child of fork(2) what the parent made is of no use, and its memory is left alone. */
static void lock_all(void) {
    if (all.process && all.process != getpid()) {
        pthread_mutex_t fresh = PTHREAD_MUTEX_INITIALIZER;
        memset(&all, 0, sizeof all);
        all.mutex = fresh;
    }
    pthread_mutex_lock(&all.mutex);
    all.process = getpid();
}

static void unlock_all(void) {
    pthread_mutex_unlock(&all.mutex);
}

/* "64M" in bytes; 0 for what makes no sense. */
static uint64_t bytes_of(const char *text) {
    static const char units[] = "kKmMgG";
    char *end;
    const char *unit;
    unsigned shift = 0;
    errno = 0;
    unsigned long long value = strtoull(text, &end, 10);
    if (errno || end == text || *text == '-')
        return 0;
    if (*end && (unit = strchr(units, *end)) != NULL) {
        shift = 10u * (unsigned)((unit - units) / 2 + 1);
        end++;
    }
    return *end || value > (UINT64_MAX >> shift) ? 0 : (uint64_t)value << shift;
}

static int make_cache(uint64_t bytes) {
    fby_cache_config config;
    int result;
    memset(&config, 0, sizeof config);
    config.budget = bytes ? bytes : BUDGET_DEFAULT;
    result = fby_cache_create(&config, sizeof config, &all.cache);
    return result < 0 ? failed(NULL, result, SQLITE_CANTOPEN, "cache") : SQLITE_OK;
}

int store_enter(const char *budget) {
    uint64_t bytes = budget ? bytes_of(budget) : 0;
    int result = SQLITE_OK;
    if (budget && !bytes) {
        sqlite3_log(SQLITE_CANTOPEN, "forebay: budget=%s makes no sense", budget);
        return SQLITE_CANTOPEN;
    }
    lock_all();
    if (!all.cache) {
        result = make_cache(bytes);
    } else if (bytes && !all.is_callers) {
        fby_stats now;
        int64_t got = fby_cache_stats(all.cache, &now, sizeof now);
        if (got >= 0 && now.budget_bytes != bytes)
            got = fby_cache_resize(all.cache, bytes);
        if (got < 0)
            result = failed(NULL, got, SQLITE_CANTOPEN, "cache");
    }
    unlock_all();
    return result;
}

int forebay_sqlite_use_cache(fby_cache *cache) {
    int result = SQLITE_BUSY;
    lock_all();
    if (!all.cache) {
        all.cache = cache;
        all.is_callers = 1;
        result = SQLITE_OK;
    }
    unlock_all();
    return result;
}

fby_cache *forebay_sqlite_cache(void) {
    fby_cache *cache;
    lock_all();
    cache = all.cache;
    unlock_all();
    return cache;
}

int forebay_sqlite_shutdown(void) {
    int result = SQLITE_OK;
    lock_all();
    if (all.files || all.stores) {
        result = SQLITE_BUSY;
    } else if (all.cache) {
        int closed = all.is_callers ? 0 : fby_cache_close(all.cache);
        if (closed < 0)
            result = failed(NULL, closed, closed == -EBUSY ? SQLITE_BUSY : SQLITE_IOERR_CLOSE, "cache");
        if (closed != -EBUSY)
            all.cache = NULL;
        all.is_callers = 0;
    }
    unlock_all();
    return result;
}

/* The path in a volume, which begins with "/"; NULL for a file of the host. */
static const char *inner_of(const char *name) {
    const char *found = strstr(name, "//");
    return found ? found + 1 : NULL;
}

int store_is_in_volume(const char *name) {
    return inner_of(name) != NULL;
}

/* The volume that a name is in, opened unless it is: -errno, and no user more then. */
static int hold_store(const char *name, int is_buffered, Store **held) {
    fby_volume_how how;
    size_t length = (size_t)(inner_of(name) - 1 - name);
    Store *store;
    int result;
    for (store = all.stores; store; store = store->next) {
        if (strncmp(store->image, name, length) == 0 && !store->image[length]) {
            store->users++;
            *held = store;
            return 0;
        }
    }
    store = calloc(1, sizeof *store + length + 1);
    if (!store)
        return -ENOMEM;
    store->image = memcpy(store + 1, name, length);
    memset(&how, 0, sizeof how);
    how.direct_io = is_buffered ? FBY_DIRECT_IO_OFF : FBY_DIRECT_IO_AUTO;
    result = fby_volume_open(all.cache, store->image, &how, sizeof how, &store->volume);
    if (result < 0) {
        free(store);
        return result;
    }
    store->users = 1;
    store->next = all.stores;
    all.stores = store;
    *held = store;
    return 0;
}

static int end_store(Store *store) {
    Store **at = &all.stores;
    int result;
    if (--store->users > 0)
        return 0;
    while (*at != store)
        at = &(*at)->next;
    *at = store->next;
    result = fby_volume_close(store->volume);
    free(store);
    return result;
}

int store_make_volume(const char *name, sqlite3_int64 bytes) {
    fby_volume_config config;
    struct stat found;
    char *image = strdup(name);
    int result = 0;
    if (!image)
        return SQLITE_NOMEM;
    image[inner_of(name) - 1 - name] = 0;
    memset(&config, 0, sizeof config);
    config.size = (uint64_t)bytes;
    if (stat(image, &found) != 0 && errno == ENOENT)
        result = fby_volume_create(image, &config, sizeof config);
    free(image);
    return result < 0 && result != -EEXIST ? failed(NULL, result, SQLITE_CANTOPEN, name) : SQLITE_OK;
}

/* Device and inode of an open file. */
static int identity(const File *file, uint64_t *dev, uint64_t *ino) {
    struct stat host;
    fby_attr attr;
    if (file->store) {
        int64_t got = fby_statx(file->file, &attr, sizeof attr);
        *dev = 0;
        *ino = got < 0 ? 0 : attr.ino;
        return got < 0 ? (int)got : 0;
    }
    if (stat(file->name, &host) != 0)
        return -errno;
    *dev = host.st_dev;
    *ino = host.st_ino;
    return 0;
}

static int hold_node(File *file) {
    uint64_t dev, ino;
    Node *node;
    int result = identity(file, &dev, &ino);
    if (result < 0)
        return result;
    for (node = all.nodes; node; node = node->next)
        if (node->store == file->store && node->dev == dev && node->ino == ino)
            break;
    if (!node) {
        size_t space = strlen(file->name) + 1;
        node = calloc(1, sizeof *node + space);
        if (!node)
            return -ENOMEM;
        node->name = memcpy(node + 1, file->name, space);
        pthread_mutex_init(&node->mutex, NULL);
        node->store = file->store;
        node->dev = dev;
        node->ino = ino;
        node->next = all.nodes;
        all.nodes = node;
    }
    node->users++;
    file->node = node;
    return 0;
}

static void end_node(Node *node) {
    Node **at = &all.nodes;
    if (--node->users > 0)
        return;
    while (*at != node)
        at = &(*at)->next;
    *at = node->next;
    pthread_mutex_destroy(&node->mutex);
    free(node);
}

/* The node of the database of a rollback journal, NULL for another name. Needs the lock. */
static Node *database_of(const char *journal) {
    static const char suffix[] = "-journal";
    size_t length = strlen(journal);
    Node *node = all.nodes;
    if (length < sizeof suffix || strcmp(journal + length - (sizeof suffix - 1), suffix) != 0)
        return NULL;
    length -= sizeof suffix - 1;
    while (node && (strncmp(node->name, journal, length) != 0 || node->name[length]))
        node = node->next;
    return node;
}

int store_is_journal_durable(const char *journal) {
    Node *node;
    int is_durable;
    lock_all();
    node = database_of(journal);
    is_durable = node && node->is_journal_durable;
    unlock_all();
    return is_durable;
}

void store_note_journal(const char *journal, int is_durable) {
    Node *node;
    lock_all();
    node = database_of(journal);
    if (node)
        node->is_journal_durable = is_durable;
    unlock_all();
}

static int open_by_name(File *file, int flags) {
    const char *inner = inner_of(file->name);
    fby_open_how how;
    memset(&how, 0, sizeof how);
    how.mode = file->mode;
    if (inner)
        return fby_open_in(file->store->volume, inner, flags, &how, sizeof how, &file->file);
    return fby_open(all.cache, file->name, flags, &how, sizeof how, &file->file);
}

static int open_held(File *file) {
    int result = open_by_name(file, file->how);
    int refused = result == -EACCES || result == -EPERM || result == -EROFS;
    if (refused && (file->how & O_ACCMODE) == O_RDWR) {
        int how = (file->how & ~(O_ACCMODE | O_CREAT | O_EXCL)) | O_RDONLY;
        int again = open_by_name(file, how);
        if (again < 0 && again != -EBUSY)
            return result;
        /* Also while it is busy: the opener learns now that it may not write. */
        file->how = how;
        result = again;
    }
    if (result == 0 && (result = hold_node(file)) < 0) {
        fby_close(file->file);
        file->file = NULL;
    }
    return result;
}

/*
 * In a volume a symbolic link leads to a file whose other openers look for a journal of another
 * name. On the host xFullPathname has followed it.
 */
static int is_link(const File *file) {
    fby_attr attr;
    int64_t got = fby_stat(file->store->volume, inner_of(file->name), AT_SYMLINK_NOFOLLOW, &attr, sizeof attr);
    return got >= 0 && S_ISLNK(attr.mode);
}

int store_open(File *file) {
    int result = 0, refused = 0;
    lock_all();
    if (inner_of(file->name))
        result = hold_store(file->name, !sqlite3_uri_boolean(file->name, "direct_io", 1), &file->store);
    if (file->store && is_link(file))
        result = refused = -ELOOP;
    if (result == 0)
        result = open_held(file);
    if (result < 0 && file->store) {
        end_store(file->store);
        file->store = NULL;
    }
    all.files += result == 0;
    file->process = all.process;
    unlock_all();
    if (refused) {
        sqlite3_log(SQLITE_CANTOPEN_SYMLINK, "forebay: %s is a symbolic link", file->name);
        return SQLITE_CANTOPEN_SYMLINK;
    }
    return result < 0 ? failed(file, result, SQLITE_CANTOPEN, file->name) : SQLITE_OK;
}

int store_is_parents(const File *file) {
    return file->file && file->process != getpid();
}

int store_close(File *file) {
    int closed = fby_close(file->file), ended = 0;
    file->file = NULL;
    lock_all();
    end_node(file->node);
    if (file->store)
        ended = end_store(file->store);
    else if (closed < 0)
        all.has_failed_close = 1;
    all.files--;
    unlock_all();
    file->node = NULL;
    if (closed < 0 || ended < 0)
        return failed(file, closed < 0 ? closed : ended, SQLITE_IOERR_CLOSE, file->name);
    return SQLITE_OK;
}

/*
 * The cache retains what a closed file could not write, and tries again, also when the name is gone:
 * a journal that found no space would keep its space, and its failures would refuse later writes.
 */
static void drop_failed_content(const char *name) {
    fby_file *file;
    lock_all();
    if (all.has_failed_close && fby_open(all.cache, name, O_RDWR, NULL, 0, &file) == 0) {
        fby_ftruncate(file, 0);
        fby_close(file);
    }
    unlock_all();
}

int store_delete(const char *name) {
    const char *inner = inner_of(name);
    Store *store;
    int result;
    if (inner) {
        lock_all();
        result = hold_store(name, 0, &store);
        if (result == 0) {
            result = fby_unlink(store->volume, inner);
            end_store(store);
        }
        unlock_all();
    } else {
        drop_failed_content(name);
        result = unlink(name) == 0 ? 0 : -errno;
    }
    if (result == -ENOENT)
        return SQLITE_IOERR_DELETE_NOENT;
    return result < 0 ? failed(NULL, result, SQLITE_IOERR_DELETE, name) : SQLITE_OK;
}

/*
 * What the cache knows of a file whose size on the host is 0: its first bytes may be dirty. The
 * lock is held throughout: a writer of this process would find the file busy, open for reading only.
 */
static int64_t cached_size(const char *name) {
    fby_file *file;
    int64_t size = 0;
    lock_all();
    if (all.cache && (size = fby_open(all.cache, name, O_RDONLY, NULL, 0, &file)) == 0) {
        size = fby_lseek(file, 0, SEEK_END);
        fby_close(file);
    }
    unlock_all();
    return size;
}

static int64_t attributes_in(const char *name, fby_attr *attr) {
    Store *store;
    int64_t got;
    lock_all();
    got = hold_store(name, 0, &store);
    if (got == 0) {
        got = fby_stat(store->volume, inner_of(name), 0, attr, sizeof *attr);
        end_store(store);
    }
    unlock_all();
    return got;
}

void store_take_mode(File *file, const char *database) {
    struct stat found;
    fby_attr attr;
    if (inner_of(database)) {
        if (attributes_in(database, &attr) >= 0)
            file->mode = attr.mode & 0777;
    } else if (stat(database, &found) == 0) {
        file->mode = found.st_mode & 0777;
    }
}

/* The umask has no part in it: users who share a database recover each other's journals. */
int store_take_owner(const File *file, const char *database) {
    struct stat found, own;
    if (inner_of(database) || stat(database, &found) != 0 || stat(file->name, &own) != 0)
        return SQLITE_OK;
    if (geteuid() == 0 && (own.st_uid != found.st_uid || own.st_gid != found.st_gid) &&
        chown(file->name, found.st_uid, found.st_gid) != 0)
        return failed(NULL, -errno, SQLITE_CANTOPEN, file->name);
    if ((own.st_mode ^ found.st_mode) & 0777 && chmod(file->name, found.st_mode & 0777) != 0)
        return failed(NULL, -errno, SQLITE_CANTOPEN, file->name);
    return SQLITE_OK;
}

static int access_in(const char *name, int flags, int *result) {
    fby_attr attr;
    int64_t got = attributes_in(name, &attr);
    *result = got >= 0 && (flags != SQLITE_ACCESS_EXISTS || !S_ISREG(attr.mode) || attr.size > 0);
    if (got >= 0 || got == -ENOENT || got == -ENOTDIR)
        return SQLITE_OK;
    return failed(NULL, got, SQLITE_IOERR_ACCESS, name);
}

/* An empty file counts as none: it is a journal whose transaction is over. */
int store_access(const char *name, int flags, int *result) {
    struct stat found;
    int64_t size = 0;
    *result = 0;
    if (inner_of(name))
        return access_in(name, flags, result);
    if (flags != SQLITE_ACCESS_EXISTS) {
        *result = access(name, R_OK | (flags == SQLITE_ACCESS_READWRITE ? W_OK : 0)) == 0;
        return SQLITE_OK;
    }
    if (stat(name, &found) != 0)
        return SQLITE_OK;
    if (S_ISREG(found.st_mode) && found.st_size == 0)
        size = cached_size(name);
    /* Gone since, or a file that this process may not read: then it has written none of it. */
    if (size < 0 && size != -ENOENT && size != -EACCES)
        return failed(NULL, size, SQLITE_IOERR_ACCESS, name);
    *result = !S_ISREG(found.st_mode) || found.st_size > 0 || size > 0;
    return SQLITE_OK;
}

/* Of a volume: syncs a directory as a file that is opened. */
static int sync_in(const char *name, const char *folder) {
    Store *store;
    fby_file *file;
    int result;
    lock_all();
    result = hold_store(name, 0, &store);
    if (result == 0) {
        result = fby_open_in(store->volume, folder, O_RDONLY, NULL, 0, &file);
        if (result == 0) {
            result = fby_fsync(file);
            fby_close(file);
        }
        end_store(store);
    }
    unlock_all();
    return result;
}

static int sync_host(const char *folder) {
    int result = 0, file = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
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
    return result < 0 ? failed(NULL, result, SQLITE_IOERR_DIR_FSYNC, name) : SQLITE_OK;
}

/* Whether the name is that of another file now, or of none. */
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
    return host.st_dev != file->node->dev || host.st_ino != file->node->ino;
}
