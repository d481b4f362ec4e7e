/*
 * On the host the name of a new journal is durable before the database changes, and with
 * synchronous=EXTRA the end of that name before the commit returns. This program puts functions of
 * its own in front of fsync(2) and fdatasync(2). They note what the folder holds when it is synced.
 *
 * The database gets a time of change in the past before each transaction, so that one write on the
 * host shows.
 */
#include "check.h"
#include "sqlite/forebay_sqlite.h"
#include "sqlite_check.h"

#include <sys/stat.h>
#include <sys/syscall.h>

static char folder[400], database[450], journal[500];

/* Syncs of the folder in one transaction. */
static struct {
    /* The journal was there with content, and the database as before the transaction. */
    int in_time;
    /* The journal was there, and the database had changed. */
    int late;
    /* The journal was not there. */
    int without;
} syncs;

static int is_folder(int fd) {
    struct stat given, wanted;
    return fstat(fd, &given) == 0 && stat(folder, &wanted) == 0 && given.st_ino == wanted.st_ino &&
           given.st_dev == wanted.st_dev;
}

static int is_changed(void) {
    struct stat found;
    CHECK(stat(database, &found) == 0);
    return found.st_mtim.tv_sec != 1;
}

static void note(int fd) {
    struct stat found;
    if (is_folder(fd)) {
        int there = stat(journal, &found) == 0;
        CHECK(!there || found.st_size > 0);
        syncs.in_time += there && !is_changed();
        syncs.late += there && is_changed();
        syncs.without += !there;
    }
}

int fsync(int fd) {
    note(fd);
    return (int)syscall(SYS_fsync, fd);
}

/* By which SQLite's own VFS syncs the folder of a journal. */
int fdatasync(int fd) {
    note(fd);
    return (int)syscall(SYS_fdatasync, fd);
}

/* One transaction; counts its syncs of the folder. */
static void changed(sqlite3 *db) {
    struct timespec past[2] = {{1, 0}, {1, 0}};
    memset(&syncs, 0, sizeof syncs);
    CHECK(utimensat(AT_FDCWD, database, past, 0) == 0);
    ran(db, "BEGIN IMMEDIATE; UPDATE t SET a = a + 1; COMMIT");
}

static sqlite3 *opened_as(const char *mode, const char *sync) {
    char uri[600], sql[200];
    snprintf(uri, sizeof uri, "file:%s?vfs=forebay", database);
    sqlite3 *db = opened(uri);
    snprintf(sql, sizeof sql, "PRAGMA journal_mode=%s; PRAGMA synchronous=%s", mode, sync);
    ran(db, sql);
    ran(db, "CREATE TABLE IF NOT EXISTS t(a); INSERT INTO t VALUES(1)");
    return db;
}

/* Each transaction has a new journal. */
static void new_journal_is_named_before_the_database_changes(void) {
    sqlite3 *db = opened_as("delete", "FULL");
    for (int round = 0; round < 3; round++) {
        changed(db);
        IS(is_changed(), 1);
        IS(syncs.in_time, 1);
        IS(syncs.late, 0);
        IS(syncs.without, 0);
    }
    closed(db);
}

static void extra_syncs_the_delete(void) {
    sqlite3 *db = opened_as("delete", "EXTRA");
    for (int round = 0; round < 3; round++) {
        changed(db);
        IS(syncs.in_time, 1);
        IS(syncs.late, 0);
        IS(syncs.without, 1);
    }
    closed(db);
}

/* The first transaction makes the journal, the next ones find it. */
static void kept_journal_is_named_once(void) {
    sqlite3 *db = opened_as("persist", "FULL");
    changed(db);
    IS(syncs.in_time + syncs.late + syncs.without, 0);
    closed(db);
    CHECK(unlink(journal) == 0);
    db = opened_as("persist", "FULL");
    CHECK(syncs.in_time + syncs.late + syncs.without > 0);
    changed(db);
    IS(syncs.in_time + syncs.late + syncs.without, 0);
    closed(db);
    CHECK(unlink(journal) == 0);
}

/* The journal here is the log: it is new with the first transaction, which is in it alone. */
static void new_log_is_named_before_the_commit_returns(void) {
    sqlite3 *db;
    snprintf(journal, sizeof journal, "%s-wal", database);
    memset(&syncs, 0, sizeof syncs);
    db = opened_as("wal", "FULL");
    CHECK(syncs.in_time + syncs.late > 0);
    changed(db);
    IS(is_changed(), 0);
    IS(syncs.in_time + syncs.late + syncs.without, 0);
    closed(db);
}

int main(int argc, char **argv) {
    fby_cache *cache;
    CHECK(argc == 2);
    snprintf(folder, sizeof folder, "%s", argv[1]);
    snprintf(database, sizeof database, "%s/a.db", folder);
    snprintf(journal, sizeof journal, "%s-journal", database);
    cache = small_cache();
    IS(forebay_sqlite_register(0), SQLITE_OK);
    IS(forebay_sqlite_use_cache(cache), SQLITE_OK);
    new_journal_is_named_before_the_database_changes();
    extra_syncs_the_delete();
    kept_journal_is_named_once();
    new_log_is_named_before_the_commit_returns();
    IS(forebay_sqlite_shutdown(), SQLITE_OK);
    IS(fby_cache_close(cache), 0);
    return 0;
}
