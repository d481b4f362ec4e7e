//! `forebay extents`: where the content of a file in a volume is.

use super::args::ExtentsArgs;
use super::at::{Access, Named, open};
use super::map::{flags, to_json};
use crate::failure::{Failure, Outcome};
use crate::output;
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
