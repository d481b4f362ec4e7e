//! Appends that run at the same time as another request that makes the file longer.
//!
//! No locks.

use crate::tests::reuse::{create, open, read, setup, write};
use forebay_base::IoFlags;
use forebay_base::buf::AlignedBuf;
use forebay_vfs::{Fallocate, FileSystem, Privileges};
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::task::Poll;

/// Ends within a block, so that an append to it has to read that block first.
const OLD: usize = 5000;
const APPENDED: usize = 4000;

/// Polls both until both are done; the first one first.
async fn both<A, B>(a: impl Future<Output = A>, b: impl Future<Output = B>) -> (A, B) {
    let (mut a, mut b) = (pin!(a), pin!(b));
    let (mut first, mut second) = (None, None);
    poll_fn(|cx| {
        if first.is_none()
            && let Poll::Ready(done) = a.as_mut().poll(cx)
        {
            first = Some(done);
        }
        if second.is_none()
            && let Poll::Ready(done) = b.as_mut().poll(cx)
        {
            second = Some(done);
        }
        match (first.take(), second.take()) {
            (Some(a), Some(b)) => Poll::Ready((a, b)),
            (one, other) => {
                (first, second) = (one, other);
                Poll::Pending
            }
        }
    })
    .await
}

/// The story: a fallocate that makes the file longer compared its end with the size that readers
/// see, while an append was on its way, and then waited for the right to move the size. It set the
/// size that it had decided on: the append had been acknowledged by then, and its end was cut off.
#[test]
fn growing_fallocate_during_an_append_cuts_nothing_off() {
    // Ends of the fallocate: within what the append adds, and behind it.
    for end in [OLD + 1000, OLD + APPENDED - 1, OLD + APPENDED + 3000] {
        let setup = setup(0);
        let disk = setup.blank();
        disk.world().run(async {
            let volume = open(&setup, &disk).await.unwrap();
            let (_, file) = create(&volume, "f").await.unwrap();
            write(&file, 0, &[1; OLD]).await.unwrap();
            volume.syncfs().await.unwrap();
            volume.0.options.cache.as_ref().expect("it has one").drop_clean();
            let (how, keep) = (Fallocate::Allocate { keep_size: false }, Privileges::Keep);
            let mut size_before = None;
            let append = async {
                let bytes = AlignedBuf::copy_of(&[2; APPENDED]);
                file.write(0, bytes, IoFlags::APPEND, keep).await.1.unwrap()
            };
            let grow = async {
                size_before = Some(volume.getattr(file.ino()).await.unwrap().size);
                file.fallocate(how, 0, end as u64, keep).await.unwrap();
            };
            let (wrote, ()) = both(append, grow).await;
            assert_eq!(size_before, Some(OLD as u64), "the append was on its way");
            assert_eq!((wrote.offset, wrote.len), (OLD as u64, APPENDED));
            let mut want = vec![1; OLD];
            want.resize(OLD + APPENDED, 2);
            want.resize(end.max(OLD + APPENDED), 0);
            let found = read(&file, 1 << 16).await;
            assert_eq!(found.len(), want.len(), "a fallocate to {end}");
            assert!(found == want, "the bytes of the append, a fallocate to {end}");
        });
        disk.world().stop();
    }
}
