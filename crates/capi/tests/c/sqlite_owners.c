/*
 * A log or journal that cannot get the owner of its database is refused, and none is left behind,
 * whatever error it is and whatever other connections do meanwhile. Runs as root: only root gives
 * files to other users.
 */
#include "check.h"
#include "sqlite/forebay_sqlite.h"
#include "sqlite_of_user.h"

#include <pthread.h>
#include <semaphore.h>
#include <sys/stat.h>

/* What fchown(2) and fstat(2) fail with; 0: they do what they should. */
static int fchown_error, fstat_error;
/* The first fchown(2) lets the other connection go on, and waits for it. */
static int holds_fchown;
static sem_t is_made, has_inserted;

/* Of the program and its libraries. */
int fchown(int file, uid_t owner, gid_t group) {
    if (!fchown_error)
        return fchownat(file, "", owner, group, AT_EMPTY_PATH);
    if (holds_fchown) {
        holds_fchown = 0;
        IS(sem_post(&is_made), 0);
        wait_shortly(&has_inserted);
    }
    errno = fchown_error;
    return -1;
}

/* Of the program and its libraries: fails for what is not the database. */
int fstat(int file, struct stat *found) {
    char link[40], name[500];
    ssize_t length;
    if (!fstat_error)
        return fstatat(file, "", found, AT_EMPTY_PATH);
    snprintf(link, sizeof link, "/proc/self/fd/%d", file);
    length = readlink(link, name, sizeof name - 1);
    name[length > 0 ? length : 0] = 0;
    if (strncmp(name, database, strlen(database)) != 0 || strcmp(name, database) == 0)
        return fstatat(file, "", found, AT_EMPTY_PATH);
    errno = fstat_error;
    return -1;
}

static void is_refused(const char *mode, const char *end, int *of, int error, int wanted) {
    sqlite3 *db;
    make_database(mode);
    db = opened(uri_of("forebay"));
    *of = error;
    IS(sqlite3_exec(db, "INSERT INTO t VALUES(8)", NULL, NULL, NULL), wanted);
    *of = 0;
    CHECK(access(with_end(end), F_OK) != 0 && errno == ENOENT);
    ran(db, "INSERT INTO t VALUES(9)");
    IS(number(db, "SELECT sum(a) FROM t"), 16);
    closed(db);
}

static void *insert_meanwhile(void *connection) {
    static int result;
    while (sem_wait(&is_made) != 0)
        CHECK(errno == EINTR);
    result = sqlite3_exec(connection, "INSERT INTO t VALUES(8)", NULL, NULL, NULL);
    IS(sem_post(&has_inserted), 0);
    return &result;
}

/*
 * A log was visible by its name before it had its owner. Another connection opened it and wrote a
 * transaction; then the first one removed the name.
 */
static void no_transaction_is_in_a_log_without_a_name(void) {
    sqlite3 *first, *second;
    pthread_t thread;
    void *result;
    make_database("wal");
    IS(sem_init(&is_made, 0, 0), 0);
    IS(sem_init(&has_inserted, 0, 0), 0);
    first = opened(uri_of("forebay"));
    second = opened(uri_of("forebay"));
    fchown_error = EPERM;
    holds_fchown = 1;
    IS(pthread_create(&thread, NULL, insert_meanwhile, second), 0);
    IS(sqlite3_exec(first, "INSERT INTO t VALUES(7)", NULL, NULL, NULL), SQLITE_PERM);
    IS(pthread_join(thread, &result), 0);
    CHECK(*(int *)result != SQLITE_OK || access(with_end("-wal"), F_OK) == 0);
    IS(*(int *)result, SQLITE_PERM);
    fchown_error = 0;
    closed(first);
    closed(second);
}

int main(int argc, char **argv) {
    fby_cache *cache;
    CHECK(argc == 2);
    IS(geteuid(), 0);
    snprintf(database, sizeof database, "%s/a.db", argv[1]);
    cache = small_cache();
    IS(forebay_sqlite_register(0), SQLITE_OK);
    IS(forebay_sqlite_use_cache(cache), SQLITE_OK);
    is_refused("wal", "-wal", &fchown_error, EPERM, SQLITE_PERM);
    is_refused("delete", "-journal", &fchown_error, EPERM, SQLITE_PERM);
    is_refused("wal", "-wal", &fchown_error, ENOMEM, SQLITE_NOMEM);
    is_refused("delete", "-journal", &fchown_error, ENOMEM, SQLITE_NOMEM);
    is_refused("wal", "-wal", &fstat_error, EIO, SQLITE_PERM);
    is_refused("delete", "-journal", &fstat_error, EIO, SQLITE_PERM);
    no_transaction_is_in_a_log_without_a_name();
    IS(forebay_sqlite_shutdown(), SQLITE_OK);
    IS(fby_cache_close(cache), 0);
    IS(sqlite3_shutdown(), SQLITE_OK);
    return 0;
}
