//! Trees of processes whose openings have a mode of their own: who asks is looked for among the descendants
//! of those who have registered.
//!
//! A process registers itself on an open directory, and is registered as long as that is open. As a subreaper
//! it stays an ancestor of all that it has started, however they fork and whatever namespace they move to. So
//! the parents of who opens a file are walked up, in the system's table of processes, until one that has
//! registered is met or there are no more.
//!
//! Invariants: T1 where nobody has registered nothing is looked at. T2 a process is known by its number and
//! its start: numbers are used again. T3 a verdict on a process stays for as long as the registrations do:
//! nobody enters or leaves a tree alive.
//!
//! Lock: one, a leaf; no process is looked at under it.

use forebay_base::sync::Mutex;
use forebay_base::sync::atomic::{AtomicUsize, Ordering};
use std::collections::HashMap;

/// Registrations at a time: anybody may ask, and each opening looks through all.
const ROOTS_MAX: usize = 256;
/// Verdicts that are kept at most.
const VERDICTS_MAX: usize = 4096;
/// A process that dies while its descendants are looked at makes them look again, so often.
const TRIES: u32 = 64;

/// What is looked at of a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Process {
    /// Number of its parent; 0: it has none.
    parent: u32,
    /// When it began, in ticks of the system's clock.
    start: u64,
}

#[derive(Default)]
struct State {
    /// By open directory: who, since when, and the mode.
    roots: HashMap<u64, (u32, u64, u32)>,
    /// By number: since when, and the mode.
    verdicts: HashMap<u32, (u64, Option<u32>)>,
    /// Changes with the registrations.
    generation: u64,
}

/// See the module.
#[derive(Default)]
pub(crate) struct Trees {
    count: AtomicUsize,
    state: Mutex<State>,
}

/// What registering came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Added {
    Done,
    /// The process is in another world of processes.
    Unseen,
    /// As many as there may be have registered.
    TooMany,
}

/// Looks at a process in the system's table; none: it is gone, or cannot be seen.
pub(crate) fn look(pid: u32) -> Option<Process> {
    let text = std::fs::read(format!("/proc/{pid}/stat")).ok()?;
    // The name, in parentheses, may have any byte.
    let rest = &text[text.iter().rposition(|byte| *byte == b')')? + 1..];
    let mut words = std::str::from_utf8(rest).ok()?.split_ascii_whitespace();
    let parent = words.nth(1)?.parse().ok()?;
    Some(Process { parent, start: words.nth(17)?.parse().ok()? })
}

impl Trees {
    /// Registers a process by an open directory.
    pub fn add(
        &self,
        fh: u64,
        pid: u32,
        mode: u32,
        look: impl Fn(u32) -> Option<Process>,
    ) -> Added {
        let Some(process) = look(pid).filter(|_| pid != 0) else { return Added::Unseen };
        let mut state = self.state.lock();
        if state.roots.len() >= ROOTS_MAX && !state.roots.contains_key(&fh) {
            return Added::TooMany;
        }
        state.roots.insert(fh, (pid, process.start, mode));
        self.changed(&mut state);
        Added::Done
    }

    /// The directory is closed.
    pub fn remove(&self, fh: u64) {
        if self.count.load(Ordering::Acquire) > 0 {
            let mut state = self.state.lock();
            state.roots.remove(&fh);
            self.changed(&mut state);
        }
    }

    /// How many have registered.
    pub fn len(&self) -> usize {
        self.count.load(Ordering::Acquire)
    }

    fn changed(&self, state: &mut State) {
        state.verdicts.clear();
        state.generation += 1;
        self.count.store(state.roots.len(), Ordering::Release);
    }

    /// The mode of the nearest tree that a process is in.
    pub fn mode_of(&self, pid: u32, look: impl Fn(u32) -> Option<Process>) -> Option<u32> {
        if self.count.load(Ordering::Acquire) == 0 || pid == 0 {
            return None;
        }
        for _ in 0..TRIES {
            let first = look(pid)?;
            let (roots, generation) = {
                let state = self.state.lock();
                if let Some((start, verdict)) = state.verdicts.get(&pid)
                    && *start == first.start
                {
                    return *verdict;
                }
                (state.roots.clone(), state.generation)
            };
            let Some(verdict) = walk(&roots, pid, first, &look) else { continue };
            let mut state = self.state.lock();
            if state.generation == generation {
                if state.verdicts.len() >= VERDICTS_MAX {
                    state.verdicts.clear();
                }
                state.verdicts.insert(pid, (first.start, verdict));
            }
            return verdict;
        }
        log::warn!("the parents of process {pid} change faster than they can be looked at");
        None
    }
}

/// Up from a process: the mode that was met. None: somebody went meanwhile, and the look is worth nothing.
fn walk(
    roots: &HashMap<u64, (u32, u64, u32)>,
    mut pid: u32,
    mut process: Process,
    look: impl Fn(u32) -> Option<Process>,
) -> Option<Option<u32>> {
    loop {
        let met = roots.values().find(|root| (root.0, root.1) == (pid, process.start));
        if let Some((_, _, mode)) = met {
            return Some(Some(*mode));
        }
        if process.parent == 0 {
            return Some(None);
        }
        pid = process.parent;
        // Nobody is older than a parent: its number is another's by now.
        let parent = look(pid).filter(|parent| parent.start <= process.start)?;
        process = parent;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::RefCell;

    fn table(list: &[(u32, u32, u64)]) -> HashMap<u32, Process> {
        list.iter()
            .map(|(pid, parent, start)| (*pid, Process { parent: *parent, start: *start }))
            .collect()
    }

    /// T1, T3: descendants are found, however deep, and nobody else; nobody is looked at in vain.
    #[test]
    fn t1_t3_descendants_and_nobody_else() {
        let all = table(&[(1, 0, 0), (5, 1, 10), (6, 5, 11), (7, 6, 11), (8, 1, 12), (9, 7, 20)]);
        let looks = RefCell::new(0);
        let look = |pid: u32| {
            *looks.borrow_mut() += 1;
            all.get(&pid).copied()
        };
        let trees = Trees::default();
        assert_eq!((trees.mode_of(7, look), *looks.borrow()), (None, 0));
        assert_eq!(trees.add(3, 0, 1, look), Added::Unseen);
        assert_eq!(trees.add(3, 99, 1, look), Added::Unseen);
        assert_eq!(trees.add(3, 5, 1, look), Added::Done);
        for (pid, mode) in
            [(5, Some(1)), (6, Some(1)), (9, Some(1)), (8, None), (1, None), (0, None)]
        {
            assert_eq!(trees.mode_of(pid, look), mode, "{pid}");
        }
        looks.replace(0);
        assert_eq!((trees.mode_of(9, look), *looks.borrow()), (Some(1), 1), "it is known");
        assert_eq!(trees.add(4, 7, 2, look), Added::Done);
        assert_eq!(
            (trees.mode_of(9, look), trees.mode_of(6, look)),
            (Some(2), Some(1)),
            "the nearest"
        );
        trees.remove(4);
        assert_eq!(trees.mode_of(9, look), Some(1));
        trees.remove(3);
        assert_eq!(trees.mode_of(9, look), None);
    }

    /// T2: the number of one that registered, or of a parent, is another's.
    #[test]
    fn t2_numbers_are_used_again() {
        let trees = Trees::default();
        let first = table(&[(1, 0, 0), (5, 1, 10), (6, 5, 11)]);
        assert_eq!(trees.add(3, 5, 1, |pid| first.get(&pid).copied()), Added::Done);
        assert_eq!(trees.mode_of(6, |pid| first.get(&pid).copied()), Some(1));
        // 6 is another process, by the same number.
        let later = table(&[(1, 0, 0), (5, 1, 10), (6, 1, 30)]);
        assert_eq!(trees.mode_of(6, |pid| later.get(&pid).copied()), None);
        // 5 is one: it was not closed yet.
        let later = table(&[(1, 0, 0), (5, 1, 40), (7, 5, 50)]);
        assert_eq!(trees.mode_of(7, |pid| later.get(&pid).copied()), None);
    }

    /// A parent that dies during the look: its child has another one, and that counts.
    #[test]
    fn a_parent_that_dies_is_looked_for_again() {
        let trees = Trees::default();
        let before = table(&[(1, 0, 0), (5, 1, 10), (6, 5, 11), (7, 6, 12)]);
        let after = table(&[(1, 0, 0), (5, 1, 10), (7, 5, 12)]);
        assert_eq!(trees.add(3, 5, 1, |pid| before.get(&pid).copied()), Added::Done);
        let looks = RefCell::new(0);
        let dying = |pid: u32| {
            *looks.borrow_mut() += 1;
            if *looks.borrow() == 1 { before.get(&pid).copied() } else { after.get(&pid).copied() }
        };
        assert_eq!(trees.mode_of(7, dying), Some(1));
    }

    #[test]
    fn the_systems_table() {
        let own = look(std::process::id()).unwrap();
        assert_eq!(own.parent, std::os::unix::process::parent_id());
        assert!(look(own.parent).is_none_or(|parent| parent.start <= own.start));
        assert_eq!(look(u32::MAX), None);
    }

    /// Anybody could make each opening of everybody look through as many registrations as he liked.
    #[test]
    fn registrations_are_bounded() {
        let trees = Trees::default();
        let own = |pid| Some(Process { parent: 0, start: u64::from(pid) });
        (0..ROOTS_MAX as u64).for_each(|fh| assert_eq!(trees.add(fh, 5, 1, own), Added::Done));
        assert_eq!(trees.add(9999, 5, 1, own), Added::TooMany);
        assert_eq!(trees.add(3, 6, 1, own), Added::Done, "in the place of another");
        trees.remove(4);
        assert_eq!(trees.add(9999, 5, 1, own), Added::Done);
    }
}
