/* The methods of an open file. */
#include "internal.h"
#include <errno.h>
#include <string.h>
#include <unistd.h>

/*
 * The cache accepts a log of any size, and only its sync finds that the host has no space. The
 * transaction is refused then, but all its frames are in the cache, the one with the commit mark
 * too. They stay dirty: each later sync would fail by them, and they may still get space. The next
 * recovery of the log, in this process or after its end, would commit what was refused then. So
 * nothing behind the last committed frame may stay. It is cut:
 *
 *  - by the failed sync or write, if the index tells where that frame ends;
 *  - else by the next write. SQLite syncs a log at the end of a transaction, after a new header,
 *    and before a checkpoint. So that write is the first one of a transaction, or that header
 *    again. It comes behind the last committed frame, or at the start of a log that is in the
 *    database as a whole;
 *  - or by the close, at `begun`, if the index is memory of SQLite. That is so with
 *    locking_mode=EXCLUSIVE from the first access on, and no other connection writes the log then.
 */
static int drop_refused(File *file, sqlite3_int64 offset) {
    int64_t result = fby_lseek(file->file, 0, SEEK_END);
    /* A log that a checkpoint has emptied since is shorter: no cut adds bytes. */
    if (result > offset)
        result = fby_ftruncate(file->file, offset);
    if (result < 0)
        return failed(file, result, SQLITE_IOERR_WRITE, file->name);
    /* The cache has tried to write these frames since the sync. It reports that here, once. */
    result = fby_fdatasync(file->file);
    if (result < 0 && result != -ENOSPC && result != -EDQUOT && result != -EFBIG)
        return failed(file, result, SQLITE_IOERR_FSYNC, file->name);
    return SQLITE_OK;
}

/*
 * As drop_refused, where no write of SQLite follows. A cut keeps the part of a block before it, and
 * reads that unless it is in the cache. If the cut fails, zeros end the log for a recovery: no
 * header of a frame, and none of a log, has them.
 */
static void end_log(File *file, sqlite3_int64 offset) {
    char zeros[24] = {0};
    struct iovec header = {zeros, sizeof zeros};
    if (drop_refused(file, offset) == SQLITE_OK || fby_lseek(file->file, 0, SEEK_END) <= offset)
        return;
    if (fby_pwritev2(file->file, &header, 1, offset, 0) == (int64_t)sizeof zeros)
        fby_fdatasync(file->file);
}

static int close_file(sqlite3_file *base) {
    File *file = (File *)base;
    int result = SQLITE_OK;
    join_part(file);
    /*
     * After fork(2) this is a copy of what the parent still uses: pins, locks, index, name of a
     * journal.
     */
    if (store_is_parents(file))
        return SQLITE_IOERR_CLOSE;
    join_remove(file);
    fetch_end_all(file);
    shm_unmap(base, 0);
    lock_release(base, SQLITE_LOCK_NONE);
    if (file->has_refused && file->begun >= 0)
        end_log(file, file->begun);
    if (file->file)
        result = store_close(file);
    else
        store_end_wait(file);
    if (file->delete_on_close)
        store_delete(file->name);
    return result;
}

/*
 * Before its first lock, a database that another process has open reads as empty. SQLite reads its
 * header before that, for the size of its pages, and again after it.
 */
static int read_file(sqlite3_file *base, void *buf, int bytes, sqlite3_int64 offset) {
    File *file = (File *)base;
    struct iovec rest = {buf, (size_t)bytes};
    while (file->file && rest.iov_len > 0) {
        int64_t got = fby_preadv2(file->file, &rest, 1, offset, 0);
        if (got < 0)
            return failed(file, got, SQLITE_IOERR_READ, file->name);
        if (got == 0)
            break;
        rest.iov_base = (char *)rest.iov_base + got;
        rest.iov_len -= (size_t)got;
        offset += got;
    }
    if (rest.iov_len == 0)
        return SQLITE_OK;
    memset(rest.iov_base, 0, rest.iov_len);
    return SQLITE_IOERR_SHORT_READ;
}

/* Before a write: cuts what is in its way, and notes where the transaction begins. */
static int begin_write(File *file, sqlite3_int64 offset) {
    if (file->has_refused) {
        int result = drop_refused(file, offset);
        if (result != SQLITE_OK)
            return result;
        file->has_refused = 0;
        file->begun = -1;
    }
    if (file->database && !file->database->has_shm && (file->begun < 0 || offset < file->begun))
        file->begun = offset;
    return SQLITE_OK;
}

/*
 * A VFS above may keep the frames elsewhere in the log than SQLite has them. They are not cut by
 * the index then: the last committed one does not have its salt.
 */
static int is_end(const File *log, const LogEnd *end) {
    static const uint8_t magic[3] = {0x37, 0x7f, 0x06};
    uint8_t bytes[16];
    struct iovec start = {bytes, sizeof bytes};
    if (fby_preadv2(log->file, &start, 1, end->last, 0) != (int64_t)sizeof bytes)
        return 0;
    if (!end->offset)
        return memcmp(bytes, magic, sizeof magic) == 0;
    return memcmp(bytes + 8, end->salt, sizeof end->salt) == 0;
}

/*
 * A write or a sync of a log failed, so its transaction has to roll back. The next write cuts it
 * again: frames that are committed, and that the cache could not write since, are reported once
 * more.
 */
static void refuse(File *log) {
    const int its_errno = log->last_errno;
    LogEnd end;
    log->has_refused = 1;
    if (log->database && shm_end_of_log(log->database, &end) && is_end(log, &end))
        end_log(log, end.offset);
    log->last_errno = its_errno;
}

static int write_all(File *file, const void *buf, int bytes, sqlite3_int64 offset) {
    struct iovec rest = {(void *)(uintptr_t)buf, (size_t)bytes};
    while (rest.iov_len > 0) {
        int64_t wrote = fby_pwritev2(file->file, &rest, 1, offset, 0);
        if (wrote < 0)
            return failed(file, wrote, SQLITE_IOERR_WRITE, file->name);
        if (wrote == 0)
            return SQLITE_FULL;
        rest.iov_base = (char *)rest.iov_base + wrote;
        rest.iov_len -= (size_t)wrote;
        offset += wrote;
    }
    return SQLITE_OK;
}

static int write_file(sqlite3_file *base, const void *buf, int bytes, sqlite3_int64 offset) {
    File *file = (File *)base;
    int result = file->is_log ? begin_write(file, offset) : SQLITE_OK;
    if (result != SQLITE_OK)
        return result;
    result = write_all(file, buf, bytes, offset);
    if (result != SQLITE_OK && file->is_log && !store_is_parents(file))
        refuse(file);
    return result;
}

static int truncate_file(sqlite3_file *base, sqlite3_int64 size) {
    File *file = (File *)base;
    int result = fby_ftruncate(file->file, size);
    return result < 0 ? failed(file, result, SQLITE_IOERR_TRUNCATE, file->name) : SQLITE_OK;
}

/*
 * fdatasync: SQLite needs no times. A new file also needs its name durable, or its content is lost
 * with the name: a journal that is lost that way leaves a database half changed.
 */
static int sync_with_name(File *file) {
    int result = fby_fdatasync(file->file);
    if (result < 0)
        return failed(file, result, SQLITE_IOERR_FSYNC, file->name);
    if (!file->sync_directory)
        return SQLITE_OK;
    result = store_sync_directory(file->name);
    if (result == SQLITE_OK) {
        file->sync_directory = 0;
        store_note_journal(file->name, 1);
    }
    return result;
}

/*
 * What a log has durable is committed, also if another database of the same transaction refuses it
 * then, and SQLITE_FCNTL_COMMIT_PHASETWO does not come. Only with psow=0 may more writes, for a
 * transaction that is not committed yet, follow its sync.
 */
static void end_sync(File *log) {
    if (!log->has_refused && log->database && log->database->powersafe)
        log->begun = -1;
}

static int sync_file(sqlite3_file *base, int flags) {
    File *file = (File *)base;
    int result = sync_with_name(file);
    (void)flags;
    if (!file->is_log || store_is_parents(file))
        return result;
    if (result == SQLITE_OK)
        end_sync(file);
    else
        refuse(file);
    return result;
}

static int file_size(sqlite3_file *base, sqlite3_int64 *size) {
    File *file = (File *)base;
    int64_t got = file->file ? fby_lseek(file->file, 0, SEEK_END) : 0;
    if (got < 0)
        return failed(file, got, SQLITE_IOERR_FSTAT, file->name);
    *size = got;
    return SQLITE_OK;
}

/*
 * Returns the flag that `value` sets. If `value` is negative, stores the present flag there
 * instead.
 */
static unsigned set_or_show(unsigned now, int *value) {
    if (*value >= 0)
        return *value != 0;
    *value = (int)now;
    return now;
}

/*
 * Sets the limit of fetched bytes, unless a page is fetched now, as SQLite's own VFS does. Returns
 * the earlier limit in `limit`.
 */
static void limit_fetches(File *file, sqlite3_int64 *limit) {
    sqlite3_int64 before = file->fetch_limit;
    if (*limit >= 0 && !file->fetched_count)
        file->fetch_limit = *limit;
    *limit = before;
}

/*
 * What the connection has written to its log is committed, or in the database. Not so if the log
 * holds a transaction that was refused: then the connection has written nothing since.
 */
static void end_transaction(const File *database) {
    if (database->log && !database->log->has_refused)
        database->log->begun = -1;
}

static int control(sqlite3_file *base, int what, void *with) {
    File *file = (File *)base;
    switch (what) {
    case SQLITE_FCNTL_LOCKSTATE:
        *(int *)with = file->level;
        return SQLITE_OK;
    case SQLITE_FCNTL_LAST_ERRNO:
        *(int *)with = file->last_errno;
        return SQLITE_OK;
    case SQLITE_FCNTL_COMMIT_PHASETWO:
    case SQLITE_FCNTL_CKPT_START:
        end_transaction(file);
        return SQLITE_OK;
    case SQLITE_FCNTL_SIZE_HINT:
    case SQLITE_FCNTL_CHUNK_SIZE:
        return SQLITE_OK;
    case SQLITE_FCNTL_PERSIST_WAL:
        file->persist_wal = set_or_show(file->persist_wal, with) & 1;
        return SQLITE_OK;
    case SQLITE_FCNTL_POWERSAFE_OVERWRITE:
        file->powersafe = set_or_show(file->powersafe, with) & 1;
        return SQLITE_OK;
    case SQLITE_FCNTL_VFSNAME:
        *(char **)with = sqlite3_mprintf("forebay");
        return SQLITE_OK;
    case SQLITE_FCNTL_MMAP_SIZE:
        limit_fetches(file, with);
        return SQLITE_OK;
    case SQLITE_FCNTL_HAS_MOVED:
        *(int *)with = store_has_moved(file);
        return SQLITE_OK;
    default:
        return SQLITE_NOTFOUND;
    }
}

static int sector_size(sqlite3_file *base) {
    (void)base;
    return 4096;
}

/* No write of several pages is atomic: SQLite's journals see to that. */
static int characteristics(sqlite3_file *base) {
    return ((File *)base)->powersafe ? SQLITE_IOCAP_POWERSAFE_OVERWRITE : 0;
}

const sqlite3_io_methods forebay_methods = {
    3,          close_file,       read_file,    write_file,  truncate_file,   sync_file, file_size,
    lock_take,  lock_release,     lock_is_reserved, control, sector_size,     characteristics,
    shm_map,    shm_lock,         shm_barrier,  shm_unmap,   fetch_page,      fetch_end,
};
