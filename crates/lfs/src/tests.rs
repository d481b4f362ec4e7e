//! Tests of the stored form: a stored structure reads back, damage is reported, and the bytes stay
//! the same from version to version. Tests of the volume, also compared with the file system in
//! memory. The crate `forebay-crashtest` tests power losses.
//!
//! `FOREBAY_SEED` sets the first seed (default 1). No locks.

mod alloc;
mod appends;
mod behaviours;
mod blocking;
mod changes;
mod checkpoint_timing;
mod checkpoints;
pub(crate) mod clean;
mod closed;
mod cut_openings;
mod damage;
mod differential;
mod dropped;
mod dropped_ops;
mod failed_writes;
pub(crate) mod faults;
mod flips;
mod flush_sharing;
mod full;
mod full_log;
mod fuzz;
mod golden;
mod grow;
mod held_back;
mod hostile;
mod kept_segments;
mod late;
mod limits;
mod loads;
mod lock_count;
mod log;
mod log_end;
mod lookups;
mod lost;
mod maintenance;
mod many;
mod names;
mod near_reads;
mod node_places;
mod open_reads;
mod outage;
mod overwrite;
mod read_only;
mod removed;
mod replay;
pub(crate) mod reuse;
mod scan_cache;
mod setup;
mod slots;
mod space_stats;
mod summary;
mod sums_off;
mod superblock;
mod tree;
mod volume;

/// Seeds of `runs` runs.
pub(crate) fn seeds(runs: u64) -> impl Iterator<Item = u64> {
    let first =
        std::env::var("FOREBAY_SEED").ok().and_then(|text| text.parse().ok()).unwrap_or(1u64);
    first..first + runs
}
