//! The NBD server as `export` uses it: on threads of its own, ended by [`Running::stop`].

use super::Event;
use super::listen::Wanted;
use super::spec::Place;
use super::target::Front;
use crate::failure::{Failure, Outcome};
use forebay_base::ErrorKind;
use forebay_nbd::{Server, ServerConfig};
use forebay_vfs::Export;
use std::sync::Arc;
use std::sync::mpsc::Sender;
use std::thread::JoinHandle;

/// A server that listens and does not serve yet.
pub struct Listening {
    server: Arc<Server>,
    /// Where.
    pub place: Place,
}

/// A server that serves.
pub struct Running {
    server: Arc<Server>,
    thread: JoinHandle<forebay_base::Result<()>>,
}

/// A named export.
pub type Named = (String, Arc<dyn Export>);

/// Binds the socket. From then on clients can connect; they wait until [`Listening::serve`].
pub fn listen(
    wanted: Wanted,
    exports: Vec<Named>,
    threads: usize,
    memory: u64,
) -> Outcome<Listening> {
    let total_memory = usize::try_from(memory).unwrap_or(usize::MAX);
    let config = ServerConfig { threads, total_memory, ..ServerConfig::default() };
    // Busy means the socket here, not an image.
    let failed = |e: forebay_base::Error| match e.kind() {
        ErrorKind::Busy => Failure::new(e.to_string()),
        _ => Failure::from(e),
    };
    let server = Server::new(config, exports).map_err(failed)?;
    let place = match wanted {
        Wanted::Unix(path) => {
            server.listen_unix(&path).map_err(failed)?;
            Place::Unix(path)
        }
        Wanted::Tcp(address) => {
            let failed = |e| Failure::new(format!("{address}: {e}"));
            Place::Tcp(server.listen_tcp(address).map_err(failed)?)
        }
    };
    Ok(Listening { server: Arc::new(server), place })
}

impl Listening {
    /// Serves on new threads. Should it end by itself, that is an event.
    pub fn serve(self, events: Sender<Event>) -> Outcome<Running> {
        let server = self.server.clone();
        let run = move || {
            let result = server.run();
            // Nobody listens when the stop was asked for.
            let _ = events.send(Event::ServerEnded);
            result
        };
        let thread = std::thread::Builder::new()
            .name("forebay-nbd".into())
            .spawn(run)
            .map_err(|e| Failure::io("start a thread", &e))?;
        Ok(Running { server: self.server, thread })
    }

    /// The server's numbers.
    pub fn numbers(&self) -> Numbers {
        Numbers(self.server.clone())
    }
}

impl Running {
    /// No new clients; requests in flight are answered first.
    pub fn stop(self) -> Outcome {
        self.server.stop();
        match self.thread.join() {
            Ok(result) => result.map_err(Failure::from),
            Err(_) => Err(Failure::new("the NBD server ended by a bug; the cache is written out")),
        }
    }
}

/// What the control socket shows of a server.
pub struct Numbers(Arc<Server>);

impl Front for Numbers {
    fn counters(&self) -> Vec<(&'static str, u64)> {
        let stats = self.0.stats();
        vec![
            ("connections", stats.connections as u64),
            ("accepted", stats.accepted),
            ("reads", stats.requests[0]),
            ("writes", stats.requests[1]),
            ("flushes", stats.requests[3]),
            ("trims", stats.requests[4]),
            ("read_bytes", stats.bytes_read),
            ("write_bytes", stats.bytes_written),
            ("errors", stats.errors),
            ("late_requests", stats.late),
            ("loop_turns", stats.turns),
            ("loop_sleeps", stats.sleeps),
            ("receive_calls", stats.receives),
            ("send_calls", stats.sends),
            ("clients_cut_off", stats.dropped.iter().map(|(_, n)| n).sum()),
            ("memory_peak_bytes", stats.memory_peak as u64),
        ]
    }

    fn memory(&self) -> (u64, u64) {
        (self.0.stats().memory_used as u64, self.0.total_memory() as u64)
    }

    fn set_memory(&self, bytes: u64) {
        self.0.set_total_memory(usize::try_from(bytes).unwrap_or(usize::MAX));
    }
}
