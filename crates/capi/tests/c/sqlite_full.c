/*
 * A host file system that is full: a transaction whose journal or log has no space fails, and once
 * that file is deleted nothing of it is retained or tried again. The folder is a file system of
 * 2 MiB.
 */
#include "check.h"
#include "sqlite_above.h"
#include "sqlite_check.h"

#include <poll.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/wait.h>

/* Opens of rollback journals on the cache. */
static int cached_journals;

int fby_open(fby_cache *cache, const char *path, int flags, const fby_open_how *how, size_t how_size,
             fby_file **file) {
    static const char end[] = "-journal";
    size_t length = strlen(path);
    REAL(fby_open);
    cached_journals += length >= sizeof end && strcmp(path + length - (sizeof end - 1), end) == 0;
    return call(cache, path, flags, how, how_size, file);
}

/* Whether no file can be cut, as on a disk whose reads fail. */
static int cuts_fail;

int fby_ftruncate(fby_file *file, int64_t size) {
    REAL(fby_ftruncate);
    return cuts_fail ? -EIO : call(file, size);
}

/* The next sync that succeeds takes the last space: the write that follows it fails. */
static int last_space_is_synced, next_write_fails;

int fby_fdatasync(fby_file *file) {
    int result;
    REAL(fby_fdatasync);
    result = call(file);
    next_write_fails = last_space_is_synced && result == 0;
    last_space_is_synced = last_space_is_synced && result != 0;
    return result;
}

int64_t fby_pwritev2(fby_file *file, const struct iovec *iov, int iovcnt, int64_t offset, uint32_t flags) {
    REAL(fby_pwritev2);
    if (!next_write_fails)
        return call(file, iov, iovcnt, offset, flags);
    next_write_fails = 0;
    return -ENOSPC;
}

static uint64_t failed_bytes(void) {
    fby_stats stats;
    CHECK(fby_cache_stats(forebay_sqlite_cache(), &stats, sizeof stats) > 0);
    return stats.failed_bytes;
}

static unsigned long free_blocks(const char *folder) {
    struct statvfs found;
    CHECK(statvfs(folder, &found) == 0);
    return found.f_bfree;
}

/* Writes until there is space for so many bytes. */
static void fill_but(const char *folder, unsigned long bytes) {
    static const char block[4096];
    int file = open(in_folder(folder, "filler"), O_WRONLY | O_CREAT, 0644);
    CHECK(file >= 0);
    while (free_blocks(folder) * 4096 > bytes)
        IS(write(file, block, sizeof block), sizeof block);
    IS(close(file), 0);
}

/* The log goes through our cache, which cannot write all of it; closing the database deletes it. */
static void log_without_space_is_dropped(const char *folder, const char *uri) {
    unsigned long before = free_blocks(folder);
    sqlite3 *db = opened(uri);
    struct stat found;
    CHECK(strcmp(text(db, "PRAGMA journal_mode=wal"), "wal") == 0);
    ran(db, "PRAGMA synchronous=full");
    CHECK(sqlite3_exec(db, "UPDATE t SET a = 9, b = randomblob(3000)", NULL, NULL, NULL) != SQLITE_OK);
    CHECK(sqlite3_get_autocommit(db));
    closed(db);
    CHECK(stat(in_folder(folder, "a.db-wal"), &found) != 0 && errno == ENOENT);
    IS(free_blocks(folder), before);
    IS(failed_bytes(), 0);
    db = opened(uri);
    IS(number(db, "SELECT sum(a) FROM t"), 3);
    ran(db, "UPDATE t SET a = a + 1 WHERE rowid = 1");
    closed(db);
}

static const char large[] = "UPDATE t SET a = 9, b = randomblob(3000)";
static const char small[] = "UPDATE t SET a = a + 1 WHERE rowid = 1";

/*
 * Each failed sync is reported to the other connections, and to the next one, too: each may be
 * refused once by it.
 */
static void commit_after_other(sqlite3 *db) {
    int result = sqlite3_exec(db, small, NULL, NULL, NULL);
    CHECK(result == SQLITE_OK || result == SQLITE_FULL);
    if (result != SQLITE_OK)
        ran(db, small);
}

/*
 * The cache accepts a log of any size, and its sync finds that the host has no space. What was
 * refused is not in the way of later commits: behind frames of the log, or at its start.
 */
static void small_commits_follow_a_large_one_without_space(const char *uri) {
    sqlite3 *db = opened(uri), *other = opened(uri);
    long long sum = number(db, "SELECT sum(a) FROM t");
    CHECK(strcmp(text(db, "PRAGMA journal_mode=wal"), "wal") == 0);
    ran(db, "PRAGMA synchronous=full; PRAGMA cache_size=10");
    ran(other, "PRAGMA synchronous=full");
    for (int round = 0; round < 4; round++) {
        IS(sqlite3_exec(db, large, NULL, NULL, NULL), SQLITE_FULL);
        CHECK(sqlite3_get_autocommit(db));
        /* Meanwhile the cache tries to write again what was refused. */
        poll(NULL, 0, 50);
        ran(db, small);
        IS(sqlite3_exec(db, large, NULL, NULL, NULL), SQLITE_FULL);
        commit_after_other(other);
        commit_after_other(db);
        ran(other, small);
        ran(db, small);
        sum += 5;
        IS(failed_bytes(), 0);
        IS(number(other, "SELECT sum(a) FROM t"), sum);
        IS(number(db, "PRAGMA wal_checkpoint"), 0);
        if (round % 2)
            IS(number(db, "PRAGMA wal_checkpoint(truncate)"), 0);
    }
    CHECK(strcmp(text(db, "PRAGMA integrity_check"), "ok") == 0);
    closed(other);
    closed(db);
    db = opened(uri);
    IS(number(db, "SELECT sum(a) FROM t"), sum);
    closed(db);
}

/*
 * How a connection begins. The index of its log is memory of the VFS, and with the last line memory
 * of SQLite.
 */
static const char *const modes[] = {
    "PRAGMA journal_mode=wal; PRAGMA synchronous=full",
    "PRAGMA journal_mode=wal; PRAGMA synchronous=normal",
    "PRAGMA journal_mode=wal; PRAGMA synchronous=full; SELECT a FROM t; "
    "PRAGMA locking_mode=exclusive",
    "PRAGMA locking_mode=exclusive; PRAGMA journal_mode=wal; PRAGMA synchronous=full",
    "PRAGMA locking_mode=exclusive; PRAGMA journal_mode=wal; PRAGMA synchronous=normal",
};

/*
 * The last close cannot write the log and keeps it. Its next reader finds no commit mark of what
 * was refused.
 */
static void refused_is_not_committed_by_the_next_open(const char *folder, const char *uri,
                                                      const char *mode) {
    sqlite3 *db = opened(uri);
    long long sum;
    ran(db, mode);
    sum = number(db, "SELECT sum(a) FROM t");
    ran(db, small);
    ran(db, "PRAGMA synchronous=full");
    IS(sqlite3_exec(db, large, NULL, NULL, NULL), SQLITE_FULL);
    CHECK(sqlite3_get_autocommit(db));
    IS(number(db, "SELECT sum(a) FROM t"), sum + 1);
    ran(db, "BEGIN IMMEDIATE; COMMIT");
    closed(db);
    db = opened(uri);
    IS(number(db, "SELECT sum(a) FROM t"), sum + 1);
    CHECK(truncate(in_folder(folder, "filler"), 0) == 0);
    ran(db, "PRAGMA synchronous=full");
    ran(db, small);
    ran(db, small);
    IS(number(db, "SELECT sum(a) FROM t"), sum + 3);
    CHECK(strcmp(text(db, "PRAGMA integrity_check"), "ok") == 0);
    closed(db);
    fill_but(folder, 256 << 10);
}

/*
 * The next connection finds this sum, and commits once there is space. Then the device is full
 * again.
 */
static void goes_on(const char *folder, const char *uri, long long sum) {
    sqlite3 *db = opened(uri);
    IS(number(db, "SELECT sum(a) FROM t"), sum);
    CHECK(truncate(in_folder(folder, "filler"), 0) == 0);
    commit_after_other(db);
    IS(number(db, "SELECT sum(a) FROM t"), sum + 1);
    CHECK(strcmp(text(db, "PRAGMA integrity_check"), "ok") == 0);
    closed(db);
    fill_but(folder, 256 << 10);
}

/*
 * With synchronous=NORMAL a commit needs no space. A checkpoint that fails refuses no commit: its
 * frames stay, in the cache, also when the last close cannot write them.
 */
static void accepted_is_kept_without_space(const char *folder, const char *uri, const char *mode) {
    sqlite3 *db = opened(uri);
    long long sum;
    ran(db, mode);
    ran(db, large);
    ran(db, small);
    sum = number(db, "SELECT sum(a) FROM t");
    IS(sqlite3_exec(db, "PRAGMA wal_checkpoint", NULL, NULL, NULL), SQLITE_FULL);
    IS(number(db, "SELECT sum(a) FROM t"), sum);
    closed(db);
    IS(store_has_failed_close(), 1);
    goes_on(folder, uri, sum);
}

/*
 * A connection rolls back what it has written to the log; another one commits in its place. The
 * first one's checkpoint fails, and its close cuts nothing.
 */
static void close_leaves_the_frames_of_others(const char *folder, const char *uri) {
    sqlite3 *db = opened(uri), *other = opened(uri);
    long long sum;
    ran(db, modes[1]);
    ran(other, modes[1]);
    ran(db, small);
    ran(db, "PRAGMA cache_size=10; BEGIN");
    ran(db, large);
    ran(db, "ROLLBACK");
    ran(other, large);
    ran(other, small);
    sum = number(other, "SELECT sum(a) FROM t");
    IS(sqlite3_exec(db, "PRAGMA wal_checkpoint", NULL, NULL, NULL), SQLITE_FULL);
    closed(db);
    ran(other, "PRAGMA cache_size=10");
    IS(number(other, "SELECT sum(a) FROM t"), sum);
    CHECK(strcmp(text(other, "PRAGMA integrity_check"), "ok") == 0);
    closed(other);
    goes_on(folder, uri, sum);
}

/*
 * A connection is refused a commit, alone, and then lets others in. Its close cuts nothing of what
 * they have committed in the place of that.
 */
static void close_leaves_the_frames_of_those_it_let_in(const char *folder, const char *uri) {
    sqlite3 *db = opened(uri), *other;
    long long sum;
    ran(db, modes[2]);
    ran(db, small);
    sum = number(db, "SELECT sum(a) FROM t");
    IS(sqlite3_exec(db, large, NULL, NULL, NULL), SQLITE_FULL);
    ran(db, "PRAGMA locking_mode=normal");
    IS(number(db, "SELECT sum(a) FROM t"), sum);
    other = opened(uri);
    ran(other, modes[1]);
    ran(other, small);
    closed(db);
    db = opened(uri);
    IS(number(db, "SELECT sum(a) FROM t"), sum + 1);
    closed(db);
    CHECK(truncate(in_folder(folder, "filler"), 0) == 0);
    commit_after_other(other);
    CHECK(strcmp(text(other, "PRAGMA integrity_check"), "ok") == 0);
    closed(other);
    db = opened(uri);
    IS(number(db, "SELECT sum(a) FROM t"), sum + 2);
    closed(db);
    fill_but(folder, 256 << 10);
}

/* The only connection; the index of its log is memory of SQLite. Its close keeps the log. */
static sqlite3 *opened_alone(const char *uri) {
    sqlite3 *db = opened(uri);
    ran(db, modes[3]);
    IS(sqlite3_db_config(db, SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1, NULL), SQLITE_OK);
    return db;
}

/* The close cuts a transaction that is durable, mark and all, and whose padding had no space. */
static void close_cuts_what_was_synced_and_refused(const char *uri) {
    char padded[620];
    sqlite3 *db;
    long long sum;
    snprintf(padded, sizeof padded, "%s&psow=0", uri);
    db = opened_alone(padded);
    ran(db, small);
    sum = number(db, "SELECT sum(a) FROM t");
    last_space_is_synced = 1;
    IS(sqlite3_exec(db, small, NULL, NULL, NULL), SQLITE_FULL);
    closed(db);
    db = opened(uri);
    IS(number(db, "SELECT sum(a) FROM t"), sum);
    closed(db);
}

/*
 * SQLite commits in one database after the other. The first one has committed, and shows that, when
 * the second one is refused. Its close does not take that back.
 */
static void close_leaves_what_one_database_has_committed(const char *folder, const char *uri) {
    char attach[700];
    sqlite3 *db = opened_alone(uri);
    long long sum;
    ran(db, small);
    snprintf(attach, sizeof attach, "ATTACH 'file:%s/second.db?vfs=forebay' AS second", folder);
    ran(db, attach);
    CHECK(strcmp(text(db, "PRAGMA second.journal_mode=wal"), "wal") == 0);
    ran(db, "PRAGMA second.synchronous=full; CREATE TABLE second.u(b)");
    ran(db, "BEGIN");
    ran(db, small);
    ran(db, "INSERT INTO u SELECT b FROM t");
    IS(sqlite3_exec(db, "COMMIT", NULL, NULL, NULL), SQLITE_FULL);
    CHECK(sqlite3_get_autocommit(db));
    sum = number(db, "SELECT sum(a) FROM main.t");
    IS(number(db, "SELECT count(*) FROM second.u"), 0);
    IS(sqlite3_exec(db, large, NULL, NULL, NULL), SQLITE_FULL);
    IS(number(db, "SELECT sum(a) FROM main.t"), sum);
    closed(db);
    db = opened(uri);
    IS(number(db, "SELECT sum(a) FROM t"), sum);
    closed(db);
    IS(unlink(in_folder(folder, "second.db")), 0);
    IS(unlink(in_folder(folder, "second.db-wal")), 0);
}

/* A checkpoint has emptied the log since the refusal. The close cuts nothing, and adds nothing. */
static void close_adds_nothing_to_an_empty_log(const char *folder, const char *uri) {
    sqlite3 *db = opened_alone(uri);
    struct stat found;
    int persists = 1;
    ran(db, small);
    IS(sqlite3_exec(db, large, NULL, NULL, NULL), SQLITE_FULL);
    CHECK(truncate(in_folder(folder, "filler"), 0) == 0);
    /* The first one may report what the cache could not write before. */
    sqlite3_exec(db, "PRAGMA wal_checkpoint", NULL, NULL, NULL);
    IS(number(db, "PRAGMA wal_checkpoint(truncate)"), 0);
    IS(sqlite3_file_control(db, "main", SQLITE_FCNTL_PERSIST_WAL, &persists), SQLITE_OK);
    closed(db);
    CHECK(stat(in_folder(folder, "a.db-wal"), &found) == 0);
    IS(found.st_size, 0);
    fill_but(folder, 256 << 10);
}

/*
 * A VFS above has the frames elsewhere in the log. The failed sync cuts nothing of what is
 * committed, and the next write cuts what was refused.
 */
static void cut_leaves_frames_that_are_elsewhere(const char *folder) {
    char uri[600];
    sqlite3 *db;
    long long sum;
    snprintf(uri, sizeof uri, "file:%s/a.db?vfs=shifted", folder);
    db = opened(uri);
    ran(db, modes[0]);
    IS(sqlite3_db_config(db, SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1, NULL), SQLITE_OK);
    ran(db, small);
    sum = number(db, "SELECT sum(a) FROM t");
    IS(sqlite3_exec(db, large, NULL, NULL, NULL), SQLITE_FULL);
    commit_after_other(db);
    closed(db);
    db = opened(uri);
    IS(number(db, "SELECT sum(a) FROM t"), sum + 1);
    CHECK(strcmp(text(db, "PRAGMA integrity_check"), "ok") == 0);
    closed(db);
}

/*
 * The cache has never had a rollback journal of the host. To look for its content there would wait
 * for any process that holds a lock on it.
 */
static void journal_is_deleted_past_the_cache(const char *uri) {
    sqlite3 *db = opened(uri);
    IS(store_has_failed_close(), 1);
    CHECK(strcmp(text(db, "PRAGMA journal_mode=delete"), "delete") == 0);
    cached_journals = 0;
    ran(db, "UPDATE t SET a = a + 1 WHERE rowid = 1");
    IS(cached_journals, 0);
    closed(db);
}

static void made_for_a_kill(const char *folder, const char *name, int page) {
    char sql[40];
    sqlite3 *db = opened(name);
    snprintf(sql, sizeof sql, "PRAGMA page_size=%d", page);
    ran(db, sql);
    ran(db, "CREATE TABLE t(a, b)");
    ran(db, "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i+1 FROM n WHERE i<200) "
            "INSERT INTO t SELECT 0, randomblob(3000) FROM n");
    closed(db);
    fill_but(folder, 256 << 10);
}

/* How a transaction is refused, in a process that is killed then. */
typedef struct {
    int page;
    const char *parameters;
    /* Its statement, and whether the log cannot be cut. */
    const char *sql;
    int cuts_fail;
} Refusal;

/*
 * With psow=0 the sync is within a frame, and frames with commit marks follow it. The last but one
 * commit is durable, mark and all, when the write of such a frame finds no space.
 */
static const Refusal refusals[] = {
    {4096, "vfs=forebay", large, 0},
    {65536, "vfs=forebay", large, 0},
    {4096, "vfs=forebay&psow=0", large, 0},
    {4096, "vfs=above", large, 0},
    {4096, "vfs=forebay", large, 1},
    {4096, "vfs=forebay&psow=0", small, 0},
    {4096, "vfs=forebay&psow=0", small, 1},
};

/*
 * The process is killed after the refusal, and after the cache had space and time to write what it
 * still had. SQLite's own VFS recovers what is there.
 */
static void refused_is_not_committed_after_a_kill(const char *folder, const Refusal *refusal) {
    char name[600];
    sqlite3 *db;
    int status;
    pid_t child;
    snprintf(name, sizeof name, "file:%s/k.db", folder);
    made_for_a_kill(folder, name, refusal->page);
    child = fork();
    CHECK(child >= 0);
    if (!child) {
        strcat(strcat(name, "?"), refusal->parameters);
        IS(forebay_sqlite_register(0), SQLITE_OK);
        register_above();
        db = opened(name);
        CHECK(strcmp(text(db, "PRAGMA journal_mode=wal"), "wal") == 0);
        ran(db, "PRAGMA synchronous=full");
        ran(db, small);
        cuts_fail = refusal->cuts_fail;
        last_space_is_synced = refusal->sql == small;
        IS(sqlite3_exec(db, refusal->sql, NULL, NULL, NULL), SQLITE_FULL);
        CHECK(truncate(in_folder(folder, "filler"), 0) == 0);
        poll(NULL, 0, 500);
        IS(raise(SIGKILL), 0);
    }
    IS(waitpid(child, &status, 0), child);
    CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
    db = opened(name);
    IS(number(db, "SELECT sum(a) FROM t"), 1);
    CHECK(strcmp(text(db, "PRAGMA integrity_check"), "ok") == 0);
    closed(db);
    IS(unlink(in_folder(folder, "k.db")), 0);
}

int main(int argc, char **argv) {
    char uri[600], journal[600];
    struct stat found;
    sqlite3 *db;
    unsigned long before;
    CHECK(argc == 2);
    snprintf(uri, sizeof uri, "file:%s/a.db?vfs=forebay", argv[1]);
    snprintf(journal, sizeof journal, "%s/a.db-journal", argv[1]);
    for (size_t i = 0; i < sizeof refusals / sizeof *refusals; i++)
        refused_is_not_committed_after_a_kill(argv[1], &refusals[i]);
    IS(forebay_sqlite_register(0), SQLITE_OK);
    db = opened(uri);
    ran(db, "PRAGMA journal_mode=delete; PRAGMA synchronous=full; CREATE TABLE t(a, b)");
    ran(db, "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i+1 FROM n WHERE i<200) "
            "INSERT INTO t SELECT 0, randomblob(3000) FROM n");
    fill_but(argv[1], 256 << 10);
    before = free_blocks(argv[1]);
    for (int round = 0; round < 3; round++) {
        CHECK(sqlite3_exec(db, "UPDATE t SET a = 9, b = randomblob(3000)", NULL, NULL, NULL) != SQLITE_OK);
        CHECK(sqlite3_get_autocommit(db));
        CHECK(stat(journal, &found) != 0 && errno == ENOENT);
        IS(free_blocks(argv[1]), before);
        IS(failed_bytes(), 0);
        ran(db, "UPDATE t SET a = a + 1 WHERE rowid = 1");
    }
    IS(number(db, "SELECT sum(a) FROM t"), 3);
    CHECK(strcmp(text(db, "PRAGMA integrity_check"), "ok") == 0);
    closed(db);
    log_without_space_is_dropped(argv[1], uri);
    small_commits_follow_a_large_one_without_space(uri);
    for (int i = 0; i < 5; i++)
        refused_is_not_committed_by_the_next_open(argv[1], uri, modes[i]);
    accepted_is_kept_without_space(argv[1], uri, modes[1]);
    accepted_is_kept_without_space(argv[1], uri, modes[4]);
    close_leaves_the_frames_of_others(argv[1], uri);
    close_leaves_the_frames_of_those_it_let_in(argv[1], uri);
    close_cuts_what_was_synced_and_refused(uri);
    close_leaves_what_one_database_has_committed(argv[1], uri);
    close_adds_nothing_to_an_empty_log(argv[1], uri);
    register_above();
    cut_leaves_frames_that_are_elsewhere(argv[1]);
    unregister_above();
    journal_is_deleted_past_the_cache(uri);
    IS(forebay_sqlite_shutdown(), SQLITE_OK);
    IS(sqlite3_shutdown(), SQLITE_OK);
    return 0;
}
