//! The server: its exports, listeners and threads.
//!
//! `Server::new`, `listen_*`, then `run` on one thread until `stop` on another. Thread 0 accepts
//! connections and carries out all handshakes. A connection moves to the thread with the fewest
//! connections when its transmission begins, and stays there.
//!
//! Locks: `Server::listeners`, a leaf; and those of `shared`.

use crate::config::{DropReason, RECEIVE_MIN, ServerConfig, pool_memory, receive_memory};
use crate::event_loop::EventLoop;
use crate::exec::Home;
use crate::listen::Listener;
use crate::shared::{LoopHandle, Shared};
use crate::stats::{Memory, Stats};
use forebay_base::sync::Mutex;
use forebay_base::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use forebay_base::{Error, ErrorKind, Result};
use forebay_vfs::Export;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

fn nanos(poll: Duration) -> u64 {
    poll.min(ServerConfig::POLL_MAX).as_nanos() as u64
}

/// An NBD server.
pub struct Server {
    shared: Arc<Shared>,
    listeners: Mutex<Vec<Listener>>,
}

impl Server {
    /// A server of named exports. The first is the default, also under the empty name.
    /// `InvalidInput`: no export, a duplicate name, or a name longer than 4096 bytes.
    pub fn new(config: ServerConfig, exports: Vec<(String, Arc<dyn Export>)>) -> Result<Self> {
        let bad = |why: String| Err(Error::new(ErrorKind::InvalidInput, "serve NBD", why));
        if exports.is_empty() {
            return bad("no export".into());
        }
        for (i, (name, _)) in exports.iter().enumerate() {
            if name.len() > crate::proto::STRING_MAX {
                return bad(format!("export name of {} bytes", name.len()));
            }
            if exports[..i].iter().any(|(other, _)| other == name) {
                return bad(format!("two exports named `{name}`"));
            }
        }
        let config = config.normalized();
        let mut loops = Vec::new();
        for _ in 0..config.threads {
            let home = Home::new().map_err(|e| Error::from_io("serve NBD", e.into()))?;
            loops.push(LoopHandle {
                home: Arc::new(home),
                stats: Arc::default(),
                inbox: Mutex::default(),
                conns: AtomicUsize::new(0),
                evict: AtomicBool::new(false),
            });
        }
        let memory = Memory::new(&config);
        let stop = AtomicBool::new(false);
        let cpus = std::thread::available_parallelism().map_or(1, usize::from);
        let shared = Arc::new(Shared {
            poll_nanos: AtomicU64::new(nanos(config.poll)),
            pollers: AtomicUsize::new(0),
            pollers_max: cpus / 2,
            config,
            exports,
            memory,
            stop,
            loops,
            lives: Mutex::default(),
            start: Instant::now(),
        });
        Ok(Self { shared, listeners: Mutex::default() })
    }

    /// Listens on a Unix socket at `path`, mode 0600. A stale file is replaced; `Busy` if another
    /// server listens there or the file is not a socket. The server removes the file when it stops.
    pub fn listen_unix(&self, path: impl AsRef<Path>) -> Result<()> {
        let listener = Listener::unix(path.as_ref())?;
        self.listeners.lock().push(listener);
        Ok(())
    }

    /// Listens on a TCP address; returns it with the selected port if `address` has port 0. The
    /// protocol has no authentication: the caller decides whether to listen on another address than
    /// loopback.
    pub fn listen_tcp(&self, address: SocketAddr) -> Result<SocketAddr> {
        let (listener, local) = Listener::tcp(address)?;
        self.listeners.lock().push(listener);
        Ok(local)
    }

    /// Serves until [`Server::stop`], on this thread and `config.threads - 1` more. Errors of
    /// clients never end it; an error here means that epoll failed, or that a thread could not be
    /// created.
    pub fn run(&self) -> Result<()> {
        let mut listeners = std::mem::take(&mut *self.listeners.lock());
        if listeners.is_empty() {
            return Err(Error::new(ErrorKind::InvalidInput, "serve NBD", "nothing to listen on"));
        }
        let go = |index: usize, listeners: Vec<Listener>| {
            let result =
                EventLoop::new(self.shared.clone(), index, listeners).and_then(|mut l| l.run());
            // Without one of its loops the server would leave connections unserved.
            self.stop();
            result
        };
        let mine = std::mem::take(&mut listeners);
        std::thread::scope(|scope| {
            let mut handles = Vec::new();
            for index in 1..self.shared.config.threads {
                let named = std::thread::Builder::new().name(format!("forebay-nbd-{index}"));
                match named.spawn_scoped(scope, move || go(index, Vec::new())) {
                    Ok(handle) => handles.push(handle),
                    Err(e) => {
                        self.stop();
                        return Err(Error::from_io("serve NBD", e));
                    }
                }
            }
            let mut result = go(0, mine);
            for handle in handles {
                let other = handle.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
                result = result.and(other);
            }
            // A connection may have been handed to a loop that was about to end.
            for one in &self.shared.loops {
                one.inbox.lock().clear();
                one.conns.store(0, Ordering::Relaxed);
            }
            self.shared.lives.lock().clear();
            result
        })
    }

    /// Ends [`Server::run`]: no new clients, no new requests. Requests in flight are completed and
    /// answered within `drain_timeout`. Any thread may call it, repeatedly.
    pub fn stop(&self) {
        self.shared.stop.store(true, Ordering::SeqCst);
        self.shared.loops.iter().for_each(|l| l.home.nudge());
    }

    /// Sets the longest time that a thread polls before it sleeps, initially `config.poll`. At most
    /// [`ServerConfig::POLL_MAX`].
    pub fn set_poll(&self, poll: Duration) {
        self.shared.poll_nanos.store(nanos(poll), Ordering::Relaxed);
    }

    /// The polling time last set by [`Server::set_poll`].
    pub fn poll(&self) -> Duration {
        Duration::from_nanos(self.shared.poll_nanos.load(Ordering::Relaxed))
    }

    /// The current counters.
    pub fn stats(&self) -> Stats {
        Stats {
            connections: self.shared.clients(),
            memory_used: self.shared.memory.used(),
            memory_peak: self.shared.memory.peak(),
            ..Stats::gather(self.shared.loops.iter().map(|l| &*l.stats))
        }
    }

    /// The uses of memory: label, bytes now, most bytes. The bounds add up to
    /// [`Server::memory_bound`].
    pub fn memory_rows(&self) -> Vec<(&'static str, u64, u64)> {
        let Shared { config, memory, loops, .. } = &*self.shared;
        let kept = loops.iter().map(|l| l.stats.pool_bytes.load(Ordering::Relaxed)).sum();
        let buffered = memory.buffered.load(Ordering::Relaxed) as u64;
        let total = memory.total();
        let buffered_max = receive_memory(total) + config.clients_max * RECEIVE_MIN;
        let scratch = config.scratch_memory() as u64;
        vec![
            ("client requests and replies", memory.used() as u64, total as u64),
            ("client buffers kept for reuse", kept, pool_memory(total) as u64),
            ("received from clients and not parsed", buffered, buffered_max as u64),
            ("buffers to receive into", scratch, scratch),
        ]
    }

    /// Sets the memory of requests and replies over all clients, in place of
    /// [`ServerConfig::total_memory`]. The minimum is 2 MiB, and with TLS four times the memory of
    /// `clients_max` sessions. The limits of other buffers follow. Requests in flight are not
    /// affected. A request longer than half the total, of a size that the server had announced, is
    /// served when the others use less than half, one at a time.
    pub fn set_total_memory(&self, bytes: usize) {
        self.shared.memory.set_total(bytes.max(self.shared.config.total_least()));
        // Wakes the loops, so that they free kept buffers above the new limit.
        self.shared.loops.iter().for_each(|l| l.home.nudge());
    }

    /// The total that was last set, bytes.
    pub fn total_memory(&self) -> usize {
        self.shared.memory.total()
    }

    /// Most memory that the server may use for its clients now, bytes.
    pub fn memory_bound(&self) -> usize {
        self.shared.config.memory_bound_at(self.total_memory())
    }

    /// What [`Server::memory_bound`] would be after [`Server::set_total_memory`] with `bytes`.
    pub fn memory_bound_with(&self, bytes: usize) -> usize {
        let config = &self.shared.config;
        config.memory_bound_at(bytes.max(config.total_least()))
    }

    /// The configuration at start.
    pub fn config(&self) -> &ServerConfig {
        &self.shared.config
    }

    /// The number of clients that were dropped for `reason`.
    pub fn dropped(&self, reason: DropReason) -> u64 {
        self.stats().dropped_for(reason)
    }
}
