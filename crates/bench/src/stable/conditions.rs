//! Common to all parts of `stable`: cache, device and mix of a slice, and how two variants are
//! compared.

use super::mix::{Length, Mix};
use crate::harness::alternate::{Outcome, Plan, Turn};
use crate::harness::load::Slice;
use crate::harness::options::Options;
use crate::report::model::median;
use std::time::Duration;

/// Size of the cache of Forebay's variants, bytes.
pub const BUDGET: u64 = 256 << 20;
/// Files of each client in a slice on the delay device.
pub const FILES: u64 = 20;
/// Rewrites per second.
pub const REWRITES: u64 = 8000;
pub const PER_IO: Duration = Duration::from_millis(2);
pub const BANDWIDTH: u64 = 100_000_000;

pub fn plan(options: &Options, rounds: usize) -> Plan {
    Plan::simple(options, options.rounds_or(2, rounds), options.millis(120, 700))
}

pub fn mix_of(turn: &Turn, files: Option<u64>) -> Mix {
    let length = files.map_or(Length::Time(turn.time), Length::Files);
    Mix { length, rewrites_per_second: REWRITES, seed: turn.seed }
}

pub fn max_ms(slice: &Slice) -> f64 {
    slice.hist.max() as f64 / 1e6
}

/// Median over rounds of a figure of one variant over that of another.
pub fn paired(outcome: &Outcome, ours: &str, other: &str, figure: impl Fn(&Slice) -> f64) -> f64 {
    let (ours, other) = (outcome.per_round(ours), outcome.per_round(other));
    let ratios = ours.iter().zip(&other).map(|(a, b)| figure(a) / figure(b).max(1e-9));
    median(&ratios.collect::<Vec<_>>())
}
