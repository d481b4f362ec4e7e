//! The logger behind `log`, for programs: one line for each message on standard error. A process in
//! the background logs to the system's log.
//!
//! Invariant: B1 no message of a process in the background is lost for lack of a standard error.
//!
//! No locks.

use log::{Level, LevelFilter, Log, Metadata, Record};
use std::fmt::Arguments;
use std::io::Write;
use std::os::unix::net::UnixDatagram;
use std::path::PathBuf;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// The socket to which syslog(3) sends; `FOREBAY_SYSLOG` names another one.
const SYSLOG: &str = "/dev/log";
/// The kernel's log, which takes messages of root; used if no process listens on [`SYSLOG`].
const KERNEL_LOG: &str = "/dev/kmsg";
/// How long a message waits for space in that socket.
const PATIENCE: Duration = Duration::from_millis(200);
/// `LOG_DAEMON`.
const FACILITY: u32 = 3 << 3;

struct Lines {
    /// Name of the program, with which each line begins.
    program: &'static str,
}

static LINES: OnceLock<Lines> = OnceLock::new();
static IN_BACKGROUND: AtomicBool = AtomicBool::new(false);

impl Log for Lines {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.level() <= log::max_level()
    }

    fn log(&self, record: &Record<'_>) {
        if self.enabled(record.metadata()) {
            match in_background() {
                true => to_system(self.program, record.level(), record.args()),
                false => {
                    let level = record.level().as_str().to_ascii_lowercase();
                    let mut error = std::io::stderr().lock();
                    // No other place is left for the message.
                    let _said = writeln!(error, "{}: {level}: {}", self.program, record.args());
                }
            }
        }
    }

    fn flush(&self) {}
}

/// Installs the logger for `program`. `verbose` counts `-v`; `FOREBAY_LOG` (`error`, `warn`,
/// `info`, `debug`, `trace`) overrules it.
pub fn install(program: &'static str, verbose: u8) {
    let wanted = std::env::var("FOREBAY_LOG").ok().and_then(|v| v.parse::<LevelFilter>().ok());
    let level = wanted.unwrap_or(match verbose {
        0 => LevelFilter::Warn,
        1 => LevelFilter::Info,
        2 => LevelFilter::Debug,
        _ => LevelFilter::Trace,
    });
    // Fails only if a logger is installed already, which then stays.
    if log::set_logger(LINES.get_or_init(|| Lines { program })).is_ok() {
        log::set_max_level(level);
    }
}

/// The process has no standard error from now on (logger.B1).
pub fn go_to_background() {
    IN_BACKGROUND.store(true, Ordering::Release);
}

/// Whether the process has no standard error.
pub fn in_background() -> bool {
    IN_BACKGROUND.load(Ordering::Acquire)
}

/// Sends a message to the socket of syslog(3), else to the kernel's log.
fn to_system(program: &str, level: Level, what: &Arguments<'_>) {
    let path = std::env::var_os("FOREBAY_SYSLOG").map_or_else(|| SYSLOG.into(), PathBuf::from);
    let line = line(program, level, std::process::id(), what);
    let sent = UnixDatagram::unbound().and_then(|socket| {
        socket.set_write_timeout(Some(PATIENCE))?;
        socket.send_to(line.as_bytes(), path)
    });
    if sent.is_err() {
        let kernel = std::fs::File::options().write(true).open(KERNEL_LOG);
        // No log is left that could take the message.
        let _said = kernel.and_then(|mut log| log.write_all(line.as_bytes()));
    }
}

fn line(program: &str, level: Level, pid: u32, what: &Arguments<'_>) -> String {
    let severity = match level {
        Level::Error => 3,
        Level::Warn => 4,
        Level::Info => 6,
        Level::Debug | Level::Trace => 7,
    };
    format!("<{}>{program}[{pid}]: {what}", FACILITY | severity)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn b1_lines_are_as_the_systems_log_takes_them() {
        assert_eq!(
            line("forebay", Level::Error, 7, &format_args!("a {}", 1)),
            "<27>forebay[7]: a 1"
        );
        assert_eq!(line("forebay", Level::Warn, 7, &format_args!("b")), "<28>forebay[7]: b");
    }
}
