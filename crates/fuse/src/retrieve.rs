//! Finds out whether programs have stored into mapped pages in the kernel's cache. It compares the
//! kernel's copy of a file with what the library has read, and drops no page.
//!
//! A store into a shared map makes a page dirty in the kernel, and the daemon gets no request:
//! neither mmap(2) nor the first store causes one. FUSE offers two notices for pages. `INVAL_INODE`
//! writes a dirty page back, but also drops it, and clean pages as well. A backup by the library
//! would thus empty the kernel's cache of a database that a program has open. `RETRIEVE` returns a
//! copy of cached pages, and changes nothing. So a reader retrieves its range, compares, and
//! invalidates only pages that differ.
//!
//! `RETRIEVE` ends at the first absent page. The pages after it are requested one by one, all at
//! once.
//!
//! An absent page says nothing: the kernel may have written a store and dropped the page since the
//! caller read its bytes. Such a write is a request to the daemon, which counts it. The caller
//! compares the counts from before its read and after the comparison. Kernels before 6.16 may drop
//! a clean page before its write has been answered; there a reader can miss a store whose page the
//! kernel reclaims at that moment.
//!
//! Invariants: ret.R1 a page that differed from `bytes` before the call is in the result, or the
//! count of its inode has risen since then. ret.R2 no page is locked or dropped, so a call waits
//! only for the daemon's reader threads, never for a request of the mount. ret.R3 a call ends with
//! the connection. ret.R4 a write of stores is counted after it has taken effect and before it is
//! answered. So is a request after which the kernel discards stores: a truncation, a punched or
//! zeroed range, and the target of a copy.
//!
//! Memory: at most [`PIECE_BYTES`] for each caller.
//!
//! Locks: the table's and one for each call, all leaves.

use crate::device::Device;
use crate::proto::notify::Notice;
use forebay_base::sync::atomic::{AtomicU64, Ordering};
use forebay_base::task::WaitQueue;
use rustix::io::Errno;
use std::collections::HashMap;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};

/// Bytes that are compared at a time.
const PIECE_BYTES: u64 = 256 << 10;
const PAGE_BYTES: u64 = 4096;
/// Counters of written stores. Inodes share them: a rise that is due to another inode costs a
/// needless second read.
const COUNTERS: usize = 64;

/// The answers to one call.
#[derive(Default)]
struct Found {
    /// Requests without an answer.
    pending: usize,
    /// The kernel's bytes, each part with its offset.
    parts: Vec<(u64, Vec<u8>)>,
}

#[derive(Default)]
struct Call {
    found: Mutex<Found>,
    wait: WaitQueue,
}

#[derive(Default)]
struct Table {
    next: u64,
    calls: HashMap<u64, Arc<Call>>,
    closed: bool,
}

/// Retrieves what the kernel has of files.
pub(crate) struct Retriever {
    table: Mutex<Table>,
    device: OnceLock<Weak<Device>>,
    /// How often stores were written or discarded, by inode (R4).
    store_writes: [AtomicU64; COUNTERS],
}

impl Default for Retriever {
    fn default() -> Self {
        let (table, device) = Default::default();
        Self { table, device, store_writes: std::array::from_fn(|_| AtomicU64::default()) }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Keeps a call in the table until it is dropped.
struct Registered<'a> {
    retriever: &'a Retriever,
    number: u64,
    call: Arc<Call>,
}

impl Drop for Registered<'_> {
    fn drop(&mut self) {
        lock(&self.retriever.table).calls.remove(&self.number);
    }
}

/// Adds the parts of pages in which `ours` and `kernels` differ; both begin at offset `at`.
fn add_differing(out: &mut Vec<Range<u64>>, at: u64, ours: &[u8], kernels: &[u8]) {
    let len = ours.len().min(kernels.len());
    let (mut pos, end) = (at, at + len as u64);
    while pos < end {
        let until = (pos / PAGE_BYTES + 1) * PAGE_BYTES;
        let part = (pos - at) as usize..(until.min(end) - at) as usize;
        if ours[part.clone()] != kernels[part] {
            match out.last_mut() {
                Some(last) if last.end == pos => last.end = until.min(end),
                _ => out.push(pos..until.min(end)),
            }
        }
        pos = until;
    }
}

impl Retriever {
    /// Sets the connection to which the notices are sent.
    pub fn attach(&self, device: &Arc<Device>) {
        let _is_set_once = self.device.set(Arc::downgrade(device));
    }

    /// Ends all calls: no further answer can arrive (R3).
    pub fn close(&self) {
        let mut table = lock(&self.table);
        table.closed = true;
        let calls = std::mem::take(&mut table.calls);
        drop(table);
        calls.values().for_each(|call| call.wait.wake_all());
    }

    fn counter(&self, node: u64) -> &AtomicU64 {
        &self.store_writes[node as usize % COUNTERS]
    }

    /// Stores into maps of a file have been written, or the kernel discards them (R4).
    pub fn count_store_write(&self, node: u64) {
        self.counter(node).fetch_add(1, Ordering::SeqCst);
    }

    /// How often stores of a file, or of another that shares its counter, were written or
    /// discarded.
    pub fn store_writes(&self, node: u64) -> u64 {
        self.counter(node).load(Ordering::SeqCst)
    }

    fn register(&self) -> Option<Registered<'_>> {
        let mut table = lock(&self.table);
        if table.closed {
            return None;
        }
        table.next += 1;
        let (number, call) = (table.next, Arc::<Call>::default());
        table.calls.insert(number, call.clone());
        Some(Registered { retriever: self, number, call })
    }

    /// Returns the kernel's bytes of these ranges, as far as they are cached, in any order. Error:
    /// the kernel refused.
    async fn ask(
        &self,
        node: u64,
        ranges: impl Iterator<Item = Range<u64>>,
    ) -> Result<Vec<(u64, Vec<u8>)>, Errno> {
        let device = self.device.get().and_then(Weak::upgrade);
        let (Some(device), Some(registered)) = (device, self.register()) else {
            return Ok(Vec::new());
        };
        let Registered { number, call, .. } = &registered;
        for range in ranges {
            let size = (range.end - range.start) as u32;
            lock(&call.found).pending += 1;
            let notice = Notice::Retrieve { number: *number, node, offset: range.start, size };
            match device.notify(&notice.encode()) {
                Ok(()) => {}
                // The kernel does not know the inode, or the connection has ended: nothing is
                // cached.
                Err(Errno::NOENT | Errno::NODEV) => {
                    lock(&call.found).pending -= 1;
                    break;
                }
                Err(e) => return Err(e),
            }
        }
        let is_over = || {
            let has_all = lock(&call.found).pending == 0;
            (has_all || lock(&self.table).closed).then_some(())
        };
        call.wait.wait_until(is_over).await;
        Ok(std::mem::take(&mut lock(&call.found).parts))
    }

    /// Takes an answer of the kernel to the call `number`.
    pub fn answered(&self, number: u64, offset: u64, data: &[u8]) {
        let call = lock(&self.table).calls.get(&number).cloned();
        let Some(call) = call else { return };
        let mut found = lock(&call.found);
        found.pending = found.pending.saturating_sub(1);
        if !data.is_empty() {
            found.parts.push((offset, data.to_vec()));
        }
        let is_last = found.pending == 0;
        drop(found);
        if is_last {
            call.wait.wake_all();
        }
    }

    /// Returns the parts of pages, from `offset` on, in which the kernel's bytes differ from
    /// `bytes` (R1).
    pub async fn differing(&self, node: u64, offset: u64, bytes: &[u8]) -> Vec<Range<u64>> {
        let (mut out, end, mut at) = (Vec::new(), offset + bytes.len() as u64, offset);
        while at < end {
            let until = end.min((at / PIECE_BYTES + 1) * PIECE_BYTES);
            let ours = |at: u64| &bytes[(at - offset) as usize..(until - offset) as usize];
            let Ok(first) = self.ask(node, std::iter::once(at..until)).await else {
                out.push(at..end);
                break;
            };
            let mut next = at;
            for (from, kernels) in &first {
                add_differing(&mut out, *from, ours(*from), kernels);
                next = from + kernels.len() as u64;
            }
            if next < until {
                // Page `next` is absent.
                let start = (next / PAGE_BYTES + 1) * PAGE_BYTES;
                let pages = (start..until).step_by(PAGE_BYTES as usize);
                let pages = pages.map(|page| page..until.min(page + PAGE_BYTES));
                let Ok(mut rest) = self.ask(node, pages).await else {
                    out.push(next..end);
                    break;
                };
                rest.sort_unstable_by_key(|(from, _)| *from);
                for (from, kernels) in &rest {
                    add_differing(&mut out, *from, ours(*from), kernels);
                }
            }
            at = until;
        }
        out
    }
}

#[cfg(test)]
mod tests;
