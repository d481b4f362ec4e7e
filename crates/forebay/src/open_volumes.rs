//! The volumes that a cache has open.
//!
//! Invariant: W1 a caller waits while another one opens or closes the same volume. So this
//! process's own lock on an image never refuses a caller, and no volume is open twice.
//!
//! Lock: `map`, not held while a volume is opened or closed.

use forebay_base::task::block_on;
use forebay_base::{Error, ErrorKind, Result};
use forebay_block::{FileDevice, FileIdentity};
use forebay_vfs::{FileSystem, NotifyingFs};
use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, Weak};
use std::time::{Duration, Instant};

/// How long an opener waits for another one's open or close.
const PATIENCE: Duration = Duration::from_secs(30);

/// A volume that is open.
pub(crate) struct Open {
    pub fs: Arc<dyn FileSystem>,
    /// `fs` by its own type, for a mount that is notified of other front ends' changes.
    pub notifying: Arc<NotifyingFs>,
    pub volume: forebay_lfs::Volume,
    pub device: Arc<FileDevice>,
    pub path: PathBuf,
    pub key: FileIdentity,
    pub read_only: bool,
    pub closed: AtomicBool,
    pub owner: (u32, u32),
}

impl Open {
    /// Closes the volume once; after a failure the next call tries again.
    pub fn close(&self) -> Result<()> {
        if self.read_only || self.closed.swap(true, Ordering::AcqRel) {
            return Ok(());
        }
        let done = block_on(self.volume.close());
        if done.is_err() {
            self.closed.store(false, Ordering::Release);
        }
        done
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        // A caller that wants the outcome has called `close` before; here it can only be logged.
        if let Err(error) = self.close() {
            log::warn!("closing {}: {error}", self.path.display());
        }
    }
}

/// The open volumes of a cache, by the identity of their image.
#[derive(Default)]
pub(crate) struct Volumes {
    map: Mutex<HashMap<FileIdentity, Entry>>,
    changed: Condvar,
}

enum Entry {
    Opening,
    Open(Weak<Open>, Weak<Gone>),
}

/// A volume's device holds this while it is open; the drop wakes waiting openers.
pub(crate) struct Gone(Arc<Volumes>);

impl Drop for Gone {
    fn drop(&mut self) {
        // An opener checks and starts to wait under this lock, so it misses no notification.
        drop(self.0.lock());
        self.0.changed.notify_all();
    }
}

/// What a claim finds.
pub(crate) enum Found {
    /// The volume is open.
    Open(Arc<Open>),
    /// The volume is not open: the caller may open it.
    Free(Claim),
}

/// The right to open a volume. Dropping it unused gives it back.
pub(crate) struct Claim {
    volumes: Arc<Volumes>,
    key: FileIdentity,
    opened: bool,
}

impl Volumes {
    fn lock(&self) -> MutexGuard<'_, HashMap<FileIdentity, Entry>> {
        self.map.lock().unwrap_or_else(|p| p.into_inner())
    }

    /// Claims a volume, or finds it open (open_volumes.W1).
    pub fn claim(self: &Arc<Self>, key: FileIdentity) -> Result<Found> {
        let until = Instant::now() + PATIENCE;
        let mut map = self.lock();
        loop {
            match map.get(&key) {
                Some(Entry::Opening) => {}
                Some(Entry::Open(open, gone)) => {
                    if let Some(open) = open.upgrade() {
                        return Ok(Found::Open(open));
                    }
                    if gone.strong_count() == 0 {
                        break;
                    }
                }
                None => break,
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                let text = "another caller has been opening or closing it for long";
                return Err(Error::new(ErrorKind::Busy, "open", text));
            }
            map = self.changed.wait_timeout(map, left).unwrap_or_else(|p| p.into_inner()).0;
        }
        map.insert(key, Entry::Opening);
        Ok(Found::Free(Claim { volumes: self.clone(), key, opened: false }))
    }

    /// All open volumes.
    pub fn all(&self) -> Vec<Arc<Open>> {
        let map = self.lock();
        let open = |entry: &Entry| match entry {
            Entry::Open(open, _) => open.upgrade(),
            Entry::Opening => None,
        };
        map.values().filter_map(open).collect()
    }
}

impl Claim {
    /// A token that the device of the volume holds while it is open.
    pub fn gone(&self) -> Arc<Gone> {
        Arc::new(Gone(self.volumes.clone()))
    }

    /// Records that the volume is open.
    pub fn opened(mut self, open: &Arc<Open>, gone: &Arc<Gone>) {
        self.opened = true;
        let entry = Entry::Open(Arc::downgrade(open), Arc::downgrade(gone));
        let mut map = self.volumes.lock();
        map.retain(|_, entry| match entry {
            Entry::Opening => true,
            Entry::Open(_, gone) => gone.strong_count() > 0,
        });
        map.insert(self.key, entry);
        drop(map);
        self.volumes.changed.notify_all();
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        if !self.opened {
            self.volumes.lock().remove(&self.key);
            self.volumes.changed.notify_all();
        }
    }
}
