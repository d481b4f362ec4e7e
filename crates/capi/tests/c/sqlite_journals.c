/* Journals of SQLite on the VFS: how they are read, opened and synced, and what names may say. */
#include "check.h"
#include "sqlite/internal.h"
#include "sqlite_check.h"

#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>

static int folder_syncs;
/* The next sync of a folder fails. */
static int is_next_failing;

/* Whether the sync is to be done. */
static int count(int fd) {
    struct stat found;
    int is_failing;
    CHECK(fstat(fd, &found) == 0);
    if (!S_ISDIR(found.st_mode))
        return 1;
    folder_syncs++;
    is_failing = is_next_failing;
    is_next_failing = 0;
    errno = EIO;
    return !is_failing;
}

/* These take the place of libc's functions, and count syncs of folders. */
int fsync(int fd) {
    return count(fd) ? (int)syscall(SYS_fsync, fd) : -1;
}

int fdatasync(int fd) {
    return count(fd) ? (int)syscall(SYS_fdatasync, fd) : -1;
}

static const char *uri_of(const char *folder, const char *name, const char *more) {
    static char uri[4][600];
    static int next;
    char *at = uri[next++ % 4];
    snprintf(at, sizeof uri[0], "file:%s/%s?vfs=forebay%s", folder, name, more);
    return at;
}

/*
 * The last bytes of a journal say how long the name of a super-journal is. SQLite reads that name
 * into memory for one page, and trusts that names are no longer.
 */
static void name_longer_than_a_page_in_a_journal_is_ignored(const char *folder) {
    static const unsigned char tail[16] = {0,    0,    4,    0,    1,    2,    3,    4,
                                           0xd9, 0xd5, 0x05, 0xf9, 0x20, 0xa1, 0x63, 0xd7};
    static unsigned char journal[1024 + sizeof tail];
    const char *uri = uri_of(folder, "long.db", "");
    sqlite3 *db = opened(uri);
    int file;
    ran(db, "PRAGMA page_size=512; PRAGMA journal_mode=delete; CREATE TABLE t(a)");
    ran(db, "INSERT INTO t VALUES(7)");
    closed(db);
    memset(journal, 'x', sizeof journal);
    memcpy(journal + 1024, tail, sizeof tail);
    file = open(in_folder(folder, "long.db-journal"), O_WRONLY | O_CREAT, 0644);
    CHECK(file >= 0);
    IS(write(file, journal, sizeof journal), sizeof journal);
    IS(close(file), 0);
    db = opened(uri);
    IS(number(db, "SELECT a FROM t"), 7);
    closed(db);
}

/* SQLite asks for eight bytes more than a full name has, for the ends of journals' names. */
static void names_end_at_504_bytes(const char *folder) {
    char path[600], uri[700];
    sqlite3 *db;
    for (int length = 504; length <= 505; length++) {
        size_t at = (size_t)snprintf(path, sizeof path, "%s", folder);
        while (at < 504 - 150) {
            at += (size_t)snprintf(path + at, sizeof path - at, "/%0100d", 0);
            CHECK(mkdir(path, 0755) == 0 || errno == EEXIST);
        }
        snprintf(path + at, sizeof path - at, "/%0*d", length - (int)at - 1, 0);
        IS(strlen(path), length);
        snprintf(uri, sizeof uri, "file:%s?vfs=forebay", path);
        IS(sqlite3_open_v2(uri, &db, FLAGS, NULL), length == 504 ? SQLITE_OK : SQLITE_CANTOPEN);
        if (length == 504)
            ran(db, "CREATE TABLE t(a); PRAGMA journal_mode=wal; INSERT INTO t VALUES(1)");
        closed(db);
    }
}

static void budget_in_a_name_counts_at_the_open_of_the_database(const char *folder) {
    sqlite3 *one = opened(uri_of(folder, "one.db", "&budget=32M"));
    sqlite3 *two;
    fby_stats stats;
    ran(one, "CREATE TABLE t(a)");
    two = opened(uri_of(folder, "two.db", "&budget=24M"));
    CHECK(fby_cache_stats(forebay_sqlite_cache(), &stats, sizeof stats) > 0);
    IS(stats.budget_bytes, 24 << 20);
    ran(one, "INSERT INTO t VALUES(1)");
    CHECK(fby_cache_stats(forebay_sqlite_cache(), &stats, sizeof stats) > 0);
    IS(stats.budget_bytes, 24 << 20);
    closed(two);
    closed(one);
}

/* The first connection makes the journal, and syncs nothing; the second one finds it. */
static void name_of_an_old_journal_is_synced(const char *folder) {
    const char *uri = uri_of(folder, "sync.db", "");
    sqlite3 *db = opened(uri);
    ran(db, "PRAGMA journal_mode=persist; PRAGMA synchronous=off");
    folder_syncs = 0;
    ran(db, "CREATE TABLE t(a)");
    IS(folder_syncs, 0);
    closed(db);
    CHECK(access(in_folder(folder, "sync.db-journal"), F_OK) == 0);
    db = opened(uri);
    ran(db, "PRAGMA journal_mode=persist; PRAGMA synchronous=full");
    ran(db, "INSERT INTO t VALUES(1)");
    IS(folder_syncs, 1);
    ran(db, "INSERT INTO t VALUES(1)");
    IS(folder_syncs, 1);
    closed(db);
}

/* A name whose sync failed is not durable: the transaction fails, and the next sync does it. */
static void name_whose_sync_failed_is_synced_again(const char *folder) {
    sqlite3 *db = opened(uri_of(folder, "failing.db", ""));
    ran(db, "PRAGMA journal_mode=truncate; PRAGMA synchronous=off; CREATE TABLE t(a)");
    CHECK(unlink(in_folder(folder, "failing.db-journal")) == 0);
    closed(db);
    db = opened(uri_of(folder, "failing.db", ""));
    ran(db, "PRAGMA journal_mode=truncate; PRAGMA synchronous=full");
    folder_syncs = 0;
    is_next_failing = 1;
    IS(sqlite3_exec(db, "INSERT INTO t VALUES(1)", NULL, NULL, NULL), SQLITE_IOERR);
    IS(is_next_failing, 0);
    IS(sqlite3_extended_errcode(db), SQLITE_IOERR_DIR_FSYNC);
    /* The rollback truncates the journal, and syncs it with its folder. */
    ran(db, "INSERT INTO t VALUES(2)");
    IS(folder_syncs, 2);
    ran(db, "INSERT INTO t VALUES(3)");
    IS(folder_syncs, 2);
    IS(number(db, "SELECT sum(a) FROM t"), 5);
    closed(db);
}

/* Dies in a transaction that has changed the database, by SQLite's own VFS. */
static void leave_a_hot_journal(const char *folder) {
    char uri[600];
    int status;
    pid_t child = fork();
    if (child == 0) {
        snprintf(uri, sizeof uri, "file:%s/hot.db?vfs=unix", folder);
        sqlite3 *db = opened(uri);
        ran(db, "CREATE TABLE t(a, pad); PRAGMA cache_size=5; PRAGMA journal_mode=truncate");
        ran(db, "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i+1 FROM n WHERE i<100) "
                "INSERT INTO t SELECT 1, randomblob(3000) FROM n");
        ran(db, "BEGIN; UPDATE t SET a = 2, pad = randomblob(3000)");
        _exit(0);
    }
    CHECK(waitpid(child, &status, 0) == child && status == 0);
}

/* A rollback that a power loss interrupts needs the journal again, and so its name. */
static void name_of_a_hot_journal_is_synced(const char *folder) {
    sqlite3 *db;
    struct stat found;
    leave_a_hot_journal(folder);
    CHECK(stat(in_folder(folder, "hot.db-journal"), &found) == 0 && found.st_size > 0);
    folder_syncs = 0;
    db = opened(uri_of(folder, "hot.db", ""));
    ran(db, "PRAGMA journal_mode=truncate; PRAGMA synchronous=full");
    IS(number(db, "SELECT sum(a) FROM t"), 100);
    IS(folder_syncs, 1);
    /* The rollback has deleted the journal; these have one of their own. */
    ran(db, "UPDATE t SET a = 2 WHERE rowid = 1");
    IS(folder_syncs, 2);
    ran(db, "UPDATE t SET a = 3 WHERE rowid = 1");
    IS(folder_syncs, 2);
    closed(db);
}

#define READERS 3
/* Fewer under valgrind, where readers and writers take turns. */
#define WRITES (getenv("FOREBAY_TEST_THREADS") ? 40 : 400)

static int is_over;

static void *read_often(void *with) {
    while (!__atomic_load_n(&is_over, __ATOMIC_ACQUIRE)) {
        sqlite3 *db = opened(with);
        for (int i = 0; i < 50; i++)
            CHECK((sqlite3_exec(db, "SELECT a FROM t", NULL, NULL, NULL) & ~SQLITE_BUSY) == 0);
        closed(db);
    }
    return NULL;
}

/* A reader finds an empty journal, and asks how long it is in the cache. */
static void journal_opens_while_readers_look_for_it(const char *folder) {
    static char uri[600];
    const int writes = WRITES;
    pthread_t thread[READERS];
    sqlite3 *db;
    snprintf(uri, sizeof uri, "%s", uri_of(folder, "busy.db", ""));
    db = opened(uri);
    ran(db, "PRAGMA synchronous=off; PRAGMA journal_mode=truncate; CREATE TABLE t(a)");
    ran(db, "INSERT INTO t VALUES(1)");
    for (int i = 0; i < READERS; i++)
        CHECK(pthread_create(&thread[i], NULL, read_often, uri) == 0);
    for (int i = 0; i < writes; i++) {
        sqlite3 *writer = opened(uri);
        IS(sqlite3_busy_timeout(writer, 60000), SQLITE_OK);
        ran(writer, "PRAGMA synchronous=off; PRAGMA journal_mode=truncate; BEGIN IMMEDIATE");
        /* This opens the journal: SQLite does not wait then. */
        ran(writer, "UPDATE t SET a = a + 1");
        ran(writer, "COMMIT");
        closed(writer);
    }
    __atomic_store_n(&is_over, 1, __ATOMIC_RELEASE);
    for (int i = 0; i < READERS; i++)
        CHECK(pthread_join(thread[i], NULL) == 0);
    IS(number(db, "SELECT a FROM t"), writes + 1);
    closed(db);
}

int main(int argc, char **argv) {
    CHECK(argc == 2);
    IS(forebay_sqlite_register(0), SQLITE_OK);
    name_longer_than_a_page_in_a_journal_is_ignored(argv[1]);
    names_end_at_504_bytes(argv[1]);
    budget_in_a_name_counts_at_the_open_of_the_database(argv[1]);
    name_of_an_old_journal_is_synced(argv[1]);
    name_whose_sync_failed_is_synced_again(argv[1]);
    name_of_a_hot_journal_is_synced(argv[1]);
    journal_opens_while_readers_look_for_it(argv[1]);
    IS(forebay_sqlite_shutdown(), SQLITE_OK);
    IS(sqlite3_shutdown(), SQLITE_OK);
    return 0;
}
