/*
 * Forebay: a page cache that its owner sizes and steers, over host files and volumes of its own.
 *
 * Results are 0 or more, or -errno; fby_last_error() says more. A handle that is NULL or of another
 * kind is -EBADF; a handle that is closed must not be used again, as memory after free(3). Any
 * number of threads may use a handle at once, but for fby_dir; closing it is one thread's, when no
 * other uses it. In a child of fork(2) the handles of the parent are -ESHUTDOWN; a child may make a
 * cache of its own, see Fork in forebay(3). Structs are passed with their size, as sizeof says; set
 * fields that you do not know to zero with memset(3) or `= {0}`. Calls may block, are no
 * cancellation points, and must not be made in a signal handler. -ENOTRECOVERABLE is a fault in the
 * library.
 *
 * See forebay(3).
 */

#ifndef FOREBAY_H
#define FOREBAY_H

#include <stddef.h>
#include <stdint.h>
#include <sys/uio.h>

/**
 * Version of the interface that a program was compiled with: the number of the soname in the
 * upper 16 bits, and a number that grows with each addition in the lower 16.
 */
#define FBY_ABI_VERSION 3

/**
 * io_uring where the system allows it, else threads.
 */
#define FBY_AIO_AUTO 0

/**
 * io_uring, or -EOPNOTSUPP and the like.
 */
#define FBY_AIO_URING 1

/**
 * A pool of threads.
 */
#define FBY_AIO_THREADS 2

/**
 * Takes all memory of the budget at once, not as it is used.
 */
#define FBY_CACHE_PREFAULT 1

/**
 * A hint that the caller polls for completion.
 */
#define FBY_RWF_HIPRI 1

/**
 * A write returns when its data, and the metadata to find it, are durable.
 */
#define FBY_RWF_DSYNC 2

/**
 * A write returns when its data and all metadata are durable.
 */
#define FBY_RWF_SYNC 4

/**
 * -EAGAIN rather than waiting.
 */
#define FBY_RWF_NOWAIT 8

/**
 * A write goes to the end of the file, whatever its offset.
 */
#define FBY_RWF_APPEND 16

/**
 * Uncached: cached blocks are served and stay, the others leave nothing behind.
 */
#define FBY_RWF_DONTCACHE 128

/**
 * Past the cache, and coherent with it. Offset, length and memory have to be aligned.
 */
#define FBY_RWF_DIRECT 65536

/**
 * A cached write whose write-out starts now.
 */
#define FBY_RWF_START_WRITEBACK 131072

/**
 * With FBY_RWF_DIRECT: a request that is not aligned is an uncached one.
 */
#define FBY_RWF_FALLBACK 262144

/**
 * fby_pin: -ENOBUFS where the bytes would be a copy.
 */
#define FBY_PIN_NO_COPY 524288

/**
 * A volume is made even where there is something already, which is lost.
 */
#define FBY_VOLUME_FORCE 1

/**
 * Blocks of files have no checksums.
 */
#define FBY_VOLUME_NO_CHECKSUMS 2

/**
 * Nothing is written to the image.
 */
#define FBY_VOLUME_READ_ONLY 1

/**
 * Reading leaves access times as they are.
 */
#define FBY_VOLUME_NOATIME 2

/**
 * The device is told of space that is not used any more.
 */
#define FBY_VOLUME_DISCARD 4

/**
 * Direct I/O below the cache wherever the image is eligible.
 */
#define FBY_DIRECT_IO_AUTO 0

/**
 * Direct I/O below the cache, or an error that says why not.
 */
#define FBY_DIRECT_IO_ON 1

/**
 * No direct I/O below the cache.
 */
#define FBY_DIRECT_IO_OFF 2

/**
 * A cache: one budget for all memory that grows with data or load. Any number of threads may use
 * it at once.
 */
typedef struct fby_cache fby_cache;

/**
 * A listing of a directory. One thread may use it at a time.
 */
typedef struct fby_dir fby_dir;

/**
 * An open file. It has no position. Any number of threads may use it at once.
 */
typedef struct fby_file fby_file;

/**
 * Bytes of a file that are pinned. Any number of threads may read them at once.
 */
typedef struct fby_pinned fby_pinned;

/**
 * An open volume. Any number of threads may use it at once.
 */
typedef struct fby_volume fby_volume;

/**
 * How a cache is made. A field that is 0 has its default.
 */
typedef struct {
  /**
   * Bytes for everything that grows with data or load. Default: the smaller of a quarter of
   * memory and half of the limit of the memory cgroup, but at least 16 MiB. At least 1 MiB;
   * blocks of files get what bookkeeping and requests in flight leave, about 9/10.
   */
  uint64_t budget;
  /**
   * Largest budget that fby_cache_resize can give it. Default: all of memory.
   */
  uint64_t budget_max;
  /**
   * Writers wait above this many dirty bytes. Default: a fifth of the cache.
   */
  uint64_t dirty_bytes;
  /**
   * Write-back starts above this many dirty bytes. Default: a tenth of the cache.
   */
  uint64_t dirty_background_bytes;
  /**
   * Dirty data older than this is written back, 1/100 s. Default: 500.
   */
  uint32_t dirty_expire_centisecs;
  /**
   * Bytes of a folio, a power of two from 4096 to 2097152. Default: 65536.
   */
  uint32_t folio_size;
  /**
   * Most bytes that a sequential reader is read ahead. Default: 2 MiB. `fby_cache_tune` turns
   * read-ahead off: "readahead_max" to "0".
   */
  uint32_t readahead_max;
  /**
   * Window of uncached writes to a file, bytes: write-back starts when a quarter of it is dirty.
   */
  uint32_t uncached_window_bytes;
  /**
   * FBY_AIO_AUTO, FBY_AIO_URING or FBY_AIO_THREADS.
   */
  uint32_t aio;
  /**
   * FBY_CACHE_PREFAULT.
   */
  uint32_t flags;
} fby_cache_config;

/**
 * Counters since the cache was made, and gauges of now.
 */
typedef struct {
  /**
   * The budget, bytes.
   */
  uint64_t budget_bytes;
  /**
   * Bytes of frames for cached blocks.
   */
  uint64_t arena_bytes;
  /**
   * Frames of 4096 bytes.
   */
  uint64_t frames_total;
  /**
   * Those of them that hold nothing.
   */
  uint64_t frames_free;
  /**
   * Blocks found in the cache.
   */
  uint64_t hits;
  /**
   * Blocks that reads did not find.
   */
  uint64_t misses;
  /**
   * Bytes that readers waited for the device for.
   */
  uint64_t miss_bytes;
  /**
   * Blocks evicted by reclaim.
   */
  uint64_t evicted_blocks;
  /**
   * Bytes read ahead.
   */
  uint64_t readahead_bytes;
  /**
   * Bytes that uncached reads took from the device.
   */
  uint64_t uncached_read_bytes;
  /**
   * Bytes of uncached writes.
   */
  uint64_t uncached_write_bytes;
  /**
   * Bytes of direct reads.
   */
  uint64_t direct_read_bytes;
  /**
   * Bytes of direct writes.
   */
  uint64_t direct_write_bytes;
  /**
   * Bytes that writers made dirty.
   */
  uint64_t dirtied_bytes;
  /**
   * Bytes written back.
   */
  uint64_t written_bytes;
  /**
   * Bytes dirty now.
   */
  uint64_t dirty_bytes;
  /**
   * Bytes in write-back now.
   */
  uint64_t writeback_bytes;
  /**
   * Bytes whose write-back failed; they are kept and tried again.
   */
  uint64_t failed_bytes;
  /**
   * Errors of devices.
   */
  uint64_t io_errors;
  /**
   * Flushes sent to devices.
   */
  uint64_t flushes;
} fby_stats;

/**
 * How a file is opened. A field that is 0 has its default. In a volume only `mode` and `rwf` may
 * be other than 0.
 */
typedef struct {
  /**
   * Permission bits of a new file. Default: 0666 less the umask on the host, 0644 in a volume.
   */
  uint32_t mode;
  /**
   * FBY_RWF_ flags of each request on the file.
   */
  uint32_t rwf;
  /**
   * Host files: where in the file the part that is shown begins, bytes.
   */
  uint64_t offset;
  /**
   * Host files: the longest size to show, bytes. A file with a limit does not grow.
   */
  uint64_t size_limit;
  /**
   * Host files: size of a file that is made, or empty, bytes.
   */
  uint64_t create_size;
  /**
   * Host files: unit of state in the cache, a power of two from 512 to 4096.
   */
  uint32_t block_size;
  /**
   * Host files: FBY_DIRECT_IO_AUTO, FBY_DIRECT_IO_ON or FBY_DIRECT_IO_OFF, below the cache.
   */
  uint32_t direct_io;
} fby_open_how;

/**
 * What of a range is in the cache, in blocks.
 */
typedef struct {
  /**
   * Bytes of a block.
   */
  uint64_t block_size;
  /**
   * Blocks of the range, as far as the file goes.
   */
  uint64_t total_blocks;
  /**
   * Blocks in the cache.
   */
  uint64_t resident_blocks;
  /**
   * Blocks newer than the device has them.
   */
  uint64_t dirty_blocks;
  /**
   * Blocks used since reclaim last passed them.
   */
  uint64_t referenced_blocks;
} fby_residency_info;

/**
 * Times of an inode.
 */
typedef struct {
  /**
   * Seconds since the beginning of 1970; may be negative.
   */
  int64_t sec;
  /**
   * Nanoseconds after that.
   */
  uint32_t nsec;
  /**
   * 0.
   */
  uint32_t reserved;
} fby_time;

/**
 * Attributes of a file.
 */
typedef struct {
  /**
   * What of the following is known, in the bits of statx(2): STATX_SIZE, ... Of a host file only
   * size and inode are: its other attributes are the host's, see stat(2).
   */
  uint32_t mask;
  /**
   * Kind and permissions, as in stat(2).
   */
  uint32_t mode;
  /**
   * Number of the inode; 0 for a block device of the host.
   */
  uint64_t ino;
  /**
   * Bytes.
   */
  uint64_t size;
  /**
   * Bytes of storage that it takes, approximately.
   */
  uint64_t allocated_bytes;
  /**
   * Unit of state in the cache, bytes. Always known.
   */
  uint32_t block_size;
  /**
   * Names that it has.
   */
  uint32_t nlink;
  /**
   * Owner.
   */
  uint32_t uid;
  /**
   * Group.
   */
  uint32_t gid;
  /**
   * Last read.
   */
  fby_time atime;
  /**
   * Last change of the content.
   */
  fby_time mtime;
  /**
   * Last change of anything but `atime`.
   */
  fby_time ctime;
  /**
   * When it was made.
   */
  fby_time btime;
  /**
   * Host files: number of the device that has the file, as in stat(2), or of the block device
   * that was opened. 0 in a volume.
   */
  uint64_t dev;
} fby_attr;

/**
 * An entry of a directory.
 */
typedef struct {
  /**
   * Number of its inode.
   */
  uint64_t ino;
  /**
   * What it is: DT_REG, DT_DIR, ... as in readdir(3).
   */
  uint32_t kind;
  /**
   * Bytes of its name.
   */
  uint32_t name_length;
  /**
   * The name, which ends in a zero.
   */
  char name[256];
} fby_dirent;

/**
 * How a volume is made. A field that is 0 has its default.
 */
typedef struct {
  /**
   * Bytes of the image. Default: what the file or the block device has.
   */
  uint64_t size;
  /**
   * Bytes of a block, a power of two from 512 to 4096. Default: 4096.
   */
  uint32_t block_size;
  /**
   * Bytes of a segment, a power of two from 65536 to 1073741824. Default: chosen by size.
   */
  uint32_t segment_size;
  /**
   * FBY_VOLUME_FORCE, FBY_VOLUME_NO_CHECKSUMS.
   */
  uint32_t flags;
  /**
   * 0.
   */
  uint32_t reserved;
} fby_volume_config;

/**
 * How a volume is opened. A field that is 0 has its default.
 */
typedef struct {
  /**
   * FBY_VOLUME_READ_ONLY, FBY_VOLUME_NOATIME, FBY_VOLUME_DISCARD.
   */
  uint32_t flags;
  /**
   * FBY_DIRECT_IO_AUTO, FBY_DIRECT_IO_ON or FBY_DIRECT_IO_OFF.
   */
  uint32_t direct_io;
} fby_volume_how;

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

/**
 * The version of the interface that the library has, as `FBY_ABI_VERSION` counts. A program may
 * use what its header declares if this is not lower than its own `FBY_ABI_VERSION`.
 */
uint32_t fby_abi_version(void);

/**
 * Text for people about the calling thread's last call that failed: function, operation, path,
 * range and cause. Never NULL; empty if no call has failed. It stays as it is until another call
 * of this thread fails, or the thread ends.
 */
const char *fby_last_error(void);

/**
 * Makes a cache. `config` NULL and `config_size` 0: all defaults. Errors: -EINVAL for numbers out
 * of range, -ENOMEM, -E2BIG for fields that this version does not know.
 *
 * # Safety
 * `config` has `config_size` bytes, `cache` is a place for a pointer.
 */
int fby_cache_create(const fby_cache_config *config, size_t config_size, fby_cache **cache);

/**
 * Makes the budget `bytes`, up or down, while files are in use. Returns when memory that is not
 * covered any more has gone back to the system. Pins hold at most an eighth of the new size, too:
 * -EBUSY with their number, and the budget stays as it is, if a second passes in which only pins
 * stand in the way. -EBUSY after ten seconds for what else cannot be evicted. -EINVAL for a size
 * that a running cache cannot be given.
 *
 * # Safety
 * `cache` is an open cache.
 */
int fby_cache_resize(fby_cache *cache, uint64_t bytes);

/**
 * Sets an option of a running cache, by the names and values of `forebay tune` ("dirty_bytes" to
 * "64M"): cache_size, dirty_bytes, dirty_background_bytes, dirty_expire_centisecs, readahead_max
 * (0: none), uncached_window, dirty_tracking, stable, stable_pages, uncached_strategy, and while
 * a volume is open serialized_dio_pages. -EINVAL for an unknown name, or a value that makes no
 * sense.
 *
 * # Safety
 * `cache` is an open cache, `name` and `value` are strings.
 */
int fby_cache_tune(fby_cache *cache, const char *name, const char *value);

/**
 * Counters and gauges. Fills the smaller of `stats_size` and the size that the library knows, and
 * returns the latter.
 *
 * # Safety
 * `cache` is an open cache, `stats` has `stats_size` bytes.
 */
int64_t fby_cache_stats(fby_cache *cache, fby_stats *stats, size_t stats_size);

/**
 * Closes a cache. Its memory goes back to the system when the last thread of the library leaves
 * it, which may be a moment later. -EBUSY while files, directories, volumes or pins of it are
 * open; the cache stays open then. Another error: data of closed files could not be written back
 * and is lost; the handle is closed.
 *
 * # Safety
 * `cache` is an open cache that no other thread uses.
 */
int fby_cache_close(fby_cache *cache);

/**
 * Opens a file or block device of the host on a cache. `flags` are those of open(2): O_RDONLY,
 * O_WRONLY, O_RDWR, O_CREAT, O_EXCL, O_TRUNC, O_APPEND, O_DIRECT, O_DSYNC, O_SYNC, O_NOFOLLOW,
 * O_CLOEXEC (which is always so). O_WRONLY needs the right to read the file, too: one that may
 * only be written is -EACCES. O_CREAT and O_TRUNC need writing: with O_RDONLY they are -EINVAL.
 * -EBUSY if another process or cache has it open: it is locked until it is closed.
 *
 * # Safety
 * `cache` is an open cache, `path` a string, `how` has `how_size` bytes, `file` is a place for a
 * pointer.
 */
int fby_open(fby_cache *cache,
             const char *path,
             int flags,
             const fby_open_how *how,
             size_t how_size,
             fby_file **file);

/**
 * Opens a file of a volume, with the flags of fby_open. A directory opens with O_RDONLY, to sync
 * it.
 *
 * # Safety
 * `volume` is an open volume, `path` a string, `how` has `how_size` bytes, `file` is a place for a
 * pointer.
 */
int fby_open_in(fby_volume *volume,
                const char *path,
                int flags,
                const fby_open_how *how,
                size_t how_size,
                fby_file **file);

/**
 * Closes a file. What was written is durable then, or the result is an error: an error of
 * write-back that no sync of this handle has reported, or one of now. The handle is closed either
 * way, except in a child process (-ESHUTDOWN) and for what is no open file (-EBADF).
 *
 * # Safety
 * `file` is an open file that no other thread uses.
 */
int fby_close(fby_file *file);

/**
 * Reads at `offset` into the buffers in turn. Returns the bytes read: fewer than asked only at the
 * end of the file, or if an error came after the first bytes. Each buffer is a read of its own:
 * several may see a part of another thread's write. `flags`: FBY_RWF_DONTCACHE,
 * FBY_RWF_DIRECT, FBY_RWF_FALLBACK, FBY_RWF_NOWAIT, FBY_RWF_HIPRI; others are -EOPNOTSUPP.
 *
 * Cached reads of a sequential stream, and those at offset 0, read ahead: up to `readahead_max`
 * bytes behind the range become cached, partly after the call has returned.
 *
 * # Safety
 * `file` is an open file, `iov` has `iovcnt` elements, whose memory no other thread uses
 * meanwhile.
 */
int64_t fby_preadv2(fby_file *file,
                    const struct iovec *iov,
                    int iovcnt,
                    int64_t offset,
                    uint32_t flags);

/**
 * Writes the buffers in turn at `offset`, into the cache. Returns the bytes written: fewer than
 * asked only if space ran out, with FBY_RWF_NOWAIT, or if an error came after the first bytes. One
 * request up to 1 MiB, and an append, is one step to other readers and writers. An append of
 * several buffers gathers them in memory outside the budget: -ENOMEM if they are longer than it.
 * `flags`: all of FBY_RWF_.
 *
 * # Safety
 * `file` is an open file, `iov` has `iovcnt` elements, whose memory does not change meanwhile.
 */
int64_t fby_pwritev2(fby_file *file,
                     const struct iovec *iov,
                     int iovcnt,
                     int64_t offset,
                     uint32_t flags);

/**
 * Writes `len` bytes at the end of the file, in one step with other appends. Returns the offset
 * where they are. -ENOSPC also if there is space for a part of them only. `flags`: as for
 * fby_pwritev2.
 *
 * # Safety
 * `file` is an open file, `buf` has `len` bytes, which do not change meanwhile.
 */
int64_t fby_append(fby_file *file, const void *buf, size_t len, uint32_t flags);

/**
 * Makes all data and metadata of the file durable. After an error no later sync of this handle
 * succeeds while bytes that were accepted are not durable.
 *
 * # Safety
 * `file` is an open file.
 */
int fby_fsync(fby_file *file);

/**
 * Makes all data of the file durable, and the metadata to find it.
 *
 * # Safety
 * `file` is an open file.
 */
int fby_fdatasync(fby_file *file);

/**
 * Sets the size. Bytes that are added read as zeros.
 *
 * # Safety
 * `file` is an open file.
 */
int fby_ftruncate(fby_file *file, int64_t size);

/**
 * Allocates, punches or zeroes a range, with the modes of fallocate(2): 0,
 * FALLOC_FL_KEEP_SIZE, FALLOC_FL_PUNCH_HOLE with it, FALLOC_FL_ZERO_RANGE; others are
 * -EOPNOTSUPP. No mode sets space aside: a later write may still find none.
 *
 * # Safety
 * `file` is an open file.
 */
int fby_fallocate(fby_file *file, int mode, int64_t offset, int64_t len);

/**
 * Advice on a range; `len` 0 is up to the end. POSIX_FADV_WILLNEED reads what is missing into the
 * cache and returns once the last reads are issued; POSIX_FADV_DONTNEED evicts what is clean;
 * POSIX_FADV_NORMAL does nothing. Other advice is -EOPNOTSUPP: FBY_RWF_DONTCACHE says more.
 *
 * # Safety
 * `file` is an open file.
 */
int fby_fadvise(fby_file *file, int64_t offset, int64_t len, int advice);

/**
 * The next data (SEEK_DATA) or hole (SEEK_HOLE) at or after `offset`, or `offset` from the end
 * (SEEK_END). Other values of `whence` are -EINVAL, because a file has no position. -ENXIO if
 * there is no data at or after `offset`, or it is past the end.
 *
 * # Safety
 * `file` is an open file.
 */
int64_t fby_lseek(fby_file *file, int64_t offset, int whence);

/**
 * What of a range is in the cache at this moment; `len` 0 is up to the end. Read-ahead may still
 * be adding blocks. Fills the smaller of `info_size` and the size that the library knows, and
 * returns the latter.
 *
 * # Safety
 * `file` is an open file, `info` has `info_size` bytes.
 */
int64_t fby_residency(fby_file *file,
                      int64_t offset,
                      int64_t len,
                      fby_residency_info *info,
                      size_t info_size);

/**
 * Attributes of an open file. Fills the smaller of `attr_size` and the size that the library
 * knows, and returns the latter.
 *
 * # Safety
 * `file` is an open file, `attr` has `attr_size` bytes.
 */
int64_t fby_statx(fby_file *file, fby_attr *attr, size_t attr_size);

/**
 * Attributes of a name in a volume. `flags`: 0, or AT_SYMLINK_NOFOLLOW. As fby_statx otherwise.
 *
 * # Safety
 * `volume` is an open volume, `name` a string, `attr` has `attr_size` bytes.
 */
int64_t fby_stat(fby_volume *volume, const char *name, int flags, fby_attr *attr, size_t attr_size);

/**
 * Makes a directory with these permission bits; no umask applies.
 *
 * # Safety
 * `volume` is an open volume, `name` a string.
 */
int fby_mkdir(fby_volume *volume, const char *name, uint32_t mode);

/**
 * Removes a name of anything but a directory. An open file stays until it is closed.
 *
 * # Safety
 * `volume` is an open volume, `name` a string.
 */
int fby_unlink(fby_volume *volume, const char *name);

/**
 * Removes an empty directory.
 *
 * # Safety
 * `volume` is an open volume, `name` a string.
 */
int fby_rmdir(fby_volume *volume, const char *name);

/**
 * Renames, in one step; what was at the new name is replaced. `flags`: 0, RENAME_NOREPLACE or
 * RENAME_EXCHANGE, as in renameat2(2).
 *
 * # Safety
 * `volume` is an open volume, `from` and `to` are strings.
 */
int fby_rename(fby_volume *volume, const char *from, const char *to, uint32_t flags);

/**
 * Opens a listing of a directory.
 *
 * # Safety
 * `volume` is an open volume, `name` a string, `dir` a place for a pointer.
 */
int fby_opendir(fby_volume *volume, const char *name, fby_dir **dir);

/**
 * The next entry, without "." and "..". Returns 0 at the end, else the size of an entry that the
 * library knows; fills the smaller of that and `entry_size`.
 *
 * # Safety
 * `dir` is an open directory that no other thread uses, `entry` has `entry_size` bytes.
 */
int64_t fby_readdir(fby_dir *dir, fby_dirent *entry, size_t entry_size);

/**
 * Closes a listing.
 *
 * # Safety
 * `dir` is an open directory that no other thread uses.
 */
int fby_closedir(fby_dir *dir);

/**
 * Pins `len` bytes at `offset`: reads them without a copy, where they are cached. What is missing
 * is read into the cache first. Returns the bytes pinned: fewer than asked only at the end of the
 * file, 0 after it; the pin has to be given back in each case. The bytes stay as they are until
 * fby_unpin, whatever is written, cut off or evicted meanwhile. No call waits for a pin, but for
 * fby_cache_resize, which gives up after a second; a thread may write what it has pinned.
 *
 * All pins of a cache hold at most an eighth of its frames, and of its folios. What would exceed
 * that, or finds too few free frames, is a copy in memory outside the budget; with FBY_PIN_NO_COPY
 * it is -ENOBUFS. A copy larger than the budget is -ENOMEM. `flags`: FBY_PIN_NO_COPY,
 * FBY_RWF_DONTCACHE (cached bytes keep their age; if a byte is missing they are a copy),
 * FBY_RWF_NOWAIT, FBY_RWF_HIPRI; others are -EOPNOTSUPP.
 *
 * # Safety
 * `file` is an open file, `pinned` is a place for a pointer.
 */
int64_t fby_pin(fby_file *file, int64_t offset, size_t len, uint32_t flags, fby_pinned **pinned);

/**
 * The runs of memory that hold the bytes, in the order of the file. Returns their number: 0 if
 * nothing is pinned, 1 for a copy and for up to one frame of 4096 bytes. Program and library only
 * read the bytes. `extents` and the memory end with fby_unpin.
 *
 * # Safety
 * `pinned` is a pin, `extents` is a place for a pointer.
 */
int fby_pinned_extents(const fby_pinned *pinned, const struct iovec **extents);

/**
 * 1 if the bytes are a copy outside the budget of the cache, 0 if they are in the cache.
 *
 * # Safety
 * `pinned` is a pin.
 */
int fby_pinned_is_copy(const fby_pinned *pinned);

/**
 * Gives a pin back, on any thread. Its memory must not be read any more. In a child process the
 * memory of a parent's pin must not be read either (-ESHUTDOWN here).
 *
 * # Safety
 * `pinned` is a pin that no other thread uses.
 */
int fby_unpin(fby_pinned *pinned);

/**
 * Makes an empty volume in a file, which is made if it is missing, or on a block device. -EEXIST
 * if something is there, unless FBY_VOLUME_FORCE says that it may be lost.
 *
 * # Safety
 * `image` is a string, `config` has `config_size` bytes.
 */
int fby_volume_create(const char *image, const fby_volume_config *config, size_t config_size);

/**
 * Opens a volume on a cache, and recovers it first if it was not closed. -EBUSY if another process
 * or cache has it open, or this one has, or if another call opens or closes it for 30 s; -EUCLEAN
 * if it is damaged.
 *
 * # Safety
 * `cache` is an open cache, `image` a string, `how` has `how_size` bytes, `volume` is a place for
 * a pointer.
 */
int fby_volume_open(fby_cache *cache,
                    const char *image,
                    const fby_volume_how *how,
                    size_t how_size,
                    fby_volume **volume);

/**
 * Everything that was done on the volume before is durable after it.
 *
 * # Safety
 * `volume` is an open volume.
 */
int fby_volume_sync(fby_volume *volume);

/**
 * Makes everything durable and closes the volume. -EBUSY while files or directories of it are
 * open; it stays open then. Another error: not everything is durable; the handle is closed.
 *
 * # Safety
 * `volume` is an open volume that no other thread uses.
 */
int fby_volume_close(fby_volume *volume);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* FOREBAY_H */
