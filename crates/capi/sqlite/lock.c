/*
 * Locks of databases among the connections of this process. Other processes are kept out by the
 * lock of libforebay (`excl` in internal.h). The rules are those of SQLite's os.h: any number of
 * SHARED with one RESERVED; PENDING lets no new SHARED in; EXCLUSIVE is alone.
 */
#include "internal.h"

static int take(Node *node, File *file, int level) {
    File *writer = node->writer;
    if (level == SQLITE_LOCK_SHARED) {
        if (writer && node->writer_level >= SQLITE_LOCK_PENDING)
            return SQLITE_BUSY;
        node->shared++;
    } else {
        if (writer && writer != file)
            return SQLITE_BUSY;
        node->writer = file;
        if (level == SQLITE_LOCK_EXCLUSIVE && node->shared > 1) {
            /* PENDING: readers finish, new ones are refused, and the caller tries again. */
            node->writer_level = file->level = SQLITE_LOCK_PENDING;
            return SQLITE_BUSY;
        }
        node->writer_level = level;
    }
    file->level = level;
    return SQLITE_OK;
}

int lock_take(sqlite3_file *base, int level) {
    File *file = (File *)base;
    int result;
    if (store_is_parents(file))
        return SQLITE_IOERR_LOCK;
    if (file->level >= level)
        return SQLITE_OK;
    if (!file->file) {
        result = store_open(file);
        if (result != SQLITE_OK)
            return result;
    }
    pthread_mutex_lock(&file->node->mutex);
    result = take(file->node, file, level);
    pthread_mutex_unlock(&file->node->mutex);
    return result;
}

int lock_release(sqlite3_file *base, int level) {
    File *file = (File *)base;
    Node *node = file->node;
    if (!node || file->level <= level)
        return SQLITE_OK;
    if (store_is_parents(file))
        return SQLITE_IOERR_UNLOCK;
    pthread_mutex_lock(&node->mutex);
    if (node->writer == file) {
        node->writer = NULL;
        node->writer_level = SQLITE_LOCK_NONE;
    }
    if (level == SQLITE_LOCK_NONE)
        node->shared--;
    pthread_mutex_unlock(&node->mutex);
    file->level = level;
    return SQLITE_OK;
}

int lock_is_reserved(sqlite3_file *base, int *result) {
    File *file = (File *)base;
    *result = 0;
    if (!file->node)
        return SQLITE_OK;
    if (store_is_parents(file))
        return SQLITE_IOERR_CHECKRESERVEDLOCK;
    pthread_mutex_lock(&file->node->mutex);
    *result = file->node->writer != NULL;
    pthread_mutex_unlock(&file->node->mutex);
    return SQLITE_OK;
}
