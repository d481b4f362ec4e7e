//! Times of an open regular file that reads and writes move without the state lock.
//!
//! ```text
//!   disarmed ──a write or read under the state lock──▶ armed ──more of them, without the lock──┐
//!      ▲                                                 │  ▲                                  │
//!      └── any other change of the inode, or a sync ─────┘  └──────────────────────────────────┘
//! ```
//! The first write after a change of the inode takes the state lock: it drops privileges, notes the
//! inode as one whose times a sync has to write, and arms this. Later writes store their time here.
//!
//! Invariants: S20 a write stores its time here only while the inode is noted as one with moved
//! times, and has no privileges that a write drops; so a change of the inode disarms this in the
//! same hold of the state lock. S21 a read skips the lock only if relatime changes nothing, even
//! with the time of the last write.
//!
//! No locks: one atomic for each kind of access.

use crate::format::inode::Time;
use forebay_base::sync::atomic::{AtomicU64, Ordering};
use forebay_vfs::Timestamp;

const SECOND_NANOS: u64 = 1_000_000_000;
/// Relatime moves a read time that is as old as this, seconds.
const DAY_SECONDS: u64 = 24 * 60 * 60;
/// Seconds since 1970 that fit into a packed time. Other times need the state lock.
const PACKED_SECONDS: std::ops::Range<i64> = 1..1 << 33;

/// Times of the last accesses to one file.
#[derive(Debug, Default)]
pub(crate) struct OpenTimes {
    /// `mtime` and `ctime` of the last write, ns since 1970; 0: disarmed.
    written: AtomicU64,
    /// `atime` that relatime accepts, ns since 1970; 0: disarmed.
    read: AtomicU64,
}

fn pack(at: Timestamp) -> Option<u64> {
    let is_packed = PACKED_SECONDS.contains(&at.sec);
    is_packed.then(|| at.sec as u64 * SECOND_NANOS + u64::from(at.nsec))
}

fn unpack(nanos: u64) -> Option<Time> {
    let (seconds, nanos_of_second) = (nanos / SECOND_NANOS, nanos % SECOND_NANOS);
    (nanos > 0).then_some(Time { seconds: seconds as i64, nanos: nanos_of_second as u32 })
}

impl OpenTimes {
    /// Stores the time of a write. False: the write has to take the state lock (S20).
    pub fn try_write(&self, now: Timestamp) -> bool {
        let Some(now) = pack(now) else { return false };
        let armed = |seen: u64| (seen != 0).then_some(now);
        let stored = self.written.fetch_update(Ordering::AcqRel, Ordering::Acquire, armed);
        stored.is_ok()
    }

    /// Whether a read moves no time (S21).
    pub fn is_read(&self, now: Timestamp) -> bool {
        let read = self.read.load(Ordering::Acquire);
        if read == 0 || self.written.load(Ordering::Acquire) >= read {
            return false;
        }
        let age = now.sec.saturating_sub((read / SECOND_NANOS) as i64);
        age < DAY_SECONDS as i64
    }

    /// The time of the last write that is stored here only.
    pub fn written(&self) -> Option<Time> {
        unpack(self.written.load(Ordering::Acquire))
    }

    /// From now on writes store their times here. The caller holds the state lock and has noted
    /// that the inode's times have moved (S20).
    pub fn arm_writes(&self, now: Timestamp) {
        self.written.store(pack(now).unwrap_or(0), Ordering::Release);
    }

    /// From now on reads skip the state lock while relatime accepts this access time; the caller
    /// holds the lock.
    pub fn arm_reads(&self, atime: Timestamp) {
        self.read.store(pack(atime).unwrap_or(0), Ordering::Release);
    }

    /// Called when the inode changes. Returns the time of the last write, if it is stored here
    /// only. The caller holds the state lock.
    pub fn disarm(&self) -> Option<Time> {
        self.read.store(0, Ordering::Release);
        unpack(self.written.swap(0, Ordering::AcqRel))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_vfs::types::relatime;
    use forebay_vfs::{Attr, FileKind, Ino};

    fn at(sec: i64, nsec: u32) -> Timestamp {
        Timestamp::new(sec, nsec)
    }

    /// S20: nothing is stored before a write armed it, nor after a change disarmed it; times before
    /// 1970 and far in the future never are.
    #[test]
    fn writes_are_stored_only_while_armed() {
        let times = OpenTimes::default();
        assert!(!times.try_write(at(5, 0)), "S20: disarmed from the start");
        times.arm_writes(at(5, 7));
        assert_eq!(times.written(), Some(Time { seconds: 5, nanos: 7 }));
        assert!(times.try_write(at(6, 999_999_999)), "S20: armed");
        assert_eq!(times.disarm(), Some(Time { seconds: 6, nanos: 999_999_999 }));
        assert!(!times.try_write(at(7, 0)), "S20: disarmed by the change");
        assert_eq!((times.disarm(), times.written()), (None, None));
        for never in [at(-3, 0), at(0, 5), at(1 << 33, 0)] {
            times.arm_writes(never);
            assert_eq!(times.written(), None, "S20: {never:?}");
        }
    }

    /// S21: a read skips the state lock exactly if relatime, with the pending write time counted,
    /// would not change the access time.
    #[test]
    fn reads_skip_the_lock_where_relatime_moves_nothing() {
        let day = DAY_SECONDS as i64;
        for atime in [at(100, 0), at(100, 5)] {
            let times = OpenTimes::default();
            assert!(!times.is_read(at(100, 6)), "S21: disarmed from the start");
            times.arm_reads(atime);
            for written in [None, Some(at(99, 999_999_999)), Some(at(100, 5)), Some(at(101, 0))] {
                times.arm_writes(written.unwrap_or(at(0, 0)));
                for now in [at(99, 0), at(100, 9), at(99 + day, 0), at(100 + day, 0)] {
                    let changed = written.unwrap_or(at(1, 0));
                    let attr = Attr { atime, mtime: changed, ctime: changed, ..attr() };
                    let is_idle = !relatime(&attr, now);
                    assert_eq!(times.is_read(now), is_idle, "S21: {atime:?} {written:?} {now:?}");
                }
            }
            times.disarm();
            assert!(!times.is_read(at(100, 9)), "S21: disarmed by a change");
        }
    }

    fn attr() -> Attr {
        let zero = at(0, 0);
        Attr {
            ino: Ino(1),
            generation: 1,
            kind: FileKind::File,
            perm: 0o644,
            nlink: 1,
            uid: 0,
            gid: 0,
            rdev: 0,
            size: 0,
            allocated_bytes: 0,
            atime: zero,
            mtime: zero,
            ctime: zero,
            btime: zero,
        }
    }
}
