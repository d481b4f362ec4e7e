//! The direction of imports inside a crate: its folders are layers, from the bottom up.
//!
//! ```text
//!   xtask/layers/NAME.txt            the folders of crates/NAME/src, the lowest first
//!   xtask/layers/NAME-allowed.txt    imports that point up all the same, and files in a cycle
//! ```
//! A folder is a module at the top of the crate, with all files below it. A file may import from
//! its own folder and from those before it in the list. Files of one folder may not import each
//! other in a circle. The root file of the crate and code that only tests compile are exempt.
//!
//! The list of what is allowed may only shrink. An import that it does not name is a finding, and
//! so is an entry that no import needs. `cargo xtask layers --record` writes it anew. It refuses
//! more items that folders import from later ones, and more files in cycles, than were recorded in
//! all; so code stays free to move between files.

use super::imports::{self, Import};
use crate::Findings;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

const FOLDER: &str = "xtask/layers";
const SUFFIX: &str = "-allowed";
/// Most re-exports of a name that are followed: two modules may re-export it from each other.
const EXPORTS_MAX: usize = 8;
const HEAD: &str = "\
# What does not follow the order of the folders yet: `up FILE MODULE::ITEM`, an import from a later
# folder, and `cycle FILE`, a file that imports itself by way of others of its folder.
# The list may only shrink. `cargo xtask layers --record` writes it, and refuses to let it grow.
";

/// A module, by the names that lead to it; the root has none.
type Module = Vec<String>;

/// The modules of a crate that product code compiles.
#[derive(Default)]
struct Crate {
    /// By module: its file, as a path from `src`, and the paths that the file mentions.
    files: BTreeMap<Module, (String, Vec<Import>)>,
}

/// What an import leads to.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Target {
    module: Module,
    item: String,
}

impl Target {
    fn name(&self) -> String {
        format!("{}::{}", self.module.join("::"), self.item)
    }
}

/// What is wrong with a crate: lines as the list of what is allowed has them.
type Wrongs = BTreeSet<String>;

/// Runs the check for each crate. Each has to have a list.
pub fn check(root: &Path) -> Findings {
    let mut findings = unlisted(root);
    findings.extend(each(root, |name, order, krate, allowed| {
        let mut findings = unplaced(name, order, krate);
        let (wrongs, cycles) = wrongs(order, krate);
        findings.extend(judge(name, &wrongs, allowed, &cycles));
        println!(
            "layers: {name}: {} imports point up, {} files lie in cycles",
            up(&wrongs),
            in_cycles(&wrongs)
        );
        findings
    }));
    findings
}

/// Crates without a list of their folders.
fn unlisted(root: &Path) -> Findings {
    let crates = std::fs::read_dir(root.join("crates")).into_iter().flatten().flatten();
    let mut names: Vec<_> =
        crates.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    names.retain(|name| {
        root.join("crates").join(name).join("src").is_dir()
            && !root.join(FOLDER).join(format!("{name}.txt")).exists()
    });
    let missing = |name| format!("crates/{name}: no list of its folders, {FOLDER}/{name}.txt");
    names.into_iter().map(missing).collect()
}

/// Writes the lists of what is allowed, if they do not grow.
pub fn record(root: &Path) -> Findings {
    each(root, |name, order, krate, allowed| {
        let (wrongs, _) = wrongs(order, krate);
        let file = root.join(FOLDER).join(format!("{name}{SUFFIX}.txt"));
        let mut findings = Findings::new();
        if file.exists() {
            findings = growth(name, &wrongs, allowed);
        }
        if findings.is_empty() {
            let lines: String = wrongs.iter().map(|line| format!("{line}\n")).collect();
            if let Err(e) = std::fs::write(&file, format!("{HEAD}{lines}")) {
                findings.push(format!("{}: {e}", file.display()));
            }
        }
        findings
    })
}

fn each(root: &Path, act: impl Fn(&str, &[String], &Crate, &Wrongs) -> Findings) -> Findings {
    let mut findings = Findings::new();
    let listed = std::fs::read_dir(root.join(FOLDER)).into_iter().flatten().flatten();
    let mut names: Vec<String> = listed
        .filter_map(|entry| {
            entry.file_name().to_string_lossy().strip_suffix(".txt").map(str::to_string)
        })
        .filter(|name| !name.ends_with(SUFFIX))
        .collect();
    names.sort();
    for name in names {
        let lines = |file: String| {
            lines(&std::fs::read_to_string(root.join(FOLDER).join(file)).unwrap_or_default())
        };
        let order = lines(format!("{name}.txt"));
        let allowed = lines(format!("{name}{SUFFIX}.txt")).into_iter().collect();
        let src = root.join("crates").join(&name).join("src");
        match Crate::load(|file| std::fs::read_to_string(src.join(file)).ok()) {
            Ok(krate) => findings.extend(act(&name, &order, &krate, &allowed)),
            Err(e) => findings.push(format!("{FOLDER}/{name}.txt: {e}")),
        }
    }
    findings
}

fn lines(text: &str) -> Vec<String> {
    let lines =
        text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'));
    lines.map(str::to_string).collect()
}

impl Crate {
    /// All modules from `lib.rs` or `main.rs` on; `text` gives a file by its path from `src`.
    fn load(text: impl Fn(&str) -> Option<String>) -> Result<Self, String> {
        let root = ["lib.rs", "main.rs"].into_iter().find_map(|file| Some((file, text(file)?)));
        let (file, content) = root.ok_or("the crate has no lib.rs and no main.rs")?;
        let mut krate = Self::default();
        let mut waiting = vec![(Module::new(), file.to_string(), content)];
        while let Some((module, file, content)) = waiting.pop() {
            let read = imports::read(&content);
            let folder: String = module.iter().map(|name| format!("{name}/")).collect();
            for child in read.children.iter().filter(|child| !child.is_test) {
                let places = [
                    format!("{folder}{}.rs", child.name),
                    format!("{folder}{}/mod.rs", child.name),
                ];
                let found = places.into_iter().find_map(|place| text(&place).map(|t| (place, t)));
                let (place, t) =
                    found.ok_or(format!("{file}: module `{}` has no file", child.name))?;
                let below = module.iter().chain([&child.name]).cloned().collect();
                waiting.push((below, place, t));
            }
            krate.files.insert(module, (file, read.imports));
        }
        Ok(krate)
    }

    /// What a path in `from` leads to; nothing if that is no module of this crate.
    fn resolve(&self, from: &Module, import: &Import) -> Option<Target> {
        self.follow(from, import, EXPORTS_MAX)
    }

    fn follow(&self, from: &Module, import: &Import, steps: usize) -> Option<Target> {
        let (mut module, mut inline) = (from.clone(), import.depth);
        let mut rest = import.path.as_slice();
        if rest[0] == "crate" {
            (module, rest) = (Module::new(), &rest[1..]);
        }
        while let Some((first, more)) = rest.split_first() {
            match first.as_str() {
                "self" => {}
                "super" if inline > 0 => inline -= 1,
                "super" => drop(module.pop()?),
                _ => break,
            }
            rest = more;
        }
        self.descend(module, rest, steps)
    }

    fn descend(&self, mut module: Module, mut rest: &[String], steps: usize) -> Option<Target> {
        while let Some((first, more)) = rest.split_first() {
            module.push(first.clone());
            if !self.files.contains_key(&module) {
                module.pop();
                break;
            }
            rest = more;
        }
        let Some((item, _)) = rest.split_first() else {
            // The module itself.
            let item = module.pop()?;
            return Some(Target {
                module: [module, vec![item]].concat(),
                item: "self".to_string(),
            });
        };
        // A name that the module re-exports belongs to the module that defines it.
        let exports = &self.files[&module].1;
        let export = exports.iter().find(|i| i.exported_as.as_ref() == Some(item));
        match export.filter(|_| steps > 0).and_then(|i| self.follow(&module, i, steps - 1)) {
            Some(target) if target.module != module => Some(target),
            _ => Some(Target { module, item: item.clone() }),
        }
    }

    /// Each import of each file that leads to another file of the crate.
    fn edges(&self) -> BTreeSet<(&Module, Target)> {
        let mut edges = BTreeSet::new();
        for (from, (_, imports)) in self.files.iter().filter(|(from, _)| !from.is_empty()) {
            // A re-export is no import here: the users of the name import it.
            for import in imports.iter().filter(|import| import.exported_as.is_none()) {
                let target = self.resolve(from, import);
                edges.extend(
                    target.filter(|t| t.module != *from && !t.module.is_empty()).map(|t| (from, t)),
                );
            }
        }
        edges
    }
}

/// Folders that the list lacks, and entries without a folder.
fn unplaced(name: &str, order: &[String], krate: &Crate) -> Findings {
    let folders: BTreeSet<&String> =
        krate.files.keys().filter_map(|module| module.first()).collect();
    let placed: BTreeSet<&String> = order.iter().collect();
    let missing = folders.difference(&placed).map(|folder| {
        format!(
            "crates/{name}/src/{folder}: not in {FOLDER}/{name}.txt, which says what it may import"
        )
    });
    let stale = placed
        .difference(&folders)
        .map(|entry| format!("{FOLDER}/{name}.txt: no module `{entry}`"));
    missing.chain(stale).collect()
}

/// What does not follow the order, and the cycles by the files in them.
fn wrongs(order: &[String], krate: &Crate) -> (Wrongs, BTreeMap<String, String>) {
    let rank = |module: &Module| order.iter().position(|folder| *folder == module[0]);
    let (mut wrongs, mut inner) = (Wrongs::new(), BTreeMap::<&Module, BTreeSet<Module>>::new());
    for (from, target) in krate.edges() {
        if from[0] == target.module[0] {
            inner.entry(from).or_default().insert(target.module);
        } else if rank(from) < rank(&target.module) {
            wrongs.insert(format!("up {} {}", krate.files[from].0, target.name()));
        }
    }
    let reached: BTreeMap<&Module, BTreeSet<Module>> =
        inner.keys().map(|from| (*from, reachable(from, &inner))).collect();
    let mut cycles = BTreeMap::new();
    for (from, to) in reached.iter().filter(|(from, to)| to.contains(**from)) {
        let file = |module: &Module| krate.files[module].0.clone();
        let is_in_circle = |other: &&Module| reached.get(*other).is_some_and(|r| r.contains(*from));
        let circle: Vec<String> = to.iter().filter(is_in_circle).map(file).collect();
        wrongs.insert(format!("cycle {}", file(from)));
        cycles.insert(format!("cycle {}", file(from)), circle.join(", "));
    }
    (wrongs, cycles)
}

/// All modules that `from` imports, itself or by way of others.
fn reachable(from: &Module, edges: &BTreeMap<&Module, BTreeSet<Module>>) -> BTreeSet<Module> {
    let (mut reached, mut waiting) = (BTreeSet::new(), vec![from.clone()]);
    while let Some(module) = waiting.pop() {
        for next in edges.get(&module).into_iter().flatten() {
            if reached.insert(next.clone()) {
                waiting.push(next.clone());
            }
        }
    }
    reached
}

fn judge(
    name: &str,
    wrongs: &Wrongs,
    allowed: &Wrongs,
    cycles: &BTreeMap<String, String>,
) -> Findings {
    let mut findings = Findings::new();
    for line in wrongs.difference(allowed) {
        findings.push(match line.split(' ').collect::<Vec<_>>()[..] {
            ["up", file, item] => format!(
                "crates/{name}/src/{file}: imports {item}, from a later folder of \
                 {FOLDER}/{name}.txt. If the code came from another file of its folder: \
                 cargo xtask layers --record"
            ),
            _ => {
                format!("crates/{name}/src: files import each other in a circle: {}", cycles[line])
            }
        });
    }
    for line in allowed.difference(wrongs) {
        findings.push(format!(
            "{FOLDER}/{name}{SUFFIX}.txt: `{line}` is not needed any more: cargo xtask layers --record"
        ));
    }
    findings
}

/// Sums that would grow: items that folders import from later ones, and files in cycles.
fn growth(name: &str, wrongs: &Wrongs, allowed: &Wrongs) -> Findings {
    let sums = |lines: &Wrongs| {
        let items: BTreeSet<String> = lines.iter().filter_map(|line| by_folder(line)).collect();
        [items.len(), in_cycles(lines)]
    };
    let what = ["items that folders import from later ones", "files in cycles"];
    let mut findings = Findings::new();
    for ((now, before), what) in sums(wrongs).into_iter().zip(sums(allowed)).zip(what) {
        if now > before {
            findings.push(format!(
                "crates/{name}/src: {now} {what}, {before} are recorded, and the record may not \
                 grow. `cargo xtask layers` says where they are"
            ));
        }
    }
    findings
}

/// `FOLDER -> MODULE::ITEM` of an import.
fn by_folder(line: &str) -> Option<String> {
    let (file, item) = line.strip_prefix("up ")?.split_once(' ')?;
    Some(format!("{} -> {item}", folder_of(file)))
}

fn folder_of(file: &str) -> &str {
    file.split('/').next().unwrap_or(file).trim_end_matches(".rs")
}

fn up(wrongs: &Wrongs) -> usize {
    wrongs.iter().filter(|line| line.starts_with("up ")).count()
}

fn in_cycles(wrongs: &Wrongs) -> usize {
    wrongs.len() - up(wrongs)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn krate(files: &[(&str, &str)]) -> Crate {
        let text = |wanted: &str| {
            files.iter().find(|(name, _)| *name == wanted).map(|(_, t)| (*t).to_string())
        };
        Crate::load(text).unwrap()
    }

    fn set(lines: &[&str]) -> Wrongs {
        lines.iter().map(|line| (*line).to_string()).collect()
    }

    /// Two folders, `low` below `high`, with one file each in addition to the root of the folder.
    fn wrongs_of(low: &str, high: &str) -> Wrongs {
        let files = [
            ("lib.rs", "mod low;\nmod high;\npub use high::Top;\n"),
            ("low.rs", "pub mod leaf;\n"),
            ("low/leaf.rs", low),
            (
                "high.rs",
                "mod part;\npub struct Top;\npub(crate) use part::Thing;\nuse crate::low::leaf;\n",
            ),
            ("high/part.rs", high),
        ];
        let order = ["low".to_string(), "high".to_string()];
        wrongs(&order, &krate(&files)).0
    }

    #[test]
    fn import_from_later_folder_is_found_in_every_form() {
        let part = set(&["up low/leaf.rs high::part::Thing"]);
        assert_eq!(wrongs_of("use crate::high::part::Thing;\n", ""), part);
        assert_eq!(wrongs_of("use crate::high::{part::{Thing, Thing as Other}};\n", ""), part);
        assert_eq!(wrongs_of("fn f(x: &super::super::high::part::Thing) {}\n", ""), part);
        assert_eq!(wrongs_of("fn f() { crate::high::part::Thing::new() }\n", ""), part);
        // A re-exported name belongs to the file that defines it.
        assert_eq!(wrongs_of("use crate::high::Thing;\n", ""), part);
        assert_eq!(wrongs_of("use crate::Top;\n", ""), set(&["up low/leaf.rs high::Top"]));
        assert_eq!(
            wrongs_of("use crate::high::part;\n", ""),
            set(&["up low/leaf.rs high::part::self"])
        );
        assert_eq!(
            wrongs_of("use crate::high::part::*;\n", ""),
            set(&["up low/leaf.rs high::part::*"])
        );
    }

    #[test]
    fn import_from_earlier_folder_or_in_test_is_allowed() {
        assert_eq!(wrongs_of("", "use crate::low::leaf::Thing;\nuse super::Top;\n"), set(&[]));
        assert_eq!(
            wrongs_of("#[cfg(test)]\nmod tests {\n use crate::high::Top;\n}\n", ""),
            set(&[])
        );
        assert_eq!(
            wrongs_of("mod inside {\n use super::super::Other;\n}\nuse std::high;\n", ""),
            set(&[])
        );
    }

    #[test]
    fn files_that_import_each_other_in_a_circle_are_found() {
        let circle = krate(&[
            ("main.rs", "mod a;\n"),
            ("a.rs", "mod b;\nmod c;\nmod d;\nuse b::B;\n"),
            ("a/b.rs", "use super::c::C;\n"),
            ("a/c.rs", "fn f() { crate::a::b::g() }\n"),
            ("a/d.rs", "use super::b;\n"),
        ]);
        let order = ["a".to_string()];
        let (found, cycles) = wrongs(&order, &circle);
        assert_eq!(found, set(&["cycle a/b.rs", "cycle a/c.rs"]));
        assert_eq!(cycles["cycle a/b.rs"], "a/b.rs, a/c.rs");
        let findings = judge("x", &found, &set(&["cycle a/c.rs"]), &cycles);
        assert_eq!(findings, ["crates/x/src: files import each other in a circle: a/b.rs, a/c.rs"]);
    }

    #[test]
    fn unlisted_import_and_stale_entry_are_findings() {
        let nothing = BTreeMap::new();
        let found = set(&["up a.rs b::X"]);
        assert!(judge("x", &found, &found, &nothing).is_empty());
        let findings = judge("x", &found, &set(&["up a.rs b::Y"]), &nothing);
        assert_eq!(findings.len(), 2, "{findings:?}");
        assert!(findings[0].starts_with("crates/x/src/a.rs: imports b::X"), "{findings:?}");
        assert!(findings[1].contains("`up a.rs b::Y` is not needed any more"), "{findings:?}");
    }

    #[test]
    fn record_takes_code_that_moved_and_refuses_sums_that_grow() {
        let recorded = set(&["up a/b.rs z::X", "cycle a/b.rs"]);
        let grows = |lines: &[&str]| growth("x", &set(lines), &recorded).len();
        assert_eq!(grows(&["up a/c.rs z::X", "up a.rs z::X", "cycle a/d.rs"]), 0);
        assert_eq!(grows(&["up a/b.rs y::X"]), 0, "the item moved");
        assert_eq!(grows(&["up a/b.rs z::X", "up b.rs z::X"]), 1);
        assert_eq!(grows(&["up a/b.rs z::X", "up a/b.rs z::Y"]), 1);
        assert_eq!(grows(&["cycle a/b.rs", "cycle a/c.rs"]), 1);
    }

    #[test]
    fn name_that_two_modules_have_from_each_other_ends() {
        let files = [
            ("lib.rs", "mod a;\nmod b;\n"),
            ("a.rs", "pub use crate::b::X;\nfn f() { crate::b::X::new() }\n"),
            ("b.rs", "pub use crate::a::X;\n"),
        ];
        let order = ["a".to_string(), "b".to_string()];
        assert!(wrongs(&order, &krate(&files)).0.len() <= 1);
    }

    #[test]
    fn folder_without_entry_and_entry_without_folder_are_findings() {
        let two = krate(&[("lib.rs", "mod a;\nmod b;\n"), ("a.rs", ""), ("b/mod.rs", "")]);
        let findings = unplaced("x", &["a".to_string(), "c".to_string()], &two);
        assert_eq!(findings.len(), 2, "{findings:?}");
        assert!(findings[0].starts_with("crates/x/src/b: not in"), "{findings:?}");
        let lost = Crate::load(|file| (file == "lib.rs").then(|| "mod a;\n".to_string()));
        assert!(lost.is_err());
    }
}
