//! The cost of a small change on a volume, synced and not.
//!
//! Invariants: V1 synced: each write of 4 KiB is made durable before the next. All bytes that the
//! volume writes for it (log, data, metadata) are counted at its device. V2 not synced: each block
//! of the file is dirtied at most once, in random order, and all are synced once at the end. The
//! count includes the close of the volume, with its checkpoint and the two copies of the tree.

use super::figures::{SMALL, Tally, WRITE};
use super::subject::Subject;
use crate::harness::backing::{BackedImage, Backing};
use crate::harness::image::Rng;
use crate::harness::load::Target;
use crate::harness::options::Options;
use crate::report::model::{Good, Plot, Report};
use crate::rivals::counted::Counted;
use crate::rivals::volume::{OurVolume, VolumeFile, VolumeSpec};
use forebay::DirtyTracking;
use forebay_base::Result;
use forebay_base::units::MIB;

/// Bar: bytes written per byte changed, with syncs.
const SYNCED: f64 = 2.1;
/// Bar: bytes written per byte changed, without syncs.
const UNSYNCED: f64 = 1.10;

/// Files on a volume, all cached.
pub struct OnVolume {
    files: Vec<VolumeFile>,
    volume: OurVolume,
    _image: BackedImage,
}

impl OnVolume {
    /// Makes a volume with `count` files of `size` bytes, written and cached.
    pub fn new(
        options: &Options,
        label: &str,
        (count, size): (usize, u64),
        tracking: DirtyTracking,
        sums: bool,
    ) -> Result<Self> {
        let all = size * count as u64;
        // Free space for the slices' writes, a few times the size of the files.
        let bytes = 2 * all + if options.quick { 192 * MIB } else { 4096 * MIB };
        let image = BackedImage::create(&options.dir, label, bytes, Backing::Sparse, options.keep)?;
        let mut spec = VolumeSpec::new(&options.aio, bytes, 2 * all + 96 * MIB)?;
        spec.config.folio_size = SMALL as u32;
        spec.config.dirty_tracking = tracking;
        spec.sums = sums;
        let volume = OurVolume::create(image.path(), &spec)?;
        let files =
            (0..count).map(|n| volume.file(&format!("file{n}"))).collect::<Result<Vec<_>>>()?;
        let chunk = vec![0x3c; MIB as usize];
        for file in &files {
            (0..size).step_by(chunk.len()).try_for_each(|at| file.write(&chunk, at))?;
            file.sync_data()?;
        }
        Ok(Self { files, volume, _image: image })
    }
}

impl Subject for OnVolume {
    fn write_synced(&self, job: usize, buf: &[u8], offset: u64) -> Result<()> {
        self.files[job].write(buf, offset)?;
        self.files[job].sync_data()
    }

    fn device_bytes(&self) -> Result<u64> {
        Ok(self.volume.device_bytes())
    }
}

/// Adds the ratios of the synced variants.
pub fn add_synced(report: &mut Report, tally: &Tally, sums: bool) {
    let suffix = if sums { "" } else { "_nosums" };
    let name = format!("write_amplification_volume_synced{suffix}");
    report.ratio_with_bar(&name, tally.amplification(), Good::AtMost, SYNCED);
}

/// The unsynced part (V2), with checksums and without.
pub fn unsynced(options: &Options, report: &mut Report) -> Result<()> {
    let size = options.size_or(16 * MIB, 512 * MIB);
    let mut series = Vec::new();
    for (variant, sums) in [("volume", true), ("volume-nosums", false)] {
        let (changed, written, requests) = one_pass(options, size, sums)?;
        let ratio = written as f64 / changed as f64;
        report.row(variant, "unsynced_written_per_byte_changed", "x", &[ratio]);
        let per_mib = requests as f64 * MIB as f64 / changed as f64;
        report.row(variant, "unsynced_device_writes_per_mib", "1", &[per_mib]);
        let suffix = if sums { "" } else { "_nosums" };
        let name = format!("write_amplification_volume_unsynced{suffix}");
        report.ratio_with_bar(&name, ratio, Good::AtMost, UNSYNCED);
        series.push((variant.to_string(), vec![ratio]));
    }
    report.plots.push(Plot {
        behaviour: "dirty",
        title:
            "volume: half of a file's blocks at random, one sync: bytes written per byte changed"
                .into(),
        unit: "x".into(),
        series,
        ..Plot::default()
    });
    Ok(())
}

/// One pass without syncs; returns bytes changed, bytes written, and writes.
fn one_pass(options: &Options, size: u64, sums: bool) -> Result<(u64, u64, u64)> {
    let label = format!("dirty-unsynced-{sums}");
    let held = OnVolume::new(options, &label, (1, size), DirtyTracking::Block, sums)?;
    held.volume.sync()?;
    let counted: &Counted = held.volume.counted();
    let (bytes, requests) = (counted.written(), counted.requests());
    let mut blocks: Vec<u64> = (0..size / WRITE).collect();
    let mut rng = Rng::new(size);
    let half = blocks.len() / 2;
    for at in 0..half {
        let other = at + rng.below((blocks.len() - at) as u64) as usize;
        blocks.swap(at, other);
    }
    let mut buf = vec![0x77; WRITE as usize];
    for block in &blocks[..half] {
        buf[..8].copy_from_slice(&block.to_le_bytes());
        held.files[0].write(&buf, block * WRITE)?;
    }
    held.files[0].sync_data()?;
    let changed = half as u64 * WRITE;
    let OnVolume { files, volume, _image } = held;
    drop(files);
    let (written, requested) = volume.close_counted()?;
    Ok((changed, written - bytes, requested - requests))
}
