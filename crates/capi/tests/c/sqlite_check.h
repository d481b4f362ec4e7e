/* What the programs on SQLite share: a connection, a statement, one value. */
#ifndef SQLITE_CHECK_H
#define SQLITE_CHECK_H

#include "check.h"
#include <sqlite3.h>

#define FLAGS (SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE | SQLITE_OPEN_URI)

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

#endif
