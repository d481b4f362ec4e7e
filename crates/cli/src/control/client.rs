//! The client of the control socket: finds the running process and sends it requests.
//!
//! Q1 A process that is asked because it was found, not because the user named it, belongs to a
//! user that the caller trusts, and delays each answer by at most [`ANSWER_TIME`].

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
use std::time::Duration;

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
    reader: BufReader<UnixStream>,
    path: PathBuf,
}

impl Client {
    /// Connects to the socket at `path`.
    pub fn open(path: &Path) -> Outcome<Self> {
        Self::open_within(path, NAMED_TIME)
    }

    /// The same. Each call on the socket fails after `time`, the connect of a socket whose queue is
    /// full included.
    fn open_within(path: &Path, time: Duration) -> Outcome<Self> {
        let connected = || -> rustix::io::Result<UnixStream> {
            let (family, kind) = (AddressFamily::UNIX, SocketType::STREAM);
            let socket = rustix::net::socket_with(family, kind, SocketFlags::CLOEXEC, None)?;
            for which in [Timeout::Send, Timeout::Recv] {
                sockopt::set_socket_timeout(&socket, which, Some(time))?;
            }
            rustix::net::connect(&socket, &SocketAddrUnix::new(path)?)?;
            Ok(socket.into())
        };
        let stream = connected().map_err(|e| connect_failure(path, &e.into()))?;
        Ok(Self { reader: BufReader::new(stream), path: path.to_path_buf() })
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
        let mut running = Self::of(sockets(own_uid()).into_iter().map(|(_, path)| path).collect());
        match running.len() {
            1 => {
                let client = running.swap_remove(0).1;
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
        let mut all = Self::of(paths);
        all.retain(|(_, client)| client.peer().is_ok_and(|peer| trusted(peer.uid)));
        all
    }

    /// Clients of the processes that listen on these sockets.
    fn of(mut paths: Vec<PathBuf>) -> Vec<(u32, Self)> {
        paths.sort();
        paths.dedup();
        let open = |path: &PathBuf| {
            let client = Self::open_within(path, ANSWER_TIME).ok()?;
            Some((client.pid().ok()?, client))
        };
        let mut running: Vec<_> = paths.iter().filter_map(open).collect();
        // A socket may be reached by two names.
        running.sort_by_key(|(pid, _)| *pid);
        running.dedup_by(|(pid, _), (other, _)| pid == other && *pid != 0);
        running
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
        Ok((RemoteFs::new(self.reader.into_inner()), about))
    }

    fn peer(&self) -> Outcome<Peer> {
        peer::peer(self.reader.get_ref()).map_err(|e| Failure::io("control socket", &e))
    }

    /// The pid of the process at the other end; 0 if it is not visible in this pid namespace.
    pub fn pid(&self) -> Outcome<u32> {
        Ok(self.peer()?.pid)
    }

    /// Sets how long a read waits for more bytes of an answer; `None`: no limit.
    fn limit(&self, time: Option<Duration>) -> Outcome {
        let set = self.reader.get_ref().set_read_timeout(time);
        set.map_err(|e| Failure::io("control socket", &e))
    }

    /// Sends one request and waits for its reply without a limit, for example for a long write-out.
    pub fn ask_for_long(&mut self, request: &Request) -> Outcome<Value> {
        self.limit(None)?;
        self.ask(request)
    }

    /// Sends one request and waits for its reply.
    pub fn ask(&mut self, request: &Request) -> Outcome<Value> {
        let failure = |e: &std::io::Error| Failure::io("control socket", e);
        match writeln!(self.reader.get_mut(), "{}", request.encode()) {
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
        decode_reply(&line).map_err(refused)
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
        _ => Failure::io(text, e),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Child, Command, Stdio};

    struct Running(Child);

    impl Drop for Running {
        fn drop(&mut self) {
            let _ = self.0.kill();
            let _ = self.0.wait();
        }
    }

    /// Q1. A socket that no process accepts on, with a full queue, held up each command that asks
    /// all mounts: connect(2) waits there without a limit.
    #[test]
    fn socket_with_full_queue_ends_the_connect() {
        let path = std::env::temp_dir().join(format!("forebay-full-{}", std::process::id()));
        let _old = std::fs::remove_file(&path);
        let family = AddressFamily::UNIX;
        let socket = rustix::net::socket(family, SocketType::STREAM, None).unwrap();
        rustix::net::bind(&socket, &SocketAddrUnix::new(&path).unwrap()).unwrap();
        rustix::net::listen(&socket, 0).unwrap();
        let _fills_it = UnixStream::connect(&path).unwrap();
        assert!(Client::open_within(&path, Duration::from_millis(50)).is_err());
        assert!(Client::trusted(vec![path.clone()], |_| true).is_empty());
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
