//! The mix on a volume with checksums, which always needs stable pages. It compares the strategies,
//! and a volume without checksums, which does not need them.
//!
//! Invariants: V1 both volumes are on delay devices of the same speed, behind caches of the same
//! size. V2 checksums match the written bytes: after all slices the volume is opened again and read
//! completely, and a checksum that does not match fails the read.

use super::conditions::{BANDWIDTH, BUDGET, FILES, PER_IO, max_ms, mix_of, paired, plan};
use crate::harness::alternate::{Outcome, Variant, alternate};
use crate::harness::load::Target;
use crate::harness::options::Options;
use crate::report::model::{Good, Report};
use crate::rivals::volume::{OurVolume, VolumeFile, VolumeSpec};
use crate::stable::mix::{self, Store};
use forebay::{StableStrategy, Stats};
use forebay_base::Result;
use forebay_base::units::{GIB, MIB};
use forebay_base::world::RealWorld;
use forebay_block::{DeviceRef, RamDevice};
use forebay_testkit::target::{DelayDevice, DelayOptions};
use std::cell::RefCell;
use std::sync::Arc;

const FILE: &str = "mix";
const NO_SUMS: &str = "volume-nosums";
const VARIANTS: [(&str, StableStrategy); 4] = [
    ("volume-wait", StableStrategy::Wait),
    ("volume-snapshot", StableStrategy::Snapshot),
    ("volume-cow", StableStrategy::Cow),
    ("volume-auto", StableStrategy::Auto),
];

impl Store for VolumeFile {
    fn flush(&self) -> Result<()> {
        self.sync_data()
    }
}

struct OnDelay {
    volume: OurVolume,
    device: Arc<DelayDevice>,
    lower: DeviceRef,
    spec: VolumeSpec,
}

impl OnDelay {
    fn new(options: &Options, sums: bool) -> Result<Self> {
        let bytes = if options.quick { 384 * MIB } else { GIB };
        let lower: DeviceRef = Arc::new(RamDevice::new(bytes));
        let world = RealWorld::new();
        let device = DelayDevice::new(lower.clone(), &world, DelayOptions::default());
        let mut spec = VolumeSpec::new(&options.aio, bytes, BUDGET)?;
        spec.sums = sums;
        let volume = OurVolume::create_on(device.clone(), &spec)?;
        let (file, chunk) = (volume.file(FILE)?, vec![0x11; MIB as usize]);
        (0..mix::SIZE).step_by(chunk.len()).try_for_each(|at| file.write(&chunk, at))?;
        file.sync_data()?;
        device.set(DelayOptions {
            per_io: PER_IO,
            bandwidth: Some(BANDWIDTH),
            ..DelayOptions::default()
        });
        Ok(Self { volume, device, lower, spec })
    }

    /// The number of 4 KiB reads that fail (V2).
    fn mismatches(self) -> Result<u64> {
        self.device.set(DelayOptions::default());
        self.volume.close()?;
        let volume = OurVolume::open_device(self.lower, &self.spec)?;
        let (file, mut buf) = (volume.file(FILE)?, vec![0; 4096]);
        let failed =
            (0..mix::SIZE).step_by(buf.len()).filter(|at| file.read(&mut buf, *at).is_err());
        Ok(failed.count() as u64)
    }
}

/// Runs the part.
pub fn run(options: &Options, report: &mut Report) -> Result<()> {
    let (summed, plain) = (OnDelay::new(options, true)?, OnDelay::new(options, false)?);
    let files = if options.quick { 1 } else { FILES };
    // This number of slices fits before free space of the volume runs out.
    let mut plan = plan(options, 5);
    plan.rounds = options.rounds_or(1, 5);
    let counted: RefCell<[u64; 2]> = RefCell::default();
    let mut variants: Vec<Variant<'_>> = Vec::new();
    for (name, strategy) in VARIANTS {
        let (on, counted) = (&summed, &counted);
        let file = on.volume.file(FILE)?;
        variants.push(Variant::new(name, move |turn| {
            on.volume.cache.strategies.set_stable(strategy);
            let before = on.volume.cache.stats();
            let (slice, _) = mix::run(&file, &mix_of(turn, Some(files)))?;
            if strategy == StableStrategy::Cow {
                add(&mut counted.borrow_mut(), &before, &on.volume.cache.stats());
            }
            file.flush().map(|()| slice)
        }));
    }
    let file = plain.volume.file(FILE)?;
    variants.push(Variant::new(NO_SUMS, move |turn| {
        let (slice, _) = mix::run(&file, &mix_of(turn, Some(files)))?;
        file.flush().map(|()| slice)
    }));
    let outcome = alternate(&mut variants, &plan)?;
    drop(variants);
    outcome.add_rows(report, "delay");
    let [hits, copies] = counted.into_inner();
    ratios(&outcome, (hits, copies), report);
    let mismatches = summed.mismatches()? + plain.mismatches()?;
    report.ratio_with_bar("volume_mismatches", mismatches as f64, Good::AtMost, 0.0);
    report.note("volume: with checksums stable pages are always required, and `off` is refused");
    Ok(())
}

fn add(sum: &mut [u64; 2], before: &Stats, after: &Stats) {
    sum[0] += after.stable_hits - before.stable_hits;
    sum[1] += after.stable_copies - before.stable_copies;
}

fn ratios(outcome: &Outcome, (hits, copies): (u64, u64), report: &mut Report) {
    let p999 = |s: &crate::harness::load::Slice| s.hist.percentile(99.9) as f64;
    let max = paired(outcome, "volume-cow", "volume-wait", max_ms);
    report.ratio_with_bar("volume_cow_max_vs_wait", max, Good::AtMost, 0.1);
    let late = paired(outcome, "volume-cow", NO_SUMS, p999);
    report.ratio_with_bar("volume_cow_p999_vs_nosums", late, Good::AtMost, 1.5);
    let rate = outcome.ratio("volume-cow", NO_SUMS);
    report.ratio_with_bar("volume_cow_throughput_vs_nosums", rate, Good::AtLeast, 0.97);
    let share = copies as f64 / hits.max(1) as f64;
    report.ratio_with_bar("volume_copied_blocks_share", share, Good::AtMost, 1.1);
    let rival = "waiting (stable pages as they were)";
    let cell = "a volume with checksums, 2 ms device";
    report.cell(rival, &format!("{cell}: longest write, theirs over ours"), 1.0 / max);
    report.cell(rival, &format!("{cell}: rate"), outcome.ratio("volume-cow", "volume-wait"));
}
