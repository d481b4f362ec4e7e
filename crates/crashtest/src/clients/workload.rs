//! A workload of several clients, and what a life of it adds to the counters.
//!
//! No locks.

use super::ground::IMAGE_BYTES;
use super::plan::{Draw, Step, steps};
use super::run::Ran;
use crate::search::Seen;
use crate::workload::{Case, Kind, Setup};

/// All subsets of up to this many pending writes.
pub const ALL_UPTO: usize = 4;

/// How a workload of several clients is drawn.
#[derive(Debug, Clone)]
pub struct Clients {
    /// The volume, or the disk of an image.
    pub setup: Setup,
    /// A volume; else a raw image.
    pub is_volume: bool,
    /// The steps.
    pub draw: Draw,
}

impl Clients {
    /// The workload that a case describes.
    pub fn of(case: &Case) -> Self {
        let setup = case.setup.clone();
        let (is_volume, drops) = match case.kind {
            Kind::Clients => (true, 0),
            Kind::Dropped => (true, 3),
            _ => (false, 3),
        };
        let unit = u64::from(if is_volume { setup.block_bytes } else { setup.sector });
        let bytes = if is_volume { setup.file_bytes } else { IMAGE_BYTES };
        let (seed, clients) = (setup.seed, 2 + (setup.seed >> 3) as usize % 2);
        let draw = Draw { seed, steps: 30, clients, bytes, unit, names: is_volume, drops };
        Self { setup, is_volume, draw }
    }

    /// Its steps.
    pub fn steps(&self) -> Vec<Step> {
        steps(&self.draw)
    }
}

/// Adds the counters of a life.
pub fn count(ran: &Ran, seen: &mut Seen) {
    let (counts, past, [reads, writes, flushes]) = (&mut seen.counts, &ran.past, ran.failed);
    counts.syncs += past.syncs.len() as u64;
    counts.syncs_failed += past.failed;
    counts.full += u64::from(past.full > 0);
    counts.unchecked += ran.unchecked;
    counts.no_space += ran.no_space;
    counts.rotten += ran.rotten;
    counts.grown += u64::from(ran.grown);
    counts.add_flagged(past.flagged);
    counts.dropped += past.dropped;
    counts.reads_failed += reads;
    counts.writes_failed += writes;
    counts.flushes_failed += flushes;
    counts.most_memory = counts.most_memory.max(past.most_memory);
}
