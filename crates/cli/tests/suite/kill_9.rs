//! An export is killed while clients write, by FUA and by flush, and started again at once on the same
//! image: no block is lost whose write was acknowledged as durable, and no restart is refused, though the
//! lock of the one before may outlive it for a moment.
//!
//! A file of a volume is such an image, too.
//!
//! `FOREBAY_KILLS` is the number of kills (default 8), `FOREBAY_SEED` draws when they come.

use crate::common::nbd::Client;
use crate::common::{Folder, Server, until};
use forebay_base::world::split_mix;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

const BLOCK: u64 = 4096;
/// Each client has blocks of its own.
const BLOCKS: u64 = 64;
const WRITERS: u64 = 4;

/// A block's number and the round of its write, again and again.
fn content(block: u64, round: u64) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(BLOCK as usize);
    while bytes.len() < BLOCK as usize {
        bytes.extend(block.to_le_bytes());
        bytes.extend(round.to_le_bytes());
    }
    bytes
}

/// The round of a block, 0 if it was never written. A block is whole, or the test fails.
fn round_of(block: u64, bytes: &[u8]) -> u64 {
    let round = u64::from_le_bytes(bytes[8..16].try_into().expect("eight bytes"));
    let empty = bytes.iter().all(|&b| b == 0);
    assert!(empty || bytes == content(block, round), "block {block} is of no write");
    round
}

/// What is known of each block: the last round acknowledged as durable, the last one sent.
type Known = Mutex<Vec<(u64, u64)>>;

/// Writes that were answered, and those of them that were durable by then: by FUA, by a flush.
#[derive(Default)]
struct Counts {
    answered: AtomicU64,
    fua: AtomicU64,
    flushed: AtomicU64,
}

/// Writes until the server is gone.
fn write_on(mut client: Client, writer: u64, known: &Known, counts: &Counts) {
    let mut open = Vec::new();
    for turn in 0.. {
        let block = writer * BLOCKS + (turn * 7 + turn / BLOCKS) % BLOCKS;
        let round = {
            let mut known = known.lock().unwrap();
            known[block as usize].1 += 1;
            known[block as usize].1
        };
        let (at, data) = (block * BLOCK, content(block, round));
        // Half of the writers use FUA, the others flush what they have written.
        if writer.is_multiple_of(2) {
            if client.write_durably(at, &data).is_err() {
                return;
            }
            known.lock().unwrap()[block as usize].0 = round;
            counts.fua.fetch_add(1, Ordering::Relaxed);
        } else {
            if client.write(at, &data).is_err() {
                return;
            }
            open.push((block, round));
            if turn % 5 == 4 {
                if client.flush().is_err() {
                    return;
                }
                let mut known = known.lock().unwrap();
                counts.flushed.fetch_add(open.len() as u64, Ordering::Relaxed);
                for (block, round) in open.drain(..) {
                    known[block as usize].0 = round;
                }
            }
        }
        counts.answered.fetch_add(1, Ordering::Relaxed);
    }
}

/// Every block shows a round between the last one acknowledged and the last one sent.
fn check(server: &Server, known: &mut [(u64, u64)], kill: u64) {
    let mut client = server.client("");
    for (block, (durable, sent)) in known.iter_mut().enumerate() {
        let bytes = client.read(block as u64 * BLOCK, BLOCK as u32).unwrap();
        let found = round_of(block as u64, &bytes);
        assert!(
            (*durable..=*sent).contains(&found),
            "kill {kill}: block {block} shows round {found}, acknowledged {durable}, sent {sent}"
        );
        // It was read from the image: that is what it is from now on.
        *durable = found;
    }
    client.disconnect();
}

#[test]
fn no_acknowledged_block_is_lost_and_no_restart_refused() {
    let folder = Folder::new();
    std::fs::File::create(folder.path("disk.img")).unwrap().set_len(16 << 20).unwrap();
    kill_again_and_again(&folder, &["disk.img", "--cache-size", "16M"]);
}

/// The same for a file of a volume, which every restart recovers.
#[test]
fn nor_of_a_file_in_a_volume() {
    let folder = Folder::new();
    std::fs::File::create(folder.path("disk.img")).unwrap().set_len(16 << 20).unwrap();
    folder.ok(&["create", "v", "--size", "1G"]);
    folder.ok(&["cp", "disk.img", "v:/"]);
    kill_again_and_again(&folder, &["v:/disk.img", "--cache-size", "16M"]);
    folder.ok(&["fsck", "v"]);
}

fn kill_again_and_again(folder: &Folder, words: &[&str]) {
    let env = |name: &str, default| std::env::var(name).map_or(default, |v| v.parse().unwrap());
    let (kills, mut rng) = (env("FOREBAY_KILLS", 8), env("FOREBAY_SEED", 1));
    let known: Known = Mutex::new(vec![(0, 0); (WRITERS * BLOCKS) as usize]);
    let mut server = folder.export(words);
    let counts = Counts::default();
    let answered = || counts.answered.load(Ordering::Relaxed);
    for kill in 0..kills {
        let before = answered();
        let enough = 40 + split_mix(&mut rng) % 160;
        let new = std::thread::scope(|scope| {
            for writer in 0..WRITERS {
                let (client, known, counts) = (server.client(""), &known, &counts);
                scope.spawn(move || write_on(client, writer, known, counts));
            }
            until("they write", || answered() >= before + enough);
            server.signal("KILL");
            // At once: the one before is not even reaped.
            folder.export(words)
        });
        std::mem::replace(&mut server, new).wait();
        check(&server, &mut known.lock().unwrap(), kill);
    }
    // A write that was only answered may be lost: it does not count as kept.
    let Counts { answered, fua, flushed } = counts;
    let (fua, flushed) = (fua.into_inner(), flushed.into_inner());
    assert!(fua > 0 && flushed > 0 && fua + flushed <= answered.into_inner());
    println!(
        "{kills} kills, {fua} writes durable by FUA and {flushed} by a flush: 0 lost, 0 restarts refused"
    );
    server.stop();
}
