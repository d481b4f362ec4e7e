//! Lookups of blocks while the content is overwritten, merged, and its old places are used again.
//!
//! No locks.

use crate::checkpoint::How;
use crate::format::place::Place;
use crate::map::lookup::Pin as Pinned;
use crate::map::overlay::{Piece, Where};
use crate::tests::reuse::{create, open, setup, write};
use crate::tests::setup::Setup;
use crate::{OpenOptions, Volume};
use forebay_base::Result;
use forebay_base::world::{World, WorldRef};
use forebay_block::{BioOp, DeviceRef};
use forebay_sim::{Fault, FaultRule, SimDisk};
use forebay_vfs::{FileKind, FileSystem, Ino, Name, NewInode, OpenFileRef, OpenFlags};
use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

const BLOCK: usize = 4096;
/// Blocks of the file: those of a segment.
const BLOCKS: usize = 16;
/// The byte in content of other files.
const OTHER: u8 = 0xee;

/// A file with the byte 1 in each block, in the tree of a volume that has no node in memory.
struct Fixture {
    disk: SimDisk,
    volume: Volume,
    file: OpenFileRef,
    data_id: u64,
}

impl Fixture {
    async fn new(disk: &SimDisk) -> Self {
        let setup = Setup { inode_cache_bytes: 8 << 20, ..setup(0) };
        {
            let volume = open(&setup, disk).await.unwrap();
            let (_, file) = create(&volume, "f").await.unwrap();
            write(&file, 0, &[1; BLOCKS * BLOCK]).await.unwrap();
            // Names, so that the tree is not a single node.
            let new = NewInode::of(FileKind::File, 0o644);
            for n in 0..100 {
                let text = format!("f{n}");
                volume.mknod(Ino::ROOT, Name::new(text.as_bytes()).unwrap(), &new).await.unwrap();
            }
            drop(file);
            volume.close().await.unwrap();
        }
        let (device, world): (DeviceRef, WorldRef) = (Arc::new(disk.clone()), disk.world().clone());
        let options = OpenOptions { node_cache_bytes: 0, ..setup.options(&world) };
        let volume = Volume::open(&device, &world, &options).await.unwrap();
        let ino = volume.lookup(Ino::ROOT, Name::new(b"f").unwrap()).await.unwrap().ino;
        let file = volume.open(ino, OpenFlags::READ | OpenFlags::WRITE).await.unwrap();
        let data_id = volume.0.state.lock().names().node(ino.0).unwrap().inode.data_id;
        Self { disk: disk.clone(), volume, file, data_id }
    }

    /// Overwrites the file with this byte. Its old segment becomes free, and another file uses all
    /// free segments. That file is then removed.
    async fn overwrite(&self, fill: u8) {
        write(&self.file, 0, &[fill; BLOCKS * BLOCK]).await.unwrap();
        self.file.sync(true).await.unwrap();
        for _ in 0..2 {
            self.volume.0.checkpoints.make_and_free(How::Log).await.unwrap();
        }
        let (_, other) = create(&self.volume, "other").await.unwrap();
        for n in 0..8 {
            write(&other, (n * BLOCKS * BLOCK) as u64, &[OTHER; BLOCKS * BLOCK]).await.unwrap();
            other.sync(true).await.unwrap();
        }
        drop(other);
        self.volume.unlink(Ino::ROOT, Name::new(b"other").unwrap()).await.unwrap();
        self.volume.syncfs().await.unwrap();
        for _ in 0..2 {
            self.volume.0.checkpoints.make_and_free(How::Log).await.unwrap();
        }
    }

    /// The first bytes on the device of a piece that is found.
    fn bytes_of(&self, piece: &Piece) -> [u8; 2] {
        let Where::Run(at) = piece.at else { panic!("{piece:?}") };
        let at = |block: u64| {
            let offset = at.offset + (block * BLOCK as u64) as u32;
            let offset = self.volume.0.layout.device_offset(Place::new(at.segment, offset));
            self.disk.peek(offset, 1)[0]
        };
        [at(0), at(piece.blocks - 1)]
    }
}

type Looked = Result<(Piece, Option<Pinned>)>;

async fn poll_once<F: Future<Output = Looked>>(mut future: Pin<&mut F>) -> Poll<Looked> {
    poll_fn(|cx| Poll::Ready(future.as_mut().poll(cx))).await
}

/// Looks up the first block and overwrites the file after `polls` polls. Returns the piece with its
/// pin, and whether the lookup was still in progress then.
async fn looked_up(on: &Fixture, polls: usize) -> (Piece, Option<Pinned>, bool) {
    on.disk.inject(FaultRule::on(BioOp::Read, Fault::Slow(1_000_000)).sticky());
    let mut looks = pin!(on.volume.0.piece_at(on.data_id, 0));
    let mut found = None;
    for _ in 0..polls {
        if let Poll::Ready(done) = poll_once(looks.as_mut()).await {
            found = Some(done.unwrap());
            break;
        }
        World::sleep(&**on.disk.world(), Duration::from_micros(300)).await;
    }
    on.disk.heal();
    let was_open = found.is_none();
    if was_open {
        on.overwrite(2).await;
    }
    let (piece, pin) = match found {
        Some(found) => found,
        None => looks.await.unwrap(),
    };
    (piece, pin, was_open)
}

/// lookup.M21: during a lookup in the tree the file is overwritten and merged, and its old segment
/// and nodes are used again. The lookup finds content that the file had during the call. Its answer
/// ends before blocks with newer content in memory.
#[test]
fn m21_lookup_answers_what_records_say_during_call() {
    let mut met = 0;
    for polls in 0..100 {
        let disk = setup(0).blank();
        let was_open = disk.world().run(async {
            let on = Fixture::new(&disk).await;
            let (piece, _pin, was_open) = looked_up(&on, polls).await;
            let fill = if was_open { 2 } else { 1 };
            assert_eq!(on.bytes_of(&piece), [fill; 2], "M21: after {polls} polls");
            was_open
        });
        disk.world().stop();
        met += u32::from(was_open);
        if !was_open {
            break;
        }
    }
    assert!(met > 3, "{met} lookups were in progress");
    let disk = setup(0).blank();
    disk.world().run(async {
        let on = Fixture::new(&disk).await;
        write(&on.file, 3 * BLOCK as u64, &[2; BLOCK]).await.unwrap();
        on.file.sync(true).await.unwrap();
        let mut block = 0;
        for (blocks, fill) in [(3, 1), (1, 2)] {
            let (piece, _pin) = on.volume.0.piece_at(on.data_id, block).await.unwrap();
            assert_eq!((piece.blocks, on.bytes_of(&piece)), (blocks, [fill; 2]), "M21: {block}");
            block += blocks;
        }
    });
    disk.world().stop();
}

/// lookup.M22: while the caller of a lookup has the pin, the place that it found is not used again,
/// although the file is overwritten and checkpoints are made. That holds for a place from the tree
/// and for one from the changes in memory. Without the pin it is used again.
#[test]
fn m22_found_place_is_not_reused_while_pinned() {
    for (polls, is_pinned) in [(0, true), (1, true), (2, true), (50, true), (50, false)] {
        let disk = setup(0).blank();
        disk.world().run(async {
            let on = Fixture::new(&disk).await;
            let (piece, pin, was_open) = looked_up(&on, polls).await;
            assert_eq!(was_open, polls < 50);
            let pin = pin.filter(|_| is_pinned);
            let before = on.bytes_of(&piece);
            on.overwrite(3).await;
            on.overwrite(4).await;
            assert_eq!(on.bytes_of(&piece) == before, is_pinned, "M22: after {polls} polls");
            drop(pin);
        });
        disk.world().stop();
    }
    let disk = setup(0).blank();
    disk.world().run(async {
        let on = Fixture::new(&disk).await;
        write(&on.file, 0, &[5; BLOCKS * BLOCK]).await.unwrap();
        on.file.sync(true).await.unwrap();
        let (piece, pin) = on.volume.0.piece_at(on.data_id, 0).await.unwrap();
        on.overwrite(3).await;
        on.overwrite(4).await;
        assert_eq!(on.bytes_of(&piece), [5; 2], "M22: it was in memory");
        drop(pin);
    });
    disk.world().stop();
}
