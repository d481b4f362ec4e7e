//! The logger behind `log`: one line for each message, on standard error.

use log::{LevelFilter, Log, Metadata, Record};

struct Lines;

static LINES: Lines = Lines;

impl Log for Lines {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.level() <= log::max_level()
    }

    fn log(&self, record: &Record<'_>) {
        if self.enabled(record.metadata()) {
            let level = record.level().as_str().to_ascii_lowercase();
            eprintln!("forebay-lab: {level}: {}", record.args());
        }
    }

    fn flush(&self) {}
}

/// Installs it. `verbose` counts `-v`; `FOREBAY_LOG` (`error` .. `trace`) overrules it.
pub fn install(verbose: u8) {
    let set = std::env::var("FOREBAY_LOG").ok().and_then(|v| v.parse::<LevelFilter>().ok());
    let level = set.unwrap_or(match verbose {
        0 => LevelFilter::Warn,
        1 => LevelFilter::Info,
        2 => LevelFilter::Debug,
        _ => LevelFilter::Trace,
    });
    // Fails only if a logger is installed already, which then stays.
    if log::set_logger(&LINES).is_ok() {
        log::set_max_level(level);
    }
}
