//! Operations that wait: until there is space for their change, and while the changes in memory
//! exceed their bound.
//!
//! Invariant: Q13 an operation that changes names or reserves space waits while the changes in
//! memory exceed their bound.
//!
//! Lock: the state lock in turn; none across a wait.

use crate::transaction::resources::Resources;
use crate::transaction::state::State;
use forebay_base::{ErrorKind, Result};

/// How often space is requested for one operation.
const ROUNDS: u32 = 2;

/// Queued records above which an operation that adds more writes them.
const QUEUE_MAX: usize = 4096;

/// Bytes of content in queued records above which they are written.
const QUEUE_BYTES_MAX: u64 = 4 << 20;

/// What an operation does at its end.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Relief {
    None,
    /// The queue is long: the operation writes it.
    Commit,
    /// Changes in memory exceed their bound: they are merged into the tree.
    Checkpoint,
}

impl Resources {
    /// Changes the state. Requests space if there is none.
    pub async fn with_space<T>(&self, mut op: impl FnMut(&mut State) -> Result<T>) -> Result<T> {
        let mut rounds = 0;
        loop {
            let (done, is_refused) = {
                let mut state = self.state.lock();
                state.fate.is_refused = false;
                (op(&mut state), state.fate.is_refused)
            };
            match done {
                Err(error) if error.kind() == ErrorKind::NoSpace && rounds < ROUNDS => {
                    rounds += 1;
                    if !self.requests.make_space().await {
                        return Err(error);
                    }
                }
                Err(_) if is_refused && rounds == 0 => {
                    rounds += 1;
                    self.requests.checkpoint().await?;
                }
                done => {
                    self.note_change();
                    return done;
                }
            }
        }
    }

    /// Waits for the first result of the pass in progress. False: there is no pass, or it brought
    /// no space.
    pub async fn wait_for_cleaner(&self) -> bool {
        let before = self.state.lock().space_levels();
        self.cleaning.part_over().await && self.state.lock().has_more_space(&before)
    }

    /// What the bounds ask for (Q13): nothing on a volume that may not be written (open.O13).
    pub fn relief(&self, state: &State) -> Relief {
        if state.is_read_only {
            return Relief::None;
        }
        let waits = state.changes_bytes();
        // Frozen changes take as much memory.
        let most = match &state.frozen {
            Some(_) => self.options.overlay_bytes / 2,
            None => self.options.overlay_bytes / 4 * 3,
        };
        match state.queue.len() > QUEUE_MAX || state.queued_bytes > QUEUE_BYTES_MAX {
            _ if waits > most => Relief::Checkpoint,
            true => Relief::Commit,
            false => Relief::None,
        }
    }

    /// Does what the bounds ask for.
    pub async fn relieve(&self, relief: Relief) -> Result<()> {
        match relief {
            Relief::None => Ok(()),
            Relief::Commit => self.commit_queue().await,
            Relief::Checkpoint => self.requests.checkpoint().await,
        }
    }

    /// Whether changes in memory exceed a bound (Q13).
    pub fn is_crowded(&self) -> bool {
        self.relief(&self.state.lock()) != Relief::None
    }

    /// Writes or merges changes if they exceed a bound.
    pub async fn relieve_now(&self) -> Result<()> {
        let relief = self.relief(&self.state.lock());
        self.relieve(relief).await
    }
}
