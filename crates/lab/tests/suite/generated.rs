//! Man pages and completions hold each command of `forebay-lab` with its options.

use crate::ok;
use std::path::PathBuf;

#[test]
fn generated_pages_and_completions_hold_commands_and_options() {
    let out = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("generated");
    ok(&["generate", out.to_str().unwrap()]);
    let read = |path: &str| {
        let text = std::fs::read_to_string(out.join(path));
        text.unwrap_or_else(|e| panic!("{path}: {e}")).replace('\\', "")
    };
    for (page, options) in [
        ("forebay-lab.1", &["bench", "crash-test", "--verbose"][..]),
        ("forebay-lab-bench.1", &["hit", "database", "report"]),
        ("forebay-lab-bench-dirty.1", &["--quick", "--json", "--part", "dd, fio"]),
        ("forebay-lab-bench-report.1", &["--readme", "--screen", "--compare"]),
        ("forebay-lab-crash-test.1", &["--seed", "--states", "--class", "--at"]),
    ] {
        let text = read(&format!("man/{page}"));
        for option in options {
            assert!(text.contains(option), "{page}: {option}");
        }
    }
    for shell in ["forebay-lab.bash", "_forebay-lab", "forebay-lab.fish"] {
        let text = read(&format!("completions/{shell}"));
        for word in ["crash-test", "database", "budgets", "without", "states"] {
            assert!(text.contains(word), "{shell}: {word}");
        }
    }
    std::fs::remove_dir_all(&out).unwrap();
}
