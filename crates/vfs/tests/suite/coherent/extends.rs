//! Reports of writes that make a file longer while others do.
//!
//! No locks.

use super::*;
use std::task::{Context, Waker};

const NONE: IoFlags = IoFlags::empty();

/// The offsets of the reports of content so far, each with the end that it told.
fn reported(mount: &Mount) -> Vec<(u64, Option<u64>)> {
    let told = std::mem::take(&mut *mount.told.lock());
    let content = |change| match change {
        Change::Content { offset, end, .. } => Some((offset, end.map(|(size, _)| size))),
        _ => None,
    };
    told.into_iter().filter_map(content).collect()
}

/// coherent.Z6. A report raises the size that the mount's kernel knows to that of the file, also
/// past bytes of a write that is not reported yet. Programs read zeros there, from pages that the
/// kernel had cached: the report of the second appender began at its own place.
#[test]
fn report_of_an_end_covers_writes_in_progress() {
    let at_the_end = (0, IoFlags::APPEND);
    let across_it = (12_000, NONE);
    for (offset, flags) in [at_the_end, across_it] {
        let below = Arc::new(Hooked::default());
        let (fs, mount, file) = held_back_on(below.clone());
        let other = block_on(fs.open(file.ino(), OpenFlags::WRITE)).unwrap();
        reported(&mount);
        below.late_opens.store(1, Ordering::Relaxed);
        let bytes = AlignedBuf::copy_of(&[7; 8000]);
        let mut first = file.write(offset, bytes, flags, Privileges::Drop);
        let mut cx = Context::from_waker(Waker::noop());
        assert!(first.as_mut().poll(&mut cx).is_pending(), "it looks for the last byte");
        other.write_slice(0, b"later", IoFlags::APPEND, Privileges::Drop).unwrap();
        let size = block_on(fs.getattr(file.ino())).unwrap().size;
        let begin = if flags == NONE { offset } else { 12_288 };
        assert_eq!(reported(&mount), [(begin, Some(size))], "{flags:?} at {offset}");
        block_on(first).1.unwrap();
        reported(&mount);
        other.write_slice(0, b"last", IoFlags::APPEND, Privileges::Drop).unwrap();
        assert_eq!(reported(&mount), [(size, Some(size + 4))], "nothing else is in progress");
    }
}

/// coherent.Z6. A program on the mount makes the file shorter while a write waits to be announced.
/// The write then extends the file though it was in front of the earlier end, and an append goes to
/// the new end.
#[test]
fn report_of_end_covers_writes_behind_moved_end() {
    for (offset, flags, begin) in [(9000, NONE, 9000), (0, IoFlags::APPEND, 5000)] {
        let below = Arc::new(Hooked::default());
        let (fs, mount, file) = held_back_on(below.clone());
        let other = block_on(fs.open(file.ino(), OpenFlags::WRITE)).unwrap();
        let (ino, fs_of_mount) = (file.ino(), below.fs.clone());
        *mount.meanwhile.lock() = Some(Box::new(move || {
            block_on(fs_of_mount.setattr(ino, &SetAttr::size(5000))).unwrap();
        }));
        below.late_opens.store(1, Ordering::Relaxed);
        reported(&mount);
        let mut first =
            file.write(offset, AlignedBuf::copy_of(&[7; 1000]), flags, Privileges::Drop);
        let mut cx = Context::from_waker(Waker::noop());
        assert!(first.as_mut().poll(&mut cx).is_pending(), "it looks for the last byte");
        other.write_slice(0, b"later", IoFlags::APPEND, Privileges::Drop).unwrap();
        assert_eq!(reported(&mount), [(begin, Some(begin + 1005))], "{flags:?}");
        block_on(first).1.unwrap();
    }
}
