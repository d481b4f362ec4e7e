//! Behaviours 1, 3 and 4 of docs/reference/behaviours.md on a volume, in the simulated world:
//! exactly the dirty blocks get new places, bytes in flight do not change after their checksum is
//! computed, and uncached requests leave nothing in the cache.
//!
//! No locks.

use crate::map::overlay::Where;
use crate::tests::setup::Setup;
use crate::{CreateOptions, OpenOptions, Volume};
use forebay_base::buf::AlignedBuf;
use forebay_base::sim_world::SimWorld;
use forebay_base::world::{World, WorldRef};
use forebay_base::{ErrorKind, IoFlags};
use forebay_block::DeviceRef;
use forebay_cache::State;
use forebay_cache::strategy::{DirtyTracking, StablePages, StableStrategy, UncachedStrategy};

use forebay_sim::{SimConfig, SimDisk};
use forebay_vfs::{
    FileKind, FileSystem, Ino, Name, NewInode, OpenFileRef, OpenFlags, Privileges, Timestamp,
};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

const BLOCK: u64 = 4096;
const SIZE: u64 = 64 << 10;
const NONE: IoFlags = IoFlags::empty();

/// A volume with one file of sixteen blocks, each full of its number plus one, all durable.
struct Lab {
    disk: SimDisk,
    options: OpenOptions,
    volume: Volume,
    file: OpenFileRef,
}

impl Lab {
    /// A disk with an empty volume, and options that put all content into runs, so that it has a
    /// place.
    fn disk(sums: bool) -> (SimDisk, OpenOptions) {
        let world = SimWorld::new(7);
        let config = SimConfig { size: 4 << 20, ..SimConfig::default() };
        let disk = SimDisk::new(world.clone(), config);
        let (device, asked): (DeviceRef, WorldRef) = (Arc::new(disk.clone()), world.clone());
        let options = CreateOptions {
            segment_bytes: 128 << 10,
            sums,
            ..CreateOptions::new([7; 16], [9; 16], Timestamp::new(1, 0))
        };
        world.run(Volume::create(&device, &asked, &options)).expect("room for a volume");
        world.stop();
        let setup = Setup {
            block_bytes: BLOCK as u32,
            volume_bytes: 4 << 20,
            content: true,
            inline_max: 0,
            inode_cache_bytes: 1 << 20,
            fua: false,
        };
        let options = setup.options(&asked);
        (disk, options)
    }

    async fn new(disk: &SimDisk, options: &OpenOptions) -> Self {
        let (device, world): (DeviceRef, WorldRef) = (Arc::new(disk.clone()), disk.world().clone());
        let volume = Volume::open(&device, &world, options).await.unwrap();
        let (name, new) = (Name::new(b"file").unwrap(), NewInode::of(FileKind::File, 0o644));
        let flags = OpenFlags::READ | OpenFlags::WRITE;
        let (_, file) = volume.create(Ino::ROOT, name, &new, flags).await.unwrap();
        let lab = Self { disk: disk.clone(), options: options.clone(), volume, file };
        for block in 0..SIZE / BLOCK {
            lab.write(block * BLOCK, &[block as u8 + 1; BLOCK as usize], NONE).await;
        }
        lab.sync().await;
        lab
    }

    async fn write(&self, offset: u64, bytes: &[u8], flags: IoFlags) {
        let buf = AlignedBuf::copy_of(bytes);
        let (_, done) = self.file.write(offset, buf, flags, Privileges::Keep).await;
        assert_eq!(done.unwrap().len, bytes.len());
    }

    async fn sync(&self) {
        self.file.sync(true).await.unwrap();
    }

    /// Reads the file after the volume was closed and opened again, with nothing cached.
    async fn read_anew(self) -> Vec<u8> {
        let (disk, options, ino) = (self.disk.clone(), self.options.clone(), self.file.ino());
        drop(self.file);
        self.volume.close().await.unwrap();
        drop(self.volume);
        options.cache.as_ref().unwrap().drop_clean();
        let (device, world): (DeviceRef, WorldRef) = (Arc::new(disk.clone()), disk.world().clone());
        let volume = Volume::open(&device, &world, &options).await.unwrap();
        let file = volume.open(ino, OpenFlags::READ).await.unwrap();
        let (buf, done) = file.read(0, AlignedBuf::new(SIZE as usize), NONE).await;
        assert_eq!(done.expect("every sum matches"), SIZE as usize);
        buf.to_vec()
    }

    /// Where each block is.
    fn places(&self) -> Vec<String> {
        let state = self.volume.0.state.lock();
        let data_id = state.names().node(self.file.ino().0).unwrap().inode.data_id;
        let overlay = state.map().overlay(data_id).unwrap();
        let place = |block| match overlay.look_up(block, BLOCK).map(|piece| piece.at) {
            Ok(Where::Run(place)) => format!("{place:?}"),
            _ => "none".into(),
        };
        (0..SIZE / BLOCK).map(place).collect()
    }

    /// The blocks that have a state in the cache.
    fn blocks(&self, wanted: State) -> BTreeSet<u64> {
        let content = self.volume.0.files.content("test", self.file.ino()).expect("it is a file");
        let (mapping, pages) = (&*content.file.mapping, &*content.file.cache);
        let mut found = BTreeSet::new();
        for index in pages.folios_present(mapping, &(0..SIZE)) {
            let Some(folio) = pages.lock_folio(mapping, index) else { continue };
            let blocks = mapping.blocks_touched(index, &(0..SIZE));
            for run in folio.runs_with(blocks, wanted) {
                let bytes = mapping.range_of(index, run);
                found.extend(bytes.start / BLOCK..bytes.end / BLOCK);
            }
        }
        found
    }
}

fn expected() -> Vec<u8> {
    (0..SIZE).map(|at| (at / BLOCK) as u8 + 1).collect()
}

/// Only written blocks get new places. With tracking by folio other blocks of the folio may get new
/// ones, too.
#[test]
fn d1_volume_gives_new_place_to_touched_blocks_only() {
    let writes = [(0, 4096), (5000, 1), (8191, 2), (20_480, 8192), (65_535, 1)];
    for tracking in [DirtyTracking::Block, DirtyTracking::Folio] {
        let (disk, options) = Lab::disk(true);
        options.cache.as_ref().unwrap().strategies.set_dirty_tracking(tracking);
        disk.world().run(async {
            let lab = Lab::new(&disk, &options).await;
            for (offset, len) in writes {
                let before = lab.places();
                lab.write(offset, &vec![0x99; len as usize], NONE).await;
                lab.sync().await;
                let after = lab.places();
                let moved: Vec<u64> = (0..SIZE / BLOCK)
                    .filter(|b| before[*b as usize] != after[*b as usize])
                    .collect();
                let mut touched = offset / BLOCK..(offset + len).div_ceil(BLOCK);
                if tracking == DirtyTracking::Folio {
                    // A folio has four blocks: its blocks up to the end of the write are dirty.
                    let folio = touched.start / 4 * 4;
                    assert!(
                        moved.first() == Some(&folio)
                            && moved.len() as u64 >= touched.end - touched.start
                    );
                    touched = folio..touched.end.div_ceil(4) * 4;
                    assert!(
                        moved.iter().all(|b| touched.contains(b)),
                        "{tracking:?} {offset}+{len}: {moved:?}"
                    );
                } else {
                    assert_eq!(moved, touched.collect::<Vec<_>>(), "{offset}+{len}");
                }
            }
            let mut want = expected();
            for (offset, len) in writes {
                want[offset as usize..(offset + len) as usize].fill(0x99);
            }
            assert_eq!(lab.read_anew().await, want);
        });
        disk.world().stop();
    }
}

/// Dirty blocks that lie apart in the file get adjacent places on the device.
#[test]
fn d16_volume_writes_separate_dirty_blocks_as_one_run() {
    let (disk, options) = Lab::disk(true);
    disk.world().run(async {
        let lab = Lab::new(&disk, &options).await;
        for block in (0..SIZE / BLOCK).step_by(2) {
            lab.write(block * BLOCK, &[0x55; BLOCK as usize], NONE).await;
        }
        lab.sync().await;
        let state = lab.volume.0.state.lock();
        let data_id = state.names().node(lab.file.ino().0).unwrap().inode.data_id;
        let overlay = state.map().overlay(data_id).unwrap();
        let at = |block| match overlay.look_up(block, BLOCK).map(|piece| piece.at) {
            Ok(Where::Run(place)) => lab.volume.0.layout.device_offset(place),
            _ => panic!("block {block} has no place"),
        };
        let places: Vec<u64> = (0..SIZE / BLOCK).step_by(2).map(at).collect();
        let apart: Vec<u64> = places.windows(2).map(|w| w[1].wrapping_sub(w[0])).collect();
        assert_eq!(apart, vec![BLOCK; apart.len()], "one behind the other on the device");
    });
    disk.world().stop();
}

#[test]
fn x3_volume_reads_writes_and_drops_partly_written_missing_block() {
    for strategy in [UncachedStrategy::Ours, UncachedStrategy::DropBehind] {
        let (disk, options) = Lab::disk(true);
        let cache = options.cache.clone().unwrap();
        cache.strategies.set_uncached(strategy);
        disk.world().run(async {
            let lab = Lab::new(&disk, &options).await;
            cache.drop_clean();
            assert!(lab.blocks(State::Uptodate).is_empty());
            // Writes a part of one block, and, uncached, a part of another block of the same folio.
            lab.write(16_500, &[0xaa; 100], NONE).await;
            let places = lab.places();
            lab.write(20_600, &[0xbb; 100], IoFlags::UNCACHED).await;
            disk.world().sleep(Duration::from_millis(300)).await;
            assert!(!lab.blocks(State::Uptodate).contains(&5), "{strategy}: it goes");
            assert!(lab.blocks(State::Uptodate).contains(&4), "{strategy}: its neighbour stays");
            assert_ne!(lab.places()[5], places[5], "{strategy}: it was written, to a new place");
            lab.sync().await;
            let mut want = expected();
            want[16_500..16_600].fill(0xaa);
            want[20_600..20_700].fill(0xbb);
            assert_eq!(lab.read_anew().await, want, "{strategy}");
        });
        disk.world().stop();
    }
}

/// Uncached blocks are stable until they are dropped, and a writer that uses such a block again
/// while it is in flight obeys the same rule. Else a sum would be of other bytes than were written.
#[test]
fn x5_s2_volume_sums_match_written_bytes_despite_concurrent_writer() {
    for strategy in StableStrategy::ALL {
        let (disk, options) = Lab::disk(true);
        options.cache.as_ref().unwrap().strategies.set_stable(*strategy);
        disk.world().run(async {
            let lab = Lab::new(&disk, &options).await;
            options.cache.as_ref().unwrap().drop_clean();
            let going = IoFlags::UNCACHED | IoFlags::START_WRITEBACK;
            lab.write(0, &[0x11; 4096], going).await;
            assert!(lab.blocks(State::Writing).contains(&0), "{strategy}: it is in flight");
            lab.write(5, &[0x22; 10], NONE).await;
            lab.write(20, &[0x33; 10], IoFlags::UNCACHED).await;
            lab.write(8192, &[0x44; 4096], going).await;
            lab.write(8192, &[0x55; 4096], going).await;
            // A cached block that is overwritten during its write-out.
            lab.write(40_960, &[0x66; 4096], IoFlags::START_WRITEBACK).await;
            lab.write(41_000, &[0x77; 8], NONE).await;
            lab.sync().await;
            assert!(!lab.blocks(State::Uptodate).contains(&2), "{strategy}: dropped when written");
            let mut want = expected();
            want[..4096].fill(0x11);
            want[5..15].fill(0x22);
            want[20..30].fill(0x33);
            want[8192..12_288].fill(0x55);
            want[40_960..45_056].fill(0x66);
            want[41_000..41_008].fill(0x77);
            assert_eq!(lab.read_anew().await, want, "{strategy}");
        });
        assert_eq!(disk.unstable_writes(), 0, "{strategy}");
        disk.world().stop();
    }
}

/// The map decides, not the device: with sums bytes in flight have to be stable, and no setting
/// overrules that.
#[test]
fn s5_off_is_refused_while_sums_are_on() {
    for sums in [true, false] {
        let (disk, options) = Lab::disk(sums);
        disk.world().run(async {
            let lab = Lab::new(&disk, &options).await;
            let content = lab.volume.0.files.content("test", lab.file.ino()).ok().unwrap();
            let need = content.file.stable_need();
            assert_eq!(need.required, sums, "{}", need.reason);
            let off = content.file.set_stable_pages(StablePages::Off);
            assert_eq!(off.err().map(|e| e.kind()), sums.then_some(ErrorKind::Unsupported));
            assert_eq!(content.file.stable_need().required, sums);
            content.file.set_stable_pages(StablePages::On).unwrap();
            assert!(content.file.stable_need().required);
            drop(content);
            assert_eq!(lab.read_anew().await, expected());
        });
        disk.world().stop();
    }
}
