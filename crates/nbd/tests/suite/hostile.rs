//! Hostile clients. After each case a new clean client must be served correctly while 500 idle
//! connections and 50 readers that take no replies are held; another one is served throughout.

use crate::common::clean::{Clean, Waits};
use crate::common::{Client, Running, eventually, string};
use forebay_nbd::proto::{self, Command, CommandFlags, errno, opt, rep};
use forebay_nbd::{DropReason, ServerConfig};
use forebay_testkit::mem_export::MemExport;
use std::io::Write;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::Duration;

const NONE: CommandFlags = CommandFlags::empty();
const SIZE: u64 = 16 << 20;

/// The besieged server and those who besiege it.
struct Siege {
    clean: Clean,
    /// Of the new clients: connecting, negotiating, and three requests.
    waits: Waits,
    running: Running,
    idle: Vec<UnixStream>,
    slow: Vec<Client>,
    served: u8,
}

impl Siege {
    fn new(what: &'static str) -> Self {
        let export = MemExport::new(SIZE).with_late(5, Duration::from_micros(200));
        let config = ServerConfig {
            total_memory: 64 << 20,
            stall_timeout: Duration::from_secs(600),
            ..Default::default()
        };
        let running = Running::with(config, vec![("disk", Arc::new(export))]);
        let (clean, waits) = (Clean::start(&running, what), Waits::default());
        let (idle, slow) = (Vec::new(), Vec::new());
        let mut siege = Self { clean, waits, running, idle, slow, served: 0 };
        for _ in 0..50 {
            let mut client = siege.running.client();
            let mut bytes = Vec::new();
            (0..20).for_each(|_| {
                client.put(&mut bytes, Command::Read, NONE, 0, 1 << 20);
            });
            client.send(&bytes);
            siege.slow.push(client);
        }
        siege.crowd();
        siege
    }

    /// 500 connections that say nothing. Those that were cut off are replaced.
    fn crowd(&mut self) {
        self.idle.clear();
        for _ in 0..500 {
            self.idle.push(UnixStream::connect(&self.running.path).unwrap());
        }
    }

    /// A new clean client gets everything right.
    fn check(&mut self) {
        self.served += 1;
        let (running, served) = (&self.running, self.served);
        self.waits.time(|| {
            let mut client = running.client();
            let data: Vec<u8> = (0..70_000).map(|i| (i / 7) as u8 ^ served).collect();
            let at = 8 << 20;
            assert_eq!(client.write(at, &data), 0);
            assert_eq!(client.call(Command::Flush, NONE, 0, 0).error, 0);
            assert!(client.read(at, 70_000).data == data);
            client.ask(Command::Disconnect, NONE, 0, 0);
            assert!(client.closed());
        });
        let (stats, config) = (self.running.stats(), self.running.server.config());
        assert!(stats.memory_peak <= config.total_memory + (1 << 20), "{stats:?}");
        assert!(stats.connections <= config.clients_max, "{stats:?}");
    }

    /// The clean clients are done; says how long they waited.
    fn end(&mut self) {
        self.clean.end();
        let Waits { requests, longest } = self.waits;
        println!("clean client, new each time: {requests} rounds, longest {longest:?}");
    }

    fn dropped(&self, reason: DropReason) -> u64 {
        self.running.server.dropped(reason)
    }

    /// A client past its greeting that says `bytes` and is cut off for `reason`.
    fn cut_off(&mut self, bytes: &[u8], reason: DropReason) {
        let before = self.dropped(reason);
        let mut client = self.running.connect();
        client.take(18);
        client.throw(bytes);
        assert!(client.closed());
        eventually(reason.as_str(), || self.dropped(reason) == before + 1);
        self.check();
    }

    /// A negotiated client that says `bytes` and is cut off for `reason`.
    fn cut_off_later(&mut self, bytes: &[u8], reason: DropReason) {
        let before = self.dropped(reason);
        let mut client = self.running.client();
        client.throw(bytes);
        assert!(client.closed());
        eventually(reason.as_str(), || self.dropped(reason) == before + 1);
        self.check();
    }
}

fn header(code: u32, len: u32) -> Vec<u8> {
    let mut bytes = 3u32.to_be_bytes().to_vec();
    bytes.extend_from_slice(&proto::OPTION_MAGIC.to_be_bytes());
    bytes.extend_from_slice(&code.to_be_bytes());
    bytes.extend_from_slice(&len.to_be_bytes());
    bytes
}

fn options(list: &[(u32, Vec<u8>)]) -> Vec<u8> {
    let mut bytes = 3u32.to_be_bytes().to_vec();
    list.iter().for_each(|(code, data)| proto::put_option(&mut bytes, *code, data));
    bytes
}

/// Cases 1 to 12: the handshake.
#[test]
fn hostile_handshakes() {
    let mut siege = Siege::new("hostile handshakes (1 to 12)");
    siege.check();
    // 1 bad magic, 2 bad client flags
    siege.cut_off(b"\0\0\0\x03GET / HTTP/1.0\r\n\r\n", DropReason::BadMagic);
    siege.cut_off(&[0xff; 4], DropReason::BadClientFlags);
    // 3 option length 4 GiB - 1
    siege.cut_off(&header(opt::GO, u32::MAX), DropReason::OptionTooLong);
    // 4 a name of 5,000 bytes, 5 a lying name length, 6 a path as name, 7 an unknown option
    let info = |name: &[u8]| [string(name), vec![0, 0]].concat();
    let cases = [
        (opt::GO, info(&[b'n'; 5000]), rep::ERR_TOO_BIG),
        (opt::GO, [&u32::MAX.to_be_bytes()[..], b"abc"].concat(), rep::ERR_INVALID),
        (opt::GO, info(b"../../etc/passwd"), rep::ERR_UNKNOWN),
        (0x1234, vec![1; 100], rep::ERR_UNSUP),
    ];
    for (code, data, want) in cases {
        let mut client = siege.running.connect();
        client.start();
        assert_eq!(client.option(code, &data)[0].0, want);
        siege.check();
    }
    siege.cut_off(&options(&[(opt::EXPORT_NAME, b"../x".to_vec())]), DropReason::UnknownExport);
    // 8 twenty thousand junk options
    siege.cut_off(&options(&vec![(77, vec![]); 20_000]), DropReason::TooManyOptions);
    // 9 to 12 truncated handshakes: in the flags, in the magic, in the header, in the data
    for cut in [2, 9, 15, 40] {
        let before = siege.dropped(DropReason::ConnectionLost);
        let mut client = siege.running.connect();
        client.take(18);
        client.send(&options(&[(opt::GO, info(b"a name that is long enough"))])[..cut]);
        drop(client);
        eventually("the rest never came", || siege.dropped(DropReason::ConnectionLost) > before);
        siege.check();
        siege.crowd();
    }
    siege.end();
}

fn request(command: Command, flags: u16, offset: u64, len: u32) -> Vec<u8> {
    let mut bytes = Vec::new();
    let flags = CommandFlags::from_bits_retain(flags);
    proto::put_request(&mut bytes, &proto::Request { flags, command, cookie: 1, offset, len });
    bytes
}

/// Cases 13 to 20: single requests.
#[test]
fn hostile_requests() {
    let mut siege = Siege::new("hostile requests (13 to 20)");
    // 13 bad request magic
    siege.cut_off_later(&[0x25, 0x60, 0x95, 0x14], DropReason::BadMagic);
    // 14 unknown command, 15 past the end, wraps at 2^64, 16 zero length, 17 reads of 4 GiB - 1
    let refused = [
        (Command::Unknown(0xffff), 0, 0, errno::EINVAL),
        (Command::Read, SIZE - 1, 2, errno::EINVAL),
        (Command::Read, u64::MAX - 1, 4096, errno::EINVAL),
        (Command::Trim, u64::MAX - 1, 4096, errno::EINVAL),
        (Command::WriteZeroes, SIZE, 1, errno::ENOSPC),
        (Command::Read, 0, u32::MAX, errno::EINVAL),
        (Command::BlockStatus, 0, u32::MAX, errno::EINVAL),
        (Command::Read, 0, 0, 0),
    ];
    for (command, offset, len, want) in refused {
        let mut client = siege.running.client();
        assert_eq!(client.call(command, NONE, offset, len).error, want, "{command:?}");
        assert_eq!(client.read(0, 512).error, 0, "the session goes on");
        siege.check();
    }
    let mut client = siege.running.client();
    assert_eq!(client.write(SIZE - 1, &[7; 4096]), errno::ENOSPC);
    // 18 a write of 4 GiB - 1
    siege.cut_off_later(&request(Command::Write, 0, 0, u32::MAX), DropReason::WriteTooLong);
    // 19 a write that stops in the middle
    let before = siege.dropped(DropReason::ConnectionLost);
    let mut client = siege.running.client();
    client.send(&request(Command::Write, 0, 0, 1 << 20));
    client.send(&[1; 5000]);
    drop(client);
    eventually("the rest never came", || siege.dropped(DropReason::ConnectionLost) > before);
    siege.check();
    // 20 all flags set, on every command
    for code in [Command::Read, Command::Flush, Command::Trim, Command::Cache, Command::BlockStatus]
    {
        let mut client = siege.running.client();
        assert_eq!(client.call(code, CommandFlags::all(), 0, 512).error, errno::EINVAL);
        assert_eq!(client.write_flags(0, &[1; 512], CommandFlags::all()), errno::EINVAL);
    }
    siege.check();
    siege.end();
}

/// Cases 21 to 24: crowds.
#[test]
fn hostile_crowds() {
    let mut siege = Siege::new("hostile crowds (21 to 24)");
    // 21 two hundred abrupt closes with 1 to 16 reads in flight
    for round in 0..200 {
        let mut client = siege.running.client();
        let mut bytes = Vec::new();
        (0..=round % 16).for_each(|i| {
            client.put(&mut bytes, Command::Read, NONE, i * 65536, 60_000);
        });
        client.send(&bytes);
        drop(client);
        if round % 50 == 0 {
            siege.check();
        }
    }
    siege.check();
    // 22 three thousand pipelined reads of 1 MiB, never read
    let mut greedy = siege.running.client();
    greedy.socket.set_write_timeout(Some(Duration::from_millis(200))).unwrap();
    greedy.throw(&request(Command::Read, 0, 0, 1 << 20).repeat(3000));
    siege.check();
    // 23 five hundred more idle connections
    siege.crowd();
    siege.check();
    // 24 five hundred random streams, half of them after a right handshake
    let mut state = 42;
    for round in 0..500 {
        let mut junk: Vec<u8> =
            (0..300).map(|_| forebay_base::world::split_mix(&mut state) as u8).collect();
        if round % 2 == 0 {
            junk[..4].copy_from_slice(&3u32.to_be_bytes());
            let _ = UnixStream::connect(&siege.running.path).unwrap().write_all(&junk);
        } else {
            let mut client = siege.running.client();
            client.throw(&request(Command::Write, 0, 0, 100));
            client.throw(&junk);
        }
    }
    siege.check();
    siege.end();
    let Siege { running, idle, slow, .. } = siege;
    drop((idle, slow, greedy));
    eventually("everything is given back", || {
        let stats = running.stats();
        stats.connections == 0 && stats.memory_used == 0
    });
}

/// One client reads nothing of what it asked for, another one asks on the same loop: the second is
/// served, and what the first holds is counted against the bound that is part of the budget.
#[test]
fn l11_client_not_reading_delays_no_other() {
    let config = ServerConfig { threads: 1, total_memory: 16 << 20, ..Default::default() };
    let running = Running::with(config, vec![("disk", Arc::new(MemExport::new(SIZE)))]);
    let mut slow = running.client();
    (0..64).for_each(|_| {
        slow.ask(Command::Read, NONE, 0, 256 << 10);
    });
    eventually("its replies wait to be sent", || running.stats().memory_used > 256 << 10);
    let mut client = running.client();
    for round in 0..200u64 {
        assert_eq!(client.write(round * 4096, &[round as u8; 4096]), 0);
        assert_eq!(client.read(round * 4096, 4096).data, [round as u8; 4096]);
    }
    let held = running.stats().memory_used;
    assert!(held > 256 << 10 && held <= 16 << 20, "{held}");
}

/// A client whose large request must wait for memory gets it in the end: who takes no replies
/// is cut off for it.
#[test]
fn l11_hoarders_give_way() {
    let config = ServerConfig {
        total_memory: 16 << 20,
        client_memory: 8 << 20,
        // The reader below must not lose the CPU for so long.
        stall_timeout: Duration::from_secs(1),
        ..Default::default()
    };
    let running = Running::with(config, vec![("disk", Arc::new(MemExport::new(SIZE)))]);
    let mut hoarders: Vec<Client> = (0..4).map(|_| running.client()).collect();
    for client in &mut hoarders {
        (0..8).for_each(|_| {
            client.ask(Command::Read, NONE, 0, 1 << 20);
        });
    }
    eventually("they hold what they can get", || running.stats().memory_used > 7 << 20);
    let mut client = running.client();
    assert_eq!(client.read(0, 4 << 20).data.len(), 4 << 20);
    assert!(running.server.dropped(DropReason::Stalled) > 0);
}
