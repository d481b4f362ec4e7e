//! SIGTERM, SIGINT and SIGHUP. The first asks for a clean stop, the second ends the process at
//! once.
//!
//! ```text
//!   running --first signal--> stopping (drain, write out, flush) --done--> exit 0
//!                                 +--second signal--> last words, exit 1
//! ```
//! N1 A signal that begins no stop does not count: the next one is the first again. N2 SIGHUP of a
//! process that was started to live on without its terminal (nohup) stays without effect.

use crate::failure::{Failure, Outcome};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use std::sync::mpsc::Sender;

/// Sends `first` on the first signal; see [`watch_if`].
pub fn watch<T: Clone + Send + 'static>(
    stop: Sender<T>,
    first: T,
    last_words: impl FnOnce(&str) + Send + 'static,
) -> Outcome {
    let ask = move || {
        // The receiver is gone if the process is ending anyway.
        let _sent = stop.send(first.clone());
        true
    };
    watch_if(ask, last_words)
}

/// Calls `ask` on each signal until it returns true: the stop has begun (N1). On the next one calls
/// `last_words`, which must not wait for any lock that a stop in progress could hold for long, and
/// exits with status 1.
pub fn watch_if(
    mut ask: impl FnMut() -> bool + Send + 'static,
    last_words: impl FnOnce(&str) + Send + 'static,
) -> Outcome {
    let mut all = vec![SIGTERM, SIGINT];
    all.extend((!ignores_hangup()).then_some(SIGHUP));
    let mut signals = Signals::new(all).map_err(|e| Failure::io("watch for signals", &e))?;
    let run = move || {
        let mut arrived = signals.forever();
        loop {
            let Some(signal) = arrived.next() else { return };
            log::info!("{}: stopping; a second signal ends at once", name(signal));
            if ask() {
                break;
            }
        }
        if let Some(signal) = arrived.next() {
            last_words(name(signal));
            std::process::exit(1);
        }
    };
    std::thread::Builder::new()
        .name("forebay-signal".into())
        .spawn(run)
        .map_err(|e| Failure::io("start the signal thread", &e))?;
    Ok(())
}

/// Whether this process was started with SIGHUP ignored (N2).
fn ignores_hangup() -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let ignored = ignored.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    ignored.is_some_and(|mask| mask >> (SIGHUP - 1) & 1 == 1)
}

fn name(signal: i32) -> &'static str {
    match signal {
        SIGINT => "SIGINT",
        SIGHUP => "SIGHUP",
        _ => "SIGTERM",
    }
}
