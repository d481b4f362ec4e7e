//! A mount that holds a store back until it is asked for it.
//!
//! Locks: one for what is held back, one for what was asked for; neither within the other.

use forebay::Volume;
use forebay_base::IoFlags;
use forebay_base::buf::AlignedBuf;
use forebay_base::sync::Mutex;
use forebay_base::task::BoxFuture;
use forebay_vfs::coherent::{Change, Observer, Ticket};
use forebay_vfs::{FileSystem, Ino, OpenFileRef, OpenFlags, Privileges};
use std::sync::{Arc, Weak};

/// Hands a store over when it is asked for its range, by writing it to the file system below.
pub struct Mount {
    /// The file system that it serves.
    fs: Arc<dyn FileSystem>,
    /// Bytes of a store into a map, and their offset.
    held: Mutex<Option<(Vec<u8>, u64)>>,
    asked: Mutex<Vec<(u64, u64)>>,
}

impl Mount {
    /// Mounts a volume of one file.
    pub fn of(volume: &Volume) -> Arc<Self> {
        let fs = volume.to_mount().inner().clone();
        let (held, asked) = Default::default();
        let mount = Arc::new(Self { fs, held, asked });
        let observer: Weak<Self> = Arc::downgrade(&mount);
        volume.to_mount().observe(observer).unwrap();
        mount
    }

    /// A program stores into its map.
    pub fn store(&self, bytes: &[u8], offset: u64) {
        *self.held.lock() = Some((bytes.to_vec(), offset));
    }

    /// Offsets and lengths that were asked for.
    pub fn asked(&self) -> Vec<(u64, u64)> {
        self.asked.lock().clone()
    }
}

fn at_once() -> BoxFuture<'static, ()> {
    Box::pin(std::future::ready(()))
}

impl Observer for Mount {
    fn knows(&self, _: Ino) -> bool {
        true
    }
    fn keep(&self, _: OpenFileRef) {}
    fn holds_back(&self, _: Ino) -> bool {
        true
    }
    fn hand_over(&self, ino: Ino, offset: u64, len: u64) -> Ticket {
        self.asked.lock().push((offset, len));
        Ticket(ino.0)
    }
    fn store_writes(&self, _: Ino) -> u64 {
        // All of a range counts as differing, so the count is not needed.
        0
    }
    fn will_change(&self, _: Ino) -> BoxFuture<'_, ()> {
        at_once()
    }
    fn change_over(&self, _: Ino) {}
    fn will_change_name(&self, _: Ino, _: &[u8]) -> BoxFuture<'_, ()> {
        at_once()
    }
    fn name_change_over(&self, _: Ino, _: &[u8]) {}
    fn changed(&self, _: &Change) -> Ticket {
        Ticket::default()
    }
    fn room(&self) -> BoxFuture<'_, ()> {
        at_once()
    }
    fn told(&self, ticket: Ticket) -> BoxFuture<'_, ()> {
        let asked = self.asked.lock().last().copied();
        let is_asked = |held: &mut (Vec<u8>, u64)| {
            asked.is_some_and(|(offset, len)| offset <= held.1 && held.1 < offset + len)
        };
        let Some((bytes, offset)) = self.held.lock().take_if(is_asked) else { return at_once() };
        Box::pin(async move {
            let file = self.fs.open(Ino(ticket.0), OpenFlags::WRITE).await.unwrap();
            let buf = AlignedBuf::copy_of(&bytes);
            file.write(offset, buf, IoFlags::empty(), Privileges::Keep).await.1.unwrap();
        })
    }
}
