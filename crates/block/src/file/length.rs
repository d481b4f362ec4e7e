//! The file's length as this device opened or made it, to tell a change by another program from one
//! of our own.
//!
//! Invariants: N1 one change at a time: only the holder of `switching` changes the length. N2 while
//! a change is in progress, the file has the length before or after it; a check that finds any
//! other length is repeated if a change began or ended meanwhile.
//!
//! No lock: threads that complete requests check it too.

use forebay_base::Result;
use std::sync::atomic::{AtomicU64, Ordering};

/// Bytes of the whole file.
pub(crate) struct Length {
    known: AtomicU64,
    /// The length after a change in progress.
    coming: AtomicU64,
    /// Odd while a change is under way.
    changes: AtomicU64,
}

impl Length {
    pub fn new(bytes: u64) -> Self {
        let (known, coming) = (AtomicU64::new(bytes), AtomicU64::new(bytes));
        Self { known, coming, changes: AtomicU64::new(0) }
    }

    /// Changes the length by `set`.
    pub fn change(&self, to: u64, set: impl FnOnce() -> Result<()>) -> Result<()> {
        self.coming.store(to, Ordering::SeqCst);
        let under_way = self.changes.fetch_add(1, Ordering::SeqCst);
        assert!(under_way.is_multiple_of(2), "N1: one change at a time");
        let done = set();
        if done.is_ok() {
            self.known.store(to, Ordering::SeqCst);
        }
        self.changes.fetch_add(1, Ordering::SeqCst);
        done
    }

    /// Measures the file by `look`. `None` if it has the known length, else the known length and
    /// the measured one (length.N2).
    pub fn compare(&self, look: impl Fn() -> Result<u64>) -> Result<Option<(u64, u64)>> {
        loop {
            let changes = self.changes.load(Ordering::SeqCst);
            let known = self.known.load(Ordering::SeqCst);
            let coming = self.coming.load(Ordering::SeqCst);
            let now = look()?;
            if now == known || (changes % 2 == 1 && now == coming) {
                return Ok(None);
            }
            if self.changes.load(Ordering::SeqCst) == changes {
                return Ok(Some((known, now)));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;

    /// N2. The story: a request met the end of the file while it grew, and compared the length with
    /// the known one. It reported a change by another program: the file was already longer than
    /// noted, or was measured before the change and compared after it.
    #[test]
    fn length_own_change_is_not_reported() {
        let (length, file) = (Length::new(100), Cell::new(100));
        let look = || Ok(file.get());
        let grow = |to: u64| {
            let set = || {
                assert_eq!(length.compare(look)?, None, "before the call");
                file.set(to);
                assert_eq!(length.compare(look)?, None, "grown, and not noted yet");
                file.set(to + 7);
                assert_eq!(
                    length.compare(look)?,
                    Some((to - 100, to + 7)),
                    "a change by another program"
                );
                file.set(to);
                Ok(())
            };
            length.change(to, set)
        };
        grow(200).unwrap();
        assert_eq!(length.compare(look).unwrap(), None);
        // Measured before the file grows, compared after it has grown.
        let looks = Cell::new(0);
        let late = || {
            let now = file.get();
            looks.set(looks.get() + 1);
            if looks.get() == 1 {
                grow(300)?;
            }
            Ok(now)
        };
        assert_eq!(length.compare(late).unwrap(), None);
        assert_eq!(looks.get(), 1, "what was known before the look is what it found");
        // A change by another program is reported while it lasts.
        file.set(301);
        assert_eq!(length.compare(look).unwrap(), Some((300, 301)));
        file.set(300);
        // A change that fails leaves the known length as it was.
        let error = || forebay_base::Error::new(forebay_base::ErrorKind::Io, "grow", "no");
        assert!(length.change(400, || Err(error())).is_err());
        assert_eq!(length.compare(look).unwrap(), None);
        file.set(400);
        assert_eq!(length.compare(look).unwrap(), Some((300, 400)));
    }
}
