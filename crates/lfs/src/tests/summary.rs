//! Summaries of segments.
//!
//! No locks.

use super::damage::{cut_anywhere, flip_anywhere};
use super::seeds;
use crate::format::place::{Geometry, Seal};
use crate::format::summary::{
    Summary, SummaryEntry, blocks_before_summary, summary_bytes, summary_place,
};
use crate::fuzz::make::{Make, geometry, seal};

#[test]
fn summary_reads_back_as_stored() {
    let g = geometry(false);
    for seed in seeds(200) {
        let mut bytes = vec![0xaa; summary_bytes(&g) as usize];
        let (header, entries) = Make(seed).summary(&mut bytes, &g);
        let summary = Summary::open(&bytes, seal(), header.segment, &g).unwrap();
        assert_eq!(summary.header, header, "seed {seed}");
        assert_eq!(summary.entries().collect::<Vec<_>>(), entries, "seed {seed}");
        let blocks = g.blocks_per_segment() - summary_bytes(&g) / 4096;
        assert_eq!(entries.len() as u32, blocks, "one for each block before the summary (S1)");
        assert_eq!(summary.entry(entries.len() as u32), None);
    }
}

/// format.F3, summary.S3: a summary is refused if it is cut short, if any bit is flipped, and in
/// another segment or volume.
#[test]
fn damage_is_reported() {
    let g = Geometry::with_segment_shift(16);
    let mut bytes = vec![0xaa; summary_bytes(&g) as usize];
    let (header, _) = Make(3).summary(&mut bytes, &g);
    cut_anywhere(&bytes, |b| Summary::open(b, seal(), header.segment, &g).map(drop));
    flip_anywhere(&bytes, |b| Summary::open(b, seal(), header.segment, &g).map(drop));
    Summary::open(&bytes, seal(), header.segment ^ 1, &g).expect_err("another segment's (S3)");
    let foreign = Seal::new(b"another volume's");
    Summary::open(&bytes, foreign, header.segment, &g).expect_err("another volume's (S3)");
}

/// Found by the fuzzer: a sealed summary with the number that means "no segment" was accepted.
#[test]
fn no_segment_has_no_summary() {
    let g = Geometry::with_segment_shift(16);
    let mut bytes = vec![0; summary_bytes(&g) as usize];
    Make(3).summary(&mut bytes, &g);
    bytes[8..12].copy_from_slice(&u32::MAX.to_le_bytes());
    let sum = seal().sum(summary_place(u32::MAX, &g), &bytes, 12);
    bytes[12..16].copy_from_slice(&sum.to_le_bytes());
    let error = Summary::open(&bytes, seal(), u32::MAX, &g).expect_err("there is none");
    assert!(error.to_string().contains("segment"), "{error}");
}

/// summary.S2: an entry stores the largest distance for a birth that is farther off the base than
/// that.
#[test]
fn births_far_off_the_base_are_lower_bounds() {
    let exact = SummaryEntry::Data(1, (1 << 54) - 1, (1 << 26) - 1).to_bytes().unwrap();
    let cut = SummaryEntry::Data(1, (1 << 54) - 1, u64::MAX).to_bytes().unwrap();
    assert_eq!(exact, cut);
    SummaryEntry::Data(0, 0, 0).to_bytes().expect_err("no data has id 0");
    SummaryEntry::Data((1 << 48) - 1, 0, 0).to_bytes().expect_err("that one means a node");
    SummaryEntry::Data(1, 1 << 54, 0).to_bytes().expect_err("no file has this block");
}

#[test]
fn summaries_take_what_the_document_says() {
    let default = geometry(false);
    let default = Geometry { segment_shift: 26, ..default };
    let share = f64::from(summary_bytes(&default)) / f64::from(default.segment_bytes());
    assert!((0.0039..0.0040).contains(&share), "{share}");
    assert_eq!(summary_bytes(&default), 262_144 + 4096);
    assert_eq!(summary_place(9, &default).segment, 9);
    assert_eq!(blocks_before_summary(&default), 16_384 - 65);
    assert_eq!(blocks_before_summary(&Geometry::with_segment_shift(16)), 15);
}
