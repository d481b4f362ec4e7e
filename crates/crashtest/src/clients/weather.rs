//! What happens to the disk while clients work: it becomes healthy again, or content decays.
//!
//! Only content that a checkpoint holds decays. Recovery takes a bad record at the end of the log
//! for its end, so what the log alone holds must not decay here.
//!
//! No locks.

use super::file::Opened;
use super::log::Log;
use crate::workload::Setup;
use forebay_base::world::split_mix;
use forebay_lfs::Volume;
use forebay_sim::SimDisk;
use forebay_vfs::Ino;

/// After one step in this many the content of the client's file decays.
const DECAYS: u64 = 5;

/// The events of a run.
#[derive(Clone)]
pub struct Weather {
    disk: SimDisk,
    seed: u64,
    /// Of the volume, bytes.
    block: u64,
    rots: bool,
    healed_at: Option<usize>,
}

impl Weather {
    /// The events that the setup asks for, on this disk.
    pub fn new(setup: &Setup, disk: &SimDisk) -> Self {
        let (seed, block) = (setup.seed, u64::from(setup.block_bytes));
        let (rots, healed_at) = (setup.rot, setup.healed_at);
        Self { disk: disk.clone(), seed, block, rots, healed_at }
    }

    /// What happens before a step.
    pub fn before_step(&self, number: usize) {
        if self.healed_at.is_some_and(|at| number >= at) {
            self.disk.heal();
        }
    }

    /// What happens after a step of a client, to the file that it opened last.
    pub async fn after_step(&self, number: usize, opened: Option<&Opened>, log: &Log) {
        let mut draw = self.seed ^ 0xdeca1 ^ (number as u64) << 32;
        if !self.rots || !split_mix(&mut draw).is_multiple_of(DECAYS) {
            return;
        }
        let Some(Opened::File(volume, file)) = opened else { return };
        let ino = file.ino();
        let held = stored(volume, ino).await;
        // A failed checkpoint is judged when it is a step of a client.
        if volume.checkpoint().await.is_err() {
            return;
        }
        // Between this lookup and the decay no other task runs.
        let mut stored = stored(volume, ino).await;
        stored.retain(|run| held.contains(run));
        if stored.is_empty() {
            return;
        }
        let (offset, at, len) = stored[(split_mix(&mut draw) % stored.len() as u64) as usize];
        let within = split_mix(&mut draw) % len;
        self.disk.rot(at + within);
        log.note_decayed(ino.0, (offset + within) / self.block);
    }
}

/// The runs of a file on the device: offset in the file, offset on the device, length.
async fn stored(volume: &Volume, ino: Ino) -> Vec<(u64, u64, u64)> {
    let extents = volume.extents(ino).await.unwrap_or_default();
    let stored = extents.iter().filter(|extent| !extent.inline);
    stored.filter_map(|e| e.physical.map(|at| (e.logical, at, e.len))).collect()
}
