//! SIGTERM, SIGINT and SIGHUP under write load: status 0, and every write that was answered is in
//! the image.

use crate::common::{Folder, bytes};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

const BLOCKS: u64 = 4096;

/// Writes block after block with its round number until the server is gone; gives, per block,
/// the last round that was answered and the last that was sent.
fn load(mut client: crate::common::nbd::Client, done: &AtomicU64) -> Vec<(u64, u64)> {
    let mut rounds = vec![(0, 0); BLOCKS as usize];
    for number in 0.. {
        let (block, round) = (number * 7 % BLOCKS, number + 1);
        rounds[block as usize].1 = round;
        let data: Vec<u8> = round.to_le_bytes().iter().copied().cycle().take(4096).collect();
        if client.write(block * 4096, &data).is_err() {
            break;
        }
        rounds[block as usize].0 = round;
        done.fetch_add(1, Ordering::Relaxed);
    }
    rounds
}

fn stop_under_load(signal: &str) {
    let folder = Folder::new();
    let image = folder.image("disk.img", BLOCKS * 4096);
    let server = folder.export(&["disk.img", "--cache-size", "16M"]);
    let done = Arc::new(AtomicU64::new(0));
    let (client, counter) = (server.client(""), done.clone());
    let writer = std::thread::spawn(move || load(client, &counter));
    crate::common::until("some writes", || done.load(Ordering::Relaxed) > 3000);
    server.signal(signal);
    let (status, text) = server.wait();
    assert_eq!(status.code(), Some(0), "{text}");
    let rounds = writer.join().unwrap();
    let image = bytes(&image);
    for (number, (answered, sent)) in rounds.iter().enumerate().filter(|(_, r)| r.0 > 0) {
        let block = &image[number * 4096..][..4096];
        let found = u64::from_le_bytes(block[..8].try_into().unwrap());
        assert!(block.chunks(8).all(|c| c == &block[..8]), "block {number} is torn");
        assert!(found == *answered || found == *sent, "block {number}: {found}, not {answered}");
    }
}

#[test]
fn l12_sigterm_loses_nothing_that_was_answered() {
    stop_under_load("TERM");
}

#[test]
fn sigint_is_the_same() {
    stop_under_load("INT");
}

/// A terminal that was closed ended an export at once: what clients had been answered was lost.
#[test]
fn sighup_is_the_same() {
    stop_under_load("HUP");
}

/// signals.N2: as nohup starts it.
#[test]
fn n2_ignored_hangup_keeps_server_running() {
    let folder = Folder::new();
    folder.image("disk.img", 1 << 20);
    let words = ["disk.img", "--cache-size", "16M"];
    let server = folder.export_by("trap '' HUP; exec \"$@\"", std::path::Path::new("sh"), &words);
    server.signal("HUP");
    server.client("").write(0, &[1; 4096]).unwrap();
    server.signal("TERM");
    let (status, text) = server.wait();
    assert_eq!(status.code(), Some(0), "a second signal ends it with 1: {text}");
}

#[test]
fn after_kill_9_what_was_flushed_is_there() {
    let folder = Folder::new();
    let image = folder.image("disk.img", 4 << 20);
    let server = folder.export(&["disk.img", "--cache-size", "16M"]);
    let mut client = server.client("");
    for block in 0..100_u64 {
        client.write(block * 4096, &[block as u8; 4096]).unwrap();
    }
    client.flush().unwrap();
    server.signal("KILL");
    server.wait();
    let image = bytes(&image);
    for block in 0..100 {
        assert!(image[block * 4096..][..4096] == [block as u8; 4096], "block {block}");
    }
}
