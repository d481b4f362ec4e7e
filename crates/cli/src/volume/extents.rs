//! `forebay extents`: where the content of a file in a volume is.

use super::at::{Access, Named, open};
use crate::args::ExtentsArgs;
use crate::control::answers;
use crate::control::proto::Refusal;
use crate::failure::{Failure, Outcome};
use crate::output;
use forebay::FileExtent;
use forebay_base::task::block_on;
use forebay_vfs::path::{Last, resolve};
use forebay_vfs::{FileKind, Ino};
use serde_json::{Value, json};

/// Runs the command.
pub fn extents(args: &ExtentsArgs) -> Outcome {
    let Some(named) = Named::parse(&args.path) else {
        return Err(Failure::usage(format!("{}: not a path in a volume", args.path))
            .hint("it is written VOLUME:/PATH"));
    };
    let volume = open(&named.image, Access::Read, &args.which)?;
    let found = block_on(resolve(&*volume.fs, Ino::ROOT, &named.path, Last::Follow));
    let attr = found.map_err(|e| e.with_path(named.show()))?;
    if attr.kind != FileKind::File {
        return Err(Failure::new(format!("{}: not a regular file", named.show())));
    }
    let list = volume.extents(attr.ino)?;
    if args.json {
        let all: Vec<Value> = list.iter().map(to_json).collect();
        let (path, size, count) = (named.show(), attr.size, list.len());
        let value = json!({ "path": path, "size": size, "count": count, "extents": all });
        output::json(&value);
        return Ok(());
    }
    let mut rows: Vec<Vec<String>> =
        vec![["LOGICAL", "PHYSICAL", "LENGTH", "FLAGS"].map(String::from).into()];
    for extent in &list {
        let physical = extent.physical.map_or("-".to_string(), |at| at.to_string());
        let (logical, len) = (extent.logical.to_string(), extent.len.to_string());
        rows.push(vec![logical, physical, len, flags(extent).join(",")]);
    }
    output::table(&rows);
    let plural = if list.len() == 1 { "" } else { "s" };
    output::line(format!("{}: {} extent{plural}", named.show(), list.len()));
    Ok(())
}

fn flags(extent: &FileExtent) -> Vec<&'static str> {
    let inline = extent.inline.then_some("inline");
    inline.into_iter().chain(extent.physical.is_none().then_some("pending")).collect()
}

/// What a process answers to the command of another process.
pub fn answer(volume: Option<&forebay::Volume>, ino: u64) -> Result<Value, Refusal> {
    let volume = volume.ok_or_else(super::at::not_open)?;
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

fn to_json(extent: &FileExtent) -> Value {
    json!({
        "logical": extent.logical,
        "physical": extent.physical,
        "length": extent.len,
        "flags": flags(extent),
    })
}
