//! SIGTERM and SIGINT. The first asks for a clean stop, the second ends the process at once.
//!
//! ```text
//!   running --first signal--> stopping (drain, write out, flush) --done--> exit 0
//!                                 +--second signal--> last words, exit 1
//! ```

use crate::failure::{Failure, Outcome};
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use std::sync::mpsc::Sender;

/// Sends `first` on the first signal. On the second calls `last_words`, which must not wait for
/// any lock that a stop in progress could hold for long, and exits with status 1.
pub fn watch<T: Send + 'static>(
    stop: Sender<T>,
    first: T,
    last_words: impl FnOnce(&str) + Send + 'static,
) -> Outcome {
    let mut signals =
        Signals::new([SIGTERM, SIGINT]).map_err(|e| Failure::io("watch for signals", &e))?;
    let run = move || {
        let mut arrived = signals.forever();
        let Some(signal) = arrived.next() else { return };
        log::info!("{}: stopping; a second signal ends at once", name(signal));
        // The receiver is gone if the process is ending anyway.
        let _ = stop.send(first);
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

fn name(signal: i32) -> &'static str {
    if signal == SIGINT { "SIGINT" } else { "SIGTERM" }
}
