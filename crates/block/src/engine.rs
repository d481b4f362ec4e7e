//! Engines: how requests get to the kernel. One per cache, shared by its devices.
//!
//! Invariants: E1 what an engine accepted is completed exactly once, also if the engine is
//! dropped meanwhile. E2 the completion runs without any lock of the engine held, so it may
//! submit again.

pub(crate) mod threads;

use crate::file::Job;
use forebay_base::task::LocalQueue;
use forebay_base::{Error, ErrorKind, Result};
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;
use threads::Pool;

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

/// A shared engine. Clone is a reference count.
#[derive(Clone)]
pub struct Engine(Arc<Inner>);

struct Inner {
    pool: Pool,
    reason: String,
}

impl Engine {
    /// Starts an engine. `Auto` never fails for lack of io_uring; [`Engine::kind`] tells what it
    /// became and why.
    pub fn new(aio: Aio) -> Result<Self> {
        let reason = match aio {
            Aio::Threads => "asked for".to_string(),
            Aio::Auto => "io_uring is not built in".to_string(),
            Aio::IoUring => {
                let text = "io_uring is not built in";
                return Err(Error::new(ErrorKind::Unsupported, "start engine", text));
            }
        };
        Ok(Self(Arc::new(Inner { pool: Pool::default(), reason })))
    }

    /// The engine's name, `io_uring` or `threads`, and why it is that one.
    pub fn kind(&self) -> (&'static str, String) {
        ("threads", self.0.reason.clone())
    }

    /// A queue of the calling thread, if the engine has such a thing.
    pub fn attach_thread(&self) -> Option<Box<dyn LocalQueue>> {
        None
    }

    /// Starts a job. `aio` is the device's wish.
    pub(crate) fn submit(&self, job: Job, _aio: Aio) {
        self.0.pool.submit(job);
    }

    /// Starts several jobs.
    pub(crate) fn submit_batch(&self, jobs: Vec<Job>, aio: Aio) {
        for job in jobs {
            self.submit(job, aio);
        }
    }
}

impl fmt::Debug for Engine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Engine({})", self.kind().0)
    }
}
