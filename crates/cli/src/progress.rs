//! Shows the progress of operations that take more than a second, on standard error: a line that
//! changes on a terminal, else a line from time to time.

use std::io::{IsTerminal, Write};
use std::time::{Duration, Instant};

/// Time before the first line.
const FIRST: Duration = Duration::from_secs(1);
/// Time between two lines on a terminal, and elsewhere.
const TERMINAL_STEP: Duration = Duration::from_millis(200);
const STEP: Duration = Duration::from_secs(10);

/// Shows progress. On drop it removes its line from a terminal.
pub struct Progress {
    start: Instant,
    last: Option<Instant>,
    terminal: bool,
}

impl Progress {
    /// From now on.
    pub fn new() -> Self {
        let terminal = std::io::stderr().is_terminal();
        Self { start: Instant::now(), last: None, terminal }
    }

    /// Prints `text` if the time for a line has come.
    pub fn say(&mut self, text: impl FnOnce() -> String) {
        let now = Instant::now();
        if !is_due(now - self.start, self.last.map(|last| now - last), self.terminal) {
            return;
        }
        self.last = Some(now);
        let mut err = std::io::stderr().lock();
        // Standard error may be closed.
        let _said = match self.terminal {
            true => write!(err, "\r\x1b[Kforebay: {}", text()).and_then(|()| err.flush()),
            false => writeln!(err, "forebay: {}", text()),
        };
    }

    /// Removes the line from a terminal, for other output.
    pub fn clear(&mut self) {
        if self.terminal && self.last.take().is_some() {
            eprint!("\r\x1b[K");
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.clear();
    }
}

fn is_due(since_start: Duration, since_last: Option<Duration>, terminal: bool) -> bool {
    match since_last {
        None => since_start >= FIRST,
        Some(passed) => passed >= if terminal { TERMINAL_STEP } else { STEP },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_in_the_first_second_then_now_and_then() {
        let ms = Duration::from_millis;
        assert!(!is_due(ms(999), None, true) && is_due(ms(1000), None, false));
        assert!(!is_due(ms(5000), Some(ms(199)), true) && is_due(ms(5000), Some(ms(200)), true));
        assert!(
            !is_due(ms(5000), Some(ms(9999)), false) && is_due(ms(5000), Some(ms(10_000)), false)
        );
    }
}
