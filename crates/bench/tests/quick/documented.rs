//! Each ratio that a bench gives is documented: by its name or a pattern in the section of the
//! bench in `docs/internals/benchmarking.md`, in `docs/figures.md`, or in `docs/lineage.md`.
//!
//! A pattern has a `*` for any part, or begins with `..`, which stands for any beginning.

use forebay_bench::report::figures::{ENGINE, VOLUMES};
use std::collections::BTreeSet;
use std::path::Path;

/// The names and patterns that document the ratios of one bench, or of all (`None`).
fn documented(bench: Option<&str>) -> BTreeSet<String> {
    let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs");
    let read = |name: &str| std::fs::read_to_string(docs.join(name)).unwrap();
    let page = read("internals/benchmarking.md");
    let sections = page.split("\n## ").filter(|section| {
        let title = section.lines().next().unwrap_or_default();
        bench.is_none_or(|bench| bench == title)
    });
    let mut all = BTreeSet::new();
    for section in sections {
        let spans = section.split('`').skip(1).step_by(2);
        all.extend(spans.filter(|span| is_pattern(span)).map(|span| span.replacen("..", "*", 1)));
    }
    let facts = ENGINE.iter().chain(VOLUMES).filter(|fact| bench.is_none_or(|b| b == fact.0));
    all.extend(facts.map(|fact| fact.1.to_string()));
    let lineage = read("lineage.md");
    let figures = lineage.split('`').collect::<Vec<_>>();
    let figures = figures.windows(3).filter(|w| w[1] == " of ");
    let figures = figures.filter(|w| bench.is_none_or(|bench| bench == w[2]));
    all.extend(figures.map(|w| w[0].to_string()));
    all
}

/// Whether a code span may stand for a ratio.
fn is_pattern(span: &str) -> bool {
    let known = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || "_*".contains(c);
    let name = span.strip_prefix("..").unwrap_or(span);
    name.len() > 2 && name.chars().all(known)
}

/// Whether a name matches a pattern; each `*` stands for one character or more.
fn fits(name: &str, pattern: &str) -> bool {
    match pattern.split_once('*') {
        None => name == pattern,
        Some((start, rest)) => name.strip_prefix(start).is_some_and(|tail| {
            let mut ends = tail.char_indices().map(|(at, c)| &tail[at + c.len_utf8()..]);
            ends.any(|end| fits(end, rest))
        }),
    }
}

/// The ratios of a quick run are documented.
pub fn check_documented(bench: &str, ratios: &[&str]) {
    let patterns = documented(Some(bench));
    for name in ratios {
        let is_there = patterns.iter().any(|pattern| fits(name, pattern));
        assert!(is_there, "docs/internals/benchmarking.md does not name {name} of {bench}");
    }
}

/// Names that the sources give to ratios literally; what `format!` inserts is a `*`.
fn named_in(source: &str) -> Vec<String> {
    let mut found = Vec::new();
    let calls =
        ["ratio(", "ratio_with_bar(", "ratio_unjudged("].map(|call| format!("report.{call}"));
    let code: String = source.split_whitespace().collect();
    for call in calls {
        for rest in code.split(&call).skip(1) {
            let rest = rest.strip_prefix("&format!(").unwrap_or(rest);
            let Some(name) = rest.strip_prefix('"').and_then(|rest| rest.split('"').next()) else {
                continue;
            };
            let mut pieces = name.split('{');
            let mut pattern = pieces.next().unwrap_or_default().to_string();
            for piece in pieces {
                pattern.push('*');
                pattern.push_str(piece.split_once('}').map_or("", |piece| piece.1));
            }
            found.push(pattern);
        }
    }
    found
}

fn sources(folder: &Path, found: &mut Vec<String>) {
    for entry in std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()) {
        if entry.is_dir() && !entry.ends_with("report") {
            sources(&entry, found);
        } else if entry.extension().is_some_and(|end| end == "rs") {
            let text = std::fs::read_to_string(&entry).unwrap();
            let code = text.split("#[cfg(test)]").next().unwrap_or_default();
            found.extend(named_in(code));
        }
    }
}

/// The story: 44 ratios were printed that no document named. This finds also those of parts that a
/// quick run leaves out.
#[test]
fn ratios_in_the_sources_are_documented() {
    let mut names = Vec::new();
    sources(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src"), &mut names);
    assert!(names.len() > 80, "{names:?}");
    let patterns = documented(None);
    let is_named = |name: &String| {
        let sample = name.replace('*', "x");
        patterns.iter().any(|pattern| fits(&sample, pattern) || fits(pattern, name))
    };
    names.retain(|name| !is_named(name));
    assert!(names.is_empty(), "docs/internals/benchmarking.md does not name {names:?}");
}

#[test]
fn patterns_fit_names() {
    for (name, pattern, fit) in [
        ("sync_vs_xfs", "sync_vs_xfs", true),
        ("sync_vs_xfs_sparse", "*_sparse", true),
        ("sync_vs_xfs", "*_sparse", false),
        ("names_create_vs_xfs", "names_*_vs_xfs", true),
        ("names_vs_xfs", "names_*_vs_xfs", false),
        ("a_b_c_b", "*_b", true),
    ] {
        assert_eq!(fits(name, pattern), fit, "{name} {pattern}");
    }
    let source = "report.ratio( \"one_vs_two\", 1.0); \
                  report\n.ratio_with_bar(&format!(\"{a}_vs_{b}_c\"), 2);";
    assert_eq!(named_in(source), ["one_vs_two", "*_vs_*_c"]);
}
