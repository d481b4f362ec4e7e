//! One number for all that a recovery finds: for tests and tools.
//!
//! Locks: the state lock in turn; none across a wait.

use crate::format::item::Item;
use crate::format::key::Key;
use crate::pending::Where;
use crate::state::State;
use crate::volume::Inner;
use forebay_base::Result;
use forebay_base::world::split_mix;

fn mix(digest: &mut u64, text: &str) {
    for byte in text.bytes() {
        let mut word = *digest ^ u64::from(byte);
        *digest = split_mix(&mut word);
    }
}

impl Inner {
    /// Names, attributes, and where each block is. The same whatever part of it is in the tree.
    pub(crate) async fn digest(&self) -> Result<u64> {
        let (mut digest, mut data_ids) = (0, Vec::new());
        for (key, value) in self.names().await? {
            let key = Key::decode(key.as_slice())?;
            match Item::decode(key, &value, &self.layout.geometry)? {
                Item::Inode(mut inode) => {
                    inode.stored_bytes = 0;
                    data_ids.extend(Some(inode.data_id).filter(|data_id| *data_id != 0));
                    mix(&mut digest, &format!("{key:?} {inode:?}"));
                }
                item => mix(&mut digest, &format!("{key:?} {item:?}")),
            }
        }
        {
            let state = self.state.lock();
            let State { orphans, next_ino, next_data_id, .. } = &*state;
            mix(&mut digest, &format!("{orphans:?} {next_ino} {next_data_id}"));
        }
        data_ids.sort_unstable();
        for data_id in data_ids {
            mix(&mut digest, &format!("{data_id}"));
            let mut block = 0;
            while block < self.layout.geometry.max_blocks() {
                let (piece, _pin) = self.piece_at(data_id, block).await?;
                if let Where::Run(place) = piece.at {
                    for n in 0..piece.blocks {
                        let offset = u64::from(place.offset) + n * self.layout.block_bytes();
                        let sum = piece.own_sums().get(n as usize);
                        let (segment, birth) = (place.segment, piece.birth);
                        mix(
                            &mut digest,
                            &format!("{} {segment} {offset} {birth} {sum:?}", block + n),
                        );
                    }
                }
                block = block.saturating_add(piece.blocks);
            }
        }
        Ok(digest)
    }
}
