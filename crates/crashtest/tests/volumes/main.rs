//! The power fails at every request of small workloads on a volume. The tests recover what the disk
//! may have kept, use it, and let the power fail again. They find each injected fault.
//!
//! `FOREBAY_LFS_SEEDS` sets the number of seeds of each test, `FOREBAY_SEED` the first,
//! `FOREBAY_CRASH_STATES` the states of the campaign. No locks.

mod campaigns;
mod clients;
mod cuts;
mod forged;
mod orders;
mod planted;
mod refused;
mod storms;

/// A number from the environment.
pub fn from_env(name: &str) -> Option<u64> {
    std::env::var(name).ok().and_then(|text| text.parse().ok())
}

/// Seeds of `runs` runs.
pub fn seeds(runs: u64) -> impl Iterator<Item = u64> {
    let first = from_env("FOREBAY_SEED").unwrap_or(1);
    first..first + from_env("FOREBAY_LFS_SEEDS").unwrap_or(runs)
}
