//! What was done to a file, and when, by several at once: says which bytes a read may show.
//!
//! Each operation writes one byte value over its range, or zeros. A byte read may be that of any
//! operation that had begun before the read ended, unless another one that began after it had ended was
//! over before the read began. Anything else is a byte that was lost, or that never belonged here.

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
}

/// An operation that has begun.
pub struct Begun(usize);

impl History {
    /// Of file number 0 or 1.
    pub fn new(parity: u8) -> Self {
        Self { parity, ..Self::default() }
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

    /// Checks what a read that began at `begin` and is over now has found at `offset`.
    pub fn check(&self, begin: u64, offset: u64, bytes: &[u8]) -> Result<(), String> {
        let ops = self.ops.lock().unwrap();
        let now = self.now();
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
                let story: Vec<String> = covering
                    .iter()
                    .map(|o| {
                        format!("  {}..{} {:?} {:#x}: {}", o.begin, o.end, o.range, o.value, o.what)
                    })
                    .collect();
                return Err(format!(
                    "byte {} is {found:#x}, may be {may:x?}\n{}",
                    cut[0] + at as u64,
                    story.join("\n")
                ));
            }
        }
        Ok(())
    }

    /// The sizes that the file may have in the end.
    pub fn sizes(&self, first: u64) -> Vec<u64> {
        let ops = self.ops.lock().unwrap();
        let truncates = ops.iter().any(|o| o.range.end == u64::MAX);
        let ends = ops.iter().filter(|o| o.value != 0).map(|o| o.range.end);
        if !truncates {
            return vec![ends.max().unwrap_or(0).max(first)];
        }
        let cuts = ops.iter().filter(|o| o.range.end == u64::MAX).map(|o| o.range.start);
        ends.chain(cuts).chain([first]).collect()
    }
}
