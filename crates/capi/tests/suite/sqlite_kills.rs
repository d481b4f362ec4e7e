//! A process that is killed while it writes a database: nothing that was acknowledged is lost.
//!
//! `FOREBAY_SQLITE_KILLS` sets the number of kills, `FOREBAY_SQLITE_SEED` what is drawn. No locks.

use crate::build::{Dir, compiled_with_sqlite, ran};
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Command, Stdio};

const MODES: [&str; 4] = ["delete", "wal", "truncate", "persist"];
/// Sizes of pages: the VFS reads small ones, and shows large ones to SQLite in place.
pub const PAGES: [&str; 2] = ["4096", "16384"];

/// A number of the environment.
pub fn setting(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().map_or(default, |text| text.parse().expect(name))
}

/// A stream of numbers (splitmix64).
pub struct Draw(pub u64);

impl Draw {
    pub fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % bound
    }
}

/// Writes until so many commits are acknowledged and a moment more, then kills. A writer that asks
/// for leave after each commit gets none after the last of them. The last acknowledged commit.
fn killed_by(mut command: Command, uri: &str, mode: &str, acks: u64, micros: u64) -> u64 {
    command.args(["write", uri, mode, "1000000"]).stdout(Stdio::piped());
    let mut writer = command.spawn().unwrap();
    let mut leave = writer.stdin.take();
    if let Some(leave) = &mut leave {
        leave.write_all(&vec![b'.'; acks as usize - 1]).unwrap();
    }
    let mut lines = BufReader::new(writer.stdout.take().unwrap()).lines();
    let mut last = 0;
    for _ in 0..acks {
        let line = lines.next().expect("the writer goes on until it is killed").unwrap();
        last = line.parse().unwrap();
    }
    std::thread::sleep(std::time::Duration::from_micros(micros));
    writer.kill().unwrap();
    // What it had acknowledged by then is in the pipe still; a last line may be torn.
    last = lines.map_while(Result::ok).filter_map(|line| line.parse().ok()).fold(last, u64::max);
    writer.wait().unwrap();
    last
}

fn judged(program: &Path, uri: &str, least: u64) -> u64 {
    let most = (least + 1).to_string();
    let text = ran(Command::new(program).args(["judge", uri, &least.to_string(), &most]));
    text.trim().parse().unwrap()
}

/// The program `sqlite3`, by SQLite's own VFS, recovers what our process left.
fn judged_by_program(path: &Path, least: u64) {
    let sql = "PRAGMA integrity_check; SELECT n FROM last";
    let text = ran(Command::new("sqlite3").arg(path).arg(sql));
    let (ok, number) = text.trim().split_once('\n').expect("two lines");
    let number: u64 = number.parse().unwrap();
    assert_eq!(ok, "ok");
    assert!((least..=least + 1).contains(&number), "{number} commits, {least} acknowledged");
}

#[test]
fn sqlite_killed_loses_no_acknowledged_transaction() {
    let dir = Dir::new("sqlite-kills").with_library();
    let program = compiled_with_sqlite(&dir, "sqlite_writer", &[]);
    let host = PAGES.map(|page| dir.path(&format!("{page}.db")));
    let image = dir.path("v");
    let of_volume = format!("vfs=forebay&volume={}&volume_size=134217728", image.display());
    let (seed, kills) = (setting("FOREBAY_SQLITE_SEED", 1), setting("FOREBAY_SQLITE_KILLS", 12));
    let mut draw = Draw(seed);
    let mut last = [[0; 2]; 2];
    for kill in 0..kills {
        let (place, mode) = ((kill % 2) as usize, MODES[(kill / 2 % 4) as usize]);
        let (acks, micros) = (1 + draw.below(40), draw.below(20_000));
        let size = draw.below(2) as usize;
        let uri = match place {
            0 => format!("file:{}?vfs=forebay", host[size].display()),
            _ => format!("file:/{}.db?{of_volume}", PAGES[size]),
        };
        println!("seed {seed}, kill {kill}: {uri} {mode}, {acks} commits and {micros} us");
        let mut writer = Command::new(&program);
        writer.env("PAGE", PAGES[size]);
        let acked = killed_by(writer, &uri, mode, acks, micros);
        assert!(acked > last[place][size], "commits go on from the last one");
        if place == 0 && draw.below(2) == 0 {
            judged_by_program(&host[size], acked);
        }
        last[place][size] = judged(&program, &uri, acked);
    }
    println!("{kills} kills, {last:?} commits");
}

/// The judge sees a loss: without syncs a writer that is killed loses what it had acknowledged.
#[test]
fn sqlite_killed_without_syncs_is_seen_to_lose() {
    let dir = Dir::new("sqlite-loses").with_library();
    let program = compiled_with_sqlite(&dir, "sqlite_writer", &[]);
    let uri = format!("file:{}?vfs=forebay", dir.path("a.db").display());
    ran(Command::new(&program).args(["make", &uri]));
    let mut unsynced = Command::new(&program);
    // It stops at the last one: what it wrote beyond might be more than the cache keeps back.
    unsynced.env("SYNC", "OFF").env("ASK", "1").stdin(Stdio::piped());
    let acked = killed_by(unsynced, &uri, "wal", 20, 0);
    let (least, most) = (acked.to_string(), (acked + 1).to_string());
    let judged = Command::new(&program).args(["judge", &uri, &least, &most]).output().unwrap();
    let text = String::from_utf8_lossy(&judged.stderr);
    assert!(!judged.status.success() && text.contains("0 commits, not"), "{text}");
}
