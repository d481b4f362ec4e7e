/*
 * Point lookups by SQLite, all of them hits of a cache of pages outside SQLite: by this VFS with
 * and without pages in place, and by SQLite's own VFS with reads and with a mapping.
 *
 *   sqlite_lookups FOLDER PAGE_BYTES ROUNDS SLICE_MILLISECONDS
 *
 * Each column has a copy of the same database of 96 MiB, a connection in exclusive locking mode,
 * and 1 MiB of SQLite's cache. Forebay's budget holds the database, the kernel's cache does, too:
 * both spend the same memory. In a round each column has one slice, in an order that rotates. A
 * line for each slice: column, lookups, nanoseconds of the clock, nanoseconds of processor time of
 * the process. All values are compared with what was stored.
 */
#include "check.h"
#include "sqlite_check.h"
#include "sqlite/forebay_sqlite.h"
#include <time.h>

#define ROW_BYTES 200
#define DATABASE_BYTES (96ll << 20)
#define ROWS (DATABASE_BYTES / (ROW_BYTES + 12))
#define COLUMNS 4

static const struct {
    const char *name, *uri, *setup;
} columns[COLUMNS] = {
    {"forebay-fetch", "file:%s/0.db?vfs=forebay&budget=320M", ""},
    {"forebay-read", "file:%s/1.db?vfs=forebay&fetch=0", "PRAGMA mmap_size=0"},
    {"unix-read", "file:%s/2.db?vfs=unix", "PRAGMA mmap_size=0"},
    {"unix-mmap", "file:%s/3.db?vfs=unix", "PRAGMA mmap_size=2147418112"},
};

static long long now(clockid_t clock) {
    struct timespec at;
    CHECK(clock_gettime(clock, &at) == 0);
    return at.tv_sec * 1000000000ll + at.tv_nsec;
}

static void fill(sqlite3 *db, long long page_bytes) {
    char sql[300];
    snprintf(sql, sizeof sql, "PRAGMA page_size=%lld; CREATE TABLE t(k INTEGER PRIMARY KEY, v BLOB)",
             page_bytes);
    ran(db, sql);
    snprintf(sql, sizeof sql,
             "WITH RECURSIVE n(k) AS (SELECT 1 UNION ALL SELECT k + 1 FROM n WHERE k < %lld)"
             "INSERT INTO t SELECT k, CAST(printf('%%0%dd', k) AS BLOB) FROM n",
             (long long)ROWS, ROW_BYTES);
    ran(db, sql);
}

/* As many lookups as fit into the slice. */
static long long looked_up(sqlite3_stmt *statement, unsigned long long *seed, long long until) {
    long long count = 0;
    do {
        for (int i = 0; i < 64; i++, count++) {
            long long key;
            char last[24];
            *seed = *seed * 6364136223846793005ull + 1442695040888963407ull;
            key = 1 + (long long)((*seed >> 20) % (unsigned long long)ROWS);
            snprintf(last, sizeof last, "%012lld", key);
            IS(sqlite3_bind_int64(statement, 1, key), SQLITE_OK);
            IS(sqlite3_step(statement), SQLITE_ROW);
            IS(sqlite3_column_bytes(statement, 0), ROW_BYTES);
            CHECK(!memcmp((const char *)sqlite3_column_blob(statement, 0) + ROW_BYTES - 12, last, 12));
            IS(sqlite3_reset(statement), SQLITE_OK);
        }
    } while (now(CLOCK_MONOTONIC) < until);
    return count;
}

static sqlite3 *connection(const char *folder, int column, long long page_bytes) {
    char uri[1000];
    sqlite3 *db;
    snprintf(uri, sizeof uri, columns[column].uri, folder);
    db = opened(uri);
    ran(db, "PRAGMA locking_mode=EXCLUSIVE; PRAGMA cache_size=-1024; PRAGMA synchronous=OFF");
    fill(db, page_bytes);
    ran(db, columns[column].setup);
    IS(number(db, "SELECT count(*) FROM t WHERE length(v) > 0"), ROWS);
    return db;
}

int main(int count, char **words) {
    sqlite3 *db[COLUMNS];
    sqlite3_stmt *statement[COLUMNS];
    unsigned long long seed = 1;
    CHECK(count == 5);
    IS(forebay_sqlite_register(0), SQLITE_OK);
    for (int i = 0; i < COLUMNS; i++) {
        db[i] = connection(words[1], i, atoll(words[2]));
        statement[i] = prepared(db[i], "SELECT v FROM t WHERE k = ?");
    }
    for (int round = 0; round < atoi(words[3]); round++) {
        for (int turn = 0; turn < COLUMNS; turn++) {
            int i = (turn + round) % COLUMNS;
            long long start = now(CLOCK_MONOTONIC), cpu = now(CLOCK_PROCESS_CPUTIME_ID), lookups;
            lookups = looked_up(statement[i], &seed, start + atoll(words[4]) * 1000000);
            printf("%s %lld %lld %lld\n", columns[i].name, lookups, now(CLOCK_MONOTONIC) - start,
                   now(CLOCK_PROCESS_CPUTIME_ID) - cpu);
        }
    }
    for (int i = 0; i < COLUMNS; i++) {
        IS(sqlite3_finalize(statement[i]), SQLITE_OK);
        closed(db[i]);
    }
    IS(forebay_sqlite_shutdown(), SQLITE_OK);
    return 0;
}
