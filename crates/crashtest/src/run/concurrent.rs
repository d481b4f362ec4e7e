//! Tasks that run concurrently with the steps of a workload: checkpoints, cleaning, and syncs of
//! another client.
//!
//! No locks across a wait.

use super::known::{Shared, has_lost, is_nearly_full};
use forebay_base::ErrorKind;
use forebay_base::sync::Arc;
use forebay_base::world::World;
use forebay_lfs::Volume;
use forebay_vfs::FileSystem;

/// The kind of a concurrent task.
#[derive(Clone, Copy)]
pub(super) enum Concurrent {
    Checkpoint,
    Clean,
    /// A sync of everything, which covers this many steps.
    Sync(usize),
}

impl Concurrent {
    fn name(self) -> &'static str {
        match self {
            Self::Checkpoint => "a checkpoint",
            Self::Clean => "cleaning",
            Self::Sync(_) => "a sync",
        }
    }

    /// Starts it.
    pub(super) fn spawn(self, volume: &Volume, shared: &Arc<Shared>, polls_max: u64) {
        let (volume, world) = (volume.clone(), shared.disk.world().clone());
        let shared = shared.clone();
        shared.known.lock().running.push((self.name(), world.steps()));
        let task = async move {
            let done = match self {
                Self::Checkpoint => volume.checkpoint().await,
                Self::Clean => volume.clean().await.map(drop),
                Self::Sync(steps) => {
                    let done = volume.syncfs().await;
                    shared.synced(None, steps, done.is_ok() && !has_lost(&volume));
                    done
                }
            };
            let is_full = match (self, &done) {
                (Self::Sync(_), _) | (_, Ok(())) => false,
                _ => is_nearly_full(&volume).await,
            };
            shared.judge_concurrent(self.name(), is_full, done);
            shared.ended(self.name(), polls_max);
            shared.idle.wake_all();
        };
        world.spawn(self.name(), Box::pin(task));
    }
}

impl Shared {
    /// A concurrent task has ended. More polls of the world than `polls_max` are a violation.
    fn ended(&self, name: &'static str, polls_max: u64) {
        let now = self.disk.world().steps();
        let known = &mut *self.known.lock();
        let Some(at) = known.running.iter().position(|(of, _)| *of == name) else { return };
        let (_, begin) = known.running.remove(at);
        let polls = now - begin;
        if polls > polls_max {
            let what =
                || format!("{name} at the same time took {polls} polls, at most {polls_max}");
            known.wrong.get_or_insert_with(what);
        }
    }

    /// A concurrent task may fail after a fault of the disk, because a failed commit fails for all
    /// tasks that wait for it. A checkpoint or the cleaner may also find the volume full, a sync
    /// may not. Nothing else explains an error.
    fn judge_concurrent(&self, what: &str, is_full: bool, done: forebay_base::Result<()>) {
        let Err(error) = done else { return };
        log::debug!("{what} failed: {error}");
        if error.kind() == ErrorKind::NoSpace && is_full || self.has_met_fault() {
            return;
        }
        let wrong = &mut self.known.lock().wrong;
        wrong.get_or_insert_with(|| format!("{what} at the same time failed: {error}"));
    }

    /// The first violation that a concurrent task found.
    pub(super) fn check_concurrent(&self) -> Result<(), String> {
        self.known.lock().wrong.take().map_or(Ok(()), Err)
    }
}
