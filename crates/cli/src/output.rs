//! Standard output: a closed pipe (`forebay stat | head`) is no error.

use std::io::{ErrorKind, Write};

/// Prints `text` and a newline, and flushes: other programs wait for these lines.
pub fn line(text: impl AsRef<str>) {
    let mut out = std::io::stdout().lock();
    let result = writeln!(out, "{}", text.as_ref()).and_then(|()| out.flush());
    if let Err(e) = result {
        if e.kind() == ErrorKind::BrokenPipe {
            std::process::exit(0);
        }
        eprintln!("forebay: standard output: {e}");
        std::process::exit(1);
    }
}

/// Prints a value as JSON, for people to read too.
pub fn json(value: &serde_json::Value) {
    line(serde_json::to_string_pretty(value).expect("a JSON value prints"));
}

/// Prints lines of a process that goes on serving, whether or not they are read.
pub fn announce(lines: &[String]) {
    let mut text = lines.join("\n");
    text.push('\n');
    let mut out = std::io::stdout().lock();
    if let Err(e) = out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        log::info!("standard output: {e}");
    }
}

/// Left-aligned first column, the others right-aligned, all as wide as needed.
pub fn table(rows: &[Vec<String>]) {
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let width = |c: usize| rows.iter().filter_map(|r| r.get(c)).map(String::len).max().unwrap_or(0);
    let widths: Vec<usize> = (0..columns).map(width).collect();
    for row in rows {
        let cells: Vec<String> = row
            .iter()
            .zip(&widths)
            .enumerate()
            .map(|(at, (cell, w))| match at {
                0 => format!("{cell:<w$}"),
                _ => format!("{cell:>w$}"),
            })
            .collect();
        line(cells.join("  ").trim_end());
    }
}
