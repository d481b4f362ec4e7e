//! Which thread writes out.

use crate::dir::{cache_on, config};
use forebay::{Aio, IoFlags, OpenOptions};
use forebay_block::{Bio, BioOp, BlockDevice, RamDevice, delegate_block_device};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// A device in memory that notes the names of the threads that submit writes.
struct Noting {
    ram: RamDevice,
    names: Mutex<Vec<String>>,
}

impl BlockDevice for Noting {
    delegate_block_device!([ram] name limits size);
    fn submit(&self, bio: Bio) {
        if bio.op == BioOp::Write {
            let name = std::thread::current().name().unwrap_or_default().to_string();
            self.names.lock().unwrap().push(name);
        }
        self.ram.submit(bio);
    }
}

/// With io_uring the flusher has a thread with a ring of its own, and otherwise one of the threads
/// of background tasks. The story: each request went through the ring's thread, and so did each
/// answer.
#[test]
fn flusher_submits_from_a_thread_with_a_ring() {
    for (aio, wanted) in [(Aio::IoUring, "forebay-flush-"), (Aio::Threads, "forebay-bg-")] {
        let Some(cache) = cache_on(config(4 << 20).aio(aio)) else { continue };
        let ram = RamDevice::new(8 << 20);
        let device = Arc::new(Noting { ram, names: Mutex::default() });
        let file = OpenOptions::read_write().open_device(&cache, device.clone()).unwrap();
        cache.tune("dirty_background_bytes", "0").unwrap();
        let deadline = Instant::now() + Duration::from_secs(300);
        while device.names.lock().unwrap().is_empty() {
            assert!(Instant::now() < deadline, "{aio}: nothing was written out");
            file.write_at_with(&[7; 64 << 10], 0, IoFlags::UNCACHED).unwrap();
        }
        let names = device.names.lock().unwrap().clone();
        assert!(names.iter().all(|name| name.starts_with(wanted)), "{aio}: {names:?}");
    }
}
