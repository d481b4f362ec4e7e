//! The quick forms of the benches run and report everything they promise. No speed is asserted:
//! the figures of a quick run on a busy machine mean nothing.

mod check;
mod database;
mod documented;
mod lack;
mod loop_memory;

use check::{check_page, check_ratios, check_rows, check_synced, names, no_program, ran, ratio};
use database::check_pgbench;
use documented::check_documented;
use serde_json::Value;
use std::path::{Path, PathBuf};

fn run(name: &str) -> Value {
    run_in(name, &PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(name))
}

fn run_in(name: &str, dir: &Path) -> Value {
    std::fs::create_dir_all(dir).unwrap();
    let (json, html) = (dir.join("result.json"), dir.join("page.html"));
    let path = |path: &Path| path.to_str().unwrap().to_string();
    let (folder, json_path, html_path) = (path(dir), path(&json), path(&html));
    let mut args = vec![name, "--quick", "--dir", &folder, "--json", &json_path];
    args.extend(["--html", &html_path]);
    bench(&args);
    let text = std::fs::read_to_string(&json).unwrap();
    check_page(name, &html, &serde_json::from_str(&text).unwrap());
    let page = std::fs::read_to_string(&html).unwrap();
    bench(&["report", "--json", &json_path, "--html", &html_path]);
    assert_eq!(std::fs::read_to_string(&html).unwrap(), page, "saved JSON makes the same page");
    bench(&["report", "--screen", "--json", &json_path]);
    std::fs::remove_file(&json).unwrap();
    std::fs::remove_file(&html).unwrap();
    let left: Vec<_> = std::fs::read_dir(dir).unwrap().flatten().map(|e| e.path()).collect();
    assert!(left.is_empty(), "images left behind: {left:?}");
    let json = serde_json::from_str(&text).unwrap();
    check_documented(name, &names(&json, "ratios"));
    json
}

/// One bench at a time: the kernel counts bytes written by process.
static ONE: std::sync::Mutex<()> = std::sync::Mutex::new(());

fn bench(args: &[&str]) {
    let _one = ONE.lock().unwrap_or_else(|p| p.into_inner());
    let args = args.iter().map(|arg| arg.to_string()).collect();
    assert_eq!(forebay_bench::run(args), 0);
}

#[test]
fn hit_reports_every_row_and_ratio() {
    let json = run("hit");
    assert_eq!(json["bench"], "hit");
    assert!(json["machine"]["kernel"].is_string());
    for variant in ["kernel", "mmap", "memcpy", "ours"] {
        for group in ["read", "write", "hot_read", "hot_write"] {
            let metrics = ["rate", "p50", "p99", "p99_9", "max", "cpu_per_io"];
            for metric in metrics {
                check_rows(&json, &[(variant, &format!("{group}_{metric}"))]);
            }
        }
    }
    check_rows(&json, &[("ours", "arena_page_size"), ("ours", "cached_of_image")]);
    check_rows(&json, &[("kernel", "way_read_rate"), ("ours", "way_read_cpu_per_io")]);
    let of_ways = |note: &Value| note.as_str().unwrap().starts_with("way_read: 3 rounds kept");
    assert!(json["notes"].as_array().unwrap().iter().any(of_ways), "G1: alternated, in rounds");
    for way in ["ours-on-a-mount", "ours-on-a-mount-kernel", "ours-over-nbd"] {
        if ran(&json, way) {
            check_rows(&json, &[(way, "way_read_rate"), (way, "way_read_p99_9")]);
            // Another process has a part in it.
            let own = [way, "way_read_cpu_per_io"];
            let rows = json["rows"].as_array().unwrap();
            assert!(!rows.iter().any(|row| [&row["variant"], &row["metric"]] == own), "G2: {way}");
        }
    }
    let ratios = ["read_vs_kernel", "read_vs_memcpy", "write_vs_memcpy", "hot_read_vs_kernel"];
    check_ratios(&json, &ratios);
    assert_eq!(json["plots"].as_array().unwrap().len(), 4, "a picture of each kind of access");
}

#[test]
fn uncached_reports_every_row_and_ratio() {
    let json = run("uncached");
    assert_eq!(json["bench"], "uncached");
    check_rows(
        &json,
        &[
            ("direct", "randread_rate"),
            ("ours-uncached", "randread_rate"),
            ("ours-cached", "randread_cpu_per_io"),
            ("ours-direct", "randread_voluntary_switches_per_io"),
            ("ours-uncached", "randread_left_cached"),
            ("ours-during-uncached-stream", "hot_set_evicted"),
            ("ours-during-dd4k-stream", "hot_set_evicted"),
            ("direct-qd4", "seqread_rate"),
            ("kernel-buffered", "seqread_rate"),
            ("ours-uncached", "uncached_seqread_64k_rate"),
            ("kernel-buffered", "uncached_seqread_4m_rate"),
            ("ours", "randread_j1_rate"),
            ("ours-dropbehind", "randread_j16_rate"),
            ("ours-noaccess", "randread_j16_resident_after"),
            ("ours", "read64k_p99_9"),
            ("ours-dropbehind", "seqwrite_p99_9"),
            ("ours", "write64k_rate"),
            ("ours", "competing_writers_sum"),
            ("volume", "randread_volume_rate"),
            ("volume-nosums", "randwrite_volume_p99_9"),
            ("volume", "seqwrite_volume_cpu_per_io"),
        ],
    );
    let mut ratios = vec![
        "randread_vs_direct",
        "cached_randread_vs_direct",
        "flatness_p10",
        "hot_set_hit_delta_points",
        "hot_set_evicted_blocks",
        "reclaim_cpu_share",
        "seqread_vs_direct_qd4",
        "seqread_vs_kernel_buffered",
        "uncached_seqread_64k_vs_kernel_buffered",
        "uncached_seqread_128k_vs_kernel_buffered",
        "uncached_seqread_1m_vs_kernel_buffered",
        "uncached_seqread_4m_vs_kernel_buffered",
        "randread_vs_direct_j1",
        "read64k_vs_direct",
        "resident_growth_bytes",
        "write_resident_growth_bytes",
        "competing_writers_fairness",
        "volume_resident_growth_bytes",
    ];
    // Kernels before 6.14 have no RWF_DONTCACHE; the bench then says so.
    let not_run = json["not_run"].as_array().unwrap();
    if !not_run.iter().any(|item| item["what"] == "dontcache") {
        ratios.extend(["randread_vs_dontcache", "randread_vs_dontcache_j4"]);
    }
    if !not_run.iter().any(|item| item["what"].as_str().unwrap().starts_with("dontcache writes")) {
        ratios.extend(["seqwrite_vs_dontcache", "multiwrite_p999_vs_dontcache"]);
    }
    check_ratios(&json, &ratios);
}

#[test]
fn dirty_reports_every_row_and_ratio() {
    let json = run("dirty");
    for name in ["direct-4k", "direct-64k", "ours-block-64k", "ours-folio-2m", "ext4"] {
        for metric in ["fsync_rate", "fsync_p50", "fsync_p99", "fsync_written_per_byte_changed"] {
            check_rows(&json, &[(name, metric)]);
        }
    }
    check_rows(&json, &[("ours-block-2m", "fdatasync8_rate"), ("ours-folio-64k", "dd_rate")]);
    // Bytes are counted by the kernel, so these figures hold however busy the machine is.
    for (name, value) in [
        ("write_amplification_raw", 1.0),
        ("write_amplification_dd", 1.0),
        ("write_amplification_dd_folio_mode", 8.5),
        ("write_amplification_folio_mode", 16.0),
    ] {
        assert_eq!(ratio(&json, name), value, "{name}");
    }
    let ratios = [
        "fsync_iops_vs_raw_ratio",
        "fsync_iops_vs_folio_delay_device",
        "fdatasync8_vs_folio_2m",
        "write_amplification_raw",
        "write_amplification_volume_synced",
        "write_amplification_volume_synced_nosums",
        "write_amplification_volume_unsynced",
        "write_amplification_volume_unsynced_nosums",
    ];
    check_ratios(&json, &ratios);
    // By the volume's own door, so these hold on a busy machine too.
    check_synced(&json, "write_amplification_volume_synced", "volume", "fsync_rate");
    check_synced(&json, "write_amplification_volume_synced_nosums", "volume-nosums", "fsync_rate");
    for (name, least, most) in [
        ("write_amplification_volume_unsynced", 1.0, 1.1),
        ("write_amplification_volume_unsynced_nosums", 1.0, 1.1),
        ("write_amplification_volume_folio_mode", 16.0, 24.0),
    ] {
        let value = ratio(&json, name);
        assert!((least..=most).contains(&value), "{name}: {value}");
    }
    assert_eq!(json["summaries"][0]["behaviour"], "dirty");
}

#[test]
fn stable_reports_every_row_and_ratio() {
    let json = run("stable");
    for variant in ["not-needed", "wait", "snapshot", "cow", "auto"] {
        for part in ["delay", "disk"] {
            for metric in ["rate", "throughput", "mean", "p99_9", "max", "stable_waits"] {
                check_rows(&json, &[(variant, &format!("{part}_{metric}"))]);
            }
            check_rows(&json, &[(variant, &format!("{part}_stable_fallbacks"))]);
        }
    }
    let ratios = [
        "max_latency_vs_wait_when_not_needed",
        "cow_p999_vs_not_needed",
        "cow_max_vs_wait",
        "cow_throughput_vs_not_needed",
        "copied_blocks_share",
        "checked_blocks",
        "mismatches",
        "mismatches_when_forced_off",
        "volume_cow_max_vs_wait",
        "volume_cow_throughput_vs_nosums",
        "volume_copied_blocks_share",
        "volume_mismatches",
    ];
    check_ratios(&json, &ratios);
    let value = |name: &str| ratio(&json, name);
    assert_eq!(value("mismatches"), 0.0);
    assert_eq!(value("volume_mismatches"), 0.0);
    assert!(value("volume_copied_blocks_share") <= 1.1);
    assert!(value("copied_blocks_share") <= 1.1);
}

#[test]
fn loop_reports_every_row_and_ratio() {
    let json = run("loop");
    if no_program(&json) {
        return;
    }
    let mut ratios = vec!["direct_cache_growth_mib", "switches_per_io", "switches_vs_buffered"];
    let cells: Vec<String> = ["randread", "read", "randwrite", "write"]
        .iter()
        .flat_map(|rw| ["16jobs", "1job"].map(|layout| format!("{rw}_vs_buffered_{layout}")))
        .collect();
    ratios.extend(cells.iter().map(String::as_str));
    check_ratios(&json, &ratios);
    let all = names(&json, "ratios");
    for name in ["memory_used_share", "randread_vs_buffered", "sparse_randwrite_uring_vs_threads"] {
        assert!(all.contains(&name), "{name}");
    }
    check_rows(
        &json,
        &[
            ("ours-direct-io-on", "randwrite_16jobs_rate"),
            ("ours-direct-io-off", "stream_read_page_cache_growth"),
            ("ours-mode-direct", "randread_depth16_rate"),
        ],
    );
    if !ran(&json, "loop attached") {
        return;
    }
    for variant in ["attach", "kernel-loop-buffered", "kernel-loop-direct"] {
        for layout in ["16jobs", "1job"] {
            for metric in ["rate", "machine_switches_per_io", "machine_cpu_per_io", "memory"] {
                check_rows(&json, &[(variant, &format!("attached_randwrite_{layout}_{metric}"))]);
            }
        }
    }
}

#[test]
fn volume_reports_every_row_and_ratio() {
    let json = run("volume");
    for variant in ["volume", "volume-sparse", "host"] {
        for metric in ["sync_rate", "sync_p99_9", "sync16_rate"] {
            check_rows(&json, &[(variant, metric)]);
        }
    }
    check_rows(
        &json,
        &[
            ("volume-sparse", "synced_1g_written_per_byte_dirtied"),
            ("volume-sparse", "random_rate"),
            ("volume-sparse", "random_written_per_byte_dirtied"),
            ("volume-sparse", "seqwrite_machine_cpu_per_gib"),
            ("volume-nosums-sparse", "seqread_own_cpu_per_gib"),
            ("volume-flushing", "read_beside_flush_p99_9"),
            ("volume-sparse", "names_create_500"),
            ("volume", "open_after_clean_stop"),
            ("volume", "recovery_per_gib"),
            ("volume", "full_filled"),
        ],
    );
    check_scale(&json);
    check_sustained(&json);
    let mut ratios = vec![
        "write_amplification_volume_synced_1g",
        "write_amplification_volume_unsynced",
        "sync_vs_host",
        "sync16_vs_host",
        "random_vs_host",
        "read_p999_beside_flush_vs_idle",
        "create_at_many_vs_few",
        "stat_at_many_vs_few",
        "unlink_at_many_vs_few",
        "open_after_clean_stop_seconds",
        "touched_memory_over_budget_mib",
        "recovery_seconds_per_gib",
        "recovery_memory_over_budget_mib",
        "full_filled_percent",
        "full_failures",
        "full_rounds_done",
        "sustained_refused",
        "touched_again_missed_share",
        "hit_read_vs_raw",
        "hit_read_two_vs_raw",
        "hit_misses",
        "full_space_missing_percent",
    ];
    let mut all = true;
    for part in ["sync", "random", "seq"] {
        all &= ran(&json, &format!("{part} on xfs-on-loop"));
    }
    if all {
        ratios.extend(["sync_vs_xfs", "random_vs_xfs", "seqwrite_vs_xfs", "seqread_vs_xfs"]);
    }
    for kind in ["ext4", "btrfs"] {
        if ran(&json, &format!("sync on {kind}-on-loop")) {
            check_rows(&json, &[(&format!("{kind}-on-loop"), "sync_rate")]);
            check_rows(&json, &[(&format!("{kind}-on-loop-sparse"), "random_rate")]);
        }
    }
    check_ratios(&json, &ratios);
    let notes = json["notes"].as_array().unwrap().iter().filter_map(Value::as_str);
    let recovered = notes.filter(|note| note.starts_with("recovery")).collect::<Vec<_>>();
    assert!(recovered[0].contains("; 0 checkpoints fell"), "O3: {recovered:?}");
}

/// The rows of both loads: ours, and those of XFS where it can run.
fn check_sustained(json: &Value) {
    let metrics = ["fresh", "steady", "p99_9", "p99_99", "max", "written_per_byte_dirtied", "free"];
    let prefixes = ["sustained", "sustained_skewed"];
    for prefix in prefixes {
        for metric in metrics.iter().chain(&["live_share", "victim_live_share"]) {
            check_rows(json, &[("volume", &format!("{prefix}_{metric}"))]);
        }
        let all = names(json, "ratios");
        for name in ["vs_fresh", "bytes_per_byte", "longest_seconds"] {
            assert!(all.contains(&format!("{prefix}_{name}").as_str()), "{prefix}_{name}");
        }
        let live = check::row(json, "volume", &format!("{prefix}_live_share"));
        assert!((0.3..1.0).contains(&live), "{prefix}: {live}");
    }
    check_ratios(json, &["sustained_bytes_vs_bound", "sustained_vs_fresh"]);
    if ran(json, "sustained on xfs-on-loop") && ran(json, "sustained_skewed on xfs-on-loop") {
        check_rows(json, &[("xfs-on-loop", "sustained_skewed_steady")]);
        check_ratios(json, &["sustained_skewed_steady_vs_xfs"]);
    }
}

/// The rows of each volume, and its ratios to the smallest one.
fn check_scale(json: &Value) {
    let metrics = "write_cpu sync_cpu clean_cpu_per_byte clean_moved nodes_per_changed_leaf memory \
                   tree open build_cpu";
    for variant in ["volume-1e3", "volume-1e4"] {
        for metric in metrics.split_whitespace() {
            check_rows(json, &[(variant, &format!("scale_{metric}"))]);
        }
    }
    let per_leaf = check::row(json, "volume-1e4", "scale_nodes_per_changed_leaf");
    assert!((1.0..4.0).contains(&per_leaf), "{per_leaf} nodes for each changed leaf");
    assert!(check::row(json, "volume-1e3", "scale_clean_moved") >= 1.0, "a pass moved data");
    let bars = ["scale_write_cpu", "scale_sync_cpu", "scale_clean_cpu"];
    let bars = bars.map(|name| format!("{name}_vs_smallest"));
    check_ratios(json, &bars.each_ref().map(String::as_str));
    check_ratios(json, &["scale_open_seconds"]);
    let all = names(json, "ratios");
    for name in ["nodes_per_changed_leaf", "memory", "open", "write_cpu", "clean_cpu"] {
        let name = format!("scale_{name}_vs_smallest_1e4");
        assert!(all.contains(&name.as_str()), "{name}");
    }
}

#[test]
fn files_reports_every_row_and_ratio() {
    let json = run("files");
    let ratios = [
        "files_failures",
        "files_threads",
        "files_memory_over_budget_mib",
        "open_write_close_at_200_vs_10",
        "healthy_beside_dead_vs_alone",
    ];
    check_ratios(&json, &ratios);
    check_rows(&json, &[("most open", "open_write_close"), ("ours", "files_opened_again")]);
    assert_eq!(ratio(&json, "files_failures"), 0.0, "{}", json["not_run"]);
}

#[test]
fn nbd_reports_every_row_and_ratio() {
    let json = run("nbd");
    if no_program(&json) {
        return;
    }
    let not_run = json["not_run"].as_array().unwrap();
    let missing =
        |what: &str| not_run.iter().any(|item| item["what"].as_str().unwrap().starts_with(what));
    let rivals = [
        ("nbdkit-memory", "server_cpu_per_io_vs_nbdkit_memory"),
        ("nbdkit-file", "server_cpu_per_io_vs_nbdkit_file"),
        ("qemu-nbd", "server_cpu_per_io_vs_qemu_nbd"),
    ];
    for (rival, ratio) in rivals {
        if !missing("rows of ours") && !missing(rival) {
            check_ratios(&json, &[ratio]);
        }
    }
    if !missing("rows of ours") {
        check_rows(&json, &[("ours", "nbd_hit_c1_cpu_per_io"), ("ours", "nbd_miss_c4_rate")]);
    }
}

#[test]
fn memcg_reports_every_row_and_ratio() {
    let json = run("memcg");
    if no_program(&json) {
        return;
    }
    for engine in ["io_uring", "threads"] {
        let what = format!("memcg with {engine}");
        if !json["not_run"].as_array().unwrap().iter().any(|item| item["what"] == *what) {
            check_ratios(&json, &[&format!("memcg_kills_{engine}")]);
        }
    }
}

#[test]
fn live_reports_cost_of_watching() {
    let json = run("live");
    check_rows(&json, &[("watched", "live_read_rate"), ("unwatched", "live_read_rate")]);
    check_rows(&json, &[("watched", "live_answers"), ("watched", "live_picture_time")]);
    check_ratios(&json, &["live_watched_vs_unwatched"]);
}

#[test]
fn start_reports_every_row_and_ratio() {
    let json = run("start");
    if no_program(&json) {
        return;
    }
    check_ratios(&json, &["start_seconds_64m", "start_resident_mib_256m", "start_failures"]);
    check_rows(&json, &[("ours-64m", "start_until_first_answer")]);
}

#[test]
fn resize_reports_every_row_and_ratio() {
    let json = run("resize");
    if no_program(&json) {
        return;
    }
    let ratios = ["resize_errors", "resize_seconds_until_memory_is_back", "resize_hot_blocks_lost"];
    check_ratios(&json, &ratios);
    check_rows(&json, &[("ours", "resize_shrink")]);
}

#[test]
fn alloc_reports_every_row_and_ratio() {
    let json = run("alloc");
    assert_eq!(json["bench"], "alloc");
    let figures = [
        "throughput",
        "extents_per_request",
        "extents_per_file",
        "kib_per_extent",
        "bios_per_request",
        "record_bytes_per_request",
        "fairness",
        "tail_waste",
        "cold_read",
        "free_runs",
        "free_run_kib",
    ];
    for variant in ["interleaved", "serialized", "reserve"] {
        for cell in ["delay_10x2m", "delay_10x2m_waves", "disk_10x2m_4_buffered", "disk_append4k"] {
            for figure in figures {
                check_rows(&json, &[(variant, &format!("{cell}_{figure}"))]);
            }
        }
        check_rows(&json, &[(variant, "delay_10x2m_seeks_per_request")]);
        check_rows(
            &json,
            &[(variant, "small_disk_2r2w_rate"), (variant, "small_memory_2r2w_rate")],
        );
        let simulated = format!("{variant}-simulated");
        check_rows(&json, &[(&simulated, "sim_10x2m_waves_throughput")]);
    }
    check_rows(&json, &[("serialized-1", "small_disk_2r2w_rate")]);
    let ratios = [
        "extents_per_request",
        "tail_waste_share",
        "reserve_vs_interleaved_fragment_cost",
        "reserve_vs_interleaved_disk",
        "small_writes_vs_interleaved",
        "fairness_max_over_min",
    ];
    check_ratios(&json, &ratios);
    // No clock is in these: simulated time, and counts.
    let value = |name: &str| ratio(&json, name);
    assert!(value("sim_interleaved_discontiguities") > 50.0, "block by block is torn there");
    assert!(value("sim_reserve_vs_interleaved") >= 0.9 * value("sim_expected"));
    assert!(value("extents_per_request") <= 1.5, "a small volume has short windows");
}

/// Ratios of `mount` that have goals.
const MOUNT_RATIOS: [&str; 23] = [
    "mount_read_j1_vs_xfs",
    "mount_read_jcpus_vs_xfs",
    "mount_sync_vs_xfs",
    "mount_sync16_vs_xfs",
    "mount_random_vs_xfs",
    "mount_seqwrite_vs_xfs",
    "mount_seqread_vs_xfs",
    "mount_hot_set_evicted_blocks_ioctl",
    "mount_hot_set_evicted_blocks_policy",
    "mount_hot_set_evicted_blocks_run",
    "mount_write_amplification_synced",
    "mount_write_amplification_unsynced",
    "mount_dbench_cow_waits",
    "mount_extents_per_request",
    "attach_randread_vs_empty",
    "attach_randread_vs_loop",
    "mount_sync_flushes_vs_xfs",
    "mount_sync16_flushes_vs_xfs",
    "mount_unpack_time_vs_empty",
    "mount_compile_time_vs_xfs",
    "mount_own_search_time_vs_empty",
    "mount_status_time_vs_xfs",
    "mount_many_memory_over_cache_mib",
];

/// The rows of `mount --part programs`, and of the flushes of `sync`.
fn check_programs(json: &Value) {
    let loads = ["unpack", "unpack_synced", "compile", "search", "status", "status_fresh"];
    for load in loads.into_iter().chain(["sqlite_write", "sqlite_read"]) {
        for variant in ["mount", "mount-own", "xfs-on-loop"] {
            check_rows(json, &[(variant, &format!("mount_{load}_seconds"))]);
        }
    }
    let rows = [
        ("empty-fuse", "mount_unpack_seconds"),
        ("empty-fuse", "mount_search_seconds"),
        ("mount", "mount_tree_kernel_cache"),
        ("mount-own", "mount_tree_daemon_memory"),
        ("mount-on-loop", "mount_sync16_device_flushes"),
        ("xfs-on-loop", "mount_sync_device_flushes"),
    ];
    check_rows(json, &rows);
}

#[test]
fn mount_reports_every_row_and_ratio() {
    // PostgreSQL's user has to reach it; a target folder may be in a home directory.
    let dir = PathBuf::from(format!("/var/tmp/forebay-quick-mount-{}", std::process::id()));
    let json = run_in("mount", &dir);
    std::fs::remove_dir(&dir).unwrap();
    if no_program(&json) {
        return;
    }
    check_pgbench(&json);
    let cells = ["read_j1", "sync", "sync16", "random", "seqwrite", "seqread"];
    for variant in ["mount", "empty-fuse", "xfs-on-loop", "host"] {
        for cell in cells {
            check_rows(&json, &[(variant, &format!("mount_{cell}_rate"))]);
        }
    }
    for step in ["create", "stat", "ls", "read", "remove"] {
        for variant in ["mount", "empty-fuse", "xfs-on-loop"] {
            check_rows(&json, &[(variant, &format!("mount_{step}_rate"))]);
        }
        let name = |rival| format!("mount_{step}_vs_{rival}");
        let (judged, other) = if step == "read" { ("xfs", "empty") } else { ("empty", "xfs") };
        check_ratios(&json, &[&name(judged)]);
        ratio(&json, &name(other));
    }
    check_rows(
        &json,
        &[
            ("mount-run", "mount_hot_set_stream"),
            ("mount-cow", "mount_dbench_write_max"),
            ("mount", "mount_alloc_unaligned_extents_per_request"),
            ("kernel-loop-direct", "attach_randread_rate"),
            ("kernel-loop-buffered", "attach_randread_rate"),
            ("mount-small", "kernel_cache_small_files_rate"),
            ("mount-kernel", "kernel_cache_held_twice"),
        ],
    );
    check_ratios(&json, &MOUNT_RATIOS);
    check_programs(&json);
    // Judged with `cache=own` only.
    for name in ["mount_read_j1_vs_empty", "mount_read_jcpus_vs_empty"] {
        ratio(&json, name);
    }
    // Counts, so they hold however busy the machine is.
    let value = |name: &str| ratio(&json, name);
    for way in ["ioctl", "policy", "run"] {
        assert_eq!(value(&format!("mount_hot_set_evicted_blocks_{way}")), 0.0, "{way}");
    }
    assert!(value("mount_many_memory_over_cache_mib") <= 64.0, "memory with many files");
    let known = check::row(&json, "mount", "mount_many_inodes_known");
    assert!((1000.0..=20_000.0).contains(&known), "{known} inodes, inodes=16384");
    check_synced(&json, "mount_write_amplification_synced", "mount", "mount_synced_write_rate");
    assert!((1.0..=1.2).contains(&value("mount_write_amplification_unsynced")));
    assert!((1.0..=1.5).contains(&value("mount_extents_per_request")));
}
