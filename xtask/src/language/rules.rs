//! The rules of language: what is refused in one file, with its line and what to write instead.

use super::ids::{self, Definers};
use super::names;
use super::prose::{self, Prose, without_quotes};

/// Words in a sentence of a document.
const SENTENCE_WORDS: usize = 35;
/// Columns in a line of prose.
const COLUMNS: usize = 100;

/// Words or identifiers, each with what to write instead.
#[derive(Debug, Default)]
pub struct List(Vec<(String, String)>);

impl List {
    /// Of the text of a list: `refused | instead`, a line each.
    pub fn parse(text: &str) -> Result<Self, String> {
        let mut entries = Vec::new();
        for line in text.lines().filter(|l| !l.trim().is_empty() && !l.starts_with('#')) {
            let (refused, instead) =
                line.split_once(" | ").ok_or_else(|| format!("bad line: {line}"))?;
            entries.push((refused.trim().to_string(), instead.trim().to_string()));
        }
        Ok(Self(entries))
    }

    /// What is refused, with what to write instead.
    pub fn entries(&self) -> impl Iterator<Item = &(String, String)> {
        self.0.iter()
    }
}

/// The lists of refused words and identifiers, and the ids that need a stem.
#[derive(Debug, Default)]
pub struct Lists {
    /// In prose.
    pub words: List,
    /// In code.
    pub identifiers: List,
    /// Of invariants.
    pub definers: Definers,
}

/// One violation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Violation {
    /// Name of the rule, as in the file of counts.
    pub rule: &'static str,
    /// Line, from 1.
    pub line: usize,
    /// What is wrong, and what to write instead.
    pub what: String,
}

/// All violations in the file `name`.
pub fn check(name: &str, text: &str, lists: &Lists) -> Vec<Violation> {
    let mut found = Vec::new();
    if name.ends_with(".rs") {
        refused_words(&prose::of_rust(text), &lists.words, &mut found);
        ids::check(name, text, &prose::comments(text), &lists.definers, &mut found);
        empty_docs(text, &mut found);
        names::identifiers(text, &lists.identifiers, &lists.words, &mut found);
        names::test_names(text, &mut found);
        let comments = text.lines().enumerate().filter(|(_, l)| l.trim_start().starts_with("//"));
        long_lines(comments, &mut found);
    } else if name.ends_with(".md") {
        let pieces = prose::of_markdown(text);
        refused_words(&pieces, &lists.words, &mut found);
        // A document that a command writes has the lines of its source.
        if name != "docs/lineage.md" {
            long_lines(markdown_lines(text).into_iter(), &mut found);
        }
        if name.starts_with("docs/") || ["README.md", "CONTRIBUTING.md"].contains(&name) {
            long_sentences(&pieces, &mut found);
            ids::check(name, text, &pieces, &lists.definers, &mut found);
        }
    } else if name.ends_with(".c") || name.ends_with(".h") {
        refused_words(&prose::of_rust(text), &lists.words, &mut found);
        let begins = |line: &str| ["//", "/*", "* "].iter().any(|sign| line.starts_with(sign));
        let comments = text.lines().enumerate().filter(|(_, l)| begins(l.trim_start()));
        long_lines(comments, &mut found);
    } else if name.ends_with(".py") || text.starts_with("#!/usr/bin/env python3") {
        let pieces = prose::of_python(text);
        refused_words(&pieces, &lists.words, &mut found);
        let lines: Vec<&str> = text.lines().collect();
        let is_code = |line: &str| !line.starts_with(['#', '"']) && line.contains(" # ");
        let own = pieces.iter().map(|piece| (piece.line - 1, lines[piece.line - 1]));
        long_lines(own.filter(|(_, line)| !is_code(line.trim_start())), &mut found);
    } else {
        refused_words(&prose::of_script(text), &lists.words, &mut found);
        let comments = text.lines().enumerate().filter(|(_, l)| l.trim_start().starts_with('#'));
        long_lines(comments, &mut found);
    }
    found
}

fn refused_words(pieces: &[Prose], words: &List, found: &mut Vec<Violation>) {
    for piece in pieces {
        let plain = without_quotes(&piece.text).to_lowercase();
        for (refused, instead) in &words.0 {
            for at in places(&plain, refused) {
                let line = piece.line + plain[..at].matches('\n').count();
                let what = format!("\"{refused}\" is refused; write {instead}");
                found.push(Violation { rule: "word", line, what });
            }
        }
    }
}

/// Where `wanted` stands as whole words; a newline in the text counts as a space.
fn places(text: &str, wanted: &str) -> Vec<usize> {
    let text = text.replace('\n', " ");
    let is_word = |c: Option<char>| c.is_some_and(|c| c.is_alphanumeric() || c == '_');
    let whole = |at: &usize| {
        !is_word(text[..*at].chars().next_back())
            && !is_word(text[at + wanted.len()..].chars().next())
    };
    text.match_indices(wanted).map(|(at, _)| at).filter(whole).collect()
}

/// Doc comments that only refer elsewhere.
fn empty_docs(text: &str, found: &mut Vec<Violation>) {
    for doc in prose::doc_comments(text).iter().filter(|doc| only_refers(&doc.text)) {
        let what =
            format!("`/// {}` only refers elsewhere; say what it is, or what must hold", doc.text);
        found.push(Violation { rule: "doc", line: doc.line, what });
    }
}

/// One short sentence that begins with a reference, or ids alone.
fn only_refers(doc: &str) -> bool {
    let words: Vec<&str> = doc.split_whitespace().collect();
    let sentence = doc.trim_end_matches('.');
    let is_id = |word: &str| {
        let word = word.trim_matches(['(', ')', '.', ',']);
        let digits = word.trim_start_matches(|c: char| c.is_ascii_uppercase());
        digits.len() < word.len()
            && !digits.is_empty()
            && digits.chars().all(|c| c.is_ascii_digit())
    };
    let begins = ["See ", "see ", "The same", "As ", "Likewise", "Ditto"];
    let refers = begins.iter().any(|begin| doc.starts_with(begin)) && words.len() <= 6;
    let ids = !words.is_empty() && words.iter().all(|word| is_id(word));
    let one_clause = sentence.contains("::") || !sentence.contains(['.', ';', ':', ',']);
    refers && one_clause || ids
}

fn long_lines<'a>(lines: impl Iterator<Item = (usize, &'a str)>, found: &mut Vec<Violation>) {
    for (number, line) in lines {
        let columns = line.chars().count();
        if columns > COLUMNS {
            let what = format!("a line of prose of {columns} columns; break it at {COLUMNS}");
            found.push(Violation { rule: "columns", line: number + 1, what });
        }
    }
}

/// Lines of a Markdown file that can be broken: no code, no tables, no lines of one long word.
fn markdown_lines(text: &str) -> Vec<(usize, &str)> {
    let mut fenced = false;
    let mut found = Vec::new();
    for (number, line) in text.lines().enumerate() {
        if line.trim_start().starts_with("```") {
            fenced = !fenced;
        }
        let can_break = line.trim().trim_start_matches("- ").contains(' ');
        if !fenced && can_break && !line.trim_start().starts_with(['|', '<']) {
            found.push((number, line));
        }
    }
    found
}

fn long_sentences(pieces: &[Prose], found: &mut Vec<Violation>) {
    for piece in pieces {
        let plain = without_quotes(&piece.text);
        for (at, sentence) in sentences(&plain) {
            let count = sentence.split_whitespace().filter(|w| w.chars().any(is_of_word)).count();
            if count > SENTENCE_WORDS {
                let line = piece.line + plain[..at].matches('\n').count();
                let start: Vec<&str> = sentence.split_whitespace().take(6).collect();
                let what = format!(
                    "a sentence of {count} words (\"{}..\"); make several, {SENTENCE_WORDS} at most",
                    start.join(" ")
                );
                found.push(Violation { rule: "sentence", line, what });
            }
        }
    }
}

fn is_of_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

/// Sentences, and where each starts: a full stop ends one before a space and anything but a small
/// letter.
fn sentences(text: &str) -> Vec<(usize, &str)> {
    let mut found = Vec::new();
    let mut start = 0;
    for (at, sign) in text.char_indices().filter(|(_, c)| matches!(c, '.' | '!' | '?')) {
        let behind = &text[at + sign.len_utf8()..];
        let behind = behind.trim_start_matches(['*', ')', '"']);
        let next = behind.trim_start().chars().next();
        let ends = behind.starts_with(char::is_whitespace) && !next.is_some_and(char::is_lowercase);
        if ends {
            let end = text.len() - behind.len();
            let skipped = text[start..end].len() - text[start..end].trim_start().len();
            found.push((start + skipped, text[start..end].trim()));
            start = end;
        }
    }
    let rest = text[start..].trim_start();
    found.push((text.len() - rest.len(), rest));
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lists() -> Lists {
        Lists {
            words: List::parse("# a comment\nfoobar | next to\nrun dry | berun dry\n").unwrap(),
            identifiers: List::parse("with_room | `with_space`\n").unwrap(),
            definers: Definers::default(),
        }
    }

    fn lines(name: &str, text: &str) -> Vec<(&'static str, usize)> {
        check(name, text, &lists()).into_iter().map(|v| (v.rule, v.line)).collect()
    }

    #[test]
    fn refused_word_is_found_in_comments_and_messages_only() {
        let text =
            "//! Foobar it.\nfn f() {\n    log(\"foobar {x}\"); // `foobar`, \"foobar\"\n}\n";
        assert_eq!(lines("crates/a/src/x.rs", text), [("word", 1), ("word", 3)]);
        assert!(lines("crates/a/src/x.rs", "//! foobars, a_foobar_b\n").is_empty());
    }

    #[test]
    fn refused_phrase_is_found_across_a_line_break() {
        assert_eq!(lines("docs/a.md", "Segments\nthat run\ndry.\n"), [("word", 2)]);
        assert_eq!(lines("Makefile", "a: # foobar it\nfoobar:\n"), [("word", 1)]);
    }

    #[test]
    fn doc_comment_that_only_refers_elsewhere_is_found() {
        for empty in ["See the module.", "The same.", "L3.", "See [`a::B`].", "As above."] {
            assert!(only_refers(empty), "{empty}");
        }
        for good in [
            "Seen by readers.",
            "See the module: bytes, at most 4096.",
            "Bytes.",
            "L3: no wait.",
            "As",
        ] {
            assert!(!only_refers(good), "{good}");
        }
    }

    #[test]
    fn long_line_is_found_outside_of_code_and_tables() {
        let long = "word ".repeat(21);
        let text = format!("{long}.\n\n```\n{long}\n```\n| {long} |\n");
        assert_eq!(lines("CHANGELOG.md", &text), [("columns", 1)]);
        assert_eq!(
            lines("crates/a/src/x.rs", &format!("//! x\nf(); {long}\n//{long}\n")),
            [("columns", 3)]
        );
    }

    #[test]
    fn long_sentence_is_found_in_documents() {
        let half = "word ".repeat(18);
        let text = format!("{half}\n{half}.\n\n{half}.\nAnd {half}\n\n- {half}\n- {half}\n");
        assert_eq!(lines("docs/a.md", &text), [("sentence", 1)]);
        assert!(lines("CHANGELOG.md", &text).is_empty());
        let dots = format!("{half} e.g. {half}.");
        assert_eq!(sentences(&dots).len(), 1);
    }
}
