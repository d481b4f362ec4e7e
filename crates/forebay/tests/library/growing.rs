//! Files that grow: the bytes between the old end and the new one are zeros, whichever call grew
//! the file and whichever blocks were in write-out meanwhile.

use crate::dir::{Dir, cache_on, config};
use forebay::{Aio, Cache, DirectIo, DirtyTracking, IoFlags, OpenOptions};

/// Ends of the file in turn: within a sector, within a block, at a folio's edge, far on.
const ENDS: [u64; 6] = [1000, 5000, 65536, 65537, 200_000, 300_001];

/// Leaves bytes of another file in every frame of the cache. A file that shows a stale byte then
/// shows 0xee.
fn foul_frames(cache: &Cache, dir: &Dir) {
    let size = cache.stats().arena_bytes as usize * 2;
    std::fs::write(dir.path("foul"), vec![0xee; size]).unwrap();
    let options = OpenOptions::read_write().write(false).create(false).clone();
    let file = options.open(cache, dir.path("foul")).unwrap();
    let mut buf = vec![0; 1 << 20];
    for at in (0..size).step_by(buf.len()) {
        file.read_at(&mut buf, at as u64).unwrap();
    }
    drop(file);
    cache.drop_clean();
    std::fs::remove_file(dir.path("foul")).unwrap();
}

/// A block that begins at the end of the file is written without a read. Its frame held another
/// file's bytes. The part behind the written bytes reads as zeros when the file grows over it, and
/// is zeros in the file, whichever write-out wrote it and wherever the file ended.
#[test]
fn d14_d15_growth_over_a_block_that_was_never_read_shows_zeros() {
    for (aio, direct_io) in [(Aio::Threads, DirectIo::Off), (Aio::IoUring, DirectIo::Auto)] {
        for state in 0..3 {
            let dir = Dir::new(&format!("never-read-{aio}-{state}"));
            std::fs::write(dir.path("f"), []).unwrap();
            let Some(cache) = cache_on(config(4 << 20).aio(aio)) else { continue };
            foul_frames(&cache, &dir);
            let options = OpenOptions::read_write().direct_io(direct_io).clone();
            let file = options.open(&cache, dir.path("f")).unwrap();
            let mut want: Vec<u8> = Vec::new();
            for round in 0..40usize {
                let flags = [IoFlags::empty(), IoFlags::START_WRITEBACK, IoFlags::SYNC][state];
                // From the start of a block, ending within it; then on, leaving a gap.
                let start = want.len().next_multiple_of(4096);
                let (short, gap) = (1 + round * 97 % 3000, 500 + round * 613 % 9000);
                for (at, len) in [(start, short), (start + short + gap, 10)] {
                    file.write_at_with(&vec![round as u8 + 1; len], at as u64, flags).unwrap();
                    want.resize(at + len, 0);
                    want[at..].fill(round as u8 + 1);
                }
                let mut got = vec![1; want.len()];
                assert_eq!(file.read_at(&mut got, 0).unwrap(), want.len());
                let wrong = got.iter().zip(&want).position(|(got, want)| got != want);
                assert_eq!(wrong, None, "round {round}, state {state}, {aio}");
            }
            file.sync_data().unwrap();
            drop(file);
            assert!(std::fs::read(dir.path("f")).unwrap() == want, "state {state}, {aio}");
        }
    }
}

/// Each round writes up to a new end that leaves a gap behind the old one, with the old last block
/// dirty, in write-out, or clean and gone.
#[test]
fn d15_bytes_behind_old_end_never_show() {
    for (aio, direct_io) in [(Aio::Threads, DirectIo::Off), (Aio::IoUring, DirectIo::Auto)] {
        for tracking in [DirtyTracking::Block, DirtyTracking::Folio] {
            for state in 0..3 {
                let dir = Dir::new(&format!("grow-{aio}-{tracking}-{state}"));
                std::fs::write(dir.path("f"), [0xaa; 700]).unwrap();
                let config = config(4 << 20).aio(aio).dirty_tracking(tracking);
                let Some(cache) = cache_on(config) else { continue };
                foul_frames(&cache, &dir);
                let options = OpenOptions::read_write().direct_io(direct_io).clone();
                let file = options.open(&cache, dir.path("f")).unwrap();
                let mut want = vec![0xaa; 700];
                for (round, end) in (1u8..).zip(ENDS) {
                    let last = want.len() as u64 - 10;
                    let flags = [IoFlags::empty(), IoFlags::START_WRITEBACK, IoFlags::SYNC][state];
                    file.write_at_with(&[round; 10], last, flags).unwrap();
                    want[last as usize..].fill(round);
                    if state == 2 {
                        cache.drop_clean();
                    }
                    file.write_at(&[round + 100; 20], end - 20).unwrap();
                    want.resize(end as usize, 0);
                    want[end as usize - 20..].fill(round + 100);
                    let mut got = vec![1; want.len()];
                    assert_eq!(file.read_at(&mut got, 0).unwrap(), want.len());
                    assert!(got == want, "round {round}, state {state}, {aio}, {tracking}");
                }
                file.sync_data().unwrap();
                drop(file);
                assert!(std::fs::read(dir.path("f")).unwrap() == want, "{aio}, {tracking}");
            }
        }
    }
}

/// One thread appends while another syncs all the time: no stale byte appears between an old end
/// and a new one, in the cache or in the file.
#[test]
fn d14_appends_that_race_with_write_out_leave_no_gaps() {
    let dir = Dir::new("append-race");
    std::fs::write(dir.path("f"), []).unwrap();
    let cache = Cache::new(config(8 << 20)).unwrap();
    foul_frames(&cache, &dir);
    let options = OpenOptions::read_write().direct_io(DirectIo::Off).clone();
    let file = options.open(&cache, dir.path("f")).unwrap();
    std::thread::scope(|scope| {
        let appending = scope.spawn(|| {
            for i in 0..2000u32 {
                let piece = vec![(i % 255) as u8 + 1; (i * 37 % 900) as usize + 1];
                file.write_at_with(&piece, 0, IoFlags::APPEND).unwrap();
            }
        });
        while !appending.is_finished() {
            file.sync_data().unwrap();
            cache.drop_clean();
        }
    });
    file.sync_data().unwrap();
    drop(file);
    let mut rest = &std::fs::read(dir.path("f")).unwrap()[..];
    for i in 0..2000u32 {
        let (piece, more) = rest.split_at((i * 37 % 900) as usize + 1);
        assert!(piece.iter().all(|&b| b == (i % 255) as u8 + 1), "piece {i}");
        rest = more;
    }
    assert!(rest.is_empty());
}
