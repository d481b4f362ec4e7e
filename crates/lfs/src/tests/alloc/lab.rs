//! A volume in the simulated world, and writers on it.
//!
//! No locks.

use crate::space::alloc::{AllocMode, AllocStats};
use crate::{CreateOptions, OpenOptions, Volume};
use forebay_base::buf::AlignedBuf;
use forebay_base::sim_world::SimWorld;
use forebay_base::task::{BoxFuture, oneshot};
use forebay_base::world::WorldRef;
use forebay_base::{IoFlags, Result};
use forebay_block::DeviceRef;
use forebay_cache::{Config, PageCache};
use forebay_sim::{SimConfig, SimDisk};
use forebay_vfs::{
    FileKind, FileSystem, Ino, ManualClock, Name, NewInode, OpenFileRef, OpenFlags, Privileges,
    Timestamp,
};
use std::sync::Arc;

pub const KIB: u64 = 1 << 10;
/// Bytes of a segment.
pub const SEGMENT: u64 = 4 << 20;
/// A large request: the first window of a stream.
pub const LARGE: u64 = 128 * KIB;
pub const DIRECT: IoFlags = IoFlags::DIRECT;
pub const BUFFERED: IoFlags = IoFlags::empty();
pub const READ_WRITE: OpenFlags = OpenFlags::READ.union(OpenFlags::WRITE);

/// A simulated disk with a volume, and how the tests open it.
pub struct Lab {
    pub disk: SimDisk,
    pub device: DeviceRef,
    pub mode: AllocMode,
    pub pages: u32,
}

impl Lab {
    /// An empty volume of `segments` segments.
    pub fn new(seed: u64, segments: u64, mode: AllocMode) -> Self {
        let size = (1 << 20) + segments * SEGMENT;
        let disk = SimDisk::new(SimWorld::new(seed), SimConfig { size, ..SimConfig::default() });
        let lab = Self { device: Arc::new(disk.clone()), disk, mode, pages: 64 };
        let options = CreateOptions {
            segment_bytes: SEGMENT as u32,
            ..CreateOptions::new([5; 16], [6; 16], Timestamp::new(1, 0))
        };
        let world = lab.world();
        lab.disk.world().run(Volume::create(&lab.device, &world, &options)).unwrap();
        lab
    }

    pub fn world(&self) -> WorldRef {
        self.disk.world().clone()
    }

    /// Opens the volume with the allocation strategy of this lab.
    pub async fn open(&self) -> Volume {
        let world = self.world();
        let config = Config { huge_pages: false, ..Config::with_budget(24 << 20) };
        let options = OpenOptions {
            clock: Arc::new(ManualClock::default()),
            cache: Some(PageCache::new(config, world.clone()).unwrap()),
            alloc: self.mode,
            serialized_dio_pages: self.pages,
            lock_points: true,
            // All content goes into data runs, none into log records.
            inline_max: 0,
            ..OpenOptions::default()
        };
        Volume::open(&self.device, &world, &options).await.unwrap()
    }

    /// Does `work` on the open volume, and ends the world.
    pub fn run<T>(&self, work: impl AsyncFnOnce(Volume) -> T) -> T {
        let done = self.disk.world().run(async { work(self.open().await).await });
        self.disk.world().stop();
        done
    }

    /// Runs the tasks concurrently; returns their results in order.
    pub async fn run_concurrently<T: Send + 'static>(
        &self,
        tasks: Vec<BoxFuture<'static, T>>,
    ) -> Vec<T> {
        run_concurrently(&self.world(), tasks).await
    }
}

/// Runs the tasks concurrently in `world`; returns their results in order.
pub async fn run_concurrently<T: Send + 'static>(
    world: &WorldRef,
    tasks: Vec<BoxFuture<'static, T>>,
) -> Vec<T> {
    let mut waiting = Vec::new();
    for task in tasks {
        let (tx, rx) = oneshot();
        world.spawn("writer", Box::pin(async move { tx.send(task.await) }));
        waiting.push(rx);
    }
    let mut done = Vec::new();
    for rx in waiting {
        done.push(rx.await.expect("a writer ends"));
    }
    done
}

pub async fn create(volume: &Volume, name: &str) -> (Ino, OpenFileRef) {
    let name = Name::new(name.as_bytes()).unwrap();
    let new = NewInode::of(FileKind::File, 0o644);
    let (attr, file) = volume.create(Ino::ROOT, name, &new, READ_WRITE).await.unwrap();
    (attr.ino, file)
}

/// Bytes that differ for each tag and offset.
pub fn bytes(tag: u64, offset: u64, len: u64) -> AlignedBuf {
    let mut buf = AlignedBuf::new(len as usize);
    for (n, word) in buf.chunks_exact_mut(8).enumerate() {
        word.copy_from_slice(&(tag << 48 ^ (offset + 8 * n as u64)).to_le_bytes());
    }
    buf
}

pub async fn write(
    file: &OpenFileRef,
    tag: u64,
    offset: u64,
    len: u64,
    flags: IoFlags,
) -> Result<()> {
    let (buf, done) = file.write(offset, bytes(tag, offset, len), flags, Privileges::Keep).await;
    assert_eq!(buf.len() as u64, len, "the buffer comes back");
    done.map(|done| assert_eq!(done.len as u64, len))
}

/// Asserts that a range holds what [`write()`] wrote.
pub async fn verify(file: &OpenFileRef, tag: u64, offset: u64, len: u64) {
    let (buf, read) = file.read(offset, AlignedBuf::new(len as usize), BUFFERED).await;
    assert_eq!(read.unwrap() as u64, len);
    assert!(buf[..] == bytes(tag, offset, len)[..], "content of {tag} at {offset}");
}

/// A writer that appends `count` requests of `len` bytes to its own file; returns the inode.
pub fn appends(
    volume: &Volume,
    tag: u64,
    count: u64,
    len: u64,
    flags: IoFlags,
) -> BoxFuture<'static, Ino> {
    let volume = volume.clone();
    Box::pin(async move {
        let (ino, file) = create(&volume, &format!("w{tag}")).await;
        for n in 0..count {
            write(&file, tag, n * len, len, flags).await.unwrap();
        }
        for n in 0..count {
            verify(&file, tag, n * len, len).await;
        }
        ino
    })
}

/// Extents of each of these files.
pub async fn extents(volume: &Volume, inodes: &[Ino]) -> Vec<u64> {
    let mut counts = Vec::new();
    for ino in inodes {
        counts.push(volume.extents(*ino).await.unwrap().len() as u64);
    }
    counts
}

/// Extents for each direct request.
pub fn per_request(stats: &AllocStats) -> f64 {
    stats.direct_extents as f64 / stats.direct_requests as f64
}
