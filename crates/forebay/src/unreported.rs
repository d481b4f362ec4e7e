//! Errors of closed files that no opener has seen yet: the next opener's sync reports them
//! (docs/reference/failure-protocol.md).
//!
//! Invariants: T1 a file's error is here before its lock is released, so the next opener finds it.
//! T2 the records stay within their part of the budget. If there are too many, each file opened
//! from then on without a record of its own reports that a record was lost, which may be its own.
//! So lack of space never turns a failed sync into a success.
//!
//! Lock: one, a leaf.

use forebay_base::{Error, ErrorKind};
use forebay_block::{BlockDevice, DeviceRef, FileIdentity};
use forebay_cache::{ErrorGrant, PageCache, Unreported};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, Weak};

/// Which file.
#[derive(Clone)]
pub(crate) enum Key {
    File(FileIdentity),
    /// A device object. No other object gets its address while this reference is held.
    Object(Weak<dyn BlockDevice>),
}

/// What tells keys apart.
#[derive(PartialEq, Eq, Hash)]
enum Name {
    File(FileIdentity),
    Object(usize),
}

impl Key {
    pub fn object(device: &DeviceRef) -> Self {
        Self::Object(Arc::downgrade(device))
    }

    fn name(&self) -> Name {
        match self {
            Self::File(identity) => Name::File(*identity),
            Self::Object(device) => Name::Object(device.as_ptr().cast::<()>() as usize),
        }
    }

    /// Whether the object has been dropped, so that no caller can open it again.
    fn is_gone(&self) -> bool {
        matches!(self, Self::Object(device) if device.strong_count() == 0)
    }
}

struct Record {
    key: Key,
    unreported: Unreported,
    _share: ErrorGrant,
}

#[derive(Default)]
struct State {
    records: HashMap<Name, Record>,
    /// There were more records than the limit (unreported.T2).
    lost: bool,
}

/// The recorded errors, by file.
#[derive(Default)]
pub(crate) struct UnreportedErrors(Mutex<State>);

impl UnreportedErrors {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(|p| p.into_inner())
    }

    /// Keeps the unreported errors of a file that closes.
    pub fn keep(&self, pages: &PageCache, key: Key, unreported: Unreported) {
        if key.is_gone() {
            return;
        }
        let mut state = self.lock();
        let share = pages.error_grant().or_else(|| {
            state.records.retain(|_, record| !record.key.is_gone());
            pages.error_grant()
        });
        match share {
            Some(_share) => {
                let mut record = Record { unreported, _share, key };
                let old = state.records.remove(&record.key.name());
                // An error of bytes that may be lost is kept, whatever later errors are.
                let sticky = &mut record.unreported.sticky;
                *sticky = sticky.take().or(old.and_then(|old| old.unreported.sticky));
                state.records.insert(record.key.name(), record);
            }
            None => {
                log::error!("no space for the error of a closed file: {}", unreported.error);
                state.lost = true;
            }
        }
    }

    /// Takes the errors for a caller that opens the file for writing.
    pub fn take(&self, key: &Key) -> Option<Unreported> {
        let mut state = self.lock();
        if let Some(record) = state.records.remove(&key.name()) {
            return Some(record.unreported);
        }
        let text = "an error of a closed file was lost for lack of space; it may be this one's";
        state
            .lost
            .then(|| Unreported { error: Error::new(ErrorKind::Io, "sync", text), sticky: None })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_base::world::RealWorld;
    use forebay_block::RamDevice;
    use forebay_cache::Config;

    fn unreported(i: u64) -> Unreported {
        Unreported { error: Error::new(ErrorKind::Io, "sync", format!("{i}")), sticky: None }
    }

    /// T2: at the limit the loss of a record is reported instead.
    #[test]
    fn records_are_bounded_and_none_is_lost_in_silence() {
        let config = Config { huge_pages: false, ..Config::with_budget(16 << 20) };
        let pages = PageCache::new(config, RealWorld::with_seed(1)).unwrap();
        let errors = UnreportedErrors::default();
        let file = |i: u64| Key::File(FileIdentity::Inode(1, i));
        // Records of dropped objects are removed when space runs out.
        let objects: Vec<DeviceRef> =
            (0..64).map(|_| Arc::new(RamDevice::new(4096)) as DeviceRef).collect();
        for (i, object) in (0u64..).zip(&objects) {
            errors.keep(&pages, Key::object(object), unreported(i));
        }
        assert!(errors.take(&Key::object(&objects[3])).is_some());
        assert!(errors.take(&Key::object(&objects[3])).is_none(), "reported once");
        drop(objects);
        (0..128).for_each(|i| errors.keep(&pages, file(i), unreported(i)));
        assert_eq!(pages.file_bytes(), 128 << 10);
        assert!(errors.take(&file(1000)).is_none(), "none is lost yet");
        errors.keep(&pages, file(128), unreported(128));
        assert_eq!(pages.file_bytes(), 128 << 10, "bounded");
        for i in 0..200 {
            let taken = errors.take(&file(i)).expect("T1, T2: its own, or the lost one");
            let text = taken.error.to_string();
            assert_eq!(text.contains("lost"), i >= 128, "{text}");
        }
        assert_eq!(pages.file_bytes(), 0);
    }
    /// The story: a file was closed twice before an opener saw its error. The second error replaced
    /// the first, which had said that bytes may be lost for good.
    #[test]
    fn bytes_that_may_be_lost_stay_so_whatever_comes_after() {
        let config = Config { huge_pages: false, ..Config::with_budget(16 << 20) };
        let pages = PageCache::new(config, RealWorld::with_seed(1)).unwrap();
        let errors = UnreportedErrors::default();
        let key = || Key::File(FileIdentity::Inode(1, 7));
        let lost = Error::new(ErrorKind::Io, "sync", "lost for good");
        errors.keep(&pages, key(), Unreported { sticky: Some(lost), ..unreported(1) });
        errors.keep(&pages, key(), unreported(2));
        assert_eq!(pages.file_bytes(), 1024, "one file, one record (T2)");
        let taken = errors.take(&key()).unwrap();
        assert!(taken.error.to_string().contains('2'), "the latest: {}", taken.error);
        assert!(taken.sticky.expect("kept").to_string().contains("lost for good"));
        assert!(errors.take(&key()).is_none() && pages.file_bytes() == 0);
    }
}
