//! Feature masks: what a volume uses that a program may not know, and what follows from that.
//!
//! Invariants: F6 an unknown incompatible feature refuses the volume, by name where the name is known.
//! F7 an unknown read-only compatible feature leaves reading. F8 an unknown compatible one changes nothing,
//! and is kept.
//!
//! No locks, no state.

use super::unsupported;
use forebay_base::Result;
use forebay_base::codec::{Reader, Writer};

/// Incompatible: extents with a codec.
pub const COMPRESSION: u64 = 1 << 0;
/// Incompatible: extents with a key id, and a key-derivation area.
pub const ENCRYPTION: u64 = 1 << 1;
/// Incompatible: more than one tree of files.
pub const SNAPSHOTS: u64 = 1 << 2;
/// Incompatible: blocks that several files or ranges point at.
pub const SHARED_EXTENTS: u64 = 1 << 3;
/// Incompatible: segments lie elsewhere than at their number, such as in an object store.
pub const SEGMENT_MAP: u64 = 1 << 4;

/// Incompatible: extents that are stored as they are have a short form.
pub const SHORT_EXTENTS: u64 = 1 << 5;

/// What this program can work with.
pub const KNOWN_INCOMPAT: u64 = SHORT_EXTENTS;
/// What this program can write beside.
pub const KNOWN_RO_COMPAT: u64 = 0;

const INCOMPAT_NAMES: &[&str] =
    &["compression", "encryption", "snapshots", "shared_extents", "segment_map", "short_extents"];
const RO_COMPAT_NAMES: &[&str] = &["quota"];

/// The three masks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Features {
    /// Who does not know these may read and write.
    pub compat: u64,
    /// Who does not know these may read.
    pub ro_compat: u64,
    /// Who does not know these must leave the volume alone.
    pub incompat: u64,
}

/// What may be done with a volume.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Access {
    /// Everything.
    ReadWrite,
    /// Reading, for the reason given.
    ReadOnly(String),
}

impl Features {
    /// Writes the masks.
    pub fn encode_into(&self, w: &mut Writer<'_>) -> Result<()> {
        w.u64("compat", self.compat)?;
        w.u64("ro_compat", self.ro_compat)?;
        w.u64("incompat", self.incompat)
    }

    /// Reads the masks, whatever they hold.
    pub fn decode(r: &mut Reader<'_>) -> Result<Self> {
        Ok(Self {
            compat: r.u64("compat")?,
            ro_compat: r.u64("ro_compat")?,
            incompat: r.u64("incompat")?,
        })
    }

    /// What may be done with a volume that has these features.
    ///
    /// Fails with `Unsupported` and the names of incompatible features that are not known here.
    pub fn access(&self) -> Result<Access> {
        let unknown = self.incompat & !KNOWN_INCOMPAT;
        if unknown != 0 {
            let names = names(unknown, INCOMPAT_NAMES);
            return Err(unsupported("volume", format!("incompatible features: {names}")));
        }
        let unknown = self.ro_compat & !KNOWN_RO_COMPAT;
        if unknown != 0 {
            let names = names(unknown, RO_COMPAT_NAMES);
            return Ok(Access::ReadOnly(format!(
                "features that this version cannot write: {names}"
            )));
        }
        Ok(Access::ReadWrite)
    }
}

/// `snapshots, bit 17`.
fn names(mask: u64, known: &[&str]) -> String {
    let bits = (0..64).filter(|bit| mask & (1 << bit) != 0);
    let name = |bit: usize| known.get(bit).map_or(format!("bit {bit}"), |name| name.to_string());
    bits.map(name).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_base::ErrorKind;

    /// F6.
    #[test]
    fn unknown_incompatible_features_refuse_by_name() {
        let short = Features { incompat: SHORT_EXTENTS, ..Features::default() };
        assert_eq!(short.access().unwrap(), Access::ReadWrite);
        for bit in (0..64).filter(|bit| KNOWN_INCOMPAT & (1 << bit) == 0) {
            let features = Features { incompat: 1 << bit, ..Features::default() };
            let error = features.access().unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Unsupported);
            let name = INCOMPAT_NAMES.get(bit).map_or(format!("bit {bit}"), |n| n.to_string());
            assert!(error.to_string().ends_with(&format!("features: {name}")), "{error}");
        }
        let two = Features { incompat: SNAPSHOTS | 1 << 17, ..Features::default() };
        let text = two.access().unwrap_err().to_string();
        assert!(text.contains("snapshots, bit 17"), "{text}");
        assert_eq!((COMPRESSION, ENCRYPTION, SHARED_EXTENTS, SEGMENT_MAP), (1, 2, 8, 16));
        assert_eq!(SHORT_EXTENTS, 32);
    }

    /// F7, F8.
    #[test]
    fn other_unknown_features_leave_reading_or_all() {
        let features = Features { ro_compat: 1 | 1 << 40, ..Features::default() };
        let Access::ReadOnly(why) = features.access().unwrap() else { panic!("it is writable") };
        assert!(why.ends_with("quota, bit 40"), "{why}");
        let features = Features { compat: u64::MAX, ..Features::default() };
        assert_eq!(features.access().unwrap(), Access::ReadWrite);
    }
}
