//! A power loss below a database in a volume: the image lies on a disk that records what it gets,
//! and states that a power loss may leave are opened and judged.
//!
//! A state is what the disk had up to a flush, any of the writes after it, and perhaps a part of
//! one. `FOREBAY_SQLITE_LOSSES` sets the number of states, `FOREBAY_SQLITE_SEED` what is drawn.
//! No locks.

use crate::build::{Dir, compiled_with_sqlite, ran};
use crate::recorder::{Entry, Recorder, requires};
use crate::sqlite_kills::{Draw, PAGES, setting};
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Command, Stdio};

/// States of one recording.
const STATES: u64 = 250;
/// Commits of one recording.
const COMMITS: &str = "25";
/// A part of a write that may be there alone, bytes.
const SECTOR: usize = 512;

/// Without direct I/O, where the kernel makes a durable write a write and a flush: `nbdfuse` does
/// not pass the flag of a durable write on.
fn uri(image: &Path) -> String {
    let image = image.display();
    format!("file:/a.db?vfs=forebay&volume={image}&volume_size=16777216&direct_io=off")
}

/// What the disk got, and how much of it when each commit had returned.
struct Recorded {
    entries: Vec<Entry>,
    acked: Vec<usize>,
}

/// The writer waits after each commit until the length of the record is noted.
fn recorded(program: &Path, image: &[u8], mode: &str, sync: &str) -> Recorded {
    let recorder = Recorder::start(image).unwrap();
    let mut command = Command::new(program);
    command
        .args(["write", &uri(&recorder.path()), mode, COMMITS])
        .env("ASK", "1")
        .env("SYNC", sync);
    let mut writer = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut go_on = writer.stdin.take().unwrap();
    let mut acked = Vec::new();
    for line in BufReader::new(writer.stdout.take().unwrap()).lines() {
        acked.push(recorder.len());
        assert_eq!(line.unwrap(), acked.len().to_string());
        go_on.write_all(b".").unwrap();
    }
    assert!(writer.wait().unwrap().success());
    assert_eq!(acked.len().to_string(), COMMITS);
    Recorded { entries: recorder.entries(), acked }
}

fn put(image: &mut [u8], entry: &Entry, sectors: usize) {
    if let Entry::Write { offset, bytes } = entry {
        let len = bytes.len().min(sectors.saturating_mul(SECTOR));
        image[*offset as usize..][..len].copy_from_slice(&bytes[..len]);
    }
}

/// The image after a power loss when the disk had got `len` entries.
fn lost(base: &[u8], entries: &[Entry], draw: &mut Draw) -> Vec<u8> {
    let mut image = base.to_vec();
    let flushed = entries.iter().rposition(|entry| *entry == Entry::Flush).unwrap_or(0);
    let (durable, rest) = entries.split_at(flushed);
    for entry in durable {
        put(&mut image, entry, usize::MAX);
    }
    let (kind, torn) = (draw.below(4), draw.below(rest.len().max(1) as u64) as usize);
    for (n, entry) in rest.iter().enumerate() {
        match kind {
            0 => put(&mut image, entry, usize::MAX),
            1 if n == torn => put(&mut image, entry, draw.below(64) as usize),
            _ if draw.below(2) == 0 => put(&mut image, entry, usize::MAX),
            _ => {}
        }
    }
    image
}

/// One recording of a new database, and the image before it.
fn recorded_anew(
    dir: &Dir,
    program: &Path,
    mode: &str,
    sync: &str,
    page: &str,
) -> (Vec<u8>, Recorded) {
    let image = dir.path("image");
    let _old = std::fs::remove_file(&image);
    ran(Command::new(program).args(["make", &uri(&image)]).env("PAGE", page));
    let base = std::fs::read(&image).unwrap();
    let recorded = recorded(program, &base, mode, sync);
    (base, recorded)
}

/// Makes a state that a power loss may leave; the command that judges it.
fn judge_of(
    dir: &Dir,
    program: &Path,
    base: &[u8],
    recorded: &Recorded,
    draw: &mut Draw,
) -> Command {
    let image = dir.path("image");
    let len = draw.below(recorded.entries.len() as u64 + 1) as usize;
    let acked = recorded.acked.iter().filter(|at| **at <= len).count();
    println!("{len} entries, {acked} commits acknowledged");
    std::fs::write(&image, lost(base, &recorded.entries[..len], draw)).unwrap();
    let mut judge = Command::new(program);
    judge.args(["judge", &uri(&image), &acked.to_string(), &(acked + 1).to_string()]);
    judge
}

/// Judges `states` states of one recording.
fn judged(dir: &Dir, program: &Path, mode: &str, states: u64, draw: &mut Draw) {
    let page = PAGES[draw.below(2) as usize];
    let (base, recorded) = recorded_anew(dir, program, mode, "FULL", page);
    for state in 0..states {
        print!("{mode}, pages of {page}, state {state}: ");
        ran(&mut judge_of(dir, program, &base, &recorded, draw));
    }
    let flushes = recorded.entries.iter().filter(|entry| **entry == Entry::Flush).count();
    println!("{mode}: {} entries, {flushes} flushes", recorded.entries.len());
    assert!(flushes >= recorded.acked.len(), "each commit waits for a flush");
}

#[test]
fn sqlite_in_volume_power_loss_keeps_acknowledged_transactions() {
    if !requires() {
        return;
    }
    let dir = Dir::new("sqlite-losses").with_library();
    let program = compiled_with_sqlite(&dir, "sqlite_writer", &[]);
    let (seed, states) = (setting("FOREBAY_SQLITE_SEED", 1), setting("FOREBAY_SQLITE_LOSSES", 150));
    let mut draw = Draw(seed);
    println!("seed {seed}");
    let modes = ["delete", "wal", "truncate", "persist"];
    let recordings = states.div_ceil(STATES).max(modes.len() as u64);
    for recording in 0..recordings {
        let mode = modes[recording as usize % modes.len()];
        judged(&dir, &program, mode, states.div_ceil(recordings), &mut draw);
    }
}

/// The same states find a loss: a writer without syncs acknowledges what is not durable.
#[test]
fn sqlite_in_volume_power_loss_without_syncs_loses_data() {
    if !requires() {
        return;
    }
    let dir = Dir::new("sqlite-loses-power").with_library();
    let program = compiled_with_sqlite(&dir, "sqlite_writer", &[]);
    let (base, recorded) = recorded_anew(&dir, &program, "wal", "OFF", PAGES[0]);
    let mut draw = Draw(1);
    for _state in 0..20 {
        let judge = judge_of(&dir, &program, &base, &recorded, &mut draw).output().unwrap();
        let text = String::from_utf8_lossy(&judge.stderr);
        if !judge.status.success() {
            // A checkpoint of the log without syncs may also damage the database.
            let seen = text.contains(" commits, not ") || text.contains("integrity_check");
            assert!(seen, "{text}");
            return;
        }
    }
    panic!("no loss in 20 states");
}
