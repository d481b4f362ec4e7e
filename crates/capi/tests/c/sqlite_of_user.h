/*
 * For programs that run as root: a database of another user on the host.
 */
#ifndef SQLITE_OF_USER_H
#define SQLITE_OF_USER_H

#include "check.h"
#include "sqlite_check.h"

#include <sys/stat.h>

#define USER 1000

static char database[450];

/* The last two results stay. */
static const char *uri_of(const char *vfs) {
    static char uri[2][600];
    static int next;
    char *at = uri[next++ % 2];
    snprintf(at, sizeof uri[0], "file:%s?vfs=%s", database, vfs);
    return at;
}

/* The last two results stay. */
static const char *with_end(const char *end) {
    static char name[2][500];
    static int next;
    char *at = name[next++ % 2];
    snprintf(at, sizeof name[0], "%s%s", database, end);
    return at;
}

/* A table with 7 in it, without a log or a journal. */
static void make_database(const char *mode) {
    char sql[200];
    sqlite3 *db;
    unlink(with_end(""));
    unlink(with_end("-wal"));
    unlink(with_end("-journal"));
    db = opened(uri_of("unix"));
    snprintf(sql, sizeof sql, "PRAGMA journal_mode=%s; CREATE TABLE t(a)", mode);
    ran(db, sql);
    ran(db, "INSERT INTO t VALUES(7)");
    closed(db);
    CHECK(chown(database, USER, USER) == 0 && chmod(database, 0660) == 0);
}

#endif
