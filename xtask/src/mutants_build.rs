//! One tree with all mutants in it, each behind a switch, so that one build serves all of them: the
//! environment variable [`SWITCH`] says which is on.
//!
//! Invariants: Z3 the working tree is never changed. Z6 with no mutant on, the copy does what the original
//! does; with one on, what the original with this one change does: changes nest, and each stands in all
//! forms of what is around it.

use crate::mutants::{Kind, Mutation};
use serde_json::Value;
use std::collections::BTreeSet;
use std::fmt::Write;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// The number of the mutant that is on; none without it.
pub const SWITCH: &str = "FOREBAY_MUTANT";

/// What each crate gets that has mutants in it.
const SWITCHES: &str = "
#[doc(hidden)]
#[inline]
pub(crate) fn mutant(number: u32) -> bool {
    static ON: std::sync::LazyLock<u32> = std::sync::LazyLock::new(|| {
        std::env::var(\"FOREBAY_MUTANT\").map_or(0, |number| number.parse().expect(\"a number\"))
    });
    *ON == number
}
";

/// A finished test program.
#[derive(Debug, Clone)]
pub struct Program {
    /// Folder name of its crate.
    pub krate: String,
    /// Name of the target: the crate's own for its unit tests.
    pub target: String,
    /// Where it is.
    pub path: PathBuf,
    /// Where it runs.
    pub folder: PathBuf,
}

/// The copy, and what it is built with.
pub struct Copy {
    /// Its root.
    pub tree: PathBuf,
    target: PathBuf,
    shuttle: bool,
}

impl Copy {
    /// Copies what git knows, or would; a file that has not changed keeps its time, so that it is not
    /// built again. Then puts these in (Z3: into the copy). With `shuttle` it is built for random
    /// interleavings instead of for the ordinary tests.
    ///
    /// # Errors
    /// Files that cannot be read or written.
    pub fn new(
        root: &Path,
        scratch: &Path,
        on: &[(u32, &Mutation)],
        shuttle: bool,
    ) -> Result<Self, String> {
        let target = scratch.join(if shuttle { "shuttle" } else { "target" });
        let copy = Self { tree: scratch.join("tree"), target, shuttle };
        let words = ["ls-files", "-co", "--exclude-standard"];
        let listed = Command::new("git").args(words).current_dir(root).output();
        let listed = listed.map_err(|e| format!("git: {e}"))?.stdout;
        for name in String::from_utf8_lossy(&listed).lines() {
            let Ok(bytes) = std::fs::read(root.join(name)) else { continue };
            let bytes = match String::from_utf8(bytes) {
                Ok(text) => with_mutants(name, &text, on).into_bytes(),
                Err(other) => other.into_bytes(),
            };
            let to = copy.tree.join(name);
            if std::fs::read(&to).is_ok_and(|there| there == bytes) {
                continue;
            }
            let made = to.parent().map_or(Ok(()), std::fs::create_dir_all);
            let written = made.and_then(|()| std::fs::write(&to, bytes));
            written.map_err(|e| format!("{}: {e}", to.display()))?;
        }
        Ok(copy)
    }

    fn cargo(&self, words: &[&str]) -> Result<Vec<Value>, String> {
        let flags = format!("{FLAGS}{}", if self.shuttle { " --cfg shuttle" } else { "" });
        let mut command = Command::new("cargo");
        command.args(words).args(["--locked", "--message-format", "json"]).current_dir(&self.tree);
        command.env("CARGO_TARGET_DIR", &self.target).env("RUSTFLAGS", flags);
        command.env("CARGO_PROFILE_DEV_OPT_LEVEL", "1").env("CARGO_PROFILE_DEV_DEBUG", "none");
        command.stdin(Stdio::null()).stderr(Stdio::null());
        let output = command.output().map_err(|e| format!("cargo: {e}"))?;
        let text = String::from_utf8_lossy(&output.stdout);
        Ok(text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect())
    }

    /// The mutants that the compiler refuses, as far as it got; empty if it has nothing to say.
    ///
    /// # Errors
    /// What it says of code that is no mutant.
    pub fn refused(&self) -> Result<BTreeSet<u32>, String> {
        let words = ["check", "--package", "forebay-cache", "--package", "forebay-iomap", "--lib"];
        let mut refused = BTreeSet::new();
        let messages = self.cargo(&words)?;
        for message in errors(&messages) {
            let spans = message["spans"].as_array().map_or(&[][..], Vec::as_slice);
            let by_span = |primary: bool| -> BTreeSet<u32> {
                let fits = |span: &&Value| span["is_primary"] == primary;
                spans.iter().filter(fits).filter_map(|span| self.at(span)).collect()
            };
            let mut blamed = by_span(true);
            if blamed.is_empty() {
                blamed = by_span(false);
            }
            if blamed.is_empty() && !spans.is_empty() {
                return Err(format!("the copy does not build: {}", message["rendered"]));
            }
            refused.extend(blamed);
        }
        Ok(refused)
    }

    /// The innermost mutant around the start of a span.
    fn at(&self, span: &Value) -> Option<u32> {
        let text = std::fs::read_to_string(self.tree.join(span["file_name"].as_str()?)).ok()?;
        innermost(&text, span["byte_start"].as_u64()? as usize)
    }

    /// Builds the tests.
    ///
    /// # Errors
    /// What the compiler says.
    pub fn programs(&self) -> Result<Vec<Program>, String> {
        let mut words =
            vec!["test", "--no-run", "--package", "forebay-cache", "--package", "forebay-iomap"];
        match self.shuttle {
            true => words.extend(["--test", "shuttle"]),
            false => words.extend(["--package", "forebay", "--lib", "--tests"]),
        }
        let messages = self.cargo(&words)?;
        if let Some(error) = errors(&messages).next() {
            return Err(format!("the copy does not build: {}", error["rendered"]));
        }
        let programs = messages.iter().filter_map(|message| {
            let folder = Path::new(message["manifest_path"].as_str()?).parent()?.to_path_buf();
            Some(Program {
                krate: folder.file_name()?.to_str()?.to_string(),
                target: message["target"]["name"].as_str()?.to_string(),
                path: message["executable"].as_str()?.into(),
                folder,
            })
        });
        Ok(programs.collect())
    }
}

/// No warnings; what is wrong at run time shall show there, not in the compiler.
const FLAGS: &str = "-Awarnings -Aoverflowing_literals -Aarithmetic_overflow -Aunconditional_panic";

fn errors(messages: &[Value]) -> impl Iterator<Item = &Value> {
    let texts =
        messages.iter().filter(|m| m["reason"] == "compiler-message").map(|m| &m["message"]);
    texts.filter(|message| message["level"] == "error")
}

/// A file with its mutants.
fn with_mutants(name: &str, text: &str, on: &[(u32, &Mutation)]) -> String {
    let mut here: Vec<_> = on.iter().copied().filter(|(_, m)| m.file == name).collect();
    here.sort_by_key(|(number, m)| (m.node.start, m.kind, usize::MAX - m.node.end, *number));
    let mut out = render(text, 0..text.len(), &here, None);
    let krate = name.strip_suffix("/src/lib.rs");
    let is_of =
        |krate: &str, file: &str| file.split_once("/src/").is_some_and(|(of, _)| of == krate);
    if krate.is_some_and(|krate| on.iter().any(|(_, m)| is_of(krate, &m.file))) {
        out.push_str(SWITCHES);
    }
    out
}

/// These bytes of the text, with the mutants that lie in them (sorted; those around others first) and
/// the change, which lies in none of them.
fn render(
    text: &str,
    bytes: Range<usize>,
    mutants: &[(u32, &Mutation)],
    change: Option<&Mutation>,
) -> String {
    let plain = |bytes: Range<usize>| match change {
        Some(m) if bytes.start <= m.at.start && m.at.end <= bytes.end => {
            format!("{}{}{}", &text[bytes.start..m.at.start], m.new, &text[m.at.end..bytes.end])
        }
        _ => text[bytes].to_string(),
    };
    let (mut out, mut done, mut rest) = (String::new(), bytes.start, mutants);
    while let Some((_, first)) = rest.first() {
        let node = first.node.clone();
        let same = rest.iter().take_while(|(_, m)| m.node == node).count();
        let inner =
            rest[same..].iter().take_while(|(_, m)| m.node.end <= node.end && !node.is_empty());
        let inner = &rest[same..same + inner.count()];
        out.push_str(&plain(done..node.start));
        out.push_str(&switched(text, &rest[..same], inner));
        (done, rest) = (node.end, &rest[same + inner.len()..]);
    }
    out.push_str(&plain(done..bytes.end));
    out
}

/// One expression or statement with all its forms.
fn switched(text: &str, forms: &[(u32, &Mutation)], inner: &[(u32, &Mutation)]) -> String {
    let (node, kind) = (forms[0].1.node.clone(), forms[0].1.kind);
    let mut out = String::new();
    for (number, mutation) in forms {
        let form = match kind {
            Kind::First => mutation.new.clone(),
            Kind::Without => String::new(),
            Kind::Expression => render(text, node.clone(), inner, Some(mutation)),
        };
        let _ = write!(out, "/*<{number}*/if crate::mutant({number}) {{ {form} }} else ");
    }
    let _ = write!(out, "{{ {} }}", render(text, node, inner, None));
    for (number, _) in forms.iter().rev() {
        let _ = write!(out, "/*{number}>*/");
    }
    if kind == Kind::Expression { format!("({out})") } else { out }
}

/// The innermost mutant around a byte of a text with mutants.
fn innermost(text: &str, byte: usize) -> Option<u32> {
    let mut open = Vec::new();
    for (at, _) in text.match_indices("/*").take_while(|(at, _)| *at <= byte) {
        let Some((word, _)) = text[at + 2..].split_once("*/") else { break };
        match (word.strip_prefix('<'), word.strip_suffix('>')) {
            (Some(number), _) => open.extend(number.parse::<u32>()),
            (_, Some(number)) if number.parse() == Ok(*open.last().unwrap_or(&0)) => {
                open.pop();
            }
            _ => {}
        }
    }
    open.last().copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mutated(text: &str, wanted: &[&str]) -> String {
        let found = crate::mutants_find::of("crates/a/src/lib.rs", text).unwrap();
        let on: Vec<(u32, &Mutation)> = (1..)
            .zip(wanted)
            .map(|(n, want)| (n, found.iter().find(|m| m.old == *want || m.new == *want).unwrap()))
            .collect();
        let out = with_mutants("crates/a/src/lib.rs", text, &on);
        out.strip_suffix(SWITCHES).unwrap().to_string()
    }

    #[test]
    fn z6_changes_nest() {
        let out =
            mutated("fn f(a: u32) { g(a + 1 < 7); }", &["<", "+", "return;", "g(a + 1 < 7);"]);
        let sum = "(/*<2*/if crate::mutant(2) { a - 1 } else { a + 1 }/*2>*/)";
        let less =
            format!("(/*<1*/if crate::mutant(1) {{ {sum} <= 7 }} else {{ {sum} < 7 }}/*1>*/)");
        let body = format!("/*<4*/if crate::mutant(4) {{  }} else {{ g({less}); }}/*4>*/");
        let first = "/*<3*/if crate::mutant(3) { return; } else {  }/*3>*/";
        assert_eq!(out, format!("fn f(a: u32) {{{first} {body} }}"));
        assert!(syn::parse_file(&out).is_ok());
    }

    #[test]
    fn two_forms_of_one_place() {
        let text = "fn f() -> bool { !g(true) }";
        let out = mutated(text, &["return true;", "return false;", "!"]);
        let first = "/*<1*/if crate::mutant(1) { return true; } else /*<2*/if crate::mutant(2) \
            { return false; } else {  }/*2>*//*1>*/";
        let not = "(/*<3*/if crate::mutant(3) { g(true) } else { !g(true) }/*3>*/)";
        assert_eq!(out, format!("fn f() -> bool {{{first} {not} }}"));
        for (what, mutant) in [("return t", 1), ("return f", 2), ("{ g(", 3), ("!g(", 3)] {
            assert_eq!(innermost(&out, out.find(what).unwrap()), Some(mutant));
        }
        assert_eq!(innermost(&out, 3), None);
    }
}
