//! A fresh volume on a device: in memory, simulated slow, or a file on the disk.

use super::strategies::BANDWIDTH;
use crate::harness::image::Image;
use crate::harness::options::Options;
use crate::rivals::counted::Counted;
use forebay_base::Result;
use forebay_base::task::block_on;
use forebay_base::world::{RealWorld, WorldRef};
use forebay_block::{BlockDevice, DeviceRef, Engine, FileDevice, FileOptions, RamDevice};
use forebay_cache::{Config, PageCache};
use forebay_lfs::{AllocMode, CreateOptions, OpenOptions, Volume};
use forebay_testkit::target::{DelayDevice, DelayOptions};
use forebay_vfs::{Clock, SystemClock};
use std::sync::Arc;
use std::time::Duration;

/// Time that the slow device adds for each discontiguity.
pub const SEEK: Duration = Duration::from_millis(1);
/// Size of each volume's cache, bytes.
const BUDGET: u64 = 128 << 20;

/// A device on which volumes are made and opened.
pub struct Fixture {
    pub world: WorldRef,
    device: Arc<Counted>,
    delay: Option<Arc<DelayDevice>>,
    /// Removes the image when the fixture is dropped.
    _image: Option<Image>,
}

impl Fixture {
    fn on(world: WorldRef, lower: DeviceRef, delay: Option<Arc<DelayDevice>>) -> Self {
        let device = Counted::new(lower);
        Self { world, device, delay, _image: None }
    }

    /// A device in memory.
    pub fn memory(size: u64) -> Self {
        Self::on(RealWorld::new(), Arc::new(RamDevice::new(size)), None)
    }

    /// A device in memory with 100 MB/s and 1 ms for each discontiguity, one request at a time. The
    /// delays use the clock of `world`.
    pub fn slow(size: u64, world: WorldRef) -> Self {
        let options =
            DelayOptions { bandwidth: Some(BANDWIDTH), seek: SEEK, ..DelayOptions::default() };
        let delay = DelayDevice::new(Arc::new(RamDevice::new(size)), &world, options);
        Self::on(world, delay.clone(), Some(delay))
    }

    /// A fully written file on the disk to be measured.
    pub fn disk(options: &Options, size: u64) -> Result<Self> {
        let image = Image::create(&options.dir, "alloc", size, options.keep)?;
        let engine = Engine::new(options.aio.parse()?)?;
        let file = FileDevice::open(image.path(), &FileOptions::default(), &engine)?;
        let fixture = Self::on(RealWorld::new(), file, None);
        Ok(Self { _image: Some(image), ..fixture })
    }

    /// Writes to the device so far.
    pub fn writes(&self) -> u64 {
        self.device.requests()
    }

    /// Discontiguities so far; `None` except on the slow device.
    pub fn seeks(&self) -> Option<u64> {
        self.delay.as_ref().map(|delay| delay.seeks())
    }

    fn device(&self) -> DeviceRef {
        self.device.clone()
    }

    /// Makes an empty volume.
    pub async fn make(&self) -> Result<()> {
        // Large devices get the default segment size, small ones smaller segments that still hold
        // windows of two requests.
        let segment = match self.device.size() {
            size @ 0x8000_0000.. => forebay::segment_for(size).into(),
            size => (size / 32).max(64 << 10),
        };
        let now = SystemClock.now();
        let mut nonce = [0; 16];
        nonce[..8].copy_from_slice(&self.world.random().to_le_bytes());
        let options = CreateOptions {
            segment_bytes: 1 << segment.ilog2(),
            ..CreateOptions::new([1; 16], nonce, now)
        };
        Volume::create(&self.device(), &self.world, &options).await
    }

    /// Opens the volume with an empty cache.
    pub async fn open(&self, alloc: AllocMode, pages: u32, lock_points: bool) -> Result<Volume> {
        let config = Config { huge_pages: false, ..Config::with_budget(BUDGET) };
        let options = OpenOptions {
            cache: Some(PageCache::new(config, self.world.clone())?),
            alloc,
            serialized_dio_pages: pages,
            lock_points,
            ..OpenOptions::default()
        };
        Volume::open(&self.device(), &self.world, &options).await
    }

    /// [`Fixture::make`] and [`Fixture::open`] for a synchronous caller.
    pub fn fresh(&self, alloc: AllocMode, pages: u32) -> Result<Volume> {
        block_on(async {
            self.make().await?;
            self.open(alloc, pages, false).await
        })
    }
}
