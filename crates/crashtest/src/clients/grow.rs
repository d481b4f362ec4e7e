//! A volume that is made larger between the steps of its clients.
//!
//! No locks.

use super::log::{Changed, LostBlocks, of_checkpoint};
use super::run::Life;
use crate::workload::{Bounds, Operation};
use forebay_base::sync::Arc;
use forebay_base::world::WorldRef;
use forebay_block::DeviceRef;
use forebay_cache::PageCache;
use forebay_lfs::Volume;

/// A volume that was opened again, and the cache of its files.
type Opened = (Volume, Option<Arc<PageCache>>);

impl Life<'_> {
    /// Closes the volume, makes it larger, and opens it again. `None`: it was full and could not be
    /// closed.
    ///
    /// # Errors
    /// What is wrong.
    pub(super) async fn grow(
        &self,
        volume: Volume,
        device: &DeviceRef,
        bytes: u64,
    ) -> Result<Option<Opened>, String> {
        let begin = self.log.begin(usize::MAX, "closing to grow".into(), |_| Changed::Nothing).0;
        let done = self.meter.ended(Operation::Close, volume.close()).await;
        let done = done.map_err(of_checkpoint);
        let is_closed = done.is_ok();
        self.all_synced(begin, LostBlocks::new(), done);
        drop(volume);
        if !is_closed {
            return Ok(None);
        }
        let grown = self.meter.ended(Operation::Grow, self.setup.grow(device, bytes)).await;
        let (old, new) = grown.map_err(|e| format!("growing: {e}"))?;
        if new.segments <= old.segments {
            return Err(format!("{} segments, and then {}", old.segments, new.segments));
        }
        let asked: WorldRef = self.log.world();
        let options = self.setup.options(&asked).map_err(|error| error.to_string())?;
        let cache = options.cache.clone();
        let opening = Volume::open(device, &asked, &options);
        let larger = self.meter.ended(Operation::Open, opening).await;
        let larger = larger.map_err(|error| format!("larger, it does not open: {error}"))?;
        Bounds::of(self.setup).check_memory(&larger)?;
        self.grown.set(true);
        Ok(Some((larger, cache)))
    }
}
