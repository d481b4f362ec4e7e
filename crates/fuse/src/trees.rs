//! Trees of processes with a cache mode of their own. A process that opens a file belongs to a tree
//! if one of its ancestors, or itself, has registered.
//!
//! A process registers itself through an open directory, and stays registered until that directory
//! is closed. As a subreaper it stays an ancestor of all processes that it has started, also across
//! forks and namespaces. So an open walks up the parents in /proc until it meets a registered
//! process or the end.
//!
//! Invariants: T1 without registrations no process is inspected. T2 a process is identified by its
//! pid and its start time, since pids are reused. T3 the cached mode of a process is valid as long
//! as the registrations do not change: a living process neither enters nor leaves a tree.
//!
//! Lock: one, a leaf; no process is inspected under it.

use forebay_base::sync::Mutex;
use forebay_base::sync::atomic::{AtomicUsize, Ordering};
use std::collections::HashMap;

/// Most registrations: any user may register, and each open searches all of them.
const ROOTS_MAX: usize = 256;
/// Most cached results.
const VERDICTS_MAX: usize = 4096;
/// How often the walk is repeated if an ancestor ends during it.
const TRIES: u32 = 64;

/// Parent and start time of a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Process {
    /// Pid of its parent; 0: it has none.
    parent: u32,
    /// The start time of the process, in clock ticks since boot.
    start: u64,
}

#[derive(Default)]
struct State {
    /// By handle of the open directory: pid, start time, mode.
    roots: HashMap<u64, (u32, u64, u32)>,
    /// By pid: start time and mode (`None`: the process is in no tree).
    verdicts: HashMap<u32, (u64, Option<u32>)>,
    /// Raised by each change of the registrations.
    generation: u64,
}

/// The registered processes, and a cache of the modes that were found.
#[derive(Default)]
pub(crate) struct Trees {
    count: AtomicUsize,
    state: Mutex<State>,
}

/// Result of a registration.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Added {
    Done,
    /// The daemon cannot see the process in its pid namespace.
    Unseen,
    /// The number of registrations is at its maximum.
    TooMany,
}

/// Reads parent and start time of a process from /proc; `None`: it has ended, or cannot be seen.
pub(crate) fn look(pid: u32) -> Option<Process> {
    let text = std::fs::read(format!("/proc/{pid}/stat")).ok()?;
    // The name in parentheses may contain any byte, so the last parenthesis counts.
    let rest = &text[text.iter().rposition(|byte| *byte == b')')? + 1..];
    let mut words = std::str::from_utf8(rest).ok()?.split_ascii_whitespace();
    let parent = words.nth(1)?.parse().ok()?;
    Some(Process { parent, start: words.nth(17)?.parse().ok()? })
}

impl Trees {
    /// Registers a process, with the handle of its open directory.
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

    /// Removes the registration of a directory that was closed.
    pub fn remove(&self, fh: u64) {
        if self.count.load(Ordering::Acquire) > 0 {
            let mut state = self.state.lock();
            state.roots.remove(&fh);
            self.changed(&mut state);
        }
    }

    /// The number of registrations.
    pub fn len(&self) -> usize {
        self.count.load(Ordering::Acquire)
    }

    fn changed(&self, state: &mut State) {
        state.verdicts.clear();
        state.generation += 1;
        self.count.store(state.roots.len(), Ordering::Release);
    }

    /// The mode of the nearest registered ancestor.
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

/// Walks up from a process to a registered one; returns its mode. `None`: an ancestor ended
/// meanwhile, so the walk has to be repeated.
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
        // No process is older than its parent: such a pid was reused.
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

    /// T1, T3: exactly the descendants are found, at any depth, and without registrations no
    /// process is inspected.
    #[test]
    fn t1_t3_only_descendants_are_found() {
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

    /// T2: the pid of a registered process, or of a parent, was reused.
    #[test]
    fn t2_numbers_are_used_again() {
        let trees = Trees::default();
        let first = table(&[(1, 0, 0), (5, 1, 10), (6, 5, 11)]);
        assert_eq!(trees.add(3, 5, 1, |pid| first.get(&pid).copied()), Added::Done);
        assert_eq!(trees.mode_of(6, |pid| first.get(&pid).copied()), Some(1));
        // Pid 6 was reused by another process.
        let later = table(&[(1, 0, 0), (5, 1, 10), (6, 1, 30)]);
        assert_eq!(trees.mode_of(6, |pid| later.get(&pid).copied()), None);
        // Pid 5 was reused while its directory was still open.
        let later = table(&[(1, 0, 0), (5, 1, 40), (7, 5, 50)]);
        assert_eq!(trees.mode_of(7, |pid| later.get(&pid).copied()), None);
    }

    /// The story: a parent ended during the walk. Its child has a new parent, which counts.
    #[test]
    fn child_of_ended_parent_is_looked_up_again() {
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
    fn process_table_reads_own_process() {
        let own = look(std::process::id()).unwrap();
        assert_eq!(own.parent, std::os::unix::process::parent_id());
        assert!(look(own.parent).is_none_or(|parent| parent.start <= own.start));
        assert_eq!(look(u32::MAX), None);
    }

    /// The story: any user could make each open of all users search an unlimited number of
    /// registrations.
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
