//! The figures that docs/figures.md always shows, with descriptions for readers.
//!
//! Invariant: R4 each figure is listed once. Figures that missed their goal are shown in any case
//! (readme.R2). So being listed adds only a readable description, and "not run" if the figure is
//! missing.

/// A figure: bench, name of the ratio, description.
pub type Fact = (&'static str, &'static str, &'static str);

/// Figures of raw images.
pub const ENGINE: &[Fact] = &[
    ("dirty", "write_amplification_raw", "bytes written per byte changed, random writes of 4 KiB"),
    ("dirty", "write_amplification_folio_mode", "the same, written back by folio of 64 KiB"),
    ("loop", "direct_cache_growth_mib", "MiB of the image in the kernel's cache"),
    ("loop", "memory_used_share", "memory used, over the image opened buffered"),
    ("loop", "switches_per_io", "context switches per read, depth 16"),
    ("stable", "cow_max_vs_wait", "longest write, over waiting"),
    ("stable", "cow_p999_vs_not_needed", "p99.9 of a write, over no need for stable pages"),
    ("uncached", "seqwrite_p999_vs_dontcache", "p99.9 of a sequential write, over RWF_DONTCACHE"),
    ("uncached", "randwrite_p999_vs_dontcache", "p99.9 of a random write, over RWF_DONTCACHE"),
    ("uncached", "hot_set_evicted_blocks", "hot blocks lost during an uncached stream"),
    ("uncached", "hot_set_evicted_blocks_dd4k_stream", "hot blocks lost during `dd bs=4k`"),
    ("uncached", "kernel_hot_set_lost_percent", "% of the hot set the kernel loses: RWF_DONTCACHE"),
    ("uncached", "kernel_hot_set_lost_percent_cached_stream", "the same during a buffered stream"),
    ("uncached", "kernel_hot_set_lost_percent_dd4k_stream", "the same during `dd bs=4k`"),
    ("uncached", "competing_writers_fairness", "bytes of an uncached writer over a buffered one's"),
    ("nbd", "server_cpu_per_io_vs_nbdkit_memory", "CPU of the server per hit, over nbdkit memory"),
    ("nbd", "server_cpu_per_io_vs_nbdkit_file", "CPU of the server per miss, over nbdkit file"),
    ("nbd", "server_cpu_per_io_vs_qemu_nbd", "CPU of the server per miss, over qemu-nbd"),
    ("memcg", "memcg_kills_io_uring", "kills in a memory cgroup of budget + 64 MiB"),
    ("memcg", "memcg_peak_over_budget_mib_io_uring", "MiB over the budget at the peak"),
    ("files", "files_threads", "threads with 10,000 files open"),
    ("files", "files_memory_over_budget_mib", "MiB over the budget with 10,000 files open"),
    ("files", "open_write_close_at_10000_vs_10", "cost of one more file at 10,000 open, over 10"),
    (
        "files",
        "healthy_beside_dead_vs_alone",
        "rate with a dead device in the same cache, over alone",
    ),
    ("start", "start_seconds", "seconds until the first answer, any `--cache-size` to 64 GiB"),
    ("start", "start_resident_mib", "MiB resident then"),
    ("resize", "resize_errors", "errors of `fio --verify` during `tune cache_size=`"),
    (
        "resize",
        "resize_seconds_until_memory_is_back",
        "seconds until memory is back, 4 GiB to 256 MiB",
    ),
    ("resize", "resize_hot_blocks_lost", "hot blocks lost by that"),
    (
        "database",
        "files_lookups_during_vs_alone",
        "SQLite's lookups during a backup of other files, over alone",
    ),
    ("database", "files_lookups_vs_tar", "the same, over the kernel's during plain `tar`"),
    ("database", "files_lookups_vs_best_kernel", "the same, over the kernel's best way to back up"),
    ("database", "files_lookups_vs_mmap", "the same, over the kernel's with the file mapped"),
    ("database", "files_lookups_vs_sqlite_cache", "the same, over SQLite's own cache of that size"),
    ("database", "files_hot_set_lost_percent", "% of the hot set lost to that backup"),
    ("database", "files_kernel_hot_set_lost_percent", "% of it that the kernel loses to `tar`"),
    ("database", "itself_lookups_vs_tar", "lookups during a backup of the database, over `tar`"),
    ("database", "itself_lookups_vs_best_kernel", "the same, over the kernel's best way"),
];

/// Figures of volumes and mounts.
pub const VOLUMES: &[Fact] = &[
    ("volume", "sync_vs_xfs", "4 KiB writes, each with fsync, 1 thread, over XFS on a loop"),
    ("volume", "sync_vs_host", "the same, over the host's ext4"),
    ("volume", "sync_vs_btrfs", "the same, over btrfs on a loop"),
    ("volume", "sync_vs_xfs_sparse", "on unwritten images, as `create` makes them, over XFS"),
    ("volume", "sync_vs_host_sparse", "the same, over the host's ext4"),
    ("volume", "sync16_vs_xfs", "16 threads, over XFS on a loop"),
    ("volume", "sync16_vs_host", "the same, over the host's ext4"),
    ("volume", "sync16_vs_btrfs", "the same, over btrfs on a loop"),
    ("volume", "sync16_vs_xfs_sparse", "on unwritten images, over XFS"),
    ("volume", "sync16_vs_host_sparse", "the same, over the host's ext4"),
    (
        "volume",
        "write_amplification_volume_synced_1g",
        "bytes written per byte changed, each 4 KiB synced, 1 GiB",
    ),
    ("volume", "write_amplification_volume_synced_4g", "the same, 4 GiB"),
    (
        "volume",
        "random_vs_xfs",
        "2 GiB of random 4 KiB writes until synced and closed, over XFS on a loop",
    ),
    ("volume", "random_vs_xfs_prealloc", "the same, preallocated images"),
    ("volume", "random_vs_host", "the same, sparse, over the host's ext4"),
    ("volume", "random_vs_host_prealloc", "the same, preallocated image"),
    ("volume", "random_vs_btrfs", "the same, over btrfs on a loop"),
    ("volume", "write_amplification_volume_unsynced", "bytes written per byte changed there"),
    ("volume", "seqwrite_vs_xfs", "1 MiB writes until synced, over XFS on a loop"),
    ("volume", "seqwrite_vs_xfs_prealloc", "the same, preallocated images"),
    ("volume", "seqwrite_vs_nosums", "the same, over itself without checksums"),
    ("volume", "seqread_vs_xfs", "cold reads of 1 MiB, over XFS on a loop"),
    ("volume", "seqread_vs_xfs_prealloc", "the same, preallocated images"),
    ("volume", "read_p999_beside_flush_vs_idle", "p99.9 of a read during a full flush, over idle"),
    ("volume", "xfs_read_p999_beside_flush_vs_idle", "the same of XFS on a loop"),
    (
        "volume",
        "sustained_refused",
        "overwriting at random, 80 % full, 8 GiB: runs that were refused",
    ),
    (
        "volume",
        "sustained_vs_fresh",
        "the same: steady rate over that of the first half of what was free",
    ),
    ("volume", "sustained_vs_fresh_xfs_on_loop", "the same of XFS on a loop"),
    ("volume", "sustained_steady_vs_xfs", "steady rate over that of XFS"),
    ("volume", "sustained_bytes_per_byte", "bytes written per byte changed there"),
    ("volume", "sustained_longest_seconds", "longest write there, s"),
    ("volume", "create_at_many_vs_few", "names: create at a million, over ten thousand"),
    ("volume", "stat_at_many_vs_few", "look up in order"),
    ("volume", "unlink_at_many_vs_few", "remove in order"),
    ("volume", "names_create_vs_xfs", "create at a million, over XFS on a loop"),
    ("volume", "names_stat_vs_xfs", "look up in order"),
    ("volume", "names_unlink_vs_xfs", "remove in order"),
    ("volume", "names_stat_drawn_vs_xfs", "look up as drawn"),
    ("volume", "open_after_clean_stop_seconds", "seconds to open with a million files"),
    (
        "volume",
        "touched_memory_over_budget_mib",
        "MiB over the budget of 256 MiB with all of them touched",
    ),
    ("volume", "recovery_seconds_per_gib", "seconds of recovery per GiB of log"),
    ("volume", "full_failures", "filled by four writers, emptied, round after round: failures"),
    ("volume", "full_space_missing_percent", "% of the space that did not come back"),
    ("alloc", "extents_per_request", "runs per 2 MiB direct write, worst cell"),
    ("alloc", "tail_waste_share", "tail waste"),
    ("alloc", "fairness_max_over_min", "fairness, most over least"),
    (
        "alloc",
        "reserve_vs_interleaved_disk",
        "`reserve` over `interleaved` on the disk, writers of 2 MiB, worst cell",
    ),
    ("alloc", "disk_append4k_reserve_vs_interleaved", "64 jobs that append 4 KiB"),
    ("alloc", "small_writes_vs_interleaved", "4 KiB writers with as many readers, worst cell"),
    (
        "alloc",
        "reserve_vs_interleaved_fragment_cost",
        "on a device where a gap costs 1 ms, the cell farthest below what is expected",
    ),
    ("mount", "mount_read_j1_vs_empty", "cached 4 KiB reads, 1 thread, over an empty FUSE server"),
    ("mount", "mount_read_jcpus_vs_empty", "the same, a thread for each CPU"),
    ("mount", "mount_read_j1_vs_xfs", "the same, 1 thread, over XFS, which the kernel caches"),
    ("mount", "mount_read_jcpus_vs_xfs", "the same, a thread for each CPU"),
    ("mount", "mount_sync_vs_xfs", "4 KiB writes, each with fsync, 1 job, over XFS on a loop"),
    ("mount", "mount_sync16_vs_xfs", "the same, 16 jobs"),
    ("mount", "mount_sync_flushes_vs_xfs", "flushes of the device for each sync, 1 job, over XFS"),
    ("mount", "mount_sync16_flushes_vs_xfs", "flushes of the device for each sync, 16 jobs"),
    ("mount", "mount_random_vs_xfs", "random 4 KiB writes until synced, over XFS on a loop"),
    ("mount", "mount_seqwrite_vs_xfs", "1 MiB writes until synced, over XFS on a loop"),
    ("mount", "mount_seqread_vs_xfs", "cold reads of 1 MiB, over XFS on a loop"),
    ("mount", "mount_create_vs_xfs", "50,000 files of 4 KiB: create, over XFS on a loop"),
    ("mount", "mount_create_vs_empty", "create, over the empty server"),
    ("mount", "mount_stat_vs_xfs", "cold stat, over XFS on a loop"),
    ("mount", "mount_stat_vs_empty", "cold stat, over the empty server"),
    ("mount", "mount_ls_vs_xfs", "cold `ls -l`, over XFS on a loop"),
    ("mount", "mount_ls_vs_empty", "cold `ls -l`, over the empty server"),
    ("mount", "mount_read_vs_xfs", "cold read, over XFS on a loop"),
    ("mount", "mount_read_vs_empty", "cold read, over the empty server"),
    ("mount", "mount_remove_vs_xfs", "remove, over XFS on a loop"),
    ("mount", "mount_remove_vs_empty", "remove, over the empty server"),
    (
        "mount",
        "attach_randread_vs_empty",
        "`attach`, cached 4 KiB reads, depth 32, over a one-file server that does nothing",
    ),
    (
        "mount",
        "attach_randread_vs_loop",
        "the same, over the kernel's loop with direct I/O, which reads the disk",
    ),
    (
        "mount",
        "attach_randread_vs_loop_buffered",
        "the same, over the kernel's loop, cached by the kernel",
    ),
    (
        "mount",
        "mount_unpack_time_vs_empty",
        "time of `tar -x` of 6,000 files, over the empty server",
    ),
    ("mount", "mount_compile_time_vs_xfs", "time of `make -j2` of a C project, over XFS on a loop"),
    (
        "mount",
        "mount_own_search_time_vs_empty",
        "time of `rg` over a cached tree, over the empty server",
    ),
    ("mount", "mount_status_time_vs_xfs", "time of `git status`, all cached, over XFS on a loop"),
    ("mount", "mount_many_memory_over_cache_mib", "MiB over `cache_size` with 2,000,000 files"),
    ("mount", "mount_hot_set_evicted_blocks_run", "blocks evicted by tar below `run --uncached`"),
    (
        "mount",
        "mount_write_amplification_synced",
        "bytes written per byte changed, each 4 KiB synced",
    ),
    ("mount", "mount_extents_per_request", "runs on the image that a 2 MiB direct write ends in"),
    (
        "mount",
        "mount_extents_per_request_unaligned",
        "the same from a buffer that is not aligned to pages",
    ),
    ("mount", "mount_dbench_cow_max_vs_wait", "longest WriteX of dbench 4, over waiting"),
    (
        "mount",
        "pgbench_select_forebay_uncached_beside_vs_alone",
        "tps during a backup over alone, pgbench read only: `run --uncached -- tar`",
    ),
    (
        "mount",
        "pgbench_select_forebay_beside_vs_alone",
        "tps during a backup over alone, pgbench read only: `tar` as it comes",
    ),
    (
        "mount",
        "pgbench_select_xfs_beside_vs_alone",
        "tps during a backup over alone, pgbench read only: XFS in a memory cgroup of the same size",
    ),
    (
        "mount",
        "pgbench_select_xfs_tar_apart_beside_vs_alone",
        "tps during a backup over alone, pgbench read only: XFS, tar in a cgroup of its own",
    ),
    (
        "mount",
        "pgbench_select_xfs_direct_reader_beside_vs_alone",
        "tps during a backup over alone, pgbench read only: XFS, an O_DIRECT reader",
    ),
    (
        "mount",
        "pgbench_select_forebay_uncached_p99_beside_vs_alone",
        "p99 of a transaction there, `run --uncached`",
    ),
    (
        "mount",
        "pgbench_tpcb_forebay_uncached_beside_vs_alone",
        "tps during a backup over alone, pgbench TPC-B: `run --uncached -- tar`",
    ),
    (
        "mount",
        "pgbench_tpcb_forebay_beside_vs_alone",
        "tps during a backup over alone, pgbench TPC-B: `tar` as it comes",
    ),
    (
        "mount",
        "pgbench_tpcb_xfs_beside_vs_alone",
        "tps during a backup over alone, pgbench TPC-B: XFS in a memory cgroup of the same size",
    ),
    (
        "mount",
        "pgbench_tpcb_xfs_tar_apart_beside_vs_alone",
        "tps during a backup over alone, pgbench TPC-B: XFS, tar in a cgroup of its own",
    ),
    (
        "mount",
        "pgbench_tpcb_xfs_direct_reader_beside_vs_alone",
        "tps during a backup over alone, pgbench TPC-B: XFS, an O_DIRECT reader",
    ),
    (
        "mount",
        "pgbench_tpcb_forebay_uncached_p99_beside_vs_alone",
        "p99 of a transaction there, `run --uncached`",
    ),
    ("live", "live_watched_vs_unwatched", "rate while the page is asked for, over alone"),
];

/// Whether a description can be read without the line above it.
pub fn stands_alone(description: &str) -> bool {
    let begins = ["the same", "16 threads", "64 jobs", "on unwritten", "look up", "remove in"];
    let ends = [" there", " there, s", " then", "at the peak", ", `run --uncached`"];
    !begins.iter().any(|begin| description.starts_with(begin))
        && !ends.iter().any(|end| description.ends_with(end))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn r4_each_figure_is_there_once() {
        let all: Vec<_> = ENGINE.iter().chain(VOLUMES).map(|fact| (fact.0, fact.1)).collect();
        assert_eq!(all.iter().collect::<BTreeSet<_>>().len(), all.len(), "R4");
    }
}
