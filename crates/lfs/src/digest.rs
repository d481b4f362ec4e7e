//! One number for all that a recovery finds: for tests and tools.
//!
//! Locks: the state lock in turn; none across a wait.

use crate::format::inode::INODE_BYTES;
use crate::format::item::Item;
use crate::format::key::Key;
use crate::pending::Where;
use crate::volume::Inner;
use forebay_base::Result;
use forebay_base::codec::Writer;
use forebay_base::world::split_mix;

/// A running digest.
struct Digest(u64);

impl Digest {
    fn word(&mut self, word: u64) {
        let mut word = self.0 ^ word;
        self.0 = split_mix(&mut word);
    }

    fn bytes(&mut self, bytes: &[u8]) {
        self.word(bytes.len() as u64);
        for chunk in bytes.chunks(8) {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            self.word(u64::from_le_bytes(word));
        }
    }
}

impl Inner {
    /// Names, attributes, and where each block is. The same whatever part of it is in the tree.
    pub(crate) async fn digest(&self) -> Result<u64> {
        let (mut digest, mut data_ids) = (Digest(0), Vec::new());
        for (key, value) in self.names().await? {
            digest.bytes(key.as_slice());
            let key = Key::decode(key.as_slice())?;
            match Item::decode(key, &value, &self.layout.geometry)? {
                Item::Inode(mut inode) => {
                    inode.stored_bytes = 0;
                    data_ids.extend(Some(inode.data_id).filter(|data_id| *data_id != 0));
                    let mut bytes = [0; INODE_BYTES];
                    inode.encode_into(&mut Writer::new("digest", &mut bytes))?;
                    digest.bytes(&bytes);
                }
                _ => digest.bytes(&value),
            }
        }
        {
            let state = self.state.lock();
            state.orphans.iter().for_each(|ino| digest.word(*ino));
            digest.word(state.next_ino);
            digest.word(state.next_data_id);
        }
        data_ids.sort_unstable();
        let block_bytes = self.layout.block_bytes();
        for data_id in data_ids {
            digest.word(data_id);
            let mut block = 0;
            while block < self.layout.geometry.max_blocks() {
                let (piece, _pin) = self.piece_at(data_id, block).await?;
                if let Where::Run(place) = piece.at {
                    for n in 0..piece.blocks {
                        digest.word(block + n);
                        digest.word(u64::from(place.segment));
                        digest.word(u64::from(place.offset) + n * block_bytes);
                        digest.word(piece.birth);
                        digest.word(piece.own_sums().get(n as usize).map_or(0, |s| u64::from(*s)));
                    }
                }
                block = block.saturating_add(piece.blocks);
            }
        }
        Ok(digest.0)
    }
}
