//! A volume whose process is killed: starts itself again as a writer that appends and syncs records, kills it
//! in the middle with SIGKILL, opens the volume, and checks that every record is there whose sync was
//! acknowledged. Several times, on the same volume. Prints one line.
//!
//! `cargo run --example volume_survives`

use forebay::{Cache, CacheConfig, CreateVolume, IoFlags, Result, Volume, VolumeOptions};
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Command, Stdio};

/// Says where the writer writes; without it this is the one who watches.
pub const FOLDER: &str = "FOREBAY_SURVIVES_FOLDER";
const RECORD: usize = 3000;
const KILLS: u64 = 4;
const ENOUGH: u64 = 60;

fn open(folder: &Path) -> Result<(Cache, Volume)> {
    let cache = Cache::new(CacheConfig::with_budget(16 << 20))?;
    let volume = cache.open_volume(folder.join("data.fby"), &VolumeOptions::default())?;
    Ok((cache, volume))
}

/// A record that tells its number, again and again.
fn record(number: u64) -> Vec<u8> {
    number.to_le_bytes().into_iter().cycle().take(RECORD).collect()
}

/// Appends records until it is killed; says of each, on standard output, when it is durable. Now and then a
/// synced file replaces another by its name, as editors do.
pub fn write_on(folder: &Path) -> Result<()> {
    let (_cache, volume) = open(folder)?;
    let log = forebay::OpenOptions::new().append(true).create(true).open(&volume, "/log")?;
    let mut number = log.size()? / RECORD as u64;
    loop {
        let at = log.append(&record(number), IoFlags::DSYNC)?;
        assert_eq!(at, number * RECORD as u64, "appends follow one another");
        if number.is_multiple_of(8) {
            volume.write("/state.new", &number.to_le_bytes())?;
            volume.open_file("/state.new")?.sync_data()?;
            volume.rename("/state.new", "/state")?;
            volume.sync()?;
        }
        number += 1;
        let mut out = std::io::stdout().lock();
        let told = writeln!(out, "durable {number}").and_then(|()| out.flush());
        told.expect("the one who watches reads on");
    }
}

/// Records that are there, whole and in order; `state` names one of them.
fn look(folder: &Path) -> Result<u64> {
    let (_cache, volume) = open(folder)?;
    let log = volume.read("/log")?;
    let whole = log.chunks_exact(RECORD);
    let count = whole.len() as u64;
    for (number, bytes) in whole.enumerate() {
        assert_eq!(bytes, record(number as u64), "record {number}");
    }
    let state: [u8; 8] = volume.read("/state")?.try_into().expect("eight bytes, or none");
    assert!(u64::from_le_bytes(state) < count, "the state is of a record that is there");
    volume.close()?;
    Ok(count)
}

/// Makes a volume in `folder` and kills `writer`, which has to be this program, while it writes. Returns the
/// number of records that were acknowledged, and that were there in the end.
pub fn survive(folder: &Path, writer: impl Fn() -> Command) -> Result<(u64, u64)> {
    let options = CreateVolume { size: Some(64 << 20), ..CreateVolume::default() };
    Volume::create(folder.join("data.fby"), &options)?;
    let (mut acknowledged, mut found) = (0, 0);
    for _ in 0..KILLS {
        let mut child =
            writer().env(FOLDER, folder).stdout(Stdio::piped()).spawn().expect("starts");
        let lines = BufReader::new(child.stdout.take().expect("it is piped")).lines();
        let first = acknowledged;
        for line in lines.map_while(std::io::Result::ok) {
            let Some(number) = line.strip_prefix("durable ") else { continue };
            acknowledged = number.parse().expect("a number");
            if acknowledged == found + ENOUGH {
                // What it says from here on, until it is gone, is read as well.
                child.kill().expect("it can be killed");
            }
        }
        let status = child.wait().expect("it has ended");
        assert!(!status.success() && acknowledged > first, "it was killed while it wrote");
        found = look(folder)?;
        assert!(found >= acknowledged, "{acknowledged} acknowledged, {found} there");
    }
    Ok((acknowledged, found))
}

/// Shows it, or is the writer.
pub fn main() -> Result<()> {
    if let Some(folder) = std::env::var_os(FOLDER) {
        return write_on(Path::new(&folder));
    }
    let folder = std::env::temp_dir().join(format!("forebay-survives-{}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("the temporary folder is writable");
    let program = std::env::current_exe().expect("this program has a path");
    let (acknowledged, found) = survive(&folder, || Command::new(&program))?;
    println!("killed {KILLS} times: {acknowledged} records acknowledged, {found} found, 0 lost");
    std::fs::remove_dir_all(&folder).expect("made above");
    Ok(())
}
