//! Engines: how requests reach the kernel. One engine per cache, shared by its devices. An engine
//! knows descriptors, memory and completion callbacks (`request`), but no files.
//!
//! Invariants: E1 an engine completes each accepted request exactly once, also if the engine is
//! dropped meanwhile. E2 completions run without any lock of the engine held, so they may submit
//! again. E3 an engine makes no blocking call on the submitting thread.

mod calls;
mod queue;
pub(crate) mod request;
mod ring;
mod space;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod tests_broken;
mod threads;
mod uring;

use calls::{Call, Calls};
use forebay_base::task::LocalQueue;
use forebay_base::{Error, ErrorKind, Result};
use request::Boxed;
use space::Space;
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use threads::Pool;
use uring::Uring;

/// Which engine to use.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Aio {
    /// io_uring where the system allows it, else threads.
    #[default]
    Auto,
    /// io_uring or an error.
    IoUring,
    /// A pool of threads.
    Threads,
}

impl fmt::Display for Aio {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Auto => "auto",
            Self::IoUring => "io_uring",
            Self::Threads => "threads",
        })
    }
}

impl FromStr for Aio {
    type Err = Error;
    fn from_str(text: &str) -> Result<Self> {
        match text {
            "auto" => Ok(Self::Auto),
            "io_uring" => Ok(Self::IoUring),
            "threads" => Ok(Self::Threads),
            _ => {
                let text = format!("`{text}`: auto, io_uring or threads");
                Err(Error::new(ErrorKind::InvalidInput, "parse aio", text))
            }
        }
    }
}

/// A shared engine. Cloning it only counts a reference.
#[derive(Clone)]
pub struct Engine(Arc<Inner>);

struct Inner {
    ring: Option<Uring>,
    pool: Arc<Pool>,
    calls: Calls,
    space: Arc<Space>,
    reason: String,
}

impl Engine {
    /// Starts an engine. `Auto` falls back to threads without io_uring; [`Engine::kind`] reports
    /// which engine it is and why. `IoUring` fails with `Unsupported` and the reason. Each kind
    /// fails if no thread can be started.
    pub fn new(aio: Aio) -> Result<Self> {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let space = Arc::new(Space::default());
        let pool = Pool::new(space.clone()).map_err(|e| Error::from_io("start I/O threads", e))?;
        let pool = Arc::new(pool);
        let start = || Uring::new(NEXT.fetch_add(1, Ordering::Relaxed), pool.clone());
        let (ring, reason) = match aio {
            Aio::Threads => (None, "asked for".to_string()),
            Aio::Auto => match start() {
                Ok(ring) => (Some(ring), "auto: the system has it".to_string()),
                Err(e) => (None, format!("auto: {}", uring::explain(&e))),
            },
            Aio::IoUring => match start() {
                Ok(ring) => (Some(ring), "asked for".to_string()),
                Err(e) => {
                    let text = uring::explain(&e);
                    return Err(Error::new(ErrorKind::Unsupported, "start io_uring", text));
                }
            },
        };
        Ok(Self(Arc::new(Inner { ring, pool, calls: Calls::default(), space, reason })))
    }

    /// The engine's name, `io_uring` or `threads`, and why it is that one.
    pub fn kind(&self) -> (&'static str, String) {
        let name = if self.0.ring.is_some() { "io_uring" } else { "threads" };
        (name, self.0.reason.clone())
    }

    /// Attaches a queue to the calling thread, if the engine supports that and the thread has none
    /// yet. While it lives, this thread's requests to devices of the engine complete in its `reap`.
    /// Exception: write-back or read-ahead that was held back, see
    /// [`BlockDevice::submit`](crate::BlockDevice::submit). So the thread must not block for such a
    /// request, only on `execute`, `read_into` and `write_from` of a device. Call `flush` before
    /// each wait. Dropping the queue waits for the requests in flight. The kernel may interrupt
    /// system calls of such a thread (EINTR): repeat them.
    pub fn attach_thread(&self) -> Option<Box<dyn LocalQueue>> {
        self.0.ring.as_ref()?.attach(false)
    }

    /// As [`Engine::attach_thread`], for a thread that computes for long between two calls of the
    /// queue: each submission passes its requests to the kernel.
    pub fn attach_submitter(&self) -> Option<Box<dyn LocalQueue>> {
        self.0.ring.as_ref()?.attach(true)
    }

    /// Whether so many requests wait that a caller should wait in [`Engine::wait_for_capacity`]
    /// before it submits more.
    pub fn is_crowded(&self) -> bool {
        self.0.space.is_crowded()
    }

    /// Waits until the engine is not crowded. A request that is submitted anyway waits in its
    /// queue; none is refused.
    pub async fn wait_for_capacity(&self) {
        self.0.space.free().await;
    }

    /// Queues a system call that is no I/O: one thread makes such calls, one at a time.
    pub(crate) fn call(&self, call: Call) {
        self.0.calls.call(call);
    }

    /// Starts requests, in order within their class. `aio` is the engine that the device asks for.
    pub(crate) fn submit(&self, requests: impl IntoIterator<Item = Boxed>, aio: Aio) {
        let accepted = requests.into_iter().inspect(|_| self.0.space.enter());
        match &self.0.ring {
            Some(ring) if aio != Aio::Threads => ring.submit(accepted),
            _ => accepted.for_each(|request| self.0.pool.submit(request)),
        }
    }
}

impl fmt::Debug for Engine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Engine({})", self.kind().0)
    }
}
