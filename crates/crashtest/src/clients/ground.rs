//! What runs of several clients begin with.
//!
//! No locks.

use super::client::{DIRECTORY, path};
use super::file::IMAGE;
use super::history::{FileHistory, fill};
use crate::workload::{Base, Ground, Setup, all_kept};
use forebay_base::buf::AlignedBuf;
use forebay_base::sim_world::SimWorld;
use forebay_base::world::WorldRef;
use forebay_base::{Error, IoFlags};
use forebay_block::DeviceRef;
use forebay_lfs::Volume;
use forebay_sim::{SimConfig, SimDisk};
use forebay_testkit::mem_fs::MemFs;
use forebay_vfs::{FileKind, FileSystem, Ino, Name, NewInode, OpenFlags, Privileges};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Bytes of a raw image.
pub const IMAGE_BYTES: u64 = 64 << 10;
/// The first pattern of the initial content of files.
const FIRST_IDS: u8 = 240;

impl Ground {
    /// A volume with two directories and four files, everything durable.
    ///
    /// # Errors
    /// What the volume says.
    pub fn volume(setup: &Setup) -> Result<Base, Error> {
        let disk = setup.blank()?;
        let world = disk.world().clone();
        let device: DeviceRef = Arc::new(disk.clone());
        let asked: WorldRef = world.clone();
        let options = setup.options(&asked)?;
        let (mut names, mut files) = (BTreeMap::new(), BTreeMap::new());
        let made = world.run(async {
            let volume = Volume::open(&device, &asked, &options).await?;
            let new = NewInode::of(FileKind::Directory, 0o755);
            let dirs = [Ino::ROOT, volume.mkdir(Ino::ROOT, Name::new(DIRECTORY)?, &new).await?.ino];
            for (n, at) in (0..).zip([(0, 0), (0, 1), (1, 0), (1, 2)]) {
                let (id, size) = (FIRST_IDS + n, [9_001, 700, 16_384, 0][usize::from(n)]);
                let mut buf = AlignedBuf::new(size);
                fill(id, 0, &mut buf);
                let (new, full) = (NewInode::of(FileKind::File, 0o644), path(at));
                let name = Name::new(&full[full.len() - 1..])?;
                let dir = dirs[usize::from(at.0)];
                let made = volume.create(dir, name, &new, OpenFlags::WRITE).await?;
                if size > 0 {
                    made.1.write(0, buf, IoFlags::empty(), Privileges::Keep).await.1?;
                }
                names.insert(at, made.0.ino.0);
                files.insert(made.0.ino.0, (id, size as u64));
            }
            volume.close().await
        });
        world.stop();
        let ground = Self { names, files, ..Self::default() };
        made.map(|()| Base { disk: all_kept(&disk), fs: MemFs::default(), ground })
    }

    /// A raw image full of one pattern.
    pub fn image(setup: &Setup) -> Base {
        let config = SimConfig { size: IMAGE_BYTES, sector: setup.sector, ..SimConfig::default() };
        let disk = SimDisk::new(SimWorld::new(setup.seed), config);
        let mut bytes = vec![0; IMAGE_BYTES as usize];
        fill(FIRST_IDS, 0, &mut bytes);
        disk.poke(0, &bytes);
        let files = BTreeMap::from([(IMAGE, (FIRST_IDS, IMAGE_BYTES))]);
        let ground = Self { files, ..Self::default() };
        Base { disk: all_kept(&disk), fs: MemFs::default(), ground }
    }

    /// The histories that files begin with.
    pub fn histories(&self) -> BTreeMap<u64, FileHistory> {
        let of = |(ino, (id, size)): (&u64, &(u8, u64))| (*ino, FileHistory::new(*id, *size));
        let left = self.left.iter().map(|(ino, content)| (*ino, content.clone()));
        let left = left.map(|(ino, content)| (ino, FileHistory::of(FIRST_IDS, content)));
        self.files.iter().map(of).chain(left).collect()
    }
}
