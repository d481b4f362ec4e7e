//! Daemons are killed while clients write, and started again at once on the same image: no write is
//! lost that was acknowledged as durable, and no restart is refused, though the lock of the process
//! before may outlive it for a moment.
//!
//! Clients of an export write by FUA and by flush, of an image and of a file in a volume; programs
//! on a mount by `O_DSYNC`, `O_DIRECT` and fdatasync(2). One test kills a mount and an export with
//! three clients each at the same time.
//!
//! `FOREBAY_KILLS` is the number of kills, `FOREBAY_SEED` draws when they come. The long run:
//! `FOREBAY_KILLS=100 cargo test -p forebay-cli --test suite kill_9::mount -- --nocapture`.

use crate::common::nbd::Client;
use crate::common::place::{Place, may_run};
use crate::common::{Folder, Server, stderr, until};
use forebay_base::buf::AlignedBuf;
use forebay_base::world::split_mix;
use rustix::fs::OFlags;
use std::fs::File;
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

const BLOCK: u64 = 4096;
/// Each client has blocks of its own.
const BLOCKS: u64 = 64;

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

/// How one client writes. An error is the end of the daemon.
trait Writer: Send {
    /// Durable after the next flush.
    fn write(&mut self, at: u64, data: &[u8]) -> io::Result<()>;
    /// Durable when it returns.
    fn write_durably(&mut self, at: u64, data: &[u8]) -> io::Result<()>;
    fn flush(&mut self) -> io::Result<()>;
}

impl Writer for Client {
    fn write(&mut self, at: u64, data: &[u8]) -> io::Result<()> {
        Self::write(self, at, data)
    }
    fn write_durably(&mut self, at: u64, data: &[u8]) -> io::Result<()> {
        Self::write_durably(self, at, data)
    }
    fn flush(&mut self) -> io::Result<()> {
        Self::flush(self)
    }
}

/// A program's file on a mount.
impl Writer for File {
    fn write(&mut self, at: u64, data: &[u8]) -> io::Result<()> {
        self.write_all_at(&AlignedBuf::copy_of(data), at)
    }
    fn write_durably(&mut self, at: u64, data: &[u8]) -> io::Result<()> {
        Writer::write(self, at, data)
    }
    fn flush(&mut self) -> io::Result<()> {
        self.sync_data()
    }
}

/// The clients of one daemon.
struct Clients {
    number: u64,
    /// Of each block: the last round acknowledged as durable, the last one sent.
    known: Mutex<Vec<(u64, u64)>>,
    answered: AtomicU64,
    /// Of these, durable when they were answered.
    durable: AtomicU64,
    /// Durable by a flush.
    flushed: AtomicU64,
}

impl Clients {
    fn new(number: u64) -> Self {
        let known = Mutex::new(vec![(0, 0); (number * BLOCKS) as usize]);
        let (answered, durable, flushed) = Default::default();
        Self { number, known, answered, durable, flushed }
    }

    fn answered(&self) -> u64 {
        self.answered.load(Ordering::Relaxed)
    }

    /// Whether a client writes durably. The others flush what they have written.
    fn is_durable(client: u64) -> bool {
        client.is_multiple_of(2)
    }

    /// Writes until the daemon is gone.
    fn write_on(&self, mut writer: impl Writer, client: u64) {
        let mut open = Vec::new();
        for turn in 0.. {
            let block = client * BLOCKS + (turn * 7 + turn / BLOCKS) % BLOCKS;
            let round = {
                let mut known = self.known.lock().unwrap();
                known[block as usize].1 += 1;
                known[block as usize].1
            };
            let (at, data) = (block * BLOCK, content(block, round));
            if Self::is_durable(client) {
                if writer.write_durably(at, &data).is_err() {
                    return;
                }
                self.known.lock().unwrap()[block as usize].0 = round;
                self.durable.fetch_add(1, Ordering::Relaxed);
            } else {
                if writer.write(at, &data).is_err() {
                    return;
                }
                open.push((block, round));
                if turn % 5 == 4 {
                    if writer.flush().is_err() {
                        return;
                    }
                    let mut known = self.known.lock().unwrap();
                    self.flushed.fetch_add(open.len() as u64, Ordering::Relaxed);
                    for (block, round) in open.drain(..) {
                        known[block as usize].0 = round;
                    }
                }
            }
            self.answered.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Every block shows a round between the last one acknowledged and the last one sent.
    fn check(&self, kill: u64, mut read: impl FnMut(u64) -> Vec<u8>) {
        let mut known = self.known.lock().unwrap();
        for (block, (durable, sent)) in known.iter_mut().enumerate() {
            let found = round_of(block as u64, &read(block as u64));
            assert!(
                (*durable..=*sent).contains(&found),
                "kill {kill}: block {block} shows round {found}, acknowledged {durable}, sent {sent}"
            );
            // It was read from the image: that is what it is from now on.
            *durable = found;
        }
    }

    fn check_export(&self, server: &Server, kill: u64) {
        let mut client = server.client("");
        self.check(kill, |block| client.read(block * BLOCK, BLOCK as u32).unwrap());
        client.disconnect();
    }

    fn check_mount(&self, place: &Place, kill: u64) {
        let files: Vec<File> = (0..self.number).map(|n| file_of(place, n)).collect();
        self.check(kill, |block| {
            let mut bytes = vec![0; BLOCK as usize];
            // A block behind the end was never written.
            let read = files[(block / BLOCKS) as usize].read_at(&mut bytes, block * BLOCK).unwrap();
            assert!(read == 0 || read == BLOCK as usize, "block {block} ends within");
            bytes
        });
    }

    /// What was kept. A write that was only answered may be lost: it does not count.
    fn said(&self) -> String {
        let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let (durable, flushed) = (count(&self.durable), count(&self.flushed));
        assert!(durable > 0 && flushed > 0 && durable + flushed <= self.answered());
        format!("{durable} writes durable when answered and {flushed} by a flush")
    }
}

/// A number from the environment.
fn env(name: &str, default: u64) -> u64 {
    std::env::var(name).map_or(default, |v| v.parse().unwrap())
}

#[test]
fn no_acknowledged_block_is_lost_and_no_restart_refused() {
    let folder = Folder::new();
    File::create(folder.path("disk.img")).unwrap().set_len(16 << 20).unwrap();
    kill_again_and_again(&folder, &["disk.img", "--cache-size", "16M"]);
}

/// The same for a file of a volume, which every restart recovers.
#[test]
fn nor_of_a_file_in_a_volume() {
    let folder = Folder::new();
    let words = disk_in_a_volume(&folder);
    kill_again_and_again(&folder, &words);
    folder.ok(&["fsck", "v"]);
}

/// Makes a volume with a disk in it; the words that export that.
fn disk_in_a_volume(folder: &Folder) -> [&'static str; 3] {
    File::create(folder.path("disk.img")).unwrap().set_len(16 << 20).unwrap();
    folder.ok(&["create", "v", "--size", "1G"]);
    folder.ok(&["cp", "disk.img", "v:/"]);
    ["v:/disk.img", "--cache-size", "16M"]
}

fn kill_again_and_again(folder: &Folder, words: &[&str]) {
    let (kills, mut rng) = (env("FOREBAY_KILLS", 8), env("FOREBAY_SEED", 1));
    let clients = Clients::new(4);
    let (mut server, mut refused) = (folder.export(words), Refusals::default());
    for kill in 0..kills {
        let enough = clients.answered() + 40 + split_mix(&mut rng) % 160;
        let new = std::thread::scope(|scope| {
            for n in 0..clients.number {
                let (client, clients) = (server.client(""), &clients);
                scope.spawn(move || clients.write_on(client, n));
            }
            until("they write", || clients.answered() >= enough);
            server.signal("KILL");
            // At once: the one before is not even reaped.
            export_again(folder, words, &mut refused)
        });
        std::mem::replace(&mut server, new).wait();
        clients.check_export(&server, kill);
    }
    println!("{kills} kills, {}: 0 lost, {}", clients.said(), refused.said());
    refused.check();
    server.stop();
}

/// Refusals after the whole wait for the lock that a test accepts. A slow disk may take longer for
/// what the dead process had in flight, but a lock that stays is an error.
const LATE_MAX: u64 = 5;

/// Restarts that were refused.
#[derive(Default)]
struct Refusals {
    /// Without the whole wait for the lock.
    early: u64,
    /// After it, though no living process held the lock.
    late: u64,
}

impl Refusals {
    fn note(&mut self, text: &str) {
        eprintln!("a restart was refused: {text}");
        let is_late = text.contains("holds this file, also after");
        *(if is_late { &mut self.late } else { &mut self.early }) += 1;
    }

    fn said(&self) -> String {
        let Self { early, late } = self;
        format!("{early} restarts refused, and {late} after the whole wait for the lock")
    }

    fn check(&self) {
        assert!(self.early == 0 && self.late <= LATE_MAX, "{}", self.said());
    }
}

/// Starts an export until it is not refused.
fn export_again(folder: &Folder, words: &[&str], refused: &mut Refusals) -> Server {
    for _ in 0..100 {
        match folder.try_export(words) {
            Ok(server) => return server,
            Err(text) => refused.note(&text),
        }
    }
    panic!("it never starts again");
}

/// The file of a client on a mount, opened as that client does.
fn file_of(place: &Place, client: u64) -> File {
    let flags = match client {
        0 => OFlags::DSYNC,
        2 => OFlags::DSYNC | OFlags::DIRECT,
        _ => OFlags::empty(),
    };
    let mut how = File::options();
    how.read(true).write(true).create(true).truncate(false);
    how.custom_flags(flags.bits().cast_signed());
    how.open(place.mnt(&format!("client{client}"))).unwrap()
}

/// Mounts until it is not refused. The mount of the dead daemon is taken away first.
fn mount_again(place: &Place, refused: &mut Refusals) {
    place.umount();
    for _ in 0..100 {
        let done = place.folder.forebay(&["mount", "vol", "mnt", "-o", "cache_size=64M"]);
        if done.status.success() {
            return;
        }
        refused.note(&stderr(&done));
    }
    panic!("it is never mounted again");
}

/// Three clients on a mount and three over NBD, of two volumes; both daemons are killed at the same
/// time.
#[test]
fn killed_mount_and_export_lose_no_acknowledged_write() {
    if !may_run() {
        return;
    }
    let (kills, mut rng) = (env("FOREBAY_KILLS", 4), env("FOREBAY_SEED", 1));
    let place = Place::new(1 << 30);
    let words = disk_in_a_volume(&place.folder);
    let (programs, clients, mut refused) = (Clients::new(3), Clients::new(3), Refusals::default());
    let mut server = place.folder.export(&words);
    place.mount("");
    (0..programs.number).for_each(|n| file_of(&place, n).sync_all().unwrap());
    File::open(place.mnt("")).unwrap().sync_all().unwrap();
    for kill in 0..kills {
        let mut enough = || 40 + split_mix(&mut rng) % 160;
        let goals = [programs.answered() + enough(), clients.answered() + enough()];
        let new = std::thread::scope(|scope| {
            for n in 0..3 {
                let (file, client) = (file_of(&place, n), server.client(""));
                let (programs, clients) = (&programs, &clients);
                scope.spawn(move || programs.write_on(file, n));
                scope.spawn(move || clients.write_on(client, n));
            }
            until("they write", || {
                programs.answered() >= goals[0] && clients.answered() >= goals[1]
            });
            place.signal("KILL");
            server.signal("KILL");
            export_again(&place.folder, &words, &mut refused)
        });
        std::mem::replace(&mut server, new).wait();
        mount_again(&place, &mut refused);
        programs.check_mount(&place, kill);
        clients.check_export(&server, kill);
    }
    println!(
        "{kills} kills of a mount and an export; mount: {}; NBD: {}; 0 lost, {}",
        programs.said(),
        clients.said(),
        refused.said()
    );
    refused.check();
    server.stop();
    place.umount();
    for volume in ["v", "vol"] {
        place.folder.ok(&["fsck", volume]);
    }
}
