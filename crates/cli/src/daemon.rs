//! The daemon: this program started once more, with `--daemon`. The process that has started it
//! waits until it reports that it serves, or ends.

use crate::failure::{Failure, Outcome, status};
use crate::helper;
use forebay_live::logger;
use std::ffi::OsString;
use std::io::{Read, Write};
use std::process::{Command, Stdio};

/// First byte of the daemon's report that it serves; a text for the user follows.
const READY: u8 = b'r';

/// Result of starting the daemon.
pub enum Started {
    /// It serves, and reports this text.
    Serves(String),
    /// It has ended with this exit status, and has printed why.
    Failed(u8),
}

/// Starts the daemon and waits until it serves, or has failed.
pub fn start() -> Outcome<Started> {
    let exe = std::env::current_exe().map_err(|e| Failure::io("find this program", &e))?;
    let mut command = Command::new(exe);
    command.args(with_daemon(helper::command_line().into_iter().skip(1)));
    command.stdin(Stdio::null()).stdout(Stdio::piped());
    let mut child = command.spawn().map_err(|e| Failure::io("start the daemon", &e))?;
    let mut said = Vec::new();
    if let Some(mut out) = child.stdout.take() {
        out.read_to_end(&mut said).map_err(|e| Failure::io("wait for the daemon", &e))?;
    }
    match said.split_first() {
        Some((&READY, said)) => Ok(Started::Serves(String::from_utf8_lossy(said).into_owned())),
        _ => {
            let ended = child.wait().map_err(|e| Failure::io("wait for the daemon", &e))?;
            let code = ended.code().and_then(|c| u8::try_from(c).ok());
            Ok(Started::Failed(code.unwrap_or(status::FAILED)))
        }
    }
}

/// Adds `--daemon` to the words, before a `--`, behind which no word is an option.
fn with_daemon(words: impl Iterator<Item = OsString>) -> Vec<OsString> {
    let mut words: Vec<OsString> = words.collect();
    let at = words.iter().position(|word| word == "--").unwrap_or(words.len());
    words.insert(at, "--daemon".into());
    words
}

/// Reports that this process serves, and detaches it from terminal, session and working directory.
pub fn ready(text: &str) -> Outcome {
    let _ = rustix::process::setsid();
    std::env::set_current_dir("/").map_err(|e| Failure::io("/", &e))?;
    let mut word = vec![READY];
    word.extend_from_slice(text.as_bytes());
    // The process that waited may have ended; this one serves nevertheless.
    let _ = std::io::stdout().write_all(&word).and_then(|()| std::io::stdout().flush());
    let null = std::fs::File::options().read(true).write(true).open("/dev/null");
    let null = null.map_err(|e| Failure::io("/dev/null", &e))?;
    logger::go_to_background();
    let gone = rustix::stdio::dup2_stdout(&null).and_then(|()| rustix::stdio::dup2_stderr(&null));
    gone.map_err(|e| Failure::io("/dev/null", &e.into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The story: `forebay mount -o ro -- VOLUME DIR` was a usage error, because `--daemon` came
    /// behind the `--`.
    #[test]
    fn daemon_option_precedes_double_dash() {
        let of = |line: &str| {
            with_daemon(line.split(' ').map(OsString::from)).join(std::ffi::OsStr::new(" "))
        };
        assert_eq!(of("mount -o ro -- v d"), "mount -o ro --daemon -- v d");
        assert_eq!(of("attach v"), "attach v --daemon");
    }
}
