//! Measurements after the writers of a slice have ended.

use super::fixture::Fixture;
use super::load::{self, Shape, Written};
use crate::harness::load::Slice;
use crate::report::model::Report;
use forebay_base::buf::AlignedBuf;
use forebay_base::task::block_on;
use forebay_base::units::MIB;
use forebay_base::{IoFlags, Result};
use forebay_lfs::{AllocMode, Volume};
use forebay_vfs::{FileSystem, Ino, Name, OpenFlags};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::time::Instant;

/// Number of files that are read again, and the most bytes read of each.
const READ_FILES: usize = 2;
const READ_BYTES: u64 = 64 * MIB;

/// Figures of one slice by name and unit, in the order of the rows.
pub type Figures = Vec<(&'static str, &'static str, f64)>;

/// Extents of files: their number, their bytes, and their device ranges in ascending order.
type Found = (u64, u64, Vec<(u64, u64)>);

/// Collects the extents of files.
pub fn extents(volume: &Volume, inodes: &[Ino]) -> Result<Found> {
    let (mut count, mut bytes, mut live) = (0, 0, Vec::new());
    for ino in inodes {
        for extent in block_on(volume.extents(*ino))? {
            count += 1;
            bytes += extent.len;
            live.extend(extent.physical.map(|at| (at, at + extent.len)));
        }
    }
    live.sort_unstable();
    Ok((count, bytes, live))
}

/// Free runs between live extents: their number, and their mean length in KiB.
fn free_runs(live: &[(u64, u64)]) -> (f64, f64) {
    let gaps: Vec<u64> =
        live.windows(2).map(|w| w[1].0.saturating_sub(w[0].1)).filter(|gap| *gap > 0).collect();
    let sum: u64 = gaps.iter().sum();
    (gaps.len() as f64, sum as f64 / 1024.0 / gaps.len().max(1) as f64)
}

/// Reads some files from start to end with an empty cache; returns MiB/s.
fn cold_read(fixture: &Fixture, inodes: &[Ino]) -> Result<f64> {
    let volume = block_on(fixture.open(AllocMode::Reserve, 64, false))?;
    let (begin, mut bytes) = (Instant::now(), 0);
    for ino in inodes.iter().take(READ_FILES) {
        let file = block_on(volume.open(*ino, OpenFlags::READ))?;
        let mut buf = AlignedBuf::new(MIB as usize);
        for at in (0..READ_BYTES).step_by(MIB as usize) {
            let (back, read) = block_on(file.read(at, buf, IoFlags::empty()));
            (buf, bytes) = (back, bytes + read.as_ref().map_or(0, |len| *len as u64));
            if read? < MIB as usize {
                break;
            }
        }
    }
    let seconds = begin.elapsed().as_secs_f64().max(1e-9);
    block_on(volume.close())?;
    Ok(bytes as f64 / MIB as f64 / seconds)
}

/// Share of the data segments in use that holds no live data; the unwritten end of the open segment
/// does not count.
fn tail_waste(volume: &Volume, live: u64) -> f64 {
    let free = volume.free_space();
    let begun = free.data_bytes.saturating_sub(free.open_bytes);
    if begun == 0 { 0.0 } else { 1.0 - live as f64 / begun as f64 }
}

/// One slice on a fresh volume: its operations, and the figures measured afterwards.
pub fn slice(
    fixture: &Fixture,
    mode: AllocMode,
    pages: u32,
    shape: &Shape,
) -> Result<(Slice, Figures)> {
    let volume = fixture.fresh(mode, pages)?;
    let (writes, seeks) = (fixture.writes(), fixture.seeks());
    let written = load::run(&volume, shape)?;
    let (writes, seeks) =
        (fixture.writes() - writes, fixture.seeks().zip(seeks).map(|(a, b)| a - b));
    let stats = volume.alloc_stats();
    block_on(volume.syncfs())?;
    let inodes: Vec<Ino> = written.jobs.iter().map(|job| job.0).collect();
    let (count, bytes, _) = extents(&volume, &inodes)?;
    let waste = tail_waste(&volume, bytes);
    let requests = (shape.direct as u64 * shape.count).max(1) as f64;
    let all = (shape.direct + shape.buffered) as u64 * shape.count;
    let mut figures: Figures = vec![
        ("extents_per_request", "1", stats.direct_extents as f64 / requests),
        ("extents_per_file", "1", count as f64 / inodes.len() as f64),
        ("kib_per_extent", "KiB", bytes as f64 / 1024.0 / count.max(1) as f64),
        ("bios_per_request", "1", writes as f64 / all as f64),
        ("record_bytes_per_request", "B", stats.record_bytes as f64 / all as f64),
        ("fairness", "1", written.fairness()),
        ("tail_waste", "1", waste),
    ];
    figures.extend(seeks.map(|seeks| ("seeks_per_request", "1", seeks as f64 / all as f64)));
    block_on(volume.close())?;
    drop(volume);
    figures.push(("cold_read", "MiB/s", cold_read(fixture, &inodes)?));
    figures.extend(after_removing(fixture, mode, pages, &written)?);
    Ok((written.slice, figures))
}

/// Removes every other file; returns the free runs between the remaining ones.
fn after_removing(
    fixture: &Fixture,
    mode: AllocMode,
    pages: u32,
    written: &Written,
) -> Result<Figures> {
    let volume = block_on(fixture.open(mode, pages, false))?;
    let mut stay = Vec::new();
    for (n, job) in written.jobs.iter().enumerate() {
        if n % 2 == 0 {
            stay.push(job.0);
            continue;
        }
        let name = format!("job{n}");
        block_on(volume.unlink(Ino::ROOT, Name::new(name.as_bytes())?))?;
    }
    let (_, _, live) = extents(&volume, &stay)?;
    let (runs, kib) = free_runs(&live);
    block_on(volume.close())?;
    Ok(vec![("free_runs", "1", runs), ("free_run_kib", "KiB", kib)])
}

/// The figures of all slices, by variant.
#[derive(Default)]
pub struct All(RefCell<BTreeMap<&'static str, Vec<Figures>>>);

impl All {
    /// Adds the figures of a slice.
    pub fn add(&self, variant: &'static str, figures: Figures) {
        self.0.borrow_mut().entry(variant).or_default().push(figures);
    }

    /// One figure of a variant, by slice.
    pub fn values(&self, variant: &str, name: &str) -> Vec<f64> {
        let all = self.0.borrow();
        let slices = all.get(variant).into_iter().flatten().flatten();
        slices.filter(|figure| figure.0 == name).map(|figure| figure.2).collect()
    }

    /// Adds a row for each figure.
    pub fn rows(&self, report: &mut Report, prefix: &str) {
        for (variant, slices) in self.0.borrow().iter() {
            let Some(first) = slices.first() else { continue };
            for (n, (name, unit, _)) in first.iter().enumerate() {
                let values: Vec<f64> = slices.iter().map(|figures| figures[n].2).collect();
                report.row(variant, &format!("{prefix}_{name}"), unit, &values);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn free_runs_are_gaps_between_live_ranges() {
        assert_eq!(
            free_runs(&[(0, 4096), (4096, 8192), (12288, 16384), (20480, 24576)]),
            (2.0, 4.0)
        );
        assert_eq!(free_runs(&[]), (0.0, 0.0));
    }

    #[test]
    fn slice_measures_written_files() {
        let fixture = Fixture::memory(1 << 30);
        let shape = Shape::large("x", 3, 1, 2);
        let (slice, figures) = self::slice(&fixture, AllocMode::Reserve, 64, &shape).unwrap();
        assert_eq!((slice.ops, slice.bytes), (8, 16 * MIB));
        let figure = |name: &str| figures.iter().find(|f| f.0 == name).unwrap().2;
        assert_eq!(figure("extents_per_request"), 1.0);
        assert!(figure("extents_per_file") <= 4.0 && figure("tail_waste") >= 0.0);
        // If the writers hardly overlap there may be no gap: the number depends on timing.
        assert_eq!(figure("free_runs") > 0.0, figure("free_run_kib") > 0.0, "{figures:?}");
        assert!(figure("cold_read") > 0.0 && figure("record_bytes_per_request") > 512.0 * 4.0);
    }
}
