/*
 * The index of a write-ahead log: memory of this process, shared by its connections to a database.
 * That is enough, because no other process has the database open (`excl` in internal.h). The last
 * connection that ends frees it; the next one makes it anew from the log, as after a crash.
 */
#include "internal.h"
#include <stdlib.h>
#include <string.h>

/* The slot of SQLite's WAL_WRITE_LOCK. */
#define WRITE_SLOT 1u

static int add_region(Node *node, int bytes) {
    void **regions = realloc(node->regions, sizeof *regions * (size_t)(node->region_count + 1));
    if (!regions)
        return SQLITE_IOERR_NOMEM;
    node->regions = regions;
    regions[node->region_count] = calloc(1, (size_t)bytes);
    if (!regions[node->region_count])
        return SQLITE_IOERR_NOMEM;
    node->region_bytes = bytes;
    node->region_count++;
    return SQLITE_OK;
}

int shm_map(sqlite3_file *base, int region, int bytes, int extend, void volatile **memory) {
    File *file = (File *)base;
    Node *node = file->node;
    int result = SQLITE_OK;
    *memory = NULL;
    /*
     * A file that is opened for reading only is shared with readers in other processes, which
     * cannot see this memory.
     */
    if (!node || (file->how & O_ACCMODE) == O_RDONLY)
        return SQLITE_CANTOPEN;
    if (store_is_parents(file))
        return SQLITE_IOERR_SHMMAP;
    pthread_mutex_lock(&node->mutex);
    if (!file->has_shm) {
        file->has_shm = 1;
        node->shm_users++;
    }
    if (node->region_count && node->region_bytes != bytes)
        result = SQLITE_IOERR_SHMSIZE;
    while (result == SQLITE_OK && extend && node->region_count <= region)
        result = add_region(node, bytes);
    if (result == SQLITE_OK && region < node->region_count)
        *memory = node->regions[region];
    pthread_mutex_unlock(&node->mutex);
    return result;
}

static void unlock_slots(Node *node, File *file, unsigned mask) {
    for (int slot = 0; slot < SQLITE_SHM_NLOCK; slot++) {
        unsigned bit = 1u << slot;
        if (mask & bit & file->shm_exclusive)
            node->slot_owner[slot] = NULL;
        if (mask & bit & file->shm_shared)
            node->slot_shared[slot]--;
    }
    file->shm_exclusive &= ~mask;
    file->shm_shared &= ~mask;
}

static int lock_shared(Node *node, File *file, int slot) {
    unsigned bit = 1u << slot;
    if (file->shm_shared & bit)
        return SQLITE_OK;
    if (node->slot_owner[slot])
        return SQLITE_BUSY;
    node->slot_shared[slot]++;
    file->shm_shared |= bit;
    return SQLITE_OK;
}

/* All slots, or none. */
static int lock_exclusive(Node *node, File *file, int first, int count) {
    for (int slot = first; slot < first + count; slot++) {
        int own = (file->shm_shared >> slot) & 1;
        if (node->slot_shared[slot] > own)
            return SQLITE_BUSY;
        if (node->slot_owner[slot] && node->slot_owner[slot] != file)
            return SQLITE_BUSY;
    }
    for (int slot = first; slot < first + count; slot++) {
        node->slot_owner[slot] = file;
        file->shm_exclusive |= 1u << slot;
    }
    return SQLITE_OK;
}

int shm_lock(sqlite3_file *base, int offset, int count, int flags) {
    File *file = (File *)base;
    Node *node = file->node;
    int result = SQLITE_OK;
    if (!node || offset < 0 || count < 1 || offset + count > SQLITE_SHM_NLOCK)
        return SQLITE_IOERR_SHMLOCK;
    if (store_is_parents(file))
        return SQLITE_IOERR_SHMLOCK;
    pthread_mutex_lock(&node->mutex);
    if (flags & SQLITE_SHM_UNLOCK)
        unlock_slots(node, file, ((1u << count) - 1) << offset);
    else if (flags & SQLITE_SHM_SHARED)
        result = lock_shared(node, file, offset);
    else
        result = lock_exclusive(node, file, offset, count);
    pthread_mutex_unlock(&node->mutex);
    return result;
}

/*
 * The index begins with a header of SQLite's file format, in the order of bytes of the machine. Its
 * number of frames grows only after the sync of a commit, and only the writer changes it.
 */
int shm_end_of_log(const File *database, LogEnd *found) {
    Node *node = database->node;
    struct {
        uint32_t version, unused, change;
        uint8_t is_made, is_big_endian;
        uint16_t page_size;
        uint32_t frames, pages, checksum[2];
        uint8_t salt[8];
    } header;
    const int is_alone = database->level == SQLITE_LOCK_EXCLUSIVE;
    const int is_writer = is_alone || database->shm_exclusive & WRITE_SLOT;
    sqlite3_int64 frame;
    memset(&header, 0, sizeof header);
    if (!node || !database->has_shm || !is_writer)
        return 0;
    pthread_mutex_lock(&node->mutex);
    if (node->region_count > 0)
        memcpy(&header, node->regions[0], sizeof header);
    pthread_mutex_unlock(&node->mutex);
    if (!header.is_made)
        return 0;
    frame = 24 + (header.page_size == 1 ? 65536 : header.page_size);
    found->offset = header.frames ? 32 + header.frames * frame : 0;
    found->last = header.frames ? found->offset - frame : 0;
    memcpy(found->salt, header.salt, sizeof header.salt);
    return 1;
}

/* Orders the plain reads and writes of the index before it with those after it. */
void shm_barrier(sqlite3_file *base) {
    (void)base;
    __atomic_thread_fence(__ATOMIC_SEQ_CST);
}

int shm_unmap(sqlite3_file *base, int delete_it) {
    File *file = (File *)base;
    Node *node = file->node;
    (void)delete_it;
    if (!node || !file->has_shm || store_is_parents(file))
        return SQLITE_OK;
    pthread_mutex_lock(&node->mutex);
    unlock_slots(node, file, ~0u);
    file->has_shm = 0;
    if (--node->shm_users == 0) {
        for (int i = 0; i < node->region_count; i++)
            free(node->regions[i]);
        free(node->regions);
        node->regions = NULL;
        node->region_count = 0;
    }
    pthread_mutex_unlock(&node->mutex);
    return SQLITE_OK;
}
