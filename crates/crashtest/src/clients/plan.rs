//! What the clients of a run do: drawn from the seed. No step needs another one, so the search for
//! a shorter run can leave any of them out.
//!
//! No locks.

use super::names::How;
use crate::workload::At;
use forebay_base::IoFlags;
use forebay_base::world::split_mix;

/// Names in each of the two directories.
const LETTERS: u64 = 3;
/// Operations on names of one run.
const NAME_STEPS_MAX: usize = 40;

/// What a step does. Operations on content use the file that the client opened last.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Act {
    /// Opens a file.
    Open(At),
    /// Makes a file, or opens it.
    Create(At, bool),
    /// One more name for the file.
    Link(At),
    /// Takes a name away.
    Unlink(At),
    /// Moves a name.
    Rename(At, At, How),
    /// Writes.
    Write(u64, u64, IoFlags),
    /// Writes at the end of file.
    Append(u64, IoFlags),
    /// Sets the size.
    Truncate(u64),
    /// Makes zeros of a range; with the flag the range is punched out.
    Zero(u64, u64, bool),
    /// Reads.
    Read(u64, u64, IoFlags),
    /// Syncs the file; with the flag its content only.
    Sync(bool),
    /// Syncs everything.
    SyncFs,
    /// Makes a checkpoint of the volume.
    Checkpoint,
    /// Waits, nanoseconds.
    Pause(u64),
}

/// When an operation is dropped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Drop {
    /// The number of polls that find it waiting before it is dropped.
    pub polls: u32,
    /// It is dropped when it would be polled again, and not right after the last poll.
    pub late: bool,
}

/// One step of one client.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Step {
    /// Whose.
    pub client: usize,
    /// What.
    pub act: Act,
    /// The operation is dropped in the middle.
    pub dropped: Option<Drop>,
}

/// How steps are drawn.
#[derive(Debug, Clone, Copy)]
pub struct Draw {
    /// Seed.
    pub seed: u64,
    /// Steps.
    pub steps: usize,
    /// Clients.
    pub clients: usize,
    /// Largest end of a range, bytes.
    pub bytes: u64,
    /// Unit of direct requests, bytes.
    pub unit: u64,
    /// There are names; else one image.
    pub names: bool,
    /// One in this many operations is dropped; 0: none.
    pub drops: u64,
}

/// The steps of a run.
pub fn steps(draw: &Draw) -> Vec<Step> {
    let mut rng = draw.seed ^ 0xc11e;
    let mut names = 0;
    let mut again: Option<(usize, Act)> = None;
    let step = |n: usize| {
        let client = match n < draw.clients {
            true => n,
            false => pick(&mut rng, draw.clients as u64) as usize,
        };
        // A client that gave an operation up tries something else with the same range.
        let next = again.take().filter(|_| pick(&mut rng, 2) == 0);
        let (client, act) = match next {
            Some(next) => next,
            None => (client, act(draw, n < draw.clients, &mut rng, &mut names)),
        };
        let (drop, late) = (pick(&mut rng, draw.drops.max(1)), pick(&mut rng, 3) == 0);
        // Most operations wait only a few times.
        let polls = [0, 0, 0, 0, 1, 1, 2, 5][pick(&mut rng, 8) as usize];
        let dropped = (draw.drops > 0 && drop == 0).then_some(Drop { polls, late });
        again = dropped.and_then(|_| write_over(&act, draw.unit)).map(|act| (client, act));
        Step { client, act, dropped }
    };
    (0..draw.steps).map(step).collect()
}

/// A write past the cache of the range that an operation changes.
fn write_over(act: &Act, unit: u64) -> Option<Act> {
    let (Act::Write(start, len, _) | Act::Zero(start, len, _)) = *act else { return None };
    let flags = IoFlags::DIRECT | IoFlags::FALLBACK | IoFlags::DSYNC;
    Some(Act::Write(start / unit * unit, len.next_multiple_of(unit).min(4 * unit), flags))
}

fn pick(rng: &mut u64, n: u64) -> u64 {
    split_mix(rng) % n
}

fn at(rng: &mut u64) -> At {
    (pick(rng, 3).min(1) as u8, pick(rng, LETTERS) as u8)
}

fn act(draw: &Draw, is_first: bool, rng: &mut u64, names: &mut usize) -> Act {
    let of_names = draw.names && (is_first || pick(rng, 100) < 38);
    if of_names && *names < NAME_STEPS_MAX {
        *names += 1;
        return match pick(rng, 16) {
            _ if is_first => Act::Open(at(rng)),
            0..5 => Act::Open(at(rng)),
            5..8 => Act::Create(at(rng), pick(rng, 3) == 0),
            8 => Act::Link(at(rng)),
            9 | 10 => Act::Unlink(at(rng)),
            _ => {
                let how = [How::Replace, How::Replace, How::New, How::Exchange];
                Act::Rename(at(rng), at(rng), how[pick(rng, 4) as usize])
            }
        };
    }
    let flags = flags(rng);
    let (start, len) = range(draw, flags, rng);
    match pick(rng, 32) {
        0..10 => Act::Write(start, len, flags),
        10..15 if draw.names => Act::Append(len, flags),
        15..18 if draw.names => Act::Truncate(start),
        10..14 | 18..21 => Act::Zero(start, len, pick(rng, 2) == 0),
        21..26 => Act::Read(start, len * 2, flags - IoFlags::DSYNC),
        26..29 => Act::Sync(pick(rng, 2) == 0),
        29 if draw.names => Act::SyncFs,
        30 if draw.names => Act::Checkpoint,
        _ => Act::Pause(1 + pick(rng, 200_000)),
    }
}

fn flags(rng: &mut u64) -> IoFlags {
    match pick(rng, 10) {
        0 | 1 => IoFlags::DIRECT | IoFlags::FALLBACK,
        2 => IoFlags::UNCACHED,
        3 => IoFlags::DSYNC,
        // In place this is a write with FUA.
        4 => IoFlags::DIRECT | IoFlags::FALLBACK | IoFlags::DSYNC,
        _ => IoFlags::empty(),
    }
}

/// Ranges that overlap often, at blocks and within them.
fn range(draw: &Draw, flags: IoFlags, rng: &mut u64) -> (u64, u64) {
    let unit = draw.unit;
    let spread = [4 * unit, 12 * unit, draw.bytes][pick(rng, 3) as usize].min(draw.bytes);
    let longest = [unit, 4 * unit, 8192][pick(rng, 3) as usize];
    let (mut start, mut len) = (pick(rng, spread), 1 + pick(rng, longest));
    if flags.contains(IoFlags::DIRECT) || pick(rng, 2) == 0 {
        (start, len) = (start / unit * unit, len.next_multiple_of(unit));
    }
    (start, len.min(draw.bytes - start))
}
