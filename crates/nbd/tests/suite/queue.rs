//! An export whose I/O goes through a queue of the event-loop thread: what was queued is submitted
//! once per turn, and completions run on that thread.

use crate::common::Running;
use forebay_base::task::{BoxFuture, LocalQueue, OneSender, oneshot};
use forebay_nbd::proto::{Command, CommandFlags};
use forebay_nbd::{Server, ServerConfig};
use forebay_testkit::behind::{Before, Behind};
use forebay_testkit::mem_export::MemExport;
use forebay_vfs::Export;
use rustix::event::{EventfdFlags, eventfd};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

#[derive(Default)]
struct State {
    queued: Mutex<Vec<OneSender<()>>>,
    flushes: AtomicU64,
}

struct Queue {
    state: Arc<State>,
    done: Vec<OneSender<()>>,
    fd: OwnedFd,
}

impl LocalQueue for Queue {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
    fn flush(&mut self) {
        let queued = std::mem::take(&mut *self.state.queued.lock().unwrap());
        if !queued.is_empty() {
            self.state.flushes.fetch_add(1, Ordering::Relaxed);
            self.done.extend(queued);
            rustix::io::write(&self.fd, &[1; 8]).unwrap();
        }
    }
    fn reap(&mut self) -> usize {
        // Only what epoll could have reported: empty unless flushed before.
        if rustix::io::read(&self.fd, &mut [0; 8]).is_err() {
            return 0;
        }
        let count = self.done.len();
        self.done.drain(..).for_each(|tx| tx.send(()));
        count
    }
}

/// Nothing is served at once, all of it through a queue.
struct Queued(Arc<State>);

fn wait(state: &State) -> BoxFuture<'static, ()> {
    let (tx, rx) = oneshot();
    state.queued.lock().unwrap().push(tx);
    Box::pin(async move {
        rx.await.expect("the queue outlives its requests");
    })
}

impl Before for Queued {
    fn at_once(&self) -> bool {
        false
    }
    fn read(&self) -> BoxFuture<'static, ()> {
        wait(&self.0)
    }
    fn write(&self) -> BoxFuture<'static, ()> {
        let (state, first) = (self.0.clone(), wait(&self.0));
        Box::pin(async move {
            // Two steps: the second is queued from within a completion.
            first.await;
            wait(&state).await;
        })
    }
    fn attach_thread(&self, _: &dyn Export) -> Option<Box<dyn LocalQueue>> {
        let fd = eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC).unwrap();
        Some(Box::new(Queue { state: self.0.clone(), done: Vec::new(), fd }))
    }
}

#[test]
fn a_batch_is_submitted_with_one_flush() {
    let state = Arc::new(State::default());
    let running =
        Running::one(Behind::new(Arc::new(MemExport::new(1 << 20)), Queued(state.clone())));
    let mut client = running.client();
    let none = CommandFlags::empty();
    for at in 0..16 {
        assert_eq!(client.write(at * 4096, &[at as u8; 4096]), 0);
    }
    let before = state.flushes.load(Ordering::Relaxed);
    assert_eq!(before, 32, "two steps for each write, none lost and none twice");
    let mut bytes = Vec::new();
    let first = client.put(&mut bytes, Command::Read, none, 0, 4096);
    for at in 1..16 {
        client.put(&mut bytes, Command::Read, none, at * 4096, 4096);
    }
    client.send(&bytes);
    for _ in 0..16 {
        let reply = client.reply(|_| 0);
        assert_eq!(reply.data, [(reply.cookie - first) as u8; 4096]);
    }
    // The requests arrive in one piece, so they are parsed in one turn.
    assert_eq!(state.flushes.load(Ordering::Relaxed) - before, 1);
    assert_eq!(running.stats().late, 32);
}

#[test]
fn a_server_without_listeners_does_not_run() {
    let server =
        Server::new(ServerConfig::default(), vec![("x".into(), Arc::new(MemExport::new(1)))]);
    assert!(server.unwrap().run().is_err());
}

/// A loop went to sleep after each request of a client that sends one at a time, and waking it took
/// longer than serving it. It looks around for a moment now, while that pays off.
#[test]
fn one_request_at_a_time_finds_the_loop_awake() {
    let alone = std::thread::available_parallelism().is_ok_and(|n| n.get() == 1);
    let config = ServerConfig { poll: ServerConfig::POLL_MAX, ..Default::default() };
    let running = Running::with(config, vec![("disk", Arc::new(MemExport::new(1 << 20)))]);
    let mut client = running.client();
    crate::common::eventually("a look found work", || {
        (0..100).for_each(|_| assert_eq!(client.read(0, 512).error, 0));
        running.stats().poll_hits > 0 || alone
    });
    // Off: nobody looks, whatever paid off before.
    running.server.set_poll(std::time::Duration::ZERO);
    assert_eq!(client.read(0, 512).error, 0);
    let before = running.stats();
    for _ in 0..100 {
        assert_eq!(client.read(0, 512).error, 0);
    }
    let after = running.stats();
    let looks = |s: &forebay_nbd::Stats| s.poll_hits + s.poll_misses;
    assert_eq!(looks(&after), looks(&before));
    assert!(after.sleeps > before.sleeps);
}
