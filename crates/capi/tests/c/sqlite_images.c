/*
 * Images of volumes, for a program that runs as root: one that may not be written is read, one that
 * a symbolic link leads to is refused where links are, and one that a hot journal names is left
 * alone.
 */
#include "check.h"
#include "sqlite/forebay_sqlite.h"
#include "sqlite_check.h"

#include <sys/wait.h>

#define USER 1000

static int volumes_opened;

/* In front of the library's function: counts. */
int fby_volume_open(fby_cache *cache, const char *path, const fby_volume_how *how, size_t how_size,
                    fby_volume **volume) {
    REAL(fby_volume_open);
    volumes_opened++;
    return call(cache, path, how, how_size, volume);
}

static char uri[600];

static void make_volume(const char *folder) {
    sqlite3 *db;
    snprintf(uri, sizeof uri, "file:/a.db?vfs=forebay&volume=%s/v&volume_size=67108864", folder);
    db = opened(uri);
    ran(db, "CREATE TABLE t(a); INSERT INTO t VALUES(7)");
    closed(db);
}

/* As another user, who may read the image and not write it. */
static void image_without_write_permission_is_read(const char *image) {
    sqlite3 *db;
    CHECK(chmod(image, 0444) == 0);
    CHECK(seteuid(USER) == 0);
    db = opened(uri);
    IS(number(db, "SELECT a FROM t"), 7);
    IS(sqlite3_db_readonly(db, "main"), 1);
    IS(sqlite3_exec(db, "UPDATE t SET a = 8", NULL, NULL, NULL), SQLITE_READONLY);
    closed(db);
    CHECK(seteuid(0) == 0 && prctl(PR_SET_DUMPABLE, 1) == 0);
    CHECK(chmod(image, 0644) == 0);
    db = opened(uri);
    ran(db, "UPDATE t SET a = 8");
    closed(db);
}

/* SQLite refuses links on the way to a database with this flag, also on the way to its image. */
static void link_to_image_is_refused_where_links_are(const char *folder, const char *image) {
    char link[600];
    sqlite3 *db;
    CHECK(symlink(image, in_folder(folder, "link")) == 0);
    snprintf(link, sizeof link, "file:/a.db?vfs=forebay&volume=%s/link", folder);
    db = opened(link);
    IS(number(db, "SELECT a FROM t"), 8);
    closed(db);
    IS(sqlite3_open_v2(link, &db, FLAGS | SQLITE_OPEN_NOFOLLOW, NULL), SQLITE_CANTOPEN);
    IS(sqlite3_close(db), SQLITE_OK);
    IS(sqlite3_open_v2(uri, &db, FLAGS | SQLITE_OPEN_NOFOLLOW, NULL), SQLITE_OK);
    closed(db);
}

/* A process ends in a transaction that has changed the database. */
static void leave_hot_journal(const char *database) {
    sqlite3 *db;
    int status;
    pid_t pid = fork();
    CHECK(pid >= 0);
    if (pid == 0) {
        IS(sqlite3_open_v2(database, &db, FLAGS, "unix"), SQLITE_OK);
        ran(db, "CREATE TABLE t(a, b)");
        ran(db, "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i+1 FROM n WHERE i<50) "
                "INSERT INTO t SELECT i, zeroblob(3000) FROM n; PRAGMA cache_size=2");
        ran(db, "BEGIN; UPDATE t SET a = 0, b = zeroblob(2000)");
        _exit(0);
    }
    CHECK(waitpid(pid, &status, 0) == pid);
    IS(status, 0);
}

static void put_number(unsigned char *at, unsigned value) {
    for (int i = 0; i < 4; i++)
        at[i] = (unsigned char)(value >> (24 - 8 * i));
}

/* SQLite's form: a page that is never used, the name, its length and sum, a mark. */
static void name_super_journal(const char *journal, const char *name) {
    static const unsigned char mark[8] = {0xd9, 0xd5, 0x05, 0xf9, 0x20, 0xa1, 0x63, 0xd7};
    unsigned char record[700];
    unsigned sum = 0;
    size_t length = strlen(name);
    int file = open(journal, O_WRONLY | O_APPEND);
    CHECK(file >= 0);
    for (size_t i = 0; i < length; i++)
        sum += (unsigned char)name[i];
    put_number(record, 0x40000000 / 4096 + 1);
    memcpy(record + 4, name, length);
    put_number(record + 4 + length, (unsigned)length);
    put_number(record + 8 + length, sum);
    memcpy(record + 12 + length, mark, 8);
    IS(write(file, record, length + 20), length + 20);
    CHECK(close(file) == 0);
}

/* A hot journal may have come with a database that is not trusted. */
static void image_that_a_journal_names_is_left_alone(const char *folder, const char *image) {
    char path[500], name[560], host[600];
    sqlite3 *db, *in_volume;
    snprintf(path, sizeof path, "%s/b.db", folder);
    snprintf(host, sizeof host, "file:%s?vfs=forebay", path);
    leave_hot_journal(path);
    snprintf(name, sizeof name, "%s-journal", path);
    CHECK(access(name, F_OK) == 0);
    snprintf(host, sizeof host, "%s//x", image);
    name_super_journal(name, host);
    snprintf(host, sizeof host, "file:%s?vfs=forebay", path);
    db = opened(host);
    volumes_opened = 0;
    IS(sqlite3_exec(db, "SELECT * FROM t", NULL, NULL, NULL), SQLITE_IOERR);
    IS(sqlite3_extended_errcode(db), SQLITE_IOERR_ACCESS);
    IS(volumes_opened, 0);
    /* With the image open, the VFS sees that the transaction is over: its super-journal is gone. */
    in_volume = opened(uri);
    IS(number(in_volume, "SELECT a FROM t"), 8);
    ran(db, "SELECT * FROM t");
    closed(in_volume);
    closed(db);
}

int main(int argc, char **argv) {
    char image[500];
    fby_cache *cache;
    CHECK(argc == 2);
    snprintf(image, sizeof image, "%s/v", argv[1]);
    cache = small_cache();
    IS(forebay_sqlite_register(0), SQLITE_OK);
    IS(forebay_sqlite_use_cache(cache), SQLITE_OK);
    make_volume(argv[1]);
    image_without_write_permission_is_read(image);
    link_to_image_is_refused_where_links_are(argv[1], image);
    image_that_a_journal_names_is_left_alone(argv[1], image);
    IS(forebay_sqlite_shutdown(), SQLITE_OK);
    IS(fby_cache_close(cache), 0);
    IS(sqlite3_shutdown(), SQLITE_OK);
    return 0;
}
