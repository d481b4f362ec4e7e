//! Reads the public items out of formatted sources.
//!
//! It knows what rustfmt makes: items at the margin, their members four columns in, a closing brace
//! alone in its line. A macro that writes items is recorded by the lines of its calls.

use std::collections::BTreeSet;

/// What is recorded, one line each: `Subject: item`, or a header.
pub type Found = BTreeSet<String>;

/// Reads one file. `wanted` says of which names the items count.
pub fn scan(text: &str, wanted: &dyn Fn(&str) -> bool, found: &mut Found) {
    let lines = cleaned(text);
    let lines: Vec<&str> = lines.iter().map(String::as_str).collect();
    items(&lines, wanted, found);
}

/// The lines without comments, tests and attributes; derives stay, each on one line.
fn cleaned(text: &str) -> Vec<String> {
    let mut kept = Vec::new();
    let mut lines = text.lines();
    while let Some(line) = lines.next() {
        let short = line.trim_start();
        if short.starts_with("//") || short.is_empty() {
            continue;
        }
        if !short.starts_with("#[") && !short.starts_with("#![") {
            kept.push(line.to_string());
            continue;
        }
        let mut whole = line.to_string();
        while !whole.ends_with(']') {
            let Some(next) = lines.next() else { break };
            whole.push_str(next.trim());
        }
        match whole.trim_start() {
            "#[cfg(test)]" => skip_item(&mut lines, &whole),
            attribute if attribute.starts_with("#[derive(") => kept.push(whole),
            _ => {}
        }
    }
    kept
}

/// Passes over the item behind an attribute.
fn skip_item<'a>(lines: &mut impl Iterator<Item = &'a str>, attribute: &str) {
    let indent = attribute.len() - attribute.trim_start().len();
    let end = format!("{}}}", " ".repeat(indent));
    let mut is_block = false;
    for line in lines {
        is_block |= line.ends_with('{');
        if line == end || (!is_block && line.ends_with([';', ',', '}'])) {
            return;
        }
    }
}

/// The item that begins at `at`, on one line, and the number of its lines.
fn joined(lines: &[&str], at: usize, ends: &[char]) -> (String, usize) {
    let mut whole = lines[at].trim().to_string();
    let mut count = 1;
    // A field or an argument ends like its item, but stands deeper.
    let is_inner = |line: &str| line.starts_with(' ') && !line.ends_with(';');
    let is_over = |line: &str| line.ends_with(ends) && !is_inner(line);
    while !is_over(lines[at + count - 1]) && at + count < lines.len() {
        let space = if whole.ends_with('(') { "" } else { " " };
        whole = format!("{whole}{space}{}", lines[at + count].trim());
        count += 1;
    }
    (whole, count)
}

/// The lines of the block that opens before `at`, four columns to the left.
fn block<'a>(lines: &[&'a str], at: usize) -> Vec<&'a str> {
    let inside = lines[at..].iter().take_while(|line| line.starts_with("    "));
    inside.map(|line| &line[4..]).collect()
}

/// Items at the margin of `lines`.
fn items(lines: &[&str], wanted: &dyn Fn(&str) -> bool, found: &mut Found) {
    let mut derives = String::new();
    let mut at = 0;
    while at < lines.len() {
        let line = lines[at];
        if let Some(list) = line.strip_prefix("#[derive(") {
            derives.push_str(list.trim_end_matches(")]"));
            derives.push(',');
            at += 1;
            continue;
        }
        let is_call = line.split_once("! {").is_some_and(|(name, _)| !name.contains(' '));
        if is_call || line.starts_with("macro_rules!") {
            macro_items(line, &block(lines, at + 1), wanted, found);
            at += 1;
            continue;
        }
        let is_item = ["pub ", "impl", "unsafe impl"].iter().any(|word| line.starts_with(word));
        if !is_item || line.starts_with("pub use ") {
            if !line.starts_with([' ', '}']) {
                derives.clear();
            }
            at += 1;
            continue;
        }
        let (whole, count) = joined(lines, at, &['{', ';', '}']);
        let header = whole.trim_end_matches([' ', '{', ';']);
        let name = name_of(header);
        if wanted(name) {
            // A private field of a tuple is not part of the interface.
            let is_hidden = header.starts_with("pub struct ") && !header.contains("(pub ");
            let shown = header.split('(').next().filter(|_| is_hidden && header.ends_with(')'));
            found.insert(shown.map_or(header.to_string(), |name| format!("{name}(_)")));
            for of in derives.split(',').map(str::trim).filter(|of| !of.is_empty()) {
                found.insert(format!("{name}: derives {of}"));
            }
            members(header, name, &block(lines, at + count), found);
        }
        derives.clear();
        at += count;
    }
}

/// Members of a type, a trait or an `impl`.
fn members(header: &str, name: &str, body: &[&str], found: &mut Found) {
    let is = |word: &str| header.starts_with(&format!("pub {word} "));
    let (starts, ends): (&[&str], &[char]) = match () {
        () if is("enum") => (&[""], &[',']),
        () if is("struct") => (&["pub "], &[',']),
        () if is("trait") => (&["fn ", "async fn ", "type ", "const "], &['{', ';']),
        () if header.contains(" for ") => (&["type "], &['{', ';']),
        () => (&["pub ", "const "], &['{', ';']),
    };
    let mut at = 0;
    while at < body.len() {
        let line = body[at];
        if line == "options! {" {
            macro_items(&format!("{name} options! {{"), &block(body, at + 1), &|_| true, found);
        }
        let is_member = starts.iter().any(|start| line.starts_with(start));
        if !is_member || line.starts_with([' ', '}', '#']) || line.starts_with("pub(") {
            at += 1;
            continue;
        }
        let (whole, count) = joined(body, at, ends);
        found.insert(format!("{name}: {}", whole.trim_end_matches([' ', '{', ';', ','])));
        at += count;
    }
}

/// What a macro declares, or what is given to one: flags as their type, else line by line.
fn macro_items(header: &str, body: &[&str], wanted: &dyn Fn(&str) -> bool, found: &mut Found) {
    let name = header.trim_end_matches([' ', '{', ':']);
    let (called, of) = name.split_once("! { ").unwrap_or((name.trim_end_matches('!'), ""));
    if called == "bitflags::bitflags" {
        return flag_types(body, wanted, found);
    }
    if called.ends_with("thread_local") {
        return;
    }
    let subject = match (of, body.first()) {
        ("", Some(first)) if called == "strategy" => first.split(',').next().unwrap_or(""),
        ("", _) => called,
        _ => of,
    };
    let declares = called.starts_with("macro_rules!");
    let counts = called == "counters" && wanted("Stats");
    let is_wanted = counts || declares || called.ends_with("options") || wanted(subject);
    for line in body.iter().filter(|_| is_wanted) {
        let line = line.trim();
        let is_item = line.starts_with("pub fn ") || line.starts_with("pub const ");
        if (!declares || is_item) && line.len() > 1 {
            let line = line.trim_end_matches([' ', '{', ';', ',']);
            found.insert(format!("{subject}: {line}"));
        }
    }
}

/// Types of flags: each constant with its value.
fn flag_types(body: &[&str], wanted: &dyn Fn(&str) -> bool, found: &mut Found) {
    let mut name = "";
    for line in body {
        if let Some(header) = line.strip_prefix("pub struct ") {
            name = header.split(':').next().unwrap_or("");
        }
        let text = line.trim_start().trim_end_matches([' ', '{', ';']);
        if wanted(name) && (text.starts_with("pub struct") || text.starts_with("const ")) {
            found.insert(format!("{name}: {text}"));
        }
    }
}

/// The text behind `<..>` at its start.
fn behind_generics(text: &str) -> &str {
    let mut depth = 0;
    for (at, letter) in text.char_indices() {
        match letter {
            '<' => depth += 1,
            '>' if !text[..at].ends_with('-') => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            return if letter == '>' { &text[at + 1..] } else { &text[at..] };
        }
    }
    ""
}

/// The name that an item declares, or the type that an `impl` is for.
pub fn name_of(header: &str) -> &str {
    let is_name = |c: char| c.is_alphanumeric() || c == '_';
    let header = header.strip_prefix("unsafe ").unwrap_or(header);
    if let Some(rest) = header.strip_prefix("impl") {
        let rest = behind_generics(rest).trim_start();
        let of = rest.split_once(" for ").map_or(rest, |(_, of)| of);
        let of = of.trim_start_matches(['&', '(']);
        let path = of.split(|c: char| !is_name(c) && c != ':').next().unwrap_or("");
        return path.rsplit("::").next().unwrap_or("");
    }
    const KINDS: [&str; 8] = ["struct", "enum", "trait", "fn", "const", "static", "type", "mod"];
    let mut words = header.split(|c: char| !is_name(c)).skip_while(|word| !KINDS.contains(word));
    words.find(|word| !word.is_empty() && !KINDS.contains(word)).unwrap_or("")
}
