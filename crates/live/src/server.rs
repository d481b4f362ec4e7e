//! The connections of the server: a thread for each of a few connections, with one request each.
//!
//! Invariants: T1 the server listens on loopback only, unless the options allow other addresses. T2
//! it serves at most [`CONNECTIONS`] connections and closes further ones at once. T3 a connection
//! ends within the sum of [`HEAD_TIME`], [`ANSWER_TIME`] and `LINGER_TIME`, however slow the client
//! is. T4 memory is bounded: [`http::HEAD_MAX`] and one answer for each connection. T5 when
//! [`Server::stop`] returns, no thread of the server is left, and nothing holds the collector's
//! source.
//!
//! Lock: the connections', a leaf.

use crate::PAGE;
use crate::collector::{Collector, PAUSE};
use crate::http::{self, Parsed, Request, Resource};
use forebay_base::{Error, ErrorKind, Result};
use std::collections::HashMap;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Connections served at a time.
pub const CONNECTIONS: usize = 16;
/// Time from the connection to the last byte of the request's head.
pub const HEAD_TIME: Duration = Duration::from_secs(5);
/// Time from the end of the head until the client has taken the answer.
pub const ANSWER_TIME: Duration = Duration::from_secs(10);
/// Bytes of a request's content that the server reads, so that its answer arrives.
const LINGER_BYTES: usize = 64 << 10;
const LINGER_TIME: Duration = Duration::from_millis(500);
/// Stack of a connection's thread, bytes.
const STACK: usize = 256 << 10;

/// Memory of a connection, bytes: its stack, request and answer.
const CONNECTION_BYTES: u64 = (STACK + LINGER_BYTES) as u64;

/// Where to listen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Options {
    address: SocketAddr,
}

impl Options {
    /// Parses `ADDRESS:PORT`; port 0 is any. An address that is not loopback is `InvalidInput`,
    /// unless `insecure` is set: every client that can reach it sees names of files and how much
    /// they are used.
    pub fn parse(text: &str, insecure: bool) -> Result<Self> {
        let bad = |text: String| Error::new(ErrorKind::InvalidInput, "http", text);
        let address: SocketAddr =
            text.parse().map_err(|_| bad(format!("`{text}`: ADDRESS:PORT, as 127.0.0.1:8080")))?;
        if !address.ip().is_loopback() && !insecure {
            let ip = address.ip();
            return Err(bad(format!("{ip}: all clients that can reach this address can watch")));
        }
        Ok(Self { address })
    }
}

/// A running server; dropping it stops it.
pub struct Server {
    address: SocketAddr,
    listener: Arc<TcpListener>,
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
    /// Dropped to end the ticks.
    ticking: Option<Sender<()>>,
}

struct Shared {
    collector: Arc<Collector>,
    address: SocketAddr,
    stop: AtomicBool,
    /// Open connections, by number. Stopping the server closes them.
    streams: Mutex<HashMap<u64, TcpStream>>,
    ended: Condvar,
    next: AtomicU64,
    random: RandomState,
}

impl Shared {
    fn streams(&self) -> MutexGuard<'_, HashMap<u64, TcpStream>> {
        self.streams.lock().unwrap_or_else(|p| p.into_inner())
    }
}

/// A bound address. The server does not serve it yet, so clients that connect wait.
#[derive(Debug)]
pub struct Bound {
    listener: Arc<TcpListener>,
    address: SocketAddr,
}

impl Bound {
    /// Binds the address.
    pub fn new(options: &Options) -> Result<Self> {
        let failed = |e| Error::from_io("http", e).with_path(options.address.to_string());
        let listener = Arc::new(TcpListener::bind(options.address).map_err(failed)?);
        let address = listener.local_addr().map_err(failed)?;
        Ok(Self { listener, address })
    }

    /// Starts to serve. From now on the collector takes a sample each second.
    pub fn serve(self, collector: &Arc<Collector>) -> Result<Server> {
        let Self { listener, address } = self;
        let failed = |e| Error::from_io("http", e).with_path(address.to_string());
        let shared = Arc::new(Shared {
            collector: collector.clone(),
            address,
            stop: AtomicBool::new(false),
            streams: Mutex::default(),
            ended: Condvar::new(),
            next: AtomicU64::new(0),
            random: RandomState::new(),
        });
        let (ticking, over) = channel();
        let (own, ticked, at) = (shared.clone(), shared.clone(), listener.clone());
        let accept = spawn("forebay-http", move || accept(&at, &own)).map_err(failed)?;
        let threads = vec![accept];
        let mut this = Server { address, listener, shared, threads, ticking: Some(ticking) };
        this.threads.push(spawn("forebay-live", move || tick(&ticked, &over)).map_err(failed)?);
        Ok(this)
    }
}

impl Server {
    /// Binds the address and starts to serve.
    pub fn start(collector: &Arc<Collector>, options: &Options) -> Result<Self> {
        Bound::new(options)?.serve(collector)
    }

    /// The address on which it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Its memory: (name, bytes now, bound in bytes). A thread for each connection, with its stack
    /// and an answer.
    pub fn memory_rows(&self) -> impl Fn() -> Vec<(String, u64, u64)> + Send + Sync + 'static {
        let shared = Arc::downgrade(&self.shared);
        move || {
            let Some(shared) = shared.upgrade() else { return Vec::new() };
            let now = shared.streams().len().min(CONNECTIONS) as u64;
            let what = "threads of the page, in addition to --cache-size".to_string();
            vec![(what, now * CONNECTION_BYTES, CONNECTIONS as u64 * CONNECTION_BYTES)]
        }
    }

    /// Stops the server (server.T5).
    pub fn stop(mut self) {
        self.end();
    }

    fn end(&mut self) {
        if self.shared.stop.swap(true, Ordering::AcqRel) {
            return;
        }
        drop(self.ticking.take());
        // Wakes the accepting thread, which gets no connection any more.
        if let Err(e) = rustix::net::shutdown(&self.listener, rustix::net::Shutdown::Both) {
            log::debug!("http: shutdown: {e}");
        }
        for thread in self.threads.drain(..) {
            // A panic of the thread was reported when it happened.
            let _ended = thread.join();
        }
        let mut streams = self.shared.streams();
        for stream in streams.values() {
            // An error says that the connection is closed already.
            let _shut = stream.shutdown(Shutdown::Both);
        }
        while !streams.is_empty() {
            streams = self.shared.ended.wait(streams).unwrap_or_else(|p| p.into_inner());
        }
        drop(streams);
        self.shared.collector.close();
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.end();
    }
}

fn spawn(name: &str, work: impl FnOnce() + Send + 'static) -> std::io::Result<JoinHandle<()>> {
    std::thread::Builder::new().name(name.into()).stack_size(STACK).spawn(work)
}

fn tick(shared: &Shared, over: &Receiver<()>) {
    // A little more than [`PAUSE`], so that each tick adds a point.
    let every = PAUSE + Duration::from_millis(100);
    while over.recv_timeout(every) == Err(std::sync::mpsc::RecvTimeoutError::Timeout) {
        shared.collector.tick();
    }
}

/// Accepts one connection after the other. Ends when `accept` returns, well or not, with `stop`
/// set.
pub fn accept_until<S>(
    what: &str,
    stop: &AtomicBool,
    mut accept: impl FnMut() -> std::io::Result<S>,
    mut take: impl FnMut(S),
) {
    loop {
        let stream = accept();
        if stop.load(Ordering::Acquire) {
            return;
        }
        match stream {
            Ok(stream) => take(stream),
            Err(e) => {
                log::warn!("{what}: accept: {e}");
                // Most likely out of descriptors: waits before the next attempt.
                std::thread::sleep(Duration::from_millis(100));
            }
        }
    }
}

fn accept(listener: &TcpListener, shared: &Arc<Shared>) {
    let next = || listener.accept().map(|(stream, _)| stream);
    accept_until("http", &shared.stop, next, |stream| {
        let number = shared.next.fetch_add(1, Ordering::Relaxed);
        {
            let mut streams = shared.streams();
            let Some(end) = stream.try_clone().ok().filter(|_| streams.len() < CONNECTIONS) else {
                return;
            };
            streams.insert(number, end);
        }
        let guard = Guard { shared: shared.clone(), number };
        let run = move || {
            if let Err(e) = serve(&guard.shared, &stream) {
                log::debug!("http: {e}");
            }
            drop(stream);
            drop(guard);
        };
        if let Err(e) = spawn("forebay-http-1", run) {
            log::warn!("http: a thread: {e}");
        }
    });
}

/// A connection that counts towards the limit.
struct Guard {
    shared: Arc<Shared>,
    number: u64,
}

impl Drop for Guard {
    fn drop(&mut self) {
        self.shared.streams().remove(&self.number);
        self.shared.ended.notify_all();
    }
}

/// One request and its answer.
fn serve(shared: &Shared, mut stream: &TcpStream) -> std::io::Result<()> {
    let deadline = Instant::now() + HEAD_TIME;
    let mut bytes = Vec::with_capacity(1024);
    let parsed = loop {
        let mut part = [0; 1024];
        let Some(left) = left(deadline) else {
            break Parsed::Refused(408, "the request took too long");
        };
        stream.set_read_timeout(Some(left))?;
        let room = (http::HEAD_MAX - bytes.len()).min(part.len());
        match stream.read(&mut part[..room]) {
            Ok(0) => return Ok(()),
            Ok(count) => bytes.extend_from_slice(&part[..count]),
            Err(e)
                if matches!(
                    e.kind(),
                    std::io::ErrorKind::WouldBlock | std::io::ErrorKind::TimedOut
                ) =>
            {
                continue;
            }
            Err(e) if e.kind() == std::io::ErrorKind::Interrupted => continue,
            Err(e) => return Err(e),
        }
        match http::parse(&bytes, shared.address) {
            Parsed::Partial => {}
            parsed => break parsed,
        }
    };
    drop(bytes);
    let deadline = Instant::now() + ANSWER_TIME;
    let answer = answer(shared, &parsed);
    send(stream, answer.head.as_bytes(), deadline)?;
    if !answer.head_only {
        send(stream, answer.content.as_bytes(), deadline)?;
    }
    linger(stream)
}

/// Time until `deadline`; `None` if too little is left to wait.
fn left(deadline: Instant) -> Option<Duration> {
    let left = deadline.saturating_duration_since(Instant::now());
    (left > Duration::from_millis(1)).then_some(left)
}

fn send(mut stream: &TcpStream, mut bytes: &[u8], deadline: Instant) -> std::io::Result<()> {
    while !bytes.is_empty() {
        let left = left(deadline).ok_or(std::io::ErrorKind::TimedOut)?;
        stream.set_write_timeout(Some(left))?;
        match stream.write(bytes) {
            Ok(0) => return Err(std::io::ErrorKind::WriteZero.into()),
            Ok(count) => bytes = &bytes[count..],
            Err(e) if e.kind() == std::io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
    Ok(())
}

/// Reads the rest of the request. The kernel resets a connection that is closed with unread data,
/// and the client loses the answer.
fn linger(mut stream: &TcpStream) -> std::io::Result<()> {
    stream.shutdown(Shutdown::Write)?;
    let deadline = Instant::now() + LINGER_TIME;
    let (mut read, mut part) = (0, [0; 4096]);
    while let Some(left) = left(deadline).filter(|_| read < LINGER_BYTES) {
        stream.set_read_timeout(Some(left))?;
        match stream.read(&mut part) {
            Ok(0) | Err(_) => break,
            Ok(count) => read += count,
        }
    }
    Ok(())
}

/// The content of an answer.
struct Answer {
    head: String,
    head_only: bool,
    content: Content,
}

/// A text for this client, or one that all clients share.
enum Content {
    Own(String),
    Shared(Arc<str>),
}

impl Content {
    fn as_bytes(&self) -> &[u8] {
        match self {
            Self::Own(text) => text.as_bytes(),
            Self::Shared(text) => text.as_bytes(),
        }
    }
}

const TEXT: &str = "text/plain; charset=utf-8";
const JSON: &str = "application/json";

fn answer(shared: &Shared, parsed: &Parsed) -> Answer {
    let nonce = nonce(shared);
    let (request, refused) = match parsed {
        Parsed::Request(request) => (Some(request), None),
        Parsed::Refused(status, why) => (None, Some((*status, *why))),
        Parsed::Partial => (None, Some((400, "half a request"))),
    };
    let (status, kind, content) = match (request, refused) {
        (Some(request), _) => found(shared, request, &nonce),
        (None, Some((status, why))) => (status, TEXT, Content::Own(format!("{why}\n"))),
        (None, None) => (400, TEXT, Content::Own(String::new())),
    };
    let head = http::head(status, kind, content.as_bytes().len(), &nonce);
    Answer { head, head_only: request.is_some_and(|request| request.head_only), content }
}

fn found(shared: &Shared, request: &Request, nonce: &str) -> (u16, &'static str, Content) {
    let ending = || (503, TEXT, Content::Own("it is ending\n".into()));
    match request.resource {
        Resource::Page => {
            let page = PAGE.replace("NONCE", nonce);
            (200, "text/html; charset=utf-8", Content::Own(page))
        }
        Resource::View => {
            let view = shared.collector.view();
            view.map_or_else(ending, |text| (200, JSON, Content::Shared(text)))
        }
        Resource::History => (200, JSON, Content::Own(shared.collector.history())),
        Resource::Metrics => match shared.collector.metrics() {
            Some(text) => (200, "text/plain; version=0.0.4; charset=utf-8", Content::Own(text)),
            None => ending(),
        },
        Resource::Health => match shared.collector.health() {
            Ok(()) => (200, TEXT, Content::Own("ok\n".into())),
            Err(why) => (503, TEXT, Content::Own(format!("{why}\n"))),
        },
    }
}

/// A nonce: the author of a file's name cannot guess it before the page is requested.
fn nonce(shared: &Shared) -> String {
    let part = |salt: u64| {
        let mut hasher = shared.random.build_hasher();
        hasher.write_u64(shared.next.fetch_add(1, Ordering::Relaxed));
        hasher.write_u64(salt);
        hasher.finish()
    };
    format!("{:016x}{:016x}", part(1), part(2))
}
