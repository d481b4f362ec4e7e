/* fork(2): a child is refused the parent's handles, and may make a cache of its own. */
#include "check.h"
#include <pthread.h>
#include <signal.h>
#include <sys/wait.h>

static int child(void (*body)(void *), void *with) {
    int status;
    pid_t pid = fork();
    CHECK(pid >= 0);
    if (pid == 0) {
        alarm(600);
        body(with);
        _exit(0);
    }
    CHECK(waitpid(pid, &status, 0) == pid);
    return status;
}

struct handles {
    fby_cache *cache;
    fby_volume *volume;
    fby_file *file, *inside;
    fby_dir *dir;
    fby_pinned *pinned;
    const char *folder;
};

static void all_are_refused(void *with) {
    struct handles *of = with;
    fby_file *file;
    const struct iovec *extents;
    fby_pinned *other;
    fby_dirent entry;
    fby_stats stats;
    char byte = 1;
    FAILS(read_at(of->file, &byte, 1, 0, 0), ESHUTDOWN, "a parent process made an open file");
    FAILS(read_at(of->inside, &byte, 1, 0, 0), ESHUTDOWN, "parent");
    FAILS(write_at(of->file, &byte, 1, 0, 0), ESHUTDOWN, "parent");
    FAILS(fby_append(of->inside, &byte, 1, 0), ESHUTDOWN, "parent");
    FAILS(fby_fsync(of->file), ESHUTDOWN, "parent");
    FAILS(fby_lseek(of->file, 0, SEEK_END), ESHUTDOWN, "parent");
    FAILS(fby_cache_stats(of->cache, &stats, sizeof stats), ESHUTDOWN, "parent");
    FAILS(fby_cache_resize(of->cache, BUDGET), ESHUTDOWN, "parent");
    FAILS(fby_open(of->cache, "f", O_RDONLY, NULL, 0, &file), ESHUTDOWN, "parent");
    FAILS(fby_volume_sync(of->volume), ESHUTDOWN, "parent");
    FAILS(fby_mkdir(of->volume, "/x", 0755), ESHUTDOWN, "parent");
    FAILS(fby_readdir(of->dir, &entry, sizeof entry), ESHUTDOWN, "parent");
    FAILS(fby_closedir(of->dir), ESHUTDOWN, "parent");
    FAILS(fby_pin(of->file, 0, 1, 0, &other), ESHUTDOWN, "parent");
    CHECK(other == NULL);
    FAILS(fby_pinned_extents(of->pinned, &extents), ESHUTDOWN, "a parent process made a pin");
    FAILS(fby_pinned_is_copy(of->pinned), ESHUTDOWN, "parent");
    FAILS(fby_unpin(of->pinned), ESHUTDOWN, "parent");
    FAILS(fby_close(of->file), ESHUTDOWN, "parent");
    FAILS(fby_close(of->inside), ESHUTDOWN, "parent");
    FAILS(fby_volume_close(of->volume), ESHUTDOWN, "parent");
    FAILS(fby_cache_close(of->cache), ESHUTDOWN, "parent");
}

static void own_cache(void *with) {
    struct handles *of = with;
    fby_cache *cache = small_cache();
    fby_file *file;
    struct handles mine = *of;
    char back[5] = {0};
    IS(fby_open(cache, in_folder(of->folder, "child"), O_RDWR | O_CREAT, NULL, 0, &file), 0);
    IS(write_at(file, "child", 5, 0, 0), 5);
    IS(fby_fsync(file), 0);
    IS(read_at(file, back, 5, 0, 0), 5);
    CHECK(memcmp(back, "child", 5) == 0);
    /* Having a cache of its own makes the parent's handles no better. */
    all_are_refused(of);
    /* The parent holds the lock of its file. */
    FAILS(fby_open(cache, in_folder(of->folder, "f"), O_RDWR, NULL, 0, &mine.file), EBUSY, "/f");
    /* A child of the child. */
    mine.cache = cache;
    mine.file = file;
    IS(fby_pin(file, 0, 5, 0, &mine.pinned), 5);
    IS(child(all_are_refused, &mine), 0);
    IS(fby_unpin(mine.pinned), 0);
    IS(fby_close(file), 0);
    IS(fby_cache_close(cache), 0);
}

/* A child that lives on has copies of the parent's descriptors, and no lock by them. */
static void living_child_keeps_no_lock(fby_cache *cache, const char *folder) {
    fby_file *file;
    fby_volume *volume;
    int ends[2], status;
    char byte = 1;
    pid_t pid;
    IS(fby_open(cache, in_folder(folder, "g"), O_RDWR | O_CREAT, NULL, 0, &file), 0);
    IS(write_at(file, &byte, 1, 0, 0), 1);
    IS(fby_volume_open(cache, in_folder(folder, "v"), NULL, 0, &volume), 0);
    CHECK(pipe(ends) == 0);
    pid = fork();
    CHECK(pid >= 0);
    if (pid == 0) {
        alarm(600);
        close(ends[1]);
        _exit(read(ends[0], &byte, 1) == 0 ? 0 : 1);
    }
    for (int round = 0; round < 2; round++) {
        IS(fby_close(file), 0);
        IS(fby_volume_close(volume), 0);
        IS(fby_open(cache, in_folder(folder, "g"), O_RDWR, NULL, 0, &file), 0);
        IS(fby_volume_open(cache, in_folder(folder, "v"), NULL, 0, &volume), 0);
    }
    IS(fby_close(file), 0);
    IS(fby_volume_close(volume), 0);
    CHECK(close(ends[1]) == 0 && close(ends[0]) == 0);
    CHECK(waitpid(pid, &status, 0) == pid);
    IS(status, 0);
}

static volatile sig_atomic_t handled_by_other;
static pthread_t main_thread;

static void on_signal(int signal) {
    (void)signal;
    if (!pthread_equal(pthread_self(), main_thread))
        handled_by_other = 1;
}

/* Every thread but this one blocks the signals that can be blocked. */
static void library_threads_block_signals(void) {
    char line[256], command[64];
    int threads = 0;
    FILE *list;
    snprintf(command, sizeof command, "cat /proc/%d/task/*/status", (int)getpid());
    list = popen(command, "r");
    CHECK(list != NULL);
    while (fgets(line, sizeof line, list) != NULL) {
        static int ours;
        if (strncmp(line, "Name:", 5) == 0)
            ours = strstr(line, "forebay-") != NULL;
        if (ours && strncmp(line, "SigBlk:", 7) == 0) {
            unsigned long long mask = strtoull(line + 7, NULL, 16);
            CHECK(mask >> (SIGTERM - 1) & 1 && mask >> (SIGALRM - 1) & 1 && mask >> (SIGUSR1 - 1) & 1);
            threads++;
        }
    }
    pclose(list);
    CHECK(threads > 0);
}

int main(int argc, char **argv) {
    struct handles of;
    const struct iovec *extents;
    struct sigaction action;
    fby_volume_config config = {0};
    char byte = 5;
    memset(&action, 0, sizeof action);
    of.folder = argv[1];
    CHECK(argc == 2);
    main_thread = pthread_self();
    action.sa_handler = on_signal;
    CHECK(sigaction(SIGUSR1, &action, NULL) == 0);
    config.size = 32u << 20;
    of.cache = small_cache();
    IS(fby_open(of.cache, in_folder(of.folder, "f"), O_RDWR | O_CREAT, NULL, 0, &of.file), 0);
    IS(write_at(of.file, &byte, 1, 0, 0), 1);
    IS(fby_volume_create(in_folder(of.folder, "v"), &config, sizeof config), 0);
    IS(fby_volume_open(of.cache, in_folder(of.folder, "v"), NULL, 0, &of.volume), 0);
    IS(fby_open_in(of.volume, "/f", O_RDWR | O_CREAT, NULL, 0, &of.inside), 0);
    IS(fby_opendir(of.volume, "/", &of.dir), 0);
    IS(fby_fsync(of.file), 0);
    IS(fby_pin(of.file, 0, 1, 0, &of.pinned), 1);

    IS(child(all_are_refused, &of), 0);
    IS(child(own_cache, &of), 0);
    IS(child(own_cache, &of), 0);

    /* The parent goes on. */
    library_threads_block_signals();
    for (int i = 0; i < 100; i++)
        CHECK(kill(getpid(), SIGUSR1) == 0);
    CHECK(!handled_by_other);
    IS(read_at(of.file, &byte, 1, 0, 0), 1);
    IS(byte, 5);
    IS(fby_pinned_extents(of.pinned, &extents), 1);
    IS(*(const char *)extents->iov_base, 5);
    IS(fby_unpin(of.pinned), 0);
    IS(fby_closedir(of.dir), 0);
    IS(fby_close(of.inside), 0);
    IS(fby_close(of.file), 0);
    IS(fby_volume_close(of.volume), 0);
    living_child_keeps_no_lock(of.cache, of.folder);
    IS(fby_cache_close(of.cache), 0);
    return 0;
}
