//! The client of the control socket: finds the running process and sends it requests.
//!
//! Q1 A process that is asked because it was found, not because the user named it, belongs to a
//! user that the caller trusts, and delays each answer by at most [`ANSWER_TIME`]. (`list` asks
//! those of all users: it only prints their answers.)

use super::paths::{own_uid, sockets, uid_of};
use super::proto::{REPLY_MAX, Refusal, Request, decode_reply};
use super::which::Which;
use crate::failure::{Failure, Outcome, status};
use crate::mounts;
use crate::remote::client::RemoteFs;
use forebay_base::peer::{self, Peer};
use rustix::net::sockopt::{self, Timeout};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use serde_json::Value;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Time for an answer of a process that was found, not named (Q1).
const ANSWER_TIME: Duration = Duration::from_secs(2);
/// Time for an answer of the only process that is asked.
const NAMED_TIME: Duration = Duration::from_secs(30);

/// Whether a user is trusted: this user and root, as whom no other user can run a process.
pub fn own_or_root(uid: u32) -> bool {
    uid == 0 || uid == own_uid()
}

/// A connection to a running process.
#[derive(Debug)]
pub struct Client {
    reader: BufReader<Timed>,
    path: PathBuf,
}

/// The stream of a connection. All reads of one answer share its time.
#[derive(Debug)]
struct Timed {
    stream: UnixStream,
    /// Time for an answer; `None`: no limit.
    limit: Option<Duration>,
    /// End of the time for the present answer.
    until: Option<Instant>,
}

impl Read for Timed {
    fn read(&mut self, buf: &mut [u8]) -> std::io::Result<usize> {
        if let Some(until) = self.until {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(std::io::ErrorKind::TimedOut.into());
            }
            self.stream.set_read_timeout(Some(left))?;
        }
        self.stream.read(buf)
    }
}

impl Client {
    /// Connects to the socket at `path`.
    pub fn open(path: &Path) -> Outcome<Self> {
        Self::open_within(path, NAMED_TIME)
    }

    /// The same. Connect, each write and each answer fail after `time`; connect(2) waits while the
    /// queue of the socket is full.
    fn open_within(path: &Path, time: Duration) -> Outcome<Self> {
        let connected = || -> rustix::io::Result<UnixStream> {
            let (family, kind) = (AddressFamily::UNIX, SocketType::STREAM);
            let socket = rustix::net::socket_with(family, kind, SocketFlags::CLOEXEC, None)?;
            sockopt::set_socket_timeout(&socket, Timeout::Send, Some(time))?;
            rustix::net::connect(&socket, &SocketAddrUnix::new(path)?)?;
            Ok(socket.into())
        };
        let stream = connected().map_err(|e| connect_failure(path, &e.into()))?;
        let timed = Timed { stream, limit: Some(time), until: None };
        Ok(Self { reader: BufReader::new(timed), path: path.to_path_buf() })
    }

    /// The process that `which` names; without a name the only one that runs.
    pub fn find(which: &Which) -> Outcome<Self> {
        if let Some(path) = &which.control {
            return Self::open(path);
        }
        if let Some(pid) = which.pid {
            let none = || Failure::not_found(format!("process {pid} has no control socket"));
            let uid = uid_of(pid).ok_or_else(none)?;
            let found = sockets(uid).into_iter().find(|(p, _)| *p == pid).ok_or_else(none)?;
            return Self::open(&found.1);
        }
        let paths = sockets(own_uid()).into_iter().map(|(_, path)| path).collect();
        let (mut running, silent) = Self::of(paths);
        if let Some(failure) = silent {
            return Err(failure.hint("choose a process with `--pid PID`"));
        }
        match running.len() {
            1 => {
                let mut client = running.swap_remove(0).1;
                client.limit(Some(NAMED_TIME))?;
                Ok(client)
            }
            0 => Err(Failure::not_found("no running process of this user was found")
                .hint("name its control socket with `--control PATH`")),
            _ => {
                let pids: Vec<String> = running.iter().map(|(pid, _)| pid.to_string()).collect();
                let text = format!("several processes are running: {}", pids.join(", "));
                Err(Failure::usage(text).hint("choose one with `--pid PID`"))
            }
        }
    }

    /// Every running process that answers in time: those of this user, and those that serve a
    /// mount, as far as their user is `trusted`. Any user may make a mount of Forebay's type and
    /// answer on a socket that it names (Q1).
    pub fn all(trusted: impl Fn(u32) -> bool) -> Vec<(u32, Self)> {
        let mut paths: Vec<PathBuf> =
            sockets(own_uid()).into_iter().map(|(_, path)| path).collect();
        paths.extend(mounts::controls(ANSWER_TIME));
        Self::trusted(paths, trusted)
    }

    fn trusted(paths: Vec<PathBuf>, trusted: impl Fn(u32) -> bool) -> Vec<(u32, Self)> {
        let (mut all, _silent) = Self::of(paths);
        all.retain(|(_, client)| client.peer().is_ok_and(|peer| trusted(peer.uid)));
        all
    }

    /// Clients of the processes that listen on these sockets, and the failure of one that did not
    /// accept in time. Connects to all at once (Q1).
    fn of(mut paths: Vec<PathBuf>) -> (Vec<(u32, Self)>, Option<Failure>) {
        paths.sort();
        paths.dedup();
        let open = |path: &PathBuf| -> Outcome<(u32, Self)> {
            let client = Self::open_within(path, ANSWER_TIME)?;
            Ok((client.pid()?, client))
        };
        let opened: Vec<Outcome<(u32, Self)>> = std::thread::scope(|scope| {
            let opening: Vec<_> =
                paths.iter().map(|path| scope.spawn(move || open(path))).collect();
            opening.into_iter().filter_map(|thread| thread.join().ok()).collect()
        });
        let (mut running, mut silent) = (Vec::new(), None);
        for found in opened {
            match found {
                Ok(client) => running.push(client),
                Err(failure) if failure.status == status::BUSY => silent = Some(failure),
                Err(failure) => log::debug!("{}", failure.message),
            }
        }
        // A socket may be reached by two names.
        running.sort_by_key(|(pid, _)| *pid);
        running.dedup_by(|(pid, _), (other, _)| pid == other && *pid != 0);
        (running, silent)
    }

    /// The process that serves the mount that `path` is on.
    pub fn of_mount(path: &Path) -> Outcome<Self> {
        Self::open(&mounts::at(path)?.control()?)
    }

    /// Where it listens.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// A session on the volume whose image has this device and inode number, if the process has it
    /// open. Also returns what the process says of the volume.
    pub fn volume(mut self, identity: (u64, u64)) -> Outcome<(RemoteFs, Value)> {
        let about = self.ask(&Request::Volume(identity.0, identity.1))?;
        // No limit: a call may take long, for example a sync of much data.
        self.limit(None)?;
        Ok((RemoteFs::new(self.reader.into_inner().stream), about))
    }

    fn peer(&self) -> Outcome<Peer> {
        peer::peer(&self.reader.get_ref().stream).map_err(|e| Failure::io("control socket", &e))
    }

    /// The pid of the process at the other end; 0 if it is not visible in this pid namespace.
    pub fn pid(&self) -> Outcome<u32> {
        Ok(self.peer()?.pid)
    }

    /// Sets the time for each write and each answer; `None`: no limit.
    fn limit(&mut self, time: Option<Duration>) -> Outcome {
        let timed = self.reader.get_mut();
        (timed.limit, timed.until) = (time, None);
        let set = timed.stream.set_write_timeout(time);
        let set = set.and_then(|()| timed.stream.set_read_timeout(time));
        set.map_err(|e| Failure::io("control socket", &e))
    }

    /// Sends one request and waits for its reply without a limit, for example for a long write-out.
    pub fn ask_for_long(&mut self, request: &Request) -> Outcome<Value> {
        self.limit(None)?;
        self.ask(request)
    }

    /// Sends one request and waits for its reply.
    pub fn ask(&mut self, request: &Request) -> Outcome<Value> {
        self.answer(request)?
    }

    /// The same. The outer result is of the connection, the inner one the answer.
    pub fn answer(&mut self, request: &Request) -> Outcome<Outcome<Value>> {
        let failure = |e: &std::io::Error| Failure::io("control socket", e);
        let timed = self.reader.get_mut();
        timed.until = timed.limit.map(|time| Instant::now() + time);
        match writeln!(timed.stream, "{}", request.encode()) {
            // The process has closed the connection without reading the request. Its reply, already
            // sent, says why.
            Err(e) if e.kind() == std::io::ErrorKind::BrokenPipe => {}
            sent => sent.map_err(|e| failure(&e))?,
        }
        let mut line = String::new();
        let mut limited = self.reader.by_ref().take(REPLY_MAX as u64);
        limited.read_line(&mut line).map_err(|e| failure(&e))?;
        if !line.ends_with('\n') {
            return Err(Failure::new("control socket: the running process closed the connection"));
        }
        Ok(decode_reply(&line).map_err(refused))
    }
}

fn refused(refusal: Refusal) -> Failure {
    let status = match refusal.kind.as_str() {
        "invalid" => status::USAGE,
        "not-found" => status::NOT_FOUND,
        "busy" => status::BUSY,
        _ => status::FAILED,
    };
    Failure { message: refusal.message, hint: None, status }
}

fn connect_failure(path: &Path, e: &std::io::Error) -> Failure {
    let text = format!("control socket {}", path.display());
    match e.kind() {
        std::io::ErrorKind::ConnectionRefused => {
            Failure::not_found(format!("{text}: no process listens there any more"))
        }
        std::io::ErrorKind::PermissionDenied => {
            Failure::io(text, e).hint("only the owner of the process and root may ask")
        }
        std::io::ErrorKind::WouldBlock => {
            let message = format!("{text}: the process did not accept the connection in time");
            Failure { message, hint: None, status: status::BUSY }
        }
        _ => Failure::io(text, e),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixListener;
    use std::process::{Child, Command, Stdio};

    struct Running(Child);

    impl Drop for Running {
        fn drop(&mut self) {
            let _ = self.0.kill();
            let _ = self.0.wait();
        }
    }

    fn listener(name: &str, queue: i32) -> (PathBuf, std::os::fd::OwnedFd) {
        let path = std::env::temp_dir().join(format!("forebay-{name}-{}", std::process::id()));
        let _old = std::fs::remove_file(&path);
        let socket = rustix::net::socket(AddressFamily::UNIX, SocketType::STREAM, None).unwrap();
        rustix::net::bind(&socket, &SocketAddrUnix::new(&path).unwrap()).unwrap();
        rustix::net::listen(&socket, queue).unwrap();
        (path, socket)
    }

    /// Q1. A socket that no process accepts on, with a full queue, held up each command that asks
    /// all mounts: connect(2) waits there without a limit.
    #[test]
    fn socket_with_full_queue_ends_the_connect() {
        let (path, _socket) = listener("full", 0);
        let _fills_it = UnixStream::connect(&path).unwrap();
        let failure = Client::open_within(&path, Duration::from_millis(50)).unwrap_err();
        assert_eq!(failure.status, status::BUSY, "{}", failure.message);
        let (running, silent) = Client::of(vec![path.clone()]);
        assert!(running.is_empty() && silent.is_some(), "it is not taken for one that is gone");
        std::fs::remove_file(&path).unwrap();
    }

    /// Q1: the time is that of the answer, not of each byte.
    #[test]
    fn answer_that_comes_byte_by_byte_ends_in_time() {
        let (path, socket) = listener("slow", 1);
        let mut client = Client::open_within(&path, Duration::from_millis(200)).unwrap();
        let mut slow = UnixListener::from(socket).accept().unwrap().0;
        let answers = std::thread::spawn(move || {
            while slow.write_all(b" ").is_ok() {
                std::thread::sleep(Duration::from_millis(20));
            }
        });
        assert!(client.answer(&Request::Stat).is_err());
        drop(client);
        answers.join().unwrap();
        std::fs::remove_file(&path).unwrap();
    }

    /// The story: any user could make a mount of Forebay's type that named a socket of their own.
    /// Root's `cp` into a volume in use went to the first process that claimed to have the volume
    /// open (Q1).
    #[test]
    fn q1_another_users_process_is_not_asked() {
        if !rustix::process::geteuid().is_root() {
            let allowed = std::env::var("FOREBAY_ALLOW_SKIP").is_ok_and(|v| v == "1");
            assert!(allowed, "only root can be another user");
            return;
        }
        let path = std::env::temp_dir().join(format!("forebay-q1-{}", std::process::id()));
        let code = "import os,socket,sys,time\nuid=int(sys.argv[2])\nos.setgroups([])\n\
                    os.setresuid(uid,uid,uid)\ns=socket.socket(socket.AF_UNIX)\n\
                    s.bind(sys.argv[1])\ns.listen()\nprint('ready',flush=True)\ntime.sleep(1000)";
        let listen = |user: &str| {
            let _old = std::fs::remove_file(&path);
            let mut command = Command::new("python3");
            command.args(["-c", code]).arg(&path).arg(user);
            let mut child = command.stdout(Stdio::piped()).spawn().expect("python3");
            let mut line = String::new();
            BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
            assert_eq!(line, "ready\n");
            Running(child)
        };
        let found = |trust: fn(u32) -> bool| Client::trusted(vec![path.clone()], trust).len();
        let other = listen("65534");
        assert_eq!((found(own_or_root), found(|uid| uid == 65534)), (0, 1));
        drop(other);
        let own = listen("0");
        assert_eq!(found(own_or_root), 1);
        drop(own);
        std::fs::remove_file(&path).unwrap();
    }
}
