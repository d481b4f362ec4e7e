/*
 * Which database a log belongs to. SQLite has the names of a log and of its database in one block
 * of memory for each connection, so `sqlite3_filename_database` of the log is the very name that
 * the database was opened with. A VFS above this one may pass copies: their log finds no database,
 * or the one that has a name in the same block.
 *
 * Locks: `mutex` over the list. No lock is taken inside it.
 */
#include "internal.h"
#include <stdlib.h>

/* An open database. In a child of clone(2) SQLite may have freed it since: see `process`. */
typedef struct Open Open;
struct Open {
    Open *next;
    const char *name;
    File *database;
    Process process;
};

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static Open *opens;

void join_begin_child(void) {
    pthread_mutex_t fresh = PTHREAD_MUTEX_INITIALIZER;
    mutex = fresh;
    opens = NULL;
}

int join_add(File *database) {
    Open *entry = malloc(sizeof *entry);
    if (!entry)
        return SQLITE_NOMEM;
    entry->name = database->name;
    entry->database = database;
    entry->process = store_process();
    pthread_mutex_lock(&mutex);
    entry->next = opens;
    opens = entry;
    pthread_mutex_unlock(&mutex);
    return SQLITE_OK;
}

void join_remove(const File *database) {
    Open **at = &opens, *gone;
    pthread_mutex_lock(&mutex);
    while (*at && (*at)->database != database)
        at = &(*at)->next;
    gone = *at;
    if (gone)
        *at = gone->next;
    pthread_mutex_unlock(&mutex);
    free(gone);
}

/* NULL, too, if several databases were opened with this name: only a VFS above does that. */
static File *database_of(const char *name) {
    File *found = NULL;
    int count = 0;
    pthread_mutex_lock(&mutex);
    for (const Open *entry = opens; entry; entry = entry->next)
        if (entry->name == name && store_is_this_process(entry->process)) {
            found = entry->database;
            count++;
        }
    pthread_mutex_unlock(&mutex);
    return count == 1 ? found : NULL;
}

void join_database(File *log) {
    File *database = database_of(sqlite3_filename_database(log->name));
    log->begun = -1;
    if (!database || database->log)
        return;
    log->database = database;
    database->log = log;
}

void join_part(File *file) {
    if (file->database)
        file->database->log = NULL;
    if (file->log)
        file->log->database = NULL;
    file->database = file->log = NULL;
}
