//! The flushes of one file, in turn and shared: all callers that arrive during one flush share the
//! next.
//!
//! Lock: one, a leaf.

use forebay_base::sync::Mutex;
use forebay_base::task::WaitQueue;
use forebay_base::{Error, Result};

#[derive(Default)]
struct FlushState {
    running: bool,
    started: u64,
    /// Outcome of the flushes that ended last: (number, error).
    ended: u64,
    last_errors: Vec<(u64, Error)>,
}

/// The flushes of one file.
#[derive(Default)]
pub struct FlushGroup {
    state: Mutex<FlushState>,
    wait: WaitQueue,
}

/// What a caller that wants a flush is to do.
pub(crate) enum Turn {
    /// Run flush number n.
    Run(u64),
    /// Flush n, which began after the caller asked, is over.
    Done(Result<()>),
}

impl FlushGroup {
    /// Waits for a flush that begins after this call, or the turn to run it.
    pub(crate) async fn turn(&self) -> Turn {
        let wanted = self.state.lock().started + 1;
        let turn = || {
            let mut state = self.state.lock();
            if state.ended >= wanted {
                let error = state.last_errors.iter().find(|(n, _)| *n >= wanted);
                return Some(Turn::Done(error.map_or(Ok(()), |(_, e)| Err(e.clone()))));
            }
            if state.running {
                return None;
            }
            state.running = true;
            state.started += 1;
            Some(Turn::Run(state.started))
        };
        self.wait.wait_until(turn).await
    }

    pub(crate) fn end(&self, number: u64, result: &Result<()>) {
        let mut state = self.state.lock();
        state.running = false;
        state.ended = number;
        if let Err(error) = result {
            state.last_errors.push((number, error.clone()));
            if state.last_errors.len() > 16 {
                state.last_errors.remove(0);
            }
        }
        drop(state);
        self.wait.wake_all();
    }
}
