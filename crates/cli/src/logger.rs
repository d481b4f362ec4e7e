//! The logger behind `log`: one line per message on standard error; from a process that stays in
//! the background, to the system's log.
//!
//! B1 What a process in the background has to say is said: it has no standard error.

use log::{Level, LevelFilter, Log, Metadata, Record};
use std::fmt::Arguments;
use std::io::Write;
use std::os::unix::net::UnixDatagram;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Where syslog(3) listens; `FOREBAY_SYSLOG` names another socket.
const SYSLOG: &str = "/dev/log";
/// The kernel's log takes messages of root, if no process listens there.
const KERNEL_LOG: &str = "/dev/kmsg";
/// How long a message waits for room there.
const PATIENCE: Duration = Duration::from_millis(200);
/// `LOG_DAEMON`.
const FACILITY: u32 = 3 << 3;

struct Lines;

static LINES: Lines = Lines;
static IN_BACKGROUND: AtomicBool = AtomicBool::new(false);

impl Log for Lines {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.level() <= log::max_level()
    }

    fn log(&self, record: &Record<'_>) {
        if self.enabled(record.metadata()) {
            match in_background() {
                true => to_system(record.level(), record.args()),
                false => {
                    let level = record.level().as_str().to_ascii_lowercase();
                    eprintln!("forebay: {level}: {}", record.args());
                }
            }
        }
    }

    fn flush(&self) {}
}

/// Installs it. `verbose` counts `-v`; `FOREBAY_LOG` (error, warn, info, debug, trace) wins.
pub fn install(verbose: u8) {
    let wanted = std::env::var("FOREBAY_LOG").ok().and_then(|v| v.parse::<LevelFilter>().ok());
    let level = wanted.unwrap_or(match verbose {
        0 => LevelFilter::Warn,
        1 => LevelFilter::Info,
        2 => LevelFilter::Debug,
        _ => LevelFilter::Trace,
    });
    // Fails only if a logger is there already, and then that one may stay.
    if log::set_logger(&LINES).is_ok() {
        log::set_max_level(level);
    }
}

/// From now on there is no standard error (B1).
pub fn go_to_background() {
    IN_BACKGROUND.store(true, Ordering::Release);
}

/// Whether there is none.
pub fn in_background() -> bool {
    IN_BACKGROUND.load(Ordering::Acquire)
}

/// To syslog(3), else to the kernel's log.
fn to_system(level: Level, what: &Arguments<'_>) {
    let path = std::env::var_os("FOREBAY_SYSLOG").map_or_else(|| SYSLOG.into(), PathBuf::from);
    let line = line(level, std::process::id(), what);
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

fn line(level: Level, pid: u32, what: &Arguments<'_>) -> String {
    let severity = match level {
        Level::Error => 3,
        Level::Warn => 4,
        Level::Info => 6,
        Level::Debug | Level::Trace => 7,
    };
    format!("<{}>forebay[{pid}]: {what}", FACILITY | severity)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn b1_lines_are_as_the_systems_log_takes_them() {
        assert_eq!(line(Level::Error, 7, &format_args!("a {}", 1)), "<27>forebay[7]: a 1");
        assert_eq!(line(Level::Warn, 7, &format_args!("b")), "<28>forebay[7]: b");
    }
}
