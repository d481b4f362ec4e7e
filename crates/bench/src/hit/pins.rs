//! Pin and unpin compared with a copying read of cached data, 4 KiB and 64 KiB, through the
//! library.
//!
//! Invariants: pins.H1 both variants use the same offsets of a completely cached image. pins.H2 a
//! pin that was copied, or is short, fails the bench, because its time would measure something
//! else.

use super::fixture::Bench;
use crate::harness::alternate::{Turn, Variant, alternate};
use crate::harness::load::{Load, Slice, Target, run_in_caller};
use crate::report::model::{Good, Report};
use forebay::File;
use forebay_base::units::{KIB, format_size};
use forebay_base::{Error, ErrorKind, IoFlags, Result};
use std::hint::black_box;

/// A read that pins, reads the first byte of each run, and unpins.
struct Pinning<'a>(&'a File);

impl Target for Pinning<'_> {
    #[inline]
    fn read(&self, buf: &mut [u8], offset: u64) -> Result<()> {
        let pinned = self.0.pin(offset, buf.len(), IoFlags::empty())?;
        if pinned.is_copy() {
            return Err(Error::new(ErrorKind::Busy, "pin", "a copy (pins.H2)"));
        }
        let mut len = 0;
        for run in pinned.extents() {
            black_box(run[0]);
            len += run.len();
        }
        match len == buf.len() {
            true => Ok(()),
            false => Err(Error::new(ErrorKind::UnexpectedEof, "pin", "short (pins.H2)")),
        }
    }

    fn write(&self, _: &[u8], _: u64) -> Result<()> {
        unreachable!("pins are read")
    }
}

/// Sizes, and the bar: time of a pin over that of a copying read.
const SIZES: [(u64, &str, f64); 2] = [(4 * KIB, "4k", 1.2), (64 * KIB, "64k", 0.5)];

pub(super) fn run(bench: &Bench, report: &mut Report) -> Result<()> {
    for (block, name, bar) in SIZES {
        let pinning = Pinning(&bench.ours.file);
        let slice = |target: &dyn Target, turn: &Turn| -> Result<Slice> {
            let load = bench.load(false, bench.size, turn.time, turn.seed);
            run_in_caller(target, &Load { block: block as usize, ..load })
        };
        let copy = Variant::new("copy", |turn| slice(&bench.ours, turn));
        let pin = Variant::new("pin", |turn| slice(&pinning, turn));
        let memcpy = Variant::new("memcpy", |turn| slice(&bench.memory, turn));
        let outcome = alternate(&mut [copy, pin, memcpy], &bench.plan)?;
        let group = format!("pin_{name}");
        outcome.add_rows(report, &group);
        outcome.add_notes(report, &group, "memcpy");
        // The ratio of times is the inverse of the ratio of rates.
        let ratio = outcome.ratio("copy", "pin");
        report.ratio_with_bar(&format!("pin_{name}_time_vs_copy"), ratio, Good::AtMost, bar);
        let size = format_size(bench.size);
        let block = format_size(block);
        report.note(format!("{block} of {size}, cached: pin and unpin take {ratio:.3} of a copy"));
    }
    Ok(())
}
