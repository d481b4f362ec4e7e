//! The disks from which the workloads of a campaign start, each made once.
//!
//! No locks.

use crate::workload::{Base, Case, Ground, Kind, Setup};
use forebay_base::Error;
use forebay_lfs::AllocMode;
use std::collections::HashMap;
use std::rc::Rc;

/// The disks from which workloads start, each made once.
#[derive(Default)]
pub struct Bases(HashMap<(u32, u32, u64, bool, Begin), Rc<Base>>);

/// The initial content of a volume.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Begin {
    Empty,
    Furnished,
    Crowded,
    Clients,
    Image,
}

impl Bases {
    /// The disk from which this workload starts.
    ///
    /// # Errors
    /// The volume's errors.
    pub fn of(&mut self, case: &Case) -> Result<Rc<Base>, Error> {
        // The initial content is made without the injected fault, and with the simplest setup.
        let plain = Setup {
            seed: 1,
            plant: None,
            fua: false,
            inline_max: 0,
            alloc: AllocMode::Reserve,
            failing: Vec::new(),
            flags: false,
            ..case.setup.clone()
        };
        let begin = match case.kind {
            Kind::Single(_) | Kind::Pair(_) => Begin::Furnished,
            Kind::Crowded => Begin::Crowded,
            Kind::Clients | Kind::Dropped => Begin::Clients,
            Kind::DroppedOnImage => Begin::Image,
            _ => Begin::Empty,
        };
        let key = (plain.block_bytes, plain.sector, plain.volume_bytes, plain.sums, begin);
        if let Some(base) = self.0.get(&key) {
            return Ok(base.clone());
        }
        let base = match begin {
            Begin::Empty => Base::empty(&plain)?,
            Begin::Furnished => Base::furnished(&plain)?,
            Begin::Crowded => Base::crowded(&plain)?,
            Begin::Clients => Ground::volume(&plain)?,
            Begin::Image => Ground::image(&plain),
        };
        let base = Rc::new(base);
        self.0.insert(key, base.clone());
        Ok(base)
    }
}
