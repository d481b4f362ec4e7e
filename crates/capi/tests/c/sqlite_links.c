/*
 * Databases, logs and journals of the host: a symbolic link in the place of one is not followed,
 * and a new file has the owner and the permissions that it should have. Runs as root, which opens
 * databases of another user; only then a link may lead to a file that this user could not write.
 */
#include "check.h"
#include "sqlite/forebay_sqlite.h"
#include "sqlite_of_user.h"

#include <sched.h>
#include <sys/stat.h>
#include <sys/wait.h>

static char victim[450];
static const char precious[] = "not a log";

/* A database, and no victim. */
static void make_alone(const char *mode) {
    unlink(victim);
    make_database(mode);
}

static void make_victim(void) {
    int file = open(victim, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    CHECK(file >= 0);
    IS(write(file, precious, sizeof precious), sizeof precious);
    IS(close(file), 0);
}

static void check_victim(void) {
    char found[64];
    struct stat attributes;
    int file = open(victim, O_RDONLY);
    CHECK(file >= 0);
    IS(read(file, found, sizeof found), sizeof precious);
    CHECK(memcmp(found, precious, sizeof precious) == 0);
    CHECK(fstat(file, &attributes) == 0);
    IS(attributes.st_mode & 07777, 0600);
    IS(attributes.st_uid, 0);
    IS(close(file), 0);
}

/* Neither a reader nor a writer gets past the link, and its target is as it was. */
static void link_is_refused(const char *mode, const char *end, int has_target) {
    sqlite3 *db;
    make_alone(mode);
    if (has_target)
        make_victim();
    CHECK(symlink(victim, with_end(end)) == 0);
    db = opened(uri_of("forebay"));
    if (has_target || strcmp(mode, "wal") == 0)
        IS(sqlite3_exec(db, "SELECT a FROM t", NULL, NULL, NULL), SQLITE_CANTOPEN);
    IS(sqlite3_exec(db, "BEGIN IMMEDIATE; INSERT INTO t VALUES(8)", NULL, NULL, NULL), SQLITE_CANTOPEN);
    closed(db);
    if (has_target)
        check_victim();
    else
        CHECK(access(victim, F_OK) != 0 && errno == ENOENT);
    CHECK(unlink(with_end(end)) == 0);
    db = opened(uri_of("forebay"));
    IS(number(db, "SELECT sum(a) FROM t"), 7);
    closed(db);
}

/* The cache has the target open already. */
static void link_to_an_open_database_is_refused(const char *folder) {
    char uri[600];
    sqlite3 *db, *other;
    make_alone("wal");
    snprintf(uri, sizeof uri, "file:%s?vfs=forebay", in_folder(folder, "other.db"));
    other = opened(uri);
    ran(other, "PRAGMA journal_mode=delete; CREATE TABLE t(a); INSERT INTO t VALUES(5)");
    CHECK(symlink(in_folder(folder, "other.db"), with_end("-wal")) == 0);
    db = opened(uri_of("forebay"));
    IS(sqlite3_exec(db, "INSERT INTO t VALUES(8)", NULL, NULL, NULL), SQLITE_CANTOPEN);
    closed(db);
    IS(number(other, "SELECT a FROM t"), 5);
    closed(other);
}

/*
 * SQLite resolves links of a database's name before it opens the file. What becomes a link after
 * that is refused.
 */
static void name_that_becomes_a_link_is_refused(int has_target) {
    sqlite3_vfs *vfs = sqlite3_vfs_find("forebay");
    const int flags = SQLITE_OPEN_MAIN_DB | SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE;
    const char *name;
    sqlite3_file *file = calloc(1, (size_t)vfs->szOsFile);
    CHECK(file != NULL);
    unlink(database);
    unlink(victim);
    if (has_target)
        make_victim();
    CHECK(symlink(victim, database) == 0);
    name = sqlite3_create_filename(database, with_end("-journal"), with_end("-wal"), 0, NULL);
    CHECK(name != NULL);
    IS(vfs->xOpen(vfs, name, file, flags, NULL) & 0xff, SQLITE_CANTOPEN);
    if (has_target)
        check_victim();
    else
        CHECK(access(victim, F_OK) != 0 && errno == ENOENT);
    sqlite3_free_filename((char *)(uintptr_t)name);
    free(file);
    CHECK(unlink(database) == 0);
}

static void link_to_a_database_is_resolved(const char *folder) {
    char uri[600];
    sqlite3 *db;
    make_alone("wal");
    CHECK(symlink(database, in_folder(folder, "link.db")) == 0);
    snprintf(uri, sizeof uri, "file:%s?vfs=forebay", in_folder(folder, "link.db"));
    db = opened(uri);
    ran(db, "INSERT INTO t VALUES(8)");
    CHECK(access(with_end("-wal"), F_OK) == 0);
    IS(number(db, "SELECT sum(a) FROM t"), 15);
    closed(db);
}

/* Whatever the umask is: else the owner of the database could not recover it. */
static void journal_takes_owner_and_permissions(const char *mode, const char *end, mode_t mask) {
    mode_t before = umask(mask);
    struct stat found;
    sqlite3 *db;
    make_alone(mode);
    db = opened(uri_of("forebay"));
    ran(db, "BEGIN IMMEDIATE; INSERT INTO t VALUES(8)");
    CHECK(lstat(with_end(end), &found) == 0);
    IS(found.st_mode & 07777, 0660);
    IS(found.st_uid, USER);
    IS(found.st_gid, USER);
    ran(db, "COMMIT");
    closed(db);
    umask(before);
}

static void written(const char *name, const char *text) {
    int file = open(name, O_WRONLY);
    CHECK(file >= 0);
    IS(write(file, text, strlen(text)), strlen(text));
    IS(close(file), 0);
}

/* From now on this process is root, and no file can get the owner of the database. */
static void enter_user_namespace(void) {
    CHECK(unshare(CLONE_NEWUSER) == 0);
    written("/proc/self/setgroups", "deny");
    written("/proc/self/uid_map", "0 0 1");
    written("/proc/self/gid_map", "0 0 1");
    IS(geteuid(), 0);
}

/*
 * The first connection failed and left an empty log of root, which the second one opened and wrote.
 * The owner of the database could not open it any more.
 */
static void journal_without_its_owner_is_refused_each_time(const char *mode, const char *end) {
    int status;
    pid_t child;
    make_alone(mode);
    CHECK(chmod(database, 0666) == 0);
    child = fork();
    if (child == 0) {
        enter_user_namespace();
        for (int i = 0; i < 2; i++) {
            sqlite3 *db = opened(uri_of("forebay"));
            IS(sqlite3_exec(db, "INSERT INTO t VALUES(8)", NULL, NULL, NULL), SQLITE_PERM);
            closed(db);
            CHECK(access(with_end(end), F_OK) != 0 && errno == ENOENT);
        }
        _exit(0);
    }
    CHECK(waitpid(child, &status, 0) == child && status == 0);
}

static void new_database_is_writable_by_its_owner_alone(mode_t mask, mode_t wanted) {
    mode_t before = umask(mask);
    struct stat found;
    sqlite3 *db;
    unlink(database);
    db = opened(uri_of("forebay"));
    ran(db, "PRAGMA journal_mode=wal; CREATE TABLE t(a); INSERT INTO t VALUES(1)");
    CHECK(stat(database, &found) == 0);
    IS(found.st_mode & 07777, wanted);
    CHECK(stat(with_end("-wal"), &found) == 0);
    IS(found.st_mode & 07777, wanted);
    closed(db);
    umask(before);
}

/* A user who may write a folder and not read it gets no descriptor to sync it. */
static void folder_that_may_not_be_read_holds_databases(const char *folder) {
    int status;
    pid_t child;
    const char *closed_folder = in_folder(folder, "closed");
    CHECK(mkdir(closed_folder, 0311) == 0 && chown(closed_folder, USER, USER) == 0);
    snprintf(database, sizeof database, "%s/a.db", closed_folder);
    child = fork();
    if (child == 0) {
        sqlite3 *db;
        CHECK(setgid(USER) == 0 && setuid(USER) == 0);
        db = opened(uri_of("forebay"));
        ran(db, "PRAGMA synchronous=full; CREATE TABLE t(a)");
        ran(db, "PRAGMA journal_mode=wal; INSERT INTO t VALUES(8)");
        IS(number(db, "SELECT a FROM t"), 8);
        closed(db);
        _exit(0);
    }
    CHECK(waitpid(child, &status, 0) == child && status == 0);
}

int main(int argc, char **argv) {
    CHECK(argc == 2);
    IS(geteuid(), 0);
    IS(forebay_sqlite_register(0), SQLITE_OK);
    folder_that_may_not_be_read_holds_databases(argv[1]);
    snprintf(database, sizeof database, "%s/a.db", argv[1]);
    snprintf(victim, sizeof victim, "%s/victim", argv[1]);
    for (int has_target = 0; has_target < 2; has_target++) {
        link_is_refused("wal", "-wal", has_target);
        link_is_refused("delete", "-journal", has_target);
        name_that_becomes_a_link_is_refused(has_target);
    }
    link_to_an_open_database_is_refused(argv[1]);
    link_to_a_database_is_resolved(argv[1]);
    for (mode_t mask = 0; mask <= 077; mask += 077) {
        journal_takes_owner_and_permissions("wal", "-wal", mask);
        journal_takes_owner_and_permissions("delete", "-journal", mask);
    }
    journal_without_its_owner_is_refused_each_time("wal", "-wal");
    journal_without_its_owner_is_refused_each_time("delete", "-journal");
    new_database_is_writable_by_its_owner_alone(0, 0644);
    new_database_is_writable_by_its_owner_alone(077, 0600);
    IS(forebay_sqlite_shutdown(), SQLITE_OK);
    IS(sqlite3_shutdown(), SQLITE_OK);
    return 0;
}
