//! Pictures as SVG text: bars when every series has one value, lines otherwise. Small and our
//! own, so that a page needs nothing from elsewhere.
//!
//! Invariants: V1 what comes from outside (titles, labels, units) is escaped. V2 no NaN or
//! infinity reaches a coordinate: such a bar says "no value", such a point leaves a gap. V3 the
//! scale of bars holds zero, that of lines starts at or below zero. V4 colours are classes that
//! the page sets, so that one picture fits light and dark.

use std::fmt::Write;

/// Width of a picture in its own units; on a phone it is shown at about two thirds.
const WIDTH: f64 = 520.0;
/// Colours for lines that the page knows.
const COLOURS: usize = 8;

/// What is to be drawn.
#[derive(Clone, Copy, Debug)]
pub struct Picture<'a> {
    /// What is seen.
    pub title: &'a str,
    /// Unit of the values.
    pub unit: &'a str,
    /// What the x axis of lines counts.
    pub x: &'a str,
    /// Label and values of each series.
    pub series: &'a [(String, Vec<f64>)],
    /// Moments of lines to mark: a word, and where, as the x axis counts.
    pub marks: &'a [(String, f64)],
}

/// Text for HTML and SVG, inside and outside of quotes.
pub fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            c => out.push(c),
        }
    }
    out
}

/// A value for an axis or a bar: at most four digits, `k` from 10,000, then `M` and `G`.
pub fn short(value: f64) -> String {
    let size = value.abs();
    let (scaled, letter) = match size {
        v if !v.is_finite() => return "no value".into(),
        v if v >= 1e9 => (value / 1e9, "G"),
        v if v >= 1e6 => (value / 1e6, "M"),
        v if v >= 1e4 => (value / 1e3, "k"),
        _ => (value, ""),
    };
    let digits = match scaled.abs() {
        v if v >= 100.0 || v == 0.0 => 0,
        v if v >= 10.0 => 1,
        v if v >= 1.0 => 2,
        _ => 3,
    };
    let text = format!("{scaled:.digits$}");
    let text = if digits > 0 { text.trim_end_matches('0').trim_end_matches('.') } else { &text };
    format!("{text}{letter}")
}

/// The picture as one `svg` element; empty if there is nothing to draw.
pub fn draw(picture: &Picture<'_>) -> String {
    let longest = picture.series.iter().map(|(_, values)| values.len()).max().unwrap_or(0);
    match longest {
        0 => String::new(),
        1 => bars(picture),
        points => lines(picture, points),
    }
}

/// Finite values of all series.
fn finite<'a>(picture: &Picture<'a>) -> impl Iterator<Item = f64> + 'a {
    picture.series.iter().flat_map(|(_, values)| values).copied().filter(|v| v.is_finite())
}

/// A scale from `low` to `high`, both finite, and its round ticks.
struct Scale {
    low: f64,
    high: f64,
    ticks: Vec<f64>,
}

impl Scale {
    /// Holds zero and all the values, and ends at a tick or a little above the largest value.
    fn over(values: impl Iterator<Item = f64>) -> Self {
        let (low, high) = values.fold((0.0, 0.0), |(low, high), v| (v.min(low), v.max(high)));
        let (low, high) = if low == high { (0.0, 1.0) } else { (low, high) };
        let step = round_step((high - low) / 4.0);
        let (first, last) = ((low / step).floor() as i64, (high / step).ceil() as i64);
        let ticks: Vec<f64> = (first..=last).map(|n| n as f64 * step).collect();
        Self { low: first as f64 * step, high: last as f64 * step, ticks }
    }

    /// Where a value lies, 0 to 1.
    fn at(&self, value: f64) -> f64 {
        ((value - self.low) / (self.high - self.low)).clamp(0.0, 1.0)
    }
}

/// Units that a text of the 14-unit font takes, rather more than less.
fn width_of(text: &str) -> f64 {
    let wide = |c: char| c.is_ascii_uppercase() || matches!(c, '_' | '%' | 'm' | 'w');
    text.chars().map(|c| if wide(c) { 10.6 } else { 8.2 }).sum()
}

/// 1, 2 or 5 times a power of ten, at least `least`.
fn round_step(least: f64) -> f64 {
    let power = 10f64.powf(least.max(f64::MIN_POSITIVE).log10().floor());
    let found = [1.0, 2.0, 5.0].into_iter().find(|n| n * power >= least * 0.999);
    found.unwrap_or(10.0) * power
}

fn text(out: &mut String, x: f64, y: f64, class: &str, content: &str) {
    let content = escape(content);
    let _ = writeln!(out, "<text x=\"{x:.1}\" y=\"{y:.1}\" class=\"{class}\">{content}</text>");
}

fn rule(out: &mut String, class: &str, from: (f64, f64), to: (f64, f64)) {
    let _ = writeln!(
        out,
        "<line class=\"{class}\" x1=\"{:.1}\" y1=\"{:.1}\" x2=\"{:.1}\" y2=\"{:.1}\"/>",
        from.0, from.1, to.0, to.1
    );
}

fn open(picture: &Picture<'_>, height: f64) -> String {
    let label = escape(&format!("{} ({})", picture.title, picture.unit));
    format!(
        "<svg viewBox=\"0 0 {WIDTH} {height:.0}\" role=\"img\" aria-label=\"{label}\">\n\
         <title>{label}</title>\n"
    )
}

/// Ours stand out; among the others the colour says nothing.
fn bar_class(label: &str) -> &'static str {
    if label.starts_with("ours") { "bar ours" } else { "bar" }
}

/// Each bar below its own label, the value at the right edge, the axis below all.
fn bars(picture: &Picture<'_>) -> String {
    const ROW: f64 = 42.0;
    const SIDE: f64 = 8.0;
    let scale = Scale::over(finite(picture));
    let at = |v: f64| SIDE + scale.at(v) * (WIDTH - 2.0 * SIDE);
    let bottom = picture.series.len() as f64 * ROW + 4.0;
    let mut out = open(picture, bottom + 46.0);
    for tick in &scale.ticks {
        rule(&mut out, "grid", (at(*tick), 4.0), (at(*tick), bottom));
    }
    for (n, (label, values)) in picture.series.iter().enumerate() {
        let top = n as f64 * ROW;
        text(&mut out, SIDE + 5.0, top + 18.0, "label", label);
        let value = values.first().copied().unwrap_or(f64::NAN);
        text(&mut out, WIDTH - SIDE - 5.0, top + 18.0, "value end", &short(value));
        if value.is_finite() {
            let (from, to) = (at(value.min(0.0)), at(value.max(0.0)));
            let (width, class) = ((to - from).max(1.0), bar_class(label));
            let _ = writeln!(
                out,
                "<rect class=\"{class}\" x=\"{from:.1}\" y=\"{:.1}\" width=\"{width:.1}\" \
                 height=\"13\" rx=\"2\"/>",
                top + 25.0
            );
        }
    }
    rule(&mut out, "axis", (at(0.0), 4.0), (at(0.0), bottom));
    rule(&mut out, "axis", (SIDE, bottom), (WIDTH - SIDE, bottom));
    for tick in &scale.ticks {
        let class = match scale.at(*tick) {
            v if v < 0.02 => "tick",
            v if v > 0.98 => "tick end",
            _ => "tick middle",
        };
        text(&mut out, at(*tick), bottom + 17.0, class, &short(*tick));
    }
    text(&mut out, WIDTH / 2.0, bottom + 38.0, "unit middle", picture.unit);
    out.push_str("</svg>\n");
    out
}

/// Where lines are drawn: left, right, top, bottom of the field.
const FIELD: (f64, f64, f64, f64) = (58.0, WIDTH - 10.0, 30.0, 250.0);

fn lines(picture: &Picture<'_>, points: usize) -> String {
    let (left, right, top, bottom) = FIELD;
    let scale = Scale::over(finite(picture));
    let (rows, legend) = legend(picture, bottom + 66.0);
    let mut out = open(picture, bottom + 60.0 + rows as f64 * 22.0);
    let x = |n: usize| left + n as f64 / (points - 1) as f64 * (right - left);
    let y = |v: f64| bottom - scale.at(v) * (bottom - top);
    text(&mut out, 4.0, 16.0, "unit", picture.unit);
    for tick in &scale.ticks {
        rule(&mut out, "grid", (left, y(*tick)), (right, y(*tick)));
        text(&mut out, left - 6.0, y(*tick) + 5.0, "tick end", &short(*tick));
    }
    rule(&mut out, "axis", (left, y(0.0)), (right, y(0.0)));
    rule(&mut out, "axis", (left, top), (left, bottom));
    // Points are counted from 1: the first second is second 1.
    let step = round_step(((points - 1) as f64 / 6.0).max(1.0)) as usize;
    let counted = (step..=points).step_by(step).filter(|n| *n > 1);
    for n in std::iter::once(1).chain(counted) {
        let class = if n == points { "tick end" } else { "tick middle" };
        text(&mut out, x(n - 1), bottom + 18.0, class, &n.to_string());
    }
    text(&mut out, (left + right) / 2.0, bottom + 40.0, "unit middle", picture.x);
    for (word, at) in picture.marks.iter().filter(|(_, at)| at.is_finite()) {
        let share = ((at - 1.0) / (points - 1) as f64).clamp(0.0, 1.0);
        let at = left + share * (right - left);
        rule(&mut out, "axis", (at, top - 6.0), (at, bottom));
        let class = if share > 0.5 { "tick end" } else { "tick" };
        text(&mut out, at, top - 10.0, class, word);
    }
    for (n, (label, values)) in picture.series.iter().enumerate() {
        let class = if label.starts_with("ours") { "line ours" } else { "line" };
        line(&mut out, (class, n % COLOURS), values, &x, &y);
    }
    out.push_str(&legend);
    out.push_str("</svg>\n");
    out
}

/// One line with gaps where there is no number; a number alone is a dot.
fn line(
    out: &mut String,
    (class, colour): (&str, usize),
    values: &[f64],
    x: &dyn Fn(usize) -> f64,
    y: &dyn Fn(f64) -> f64,
) {
    let mut path = String::new();
    let there = |n: usize| values.get(n).is_some_and(|v| v.is_finite());
    for (n, value) in values.iter().enumerate().filter(|(_, v)| v.is_finite()) {
        let first = n == 0 || !there(n - 1);
        if first && !there(n + 1) {
            let (x, y) = (x(n), y(*value));
            let _ =
                writeln!(out, "<circle class=\"f{colour}\" cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"3\"/>");
        }
        let _ = write!(path, "{}{:.1},{:.1}", if first { "M" } else { "L" }, x(n), y(*value));
    }
    if !path.is_empty() {
        let _ = writeln!(out, "<path class=\"{class} s{colour}\" d=\"{path}\"/>");
    }
}

/// Rows of a legend that starts at `top`, and its text.
fn legend(picture: &Picture<'_>, top: f64) -> (usize, String) {
    let (mut out, mut x, mut row) = (String::new(), FIELD.0, 0);
    for (n, (label, _)) in picture.series.iter().enumerate() {
        let width = 22.0 + width_of(label) + 14.0;
        if x > FIELD.0 && x + width > WIDTH {
            (x, row) = (FIELD.0, row + 1);
        }
        let y = top + row as f64 * 22.0;
        let _ = writeln!(
            out,
            "<rect class=\"f{}\" x=\"{x:.1}\" y=\"{:.1}\" width=\"16\" height=\"6\"/>",
            n % COLOURS,
            y - 8.0
        );
        text(&mut out, x + 22.0, y, "label", label);
        x += width;
    }
    (row + 1, out)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn picture(series: &[(String, Vec<f64>)]) -> String {
        draw(&Picture { title: "a < b", unit: "\"1\"/s", x: "seconds", series, marks: &[] })
    }

    fn series(list: &[(&str, &[f64])]) -> Vec<(String, Vec<f64>)> {
        list.iter().map(|(label, values)| (label.to_string(), values.to_vec())).collect()
    }

    /// V1, V4: texts are escaped, and the colour of a bar is a class.
    #[test]
    fn one_value_each_makes_bars() {
        let svg = picture(&series(&[("ours<1>", &[10.0]), ("kernel", &[5.0]), ("x", &[f64::NAN])]));
        assert!(svg.contains("a &lt; b") && svg.contains("ours&lt;1&gt;"), "{svg}");
        assert!(!svg.contains("a < b") && !svg.contains("NaN") && !svg.contains("inf"), "{svg}");
        assert_eq!(svg.matches("<rect").count(), 2, "{svg}");
        assert!(svg.contains("no value") && svg.contains("class=\"bar ours\""), "{svg}");
        assert!(!svg.contains("fill=\"#") && !svg.contains("style="), "V4: {svg}");
        // The longer bar spans the whole scale (0 to 10), the other half of it.
        assert!(svg.contains("width=\"504.0\"") && svg.contains("width=\"252.0\""), "{svg}");
    }

    #[test]
    fn more_values_make_lines_with_gaps() {
        let values = [1.0, 2.0, f64::NAN, 4.0, f64::INFINITY, 5.0, 6.0];
        let svg = picture(&series(&[("ours", &values), ("short", &[3.0]), ("none", &[])]));
        assert!(!svg.contains("NaN") && !svg.contains("inf"), "{svg}");
        let path = svg.lines().find(|l| l.starts_with("<path")).unwrap();
        assert_eq!(path.matches('M').count(), 3, "{path}");
        assert_eq!(svg.matches("<circle").count(), 2, "a number between gaps, and one alone");
        assert_eq!(svg.matches("<rect").count(), 3, "the legend names all series");
        assert!(svg.contains("&quot;1&quot;/s") && svg.contains(">seconds<"), "{svg}");
    }

    /// V1, V2: a mark is a line with its word; one that is no number is passed over.
    #[test]
    fn moments_of_lines_are_marked() {
        let series = series(&[("a", &[1.0, 2.0, 3.0])]);
        let marks = [("backup < 1".to_string(), 1.5), ("never".to_string(), f64::NAN)];
        let picture = Picture { title: "t", unit: "1/s", x: "s", series: &series, marks: &marks };
        let svg = draw(&picture);
        // A quarter of the field, from 58 to 510.
        assert!(svg.contains("x1=\"171.0\"") && svg.contains("backup &lt; 1"), "{svg}");
        assert!(!svg.contains("never"), "{svg}");
    }

    /// V2.
    #[test]
    fn nothing_and_odd_values_are_drawn_without_panic() {
        assert_eq!(picture(&[]), "");
        assert_eq!(picture(&series(&[("a", &[])])), "");
        let odd: [&[f64]; 6] =
            [&[0.0], &[-5.0], &[f64::NAN], &[1e300], &[1e-300], &[f64::NAN, f64::NAN]];
        for values in odd {
            let svg = picture(&series(&[("a", values)]));
            assert!(!svg.contains("NaN") && !svg.contains("inf"), "{values:?}: {svg}");
        }
    }

    /// V3.
    #[test]
    fn scales_are_round_and_hold_zero() {
        let scale = Scale::over([37.0, 911.0].into_iter());
        assert_eq!((scale.low, scale.high), (0.0, 1000.0));
        assert_eq!(scale.ticks, [0.0, 500.0, 1000.0]);
        let scale = Scale::over([-3.0, 4.0].into_iter());
        assert_eq!(scale.ticks, [-4.0, -2.0, 0.0, 2.0, 4.0]);
    }

    #[test]
    fn short_numbers_stay_short() {
        let texts = [0.0, 0.25, 1.0, 12.34, 999.9, 9999.0, 65441.0, 1_527_000.0].map(short);
        assert_eq!(texts, ["0", "0.25", "1", "12.3", "1000", "9999", "65.4k", "1.53M"]);
    }
}
