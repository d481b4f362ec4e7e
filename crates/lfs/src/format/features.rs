//! Feature masks: features of a volume that a program may not know, and what it may do then.
//!
//! Invariants: F6 an unknown incompatible feature makes the volume unusable; the error has its name
//! if that is known. F7 with an unknown read-only compatible feature the volume can only be read.
//! F8 an unknown compatible feature has no effect, and is kept.
//!
//! No locks, no state.

use super::unsupported;
use forebay_base::Result;
use forebay_base::codec::{Reader, Writer};

/// Incompatible: extents may have a codec.
pub const COMPRESSION: u64 = 1 << 0;
/// Incompatible: extents may have a key id, and there is a key-derivation area.
pub const ENCRYPTION: u64 = 1 << 1;
/// Incompatible: several trees of files.
pub const SNAPSHOTS: u64 = 1 << 2;
/// Incompatible: several files or ranges may refer to the same blocks.
pub const SHARED_EXTENTS: u64 = 1 << 3;
/// Incompatible: segments are not stored in order of their numbers, for example in an object store.
pub const SEGMENT_MAP: u64 = 1 << 4;

/// Incompatible: extents without codec and key have a short form.
pub const SHORT_EXTENTS: u64 = 1 << 5;

/// Incompatible features that this program supports.
pub const KNOWN_INCOMPAT: u64 = SHORT_EXTENTS;
/// Read-only compatible features with which this program can write.
pub const KNOWN_RO_COMPAT: u64 = 0;

const INCOMPAT_NAMES: &[&str] =
    &["compression", "encryption", "snapshots", "shared_extents", "segment_map", "short_extents"];
const RO_COMPAT_NAMES: &[&str] = &["quota"];

/// The three masks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Features {
    /// Programs that do not know these may read and write.
    pub compat: u64,
    /// Programs that do not know these may only read.
    pub ro_compat: u64,
    /// Programs that do not know these must not use the volume.
    pub incompat: u64,
}

/// Permitted access to a volume.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Access {
    /// Reading and writing.
    ReadWrite,
    /// Only reading, for this reason.
    ReadOnly(String),
}

impl Features {
    /// Writes the masks.
    pub fn encode_into(&self, w: &mut Writer<'_>) -> Result<()> {
        w.u64("compat", self.compat)?;
        w.u64("ro_compat", self.ro_compat)?;
        w.u64("incompat", self.incompat)
    }

    /// Reads the masks, with any bits.
    pub fn decode(r: &mut Reader<'_>) -> Result<Self> {
        Ok(Self {
            compat: r.u64("compat")?,
            ro_compat: r.u64("ro_compat")?,
            incompat: r.u64("incompat")?,
        })
    }

    /// The permitted access to a volume with these features.
    ///
    /// Fails with `Unsupported` and the names of unknown incompatible features.
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

/// Names of the features in a mask, such as `snapshots, bit 17`.
fn names(mask: u64, known: &[&str]) -> String {
    let bits = (0..64).filter(|bit| mask & (1 << bit) != 0);
    let name = |bit: usize| known.get(bit).map_or(format!("bit {bit}"), |name| name.to_string());
    bits.map(name).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_base::ErrorKind;

    /// F6: an unknown incompatible feature is refused by name.
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

    /// F7, F8: other unknown features permit reading, or everything.
    #[test]
    fn other_unknown_features_leave_reading_or_all() {
        let features = Features { ro_compat: 1 | 1 << 40, ..Features::default() };
        let Access::ReadOnly(why) = features.access().unwrap() else { panic!("it is writable") };
        assert!(why.ends_with("quota, bit 40"), "{why}");
        let features = Features { compat: u64::MAX, ..Features::default() };
        assert_eq!(features.access().unwrap(), Access::ReadWrite);
    }
}
