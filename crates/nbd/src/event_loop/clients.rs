//! Accepts and drops clients: accept, eviction, deadlines, stop.
//!
//! Invariants:
//! 1. There are never more connections than `clients_max`. An unfinished handshake is dropped
//!    before a new client is refused, so idle handshakes cannot keep a new client out.
//! 2. A client is dropped for one reason, which is logged and counted.

use super::{ACCEPTS_MAX, EventLoop, LISTENER, SPECIAL, TICK, token};
use crate::config::{DropReason, RECEIVE_MIN};
use crate::conn::{Book, Conn, Life, Pace, Phase};
use crate::exec::Key;
use crate::handshake::{Handshake, HandshakeLimits};
use crate::receive_buffer::ReceiveBuffer;
use crate::stats::bump;
use crate::stream::Stream;
use forebay_base::sync::atomic::Ordering;
use rustix::event::epoll::{self, EventFlags};
use rustix::fd::OwnedFd;
use rustix::io::Errno;
use std::time::{Duration, Instant};

impl EventLoop {
    pub(super) fn accept(&mut self, index: usize) {
        for _ in 0..ACCEPTS_MAX {
            let Some(listener) = self.listeners.get(index) else { return };
            let kind = listener.kind();
            match listener.accept(self.core.shared.config.keepalive) {
                Ok(fd) => self.welcome(fd, kind),
                Err(Errno::AGAIN) => return,
                Err(Errno::MFILE | Errno::NFILE | Errno::NOMEM | Errno::NOBUFS) => {
                    // No descriptor or memory is left: drops the oldest handshake, or pauses
                    // accepting.
                    if !self.evict_oldest() {
                        log::warn!("nbd: cannot accept for want of file descriptors or memory");
                        self.pause_accept(true);
                        return;
                    }
                }
                Err(_) => {} // the client gave up before it was accepted
            }
        }
    }

    fn pause_accept(&mut self, pause: bool) {
        self.accept_paused = pause;
        let flags = if pause { EventFlags::empty() } else { EventFlags::IN };
        for (i, listener) in self.listeners.iter().enumerate() {
            let data = token((LISTENER + i as u32, SPECIAL));
            if let Err(e) = epoll::modify(&self.epoll, listener.fd(), data, flags) {
                log::warn!("nbd: epoll: {e}");
            }
        }
    }

    fn welcome(&mut self, fd: OwnedFd, kind: &str) {
        bump(&self.core.stats.accepted, 1);
        self.serial += 1;
        if self.core.shared.clients() >= self.core.shared.config.clients_max && !self.make_room() {
            let reason = DropReason::TooManyClients;
            bump(&self.core.stats.dropped[reason as usize], 1);
            log::warn!("nbd: {kind} client {}: refused: {}", self.serial, reason.as_str());
            return;
        }
        let config = &self.core.shared.config;
        let limits = HandshakeLimits {
            options_max: config.options_max,
            option_len_max: config.option_len_max,
            request_max: config.request_max,
            tls: config.tls_mode(),
        };
        let mut greeting = Vec::new();
        let handshake = Handshake::new(limits, &mut greeting);
        let mut conn = Conn {
            stream: Stream::plain(fd),
            starting_tls: false,
            label: format!("{kind} client {}", self.serial),
            phase: Phase::Handshake(handshake),
            receive_buffer: ReceiveBuffer::default(),
            buffered_counted: 0,
            book: Book::new(),
            since: Instant::now(),
            reading: true,
            doom: None,
            send_full: None,
            life: Life::new(self.me),
            moved_at: Instant::now(),
            sending: Pace::default(),
            taking: Pace::default(),
            interest: EventFlags::IN,
        };
        self.core.shared.lives.lock().push(conn.life.clone());
        self.core.put_bytes(&mut conn.book, &greeting);
        self.handle().conns.fetch_add(1, Ordering::Relaxed);
        self.insert(conn);
    }

    /// Makes space for a new client: drops the oldest handshake, or a client that is idle for long.
    fn make_room(&mut self) -> bool {
        if self.evict_oldest() {
            return true;
        }
        let least = self.core.shared.config.idle_timeout;
        match self.core.shared.evict_idle(Instant::now(), least) {
            Some(at) => {
                if at == self.me {
                    self.close_evicted();
                }
                true
            }
            None => false,
        }
    }

    /// Closes the connections marked for eviction.
    fn close_evicted(&mut self) {
        if self.handle().evict.swap(false, Ordering::SeqCst) {
            self.remove_where(DropReason::Idle, |c| c.life.gone.load(Ordering::SeqCst));
        }
    }

    /// Drops the connection whose handshake has lasted longest.
    pub(super) fn evict_oldest(&mut self) -> bool {
        let handshaking = self.slots.iter().filter_map(|s| s.conn.as_ref());
        let oldest = handshaking.filter(|c| c.is_handshaking()).min_by_key(|c| c.since);
        let Some(key) = oldest.map(|c| c.book.key) else { return false };
        self.remove(key, Some(DropReason::Evicted));
        true
    }

    /// Called when the memory of received bytes is used up: drops the handshake that holds most of
    /// it. Clients whose requests wait for memory receive no more bytes. A client that completes
    /// its options holds almost none, so it is not dropped for the bytes of others.
    pub(super) fn evict_largest_receive_buffer(&mut self) {
        let handshaking = self.slots.iter().filter_map(|s| s.conn.as_ref());
        let largest =
            handshaking.filter(|c| c.is_handshaking()).max_by_key(|c| c.receive_buffer.memory());
        if let Some(conn) = largest.filter(|c| c.receive_buffer.memory() > RECEIVE_MIN) {
            self.remove(conn.book.key, Some(DropReason::Evicted));
        }
    }

    /// Handles deadlines and the stop. True: the loop has ended.
    pub(super) fn tick(&mut self) -> bool {
        let now = Instant::now();
        self.now = now;
        if self.handle().evict.load(Ordering::Relaxed) {
            self.close_evicted();
        }
        if self.stop_at.is_none() && self.core.shared.stop.load(Ordering::SeqCst) {
            self.begin_stop(now);
        }
        if let Some(at) = self.stop_at {
            let idle = self.free.len() == self.slots.len() && self.core.exec.len() == 0;
            if !idle && now >= at {
                self.remove_where(DropReason::ServerStopped, |_| true);
            }
            if idle || now >= at {
                return true;
            }
        }
        if now < self.next_tick {
            return false;
        }
        self.next_tick = now + TICK;
        if self.accept_paused {
            self.pause_accept(false);
        }
        let config = self.core.shared.config.clone();
        let full_for = |c: &Conn, limit: Duration| {
            c.send_full.is_some_and(|since| now.saturating_duration_since(since) >= limit)
        };
        if self.handshakes > 0 {
            self.remove_where(DropReason::HandshakeTimeout, |c| {
                c.is_handshaking() && now - c.since >= config.handshake_timeout
            });
        }
        if self.core.shared.memory.waiting.load(Ordering::Relaxed) > 0 {
            self.cut_off_slow();
        }
        self.remove_where(DropReason::ConnectionLost, |c| {
            !c.reading && full_for(c, config.drain_timeout)
        });
        false
    }

    /// Called when memory is short: drops clients with outstanding work that make no progress.
    /// First those above their fair share; if there are none, the one that holds most.
    fn cut_off_slow(&mut self) {
        let Self { core, slots, now, .. } = self;
        let config = &core.shared.config;
        let (share, mut most) = (core.shared.memory.fair_share(), None);
        for conn in slots.iter_mut().filter_map(|s| s.conn.as_mut()) {
            conn.look(core.shared.start, *now, config.stall_timeout, config.rate_min);
            if (conn.sending.slow || conn.taking.slow) && conn.book.charged > 0 {
                most = most.max(Some(conn.book.charged));
            }
        }
        let Some(most) = most else { return };
        self.remove_where(DropReason::Stalled, |c| {
            (c.sending.slow || c.taking.slow) && c.book.charged >= most.min(share + 1)
        });
    }

    fn remove_where(&mut self, reason: DropReason, pick: impl Fn(&Conn) -> bool) {
        let conns = self.slots.iter().filter_map(|s| s.conn.as_ref());
        let keys: Vec<Key> = conns.filter(|c| pick(c)).map(|c| c.book.key).collect();
        keys.into_iter().for_each(|key| self.remove(key, Some(reason)));
    }

    /// No new clients, no new requests.
    fn begin_stop(&mut self, now: Instant) {
        self.stop_at = Some(now + self.core.shared.config.drain_timeout);
        self.listeners.clear();
        let Self { core, slots, .. } = self;
        for conn in slots.iter_mut().filter_map(|s| s.conn.as_mut()) {
            conn.reading = false;
            conn.receive_buffer = ReceiveBuffer::default();
            core.count_receive_buffer(conn);
            core.set_blocked(&mut conn.book, None);
            if conn.is_handshaking() {
                conn.doom = Some(None);
            }
            core.mark(&mut conn.book);
        }
        self.settle_all();
    }
}
