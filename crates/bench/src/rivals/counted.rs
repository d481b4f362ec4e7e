//! A device wrapper that counts writes and their bytes.

use forebay_base::Result;
use forebay_block::{Bio, BioFlags, BioOp, BlockDevice, DeviceRef};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Passes every request on to `lower`, and counts writes.
pub struct Counted {
    lower: DeviceRef,
    written: AtomicU64,
    requests: AtomicU64,
}

impl Counted {
    /// A wrapper of `lower`.
    pub fn new(lower: DeviceRef) -> Arc<Self> {
        Arc::new(Self { lower, written: AtomicU64::new(0), requests: AtomicU64::new(0) })
    }

    /// Bytes of all writes so far.
    pub fn written(&self) -> u64 {
        self.written.load(Ordering::Relaxed)
    }

    /// Writes so far.
    pub fn requests(&self) -> u64 {
        self.requests.load(Ordering::Relaxed)
    }

    fn count(&self, op: BioOp, len: u64) {
        if op == BioOp::Write {
            self.written.fetch_add(len, Ordering::Relaxed);
            self.requests.fetch_add(1, Ordering::Relaxed);
        }
    }
}

impl BlockDevice for Counted {
    forebay_block::delegate_block_device!(
        [lower] name limits size is_crowded wait_for_capacity read_into extents attach_thread
    );

    fn submit(&self, bio: Bio) {
        self.count(bio.op, bio.len);
        self.lower.submit(bio);
    }

    fn submit_batch(&self, bios: &mut Vec<Bio>) {
        bios.iter().for_each(|bio| self.count(bio.op, bio.len));
        self.lower.submit_batch(bios);
    }

    fn execute(&self, bio: Bio) {
        self.count(bio.op, bio.len);
        self.lower.execute(bio);
    }

    fn write_from(&self, offset: u64, src: &[u8], flags: BioFlags) -> Result<()> {
        self.count(BioOp::Write, src.len() as u64);
        self.lower.write_from(offset, src, flags)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_base::task::BoxFuture;
    use forebay_base::task::block_on;
    use forebay_block::RamDevice;

    struct Crowded(RamDevice, AtomicU64);

    impl BlockDevice for Crowded {
        forebay_block::delegate_block_device!([0] name limits size submit);

        fn is_crowded(&self) -> bool {
            true
        }

        fn wait_for_capacity(&self) -> BoxFuture<'_, ()> {
            self.1.fetch_add(1, Ordering::Relaxed);
            Box::pin(std::future::ready(()))
        }
    }

    /// The story: the wrapper did not pass on that the device below was crowded, so no writer
    /// waited.
    #[test]
    fn crowded_device_delays_writer() {
        let lower = Arc::new(Crowded(RamDevice::new(4096), AtomicU64::new(0)));
        let counted = Counted::new(lower.clone());
        assert!(counted.is_crowded());
        block_on(counted.wait_for_capacity());
        assert_eq!(lower.1.load(Ordering::Relaxed), 1);
    }
}
