/*
 * For tests that end a process or a disk: transactions that are acknowledged one by one, and the
 * judgement of what is there afterwards.
 *
 *   sqlite_writer write URI MODE COUNT   commits, prints the number of each commit that returned.
 *                                        With ASK in the environment it waits for a byte then,
 *                                        and SYNC is its PRAGMA synchronous, FULL unless set. PAGE
 *                                        is the size of the pages of a new database: those of
 *                                        16384 bytes are fetched in place, those of 4096 are not.
 *   sqlite_writer judge URI LEAST MOST   the last commit is in [LEAST, MOST], nothing is damaged,
 *                                        and each commit up to it is in both tables. Prints it.
 *   sqlite_writer make URI               makes the database, and closes it.
 */
#include "check.h"
#include "sqlite_check.h"
#include "sqlite/forebay_sqlite.h"

static fby_cache *cache;

/* The table `last` changes in place, `a` grows, `b` is scattered and has an index. */
static void make(sqlite3 *db) {
    ran(db, "CREATE TABLE IF NOT EXISTS a(n INTEGER PRIMARY KEY, pad BLOB)");
    ran(db, "CREATE TABLE IF NOT EXISTS b(k INTEGER PRIMARY KEY, n INTEGER, pad BLOB)");
    ran(db, "CREATE UNIQUE INDEX IF NOT EXISTS bn ON b(n)");
    ran(db, "CREATE TABLE IF NOT EXISTS last(id INTEGER PRIMARY KEY, n INTEGER)");
    ran(db, "INSERT OR IGNORE INTO last VALUES(1, 0)");
}

static sqlite3 *opened_for_writing(const char *uri) {
    sqlite3 *db = opened(uri);
    const char *page = getenv("PAGE");
    char pragma[100];
    snprintf(pragma, sizeof pragma, "PRAGMA page_size=%s", page ? page : "4096");
    ran(db, pragma);
    return db;
}

static long long last(sqlite3 *db) {
    return number(db, "SELECT n FROM last");
}

/* Old rows lose their pads, so that pages become free and are used again. */
static void commit(sqlite3 *db, long long n) {
    char sql[700];
    snprintf(sql, sizeof sql,
             "BEGIN IMMEDIATE;"
             "INSERT INTO a VALUES(%lld, randomblob(abs(random() %% 3000)));"
             "INSERT INTO b VALUES(%lld * 7919 %% 1000003, %lld, randomblob(200));"
             "UPDATE a SET pad = randomblob(abs(random() %% 500)) WHERE n = %lld - 20;"
             "UPDATE last SET n = %lld; COMMIT",
             n, n, n, n, n);
    ran(db, sql);
}

static int write_all(const char *uri, const char *mode, long long count) {
    sqlite3 *db = opened_for_writing(uri);
    char pragma[100], line[32], byte;
    const char *sync = getenv("SYNC");
    int asks = getenv("ASK") != NULL;
    snprintf(pragma, sizeof pragma, "PRAGMA journal_mode=%s; PRAGMA synchronous=%s", mode,
             sync ? sync : "FULL");
    ran(db, pragma);
    ran(db, "PRAGMA cache_size=20; PRAGMA wal_autocheckpoint=30");
    make(db);
    for (long long n = last(db) + 1; count-- > 0; n++) {
        int length;
        commit(db, n);
        length = snprintf(line, sizeof line, "%lld\n", n);
        CHECK(write(1, line, (size_t)length) == length);
        CHECK(!asks || read(0, &byte, 1) == 1);
    }
    closed(db);
    return 0;
}

static int judge(const char *uri, long long least, long long most) {
    sqlite3 *db = opened(uri);
    long long n;
    CHECK(strcmp(text(db, "PRAGMA integrity_check"), "ok") == 0);
    n = last(db);
    if (n < least || n > most)
        fprintf(stderr, "%lld commits, not %lld to %lld\n", n, least, most);
    CHECK(n >= least && n <= most);
    IS(number(db, "SELECT count(*) FROM a"), n);
    IS(number(db, "SELECT coalesce(max(n), 0) FROM a"), n);
    IS(number(db, "SELECT count(*) FROM b JOIN a USING (n) WHERE b.k = n * 7919 % 1000003"), n);
    /* It can be written again. */
    ran(db, "BEGIN IMMEDIATE; UPDATE last SET n = n; CREATE TABLE probe(x); DROP TABLE probe; COMMIT");
    closed(db);
    printf("%lld\n", n);
    return 0;
}

int main(int argc, char **argv) {
    int result = 2;
    CHECK(argc >= 3);
    cache = small_cache();
    IS(forebay_sqlite_register(0), SQLITE_OK);
    IS(forebay_sqlite_use_cache(cache), SQLITE_OK);
    if (strcmp(argv[1], "write") == 0 && argc == 5) {
        result = write_all(argv[2], argv[3], atoll(argv[4]));
    } else if (strcmp(argv[1], "judge") == 0 && argc == 5) {
        result = judge(argv[2], atoll(argv[3]), atoll(argv[4]));
    } else if (strcmp(argv[1], "make") == 0) {
        sqlite3 *db = opened_for_writing(argv[2]);
        make(db);
        closed(db);
        result = 0;
    }
    IS(forebay_sqlite_shutdown(), SQLITE_OK);
    IS(fby_cache_close(cache), 0);
    return result;
}
