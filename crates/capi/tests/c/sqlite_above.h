/*
 * VFSes above this one. The files of "above" have methods of its own. "renamed" passes other names,
 * in memory that sqlite3_create_filename() made, as a VFS may that keeps files elsewhere. "shifted"
 * has 512 bytes of its own at the start of a log.
 */
#ifndef SQLITE_ABOVE_H
#define SQLITE_ABOVE_H

#include "sqlite/internal.h"

#define SHIFT 512

static sqlite3_vfs above, renamed, shifted;
static const sqlite3_io_methods *methods_below;
static sqlite3_io_methods methods_above, methods_shifted;
static const char *names[16];
static int name_count;

static inline int open_above(sqlite3_vfs *self, const char *name, sqlite3_file *file, int flags, int *out) {
    sqlite3_vfs *below = self->pAppData;
    int result = below->xOpen(below, name, file, flags, out);
    if (result == SQLITE_OK && flags & (SQLITE_OPEN_MAIN_DB | SQLITE_OPEN_WAL)) {
        methods_above = *file->pMethods;
        file->pMethods = &methods_above;
    }
    return result;
}

/* Where "renamed" keeps "x.db" and "x.db-wal": "x.db.moved", "x.db.moved-wal". */
static inline const char *moved(const char *name) {
    static char to[620];
    const char *end = strstr(name, ".db");
    CHECK(end != NULL);
    snprintf(to, sizeof to, "%.*s.moved%s", (int)(end + 3 - name), name, end + 3);
    return to;
}

static inline int open_renamed(sqlite3_vfs *self, const char *name, sqlite3_file *file, int flags, int *out) {
    sqlite3_vfs *below = self->pAppData;
    char database[620], journal[640], log[640];
    const char *made;
    if (!(flags & (SQLITE_OPEN_MAIN_DB | SQLITE_OPEN_MAIN_JOURNAL | SQLITE_OPEN_WAL)))
        return below->xOpen(below, name, file, flags, out);
    snprintf(database, sizeof database, "%s", moved(sqlite3_filename_database(name)));
    snprintf(journal, sizeof journal, "%s-journal", database);
    snprintf(log, sizeof log, "%s-wal", database);
    made = sqlite3_create_filename(database, journal, log, 0, NULL);
    CHECK(made && name_count < 16);
    names[name_count++] = made;
    if (flags & SQLITE_OPEN_MAIN_JOURNAL)
        made = sqlite3_filename_journal(made);
    else if (flags & SQLITE_OPEN_WAL)
        made = sqlite3_filename_wal(made);
    return below->xOpen(below, made, file, flags, out);
}

static inline int delete_renamed(sqlite3_vfs *self, const char *name, int sync) {
    sqlite3_vfs *below = self->pAppData;
    return below->xDelete(below, moved(name), sync);
}

static inline int access_renamed(sqlite3_vfs *self, const char *name, int flags, int *result) {
    sqlite3_vfs *below = self->pAppData;
    return below->xAccess(below, moved(name), flags, result);
}

static inline int read_shifted(sqlite3_file *file, void *buf, int bytes, sqlite3_int64 offset) {
    return methods_below->xRead(file, buf, bytes, offset + SHIFT);
}

static inline int write_shifted(sqlite3_file *file, const void *buf, int bytes, sqlite3_int64 offset) {
    return methods_below->xWrite(file, buf, bytes, offset + SHIFT);
}

static inline int truncate_shifted(sqlite3_file *file, sqlite3_int64 size) {
    return methods_below->xTruncate(file, size + SHIFT);
}

static inline int size_shifted(sqlite3_file *file, sqlite3_int64 *size) {
    int result = methods_below->xFileSize(file, size);
    *size = *size > SHIFT ? *size - SHIFT : 0;
    return result;
}

static inline int open_shifted(sqlite3_vfs *self, const char *name, sqlite3_file *file, int flags, int *out) {
    sqlite3_vfs *below = self->pAppData;
    int result = below->xOpen(below, name, file, flags, out);
    if (result == SQLITE_OK && flags & SQLITE_OPEN_WAL) {
        methods_below = file->pMethods;
        methods_shifted = *methods_below;
        methods_shifted.xRead = read_shifted;
        methods_shifted.xWrite = write_shifted;
        methods_shifted.xTruncate = truncate_shifted;
        methods_shifted.xFileSize = size_shifted;
        file->pMethods = &methods_shifted;
    }
    return result;
}

/* After the registration of this VFS. */
static inline void register_above(void) {
    sqlite3_vfs *below = sqlite3_vfs_find("forebay");
    CHECK(below != NULL);
    /* `below->pAppData` is the default VFS: the calls that need no file of ours go there. */
    above = renamed = shifted = *(sqlite3_vfs *)below->pAppData;
    above.szOsFile = renamed.szOsFile = shifted.szOsFile = below->szOsFile;
    above.pAppData = renamed.pAppData = shifted.pAppData = below;
    above.pNext = renamed.pNext = shifted.pNext = NULL;
    above.zName = "above";
    above.xOpen = open_above;
    renamed.zName = "renamed";
    renamed.xOpen = open_renamed;
    renamed.xDelete = delete_renamed;
    renamed.xAccess = access_renamed;
    shifted.zName = "shifted";
    shifted.xOpen = open_shifted;
    IS(sqlite3_vfs_register(&above, 0), SQLITE_OK);
    IS(sqlite3_vfs_register(&renamed, 0), SQLITE_OK);
    IS(sqlite3_vfs_register(&shifted, 0), SQLITE_OK);
}

static inline void unregister_above(void) {
    IS(sqlite3_vfs_unregister(&above), SQLITE_OK);
    IS(sqlite3_vfs_unregister(&renamed), SQLITE_OK);
    IS(sqlite3_vfs_unregister(&shifted), SQLITE_OK);
    while (name_count > 0)
        sqlite3_free_filename(names[--name_count]);
}

#endif
