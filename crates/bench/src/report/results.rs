//! Results as JSON values: one object per bench, from this run or from files of earlier runs. They
//! are shown as five lines and as a page.

use crate::report::model::{Report, write_json};
use crate::report::options::ReportOptions;
use crate::report::{compare, five, html, readme, screen};
use forebay_base::{Error, ErrorKind, Result};
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

/// The object of one bench: its report, and the information to repeat it. `words` are the options
/// of the run.
pub fn describe(
    name: &str,
    title: &str,
    words: &[String],
    report: &Report,
    machine: Value,
) -> Value {
    let mut json = report.to_json(name, machine);
    json["title"] = title.into();
    json["command"] = command(name, words).into();
    json["quick"] = words.iter().any(|word| word == "--quick").into();
    json["date"] = utc(SystemTime::now()).into();
    json["version"] = env!("CARGO_PKG_VERSION").into();
    json
}

/// The command that repeats this bench with the same options.
fn command(name: &str, words: &[String]) -> String {
    let words: Vec<String> = words.iter().map(|word| quoted(word)).collect();
    ["forebay bench", name]
        .into_iter()
        .chain(words.iter().map(String::as_str))
        .collect::<Vec<_>>()
        .join(" ")
}

fn quoted(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_=./:+,".contains(c);
    if !word.is_empty() && word.chars().all(plain) {
        return word.to_string();
    }
    format!("'{}'", word.replace('\'', "'\\''"))
}

/// Output files of a run, and the name of the bench.
pub struct Outputs<'a> {
    /// Name of the bench, or `all`.
    pub name: &'a str,
    /// File of the page.
    pub html: Option<&'a Path>,
    /// File of the JSON figures.
    pub json: Option<&'a Path>,
}

/// Writes the files of `--json` and `--html`. `all` is the report of all benches together.
pub fn write(to: &Outputs<'_>, all: &Report, found: Vec<Value>, machine: Value) -> Result<()> {
    if let Some(path) = to.html {
        write_page(path, &found)?;
    }
    let Some(path) = to.json else { return Ok(()) };
    if let [only] = &found[..] {
        return write_json(path, only);
    }
    let mut json = all.to_json(to.name, machine);
    json["benches"] = found.into();
    write_json(path, &json)
}

fn write_page(path: &Path, found: &[Value]) -> Result<()> {
    let page = html::page(found);
    std::fs::write(path, page).map_err(|e| Error::from_io("write", e).with_path(path))?;
    println!("\npage: {}", path.display());
    Ok(())
}

/// `bench report`, from saved files: the page and the five lines, the tables of docs/figures.md,
/// the short summary, or a comparison of two runs.
pub fn report(options: &ReportOptions) -> Result<()> {
    let bad = |text| Error::new(ErrorKind::InvalidInput, "report", text);
    if options.compare {
        let [old, new] = &options.inputs[..] else {
            return Err(bad("OLD.json and NEW.json".into()));
        };
        let (old, new) = (load(std::slice::from_ref(old))?, load(std::slice::from_ref(new))?);
        print!("{}", compare::table(&old, &new).map_err(bad)?.0);
        return Ok(());
    }
    let found = load(&options.inputs)?;
    if options.readme {
        print!("{}", readme::markdown(&found).map_err(bad)?);
    } else if options.screen {
        screen::lines(&found).iter().for_each(|line| println!("{line}"));
    } else {
        print!("\n{}", five::table(&found));
    }
    if let Some(path) = &options.svg {
        let svg = html::first_picture(&found, &options.series);
        let svg = svg.ok_or_else(|| bad("no picture, or none with such a series".into()))?;
        std::fs::write(path, svg).map_err(|e| Error::from_io("write", e).with_path(path))?;
        println!("picture: {}", path.display());
    }
    match &options.html {
        Some(path) => write_page(path, &found),
        None => Ok(()),
    }
}

/// Loads the results in these files. Of two runs of one bench the later file counts, but parts that
/// were run separately (`--part`) are merged.
fn load(paths: &[PathBuf]) -> Result<Vec<Value>> {
    let mut found: Vec<Value> = Vec::new();
    for path in paths {
        let text = std::fs::read_to_string(path);
        let text = text.map_err(|e| Error::from_io("read", e).with_path(path))?;
        let bad = |what: String| Error::new(ErrorKind::InvalidInput, "read", what).with_path(path);
        let json: Value = serde_json::from_str(&text).map_err(|e| bad(e.to_string()))?;
        let list = match json["benches"].as_array() {
            Some(list) => list.clone(),
            None => vec![json],
        };
        for value in list {
            if !value["bench"].is_string() || !value["rows"].is_array() {
                return Err(bad("no result of forebay bench".into()));
            }
            let is_part = value["command"].as_str().is_some_and(|line| line.contains(" --part"));
            match found.iter_mut().find(|other| other["bench"] == value["bench"]) {
                Some(other) if is_part => add_part(other, value),
                Some(other) => *other = value,
                None => found.push(value),
            }
        }
    }
    Ok(found)
}

/// The keys that identify an entry of each list; of two equal entries the later one counts.
const KEYS: [(&str, &[&str]); 9] = [
    ("rows", &["variant", "metric"]),
    ("ratios", &["name"]),
    ("bars", &["name"]),
    ("cells", &["rival", "cell"]),
    ("plots", &["title"]),
    ("summaries", &["promise"]),
    ("notes", &[]),
    ("not_run", &[]),
    ("failed", &[]),
];

/// Merges the figures of a part into those of other parts of its bench.
fn add_part(whole: &mut Value, part: Value) {
    for (list, keys) in KEYS {
        let Some(new) = part[list].as_array() else { continue };
        let same = |a: &Value, b: &Value| match keys {
            [] => a == b,
            keys => keys.iter().all(|key| a[key] == b[key]),
        };
        let mut old = whole[list].as_array().cloned().unwrap_or_default();
        old.retain(|entry| !new.iter().any(|other| same(entry, other)));
        old.extend(new.iter().cloned());
        whole[list] = old.into();
    }
    whole["quick"] = (whole["quick"] == true || part["quick"] == true).into();
    let commands = [&whole["command"], &part["command"]].map(|c| c.as_str().unwrap_or_default());
    whole["command"] = commands.join("; ").into();
}

/// Formats a time as `2026-11-20 16:40 UTC`.
fn utc(time: SystemTime) -> String {
    let seconds = time.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    let (mut days, minutes) = (seconds / 86_400, seconds / 60 % 1440);
    let leap = |year: u64| {
        year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400))
    };
    let mut year = 1970;
    while days >= 365 + u64::from(leap(year)) {
        days -= 365 + u64::from(leap(year));
        year += 1;
    }
    let february = 28 + u64::from(leap(year));
    let mut month = 1;
    for length in [31, february, 31, 30, 31, 30, 31, 31, 30, 31, 30] {
        if days < length {
            break;
        }
        days -= length;
        month += 1;
    }
    format!("{year}-{month:02}-{:02} {:02}:{:02} UTC", days + 1, minutes / 60, minutes % 60)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn dates_are_those_of_the_calendar() {
        let at = |seconds| utc(UNIX_EPOCH + Duration::from_secs(seconds));
        assert_eq!(at(0), "1970-01-01 00:00 UTC");
        assert_eq!(at(951_782_399), "2000-02-28 23:59 UTC");
        assert_eq!(at(951_782_400), "2000-02-29 00:00 UTC");
        assert_eq!(at(1_735_689_540), "2024-12-31 23:59 UTC");
        assert_eq!(at(1_795_192_800), "2026-11-20 16:40 UTC");
    }

    #[test]
    fn parts_of_bench_merge_and_later_figure_counts() {
        let part = |name: &str, ratios: Value| {
            let command = format!("forebay bench nbd --part {name}");
            serde_json::json!({"bench": "nbd", "command": command, "quick": false, "ratios": ratios})
        };
        let ratio = |name: &str, value: f64| serde_json::json!({"name": name, "value": value});
        let mut whole = part("hits", vec![ratio("a", 1.0), ratio("b", 2.0)].into());
        add_part(&mut whole, part("misses", vec![ratio("b", 3.0), ratio("c", 4.0)].into()));
        let expected: Value = vec![ratio("a", 1.0), ratio("b", 3.0), ratio("c", 4.0)].into();
        assert_eq!(whole["ratios"], expected);
        assert_eq!(
            whole["command"],
            "forebay bench nbd --part hits; forebay bench nbd --part misses"
        );
    }

    /// README shows a picture, and docs/figures.md says from which results it comes. If the drawing
    /// changes: `forebay-lab bench report docs/pictures/NAME.json --svg docs/pictures/NAME.svg
    /// --series ..`, with the series named here.
    #[test]
    fn picture_of_readme_is_that_of_saved_results() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/pictures");
        let saved = |end: &str| folder.join(format!("lookups-during-backup.{end}"));
        let series = ["ours", "ours-uncached", "sqlite-cache", "xfs-direct", "xfs-tar"];
        let drawn =
            html::first_picture(&load(&[saved("json")]).unwrap(), &series.map(String::from));
        let kept = std::fs::read_to_string(saved("svg")).unwrap();
        assert!(drawn.as_deref() == Some(kept.as_str()), "{}", drawn.unwrap_or_default());
    }

    #[test]
    fn command_of_one_bench_is_quoted_for_a_shell() {
        let words = |line: &str| line.split(' ').map(str::to_string).collect::<Vec<_>>();
        let all = words("--quick --dir /d --rounds 3");
        assert_eq!(command("hit", &all), "forebay bench hit --quick --dir /d --rounds 3");
        let all = words("--dir a&b --lines");
        assert_eq!(command("nbd", &all), "forebay bench nbd --dir 'a&b' --lines");
        assert_eq!(command("nbd", &[]), "forebay bench nbd");
    }
}
