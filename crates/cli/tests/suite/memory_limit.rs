//! Hostile mixes in a memory cgroup of `--cache-size` + 64 MiB: whatever clients ask for, the
//! server is not killed for want of memory, its memory is never more than `--cache-size` + 32 MiB,
//! and it serves on.
//!
//! Invariant: E1 the server joins the cgroup before its first instruction, so that all its memory
//! counts.

use crate::common::nbd::{Client, READ, WRITE, WRITE_ZEROES};
use crate::common::{Folder, Server};
use forebay_testkit::cgroup::{Memcg, field};
use std::path::PathBuf;
use std::time::Duration;

const MIB: u64 = 1 << 20;
/// `--cache-size`.
const SIZE: u64 = 48 * MIB;
/// The server has room for its code, its stacks and the buffers of the system.
const ROOM: u64 = 64 * MIB;
/// What of that it may use.
const MARGIN: u64 = 32 * MIB;
const IMAGE: u64 = 256 * MIB;
/// NBD_CMD_FLAG_NO_HOLE.
const NO_HOLE: u16 = 2;
/// Files served at once, and clients of them.
const FILES: usize = 10_000;
const AT_ONCE: usize = 8;
/// Clients whose requests are not aligned, and clients that do not go on.
const UNALIGNED: u64 = 64;
const BLOCKED: u64 = 128;
/// Clients that zero, and clients of very small requests.
const ZEROERS: u64 = 64;
const TINY_CLIENTS: usize = 64;

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

/// An image in memory, where ranges cannot be zeroed in place. All of it is allocated here, so that
/// it does not count for the server.
struct InMemory(PathBuf);

impl InMemory {
    fn new(name: &str) -> Self {
        let name = format!("forebay-test-{}-{name}.img", std::process::id());
        let image = Self(PathBuf::from("/dev/shm").join(name));
        let file = std::fs::File::create(&image.0).unwrap();
        let flags = rustix::fs::FallocateFlags::empty();
        rustix::fs::fallocate(&file, flags, 0, IMAGE).unwrap();
        let zero = rustix::fs::FallocateFlags::ZERO_RANGE;
        let zeroed = rustix::fs::fallocate(&file, zero, 0, 4096);
        assert!(zeroed.is_err(), "/dev/shm zeroes in place: nothing would be tested");
        image
    }

    fn serve(&self, folder: &Folder, group: &Memcg) -> Server {
        let path = self.0.to_str().unwrap();
        folder.export_in(&group.procs(), &[path, "--cache-size", "48M"])
    }
}

impl Drop for InMemory {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// The most memory that the server had at a time, bytes, without what it maps of files.
fn peak_resident(server: &Server) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{}/status", server.pid())).unwrap();
    (field(&status, "VmHWM:") - field(&status, "RssFile:")) << 10
}

/// Its memory was never more than it may be: its own, and, unless the pages of its files count, the
/// cgroup's.
fn within(server: &Server, group: &Memcg, cached_by_system: bool) {
    let (resident, charged) = (peak_resident(server), group.peak_bytes().unwrap_or(0));
    println!("peak: {} MiB resident, {} MiB charged", resident / MIB, charged / MIB);
    assert!(resident <= SIZE + MARGIN, "{} MiB resident", resident / MIB);
    assert!(cached_by_system || charged <= SIZE + MARGIN, "{} MiB charged", charged / MIB);
    assert_eq!(group.oom_kills(), 0);
}

/// The server lives, serves, and was not short of memory.
fn alive(mut server: Server, group: &Memcg) {
    let mut client = server.client("");
    client.write(0, &[7; 4096]).unwrap();
    assert_eq!(client.read(0, 4096).unwrap(), [7; 4096]);
    assert_eq!((server.ended(), group.oom_kills()), (None, 0));
    within(&server, group, false);
    client.disconnect();
    server.stop();
}

/// A zeroing that falls back to writing took 1 MiB and was charged as 512 bytes. Each of a range of
/// its own, so that none waits for another.
#[test]
fn thousand_zeroes_in_flight_stay_within_memory_limit() {
    let Some(group) = group("zeroes") else { return };
    let (folder, image) = (Folder::new(), InMemory::new("zeroes"));
    let server = image.serve(&folder, &group);
    let mut clients: Vec<Client> = (0..ZEROERS).map(|_| server.client("")).collect();
    let each = IMAGE / 1024;
    for i in 0..1024u64 {
        // Off the blocks, so that both ends are written as data.
        let (at, len) = (i * each + 100, each - 4096);
        clients[(i % ZEROERS) as usize].send(WRITE_ZEROES, NO_HOLE, at, len as u32, &[]).unwrap();
    }
    for client in &mut clients {
        (0..1024 / ZEROERS).for_each(|_| client.reply().unwrap());
    }
    drop(clients);
    alive(server, &group);
}

/// A request of a byte that has to wait was charged as 513 bytes, and took some pages: its buffer,
/// and what it has to remember. Here all wait for ranges that are being zeroed.
#[test]
fn tiny_requests_by_the_ten_thousand() {
    let Some(group) = group("tiny") else { return };
    let (folder, image) = (Folder::new(), InMemory::new("tiny"));
    let server = image.serve(&folder, &group);
    let mut zeroer = server.client("");
    (0..8).for_each(|_| zeroer.send(WRITE_ZEROES, NO_HOLE, 0, IMAGE as u32, &[]).unwrap());
    let mut clients: Vec<Client> = (0..TINY_CLIENTS).map(|_| server.client("")).collect();
    std::thread::scope(|scope| {
        for (c, client) in clients.iter_mut().enumerate() {
            scope.spawn(move || {
                for i in 0..1024 {
                    let at = (c as u64 * 1024 + i) * 4096 % IMAGE;
                    client.send(WRITE, 0, at, 1, &[1]).unwrap();
                }
                (0..1024).for_each(|_| client.reply().unwrap());
            });
        }
    });
    (0..8).for_each(|_| zeroer.reply().unwrap());
    drop((zeroer, clients));
    alive(server, &group);
}

/// Reads that are not aligned go through private memory. (Here the share of clients bounds them as
/// well; `v1_unaligned_reads_share_their_part_of_budget` is about private memory alone.)
#[test]
fn many_unaligned_clients_at_once() {
    let Some(group) = group("unaligned") else { return };
    let folder = Folder::new();
    let words = ["--mode", "uncached"];
    let server = serve(&folder, &group, &words);
    std::thread::scope(|scope| {
        for part in 0..UNALIGNED {
            let server = &server;
            scope.spawn(move || {
                let mut client = server.client("");
                let data = vec![part as u8 + 1; MIB as usize];
                for i in 0..8 {
                    let at = (part * 3 + i % 3) * MIB + 512;
                    client.write(at, &data).unwrap();
                    assert!(client.read(at, 65536).unwrap().iter().all(|b| *b == part as u8 + 1));
                    // No client writes here, so nothing of it is cached.
                    let at = UNALIGNED * 3 * MIB + (part * 8 + i) * 100_000 + 512;
                    assert!(client.read(at, 65536).unwrap().iter().all(|b| *b == 0));
                }
                client.disconnect();
            });
        }
    });
    let stat: serde_json::Value =
        serde_json::from_str(&folder.ok(&["stat", "--json", "--control", "ctl"])).unwrap();
    assert!(stat["stats"]["private_bytes_max"].as_u64() > Some(0), "{}", stat["stats"]);
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
    within(&server, &group, true);
    server.stop();
}
