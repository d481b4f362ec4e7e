//! The examples run, and show what they say.

#[path = "../../examples/futures.rs"]
mod futures;
#[path = "../../examples/image_edit.rs"]
mod image_edit;
#[path = "../../examples/many_files_one_budget.rs"]
mod many_files_one_budget;
#[path = "../../examples/pins.rs"]
mod pins;
#[path = "../../examples/policy.rs"]
mod policy;
#[path = "../../examples/quick_start.rs"]
mod quick_start;
#[path = "../../examples/volume.rs"]
mod volume;
#[path = "../../examples/volume_survives/main.rs"]
mod volume_survives;

use crate::dir::Dir;
use std::path::Path;
use std::process::Command;

#[test]
fn policy_keeps_the_hot_set() {
    let [before, uncached, cached] = policy::residency().unwrap();
    assert_eq!((before.0, before.1), (512, 0));
    assert_eq!(uncached.0, 512, "the hot set was touched by an uncached scan");
    assert_eq!(uncached.1, 0, "an uncached scan left something");
    assert!(cached.1 > 0);
    policy::main().unwrap();
}

#[test]
fn quick_start_caches_what_it_read_and_wrote() {
    let cached = quick_start::start().unwrap();
    assert_eq!((cached.total_blocks, cached.dirty_blocks), (4096, 0));
    // The ordinary read of the first block reads some ahead.
    assert_eq!(cached.runs[0].0, 0);
    assert!((2..64).contains(&cached.resident_blocks), "{cached:?}");
    quick_start::main().unwrap();
}

#[test]
fn pins_show_the_version_that_they_were_taken_of() {
    let shown = pins::show().unwrap();
    assert_eq!((&*shown.pinned, &*shown.read), (&b"old line"[..], &b"new line"[..]));
    assert_eq!((shown.newlines, shown.frames), ((64 << 10) / 9, 16));
    assert!((1..=16).contains(&shown.runs), "{shown:?}");
    pins::main().unwrap();
}

#[test]
fn volume_has_what_was_appended() {
    assert_eq!(volume::lines().unwrap(), ["line 1", "line 2", "line 3"]);
    volume::main().unwrap();
}

#[test]
fn futures_read_all_blocks() {
    assert_eq!(futures::total().unwrap(), 4 << 20);
    futures::main().unwrap();
}

/// Lines of an example: of its file, or of all files in its folder.
fn lines_of(path: &Path) -> usize {
    if path.is_dir() {
        let files = std::fs::read_dir(path).unwrap();
        return files.map(|entry| lines_of(&entry.unwrap().path())).sum();
    }
    std::fs::read_to_string(path).unwrap().lines().count()
}

/// An example that does not fit on a screen or two is no example. `volume_survives` is none to
/// learn from: it is the demonstration that `make run` shows, two processes in one program.
#[test]
fn examples_have_sixty_lines_at_most() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples");
    let mut count = 0;
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let most = if path.ends_with("volume_survives") { 120 } else { 60 };
        let lines = lines_of(&path);
        assert!((1..=most).contains(&lines), "{}: {lines} lines", path.display());
        count += 1;
    }
    assert!(count >= 8, "{count} examples");
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
fn volume_survives_kill_9() {
    if std::env::var_os(volume_survives::FOLDER).is_some() {
        volume_survives::main().unwrap();
        return;
    }
    let program = std::env::current_exe().unwrap();
    let writer = || {
        let mut command = Command::new(&program);
        command.args(["examples::volume_survives_kill_9", "--exact", "--nocapture"]);
        command
    };
    let dir = Dir::new("survives");
    let (acknowledged, found) = volume_survives::survive(&dir.path(""), writer).unwrap();
    assert!(acknowledged >= 200 && found >= acknowledged, "{acknowledged}, {found}");
}
