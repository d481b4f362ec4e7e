//! A digest of everything that a recovery finds, for tests and tools.
//!
//! Locks: the state lock, taken briefly. No lock is held across a wait.

use crate::btree::Cursor;
use crate::fault::Planted;
use crate::format::extent::Source;
use crate::format::inode::INODE_BYTES;
use crate::format::item::Item;
use crate::format::key::Key;
use crate::map::overlay::Where;
use crate::volume::Inner;
use forebay_base::Result;
use forebay_base::codec::Writer;
use forebay_base::task::yield_now;
use forebay_base::world::split_mix;

/// The digest so far.
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
    /// The digest of names, attributes, the place of each block, and the stored bytes that the next
    /// checkpoint will record. It does not depend on which part of this is in the tree.
    pub(crate) async fn digest(&self) -> Result<u64> {
        let (mut digest, mut data_ids) = (Digest(0), Vec::new());
        while self.plant.has(Planted::DigestRepeats) {
            self.names().await?;
            yield_now().await;
        }
        for (key, value) in self.names().await? {
            digest.bytes(key.as_slice());
            let key = Key::decode(key.as_slice())?;
            match Item::decode(key, &value, &self.layout.geometry)? {
                Item::Inode(mut inode) => {
                    // This value is from the last checkpoint. The value of the next checkpoint
                    // follows with the content.
                    let said = std::mem::take(&mut inode.stored_bytes);
                    data_ids.extend((inode.data_id != 0).then_some((inode.data_id, said)));
                    let mut bytes = [0; INODE_BYTES];
                    inode.encode_into(&mut Writer::new("digest", &mut bytes))?;
                    digest.bytes(&bytes);
                }
                _ => digest.bytes(&value),
            }
        }
        {
            let state = self.state.lock();
            state.names().orphans().iter().for_each(|ino| digest.word(*ino));
            digest.word(state.counters().next_ino());
            digest.word(state.counters().next_data_id());
        }
        data_ids.sort_unstable();
        let block_bytes = self.layout.block_bytes();
        for (data_id, said) in data_ids {
            digest.word(data_id);
            let (mut block, mut stored) = (0, 0);
            while block < self.layout.geometry.max_blocks() {
                let (piece, _pin) = self.piece_at(data_id, block).await?;
                if let Where::Run(place) = piece.at {
                    stored += piece.blocks * block_bytes;
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
            digest.word(self.said_next(data_id, said, stored).await?);
        }
        Ok(digest.0)
    }

    /// The stored bytes that the next checkpoint records for a data id. The last checkpoint
    /// recorded `said`, and the extents now have `stored` bytes. It adds new extents and subtracts
    /// the ones that they replace.
    async fn said_next(&self, data_id: u64, said: u64, stored: u64) -> Result<u64> {
        let root = {
            let state = self.state.lock();
            if state.map().overlays(data_id).next().is_none() {
                return Ok(said);
            }
            state.tree().root()
        };
        let mut before = 0;
        let keys = [data_id, data_id + 1].map(|data_id| Key::Extent(data_id, 0));
        let mut extents = Cursor::new(keys[0], Some(keys[1]));
        while let Some(found) = extents.next(&self.tree, &root).await? {
            if let (_, Item::Extent(extent)) = found.decode(self.tree.geometry())?
                && matches!(extent.source, Source::Run(_))
            {
                before += u64::from(extent.stored_bytes);
            }
        }
        Ok(said.wrapping_add(stored).wrapping_sub(before))
    }
}
