//! What a read asks the device for.

use super::gates::Spoils;
use super::lab::{Lab, NONE};
use forebay_base::{ErrorKind, IoFlags};
use forebay_cache::Config;
use forebay_iomap::remap::{Remap, RemapOptions};
use std::sync::atomic::Ordering;
use std::sync::{Arc, OnceLock};

const BLOCK: u64 = 4096;

/// A fill that left the last block out was never noticed: the next look found the block missing, and read it
/// on its own.
#[test]
fn missing_blocks_of_a_read_are_asked_for_at_once() {
    for (first, count) in [(40, 3), (15, 2), (1023, 1)] {
        let lab = Lab::plain(BLOCK as u32);
        lab.run(async {
            let (at, len) = (first * BLOCK, count * BLOCK);
            let got = lab.read(at, len as usize, NONE).await;
            assert!(got.iter().zip(at..).all(|(&byte, at)| byte == Lab::old(at)));
            assert_eq!(lab.reads(), [(at, len)]);
        });
    }
}

/// A caller that changes its memory while it is lent to a read makes good bytes look corrupt: they are read
/// again, into memory of our own, before the file is called that. Nothing tried it.
#[test]
fn what_does_not_add_up_in_lent_memory_is_read_again_before_it_is_called_corrupt() {
    let keep: OnceLock<Arc<Spoils>> = OnceLock::new();
    let (size, len) = (1 << 20, 16 * BLOCK);
    let config = Config::with_budget(8 << 20);
    let lab = Lab::with_map(config, BLOCK as u32, Lab::sim(2 * size), size, |disk| {
        let device = keep.get_or_init(|| Spoils::new(disk)).clone();
        let options = RemapOptions { grows: false, sums: true, waits: None };
        Remap::with_options(device, BLOCK as u32, options)
    });
    let spoils = keep.get().unwrap();
    let reread = || lab.cache.stats().reread_bytes;
    lab.run(async {
        let bytes: Vec<u8> = (0..len).map(Lab::old).collect();
        lab.write(0, &bytes, IoFlags::DIRECT).await;
        for (flags, read) in [(IoFlags::DIRECT, len / 2), (IoFlags::UNCACHED, BLOCK)] {
            // Not from the start: that may begin a stream.
            let (before, from) = (reread(), 8 * BLOCK);
            let want = &bytes[from as usize..][..read as usize];
            assert!(lab.read(from, read as usize, flags).await == want);
            assert_eq!(reread(), before, "nothing is wrong");
            spoils.next.store(1, Ordering::SeqCst);
            assert!(lab.read(from, read as usize, flags).await == want, "{flags:?}");
            assert_eq!(reread() - before, read, "{flags:?}");
            // Wrong in memory of our own, too.
            spoils.next.store(2, Ordering::SeqCst);
            let error = lab.try_read(from, read as usize, flags).await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Corrupt, "{flags:?}");
            assert_eq!(spoils.next.load(Ordering::SeqCst), 0);
        }
    });
}
