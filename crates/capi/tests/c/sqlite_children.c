/*
 * A child of fork(2) changes nothing of a transaction that its parent has begun: the rollback
 * journal of the host stays as it is, whatever the child does with the parent's connection.
 */
#include "check.h"
#include "sqlite/internal.h"
#include "sqlite_check.h"

#include <pthread.h>
#include <semaphore.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>

static char uri[600], journal[600];

typedef struct {
    size_t bytes;
    char content[1 << 16];
} Content;

/* The journal's content; a missing one has SIZE_MAX bytes. */
static void read_journal(Content *content) {
    int file = open(journal, O_RDONLY);
    ssize_t got;
    content->bytes = SIZE_MAX;
    if (file < 0)
        return;
    got = read(file, content->content, sizeof content->content);
    CHECK(got >= 0 && (size_t)got < sizeof content->content);
    content->bytes = (size_t)got;
    IS(close(file), 0);
}

/* Runs SQL in a child on the parent's connection, and closes it. */
static void in_child(sqlite3 *db, const char *sql) {
    int status;
    pid_t child = fork();
    if (child == 0) {
        sqlite3_exec(db, sql, NULL, NULL, NULL);
        sqlite3_close(db);
        _exit(0);
    }
    CHECK(child > 0 && waitpid(child, &status, 0) == child && status == 0);
}

static sqlite3 *begun(const char *mode, const char *sql) {
    char start[200];
    sqlite3 *db = opened(uri);
    snprintf(start, sizeof start, "PRAGMA journal_mode=%s; DROP TABLE IF EXISTS t; CREATE TABLE t(a)", mode);
    ran(db, start);
    ran(db, "INSERT INTO t VALUES(62); BEGIN IMMEDIATE");
    ran(db, sql);
    return db;
}

/* In the parent the transaction goes on after that, and is committed. */
static void child_leaves_the_journal(const char *mode, const char *begin, const char *sql) {
    static Content before, after;
    sqlite3 *db = begun(mode, begin);
    read_journal(&before);
    in_child(db, sql);
    read_journal(&after);
    IS(after.bytes, before.bytes);
    CHECK(before.bytes == SIZE_MAX || memcmp(before.content, after.content, before.bytes) == 0);
    ran(db, "UPDATE t SET a = a + 1; COMMIT");
    CHECK(number(db, "SELECT a FROM t") > 62);
    CHECK(strcmp(text(db, "PRAGMA integrity_check"), "ok") == 0);
    closed(db);
}

/* Has changed pages in the database when it is killed: only the journal can take them back. */
static void die_in_a_transaction(const char *mode) {
    File *file;
    sqlite3 *db = begun(mode, "UPDATE t SET a = 63");
    in_child(db, "SELECT a FROM t");
    ran(db, "PRAGMA cache_size=5; PRAGMA cache_spill=5");
    ran(db, "UPDATE n SET a = 9, pad = randomblob(3000)");
    IS(sqlite3_file_control(db, "main", SQLITE_FCNTL_FILE_POINTER, &file), SQLITE_OK);
    IS(file->base.pMethods->xSync(&file->base, SQLITE_SYNC_NORMAL), SQLITE_OK);
    raise(SIGKILL);
}

static void killed_parent_is_rolled_back(const char *mode) {
    sqlite3 *db;
    int status;
    pid_t parent = fork();
    if (parent == 0)
        die_in_a_transaction(mode);
    CHECK(parent > 0 && waitpid(parent, &status, 0) == parent);
    CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
    db = opened(uri);
    IS(number(db, "SELECT sum(a) FROM n"), 0);
    IS(number(db, "SELECT a FROM t"), 62);
    CHECK(strcmp(text(db, "PRAGMA integrity_check"), "ok") == 0);
    closed(db);
}

static sem_t second_is_held, first_has_opened, second_has_opened;
static __thread int waits_for_the_first;

/* Not 0: the number that this process has, and its children, too. */
static pid_t number_of_process;

/* Of the program and its libraries: holds the second thread where it finds itself in a child. */
pid_t getpid(void) {
    if (waits_for_the_first) {
        waits_for_the_first = 0;
        IS(sem_post(&second_is_held), 0);
        wait_shortly(&first_has_opened);
    }
    return number_of_process ? number_of_process : (pid_t)syscall(SYS_getpid);
}

/*
 * A child in a new namespace of process numbers may have the number of its parent. It took the
 * files of the parent for its own then.
 */
static void child_with_its_parents_number_leaves_the_journal(void) {
    number_of_process = getpid();
    child_leaves_the_journal("delete", "UPDATE t SET a = 63", "ROLLBACK");
    child_leaves_the_journal("delete", "UPDATE t SET a = 63", "UPDATE t SET a = 5; COMMIT");
    number_of_process = 0;
}

static void *second_in_child(void *uri_of_its_own) {
    sqlite3 *db;
    waits_for_the_first = 1;
    db = opened(uri_of_its_own);
    IS(sem_post(&second_has_opened), 0);
    IS(number(db, "SELECT a FROM t"), 1);
    closed(db);
    return NULL;
}

/*
 * The first thread that used the VFS in a child made everything anew, without a lock. The second
 * one had found just before that this is a child, and did so again, over what was in use by then.
 */
static void threads_that_begin_a_child_together_keep_each_others_files(const char *folder) {
    static char own[2][600];
    pthread_t second;
    sqlite3 *db;
    int status;
    pid_t child;
    for (int i = 0; i < 2; i++) {
        snprintf(own[i], sizeof own[i], "file:%s/own%d.db?vfs=forebay", folder, i);
        db = opened(own[i]);
        ran(db, "CREATE TABLE t(a); INSERT INTO t VALUES(1)");
        closed(db);
    }
    IS(sem_init(&second_is_held, 0, 0), 0);
    IS(sem_init(&first_has_opened, 0, 0), 0);
    IS(sem_init(&second_has_opened, 0, 0), 0);
    /* The parent has used the VFS, and has neither of the two open. */
    child = fork();
    if (child == 0) {
        IS(pthread_create(&second, NULL, second_in_child, own[1]), 0);
        wait_shortly(&second_is_held);
        db = opened(own[0]);
        IS(number(db, "SELECT a FROM t"), 1);
        IS(sem_post(&first_has_opened), 0);
        while (sem_wait(&second_has_opened) != 0)
            CHECK(errno == EINTR);
        closed(db);
        IS(pthread_join(second, NULL), 0);
        IS(forebay_sqlite_shutdown(), SQLITE_OK);
        _exit(0);
    }
    CHECK(child > 0 && waitpid(child, &status, 0) == child);
    IS(status, 0);
}

int main(int argc, char **argv) {
    static const char *const modes[] = {"delete", "truncate", "persist"};
    static const char *const sql[] = {
        "SELECT a FROM t", "ROLLBACK", "COMMIT", "UPDATE t SET a = 5", "PRAGMA journal_mode=delete",
    };
    sqlite3 *db;
    CHECK(argc == 2);
    snprintf(uri, sizeof uri, "file:%s/a.db?vfs=forebay", argv[1]);
    snprintf(journal, sizeof journal, "%s/a.db-journal", argv[1]);
    IS(forebay_sqlite_register(0), SQLITE_OK);
    for (int mode = 0; mode < 3; mode++) {
        unlink(journal);
        for (int i = 0; i < 5; i++) {
            child_leaves_the_journal(modes[mode], "UPDATE t SET a = 63", sql[i]);
            child_leaves_the_journal(modes[mode], "SELECT a FROM t", sql[i]);
        }
    }
    child_with_its_parents_number_leaves_the_journal();
    db = opened(uri);
    ran(db, "CREATE TABLE n(a, pad); PRAGMA journal_mode=delete");
    ran(db, "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i+1 FROM n WHERE i<200) "
            "INSERT INTO n SELECT 0, randomblob(3000) FROM n");
    closed(db);
    IS(forebay_sqlite_shutdown(), SQLITE_OK);
    /* Each parent that is killed opens the database itself. */
    for (int mode = 0; mode < 3; mode++)
        killed_parent_is_rolled_back(modes[mode]);
    threads_that_begin_a_child_together_keep_each_others_files(argv[1]);
    IS(forebay_sqlite_shutdown(), SQLITE_OK);
    IS(sqlite3_shutdown(), SQLITE_OK);
    return 0;
}
