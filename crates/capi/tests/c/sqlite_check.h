/* What the programs on SQLite share: a connection, a statement, one value. */
#ifndef SQLITE_CHECK_H
#define SQLITE_CHECK_H

#include "check.h"
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <semaphore.h>
#include <sqlite3.h>
#include <stddef.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <time.h>

#define FLAGS (SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE | SQLITE_OPEN_URI)

/*
 * The VFS makes its cache with the engine that fits the kernel. Valgrind knows too little of
 * io_uring, so this process and its children have none there.
 */
__attribute__((constructor)) static void have_no_uring(void) {
    struct sock_filter steps[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_io_uring_setup, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | ENOSYS),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog filter = {sizeof steps / sizeof *steps, steps};
    if (!getenv("FOREBAY_TEST_THREADS"))
        return;
    CHECK(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0);
    CHECK(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter) == 0);
}

static inline sqlite3 *opened(const char *uri) {
    sqlite3 *db;
    int result = sqlite3_open_v2(uri, &db, FLAGS, NULL);
    if (result != SQLITE_OK)
        fprintf(stderr, "%s: %s\n", uri, sqlite3_errmsg(db));
    IS(result, SQLITE_OK);
    IS(sqlite3_extended_result_codes(db, 0), SQLITE_OK);
    return db;
}

static inline void closed(sqlite3 *db) {
    IS(sqlite3_close(db), SQLITE_OK);
}

static inline void ran(sqlite3 *db, const char *sql) {
    char *error = NULL;
    int result = sqlite3_exec(db, sql, NULL, NULL, &error);
    if (result != SQLITE_OK)
        fprintf(stderr, "%s: %s (%d)\n", sql, error, sqlite3_extended_errcode(db));
    IS(result, SQLITE_OK);
}

static inline sqlite3_stmt *prepared(sqlite3 *db, const char *sql) {
    sqlite3_stmt *statement = NULL;
    int result = sqlite3_prepare_v2(db, sql, -1, &statement, NULL);
    if (result != SQLITE_OK)
        fprintf(stderr, "%s: %s\n", sql, sqlite3_errmsg(db));
    IS(result, SQLITE_OK);
    return statement;
}

/* The first column of the first row. */
static inline long long number(sqlite3 *db, const char *sql) {
    sqlite3_stmt *statement = prepared(db, sql);
    long long value;
    IS(sqlite3_step(statement), SQLITE_ROW);
    value = sqlite3_column_int64(statement, 0);
    IS(sqlite3_finalize(statement), SQLITE_OK);
    return value;
}

/* As `number`; the text stays until the next call. */
static inline const char *text(sqlite3 *db, const char *sql) {
    static char value[256];
    sqlite3_stmt *statement = prepared(db, sql);
    IS(sqlite3_step(statement), SQLITE_ROW);
    snprintf(value, sizeof value, "%s", (const char *)sqlite3_column_text(statement, 0));
    IS(sqlite3_finalize(statement), SQLITE_OK);
    return value;
}

/* Up to a second: the thread that is to post may be waiting for the caller. */
static inline void wait_shortly(sem_t *semaphore) {
    struct timespec limit;
    CHECK(clock_gettime(CLOCK_REALTIME, &limit) == 0);
    limit.tv_sec++;
    CHECK(sem_timedwait(semaphore, &limit) == 0 || errno == ETIMEDOUT);
}

#endif
