//! `forebay stat VOLUME` and `forebay stat VOLUME:/PATH`: what a volume, or something in it, is.

use super::at::{Access, Named, OpenVolume, open};
use super::ls::{attributes, date, kind, show as show_name};
use crate::control::which::Which;
use crate::failure::Outcome;
use crate::output;
use forebay_base::task::block_on;
use forebay_base::units::format_size;
use forebay_vfs::path::{Last, resolve};
use forebay_vfs::{Attr, Ino};
use serde_json::{Value, json};

/// Runs the command.
pub fn stat(word: &str, which: &Which, as_json: bool) -> Outcome {
    let named = Named::or_root(word);
    let volume = open(&named.image, Access::Read, which)?;
    if Named::parse(word).is_none() {
        return whole(&volume, as_json);
    }
    let found = block_on(resolve(&*volume.fs, Ino::ROOT, &named.path, Last::NoFollow));
    let attr = found.map_err(|e| e.with_path(named.show()))?;
    let names = block_on(volume.fs.listxattr(attr.ino)).map_err(|e| e.with_path(named.show()))?;
    let names: Vec<String> = names.iter().map(|n| super::ls::show(n)).collect();
    if as_json {
        let mut object = attributes(&attr);
        object["path"] = named.show().into();
        object["attributes"] = names.into();
        output::json(&object);
    } else {
        show(&named, &attr, &names);
    }
    Ok(())
}

fn whole(volume: &OpenVolume, as_json: bool) -> Outcome {
    let figures = block_on(volume.fs.statfs()).map_err(|e| e.with_path(&volume.image))?;
    let block = u64::from(figures.block_size);
    let mut about = volume.about.clone();
    about["pid"] = volume.pid.into();
    let space = json!({
        "bytes": figures.blocks * block,
        "free": figures.blocks_free * block,
        "available": figures.blocks_available * block,
        "files": figures.files.saturating_sub(figures.files_free),
    });
    about["space"] = space;
    if as_json {
        output::json(&about);
        return Ok(());
    }
    let text = |value: &Value| value.as_str().map_or_else(|| value.to_string(), str::to_string);
    let process = volume.pid.map_or("not open".to_string(), |pid| format!("open in process {pid}"));
    let created = about["created_ns"].as_i64().unwrap_or(0).div_euclid(1_000_000_000);
    let damage = about["damage"].as_str().map(|why| ("damage", format!("{why}; read-only")));
    let mounted = about["mounted_on"].as_str().map(|dir| ("mounted on", dir.to_string()));
    let rows = [
        ("volume", text(&about["path"])),
        ("state", process),
        ("uuid", text(&about["uuid"])),
        ("created", date(created) + " UTC"),
        ("size", size(&about["size"])),
        ("segments", format!("{} of {}", about["segments"], size(&about["segment_size"]))),
        ("blocks of", size(&about["block_size"])),
        ("checksums", text(&about["checksum"])),
        ("checkpoint", format!("{}, generation {}", about["checkpoint"], about["generation"])),
        ("free", size(&about["space"]["free"])),
        ("available", size(&about["space"]["available"])),
        ("files", text(&about["space"]["files"])),
        ("live", live(&about["segment_use"])),
        ("held back", held_back(&about["segment_use"]["held_back"])),
    ];
    // The cleaner's counters begin when a volume is opened, so only an open volume has any.
    let cleaned = volume.pid.map(|_| ("cleaned", cleaned(&about["cleaner"])));
    let lost = lost(&about["lost"]).into_iter().map(|line| ("lost", line));
    for (name, value) in rows.into_iter().chain(damage).chain(mounted).chain(cleaned).chain(lost) {
        output::line(format!("{name:<11} {value}"));
    }
    Ok(())
}

fn size(value: &Value) -> String {
    format_size(value.as_u64().unwrap_or(0))
}

/// How much of the volume's segments is live.
fn live(figures: &Value) -> String {
    let (content, tree) = (&figures["live_content_bytes"], &figures["live_tree_bytes"]);
    let share = 100.0 * figures["live_share"].as_f64().unwrap_or(0.0);
    format!("{share:.0} %: {} of content, {} of the tree", size(content), size(tree))
}

/// The free space that new content does not get.
fn held_back(figures: &Value) -> String {
    let reasons = [
        ("recovery_bytes", "recovery"),
        ("log_bytes", "the log"),
        ("checkpoint_bytes", "checkpoints"),
        ("cleaner_bytes", "the cleaner"),
        ("accepted_bytes", "accepted content"),
        ("truncate_bytes", "truncates"),
        ("overwrite_bytes", "overwrites"),
    ];
    let wanted = reasons.iter().filter(|(key, _)| figures[*key] != 0);
    let wanted: Vec<_> =
        wanted.map(|(key, reason)| format!("{} {reason}", size(&figures[*key]))).collect();
    format!("{}: {}", size(&figures["total_bytes"]), wanted.join(", "))
}

/// What the cleaner has done since the volume was opened.
fn cleaned(cleaner: &Value) -> String {
    let count = |key: &str| cleaner[key].as_u64().unwrap_or(0);
    let (segments, moved) = (count("segments"), size(&cleaner["moved_bytes"]));
    let mut text = format!("{segments} segments, {moved} moved");
    if let Some(share) =
        (100 * count("recent_victim_live_bytes")).checked_div(count("recent_victim_bytes"))
    {
        let waited = size(&cleaner["moved_for_waiters_bytes"]);
        text += &format!(" ({waited} for tasks that waited), lately {share} % live");
    }
    match count("bad_blocks") {
        0 => text,
        bad => text + &format!(", {bad} damaged blocks left"),
    }
}

/// The files with lost content, one in a line. A process of an earlier version lists none.
fn lost(list: &Value) -> Vec<String> {
    let all = |value: &Value| value.as_array().cloned().unwrap_or_default();
    let more = |count: &Value, what| match count.as_u64().unwrap_or(0) {
        0 => String::new(),
        count => format!("and {count} more {what}"),
    };
    let mut lines: Vec<String> = Vec::new();
    for file in all(&list["files"]) {
        let inode = format!("inode {}", file["inode"]);
        let path = file["path"].as_str().map(|path| show_name(path.as_bytes()));
        let name = path.map_or(inode.clone(), |path| format!("{path} ({inode})"));
        let range = |run: &Value| format!("{} bytes at {}", run["len"], run["offset"]);
        let mut ranges: Vec<String> = all(&file["ranges"]).iter().map(range).collect();
        ranges.extend(Some(more(&file["more_ranges"], "ranges")).filter(|more| !more.is_empty()));
        lines.push(format!("{name}: {}", ranges.join(", ")));
    }
    lines.extend(Some(more(&list["more_files"], "files")).filter(|more| !more.is_empty()));
    lines
}

fn show(named: &Named, attr: &Attr, xattrs: &[String]) {
    let time = |time: forebay_vfs::Timestamp| format!("{}.{:09} UTC", date(time.sec), time.nsec);
    let mut rows = vec![
        ("path", named.show()),
        ("kind", kind(attr.kind).to_string()),
        ("inode", attr.ino.0.to_string()),
        ("size", format!("{} ({} bytes)", format_size(attr.size), attr.size)),
        ("allocated", format_size(attr.allocated_bytes)),
        ("mode", format!("{:04o}", attr.perm)),
        ("owner", format!("{}:{}", attr.uid, attr.gid)),
        ("links", attr.nlink.to_string()),
        ("read", time(attr.atime)),
        ("modified", time(attr.mtime)),
        ("changed", time(attr.ctime)),
        ("made", time(attr.btime)),
    ];
    rows.extend(xattrs.iter().map(|name| ("attribute", name.clone())));
    for (name, value) in rows {
        output::line(format!("{name:<10} {value}"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lost_content_is_one_line_for_each_file() {
        let run = |offset, len| json!({ "offset": offset, "len": len });
        let named =
            json!({ "inode": 7, "path": "/a\n/b", "ranges": [run(4096, 8192), run(0, 512)] });
        let other = json!({ "inode": 9, "path": null, "ranges": [run(0, 1)], "more_ranges": 3 });
        let lines = lost(&json!({ "files": [named, other], "more_files": 2 }));
        let wanted = [
            "/a\\n/b (inode 7): 8192 bytes at 4096, 512 bytes at 0",
            "inode 9: 1 bytes at 0, and 3 more ranges",
            "and 2 more files",
        ];
        assert_eq!(lines, wanted);
        assert!(lost(&Value::Null).is_empty());
    }
}
