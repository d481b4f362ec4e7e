//! One event-loop thread: epoll over its sockets, its eventfd, and the I/O queues of its exports.
//!
//! ```text
//! turn:  wait -> receive + parse + serve hits -> run woken tasks -> flush and reap queues
//!          ^         -> run woken tasks -> settle: send all replies, unblock, close
//!          `---- without sleeping if a task is woken, else poll for a moment, then sleep
//! ```
//!
//! Invariants:
//! 1. Only `epoll_wait` waits, and only when there is nothing to do.
//! 2. A connection is read only if its next request may start (`Conn::wants_input`).
//! 3. A connection whose state changed is in `core.dirty` until it is settled in the same turn.
//! 4. Each readable connection gets one receive per turn, so that a busy one cannot starve others.

mod clients;
mod poll;
mod send;
mod wait;
mod wire;

use crate::config::{DropReason, pool_memory, receive_memory};
use crate::conn::Conn;
use crate::exec::{Executor, Key, Outcome, Ticket};
use crate::listen::Listener;
use crate::pool::Pool;
use crate::receive_buffer::ReceiveBuffer;
use crate::serve::Core;
use crate::shared::{LoopHandle, Shared};
use crate::stats::Verdict;
use forebay_base::sync::atomic::Ordering;
use forebay_base::task::LocalQueue;
use forebay_base::{Error, Result};
use poll::Poller;
use rustix::event::epoll::{self, Event, EventData, EventFlags};
use rustix::fd::OwnedFd;
use rustix::io::Errno;
use send::send_replies;
use std::sync::Arc;
use std::time::{Duration, Instant};

const EVENTS_MAX: usize = 256;
const ACCEPTS_MAX: usize = 64;
const TICK: Duration = Duration::from_millis(50);

/// Upper half of epoll tokens that denote no connection.
const SPECIAL: u32 = u32::MAX;
const WAKE: u32 = 0;
const QUEUE: u32 = 1;
const LISTENER: u32 = 1 << 16;

#[derive(Default)]
struct Slot {
    /// Number of uses of the slot: an event or task of an earlier use does not match.
    generation: u32,
    conn: Option<Conn>,
}

/// One thread's loop over its connections.
pub(crate) struct EventLoop {
    core: Core,
    me: usize,
    epoll: OwnedFd,
    slots: Vec<Slot>,
    free: Vec<u32>,
    handshakes: usize,
    /// Connections that are blocked because the server's memory is used up.
    waiting: Vec<Key>,
    /// The server's memory in use when `waiting` was last checked, bytes, and the time of that
    /// check.
    waiting_since: (usize, Instant),
    scratch: Box<[u8]>,
    /// Bytes received through TLS and not decrypted yet; empty while no client uses TLS.
    cipher: Vec<u8>,
    queues: Vec<Box<dyn LocalQueue>>,
    listeners: Vec<Listener>,
    accept_paused: bool,
    done: Vec<(Ticket, Outcome)>,
    poller: Poller,
    next_tick: Instant,
    /// Time when the last tick or sleep ended, for uses that need no exact time.
    now: Instant,
    stop_at: Option<Instant>,
    serial: u64,
}

fn failed(e: Errno) -> Error {
    Error::from_io("event loop", e.into())
}

fn token(key: Key) -> EventData {
    EventData::new_u64(u64::from(key.0) | u64::from(key.1) << 32)
}

impl EventLoop {
    /// A loop for the calling thread.
    pub fn new(shared: Arc<Shared>, me: usize, listeners: Vec<Listener>) -> Result<Self> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(failed)?;
        let home = shared.loops[me].home.clone();
        let add = |fd: rustix::fd::BorrowedFd<'_>, what: u32| {
            epoll::add(&epoll, fd, token((what, SPECIAL)), EventFlags::IN).map_err(failed)
        };
        add(home.fd(), WAKE)?;
        let queues: Vec<_> = shared.exports.iter().filter_map(|(_, e)| e.attach_thread()).collect();
        for queue in &queues {
            add(queue.as_fd(), QUEUE)?;
        }
        for (i, listener) in listeners.iter().enumerate() {
            add(listener.fd(), LISTENER + i as u32)?;
        }
        let scratch_len = shared.config.scratch_len();
        let core = Core {
            stats: shared.loops[me].stats.clone(),
            pool: Pool::new(pool_memory(shared.memory.total()) / shared.config.threads),
            exec: Executor::new(home),
            dirty: Vec::new(),
            text: Vec::new(),
            shared,
        };
        Ok(Self {
            core,
            me,
            epoll,
            slots: Vec::new(),
            free: Vec::new(),
            handshakes: 0,
            waiting: Vec::new(),
            waiting_since: (0, Instant::now()),
            scratch: vec![0; scratch_len].into_boxed_slice(),
            cipher: Vec::new(),
            queues,
            listeners,
            accept_paused: false,
            done: Vec::new(),
            poller: Poller::default(),
            next_tick: Instant::now(),
            now: Instant::now(),
            stop_at: None,
            serial: 0,
        })
    }

    fn handle(&self) -> &LoopHandle {
        &self.core.shared.loops[self.me]
    }

    /// Runs until the server is stopped and all work has ended.
    pub fn run(&mut self) -> Result<()> {
        let mut events: Vec<Event> = Vec::with_capacity(EVENTS_MAX);
        let mut busy = true;
        loop {
            self.wait(&mut events, busy)?;
            busy = self.turn(&events);
            if self.tick() {
                return Ok(());
            }
        }
    }

    fn pool_bytes_max(&self) -> usize {
        let shared = &self.core.shared;
        pool_memory(shared.memory.total()) / shared.config.threads
    }

    /// One turn. True: another turn should follow without a sleep.
    fn turn(&mut self, events: &[Event]) -> bool {
        let mut reap = self.core.exec.len() > 0;
        for event in events {
            let (data, flags) = (event.data.u64(), event.flags);
            let key = (data as u32, (data >> 32) as u32);
            match key {
                (what, SPECIAL) if what >= LISTENER => self.accept((what - LISTENER) as usize),
                (what, SPECIAL) => reap |= what == QUEUE,
                _ => self.ready(key, flags),
            }
        }
        self.adopt();
        let mut busy = self.run_tasks();
        if !self.queues.is_empty() {
            let reap = reap || self.core.exec.len() > 0;
            for queue in &mut self.queues {
                queue.flush();
                busy |= reap && queue.reap() > 0;
            }
            busy |= self.run_tasks();
        }
        busy |= self.settle_all();
        let most = self.pool_bytes_max();
        self.core.pool.limit(most);
        let memory = &self.core.shared.memory;
        self.core.stats.pool_bytes.store(self.core.pool.bytes() as u64, Ordering::Relaxed);
        let buffered = memory.buffered.load(Ordering::Relaxed);
        if buffered > receive_memory(memory.total()) && self.handshakes > 0 {
            self.evict_largest_receive_buffer();
        }
        // Submits the requests of the last steps before the loop sleeps.
        self.queues.iter_mut().for_each(|queue| queue.flush());
        // Work that was done may have freed memory, for which other clients wait.
        busy && !self.waiting.is_empty()
    }

    fn conn(&mut self, key: Key) -> Option<&mut Conn> {
        let slot = self.slots.get_mut(key.0 as usize)?;
        if slot.generation == key.1 { slot.conn.as_mut() } else { None }
    }

    /// Adds a connection that is already counted.
    fn insert(&mut self, mut conn: Conn) -> Key {
        let at = self.free.pop().unwrap_or_else(|| {
            self.slots.push(Slot::default());
            self.slots.len() as u32 - 1
        });
        let slot = &mut self.slots[at as usize];
        // `SPECIAL` is reserved for tokens that denote no connection.
        slot.generation = (slot.generation + 1) % SPECIAL;
        let key = (at, slot.generation);
        conn.book.key = key;
        conn.book.dirty = false;
        conn.interest = EventFlags::IN;
        self.handshakes += usize::from(conn.is_handshaking());
        if let Err(e) = epoll::add(&self.epoll, &conn.stream, token(key), EventFlags::IN) {
            log::warn!("nbd: {}: epoll: {e}", conn.label);
            conn.doom = Some(Some(DropReason::ConnectionLost));
        }
        if self.stop_at.is_some() {
            conn.reading = false;
            conn.receive_buffer = ReceiveBuffer::default();
            self.core.count_receive_buffer(&mut conn);
        }
        self.core.mark(&mut conn.book);
        slot.conn = Some(conn);
        key
    }

    /// Adds the connections that other loops have handed over.
    fn adopt(&mut self) {
        if self.me == 0 {
            return;
        }
        let moved = std::mem::take(&mut *self.handle().inbox.lock());
        for mut conn in moved {
            conn.moved_at = self.now;
            let key = self.insert(conn);
            self.resume(key);
        }
    }

    fn take(&mut self, key: Key) -> Option<Conn> {
        let slot = self.slots.get_mut(key.0 as usize)?;
        if slot.generation != key.1 {
            return None;
        }
        let conn = slot.conn.take()?;
        self.free.push(key.0);
        if conn.is_handshaking() {
            self.handshakes -= 1;
        }
        Some(conn)
    }

    fn remove(&mut self, key: Key, reason: Option<DropReason>) {
        let Some(mut conn) = self.take(key) else { return };
        conn.stream.close();
        if conn.life.leave() {
            self.handle().conns.fetch_sub(1, Ordering::Relaxed);
        }
        self.core.shared.lives.lock().retain(|life| !Arc::ptr_eq(life, &conn.life));
        self.core.close_book(&mut conn, reason);
        // Closing the socket removes it from epoll: no other descriptor refers to it.
    }

    /// Handles the events of a socket.
    fn ready(&mut self, key: Key, flags: EventFlags) {
        let Some(conn) = self.conn(key) else { return };
        if flags.contains(EventFlags::OUT) {
            conn.send_full = None;
        }
        let wants = conn.wants_input();
        if flags.intersects(EventFlags::HUP | EventFlags::ERR) && !wants {
            // The client cannot receive replies, and epoll would report the event again and again.
            let clean = !conn.reading && conn.book.inflight == 0;
            conn.doom = Some((!clean).then_some(DropReason::ConnectionLost));
        } else if wants && flags.intersects(EventFlags::IN | EventFlags::HUP | EventFlags::ERR) {
            self.receive(key);
        }
        let Self { core, slots, .. } = self;
        if let Some(conn) = &mut slots[key.0 as usize].conn {
            core.mark(&mut conn.book);
        }
    }

    /// Handles results of parsing: the end of a handshake, or a wait for memory.
    fn after_parse(&mut self, key: Key, was_handshaking: bool) {
        let Some(conn) = &self.slots[key.0 as usize].conn else { return };
        if conn.book.blocked == Some(Verdict::ServerFull) && !self.waiting.contains(&key) {
            self.waiting.push(key);
        }
        if !was_handshaking || conn.is_handshaking() {
            return;
        }
        log::debug!("nbd: {}: transmission begins", conn.label);
        self.handshakes -= 1;
        if !self.hand_over(key) && self.core.shared.loops.len() > 1 {
            self.resume(key);
        }
    }

    /// Moves a connection to the loop with the fewest connections, if that is another one.
    fn hand_over(&mut self, key: Key) -> bool {
        let shared = self.core.shared.clone();
        let count = |at: &usize| shared.loops[*at].conns.load(Ordering::Relaxed);
        // Handshakes count as well, so loop 0 takes fewer connections while many are in progress.
        let Some(target) = (0..shared.loops.len()).min_by_key(count) else { return false };
        if target == self.me || self.stop_at.is_some() {
            return false;
        }
        let Some(conn) = self.take(key) else { return false };
        conn.life.at.store(target, Ordering::Relaxed);
        self.handle().conns.fetch_sub(1, Ordering::Relaxed);
        if let Err(e) = epoll::delete(&self.epoll, &conn.stream) {
            log::warn!("nbd: {}: epoll: {e}", conn.label);
        }
        let target = &shared.loops[target];
        target.conns.fetch_add(1, Ordering::Relaxed);
        target.inbox.lock().push(conn);
        target.home.nudge();
        true
    }

    /// Polls woken tasks and answers those that ended.
    fn run_tasks(&mut self) -> bool {
        let mut done = std::mem::take(&mut self.done);
        let polled = self.core.exec.run(&mut done);
        for (ticket, outcome) in done.drain(..) {
            let Self { core, slots, .. } = self;
            let slot = &mut slots[ticket.key.0 as usize];
            match &mut slot.conn {
                Some(conn) if slot.generation == ticket.key.1 => {
                    core.complete(&mut conn.book, &ticket, outcome);
                }
                _ => core.orphan_done(&ticket, outcome),
            }
        }
        self.done = done;
        polled
    }

    /// Settles every connection whose state changed, and those that wait for memory. True if a
    /// blocked connection continued.
    fn settle_all(&mut self) -> bool {
        let mut resumed = false;
        while let Some(at) = self.core.dirty.pop() {
            resumed |= self.settle(at);
        }
        if self.waiting.is_empty() {
            return resumed;
        }
        // Waiting connections are checked only if memory was freed, or after a tick: checks in vain
        // in each turn would slow down other connections.
        let (used, now) = (self.core.shared.memory.used(), Instant::now());
        if used >= self.waiting_since.0 && now < self.waiting_since.1 + TICK {
            return resumed;
        }
        for key in std::mem::take(&mut self.waiting) {
            if self.conn(key).is_some_and(|c| c.book.blocked == Some(Verdict::ServerFull)) {
                resumed |= self.resume(key);
            }
        }
        while let Some(at) = self.core.dirty.pop() {
            resumed |= self.settle(at);
        }
        self.waiting_since = (self.core.shared.memory.used(), now);
        resumed
    }

    /// Sends pending replies, then closes or unblocks the connection, or updates its events in
    /// epoll. True if a blocked connection continued.
    fn settle(&mut self, at: u32) -> bool {
        let Self { core, slots, .. } = self;
        let slot = &mut slots[at as usize];
        let key = (at, slot.generation);
        let Some(conn) = &mut slot.conn else { return false };
        conn.book.dirty = false;
        let sends = !conn.book.out.is_empty() || conn.stream.wants_send();
        if conn.send_full.is_none() && sends {
            send_replies(core, conn, self.now);
        }
        let config = &core.shared.config;
        conn.look(core.shared.start, self.now, config.stall_timeout, config.rate_min);
        if let Some(reason) = conn.doom {
            self.remove(key, reason);
            return false;
        }
        if conn.is_finished() {
            self.remove(key, None);
            return false;
        }
        if conn.starting_tls && conn.reading {
            if conn.book.out.is_empty() {
                self.begin_tls(key);
            }
        } else if conn.book.blocked.is_some() && conn.reading {
            // The event may have freed memory. A connection that remains blocked has used none and
            // is not marked again, so the loop in `settle_all` ends.
            if self.resume(key) {
                return true;
            }
        }
        self.update_interest(key);
        false
    }

    fn update_interest(&mut self, key: Key) {
        let Self { slots, epoll, .. } = self;
        let Some(conn) = &mut slots[key.0 as usize].conn else { return };
        let mut want = EventFlags::empty();
        want.set(EventFlags::IN, conn.wants_input());
        want.set(EventFlags::OUT, conn.send_full.is_some());
        if want == conn.interest {
            return;
        }
        conn.interest = want;
        if let Err(e) = epoll::modify(&*epoll, &conn.stream, token(key), want) {
            log::warn!("nbd: {}: epoll: {e}", conn.label);
            conn.doom = Some(Some(DropReason::ConnectionLost));
            self.core.mark(&mut conn.book);
        }
    }
}
