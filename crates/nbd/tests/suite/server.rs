//! The server as a client sees it: what is served, from which thread, within which limits.

use crate::common::{Client, Running, eventually, socket_path};
use forebay_base::ErrorKind;
use forebay_nbd::proto::{Command, CommandFlags, errno, opt, rep};
use forebay_nbd::{DropReason, Server, ServerConfig};
use forebay_testkit::mem_export::MemExport;
use std::collections::HashMap;
use std::os::unix::fs::PermissionsExt;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

const NONE: CommandFlags = CommandFlags::empty();

fn memory() -> Arc<MemExport> {
    Arc::new(MemExport::new(8 << 20))
}

fn pattern(len: usize, seed: u8) -> Vec<u8> {
    (0..len).map(|i| (i / 512) as u8 ^ (i as u8).wrapping_mul(31) ^ seed).collect()
}

#[test]
fn commands_match_model() {
    let export = memory();
    let running = Running::one(export.clone());
    let mut client = running.client();
    assert_eq!((client.size, client.flags), (8 << 20, 0x0ded));
    for (at, len) in [(0, 1), (511, 3), (4096, 4096), (100_000, 65536), (1 << 20, 4 << 20)] {
        let data = pattern(len, at as u8);
        assert_eq!(client.write(at, &data), 0);
        assert_eq!(client.read(at, len as u32).data, data);
    }
    assert_eq!(client.write_flags(0, &[5; 512], CommandFlags::FUA), 0);
    assert_eq!(export.counters.fua.load(Ordering::Relaxed), 1);
    assert_eq!(client.call(Command::Flush, NONE, 0, 0).error, 0);
    assert_eq!(export.counters.flushes.load(Ordering::Relaxed), 1);
    assert_eq!(client.call(Command::Cache, NONE, 0, 1 << 20).error, 0);
    assert_eq!(export.counters.prefetches.load(Ordering::Relaxed), 1);
    assert_eq!(client.extents(2 << 20, 4 << 20, NONE), [(3 << 20, 0), (1 << 20, 3)]);
    assert_eq!(client.extents(2 << 20, 4 << 20, CommandFlags::REQ_ONE), [(3 << 20, 0)]);
    assert_eq!(client.call(Command::Trim, NONE, 2 << 20, 1 << 20).error, 0);
    assert_eq!(client.call(Command::WriteZeroes, NONE, 3 << 20, 1 << 19).error, 0);
    let flags = CommandFlags::NO_HOLE | CommandFlags::FAST_ZERO;
    assert_eq!(client.call(Command::WriteZeroes, flags, 4 << 20, 1 << 20).error, 0);
    let want = [(3 << 19, 3), (3 << 19, 0), (1 << 20, 3)];
    assert_eq!(client.extents(2 << 20, 4 << 20, NONE), want);
    assert_eq!(client.read(4 << 20, 1 << 20).data, vec![0; 1 << 20]);
    client.ask(Command::Disconnect, NONE, 0, 0);
    assert!(client.closed());
    let stats = running.stats();
    assert_eq!((stats.dropped, stats.errors), (vec![], 0));
}

#[test]
fn refusals_keep_the_session_and_change_nothing() {
    let running = Running::one(memory());
    let mut client = running.client();
    let end = 8 << 20;
    assert_eq!(client.read(end - 1, 2).error, errno::EINVAL);
    assert_eq!(client.read(u64::MAX - 1, 4096).error, errno::EINVAL);
    assert_eq!(client.write(end - 1, &[1, 2]), errno::ENOSPC);
    assert_eq!(client.read(end - 1, 1).data, [0]);
    assert_eq!(client.call(Command::Trim, NONE, u64::MAX, 4096).error, errno::EINVAL);
    assert_eq!(client.call(Command::WriteZeroes, NONE, end, 1).error, errno::ENOSPC);
    assert_eq!(client.call(Command::Unknown(300), NONE, 0, 0).error, errno::EINVAL);
    assert_eq!(client.call(Command::BlockStatus, NONE, 0, 0).error, errno::EINVAL);
    let empty = client.read(0, 0);
    assert_eq!((empty.error, empty.data.len()), (0, 0));
    assert_eq!(client.call(Command::Flush, NONE, 0, 0).error, 0);
}

#[test]
fn read_only_export_refuses_writes() {
    let running = Running::one(Arc::new(MemExport::new(4096).with_info(|i| i.read_only = true)));
    let mut client = running.client();
    assert_eq!(client.flags & 2, 2);
    assert_eq!(client.write(0, &[1; 100]), errno::EPERM);
    assert_eq!(client.call(Command::Trim, NONE, 0, 512).error, errno::EPERM);
    assert_eq!(client.call(Command::WriteZeroes, NONE, 0, 512).error, errno::EPERM);
    assert_eq!(client.read(0, 4096).data, vec![0; 4096]);
}

#[test]
fn simple_replies_and_the_old_way_in() {
    let running = Running::one(memory());
    let mut client = running.connect();
    client.start();
    let mut bytes = Vec::new();
    forebay_nbd::proto::put_option(&mut bytes, opt::EXPORT_NAME, b"disk");
    client.send(&bytes);
    assert_eq!(client.take(8), (8u64 << 20).to_be_bytes());
    assert_eq!(client.take(2), [0x0d, 0x6d]);
    assert_eq!(client.write(7, b"hello"), 0);
    assert_eq!(client.read(6, 7).data, b"\0hello\0");
    assert_eq!(client.read(0, 1 << 20).data.len(), 1 << 20);
    assert_eq!(client.read(u64::MAX, 1).error, errno::EINVAL);
    assert_eq!(client.call(Command::BlockStatus, NONE, 0, 512).error, errno::EINVAL);
}

#[test]
fn exports_are_found_by_name_first_is_default() {
    let (small, large) = (Arc::new(MemExport::new(512)), memory());
    let running = Running::with(ServerConfig::default(), vec![("a", small), ("b", large)]);
    let size = |name: &str| {
        let mut client = running.connect();
        client.start();
        client.go(name);
        client.size
    };
    assert_eq!([size(""), size("a"), size("b")], [512, 512, 8 << 20]);
    let mut client = running.connect();
    client.start();
    let names: Vec<_> = client.option(opt::LIST, &[]).iter().map(|r| r.0).collect();
    assert_eq!(names, [rep::SERVER, rep::SERVER, rep::ACK]);
    assert!(Server::new(ServerConfig::default(), vec![]).is_err());
    let twice = vec![("x".into(), memory() as _), ("x".into(), memory() as _)];
    assert!(Server::new(ServerConfig::default(), twice).is_err());
}

/// Many requests at once, hits and misses mixed, over several connections and threads: each
/// answer is right, whatever its order.
#[test]
fn late_answers_come_right_in_any_order() {
    for threads in [1, 3] {
        let late = MemExport::new(8 << 20).with_late(3, Duration::from_micros(300));
        let config = ServerConfig { threads, ..Default::default() };
        let running = Running::with(config, vec![("disk", Arc::new(late))]);
        std::thread::scope(|scope| {
            for part in 0..4u64 {
                let mut client = running.client();
                scope.spawn(move || exercise(&mut client, part * (2 << 20)));
            }
        });
        let stats = running.stats();
        assert!(stats.late > 100, "{stats:?}");
        assert_eq!((stats.errors, stats.dropped), (0, vec![]));
        eventually("memory is given back", || running.stats().memory_used == 0);
    }
}

/// 16 writes, then 16 reads of them, all in flight at once, of all size classes.
fn exercise(client: &mut Client, base: u64) {
    for round in 0..20u8 {
        let len = [100, 4096, 20_000, 70_000, 120_000][usize::from(round) % 5];
        let at = |i: u64| base + i * (len as u64);
        let mut bytes = Vec::new();
        for i in 0..16 {
            client.put(&mut bytes, Command::Write, NONE, at(i), len as u32);
            bytes.extend(pattern(len, round ^ i as u8));
        }
        client.send(&bytes);
        for _ in 0..16 {
            assert_eq!(client.reply(|_| 0).error, 0);
        }
        bytes.clear();
        let mut asked = HashMap::new();
        for i in 0..16 {
            let cookie = client.put(&mut bytes, Command::Read, NONE, at(i), len as u32);
            asked.insert(cookie, i);
        }
        client.send(&bytes);
        for _ in 0..16 {
            let reply = client.reply(|_| len);
            let i = asked.remove(&reply.cookie).expect("each request is answered once");
            assert!(reply.data == pattern(len, round ^ i as u8), "round {round}, request {i}");
        }
    }
}

#[test]
fn flushed_write_is_visible_on_other_connections() {
    let running =
        Running::with(ServerConfig { threads: 2, ..Default::default() }, vec![("disk", memory())]);
    let (mut a, mut b) = (running.client(), running.client());
    for round in 0..50u8 {
        assert_eq!(a.write(4096, &[round; 4096]), 0);
        assert_eq!(b.call(Command::Flush, NONE, 0, 0).error, 0);
        assert_eq!(b.read(4096, 4096).data, [round; 4096]);
    }
}

#[test]
fn l12_stop_answers_requests_in_flight_and_removes_socket() {
    let late = MemExport::new(1 << 20).with_late(1, Duration::from_millis(50));
    let mut running = Running::one(Arc::new(late));
    let mut client = running.client();
    client.ask(Command::Read, NONE, 0, 4096);
    eventually("the read is under way", || running.stats().late == 1);
    running.stop();
    assert_eq!(client.reply(|_| 0).data.len(), 4096);
    assert!(client.closed());
    assert!(!running.path.exists());
    assert_eq!((running.stats().connections, running.stats().memory_used), (0, 0));
}

#[test]
fn socket_file_is_private_and_replaced_only_if_stale() {
    let running = Running::one(memory());
    let mode = std::fs::metadata(&running.path).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    let exports = || vec![("x".to_string(), memory() as Arc<dyn forebay_vfs::Export>)];
    let other = Server::new(ServerConfig::default(), exports()).unwrap();
    assert_eq!(other.listen_unix(&running.path).unwrap_err().kind(), ErrorKind::Busy);
    let path = socket_path();
    drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
    assert!(path.exists(), "a stale socket stays behind");
    other.listen_unix(&path).unwrap();
    drop(other);
    assert!(!path.exists(), "ours is removed");
    std::fs::write(&path, b"precious").unwrap();
    let other = Server::new(ServerConfig::default(), exports()).unwrap();
    assert_eq!(other.listen_unix(&path).unwrap_err().kind(), ErrorKind::Busy);
    assert_eq!(std::fs::read(&path).unwrap(), b"precious");
    std::fs::remove_file(&path).unwrap();
}

#[test]
fn tcp_is_served_too() {
    let server = Server::new(ServerConfig::default(), vec![("t".into(), memory() as _)]).unwrap();
    let address = server.listen_tcp("127.0.0.1:0".parse().unwrap()).unwrap();
    std::thread::scope(|scope| {
        let run = scope.spawn(|| server.run());
        let mut socket = std::net::TcpStream::connect(address).unwrap();
        let mut greeting = [0; 18];
        std::io::Read::read_exact(&mut socket, &mut greeting).unwrap();
        assert_eq!(&greeting[..8], b"NBDMAGIC");
        server.stop();
        run.join().unwrap().unwrap();
    });
}

#[test]
fn idle_handshakes_time_out() {
    // Long enough for the four round trips of a client that is in no hurry.
    let config = ServerConfig { handshake_timeout: Duration::from_secs(2), ..Default::default() };
    let running = Running::with(config, vec![("disk", memory())]);
    let mut established = running.client();
    let mut idle = running.connect();
    assert!(idle.closed());
    assert_eq!(running.server.dropped(DropReason::HandshakeTimeout), 1);
    assert_eq!(established.read(0, 512).error, 0);
}

#[test]
fn full_of_real_clients_means_refused() {
    let config = ServerConfig { clients_max: 2, ..Default::default() };
    let running = Running::with(config, vec![("disk", memory())]);
    let (mut a, mut b) = (running.client(), running.client());
    let mut third = running.connect();
    assert!(third.closed());
    assert_eq!(running.server.dropped(DropReason::TooManyClients), 1);
    assert_eq!((a.read(0, 1).error, b.read(0, 1).error), (0, 0));
    drop(a);
    eventually("a place is free", || running.stats().connections == 1);
    assert_eq!(running.client().read(0, 1).error, 0);
}

/// A sleeping loop costs one sleep per batch, not one per request.
#[test]
fn requests_that_come_together_are_served_together() {
    let running = Running::one(memory());
    let mut client = running.client();
    let before = running.stats();
    for _ in 0..100 {
        let mut bytes = Vec::new();
        (0..16).for_each(|i| {
            client.put(&mut bytes, Command::Read, NONE, i * 4096, 4096);
        });
        client.send(&bytes);
        (0..16).for_each(|_| assert_eq!(client.reply(|_| 0).data.len(), 4096));
    }
    let after = running.stats();
    assert_eq!(after.requests[0] - before.requests[0], 1600);
    assert!(after.receives - before.receives <= 400, "{after:?}");
    assert!(after.sends - before.sends <= 400, "{after:?}");
    assert!(after.sleeps - before.sleeps <= 800, "{after:?}");
}

/// The memory of all clients follows the total while it is served. The story: buffers kept for
/// reuse stayed, and a client that had been offered longer requests waited for ever.
#[test]
fn client_memory_total_changes_live() {
    let config = ServerConfig { total_memory: 16 << 20, ..Default::default() };
    let running = Running::with(config, vec![("disk", memory())]);
    let server = &running.server;
    let bounds = || server.memory_rows().iter().map(|(_, _, bound)| *bound as usize).sum::<usize>();
    let kept = || {
        let rows = server.memory_rows();
        let row = rows.iter().find(|(what, _, _)| *what == "client buffers kept for reuse");
        row.map(|(_, now, bound)| (*now, *bound)).unwrap()
    };
    assert_eq!(server.memory_bound(), server.config().memory_bound());
    let mut client = running.client();
    let long = vec![5; 4 << 20];
    assert_eq!(client.write(0, &vec![4; 256 << 10]), 0);
    eventually("a buffer is kept", || kept().0 > 128 << 10);
    for total in [2 << 20, 0, 64 << 20, 2 << 20] {
        let bound = server.memory_bound_with(total);
        server.set_total_memory(total);
        assert_eq!(server.total_memory(), total.max(2 << 20));
        assert_eq!((server.memory_bound(), bounds()), (bound, bound));
        eventually("what is kept is within its bound", || kept().0 <= kept().1);
        assert_eq!(client.write(4096, &long), 0);
        assert!(client.read(4096, 4 << 20).data == long);
    }
}
