//! What the tests of volumes share: a tree with everything that can be copied.

use std::collections::BTreeMap;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::time::{Duration, UNIX_EPOCH};

/// Bytes that follow from a number.
pub fn bytes_of(seed: u64, len: usize) -> Vec<u8> {
    let mut rng = seed;
    std::iter::repeat_with(|| forebay_base::world::split_mix(&mut rng).to_le_bytes())
        .flatten()
        .take(len)
        .collect()
}

/// Makes a tree: empty and long files, holes, links of both kinds, odd names, modes, times,
/// attributes, a pipe and a deep path.
pub fn make_tree(root: &Path) {
    let dir = |path: &str| std::fs::create_dir_all(root.join(path)).expect("a folder");
    dir("empty directory");
    dir("a/b/c/d/e/f/g/h");
    for (n, len) in
        [0, 1, 4095, 4096, 4097, 65_536, 1 << 20, (3 << 20) + 17].into_iter().enumerate()
    {
        let path = root.join(format!("a/file {n}"));
        std::fs::write(&path, bytes_of(n as u64, len)).expect("a file");
        let mode = [0o600, 0o644, 0o755, 0o4711, 0o444, 0o1666, 0o2750, 0o640][n];
        std::fs::set_permissions(&path, PermissionsExt::from_mode(mode)).expect("a mode");
        let time = UNIX_EPOCH + Duration::new(1_000_000_000 + n as u64, 123_456_789);
        let file = std::fs::File::open(&path).expect("there");
        file.set_times(std::fs::FileTimes::new().set_modified(time)).expect("a time");
    }
    std::fs::write(root.join("a/b/c/d/e/f/g/h/deep"), b"deep").expect("a file");
    let odd = std::ffi::OsStr::new("n\u{e4}m\u{e9} with 'quotes'\nand a line");
    std::fs::write(root.join(odd), b"odd").expect("a file");
    std::fs::write(root.join("x".repeat(255)), b"long").expect("a file");
    std::fs::hard_link(root.join("a/file 5"), root.join("a/b/the same")).expect("a link");
    std::fs::hard_link(root.join("a/file 5"), root.join("again")).expect("a link");
    symlink("a/file 5", root.join("link")).expect("a link");
    symlink("/nowhere/to be found", root.join("a/dangling")).expect("a link");
    let sparse = std::fs::File::create(root.join("a/sparse")).expect("a file");
    sparse.set_len(64 << 20).expect("a size");
    sparse.write_all_at(&bytes_of(9, 8192), 20 << 20).expect("data in the middle");
    let named = root.join("a/file 2");
    rustix::fs::setxattr(&named, "user.colour", b"green", rustix::fs::XattrFlags::empty())
        .expect("an attribute");
    let pipe = rustix::fs::FileType::Fifo;
    let mode = rustix::fs::Mode::from_raw_mode(0o640);
    rustix::fs::mknodat(rustix::fs::CWD, root.join("pipe"), pipe, mode, 0).expect("a pipe");
}

/// Everything that a copy has to bring: by path, what is known of it, as text.
pub fn look(root: &Path) -> BTreeMap<PathBuf, String> {
    let mut found = BTreeMap::new();
    let mut names: BTreeMap<u64, Vec<PathBuf>> = BTreeMap::new();
    let mut stack = vec![PathBuf::new()];
    while let Some(path) = stack.pop() {
        let whole = root.join(&path);
        let meta = std::fs::symlink_metadata(&whole).expect("it is there");
        let mut text = format!("{:o} {}:{}", meta.mode(), meta.uid(), meta.gid());
        if meta.is_symlink() {
            text += &format!(" -> {:?}", std::fs::read_link(&whole).expect("a link"));
        } else {
            text += &format!(" {}.{:09}", meta.mtime(), meta.mtime_nsec());
        }
        if meta.is_dir() {
            for entry in std::fs::read_dir(&whole).expect("a folder") {
                stack.push(path.join(entry.expect("an entry").file_name()));
            }
        } else if meta.nlink() > 1 {
            names.entry(meta.ino()).or_default().push(path.clone());
        }
        if meta.is_file() {
            let content = std::fs::read(&whole).expect("it can be read");
            let sum = forebay_base::checksum::crc32c(&content);
            let mut list = vec![0; 4096];
            let len = rustix::fs::listxattr(&whole, &mut list[..]).unwrap_or(0);
            text += &format!(
                " {} bytes {sum:08x} {:?}",
                meta.len(),
                &list[..len].escape_ascii().to_string()
            );
        }
        found.insert(path, text);
    }
    for mut same in names.into_values() {
        same.sort();
        for path in &same {
            *found.get_mut(path).expect("it was found") += &format!(" one of {same:?}");
        }
    }
    found
}
