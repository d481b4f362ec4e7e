//! What one source file imports: its `use` items, and paths that start at `crate`, `self`, `super`
//! or at a module that the file declares. Code under `#[cfg(test)]` is left out.
//!
//! Only names are seen: a call of a method on a value that came from above is no import here.

use crate::source::blank_literals;

/// A child module that a file declares with `mod name;`.
#[derive(Debug, PartialEq, Eq)]
pub struct Child {
    /// Its name.
    pub name: String,
    /// Only tests compile it.
    pub is_test: bool,
}

/// A path in a file, as it is written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Import {
    /// `crate`, `super`, ..., the last one may be `*`.
    pub path: Vec<String>,
    /// How many inline modules of the file lie around it.
    pub depth: usize,
    /// The name under which a `pub use` makes it visible in this module.
    pub exported_as: Option<String>,
}

/// What a file says about modules.
#[derive(Debug, Default)]
pub struct File {
    /// Modules in files of their own.
    pub children: Vec<Child>,
    /// Paths, in their order.
    pub imports: Vec<Import>,
}

/// Reads the text of a file.
pub fn read(text: &str) -> File {
    let code = blank_literals(text);
    let mut reader =
        Reader { tokens: tokens(&code), at: 0, inline: Vec::new(), file: File::default() };
    if reader.is_test_file() {
        return File::default();
    }
    while reader.at < reader.tokens.len() {
        reader.step();
    }
    let mut file = reader.file;
    // A path that starts at another name belongs to another crate or to a type.
    let children: Vec<&str> = file.children.iter().map(|c| c.name.as_str()).collect();
    file.imports.retain(|i| is_anchor(&i.path[0]) || children.contains(&i.path[0].as_str()));
    file
}

fn is_anchor(word: &str) -> bool {
    matches!(word, "crate" | "self" | "super")
}

fn is_name(token: &str) -> bool {
    token.starts_with(|c: char| c.is_alphabetic() || c == '_')
}

/// Names, `::`, and other characters one by one.
fn tokens(code: &str) -> Vec<&str> {
    let mut found = Vec::new();
    let mut rest = code.trim_start();
    while let Some(first) = rest.chars().next() {
        let end = match rest.find(|c: char| !(c.is_alphanumeric() || c == '_')) {
            Some(0) if rest.starts_with("::") => 2,
            Some(0) => first.len_utf8(),
            Some(end) => end,
            None => rest.len(),
        };
        found.push(&rest[..end]);
        rest = rest[end..].trim_start();
    }
    found
}

struct Reader<'a> {
    tokens: Vec<&'a str>,
    at: usize,
    /// Braces that are open; true for that of an inline module.
    inline: Vec<bool>,
    file: File,
}

impl<'a> Reader<'a> {
    fn token(&self, ahead: usize) -> &'a str {
        self.tokens.get(self.at + ahead).copied().unwrap_or("")
    }

    fn depth(&self) -> usize {
        self.inline.iter().filter(|is_module| **is_module).count()
    }

    /// `#![cfg(test)]` at the top.
    fn is_test_file(&self) -> bool {
        self.token(0) == "#"
            && self.token(1) == "!"
            && is_for_tests(&self.tokens[2..self.closing(2)])
    }

    fn step(&mut self) {
        match self.token(0) {
            "#" if self.token(1) == "[" => self.attribute(),
            "#" if self.token(1) == "!" && self.token(2) == "[" => self.at = self.closing(2) + 1,
            // `pub(in crate::a)` imports nothing.
            "pub" if self.token(1) == "(" => self.at = self.closing(1) + 1,
            // `impl Trait + use<'a>` imports nothing.
            "use" if self.token(1) != "<" => self.use_item(),
            "mod" if is_name(self.token(1)) => self.module(false),
            "{" => self.open(false),
            "}" => {
                self.inline.pop();
                self.at += 1;
            }
            word if is_name(word) && self.token(1) == "::" => self.path(),
            _ => self.at += 1,
        }
    }

    fn open(&mut self, is_module: bool) {
        self.inline.push(is_module);
        self.at += 1;
    }

    /// Where the bracket that opens `ahead` tokens from here closes.
    fn closing(&self, ahead: usize) -> usize {
        let mut depth = 0;
        for at in self.at + ahead..self.tokens.len() {
            match self.tokens[at] {
                "(" | "[" | "{" => depth += 1,
                ")" | "]" | "}" => depth -= 1,
                _ => {}
            }
            if depth == 0 {
                return at;
            }
        }
        self.tokens.len()
    }

    fn attribute(&mut self) {
        let end = self.closing(1);
        let for_tests = is_for_tests(&self.tokens[self.at + 1..end.min(self.tokens.len())]);
        self.at = end + 1;
        if !for_tests {
            return;
        }
        while self.token(0) == "#" && self.token(1) == "[" {
            self.at = self.closing(1) + 1;
        }
        let before = self.at;
        self.skip_visibility();
        if self.token(0) == "mod" && self.token(2) == ";" {
            self.module(true);
        } else {
            self.at = before;
            self.skip_item();
        }
    }

    fn skip_visibility(&mut self) {
        if self.token(0) == "pub" {
            self.at = if self.token(1) == "(" { self.closing(1) + 1 } else { self.at + 1 };
        }
    }

    /// Moves behind the item, statement, field or arm that starts here.
    fn skip_item(&mut self) {
        self.skip_visibility();
        let is_item = matches!(
            self.token(0),
            "fn" | "impl"
                | "struct"
                | "enum"
                | "mod"
                | "use"
                | "const"
                | "static"
                | "type"
                | "trait"
                | "async"
                | "unsafe"
                | "let"
                | "extern"
                | "macro_rules"
        );
        while self.at < self.tokens.len() {
            match self.token(0) {
                "(" | "[" => self.at = self.closing(0) + 1,
                "{" => {
                    self.at = self.closing(0) + 1;
                    return;
                }
                ";" => {
                    self.at += 1;
                    return;
                }
                "," if !is_item => {
                    self.at += 1;
                    return;
                }
                ")" | "]" | "}" => return,
                _ => self.at += 1,
            }
        }
    }

    fn module(&mut self, is_test: bool) {
        let name = self.token(1);
        self.at += 2;
        match self.token(0) {
            ";" => self.file.children.push(Child { name: name.to_string(), is_test }),
            "{" => self.open(true),
            _ => {}
        }
    }

    fn path(&mut self) {
        let before = self.at.checked_sub(1).map_or("", |at| self.tokens[at]);
        let mut path = vec![self.token(0).to_string()];
        self.at += 1;
        while self.token(0) == "::" && is_name(self.token(1)) {
            path.push(self.token(1).to_string());
            self.at += 2;
        }
        if !matches!(before, "::" | ".") {
            self.file.imports.push(Import { path, depth: self.depth(), exported_as: None });
        }
    }

    fn use_item(&mut self) {
        let before = self.at.checked_sub(1).map_or("", |at| self.tokens[at]);
        let is_exported = matches!(before, "pub" | ")");
        self.at += 1;
        self.use_tree(&[], is_exported);
    }

    /// One branch of a tree of `use`, behind `above`.
    fn use_tree(&mut self, above: &[String], is_exported: bool) {
        let mut path = above.to_vec();
        loop {
            match self.token(0) {
                "{" => {
                    self.at += 1;
                    while !matches!(self.token(0), "}" | ";" | "") {
                        self.use_tree(&path, is_exported);
                        if self.token(0) == "," {
                            self.at += 1;
                        }
                    }
                    self.at += 1;
                    return;
                }
                "::" => self.at += 1,
                "," | "}" | ";" | "" | "as" => break,
                // `use a::{self}` names `a` itself.
                "self" if !path.is_empty() => self.at += 1,
                word => {
                    path.push(word.to_string());
                    self.at += 1;
                }
            }
        }
        let mut name = path.last().cloned();
        if self.token(0) == "as" {
            name = Some(self.token(1).to_string());
            self.at += 2;
        }
        if !path.is_empty() {
            let exported_as = name.filter(|_| is_exported);
            self.file.imports.push(Import { path, depth: self.depth(), exported_as });
        }
    }
}

/// Whether the attribute is a `cfg` that asks for tests.
fn is_for_tests(attribute: &[&str]) -> bool {
    attribute.get(1) == Some(&"cfg")
        && attribute.contains(&"test")
        && !attribute.windows(3).any(|part| part == ["not", "(", "test"])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn paths(text: &str) -> Vec<String> {
        read(text).imports.iter().map(|i| i.path.join("::")).collect()
    }

    #[test]
    fn use_tree_names_each_leaf() {
        let text = "use crate::a::{b, c::{self, D as E}, f::*};\nuse std::fmt;\n";
        assert_eq!(paths(text), ["crate::a::b", "crate::a::c", "crate::a::c::D", "crate::a::f::*"]);
    }

    #[test]
    fn path_counts_in_code_not_in_comment_or_string() {
        let text =
            "//! [`crate::no`]\nfn f() { crate::a::g(super::H); let s = \"crate::no::x\"; }\n";
        assert_eq!(paths(text), ["crate::a::g", "super::H"]);
        assert_eq!(paths("fn f(x: &Vec<crate::a::B>) {}"), ["crate::a::B"]);
        assert_eq!(
            paths("pub(in crate::a) struct S;\npub(super) fn f() {}\n"),
            Vec::<String>::new()
        );
    }

    #[test]
    fn path_that_starts_at_a_child_counts() {
        let text = "mod below;\npub(crate) use below::Thing;\nfn f() { below::g(); other::h(); }\n";
        let file = read(text);
        assert_eq!(file.children, [Child { name: "below".to_string(), is_test: false }]);
        assert_eq!(file.imports[0].exported_as.as_deref(), Some("Thing"));
        assert_eq!(file.imports[1].path, ["below", "g"]);
        assert_eq!(file.imports.len(), 2);
    }

    #[test]
    fn code_of_tests_is_left_out() {
        let text = "#[cfg(test)]\nmod tests {\n use crate::up::X;\n}\nuse crate::a::B;\n\
                    #[cfg(test)]\nfn f<A, B>() { crate::up::g() }\n#[cfg(not(test))]\nuse crate::c::D;\n\
                    #[cfg(any(test, feature = \"x\"))]\npub mod more;\n#[cfg(test)]\nuse crate::up::{Y, Z};\n\
                    struct S {\n #[cfg(test)]\n a: crate::up::X,\n b: crate::e::F,\n}\n";
        assert_eq!(paths(text), ["crate::a::B", "crate::c::D", "crate::e::F"]);
        assert_eq!(read(text).children, [Child { name: "more".to_string(), is_test: true }]);
        assert!(paths("#![cfg(test)]\nuse crate::a::B;\n").is_empty());
    }

    #[test]
    fn captured_lifetimes_and_broken_trees_end() {
        let text = "fn f<'a>() -> impl Fn() + use<'a> {\n crate::a::g();\n h()\n}\n";
        assert_eq!(paths(text), ["crate::a::g"]);
        assert_eq!(
            paths("use crate::a::{b; fn f() {}\nuse crate::c;\n"),
            ["crate::a::b", "crate::c"]
        );
    }

    #[test]
    fn inline_module_is_known_by_its_depth() {
        let file = read("mod a {\n fn f() { super::g(); }\n}\nfn h() { super::i(); }\n");
        assert_eq!(file.imports.iter().map(|i| i.depth).collect::<Vec<_>>(), [1, 0]);
    }
}
