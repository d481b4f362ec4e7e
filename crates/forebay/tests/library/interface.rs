//! The public interface, kept as text: a change of it is a change of `tests/interface.txt`, to be
//! seen in review. It is read out of the formatted sources, which needs neither a nightly compiler
//! nor a crate that follows the unstable JSON of rustdoc. Types that are re-exported are read in
//! the sources of their crate, and all of `vfs`.
//!
//! `FOREBAY_RECORD=1 cargo test -p forebay --test library interface` writes the file anew.

mod scan;

use scan::{Found, name_of, scan};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

type Names = BTreeSet<String>;

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

/// All source files below a folder, but modules of tests.
fn sources(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        match path.is_dir() {
            true if path.ends_with("tests") => {}
            true => sources(&path, found),
            false if path.ends_with("tests.rs") => {}
            false => found.push(path),
        }
    }
}

/// The names that a `pub use` gives, without the path to them.
fn given(line: &str) -> impl Iterator<Item = &str> {
    let parts = line.split([' ', ',', '{', '}']).filter(|part| !part.ends_with("::"));
    parts.filter_map(|part| part.rsplit("::").next()).filter(|name| !name.is_empty())
}

fn words(text: &str) -> impl Iterator<Item = &str> {
    text.split(|c: char| !c.is_alphanumeric() && c != '_').filter(|word| !word.is_empty())
}

/// The `pub use` statements of a file, each on one line.
fn uses(text: &str) -> Vec<String> {
    let statements = text.split("\npub use ").skip(1);
    let joined = statements.map(|rest| rest.split(';').next().unwrap().split_whitespace());
    joined.map(|words| format!("pub use {}", words.collect::<Vec<_>>().join(" "))).collect()
}

/// What each crate below adds to the names of the library.
fn re_exported(files: &[PathBuf], exported: &Names) -> BTreeMap<String, Names> {
    let mut by_crate: BTreeMap<String, Names> = BTreeMap::new();
    for file in files {
        for line in uses(&fs::read_to_string(file).unwrap()) {
            let of = words(&line).find_map(|word| word.strip_prefix("forebay_"));
            if let Some(of) = of {
                let names = given(&line).filter(|name| exported.contains(*name));
                by_crate.entry(of.into()).or_default().extend(names.map(str::to_string));
            }
        }
    }
    by_crate
}

/// The interface: its lines, and the names in it.
fn interface() -> (Found, Names) {
    let lib = fs::read_to_string(root().join("src/lib.rs")).unwrap();
    let exports = uses(&lib);
    let exported: Names = exports.iter().flat_map(|line| given(line)).map(str::to_string).collect();
    let mut files = Vec::new();
    sources(&root().join("src"), &mut files);
    let mut found: Found = exports.into_iter().collect();
    for file in &files {
        let is_exported = |name: &str| exported.contains(name);
        scan(&fs::read_to_string(file).unwrap(), &is_exported, &mut found);
    }
    let mut names = exported.clone();
    for (of, only) in re_exported(&files, &exported) {
        let mut files = Vec::new();
        sources(&root().join("..").join(&of).join("src"), &mut files);
        let mut lines = Found::new();
        for file in files {
            // A module that is exported, and `vfs`, are public with everything in them.
            let module = file.file_stem().unwrap().to_str().unwrap();
            let is_whole = of == "vfs" || (only.contains(module) && module != of);
            let wanted = |name: &str| is_whole || only.contains(name);
            scan(&fs::read_to_string(&file).unwrap(), &wanted, &mut lines);
        }
        names.extend(lines.iter().map(|line| name_of(line).to_string()));
        found.extend(lines.into_iter().map(|line| format!("{of}: {line}")));
    }
    (found, names)
}

/// What the standard library and the language have, as far as signatures name it.
const STD: &str = "Self Option Some None Vec String Box Arc Path PathBuf Duration Future Output Pin \
    Send Sync Fn FnMut FnOnce Iterator Item IntoIter IntoIterator From Into AsRef Clone Copy Debug \
    Default Display Drop Eq PartialEq Ord PartialOrd Hash Formatter FromStr Err Error Deref \
    DerefMut Target Read Write Seek Sized IoSlice IoSliceMut Range RangeBounds BTreeMap \
    HashMap BTreeSet SystemTime Instant BorrowedFd ToString OsStr OsString File Weak Mutex Context Poll \
    Waker Rc";

/// Names that only some lines may have: parts of what a user holds and passes on, but neither
/// implements nor makes.
const HELD: [(&str, &str); 8] = [
    ("block: BlockDevice: fn ", "Bio"),
    ("block: BlockDevice: fn ", "BioFlags"),
    ("block: BlockDevice: fn ", "Limits"),
    ("block: BlockDevice: fn ", "MapRuns"),
    ("base: unsafe impl IoMem for ", "IoMem"),
    ("base: pub type WorldRef ", "World"),
    ("cache: Pinned: pub fn new", "PageCache"),
    ("lfs: impl From<&Superblock> for ", "Superblock"),
];

/// Names in a line that is neither in the interface nor in std: types that a user cannot name.
fn leaks<'a>(line: &'a str, names: &Names) -> Vec<&'a str> {
    let held = HELD.iter().filter(|(start, _)| line.starts_with(start)).map(|(_, name)| *name);
    let held: Vec<&str> = held.collect();
    let is_crate = |word: &str| word.starts_with(|c: char| c.is_lowercase()) && !word.contains(' ');
    let line = line.split_once(": ").filter(|(of, _)| is_crate(of)).map_or(line, |(_, rest)| rest);
    let (subject, item) = line.split_once(": ").unwrap_or(("", line));
    let (signature, _value) = match item.contains("const ") {
        true => item.split_once(" = ").unwrap_or((item, "")),
        false => (item, ""),
    };
    let known = |word: &str| {
        let is_parameter = word.len() == 1;
        let is_constant = word.chars().all(|c| !c.is_lowercase());
        let is_std = STD.split_whitespace().any(|of| of == word);
        held.contains(&word)
            || is_parameter
            || is_constant
            || is_std
            || word == subject
            || names.contains(word)
    };
    let is_type = |word: &&str| word.starts_with(|c: char| c.is_ascii_uppercase());
    // A variant names itself.
    let is_variant = item.starts_with(|c: char| c.is_ascii_uppercase());
    // The text of an option is no signature.
    let signature = if signature.contains('"') { "" } else { signature };
    words(signature)
        .skip(usize::from(is_variant))
        .filter(is_type)
        .filter(|word| !known(word))
        .collect()
}

#[test]
fn public_interface_names_no_type_that_it_lacks() {
    let (found, names) = interface();
    let own = found.iter().filter(|line| !line.starts_with("pub use "));
    let leaks: BTreeSet<_> = own.map(|line| (line, leaks(line, &names))).collect();
    let leaks: Vec<_> = leaks.iter().filter(|(_, names)| !names.is_empty()).collect();
    assert!(leaks.is_empty(), "types that are not exported: {leaks:#?}");
}

#[test]
fn leak_of_an_imported_type_is_seen() {
    let names: Names = ["Cache"].map(str::to_string).into();
    let line = "Cache: pub fn inner(&self) -> Option<Arc<PageCache>>";
    assert_eq!(leaks(line, &names), ["PageCache"]);
    assert_eq!(leaks("Mode: Shared(Arc<Folio>)", &names), ["Folio"]);
    assert!(leaks("Cache: pub fn new<T: Send>(of: T) -> Self", &names).is_empty());
}

#[test]
fn items_with_attributes_are_read() {
    let text = "/// One.\n#[derive(Debug, Default)]\n#[non_exhaustive]\npub enum Mode {\n    \
        /// Two.\n    #[default]\n    Cached,\n    Other(\n        u8,\n    ),\n}\n\n\
        #[cfg(test)]\nmod tests;\n\nimpl<T> Mode {\n    #[must_use]\n    pub fn at(\n        \
        self,\n    ) -> u8 {\n        let pub_x = 1;\n    }\n}\n\n#[cfg(test)]\nmod more {\n    \
        use x;\n}\n\npub(crate) struct Mode;\n";
    let mut found = Found::new();
    scan(text, &|name| name == "Mode", &mut found);
    let wanted = [
        "Mode: Cached",
        "Mode: Other(u8, )",
        "Mode: derives Debug",
        "Mode: derives Default",
        "Mode: pub fn at(self, ) -> u8",
        "impl<T> Mode",
        "pub enum Mode",
    ];
    assert_eq!(found, wanted.map(str::to_string).into());
}

#[test]
fn public_interface_is_the_recorded_one() {
    let (found, _) = interface();
    let text: String = found.iter().map(|line| format!("{line}\n")).collect();
    for must in [
        "\nFile: pub fn read_at(",
        "\nOpenOptions: pub fn open_in(",
        "\nOpenOptions options: size_limit: u64",
        "\nExportMode: Cached\n",
        "\nExportMode: derives Default\n",
        "\nbase: Error: pub fn kind(",
        "\nbase: IoFlags: const UNCACHED",
        "\ncache: Pinned: pub fn",
        "\ncache: counters: counter hits\n",
        "\nvfs: FileSystem: fn ",
    ] {
        assert!(text.contains(must), "the sources are read wrongly: no `{must}` in\n{text}");
    }
    let path = root().join("tests/interface.txt");
    if std::env::var_os("FOREBAY_RECORD").is_some() {
        return fs::write(path, text).unwrap();
    }
    let recorded = fs::read_to_string(path).unwrap();
    let recorded: BTreeSet<String> = recorded.lines().map(str::to_string).collect();
    let new: Vec<_> = found.difference(&recorded).collect();
    let gone: Vec<_> = recorded.difference(&found).collect();
    assert!(new.is_empty() && gone.is_empty(), "new: {new:#?}\ngone: {gone:#?}");
}
