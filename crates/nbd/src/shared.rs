//! What the threads of the server share: exports, connections, counters, and the inboxes by which
//! connections move from thread to thread.
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

/// What others know of a loop.
pub(crate) struct LoopHandle {
    pub home: Arc<Home>,
    pub stats: Arc<LoopStats>,
    /// Connections that move here.
    pub inbox: Mutex<Vec<Conn>>,
    /// Connections that are here or on their way.
    pub conns: AtomicUsize,
    /// Some of its connections are to be closed ([`Life::gone`]).
    pub evict: AtomicBool,
}

/// What all loops share.
pub(crate) struct Shared {
    pub config: ServerConfig,
    pub exports: Vec<(String, Arc<dyn Export>)>,
    pub memory: Memory,
    pub stop: AtomicBool,
    pub loops: Vec<LoopHandle>,
    /// Longest polling time before a sleep, nanoseconds; 0 is off.
    pub poll_nanos: AtomicU64,
    /// Loops that poll now, and how many may.
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

    /// Tells the connection that has been idle for longest to go, if it was for `least`. Its place
    /// is free at once; says which loop is to close it.
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
