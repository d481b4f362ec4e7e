//! A slot of the superblock: the identity of the volume, its units, and the position of its newest
//! checkpoint.
//!
//! There are eight slots, four at the start and four at the recorded end, which are written in
//! rotation. Each is complete in itself: 4096 bytes under one CRC-32C, whose offset and algorithm
//! are the same in every version.
//!
//! Invariants: B1 a slot contains its own number, so that one written to another's offset is
//! refused. B2 an unknown incompatible feature is reported before any other field is checked. B3
//! counts and shifts are within their limits, so that later code need not check them.
//!
//! No locks, no state.

use super::features::{Access, ENCRYPTION, Features};
use super::place::{Geometry, MAX_SEGMENT, Place, SumAlgorithm, sum_around};
use super::{FORMAT_VERSION, MAX_DATA_ID, corrupt, refused, unsupported};
use forebay_base::Result;
use forebay_base::codec::{Reader, Writer};

/// Length of a slot, bytes.
pub const SLOT_BYTES: usize = 4096;
/// Number of slots, half of them at the start and half at the recorded end.
pub const SLOTS: u32 = 8;
/// Most trees in a slot.
pub const MAX_TREES: usize = 64;
/// Length of the key-derivation area, bytes.
pub const KEY_AREA_BYTES: usize = 128;
/// First eight bytes of a slot.
pub const MAGIC: [u8; 8] = *b"forebay1";
/// The tree of files.
pub const FILES_TREE: u64 = 1;
/// The tree of the usage table.
pub const USAGE_TREE: u64 = 2;
/// The lowest id of further trees.
pub const FIRST_FREE_TREE: u64 = 16;
/// Nothing was written since the checkpoint, because the volume was closed, or is new. There is no
/// log to read.
pub const STATE_CLEAN: u32 = 1;
/// Corruption was found: the volume must not be written until it is repaired.
pub const STATE_DAMAGED: u32 = 2;

const WHAT: &str = "superblock slot";
const SUM_AT: usize = SLOT_BYTES - 4;
const TREES_AT: usize = 512;

/// The root of a tree. An empty tree has no place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TreeRoot {
    /// The tree.
    pub tree: u64,
    /// Places of the two copies of its root node.
    pub places: Option<[Place; 2]>,
    /// Birth of the root: the checkpoint that wrote it.
    pub birth: u64,
    /// Checksum of the root.
    pub sum: u32,
    /// Level of the root; leaves are at 0.
    pub level: u8,
    /// Volume-wide sequence at which the tree was created: it shares older content with the tree
    /// from which it was made.
    pub since: u64,
}

/// One slot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Superblock {
    /// Number of this slot, 0 to 7.
    pub slot: u32,
    /// Feature masks.
    pub features: Features,
    /// Globally unique id of the volume.
    pub uuid: [u8; 16],
    /// Secret that seeds seals and the hashes of names.
    pub nonce: [u8; 16],
    /// Units; `incompat` equals the mask in `features`.
    pub geometry: Geometry,
    /// [`STATE_CLEAN`], [`STATE_DAMAGED`].
    pub state: u32,
    /// Number of the checkpoint: of the valid slots the one with the highest number counts.
    pub checkpoint: u64,
    /// Raised by each opening for writing; records of another generation do not continue the log.
    pub generation: u64,
    /// Start of roll-forward: the place of the first record that the checkpoint does not contain.
    pub log_head: Place,
    /// Checksum of the last record in the checkpoint, the predecessor of the record at `log_head`.
    pub log_predecessor: u32,
    /// Sequence of the record at `log_head`.
    pub log_sequence: u64,
    /// Device offset of logical segment 0, bytes.
    pub data_start_bytes: u64,
    /// End of the volume on the device, bytes: the last four slots lie before it.
    pub recorded_end_bytes: u64,
    /// Number of segments.
    pub segment_count: u32,
    /// Number of inodes.
    pub inode_count: u64,
    /// Lowest unused inode number.
    pub next_ino: u64,
    /// Lowest unused data id.
    pub next_data_id: u64,
    /// Lowest unused tree id.
    pub next_tree: u64,
    /// Lowest unused number of the volume-wide sequence of content.
    pub next_sequence: u64,
    /// Arena that was retained for the volume; zeros: none.
    pub arena_uuid: [u8; 16],
    /// Generation of that arena.
    pub arena_generation: u64,
    /// Time of creation of the volume, nanoseconds since 1970.
    pub created_ns: i64,
    /// Parameters of key derivation; zeros without [`ENCRYPTION`].
    pub key_area: [u8; KEY_AREA_BYTES],
    /// The trees, in order of their ids.
    pub trees: Vec<TreeRoot>,
}

/// Device offsets of the slots of a volume with this recorded end, bytes.
pub fn slot_offsets(recorded_end_bytes: u64) -> [u64; SLOTS as usize] {
    let half = u64::from(SLOTS) / 2;
    let bytes = SLOT_BYTES as u64;
    std::array::from_fn(|slot| match slot as u64 {
        slot if slot < half => slot * bytes,
        slot => recorded_end_bytes.saturating_sub((u64::from(SLOTS) - slot) * bytes),
    })
}

impl Superblock {
    /// Writes the slot into 4096 bytes.
    ///
    /// Fails with `InvalidInput` for a slot that [`decode`](Self::decode) would call damaged. Does
    /// not check the features.
    pub fn encode_into(&self, out: &mut [u8]) -> Result<()> {
        if out.len() != SLOT_BYTES {
            return Err(refused(WHAT, format!("room for {} bytes", out.len())));
        }
        self.check().map_err(|e| refused(WHAT, e.to_string()))?;
        let mut w = Writer::new(WHAT, out);
        self.encode_identity(&mut w)?;
        self.encode_checkpoint(&mut w)?;
        w.zeros("reserved", TREES_AT - w.position())?;
        for root in &self.trees {
            root.encode_into(&mut w)?;
        }
        w.zeros("reserved", SUM_AT - w.position())?;
        w.u32("sum", 0)?;
        let sum = sum_around(0, w.written(), SUM_AT);
        w.patch_u32("sum", SUM_AT, sum)
    }

    fn encode_identity(&self, w: &mut Writer<'_>) -> Result<()> {
        w.bytes("magic", &MAGIC)?;
        w.u32("version", FORMAT_VERSION)?;
        w.u32("slot", self.slot)?;
        self.features.encode_into(w)?;
        w.bytes("uuid", &self.uuid)?;
        w.bytes("nonce", &self.nonce)?;
        w.u8("sum algorithm", self.geometry.sum.code())?;
        w.u8("sum width", self.geometry.sum.width() as u8)?;
        w.u8("block shift", self.geometry.block_shift)?;
        w.u8("node shift", self.geometry.node_shift)?;
        w.u8("segment shift", self.geometry.segment_shift)?;
        w.zeros("reserved", 3)?;
        w.u32("state", self.state)?;
        w.u32("trees", self.trees.len() as u32)
    }

    fn encode_checkpoint(&self, w: &mut Writer<'_>) -> Result<()> {
        w.u64("checkpoint", self.checkpoint)?;
        w.u64("generation", self.generation)?;
        self.log_head.encode_into("log head", w)?;
        w.u64("log sequence", self.log_sequence)?;
        w.u32("log predecessor", self.log_predecessor)?;
        w.u32("segments", self.segment_count)?;
        w.u64("data start", self.data_start_bytes)?;
        w.u64("recorded end", self.recorded_end_bytes)?;
        w.u64("inodes", self.inode_count)?;
        w.u64("next inode", self.next_ino)?;
        w.u64("next data id", self.next_data_id)?;
        w.u64("next tree", self.next_tree)?;
        w.u64("next sequence", self.next_sequence)?;
        w.bytes("arena uuid", &self.arena_uuid)?;
        w.u64("arena generation", self.arena_generation)?;
        w.i64("created", self.created_ns)?;
        w.bytes("key area", &self.key_area)
    }

    /// Reads the slot at the offset of slot number `slot`.
    ///
    /// `Corrupt` if it is not a valid slot; `Unsupported`, with their names, for another version
    /// and for unknown incompatible features.
    pub fn decode(bytes: &[u8], slot: u32) -> Result<Self> {
        let mut r = Reader::new(WHAT, bytes);
        if r.bytes("magic", 8)? != MAGIC {
            return Err(r.bad("magic", "this is no superblock slot"));
        }
        if bytes.len() != SLOT_BYTES {
            return Err(corrupt(WHAT, format!("{} bytes instead of {SLOT_BYTES}", bytes.len())));
        }
        let stored = Reader::new(WHAT, &bytes[SUM_AT..]).u32("sum")?;
        let sum = sum_around(0, bytes, SUM_AT);
        if stored != sum {
            let text = format!("the checksum is {sum:#010x}, at offset {SUM_AT} is {stored:#010x}");
            return Err(corrupt(WHAT, text));
        }
        let version = r.u32("version")?;
        if version != FORMAT_VERSION {
            return Err(unsupported(WHAT, format!("format version {version}")));
        }
        let number = r.u32("slot")?;
        let features = Features::decode(&mut r)?;
        features.access()?;
        if number != slot {
            return Err(r.bad("slot", &format!("slot {number} lies at the place of slot {slot}")));
        }
        let this = Self::decode_rest(&mut r, slot, features)?;
        this.check()?;
        Ok(this)
    }

    fn decode_rest(r: &mut Reader<'_>, slot: u32, features: Features) -> Result<Self> {
        let (uuid, nonce) = (r.array("uuid")?, r.array("nonce")?);
        let sum = SumAlgorithm::from_code(WHAT, r.u8("sum algorithm")?)?;
        if usize::from(r.u8("sum width")?) != sum.width() {
            return Err(r.bad("sum width", "is not that of the algorithm"));
        }
        let geometry = Geometry {
            block_shift: r.u8("block shift")?,
            node_shift: r.u8("node shift")?,
            segment_shift: r.u8("segment shift")?,
            sum,
            incompat: features.incompat,
        };
        r.zeros("reserved", 3)?;
        let state = r.u32("state")?;
        let tree_count = r.u32("trees")? as usize;
        if tree_count > MAX_TREES {
            return Err(r.bad("trees", &format!("{tree_count} is over {MAX_TREES}")));
        }
        let mut this = Self {
            slot,
            features,
            uuid,
            nonce,
            geometry,
            state,
            checkpoint: r.u64("checkpoint")?,
            generation: r.u64("generation")?,
            log_head: Place::decode("log head", r)?,
            log_sequence: r.u64("log sequence")?,
            log_predecessor: r.u32("log predecessor")?,
            segment_count: r.u32("segments")?,
            data_start_bytes: r.u64("data start")?,
            recorded_end_bytes: r.u64("recorded end")?,
            inode_count: r.u64("inodes")?,
            next_ino: r.u64("next inode")?,
            next_data_id: r.u64("next data id")?,
            next_tree: r.u64("next tree")?,
            next_sequence: r.u64("next sequence")?,
            arena_uuid: r.array("arena uuid")?,
            arena_generation: r.u64("arena generation")?,
            created_ns: r.i64("created")?,
            key_area: r.array("key area")?,
            trees: Vec::with_capacity(tree_count),
        };
        r.zeros("reserved", TREES_AT - r.position())?;
        for _ in 0..tree_count {
            this.trees.push(TreeRoot::decode(r)?);
        }
        r.zeros("reserved", SUM_AT - r.position())?;
        Ok(this)
    }

    /// The permitted access to the volume.
    pub fn access(&self) -> Result<Access> {
        if self.state & STATE_DAMAGED != 0 {
            return Ok(Access::ReadOnly("corruption was found before".into()));
        }
        self.features.access()
    }

    /// The root of a tree.
    pub fn tree(&self, tree: u64) -> Option<&TreeRoot> {
        self.trees.iter().find(|root| root.tree == tree)
    }

    /// Checks all invariants between the fields.
    fn check(&self) -> Result<()> {
        self.geometry.check(WHAT)?;
        let bad = |why: &str| Err(corrupt(WHAT, why));
        if self.slot >= SLOTS {
            return bad("field `slot`: there are eight");
        }
        if self.geometry.incompat != self.features.incompat {
            return bad("the units are of other features");
        }
        if self.state & !(STATE_CLEAN | STATE_DAMAGED) != 0 {
            return bad("field `state`: unknown bits");
        }
        if self.segment_count == 0 || self.segment_count > MAX_SEGMENT {
            return bad("field `segments`: out of range");
        }
        if self.log_head.segment >= self.segment_count {
            return bad("field `log head`: beyond the last segment");
        }
        if self.log_head.offset >= self.geometry.segment_bytes() {
            return bad("field `log head`: beyond the end of its segment");
        }
        let ids = [self.next_ino, self.next_data_id, self.next_sequence, self.log_sequence];
        if ids.contains(&0) || self.next_data_id > MAX_DATA_ID || self.next_tree < FIRST_FREE_TREE {
            return bad("an id to be given out next is out of range");
        }
        if self.features.incompat & ENCRYPTION == 0 && self.key_area != [0; KEY_AREA_BYTES] {
            return bad("field `key area`: in use without encryption");
        }
        self.check_ends()?;
        self.check_trees()
    }

    /// Checks that slots, segments and slots follow in this order, without overlap.
    fn check_ends(&self) -> Result<()> {
        let half = u64::from(SLOTS) / 2 * SLOT_BYTES as u64;
        let segments = u64::from(self.segment_count) << self.geometry.segment_shift;
        let end = self.data_start_bytes.checked_add(segments).and_then(|end| end.checked_add(half));
        if self.data_start_bytes < half || end.is_none_or(|end| end > self.recorded_end_bytes) {
            return Err(corrupt(WHAT, "slots and segments do not fit before the recorded end"));
        }
        Ok(())
    }

    fn check_trees(&self) -> Result<()> {
        if self.trees.len() > MAX_TREES {
            return Err(corrupt(WHAT, "field `trees`: too many"));
        }
        if !self.trees.is_sorted_by(|a, b| a.tree < b.tree) {
            return Err(corrupt(WHAT, "trees out of order"));
        }
        for root in &self.trees {
            for place in root.places.into_iter().flatten() {
                if place.segment >= self.segment_count {
                    return Err(corrupt(WHAT, "a root beyond the last segment"));
                }
                self.geometry.check_run(WHAT, place, self.geometry.node_bytes() as u64)?;
            }
        }
        Ok(())
    }
}

impl TreeRoot {
    fn encode_into(&self, w: &mut Writer<'_>) -> Result<()> {
        w.u64("tree", self.tree)?;
        Place::encode_option(self.places.map(|p| p[0]), "root", w)?;
        Place::encode_option(self.places.map(|p| p[1]), "second root", w)?;
        w.u64("root birth", self.birth)?;
        w.u32("root sum", self.sum)?;
        w.u8("root level", self.level)?;
        w.zeros("reserved", 3)?;
        w.u64("tree since", self.since)
    }

    fn decode(r: &mut Reader<'_>) -> Result<Self> {
        let tree = r.u64("tree")?;
        let first = Place::decode_option("root", r)?;
        let second = Place::decode_option("second root", r)?;
        let places = match (first, second) {
            (Some(first), Some(second)) => Some([first, second]),
            (None, None) => None,
            _ => return Err(r.bad("second root", "there is one copy of two")),
        };
        let (birth, sum, level) = (r.u64("root birth")?, r.u32("root sum")?, r.u8("root level")?);
        r.zeros("reserved", 3)?;
        Ok(Self { tree, places, birth, sum, level, since: r.u64("tree since")? })
    }
}
