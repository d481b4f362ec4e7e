//! Finds cached writes of programs whose pages a notice has dropped too early, so that a reader may
//! have filled them with old bytes.
//!
//! ```text
//!   writer:  pages filled, unlocked ───▶ WRITE ─────────────────▶ takes effect ─▶ answer
//!   notice:                     drops a page
//!   reader:                              READ: the old bytes are cached again
//! ```
//! The kernel fills the pages of a cached write and unlocks those that are up to date. Only then it
//! sends `WRITE`. These pages are clean, so a notice drops them, and the answer of a `READ` may
//! bring back the bytes from before the write. The daemon sees the notice and the `READ` in time,
//! but perhaps before it receives `WRITE`. So it remembers both until a cached write is answered.
//!
//! The kernel carries out the cached writes of a file one after the other, from the filling of the
//! pages to the answer. So what happened before the last such answer concerns no later write. Two
//! kinds of writes are not ordered like that, and forget nothing: write-back of mapped pages, for
//! which the kernel locks the page or marks it until the answer, and `O_DIRECT`.
//!
//! Invariants: refill.F1 a page that a cached write covers, and that a `READ` may have filled from
//! before its effect, is reported as stale by the time of the write's answer. refill.F2 a notice
//! counts from before it is sent; a `READ` counts before it reads; a write checks for both after
//! its effect and before its answer. refill.F3 only files with a cached opening for writing have an
//! entry.
//!
//! The notice that reports the pages of such a write as stale counts for the next write, too. So a
//! program that rewrites only one range of a file, and reads it each time, causes a notice for each
//! write. A write to another range ends that.
//!
//! Lock: the table's, a leaf.

use crate::proto::notify::Notice;
use forebay_base::sync::Mutex;
use forebay_base::sync::atomic::{AtomicUsize, Ordering};
use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

/// The kernel drops a large folio as a whole, also if only a part of it is in the range.
const FOLIO_BYTES: u64 = 2 << 20;
/// Most ranges of reads that are remembered of a file; more of them become one range.
const READS_MAX: usize = 16;

/// What happened since the last answer to a cached write of a file.
#[derive(Default)]
struct File {
    /// Cached openings for writing.
    writers: u32,
    /// The range that covers all that notices may have dropped.
    dropped: Option<Range<u64>>,
    /// Ranges of reads that overlapped a dropped range, during or after the notice.
    reads: Vec<Range<u64>>,
}

#[derive(Default)]
struct Table {
    files: HashMap<u64, File>,
    /// Notices of content that are being sent; each sender has one at a time.
    under_way: Vec<(u64, Range<u64>)>,
}

#[derive(Default)]
struct Shared {
    table: Mutex<Table>,
    /// Number of notices that are being sent, plus files with `dropped`. If 0, callers take no
    /// lock.
    entries: AtomicUsize,
}

/// Remembers notices and reads for cached writes. Clones share it.
#[derive(Clone, Default)]
pub(crate) struct Refills(Arc<Shared>);

fn overlap(a: &Range<u64>, b: &Range<u64>) -> bool {
    a.start < b.end && b.start < a.end
}

fn add(to: &mut Option<Range<u64>>, range: Range<u64>) {
    *to = Some(match to.take() {
        Some(old) => old.start.min(range.start)..old.end.max(range.end),
        None => range,
    });
}

/// The file of a notice that drops pages, and what it may drop.
fn dropped_by(notice: &Notice) -> Option<(u64, Range<u64>)> {
    let Notice::Inode { node, offset, len } = *notice else { return None };
    let start = u64::try_from(offset).ok()?;
    let end = match len {
        ..=0 => u64::MAX,
        len => start.saturating_add(len.unsigned_abs()),
    };
    let end = end.checked_next_multiple_of(FOLIO_BYTES).unwrap_or(u64::MAX);
    Some((node, start / FOLIO_BYTES * FOLIO_BYTES..end))
}

impl Refills {
    /// Counts a cached opening for writing, before the reply that names it (F3).
    pub fn opened(&self, node: u64) {
        self.0.table.lock().files.entry(node).or_default().writers += 1;
    }

    /// Such an opening was released.
    pub fn closed(&self, node: u64) {
        let mut table = self.0.table.lock();
        let Some(file) = table.files.get_mut(&node) else { return };
        file.writers -= 1;
        if file.writers == 0 {
            let had = file.dropped.is_some();
            table.files.remove(&node);
            self.0.entries.fetch_sub(usize::from(had), Ordering::SeqCst);
        }
    }

    /// Forgets all files: the connection has ended.
    pub fn clear(&self) {
        let mut table = self.0.table.lock();
        let dropped = table.files.drain().filter(|(_, file)| file.dropped.is_some()).count();
        self.0.entries.fetch_sub(dropped, Ordering::SeqCst);
    }

    /// Sends a notice by `send` (F2).
    pub fn sending<T>(&self, notice: &Notice, send: impl FnOnce() -> T) -> T {
        let Some((node, range)) = dropped_by(notice) else { return send() };
        {
            let mut table = self.0.table.lock();
            table.under_way.push((node, range.clone()));
            self.0.entries.fetch_add(1, Ordering::SeqCst);
        }
        let done = send();
        let mut table = self.0.table.lock();
        let at = table.under_way.iter().position(|sent| *sent == (node, range.clone()));
        table.under_way.swap_remove(at.expect("F2: it was added"));
        let is_new = table.files.get_mut(&node).is_some_and(|file| {
            let is_first = file.dropped.is_none();
            add(&mut file.dropped, range);
            is_first
        });
        // The notice was counted in `entries`. Its file counts from now on, if it did not count
        // before.
        self.0.entries.fetch_sub(usize::from(!is_new), Ordering::SeqCst);
        done
    }

    fn has_any(&self) -> bool {
        self.0.entries.load(Ordering::SeqCst) > 0
    }

    /// Called before a `READ` that fills the kernel's cache (F2).
    pub fn reading(&self, node: u64, range: Range<u64>) {
        if !self.has_any() {
            return;
        }
        let mut guard = self.0.table.lock();
        let Table { files, under_way } = &mut *guard;
        let Some(file) = files.get_mut(&node) else { return };
        let sent = under_way.iter().filter(|(of, _)| *of == node).map(|(_, range)| range);
        if !sent.chain(&file.dropped).any(|dropped| overlap(dropped, &range)) {
            return;
        }
        match file.reads.last_mut() {
            Some(last) if last.end == range.start => last.end = range.end,
            _ => file.reads.push(range),
        }
        if file.reads.len() > READS_MAX {
            let mut all = None;
            file.reads.drain(..).for_each(|range| add(&mut all, range));
            file.reads.extend(all);
        }
    }

    /// Called after a cached write has taken effect or failed, before its answer. Returns whether
    /// the kernel may have cached bytes of `range` from before the write (F1). `is_ordered`: the
    /// kernel begins the next cached write of the file after this answer.
    pub fn has_old_bytes(&self, node: u64, range: Range<u64>, is_ordered: bool) -> bool {
        if !self.has_any() {
            return false;
        }
        let mut table = self.0.table.lock();
        let Some(file) = table.files.get_mut(&node) else { return false };
        let is_old = file.reads.iter().any(|read| overlap(read, &range));
        if is_ordered {
            file.reads.clear();
            let had = file.dropped.take().is_some();
            self.0.entries.fetch_sub(usize::from(had), Ordering::SeqCst);
        }
        is_old
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NODE: u64 = 7;

    fn content(offset: u64, len: u64) -> Notice {
        Notice::content(NODE, offset, len)
    }

    /// F1, F2: a read counts if a notice that may have dropped its page is being sent, or was sent
    /// since the last write.
    #[test]
    fn reads_after_a_notice_count_until_the_next_write() {
        let refills = Refills::default();
        refills.opened(NODE);
        let is_old = |range| refills.has_old_bytes(NODE, range, true);
        refills.reading(NODE, 0..4096);
        assert!(!is_old(0..4096), "no notice");
        refills.sending(&content(0, 1), || refills.reading(NODE, 0..4096));
        assert!(!is_old(4096..8192), "another page");
        assert!(!is_old(0..4096), "a write was answered meanwhile");
        refills.sending(&content(0, 1), || refills.reading(NODE, 0..4096));
        assert!(!refills.has_old_bytes(NODE, 4096..8192, false));
        assert!(is_old(0..4096), "a write in no order forgets nothing");
        refills.sending(&content(8192, 1), || ());
        refills.reading(NODE, 0..4096);
        refills.reading(NODE, FOLIO_BYTES..FOLIO_BYTES + 4096);
        assert!(!refills.has_old_bytes(NODE, FOLIO_BYTES..FOLIO_BYTES + 1, false));
        assert!(is_old(4095..4096), "a page of the same large folio");
        refills.sending(&content(0, 1), || assert!(!is_old(0..4096)));
        refills.reading(NODE, 0..4096);
        assert!(is_old(0..4096), "the notice ended after that write");
        refills.sending(&Notice::attributes(NODE), || refills.reading(NODE, 0..4096));
        refills.sending(&Notice::content(8, 0, u64::MAX), || refills.reading(NODE, 0..4096));
        assert!(!is_old(0..4096), "no page of this file was dropped");
        refills.sending(&content(FOLIO_BYTES, u64::MAX), || ());
        for page in 0..READS_MAX as u64 + 2 {
            let at = FOLIO_BYTES * (2 + page);
            refills.reading(NODE, at..at + 4096);
        }
        assert!(refills.0.table.lock().files[&NODE].reads.len() <= READS_MAX);
        assert!(is_old(FOLIO_BYTES * 17..FOLIO_BYTES * 17 + 1), "as a whole");
    }

    /// F3: nothing is left of a file without a cached writer, and its reads cost one check.
    #[test]
    fn only_files_with_a_cached_writer_have_an_entry() {
        let refills = Refills::default();
        let left = || (refills.0.table.lock().files.len(), refills.has_any());
        refills.sending(&content(0, 1), || {
            refills.reading(NODE, 0..4096);
            assert_eq!(left(), (0, true));
        });
        assert_eq!(left(), (0, false));
        refills.opened(NODE);
        refills.opened(NODE);
        refills.sending(&content(0, 1), || ());
        refills.sending(&content(0, 1), || ());
        refills.closed(NODE);
        assert_eq!(left(), (1, true));
        refills.closed(NODE);
        assert_eq!(left(), (0, false));
        refills.sending(&content(0, 1), || refills.opened(NODE));
        assert_eq!(left(), (1, true), "opened while the notice was sent");
        refills.has_old_bytes(NODE, 0..1, true);
        assert_eq!(left(), (1, false));
        refills.sending(&content(0, 1), || ());
        refills.clear();
        assert_eq!(left(), (0, false));
    }
}
