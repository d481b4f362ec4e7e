//! Source and destination of `cp`: a trait to read a tree and one to write it. A folder of the host
//! and a volume implement both.

use forebay_base::Result;
use forebay_vfs::{Attr, FileKind, Timestamp};

/// Extended attributes: name and value.
pub type Xattrs = Vec<(Vec<u8>, Vec<u8>)>;

/// What is copied of an inode in addition to its content.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Meta {
    /// What it is.
    pub kind: FileKind,
    /// Permission, set-id and sticky bits.
    pub perm: u16,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Device number of a device.
    pub rdev: u32,
    /// Bytes.
    pub size: u64,
    /// Names it has.
    pub nlink: u64,
    /// Identity of the inode: on the host device and inode number, in a volume generation and inode
    /// number.
    pub id: (u64, u64),
    /// Last read.
    pub atime: Timestamp,
    /// Last change of the content.
    pub mtime: Timestamp,
}

impl From<&Attr> for Meta {
    fn from(attr: &Attr) -> Self {
        Self {
            kind: attr.kind,
            perm: attr.perm,
            uid: attr.uid,
            gid: attr.gid,
            rdev: attr.rdev,
            size: attr.size,
            nlink: attr.nlink.into(),
            id: (attr.generation, attr.ino.0),
            atime: attr.atime,
            mtime: attr.mtime,
        }
    }
}

/// A tree. Symbolic links are never followed.
pub trait Side {
    /// Something in it.
    type Node: Clone;
    /// An open file.
    type Content: Content;

    /// For people.
    fn show(&self, node: &Self::Node) -> String;
    /// What is known of it.
    fn meta(&self, node: &Self::Node) -> Result<Meta>;
    /// Adds the names in a directory; after an error `names` has those that were read before it.
    fn names(&self, dir: &Self::Node, names: &mut Vec<Vec<u8>>) -> Result<()>;
    /// The node of a name in a directory; `None`: there is no such name.
    fn child(&self, dir: &Self::Node, name: &[u8]) -> Result<Option<Self::Node>>;
    /// Text of a symbolic link.
    fn read_link(&self, node: &Self::Node) -> Result<Vec<u8>>;
    /// All extended attributes.
    fn xattrs(&self, node: &Self::Node) -> Result<Xattrs>;
    /// Opens a regular file to read.
    fn open(&self, node: &Self::Node) -> Result<Self::Content>;

    /// Makes a directory, a symbolic link to `target`, or a special file.
    fn make(&self, dir: &Self::Node, name: &[u8], meta: &Meta, target: &[u8])
    -> Result<Self::Node>;
    /// Makes an empty regular file, which must not be there, and opens it to write.
    fn create(&self, dir: &Self::Node, name: &[u8]) -> Result<(Self::Node, Self::Content)>;
    /// One more name.
    fn link(&self, node: &Self::Node, dir: &Self::Node, name: &[u8]) -> Result<()>;
    /// Removes a name of anything but a directory.
    fn remove(&self, dir: &Self::Node, name: &[u8]) -> Result<()>;
    /// Sets an extended attribute; `Unsupported` for one that is not kept here.
    fn set_xattr(&self, node: &Self::Node, name: &[u8], value: &[u8]) -> Result<()>;
    /// Sets permissions, times, and the owner where that is allowed.
    fn set_meta(&self, node: &Self::Node, meta: &Meta) -> Result<()>;
    /// Everything is durable.
    fn sync(&self) -> Result<()>;
}

/// An open file. It leaves nothing in a volume's cache.
pub trait Content {
    /// Reads; fewer bytes than asked for only at the end.
    fn read(&mut self, buf: &mut [u8], offset: u64) -> Result<usize>;
    /// The first run of data from `offset` on, within `size` bytes: its start and end.
    fn data(&mut self, offset: u64, size: u64) -> Result<Option<(u64, u64)>>;
    /// Writes all of it.
    fn write(&mut self, buf: &[u8], offset: u64) -> Result<()>;
    /// Sets the size.
    fn set_len(&mut self, size: u64) -> Result<()>;
}
