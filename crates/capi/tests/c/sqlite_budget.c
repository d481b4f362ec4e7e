/*
 * The parameter `budget` of names: what cannot be set is an error of the open, which the log
 * explains, and no text of an earlier failure.
 */
#include "check.h"
#include "sqlite/forebay_sqlite.h"
#include "sqlite_check.h"

#define READERS 60

static char logged[600];

static void on_log(void *with, int code, const char *message) {
    (void)with;
    (void)code;
    if (strncmp(message, "forebay: ", 9) == 0)
        snprintf(logged, sizeof logged, "%s", message);
}

static const char *uri_of(const char *folder, const char *name, const char *budget) {
    static char uri[2][600];
    static int next;
    char *at = uri[next++ % 2];
    snprintf(at, sizeof uri[0], "file:%s/%s?vfs=forebay&budget=%s", folder, name, budget);
    return at;
}

static int opens(const char *uri) {
    sqlite3 *db;
    int result = sqlite3_open_v2(uri, &db, FLAGS, NULL);
    CHECK(sqlite3_close(db) == SQLITE_OK);
    return result;
}

static uint64_t budget(void) {
    fby_stats stats;
    CHECK(fby_cache_stats(forebay_sqlite_cache(), &stats, sizeof stats) > 0);
    return stats.budget_bytes;
}

/* Each statement holds a page of 16 KiB; together more than a cache of 4 MiB may pin. */
static void pages_in_use_refuse_a_smaller_budget(const char *folder) {
    sqlite3 *db = opened(uri_of(folder, "a.db", "32M"));
    sqlite3_stmt *readers[READERS];
    struct stat found;
    ran(db, "PRAGMA page_size=16384; PRAGMA journal_mode=delete; CREATE TABLE t(a INTEGER PRIMARY KEY, b)");
    ran(db, "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i+1 FROM n WHERE i<100) "
            "INSERT INTO t SELECT i, randomblob(12000) FROM n; PRAGMA cache_size=1");
    for (int i = 0; i < READERS; i++) {
        readers[i] = prepared(db, "SELECT a FROM t WHERE a >= ?");
        IS(sqlite3_bind_int(readers[i], 1, i + 1), SQLITE_OK);
        IS(sqlite3_step(readers[i]), SQLITE_ROW);
    }
    IS(opens(uri_of(folder, "b.db", "4M")), SQLITE_CANTOPEN);
    IS(budget(), 32 << 20);
    CHECK(strstr(logged, "budget of 4194304 bytes") && strstr(logged, "pins hold"));
    CHECK(stat(in_folder(folder, "b.db"), &found) != 0);
    IS(opens(uri_of(folder, "b.db", "1K")), SQLITE_CANTOPEN);
    CHECK(strstr(logged, "budget of 1024 bytes") != NULL);
    for (int i = 0; i < READERS; i++)
        IS(sqlite3_finalize(readers[i]), SQLITE_OK);
    IS(opens(uri_of(folder, "b.db", "4M")), SQLITE_OK);
    IS(budget(), 4 << 20);
    closed(db);
}

static int unlink_error;

/* In front of the system's. */
int unlink(const char *name) {
    REAL(unlink);
    if (!unlink_error)
        return call(name);
    errno = unlink_error;
    return -1;
}

/* The failure of a system call has its own text, not that of libforebay's last error. */
static void failure_of_a_system_call_has_its_text(const char *folder) {
    sqlite3 *db = opened(uri_of(folder, "a.db", "4M"));
    ran(db, "PRAGMA journal_mode=delete");
    CHECK(*fby_last_error());
    unlink_error = EROFS;
    IS(sqlite3_exec(db, "UPDATE t SET b = 1 WHERE a = 1", NULL, NULL, NULL), SQLITE_IOERR);
    unlink_error = 0;
    CHECK(strstr(logged, "a.db-journal: ") && strstr(logged, strerror(EROFS)));
    closed(db);
}

int main(int argc, char **argv) {
    CHECK(argc == 2);
    IS(sqlite3_config(SQLITE_CONFIG_LOG, on_log, NULL), SQLITE_OK);
    IS(forebay_sqlite_register(0), SQLITE_OK);
    pages_in_use_refuse_a_smaller_budget(argv[1]);
    failure_of_a_system_call_has_its_text(argv[1]);
    IS(forebay_sqlite_shutdown(), SQLITE_OK);
    IS(sqlite3_shutdown(), SQLITE_OK);
    return 0;
}
