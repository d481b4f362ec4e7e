//! What the quick runs are held against: rows, ratios, the page, and what was not run.
//!
//! Invariant: nothing is passed over in silence: what was not run has to be allowed.

use serde_json::Value;
use std::path::Path;

/// The page shows every row, ratio and picture of the bench, and that it was a quick run.
pub fn check_page(name: &str, path: &Path, json: &Value) {
    let page = std::fs::read_to_string(path).unwrap();
    let count = |list: &str| json[list].as_array().unwrap().len();
    for ratio in names(json, "ratios") {
        assert!(page.contains(&format!("<td title=\"{ratio}\">")), "{ratio} is not on the page");
    }
    check_labels(&page);
    let rows = count("rows");
    assert!(rows == 0 || page.contains(&format!("All {rows} rows")), "rows are not on the page");
    assert_eq!(page.matches("<figure>").count(), count("plots"), "pictures");
    assert!(page.contains(&format!("forebay bench {name} --quick --dir ")), "the command");
    assert!(page.contains("not for quoting") && !page.contains("NaN"));
    assert!(!page.contains("http") && !page.contains("<script"), "nothing from elsewhere");
}

/// The labels of tables and pictures are words, without ids (html.W5).
fn check_labels(page: &str) {
    let has_label =
        |line: &&str| ["<td", "<th", "<figcaption", "<text"].iter().any(|tag| line.contains(tag));
    for line in page.lines().filter(has_label) {
        let prose: String =
            line.split("<code>").map(|p| p.split("</code>").last().unwrap()).collect();
        let texts = prose.split('<').map(|piece| piece.split_once('>').map_or(piece, |p| p.1));
        for word in texts.flat_map(str::split_whitespace) {
            let inner = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
            assert!(!(word.contains('_') && word.chars().all(inner)), "an id as a label: {word}");
        }
    }
}

pub fn names<'a>(json: &'a Value, list: &str) -> Vec<&'a str> {
    json[list].as_array().unwrap().iter().map(|item| item["name"].as_str().unwrap()).collect()
}

/// Every row is complete, and these variants have these metrics.
pub fn check_rows(json: &Value, wanted: &[(&str, &str)]) {
    let rows = json["rows"].as_array().unwrap();
    for row in rows {
        for key in ["variant", "metric", "unit"] {
            assert!(row[key].is_string(), "{key} in {row}");
        }
        for key in ["median", "min", "max", "runs"] {
            assert!(row[key].is_number(), "{key} in {row}");
        }
        let (low, high) = (row["min"].as_f64().unwrap(), row["max"].as_f64().unwrap());
        assert!((low..=high).contains(&row["median"].as_f64().unwrap()), "{row}");
    }
    for (variant, metric) in wanted {
        let found = rows.iter().any(|row| row["variant"] == *variant && row["metric"] == *metric);
        assert!(found, "no row {variant} {metric}");
    }
}

/// Whether what begins with this was run. What was not needs root, a program or a kernel; with none
/// of these missing, or without FOREBAY_ALLOW_SKIP=1, it was.
pub fn ran(json: &Value, what: &str) -> bool {
    let not_run = json["not_run"].as_array().unwrap();
    let item = not_run.iter().find(|item| item["what"].as_str().unwrap().starts_with(what));
    if let Some(item) = item {
        let why = item["why"].as_str().unwrap();
        let allowed = std::env::var("FOREBAY_ALLOW_SKIP").is_ok_and(|v| v == "1");
        assert!(allowed || why.contains("FOREBAY_BIN"), "this test requires {why}");
    }
    item.is_none()
}

/// The median of a row that is there.
pub fn row(json: &Value, variant: &str, metric: &str) -> f64 {
    let rows = json["rows"].as_array().unwrap();
    let row = rows.iter().find(|row| row["variant"] == variant && row["metric"] == metric);
    row.and_then(|row| row["median"].as_f64()).unwrap_or_else(|| panic!("{variant} {metric}"))
}

/// A ratio of write amplification is right for synced writes of a block, whose rate is in a row. It
/// is 2, and one more for each mark: the log of a volume writes one when it has been idle for
/// 10 ms. So few are allowed unless each write takes that long.
pub fn check_synced(json: &Value, name: &str, variant: &str, metric: &str) {
    let marks_per_write = 100.0 / row(json, variant, metric);
    // Twice that, since some writes take longer than the median one.
    let most = 2.2 + (2.0 * marks_per_write).min(1.0);
    let value = ratio(json, name);
    assert!((1.5..=most).contains(&value), "{name}: {value}, at most {most}");
}

/// The value of a ratio that is there and is a number.
pub fn ratio(json: &Value, name: &str) -> f64 {
    let list = json["ratios"].as_array().unwrap();
    let ratio = list.iter().find(|ratio| ratio["name"] == name);
    ratio.and_then(|ratio| ratio["value"].as_f64()).unwrap_or_else(|| panic!("{name}: {ratio:?}"))
}

/// These ratios are there and are numbers.
pub fn check_ratios(json: &Value, wanted: &[&str]) {
    for name in wanted {
        ratio(json, name);
        assert!(names(json, "bars").contains(name), "{name} has no bar");
    }
}

/// Where the `forebay` program was not built, these benches say so. Anything else that is missing
/// is a failure.
pub fn no_program(json: &Value) -> bool {
    json["rows"] == serde_json::json!([]) && !ran(json, json["bench"].as_str().unwrap())
}
