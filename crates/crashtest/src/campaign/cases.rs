//! The workloads of a campaign, by number: short ones of one step in each setup of a volume, short
//! ones of two steps, and long ones from seeds.
//!
//! Invariant: K1 the seed and the number determine the workload.
//!
//! No locks.

use super::class::{CLASSES, Class, ONE_STEP, TWO_STEPS, of_round};
use crate::workload::draw::short_setup;
use crate::workload::short::{PAIRS, SINGLES};
use crate::workload::{Case, Kind, Setup};
use forebay_base::world::split_mix;
use forebay_lfs::fault::Planted;

/// Workloads come in rounds: first sequences of one step, then of two, then a long one.
const ROUND: u64 = 6;
const SINGLES_OF_ROUND: u64 = 3;
const LONG: u64 = ROUND - 1;
/// Coprime to the numbers of sequences, so that these strides visit all of them.
const SINGLE_STRIDE: u64 = 37;
const PAIR_STRIDE: u64 = 4_001;

impl Case {
    /// Workload `number` of the campaign with this seed (cases.K1).
    pub fn new(seed: u64, number: u64, plant: Option<Planted>) -> Self {
        let mut draw = seed ^ number.rotate_left(20);
        let drawn = split_mix(&mut draw);
        let (round, within) = (number / ROUND, number % ROUND);
        let (class, (kind, setup)) = match within {
            0..SINGLES_OF_ROUND => {
                let single = round * SINGLES_OF_ROUND + within;
                let at = single.wrapping_mul(SINGLE_STRIDE).wrapping_add(seed) % SINGLES;
                let setup = short_setup(seed.wrapping_add(single / SINGLES), drawn);
                (ONE_STEP, (Kind::Single(at), setup))
            }
            SINGLES_OF_ROUND..LONG => {
                let pair = round * (LONG - SINGLES_OF_ROUND) + within - SINGLES_OF_ROUND;
                let at = pair.wrapping_mul(PAIR_STRIDE).wrapping_add(seed) % PAIRS;
                (TWO_STEPS, (Kind::Pair(at), short_setup(drawn, drawn)))
            }
            _ => {
                let (class, seed) = of_round(seed, round);
                (class, (CLASSES[class].draw)(seed))
            }
        };
        Self { number, class, kind, setup: Setup { plant, ..setup } }
    }

    /// Its class.
    pub fn class(&self) -> &'static Class {
        &CLASSES[self.class]
    }
}
