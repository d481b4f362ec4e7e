//! The NBD server as `export` uses it: on threads of its own, ended by [`Running::stop`].

use super::args::ExportArgs;
use super::listen::{Wanted, tls_mode};
use super::run::Event;
use super::spec::{Place, Socket};
use super::target::Front;
use crate::failure::{Failure, Outcome};
use forebay::RowSource;
use forebay_base::ErrorKind;
use forebay_live::Number;
use forebay_nbd::{Server, ServerConfig, TlsIdentity, TlsMode};
use forebay_vfs::Export;
use std::sync::Arc;
use std::sync::mpsc::Sender;
use std::thread::JoinHandle;
use std::time::Duration;

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
pub fn listen(wanted: Wanted, exports: Vec<Named>, config: ServerConfig) -> Outcome<Listening> {
    // `Busy` concerns the socket here, not an image.
    let failed = |e: forebay_base::Error| match e.kind() {
        ErrorKind::Busy => Failure::new(e.to_string()),
        _ => Failure::from(e),
    };
    let tls = config.tls_mode() == TlsMode::Require;
    let server = Server::new(config, exports).map_err(failed)?;
    let socket = match wanted {
        Wanted::Unix(path) => {
            server.listen_unix(&path).map_err(failed)?;
            Socket::Unix(path)
        }
        Wanted::Tcp(address) => {
            let failed = |e| Failure::new(format!("{address}: {e}"));
            Socket::Tcp(server.listen_tcp(address).map_err(failed)?)
        }
    };
    let place = Place { socket, tls };
    Ok(Listening { server: Arc::new(server), place })
}

impl Listening {
    /// Serves on new threads. The end of the server is sent as an event.
    pub fn serve(self, events: Sender<Event>) -> Outcome<Running> {
        let server = self.server.clone();
        let run = move || {
            let result = server.run();
            // Fails if the receiver is gone, because the stop was requested.
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

    /// The server's parts of the memory budget. The result does not keep the server alive, whose
    /// exports keep the cache alive.
    pub fn rows(&self) -> RowSource {
        let server = Arc::downgrade(&self.server);
        Arc::new(move || {
            let rows = server.upgrade().map_or_else(Vec::new, |server| server.memory_rows());
            rows.into_iter().map(|(what, now, bound)| (what.to_string(), now, bound)).collect()
        })
    }
}

impl Running {
    /// Stops the server: it accepts no new clients, and answers requests in flight first.
    pub fn stop(self) -> Outcome {
        self.server.stop();
        match self.thread.join() {
            Ok(result) => result.map_err(Failure::from),
            Err(_) => Err(Failure::new("the NBD server ended by a bug; the cache is written out")),
        }
    }
}

/// The server's settings: what the command line says, the rest by default.
pub fn config(args: &ExportArgs, memory: u64) -> Outcome<ServerConfig> {
    let cpus = std::thread::available_parallelism().map_or(1, usize::from);
    let mut config = ServerConfig {
        threads: args.threads.map_or(cpus.min(4), usize::from),
        total_memory: clamped(memory),
        ..ServerConfig::default()
    };
    if let Some(clients) = args.clients {
        config.clients_max = clients.into();
    }
    if let Some(seconds) = args.idle_timeout {
        config.idle_timeout = Duration::from_secs(seconds.into());
    }
    if let Some(micros) = args.poll_us {
        config.poll = Duration::from_micros(micros.into());
    }
    let mode = tls_mode(args)?;
    if let Some(folder) = args.tls_certificates.as_ref().filter(|_| mode != TlsMode::Off) {
        config.tls = Some((TlsIdentity::load(folder, args.tls_verify_peer)?, mode));
    }
    Ok(config.normalized())
}

fn clamped(bytes: u64) -> usize {
    usize::try_from(bytes).unwrap_or(usize::MAX)
}

/// What the control socket shows of a server.
pub struct Numbers(Arc<Server>);

impl Front for Numbers {
    fn numbers(&self) -> Vec<Number> {
        let stats = self.0.stats();
        let (now, so_far) = (Number::gauge, Number::counter);
        let cut_off = stats.dropped.iter().map(|(_, n)| n).sum();
        vec![
            now("connections", "Connections, handshakes included.", stats.connections as u64),
            so_far("accepted", "Connections that were accepted.", stats.accepted),
            so_far("reads", "Requests to read.", stats.requests[0]),
            so_far("writes", "Requests to write.", stats.requests[1]),
            so_far("flushes", "Requests to flush.", stats.requests[3]),
            so_far("trims", "Requests to trim.", stats.requests[4]),
            so_far("read_bytes", "Bytes sent in answers to reads.", stats.bytes_read),
            so_far("write_bytes", "Bytes received with writes.", stats.bytes_written),
            so_far("errors", "Requests answered with an error.", stats.errors),
            so_far(
                "late_requests",
                "Requests that were not answered in the turn that received them.",
                stats.late,
            ),
            so_far("loop_turns", "Turns of the event loops.", stats.turns),
            so_far("loop_sleeps", "Turns that began with a sleep.", stats.sleeps),
            so_far("poll_hits", "Polls that found work.", stats.poll_hits),
            so_far("poll_misses", "Polls that found no work.", stats.poll_misses),
            so_far("poll_nanos", "CPU time of polls, seconds.", stats.poll_nanos),
            so_far("receive_calls", "System calls that receive.", stats.receives),
            so_far("send_calls", "System calls that send.", stats.sends),
            so_far("clients_cut_off", "Clients that the server disconnected.", cut_off),
            now(
                "memory_peak_bytes",
                "Highest memory of requests so far, bytes.",
                stats.memory_peak as u64,
            ),
        ]
    }

    fn poll_us(&self) -> u64 {
        self.0.poll().as_micros() as u64
    }

    fn set_poll_us(&self, micros: u64) {
        self.0.set_poll(Duration::from_micros(micros));
    }

    fn requests_memory(&self) -> u64 {
        self.0.total_memory() as u64
    }

    fn set_requests_memory(&self, bytes: u64) {
        self.0.set_total_memory(clamped(bytes));
    }

    fn memory_bound(&self) -> u64 {
        self.0.memory_bound() as u64
    }

    fn memory_bound_with(&self, requests: u64) -> u64 {
        self.0.memory_bound_with(clamped(requests)) as u64
    }
}
