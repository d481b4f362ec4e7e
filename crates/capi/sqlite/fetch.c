/*
 * Pages without a copy: pins of the cache. A page shows the bytes of the moment it was fetched,
 * which is what SQLite's locks promise its reader. Where a page cannot be pinned (an eighth of the
 * cache is, the page lies in several runs of memory, its read fails) SQLite gets NULL and reads it,
 * so that an error has its proper code.
 */
#include "internal.h"
#include <stdlib.h>

static int has_space(File *file) {
    int space = file->fetched_space ? 2 * file->fetched_space : 16;
    Fetched *fetched;
    if (file->fetched_count < file->fetched_space)
        return 1;
    fetched = realloc(file->fetched, sizeof *fetched * (size_t)space);
    if (!fetched)
        return 0;
    file->fetched = fetched;
    file->fetched_space = space;
    return 1;
}

int fetch_page(sqlite3_file *base, sqlite3_int64 offset, int bytes, void **page) {
    File *file = (File *)base;
    const struct iovec *extents;
    fby_pinned *pinned;
    int64_t got;
    *page = NULL;
    if (file->fetch_limit <= 0 || !file->file || !has_space(file))
        return SQLITE_OK;
    got = fby_pin(file->file, offset, (size_t)bytes, FBY_PIN_NO_COPY, &pinned);
    if (got < 0)
        return SQLITE_OK;
    if (got < bytes || fby_pinned_extents(pinned, &extents) != 1) {
        fby_unpin(pinned);
        return SQLITE_OK;
    }
    *page = extents[0].iov_base;
    file->fetched[file->fetched_count].bytes = *page;
    file->fetched[file->fetched_count++].pinned = pinned;
    return SQLITE_OK;
}

/* SQLite has few pages at a time, and mostly ends the one that it fetched last. */
int fetch_end(sqlite3_file *base, sqlite3_int64 offset, void *page) {
    File *file = (File *)base;
    (void)offset;
    if (!page)
        return SQLITE_OK;
    for (int i = file->fetched_count - 1; i >= 0; i--) {
        if (file->fetched[i].bytes != page)
            continue;
        fby_unpin(file->fetched[i].pinned);
        file->fetched[i] = file->fetched[--file->fetched_count];
        return SQLITE_OK;
    }
    return SQLITE_IOERR_MMAP;
}

void fetch_end_all(File *file) {
    while (file->fetched_count > 0)
        fby_unpin(file->fetched[--file->fetched_count].pinned);
    free(file->fetched);
    file->fetched = NULL;
    file->fetched_space = 0;
}
