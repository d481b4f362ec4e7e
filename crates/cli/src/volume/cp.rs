//! `forebay cp`: copies into a volume, out of one, or from one to another.

use super::args::CpArgs;
use super::at::{Access, Named, OpenVolume, open};
use super::compare::Comparer;
use super::copy::{Copier, How};
use super::host::Host;
use super::inside::{Inside, Node};
use super::report::Report;
use super::side::Side;
use crate::failure::{Failure, Outcome, status};
use crate::output;
use forebay_base::ErrorKind;
use forebay_base::task::block_on;
use forebay_block::FileIdentity;
use forebay_vfs::FileKind;
use forebay_vfs::path::{Last, resolve, resolve_parent};
use serde_json::json;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// The target of a copy: a directory and a name in it. Without a name the entries of the source are
/// copied into the directory.
struct Place<N> {
    dir: N,
    name: Option<Vec<u8>>,
}

/// Runs the command.
pub fn cp(args: &CpArgs) -> Outcome {
    let (last, sources) = args.paths.split_last().expect("two words at least");
    let target = Named::parse(last);
    let named: Vec<Option<Named>> = sources.iter().map(|word| Named::parse(word)).collect();
    if target.is_none() && named.iter().any(Option::is_none) {
        let text = "cp: neither side is in a volume";
        return Err(Failure::usage(text).hint("a path in a volume is written VOLUME:/PATH"));
    }
    let mut job = Job { args, report: Report::new("copied"), checked: Report::new("compared") };
    let into = match &target {
        Some(named) => Some((named, open(&named.image, Access::Write, &args.which)?)),
        None => None,
    };
    for (word, source) in sources.iter().zip(&named) {
        job.one(word, source.as_ref(), last, into.as_ref())?;
    }
    if let Some((_, volume)) = into {
        volume.finish()?;
    }
    job.end()
}

struct Job<'a> {
    args: &'a CpArgs,
    report: Report,
    checked: Report,
}

impl Job<'_> {
    fn one(
        &mut self,
        word: &str,
        source: Option<&Named>,
        last: &str,
        into: Option<&(&Named, OpenVolume)>,
    ) -> Outcome {
        let many = self.args.paths.len() > 2;
        let base = base_name(source.map_or(word.as_bytes(), |named| &named.path));
        match (source, into) {
            (None, None) => unreachable!("one side is in a volume"),
            (None, Some((to, volume))) => {
                let target = Inside(volume);
                let place = inside_place(volume, &to.path, base.as_deref(), many)?;
                self.run(&Host::new(), PathBuf::from(word), &target, place, false);
            }
            (Some(named), None) => {
                let volume = open(&named.image, Access::Read, &self.args.which)?;
                let place = host_place(last, base.as_deref(), many)?;
                let Some(node) = self.found(&volume, named)? else { return Ok(()) };
                self.run(&Inside(&volume), node, &Host::new(), place, false);
            }
            (Some(named), Some((to, target))) => {
                let place = inside_place(target, &to.path, base.as_deref(), many)?;
                let key = |path: &Path| FileIdentity::of_path(path).map_err(Failure::from);
                if key(&named.image)? == key(&to.image)? {
                    let Some(node) = self.found(target, named)? else { return Ok(()) };
                    self.run(&Inside(target), node, &Inside(target), place, true);
                } else {
                    let volume = open(&named.image, Access::Read, &self.args.which)?;
                    let Some(node) = self.found(&volume, named)? else { return Ok(()) };
                    self.run(&Inside(&volume), node, &Inside(target), place, false);
                }
            }
        }
        Ok(())
    }

    /// Finds a source in a volume. If there are several sources, a missing one is reported, and the
    /// others are copied.
    fn found(&mut self, volume: &OpenVolume, named: &Named) -> Outcome<Option<Node>> {
        match find(volume, &named.path) {
            Err(failure) if failure.status == status::NOT_FOUND && self.args.paths.len() > 2 => {
                self.report.problem(&volume.show(&named.path), None, "not found");
                Ok(None)
            }
            found => found.map(Some),
        }
    }

    fn run<S: Side, T: Side>(
        &mut self,
        source: &S,
        node: S::Node,
        target: &T,
        place: Place<T::Node>,
        same: bool,
    ) {
        let how = How { recursive: self.args.recursive, salvage: None, same };
        let mut copier = Copier::new(source, target, how);
        match &place.name {
            Some(name) => {
                copier.copy(node.clone(), place.dir.clone(), name.clone(), &mut self.report);
            }
            None => copier.copy_into(node.clone(), place.dir.clone(), &mut self.report),
        }
        if !self.args.compare {
            return;
        }
        // A volume is synced first: the comparison reads what the volume has stored.
        let other = target.sync().and_then(|()| match &place.name {
            Some(name) => target.child(&place.dir, name),
            None => Ok(Some(place.dir.clone())),
        });
        let show = source.show(&node);
        self.checked.begin();
        match other {
            Ok(Some(other)) => {
                let owners = rustix::process::geteuid().is_root();
                Comparer::new(source, target, owners).compare(node, other, &mut self.checked);
            }
            Ok(None) => self.checked.problem(&show, None, "missing there"),
            Err(error) => self.checked.failed(&show, &error),
        }
    }

    fn end(self) -> Outcome {
        let Self { args, report, checked } = self;
        if args.json {
            let compared = args.compare.then(|| checked.json());
            let all = json!({ "copied": report.json(), "compared": compared });
            output::json(&all);
        } else if args.compare {
            output::line(report.line());
            output::line(checked.line());
        } else {
            log::info!("{}", report.line());
        }
        match report.problems + checked.problems {
            0 => Ok(()),
            1 => Err(Failure::new("cp: one problem; it was named above")),
            n => Err(Failure::new(format!("cp: {n} problems; they were named above"))),
        }
    }
}

/// The last name of a path; `None` if there is none, or if it is `.` or `..`.
fn base_name(path: &[u8]) -> Option<Vec<u8>> {
    let name = path.split(|b| *b == b'/').rfind(|part| !part.is_empty())?;
    (!matches!(name, b"." | b"..")).then(|| name.to_vec())
}

/// The inode that a path in a volume names; a symbolic link at its end is not followed.
pub fn find(volume: &OpenVolume, path: &[u8]) -> Outcome<Node> {
    let found = block_on(resolve(&*volume.fs, forebay_vfs::Ino::ROOT, path, Last::NoFollow));
    let attr = found.map_err(|e| e.with_path(volume.show(path)))?;
    Ok(Node { ino: attr.ino, path: path.to_vec() })
}

fn inside_place(
    volume: &OpenVolume,
    path: &[u8],
    base: Option<&[u8]>,
    many: bool,
) -> Outcome<Place<Node>> {
    let named = |e: forebay_base::Error| Failure::from(e.with_path(volume.show(path)));
    let fs = &*volume.fs;
    match block_on(resolve(fs, forebay_vfs::Ino::ROOT, path, Last::Follow)) {
        Ok(attr) if attr.kind == FileKind::Directory => {
            let dir = Node { ino: attr.ino, path: path.to_vec() };
            return Ok(Place { dir, name: base.map(<[u8]>::to_vec) });
        }
        Ok(_) => {}
        Err(e) if e.kind() == ErrorKind::NotFound => {}
        Err(e) => return Err(named(e)),
    }
    if many {
        return Err(Failure::new(format!("{}: not a directory", volume.show(path))));
    }
    let place = block_on(resolve_parent(fs, forebay_vfs::Ino::ROOT, path)).map_err(named)?;
    let upper = path.iter().rposition(|b| *b == b'/').unwrap_or(0);
    let dir = Node { ino: place.dir, path: path[..upper.max(1)].to_vec() };
    Ok(Place { dir, name: place.name.map(Into::into) })
}

fn host_place(path: &str, base: Option<&[u8]>, many: bool) -> Outcome<Place<PathBuf>> {
    let to = Path::new(path);
    if to.is_dir() {
        return Ok(Place { dir: to.to_path_buf(), name: base.map(<[u8]>::to_vec) });
    }
    let parent = to.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let name = to.file_name().map(|name| name.as_bytes().to_vec());
    if many || !parent.is_dir() {
        let shown = if many { to } else { parent };
        return Err(Failure::not_found(format!("{}: not a directory", shown.display())));
    }
    Ok(Place { dir: parent.to_path_buf(), name })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn last_name_of_path_is_found() {
        for (path, name) in [
            ("/a/b", Some("b")),
            ("/a/b/", Some("b")),
            ("/", None),
            ("", None),
            ("a/.", None),
            ("..", None),
        ] {
            let found = base_name(path.as_bytes());
            assert_eq!(found, name.map(|n| n.as_bytes().to_vec()), "{path}");
        }
    }
}
