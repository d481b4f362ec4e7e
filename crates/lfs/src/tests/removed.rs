//! A file is removed at each poll of an operation that writes it out: on another file, or on all.
//!
//! No locks.

use crate::alloc::AllocMode;
use crate::tests::reuse::{create, setup, write};
use crate::{OpenOptions, Volume};
use forebay_base::task::BoxFuture;
use forebay_base::world::WorldRef;
use forebay_base::{ErrorKind, Result};
use forebay_block::DeviceRef;
use forebay_vfs::{FileSystem, Ino, Name, OpenFileRef, OpenFlags, RenameFlags};
use std::future::poll_fn;
use std::sync::Arc;
use std::task::Poll;

const BLOCK: usize = 4096;

fn name(text: &str) -> Name<'_> {
    Name::new(text.as_bytes()).unwrap()
}

/// What writes `f` out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Op {
    /// A sync of `g`: `f` was truncated to nothing, written and closed.
    SyncOfOther,
    /// A sync of everything.
    SyncFs,
    /// `f` replaces `g`.
    Rename,
}

/// Carries the operation out, and removes `f` after `polls` polls of it. `None`: it ended before.
fn removed_after(polls: u32, op: Op, alloc: AllocMode) -> Option<Result<()>> {
    let setup = setup(0);
    let disk = setup.blank();
    let done = disk.world().run(async {
        let (device, world): (DeviceRef, WorldRef) = (Arc::new(disk.clone()), disk.world().clone());
        let options = OpenOptions { alloc, lock_points: true, ..setup.options(&world) };
        let volume = Volume::open(&device, &world, &options).await.unwrap();
        let (ino, file) = create(&volume, "f").await.unwrap();
        write(&file, 0, &[1; BLOCK]).await.unwrap();
        volume.syncfs().await.unwrap();
        drop(file);
        let flags = OpenFlags::READ | OpenFlags::WRITE | OpenFlags::TRUNCATE;
        let file = volume.open(ino, flags).await.unwrap();
        write(&file, 0, &[2; 6 * BLOCK]).await.unwrap();
        drop(file);
        let (_, other): (_, OpenFileRef) = create(&volume, "g").await.unwrap();
        let mut work: BoxFuture<'_, Result<()>> = match op {
            Op::SyncOfOther => other.sync(true),
            Op::SyncFs => volume.syncfs(),
            Op::Rename => {
                volume.rename(Ino::ROOT, name("f"), Ino::ROOT, name("g"), RenameFlags::empty())
            }
        };
        let mut left = polls;
        let ended = poll_fn(|cx| {
            left -= 1;
            match work.as_mut().poll(cx) {
                Poll::Ready(done) => Poll::Ready(Some(done)),
                Poll::Pending if left == 0 => Poll::Ready(None),
                Poll::Pending => Poll::Pending,
            }
        });
        if let Some(done) = ended.await {
            done.unwrap();
            return None;
        }
        volume.unlink(Ino::ROOT, name("f")).await.unwrap();
        let done = work.await;
        let closed = volume.close().await;
        closed.unwrap_or_else(|error| panic!("{op:?}, {alloc}, {polls} polls: closing: {error}"));
        Some(done)
    });
    disk.world().stop();
    done
}

/// The story: the write-out of a removed file failed with `Stale`, and so did the operation on
/// another file: a sync or close of a volume whose caller had not touched the removed file.
#[test]
fn sync_of_others_works_while_file_is_removed() {
    for alloc in AllocMode::ALL {
        for op in [Op::SyncOfOther, Op::SyncFs, Op::Rename] {
            let mut polls = 0;
            while let Some(done) = {
                polls += 1;
                removed_after(polls, op, alloc)
            } {
                match done {
                    Ok(()) => {}
                    Err(error) if op == Op::Rename => {
                        assert_eq!(error.kind(), ErrorKind::NotFound, "{alloc}, {polls}: {error}");
                    }
                    Err(error) => panic!("{op:?}, {alloc}, {polls} polls: {error}"),
                }
            }
            assert!(polls > 2, "{op:?}, {alloc}: {polls} polls");
        }
    }
}
