/*
 * SQLite on Forebay: a VFS with the name "forebay".
 *
 * As a loadable extension, libforebay_sqlite.so registers the VFS for all later connections of the
 * process and stays loaded. In a program, compile the files of this folder with SQLITE_CORE, link
 * SQLite and libforebay, and call forebay_sqlite_register() before the first sqlite3_open_v2().
 *
 * Results are those of SQLite. See docs/guide/sqlite.md.
 */
#ifndef FOREBAY_SQLITE_H
#define FOREBAY_SQLITE_H

#include "forebay.h"

#ifdef __cplusplus
extern "C" {
#endif

#pragma GCC visibility push(default)

/* Registers the VFS; as the default one if `make_default` is not 0. For programs that link it. */
int forebay_sqlite_register(int make_default);

/*
 * Files are opened on this cache, and the parameter `budget` of names has no effect. SQLITE_BUSY if
 * the VFS has a cache already, SQLITE_MISUSE for NULL. The caller closes it, after
 * forebay_sqlite_shutdown().
 */
int forebay_sqlite_use_cache(fby_cache *cache);

/* The cache of the VFS; NULL before its first file. */
fby_cache *forebay_sqlite_cache(void);

/*
 * Closes the cache that the VFS made, and gives its memory back. SQLITE_BUSY while a connection is
 * open, also one whose database another process has. Without this call the cache lives as long as
 * the process.
 */
int forebay_sqlite_shutdown(void);

#pragma GCC visibility pop

#ifdef __cplusplus
}
#endif
#endif
