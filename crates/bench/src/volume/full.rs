//! `full`: four writers fill the volume, round after round. Synced files verify; removing,
//! truncating and syncing work while it is full; the space becomes free again.
//!
//! Invariants: L1 a write is either refused with `NoSpace` or accepted completely, and accepted
//! bytes can be synced. L2 the bytes of a file are determined by its round, writer and number, so
//! that files cannot be confused.

use super::places::Opened;
use crate::harness::backing::{BackedImage, Backing};
use crate::harness::image::Rng;
use crate::harness::load::Target;
use crate::harness::options::Options;
use crate::report::model::{Good, Report};
use crate::rivals::volume::{OurVolume, VolumeFile, VolumeSpec};
use forebay_base::task::block_on;
use forebay_base::units::{KIB, MIB, format_size};
use forebay_base::{Error, ErrorKind, Result};
use forebay_vfs::{FileSystem, SetAttr};

const WRITERS: u64 = 4;
/// Longest file, bytes.
const FILE_MAX: u64 = 4 * MIB;
/// Longest piece of a write, bytes.
const PIECE_MAX: u64 = 256 * KIB;
const UNIT: u64 = 4 * KIB;
/// Rounds between two clean closes and re-openings.
const REOPEN: usize = 10;

/// Result of one writer in a round: its files, each with the number of synced bytes.
#[derive(Default)]
struct Made {
    files: Vec<(String, u64)>,
    failures: u64,
    accepted: u64,
}

/// Runs the part.
pub fn run(options: &Options, report: &mut Report) -> Result<()> {
    let bytes = options.size_or(48 * MIB, 256 * MIB);
    let rounds = options.rounds_or(3, 200);
    let image = BackedImage::create(&options.dir, "full", bytes, Backing::Sparse, options.keep)?;
    let spec = VolumeSpec::new(&options.aio, bytes, 32 * MIB)?;
    let mut volume = OurVolume::create(image.path(), &spec)?;
    let empty = available(&volume)?;
    let (mut failures, mut missing, mut filled) = (0, Vec::new(), Vec::new());
    let mut done = 0;
    for round in 0..rounds {
        let made = fill(&volume, round as u64)?;
        let accepted: u64 = made.iter().map(|m| m.accepted).sum();
        filled.push(accepted as f64 / empty as f64 * 100.0);
        if round % REOPEN == REOPEN - 1 {
            volume = volume.reopen()?;
        }
        let failed = made.iter().map(|m| m.failures).sum::<u64>() + empty_again(&volume, &made);
        failures += failed;
        let now = available(&volume)?;
        missing.push((empty as f64 - now as f64) / empty as f64 * 100.0);
        done += 1;
        if failed > 0 {
            // A later round would only fail in the same way.
            break;
        }
    }
    report.row("volume", "full_filled", "%", &filled);
    report.row("volume", "full_space_missing_after_round", "%", &missing);
    report.row("volume", "full_rounds", "1", &[f64::from(done)]);
    // Without this bar a volume that refuses every write would pass: no failures, no missing space.
    let least = filled.iter().copied().fold(f64::INFINITY, f64::min);
    report.ratio_with_bar("full_filled_percent", least, Good::AtLeast, 75.0);
    report.ratio_with_bar("full_failures", failures as f64, Good::AtMost, 0.0);
    let worst = missing.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    report.ratio_with_bar("full_space_missing_percent", worst, Good::AtMost, 1.0);
    let wanted = rounds as f64;
    report.ratio_with_bar("full_rounds_done", f64::from(done), Good::AtLeast, wanted);
    report.note(format!("full: an image of {}, {done} rounds", format_size(bytes)));
    volume.close()
}

fn available(volume: &OurVolume) -> Result<u64> {
    let stat = volume.statfs()?;
    Ok(stat.blocks_available * u64::from(stat.block_size))
}

fn fill(volume: &OurVolume, round: u64) -> Result<Vec<Made>> {
    std::thread::scope(|scope| {
        let spawn = |writer| scope.spawn(move || write_until_full(volume, round, writer));
        let threads: Vec<_> = (0..WRITERS).map(spawn).collect();
        threads.into_iter().map(|t| t.join().expect("a writer returns")).collect()
    })
}

/// Seed of a file's bytes (L2).
fn seed_of(name: &str) -> u64 {
    name.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

/// The content of a unit of a file.
fn content(seed: u64, offset: u64, unit: &mut [u8]) {
    let mut rng = Rng::new(seed ^ offset);
    for word in unit.chunks_exact_mut(8) {
        word.copy_from_slice(&rng.draw().to_le_bytes());
    }
}

fn write_until_full(volume: &OurVolume, round: u64, writer: u64) -> Result<Made> {
    let mut rng = Rng::new(round << 8 | writer);
    let mut made = Made::default();
    let mut piece = vec![0; PIECE_MAX as usize];
    for number in 0.. {
        let name = format!("r{round}w{writer}f{number}");
        let seed = seed_of(&name);
        let file = match volume.file(&name) {
            Ok(file) => file,
            Err(e) if e.kind() == ErrorKind::NoSpace => return Ok(made),
            Err(e) => return Err(e),
        };
        let (mut size, mut full) = (0, false);
        while size < FILE_MAX && !full {
            let len = (1 + rng.below(PIECE_MAX / UNIT)) * UNIT;
            for (n, unit) in piece[..len as usize].chunks_exact_mut(UNIT as usize).enumerate() {
                content(seed, size + n as u64 * UNIT, unit);
            }
            match file.write(&piece[..len as usize], size) {
                Ok(()) => size += len,
                Err(e) if e.kind() == ErrorKind::NoSpace => full = true,
                Err(e) => return Err(e),
            }
            if (full || rng.below(4) == 0) && !synced(&file, &name) {
                made.failures += 1;
            }
        }
        if !synced(&file, &name) {
            made.failures += 1;
        }
        made.accepted += size;
        made.files.push((name, size));
        if full {
            return Ok(made);
        }
    }
    Ok(made)
}

/// Syncs a file that was written; a failure is reported (L1).
fn synced(file: &VolumeFile, name: &str) -> bool {
    let done = file.sync();
    if let Err(e) = &done {
        eprintln!("full: {name} cannot be synced: {e}");
    }
    done.is_ok()
}

/// Verifies, truncates and removes all files; returns the number of failures.
fn empty_again(volume: &OurVolume, made: &[Made]) -> u64 {
    let mut failures = 0;
    let all: Vec<&(String, u64)> = made.iter().flat_map(|m| &m.files).collect();
    let mut check = |what: &str, name: &str, done: Result<()>| {
        if let Err(e) = done {
            eprintln!("full: {what} {name}: {e}");
            failures += 1;
        }
    };
    for (name, size) in &all {
        check("verify", name, verify(volume, name, *size));
    }
    // On the full volume every other file is truncated, synced and removed.
    for (name, size) in all.iter().step_by(2) {
        check("truncate", name, cut(volume, name, size / 2));
        check("unlink", name, volume.unlink(name));
    }
    check("sync", "all", volume.sync());
    for (name, size) in all.iter().skip(1).step_by(2) {
        check("verify", name, verify(volume, name, *size));
        check("unlink", name, volume.unlink(name));
    }
    check("sync", "all", volume.sync());
    failures
}

fn cut(volume: &OurVolume, name: &str, size: u64) -> Result<()> {
    let file = volume.file(name)?;
    block_on(volume.volume.setattr(file.file.ino(), &SetAttr::size(size)))?;
    file.sync()
}

fn verify(volume: &OurVolume, name: &str, size: u64) -> Result<()> {
    let (file, seed) = (volume.file(name)?, seed_of(name));
    let found = block_on(volume.volume.getattr(file.file.ino()))?.size;
    let (mut buf, mut wanted) = (vec![0; UNIT as usize], vec![0; UNIT as usize]);
    for at in (0..size).step_by(UNIT as usize) {
        file.read(&mut buf, at)?;
        content(seed, at, &mut wanted);
        if buf != wanted {
            let error = Error::new(ErrorKind::Corrupt, "verify", "other bytes");
            return Err(error.with_path(name).with_range(at, UNIT));
        }
    }
    if found == size {
        return Ok(());
    }
    Err(Error::new(ErrorKind::Corrupt, "verify", format!("{found} bytes, {size} were synced")))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// L2: no two units are equal, in one file or in two.
    #[test]
    fn unit_content_differs_by_file_and_offset() {
        let unit = |name: &str, offset| {
            let mut unit = vec![0; UNIT as usize];
            content(seed_of(name), offset, &mut unit);
            unit
        };
        let names = ["r0w0f0", "r0w0f1", "r0w1f0", "r1w0f0"];
        let all = names.iter().flat_map(|name| [0, UNIT, 2 * UNIT].map(|at| unit(name, at)));
        let mut all: Vec<Vec<u8>> = all.collect();
        all.sort();
        all.dedup();
        assert_eq!(all.len(), 12);
        assert_eq!(unit("a", 4096), unit("a", 4096));
    }
}
