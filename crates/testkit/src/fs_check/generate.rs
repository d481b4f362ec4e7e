//! Operations from a seed, biased to collide: few names, few directories, names that exist already,
//! several openers of one file, ranges that meet at block edges and at the far end.
//!
//! Invariants: G1 what is generated depends on the seed, the limits and what was learned, nothing
//! else.
//!
//! No locks.

use super::op::{Make, NAMES, Op, Path, SLOTS, Target, XATTR_NAMES};
use super::run::Outcome;
use forebay_base::world::split_mix;
use forebay_vfs::types::{
    FILE_SIZE_MAX, Fallocate, FileKind, OpenFlags, Privileges, RenameFlags, Seek, SetAttr, SetTime,
    SetXattr, Timestamp,
};

/// What a run may ask for; less where one of the file systems does less than the contract says.
#[derive(Debug, Clone)]
pub struct Limits {
    /// Users and groups of inodes.
    pub owners: Vec<(u32, u32)>,
    /// Largest end of a range, bytes.
    pub size_max: u64,
    /// Longest value of an extended attribute, bytes.
    pub xattr_bytes_max: u32,
    /// Writes may drop privileges, not only keep them.
    pub drop_privileges: bool,
    /// Devices may be made.
    pub devices: bool,
    /// Files without a name can be made.
    pub tmpfile: bool,
    /// How many names of extended attributes are used.
    pub xattr_names: u8,
    /// Deepest path.
    pub depth_max: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            owners: vec![(0, 0), (1000, 1000), (u32::MAX - 1, 7)],
            size_max: FILE_SIZE_MAX,
            xattr_bytes_max: 64 << 10,
            drop_privileges: true,
            devices: true,
            tmpfile: true,
            xattr_names: XATTR_NAMES,
            depth_max: 5,
        }
    }
}

/// Paths remembered.
const KNOWN_MAX: usize = 48;

/// Makes operations.
#[derive(Debug, Clone)]
pub struct OpGen {
    rng: u64,
    limits: Limits,
    /// Paths that something was made at.
    known: Vec<Path>,
}

impl OpGen {
    /// From `seed`.
    pub fn new(seed: u64, limits: Limits) -> Self {
        Self { rng: seed, limits, known: Vec::new() }
    }

    /// Remembers the path that an operation has made (G1).
    pub fn learn(&mut self, op: &Op, outcome: &Outcome) {
        let made = match op {
            Op::Create { path, .. }
            | Op::Mknod { path, .. }
            | Op::Mkdir { path, .. }
            | Op::Symlink { path, .. }
            | Op::Link { to: path, .. }
            | Op::Rename { to: path, .. } => path,
            _ => return,
        };
        if outcome.answer.is_err() || self.known.contains(made) {
            return;
        }
        match self.known.len() < KNOWN_MAX {
            true => self.known.push(made.clone()),
            false => {
                let at = self.below(KNOWN_MAX as u64) as usize;
                self.known[at] = made.clone();
            }
        }
    }

    fn below(&mut self, bound: u64) -> u64 {
        split_mix(&mut self.rng) % bound.max(1)
    }

    fn chance(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }

    fn name(&mut self) -> u8 {
        match self.chance(85) {
            true => self.below(6) as u8,
            false => self.below(u64::from(NAMES)) as u8,
        }
    }

    /// A path that exists, most of the time.
    fn path(&mut self) -> Path {
        if self.chance(80) && !self.known.is_empty() {
            let at = self.below(self.known.len() as u64) as usize;
            return self.known[at].clone();
        }
        self.new_path()
    }

    /// A path whose directory exists, most of the time. Its last name may be any.
    fn new_path(&mut self) -> Path {
        let mut path = match self.chance(75) && !self.known.is_empty() {
            true => {
                let at = self.below(self.known.len() as u64) as usize;
                let mut path = self.known[at].clone();
                if self.chance(50) {
                    path.0.pop();
                }
                path
            }
            false => Path::default(),
        };
        path.0.truncate(self.limits.depth_max - 1);
        let name = self.name();
        path.0.push(name);
        path
    }

    fn slot(&mut self) -> u8 {
        self.below(u64::from(SLOTS)) as u8
    }

    fn target(&mut self) -> Target {
        match self.chance(60) {
            true => Target::Path(self.path()),
            false => Target::Slot(self.slot()),
        }
    }

    fn owner(&mut self) -> (u32, u32) {
        let at = self.below(self.limits.owners.len() as u64) as usize;
        self.limits.owners[at]
    }

    fn perm(&mut self) -> u16 {
        match self.chance(70) {
            true => 0o755,
            false => self.below(0o10_000) as u16,
        }
    }

    fn make(&mut self) -> Make {
        Make { perm: self.perm(), owner: self.owner() }
    }

    fn privileges(&mut self) -> Privileges {
        match self.limits.drop_privileges && self.chance(50) {
            true => Privileges::Drop,
            false => Privileges::Keep,
        }
    }

    /// An offset with at least `len` bytes up to the largest size.
    fn offset(&mut self, len: u64) -> u64 {
        let page = 4096;
        let offset = match self.below(100) {
            0..20 => 0,
            20..45 => self.below(16) * page,
            45..60 => (self.below(16) * page + self.below(3)).saturating_sub(1),
            60..90 => self.below(20 * page),
            90..93 => (1 << 32) - page + self.below(2 * page),
            93..96 => (1 << 40) + self.below(page),
            _ => self.limits.size_max - self.below(2 * page),
        };
        offset.min(self.limits.size_max.saturating_sub(len))
    }

    fn len(&mut self) -> u64 {
        match self.below(100) {
            0..3 => 0,
            3..30 => 1 + self.below(100),
            30..60 => 4096 * (1 + self.below(8)),
            _ => 1 + self.below(30_000),
        }
    }

    fn open_flags(&mut self) -> OpenFlags {
        match self.below(100) {
            0..60 => OpenFlags::READ | OpenFlags::WRITE,
            60..75 => OpenFlags::READ,
            75..85 => OpenFlags::WRITE,
            85..90 => OpenFlags::empty(),
            _ if self.limits.drop_privileges && self.chance(50) => {
                OpenFlags::WRITE | OpenFlags::TRUNCATE
            }
            _ => OpenFlags::WRITE | OpenFlags::TRUNCATE | OpenFlags::KEEP_PRIVILEGES,
        }
    }

    /// The next one.
    pub fn next_op(&mut self) -> Op {
        match self.below(100) {
            0..42 => self.tree_op(),
            42..78 => self.content_op(),
            _ => self.attr_op(),
        }
    }

    fn tree_op(&mut self) -> Op {
        let make = self.make();
        match self.below(100) {
            0..18 => {
                let flags = self.open_flags()
                    | if self.chance(20) { OpenFlags::EXCLUSIVE } else { OpenFlags::empty() };
                Op::Create { path: self.new_path(), make, slot: self.slot(), flags }
            }
            18..32 => Op::Mkdir { path: self.new_path(), make },
            32..36 => Op::Mknod { path: self.new_path(), kind: self.node_kind(), make },
            36..41 => {
                let target_len = match self.chance(90) {
                    true => 1 + self.below(200) as u16,
                    false => 4090 + self.below(10) as u16,
                };
                Op::Symlink { path: self.new_path(), target_len, make }
            }
            41..51 => Op::Link { from: self.target(), to: self.new_path() },
            51..60 => Op::Unlink { path: self.path() },
            60..67 => Op::Rmdir { path: self.path() },
            67..70 if self.limits.tmpfile => {
                let dir = self.path().split().map(|(dir, _)| dir).unwrap_or_default();
                Op::Tmpfile { dir, make, slot: self.slot() }
            }
            70..75 => Op::Readdir { path: self.path() },
            75..78 => Op::Readlink { path: self.path() },
            _ => self.rename(),
        }
    }

    fn node_kind(&mut self) -> FileKind {
        let kinds = if self.limits.devices { 5 } else { 3 };
        [
            FileKind::File,
            FileKind::Fifo,
            FileKind::Socket,
            FileKind::CharDevice,
            FileKind::BlockDevice,
        ][self.below(kinds) as usize]
    }

    fn rename(&mut self) -> Op {
        let flags = match self.below(100) {
            0..65 => RenameFlags::empty(),
            65..75 => RenameFlags::NOREPLACE,
            75..98 => RenameFlags::EXCHANGE,
            _ => RenameFlags::all(),
        };
        let from = self.path();
        let to = match self.below(100) {
            0..45 => self.path(),
            45..60 => {
                let mut below = from.clone();
                below.0.push(self.name());
                below
            }
            60..70 => Path(from.0[..from.0.len().saturating_sub(1)].to_vec()),
            _ => self.new_path(),
        };
        match (from.0.is_empty(), to.0.is_empty()) {
            (false, false) => Op::Rename { from, to, flags },
            _ => Op::Getattr { of: Target::Path(Path::default()) },
        }
    }

    fn content_op(&mut self) -> Op {
        let (slot, len, privileges) = (self.slot(), self.len(), self.privileges());
        let offset = self.offset(len);
        match self.below(100) {
            0..14 => Op::Open { path: self.path(), slot, flags: self.open_flags() },
            14..19 => Op::Close { slot },
            19..37 => Op::Read { slot, offset, len: len as u32 },
            37..65 => {
                let (fill, append) = (split_mix(&mut self.rng), self.chance(30));
                Op::Write { slot, offset, len: len as u32, fill, append, privileges }
            }
            65..78 => {
                let how = match self.below(5) {
                    0 => Fallocate::Allocate { keep_size: false },
                    1 => Fallocate::Allocate { keep_size: true },
                    2 => Fallocate::PunchHole,
                    3 => Fallocate::ZeroRange { keep_size: false },
                    _ => Fallocate::ZeroRange { keep_size: true },
                };
                let far = how == Fallocate::PunchHole && self.chance(10);
                let len = if far { self.limits.size_max - offset } else { len };
                Op::Fallocate { slot, how, offset, len, privileges }
            }
            78..88 => {
                let what = if self.chance(50) { Seek::Data } else { Seek::Hole };
                Op::Seek { slot, what, offset }
            }
            88..93 => {
                let (to, to_offset) = (self.slot(), self.offset(len));
                Op::Copy { from: slot, from_offset: offset, to, to_offset, len }
            }
            93..99 => Op::Sync { slot, data_only: self.chance(50) },
            _ => Op::SyncFs,
        }
    }

    fn attr_op(&mut self) -> Op {
        let of = self.target();
        let name = self.below(u64::from(self.limits.xattr_names)) as u8;
        match self.below(100) {
            0..38 => Op::Setattr { of, set: self.set_attr() },
            38..54 => Op::Getattr { of },
            54..75 => {
                let len = match self.chance(80) {
                    true => self.below(100) as u32,
                    false => self.limits.xattr_bytes_max - self.below(2) as u32,
                };
                let how = match self.below(4) {
                    0 => SetXattr::Create,
                    1 => SetXattr::Replace,
                    _ => SetXattr::Any,
                };
                Op::SetXattr { of, name, len, fill: self.below(256) as u8, how }
            }
            75..83 => Op::GetXattr { of, name },
            83..89 => Op::ListXattr { of },
            89..96 => Op::RemoveXattr { of, name },
            _ => {
                let seconds = if self.chance(30) { 90_000 } else { 1 };
                Op::Wait { seconds }
            }
        }
    }

    fn set_attr(&mut self) -> SetAttr {
        let mut set = SetAttr { privileges: self.privileges(), ..SetAttr::default() };
        match self.below(100) {
            0..25 => set.perm = Some(self.perm()),
            25..45 => {
                let (uid, gid) = self.owner();
                set.uid = self.chance(70).then_some(uid);
                set.gid = self.chance(70).then_some(gid);
            }
            45..80 => set.size = Some(self.offset(0)),
            _ => {
                set.atime = self.set_time();
                set.mtime = self.set_time();
            }
        }
        set
    }

    fn set_time(&mut self) -> Option<SetTime> {
        match self.below(4) {
            0 => None,
            1 => Some(SetTime::Now),
            2 => Some(SetTime::To(Timestamp::new(self.below(1 << 31) as i64, 999_999_999))),
            _ => Some(SetTime::To(Timestamp::new(-(self.below(1 << 30) as i64), 1))),
        }
    }
}
