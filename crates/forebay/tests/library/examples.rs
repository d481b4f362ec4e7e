//! The examples run, and show what they say.

#[path = "../../examples/hot_and_scan.rs"]
mod hot_and_scan;
#[path = "../../examples/image_edit.rs"]
mod image_edit;
#[path = "../../examples/many_files_one_budget.rs"]
mod many_files_one_budget;
#[path = "../../examples/volume_survives.rs"]
mod volume_survives;

use crate::dir::Dir;
use std::process::Command;

#[test]
fn hot_and_scan_keeps_the_hot_set() {
    let [before, uncached, cached] = hot_and_scan::residency().unwrap();
    assert_eq!((before.0, before.1), (512, 0));
    assert_eq!(uncached.0, 512, "the hot set was touched by an uncached scan");
    assert_eq!(uncached.1, 0, "an uncached scan left something");
    assert!(cached.1 > 0);
    hot_and_scan::main().unwrap();
}

#[test]
fn image_edit_writes_what_changed() {
    assert_eq!(image_edit::edit().unwrap(), (4096, 4096));
    image_edit::main().unwrap();
}

#[test]
fn many_files_keep_one_budget() {
    let lines = many_files_one_budget::work().unwrap();
    assert!(lines.iter().all(|(_, now, bound)| now <= bound), "{lines:?}");
    assert!(lines.iter().map(|l| l.2).sum::<u64>() <= 8 << 20);
    many_files_one_budget::main().unwrap();
}

/// The writer, too, is this test: the example starts the program that it is part of.
#[test]
fn a_volume_survives_kill_9() {
    if std::env::var_os(volume_survives::FOLDER).is_some() {
        volume_survives::main().unwrap();
        return;
    }
    let program = std::env::current_exe().unwrap();
    let writer = || {
        let mut command = Command::new(&program);
        command.args(["examples::a_volume_survives_kill_9", "--exact", "--nocapture"]);
        command
    };
    let dir = Dir::new("survives");
    let (acknowledged, found) = volume_survives::survive(&dir.path(""), writer).unwrap();
    assert!(acknowledged >= 200 && found >= acknowledged, "{acknowledged}, {found}");
}
