/*
 * What the files of the VFS share.
 *
 *   vfs.c    registration, names: open, delete, access, full names
 *   file.c   the methods of an open file
 *   lock.c   locks among the connections of this process
 *   shm.c    the index of a write-ahead log, in memory of this process
 *   fetch.c  pages without a copy
 *   store.c  the cache, volumes, and how a file of either kind is opened
 *   join.c   which database a log belongs to
 *   names.c  attributes, access, deletion and syncs of folders, by name
 *   error.c  results of calls that failed
 *
 * Invariants:
 *   excl    While a database is open, libforebay holds a lock of its open file description on all
 *           of the file, SQLite's bytes of locks included. So no other process reads or writes it,
 *           whatever VFS it uses, and dirty data of our cache is seen by all who may see the file.
 *           A database that another process holds is opened without a file; each xLock tries
 *           again, and until then nothing of it is read.
 *   node    Connections of a process to one file share one node, by device and inode.
 */
#ifndef FOREBAY_SQLITE_INTERNAL_H
#define FOREBAY_SQLITE_INTERNAL_H

#define _GNU_SOURCE
#include "forebay_sqlite.h"
#include <fcntl.h>
#include <pthread.h>
#include <sqlite3ext.h>
#include <sys/types.h>
#ifndef FOREBAY_SQLITE_MAIN
SQLITE_EXTENSION_INIT3
#endif

typedef struct File File;
typedef struct Node Node;
typedef struct Store Store;
typedef struct Turn Turn;

/* The right to open or close the file or image of a name: one thread at a time has it. */
struct Turn {
    Turn *next;
    const char *name;
    size_t length;
};

/* An image with a volume, open while a file of it is. */
struct Store {
    Store *next;
    char *image;
    fby_volume *volume;
    int users;
};

struct Node {
    Node *next;
    Store *store;
    /* By which its first connection opened it. */
    const char *name;
    uint64_t dev, ino;
    int users;
    pthread_mutex_t mutex;
    /* Locks of databases: connections with SHARED or more, and the one that has more. */
    int shared;
    File *writer;
    int writer_level;
    /* Whether the name of its rollback journal was synced; `all.mutex` guards it. */
    int is_journal_durable;
    /* The index of the log: regions, their users, and locks by slot. */
    void **regions;
    int region_count, region_bytes, shm_users;
    int slot_shared[SQLITE_SHM_NLOCK];
    File *slot_owner[SQLITE_SHM_NLOCK];
};

typedef struct {
    void *bytes;
    fby_pinned *pinned;
} Fetched;

/*
 * A process: its number, and how many calls of fork(2) lead from the first registration to it. A
 * child may have the number of an ancestor, in a namespace of its own or after that one has ended;
 * a child of a raw clone(2) runs no handler of fork(2), and differs by its number alone.
 */
typedef struct {
    pid_t pid;
    unsigned generation;
} Process;

/* What became of a file that was to be made. */
typedef enum {
    MADE_NOT,
    MADE_NOW,
    /* The name existed. */
    MADE_BEFORE,
    /* It could not get the owner or the permissions of its database, and was removed again. */
    MADE_REFUSED
} Made;

struct File {
    sqlite3_file base;
    /* SQLite's, which stays until xClose. */
    const char *name;
    /* Flags of open(2); NULL in `file` means that another process has the file. */
    int how;
    /* Permissions of a new file in a volume; 0 for the usual ones. */
    uint32_t mode;
    fby_file *file;
    Store *store;
    Node *node;
    /* That opened `file`, or waits for it. */
    Process process;
    int level;
    int last_errno;
    /* Of one connection: the database of a log, and the log of a database. NULL: not open. */
    File *database, *log;
    /*
     * Of a log whose index is memory of SQLite: the lowest byte that its connection has written
     * since it committed; -1 for none.
     */
    sqlite3_int64 begun;
    unsigned shm_shared, shm_exclusive;
    unsigned is_database : 1, sync_directory : 1, delete_on_close : 1;
    unsigned has_shm : 1, persist_wal : 1, powersafe : 1;
    /* A log, and whether a sync or write of it failed and no write came since: see drop_refused. */
    unsigned is_log : 1, has_refused : 1;
    /* Another process has the file; the connection counts as a user of the cache. */
    unsigned is_waiting : 1;
    /* 0: no page is fetched. Otherwise only what PRAGMA mmap_size shows. */
    sqlite3_int64 fetch_limit;
    Fetched *fetched;
    int fetched_count, fetched_space;
    /* Numbers of pages that were fetched a moment ago; NULL before the first fetch. */
    uint32_t *recent;
};

/* store.c */
/*
 * From now on a child of fork(2) begins without what its parent has open. SQLITE_NOMEM, or
 * SQLITE_OK; more calls do nothing.
 */
int store_watch_forks(void);
/* The calling process. */
Process store_process(void);
int store_is_this_process(Process process);
/* The path in a volume, which begins with "/"; NULL for a file of the host. */
const char *inner_of(const char *name);
/* Waits until no other thread opens or closes a file of this name. The cache, or NULL. */
fby_cache *turn_take(Turn *turn, const char *name);
void turn_end(const Turn *turn);
/*
 * Whether the image of a name is opened unless it is open. Only a database opens one. SQLite takes
 * the name of a super-journal from a hot journal, which may have come with a database that is not
 * trusted: it must not open, and recover, any image that it names.
 */
typedef enum { HOLD_OPEN, HOLD_OR_OPEN, HOLD_OR_OPEN_BUFFERED } Hold;
/* The volume that a name is in: -errno, -EXDEV if it is not open, or one user more. */
int store_hold(const char *name, Hold how, Store **held);
int store_end(Store *store);
/* Whether a file of the host was ever closed with dirty data that could not be written. */
int store_has_failed_close(void);
/* Makes the cache if there is none; `budget` as in "256M", or NULL. */
int store_enter(const char *budget);
/* Opens the file and finds its node: SQLITE_BUSY if another process has it. */
int store_open(File *file);
int store_close(File *file);
/* The file is opened later, and the cache stays until then. store_end_wait if it is not. */
void store_wait(File *file);
void store_end_wait(const File *file);
/*
 * Whether a parent process opened the file. Its node is not locked then: another thread may have
 * held the lock at fork(2), and that thread is not in this process.
 */
int store_is_parents(const File *file);
int store_is_in_volume(const char *name);
/*
 * Whether the rollback journal is of a database that a parent process had open at fork(2), and this
 * process has not: a child leaves it alone.
 */
int store_is_journal_of_parent(const char *journal);
/* Whether the name of a journal was synced since this process has its database open. */
int store_is_journal_durable(const char *journal);
void store_note_journal(const char *journal, int is_durable);
int store_make_volume(const char *name, sqlite3_int64 bytes);

/* join.c */
/* A database that is opened with `name`; join_remove when it is closed. SQLITE_NOMEM, or OK. */
int join_add(File *database);
void join_remove(const File *database);
/* Joins a log that was opened and the database of its connection, if that is known. */
void join_database(File *log);
/* Parts a file that is closed from the one that it was joined with. */
void join_part(File *file);
/* In a child of fork(2): nothing is open. */
void join_begin_child(void);

/* names.c */
/* In a volume: a new journal gets the permissions of its database. */
void store_take_mode(File *file, const char *database);
/*
 * Makes a file of the host unless the name exists, as a symbolic link, too. A journal gets
 * permissions and owner of its database, NULL for another file. The caller has no turn.
 */
int store_make_file(const char *name, const char *database, Made *made);
int store_delete(const char *name);
/* A name in an image that is not open: an error, unless `how` says that it is opened. */
int store_access(const char *name, int flags, Hold how, int *result);
int store_sync_directory(const char *name);
int store_has_moved(const File *file);

/* error.c */
/* The result for SQLite of a call of libforebay that failed: `code` unless errno says more. */
int failed(File *file, int64_t result, int code, const char *name);
/* As `failed`, of a system call. */
int failed_on_host(int64_t result, int code, const char *name);

/* lock.c */
int lock_take(sqlite3_file *base, int level);
int lock_release(sqlite3_file *base, int level);
int lock_is_reserved(sqlite3_file *base, int *result);

/* shm.c */
int shm_map(sqlite3_file *base, int region, int bytes, int extend, void volatile **memory);
int shm_lock(sqlite3_file *base, int offset, int count, int flags);
void shm_barrier(sqlite3_file *base);
/* Of a log: where its committed frames end, where the last one begins, and their salt. */
typedef struct {
    sqlite3_int64 offset, last;
    uint8_t salt[8];
} LogEnd;
/* 0 unless the connection may write the log now, and has an index here. */
int shm_end_of_log(const File *database, LogEnd *found);
int shm_unmap(sqlite3_file *base, int delete_it);

/* fetch.c */
int fetch_page(sqlite3_file *base, sqlite3_int64 offset, int bytes, void **page);
int fetch_end(sqlite3_file *base, sqlite3_int64 offset, void *page);
void fetch_end_all(File *file);

/* file.c */
extern const sqlite3_io_methods forebay_methods;

#endif
