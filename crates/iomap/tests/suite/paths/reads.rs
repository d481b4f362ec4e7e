//! What a read asks the device for.

use super::gates::Spoils;
use super::harness::{Lab, NONE, at_once};
use forebay_base::{ErrorKind, IoFlags};
use forebay_cache::Config;
use forebay_cache::strategy::UncachedStrategy;
use forebay_iomap::Target;
use forebay_sim::slow_page::SlowPage;
use forebay_testkit::remap::{Remap, RemapOptions};
use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

const BLOCK: u64 = 4096;

/// A fill that omitted the last block went unnoticed: the next lookup found the block missing, and
/// read it alone.
#[test]
fn missing_blocks_of_read_are_requested_together() {
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

/// A caller that changes its memory while a read borrows it makes good bytes look corrupt. They are
/// read again, into private memory, before the file is reported corrupt. No test covered it.
#[test]
fn checksum_mismatch_in_borrowed_memory_is_read_again() {
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
fn read_overtaken_by_truncate_and_growth_shows_valid_bytes() {
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

/// Whether another user of a folio gets its lock. It spins for it, so it runs on a thread, which is
/// let go by `then`.
fn is_lockable(lab: &Lab, index: u64, then: impl FnOnce()) -> bool {
    let is_locked = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            drop(lab.cache.lock_folio(&lab.file.mapping, index));
            is_locked.store(true, Ordering::Release);
        });
        // A free lock is taken at once; only a held one takes the time.
        let tries = (0..60_000).take_while(|_| !is_locked.load(Ordering::Acquire));
        tries.for_each(|_| std::thread::sleep(Duration::from_millis(1)));
        let is_free = is_locked.load(Ordering::Acquire);
        then();
        is_free
    })
}

/// The story: reads that copy under the folio lock touched their target there for the first time.
/// If its page was absent, other users of the folio spun until it was there: for ever, if the page
/// came from a file of the same process. NOWAIT reads of uncached blocks did not touch it before.
#[test]
fn read_into_absent_memory_does_not_hold_folio_lock() {
    for is_cached in [false, true] {
        let lab = Lab::plain(BLOCK as u32);
        // Dirty blocks of an uncached write: a read that does not wait copies them under the lock.
        match is_cached {
            false => lab.run(lab.write(0, &[5; BLOCK as usize], IoFlags::UNCACHED)),
            true => lab.disk.poke(0, &[5; BLOCK as usize]),
        }
        let flags = if is_cached { NONE } else { IoFlags::NOWAIT };
        let (mut page, pager) = SlowPage::new();
        let is_free = std::thread::scope(|scope| {
            scope.spawn(|| {
                let dst = Target::Slice(page.bytes_mut());
                let read = lab.file.read(&lab.handle, 0, dst, flags);
                assert_eq!(lab.run(read).unwrap(), BLOCK as usize, "{flags:?}");
            });
            pager.wait_for_fault();
            is_lockable(&lab, 0, || pager.provide())
        });
        assert!(is_free, "{flags:?}: the reader waits for its memory under the folio lock");
        assert_eq!(page.bytes(), [5; BLOCK as usize], "{flags:?}");
    }
}
