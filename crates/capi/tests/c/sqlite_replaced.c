/*
 * A database of the host that another program replaces at the moment it is opened. A function in
 * front of the library's own renames another file over the name, right after the open.
 */
#include "check.h"
#include "sqlite/internal.h"
#include "sqlite_check.h"

#include <sys/stat.h>

static char database[450], copy[450];
static int is_replaced;

int fby_open(fby_cache *cache, const char *path, int flags, const fby_open_how *how, size_t how_size,
             fby_file **file) {
    REAL(fby_open);
    int result = call(cache, path, flags, how, how_size, file);
    if (is_replaced && strcmp(path, database) == 0) {
        is_replaced = 0;
        CHECK(rename(copy, database) == 0);
    }
    return result;
}

static File *file_of(sqlite3 *db) {
    File *file;
    IS(sqlite3_file_control(db, "main", SQLITE_FCNTL_FILE_POINTER, &file), SQLITE_OK);
    return file;
}

static int has_moved(sqlite3 *db) {
    int moved = -1;
    IS(sqlite3_file_control(db, "main", SQLITE_FCNTL_HAS_MOVED, &moved), SQLITE_OK);
    return moved;
}

static void make(const char *path, const char *mode, int value) {
    char uri[600], sql[200];
    sqlite3 *db;
    snprintf(uri, sizeof uri, "file:%s?vfs=unix", path);
    db = opened(uri);
    snprintf(sql, sizeof sql, "PRAGMA journal_mode=%s; CREATE TABLE t(a); INSERT INTO t VALUES(%d)", mode, value);
    ran(db, sql);
    closed(db);
}

/* The second connection has the file that the first one has, and SQLite refuses its writes. */
static void connection_has_the_locks_of_the_file_it_opened(const char *mode) {
    char uri[600];
    struct stat old;
    sqlite3 *first, *second, *third;
    unlink(database);
    make(database, mode, 1);
    make(copy, mode, 2);
    snprintf(uri, sizeof uri, "file:%s?vfs=forebay", database);
    CHECK(stat(database, &old) == 0);
    first = opened(uri);
    is_replaced = 1;
    second = opened(uri);
    IS(is_replaced, 0);
    CHECK(file_of(first)->node == file_of(second)->node);
    IS(file_of(second)->node->ino, old.st_ino);
    IS(file_of(second)->node->dev, old.st_dev);
    IS(has_moved(second), 1);
    IS(sqlite3_exec(second, "INSERT INTO t VALUES(3)", NULL, NULL, NULL), SQLITE_READONLY);
    third = opened(uri);
    CHECK(file_of(third)->node != file_of(second)->node);
    IS(has_moved(third), 0);
    IS(number(third, "SELECT a FROM t"), 2);
    closed(third);
    closed(second);
    closed(first);
}

int main(int argc, char **argv) {
    fby_cache *cache;
    CHECK(argc == 2);
    snprintf(database, sizeof database, "%s/a.db", argv[1]);
    snprintf(copy, sizeof copy, "%s/copy.db", argv[1]);
    cache = small_cache();
    IS(forebay_sqlite_register(0), SQLITE_OK);
    IS(forebay_sqlite_use_cache(cache), SQLITE_OK);
    connection_has_the_locks_of_the_file_it_opened("delete");
    connection_has_the_locks_of_the_file_it_opened("truncate");
    IS(forebay_sqlite_shutdown(), SQLITE_OK);
    IS(fby_cache_close(cache), 0);
    IS(sqlite3_shutdown(), SQLITE_OK);
    return 0;
}
