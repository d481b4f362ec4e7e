//! Which volumes a cache has open.
//!
//! Invariant: W1 whoever opens a volume that somebody is opening, or letting go, waits for that; it is
//! neither refused for our own lock nor opened twice.
//!
//! Lock: `map`, not held while a volume is opened or let go.

use crate::cache::Cache;
use forebay_base::task::block_on;
use forebay_base::{Error, ErrorKind, Result};
use forebay_block::{FileDevice, FileIdentity};
use forebay_vfs::{FileSystem, NotifyingFs};
use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, Weak};
use std::time::{Duration, Instant};

/// How long to wait for a volume that is being let go.
const PATIENCE: Duration = Duration::from_secs(30);

/// A volume that is open.
pub(crate) struct Open {
    pub fs: Arc<dyn FileSystem>,
    /// The same.
    pub beside: Arc<NotifyingFs>,
    pub volume: forebay_lfs::Volume,
    pub device: Arc<FileDevice>,
    pub cache: Cache,
    pub path: PathBuf,
    pub key: FileIdentity,
    pub read_only: bool,
    pub closed: AtomicBool,
    pub owner: (u32, u32),
}

impl Open {
    /// Ends the volume, once; again if that failed.
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
        // Who wants to know has closed it. Nobody is told here.
        if let Err(error) = self.close() {
            log::warn!("letting {} go: {error}", self.path.display());
        }
    }
}

/// See the module.
#[derive(Default)]
pub(crate) struct Volumes {
    map: Mutex<HashMap<FileIdentity, Entry>>,
    changed: Condvar,
}

enum Entry {
    Opening,
    Open(Weak<Open>, Weak<Gone>),
}

/// Held by a volume's device for as long as that is open.
pub(crate) struct Gone(Arc<Volumes>);

impl Drop for Gone {
    fn drop(&mut self) {
        // Whoever looked before this waits by now, or has not looked yet.
        drop(self.0.lock());
        self.0.changed.notify_all();
    }
}

/// What a claim finds.
pub(crate) enum Found {
    /// The volume is open.
    Open(Arc<Open>),
    /// It is the caller's to open.
    Free(Claim),
}

/// The right to open a volume; given back on drop.
pub(crate) struct Claim {
    volumes: Arc<Volumes>,
    key: FileIdentity,
    opened: bool,
}

impl Volumes {
    fn lock(&self) -> MutexGuard<'_, HashMap<FileIdentity, Entry>> {
        self.map.lock().unwrap_or_else(|p| p.into_inner())
    }

    /// Claims a volume, or finds it open (W1).
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
                let text = "it is being opened or let go, for long";
                return Err(Error::new(ErrorKind::Busy, "open", text));
            }
            map = self.changed.wait_timeout(map, left).unwrap_or_else(|p| p.into_inner()).0;
        }
        map.insert(key, Entry::Opening);
        Ok(Found::Free(Claim { volumes: self.clone(), key, opened: false }))
    }

    /// Those that are open.
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
    /// What the device of the volume is to hold.
    pub fn gone(&self) -> Arc<Gone> {
        Arc::new(Gone(self.volumes.clone()))
    }

    /// The volume is open.
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
