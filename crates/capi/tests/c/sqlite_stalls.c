/*
 * A database that takes long to open or close delays no other database of the process. Another
 * process that holds it makes the open wait up to 5 s; here functions in front of the library's own
 * wait until the test lets them go on. A statement that waited for them would wait until the alarm.
 */
#include "check.h"
#include "sqlite/internal.h"
#include "sqlite_check.h"

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
/* What is stopped, and whether a thread has come to it. NULL: nothing. */
static const char *stopped;
static int is_reached;

/* Waits here while `what` is stopped. */
static void pass(const char *what) {
    CHECK(pthread_mutex_lock(&mutex) == 0);
    while (stopped && strcmp(stopped, what) == 0) {
        is_reached = 1;
        pthread_cond_broadcast(&changed);
        pthread_cond_wait(&changed, &mutex);
    }
    CHECK(pthread_mutex_unlock(&mutex) == 0);
}

static void stop(const char *what) {
    CHECK(pthread_mutex_lock(&mutex) == 0);
    stopped = what;
    is_reached = 0;
    CHECK(pthread_mutex_unlock(&mutex) == 0);
}

static void wait_until_reached(void) {
    CHECK(pthread_mutex_lock(&mutex) == 0);
    while (!is_reached)
        pthread_cond_wait(&changed, &mutex);
    CHECK(pthread_mutex_unlock(&mutex) == 0);
}

static void go_on(void) {
    CHECK(pthread_mutex_lock(&mutex) == 0);
    stopped = NULL;
    pthread_cond_broadcast(&changed);
    CHECK(pthread_mutex_unlock(&mutex) == 0);
}

static int ends_in(const char *path, const char *end) {
    size_t length = strlen(path), tail = strlen(end);
    return length >= tail && strcmp(path + length - tail, end) == 0;
}

int fby_open(fby_cache *cache, const char *path, int flags, const fby_open_how *how, size_t how_size,
             fby_file **file) {
    REAL(fby_open);
    if (ends_in(path, "slow.db"))
        pass("open");
    return call(cache, path, flags, how, how_size, file);
}

int fby_volume_open(fby_cache *cache, const char *path, const fby_volume_how *how, size_t how_size,
                    fby_volume **volume) {
    REAL(fby_volume_open);
    if (ends_in(path, "slow.img"))
        pass("volume_open");
    return call(cache, path, how, how_size, volume);
}

int fby_volume_close(fby_volume *volume) {
    REAL(fby_volume_close);
    pass("volume_close");
    return call(volume);
}

int fby_unlink(fby_volume *volume, const char *path) {
    REAL(fby_unlink);
    if (ends_in(path, "slow.db-journal"))
        pass("unlink");
    return call(volume, path);
}

int fby_fsync(fby_file *file) {
    REAL(fby_fsync);
    pass("fsync");
    return call(file);
}

static const char *folder;

static const char *uri_of(const char *name) {
    static _Thread_local char uri[4][600];
    static _Thread_local int next;
    char *at = uri[next++ % 4];
    snprintf(at, sizeof uri[0], "file:%s/%s?vfs=forebay", folder, name);
    return at;
}

static const char *uri_in(const char *image, const char *name) {
    static _Thread_local char uri[4][600];
    static _Thread_local int next;
    char *at = uri[next++ % 4];
    snprintf(at, sizeof uri[0], "file:/%s?vfs=forebay&volume=%s/%s&volume_size=67108864", name, folder,
             image);
    return at;
}

/* A short life of a database: its open, a transaction, its close. */
static void *use(void *uri) {
    sqlite3 *db = opened(uri);
    ran(db, "PRAGMA journal_mode=delete; CREATE TABLE IF NOT EXISTS t(a); INSERT INTO t VALUES(1)");
    closed(db);
    return NULL;
}

/* Uses one database until it stops at `what`; meanwhile others open, commit and close. */
static void others_go_on(const char *what, const char *slow_uri) {
    char uri[600];
    pthread_t thread;
    snprintf(uri, sizeof uri, "%s", slow_uri);
    stop(what);
    CHECK(pthread_create(&thread, NULL, use, uri) == 0);
    wait_until_reached();
    use((void *)(uintptr_t)uri_of("quick.db"));
    if (strcmp(what, "volume_close") != 0 && strcmp(what, "fsync") != 0)
        use((void *)(uintptr_t)uri_in("quick.img", "quick.db"));
    IS(forebay_sqlite_shutdown(), SQLITE_BUSY);
    go_on();
    CHECK(pthread_join(thread, NULL) == 0);
}

/* Two threads open a volume while a third one closes it: one at a time has the image. */
static void openers_of_one_volume_wait_for_its_close(void) {
    static const char *const names[3] = {"slow.db", "b.db", "c.db"};
    char uri[3][600];
    pthread_t thread[3];
    stop("volume_close");
    for (int i = 0; i < 3; i++) {
        snprintf(uri[i], sizeof uri[i], "%s", uri_in("slow.img", names[i]));
        CHECK(pthread_create(&thread[i], NULL, use, uri[i]) == 0);
        if (i == 0)
            wait_until_reached();
    }
    usleep(20000);
    go_on();
    for (int i = 0; i < 3; i++)
        CHECK(pthread_join(thread[i], NULL) == 0);
}

int main(int argc, char **argv) {
    fby_cache *cache;
    CHECK(argc == 2);
    folder = argv[1];
    alarm(100);
    cache = small_cache();
    IS(forebay_sqlite_register(0), SQLITE_OK);
    IS(forebay_sqlite_use_cache(cache), SQLITE_OK);
    others_go_on("open", uri_of("slow.db"));
    others_go_on("volume_open", uri_in("slow.img", "slow.db"));
    others_go_on("unlink", uri_in("slow.img", "slow.db"));
    others_go_on("fsync", uri_in("slow.img", "slow.db"));
    others_go_on("volume_close", uri_in("slow.img", "slow.db"));
    openers_of_one_volume_wait_for_its_close();
    IS(forebay_sqlite_shutdown(), SQLITE_OK);
    IS(fby_cache_close(cache), 0);
    IS(sqlite3_shutdown(), SQLITE_OK);
    return 0;
}
