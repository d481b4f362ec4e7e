//! Opens what `VOLUME` and `VOLUME:/PATH` name: here, or through the process that has the volume
//! open.
//!
//! A1 A volume that another process has open is used through that process, or the command fails and
//!    names it; it is never opened in addition.

use super::map;
use crate::control::client::{Client, own_or_root};
use crate::control::proto::Request;
use crate::control::which::Which;
use crate::failure::{Failure, Outcome, status};
use crate::mounts;
use forebay::{Cache, CacheConfig, CleanStats, LostContent, LostFile, SpaceStats, VolumeOptions};
use forebay_base::task::block_on;
use forebay_base::units::MIB;
use forebay_base::{Error, ErrorKind};
use forebay_block::FileIdentity;
use forebay_vfs::path::VolumePath;
use forebay_vfs::{FileSystem, Ino};
use serde_json::{Value, json};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Most cache memory of a short command, bytes.
const CACHE_MAX: u64 = 256 * MIB;
/// Files with lost content that `stat` lists, and ranges of each.
const LOST_LISTED: usize = 20;

/// A path in a volume, as it was written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Named {
    /// The image.
    pub image: PathBuf,
    /// The path in it, with its slash.
    pub path: Vec<u8>,
}

impl Named {
    /// Reads `VOLUME:/PATH`; `None` for anything else.
    pub fn parse(word: &str) -> Option<Self> {
        let VolumePath { volume, path } = VolumePath::parse(word.as_bytes())?;
        let image = PathBuf::from(OsStr::from_bytes(volume));
        Some(Self { image, path: path.to_vec() })
    }

    /// Like [`Named::parse`]; a word without `:/` names the root of a volume.
    pub fn or_root(word: &str) -> Self {
        Self::parse(word).unwrap_or_else(|| Self { image: word.into(), path: b"/".to_vec() })
    }

    /// The form `VOLUME:/PATH`, with invalid UTF-8 replaced.
    pub fn show(&self) -> String {
        show(&self.image, &self.path)
    }
}

/// `VOLUME:/PATH`, for people.
pub fn show(image: &Path, path: &[u8]) -> String {
    format!("{}:{}", image.display(), String::from_utf8_lossy(path))
}

/// What a command does with a volume.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// Reads: nothing is written to the image.
    Read,
    /// Writes, too.
    Write,
}

/// A volume that can be used.
pub struct OpenVolume {
    /// Its tree.
    pub fs: Arc<dyn FileSystem>,
    /// The image.
    pub image: PathBuf,
    /// What its superblock says, as JSON.
    pub about: Value,
    /// The process that has it open, if it is not this one.
    pub pid: Option<u32>,
    has: Has,
}

/// Opens a volume, or finds the process that has it open (A1).
pub fn open(image: &Path, access: Access, which: &Which) -> Outcome<OpenVolume> {
    let key = FileIdentity::of_path(image).map_err(|e| Failure::from(e.with_path(image)))?;
    if which.control.is_some() || which.pid.is_some() {
        let client = Client::find(which)?;
        let pid = client.pid()?;
        return through(client, pid, image, identity(key));
    }
    let cache = cache()?;
    let read_only = access == Access::Read;
    let options = VolumeOptions::default().read_only(read_only).noatime(true);
    match cache.open_volume(image, &options) {
        Ok(volume) => {
            let about = about(&volume)?;
            let (fs, image) = (volume.file_system(), image.to_path_buf());
            Ok(OpenVolume { fs, image, about, pid: None, has: Has::Local(volume) })
        }
        Err(error) if error.kind() == ErrorKind::Busy => elsewhere(image, key, &error),
        Err(error) => Err(error.into()),
    }
}

/// A cache for a short command.
pub fn cache() -> Outcome<Cache> {
    let mut config = CacheConfig::default();
    config.budget = config.budget.min(CACHE_MAX);
    Ok(Cache::new(config)?)
}

/// The two numbers by which control requests name an image.
pub fn identity(key: FileIdentity) -> (u64, u64) {
    match key {
        FileIdentity::Inode(dev, ino) => (dev, ino),
        // No inode has number 0.
        FileIdentity::Block(number) => (number, 0),
    }
}

/// Who has it.
enum Has {
    /// This process.
    Local(forebay::Volume),
    /// Another process: its control socket, and the numbers of the image.
    Elsewhere(PathBuf, (u64, u64)),
}

/// Opens a volume in this process, read-only, by the checkpoint before its newest `passed_over`
/// ones.
pub fn open_older(image: &Path, passed_over: u32) -> Outcome<OpenVolume> {
    let options = VolumeOptions::default().read_only(true).noatime(true).passed_over(passed_over);
    let volume = cache()?.open_volume(image, &options)?;
    let (fs, image) = (volume.file_system(), image.to_path_buf());
    Ok(OpenVolume { fs, about: about(&volume)?, image, pid: None, has: Has::Local(volume) })
}

/// The failure to open a volume of which a file is to be served. If another process has the volume
/// open, it names that process, and says what to do instead (A1).
pub fn in_use(image: &Path, path: &[u8], error: Error) -> Failure {
    let key = FileIdentity::of_path(image).ok().filter(|_| error.kind() == ErrorKind::Busy);
    let Some(key) = key else { return error.into() };
    let text = error.to_string();
    let Ok(open) = elsewhere(image, key, &error) else { return error.into() };
    let whose = open.pid.map_or_else(String::new, |pid| format!(" (process {pid})"));
    let text = match text.contains("process") {
        true => text,
        false => text + &whose,
    };
    let shown = String::from_utf8_lossy(path);
    let hint = match open.about["mounted_on"].as_str() {
        Some(dir) => format!("it is mounted: {dir}{shown} is that file"),
        None => {
            "one process serves all that is served of a volume: give the export to it".to_string()
        }
    };
    Failure { message: text, hint: None, status: status::BUSY }.hint(hint)
}

/// Whether a process answers that has this image open as a volume and will keep it open. A process
/// whose mount is no longer in the mount table is about to end, even if it has not noticed yet.
pub fn is_open(image: &Path, error: &Error) -> bool {
    let key = FileIdentity::of_path(image).ok();
    let Some(open) = key.and_then(|key| elsewhere(image, key, error).ok()) else { return false };
    let is_there = |dir: &str| mounts::all().iter().any(|mount| mount.dir == Path::new(dir));
    open.about["mounted_on"].as_str().is_none_or(is_there)
}

fn elsewhere(image: &Path, key: FileIdentity, error: &Error) -> Outcome<OpenVolume> {
    let owner = std::fs::metadata(image).map_or(0, |meta| meta.uid());
    for (pid, client) in Client::all(|uid| own_or_root(uid) || uid == owner) {
        match through(client, pid, image, identity(key)) {
            Err(e) if e.status == status::NOT_FOUND => {}
            Err(e) => log::info!("process {pid}: {}", e.message),
            found => return found,
        }
    }
    let text = error.to_string();
    Err(Failure { message: text, hint: None, status: status::BUSY }
        .hint("no control socket answers for the volume; name one with `--control PATH`"))
}

fn through(client: Client, pid: u32, image: &Path, identity: (u64, u64)) -> Outcome<OpenVolume> {
    let socket = client.path().to_path_buf();
    let (fs, about) = client.volume(identity)?;
    log::info!("{} is used through process {pid}", image.display());
    let image = image.to_path_buf();
    let has = Has::Elsewhere(socket, identity);
    Ok(OpenVolume { fs: Arc::new(fs), image, about, pid: Some(pid), has })
}

impl OpenVolume {
    /// `VOLUME:/PATH`, for people.
    pub fn show(&self, path: &[u8]) -> String {
        show(&self.image, path)
    }

    /// The damage found in the volume's log, if this process has the volume open.
    pub fn damage(&self) -> Option<Error> {
        match &self.has {
            Has::Local(volume) => volume.damage(),
            Has::Elsewhere(..) => None,
        }
    }

    /// Where the content of a file is.
    pub fn extents(&self, ino: Ino) -> Outcome<Vec<forebay::FileExtent>> {
        match &self.has {
            Has::Local(volume) => Ok(volume.extents(ino)?),
            Has::Elsewhere(socket, (dev, inode)) => {
                let asked = Request::Extents(*dev, *inode, ino.0);
                map::from_json(&Client::open(socket)?.ask(&asked)?)
            }
        }
    }

    /// Makes everything durable, here or in the process that has the volume open, and closes the
    /// volume.
    pub fn finish(self) -> Outcome {
        let synced = block_on(self.fs.syncfs()).map_err(|e| e.with_path(&self.image));
        synced?;
        match self.has {
            Has::Local(volume) => Ok(volume.close()?),
            Has::Elsewhere(..) => Ok(()),
        }
    }
}

/// What a volume's superblock says, and the figures of its segments and of its cleaner.
pub fn about(volume: &forebay::Volume) -> Outcome<Value> {
    let info = volume.info()?;
    Ok(json!({
        "path": volume.path().display().to_string(),
        "uuid": uuid(&info.uuid),
        "size": info.end_bytes,
        "block_size": info.block_bytes,
        "segment_size": info.segment_bytes,
        "segments": info.segments,
        "checksum": if info.sums { "crc32c" } else { "none" },
        "checkpoint": info.checkpoint,
        "generation": info.generation,
        "damaged": info.damaged || volume.damage().is_some(),
        "damage": volume.damage().map(|error| error.to_string()),
        "created_ns": info.created_ns,
        "read_only": volume.read_only() || volume.damage().is_some(),
        "cleaner": cleaner(&volume.clean_stats()),
        "segment_use": segment_use(&volume.space_stats()),
        "lost": lost(&volume.lost_content(LOST_LISTED)),
    }))
}

/// The counters of the cleaner since the volume was opened.
fn cleaner(stats: &CleanStats) -> Value {
    json!({
        "passes": stats.passes,
        "segments": stats.segments,
        "moved_bytes": stats.moved_bytes,
        "moved_for_waiters_bytes": stats.moved_for_waiters_bytes,
        "victim_bytes": stats.victim_bytes,
        "victim_live_bytes": stats.victim_live_bytes,
        "recent_victim_bytes": stats.recent_victim_bytes,
        "recent_victim_live_bytes": stats.recent_victim_live_bytes,
        "overtaken_bytes": stats.overtaken_bytes,
        "discarded": stats.discarded,
        "bad_blocks": stats.bad_blocks,
    })
}

/// The content that the device has lost since the volume was opened.
fn lost(list: &LostContent) -> Value {
    let range = |(offset, len): &(u64, u64)| json!({ "offset": offset, "len": len });
    let file = |file: &LostFile| {
        json!({
            "inode": file.ino.0,
            "path": file.path.as_ref().map(|path| String::from_utf8_lossy(path).into_owned()),
            "bytes": file.bytes,
            "ranges": file.ranges.iter().map(range).collect::<Vec<_>>(),
            "more_ranges": file.more_ranges,
        })
    };
    let files: Vec<Value> = list.files.iter().map(file).collect();
    json!({ "files": files, "more_files": list.more_files })
}

/// The use of the segments now.
fn segment_use(stats: &SpaceStats) -> Value {
    let held = &stats.held_back;
    json!({
        "free_segments": stats.free_segments,
        "dead_segments": stats.dead_segments,
        "data_segments": stats.data_segments,
        "log_segments": stats.log_segments,
        "tree_segments": stats.tree_segments,
        "live_content_bytes": stats.live_content_bytes,
        "live_tree_bytes": stats.live_tree_bytes,
        "live_share": stats.live_share(),
        "open_bytes": stats.open_bytes,
        "writable_bytes": stats.writable_bytes,
        "held_back": {
            "recovery_bytes": held.recovery_bytes,
            "log_bytes": held.log_bytes,
            "checkpoint_bytes": held.checkpoint_bytes,
            "cleaner_bytes": held.cleaner_bytes,
            "accepted_bytes": held.accepted_bytes,
            "truncate_bytes": held.truncate_bytes,
            "overwrite_bytes": held.overwrite_bytes,
            "total_bytes": held.total_bytes(),
        },
    })
}

/// The usual form of a UUID: 8-4-4-4-12 hexadecimal digits.
fn uuid(bytes: &[u8; 16]) -> String {
    let digits: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    let parts = [&digits[..8], &digits[8..12], &digits[12..16], &digits[16..20], &digits[20..]];
    parts.join("-")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lost_content_is_listed_in_json() {
        let ranges = vec![(4096, 8192), (65536, 512)];
        let path = Some(b"/a/b".to_vec());
        let file = LostFile { ino: Ino(7), path, bytes: 12288, ranges, more_ranges: 3 };
        let list = lost(&LostContent { files: vec![file], more_files: 2 });
        assert_eq!(list["more_files"], 2);
        let wanted = json!({
            "inode": 7, "path": "/a/b", "bytes": 12288, "more_ranges": 3,
            "ranges": [{ "offset": 4096, "len": 8192 }, { "offset": 65536, "len": 512 }],
        });
        assert_eq!(list["files"], json!([wanted]));
    }

    #[test]
    fn words_are_volumes_or_paths_in_them() {
        let named = Named::parse("a/b.fby:/x/y").unwrap();
        assert_eq!((named.image.as_path(), &named.path[..]), (Path::new("a/b.fby"), &b"/x/y"[..]));
        assert_eq!(named.show(), "a/b.fby:/x/y");
        assert_eq!(Named::parse("a/b.fby"), None);
        assert_eq!(Named::parse(":/x"), None);
        assert_eq!(Named::or_root("a:b").path, b"/");
        assert_eq!(uuid(&[0xab; 16]), "abababab-abab-abab-abab-abababababab");
    }
}
