//! The process that stays: this program once more, with `--daemon`. Whoever started it waits for its word.

use super::remark;
use crate::failure::{Failure, Outcome, status};
use forebay_fuse::MountKind;
use std::io::{Read, Write};
use std::process::{Command, Stdio};

/// What it says when the mount can be used; behind it, what the user has to know.
const READY: u8 = b'r';

/// Starts it and waits until it serves, or has failed and said why.
pub fn start() -> Outcome<u8> {
    let exe = std::env::current_exe().map_err(|e| Failure::io("find this program", &e))?;
    let mut command = Command::new(exe);
    command.args(super::command_line().into_iter().skip(1)).arg("--daemon");
    command.stdin(Stdio::null()).stdout(Stdio::piped());
    let mut child = command.spawn().map_err(|e| Failure::io("start the daemon", &e))?;
    let mut said = Vec::new();
    if let Some(mut out) = child.stdout.take() {
        out.read_to_end(&mut said).map_err(|e| Failure::io("wait for the daemon", &e))?;
    }
    match said.split_first() {
        Some((&READY, remark)) => {
            if !remark.is_empty() {
                log::warn!("{}", String::from_utf8_lossy(remark));
            }
            Ok(status::OK)
        }
        _ => {
            let ended = child.wait().map_err(|e| Failure::io("wait for the daemon", &e))?;
            // It has said why.
            Ok(ended.code().and_then(|c| u8::try_from(c).ok()).unwrap_or(status::FAILED))
        }
    }
}

/// Says that the mount can be used, and lets go of terminal, session and working directory.
pub fn ready(kind: MountKind) -> Outcome {
    let _ = rustix::process::setsid();
    std::env::set_current_dir("/").map_err(|e| Failure::io("/", &e))?;
    let mut word = vec![READY];
    word.extend_from_slice(remark(kind).unwrap_or_default().as_bytes());
    // Who waited may be gone; the mount is there all the same.
    let _ = std::io::stdout().write_all(&word).and_then(|()| std::io::stdout().flush());
    let null = std::fs::File::options().read(true).write(true).open("/dev/null");
    let null = null.map_err(|e| Failure::io("/dev/null", &e))?;
    let gone = rustix::stdio::dup2_stdout(&null).and_then(|()| rustix::stdio::dup2_stderr(&null));
    gone.map_err(|e| Failure::io("/dev/null", &e.into()))
}
