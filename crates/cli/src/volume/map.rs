//! The extents of a file, as a process sends them to another one.

use crate::control::answers;
use crate::control::proto::Refusal;
use crate::failure::{Failure, Outcome};
use forebay::FileExtent;
use forebay_vfs::Ino;
use serde_json::{Value, json};

/// What is special about an extent.
pub fn flags(extent: &FileExtent) -> Vec<&'static str> {
    let inline = extent.inline.then_some("inline");
    inline.into_iter().chain(extent.physical.is_none().then_some("pending")).collect()
}

/// The refusal for a volume that this process does not have open.
pub fn not_open() -> Refusal {
    Refusal::new("not-found", "this process does not have that volume open")
}

/// The answer to a request `extents` of another process.
pub fn answer(volume: Option<&forebay::Volume>, ino: u64) -> Result<Value, Refusal> {
    let volume = volume.ok_or_else(not_open)?;
    let list = volume.extents(Ino(ino)).map_err(|e| answers::refusal(&e))?;
    Ok(list.iter().map(to_json).collect())
}

/// Reads that answer.
pub fn from_json(list: &Value) -> Outcome<Vec<FileExtent>> {
    let one = |extent: &Value| {
        Some(FileExtent {
            logical: extent["logical"].as_u64()?,
            physical: extent["physical"].as_u64(),
            len: extent["length"].as_u64()?,
            inline: extent["flags"].as_array()?.iter().any(|flag| flag == "inline"),
        })
    };
    let all: Option<Vec<_>> = list.as_array().and_then(|all| all.iter().map(one).collect());
    all.ok_or_else(|| Failure::new("extents: an odd reply"))
}

/// One extent of it.
pub fn to_json(extent: &FileExtent) -> Value {
    json!({
        "logical": extent.logical,
        "physical": extent.physical,
        "length": extent.len,
        "flags": flags(extent),
    })
}
