//! Operations that must wait: until there is space for their change, or while changes in memory
//! exceed their limit.
//!
//! Invariants: Q13 an operation that changes names or reserves space waits while the changes in
//! memory exceed their limit. Q14 an operation that makes space, or makes accepted data durable, is
//! refused only after several rounds of requests for space. Only rounds in which no operation
//! recorded a change count.
//!
//! Lock: the state lock, taken briefly. No lock is held across a wait.

use crate::transaction::requests::Requests;
use crate::transaction::resources::Resources;
use crate::transaction::state::State;
use forebay_base::{ErrorKind, Result};

/// How often one operation requests space. Rounds in which some operation recorded a change do not
/// count.
const ROUNDS: u32 = 2;

/// An operation that adds records while more than this number are queued writes the queue.
const QUEUE_MAX: usize = 4096;

/// Queued records with more bytes of content than this are written.
const QUEUE_BYTES_MAX: u64 = 4 << 20;

/// What an operation must do at its end.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Relief {
    None,
    /// The queue is long: the operation writes the records.
    Commit,
    /// Changes in memory exceed their limit: the operation waits for a checkpoint.
    Checkpoint,
}

/// How long an operation continues to request space (Q14).
pub(crate) struct Patience {
    /// Rounds in which no operation recorded a change, and their limit.
    fruitless: u32,
    fruitless_max: u32,
    /// [`Space::recorded`](crate::space::Space::recorded) at the last round.
    recorded: Option<u64>,
}

impl Patience {
    /// For an operation that is refused after more than `fruitless_max` rounds without effect.
    pub fn of(fruitless_max: u32) -> Self {
        Self { fruitless: 0, fruitless_max, recorded: None }
    }

    /// Notes that the operation found no space. False: the operation is refused.
    pub fn lasts(&mut self, recorded: u64) -> bool {
        let before = self.recorded.replace(recorded);
        // If the number has changed, another operation was faster, and the volume is not full.
        if before.is_none_or(|before| before == recorded) {
            self.fruitless += 1;
        }
        self.fruitless <= self.fruitless_max
    }

    /// Requests space. False: no space could be made.
    pub async fn make_space(&self, requests: &Requests) -> bool {
        match self.fruitless > 1 {
            // The current pass may hold the space that is lacking.
            true => requests.make_space_and_end_pass().await,
            false => requests.make_space().await,
        }
    }
}

impl Resources {
    /// Runs an urgent change of the state (Q14), and requests space while there is none.
    pub async fn with_space<T>(&self, mut op: impl FnMut(&mut State) -> Result<T>) -> Result<T> {
        let (mut patience, mut is_relieved) = (Patience::of(ROUNDS), false);
        loop {
            let (done, is_overfull, recorded) = {
                let mut state = self.state.lock();
                state.begin_attempt();
                (op(&mut state), state.refusal.is_overfull, state.space().recorded())
            };
            match done {
                Err(error) if error.kind() == ErrorKind::NoSpace && patience.lasts(recorded) => {
                    if !patience.make_space(&self.requests).await {
                        return Err(error);
                    }
                }
                Err(_) if is_overfull && !is_relieved => {
                    is_relieved = true;
                    self.requests.checkpoint().await?;
                }
                done => {
                    self.note_change();
                    return done;
                }
            }
        }
    }

    /// Waits for the first result of the current pass. False: there is no pass, or it made no
    /// space.
    pub async fn wait_for_cleaner(&self) -> bool {
        let before = self.state.lock().space_levels();
        self.cleaning.part_over().await && self.state.lock().has_more_space(&before)
    }

    /// What the limits demand now (Q13). Nothing for a volume that was opened read-only
    /// (open.O13) or has turned so.
    pub fn relief(&self, state: &State) -> Relief {
        if state.life.is_read_only() {
            return Relief::None;
        }
        let waits = state.changes_bytes();
        // Frozen changes may take as much memory as the new ones, so the limit is lower.
        let most = match state.tree.has_frozen() {
            true => self.options.overlay_bytes / 2,
            false => self.options.overlay_bytes / 4 * 3,
        };
        match state.queue.len() > QUEUE_MAX || state.queue.payload_bytes() > QUEUE_BYTES_MAX {
            _ if waits > most => Relief::Checkpoint,
            true => Relief::Commit,
            false => Relief::None,
        }
    }

    /// Does what the limits demand.
    pub async fn relieve(&self, relief: Relief) -> Result<()> {
        match relief {
            Relief::None => Ok(()),
            Relief::Commit => self.commit_queue().await,
            Relief::Checkpoint => self.requests.checkpoint().await,
        }
    }

    /// Whether changes in memory exceed a limit (Q13).
    pub fn is_crowded(&self) -> bool {
        self.relief(&self.state.lock()) != Relief::None
    }

    /// Writes or merges changes if they exceed a limit.
    pub async fn relieve_now(&self) -> Result<()> {
        let relief = self.relief(&self.state.lock());
        self.relieve(relief).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Q14: only rounds in which nothing changed count, in whatever order they come.
    #[test]
    fn patience_counts_rounds_without_effect() {
        let mut patience = Patience::of(2);
        assert!(patience.lasts(7), "the first refusal");
        assert!((8..100).all(|recorded| patience.lasts(recorded)), "others get space");
        assert!(patience.lasts(99), "nothing happened");
        assert!(patience.lasts(100), "another got space");
        assert!(!patience.lasts(100), "nothing happened again");
    }
}
