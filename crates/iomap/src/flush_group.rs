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
    /// Number of the flush that ended last.
    ended: u64,
    /// The flushes that failed last, at most 16, by number.
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
    /// The caller runs the flush of this number, and then calls [`FlushGroup::end`].
    Run(u64),
    /// Nothing: a flush that began after the caller asked is over, with this result.
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
