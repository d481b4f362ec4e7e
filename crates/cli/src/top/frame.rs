//! One frame of `top`, as lines. No I/O here.

use forebay_base::units::format_size;
use serde_json::Value;
use std::collections::VecDeque;

/// Points of the little curves.
const POINTS: usize = 60;
/// Shades of a curve, from nothing to the most.
const SHADES: &[u8] = b" .:-=+*#%@";
/// Kinds of cells: as a character, and as a colour of 256.
const DIRTY: (char, u8) = ('D', 160);
const WRITING: (char, u8) = ('w', 178);
const HOT: (char, u8) = ('H', 208);
const COLD: (char, u8) = ('c', 67);
const PASSING: (char, u8) = ('p', 97);
const FREE: (char, u8) = ('.', 236);

/// How it is shown.
pub struct Look {
    /// Columns.
    pub width: usize,
    /// Lines, at most.
    pub height: usize,
    /// With colours.
    pub colour: bool,
}

/// Earlier points, for the curves.
#[derive(Default)]
pub struct History {
    points: VecDeque<Value>,
}

impl History {
    /// Adds the point of a view, unless it is the last one again.
    pub fn add(&mut self, view: &Value) {
        if self.points.back().is_some_and(|last| last["number"] == view["now"]["number"]) {
            return;
        }
        if self.points.len() == POINTS {
            self.points.pop_front();
        }
        self.points.push_back(view["now"].clone());
    }

    fn curve(&self, name: &str, top: Option<f64>) -> String {
        let values = || self.points.iter().map(|point| point[name].as_f64().unwrap_or(0.0));
        let top = top.unwrap_or_else(|| values().fold(0.0, f64::max)).max(1e-9);
        let shade = |value: f64| {
            let at = (value / top * (SHADES.len() - 1) as f64).ceil() as usize;
            char::from(SHADES[at.min(SHADES.len() - 1)])
        };
        values().map(shade).collect()
    }
}

/// All lines of the frame; none is longer than `look.width`.
pub fn lines(view: &Value, history: &History, look: &Look) -> Vec<String> {
    let mut lines = head(view, look);
    lines.extend(curves(view, history, look));
    lines.push(String::new());
    let files = view["files"].as_array().map_or(&[][..], Vec::as_slice);
    let streams = view["streams"].as_array().map_or(&[][..], Vec::as_slice);
    let strip = look.width.saturating_sub(64).clamp(8, 48);
    let name = look.width.saturating_sub(5 * 10 + strip + 1).clamp(8, 60);
    lines.push(cut(
        &format!(
            "{:name$}{:>10}{:>10}{:>10}{:>10}{:>10} {}",
            "FILE", "SIZE", "RESIDENT", "HOT", "DIRTY", "WRITING", "FROM FIRST BYTE TO LAST"
        ),
        look.width,
    ));
    let room = look.height.saturating_sub(lines.len() + streams.len().min(5) + 2);
    lines.extend(files.iter().take(room).map(|f| file(f, name, strip, look)));
    let hidden = files.len().saturating_sub(room) as u64 + number(&view["others"]["files"]);
    if hidden > 0 {
        lines.push(format!("{hidden} more files"));
    }
    lines.extend(streams.iter().take(5).map(|s| stream(s, look)));
    lines
}

fn number(value: &Value) -> u64 {
    value.as_u64().unwrap_or(0)
}

/// Leaves out the middle of a name that is longer than `width`, and replaces control characters
/// (top.T1).
fn fit(name: &str, width: usize) -> String {
    let plain =
        |c: char| if c.is_control() || !c.is_ascii() && c.is_whitespace() { '?' } else { c };
    let chars: Vec<char> = name.chars().map(plain).collect();
    if chars.len() <= width {
        return chars.into_iter().collect();
    }
    let tail = width.saturating_sub(2) * 2 / 3;
    let head = width.saturating_sub(2) - tail;
    let (head, tail) = (&chars[..head], &chars[chars.len() - tail..]);
    head.iter().chain(&['.', '.']).chain(tail).collect()
}

fn cut(line: &str, width: usize) -> String {
    line.chars().take(width).collect::<String>().trim_end().to_string()
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or("?")
}

fn head(view: &Value, look: &Look) -> Vec<String> {
    let cache = &view["cache"];
    let (frames, bytes) = (number(&cache["frames_bytes"]), &cache["bytes"]);
    let free = number(&cache["free_bytes"]);
    let mut lines = vec![format!(
        "forebay {} {} pid {} ({}): {} of {} used, budget {}",
        text(&view["version"]),
        text(&view["what"]),
        view["pid"],
        text(&view["engine"]),
        format_size(frames.saturating_sub(free)),
        format_size(frames),
        format_size(number(&cache["budget_bytes"])),
    )];
    if let Some(trouble) = view["trouble"].as_str() {
        lines.push(format!("TROUBLE: {}", fit(trouble, look.width.saturating_sub(9))));
    }
    let amount = |name: &str| number(&bytes[name]);
    let busy = amount("dirty") + amount("writing");
    let hot = amount("hot").min(amount("resident").saturating_sub(busy));
    let passing = amount("reading").max(amount("uncached"));
    let cold = amount("resident").saturating_sub(busy + hot + amount("uncached"));
    let parts = [
        ("hot", HOT, hot),
        ("cold", COLD, cold),
        ("dirty", DIRTY, amount("dirty")),
        ("in write-out", WRITING, amount("writing")),
        ("passing", PASSING, passing),
    ];
    let width = look.width.saturating_sub(2).max(10) as u128;
    let mut cells = Vec::new();
    for (_, kind, bytes) in parts {
        let count = u128::from(bytes) * width / u128::from(frames.max(1));
        cells.extend(std::iter::repeat_n(kind, count as usize));
    }
    cells.resize(width as usize, FREE);
    lines.push(format!("[{}]", painted(&cells, look.colour)));
    let (mut legend, mut used) = (String::new(), 0);
    for (name, kind, bytes) in parts {
        let said = format!(" {name} {}  ", format_size(bytes));
        used += said.len() + 1;
        if used <= look.width + 2 {
            legend.push_str(&painted(&[kind], look.colour));
            legend.push_str(&said);
        }
    }
    lines.push(legend.trim_end().to_string());
    lines
}

/// Cells as letters, or as coloured blanks.
fn painted(cells: &[(char, u8)], colour: bool) -> String {
    if !colour {
        return cells.iter().map(|(letter, _)| *letter).collect();
    }
    let mut out = String::new();
    let mut last = None;
    for (_, hue) in cells {
        if last != Some(hue) {
            out.push_str(&format!("\x1b[48;5;{hue}m"));
            last = Some(hue);
        }
        out.push(' ');
    }
    out + "\x1b[0m"
}

fn curves(view: &Value, history: &History, look: &Look) -> Vec<String> {
    let now = &view["now"];
    let amount = |name: &str| now[name].as_f64().unwrap_or(0.0);
    let size = |name: &str| format!("{}/s", format_size(amount(name) as u64));
    let time = |name: &str| now[name].as_u64().map_or("-".to_string(), duration);
    let times = |name: &str| {
        format!("{} / {}", time(&format!("{name}_p50_nanos")), time(&format!("{name}_p99_nanos")))
    };
    let ratio = now["hit_ratio"].as_f64();
    let ratio = ratio.map_or("-".to_string(), |ratio| format!("{:.1} %", 100.0 * ratio));
    let rows = [
        ("hit ratio", ratio, "hit_ratio", Some(1.0)),
        ("blocks found/s", format!("{:.0}", amount("hits_per_second")), "hits_per_second", None),
        ("missed/s", format!("{:.0}", amount("misses_per_second")), "misses_per_second", None),
        ("read", size("device_read_bytes_per_second"), "device_read_bytes_per_second", None),
        (
            "written",
            size("device_written_bytes_per_second"),
            "device_written_bytes_per_second",
            None,
        ),
        ("dirty", format_size(number(&now["dirty_bytes"])), "dirty_bytes", None),
        ("read wait p50/p99", times("read_wait"), "read_wait_p99_nanos", None),
        ("write-out p50/p99", times("writeback"), "writeback_p99_nanos", None),
        ("flush p50/p99", times("flush"), "flush_p99_nanos", None),
    ];
    let line = |(title, value, name, top): (&str, String, &str, Option<f64>)| {
        cut(&format!("{title:18}{value:>22}  {}", history.curve(name, top)), look.width)
    };
    rows.into_iter().map(line).collect()
}

fn duration(nanos: u64) -> String {
    match nanos {
        0..1_000_000 => format!("{} us", nanos / 1000),
        1_000_000..1_000_000_000 => format!("{:.1} ms", nanos as f64 / 1e6),
        _ => format!("{:.1} s", nanos as f64 / 1e9),
    }
}

fn file(file: &Value, name: usize, strip: usize, look: &Look) -> String {
    let bytes = &file["bytes"];
    let size = |value: &Value| format_size(number(value));
    format!(
        "{:name$}{:>10}{:>10}{:>10}{:>10}{:>10} {}",
        fit(text(&file["name"]), name - 1),
        size(&file["size_bytes"]),
        size(&bytes["resident"]),
        size(&bytes["hot"]),
        size(&bytes["dirty"]),
        size(&bytes["writing"]),
        painted(&cells(&file["cells"], strip), look.colour),
    )
}

/// Maps the cells of a file to `strip` cells. Each shows the first of `kinds` that its part
/// contains.
fn cells(cells: &Value, strip: usize) -> Vec<(char, u8)> {
    let levels = |name: &str| cells[name].as_str().unwrap_or_default().as_bytes();
    let kinds = ["dirty", "writing", "passing", "hot", "resident"].map(levels);
    let length = kinds.iter().map(|levels| levels.len()).max().unwrap_or(0);
    let one = |at: usize| {
        let from = at * length / strip;
        let to = ((at + 1) * length / strip).max(from + 1).min(length);
        let any = |levels: &[u8]| levels.get(from..to).is_some_and(|l| l.iter().any(|&d| d > b'0'));
        let found = kinds.iter().position(|levels| any(levels));
        found.map_or(FREE, |kind| [DIRTY, WRITING, PASSING, HOT, COLD][kind])
    };
    (0..strip).map(one).collect()
}

fn stream(stream: &Value, look: &Look) -> String {
    let kind = if stream["uncached"] == true { "uncached" } else { "cached" };
    let line = format!(
        "{kind} stream at {}, reads {} ahead, passed {}: ",
        format_size(number(&stream["position_bytes"])),
        format_size(number(&stream["window_bytes"])),
        format_size(number(&stream["passed_bytes"])),
    );
    let room = look.width.saturating_sub(line.len());
    cut(&(line + &fit(text(&stream["name"]), room)), look.width)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn view() -> Value {
        json!({
            "version": "1", "what": "export", "pid": 7, "engine": "threads", "trouble": null,
            "now": { "number": 1, "hit_ratio": 0.5, "hits_per_second": 10.0,
                     "read_wait_p50_nanos": 8192, "read_wait_p99_nanos": 1_500_000 },
            "cache": { "frames_bytes": 1000, "free_bytes": 500, "budget_bytes": 2000,
                       "bytes": { "resident": 500, "hot": 250, "dirty": 0, "writing": 0,
                                  "reading": 0, "uncached": 0 } },
            "files": [{ "name": "a\u{1b}[2Jb\u{9b}31m\u{7}", "size_bytes": 8192,
                        "bytes": { "resident": 4096, "hot": 0, "dirty": 4096, "writing": 0 },
                        "cells": { "resident": "90", "hot": "", "dirty": "90", "writing": "",
                                   "passing": "" } }],
            "others": { "files": 3 },
            "streams": [{ "name": "s", "uncached": true, "position_bytes": 4096,
                          "window_bytes": 4096, "passed_bytes": 0 }],
        })
    }

    fn shown(look: &Look) -> Vec<String> {
        let mut history = History::default();
        history.add(&view());
        history.add(&view());
        assert_eq!(history.points.len(), 1, "one point is one");
        lines(&view(), &history, look)
    }

    #[test]
    fn t1_names_do_not_steer_the_terminal() {
        for colour in [false, true] {
            let all = shown(&Look { width: 120, height: 100, colour }).join("\n");
            assert!(all.contains("a?[2Jb?31m?"), "{all}");
            let own = all.replace("\x1b[48;5;", "").replace("\x1b[0m", "");
            assert!(!own.chars().any(|c| c.is_control() && c != '\n'), "{own:?}");
        }
    }

    #[test]
    fn lines_fit_the_terminal() {
        for (width, height) in [(80, 24), (200, 60), (120, 40)] {
            let lines = shown(&Look { width, height, colour: false });
            assert!(lines.len() <= height, "{} lines of {height}", lines.len());
            for line in &lines {
                assert!(line.chars().count() <= width, "{width}: {line}");
            }
        }
    }

    #[test]
    fn frame_shows_cached_data() {
        let lines = shown(&Look { width: 100, height: usize::MAX, colour: false });
        let bar = lines.iter().find(|line| line.starts_with('[')).unwrap();
        assert_eq!(bar.matches('H').count(), 24, "a quarter is hot: {bar}");
        assert_eq!(bar.matches('c').count(), 24, "{bar}");
        let file = lines.iter().find(|line| line.contains("a?[2J")).unwrap();
        assert!(file.ends_with(&("D".repeat(18) + &".".repeat(18))), "{file}");
        assert!(lines.iter().any(|line| line.contains("8 us / 1.5 ms")), "{lines:?}");
        assert!(lines.iter().any(|line| line.starts_with("uncached stream at 4 KiB")));
        assert!(lines.contains(&"3 more files".to_string()));
    }
}
