//! What people read in a file: comments, messages, doc comments and paragraphs, each with its line.

use crate::source::literals;

/// What encloses a docstring, or a long string, of Python.
const QUOTES: &str = "\"\"\"";

/// A piece of text for people.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Prose {
    /// Line where it starts, from 1.
    pub line: usize,
    /// The text without comment signs and quotes; lines of a paragraph are joined by a newline.
    pub text: String,
}

/// Comments and string literals of a Rust or C file, line by line.
pub fn of_rust(text: &str) -> Vec<Prose> {
    let mut found = Vec::new();
    for literal in literals(text) {
        let is_comment = literal.text.starts_with('/');
        let body = match is_comment {
            true => literal.text.trim_start_matches(['/', '!', '*']).to_string(),
            false => literal.text.trim_start_matches(['b', 'r', '#']).replace("\\\"", "\""),
        };
        let body = if is_comment { &body } else { body.trim_matches(['"', '#']) };
        for (offset, line) in body.lines().enumerate() {
            let line = if is_comment { without_star(line) } else { line.trim() };
            found.push(Prose { line: literal.line + offset, text: line.to_string() });
        }
    }
    found
}

/// Comments of a Rust or C file, line by line.
pub fn comments(text: &str) -> Vec<Prose> {
    let comments = literals(text).into_iter().filter(|literal| literal.text.starts_with('/'));
    let lines = comments.flat_map(|comment| {
        let body = comment.text.trim_start_matches(['/', '!', '*']).to_string();
        let line = |(offset, line): (usize, &str)| Prose {
            line: comment.line + offset,
            text: without_star(line).to_string(),
        };
        body.lines().enumerate().map(line).collect::<Vec<_>>()
    });
    lines.collect()
}

/// A line of a comment without the star in front, which lines of a C comment have.
fn without_star(line: &str) -> &str {
    line.trim().trim_end_matches("*/").trim_start_matches('*').trim()
}

/// Comments and docstrings of a Python file.
pub fn of_python(text: &str) -> Vec<Prose> {
    let mut found = of_script(text);
    // Whether a quotation is open, and is a docstring: that begins a line, other strings do not.
    let mut open: Option<bool> = None;
    for (number, line) in text.lines().enumerate() {
        let line = line.trim();
        let is_docstring = open.unwrap_or_else(|| line.starts_with(QUOTES));
        if is_docstring {
            let text = line.replace(QUOTES, "").trim().to_string();
            found.push(Prose { line: number + 1, text });
        }
        if line.matches(QUOTES).count() % 2 == 1 {
            open = if open.is_some() { None } else { Some(is_docstring) };
        }
    }
    found
}

/// Doc comments of a Rust file, each whole: consecutive lines of `///`.
pub fn doc_comments(text: &str) -> Vec<Prose> {
    let mut found: Vec<Prose> = Vec::new();
    let mut open = false;
    for (number, line) in text.lines().enumerate() {
        let Some(body) = line.trim_start().strip_prefix("///") else {
            open = false;
            continue;
        };
        match found.last_mut().filter(|_| open) {
            Some(last) => last.text = format!("{}\n{}", last.text, body.trim()),
            None => found.push(Prose { line: number + 1, text: body.trim().to_string() }),
        }
        open = true;
    }
    found
}

/// Comments of a script, a Makefile or a TOML file: what follows a `#` that starts a word.
pub fn of_script(text: &str) -> Vec<Prose> {
    let comment = |(number, line): (usize, &str)| {
        let body = match line.trim_start().strip_prefix('#') {
            Some(body) => body,
            None => line.split_once(" # ")?.1,
        };
        Some(Prose { line: number + 1, text: body.trim().to_string() })
    };
    text.lines().enumerate().filter_map(comment).collect()
}

/// Paragraphs, list items and cells of tables of a Markdown file, without fenced code and quoted
/// blocks.
pub fn of_markdown(text: &str) -> Vec<Prose> {
    let mut found: Vec<Prose> = Vec::new();
    let (mut fenced, mut open) = (false, false);
    for (number, line) in text.lines().enumerate() {
        let (line, number) = (line.trim(), number + 1);
        if line.starts_with("```") {
            (fenced, open) = (!fenced, false);
            continue;
        }
        let is_table = line.starts_with('|');
        if fenced || line.is_empty() || line.starts_with(['>', '<']) || is_table {
            if is_table && !fenced {
                let cells = line.split(" | ").map(|cell| cell.trim_matches(['|', ' ']));
                found.extend(cells.map(|cell| Prose { line: number, text: cell.to_string() }));
            }
            open = false;
            continue;
        }
        match found.last_mut().filter(|_| open && !starts_block(line)) {
            Some(last) => last.text = format!("{}\n{line}", last.text),
            None => found.push(Prose { line: number, text: line.to_string() }),
        }
        open = !line.starts_with('#');
    }
    found
}

/// A heading or an item of a list.
fn starts_block(line: &str) -> bool {
    let digits = line.trim_start_matches(|c: char| c.is_ascii_digit());
    line.starts_with(['#'])
        || ["- ", "* ", "+ "].iter().any(|sign| line.starts_with(sign))
        || (digits.len() < line.len() && digits.starts_with(". "))
}

/// The text without code spans and quotations; each is a single word `_`. Newlines stay.
pub fn without_quotes(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find(['`', '"']) {
        let quote = &rest[at..=at];
        out.push_str(&rest[..at]);
        let behind = &rest[at + 1..];
        match behind.find(quote) {
            Some(end) => {
                out.push('_');
                out.extend(behind[..end].chars().filter(|c| *c == '\n'));
                rest = &behind[end + 1..];
            }
            None => rest = behind,
        }
    }
    out.push_str(rest);
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(prose: &[Prose]) -> Vec<(usize, &str)> {
        prose.iter().map(|p| (p.line, p.text.as_str())).collect()
    }

    #[test]
    fn rust_file_yields_comments_and_strings_not_code() {
        let text = "//! Head.\nfn foobar() {\n    let a = \"one\\\n        two\"; // end\n}\n";
        let found = of_rust(text);
        assert_eq!(texts(&found), [(1, "Head."), (3, "one\\"), (4, "two"), (4, "end")]);
    }

    #[test]
    fn c_comment_yields_lines_without_stars() {
        let text = "/*\n * One\n * two.\n */\nint f(void); /* three */\n// four\n";
        let found: Vec<_> = of_rust(text).into_iter().filter(|p| !p.text.is_empty()).collect();
        assert_eq!(texts(&found), [(2, "One"), (3, "two."), (5, "three"), (6, "four")]);
    }

    #[test]
    fn python_file_yields_comments_and_docstrings() {
        let text = "\"\"\"One\ntwo.\"\"\"\nx = \"\"\"sql\n\"\"\"\n# three\n\"\"\"four\"\"\"\n";
        let mut found = of_python(text);
        found.sort_by_key(|prose| prose.line);
        assert_eq!(texts(&found), [(1, "One"), (2, "two."), (5, "three"), (6, "four")]);
    }

    #[test]
    fn doc_comment_is_one_piece() {
        let found = doc_comments("/// A.\n/// B.\nfn a() {}\n/// C.\n");
        assert_eq!(texts(&found), [(1, "A.\nB."), (4, "C.")]);
    }

    #[test]
    fn markdown_yields_paragraphs_items_and_cells() {
        let text = "# T\nOne\ntwo.\n\n- a\n- b\n  c\n\n```\ncode\n```\n| x | y |\n> quoted\n";
        let wanted =
            [(1, "# T"), (2, "One\ntwo."), (5, "- a"), (6, "- b\nc"), (12, "x"), (12, "y")];
        assert_eq!(texts(&of_markdown(text)), wanted);
    }

    #[test]
    fn code_spans_and_quotations_are_left_out() {
        assert_eq!(without_quotes("a `b c` \"d\ne\" f's"), "a _ _\n f's");
        assert_eq!(without_quotes("an odd ` sign"), "an odd  sign");
    }
}
