//! The history of the names of a volume: every order of the operations that explains all answers.
//!
//! Operations on names take effect one after the other, each at an instant between its begin and
//! its end. Which order it was is not known where they overlap, so all orders are followed that
//! give the answers that the clients got. After a crash the names are those of a prefix of such
//! an order.
//!
//! Invariants: names.L1 the answers of all operations have one order (linearizability). names.L2
//! after a crash the names are those of a prefix that holds every operation that ended before
//! the begin of an acknowledged sync, and none that had not begun.
//!
//! Memory: one state for each set of operations that may be the first ones.
//!
//! No locks.

use super::history::NEVER;
use crate::workload::At;
use forebay_base::ErrorKind;
use std::collections::{BTreeMap, BTreeSet, HashMap};

/// Operations of a run, at most: their sets are bit masks.
pub const NAME_OPS_MAX: usize = 64;
/// States of one run, at most. A run with more of them fails, because it cannot be judged.
const STATES_MAX: usize = 20_000;
/// Inodes from this number on stand for those of creations without an answer.
const UNKNOWN: u64 = 1 << 40;

/// What an operation does to names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NameAct {
    /// Opens what is there.
    Lookup(At),
    /// Makes a file.
    Create(At, bool),
    /// Gives a file one more name: its inode.
    Link(u64, At),
    /// Takes a name away.
    Unlink(At),
    /// Moves a name.
    Rename(At, At, How),
}

/// How a name is moved.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum How {
    /// Over whatever is there.
    Replace,
    /// Only to where nothing is.
    New,
    /// Both change places.
    Exchange,
}

/// The answer of an operation: an inode (0 if there is none), or the error.
pub type Answer = Result<u64, ErrorKind>;

/// One operation.
#[derive(Debug, Clone)]
pub struct NameOp {
    /// What it does.
    pub act: NameAct,
    /// Begin.
    pub begin: u64,
    /// The operation takes no effect after this time.
    pub latest: u64,
    /// `None`: it was dropped, or has not ended. It may have happened or not.
    pub answer: Option<Answer>,
}

/// What the names are, and since when the content of files has to be there.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct Names {
    /// Inodes by their names.
    pub entries: BTreeMap<At, u64>,
    /// By inode: content written before this time is durable with the rename that put the file in
    /// another's place.
    pub floors: BTreeMap<u64, u64>,
}

/// A prefix of an order.
#[derive(Debug)]
struct State {
    done: u64,
    names: Names,
    /// Some order that begins with it explains all answers.
    is_live: bool,
}

/// All prefixes of all orders. Made by [`Orders::of`].
#[derive(Debug, Default)]
pub struct Orders {
    ops: Vec<NameOp>,
    states: Vec<State>,
    /// Inodes that clients know: from the beginning, or by the answer of a creation.
    known: BTreeSet<u64>,
}

impl Orders {
    /// Follows every order.
    ///
    /// # Errors
    /// No order explains the answers (L1).
    pub fn of(ops: Vec<NameOp>, first: Names) -> Result<Self, String> {
        let all = if ops.len() == NAME_OPS_MAX { u64::MAX } else { (1 << ops.len()) - 1 };
        let made = ops.iter().filter_map(created);
        let known: BTreeSet<u64> = made.chain(first.entries.values().copied()).collect();
        let mut orders = Self { ops, states: Vec::new(), known };
        let mut numbers = HashMap::new();
        let mut before: Vec<Vec<usize>> = Vec::new();
        numbers.insert((0, first.clone()), 0);
        orders.states.push(State { done: 0, names: first, is_live: false });
        before.push(Vec::new());
        let mut at = 0;
        while at < orders.states.len() {
            let (done, names) = (orders.states[at].done, orders.states[at].names.clone());
            for (n, next) in orders.steps(done, &names) {
                let key = (done | 1 << n, next);
                let number = *numbers.entry(key).or_insert_with_key(|(done, names)| {
                    let state = State { done: *done, names: names.clone(), is_live: false };
                    orders.states.push(state);
                    before.push(Vec::new());
                    orders.states.len() - 1
                });
                before[number].push(at);
            }
            if orders.states.len() > STATES_MAX {
                return Err(format!(
                    "more than {STATES_MAX} prefixes: too many dropped operations"
                ));
            }
            at += 1;
        }
        let mut live: Vec<usize> =
            (0..orders.states.len()).filter(|n| orders.states[*n].done == all).collect();
        if live.is_empty() {
            return Err(orders.why_none());
        }
        while let Some(number) = live.pop() {
            if !std::mem::replace(&mut orders.states[number].is_live, true) {
                live.extend(&before[number]);
            }
        }
        Ok(orders)
    }

    /// The operations that may be next, and what the names are then.
    fn steps(&self, done: u64, names: &Names) -> Vec<(usize, Names)> {
        let is_open = |n: &usize| done >> n & 1 == 0;
        let open: Vec<usize> = (0..self.ops.len()).filter(is_open).collect();
        // Operations that can take no effect any more by then come first.
        let first = open.iter().map(|n| self.ops[*n].latest).min().unwrap_or(NEVER);
        let mut steps = Vec::new();
        for n in open.into_iter().filter(|n| self.ops[*n].begin <= first) {
            let op = &self.ops[n];
            let (mut next, number) = (names.clone(), UNKNOWN + n as u64);
            let model = apply(&mut next, op, number, &self.known);
            match op.answer {
                Some(answer) if answer == model => steps.push((n, next)),
                Some(_) => {}
                None => {
                    steps.push((n, names.clone()));
                    steps.extend(model.is_ok().then_some((n, next)));
                }
            }
        }
        steps
    }

    fn why_none(&self) -> String {
        let far = self.states.iter().max_by_key(|state| state.done.count_ones());
        let (done, names) = far.map(|s| (s.done, s.names.entries.clone())).unwrap_or_default();
        let line = |(n, op): (usize, &NameOp)| match done >> n & 1 {
            0 => format!("  {op:?}"),
            _ => format!("  {op:?} (explained)"),
        };
        let ops: Vec<String> = self.ops.iter().enumerate().map(line).collect();
        format!(
            "no order of the operations on names explains the answers; {names:?}\n{}",
            ops.join("\n")
        )
    }

    /// The names that may be found when the power went at `now`, after a sync that began at
    /// `synced` was acknowledged (L2).
    pub fn prefixes(&self, synced: u64, now: u64) -> Vec<&Names> {
        let (mut needed, mut begun) = (0, 0);
        for (n, op) in self.ops.iter().enumerate() {
            // One that was dropped may not have happened at all.
            needed |= u64::from(op.latest < synced && op.answer.is_some()) << n;
            begun |= u64::from(op.begin < now) << n;
        }
        let may = |state: &&State| {
            state.is_live && state.done & needed == needed && state.done & !begun == 0
        };
        let mut names: Vec<&Names> = self.states.iter().filter(may).map(|s| &s.names).collect();
        let mut seen = std::collections::HashSet::new();
        names.retain(|names| seen.insert(*names));
        names
    }

    /// Whether an inode was there, or was made by an operation that got an answer.
    pub fn is_known(&self, ino: u64) -> bool {
        self.known.contains(&ino)
    }
}

impl Names {
    /// Whether these are the names that were found: a file whose creation has no answer may have
    /// any new inode.
    pub fn are(&self, found: &BTreeMap<At, u64>, is_known: impl Fn(u64) -> bool) -> bool {
        let mut bound = BTreeMap::new();
        self.entries.len() == found.len()
            && self.entries.iter().zip(found).all(|((at, ino), (there, seen))| {
                at == there
                    && match *ino >= UNKNOWN {
                        true => !is_known(*seen) && *bound.entry(*ino).or_insert(*seen) == *seen,
                        false => ino == seen,
                    }
            })
    }
}

fn created(op: &NameOp) -> Option<u64> {
    match (op.act, op.answer) {
        (NameAct::Create(..), Some(Ok(ino))) => Some(ino),
        _ => None,
    }
}

/// Applies an operation to the names, and returns its answer. `number` stands for the inode of a
/// creation without an answer.
fn apply(names: &mut Names, op: &NameOp, number: u64, known: &BTreeSet<u64>) -> Answer {
    let seen = op.answer.and_then(Result::ok);
    match op.act {
        NameAct::Lookup(at) => there(names, at, seen, known),
        NameAct::Create(at, exclusive) => match names.entries.contains_key(&at) {
            true if exclusive => Err(ErrorKind::Exists),
            true => there(names, at, seen, known),
            false => {
                let ino = seen.unwrap_or(number);
                // An inode is made once.
                match names.entries.values().any(|other| *other == ino) {
                    true => Err(ErrorKind::Exists),
                    false => {
                        names.entries.insert(at, ino);
                        Ok(ino)
                    }
                }
            }
        },
        NameAct::Link(ino, at) => {
            if names.entries.contains_key(&at) {
                return Err(ErrorKind::Exists);
            }
            if !names.entries.values().any(|other| *other == ino) {
                return Err(ErrorKind::NotFound);
            }
            names.entries.insert(at, ino);
            Ok(0)
        }
        NameAct::Unlink(at) => match names.entries.remove(&at) {
            Some(_) => Ok(0),
            None => Err(ErrorKind::NotFound),
        },
        NameAct::Rename(from, to, how) => rename(names, (from, to), how, op.begin),
    }
}

/// The inode at a name. The inode of a creation without an answer becomes known when it is seen.
fn there(names: &mut Names, at: At, seen: Option<u64>, known: &BTreeSet<u64>) -> Answer {
    let ino = *names.entries.get(&at).ok_or(ErrorKind::NotFound)?;
    match seen {
        Some(seen) if ino >= UNKNOWN && !known.contains(&seen) => {
            names.entries.values_mut().filter(|other| **other == ino).for_each(|o| *o = seen);
            Ok(seen)
        }
        _ => Ok(ino),
    }
}

fn rename(names: &mut Names, (from, to): (At, At), how: How, begin: u64) -> Answer {
    let entries = &mut names.entries;
    let moved = *entries.get(&from).ok_or(ErrorKind::NotFound)?;
    let old = entries.get(&to).copied();
    match (how, old) {
        (How::New, Some(_)) => return Err(ErrorKind::Exists),
        (How::Exchange, None) => return Err(ErrorKind::NotFound),
        (_, Some(old)) if old == moved => return Ok(0),
        (How::Exchange, Some(old)) => {
            entries.insert(from, old);
            entries.insert(to, moved);
            names.floors.insert(old, begin);
        }
        _ => {
            entries.remove(&from);
            entries.insert(to, moved);
        }
    }
    // The content of the moved file is durable before the record of the rename.
    if old.is_some() {
        names.floors.insert(moved, begin);
    }
    Ok(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn op(act: NameAct, begin: u64, end: u64, answer: Option<Answer>) -> NameOp {
        NameOp { act, begin, latest: end, answer }
    }

    fn names(entries: &[(At, u64)]) -> Names {
        Names { entries: entries.iter().copied().collect(), ..Names::default() }
    }

    const A: At = (0, 0);
    const B: At = (0, 1);

    fn found(orders: &Orders, synced: u64, now: u64, entries: &[(At, u64)]) -> bool {
        let found = entries.iter().copied().collect();
        let prefixes = orders.prefixes(synced, now);
        prefixes.iter().any(|names| names.are(&found, |ino| orders.is_known(ino)))
    }

    /// L2: a rename is found done or not, never half, and done once it is synced.
    #[test]
    fn rename_half_done_or_undone_after_sync_is_found() {
        let rename = op(NameAct::Rename(A, B, How::Replace), 10, 12, Some(Ok(0)));
        let orders = Orders::of(vec![rename], names(&[(A, 5), (B, 6)])).unwrap();
        assert!(found(&orders, 3, 20, &[(A, 5), (B, 6)]));
        assert!(found(&orders, 3, 20, &[(B, 5)]));
        assert!(!found(&orders, 3, 20, &[(A, 5)]));
        assert!(!found(&orders, 3, 20, &[]));
        assert!(!found(&orders, 15, 20, &[(A, 5), (B, 6)]));
        assert!(!found(&orders, 3, 9, &[(B, 5)]));
    }

    /// L1: overlapping operations may be in either order, others not.
    #[test]
    fn answers_without_an_order_are_found() {
        let unlink = |begin, end| op(NameAct::Unlink(A), begin, end, Some(Ok(0)));
        let look = |begin, end, answer| op(NameAct::Lookup(A), begin, end, Some(answer));
        for (end, answer, is_right) in [
            (15, Ok(5), true),
            (15, Err(ErrorKind::NotFound), true),
            (11, Ok(5), false),
            (11, Err(ErrorKind::NotFound), true),
        ] {
            let orders = Orders::of(vec![unlink(10, end), look(13, 17, answer)], names(&[(A, 5)]));
            assert_eq!(orders.is_ok(), is_right, "{end} {answer:?}");
        }
        assert!(Orders::of(vec![unlink(1, 2), unlink(3, 4)], names(&[(A, 5)])).is_err());
    }

    /// A dropped creation may have made a file or not; its inode is one that no client knows.
    #[test]
    fn dropped_creation_may_be_there_or_not() {
        let create = op(NameAct::Create(B, true), 10, 12, None);
        let orders = Orders::of(vec![create], names(&[(A, 5)])).unwrap();
        assert!(found(&orders, 15, 20, &[(A, 5)]));
        assert!(found(&orders, 15, 20, &[(A, 5), (B, 9)]));
        assert!(!found(&orders, 15, 20, &[(A, 5), (B, 5)]));
    }
}
