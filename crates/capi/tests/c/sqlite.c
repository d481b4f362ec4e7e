/*
 * SQLite on the VFS: transactions and locks among connections of this process, rollback journals
 * and write-ahead logs, host files and files of a volume.
 */
#include "check.h"
#include "sqlite/internal.h"
#include "sqlite_check.h"

#include <sys/stat.h>

static fby_cache *cache;

/* Two connections: SHARED, RESERVED, PENDING and EXCLUSIVE keep each other out as SQLite says. */
static void locks(const char *uri) {
    sqlite3 *one = opened(uri), *two = opened(uri);
    sqlite3_stmt *reader;
    ran(one, "PRAGMA journal_mode=delete; CREATE TABLE t(a); INSERT INTO t VALUES(1),(2)");
    ran(one, "BEGIN IMMEDIATE; INSERT INTO t VALUES(3)");
    IS(number(two, "SELECT count(*) FROM t"), 2);
    IS(sqlite3_exec(two, "BEGIN IMMEDIATE", NULL, NULL, NULL), SQLITE_BUSY);
    reader = prepared(two, "SELECT a FROM t");
    IS(sqlite3_step(reader), SQLITE_ROW);
    IS(sqlite3_exec(one, "COMMIT", NULL, NULL, NULL), SQLITE_BUSY);
    /* PENDING: the reader goes on, a new one is kept out. */
    IS(sqlite3_step(reader), SQLITE_ROW);
    IS(sqlite3_finalize(reader), SQLITE_OK);
    IS(sqlite3_exec(two, "SELECT count(*) FROM t", NULL, NULL, NULL), SQLITE_BUSY);
    ran(one, "COMMIT");
    IS(number(two, "SELECT count(*) FROM t"), 3);
    ran(one, "BEGIN EXCLUSIVE");
    IS(sqlite3_exec(two, "SELECT count(*) FROM t", NULL, NULL, NULL), SQLITE_BUSY);
    ran(one, "ROLLBACK");
    ran(one, "BEGIN; DELETE FROM t");
    ran(one, "ROLLBACK");
    IS(number(two, "SELECT count(*) FROM t"), 3);
    closed(two);
    closed(one);
}

static void journals(const char *uri) {
    static const char *const modes[] = {"delete", "truncate", "persist", "memory", "wal"};
    sqlite3 *db = opened(uri);
    char sql[128];
    int rows = 0;
    ran(db, "CREATE TABLE j(a INTEGER PRIMARY KEY, b BLOB)");
    for (size_t i = 0; i < sizeof modes / sizeof *modes; i++) {
        snprintf(sql, sizeof sql, "PRAGMA journal_mode=%s", modes[i]);
        CHECK(strcmp(text(db, sql), modes[i]) == 0);
        for (int round = 0; round < 20; round++, rows++)
            ran(db, "INSERT INTO j(b) VALUES(randomblob(3000))");
        ran(db, "BEGIN; UPDATE j SET b = randomblob(6000); ROLLBACK");
        IS(number(db, "SELECT count(*) FROM j WHERE length(b) = 3000"), rows);
        /* Spills out of a cache of ten pages before it ends. */
        ran(db, "PRAGMA cache_size=10; BEGIN; UPDATE j SET b = randomblob(6000); ROLLBACK");
        IS(number(db, "SELECT count(*) FROM j WHERE length(b) = 3000"), rows);
        CHECK(strcmp(text(db, "PRAGMA integrity_check"), "ok") == 0);
    }
    ran(db, "PRAGMA page_size=16384; PRAGMA journal_mode=delete; VACUUM");
    IS(number(db, "PRAGMA page_size"), 16384);
    IS(number(db, "SELECT count(*) FROM j"), rows);
    closed(db);
}

/* A reader of the log sees its snapshot while another connection writes and checkpoints. */
static void log_snapshots(const char *uri) {
    sqlite3 *writer = opened(uri), *reader = opened(uri), *third;
    ran(writer, "PRAGMA journal_mode=wal; DROP TABLE IF EXISTS t; CREATE TABLE t(a)");
    ran(writer, "INSERT INTO t VALUES(1)");
    ran(reader, "BEGIN");
    IS(number(reader, "SELECT count(*) FROM t"), 1);
    for (int i = 0; i < 50; i++)
        ran(writer, "INSERT INTO t VALUES(randomblob(2000))");
    ran(writer, "PRAGMA wal_checkpoint(PASSIVE)");
    IS(number(reader, "SELECT count(*) FROM t"), 1);
    IS(number(writer, "PRAGMA wal_checkpoint(RESTART)"), 1);
    ran(reader, "COMMIT");
    IS(number(writer, "PRAGMA wal_checkpoint(TRUNCATE)"), 0);
    IS(number(reader, "SELECT count(*) FROM t"), 51);
    ran(writer, "BEGIN IMMEDIATE");
    third = opened(uri);
    IS(sqlite3_exec(third, "BEGIN IMMEDIATE", NULL, NULL, NULL), SQLITE_BUSY);
    IS(number(third, "SELECT count(*) FROM t"), 51);
    ran(writer, "ROLLBACK");
    closed(reader);
    closed(third);
    closed(writer);
}

static int pins_made;

/* Takes the place of the library's function, and counts. */
int64_t fby_pin(fby_file *file, int64_t offset, size_t len, uint32_t flags, fby_pinned **pinned) {
    REAL(fby_pin);
    pins_made++;
    return call(file, offset, len, flags, pinned);
}

/* Root and inner pages of a tree come into SQLite's own cache. Each leaf is pinned once. */
static void pages_visited_often_are_read(sqlite3 *db, File *file) {
    sqlite3_stmt *row = prepared(db, "SELECT length(b) FROM f WHERE a = ?");
    int before = pins_made;
    for (int i = 0; i < 40; i++) {
        IS(sqlite3_bind_int(row, 1, 1 + i * 50), SQLITE_OK);
        IS(sqlite3_step(row), SQLITE_ROW);
        IS(sqlite3_reset(row), SQLITE_OK);
        IS(file->fetched_count, 0);
    }
    IS(sqlite3_finalize(row), SQLITE_OK);
    CHECK(pins_made - before <= 44);
    before = pins_made;
    for (int i = 0; i < 40; i++)
        IS(number(db, "SELECT length(b) FROM f WHERE a = 7"), 1500);
    CHECK(pins_made - before <= 1);
}

/* Pages are fetched without a copy, also while a writer changes them; without pins SQLite reads. */
static void fetches(const char *uri) {
    static fby_pinned *pins[BUDGET / 4 / 4096];
    sqlite3 *db = opened(uri);
    sqlite3_stmt *rows;
    File *file = NULL;
    int count = 0, most = 0, seen = 0;
    int64_t got = 0;
    /* Pages of a log are copied. */
    ran(db, "PRAGMA journal_mode=delete; PRAGMA page_size=16384; VACUUM");
    ran(db, "CREATE TABLE f(a INTEGER PRIMARY KEY, b)");
    ran(db, "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i+1 FROM n WHERE i<2000) "
            "INSERT INTO f SELECT i, randomblob(1500) FROM n; PRAGMA cache_size=10");
    IS(sqlite3_file_control(db, "main", SQLITE_FCNTL_FILE_POINTER, &file), SQLITE_OK);
    CHECK(file->base.pMethods == &forebay_methods && file->fetch_limit > 0);
    rows = prepared(db, "SELECT sum(length(b)), a FROM f GROUP BY a");
    for (; sqlite3_step(rows) == SQLITE_ROW; seen++)
        most = file->fetched_count > most ? file->fetched_count : most;
    IS(seen, 2000);
    CHECK(most > 0);
    IS(sqlite3_finalize(rows), SQLITE_OK);
    IS(file->fetched_count, 0);
    pages_visited_often_are_read(db, file);
    for (; got >= 0 && count < (int)(BUDGET / 4 / 4096); count++)
        got = fby_pin(file->file, count % 700 * 4096, 4096, FBY_PIN_NO_COPY, &pins[count]);
    IS(got, -ENOBUFS);
    IS(number(db, "SELECT sum(length(b)) FROM f WHERE a % 2"), 1500 * 1000);
    CHECK(strcmp(text(db, "PRAGMA integrity_check"), "ok") == 0);
    for (int i = 0; i < count - 1; i++)
        IS(fby_unpin(pins[i]), 0);
    ran(db, "PRAGMA mmap_size=0");
    rows = prepared(db, "SELECT b FROM f");
    for (seen = 0; sqlite3_step(rows) == SQLITE_ROW; seen++)
        IS(file->fetched_count, 0);
    IS(seen, 2000);
    IS(sqlite3_finalize(rows), SQLITE_OK);
    closed(db);
}

/* A transaction over two databases has a super-journal; temporary files are not ours. */
static void several_files(const char *uri, const char *other) {
    sqlite3 *db = opened(uri);
    sqlite3_stmt *attach = prepared(db, "ATTACH ? AS other");
    sqlite3_file *file = NULL;
    IS(sqlite3_bind_text(attach, 1, other, -1, SQLITE_STATIC), SQLITE_OK);
    IS(sqlite3_step(attach), SQLITE_DONE);
    IS(sqlite3_finalize(attach), SQLITE_OK);
    ran(db, "PRAGMA journal_mode=delete; PRAGMA temp_store=file; PRAGMA cache_size=10");
    ran(db, "CREATE TABLE main.s(a); CREATE TABLE other.s(a)");
    ran(db, "BEGIN; INSERT INTO main.s VALUES(1); INSERT INTO other.s VALUES(1); COMMIT");
    ran(db, "BEGIN; INSERT INTO main.s VALUES(2); INSERT INTO other.s VALUES(2); ROLLBACK");
    IS(number(db, "SELECT (SELECT count(*) FROM main.s) + (SELECT count(*) FROM other.s)"), 2);
    ran(db, "PRAGMA temp.cache_size=10");
    ran(db, "CREATE TEMP TABLE x AS SELECT a, randomblob(500) AS b FROM f");
    IS(sqlite3_file_control(db, "temp", SQLITE_FCNTL_FILE_POINTER, &file), SQLITE_OK);
    CHECK(file->pMethods && file->pMethods != &forebay_methods);
    IS(number(db, "SELECT count(*) FROM (SELECT b FROM x ORDER BY b DESC)"), 2000);
    closed(db);
}

/* What SQLite may ask of the VFS. */
static void controls(const char *uri) {
    sqlite3 *db = opened(uri);
    File *file = NULL;
    char *name = NULL;
    int value = -1, moved = -1;
    IS(sqlite3_file_control(db, "main", SQLITE_FCNTL_FILE_POINTER, &file), SQLITE_OK);
    IS(file->base.pMethods->xDeviceCharacteristics(&file->base), SQLITE_IOCAP_POWERSAFE_OVERWRITE);
    IS(sqlite3_file_control(db, "main", SQLITE_FCNTL_VFSNAME, &name), SQLITE_OK);
    CHECK(strcmp(name, "forebay") == 0);
    sqlite3_free(name);
    IS(sqlite3_file_control(db, "main", SQLITE_FCNTL_PERSIST_WAL, &value), SQLITE_OK);
    IS(value, 0);
    IS(number(db, "SELECT count(*) > 0 FROM f"), 1);
    IS(sqlite3_file_control(db, "main", SQLITE_FCNTL_HAS_MOVED, &moved), SQLITE_OK);
    IS(moved, 0);
    closed(db);
}

static void each(const char *uri, const char *other) {
    locks(uri);
    journals(uri);
    log_snapshots(uri);
    fetches(uri);
    several_files(uri, other);
    controls(uri);
}

/* A journal holds pages of its database, so only those who may read the one may read the other. */
static void permissions(const char *folder) {
    static const unsigned modes[] = {0600, 0666, 0640};
    static const char *const journals[] = {"delete", "wal"};
    char uri[600], path[600], name[620];
    struct stat found;
    mode_t before = umask(022);
    snprintf(uri, sizeof uri, "file:%s/p.db?vfs=forebay", folder);
    snprintf(path, sizeof path, "%s/p.db", folder);
    for (size_t i = 0; i < sizeof modes / sizeof *modes; i++) {
        for (size_t j = 0; j < sizeof journals / sizeof *journals; j++) {
            sqlite3 *db = opened(uri);
            snprintf(name, sizeof name, "PRAGMA journal_mode=%s", journals[j]);
            CHECK(strcmp(text(db, name), journals[j]) == 0);
            closed(db);
            IS(chmod(path, modes[i]), 0);
            db = opened(uri);
            ran(db, "BEGIN; CREATE TABLE IF NOT EXISTS p(a); INSERT INTO p VALUES(1)");
            snprintf(name, sizeof name, "%s-%s", path, j ? "wal" : "journal");
            IS(stat(name, &found), 0);
            IS(found.st_mode & 0777, modes[i]);
            ran(db, "COMMIT");
            closed(db);
        }
    }
    umask(before);
}

/* A volume that is full: the transaction fails and rolls back, and the next one works. */
static void full_volume(const char *folder) {
    char uri[600];
    sqlite3 *db;
    int result = SQLITE_OK, rows = 0;
    snprintf(uri, sizeof uri, "file:/f.db?vfs=forebay&volume=%s/full&volume_size=16M", folder);
    IS(sqlite3_open_v2(uri, &db, FLAGS, NULL), SQLITE_CANTOPEN);
    IS(sqlite3_close(db), SQLITE_OK);
    snprintf(uri, sizeof uri, "file:/f.db?vfs=forebay&volume=%s/full&volume_size=16777216", folder);
    db = opened(uri);
    ran(db, "CREATE TABLE t(a); PRAGMA cache_size=20");
    while (result == SQLITE_OK && rows++ < 100)
        result = sqlite3_exec(db, "INSERT INTO t VALUES(randomblob(1000000))", NULL, NULL, NULL);
    IS(result, SQLITE_FULL);
    CHECK(sqlite3_get_autocommit(db));
    CHECK(strcmp(text(db, "PRAGMA integrity_check"), "ok") == 0);
    IS(number(db, "SELECT count(*) FROM t"), rows - 1);
    closed(db);
}

static char logged[600];

static void on_log(void *with, int code, const char *message) {
    (void)with;
    /* SQLite also logs the result of the statement, with another code or text. */
    if (code == SQLITE_IOERR_DATA && strncmp(message, "forebay: ", 9) == 0)
        snprintf(logged, sizeof logged, "%s", message);
}

/* One byte changes in each block of an image that has rows of the database. */
static void change_rows(const char *image) {
    static const char row[] = "forebay!forebay!";
    unsigned char block[4096], *found;
    int fd = open(image, O_RDWR), changed = 0;
    CHECK(fd >= 0);
    for (int64_t at = 0; pread(fd, block, sizeof block, at) == sizeof block; at += sizeof block) {
        found = memmem(block, sizeof block, row, sizeof row - 1);
        if (found == NULL)
            continue;
        *found ^= 1;
        IS(pwrite(fd, block, sizeof block, at), sizeof block);
        changed++;
    }
    CHECK(changed > 10);
    CHECK(close(fd) == 0);
}

/* Content that does not match its checksum has SQLite's code for that, and the log has the text. */
static void damaged_volume(const char *folder) {
    char uri[600];
    sqlite3 *db;
    snprintf(uri, sizeof uri, "file:/d.db?vfs=forebay&volume=%s/d&volume_size=16777216", folder);
    db = opened(uri);
    ran(db, "CREATE TABLE t(a)");
    ran(db, "INSERT INTO t VALUES(replace(hex(zeroblob(20000)), '00', 'forebay!'))");
    closed(db);
    change_rows(in_folder(folder, "d"));
    db = opened(uri);
    IS(sqlite3_exec(db, "SELECT * FROM t WHERE a LIKE '%q'", NULL, NULL, NULL), SQLITE_IOERR);
    IS(sqlite3_extended_errcode(db), SQLITE_IOERR_DATA);
    CHECK(strstr(logged, "the checksum does not match") != NULL);
    closed(db);
}

int main(int argc, char **argv) {
    char uri[600], other[600];
    CHECK(argc == 2);
    cache = small_cache();
    IS(sqlite3_config(SQLITE_CONFIG_LOG, on_log, NULL), SQLITE_OK);
    IS(forebay_sqlite_register(0), SQLITE_OK);
    IS(forebay_sqlite_use_cache(NULL), SQLITE_MISUSE);
    IS(forebay_sqlite_use_cache(cache), SQLITE_OK);
    IS(forebay_sqlite_use_cache(cache), SQLITE_BUSY);
    snprintf(uri, sizeof uri, "file:%s/a.db?vfs=forebay", argv[1]);
    snprintf(other, sizeof other, "file:%s/b.db?vfs=forebay", argv[1]);
    each(uri, other);
    snprintf(uri, sizeof uri, "file:/a.db?vfs=forebay&volume=%s/v&volume_size=134217728", argv[1]);
    snprintf(other, sizeof other, "file:/b.db?vfs=forebay&volume=%s/v", argv[1]);
    each(uri, other);
    permissions(argv[1]);
    full_volume(argv[1]);
    damaged_volume(argv[1]);
    IS(forebay_sqlite_shutdown(), SQLITE_OK);
    IS(fby_cache_close(cache), 0);
    IS(sqlite3_shutdown(), SQLITE_OK);
    return 0;
}
