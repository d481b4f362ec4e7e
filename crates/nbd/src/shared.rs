//! State that the threads of the server share: exports, connections, counters, and the inboxes
//! through which connections move from thread to thread.
//!
//! Locks: `LoopHandle::inbox` and `Shared::lives` are leaves.

use crate::config::ServerConfig;
use crate::conn::{Conn, Life};
use crate::exec::Home;
use crate::handshake::Directory;
use crate::stats::{LoopStats, Memory};
use forebay_base::sync::Mutex;
use forebay_base::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use forebay_vfs::{Export, ExportInfo};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The part of a loop that other threads use.
pub(crate) struct LoopHandle {
    pub home: Arc<Home>,
    pub stats: Arc<LoopStats>,
    /// Connections that are handed to this loop.
    pub inbox: Mutex<Vec<Conn>>,
    /// Number of connections of this loop, with those in its inbox.
    pub conns: AtomicUsize,
    /// Some connections of this loop have to be closed ([`Life::gone`]).
    pub evict: AtomicBool,
}

/// State that all loops share.
pub(crate) struct Shared {
    pub config: ServerConfig,
    pub exports: Vec<(String, Arc<dyn Export>)>,
    pub memory: Memory,
    pub stop: AtomicBool,
    pub loops: Vec<LoopHandle>,
    /// Longest time of polling before a sleep, nanoseconds; 0: off.
    pub poll_nanos: AtomicU64,
    /// Number of loops that poll now, and its maximum.
    pub pollers: AtomicUsize,
    pub pollers_max: usize,
    /// Every connection.
    pub lives: Mutex<Vec<Arc<Life>>>,
    pub start: Instant,
}

impl Shared {
    /// Connections on all loops.
    pub fn clients(&self) -> usize {
        self.loops.iter().map(|l| l.conns.load(Ordering::Relaxed)).sum()
    }

    /// Marks the connection that has been idle for longest to be closed, if it was idle for
    /// `least`. The connection is not counted any more. Returns the loop that has to close it.
    pub fn evict_idle(&self, now: Instant, least: Duration) -> Option<usize> {
        let lives = self.lives.lock();
        let since = |life: &&Arc<Life>| life.idle_since.load(Ordering::Relaxed);
        let idle = lives.iter().filter(|l| since(l) != Life::BUSY);
        let life = idle.filter(|l| !l.gone.load(Ordering::Relaxed)).min_by_key(since)?.clone();
        drop(lives);
        let passed =
            now.saturating_duration_since(self.start + Duration::from_millis(since(&&life)));
        if passed < least || !life.leave() {
            return None;
        }
        let at = life.at.load(Ordering::Relaxed);
        self.loops[at].conns.fetch_sub(1, Ordering::Relaxed);
        self.loops[at].evict.store(true, Ordering::SeqCst);
        self.loops[at].home.nudge();
        Some(at)
    }
}

impl Directory for Shared {
    fn count(&self) -> usize {
        self.exports.len()
    }
    fn name(&self, index: usize) -> &str {
        &self.exports[index].0
    }
    fn info(&self, index: usize) -> ExportInfo {
        self.exports[index].1.info()
    }
}
