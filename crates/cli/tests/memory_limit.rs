//! Hostile mixes in a memory cgroup of `--cache-size` + 64 MiB: whatever clients ask for, the server
//! is not killed for want of memory, and serves on.
//!
//! Invariant: E1 the server joins the cgroup before its first instruction, so that all its memory
//! counts.

mod common;

use common::nbd::{Client, READ, WRITE, WRITE_ZEROES};
use common::{Folder, Server};
use forebay_bench::harness::cgroup::Memcg;
use std::time::Duration;

const MIB: u64 = 1 << 20;
/// `--cache-size`.
const SIZE: u64 = 48 * MIB;
/// The server has room for its code, its stacks and the buffers of the system.
const ROOM: u64 = 64 * MIB;
const IMAGE: u64 = 256 * MIB;
/// NBD_CMD_FLAG_NO_HOLE and NBD_CMD_FLAG_FAST_ZERO.
const FAST_KEEP: u16 = 2 | 16;
/// Files served at once, and clients of them.
const FILES: usize = 10_000;
const AT_ONCE: usize = 8;
/// Clients that write through private memory, and clients that do not go on.
const PRIVATE: u64 = 64;
const BLOCKED: u64 = 128;

/// A cgroup, if there may be one here; without, the test fails, unless that is allowed by name.
fn group(name: &str) -> Option<Memcg> {
    match Memcg::create(name, SIZE + ROOM) {
        Ok(group) => Some(group),
        Err(e) => {
            let allowed = std::env::var("FOREBAY_ALLOW_SKIP").is_ok_and(|v| v == "1");
            assert!(allowed, "this test requires root and a memory cgroup: {e}");
            eprintln!("skipped: requires root and a memory cgroup: {e}");
            None
        }
    }
}

fn serve(folder: &Folder, group: &Memcg, words: &[&str]) -> Server {
    std::fs::File::create(folder.path("disk.img")).unwrap().set_len(IMAGE).unwrap();
    let all = [&["disk.img", "--cache-size", "48M"][..], words].concat();
    folder.export_in(&group.procs(), &all)
}

/// The server lives, serves, and was not short of memory.
fn alive(mut server: Server, group: &Memcg) {
    let mut client = server.client("");
    client.write(0, &[7; 4096]).unwrap();
    assert_eq!(client.read(0, 4096).unwrap(), [7; 4096]);
    assert_eq!((server.ended(), group.oom_kills()), (None, 0));
    client.disconnect();
    server.stop();
}

/// A zeroing that falls back to writing took 1 MiB and was charged as 512 bytes.
#[test]
fn a_thousand_zeroes_in_flight() {
    let Some(group) = group("zeroes") else { return };
    let folder = Folder::new();
    let server = serve(&folder, &group, &[]);
    let mut client = server.client("");
    for i in 0..1024u64 {
        let flags = if i % 2 == 0 { FAST_KEEP } else { 2 };
        // Off the blocks, so that both ends are written as data.
        let at = i * 200_000 % (IMAGE - 2 * MIB) + 100;
        client.send(WRITE_ZEROES, flags, at, MIB as u32, &[]).unwrap();
    }
    (0..1024).for_each(|_| client.reply().unwrap());
    client.disconnect();
    alive(server, &group);
}

/// Each private write took a megabyte, as many at a time as there were.
#[test]
fn many_private_writers_at_once() {
    let Some(group) = group("private") else { return };
    let folder = Folder::new();
    let words = ["--mode", "uncached", "--uncached-strategy", "private"];
    let server = serve(&folder, &group, &words);
    std::thread::scope(|scope| {
        for part in 0..PRIVATE {
            let server = &server;
            scope.spawn(move || {
                let mut client = server.client("");
                let data = vec![part as u8 + 1; MIB as usize];
                for i in 0..8 {
                    let at = (part * 3 + i % 3) * MIB + 512;
                    client.write(at, &data).unwrap();
                    assert!(client.read(at, 65536).unwrap().iter().all(|b| *b == part as u8 + 1));
                }
                client.disconnect();
            });
        }
    });
    alive(server, &group);
}

/// Clients that ask for much, take nothing, and send half of what they announce.
#[test]
fn clients_by_the_hundred_that_do_not_go_on() {
    let Some(group) = group("blocked") else { return };
    let folder = Folder::new();
    let server = serve(&folder, &group, &["--clients", "160"]);
    let half = vec![1; 300 << 10];
    let blocked: Vec<Client> = (0..BLOCKED)
        .map(|i| {
            let mut client = server.client("");
            client.patience(Duration::from_millis(100));
            for j in 0..8 {
                // A client whose socket is full is as blocked as it can be.
                let _ = client.send(READ, 0, (i + j) * MIB % (IMAGE - MIB), MIB as u32, &[]);
            }
            let _ = client.send(WRITE, 0, i * MIB, MIB as u32, &half);
            client
        })
        .collect();
    assert_eq!(group.oom_kills(), 0);
    drop(blocked);
    alive(server, &group);
}

#[test]
fn many_files_behind_one_number() {
    let Some(group) = group("files") else { return };
    let folder = Folder::new();
    let names: Vec<String> = (0..FILES).map(|i| format!("f{i}=f{i}.img")).collect();
    for i in 0..FILES {
        let path = folder.path(&format!("f{i}.img"));
        std::fs::File::create(path).unwrap().set_len(MIB).unwrap();
    }
    let words: Vec<&str> = names.iter().map(String::as_str).collect();
    // One descriptor for each file, where direct I/O takes two: a usual limit is 20,000 of them.
    let options = ["--threads", "2", "--direct-io", "off"];
    let server = serve(&folder, &group, &[&options[..], &words].concat());
    std::thread::scope(|scope| {
        for first in 0..AT_ONCE {
            let server = &server;
            scope.spawn(move || {
                for i in (first..FILES).step_by(AT_ONCE) {
                    let mut client = server.client(&format!("f{i}"));
                    // Flushes of ten thousand files are minutes of a slow disk.
                    let value = if i % 8 == 0 { i as u8 } else { 0 };
                    if i % 8 == 0 {
                        client.write(4096, &[value; 8192]).unwrap();
                    }
                    if i % 64 == 0 {
                        client.flush().unwrap();
                    }
                    assert_eq!(client.read(8192, 4096).unwrap(), [value; 4096]);
                    client.disconnect();
                }
            });
        }
    });
    assert_eq!(group.oom_kills(), 0);
    server.stop();
}
