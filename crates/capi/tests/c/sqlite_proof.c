/*
 * Makes this VFS the default one of a program that its author did not write for it: SQLite's own
 * tests and benches. SQLite calls forebay_proof_init() once it is initialised, if it was compiled
 * with -DSQLITE_EXTRA_INIT=forebay_proof_init. scripts/sqlite-proof does that.
 *
 *   FOREBAY_PROOF_VFS=forebay   this VFS is the default; otherwise SQLite's own is
 *   FOREBAY_PROOF_FETCH=0       leaves PRAGMA mmap_size as SQLite has it
 *   FOREBAY_PROOF_THROUGH=1     each write is synced at once: many of SQLite's tests look at files
 *                               on the host, which dirty data of a cache has not reached
 *
 * With -DSQLITE_TEST a layer above the VFS also has what those tests expect of SQLite's own VFS:
 * counts of syncs and open files, and errors and full disks on demand.
 */
#include "sqlite/internal.h"
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

int forebay_proof_init(const char *unused);

static int is_set(const char *name, const char *value) {
    const char *found = getenv(name);
    return found && strcmp(found, value) == 0;
}

#ifdef SQLITE_TEST
extern int sqlite3_io_error_pending, sqlite3_io_error_hit, sqlite3_io_error_hardhit;
extern int sqlite3_io_error_persist, sqlite3_io_error_benign;
extern int sqlite3_diskfull_pending, sqlite3_diskfull;
extern int sqlite3_sync_count, sqlite3_fullsync_count, sqlite3_open_file_count;

static const sqlite3_io_methods *below;
static sqlite3_io_methods methods;
static sqlite3_vfs layer, *under;
static int writes_through;

/* Not by xSync, which also syncs a new file's name: the tests count that. */
static int through(sqlite3_file *file, int result) {
    if (result == SQLITE_OK && writes_through && fby_fdatasync(((File *)file)->file) < 0)
        return SQLITE_IOERR_FSYNC;
    return result;
}

/* Whether this call fails: the tests count down to it. */
static int is_failing(void) {
    int again = sqlite3_io_error_persist && sqlite3_io_error_hit;
    if (!again && sqlite3_io_error_pending-- != 1)
        return 0;
    sqlite3_io_error_hit++;
    sqlite3_io_error_hardhit += !sqlite3_io_error_benign;
    return 1;
}

static int is_full(void) {
    if (!sqlite3_diskfull_pending)
        return 0;
    if (sqlite3_diskfull_pending > 1) {
        sqlite3_diskfull_pending--;
        return 0;
    }
    is_failing();
    sqlite3_diskfull = sqlite3_io_error_hit = 1;
    return 1;
}

/* The VFS syncs a directory by this call, SQLite's own VFS by fdatasync(2). */
int fsync(int fd) {
    struct stat found;
    sqlite3_sync_count += fstat(fd, &found) == 0 && S_ISDIR(found.st_mode);
    return (int)syscall(SYS_fsync, fd);
}

static int close_file(sqlite3_file *file) {
    sqlite3_open_file_count--;
    return below->xClose(file);
}

static int read_file(sqlite3_file *file, void *bytes, int count, sqlite3_int64 offset) {
    return is_failing() ? SQLITE_IOERR_READ : below->xRead(file, bytes, count, offset);
}

static int write_file(sqlite3_file *file, const void *bytes, int count, sqlite3_int64 offset) {
    if (is_failing())
        return SQLITE_IOERR_WRITE;
    if (is_full())
        return SQLITE_FULL;
    return through(file, below->xWrite(file, bytes, count, offset));
}

static int truncate_file(sqlite3_file *file, sqlite3_int64 size) {
    return is_failing() ? SQLITE_IOERR_TRUNCATE : through(file, below->xTruncate(file, size));
}

static int sync_file(sqlite3_file *file, int flags) {
    int result;
    sqlite3_sync_count++;
    sqlite3_fullsync_count += (flags & 0xf) == SQLITE_SYNC_FULL;
    result = is_failing() ? SQLITE_IOERR_FSYNC : below->xSync(file, flags);
    return result == SQLITE_OK && is_full() ? SQLITE_FULL : result;
}

static int file_size(sqlite3_file *file, sqlite3_int64 *size) {
    return is_failing() ? SQLITE_IOERR_FSTAT : below->xFileSize(file, size);
}

/* Other files belong to SQLite's own VFS, which has all this itself. */
static int open_file(sqlite3_vfs *self, const char *name, sqlite3_file *file, int flags, int *out) {
    const int ours = SQLITE_OPEN_MAIN_DB | SQLITE_OPEN_WAL;
    int result;
    (void)self;
    if (!name || !(flags & ours))
        return under->xOpen(under, name, file, flags, out);
    if (is_failing())
        return SQLITE_IOERR;
    result = under->xOpen(under, name, file, flags, out);
    if (result != SQLITE_OK)
        return result;
    sqlite3_open_file_count++;
    if (!below) {
        below = file->pMethods;
        methods = *below;
        methods.xClose = close_file;
        methods.xRead = read_file;
        methods.xWrite = write_file;
        methods.xTruncate = truncate_file;
        methods.xSync = sync_file;
        methods.xFileSize = file_size;
    }
    file->pMethods = &methods;
    return SQLITE_OK;
}

static int delete_file(sqlite3_vfs *self, const char *name, int sync) {
    (void)self;
    if (is_failing())
        return SQLITE_IOERR_DELETE;
    return under->xDelete(under, name, sync);
}

static int access_file(sqlite3_vfs *self, const char *name, int flags, int *result) {
    (void)self;
    return is_failing() ? SQLITE_IOERR_ACCESS : under->xAccess(under, name, flags, result);
}

static int add_layer(void) {
    under = sqlite3_vfs_find("forebay");
    writes_through = is_set("FOREBAY_PROOF_THROUGH", "1");
    layer = *under;
    layer.pNext = NULL;
    layer.zName = "forebay-proof";
    layer.xOpen = open_file;
    layer.xDelete = delete_file;
    layer.xAccess = access_file;
    return sqlite3_vfs_register(&layer, 1);
}
#else
static int add_layer(void) {
    return SQLITE_OK;
}
#endif

int forebay_proof_init(const char *unused) {
    int result;
    (void)unused;
    if (!is_set("FOREBAY_PROOF_VFS", "forebay"))
        return SQLITE_OK;
    result = forebay_sqlite_register(1);
    if (result == SQLITE_OK)
        result = add_layer();
    if (is_set("FOREBAY_PROOF_FETCH", "0"))
        sqlite3_reset_auto_extension();
    return result;
}
