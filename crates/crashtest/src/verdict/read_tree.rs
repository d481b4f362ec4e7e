//! The results of a program on crash states, found again by what the program reads there: a
//! decision tree of reads.
//!
//! Invariant: N1 what a program of one setup reads determines all that it does. If two states hold
//! the same at every position that the program read, its results are the same, so the tree runs it
//! on one of them only. A program that reads another position after the same answers is an error.
//!
//! Memory: some 60 bytes for each read in the tree, up to a limit.
//!
//! No locks.

use forebay_sim::{CrashState, Read, Reads};
use std::collections::HashMap;

/// Reads in a tree, at most.
const STEPS_MAX: usize = 200_000;

#[derive(Debug)]
enum Step<T> {
    /// The next position that the program reads.
    Read(Read),
    /// The program has read everything, and this is its result.
    Over(T),
}

/// The results of one program, by what it reads.
#[derive(Debug)]
pub struct ReadTree<T> {
    /// All steps; the first one is the program's first read.
    steps: Vec<Step<T>>,
    /// The step behind a read, by the number of the read and the checksum of what it found.
    next: HashMap<(usize, u64), usize>,
}

impl<T> Default for ReadTree<T> {
    fn default() -> Self {
        Self { steps: Vec::new(), next: HashMap::new() }
    }
}

impl<T> ReadTree<T> {
    /// The result of a state, if it is known. Calls `read` with each read that it depends on.
    pub fn of(&self, state: &CrashState, mut read: impl FnMut(Read)) -> Option<&T> {
        let mut at = 0;
        loop {
            match self.steps.get(at)? {
                Step::Over(result) => return Some(result),
                Step::Read(asked) => {
                    at = *self.next.get(&(at, state.sum_of(*asked)))?;
                    read(*asked);
                }
            }
        }
    }

    /// Records the result of a state on which the program read `reads`.
    ///
    /// # Errors
    /// The same reads led to something else before (read_tree.N1).
    pub fn learn(&mut self, reads: &Reads, result: T) -> Result<(), String> {
        let Some(list) = reads.list() else { return Ok(()) };
        if self.steps.len() + list.len() > STEPS_MAX {
            *self = Self::default();
        }
        let mut from = None;
        for (read, sum) in list {
            let at = self.step(from, Step::Read(read));
            match self.steps[at] {
                Step::Read(known) if known == read => from = Some((at, sum)),
                Step::Read(known) => {
                    return Err(format!("N1: after the same {known:?} was read, now {read:?}"));
                }
                Step::Over(_) => return Err(format!("N1: it was over, and now reads {read:?}")),
            }
        }
        let at = self.step(from, Step::Over(result));
        match &self.steps[at] {
            Step::Over(_) => Ok(()),
            Step::Read(known) => Err(format!("N1: it is over, and went on to read {known:?}")),
        }
    }

    /// The step behind `from` (`None`: the first step); adds `new` if there is none.
    fn step(&mut self, from: Option<(usize, u64)>, new: Step<T>) -> usize {
        let last = self.steps.len();
        let at = match from {
            None => 0,
            Some(from) => *self.next.entry(from).or_insert(last),
        };
        if at == last {
            self.steps.push(new);
        }
        at
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_base::sim_world::SimWorld;
    use forebay_block::BlockDevice;
    use forebay_sim::{SimConfig, SimDisk};

    fn state(bytes: [u8; 3]) -> CrashState {
        let disk = SimDisk::new(SimWorld::new(1), SimConfig::default());
        for (n, byte) in (0..).zip(bytes) {
            disk.poke(n * 512, &[byte; 512]);
        }
        disk.cut_state(1)
    }

    /// Reads the first sector, and then the one that it names.
    fn run(state: &CrashState, second: impl Fn(u8) -> u64) -> (Reads, u8) {
        let (reads, disk) = (state.reads(), state.mount(SimWorld::new(2)));
        disk.record_reads(&reads);
        let mut out = [0; 512];
        disk.read_into(0, &mut out).unwrap();
        disk.read_into(512 * second(out[0]), &mut out).unwrap();
        (reads, out[0])
    }

    /// N1: bytes that the program did not read do not matter, all that it read do. A program that
    /// does something else after the same reads is an error.
    #[test]
    fn result_depends_on_read_bytes_only() {
        let mut tree = ReadTree::default();
        let known = |tree: &ReadTree<u8>, bytes| tree.of(&state(bytes), |_| ()).copied();
        for bytes in [[1, 5, 0], [2, 0, 6]] {
            assert_eq!(known(&tree, bytes), None);
            let (reads, found) = run(&state(bytes), u64::from);
            tree.learn(&reads, found).unwrap();
        }
        for (bytes, wanted) in
            [([1, 5, 9], Some(5)), ([2, 9, 6], Some(6)), ([1, 6, 0], None), ([3, 5, 6], None)]
        {
            assert_eq!(known(&tree, bytes), wanted, "{bytes:?}");
        }
        let mut on = Vec::new();
        tree.of(&state([1, 5, 0]), |read| on.push(read.first));
        assert_eq!(on, [0, 1]);
        let (reads, found) = run(&state([1, 5, 0]), |_| 2);
        assert!(tree.learn(&reads, found).is_err_and(|text| text.contains("N1")));
        // Recording the same result again changes nothing.
        let (reads, found) = run(&state([2, 0, 6]), u64::from);
        tree.learn(&reads, found).unwrap();
        assert_eq!(tree.steps.len(), 5);
    }
}
