//! Just enough of Rust's lexical structure for the house checks: text without comments and
//! literals, and the functions in it.

/// One function of a file.
#[derive(Debug, PartialEq, Eq)]
pub struct Function {
    /// Its name.
    pub name: String,
    /// Line of the `fn`, from 1.
    pub line: usize,
    /// Lines from the `fn` to the closing brace, both included.
    pub length: usize,
}

/// The text with comments and the content of literals blanked; newlines stay where they are.
pub fn blank_literals(text: &str) -> String {
    let chars: Vec<char> = text.chars().collect();
    let mut out = String::with_capacity(text.len());
    let mut at = 0;
    while at < chars.len() {
        let end = literal_end(&chars, at);
        if end == at {
            out.push(chars[at]);
            at += 1;
            continue;
        }
        out.extend(chars[at..end].iter().map(|c| if *c == '\n' { '\n' } else { ' ' }));
        at = end;
    }
    out
}

/// A comment or a string literal.
#[derive(Debug, PartialEq, Eq)]
pub struct Literal {
    /// Where it starts, from 1.
    pub line: usize,
    /// The text as it stands, with its slashes or quotes.
    pub text: String,
}

/// Comments and string literals, in their order.
pub fn literals(text: &str) -> Vec<Literal> {
    let chars: Vec<char> = text.chars().collect();
    let (mut found, mut at, mut line) = (Vec::new(), 0, 1);
    while at < chars.len() {
        let end = literal_end(&chars, at).max(at + 1);
        let text: String = chars[at..end].iter().collect();
        let newlines = text.matches('\n').count();
        if end > at + 1 && !text.starts_with('\'') {
            found.push(Literal { line, text });
        }
        (line, at) = (line + newlines, end);
    }
    found
}

/// Where the comment or literal that starts at `at` ends; `at` itself if none starts there.
fn literal_end(chars: &[char], at: usize) -> usize {
    let next = chars.get(at + 1).copied();
    match chars[at] {
        '/' if next == Some('/') => find(chars, at, |rest| rest[0] == '\n'),
        '/' if next == Some('*') => block_comment_end(chars, at),
        '"' => string_end(chars, at),
        'r' if !follows_word(chars, at) => raw_string_end(chars, at).unwrap_or(at),
        '\'' => char_end(chars, at),
        _ => at,
    }
}

fn find(chars: &[char], from: usize, stop: impl Fn(&[char]) -> bool) -> usize {
    (from..chars.len()).find(|i| stop(&chars[*i..])).unwrap_or(chars.len())
}

fn follows_word(chars: &[char], at: usize) -> bool {
    // `br"` is a literal too; any other word before `r` makes it part of a name.
    let before = at.checked_sub(1).map(|i| chars[i]);
    before.is_some_and(|c| (c.is_alphanumeric() || c == '_') && c != 'b')
}

fn block_comment_end(chars: &[char], at: usize) -> usize {
    let (mut depth, mut i) = (0, at);
    while i < chars.len() {
        match (chars[i], chars.get(i + 1)) {
            ('/', Some('*')) => (depth, i) = (depth + 1, i + 1),
            ('*', Some('/')) => (depth, i) = (depth - 1, i + 1),
            _ => {}
        }
        i += 1;
        if depth == 0 {
            return i;
        }
    }
    chars.len()
}

fn string_end(chars: &[char], at: usize) -> usize {
    let mut i = at + 1;
    while i < chars.len() && chars[i] != '"' {
        i += if chars[i] == '\\' { 2 } else { 1 };
    }
    (i + 1).min(chars.len())
}

fn raw_string_end(chars: &[char], at: usize) -> Option<usize> {
    let hashes = chars[at + 1..].iter().take_while(|c| **c == '#').count();
    if chars.get(at + 1 + hashes) != Some(&'"') {
        return None;
    }
    let body = at + 2 + hashes;
    let closes = |rest: &[char]| rest[0] == '"' && rest[1..].iter().take(hashes).all(|c| *c == '#');
    Some((find(chars, body, closes) + 1 + hashes).min(chars.len()))
}

/// A character literal ends at its quote; a lifetime is no literal.
fn char_end(chars: &[char], at: usize) -> usize {
    match (chars.get(at + 1), chars.get(at + 2)) {
        (Some('\\'), Some(_)) => (find(chars, at + 3, |rest| rest[0] == '\'') + 1).min(chars.len()),
        (Some(_), Some('\'')) => at + 3,
        _ => at,
    }
}

/// The functions with a body, in the order in which they end.
pub fn functions(blanked: &str) -> Vec<Function> {
    let mut found = Vec::new();
    // Open braces; a function's body remembers name and line.
    let mut open: Vec<Option<(String, usize)>> = Vec::new();
    let mut pending: Option<(String, usize)> = None;
    let mut brackets = 0_i32;
    let mut after_fn = None;
    for (line, token) in tokens(blanked) {
        if let Some(at) = after_fn.take() {
            // `fn(` is a type, `fn name` a definition.
            if token.starts_with(|c: char| c.is_alphabetic() || c == '_') {
                (pending, brackets) = (Some((token.to_string(), at)), 0);
                continue;
            }
        }
        match token {
            "fn" => after_fn = Some(line),
            "(" | "[" => brackets += 1,
            ")" | "]" => brackets -= 1,
            ";" if brackets == 0 => pending = None,
            "{" => open.push(pending.take()),
            "}" => {
                if let Some(Some((name, start))) = open.pop() {
                    found.push(Function { name, line: start, length: line - start + 1 });
                }
            }
            _ => {}
        }
    }
    found
}

fn tokens(text: &str) -> Vec<(usize, &str)> {
    let mut found = Vec::new();
    for (number, line) in text.lines().enumerate() {
        let mut rest = line.trim_start();
        while let Some(first) = rest.chars().next() {
            let word = rest.find(|c: char| !(c.is_alphanumeric() || c == '_'));
            let end = match word {
                Some(0) => first.len_utf8(),
                Some(end) => end,
                None => rest.len(),
            };
            found.push((number + 1, &rest[..end]));
            rest = rest[end..].trim_start();
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn literals_and_comments_vanish_and_lines_stay() {
        let text =
            "let a = \"{ // \\\" }\"; // {\nlet b = r#\"}\"{\"#; /* { /* } */ */ let c = '{';\n";
        let blank = blank_literals(text);
        assert!(!blank.contains(['{', '}']), "{blank}");
        assert_eq!(blank.lines().count(), text.lines().count());
        assert_eq!(blank_literals("fn f<'a>(x: &'a str) {}"), "fn f<'a>(x: &'a str) {}");
        assert_eq!(blank_literals("'\\'' x"), "     x");
    }

    #[test]
    fn functions_are_measured_with_what_lies_in_them() {
        let text = "impl X {\n fn a(&self) -> [u8; 2] {\n  let f = |x: fn(u8)| { x };\n\
                    fn b() {}\n }\n fn c();\n}\n";
        let found: Vec<_> =
            functions(text).into_iter().map(|f| (f.name, f.line, f.length)).collect();
        assert_eq!(found, [("b".to_string(), 4, 1), ("a".to_string(), 2, 4)]);
    }
}
