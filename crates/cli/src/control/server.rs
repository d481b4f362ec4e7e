//! The server of the control socket: a thread that accepts, and one thread for each connection, at
//! most [`CONNECTIONS`] of them.

use super::paths::{make_folder, own_uid};
use super::proto::{REQUEST_MAX, Refusal, Request, encode_reply};
use crate::failure::{Failure, Outcome};
use forebay_live::server::accept_until;
use forebay_vfs::FileSystem;
use rustix::fs::Mode;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use serde_json::Value;
use std::collections::HashMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::FileTypeExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::thread::JoinHandle;
use std::time::Duration;

/// Connections served at a time; more are closed at once.
pub const CONNECTIONS: usize = 16;
/// Connections that wait to be accepted.
const BACKLOG: i32 = 128;
/// A connection that is silent for longer is closed.
pub const REQUEST_TIMEOUT: Duration = Duration::from_secs(60);

/// Answers requests; called from several threads at a time.
pub trait ControlTarget: Send + Sync + 'static {
    /// Answers one request.
    fn answer(&self, request: Request) -> Result<Value, Refusal>;

    /// The open volume whose image has this device and inode number, and its description for the
    /// client.
    fn volume(&self, identity: (u64, u64)) -> Option<(Arc<dyn FileSystem>, Value)> {
        let _none = identity;
        None
    }
}

/// A running control socket; dropping it closes and removes it.
pub struct ControlServer {
    path: PathBuf,
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

struct Shared {
    target: Arc<dyn ControlTarget>,
    active: AtomicUsize,
    stop: AtomicBool,
    sessions: Mutex<Sessions>,
    ended: Condvar,
}

/// Sessions on volumes: the stream of each, by number.
#[derive(Default)]
struct Sessions {
    /// No new sessions are accepted.
    over: bool,
    next: u64,
    streams: HashMap<u64, UnixStream>,
    /// Requests that are being answered.
    answering: usize,
}

impl Shared {
    fn sessions(&self) -> MutexGuard<'_, Sessions> {
        self.sessions.lock().unwrap_or_else(|p| p.into_inner())
    }

    /// Answers a request; the process does not end before its answer has been written.
    fn reply(
        &self,
        request: Result<Request, Refusal>,
        mut stream: &UnixStream,
    ) -> std::io::Result<()> {
        let _answering = Answering::of(self);
        let reply = request.and_then(|request| self.target.answer(request));
        writeln!(stream, "{}", encode_reply(&reply))
    }

    /// Serves a session on this connection, unless the process is ending.
    fn session(&self, fs: &dyn FileSystem, about: Value, reader: impl Read, stream: &UnixStream) {
        let number = {
            let mut sessions = self.sessions();
            let Some(end) = stream.try_clone().ok().filter(|_| !sessions.over) else { return };
            sessions.next += 1;
            let number = sessions.next;
            sessions.streams.insert(number, end);
            number
        };
        let served = stream
            .set_read_timeout(None)
            .and_then(|()| writeln!(&*stream, "{}", encode_reply(&Ok(about))))
            .and_then(|()| crate::remote::server::serve(fs, reader, stream));
        if let Err(e) = served {
            log::debug!("a session on a volume: {e}");
        }
        self.sessions().streams.remove(&number);
        self.ended.notify_all();
    }
}

/// Counts a request that is being answered, until this is dropped, also by a panic.
struct Answering<'a>(&'a Shared);

impl<'a> Answering<'a> {
    fn of(shared: &'a Shared) -> Self {
        shared.sessions().answering += 1;
        Self(shared)
    }
}

impl Drop for Answering<'_> {
    fn drop(&mut self) {
        self.0.sessions().answering -= 1;
        self.0.ended.notify_all();
    }
}

impl ControlServer {
    /// Listens on `path`, or on a new socket in the user's own folder.
    pub fn start(path: Option<&Path>, target: Arc<dyn ControlTarget>) -> Outcome<Self> {
        let path = match path {
            Some(path) => path.to_path_buf(),
            None => make_folder()?.join(format!("{}.sock", std::process::id())),
        };
        let listener = listen(&path)?;
        let shared = Arc::new(Shared {
            target,
            active: AtomicUsize::new(0),
            stop: AtomicBool::new(false),
            sessions: Mutex::default(),
            ended: Condvar::new(),
        });
        let own = shared.clone();
        let thread = std::thread::Builder::new()
            .name("forebay-control".into())
            .spawn(move || accept(&listener, &own))
            .map_err(|e| Failure::io("start the control thread", &e))?;
        Ok(Self { path, shared, thread: Some(thread) })
    }

    /// Ends all sessions on volumes, and accepts no new ones. When this returns, no operation of a
    /// session is in progress (remote.R4).
    pub fn end_sessions(&self) {
        let mut sessions = self.shared.sessions();
        sessions.over = true;
        for stream in sessions.streams.values() {
            // An error says that the stream is closed already.
            let _shut = stream.shutdown(std::net::Shutdown::Both);
        }
        while !sessions.streams.is_empty() {
            sessions = self.shared.ended.wait(sessions).unwrap_or_else(|p| p.into_inner());
        }
    }

    /// Where it listens.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl ControlServer {
    /// Stops accepting and removes the socket. A second call does nothing: the path may be another
    /// process's by then. Requests in progress are still answered; the drop waits for them.
    pub fn close(&mut self) {
        let Some(thread) = self.thread.take() else { return };
        self.shared.stop.store(true, Ordering::Release);
        // Wakes the accept loop, which then sees `stop`.
        let woken = UnixStream::connect(&self.path).is_ok();
        let _ = std::fs::remove_file(&self.path);
        if woken {
            let _ = thread.join();
        }
    }
}

impl Drop for ControlServer {
    fn drop(&mut self) {
        self.close();
        // Each request in progress is answered first, also the one that has asked the process to
        // end.
        let mut sessions = self.shared.sessions();
        while sessions.answering > 0 {
            sessions = self.shared.ended.wait(sessions).unwrap_or_else(|p| p.into_inner());
        }
    }
}

/// Binds `path` with mode 0600. The socket has that mode before it is bound, so its file has the
/// mode from the start. No chmod(2) by path is needed, which another user of the folder could lead
/// to another file.
pub fn listen(path: &Path) -> Outcome<UnixListener> {
    let what = format!("control socket {}", path.display());
    clear_stale(path, &what)?;
    let bound = || -> rustix::io::Result<UnixListener> {
        let (family, kind) = (AddressFamily::UNIX, SocketType::STREAM);
        let socket = rustix::net::socket_with(family, kind, SocketFlags::CLOEXEC, None)?;
        rustix::fs::fchmod(&socket, Mode::RUSR | Mode::WUSR)?;
        rustix::net::bind(&socket, &SocketAddrUnix::new(path)?)?;
        rustix::net::listen(&socket, BACKLOG)?;
        Ok(socket.into())
    };
    bound().map_err(|e| Failure::io(&what, &e.into()))
}

/// Removes a socket on which no process listens, because its process was killed. Anything else at
/// the path is kept, and is an error.
pub fn clear_stale(path: &Path, what: &str) -> Outcome {
    let Ok(meta) = std::fs::symlink_metadata(path) else { return Ok(()) };
    if !meta.file_type().is_socket() {
        return Err(Failure::new(format!("{what}: exists and is no socket")));
    }
    match UnixStream::connect(path) {
        Err(e) if e.kind() == std::io::ErrorKind::ConnectionRefused => {
            std::fs::remove_file(path).map_err(|e| Failure::io(what, &e))
        }
        Ok(_) => Err(Failure::new(format!("{what}: another process answers there"))),
        Err(e) => Err(Failure::io(what, &e)),
    }
}

fn accept(listener: &UnixListener, shared: &Arc<Shared>) {
    let next = || listener.accept().map(|(stream, _)| stream);
    accept_until("control socket", &shared.stop, next, |stream| {
        if shared.active.fetch_add(1, Ordering::AcqRel) >= CONNECTIONS {
            shared.active.fetch_sub(1, Ordering::AcqRel);
            log::warn!("control socket: more than {CONNECTIONS} connections, one closed");
            return;
        }
        let own = shared.clone();
        let run = move || {
            if let Err(e) = serve(&own, &stream) {
                log::debug!("control socket: {e}");
            }
            own.active.fetch_sub(1, Ordering::AcqRel);
        };
        if std::thread::Builder::new().name("forebay-ctl".into()).spawn(run).is_err() {
            shared.active.fetch_sub(1, Ordering::AcqRel);
        }
    });
}

fn serve(shared: &Shared, mut stream: &UnixStream) -> std::io::Result<()> {
    stream.set_read_timeout(Some(REQUEST_TIMEOUT))?;
    stream.set_write_timeout(Some(Duration::from_secs(10)))?;
    let peer = forebay_base::peer::peer(stream)?.uid;
    if peer != own_uid() && peer != 0 {
        log::warn!("control socket: user {peer} refused");
        let refusal = Err(Refusal::new("denied", "only the owner of the process may ask"));
        return writeln!(stream, "{}", encode_reply(&refusal));
    }
    let mut reader = BufReader::new(stream);
    while !shared.stop.load(Ordering::Acquire) {
        let mut line = Vec::new();
        let limit = REQUEST_MAX as u64 + 1;
        reader.by_ref().take(limit).read_until(b'\n', &mut line)?;
        if line.is_empty() {
            return Ok(());
        }
        let request = match std::str::from_utf8(&line) {
            _ if line.len() > REQUEST_MAX => Err(Refusal::new("invalid", "request too long")),
            Ok(text) => Request::decode(text.trim_end()).map_err(|e| Refusal::new("invalid", e)),
            Err(_) => Err(Refusal::new("invalid", "request is not UTF-8")),
        };
        if let Ok(Request::Volume(dev, ino)) = &request
            && let Some((fs, about)) = shared.target.volume((*dev, *ino))
        {
            shared.session(&*fs, about, reader, stream);
            return Ok(());
        }
        shared.reply(request, stream)?;
        if line.len() > REQUEST_MAX {
            return Ok(());
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::client::Client;
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    struct Echo;

    impl ControlTarget for Echo {
        fn answer(&self, request: Request) -> Result<Value, Refusal> {
            match request {
                Request::Tune(name, value) => Ok(serde_json::json!([name, value])),
                _ => Err(Refusal::new("not-found", "nothing here")),
            }
        }
    }

    fn place(name: &str) -> PathBuf {
        std::env::temp_dir().join(format!("forebay-ctl-{name}-{}", std::process::id()))
    }

    #[test]
    fn asks_and_answers_on_one_connection() {
        let path = place("echo");
        let server = ControlServer::start(Some(&path), Arc::new(Echo)).unwrap();
        let mode = std::fs::metadata(&path).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        let mut client = Client::open(&path).unwrap();
        let reply = client.ask(&Request::Tune("a".into(), "b".into())).unwrap();
        assert_eq!(reply, serde_json::json!(["a", "b"]));
        assert_eq!(client.ask(&Request::Stat).unwrap_err().status, 3);
        drop(server);
        assert!(!path.exists());
    }

    #[test]
    fn long_line_ends_connection_and_garbage_is_answered() {
        let path = place("long");
        let _server = ControlServer::start(Some(&path), Arc::new(Echo)).unwrap();
        let mut stream = UnixStream::connect(&path).unwrap();
        let mut reader = BufReader::new(stream.try_clone().unwrap());
        let mut reply = String::new();
        stream.write_all(b"\xff\xfe\n").unwrap();
        reader.read_line(&mut reply).unwrap();
        assert!(reply.contains("UTF-8"), "{reply}");
        stream.write_all(&vec![b'x'; REQUEST_MAX + 1]).unwrap();
        reply.clear();
        reader.read_line(&mut reply).unwrap();
        assert!(reply.contains("too long"), "{reply}");
        reply.clear();
        assert_eq!(reader.read_line(&mut reply).unwrap_or(0), 0);
    }

    #[test]
    fn stale_socket_is_replaced_live_one_is_not() {
        let path = place("stale");
        drop(UnixListener::bind(&path).unwrap());
        let server = ControlServer::start(Some(&path), Arc::new(Echo)).unwrap();
        assert!(ControlServer::start(Some(&path), Arc::new(Echo)).is_err());
        drop(server);
        std::fs::write(&path, "precious").unwrap();
        assert!(listen(&path).is_err());
        assert_eq!(std::fs::read(&path).unwrap(), b"precious");
        std::fs::remove_file(&path).unwrap();
    }
}
