/*
 * A host file system that is full: a transaction whose journal or log has no space fails, and once
 * that file is deleted nothing of it is retained or tried again. The folder is a file system of
 * 2 MiB.
 */
#include "check.h"
#include "sqlite/internal.h"
#include "sqlite_check.h"

#include <poll.h>
#include <sys/stat.h>
#include <sys/statvfs.h>

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

/* Each failed sync is reported to the other connections, too: each may be refused once by it. */
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

int main(int argc, char **argv) {
    char uri[600], journal[600];
    struct stat found;
    sqlite3 *db;
    unsigned long before;
    CHECK(argc == 2);
    snprintf(uri, sizeof uri, "file:%s/a.db?vfs=forebay", argv[1]);
    snprintf(journal, sizeof journal, "%s/a.db-journal", argv[1]);
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
    journal_is_deleted_past_the_cache(uri);
    IS(forebay_sqlite_shutdown(), SQLITE_OK);
    IS(sqlite3_shutdown(), SQLITE_OK);
    return 0;
}
