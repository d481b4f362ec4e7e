/* Results for SQLite of calls that failed, and their texts for its log. */
#include "internal.h"
#include <errno.h>
#include <string.h>

/* The result for SQLite of a call that failed: `code` unless its errno says more. */
static int code_of(int error, int code) {
    const int is_of_space = code == SQLITE_IOERR_WRITE || code == SQLITE_IOERR_TRUNCATE ||
                            code == SQLITE_IOERR_FSYNC;
    if (error == ENOMEM)
        return SQLITE_IOERR_NOMEM;
    if (error == EUCLEAN && code == SQLITE_IOERR_READ)
        return SQLITE_IOERR_DATA;
    if ((error == ENOSPC || error == EDQUOT || error == EFBIG) && is_of_space)
        return SQLITE_FULL;
    if (error == ELOOP && code == SQLITE_CANTOPEN)
        return SQLITE_CANTOPEN_SYMLINK;
    if (error == EBUSY && (code == SQLITE_CANTOPEN || code == SQLITE_IOERR_ACCESS))
        return SQLITE_BUSY;
    return code;
}

static int logged(int code, int error, const char *name, const char *text) {
    if (code != SQLITE_BUSY && !(code == SQLITE_CANTOPEN && error == ENOENT))
        sqlite3_log(code, "forebay: %s: %s", name, text);
    return code;
}

/* EXDEV, ENOMEM and ENOSYS are errors of the VFS itself: libforebay has no text for them. */
static const char *text_of(int error) {
    if (error == EXDEV)
        return "its volume is not open in this process";
    return error == ENOMEM || error == ENOSYS ? strerror(error) : fby_last_error();
}

int failed(File *file, int64_t result, int code, const char *name) {
    int error = (int)-result;
    if (file)
        file->last_errno = error;
    return logged(code_of(error, code), error, name, text_of(error));
}

int failed_on_host(int64_t result, int code, const char *name) {
    int error = (int)-result;
    return logged(code_of(error, code), error, name, strerror(error));
}
