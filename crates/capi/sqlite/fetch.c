/*
 * Pages without a copy: pins of the cache. A page shows the bytes of the moment it was fetched,
 * which is what SQLite's locks promise its reader. Where a page cannot be pinned SQLite gets NULL
 * and reads the page, so that an error has its proper code. That is so if an eighth of the cache is
 * pinned, if the page lies in several runs of memory, or if its read fails.
 *
 * SQLite fetches a page each time a cursor comes to it, also the root of a tree. So a page that was
 * fetched a moment ago is not pinned again: SQLite reads it, and has it in its own cache from then
 * on, which costs less than a pin for each visit.
 */
#include "internal.h"
#include <stdlib.h>
#include <string.h>

/*
 * Numbers of the pages that were fetched last: SETS sets of WAYS numbers, the latest number first.
 */
#define SETS 64
#define WAYS 4
/*
 * Pages of fewer bytes are read: a copy of 4 KiB costs less than a pin. Tests that are to fetch all
 * pages set another limit.
 */
#ifndef FETCHED_LEAST
#define FETCHED_LEAST 8192
#endif
/* Bytes at the start of a page that prefetch() brings into the cache of the processor. */
#define PREFETCHED 16384

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

/* Whether the page is among those that were fetched last; adds it. Without memory for them: no. */
static int is_recent(File *file, sqlite3_int64 offset, int bytes) {
    /* 0 is an empty entry. SQLite never fetches the first page, whose number is 0 here. */
    uint32_t page = (uint32_t)(offset / bytes), *set;
    int way = 0, is_found;
    if (!file->recent)
        file->recent = calloc(SETS * WAYS, sizeof *file->recent);
    if (!file->recent)
        return 0;
    set = &file->recent[page % SETS * WAYS];
    while (way < WAYS - 1 && set[way] != page)
        way++;
    is_found = set[way] == page;
    memmove(set + 1, set, (size_t)way * sizeof *set);
    set[0] = page;
    return is_found;
}

/*
 * SQLite searches a page by bisection, and each step would wait for memory. A copy reads in order,
 * and so leaves the page in the cache of the processor. A pinned page is not copied, so it is
 * prefetched.
 */
static void prefetch(const char *page, int bytes) {
    for (int at = 0; at < bytes && at < PREFETCHED; at += 64)
        __builtin_prefetch(page + at);
}

int fetch_page(sqlite3_file *base, sqlite3_int64 offset, int bytes, void **page) {
    File *file = (File *)base;
    const struct iovec *extents;
    fby_pinned *pinned;
    int64_t got;
    *page = NULL;
    if (file->fetch_limit <= 0 || !file->file || bytes < FETCHED_LEAST)
        return SQLITE_OK;
    if (is_recent(file, offset, bytes) || !has_space(file))
        return SQLITE_OK;
    got = fby_pin(file->file, offset, (size_t)bytes, FBY_PIN_NO_COPY, &pinned);
    if (got < 0)
        return SQLITE_OK;
    if (got < bytes || fby_pinned_extents(pinned, &extents) != 1) {
        fby_unpin(pinned);
        return SQLITE_OK;
    }
    *page = extents[0].iov_base;
    prefetch(*page, bytes);
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
    free(file->recent);
    file->recent = NULL;
    file->fetched = NULL;
    file->fetched_space = 0;
}
