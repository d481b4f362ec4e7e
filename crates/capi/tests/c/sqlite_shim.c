/*
 * VFSes above this one. One keeps the files of SQLite under other names: the log and its database
 * have names that were made apart, so nothing tells that they are of one connection. All work.
 */
#include "check.h"
#include "sqlite_above.h"
#include "sqlite_check.h"

static void commits_are_kept(const char *folder, const char *vfs) {
    char uri[600];
    sqlite3 *db, *other;
    snprintf(uri, sizeof uri, "file:%s/%s.db?vfs=%s", folder, vfs, vfs);
    db = opened(uri);
    CHECK(strcmp(text(db, "PRAGMA journal_mode=wal"), "wal") == 0);
    ran(db, "PRAGMA synchronous=full; CREATE TABLE t(a)");
    ran(db, "INSERT INTO t VALUES(1)");
    other = opened(uri);
    ran(other, "INSERT INTO t VALUES(2)");
    IS(number(db, "SELECT sum(a) FROM t"), 3);
    IS(number(db, "PRAGMA wal_checkpoint(truncate)"), 0);
    closed(db);
    ran(other, "PRAGMA locking_mode=exclusive; INSERT INTO t VALUES(3)");
    closed(other);
    db = opened(uri);
    IS(number(db, "SELECT sum(a) FROM t"), 6);
    closed(db);
}

int main(int argc, char **argv) {
    CHECK(argc == 2);
    IS(forebay_sqlite_register(0), SQLITE_OK);
    register_above();
    commits_are_kept(argv[1], "above");
    commits_are_kept(argv[1], "renamed");
    commits_are_kept(argv[1], "shifted");
    CHECK(access(in_folder(argv[1], "renamed.db.moved"), F_OK) == 0);
    unregister_above();
    IS(forebay_sqlite_shutdown(), SQLITE_OK);
    IS(sqlite3_shutdown(), SQLITE_OK);
    return 0;
}
