//! `NOWAIT`: what needs no waiting is done, the rest says so and has changed nothing.

use super::harness::{Lab, NONE, at_once};
use forebay_base::{ErrorKind, IoFlags};
use forebay_cache::{Config, State};
use std::sync::atomic::Ordering;

const NOWAIT: IoFlags = IoFlags::NOWAIT;

#[test]
fn nowait_request_never_waits() {
    let lab = Lab::plain(4096);
    lab.run(async {
        lab.read(0, 100_000, NONE).await;
        lab.write(1 << 20, &[1; 5000], NONE).await;
        for flags in [NONE, IoFlags::UNCACHED, IoFlags::DIRECT, IoFlags::DSYNC, IoFlags::SYNC] {
            for at in (0..4u64 << 20).step_by(50_000) {
                if !flags.intersects(IoFlags::WRITE_ONLY) {
                    let read = at_once(lab.try_read(at, 3000, flags | NOWAIT));
                    assert!(read.is_some(), "a read with {flags:?} at {at} waited");
                }
                let write = at_once(lab.try_write(at, &[2; 3000], flags | NOWAIT));
                assert!(write.is_some(), "a write with {flags:?} at {at} waited");
            }
        }
    });
}

#[test]
fn cached_data_is_served() {
    let lab = Lab::plain(4096);
    lab.run(async {
        lab.read(0, 65536, NONE).await;
        for at in (0..65536 - 1000).step_by(999) {
            let want: Vec<u8> = (at..at + 1000).map(Lab::old).collect();
            assert_eq!(lab.try_read(at, 1000, NOWAIT).await.unwrap(), want);
        }
    });
}

#[test]
fn nowait_write_takes_complete_blocks_not_parts_of_absent_ones() {
    let lab = Lab::plain(4096);
    lab.run(async {
        assert_eq!(lab.try_write(8192, &[3; 8192], NOWAIT).await.unwrap(), 8192);
        let error = lab.try_write(100, &[4; 100], NOWAIT).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::WouldBlock);
        assert_eq!(lab.blocks(State::Dirty), [2, 3].into());
        assert!(lab.blocks(State::Reading).is_empty());
        let want: Vec<u8> = (0..8192).map(Lab::old).collect();
        assert_eq!(lab.read(0, 8192, NONE).await, want);
    });
}

#[test]
fn short_write_returns_written_length() {
    let lab = Lab::plain(4096);
    lab.run(async {
        // The first folio can be written, the second begins with a part of an absent block.
        let data = vec![5; 65536 + 100];
        let done = lab.try_write(0, &data, NOWAIT).await.unwrap();
        assert_eq!(done, 65536);
        assert_eq!(lab.read(0, done, NONE).await, data[..done]);
        assert_eq!(
            lab.read(65536, 100, NONE).await,
            (65536..65636).map(Lab::old).collect::<Vec<_>>()
        );
    });
}

#[test]
fn at_the_dirty_limit_it_would_block() {
    let config = Config { dirty_bytes: Some(64 << 10), ..Config::with_budget(8 << 20) };
    let lab = Lab::new(config, 4096, Lab::sim(4 << 20));
    lab.run(async {
        lab.cache.dirty.background.store(64 << 10, Ordering::Relaxed);
        let mut refused = 0;
        for i in 0..100u64 {
            match at_once(lab.try_write(i * 4096, &[1; 4096], NOWAIT)).expect("does not wait") {
                Ok(n) => assert_eq!(n, 4096),
                Err(e) => {
                    assert_eq!(e.kind(), ErrorKind::WouldBlock);
                    refused += 1;
                }
            }
        }
        assert!(refused > 0);
        assert!(lab.cache.stats().dirty_bytes <= (64 << 10) + 4096);
    });
}
