//! Operations that may need objects that are not in memory: they load them and try again.
//!
//! ```text
//!   lock ─▶ try ─▶ done ─▶ evict what exceeds the bound ─▶ unlock
//!            ▲ └─ missing ─▶ unlock ─▶ read it from the tree ─▶ lock ─▶ insert ─┐
//!            └──────────────────────────────────────────────────────────────────┘
//! ```
//! Invariants: Q11 an attempt that ends with `Missing` has changed nothing. Q12 what was loaded for
//! an attempt is in memory at the next attempt. It is not evicted while a task that began earlier
//! waits.
//!
//! At its end each operation enforces the limit on changes in memory (`relief.Q13`).
//!
//! Lock: the state lock. It is not held across a wait.

use crate::format::key::{Cookie, Key};
use crate::format::superblock::TreeRoot;
use crate::names::evict::Ahead;
use crate::names::evict::LEAF_BYTES;
use crate::names::load;
use crate::names::lookup::{Stop, Tried, Want};
use crate::space::Need;
use crate::transaction::relief::{Patience, Relief};
use crate::transaction::state::State;
use crate::volume::Inner;
use forebay_base::sync::atomic::Ordering;
use forebay_base::{ErrorKind, Result};
use forebay_vfs::{Attr, Ino, Timestamp};

/// A task that waits for a missing part (Q12).
struct Waiter<'a> {
    inner: &'a Inner,
    since: u64,
}

impl Drop for Waiter<'_> {
    fn drop(&mut self) {
        self.inner.state.lock().end_wait(self.since);
    }
}

impl Inner {
    /// Runs an operation, and loads what it misses. `op` also gets the current time.
    pub(crate) async fn tried<T>(
        &self,
        mut op: impl FnMut(&mut State, Timestamp) -> Tried<T>,
    ) -> Result<T> {
        let (mut waiter, mut made_space, mut relieved) = (None, false, false);
        let mut patience = Patience::of(1);
        loop {
            let now = self.options.clock.now();
            let (tried, relief, held, waits, (refusal, recorded)) = {
                let mut state = self.state.lock();
                state.begin_operation(self.memory.names_max());
                let mut tried = op(&mut state, now);
                while let Err(Stop::Missing(want)) = tried {
                    match state.insert_from_window(want) {
                        Ok(true) => tried = op(&mut state, now),
                        Ok(false) => break,
                        Err(error) => tried = Err(error.into()),
                    }
                }
                match &tried {
                    Ok(_) => state.evict(),
                    Err(Stop::Missing(_)) if waiter.is_none() => {
                        waiter = Some(Waiter { inner: self, since: state.begin_wait() });
                    }
                    Err(_) => {}
                }
                let (relief, waits) = (self.relief(&state), !state.queue().is_empty());
                (tried, relief, state.held(), waits, (state.refusal(), state.space().recorded()))
            };
            self.note_memory(held);
            if waits {
                self.note_change();
            }
            match tried {
                Ok(done) => {
                    if relief != Relief::None {
                        self.files.write_outstanding_first().await;
                    }
                    if let Err(error) = self.relieve(relief).await {
                        log::warn!("changes wait to be written: {error}");
                    }
                    return Ok(done);
                }
                Err(Stop::Missing(want)) => self.load(want).await?,
                Err(Stop::Failed(error))
                    if error.kind() == ErrorKind::NoSpace
                        && patience.lasts(recorded)
                        && (!made_space || refusal.lacks_space == Some(Need::Urgent)) =>
                {
                    made_space = true;
                    // Dirty data is written out only if it may be using the space that is lacking.
                    let block = self.layout.block_bytes();
                    if !self.state.lock().has_room(block, Need::New) {
                        self.files.write_out_dirty().await;
                    }
                    if !patience.make_space(&self.requests).await {
                        return Err(error);
                    }
                }
                Err(Stop::Failed(_)) if refusal.is_overfull && !relieved => {
                    relieved = true;
                    self.requests.checkpoint().await?;
                }
                Err(Stop::Failed(error)) => return Err(error),
            }
        }
    }

    /// The attributes of the inodes of a listing. The neighbours of a missing inode are loaded with
    /// it, because the listing probably contains them, too, in another order.
    pub(crate) async fn attrs_listed(&self, inos: &[Ino]) -> Vec<Result<Attr>> {
        let (mut all, mut ahead) = (Vec::with_capacity(inos.len()), None);
        while let Some(rest) = inos.get(all.len()..).filter(|rest| !rest.is_empty()) {
            let there = self.tried(|state, _| Ok(state.attrs_there(rest))).await;
            all.extend(there.unwrap_or_default());
            let Some(ino) = inos.get(all.len()).copied() else { break };
            let ahead = *ahead.get_or_insert_with(|| self.state.lock().listed_ahead(rest));
            // If this fails, a later reader of the inode gets the error.
            if let Err(error) = self.load_with(Want::Inode(ino.0), Some(ahead)).await {
                log::debug!("neighbours of {ino:?}: {error}");
            }
            all.push(self.tried(|state, _| state.attr("getattr", ino)).await);
        }
        all
    }

    /// Loads a missing part.
    async fn load(&self, want: Want) -> Result<()> {
        self.load_with(want, None).await
    }

    /// Loads a missing part, with `read_ahead` instead of the default amount.
    async fn load_with(&self, want: Want, read_ahead: Option<Ahead>) -> Result<()> {
        loop {
            let (root, ahead) = {
                let state = self.state.lock();
                (state.tree().root(), read_ahead.unwrap_or_else(|| state.ahead(want)))
            };
            if let Want::Entries(dir, _) = want {
                self.read_on(root, Key::Entry(dir, Cookie::FIRST), ahead.meanwhile);
            }
            let part = load::read(&self.tree, root, want, ahead).await;
            let mut state = self.state.lock();
            if state.tree().root() != root {
                // The tree was replaced during the read, so the places that were read may have been
                // reused.
                continue;
            }
            let part = part?;
            let next = part.end();
            let is_there = match ahead.is_window {
                true => state.insert_window(want, part)?,
                false => state.insert_part(want, part)?,
            };
            drop(state);
            if is_there {
                if let (Want::Inode(_), Ok(next)) = (want, Key::decode(next.as_slice())) {
                    self.read_on(root, next, ahead.meanwhile);
                }
                return Ok(());
            }
        }
    }
}

impl Inner {
    /// Reads leaves ahead for a client that scans inodes in order, or a directory.
    fn read_on(&self, root: TreeRoot, from: Key, leaves: usize) {
        // The leaves must stay cached until the scan reaches them.
        let fits = 4 * leaves * LEAF_BYTES <= self.tree.cache().budget_bytes();
        if leaves == 0 || !fits || self.is_reading_on.swap(true, Ordering::AcqRel) {
            return;
        }
        let me = self.me.clone();
        let task = async move {
            let Some(inner) = me.upgrade() else { return };
            if let Err(error) = inner.tree.read_ahead(&root, from, leaves).await {
                // A later reader of these leaves gets the error.
                log::debug!("reading on in the tree: {error}");
            }
            inner.is_reading_on.store(false, Ordering::Release);
        };
        self.world.spawn("forebay-lfs ahead", Box::pin(task));
    }
}
