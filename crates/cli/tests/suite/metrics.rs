//! The page on metrics names each one that a process serves, with its type and help text.

use crate::common::Folder;
use crate::common::place::{Place, may_run};
use std::collections::BTreeMap;
use std::path::Path;

/// Name to type and help text.
type Metrics = BTreeMap<String, (String, String)>;

fn served(text: &str) -> Metrics {
    let mut found = Metrics::new();
    let mut help = ("", "");
    for line in text.lines() {
        if let Some(rest) = line.strip_prefix("# HELP ") {
            help = rest.split_once(' ').expect("a name and a text");
        } else if let Some(rest) = line.strip_prefix("# TYPE ") {
            let (name, kind) = rest.split_once(' ').expect("a name and a type");
            assert_eq!(name, help.0);
            found.insert(name.to_string(), (kind.to_string(), help.1.to_string()));
        }
    }
    found
}

/// The rows of a table of the page.
fn described(page: &str) -> Metrics {
    let rows = page.lines().filter_map(|line| line.strip_prefix("| `forebay_"));
    let cells = rows.map(|row| row.trim_end_matches(" |").splitn(3, " | ").collect::<Vec<_>>());
    cells
        .map(|cells| {
            let name = format!("forebay_{}", cells[0].trim_end_matches('`'));
            (name, (cells[1].to_string(), cells[2].to_string()))
        })
        .collect()
}

/// `FOREBAY_RECORD=1` writes the table anew.
#[test]
fn reference_names_each_metric_that_is_served() {
    if !may_run() {
        return;
    }
    let folder = Folder::new();
    folder.image("disk.img", 1 << 20);
    let forebay = env!("CARGO_BIN_EXE_forebay");
    let stat = format!("{forebay} stat --prometheus");
    let mut all =
        served(&folder.ok(&["export", "disk.img", "--cache-size", "32M", "--run", &stat]));
    assert!(all.contains_key("forebay_nbd_reads_total"), "{all:?}");
    let place = Place::new(64 << 20);
    place.mount("control=sock");
    all.extend(served(&place.folder.ok(&["stat", "mnt", "--prometheus"])));
    place.umount();
    assert!(all.contains_key("forebay_mount_open_files"), "{all:?}");
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/reference/metrics.md");
    let page = std::fs::read_to_string(&path).expect("the page on metrics");
    if std::env::var("FOREBAY_RECORD").is_ok_and(|v| v == "1") {
        let row = |(name, (kind, help)): (&String, &(String, String))| {
            format!("| `{name}` | {kind} | {help} |\n")
        };
        let table: String = all.iter().map(row).collect();
        let kept = |line: &&str| !line.starts_with("| `forebay_");
        let rest: String = page.lines().filter(kept).map(|line| format!("{line}\n")).collect();
        let head = "|---|---|---|\n";
        std::fs::write(&path, rest.replace(head, &format!("{head}{table}"))).expect("the page");
        return;
    }
    assert_eq!(described(&page), all, "FOREBAY_RECORD=1 writes the table anew");
}
