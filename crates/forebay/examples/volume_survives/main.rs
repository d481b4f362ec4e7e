//! A volume whose process is killed: starts itself again as a writer that appends and syncs
//! records, kills it in the middle with SIGKILL, opens the volume, and checks that every record is
//! there whose sync was acknowledged. Several times, on the same volume. Prints one line.
//! `make run` shows it; to learn the library begin with `quick_start`.
//!
//! `cargo run --example volume_survives`

mod records;

use forebay::{CreateVolume, Result, Volume};
use records::{count_records, write_on};
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};

/// Says where the writer writes; without it this process is the one that kills.
pub const FOLDER: &str = "FOREBAY_SURVIVES_FOLDER";
const KILLS: u64 = 4;
const ENOUGH: u64 = 60;

/// Makes a volume in `folder` and kills `writer`, which has to be this program, while it writes.
/// Returns the number of records that were acknowledged, and that were there in the end.
pub fn survive(folder: &Path, writer: impl Fn() -> Command) -> Result<(u64, u64)> {
    let options = CreateVolume::default().size(64 << 20);
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
        found = count_records(folder)?;
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
