//! The volumes of a cache. Each has one handle; closing that closes the volume.
//!
//! Invariant: capi.C3 while one call opens or closes a volume, another open of it waits, or fails
//! after [`WAIT`]. So it finds neither a volume that is closing nor its handle.
//!
//! Lock: one over the map, held for one lookup or change.

use forebay::{Error, ErrorKind, FileIdentity, Result};
use std::collections::HashMap;
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::Duration;

/// How long an open waits for another call. A close writes back all that is dirty, which may take
/// as long as the device does, also for ever.
const WAIT: Duration = Duration::from_secs(30);

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    /// A call opens or closes it.
    Changing,
    Open,
}

#[derive(Default)]
pub(crate) struct Volumes {
    map: Mutex<HashMap<FileIdentity, State>>,
    changed: Condvar,
}

impl Volumes {
    fn lock(&self) -> MutexGuard<'_, HashMap<FileIdentity, State>> {
        self.map.lock().unwrap_or_else(|p| p.into_inner())
    }

    fn set(&self, key: FileIdentity, state: Option<State>) {
        let mut map = self.lock();
        match state {
            Some(state) => map.insert(key, state),
            None => map.remove(&key),
        };
        drop(map);
        self.changed.notify_all();
    }
}

/// The right to the one handle of a volume. Its drop gives it back.
pub(crate) struct Held {
    volumes: Arc<Volumes>,
    key: FileIdentity,
}

impl Held {
    /// Takes the right for a call that opens the volume. Waits while another call opens or closes
    /// it. `Busy` if it is open, or that call goes on for [`WAIT`].
    pub fn claim(volumes: &Arc<Volumes>, key: FileIdentity) -> Result<Self> {
        Self::claim_within(volumes, key, WAIT)
    }

    fn claim_within(volumes: &Arc<Volumes>, key: FileIdentity, limit: Duration) -> Result<Self> {
        let is_changing =
            |map: &mut HashMap<_, _>| map.get(&key).is_some_and(|state| *state == State::Changing);
        let waited = volumes.changed.wait_timeout_while(volumes.lock(), limit, is_changing);
        let (mut map, _) = waited.unwrap_or_else(|p| p.into_inner());
        let text = match map.get(&key) {
            None => {
                map.insert(key, State::Changing);
                drop(map);
                return Ok(Self { volumes: volumes.clone(), key });
            }
            Some(State::Open) => "it is open on this cache: use that handle",
            Some(State::Changing) => "another call opens or closes it, and does not end",
        };
        Err(Error::new(ErrorKind::Busy, "open a volume", text))
    }

    pub fn is_of(&self, key: FileIdentity) -> bool {
        self.key == key
    }

    /// The volume is open now.
    pub fn mark_open(&self) {
        self.volumes.set(self.key, Some(State::Open));
    }

    /// A call begins to close the volume.
    pub fn mark_closing(&self) {
        self.volumes.set(self.key, Some(State::Changing));
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.volumes.set(self.key, None);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn c3_open_waits_for_close_and_is_refused_by_open_volume() {
        let volumes = Arc::new(Volumes::default());
        let key = FileIdentity::Inode(1, 2);
        let first = Held::claim(&volumes, key).unwrap();
        first.mark_open();
        assert_eq!(Held::claim(&volumes, key).err().unwrap().kind(), ErrorKind::Busy);
        drop(Held::claim(&volumes, FileIdentity::Inode(1, 3)).unwrap());
        first.mark_closing();
        std::thread::scope(|scope| {
            let second = scope.spawn(|| Held::claim(&volumes, key).map(drop));
            // It may not have begun to wait yet. If it did not wait at all, it would have ended.
            std::thread::sleep(std::time::Duration::from_millis(20));
            assert!(!second.is_finished(), "C3: it waits");
            drop(first);
            second.join().unwrap().unwrap();
        });
        assert!(volumes.lock().is_empty());
    }

    #[test]
    fn c3_open_is_refused_while_a_close_does_not_end() {
        let volumes = Arc::new(Volumes::default());
        let key = FileIdentity::Inode(1, 2);
        let stuck = Held::claim(&volumes, key).unwrap();
        stuck.mark_open();
        stuck.mark_closing();
        let refused = Held::claim_within(&volumes, key, Duration::from_millis(1)).err().unwrap();
        assert_eq!(refused.kind(), ErrorKind::Busy);
        assert!(refused.to_string().contains("does not end"), "{refused}");
        drop(stuck);
        Held::claim_within(&volumes, key, Duration::ZERO).unwrap();
    }
}
