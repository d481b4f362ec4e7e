//! Databases during a backup: `database`, and `pgbench` of `mount`.

use crate::check::{check_ratios, check_rows, ran, row};
use crate::run;
use forebay_bench::report::screen;
use serde_json::Value;

#[test]
fn database_reports_every_column() {
    let json = run("database");
    let columns = ["ours", "ours-uncached"];
    let kernel = [
        "xfs-tar",
        "xfs-mmap-tar",
        "xfs-nocache",
        "xfs-drop-behind",
        "xfs-direct",
        "xfs-dontcache",
        "xfs-tar-apart",
        "sqlite-cache",
    ];
    let runs = |column: &str| {
        let named = format!("database files {column}");
        ran(&json, "database on xfs") && ran(&json, &named)
    };
    let ran: Vec<_> =
        columns.into_iter().chain(kernel.into_iter().filter(|column| runs(column))).collect();
    for (column, form) in ran
        .iter()
        .flat_map(|column| ["files", "itself", "brisk", "fast"].map(|form| (column, form)))
    {
        for metric in ["lookups_alone", "lookups_during", "lookups_after", "backup_rate", "memory"]
        {
            let value = row(&json, column, &format!("{form}_{metric}"));
            assert!(value > 0.0, "{column} {form} {metric}: {value}");
        }
        // SQLite's own cache is not seen from outside.
        if *column != "sqlite-cache" {
            let before = row(&json, column, &format!("{form}_hot_set_before"));
            // Any process may drop the kernel's cache; ours holds the hot set once it is warm.
            let least = if columns.contains(column) { 90.0 } else { 0.0 };
            assert!((least..=100.0).contains(&before), "{column} {form}: {before}");
            check_rows(&json, &[(column, &format!("{form}_hot_set_lost"))]);
        }
    }
    // The budget, and what the processes hold.
    let memory = |column: &str| row(&json, column, "files_memory");
    assert!(memory("ours") < 32.0 + 32.0, "{} MiB", memory("ours"));
    if ran.contains(&"xfs-tar") {
        assert!((32.0..64.0).contains(&memory("xfs-tar")), "{} MiB", memory("xfs-tar"));
        check_ratios(&json, &["files_lookups_vs_tar", "files_lookups_vs_best_kernel"]);
    }
    check_ratios(&json, &["files_lookups_during_vs_alone", "files_hot_set_lost_percent"]);
    let plots = json["plots"].as_array().unwrap();
    assert_eq!(plots.len(), 4, "a chart of each form");
    assert!(plots.iter().all(|plot| plot["marks"].as_array().unwrap().len() == 2));
    let lines = screen::lines(std::slice::from_ref(&json));
    assert!(lines[0].starts_with("SQLite during a backup: "), "{lines:?}");
    for column in &ran {
        let line = lines.iter().find(|line| line.starts_with(&format!("{column} ")));
        assert!(line.is_some_and(|line| !line.ends_with("not run")), "{column}: {lines:?}");
    }
}

pub fn check_pgbench(json: &Value) {
    if !ran(json, "mount pgbench") {
        return;
    }
    let columns = ["forebay", "forebay-uncached", "xfs", "xfs-tar-apart", "xfs-direct-reader"];
    for column in columns {
        for load in ["select", "tpcb"] {
            for metric in ["tps_alone", "tps_beside", "p99_beside", "cpu_database"] {
                check_rows(json, &[(column, &format!("pgbench_{load}_{metric}"))]);
            }
            // A database with a backup that reads nothing has none.
            for metric in ["tps_beside", "backup_rate"] {
                let value = row(json, column, &format!("pgbench_{load}_{metric}"));
                assert!(value > 0.0, "{column} {load} {metric}: {value}");
            }
        }
    }
    // The page cache, the shared buffers in full, and something for each process of the database.
    let limit = row(json, "xfs", "pgbench_select_memory_limit");
    assert!(limit > 64.0 + 4.0 + 8.0, "{limit} MiB");
    for load in ["select", "tpcb"] {
        for what in ["", "_p99"] {
            let name = format!("pgbench_{load}_forebay_uncached{what}_beside_vs_alone");
            check_ratios(json, &[&name]);
        }
        for what in ["alone_vs_xfs", "cpu_per_byte_vs_xfs", "tables_lost_percent"] {
            check_ratios(json, &[&format!("pgbench_{load}_forebay_uncached_{what}")]);
        }
    }
    check_rows(
        json,
        &[
            ("forebay", "pgbench_select_tables_cached_after"),
            ("forebay", "pgbench_select_hit_ratio"),
            ("xfs", "pgbench_select_hit_ratio"),
            ("forebay", "pgbench_tpcb_cpu_forebay"),
        ],
    );
    let plots = json["plots"].as_array().unwrap().iter();
    let of_pgbench = |plot: &&Value| plot["title"].as_str().unwrap().starts_with("pgbench");
    assert_eq!(plots.filter(of_pgbench).count(), 2, "a picture of each load");
    let notes = json["notes"].as_array().unwrap();
    assert!(notes.iter().any(|note| note.as_str().unwrap().contains("fsck")), "{notes:?}");
}
