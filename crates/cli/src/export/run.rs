//! How an export ends: by a signal, by its server, or by the command of `--run`.

use super::spec::{Place, Socket};
use crate::failure::{Failure, Outcome};
use rustix::process::{Pid, Signal, kill_process};
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, ExitStatus};
use std::sync::mpsc::Sender;

/// Why the wait is over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Event {
    /// SIGTERM or SIGINT.
    Stop,
    /// The server ended by itself; its result says why.
    ServerEnded,
    /// The command of `--run` has ended with this status.
    ChildEnded(u8),
}

/// A running command. A thread of its own waits for it and reports its end.
pub struct Child {
    pid: Option<Pid>,
}

impl Child {
    /// Starts `command` in a shell with `uri`, `unixsocket`, `port` and `exportname` set.
    pub fn start(command: &str, place: &Place, name: &str, events: Sender<Event>) -> Outcome<Self> {
        let mut shell = Command::new("/bin/sh");
        shell.arg("-c").arg(command);
        shell.env("uri", place.uri(name)).env("exportname", name);
        match &place.socket {
            Socket::Unix(path) => shell.env("unixsocket", path).env("port", ""),
            Socket::Tcp(address) => {
                shell.env("unixsocket", "").env("port", address.port().to_string())
            }
        };
        let mut child = shell.spawn().map_err(|e| Failure::io("run /bin/sh", &e))?;
        let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
        let wait = move || {
            let status = child.wait().map_or(1, |s| exit_status(&s));
            // The receiver is gone if a signal came first.
            let _ = events.send(Event::ChildEnded(status));
        };
        std::thread::Builder::new()
            .name("forebay-run".into())
            .spawn(wait)
            .map_err(|e| Failure::io("start a thread", &e))?;
        Ok(Self { pid })
    }

    /// Asks it to end.
    pub fn terminate(&self) {
        if let Some(pid) = self.pid {
            // The command may have ended by itself meanwhile.
            let _ = kill_process(pid, Signal::TERM);
        }
    }
}

/// The status as a shell reports it: 128 plus the signal's number for a command that was killed.
fn exit_status(status: &ExitStatus) -> u8 {
    let code = status.code().or_else(|| status.signal().map(|s| 128 + s));
    code.and_then(|c| u8::try_from(c).ok()).unwrap_or(1)
}
