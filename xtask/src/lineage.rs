//! Where each promise of the five patches went: the sentence, the option that turns it on, the
//! tests that hold it and the figure that shows it, from `xtask/lineage.txt` into
//! `docs/lineage.md`, together with the checklists.
//!
//! Invariants: N1 what the document names exists: each test is a `#[test]` function under
//! `crates/`, each ratio a name that a bench reports. N2 the document holds no line numbers, so
//! that it changes only when a test or a promise does. N3 a checklist line without a test is
//! named, in the document and as a finding. N4 a line counts as held only if it is held as it is
//! written: what is kept in spirit and what is not carried over is counted apart, with its reason.
//!
//! A test belongs to the checklist lines that its name begins with: `u1_u2_reads_leave_..` holds
//! U1 and U2.

use crate::Findings;
use crate::lineage_figures::{Count as Figures, Saved};
use crate::lineage_text::{Figure, Line, Lineage, Promise, Standing, parse};
use crate::source::blank_literals;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::path::Path;

const SOURCE: &str = "xtask/lineage.txt";
const DOCUMENT: &str = "docs/lineage.md";

/// Writes the document. With `only_check` it only reports whether the document is up to date.
pub fn check(root: &Path, only_check: bool) -> Findings {
    let text = match std::fs::read_to_string(root.join(SOURCE)) {
        Ok(text) => text,
        Err(e) => return vec![format!("{SOURCE}: {e}")],
    };
    let lineage = match parse(&text) {
        Ok(lineage) => lineage,
        Err(e) => return vec![format!("{SOURCE}: {e}")],
    };
    let mut facts = Facts::collect(root);
    let mut findings = Findings::new();
    facts.saved = Saved::collect(root, &lineage.runs, &mut findings);
    let (document, figures) = render(&lineage, &facts, &mut findings);
    let all = Count::of(lineage.behaviours.iter().flat_map(|b| &b.lines), &facts);
    let Count { held, spirit, not_carried, missing, later } = all;
    println!(
        "lineage: {held} lines held, {spirit} in spirit, {not_carried} not carried over, \
         {missing} without a test, {later} to come; figures: {figures}"
    );
    let path = root.join(DOCUMENT);
    let current = std::fs::read_to_string(&path).unwrap_or_default();
    if current != document {
        if only_check {
            findings.push(format!("{DOCUMENT}: stale, run `cargo xtask lineage`"));
        } else if let Err(e) = std::fs::write(&path, document) {
            findings.push(format!("{DOCUMENT}: {e}"));
        }
    }
    findings
}

/// What is in the tree: tests by function name and by checklist line, and names of ratios.
#[derive(Default)]
struct Facts {
    /// `(file, function)`.
    tests: BTreeSet<(String, String)>,
    /// String literals of the benches; `{..}` in them stands for anything.
    ratios: BTreeSet<String>,
    /// Literals without `{..}`, of which benches may make names of ratios.
    parts: BTreeSet<String>,
    benches: BTreeSet<String>,
    saved: Saved,
}

/// Files in whose tests an id such as `d1` names an invariant of the code, not a checklist line.
const OWN_IDS: [&str; 10] = [
    "crates/base/",
    "crates/vfs/",
    "crates/fuse/",
    "crates/memfs/",
    "crates/testkit/",
    "crates/lfs/",
    "crates/cli/src/",
    "crates/block/src/loopdev.rs",
    "crates/bench/src/mount/",
    "crates/nbd/src/lane.rs",
];
/// Files among [`OWN_IDS`] in whose tests ids do name checklist lines.
const LINES: [&str; 2] = ["crates/lfs/src/tests/behaviours", "crates/lfs/src/tests/alloc"];

/// Whether tests here can hold a line.
fn holds_lines(name: &str) -> bool {
    let lies_in = |places: &[&str]| places.iter().any(|place| name.starts_with(place));
    !lies_in(&OWN_IDS) || lies_in(&LINES)
}

impl Facts {
    fn collect(root: &Path) -> Self {
        let mut facts = Self::default();
        for path in crate::tidy::files(root) {
            let name = path.strip_prefix(root).unwrap_or(&path).display().to_string();
            if !name.starts_with("crates/") || !name.ends_with(".rs") {
                continue;
            }
            let text = std::fs::read_to_string(&path).unwrap_or_default();
            if holds_lines(&name) {
                facts.tests.extend(tests_in(&text).into_iter().map(|test| (name.clone(), test)));
            }
            if name.starts_with("crates/bench/src/") {
                facts.ratios.extend(ratio_like(&text));
                facts.parts.extend(text.split('"').filter(|w| is_part(w)).map(str::to_string));
            }
            if name == "crates/bench/src/lib.rs" {
                facts.benches.extend(benches_in(&text));
            }
        }
        facts
    }

    /// Tests of one checklist line (`d1`), or the one of this name.
    fn find(&self, wanted: &str) -> Vec<&(String, String)> {
        let is_line = !wanted.contains('_') && line_ids(&format!("{wanted}_x")).len() == 1;
        let fits = |name: &str| match is_line {
            true => line_ids(name).iter().any(|id| id == wanted),
            false => name == wanted,
        };
        self.tests.iter().filter(|(_, name)| fits(name)).collect()
    }

    /// Whether a bench can report the figure's ratio: a literal can become its name, or two
    /// literals as `{cell}_vs_{rival}`, or a saved table has a row of that name.
    fn reports(&self, figure: &Figure) -> bool {
        let Figure { ratio, .. } = figure;
        let composed = ratio
            .split_once("_vs_")
            .is_some_and(|(cell, rival)| self.parts.contains(cell) && self.parts.contains(rival));
        composed
            || self.ratios.iter().any(|pattern| fits(pattern, ratio))
            || self.saved.has_row_named(figure)
    }
}

/// Functions with `#[test]` above them.
pub fn tests_in(text: &str) -> Vec<String> {
    let blank = blank_literals(text);
    let (mut marked, mut found) = (false, Vec::new());
    for line in blank.lines().map(str::trim).filter(|line| !line.is_empty()) {
        if line.starts_with("#[") {
            marked |= line.contains("#[test]");
            if !line.contains(" fn ") {
                continue;
            }
        }
        let name = line.split("fn ").nth(1).and_then(|rest| rest.split(['(', '<']).next());
        if let (true, Some(name)) = (marked, name) {
            found.push(name.trim().to_string());
        }
        marked = false;
    }
    found
}

/// `d11` and `d14` of `d11_d14_bytes_behind_the_end`: the words that are a letter of a checklist
/// and a number, from the front.
fn line_ids(name: &str) -> Vec<String> {
    let is_id = |word: &&str| {
        let (letter, number) = word.split_at(usize::from(word.is_ascii() && !word.is_empty()));
        "dlsuax".contains(letter) && !letter.is_empty() && number.parse::<u8>().is_ok()
    };
    let words: Vec<&str> = name.split('_').collect();
    let ids: Vec<String> = words.iter().copied().take_while(is_id).map(str::to_string).collect();
    // A name that is only the id of a line is no test of ours.
    if ids.len() == words.len() { Vec::new() } else { ids }
}

/// Literals that may name a ratio: small letters, digits, `_`, and places for values. Enough of it
/// must be fixed: `{a}_vs_{b}` would vouch for anything.
fn ratio_like(text: &str) -> Vec<String> {
    let is_name = |word: &&str| {
        let fixed: usize =
            fixed_parts(word).map(|part| part.matches(char::is_alphabetic).count()).sum();
        let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || "_{}".contains(c);
        fixed >= 8 && word.chars().all(plain)
    };
    text.split('"').filter(is_name).map(str::to_string).collect()
}

/// Whether a literal may be a part of a name.
fn is_part(word: &str) -> bool {
    let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
    word.len() >= 4 && word.chars().all(plain)
}

/// What stands outside of `{..}`.
fn fixed_parts(pattern: &str) -> impl Iterator<Item = &str> {
    pattern.split('{').enumerate().map(|(n, part)| match part.split_once('}') {
        Some((_, after)) if n > 0 => after,
        _ => part,
    })
}

/// The names in the list of benches, the first literal of each row.
fn benches_in(text: &str) -> Vec<String> {
    let list = text.split("const BENCHES").nth(1).and_then(|rest| rest.split("];").next());
    let rows = list.unwrap_or_default().split('(').map(str::trim_start);
    let names = rows.filter_map(|row| row.strip_prefix('"')?.split('"').next());
    names.map(str::to_string).collect()
}

/// Whether a literal with `{..}` in it can become this name.
fn fits(pattern: &str, name: &str) -> bool {
    let Some((before, rest)) = pattern.split_once('{') else { return pattern == name };
    let Some((_, after)) = rest.split_once('}') else { return false };
    let Some(tail) = name.strip_prefix(before) else { return false };
    (0..=tail.len()).any(|at| tail.is_char_boundary(at) && fits(after, &tail[at..]))
}

/// The document, and the count of its figures.
fn render(lineage: &Lineage, facts: &Facts, findings: &mut Findings) -> (String, Figures) {
    let mut out = String::from(HEAD);
    out.push_str("| bench | checklist | held | in spirit | not carried over | lines |\n");
    out.push_str("|---|---|---|---|---|---|\n");
    for behaviour in &lineage.behaviours {
        let Count { held, spirit, not_carried, missing, .. } = Count::of(&behaviour.lines, facts);
        let (bench, list) = (&behaviour.bench, span(&behaviour.lines));
        let _ = match held + spirit + not_carried + missing {
            0 => writeln!(out, "| {bench} | {list} | - | - | - | to come |"),
            lines => {
                writeln!(out, "| {bench} | {list} | {held} | {spirit} | {not_carried} | {lines} |")
            }
        };
    }
    let (mut parts, mut rows, mut all) = (String::new(), String::new(), Figures::default());
    for (n, behaviour) in lineage.behaviours.iter().enumerate() {
        let _ = write!(parts, "\n## {}. {}\n\n", n + 1, behaviour.title);
        parts.push_str("| the patch says | option | tests | figure |\n|---|---|---|---|\n");
        let mut count = Figures::default();
        for promise in &behaviour.promises {
            promise_row(&mut parts, promise, facts, &mut count, findings);
        }
        parts.push_str("\n| line | what must hold | tests |\n|---|---|---|\n");
        for line in &behaviour.lines {
            let tests = standing_and_tests(line, facts, findings);
            let _ = writeln!(parts, "| {} | {} | {tests} |", line.id, line.text);
        }
        let _ = writeln!(rows, "| {} | {} |", behaviour.bench, count.cells());
        all = all.and(&count);
    }
    out.push_str(FIGURES_HEAD);
    out.push_str("| bench | figures held | not held | without a goal | without a value |\n");
    let _ = write!(out, "|---|---|---|---|---|\n{rows}\n");
    out.push_str("| commit | machine | section of figures.md |\n|---|---|---|\n");
    for run in &lineage.runs {
        let (commit, machine, heading) = (&run.commit, &run.machine, &run.heading);
        let anchor = heading.to_lowercase().replace(' ', "-");
        let _ = writeln!(out, "| {commit} | {machine} | [{heading}](figures.md#{anchor}) |");
    }
    out.push_str(&parts);
    (out, all)
}

/// Checklist lines, counted by their standing.
#[derive(Default)]
struct Count {
    held: usize,
    spirit: usize,
    not_carried: usize,
    /// Lines that should be held, and that no test names.
    missing: usize,
    later: usize,
}

impl Count {
    fn of<'a>(lines: impl IntoIterator<Item = &'a Line>, facts: &Facts) -> Self {
        let mut count = Self::default();
        for line in lines {
            let tested = !facts.find(&line.id.to_lowercase()).is_empty();
            let place = match line.standing {
                Standing::Later(_) => &mut count.later,
                Standing::NotCarried(_) => &mut count.not_carried,
                _ if !tested => &mut count.missing,
                Standing::Spirit(_) => &mut count.spirit,
                Standing::Held => &mut count.held,
            };
            *place += 1;
        }
        count
    }
}

fn standing_and_tests(line: &Line, facts: &Facts, findings: &mut Findings) -> String {
    let wanted = line.id.to_lowercase();
    match &line.standing {
        Standing::Later(later) => format!("to come: {later}"),
        Standing::NotCarried(why) => {
            if let Some((file, name)) = facts.find(&wanted).first() {
                let id = &line.id;
                findings.push(format!("{id} is not carried over, yet {file}: `{name}` holds it"));
            }
            format!("*not carried over*: {why}")
        }
        Standing::Spirit(what) => {
            format!("*spirit*: {what}<br>{}", tests_of(&wanted, usize::MAX, facts, findings))
        }
        Standing::Held => tests_of(&wanted, usize::MAX, facts, findings),
    }
}

const HEAD: &str = "\
# Lineage

Forebay's five behaviours were first proposed as patches for Linux. This page lists each sentence of those
patches that promises something, in our words. For each it names the option that turns it on, the tests
that hold it, and the figures of `forebay bench NAME` that show it. Below are the lines of our checklists
with their tests. The checklists also cover what later bugs in Linux taught.

`cargo xtask lineage` writes this page from `xtask/lineage.txt` and the tables of [figures.md](figures.md).
The command fails if a test or a ratio that the page names does not exist, or if a figure has neither a
value nor a reason. A test's name begins with the ids of the lines that it holds.
[behaviours.md](reference/behaviours.md) describes the behaviours.

*Held*: tests hold the line as it is written. *Spirit*: the line has no literal meaning here; the page says
what is kept of it, tests hold that, and it does not count as held. *Not carried over*: the line is not held
at all, and the page says why. Promises that are not carried over say so in the column of figures.

";

const FIGURES_HEAD: &str = "
Each figure has its value, its goal, the arguments of `forebay bench` and the commit. *Not held*: the value
missed the goal. The goal is the bench's, or the patch's where the bench has none or a lower one. Runs of
one commit are of one machine:

";

/// `D1..D19, X8`: each letter from its first to its last line.
fn span(lines: &[Line]) -> String {
    let mut spans: Vec<(char, Vec<&str>)> = Vec::new();
    for line in lines {
        let letter = line.id.chars().next().unwrap_or('?');
        match spans.last_mut() {
            Some((last, ids)) if *last == letter && letter != 'X' => ids.push(&line.id),
            _ => spans.push((letter, vec![&line.id])),
        }
    }
    let texts = spans.iter().map(|(_, ids)| match ids[..] {
        [only] => only.to_string(),
        _ => format!("{}..{}", ids[0], ids[ids.len() - 1]),
    });
    texts.collect::<Vec<_>>().join(", ")
}

fn promise_row(
    out: &mut String,
    promise: &Promise,
    facts: &Facts,
    count: &mut Figures,
    findings: &mut Findings,
) {
    if let Some(later) = &promise.later {
        let _ = writeln!(out, "| {} | {later} | - | - |", promise.text);
        return;
    }
    let tests: Vec<String> =
        promise.tests.iter().map(|wanted| tests_of(wanted, SOME, facts, findings)).collect();
    let mut figures: Vec<String> = Vec::new();
    for figure in &promise.figures {
        let known = facts.benches.contains(&figure.bench) && facts.reports(figure);
        let missing = format!("no bench `{}` reports `{}`", figure.bench, figure.ratio);
        if !known && !findings.contains(&missing) {
            findings.push(missing);
        }
        figures.push(facts.saved.describe(figure, count, findings));
    }
    figures.extend(promise.without.iter().cloned());
    figures.extend(promise.not_carried.iter().map(|why| format!("*not carried over*: {why}")));
    let options: Vec<String> = promise.options.iter().map(|o| format!("`{o}`")).collect();
    let or_dash = |list: Vec<String>, between: &str| match list.is_empty() {
        true => "-".to_string(),
        false => list.join(between),
    };
    let (options, tests) = (or_dash(options, "<br>"), or_dash(tests, "<br>"));
    // A space, because each figure is a sentence.
    let figures = or_dash(figures, " <br>");
    let _ = writeln!(out, "| {} | {options} | {tests} | {figures} |", promise.text);
}

/// Most tests that the row of a promise names for one checklist line; the line's own row names all.
const SOME: usize = 2;

/// At most `most` tests, by file; a finding if there are none.
fn tests_of(wanted: &str, most: usize, facts: &Facts, findings: &mut Findings) -> String {
    let mut files: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    let found = facts.find(wanted);
    for (file, name) in found.iter().take(most) {
        files.entry(file).or_default().push(name);
    }
    if files.is_empty() {
        let missing = format!("no test `{wanted}`");
        if !findings.contains(&missing) {
            findings.push(missing);
        }
        return format!("{} missing", wanted.to_uppercase());
    }
    let rows = files.into_iter().map(|(file, names)| {
        let file = file.strip_prefix("crates/").unwrap_or(file);
        format!("{file}: `{}`", names.join("`, `"))
    });
    let mut rows: Vec<String> = rows.collect();
    if found.len() > most {
        rows.push(format!("and {} more, {} below", found.len() - most, wanted.to_uppercase()));
    }
    rows.join("<br>")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn facts() -> Facts {
        let tests = [
            ("crates/a.rs", "d1_x"),
            ("crates/b.rs", "d1_d2_y"),
            ("crates/b.rs", "plain"),
            ("crates/c.rs", "d1_z"),
        ];
        Facts {
            tests: tests.iter().map(|(f, n)| (f.to_string(), n.to_string())).collect(),
            ratios: ["{rw}_vs_buffered_{suffix}", "whole_name"].map(str::to_string).into(),
            benches: ["dirty".to_string()].into(),
            parts: ["randwrite", "dontcache"].map(str::to_string).into(),
            saved: Saved::default(),
        }
    }

    #[test]
    fn tests_are_found_by_line_and_by_name() {
        let facts = facts();
        assert_eq!(facts.find("d1").len(), 3);
        assert_eq!(facts.find("d2").len(), 1);
        assert_eq!(facts.find("plain").len(), 1);
        assert_eq!(facts.find("d1_x").len(), 1);
        assert!(facts.find("d1_none").is_empty());
        assert!(facts.find("d3").is_empty() && facts.find("pla").is_empty());
        assert_eq!(line_ids("d11_d14_bytes"), ["d11", "d14"]);
        assert!(
            line_ids("data_5").is_empty() && line_ids("d1").is_empty() && line_ids("").is_empty()
        );
        assert!(line_ids("u_1_x").is_empty());
    }

    #[test]
    fn ratio_of_two_literals_is_reported() {
        let of = |ratio: &str| Figure { ratio: ratio.into(), ..Figure::default() };
        assert!(facts().reports(&of("randwrite_vs_dontcache")));
        assert!(!facts().reports(&of("randwrite_vs_none")));
        assert!(facts().reports(&of("whole_name")));
    }

    /// The story: tests of the front end's own invariants counted as tests of checklist lines.
    #[test]
    fn crates_with_ids_of_their_own_hold_no_line() {
        assert!(holds_lines("crates/iomap/tests/fsx.rs"));
        assert!(!holds_lines("crates/fuse/src/session/tests.rs"));
        assert!(holds_lines("crates/lfs/src/tests/alloc/fair.rs"));
        assert!(!holds_lines("crates/lfs/src/tests/volume.rs"));
        assert!(!holds_lines("crates/cli/src/remote/proto.rs"));
        assert!(!holds_lines("crates/block/src/loopdev.rs"));
        // Each has an `A1` that is not the line's.
        assert!(!holds_lines("crates/bench/src/mount/alloc.rs"));
        assert!(!holds_lines("crates/nbd/src/lane.rs"));
        assert!(holds_lines("crates/bench/src/stable/verify.rs"));
        assert!(holds_lines("crates/cli/tests/tune_and_stat.rs"));
    }

    #[test]
    fn only_tests_count_as_tests() {
        let text = "fn d1_helper() {}\n/// says\n#[test]\n#[cfg(x)]\nfn d2_real() {}\n\
                    #[test] fn d3_short() {}\n// #[test]\nfn d4_comment() {}\n\
                    #[test]\nstruct X;\nfn d5_after() {}\nlet s = \"#[test]\";\nfn d6_string() {}\n";
        assert_eq!(tests_in(text), ["d2_real", "d3_short"]);
    }

    #[test]
    fn ratios_may_have_places_for_values() {
        assert!(fits("{rw}_vs_buffered_{suffix}", "randread_vs_buffered_16x400m"));
        assert!(fits("whole_name", "whole_name") && !fits("whole_name", "whole_name_2"));
        assert!(!fits("{rw}_vs_buffered", "randread_vs_buffered_2"));
        let text =
            "report.ratio(&format!(\"{rw}_vs_x\"), 1.0); \"ends_with_it\"; \"Not_one\"; \"short\"";
        assert_eq!(ratio_like(text), ["ends_with_it"]);
        assert_eq!(
            ratio_like("(\"{name}_vs_{other}\", \"{rw}_vs_buffered\")"),
            ["{rw}_vs_buffered"]
        );
        let text = "const BENCHES: &[X] = &[\n (\"hit\", \"x (y)\", hit::run),\n\
                    (\n  \"b\",\n  \"z\",\n b::run),\n];\n(\"n\")";
        assert_eq!(benches_in(text), ["hit", "b"]);
    }

    #[test]
    fn missing_tests_and_ratios_are_named() {
        let text = "behaviour dirty Dirty\npromise p\noption --o\ntest d1\ntest d9\n\
                    figure dirty whole_name\nnot-measured x\n\
                    figure dirty none_such\nnot-saved y\nid D1 one\nid D3 three\n\
                    id D4 four\nlater the volume\nid D2 two\nspirit some of it\nid D5 five\n\
                    not-carried no such thing\n";
        let mut findings = Findings::new();
        let (out, _) = render(&parse(text).unwrap(), &facts(), &mut findings);
        assert_eq!(
            findings,
            ["no test `d9`", "no bench `dirty` reports `none_such`", "no test `d3`"]
        );
        assert!(out.contains("| dirty | D1..D5 | 1 | 1 | 1 | 4 |"), "{out}");
        assert!(out.contains("| D2 | two | *spirit*: some of it<br>b.rs: `d1_d2_y` |"), "{out}");
        assert!(out.contains("| D5 | five | *not carried over*: no such thing |"), "{out}");
        assert!(out.contains("a.rs: `d1_x`<br>b.rs: `d1_d2_y`<br>and 1 more, D1 below"), "{out}");
        assert!(
            out.contains("| D1 | one | a.rs: `d1_x`<br>b.rs: `d1_d2_y`<br>c.rs: `d1_z` |"),
            "{out}"
        );
        assert!(out.contains("| D4 | four | to come: the volume |"), "{out}");
    }

    /// The story: a line with a test of its name counted as held, although the test itself said
    /// that it holds something else.
    #[test]
    fn line_not_carried_over_has_no_test_and_no_count() {
        let text = "behaviour dirty Dirty\nid D1 one\nnot-carried x\nid D2 two\nspirit y\n\
                    id D9 nine\nspirit z\n";
        let (mut findings, found) = (Findings::new(), parse(text).unwrap());
        let (out, _) = render(&found, &facts(), &mut findings);
        let wrong = "D1 is not carried over, yet crates/a.rs: `d1_x` holds it";
        assert_eq!(findings, [wrong, "no test `d9`"], "{out}");
        let count = Count::of(&found.behaviours[0].lines, &facts());
        assert_eq!((count.held, count.spirit, count.not_carried, count.missing), (0, 1, 1, 1));
    }
}
