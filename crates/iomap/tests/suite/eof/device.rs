//! A growing device in a simulated world: it shows an end that need not lie on a sector's border,
//! and garbage behind it within the last sector. Requests take their time and complete in any
//! order; a read looks at the content when it begins or when it ends.

use forebay_base::sim_world::SimWorld;
use forebay_base::world::World;
use forebay_base::{Error, ErrorKind, Result};
use forebay_block::{Bio, BioOp, BlockDevice, Limits, StableWrites};
use std::sync::{Arc, Mutex};

/// What a read finds behind the end of the device.
const GARBAGE: u8 = 0xee;

pub struct EndDevice {
    world: Arc<SimWorld>,
    sector: u32,
    stable: bool,
    content: Arc<Mutex<Vec<u8>>>,
}

impl EndDevice {
    pub fn new(world: Arc<SimWorld>, sector: u32, stable: bool, size: u64) -> Arc<Self> {
        let content = Arc::new(Mutex::new(vec![0; size as usize]));
        Arc::new(Self { world, sector, stable, content })
    }
}

fn read(content: &[u8], offset: u64, len: u64) -> Vec<u8> {
    let mut bytes = vec![GARBAGE; len as usize];
    let start = (offset as usize).min(content.len());
    let end = ((offset + len) as usize).min(content.len());
    bytes[..end - start].copy_from_slice(&content[start..end]);
    bytes
}

fn change(content: &mut [u8], bio: &mut Bio) {
    let end = content.len();
    let (from, to) = ((bio.offset as usize).min(end), ((bio.offset + bio.len) as usize).min(end));
    match bio.op {
        BioOp::Write => {
            bio.data.copy_out(0, &mut content[from..to]);
        }
        BioOp::WriteZeroes | BioOp::Discard => content[from..to].fill(0),
        BioOp::Read | BioOp::Flush => {}
    }
}

impl BlockDevice for EndDevice {
    fn name(&self) -> String {
        "ended".into()
    }

    fn limits(&self) -> Limits {
        Limits {
            logical_block: self.sector,
            physical_block: self.sector,
            memory_align: 512,
            max_transfer: 1 << 20,
            max_segments: 1024,
            stable_writes: StableWrites { required: self.stable, reason: "simulated" },
            discard: true,
            write_zeroes: true,
            read_only: false,
        }
    }

    fn size(&self) -> u64 {
        self.content.lock().unwrap().len() as u64
    }

    fn can_grow(&self) -> bool {
        true
    }

    fn grow(&self, size: u64) -> Result<()> {
        self.content.lock().unwrap().resize(size as usize, 0);
        Ok(())
    }

    fn truncate(&self, size: u64) -> Result<()> {
        self.content.lock().unwrap().truncate(size as usize);
        Ok(())
    }

    fn submit(&self, mut bio: Bio) {
        let sector = u64::from(self.sector);
        let shown = self.size().next_multiple_of(sector);
        if bio.op != BioOp::Flush && bio.offset + bio.len > shown {
            let text = format!("it shows {}", self.size());
            return bio.complete(Err(Error::new(ErrorKind::OutOfRange, "submit", text)));
        }
        assert!(bio.offset.is_multiple_of(sector) && bio.len.is_multiple_of(sector), "{bio:?}");
        let draw = self.world.random();
        let early = (draw & 1 == 0 && bio.op == BioOp::Read)
            .then(|| read(&self.content.lock().unwrap(), bio.offset, bio.len));
        let content = self.content.clone();
        let slow = if draw.is_multiple_of(16) { 40 } else { 1 };
        let took = (5_000 + (draw >> 8) % 60_000) * slow;
        let done = Box::new(move || {
            match bio.op {
                BioOp::Read => {
                    let (offset, len) = (bio.offset, bio.len);
                    let bytes =
                        early.unwrap_or_else(|| read(&content.lock().unwrap(), offset, len));
                    bio.data.copy_in(0, &bytes);
                }
                _ => change(&mut content.lock().unwrap(), &mut bio),
            }
            bio.complete(Ok(()));
        });
        self.world.at(self.world.now() + took, done);
    }
}
