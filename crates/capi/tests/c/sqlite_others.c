/*
 * SQLite on the VFS, and other users of a database: processes, SQLite's own VFS, a child of
 * fork(2), threads. A second process gets SQLITE_BUSY, and never bytes of before.
 *
 * With URI and SQL as further arguments it is the second process, and ends with SQLite's result.
 */
#include "check.h"
#include "sqlite/internal.h"
#include "sqlite_check.h"

#include <sys/stat.h>
#include <sys/wait.h>

static const char *self;

static int as_second_process(const char *uri, const char *sql) {
    sqlite3 *db = opened(uri);
    int result = sqlite3_exec(db, sql, NULL, NULL, NULL);
    closed(db);
    return result;
}

/* The result of the SQL in another process: on this VFS, or by the program sqlite3. */
static int elsewhere(const char *uri, const char *sql) {
    char command[1400];
    int status;
    snprintf(command, sizeof command, "'%s' - '%s' '%s'", self, uri, sql);
    status = system(command);
    CHECK(WIFEXITED(status));
    return WEXITSTATUS(status);
}

static int by_program(const char *path, const char *sql) {
    char command[1400];
    int status;
    snprintf(command, sizeof command, "sqlite3 '%s' '%s' >/dev/null 2>&1", path, sql);
    status = system(command);
    CHECK(WIFEXITED(status));
    return WEXITSTATUS(status);
}

static void second_process_is_busy(const char *uri, const char *path, const char *mode) {
    sqlite3 *db = opened(uri);
    char sql[100];
    snprintf(sql, sizeof sql, "PRAGMA journal_mode=%s; PRAGMA synchronous=off", mode);
    ran(db, sql);
    ran(db, "CREATE TABLE IF NOT EXISTS t(a); INSERT INTO t VALUES(1)");
    IS(elsewhere(uri, "SELECT count(*) FROM t"), SQLITE_BUSY);
    IS(elsewhere(uri, "INSERT INTO t VALUES(2)"), SQLITE_BUSY);
    if (path) {
        IS(by_program(path, "SELECT count(*) FROM t"), SQLITE_BUSY);
        IS(by_program(path, "INSERT INTO t VALUES(2)"), SQLITE_BUSY);
    }
    closed(db);
    IS(elsewhere(uri, "INSERT INTO t VALUES(2)"), SQLITE_OK);
    if (path)
        IS(by_program(path, "INSERT INTO t VALUES(3)"), SQLITE_OK);
    db = opened(uri);
    IS(number(db, "SELECT count(*) FROM t"), path ? 3 : 2);
    ran(db, "DROP TABLE t");
    closed(db);
}

/* What a closed file left in our cache is not shown after SQLite's own VFS has changed the file. */
static void turns_show_no_old_bytes(const char *uri, const char *path) {
    sqlite3 *db = opened(uri), *theirs;
    ran(db, "PRAGMA journal_mode=delete; CREATE TABLE n(a, pad); INSERT INTO n VALUES(0, zeroblob(9000))");
    closed(db);
    for (int turn = 0; turn < 60; turn += 2) {
        IS(sqlite3_open_v2(path, &theirs, FLAGS, "unix"), SQLITE_OK);
        ran(theirs, "PRAGMA synchronous=off");
        IS(number(theirs, "SELECT a FROM n"), turn);
        ran(theirs, "UPDATE n SET a = a + 1");
        closed(theirs);
        db = opened(uri);
        IS(number(db, "SELECT a FROM n"), turn + 1);
        ran(db, "UPDATE n SET a = a + 1");
        closed(db);
    }
}

/* The program has run what it was given up to here. */
static void reached(FILE *program, const char *mark) {
    fprintf(program, ".shell touch %s\n", mark);
    IS(fflush(program), 0);
    while (access(mark, F_OK) != 0)
        usleep(2000);
    IS(unlink(mark), 0);
}

/* A database that another process holds opens, is busy at its first lock, and works later. */
static void busy_at_open_works_later(const char *uri, const char *path, const char *mark) {
    fby_cache *cache = forebay_sqlite_cache();
    char command[600];
    sqlite3 *db;
    FILE *program;
    snprintf(command, sizeof command, "sqlite3 '%s' >/dev/null", path);
    program = popen(command, "w");
    CHECK(program != NULL);
    fprintf(program, "PRAGMA page_size=8192;\nVACUUM;\nBEGIN;\nSELECT a FROM n;\n");
    reached(program, mark);
    db = opened(uri);
    IS(sqlite3_exec(db, "SELECT a FROM n", NULL, NULL, NULL), SQLITE_BUSY);
    IS(sqlite3_exec(db, "UPDATE n SET a = 9", NULL, NULL, NULL), SQLITE_BUSY);
    /* It will need the cache. */
    IS(forebay_sqlite_shutdown(), SQLITE_BUSY);
    closed(db);
    IS(forebay_sqlite_shutdown(), SQLITE_OK);
    IS(forebay_sqlite_use_cache(cache), SQLITE_OK);
    db = opened(uri);
    IS(sqlite3_exec(db, "SELECT a FROM n", NULL, NULL, NULL), SQLITE_BUSY);
    fprintf(program, "COMMIT;\nUPDATE n SET a = 61;\n");
    reached(program, mark);
    IS(number(db, "SELECT a FROM n"), 61);
    IS(number(db, "PRAGMA page_size"), 8192);
    IS(by_program(path, "SELECT a FROM n"), SQLITE_BUSY);
    ran(db, "UPDATE n SET a = 62");
    closed(db);
    IS(pclose(program), 0);
    /* The largest negative number has no absolute value: an error. */
    IS(by_program(path, "SELECT abs(iif(a = 62, 0, -9223372036854775807 - 1)) FROM n"), SQLITE_OK);
}

/* A child has neither the parent's connection nor its files, and can end the connection. */
static void child_is_refused(const char *uri, const char *mode) {
    sqlite3 *db = opened(uri), *own;
    char sql[200];
    File *file;
    int status;
    pid_t child;
    snprintf(sql, sizeof sql, "PRAGMA journal_mode=%s; CREATE TABLE IF NOT EXISTS c(a); DELETE FROM c", mode);
    ran(db, sql);
    ran(db, "INSERT INTO c VALUES(62)");
    IS(number(db, "SELECT a FROM c"), 62);
    IS(sqlite3_file_control(db, "main", SQLITE_FCNTL_FILE_POINTER, &file), SQLITE_OK);
    /* As another thread may at the fork. */
    CHECK(pthread_mutex_lock(&file->node->mutex) == 0);
    child = fork();
    if (child == 0) {
        CHECK(sqlite3_exec(db, "SELECT a FROM c", NULL, NULL, NULL) == SQLITE_IOERR);
        own = opened(uri);
        IS(sqlite3_exec(own, "SELECT a FROM c", NULL, NULL, NULL), SQLITE_BUSY);
        closed(db);
        IS(sqlite3_exec(own, "SELECT a FROM c", NULL, NULL, NULL), SQLITE_BUSY);
        closed(own);
        _exit(0);
    }
    CHECK(pthread_mutex_unlock(&file->node->mutex) == 0);
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    ran(db, "UPDATE c SET a = 63");
    IS(number(db, "SELECT a FROM c"), 63);
    closed(db);
}

/*
 * A busy database that this process may only read opens as one for reading. A superuser may write
 * all files, so it becomes another user for that.
 */
static void busy_database_without_write_permission_opens(const char *uri, const char *path) {
    sqlite3 *db = opened(uri), *own;
    int status;
    pid_t child;
    ran(db, "CREATE TABLE IF NOT EXISTS w(a)");
    CHECK(chmod(path, 0444) == 0);
    child = fork();
    if (child == 0) {
        CHECK(geteuid() != 0 || setuid(65534) == 0);
        own = opened(uri);
        IS(sqlite3_db_readonly(own, "main"), 1);
        IS(sqlite3_exec(own, "SELECT a FROM w", NULL, NULL, NULL), SQLITE_BUSY);
        closed(own);
        _exit(0);
    }
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    CHECK(chmod(path, 0644) == 0);
    closed(db);
}

#define THREADS 4
#define ROWS 40

static void *insert(void *with) {
    sqlite3 *db = opened(with);
    IS(sqlite3_busy_timeout(db, 60000), SQLITE_OK);
    for (int i = 0; i < ROWS; i++)
        ran(db, i % 8 ? "INSERT INTO p VALUES(randomblob(900))"
                      : "BEGIN IMMEDIATE; DELETE FROM p WHERE rowid % 97 = 5; "
                        "INSERT INTO p VALUES(2); COMMIT");
    IS(number(db, "SELECT count(*) > 0 FROM p"), 1);
    closed(db);
    return NULL;
}

static void threads(const char *uri, const char *mode) {
    pthread_t thread[THREADS];
    sqlite3 *db = opened(uri);
    char sql[100];
    snprintf(sql, sizeof sql, "PRAGMA journal_mode=%s", mode);
    ran(db, sql);
    ran(db, "PRAGMA synchronous=off; DROP TABLE IF EXISTS p; DROP TABLE IF EXISTS gone; CREATE TABLE p(a);"
            "CREATE TABLE gone(n); CREATE TRIGGER d AFTER DELETE ON p BEGIN INSERT INTO gone VALUES(1); END");
    for (int i = 0; i < THREADS; i++)
        CHECK(pthread_create(&thread[i], NULL, insert, (void *)(uintptr_t)uri) == 0);
    for (int i = 0; i < THREADS; i++)
        CHECK(pthread_join(thread[i], NULL) == 0);
    IS(number(db, "SELECT (SELECT count(*) FROM p) + (SELECT count(*) FROM gone)"), THREADS * ROWS);
    CHECK(strcmp(text(db, "PRAGMA integrity_check"), "ok") == 0);
    closed(db);
}

int main(int argc, char **argv) {
    char uri[600], in_volume[600], path[500];
    fby_cache *cache;
    CHECK(argc == 2 || argc == 4);
    self = argv[0];
    cache = small_cache();
    IS(forebay_sqlite_register(0), SQLITE_OK);
    IS(forebay_sqlite_use_cache(cache), SQLITE_OK);
    if (argc == 4)
        return as_second_process(argv[2], argv[3]);
    snprintf(path, sizeof path, "%s/a.db", argv[1]);
    snprintf(uri, sizeof uri, "file:%s?vfs=forebay", path);
    snprintf(in_volume, sizeof in_volume, "file:/a.db?vfs=forebay&volume=%s/v&volume_size=67108864", argv[1]);
    second_process_is_busy(uri, path, "delete");
    second_process_is_busy(uri, path, "wal");
    second_process_is_busy(in_volume, NULL, "delete");
    second_process_is_busy(in_volume, NULL, "wal");
    turns_show_no_old_bytes(uri, path);
    busy_at_open_works_later(uri, path, in_folder(argv[1], "mark"));
    child_is_refused(uri, "delete");
    child_is_refused(uri, "wal");
    child_is_refused(in_volume, "delete");
    child_is_refused(in_volume, "wal");
    busy_database_without_write_permission_opens(uri, path);
    threads(uri, "delete");
    threads(uri, "wal");
    threads(in_volume, "wal");
    IS(forebay_sqlite_shutdown(), SQLITE_OK);
    IS(fby_cache_close(cache), 0);
    return 0;
}
