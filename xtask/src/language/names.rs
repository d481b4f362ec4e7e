//! The rules of language for names: refused identifiers, refused words as parts of identifiers, and
//! names of tests, which are `subject_condition_result`.

use super::rules::{List, Violation};
use crate::source::blank_literals;
use std::collections::BTreeSet;

/// Words in the name of a test, without the ids at its start.
const TEST_WORDS: usize = 10;
/// Words that no name of a test begins with: it names the subject.
const NO_SUBJECTS: &[&str] = &["a", "an", "the", "what", "who", "where", "it"];

/// Refused identifiers, and those of which a part between underscores is a refused word. A name
/// counts once in a file, where it stands first, so that another use of an old name is no finding.
pub fn identifiers(text: &str, refused: &List, words: &List, found: &mut Vec<Violation>) {
    let mut seen = BTreeSet::new();
    for (number, line) in blank_literals(text).lines().enumerate() {
        let names = line.split(|c: char| !(c.is_alphanumeric() || c == '_'));
        for name in names.filter(|name| !name.is_empty()) {
            let Some(what) = refusal(name, refused, words) else { continue };
            if seen.insert(name.to_string()) {
                found.push(Violation { rule: "identifier", line: number + 1, what });
            }
        }
    }
}

/// Why an identifier is refused.
fn refusal(name: &str, refused: &List, words: &List) -> Option<String> {
    if let Some((_, instead)) = refused.entries().find(|(identifier, _)| identifier == name) {
        return Some(format!("the identifier `{name}` is refused; write {instead}"));
    }
    let lower = name.to_lowercase();
    let mut parts = lower.split('_');
    let (word, instead) = parts.find_map(|part| words.entries().find(|(word, _)| word == part))?;
    Some(format!("\"{word}\" in the identifier `{name}` is refused; write {instead}"))
}

/// Names of tests that are too long, or begin with an article or a question word.
pub fn test_names(text: &str, found: &mut Vec<Violation>) {
    for name in crate::lineage::tests_in(text) {
        let Some(what) = test_refusal(&name) else { continue };
        let defines = |line: &str| {
            line.split("fn ").skip(1).any(|rest| rest.split(['(', '<']).next() == Some(&name))
        };
        let line = text.lines().position(defines).map_or(1, |at| at + 1);
        found.push(Violation { rule: "test-name", line, what });
    }
}

/// Why the name of a test is refused.
fn test_refusal(name: &str) -> Option<String> {
    let parts: Vec<&str> = name.split('_').collect();
    let words = without_ids(&parts);
    let first = words.first()?;
    if NO_SUBJECTS.contains(first) {
        return Some(format!(
            "the test `{name}` begins with \"{first}\"; name it subject_condition_result"
        ));
    }
    (words.len() > TEST_WORDS).then(|| {
        let count = words.len();
        format!("the name of the test `{name}` has {count} words; {TEST_WORDS} at most")
    })
}

/// The words behind the ids of promises and invariants that begin a name: `d1_d14_`, `log_l3_`.
fn without_ids<'a, 'b>(words: &'a [&'b str]) -> &'a [&'b str] {
    match words {
        [id, rest @ ..] if is_id(id) => without_ids(rest),
        [_, id, rest @ ..] if is_id(id) => without_ids(rest),
        _ => words,
    }
}

/// One or two letters and a number: `d1`, `s10`, `rf3`.
fn is_id(word: &str) -> bool {
    let number = word.trim_start_matches(|c: char| c.is_ascii_lowercase());
    let letters = word.len() - number.len();
    (1..=2).contains(&letters) && number.parse::<u8>().is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn identifiers_in(text: &str) -> Vec<usize> {
        let refused = List::parse("with_room | `with_space`\n").unwrap();
        let words = List::parse("foobar | next to\nrun dry | berun dry\n").unwrap();
        let mut found = Vec::new();
        identifiers(text, &refused, &words, &mut found);
        found.into_iter().map(|violation| violation.line).collect()
    }

    #[test]
    fn refused_identifier_is_found_as_complete_word_of_code() {
        let text = "//! with_room\nfn with_room() {}\nfn with_rooms() { \"with_room\"; }\n";
        assert_eq!(identifiers_in(text), [2]);
    }

    #[test]
    fn refused_word_is_found_as_part_of_identifier() {
        let text = "// a_foobar\nfn a_foobar_b() {}\nlet foobar = \"foobar_c\";\nconst FOOBAR_MAX: u8 = 1;\n\
                    fn foobars(_: FoobarList) {}\n";
        assert_eq!(identifiers_in(text), [2, 3, 4]);
    }

    #[test]
    fn refused_identifier_counts_once_in_file() {
        assert_eq!(identifiers_in("x\nfoobar(foobar);\nfoobar;\nis_foobar\n"), [2, 4]);
    }

    #[test]
    fn test_name_too_long_or_without_subject_is_found() {
        let ten = "one_two_three_four_five_six_seven_eight_nine_ten";
        for good in [ten, &format!("d1_s10_{ten}"), &format!("log_l3_{ten}"), "d1", "anchor_a"] {
            assert_eq!(test_refusal(good), None, "{good}");
        }
        let long = format!("{ten}_eleven");
        for bad in [&long, "a_file_is_read", "d1_d14_the_file", "log_l3_what_is_lost", "who_reads"]
        {
            assert!(test_refusal(bad).is_some(), "{bad}");
        }
    }

    #[test]
    fn test_name_is_judged_only_for_tests() {
        let text = "fn a_helper() {}\n#[test]\nfn a_file_is_read() { the_file(); }\n\
                    // fn the_x()\nfn the_y() {}\n";
        let mut found = Vec::new();
        test_names(text, &mut found);
        let found: Vec<_> = found.into_iter().map(|v| (v.rule, v.line)).collect();
        assert_eq!(found, [("test-name", 3)]);
    }
}
