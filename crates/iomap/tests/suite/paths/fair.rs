//! Ranges that are held exclusively are taken in the order of arrival: wide requests during streams
//! of narrow ones, in the simulated world.

use super::lab::{Lab, NONE, both};
use forebay_base::IoFlags;
use forebay_base::world::World;
use forebay_cache::Config;
use forebay_iomap::remap::{Remap, RemapOptions};
use std::cell::Cell;

const BLOCK: u64 = 4096;
/// Writes of a stream at most. A request that is starved ends when its streams have ended.
const STREAM: u64 = 200;
/// Writes of both streams that may end while a wide request waits: one of each was under way, and
/// one of each may have been placed before it.
const FEW: u64 = 6;

/// Two streams of direct writes, of a block each and never between two of them at the same time,
/// and `wide` when they run. How many writes had ended when `wide` began, and when it ended.
async fn during_streams(lab: &Lab, at: u64, wide: impl Future<Output = ()>) -> u64 {
    let (ended, done) = (Cell::new(0), Cell::new(None));
    let stream = async |block: u64, pause: u64| {
        lab.world.sleep(std::time::Duration::from_nanos(pause)).await;
        for _ in 0..STREAM {
            lab.write(at + block * BLOCK, &[7; BLOCK as usize], IoFlags::DIRECT).await;
            ended.set(ended.get() + 1);
        }
    };
    let other = async {
        lab.sleep_ms(1).await;
        let before = ended.get();
        assert!(before > 0, "the streams run: otherwise nothing is tested");
        wide.await;
        done.set(Some(ended.get() - before));
    };
    both(both(stream(0, 1), stream(1, 17_000)), other).await;
    done.get().expect("both have ended")
}

/// The story: a trim over two streams of direct writes found a block of its range held each time it
/// looked, because a stream took its block again in the moment it had given it back.
#[test]
fn zero_during_two_direct_streams_is_not_starved() {
    let lab = Lab::plain(BLOCK as u32);
    lab.run(async {
        let zero = async { lab.zero(0, 2 * BLOCK, false).await.unwrap() };
        let meanwhile = during_streams(&lab, 0, zero).await;
        assert!(meanwhile <= FEW, "{meanwhile} writes went ahead of the trim");
    });
}

/// A truncate waits for the same blocks, and holds the right to move the size meanwhile: appends
/// waited behind it for as long as the streams went on.
#[test]
fn truncate_and_append_during_two_direct_streams_are_not_starved() {
    let sim = Lab::sim(8 << 20);
    let lab = Lab::with_map(Config::with_budget(8 << 20), BLOCK as u32, sim, 1 << 20, |disk| {
        Remap::with_options(
            disk,
            BLOCK as u32,
            RemapOptions { grows: true, sums: false, waits: None },
        )
    });
    lab.run(async {
        let cut_and_append = async {
            let cut = async { lab.file.set_len(BLOCK).await.unwrap() };
            let append = async { lab.write(0, &[9; 10], NONE | IoFlags::APPEND).await };
            both(cut, append).await;
        };
        let meanwhile = during_streams(&lab, 64 * BLOCK, cut_and_append).await;
        assert!(meanwhile <= 2 * FEW, "{meanwhile} writes went ahead of the truncate");
    });
}
