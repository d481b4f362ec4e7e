//! The possible contents of a disk after a power loss, its crash states.
//!
//! A crash state holds everything durable, and any subset of the writes that were completed but not
//! flushed, or in flight. These keep their order, and each is complete or torn between sectors. A
//! [`PowerCut`] is a moment at which the power may fail. [`PowerCut::states`] lists all subsets if
//! they are few, and a systematic choice otherwise. [`SimDisk::power_cut`] draws one state.
//!
//! Invariants: R1 flushed data and data written with FUA is in every crash state. R2 the text of a
//! state's fates gives the state again.
//!
//! No locks of its own.

use crate::config::SimConfig;
use crate::disk::SimDisk;
use crate::image::{Change, Image, split};
use crate::media::Pending;
use crate::power_cut::PowerCut;
use crate::reads::{Read, Reads};
use forebay_base::sim_world::SimWorld;
use forebay_base::world::{Nanos, split_mix};
use std::ops::Range;
use std::sync::Arc;

/// With up to this many pending writes, [`SimDisk::crash_states`] lists all subsets.
const ALL_SUBSETS: usize = 8;
/// Random subsets beyond that.
const SAMPLES: u64 = 64;
/// Random subsets with torn writes, whatever the number of pending writes.
const TORN_SAMPLES: u64 = 8;
/// The unit that some disks never tear, bytes.
const PAGE_BYTES: usize = 4096;
/// Number of random tears that have a letter.
const RANDOM_TEARS: u64 = 10;

/// How a write of several sectors is torn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Tear {
    /// The first half is kept.
    FirstHalf,
    /// The last half is kept.
    LastHalf,
    /// Every other sector is kept.
    EvenSectors,
    /// Every other 4 KiB, on a disk of smaller sectors.
    EvenPages,
    /// The others.
    OddPages,
    /// Each sector by a coin, from a seed below 10.
    Random(u8),
}

const TEARS: [Tear; 4] = [Tear::FirstHalf, Tear::LastHalf, Tear::EvenSectors, Tear::Random(1)];
const PAGE_TEARS: [Tear; 2] = [Tear::EvenPages, Tear::OddPages];

/// The fate of one pending write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fate {
    /// It is lost.
    Gone,
    /// It is kept.
    Whole,
    /// A part of it is kept.
    Torn(Tear),
}

impl Fate {
    /// One character (crash.R2).
    pub fn letter(self) -> char {
        match self {
            Self::Gone => '.',
            Self::Whole => '+',
            Self::Torn(Tear::FirstHalf) => '<',
            Self::Torn(Tear::LastHalf) => '>',
            Self::Torn(Tear::EvenSectors) => 'e',
            Self::Torn(Tear::EvenPages) => 'p',
            Self::Torn(Tear::OddPages) => 'q',
            Self::Torn(Tear::Random(seed)) => char::from(b'0' + seed % RANDOM_TEARS as u8),
        }
    }

    /// From its character.
    pub fn from_letter(letter: char) -> Option<Self> {
        Some(match letter {
            '.' => Self::Gone,
            '+' => Self::Whole,
            '<' => Self::Torn(Tear::FirstHalf),
            '>' => Self::Torn(Tear::LastHalf),
            'e' => Self::Torn(Tear::EvenSectors),
            'p' => Self::Torn(Tear::EvenPages),
            'q' => Self::Torn(Tear::OddPages),
            '0'..='9' => Self::Torn(Tear::Random(letter as u8 - b'0')),
            _ => return None,
        })
    }
}

/// One outcome of a power loss. Numbers are positions in the order of completion.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Plan {
    /// The writes whose bit is set.
    Subset(u64),
    /// The first `n`.
    Prefix(usize),
    /// All but one.
    Drop(usize),
    /// One alone.
    Keep(usize),
    /// Each by a coin, some torn if the flag says so.
    Sample(u64, bool),
    /// All before this one, and this one torn.
    Torn(usize, Tear),
    /// All, this one torn.
    TornAmongAll(usize, Tear),
}

/// One possible content of the disk.
pub struct CrashState {
    /// The fates of the pending writes, a letter each in the order of completion: see [`Fate`].
    pub label: String,
    image: Image,
    config: SimConfig,
}

impl CrashState {
    /// A disk that durably holds this state, power on, in `world`.
    pub fn mount(&self, world: Arc<SimWorld>) -> SimDisk {
        SimDisk::with_image(world, self.config.clone(), self.image.clone())
    }

    /// A digest of the disk's content.
    pub fn sum(&self) -> u64 {
        self.image.sum()
    }

    /// A digest of the content of these sectors.
    pub fn sum_of(&self, read: Read) -> u64 {
        self.image.sum_of(read.first, read.count)
    }

    /// This state with one bit of the sector that holds byte `offset` wrong.
    pub fn spoiled(&self, offset: u64) -> Self {
        let sector = self.image.sector_bytes();
        let number = offset / sector;
        let mut bytes = vec![0; sector as usize];
        self.image.read(number * sector, &mut bytes);
        bytes[(offset % sector) as usize] ^= 0x10;
        let mut image = self.image.clone();
        split(number, bytes, sector as usize).into_iter().for_each(|change| image.set(change));
        Self { label: self.label.clone(), image, config: self.config.clone() }
    }

    /// This state on a disk that has become larger.
    pub fn grown(&self, bytes: u64) -> Self {
        let config = SimConfig { size: bytes.max(self.config.size), ..self.config.clone() };
        Self { label: self.label.clone(), image: self.image.clone(), config }
    }

    /// Bytes that the disk holds, at `offset`.
    pub fn peek(&self, offset: u64, len: usize) -> Vec<u8> {
        let mut out = vec![0; len];
        self.image.read(offset, &mut out);
        out
    }

    /// Bytes of the disk.
    pub fn size(&self) -> u64 {
        self.config.size
    }

    /// Records the reads of disks that begin with this state, once [`SimDisk::record_reads`] asks
    /// for it.
    pub fn reads(&self) -> Reads {
        Reads::of(self.image.clone())
    }

    /// Records a read of this state, which was made from the state that `reads` records.
    pub fn note_read(&self, reads: &Reads, read: Read) {
        reads.note(&self.image, read);
    }

    /// Whether a write is lost.
    pub fn lost(&self) -> bool {
        self.label.contains('.')
    }

    /// Whether a write is torn.
    pub fn torn(&self) -> bool {
        self.label.contains(|letter| !matches!(letter, '.' | '+'))
    }

    /// Whether a write is kept and one that had completed before it is not.
    pub fn reordered(&self) -> bool {
        self.label.find('.').is_some_and(|lost| self.label[lost..].contains(|c| c != '.'))
    }
}

/// Iterator over crash states. Made by [`PowerCut::states`].
pub struct CrashStates {
    cut: PowerCut,
    plans: std::vec::IntoIter<Plan>,
}

impl Iterator for CrashStates {
    type Item = CrashState;
    fn next(&mut self) -> Option<CrashState> {
        let plan = self.plans.next()?;
        let fates = fates(plan, &self.cut.parts);
        Some(self.cut.state(&fates))
    }
    fn size_hint(&self) -> (usize, Option<usize>) {
        self.plans.size_hint()
    }
}

impl ExactSizeIterator for CrashStates {}

impl CrashStates {
    /// The same states in an order drawn from the seed. The first one stays the first: it has lost
    /// every pending write.
    #[must_use]
    pub fn shuffled(self, mut seed: u64) -> Self {
        let mut plans: Vec<Plan> = self.plans.collect();
        for last in (2..plans.len()).rev() {
            plans.swap(last, 1 + (split_mix(&mut seed) % last as u64) as usize);
        }
        Self { plans: plans.into_iter(), ..self }
    }
}

impl PowerCut {
    /// The crash states of this moment: all subsets of at most `all_upto` pending writes. With more
    /// writes: all prefixes, all but each one, each one alone, and samples. Also each write of
    /// several sectors torn in several ways.
    pub fn states(&self, all_upto: usize) -> CrashStates {
        CrashStates { cut: self.clone(), plans: plans_for(&self.parts, all_upto).into_iter() }
    }

    /// The state with these fates of the pending writes. Writes without a fate are lost.
    pub fn state(&self, fates: &[Fate]) -> CrashState {
        let mut image = self.media.durable.clone();
        for (part, fate) in self.parts.iter().zip(fates) {
            match fate {
                Fate::Gone => {}
                Fate::Whole => part.changes.iter().for_each(|c| image.set(c.clone())),
                Fate::Torn(tear) => apply_torn(&mut image, &part.changes, *tear),
            }
        }
        let label = fates.iter().map(|fate| fate.letter()).collect();
        CrashState { label, image, config: self.config.clone() }
    }

    /// The disk after a kill of the process while the machine runs on, as [`PowerCut::killed`]. But
    /// some of the writes in flight to bytes in `within` are still in flight. They complete within
    /// `spread` nanoseconds of the next life, and before it changes anything: the lock on the image
    /// outlives them, so a real next life does not even read before.
    pub fn killed_late(
        &self,
        seed: u64,
        (spread, within): (Nanos, Range<u64>),
        world: Arc<SimWorld>,
    ) -> SimDisk {
        let (mut media, mut state) = (self.media.clone().for_next_user(), seed);
        let mut late = Vec::new();
        for part in &self.parts[self.media.pending.len()..] {
            let bytes = |number: u64| number * u64::from(self.config.sector);
            let inside = part.changes.iter().all(|(number, _)| within.contains(&bytes(*number)));
            match split_mix(&mut state) % 4 {
                0 => {}
                way if way == 1 || !inside => media.store(part.op, part.changes.clone(), false),
                _ => late.push((split_mix(&mut state) % spread.max(1), part.clone())),
            }
        }
        let disk = SimDisk::with_media(world, self.config.clone(), media);
        late.into_iter().for_each(|(after, part)| disk.land_later(after, part));
        disk
    }

    /// The disk after a kill of the process while the machine runs on: all completed writes, still
    /// volatile, and any of those in flight, by the seed. The disk no longer fails, and has evicted
    /// writes that a failed flush has lost: as long as they read back, no next user can know of the
    /// loss.
    pub fn killed(&self, seed: u64, world: Arc<SimWorld>) -> SimDisk {
        let (mut media, mut state) = (self.media.clone().for_next_user(), seed);
        for part in &self.parts[self.media.pending.len()..] {
            if split_mix(&mut state) & 1 == 0 {
                media.store(part.op, part.changes.clone(), false);
            }
        }
        SimDisk::with_media(world, self.config.clone(), media)
    }
}

impl SimDisk {
    /// One crash state of this moment, by the seed. The disk itself is unchanged.
    pub fn power_cut(&self, seed: u64) -> SimDisk {
        self.cut_state(seed).mount(self.world().clone())
    }

    /// The state that [`SimDisk::power_cut`] leaves.
    pub fn cut_state(&self, seed: u64) -> CrashState {
        let cut = self.cut_now();
        cut.state(&fates(Plan::Sample(seed, true), &cut.parts))
    }

    /// The disk after a kill of the process now: [`PowerCut::killed`].
    pub fn process_crash(&self, seed: u64) -> SimDisk {
        self.cut_now().killed(seed, self.world().clone())
    }

    /// The crash states of this moment: [`PowerCut::states`] with all subsets of at most 8 pending
    /// writes.
    pub fn crash_states(&self) -> CrashStates {
        self.cut_now().states(ALL_SUBSETS)
    }
}

fn plans_for(parts: &[Pending], all_upto: usize) -> Vec<Plan> {
    let n = parts.len();
    let mut plans = Vec::new();
    if n <= all_upto.min(20) {
        plans.extend((0..1u64 << n).map(Plan::Subset));
    } else {
        plans.extend((0..=n).map(Plan::Prefix));
        plans.extend((0..n - 1).map(Plan::Drop));
        plans.extend((1..n).map(Plan::Keep));
        plans.extend((0..SAMPLES).map(|s| Plan::Sample(s, false)));
    }
    for (i, part) in parts.iter().enumerate() {
        let pages = if part.tears_between_pages() { &PAGE_TEARS[..] } else { &[] };
        if part.changes.len() > 1 {
            for tear in TEARS.iter().chain(pages) {
                plans.push(Plan::Torn(i, *tear));
                plans.extend((i + 1 < n).then_some(Plan::TornAmongAll(i, *tear)));
            }
        }
    }
    if parts.iter().any(|p| p.changes.len() > 1) {
        plans.extend((0..TORN_SAMPLES).map(|s| Plan::Sample(s, true)));
    }
    plans
}

fn whole_if(kept: bool) -> Fate {
    if kept { Fate::Whole } else { Fate::Gone }
}

fn fates(plan: Plan, parts: &[Pending]) -> Vec<Fate> {
    let mut coins = if let Plan::Sample(seed, _) = plan { seed } else { 0 };
    // Sparse samples and nearly full ones are both likely.
    let odds = split_mix(&mut coins) % 5;
    let fate = |(i, _): (usize, &Pending)| match plan {
        Plan::Subset(bits) => whole_if(bits >> i & 1 == 1),
        Plan::Prefix(n) => whole_if(i < n),
        Plan::Drop(gone) => whole_if(i != gone),
        Plan::Keep(kept) => whole_if(i == kept),
        Plan::Torn(at, tear) if i == at => Fate::Torn(tear),
        Plan::Torn(at, _) => whole_if(i < at),
        Plan::TornAmongAll(at, tear) if i == at => Fate::Torn(tear),
        Plan::TornAmongAll(..) => Fate::Whole,
        Plan::Sample(_, torn) => {
            let (kept, how) = (split_mix(&mut coins) % 4 < odds, split_mix(&mut coins));
            if kept && torn && how & 3 == 0 {
                Fate::Torn(tear_of(how >> 2))
            } else {
                whole_if(kept)
            }
        }
    };
    parts.iter().enumerate().map(fate).collect()
}

fn tear_of(number: u64) -> Tear {
    match TEARS[(number % 4) as usize] {
        Tear::Random(_) => Tear::Random((number / 4 % RANDOM_TEARS) as u8),
        other => other,
    }
}

fn apply_torn(image: &mut Image, changes: &[Change], tear: Tear) {
    let half = changes.len() / 2;
    let mut coins = if let Tear::Random(seed) = tear { u64::from(seed) } else { 0 };
    for (i, change) in changes.iter().enumerate() {
        let even_page = |c: &Change| (c.0 / sectors_of_page(c).max(1)).is_multiple_of(2);
        let kept = match tear {
            Tear::FirstHalf => i < half,
            Tear::LastHalf => i >= half,
            Tear::EvenSectors => i % 2 == 0,
            Tear::EvenPages => even_page(change),
            Tear::OddPages => !even_page(change),
            Tear::Random(_) => split_mix(&mut coins) & 1 == 0,
        };
        if kept {
            image.set(change.clone());
        }
    }
}

/// Sectors in 4 KiB; 1 for a hole, whose sector size is unknown here.
fn sectors_of_page(change: &Change) -> u64 {
    let bytes = change.1.as_ref().map_or(PAGE_BYTES, |sector| sector.bytes().len());
    (PAGE_BYTES / bytes) as u64
}

impl Pending {
    /// Whether it has sectors in several pages of 4 KiB, and pages have several sectors.
    fn tears_between_pages(&self) -> bool {
        let (Some(first), Some(last)) = (self.changes.first(), self.changes.last()) else {
            return false;
        };
        let sectors = sectors_of_page(first);
        sectors > 1 && first.0 / sectors != last.0 / sectors
    }
}
