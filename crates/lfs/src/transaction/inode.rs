//! Attributes of inodes in memory, and times that a later sync writes.
//!
//! Lock: the state lock, held by the caller.

use crate::format::inode::Inode;
use crate::names::inode::{attr_of, timestamp};
use crate::names::lookup::Tried;
use crate::names::node::Node;
use crate::transaction::state::State;
use forebay_base::ErrorKind;
use forebay_vfs::rules::refuse;
use forebay_vfs::{Attr, Ino};

impl State {
    /// Returns the inode, or `Stale` if it does not exist any more.
    pub fn get(&self, op: &'static str, ino: Ino) -> Tried<&Node> {
        match self.look(ino.0)? {
            Some(node) => Ok(node),
            None => refuse(ErrorKind::Stale, op, format!("{ino:?}")),
        }
    }

    /// The attributes, with a size that may not be written out yet.
    pub fn attr(&self, op: &'static str, ino: Ino) -> Tried<Attr> {
        let node = match self.names.node(ino.0) {
            Some(node) => {
                node.looked_at.set(true);
                node
            }
            None => match self.in_window(ino.0) {
                Some(inode) => return Ok(attr_of(ino, &inode, self.stored_of(&inode, inode.size))),
                None => self.get(op, ino)?,
            },
        };
        let attr = attr_of(ino, &node.inode, self.stored_bytes(node));
        let written = node.content.as_ref().and_then(|content| content.times.written());
        let [mtime, ctime] = [attr.mtime, attr.ctime].map(|at| written.map_or(at, timestamp));
        Ok(Attr { size: node.live_size().unwrap_or(attr.size), mtime, ctime, ..attr })
    }

    /// Changes times of an inode, which a later sync must write (state.S14).
    pub fn move_times(&mut self, ino: Ino, set: impl FnOnce(&mut Inode)) {
        self.names.move_times(ino.0, set);
    }
}
