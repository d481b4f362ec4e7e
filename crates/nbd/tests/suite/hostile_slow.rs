//! Clients that do harm by being slow, or by asking for much work with few bytes: five kinds (25 to
//! 29 of docs/reference/nbd.md), each concurrent with a clean client that is served throughout.

use crate::common::clean::Clean;
use crate::common::{Client, PATIENCE, Running, eventually};
use forebay_base::task::{BoxFuture, yield_now};
use forebay_nbd::proto::{self, Command, CommandFlags};
use forebay_nbd::{DropReason, ServerConfig};
use forebay_testkit::behind::{Before, Behind};
use forebay_testkit::mem_export::MemExport;
use std::io::Read;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::RecvTimeoutError::Timeout;
use std::time::{Duration, Instant};

const NONE: CommandFlags = CommandFlags::empty();
const SIZE: u64 = 16 << 20;

/// 8 MiB for requests, as a cache of 16 MiB gives; hoarders have a second to move something.
fn tight() -> ServerConfig {
    ServerConfig {
        total_memory: 8 << 20,
        stall_timeout: Duration::from_secs(1),
        rate_min: 256 << 10,
        ..Default::default()
    }
}

fn serve(config: ServerConfig) -> Running {
    Running::with(config, vec![("disk", Arc::new(MemExport::new(SIZE)))])
}

/// A client whose requests fit its fair share is served at once, whatever the others hold.
fn check(client: &mut Client) {
    let data: Vec<u8> = (0..20_000).map(|i| (i / 7) as u8).collect();
    assert_eq!(client.write(8 << 20, &data), 0);
    assert_eq!(client.call(Command::Flush, NONE, 0, 0).error, 0);
    assert!(client.read(8 << 20, 20_000).data == data);
}

fn header(command: Command, len: u32) -> Vec<u8> {
    let mut bytes = Vec::new();
    let request = proto::Request { flags: NONE, command, cookie: 1, offset: 0, len };
    proto::put_request(&mut bytes, &request);
    bytes
}

/// 25: memory was charged at the header of a write and given back only when all its data had
/// arrived. So clients that sent a few large headers and stopped blocked all other clients' large
/// requests for ever: the server never checked clients that do not send.
#[test]
fn half_sent_writes_give_way() {
    let running = serve(tight());
    let _clean = Clean::start(&running, "half-sent writes (25)");
    let mut clean = running.client();
    let mut hoarders: Vec<Client> = (0..4).map(|_| running.client()).collect();
    for (at, client) in hoarders.iter_mut().enumerate() {
        client.send(&header(Command::Write, 1 << 20));
        client.send(&vec![1; 1000 * at]);
        check(&mut clean);
    }
    eventually("they hold what they can get", || running.stats().memory_used > 3 << 20);
    check(&mut clean);
    // More than its fair share: it has to wait, and gets it.
    assert_eq!(clean.write(0, &vec![3; 2 << 20]), 0);
    assert!(running.server.dropped(DropReason::Stalled) > 0);
    check(&mut clean);
}

/// The same clients also send more bytes, which wait to be parsed. At the limit of these the oldest
/// handshake was disconnected: that of the next new client.
#[test]
fn unparsed_bytes_do_not_block_new_clients() {
    let running = serve(ServerConfig { total_memory: 8 << 20, ..Default::default() });
    let mut hoarders: Vec<Client> = (0..12).map(|_| running.client()).collect();
    for client in &mut hoarders {
        client.socket.set_write_timeout(Some(Duration::from_millis(50))).unwrap();
        (0..4).for_each(|_| client.throw(&header(Command::Read, 1 << 20)));
        client.throw(&header(Command::Write, 1 << 20));
        client.throw(&vec![1; 300 << 10]);
    }
    let waits = || {
        let rows = running.server.memory_rows();
        let row = rows.iter().find(|(what, _, _)| *what == "received from clients and not parsed");
        row.map(|(_, now, bound)| (*now, *bound)).unwrap()
    };
    eventually("as much waits as may", || waits().0 > 512 << 10);
    for _ in 0..20 {
        check(&mut running.client());
    }
    assert!(waits().0 <= waits().1, "{:?}", waits());
    assert_eq!(running.server.dropped(DropReason::Evicted), 0);
}

/// 29: a reader that takes a byte now and then was never disconnected, because each byte restarted
/// its time.
#[test]
fn slow_trickle_reader_is_disconnected() {
    // A Unix socket is writable again when three quarters of it are taken, 160 KB or so. At the
    // rate below that is well within the time to move a byte, and well below the least rate.
    let running = serve(ServerConfig { stall_timeout: Duration::from_secs(4), ..tight() });
    let _clean = Clean::start(&running, "readers of a byte now and then (29)");
    let mut clean = running.client();
    let mut hoarders: Vec<Client> = (0..3).map(|_| running.client()).collect();
    for client in &mut hoarders {
        (0..2).for_each(|_| {
            client.ask(Command::Read, NONE, 0, 1 << 20);
        });
    }
    eventually("they hold what they can get", || running.stats().memory_used > 3 << 20);
    let (stop, stopped) = std::sync::mpsc::channel::<()>();
    let trickle = std::thread::spawn(move || {
        // Who waits for memory itself has nothing to take, and must not hold the others up.
        hoarders.iter().for_each(|c| c.socket.set_nonblocking(true).unwrap());
        while stopped.recv_timeout(Duration::from_millis(20)).is_err_and(|e| e == Timeout) {
            for client in &mut hoarders {
                let _ = client.socket.read(&mut [0; 2048]);
            }
        }
    });
    check(&mut clean);
    assert_eq!(clean.read(0, 2 << 20).data.len(), 2 << 20);
    assert!(running.server.dropped(DropReason::Stalled) > 0);
    drop(stop);
    trickle.join().unwrap();
    check(&mut clean);
}

/// 28: a table full of sessions that say nothing kept newcomers out for ever.
#[test]
fn dead_sessions_make_room() {
    for threads in [1, 3] {
        let config = ServerConfig {
            threads,
            clients_max: 9,
            idle_timeout: Duration::from_millis(300),
            ..Default::default()
        };
        let running = serve(config);
        let mut dead: Vec<Client> = (0..8).map(|_| running.client()).collect();
        // The last one: even if it does not run for a while, the dead ones are idle for longer.
        let _clean = Clean::start(&running, "dead sessions (28)");
        eventually("there is a place for one", || {
            // Refused while the others are not idle for long enough: the greeting does not come.
            let mut client = Client::raw(&running.path);
            let mut greeting = [0; 18];
            client.socket.read_exact(&mut greeting).is_ok()
        });
        // A loop counts what it has closed, which may be after another has let the newcomer in.
        eventually("it is counted", || running.server.dropped(DropReason::Idle) > 0);
        let mut clean = running.client();
        check(&mut clean);
        assert!(running.stats().connections <= 9);
        // One that was marked while the probe's connection was counted may be closed only now.
        eventually("only clients that the server drops are closed", || {
            let served = dead.iter_mut().filter_map(|c| c.try_read()).count();
            served as u64 + running.server.dropped(DropReason::Idle) == 8
        });
        check(&mut clean);
    }
}

/// Who is at work is not idle, however full the table is.
#[test]
fn busy_client_is_not_evicted_from_full_table() {
    let config = ServerConfig { clients_max: 2, ..Default::default() };
    let running = serve(config);
    let mut clients = [running.client(), running.client()];
    for _ in 0..20 {
        let mut refused = Client::raw(&running.path);
        assert!(refused.closed());
        clients.iter_mut().for_each(check);
    }
    assert_eq!(running.server.dropped(DropReason::Idle), 0);
    assert!(running.server.dropped(DropReason::TooManyClients) >= 20);
}

/// Map and prefetch take as many polls as the test sets, and record how many of them run at a time.
struct Laborious {
    steps: usize,
    under_way: Arc<AtomicUsize>,
    most: Arc<AtomicUsize>,
}

impl Before for Laborious {
    fn work(&self) -> BoxFuture<'static, ()> {
        let (steps, under_way, most) = (self.steps, self.under_way.clone(), self.most.clone());
        Box::pin(async move {
            most.fetch_max(under_way.fetch_add(1, Ordering::Relaxed) + 1, Ordering::Relaxed);
            // However late the test sends: the work goes on once all four are at it.
            let end = Instant::now() + PATIENCE;
            while most.load(Ordering::Relaxed) < 4 && Instant::now() < end {
                yield_now().await;
            }
            for _ in 0..steps {
                yield_now().await;
            }
            under_way.fetch_sub(1, Ordering::Relaxed);
        })
    }
}

/// 26 and 27: a thousand requests for the map, or for prefetching everything, of 28 bytes each. All
/// of them were started at once. Now one of each client is in progress at a time, in steps, and
/// other clients' requests run between the steps.
#[test]
fn much_work_for_few_bytes() {
    for command in [Command::BlockStatus, Command::Cache] {
        let most = Arc::new(AtomicUsize::new(0));
        let before = Laborious { steps: 100, under_way: Arc::default(), most: most.clone() };
        let running = Running::one(Behind::new(Arc::new(MemExport::new(SIZE)), before));
        let mut throughout = Clean::start(&running, "much work for few bytes (26, 27)");
        let mut clean = running.client();
        let mut hostile: Vec<Client> = (0..4).map(|_| running.client()).collect();
        for client in &mut hostile {
            client.send(&header(command, SIZE as u32).repeat(1000));
        }
        eventually("all of them are at it", || most.load(Ordering::Relaxed) == 4);
        for _ in 0..50 {
            check(&mut clean);
        }
        assert_eq!(most.load(Ordering::Relaxed), 4, "one of each client at a time");
        // One goes away in the middle: nothing of it is left behind.
        hostile.pop();
        for client in &mut hostile {
            for _ in 0..1000 {
                assert_eq!(client.reply(|_| 0).error, 0);
            }
        }
        check(&mut clean);
        throughout.end();
        drop((hostile, clean));
        eventually("everything is given back", || running.stats().memory_used == 0);
    }
}
