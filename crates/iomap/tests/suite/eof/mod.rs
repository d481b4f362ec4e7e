//! The end of file under stress: many at once append, truncate, trim and read around ends that are
//! unaligned, with every flag, on devices of 512 and 4096 byte blocks, through a small cache whose
//! frames carry the mark of their last owner (bounds.E1..E6; lineage.D4,
//! lineage.D14, lineage.S3). Story: an append that found the size moved between two looks at it
//! left another file's bytes in the file; a trim to the end took an append with it that had been
//! acknowledged meanwhile.
//!
//! `FOREBAY_EOF_RUNS` sets the number of simulated seeds (default 2,000 in an optimised build, 200
//! otherwise), `FOREBAY_EOF_SEED` the first, `FOREBAY_EOF_SECONDS` how long each real engine is
//! worked (default 2).

pub mod device;
mod driver;
mod history;
mod real;
mod sim;
pub mod waiting;

/// Sizes to begin with: their ends are not on borders.
fn first_size(rng: &mut u64) -> u64 {
    let mut draw = |below: u64| forebay_base::world::split_mix(rng) % below;
    [(1, 5_000), (4_000, 66_000), (100_000, 100_000)].map(|(from, spread)| from + draw(spread))
        [draw(3) as usize]
}
