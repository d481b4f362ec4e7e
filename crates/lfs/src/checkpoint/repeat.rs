//! Repeats the newest checkpoint: writes another slot with the same trees and the same position in
//! the log.
//!
//! Segments that died with a checkpoint are free when a second one is durable (segment.W13,
//! nodes.N11). If space is needed, the second one need not contain new changes. It costs a slot and
//! a flush instead of a merge, which after random overwrites would write a new leaf for most leaves
//! of the tree.
//!
//! Invariant: H17 the repetition refers to what its checkpoint refers to, so everything is flushed
//! (checkpoint.H12). It follows its checkpoint in the same turn or in an opening. Or it takes the
//! numbers of failed ones, and the next, until it counts before each slot that it has not replaced.
//! So no slot that may count names a node that it frees (nodes.N11).
//!
//! Locks: the caller has the turn of checkpoints; the state lock and the turn's in turn; none
//! across a wait.

use super::{Checkpoints, How};
use crate::device::slots::{self, Copies};
use crate::format::superblock::{SLOTS, STATE_CLEAN, Superblock};
use forebay_base::{Error, ErrorKind, Result};

impl Checkpoints {
    /// Makes a checkpoint, and frees the segments that died with it.
    pub async fn make_and_free(&self, how: How) -> Result<()> {
        let guard = self.turns.take().await;
        let mut done = self.checkpoint_in_turn(how).await;
        if done.is_ok() {
            done = self.repeat().await;
        }
        self.discard_freed().await;
        drop(guard);
        done
    }

    /// Repeats the newest checkpoint (H17). After an error that one is valid, and dead segments
    /// wait for the next. The caller has the turn, or opens the volume (open.O16).
    pub(crate) async fn repeat(&self) -> Result<()> {
        let mut superblock = self.superblock();
        let is_over = self.state.lock().life().is_closed() || superblock.state & STATE_CLEAN != 0;
        if is_over {
            return Ok(());
        }
        superblock.checkpoint += 1;
        self.write_slots(&mut superblock, self.log.failures()).await?;
        let number = superblock.checkpoint;
        {
            let mut turn = self.turn.lock();
            (turn.superblock, turn.doubtful) = (superblock, 0);
        }
        self.state.lock().settle_repeated(number);
        Ok(())
    }

    /// For an opening: a slot may have another state under this number, which may name nodes that
    /// seem to be free (nodes.N16).
    pub(crate) fn doubt_slots(&self, number: u64) {
        self.turn.lock().doubtful = number;
    }

    /// If a slot may name nodes that are held or seem to be free, writes the newest durable state
    /// under numbers that count before that slot. Then these nodes are free (nodes.N16).
    pub(super) async fn free_named(&self) -> Result<()> {
        let is_doubtful = self.turn.lock().doubtful > 0;
        if is_doubtful { self.repeat().await } else { Ok(()) }
    }

    /// Writes a state of the superblock, and makes it durable (checkpoint.H12, checkpoint.H13).
    /// While fewer than two slots have it under a number that counts before any other state, it is
    /// written again under the next number (H17, slots.U14); `superblock` gets the last one. If
    /// only one slot has it, and nothing else could count, a later failure is no error.
    pub(crate) async fn write_slots(
        &self,
        superblock: &mut Superblock,
        failures: u64,
    ) -> Result<Copies> {
        let (number, mut have) = (superblock.checkpoint, 0);
        let mut doubtful = self.turn.lock().doubtful;
        for next in number..=number.max(doubtful) + u64::from(SLOTS / 2) {
            let state = Superblock { checkpoint: next, ..superblock.clone() };
            match self.write_state(&state, failures).await {
                Ok(Copies::Two) if next >= doubtful => have = 2,
                Ok(Copies::One) if next > doubtful => have += 1,
                Ok(Copies::Contested) => (doubtful, have) = (doubtful.max(next), 0),
                Ok(_) => {}
                Err(error) if have == 1 && doubtful < number => {
                    let name = self.device.name();
                    log::warn!(
                        "{name}: only one slot has state {number} of the superblock: {error}"
                    );
                    return Ok(Copies::One);
                }
                Err(error) => return Err(error),
            }
            if have == 2 {
                superblock.checkpoint = next;
                return Ok(Copies::Two);
            }
        }
        let text = format!("too few slots of the superblock take state {number}");
        Err(Error::new(ErrorKind::Io, "checkpoint", text))
    }

    async fn write_state(&self, superblock: &Superblock, failures: u64) -> Result<Copies> {
        {
            let mut turn = self.turn.lock();
            turn.attempted = turn.attempted.max(superblock.checkpoint);
        }
        let hold = self.turns.hold();
        let copies = slots::write_either(&self.device, superblock, hold).await?;
        self.flush_all().await?;
        self.unfailed(failures)?;
        Ok(copies)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::superblock::{SLOT_BYTES, SLOTS, slot_offsets};
    use crate::space::segment::Phase;
    use crate::tests::reuse::{check, create, open, read, setup, write};
    use forebay_base::sim_world::SimWorld;
    use forebay_vfs::{FileSystem, Ino, Name, OpenFlags};

    const LEN: usize = 256 << 10;

    /// H17. The story: dead segments became free only with a second checkpoint, which merged
    /// everything overwritten at random meanwhile: most leaves of the tree, in vain. Segments freed
    /// by the slot alone are reused, and all data survives a power loss, also if that slot is lost.
    #[test]
    fn h17_dead_segments_become_free_when_slot_is_repeated() {
        for loses_slot in [false, true] {
            let setup = setup(0);
            let disk = setup.blank();
            let end = disk.world().run(async {
                let volume = open(&setup, &disk).await.unwrap();
                let (_, file) = create(&volume, "f").await.unwrap();
                for fill in [1, 2] {
                    write(&file, 0, &[fill; LEN]).await.unwrap();
                    file.sync(true).await.unwrap();
                }
                volume.checkpoint().await.unwrap();
                let inner = &volume.0;
                let count = || {
                    let dead = inner.state.lock().space().segments().has_dead();
                    (inner.checkpoints.number(), inner.checkpoints.merged(), dead)
                };
                let (number, merged, dead) = count();
                assert!(dead, "what was overwritten is");
                let free = inner.state.lock().space().segments().free();
                inner.checkpoints.make_and_free(How::Log).await.unwrap();
                assert_eq!(count(), (number + 2, merged + 1, false));
                assert!(inner.state.lock().space().segments().free() > free);
                let dead = |(_, this): &(u32, &crate::space::segment::Segment)| {
                    matches!(this.phase, Phase::Dead | Phase::Discarding)
                };
                assert!(!inner.state.lock().space().segments().iter().any(|this| dead(&this)));
                // Enough to fill the freed segments.
                for fill in 3..6 {
                    write(&file, 0, &[fill; LEN]).await.unwrap();
                    file.sync(true).await.unwrap();
                }
                assert_eq!(count().0, number + 2, "no other was made meanwhile");
                inner.checkpoints.superblock()
            });
            disk.world().stop();
            let disk = disk.power_cut(1).in_world(SimWorld::new(2));
            if loses_slot {
                let half = u64::from(SLOTS) / 2;
                let turn = (end.checkpoint % half) as usize;
                let offsets = slot_offsets(end.recorded_end_bytes);
                for slot in [turn, turn + half as usize] {
                    disk.poke(offsets[slot], &[0; SLOT_BYTES]);
                }
            }
            let report = check(&disk.in_world(SimWorld::new(3)));
            // The report names the lost slot.
            assert_eq!(report.is_clean(), !loses_slot, "{:?}", report.findings);
            disk.world().run(async {
                let volume = open(&setup, &disk).await.unwrap();
                let ino = volume.lookup(Ino::ROOT, Name::new(b"f").unwrap()).await.unwrap().ino;
                let file = volume.open(ino, OpenFlags::READ).await.unwrap();
                assert!(read(&file, LEN).await == [5; LEN], "{loses_slot}");
            });
            disk.world().stop();
        }
    }
}
