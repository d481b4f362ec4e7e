/* The VFS: its registration, and what it does with names. */
#define FOREBAY_SQLITE_MAIN
#include "internal.h"
#include <string.h>
SQLITE_EXTENSION_INIT1

/* The most that SQLite maps, in bytes. The limit that counts is an eighth of the cache, by pins. */
#define FETCH_ALL "PRAGMA main.mmap_size=2147418112"

static sqlite3_vfs vfs;

/* SQLite's own VFS, for temporary files and all calls that concern no file. */
static sqlite3_vfs *host(const sqlite3_vfs *self) {
    return self->pAppData;
}

static int flags_of_open(int flags) {
    int how = O_RDWR | O_NOFOLLOW;
    if (flags & SQLITE_OPEN_CREATE)
        how |= O_CREAT;
    if (flags & SQLITE_OPEN_EXCLUSIVE)
        how |= O_EXCL;
    return how;
}

/*
 * A journal that exists may have been made with synchronous=OFF, or before a power loss: its name
 * is durable only if a connection of this process has synced it. Of a log that is not recorded:
 * each connection opens it once, and its first sync syncs the folder.
 */
static int is_name_durable(const File *file, int flags, int exists) {
    if (file->is_database || !(flags & SQLITE_OPEN_CREATE))
        return exists;
    if (!exists)
        store_note_journal(file->name, 0);
    return store_is_journal_durable(file->name);
}

/*
 * Makes a file of the host, which is opened as an existing one then. In a volume it only finds out
 * whether the file exists.
 */
static int make_new(File *file, int flags, int *exists) {
    const int journal = SQLITE_OPEN_MAIN_JOURNAL | SQLITE_OPEN_WAL;
    const char *database = flags & journal ? sqlite3_filename_database(file->name) : NULL;
    const Hold how = file->is_database ? HOLD_OR_OPEN : HOLD_OPEN;
    Made made;
    int result;
    if (store_is_in_volume(file->name)) {
        result = store_access(file->name, SQLITE_ACCESS_READ, how, exists);
        if (database && !*exists)
            store_take_mode(file, database);
        return result;
    }
    result = store_make_file(file->name, database, &made);
    *exists = made == MADE_BEFORE;
    if (*exists && file->how & O_EXCL)
        return SQLITE_CANTOPEN;
    file->how &= ~(O_CREAT | O_EXCL);
    return result;
}

/*
 * A connection that only reads opens the file for writing, too, if it may: only then is the lock of
 * the file exclusive, and no other process writes it.
 */
static int open_new(File *file, const char *name, int flags) {
    int creates = flags & SQLITE_OPEN_CREATE;
    /* If store_access fails, the file counts as new: its name is synced once more. */
    int exists = !creates, result;
    sqlite3_int64 volume_bytes;
    file->is_database = (flags & SQLITE_OPEN_MAIN_DB) != 0;
    file->is_log = (flags & SQLITE_OPEN_WAL) != 0;
    file->name = name;
    file->how = flags_of_open(flags);
    file->powersafe = sqlite3_uri_boolean(name, "psow", 1) & 1;
    file->delete_on_close = (flags & SQLITE_OPEN_DELETEONCLOSE) != 0;
    /*
     * A journal is opened at any time, with the parameters of its database: it must not set the
     * budget.
     */
    if (file->is_database && join_add(file) != SQLITE_OK)
        return SQLITE_NOMEM;
    result = store_enter(file->is_database ? sqlite3_uri_parameter(name, "budget") : NULL);
    volume_bytes = sqlite3_uri_int64(name, "volume_size", 0);
    if (result == SQLITE_OK && file->is_database && volume_bytes > 0 && creates && strstr(name, "//"))
        result = store_make_volume(name, volume_bytes);
    if (result == SQLITE_OK && creates)
        result = make_new(file, flags, &exists);
    if (result == SQLITE_OK)
        result = store_open(file);
    file->sync_directory = !is_name_durable(file, flags, exists);
    return result;
}

/*
 * Follows the memory of a file of SQLite's own VFS, for a rollback journal. That VFS does not know
 * whether a parent process opened the file. So calls that change a journal are refused in a child
 * of fork(2), whose parent needs it.
 */
typedef struct {
    const char *name;
    const sqlite3_io_methods *theirs;
    sqlite3_io_methods methods;
    /* That opened it. */
    Process process;
    int sync_directory;
} Journal;

static Journal *journal_of(sqlite3_file *base) {
    return (Journal *)(void *)((char *)base + (vfs.szOsFile - (int)sizeof(Journal)));
}

static int is_parents(const Journal *journal) {
    return !store_is_this_process(journal->process);
}

static int write_journal(sqlite3_file *base, const void *buf, int bytes, sqlite3_int64 offset) {
    const Journal *journal = journal_of(base);
    return is_parents(journal) ? SQLITE_IOERR_WRITE : journal->theirs->xWrite(base, buf, bytes, offset);
}

static int truncate_journal(sqlite3_file *base, sqlite3_int64 size) {
    const Journal *journal = journal_of(base);
    return is_parents(journal) ? SQLITE_IOERR_TRUNCATE : journal->theirs->xTruncate(base, size);
}

/* With this a rollback begins. */
static int journal_size(sqlite3_file *base, sqlite3_int64 *size) {
    const Journal *journal = journal_of(base);
    return is_parents(journal) ? SQLITE_IOERR_FSTAT : journal->theirs->xFileSize(base, size);
}

static int sync_journal(sqlite3_file *base, int flags) {
    Journal *journal = journal_of(base);
    int result = is_parents(journal) ? SQLITE_IOERR_FSYNC : journal->theirs->xSync(base, flags);
    if (result != SQLITE_OK || !journal->sync_directory)
        return result;
    result = store_sync_directory(journal->name);
    if (result == SQLITE_OK) {
        journal->sync_directory = 0;
        store_note_journal(journal->name, 1);
    }
    return result;
}

/*
 * Opens a rollback journal of the host by SQLite's own VFS: it is written once, read only after a
 * failure, and in our cache it would displace pages of databases. It is made here and then opened
 * as an existing file, because SQLite's own VFS ignores a failed sync of the folder. If it cannot
 * be made, that VFS tries and finds the error. A wrong owner is no error to that VFS, so it is
 * refused here.
 */
static int open_journal(sqlite3_vfs *own, const char *name, sqlite3_file *base, int flags, int *out) {
    Journal *journal = journal_of(base);
    Made made = MADE_BEFORE;
    int result;
    base->pMethods = NULL;
    if (store_is_journal_of_parent(name))
        return SQLITE_CANTOPEN;
    if (flags & SQLITE_OPEN_CREATE) {
        result = store_make_file(name, sqlite3_filename_database(name), &made);
        if (made == MADE_REFUSED)
            return result;
        if (result == SQLITE_OK)
            flags &= ~SQLITE_OPEN_CREATE;
    }
    if (made != MADE_BEFORE)
        store_note_journal(name, 0);
    result = own->xOpen(own, name, base, flags, out);
    if (result != SQLITE_OK || !base->pMethods)
        return result;
    journal->name = name;
    journal->theirs = base->pMethods;
    journal->methods = *base->pMethods;
    journal->methods.xWrite = write_journal;
    journal->methods.xTruncate = truncate_journal;
    journal->methods.xFileSize = journal_size;
    journal->methods.xSync = sync_journal;
    journal->process = store_process();
    /* A hot journal needs its folder synced, too: without its name nothing ends a rollback that a
     * power loss interrupts. */
    journal->sync_directory = !store_is_journal_durable(name);
    base->pMethods = &journal->methods;
    return SQLITE_OK;
}

static int open_file(sqlite3_vfs *self, const char *name, sqlite3_file *base, int flags, int *out) {
    const int temporary = SQLITE_OPEN_TEMP_DB | SQLITE_OPEN_TEMP_JOURNAL | SQLITE_OPEN_TRANSIENT_DB |
                          SQLITE_OPEN_SUBJOURNAL;
    File *file = (File *)base;
    int result;
    if (!name || flags & temporary || (flags & SQLITE_OPEN_SUPER_JOURNAL && !store_is_in_volume(name)))
        return host(self)->xOpen(host(self), name, base, flags, out);
    if (flags & SQLITE_OPEN_MAIN_JOURNAL && !store_is_in_volume(name))
        return open_journal(host(self), name, base, flags, out);
    memset(file, 0, sizeof *file);
    result = open_new(file, name, flags);
    if (result == SQLITE_BUSY && file->is_database && !sqlite3_uri_boolean(name, "immutable", 0) &&
        !sqlite3_uri_boolean(name, "nolock", 0)) {
        store_wait(file); /* xLock tries again. */
        result = SQLITE_OK;
    }
    if (result != SQLITE_OK) {
        join_remove(file);
        return result;
    }
    if (file->is_log)
        join_database(file);
    base->pMethods = &forebay_methods;
    if ((file->how & O_ACCMODE) == O_RDONLY)
        flags = (flags & ~(SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE)) | SQLITE_OPEN_READONLY;
    if (out)
        *out = flags;
    return SQLITE_OK;
}

/*
 * Deleting its journal commits a transaction. On the host the deletion survives a kill of this
 * process at once. In a volume it is in the memory of this process until it is synced, so a kill
 * would take back a commit that SQLite has acknowledged.
 */
static int delete_file(sqlite3_vfs *self, const char *name, int sync) {
    int result = store_delete(name);
    (void)self;
    if (result == SQLITE_OK && (sync || store_is_in_volume(name)))
        result = store_sync_directory(name);
    return result;
}

static int access_file(sqlite3_vfs *self, const char *name, int flags, int *result) {
    (void)self;
    return store_access(name, flags, HOLD_OPEN, result);
}

/*
 * With `volume=IMAGE` a full name is IMAGE, "//" and the path in the volume. SQLite calls this with
 * names that it has parsed itself, so their parameters can be read.
 */
static int full_name(sqlite3_vfs *self, const char *name, int space, char *full) {
    const char *image = sqlite3_uri_parameter(name, "volume");
    size_t length;
    int result;
    if (!image || !*image)
        return host(self)->xFullPathname(host(self), name, space, full);
    result = host(self)->xFullPathname(host(self), image, space, full);
    if ((result & 0xff) != SQLITE_OK)
        return result;
    while (*name == '/')
        name++;
    length = strlen(full);
    if (!*name || strstr(name, "//") || length + 2 + strlen(name) >= (size_t)space)
        return SQLITE_CANTOPEN;
    memcpy(full + length, "//", 2);
    strcpy(full + length + 2, name);
    return result; /* Whether a symbolic link led to the image. */
}

static void *dl_open(sqlite3_vfs *self, const char *name) {
    return host(self)->xDlOpen(host(self), name);
}

static void dl_error(sqlite3_vfs *self, int space, char *text) {
    host(self)->xDlError(host(self), space, text);
}

static void (*dl_symbol(sqlite3_vfs *self, void *library, const char *symbol))(void) {
    return host(self)->xDlSym(host(self), library, symbol);
}

static void dl_close(sqlite3_vfs *self, void *library) {
    host(self)->xDlClose(host(self), library);
}

static int randomness(sqlite3_vfs *self, int bytes, char *out) {
    return host(self)->xRandomness(host(self), bytes, out);
}

static int sleep_for(sqlite3_vfs *self, int microseconds) {
    return host(self)->xSleep(host(self), microseconds);
}

static int current_time(sqlite3_vfs *self, double *time) {
    return host(self)->xCurrentTime(host(self), time);
}

static int last_error(sqlite3_vfs *self, int space, char *text) {
    return host(self)->xGetLastError ? host(self)->xGetLastError(host(self), space, text) : 0;
}

static int current_time_int64(sqlite3_vfs *self, sqlite3_int64 *time) {
    return host(self)->xCurrentTimeInt64(host(self), time);
}

/* SQLite fetches pages only where PRAGMA mmap_size is set, and no VFS can set that. */
static int on_connection(sqlite3 *db, char **error, const sqlite3_api_routines *api) {
    sqlite3_vfs *used = NULL;
    (void)error;
    (void)api;
    if (sqlite3_file_control(db, "main", SQLITE_FCNTL_VFS_POINTER, &used) != SQLITE_OK || used != &vfs)
        return SQLITE_OK;
    if (!sqlite3_uri_boolean(sqlite3_db_filename(db, "main"), "fetch", 1))
        return SQLITE_OK;
    return sqlite3_exec(db, FETCH_ALL, NULL, NULL, NULL);
}

int forebay_sqlite_register(int make_default) {
    sqlite3_vfs *base = sqlite3_vfs_find(NULL);
    int result;
    if (!base)
        return SQLITE_ERROR;
    result = store_watch_forks();
    if (result != SQLITE_OK)
        return result;
    if (!vfs.zName) {
        vfs.iVersion = base->iVersion >= 2 ? 2 : 1;
        vfs.szOsFile = base->szOsFile > (int)sizeof(File) ? base->szOsFile : (int)sizeof(File);
        vfs.szOsFile = (vfs.szOsFile + 15) / 16 * 16 + (int)sizeof(Journal);
        /* From a journal, SQLite reads a name of up to this length into the memory of one page. */
        vfs.mxPathname = base->mxPathname;
        vfs.pAppData = base;
        vfs.xOpen = open_file;
        vfs.xDelete = delete_file;
        vfs.xAccess = access_file;
        vfs.xFullPathname = full_name;
        vfs.xDlOpen = dl_open;
        vfs.xDlError = dl_error;
        vfs.xDlSym = dl_symbol;
        vfs.xDlClose = dl_close;
        vfs.xRandomness = randomness;
        vfs.xSleep = sleep_for;
        vfs.xCurrentTime = current_time;
        vfs.xGetLastError = last_error;
        vfs.xCurrentTimeInt64 = current_time_int64;
        vfs.zName = "forebay";
    }
    result = sqlite3_vfs_register(&vfs, make_default);
    if (result == SQLITE_OK)
        result = sqlite3_auto_extension((void (*)(void))on_connection);
    return result;
}

#ifndef SQLITE_CORE
/* The entry point of libforebay_sqlite.so. */
__attribute__((visibility("default"))) int
sqlite3_forebaysqlite_init(sqlite3 *db, char **error, const sqlite3_api_routines *api) {
    int result;
    SQLITE_EXTENSION_INIT2(api);
    result = forebay_sqlite_register(0);
    if (result == SQLITE_OK)
        result = on_connection(db, error, api);
    return result == SQLITE_OK ? SQLITE_OK_LOAD_PERMANENTLY : result;
}
#endif
