/*
 * The cache of the process, its volumes and nodes, and how a file of either kind is opened.
 *
 * A name with "//" in it is a file of a volume: the image, then the path. xFullPathname makes such
 * names, and a host's full name has no "//", so journals and super-journals find their volume.
 *
 * Locks: `all.mutex` over the cache, the lists of volumes, nodes and turns, and their counts of
 * users. The mutex of a node is inside it. No thread holds it while it opens or closes a file or a
 * volume: opening waits up to 5 s for another process. A thread that opens or closes takes the turn
 * of the name, and only threads that want the same name wait for that. A thread has one turn at
 * most.
 */
#include "internal.h"
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* Bytes of the cache unless the first name says otherwise. */
#define BUDGET_DEFAULT (64ull << 20)

/* The name of the turn that a resize takes: no full name is equal to it. */
static const char budget_turn[] = "budget";

static struct {
    pthread_mutex_t mutex;
    /* A turn is over. */
    pthread_cond_t changed;
    Turn *turns;
    fby_cache *cache;
    int is_callers;
    int files;
    /* Whether a file of the host was ever closed with dirty data that could not be written. */
    int has_failed_close;
    /* This process, as of the first registration or of the fork(2) that began it. */
    Process process;
    Store *stores;
    Node *nodes;
    /* The nodes that parent processes had at fork(2). Only their names are read. */
    Node *parents;
} all = {PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER, NULL, NULL, 0, 0, 0, {0, 0}, NULL, NULL, NULL};

/*
 * fork(2) calls this in a child, which has one thread then. What the parent made is of no use
 * there, and none of its memory is freed.
 */
static void begin_child(void) {
    pthread_mutex_t fresh = PTHREAD_MUTEX_INITIALIZER;
    pthread_cond_t unchanged = PTHREAD_COND_INITIALIZER;
    const unsigned generation = all.process.generation + 1;
    Node *parents = all.nodes, **end = &parents;
    while (*end)
        end = &(*end)->next;
    *end = all.parents;
    memset(&all, 0, sizeof all);
    all.mutex = fresh;
    all.changed = unchanged;
    all.parents = parents;
    all.process.pid = getpid();
    all.process.generation = generation;
    join_begin_child();
}

static int watch_result;

static void watch_forks_once(void) {
    all.process.pid = getpid();
    watch_result = pthread_atfork(NULL, NULL, begin_child);
}

int store_watch_forks(void) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    return pthread_once(&once, watch_forks_once) != 0 || watch_result != 0 ? SQLITE_NOMEM : SQLITE_OK;
}

/* Needs no lock: only fork(2) changes the generation, while the process has one thread. */
Process store_process(void) {
    Process process = {getpid(), all.process.generation};
    return process;
}

int store_is_this_process(Process process) {
    Process own = store_process();
    return own.pid == process.pid && own.generation == process.generation;
}

static void lock_all(void) {
    pthread_mutex_lock(&all.mutex);
}

static void unlock_all(void) {
    pthread_mutex_unlock(&all.mutex);
}

/* Waits until no thread has a turn of this name. Needs the lock, which it releases meanwhile. */
static void wait_for_turn(const char *name, size_t length) {
    Turn *turn = all.turns;
    while (turn) {
        if (turn->length != length || memcmp(turn->name, name, length) != 0) {
            turn = turn->next;
            continue;
        }
        pthread_cond_wait(&all.changed, &all.mutex);
        turn = all.turns;
    }
}

/* Needs the lock, and that no thread has a turn of this name. */
static void begin_turn(Turn *turn, const char *name, size_t length) {
    turn->name = name;
    turn->length = length;
    turn->next = all.turns;
    all.turns = turn;
}

/* Needs the lock. */
static void finish_turn(const Turn *turn) {
    Turn **at = &all.turns;
    while (*at != turn)
        at = &(*at)->next;
    *at = turn->next;
    pthread_cond_broadcast(&all.changed);
}

fby_cache *turn_take(Turn *turn, const char *name) {
    fby_cache *cache;
    lock_all();
    wait_for_turn(name, strlen(name));
    begin_turn(turn, name, strlen(name));
    cache = all.cache;
    unlock_all();
    return cache;
}

void turn_end(const Turn *turn) {
    lock_all();
    finish_turn(turn);
    unlock_all();
}

/* "64M" in bytes; 0 for what makes no sense. */
static uint64_t bytes_of(const char *text) {
    static const char units[] = "kKmMgG";
    char *end;
    const char *unit;
    unsigned shift = 0;
    errno = 0;
    unsigned long long value = strtoull(text, &end, 10);
    if (errno || end == text || *text == '-')
        return 0;
    if (*end && (unit = strchr(units, *end)) != NULL) {
        shift = 10u * (unsigned)((unit - units) / 2 + 1);
        end++;
    }
    return *end || value > (UINT64_MAX >> shift) ? 0 : (uint64_t)value << shift;
}

/* Never SQLITE_BUSY, by which an opener knows that another process has the file. */
static int has_no_budget(uint64_t bytes) {
    sqlite3_log(SQLITE_CANTOPEN, "forebay: budget of %llu bytes: %s", (unsigned long long)bytes,
                fby_last_error());
    return SQLITE_CANTOPEN;
}

static int make_cache(uint64_t bytes) {
    fby_cache_config config;
    memset(&config, 0, sizeof config);
    config.budget = bytes ? bytes : BUDGET_DEFAULT;
    if (fby_cache_create(&config, sizeof config, &all.cache) < 0)
        return has_no_budget(config.budget);
    return SQLITE_OK;
}

static int resize_cache(fby_cache *cache, uint64_t bytes) {
    fby_stats now;
    int64_t got = fby_cache_stats(cache, &now, sizeof now);
    if (got >= 0 && now.budget_bytes != bytes)
        got = fby_cache_resize(cache, bytes);
    return got < 0 ? has_no_budget(bytes) : SQLITE_OK;
}

int store_enter(const char *budget) {
    uint64_t bytes = budget ? bytes_of(budget) : 0;
    int result = SQLITE_OK, is_ours;
    fby_cache *cache;
    Turn turn;
    if (budget && !bytes) {
        sqlite3_log(SQLITE_CANTOPEN, "forebay: budget=%s makes no sense", budget);
        return SQLITE_CANTOPEN;
    }
    lock_all();
    if (!all.cache)
        result = make_cache(bytes);
    is_ours = !all.is_callers;
    unlock_all();
    if (result == SQLITE_OK && bytes && is_ours) {
        cache = turn_take(&turn, budget_turn);
        if (cache)
            result = resize_cache(cache, bytes);
        turn_end(&turn);
    }
    return result;
}

int forebay_sqlite_use_cache(fby_cache *cache) {
    int result = cache ? store_watch_forks() : SQLITE_MISUSE;
    if (result != SQLITE_OK)
        return result;
    result = SQLITE_BUSY;
    lock_all();
    if (!all.cache) {
        all.cache = cache;
        all.is_callers = 1;
        result = SQLITE_OK;
    }
    unlock_all();
    return result;
}

fby_cache *forebay_sqlite_cache(void) {
    fby_cache *cache;
    lock_all();
    cache = all.cache;
    unlock_all();
    return cache;
}

int forebay_sqlite_shutdown(void) {
    int result = SQLITE_OK;
    lock_all();
    if (all.files || all.stores || all.turns) {
        result = SQLITE_BUSY;
    } else if (all.cache) {
        int closed = all.is_callers ? 0 : fby_cache_close(all.cache);
        if (closed < 0)
            result = failed(NULL, closed, closed == -EBUSY ? SQLITE_BUSY : SQLITE_IOERR_CLOSE, "cache");
        if (closed != -EBUSY)
            all.cache = NULL;
        all.is_callers = 0;
    }
    unlock_all();
    return result;
}

const char *inner_of(const char *name) {
    const char *found = strstr(name, "//");
    return found ? found + 1 : NULL;
}

int store_is_in_volume(const char *name) {
    return inner_of(name) != NULL;
}

/* The open volume of an image. Needs the lock. */
static Store *store_of(const char *image, size_t length) {
    Store *store = all.stores;
    while (store && (strncmp(store->image, image, length) != 0 || store->image[length]))
        store = store->next;
    return store;
}

static int open_store(fby_cache *cache, const char *image, size_t length, int is_buffered, Store **opened) {
    fby_volume_how how;
    Store *store = calloc(1, sizeof *store + length + 1);
    int result;
    if (!store)
        return -ENOMEM;
    store->image = memcpy(store + 1, image, length);
    store->users = 1;
    memset(&how, 0, sizeof how);
    how.direct_io = is_buffered ? FBY_DIRECT_IO_OFF : FBY_DIRECT_IO_AUTO;
    result = fby_volume_open(cache, store->image, &how, sizeof how, &store->volume);
    if (result == -EACCES || result == -EPERM || result == -EROFS) {
        /* An image that may not be written is opened for reading. */
        how.flags = FBY_VOLUME_READ_ONLY;
        result = fby_volume_open(cache, store->image, &how, sizeof how, &store->volume);
    }
    if (result < 0)
        free(store);
    else
        *opened = store;
    return result < 0 ? result : 0;
}

int store_hold(const char *name, Hold how, Store **held) {
    size_t length = (size_t)(inner_of(name) - 1 - name);
    fby_cache *cache;
    Store *store;
    Turn turn;
    int result;
    lock_all();
    wait_for_turn(name, length);
    *held = store = store_of(name, length);
    if (store)
        store->users++;
    else if (how != HOLD_OPEN)
        begin_turn(&turn, name, length);
    cache = all.cache;
    unlock_all();
    if (store || how == HOLD_OPEN)
        return store ? 0 : -EXDEV;
    result = open_store(cache, name, length, how == HOLD_OR_OPEN_BUFFERED, &store);
    lock_all();
    if (result == 0) {
        store->next = all.stores;
        *held = all.stores = store;
    }
    finish_turn(&turn);
    unlock_all();
    return result;
}

int store_end(Store *store) {
    Store **at = &all.stores;
    Turn turn;
    int result;
    lock_all();
    if (--store->users > 0) {
        unlock_all();
        return 0;
    }
    while (*at != store)
        at = &(*at)->next;
    *at = store->next;
    /* No thread has the turn of this image: opening its files takes none while it is open. */
    begin_turn(&turn, store->image, strlen(store->image));
    unlock_all();
    result = fby_volume_close(store->volume);
    turn_end(&turn);
    free(store);
    return result;
}

int store_make_volume(const char *name, sqlite3_int64 bytes) {
    fby_volume_config config;
    struct stat found;
    char *image = strdup(name);
    int result = 0;
    if (!image)
        return SQLITE_NOMEM;
    image[inner_of(name) - 1 - name] = 0;
    memset(&config, 0, sizeof config);
    config.size = (uint64_t)bytes;
    if (stat(image, &found) != 0 && errno == ENOENT)
        result = fby_volume_create(image, &config, sizeof config);
    free(image);
    return result < 0 && result != -EEXIST ? failed(NULL, result, SQLITE_CANTOPEN, name) : SQLITE_OK;
}

/* Device and inode of an open file, by its handle: its name may be that of another file by now. */
static int identity(const File *file, uint64_t *dev, uint64_t *ino) {
    fby_attr attr;
    int64_t got = fby_statx(file->file, &attr, sizeof attr);
    *dev = *ino = 0;
    if (got < 0)
        return (int)got;
    if (got < (int64_t)sizeof attr)
        return -ENOSYS; /* A library that is older than its header. */
    *dev = attr.dev;
    *ino = attr.ino;
    return 0;
}

/* Needs the lock. */
static int hold_node(File *file, uint64_t dev, uint64_t ino) {
    Node *node;
    for (node = all.nodes; node; node = node->next)
        if (node->store == file->store && node->dev == dev && node->ino == ino)
            break;
    if (!node) {
        size_t space = strlen(file->name) + 1;
        node = calloc(1, sizeof *node + space);
        if (!node)
            return -ENOMEM;
        node->name = memcpy(node + 1, file->name, space);
        pthread_mutex_init(&node->mutex, NULL);
        node->store = file->store;
        node->dev = dev;
        node->ino = ino;
        node->next = all.nodes;
        /*
         * Another thread may fork(2) at any moment, and the child walks its copy of the list: so
         * the node is complete before it is in the list.
         */
        __atomic_store_n(&all.nodes, node, __ATOMIC_RELEASE);
    }
    node->users++;
    file->node = node;
    return 0;
}

static void end_node(Node *node) {
    Node **at = &all.nodes;
    if (--node->users > 0)
        return;
    while (*at != node)
        at = &(*at)->next;
    *at = node->next;
    /* The node leaves the list before it is freed, also in the copy that a child has. */
    __atomic_thread_fence(__ATOMIC_RELEASE);
    pthread_mutex_destroy(&node->mutex);
    free(node);
}

/* The node, in a list, of the database of a rollback journal; NULL for another name. */
static Node *database_in(Node *node, const char *journal) {
    static const char suffix[] = "-journal";
    size_t length = strlen(journal);
    if (length < sizeof suffix || strcmp(journal + length - (sizeof suffix - 1), suffix) != 0)
        return NULL;
    length -= sizeof suffix - 1;
    while (node && (strncmp(node->name, journal, length) != 0 || node->name[length]))
        node = node->next;
    return node;
}

/* Needs the lock. */
static Node *database_of(const char *journal) {
    return database_in(all.nodes, journal);
}

int store_is_journal_of_parent(const char *journal) {
    int is_parents;
    lock_all();
    is_parents = !database_of(journal) && database_in(all.parents, journal);
    unlock_all();
    return is_parents;
}

int store_is_journal_durable(const char *journal) {
    Node *node;
    int is_durable;
    lock_all();
    node = database_of(journal);
    is_durable = node && node->is_journal_durable;
    unlock_all();
    return is_durable;
}

void store_note_journal(const char *journal, int is_durable) {
    Node *node;
    lock_all();
    node = database_of(journal);
    if (node)
        node->is_journal_durable = is_durable;
    unlock_all();
}

static int open_by_name(File *file, fby_cache *cache, int flags) {
    fby_open_how how;
    memset(&how, 0, sizeof how);
    how.mode = file->mode;
    if (file->store)
        return fby_open_in(file->store->volume, inner_of(file->name), flags, &how, sizeof how, &file->file);
    return fby_open(cache, file->name, flags, &how, sizeof how, &file->file);
}

/* Opens the file for reading if it may not be written. */
static int open_as_allowed(File *file, fby_cache *cache) {
    int result = open_by_name(file, cache, file->how);
    int refused = result == -EACCES || result == -EPERM || result == -EROFS;
    if (refused && (file->how & O_ACCMODE) == O_RDWR) {
        int how = (file->how & ~(O_ACCMODE | O_CREAT | O_EXCL)) | O_RDONLY;
        int again = open_by_name(file, cache, how);
        if (again < 0 && again != -EBUSY)
            return result;
        /* Even if it is busy now, so that the opener learns that it may not write. */
        file->how = how;
        result = again;
    }
    return result;
}

static int store_is_waiting(const File *file) {
    return file->is_waiting && store_is_this_process(file->process);
}

void store_wait(File *file) {
    lock_all();
    file->is_waiting = 1;
    file->process = all.process;
    all.files++;
    unlock_all();
}

void store_end_wait(const File *file) {
    lock_all();
    if (store_is_waiting(file))
        all.files--;
    unlock_all();
}

/* The caller has the turn of the name of a host file, or holds the volume. */
static int open_held(File *file, fby_cache *cache) {
    uint64_t dev, ino;
    int result = open_as_allowed(file, cache);
    if (result < 0)
        return result;
    result = identity(file, &dev, &ino);
    if (result == 0) {
        lock_all();
        result = hold_node(file, dev, ino);
        if (result == 0 && !store_is_waiting(file))
            all.files++;
        file->is_waiting = file->is_waiting && result != 0;
        file->process = all.process;
        unlock_all();
    }
    if (result < 0) {
        fby_close(file->file);
        file->file = NULL;
    }
    return result;
}

static int open_on_host(File *file) {
    Turn turn;
    fby_cache *cache = turn_take(&turn, file->name);
    int result = open_held(file, cache);
    turn_end(&turn);
    return result;
}

static int open_in_volume(File *file) {
    int is_direct = sqlite3_uri_boolean(file->name, "direct_io", 1);
    Hold how = !file->is_database ? HOLD_OPEN : is_direct ? HOLD_OR_OPEN : HOLD_OR_OPEN_BUFFERED;
    int result = store_hold(file->name, how, &file->store);
    if (result < 0)
        return result;
    result = open_held(file, NULL);
    if (result < 0) {
        store_end(file->store);
        file->store = NULL;
    }
    return result;
}

int store_open(File *file) {
    int result = inner_of(file->name) ? open_in_volume(file) : open_on_host(file);
    return result < 0 ? failed(file, result, SQLITE_CANTOPEN, file->name) : SQLITE_OK;
}

int store_is_parents(const File *file) {
    return file->file && !store_is_this_process(file->process);
}

int store_close(File *file) {
    int closed = fby_close(file->file), ended = 0;
    file->file = NULL;
    lock_all();
    end_node(file->node);
    if (!file->store && closed < 0)
        all.has_failed_close = 1;
    all.files--;
    unlock_all();
    file->node = NULL;
    if (file->store)
        ended = store_end(file->store);
    file->store = NULL;
    if (closed < 0 || ended < 0)
        return failed(file, closed < 0 ? closed : ended, SQLITE_IOERR_CLOSE, file->name);
    return SQLITE_OK;
}

int store_has_failed_close(void) {
    int has_failed;
    lock_all();
    has_failed = all.has_failed_close;
    unlock_all();
    return has_failed;
}
