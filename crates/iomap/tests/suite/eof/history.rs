//! What was done to a file, and when, by several at once: says which bytes a read may show.
//!
//! Each operation writes one byte value over its range, or zeros. A byte read may be that of any
//! operation that had begun before the read ended, unless another one that began after it had ended
//! was over before the read began. Anything else is a byte that was lost, or that never belonged
//! here.
//!
//! The size changes the same way: a truncate sets it, a write makes it at least its end, each at
//! one moment between its begin and its end. So there is a least and a largest size that the file
//! may have had while a read went on: what lies below the least is read in full.

use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

/// Largest byte that operations write; what is greater is garbage, or another owner's frame.
pub const MAX_VALUE: u8 = 0x7f;

#[derive(Debug, Clone)]
struct Op {
    begin: u64,
    end: u64,
    range: Range<u64>,
    value: u8,
    what: String,
}

#[derive(Default)]
pub struct History {
    clock: AtomicU64,
    ops: Mutex<Vec<Op>>,
    /// A file's own values are odd or even: another file's show.
    parity: u8,
    first_size: u64,
}

/// An operation that has begun.
pub struct Begun(usize);

impl History {
    /// Of file number 0 or 1, which has `first_size` bytes.
    pub fn new(parity: u8, first_size: u64) -> Self {
        Self { parity, first_size, ..Self::default() }
    }

    pub fn now(&self) -> u64 {
        self.clock.fetch_add(1, Ordering::SeqCst) + 1
    }

    /// The value of the next write.
    pub fn value(&self, draw: u64) -> u8 {
        let value = (draw % 62) as u8 * 2 + 2 + self.parity;
        assert!((2..=MAX_VALUE).contains(&value));
        value
    }

    /// An operation begins. An append does not know its range yet: it may be anywhere.
    pub fn begin(&self, range: Range<u64>, value: u8, what: String) -> Begun {
        let mut ops = self.ops.lock().unwrap();
        let begin = self.now();
        ops.push(Op { begin, end: u64::MAX, range, value, what });
        Begun(ops.len() - 1)
    }

    /// It is over, and was `range`; `done`: it says it has happened. If not, it may have in part.
    pub fn end(&self, begun: &Begun, range: Range<u64>, done: bool) {
        let mut ops = self.ops.lock().unwrap();
        let op = &mut ops[begun.0];
        op.range = range;
        if done {
            op.end = self.now();
        }
    }

    /// Checks what a read of `asked` bytes that began at `begin` and is over now has found at
    /// `offset`.
    pub fn check(&self, begin: u64, offset: u64, asked: u64, bytes: &[u8]) -> Result<(), String> {
        let ops = self.ops.lock().unwrap();
        let now = self.now();
        let end = offset + bytes.len() as u64;
        let may = sizes_between(&ops, self.first_size, begin, now);
        if end < may.start.min(offset + asked) || (end > may.end && !bytes.is_empty()) {
            return Err(format!(
                "{} bytes at {offset}, {asked} asked for; the size is {}..={} all the while\n{}",
                bytes.len(),
                may.start,
                may.end,
                story(ops.iter().filter(|o| o.begin < now && o.moves_size()))
            ));
        }
        let range = offset..offset + bytes.len() as u64;
        let mine: Vec<&Op> = ops
            .iter()
            .filter(|o| o.begin < now && o.range.start < range.end && range.start < o.range.end)
            .collect();
        let mut cuts: Vec<u64> = mine
            .iter()
            .flat_map(|o| [o.range.start, o.range.end])
            .chain([range.start, range.end])
            .map(|at| at.clamp(range.start, range.end))
            .collect();
        cuts.sort_unstable();
        cuts.dedup();
        for cut in cuts.windows(2) {
            let here = |o: &&&Op| o.range.start <= cut[0] && cut[1] <= o.range.end;
            let covering: Vec<&Op> = mine.iter().filter(here).copied().collect();
            let overwritten =
                |begin_after: u64| covering.iter().any(|b| b.begin > begin_after && b.end < begin);
            let mut may: Vec<u8> =
                covering.iter().filter(|a| !overwritten(a.end)).map(|a| a.value).collect();
            if !overwritten(0) {
                may.push(0);
            }
            let part = &bytes[(cut[0] - offset) as usize..(cut[1] - offset) as usize];
            if let Some(at) = part.iter().position(|b| !may.contains(b)) {
                let found = part[at];
                return Err(format!(
                    "byte {} is {found:#x}, may be {may:x?}\n{}",
                    cut[0] + at as u64,
                    story(covering)
                ));
            }
        }
        Ok(())
    }

    /// The sizes that the file may have now that all operations are over.
    pub fn sizes(&self) -> BTreeSet<u64> {
        let ops = self.ops.lock().unwrap();
        let sets = sets(&ops, self.first_size);
        let grows: Vec<&Op> = ops.iter().filter(|o| o.value != 0).collect();
        let mut sizes = BTreeSet::new();
        for set in &sets {
            // It came last, at `at`: all others had begun by then.
            let from = sets.iter().map(|other| other.begin).max().unwrap_or(0);
            let edges = grows.iter().flat_map(|o| [o.begin, o.end.saturating_add(1)]);
            let moments = edges.chain([from, set.end]).filter(|at| (from..=set.end).contains(at));
            for at in moments.collect::<BTreeSet<u64>>() {
                let after = grows.iter().filter(|o| o.begin > at).map(|o| o.range.end);
                let least = after.max().unwrap_or(0).max(set.size);
                // What was under way at that moment may have come after it, or before.
                let concurrent = grows.iter().filter(|o| o.begin <= at && o.end >= at);
                sizes.extend(concurrent.map(|o| o.range.end).filter(|end| *end > least));
                sizes.insert(least);
            }
        }
        sizes
    }
}

/// A truncate, or how the file began: when, and to what size.
struct Set {
    begin: u64,
    end: u64,
    size: u64,
}

impl Op {
    fn truncates(&self) -> bool {
        self.value == 0 && self.range.end == u64::MAX
    }

    fn moves_size(&self) -> bool {
        self.value != 0 || self.truncates()
    }
}

fn sets(ops: &[Op], first: u64) -> Vec<Set> {
    let cut = |o: &Op| Set { begin: o.begin, end: o.end, size: o.range.start };
    let cuts = ops.iter().filter(|o| o.truncates()).map(cut);
    cuts.chain([Set { begin: 0, end: 0, size: first }]).collect()
}

/// The least and the largest size that the file may have had at a moment from `begin` to `now`.
fn sizes_between(ops: &[Op], first: u64, begin: u64, now: u64) -> Range<u64> {
    let sets = sets(ops, first);
    let grows: Vec<&Op> = ops.iter().filter(|o| o.value != 0).collect();
    let (mut least, mut most) = (u64::MAX, 0);
    for set in &sets {
        let undone = |by: &Set| by.begin > set.end && by.end < begin;
        if set.begin > now || sets.iter().any(undone) {
            continue;
        }
        // What has certainly come after it by then, and what may have.
        let surely = grows.iter().filter(|o| o.begin > set.end && o.end < begin);
        let perhaps = grows.iter().filter(|o| o.end > set.begin && o.begin < now);
        least = least.min(surely.map(|o| o.range.end).max().unwrap_or(0).max(set.size));
        most = most.max(perhaps.map(|o| o.range.end).max().unwrap_or(0).max(set.size));
    }
    least..most
}

fn story<'a>(ops: impl IntoIterator<Item = &'a Op>) -> String {
    let line =
        |o: &Op| format!("  {}..{} {:?} {:#x}: {}", o.begin, o.end, o.range, o.value, o.what);
    ops.into_iter().map(line).collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn truncate(history: &History, to: u64) {
        let begun = history.begin(to..u64::MAX, 0, String::new());
        history.end(&begun, to..u64::MAX, true);
    }

    fn write(history: &History, range: Range<u64>) {
        let begun = history.begin(range.clone(), 2, String::new());
        history.end(&begun, range, true);
    }

    /// Where files were truncated any end that a file had ever had was right, and a read was never
    /// too short: a lost tail passed.
    #[test]
    fn history_with_truncates_detects_lost_tail() {
        let history = History::new(0, 1000);
        truncate(&history, 500);
        write(&history, 500..900);
        assert_eq!(history.sizes(), [900].into());
        let begin = history.now();
        assert!(history.check(begin, 400, 600, &[[0; 100].as_slice(), &[2; 400]].concat()).is_ok());
        assert!(history.check(begin, 400, 600, &[0; 100]).is_err(), "the tail is gone");
        assert!(history.check(begin, 900, 600, &[]).is_ok());
        assert!(history.check(begin, 900, 600, &[0; 1]).is_err(), "nothing was there");
    }

    #[test]
    fn history_operation_in_progress_may_have_moved_size() {
        let history = History::new(0, 1000);
        let begun = history.begin(0..u64::MAX, 2, "an append".into());
        truncate(&history, 300);
        history.end(&begun, 300..700, true);
        assert_eq!(history.sizes(), [300, 700].into());
        let cut = history.begin(100..u64::MAX, 0, String::new());
        let begin = history.now();
        // 1000 is over; 300 and 700 may stand, and what cuts may have cut.
        for len in [100, 300, 700] {
            let bytes = [[0; 300].as_slice(), &[2; 400]].concat();
            assert!(history.check(begin, 0, 2000, &bytes[..len]).is_ok(), "{len}");
        }
        assert!(history.check(begin, 0, 2000, &[0; 99]).is_err());
        assert!(history.check(begin, 0, 50, &[0; 49]).is_err());
        history.end(&cut, 100..u64::MAX, true);
        assert_eq!(history.sizes(), [100].into());
    }

    /// Two truncates at once, and a write after one of them has begun.
    #[test]
    fn either_of_two_concurrent_truncates_may_be_last() {
        let history = History::new(1, 10);
        let one = history.begin(50..u64::MAX, 0, String::new());
        let two = history.begin(60..u64::MAX, 0, String::new());
        history.end(&one, 50..u64::MAX, true);
        write(&history, 0..55);
        history.end(&two, 60..u64::MAX, true);
        // 50, 60 | 60, 50, 55 | 50, 55, 60.
        assert_eq!(history.sizes(), [55, 60].into());
    }
}
