//! The logger behind `log`: one line per message on standard error.

use log::{LevelFilter, Log, Metadata, Record};

struct Stderr;

static STDERR: Stderr = Stderr;

impl Log for Stderr {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.level() <= log::max_level()
    }

    fn log(&self, record: &Record<'_>) {
        if self.enabled(record.metadata()) {
            let level = record.level().as_str().to_ascii_lowercase();
            eprintln!("forebay: {level}: {}", record.args());
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
    if log::set_logger(&STDERR).is_ok() {
        log::set_max_level(level);
    }
}
