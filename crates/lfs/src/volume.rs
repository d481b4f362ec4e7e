//! A volume: created, opened, and shared by its users.
//!
//! [`crate::recover::open`] describes how an opening finds the volume.
//!
//! Locks: see the documentation of the crate.

pub(crate) mod digest;
pub(crate) mod extents;
pub(crate) mod fsck;
pub(crate) mod grow;
pub(crate) mod info;
mod jobs;
mod listing;
pub(crate) mod maintenance;
pub(crate) mod open_file;
pub(crate) mod status;
mod tried;
pub(crate) mod vfs;

use crate::btree::{NodeCache, Tree};
use crate::checkpoint::{Checkpoints, How};
use crate::clean::Cleaner;
use crate::device::layout::Layout;
use crate::device::slots;
use crate::fault::Planted;
use crate::files::open_files::OpenFiles;
use crate::format::change::Change;
use crate::format::extent::Extent;
use crate::format::features::{Access, Features, SHORT_EXTENTS};
use crate::format::inode::{FileType, Inode, ROOT_INO, Time};
use crate::format::place::{Geometry, Place, SumAlgorithm};
use crate::format::superblock::{
    FILES_TREE, FIRST_FREE_TREE, KEY_AREA_BYTES, SLOT_BYTES, SLOTS, STATE_CLEAN, Superblock,
    TreeRoot, USAGE_TREE,
};
use crate::format::{COUNT_MAX, corrupt};
use crate::log::staging::Staging;
use crate::log::{Head, Log};
use crate::names::name_cache::Remembered;
use crate::recover::open::{First, Frees, Opened, find, fresh_head};
use crate::recover::repair::Repair;
use crate::recover::rollforward::{Found, Replay};
use crate::space::Need;
use crate::space::admission::AcceptedContent;
use crate::space::alloc::Allocator;
use crate::space::nodes::VolumeStore;
use crate::space::usage_table::usage_nodes;
use crate::transaction::cleaning::Cleaning;
use crate::transaction::memory::Memory;
use crate::transaction::options::OpenOptions;
use crate::transaction::resources::Resources;
use crate::transaction::state::State;
use crate::transaction::state_lock::StateLock;
use crate::volume::maintenance::Maintenance;
use forebay_base::buf::DataRef;
use forebay_base::sync::atomic::AtomicBool;
use forebay_base::task::WaitQueue;
use forebay_base::units::MIB;
use forebay_base::world::WorldRef;
use forebay_base::{Error, ErrorKind, Result};
use forebay_block::{BioFlags, BioOp, DeviceRef, io};
use forebay_vfs::Timestamp;
use std::ops::Deref;
use std::sync::{Arc, Weak};

/// The fewest segments of a volume: three kept ones, two for the tree, one for each other stream,
/// and some to fill.
const SEGMENTS_MIN: u64 = 10;

/// The options for creating a volume.
#[derive(Debug, Clone)]
pub struct CreateOptions {
    /// Bytes of a block: a power of two from 512 to 4096, and at least a block of the device.
    pub block_bytes: u32,
    /// Bytes of a segment: a power of two from 64 KiB to 1 GiB.
    pub segment_bytes: u32,
    /// Blocks of files have checksums.
    pub sums: bool,
    /// Extents are stored in a shorter form. A program that does not know this feature cannot open
    /// the volume.
    pub short_extents: bool,
    /// Identifies the volume among all volumes.
    pub uuid: [u8; 16],
    /// A random secret of the volume. Checksums include it, so that blocks written by users do not
    /// pass for structures of the volume.
    pub nonce: [u8; 16],
    /// The time of creation.
    pub now: Timestamp,
}

impl CreateOptions {
    /// The default options: 4 KiB blocks, 64 MiB segments, checksums, short extents.
    pub fn new(uuid: [u8; 16], nonce: [u8; 16], now: Timestamp) -> Self {
        let (block_bytes, segment_bytes, sums, short_extents) = (4096, 64 << 20, true, true);
        Self { block_bytes, segment_bytes, sums, short_extents, uuid, nonce, now }
    }

    fn geometry(&self) -> Result<Geometry> {
        let powers = self.block_bytes.is_power_of_two() && self.segment_bytes.is_power_of_two();
        let geometry = Geometry {
            block_shift: self.block_bytes.trailing_zeros() as u8,
            node_shift: 12,
            segment_shift: self.segment_bytes.trailing_zeros() as u8,
            sum: if self.sums { SumAlgorithm::Crc32c } else { SumAlgorithm::None },
            incompat: if self.short_extents { SHORT_EXTENTS } else { 0 },
        };
        match geometry.check("volume") {
            Ok(()) if powers => Ok(geometry),
            _ => {
                let (block, segment) = (self.block_bytes, self.segment_bytes);
                let text = format!("blocks of {block} in segments of {segment} bytes");
                Err(Error::new(ErrorKind::InvalidInput, "create", text))
            }
        }
    }
}

/// What the users of an open volume share.
pub(crate) struct Inner {
    pub resources: Arc<Resources>,
    pub files: Arc<OpenFiles>,
    pub checkpoints: Arc<Checkpoints>,
    pub cleaner: Cleaner,
    pub maintenance: Arc<Maintenance>,
    pub me: Weak<Inner>,
    /// Leaves are being read ahead for a client that scans inodes in order.
    pub is_reading_on: AtomicBool,
    /// The damage of the log, on a volume that is opened read-only.
    pub damage: Option<Error>,
    pub names: Remembered,
}

impl Deref for Inner {
    type Target = Resources;

    fn deref(&self) -> &Resources {
        &self.resources
    }
}

/// The trees of a volume, and the store of their nodes.
pub(crate) struct Parts {
    pub tree: Tree,
    store: Arc<VolumeStore>,
}

impl Parts {
    /// For a volume whose device has blocks of `align` bytes.
    pub fn of(
        device: &DeviceRef,
        superblock: &Superblock,
        align: u32,
        options: &OpenOptions,
    ) -> Self {
        let layout = Layout::of(superblock, align);
        let store = Arc::new(VolumeStore::new(device.clone(), layout));
        let cache = Arc::new(NodeCache::new(options.node_cache_bytes));
        let tree = Tree::new(store.clone(), cache, superblock.geometry, layout.seal);
        Self { tree, store }
    }
}

/// A volume before it is served.
struct Recovered {
    volume: Volume,
    /// The log has no records after the checkpoint.
    is_clean: bool,
    /// The checkpoint that comes first.
    first: First,
}

/// An open volume. Clones share it.
#[derive(Clone)]
pub struct Volume(pub(crate) Arc<Inner>);

/// Groups of records on this device are padded to a multiple of this many bytes.
pub(crate) fn align_of(device: &DeviceRef) -> u32 {
    let limits = device.limits();
    limits.logical_block.max(limits.physical_block).clamp(512, 4096)
}

impl Volume {
    /// Creates an empty volume on the whole device. The content of the device is lost.
    pub async fn create(
        device: &DeviceRef,
        world: &WorldRef,
        options: &CreateOptions,
    ) -> Result<()> {
        let superblock = new_superblock(device.size(), options)?;
        if device.limits().logical_block > options.block_bytes {
            let text = format!("blocks of {} bytes are below the device's", options.block_bytes);
            return Err(Error::new(ErrorKind::InvalidInput, "create", text));
        }
        slots::wipe(device, superblock.recorded_end_bytes).await?;
        flush(device).await?;
        let layout = Layout::of(&superblock, align_of(device));
        let mut state = State::new(layout);
        let nowhere = |_: &Extent<'_>| Err(corrupt("create", "there is no content"));
        state.apply(&Change::CreateInode(ROOT_INO, root(options.now), &[]), &nowhere)?;
        let mut head = Head { segment: None, ..Head::of(&superblock) };
        fresh_head(&mut state, &mut head)?;
        let opened = Opened { found: Found::clean(state, head), usage: Vec::new(), is_clean: true };
        let options = OpenOptions::default();
        let parts = Parts::of(device, &superblock, layout.align, &options);
        let volume = Self::assemble(device, world, &options, (&superblock, opened), parts).await?;
        volume.0.checkpoints.make(How::Fresh).await?;
        // All slots say that no log follows, whichever of them an opening reads.
        let mut superblock = volume.0.checkpoints.superblock();
        superblock.state = STATE_CLEAN;
        for checkpoint in 2..=u64::from(SLOTS / 2) + 1 {
            superblock.checkpoint = checkpoint;
            slots::write(device, &superblock).await?;
        }
        flush(device).await
    }

    /// Opens a volume. It first recovers the volume if that is necessary.
    pub async fn open(device: &DeviceRef, world: &WorldRef, options: &OpenOptions) -> Result<Self> {
        let options = &options.shared();
        let mut replay = if options.read_only { Replay::Complete } else { Replay::FirstPart };
        // What this opening frees next, and what it has freed.
        let (mut changes_peak, mut frees, mut freed) = (0, Frees::Nothing, Frees::Nothing);
        loop {
            let found = Self::recover(device, world, options, (replay, frees), changes_peak).await;
            let Recovered { volume, is_clean, first } = match found {
                Err(error) if error.kind() == ErrorKind::NoSpace && frees == Frees::Nothing => {
                    frees = freed.next().ok_or(error)?;
                    continue;
                }
                found => found?,
            };
            changes_peak = volume.0.memory.replay_peak();
            if options.read_only {
                volume.0.state.lock().open_for_reading();
                return Ok(volume);
            }
            // New nodes are written over those of older checkpoints. If a power loss took the slot
            // that was just read, an older checkpoint would be the newest (open.O11).
            if !is_clean && !options.plant.has(Planted::UnflushedRecovery) {
                flush(device).await.map_err(for_reading)?;
            }
            let made = match first {
                First::None if is_clean => volume.0.checkpoints.begin_life().await,
                First::None => volume.0.checkpoints.make(How::Fresh).await,
                First::Repeat => volume.0.checkpoints.repeat().await,
                First::Part => volume.0.checkpoints.make(How::Replayed).await,
                First::Whole => volume.0.checkpoints.make_and_free(How::Replayed).await,
            };
            match (first, made) {
                (First::None, Ok(())) => {
                    volume.remove_orphans().await;
                    return Ok(volume);
                }
                (First::Part, Ok(())) => replay = Replay::LaterPart,
                (First::Repeat | First::Whole, Ok(())) => {
                    (frees, freed) = (Frees::Nothing, frees);
                }
                // The segments that the rest of the log names leave too few free ones: the log is
                // replayed in memory. That would not help if the host lacks space.
                (First::Part, Err(error)) if volume.has_run_out(&error) => {
                    replay = Replay::Complete;
                }
                (First::None, Err(error)) if volume.has_run_out(&error) => {
                    frees = freed.next().ok_or(error).map_err(for_reading)?;
                    log::warn!("{}: too little space for an opening: {frees:?}", device.name());
                }
                (_, Err(error)) => return Err(for_reading(error)),
            }
        }
    }

    /// Whether a checkpoint failed because the volume itself has too few free segments.
    fn has_run_out(&self, error: &Error) -> bool {
        let has_run_out = self.0.state.lock().space().segments().has_run_out;
        error.kind() == ErrorKind::NoSpace && has_run_out
    }

    /// Finds the newest checkpoint and replays the log behind it, or a part of it. `changes_peak`:
    /// the most bytes that changes took in earlier parts. `frees`: what is to become free first.
    async fn recover(
        device: &DeviceRef,
        world: &WorldRef,
        options: &OpenOptions,
        (replay, frees): (Replay, Frees),
        changes_peak: u64,
    ) -> Result<Recovered> {
        let mut doubtful = 0;
        let (superblock, older, hidden) = match options.passed_over {
            n if n > 0 && options.read_only => (slots::read_older(device, n).await?, None, None),
            _ if options.read_only => slots::read_newest_to_read(device).await?,
            _ => {
                let (newest, older, number) = slots::read_newest_to_write(device).await?;
                doubtful = number;
                (newest, older, None)
            }
        };
        match superblock.access()? {
            Access::ReadOnly(why) if !options.read_only => {
                return Err(Error::new(ErrorKind::ReadOnly, "open", why));
            }
            _ => {}
        }
        check_numbers(&superblock)?;
        if superblock.recorded_end_bytes > device.size() {
            let (end, size) = (superblock.recorded_end_bytes, device.size());
            let text = format!("the volume ends at {end}, the device at {size}");
            return Err(Error::new(ErrorKind::Corrupt, "open", text));
        }
        let (block, logical) = (superblock.geometry.block_bytes(), device.limits().logical_block);
        if logical > block {
            let text = format!("blocks of {block} bytes on a device with blocks of {logical}");
            return Err(Error::new(ErrorKind::Unsupported, "open", text));
        }
        let layout = Layout::of(&superblock, align_of(device));
        let parts = Parts::of(device, &superblock, layout.align, options);
        let slots = (&superblock, older.as_ref());
        let found = find(device, &parts.tree, slots, layout, options, replay).await;
        let mut opened = match options.read_only {
            true => found?,
            false => found.map_err(for_reading)?,
        };
        if let Some(hidden) = hidden {
            opened.found.damage.get_or_insert(hidden);
        }
        let first = match options.read_only {
            true => First::None,
            false => opened.prepare(device, superblock.checkpoint, options.plant, frees)?,
        };
        let is_clean = opened.is_clean;
        opened.found.changes_peak = opened.found.changes_peak.max(changes_peak);
        let volume = Self::assemble(device, world, options, (&superblock, opened), parts).await?;
        volume.0.checkpoints.doubt_slots(doubtful);
        Ok(Recovered { volume, is_clean, first })
    }

    async fn assemble(
        device: &DeviceRef,
        world: &WorldRef,
        options: &OpenOptions,
        (superblock, opened): (&Superblock, Opened),
        parts: Parts,
    ) -> Result<Self> {
        let Opened { mut found, usage, .. } = opened;
        let domain = options.cache.as_ref().map(|cache| cache.dirty.domain(None));
        found.state.bound_changes(options.overlay_bytes);
        let accepted = Arc::new(AcceptedContent::of(domain.clone()));
        found.state.serve(options.discard && device.limits().discard, accepted);
        let Found { state, head, damage, changes_peak, .. } = found;
        let layout = *state.layout();
        let nodes = usage_nodes(layout.segments, layout.geometry, layout.seal).await?;
        let Parts { tree, store } = parts;
        let staging = Arc::new(Staging::new(device.clone(), options.plant));
        let resources = Arc::new_cyclic(|me: &Weak<Resources>| Resources {
            device: device.clone(),
            world: world.clone(),
            options: options.clone(),
            layout,
            sequence: state.counters().sequence(),
            tickets: state.queue().tickets(),
            has_outstanding: state.files().outstanding().flag(),
            has_sync_errors: state.files().sync_errors().flag(),
            state: StateLock::new(state, staging.clone()),
            log: forebay_base::sync::Arc::new(Log::new(head)),
            repair: Box::new(Repair(me.clone())),
            alloc: Allocator::new(options.alloc, options.serialized_dio_pages, options.lock_points),
            staging,
            memory: Memory::new(options, changes_peak),
            plant: options.plant,
            tree,
            store,
            requests: Arc::default(),
            cleaning: Cleaning::default(),
            is_ageing: AtomicBool::new(false),
            is_stopped: AtomicBool::new(false),
            reservation_ended: WaitQueue::new(),
            me: me.clone(),
        });
        let files = OpenFiles::new(resources.clone(), domain);
        let checkpoints =
            Arc::new(Checkpoints::new(files.clone(), superblock.clone(), usage, nodes));
        let inner = Arc::new_cyclic(|me: &Weak<Inner>| Inner {
            maintenance: Maintenance::new(resources.requests.clone()),
            cleaner: Cleaner::new(checkpoints.clone()),
            resources,
            files,
            checkpoints,
            me: me.clone(),
            is_reading_on: AtomicBool::new(false),
            damage,
            names: Remembered::default(),
        });
        let owner: Weak<Checkpoints> = Arc::downgrade(&inner.checkpoints);
        inner.store.attach(owner);
        let maintainer: Weak<Inner> = inner.me.clone();
        inner.requests.attach(maintainer);
        Ok(Self(inner))
    }

    /// Removes the orphans: inodes without a name that were open before the volume was last closed
    /// or crashed. A failed removal does not fail the opening. It is tried again when there is
    /// space, or by the next opening.
    async fn remove_orphans(&self) {
        let orphans: Vec<u64> = self.0.state.lock().names().orphans().iter().copied().collect();
        for ino in orphans {
            let removed = self.0.tried(|state, _| {
                let Some(data_id) = state.look(ino)?.map(|node| node.inode.data_id) else {
                    let text = format!("#{ino} is said to have no name, and is not there");
                    return Err(corrupt("remove orphan", text).into());
                };
                let change = Change::RemoveInode(ino, data_id, state.draw());
                state.try_append(&[change], Need::Urgent).map(drop)
            });
            if let Err(error) = removed.await {
                log::warn!("#{ino} without a name stays for now: {error}");
                self.0.state.lock().retry_removal(ino);
            }
        }
    }

    /// A digest of everything that a recovery of the current state would find. For tests and tools.
    pub async fn digest(&self) -> Result<u64> {
        self.0.digest().await
    }

    /// Makes a checkpoint. A recovery need not read the log before it.
    pub async fn checkpoint(&self) -> Result<()> {
        self.0.checkpoints.make(How::Log).await
    }

    /// Makes everything durable, and writes slots that say so if nothing is changed concurrently.
    /// Then the next opening has no log to read, and the volume accepts no change any more. A
    /// caller that needs to know the result calls this before it drops the last reference. A failed
    /// close must be tried again. Until it succeeds the volume may already refuse changes.
    pub async fn close(&self) -> Result<()> {
        if self.0.options.read_only {
            self.0.files.near.clear(&self.0.files);
            return Ok(());
        }
        if self.0.checkpoints.is_closing() {
            self.0.checkpoints.make(How::Close).await?;
        }
        // Accepted content may need the space that the cleaner makes.
        self.0.files.sync_everything().await?;
        let _stopped = self.0.cleaner.stop().await;
        while self.0.plant.has(Planted::CloseRepeats) {
            self.0.checkpoints.make(How::Log).await?;
        }
        self.0.checkpoints.make(How::Close).await?;
        self.0.files.near.clear(&self.0.files);
        Ok(())
    }
}

/// Adds to the error of an opening that the volume can be opened read-only, if it is corrupt.
fn for_reading(error: Error) -> Error {
    if error.kind() != ErrorKind::Corrupt {
        return error;
    }
    let text = format!("{error}; it can be opened for reading, as far as it is intact");
    let told = Error::new(error.kind(), "open", text);
    match error.range() {
        Some((offset, len)) => told.with_range(offset, len),
        None => told,
    }
}

/// Refuses a slot that contains a number above [`COUNT_MAX`].
fn check_numbers(superblock: &Superblock) -> Result<()> {
    let Superblock { checkpoint, generation, log_sequence, next_sequence, .. } = *superblock;
    let Superblock { inode_count, next_ino, next_data_id, next_tree, .. } = *superblock;
    let numbers = [checkpoint, generation, log_sequence, next_sequence];
    let more = [inode_count, next_ino, next_data_id, next_tree];
    match numbers.iter().chain(&more).max() {
        Some(most) if *most > COUNT_MAX => {
            Err(corrupt("superblock slot", "a number that counts up is out of range"))
        }
        _ => Ok(()),
    }
}

async fn flush(device: &DeviceRef) -> Result<()> {
    io(&**device, BioOp::Flush, 0, 0, DataRef::None, BioFlags::SYNC).await.result
}

fn root(now: Timestamp) -> Inode {
    let now = Time { seconds: now.sec, nanos: now.nsec };
    Inode {
        mode: (FileType::Directory as u32) << 12 | 0o755,
        uid: 0,
        gid: 0,
        nlink: 2,
        flags: 0,
        data_id: 0,
        size: 0,
        stored_bytes: 0,
        rdev: 0,
        parent: ROOT_INO,
        version: 0,
        atime: now,
        mtime: now,
        ctime: now,
        btime: now,
    }
}

pub(crate) fn new_superblock(size: u64, options: &CreateOptions) -> Result<Superblock> {
    let geometry = options.geometry()?;
    let slots = u64::from(SLOTS / 2) * SLOT_BYTES as u64;
    let segment_bytes = u64::from(geometry.segment_bytes());
    let data_start_bytes = if segment_bytes >= 16 * MIB { MIB } else { slots };
    let recorded_end_bytes = size / SLOT_BYTES as u64 * SLOT_BYTES as u64;
    let room = recorded_end_bytes.saturating_sub(data_start_bytes + slots);
    let segments = room / segment_bytes;
    if segments < SEGMENTS_MIN || segments > u64::from(u32::MAX / 2) {
        let text = format!("{size} bytes are {segments} segments of {segment_bytes} bytes");
        return Err(Error::new(ErrorKind::InvalidInput, "create", text));
    }
    let empty = |tree| TreeRoot { tree, places: None, birth: 0, sum: 0, level: 0, since: 0 };
    let nanos = i128::from(options.now.sec) * 1_000_000_000 + i128::from(options.now.nsec);
    Ok(Superblock {
        slot: 0,
        features: Features { incompat: geometry.incompat, ..Features::default() },
        uuid: options.uuid,
        nonce: options.nonce,
        geometry,
        state: 0,
        checkpoint: 0,
        generation: 1,
        log_head: Place::new(0, 0),
        log_sequence: 1,
        log_predecessor: 0,
        data_start_bytes,
        recorded_end_bytes,
        segment_count: segments as u32,
        inode_count: 0,
        next_ino: 1,
        next_data_id: 1,
        next_tree: FIRST_FREE_TREE,
        next_sequence: 1,
        arena_uuid: [0; 16],
        arena_generation: 0,
        created_ns: i64::try_from(nanos).unwrap_or(i64::MAX),
        key_area: [0; KEY_AREA_BYTES],
        trees: vec![empty(FILES_TREE), empty(USAGE_TREE)],
    })
}
