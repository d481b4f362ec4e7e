//! What a read asks the device for.

use super::gates::Spoils;
use super::lab::{Lab, NONE, at_once};
use forebay_base::{ErrorKind, IoFlags};
use forebay_cache::Config;
use forebay_cache::strategy::UncachedStrategy;
use forebay_testkit::remap::{Remap, RemapOptions};
use std::pin::pin;
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

/// A truncate cuts a read off after `before` of its polls, and after `between` more a write makes
/// the file longer: false if the read was over before the write.
async fn overtaken_read(
    lab: &Lab,
    (old, flags): (&[u8], IoFlags),
    before: u32,
    between: u32,
) -> bool {
    const CUT: usize = 1024;
    const NEW: std::ops::Range<usize> = 4125..9000;
    let mut read = pin!(lab.try_read(0, old.len(), flags));
    let mut polled = async |polls| {
        for _ in 0..polls {
            if let Some(got) = at_once(read.as_mut()) {
                return Some(got);
            }
            lab.sleep_ms(1).await;
        }
        None
    };
    if polled(before).await.is_some() {
        return false;
    }
    lab.file.set_len(CUT as u64).await.unwrap();
    if let Some(got) = polled(between).await {
        let got = got.unwrap();
        assert!(got.len() <= CUT || got == old, "the file ends at one of two places");
        return false;
    }
    lab.write(NEW.start as u64, &vec![7; NEW.len()], NONE).await;
    let got = polled(1000).await.expect("it ends").unwrap();
    for (at, &byte) in got.iter().enumerate() {
        let is_gap = (CUT..NEW.start).contains(&at);
        let is_new = NEW.contains(&at) && byte == 7;
        let says = format!("{byte} at {at} of {}, {flags:?}, {before} {between}", got.len());
        assert!(byte == old[at] || is_new || is_gap && byte == 0, "{says}");
    }
    true
}

/// A read that a truncate had cut off returned zeros up to the end that a later write made: bytes
/// that nothing had ever left there.
#[test]
fn read_overtaken_by_truncate_and_growing_write_shows_only_what_was_there() {
    let direct = IoFlags::DIRECT | IoFlags::FALLBACK;
    let uncached = UncachedStrategy::ALL.iter().map(|&strategy| (IoFlags::UNCACHED, strategy));
    let ours = UncachedStrategy::Ours;
    let mut overtaken = 0;
    for (flags, strategy) in uncached.chain([(NONE, ours), (direct, ours)]) {
        for (before, between) in (1..6).flat_map(|before| (0..4).map(move |n| (before, n))) {
            let config = Config { folio_size: 8192, ..Config::with_budget(8 << 20) };
            let lab = Lab::with_map(config, BLOCK as u32, Lab::sim(1 << 20), 0, |disk| {
                let options = RemapOptions { grows: true, sums: false, waits: None };
                Remap::with_options(disk, BLOCK as u32, options)
            });
            lab.cache.strategies.set_uncached(strategy);
            lab.run(async {
                let old: Vec<u8> = (0..9 * BLOCK).map(Lab::old).collect();
                lab.write(0, &old, NONE).await;
                lab.sync().await.unwrap();
                lab.sleep_ms(20).await;
                lab.cache.drop_clean();
                overtaken += u32::from(overtaken_read(&lab, (&old, flags), before, between).await);
            });
        }
    }
    assert!(overtaken > 5, "reads that were overtaken: {overtaken}");
}
