//! The asking side: finds the running process and talks to it.

use super::paths::{own_uid, sockets, uid_of};
use super::proto::{REPLY_MAX, Refusal, Request, decode_reply};
use crate::args::Which;
use crate::failure::{Failure, Outcome, status};
use crate::mounts;
use crate::remote::client::RemoteFs;
use serde_json::Value;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// A connection to a running process.
#[derive(Debug)]
pub struct Client {
    reader: BufReader<UnixStream>,
    path: PathBuf,
}

impl Client {
    /// Connects to the socket at `path`.
    pub fn open(path: &Path) -> Outcome<Self> {
        let stream = UnixStream::connect(path).map_err(|e| connect_failure(path, &e))?;
        let timeout = Some(Duration::from_secs(30));
        stream
            .set_read_timeout(timeout)
            .and_then(|()| stream.set_write_timeout(timeout))
            .map_err(|e| Failure::io("control socket", &e))?;
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
            1 => Ok(running.swap_remove(0).1),
            0 => Err(Failure::not_found("no running process of this user was found")
                .hint("name its control socket with `--control PATH`")),
            _ => {
                let pids: Vec<String> = running.iter().map(|(pid, _)| pid.to_string()).collect();
                let text = format!("several processes are running: {}", pids.join(", "));
                Err(Failure::usage(text).hint("choose one with `--pid PID`"))
            }
        }
    }

    /// Every running process that answers: those of this user, and those that serve a mount.
    pub fn all() -> Vec<(u32, Self)> {
        let mut paths: Vec<PathBuf> =
            sockets(own_uid()).into_iter().map(|(_, path)| path).collect();
        paths.extend(mounts::all().iter().filter_map(|mount| mount.control().ok()));
        Self::of(paths)
    }

    /// Those that answer at these sockets.
    fn of(mut paths: Vec<PathBuf>) -> Vec<(u32, Self)> {
        paths.sort();
        paths.dedup();
        let open = |path: &PathBuf| {
            let client = Self::open(path).ok()?;
            Some((client.pid().ok()?, client))
        };
        let mut running: Vec<_> = paths.iter().filter_map(open).collect();
        // A socket may be reached by two names.
        running.sort_by_key(|(pid, _)| *pid);
        running.dedup_by_key(|(pid, _)| *pid);
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

    /// A session on the volume whose image has this device and inode number, if the process has it open.
    /// Also what the process says of it.
    pub fn volume(mut self, identity: (u64, u64)) -> Outcome<(RemoteFs, Value)> {
        let about = self.ask(&Request::Volume(identity.0, identity.1))?;
        let stream = self.reader.into_inner();
        // A call may take as long as it takes: a sync of much, say.
        stream.set_read_timeout(None).map_err(|e| Failure::io("control socket", &e))?;
        Ok((RemoteFs::new(stream), about))
    }

    /// The process at the other end.
    pub fn pid(&self) -> Outcome<u32> {
        let peer = rustix::net::sockopt::socket_peercred(self.reader.get_ref());
        let peer = peer.map_err(|e| Failure::io("control socket", &e.into()))?;
        Ok(peer.pid.as_raw_nonzero().get().unsigned_abs())
    }

    /// Sends one request and waits for its reply.
    pub fn ask(&mut self, request: &Request) -> Outcome<Value> {
        let failure = |e: &std::io::Error| Failure::io("control socket", e);
        match writeln!(self.reader.get_mut(), "{}", request.encode()) {
            // Closed before it read the request: the reply, already on its way, says why.
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
