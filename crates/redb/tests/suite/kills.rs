//! A process that is killed while it writes a database: no commit that returned is lost, and no row
//! is damaged. Dirty data is memory of that process, so a kill loses all that was not synced.
//!
//! `FOREBAY_REDB_KILLS` sets the number of kills, `FOREBAY_REDB_SEED` what is drawn. No locks.

use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Duration;

fn setting(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().map_or(default, |text| text.parse().expect(name))
}

/// A stream of numbers (xorshift).
struct Draw(u64);

impl Draw {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % bound
    }
}

fn program(what: &str, words: &[PathBuf]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_forebay-redb"));
    command.arg(what).args(words);
    command
}

/// Writes until so many commits have returned and a moment more. The last number that returned.
fn killed(words: &[PathBuf], commits: u64, moment: Duration) -> u64 {
    let mut writer = program("write", words).stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(writer.stdout.take().unwrap()).lines();
    let mut last = 0;
    for _ in 0..commits {
        last = lines.next().expect("it writes until it is killed").unwrap().parse().unwrap();
    }
    std::thread::sleep(moment);
    writer.kill().unwrap();
    // The pipe still holds what was printed before the kill; a last line may be torn.
    last = lines.map_while(Result::ok).filter_map(|line| line.parse().ok()).fold(last, u64::max);
    writer.wait().unwrap();
    last
}

fn judged(words: &[PathBuf]) -> u64 {
    let output = program("judge", words).output().unwrap();
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{text}");
    String::from_utf8(output.stdout).unwrap().trim().parse().unwrap()
}

fn killed_loses_nothing(name: &str, in_volume: bool) {
    let folder = std::env::temp_dir().join(format!("forebay-redb-{name}-{}", std::process::id()));
    let _old = std::fs::remove_dir_all(&folder);
    std::fs::create_dir_all(&folder).unwrap();
    let words = match in_volume {
        true => vec![PathBuf::from("/count.redb"), folder.join("v.img")],
        false => vec![folder.join("count.redb")],
    };
    let (seed, kills) = (setting("FOREBAY_REDB_SEED", 1), setting("FOREBAY_REDB_KILLS", 6));
    let mut draw = Draw(seed | 1);
    let mut last = 0;
    for kill in 0..kills {
        let (commits, micros) = (1 + draw.below(60), draw.below(20_000));
        println!("seed {seed}, kill {kill}: {commits} commits and {micros} us");
        let returned = killed(&words, commits, Duration::from_micros(micros));
        assert!(returned > last, "numbers go on from the last one");
        last = judged(&words);
        assert!((returned..=returned + 1).contains(&last), "{last} is there, {returned} returned");
    }
    std::fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn host_file_killed_loses_no_returned_commit() {
    killed_loses_nothing("host", false);
}

#[test]
fn volume_killed_loses_no_returned_commit() {
    killed_loses_nothing("volume", true);
}
