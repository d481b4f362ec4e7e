//! A clean client concurrent with hostile ones: it writes and reads back a block of its own all the
//! time, and reports its longest wait. A figure to read: no test asserts wall time.
//!
//! `cargo test --release -p forebay-nbd --test suite hostile -- --nocapture` prints it.

use super::Running;
use std::sync::mpsc::RecvTimeoutError::Timeout;
use std::sync::mpsc::{Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Between two rounds: the machine is the hostile clients', too.
const PACE: Duration = Duration::from_millis(1);

/// Requests answered, and the longest wait for one.
#[derive(Default)]
pub struct Waits {
    pub requests: u64,
    pub longest: Duration,
}

impl Waits {
    /// Carries out one request.
    pub fn time<T>(&mut self, request: impl FnOnce() -> T) -> T {
        let start = Instant::now();
        let answer = request();
        self.requests += 1;
        self.longest = self.longest.max(start.elapsed());
        answer
    }
}

/// The client at work, until it is dropped.
pub struct Clean {
    what: &'static str,
    stop: Option<Sender<()>>,
    thread: Option<JoinHandle<Waits>>,
}

impl Clean {
    /// Starts it on the last block of the export. `what`: the hostile clients, for the report.
    pub fn start(running: &Running, what: &'static str) -> Self {
        let (stop, stopped) = channel();
        let mut client = running.client();
        let at = client.size - 4096;
        let thread = std::thread::spawn(move || {
            let mut waits = Waits::default();
            while stopped.recv_timeout(PACE).is_err_and(|e| e == Timeout) {
                let block = [waits.requests as u8; 4096];
                assert_eq!(waits.time(|| client.write(at, &block)), 0);
                assert!(waits.time(|| client.read(at, 4096)).data == block, "its own bytes");
            }
            waits
        });
        Self { what, stop: Some(stop), thread: Some(thread) }
    }

    /// Ends it; what it was served.
    pub fn end(&mut self) -> Option<Waits> {
        self.stop = None;
        let waits = self.thread.take()?.join().expect("the clean client is served throughout");
        let Waits { requests, longest } = waits;
        println!(
            "clean client next to {}: {requests} requests, longest wait {longest:?}",
            self.what
        );
        Some(waits)
    }
}

impl Drop for Clean {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            self.end();
        }
    }
}
