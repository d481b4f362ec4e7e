//! `dirty`: the cost of a small change through a mount: bytes that the daemon has written (log,
//! data and tree) over bytes that the program changed.
//!
//! Synced: each write of 4 KiB is followed by fsync. Not synced: each block of the file is dirtied
//! at most once, in random order, then the file is synced once. The daemon's bytes are the kernel's
//! count of its writes past the page cache (`/proc/PID/io`), since it opens the image with
//! O_DIRECT.

use crate::dirty::written_by;
use crate::harness::image::{Rng, open_with};
use crate::harness::load::Target;
use crate::harness::options::Options;
use crate::report::model::{Good, Report};
use crate::rivals::kernel::KernelFile;
use crate::rivals::mounted::{Mounted, Mounting};
use crate::volume::places::{Opened, write_all};
use forebay_base::Result;
use forebay_base::units::{KIB, MIB, format_size};
use rustix::fs::OFlags;
use std::time::Instant;

const WRITE: u64 = 4 * KIB;
/// Bars: the same as in the bench `dirty`, which writes without a mount.
const SYNCED: f64 = 2.1;
const UNSYNCED: f64 = 1.10;

/// Runs the part.
pub fn run(options: &Options, report: &mut Report) -> Result<()> {
    let size = options.size_or(16 * MIB, 256 * MIB);
    let how = Mounting::new(8 * size + 192 * MIB, 4 * size + 96 * MIB, &options.aio);
    let mounted = Mounted::new(&options.dir, "dirty", how.with("direct_io=on"))?;
    let pid = mounted.pid()?;
    let path = mounted.path().join("file");
    let file = KernelFile::new(open_with(&path, OFlags::CREATE)?);
    write_all(&file, size, size)?;
    file.sync()?;
    super::ground::sync_at(&mounted.path())?;
    let (mut rng, mut buf) = (Rng::new(size), vec![0x77; WRITE as usize]);
    let mut blocks: Vec<u64> = (0..size / WRITE).collect();
    let half = blocks.len() / 2;
    for at in 0..half {
        let other = at + rng.below((blocks.len() - at) as u64) as usize;
        blocks.swap(at, other);
    }
    let synced = (size / WRITE / 4).min(8192) as usize;
    let cells = [("synced", synced, true, SYNCED), ("unsynced", half, false, UNSYNCED)];
    for (name, count, each, bar) in cells {
        let (before, start) = (written_by(pid)?, Instant::now());
        for block in &blocks[..count] {
            buf[..8].copy_from_slice(&rng.draw().to_le_bytes());
            file.write(&buf, block * WRITE)?;
            if each {
                file.sync()?;
            }
        }
        file.sync()?;
        super::ground::sync_at(&mounted.path())?;
        let value = (written_by(pid)? - before) as f64 / (count as u64 * WRITE) as f64;
        let rate = count as f64 / start.elapsed().as_secs_f64();
        report.row("mount", &format!("mount_{name}_write_rate"), "1/s", &[rate]);
        report.row("mount", &format!("mount_{name}_written_per_byte_changed"), "x", &[value]);
        let ratio = format!("mount_write_amplification_{name}");
        report.ratio_with_bar(&ratio, value, Good::AtMost, bar);
    }
    report.note(format!("mount dirty: a file of {}, all cached", format_size(size)));
    Ok(())
}
