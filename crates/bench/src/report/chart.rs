//! Charts as SVG text: bars if every series has one value, lines otherwise. The library plotters
//! draws them; the page loads nothing from elsewhere.
//!
//! Invariants: V1 text from results (titles, labels, units) is escaped. V2 no NaN or infinity
//! reaches a coordinate: such a bar has the label "no value", such a point leaves a gap. V3 the
//! value axis includes zero. V4 all colours are constants of this file, which the page replaces in
//! its dark theme.

use plotters::coord::types::RangedCoordf64;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};
use std::fmt::Write;

/// Width of a chart in its own units; a phone shows it at about two thirds.
const WIDTH: u32 = 520;
/// Height of a chart of lines.
const HEIGHT: u32 = 320;
/// Height of a line of text above or below a chart.
const LINE: u32 = 22;
/// Height of a bar with its label, and of the axis below all bars.
const BAR_ROW: u32 = 42;
const BAR_AXIS: u32 = 56;
/// Font size, 1.24 times the size in the SVG.
const TEXT: f64 = 17.0;
/// Colours of series, which `page.css` also contains (V4).
const SERIES: [RGBColor; 8] = [
    RGBColor(0x16, 0x68, 0xb8),
    RGBColor(0xd9, 0x70, 0x1a),
    RGBColor(0x2b, 0x8a, 0x57),
    RGBColor(0xa0, 0x3f, 0xae),
    RGBColor(0x7a, 0x6a, 0x1f),
    RGBColor(0x56, 0x63, 0x6e),
    RGBColor(0xb8, 0x26, 0x4f),
    RGBColor(0x1f, 0x9a, 0xa5),
];
/// Colours of bars: Forebay, others.
const OURS: RGBColor = SERIES[0];
const OTHER: RGBColor = RGBColor(0x9a, 0xa7, 0xb2);
/// Colours of the grid, the axes, and text.
const GRID: RGBColor = RGBColor(0xd9, 0xde, 0xe2);
const AXIS: RGBColor = RGBColor(0x5b, 0x66, 0x70);
const INK: RGBColor = RGBColor(0x1c, 0x21, 0x26);

type Area<'a> = DrawingArea<SVGBackend<'a>, plotters::coord::Shift>;
type Field<'a> = ChartContext<'a, SVGBackend<'a>, Cartesian2d<RangedCoordf64, RangedCoordf64>>;
type Drawn = Result<(), DrawingAreaErrorKind<std::io::Error>>;

/// Content of a chart.
#[derive(Clone, Copy, Debug)]
pub struct Chart<'a> {
    /// The title of the chart.
    pub title: &'a str,
    /// Unit of the values.
    pub unit: &'a str,
    /// Unit of the x axis of lines.
    pub x: &'a str,
    /// Label and values of each series.
    pub series: &'a [(String, Vec<f64>)],
    /// Marks on the x axis of lines: label and position.
    pub marks: &'a [(String, f64)],
}

/// Escapes text for HTML and SVG, inside and outside of quotes.
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

/// Formats a value for an axis or a bar: at most four digits, `k` from 10,000, then `M` and `G`.
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

/// Draws a chart as one `svg` element, followed by a legend if it has lines; empty without values.
pub fn draw(chart: &Chart<'_>) -> String {
    let points = chart.series.iter().map(|(_, values)| values.len()).max().unwrap_or(0);
    let height = match points {
        0 => return String::new(),
        1 => chart.series.len() as u32 * BAR_ROW + BAR_AXIS,
        _ => HEIGHT,
    };
    let mut svg = String::new();
    let area = SVGBackend::with_string(&mut svg, (WIDTH, height)).into_drawing_area();
    let drawn = if points == 1 { bars(chart, &area) } else { lines(chart, points, &area) };
    // Writing to a string cannot fail.
    drawn.and_then(|()| area.present()).expect("drawing to memory succeeds");
    drop(area);
    let legend = if points == 1 { String::new() } else { legend(chart) };
    format!("{}{legend}", titled(chart, height, &svg))
}

/// Draws a chart of lines as a complete file: white background, title above, and one legend line
/// per series below. Empty without values.
pub fn file(chart: &Chart<'_>) -> String {
    let inner = draw(chart);
    let Some(inner) = inner.split_once("</svg>").map(|(svg, _)| svg) else { return inner };
    let legend_at = HEIGHT + 2 * LINE;
    let height = legend_at + LINE * chart.series.len() as u32;
    let mut out = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{WIDTH}\" height=\"{height}\" \
         viewBox=\"0 0 {WIDTH} {height}\" font-family=\"sans-serif\" font-size=\"14\">\n\
         <rect width=\"{WIDTH}\" height=\"{height}\" fill=\"white\"/>\n\
         <text x=\"10\" y=\"{LINE}\">{}</text>\n\
         <svg y=\"{LINE}\" height=\"{HEIGHT}\" {}</svg>\n",
        escape(chart.title),
        inner.trim_start_matches("<svg "),
    );
    for (n, (label, _)) in chart.series.iter().enumerate() {
        let (y, RGBColor(r, g, b)) = (legend_at + LINE * n as u32, SERIES[n % SERIES.len()]);
        let _ = writeln!(
            out,
            "<rect x=\"10\" y=\"{}\" width=\"24\" height=\"4\" fill=\"#{r:02X}{g:02X}{b:02X}\"/>\
             <text x=\"42\" y=\"{y}\">{}</text>",
            y - 7,
            escape(label)
        );
    }
    out.push_str("</svg>\n");
    out
}

/// Adds a label for screen readers to the `svg` element, and makes it as wide as its container.
fn titled(chart: &Chart<'_>, height: u32, svg: &str) -> String {
    let label = escape(&format!("{} ({})", chart.title, chart.unit));
    let content = svg.split_once("<svg").and_then(|(_, rest)| rest.split_once('>'));
    let content = content.map_or("", |(_, content)| content);
    format!(
        "<svg viewBox=\"0 0 {WIDTH} {height}\" role=\"img\" aria-label=\"{label}\">\n\
         <title>{label}</title>{content}"
    )
}

/// Whether a value can be drawn (V2).
fn is_drawn(value: f64) -> bool {
    value.abs() <= 1e300
}

/// The range of the value axis (V3).
fn range(chart: &Chart<'_>) -> std::ops::Range<f64> {
    let values = chart.series.iter().flat_map(|(_, values)| values).copied();
    let values = values.filter(|value| is_drawn(*value));
    let (low, high) = values.fold((0.0_f64, 0.0_f64), |(low, high), v| (low.min(v), high.max(v)));
    if low == high { 0.0..1.0 } else { low * 1.04..high * 1.04 }
}

fn text(at: HPos) -> TextStyle<'static> {
    ("sans-serif", TEXT).into_font().color(&INK).pos(Pos::new(at, VPos::Center))
}

fn is_ours(label: &str) -> bool {
    label.starts_with("ours")
}

/// Draws horizontal bars, each below its label, with its value at the right edge.
fn bars(chart: &Chart<'_>, area: &Area<'_>) -> Drawn {
    let (range, rows) = (range(chart), chart.series.len() as f64);
    let (low, high) = (range.start, range.end);
    let mut field: Field<'_> = ChartBuilder::on(area)
        .margin_left(10)
        .margin_right(14)
        .x_label_area_size(BAR_AXIS - 4)
        .build_cartesian_2d(range, 0.0..rows)?;
    field
        .configure_mesh()
        .disable_y_mesh()
        .disable_y_axis()
        .max_light_lines(0)
        .x_labels(6)
        .x_label_formatter(&|value| short(*value))
        .x_desc(chart.unit)
        .label_style(("sans-serif", TEXT))
        .bold_line_style(GRID)
        .axis_style(AXIS)
        .draw()?;
    for (n, (label, values)) in chart.series.iter().enumerate() {
        let top = rows - n as f64;
        let value = values.first().copied().filter(|value| is_drawn(*value));
        let word = short(value.unwrap_or(f64::NAN));
        field.draw_series([
            Text::new(label.clone(), (low, top - 0.35), text(HPos::Left)),
            Text::new(word, (high, top - 0.35), text(HPos::Right)),
        ])?;
        if let Some(value) = value {
            let colour = if is_ours(label) { OURS } else { OTHER };
            let corners = [(value.min(0.0), top - 0.9), (value.max(0.0), top - 0.6)];
            field.draw_series([Rectangle::new(corners, colour.filled())])?;
        }
    }
    Ok(())
}

/// Draws one line for each series. Points count from 1: the first second is second 1.
fn lines(chart: &Chart<'_>, points: usize, area: &Area<'_>) -> Drawn {
    let range = range(chart);
    let high = range.end;
    let mut field: Field<'_> = ChartBuilder::on(area)
        .margin(10)
        .margin_top(24)
        .x_label_area_size(44)
        .y_label_area_size(64)
        .build_cartesian_2d(1.0..points as f64, range)?;
    let whole = |value: &f64| if value.fract() == 0.0 { short(*value) } else { String::new() };
    field
        .configure_mesh()
        .disable_x_mesh()
        .max_light_lines(0)
        .x_labels(8)
        .y_labels(6)
        .x_label_formatter(&whole)
        .y_label_formatter(&|value| short(*value))
        .x_desc(chart.x)
        .y_desc(chart.unit)
        .label_style(("sans-serif", TEXT))
        .bold_line_style(GRID)
        .axis_style(AXIS)
        .draw()?;
    for (word, at) in chart.marks.iter().filter(|(_, at)| at.is_finite()) {
        let at = at.clamp(1.0, points as f64);
        let side = if at > points as f64 / 2.0 { HPos::Right } else { HPos::Left };
        field.draw_series([PathElement::new([(at, 0.0), (at, high)], AXIS)])?;
        field.draw_series([Text::new(word.clone(), (at, high * 0.97), text(side))])?;
    }
    for (n, (label, values)) in chart.series.iter().enumerate() {
        let colour = SERIES[n % SERIES.len()];
        let style = colour.stroke_width(if is_ours(label) { 3 } else { 2 });
        let numbered: Vec<(f64, f64)> = (1..).map(f64::from).zip(values.iter().copied()).collect();
        for run in numbered.split(|(_, value)| !is_drawn(*value)).filter(|run| !run.is_empty()) {
            match run {
                [alone] => field.draw_series([Circle::new(*alone, 3, colour.filled())])?,
                run => field.draw_series(LineSeries::new(run.iter().copied(), style))?,
            };
        }
    }
    Ok(())
}

/// The labels of the series with their colours.
fn legend(chart: &Chart<'_>) -> String {
    let mut out = String::from("<p class=\"legend\">");
    for (n, (label, _)) in chart.series.iter().enumerate() {
        let (colour, label) = (n % SERIES.len(), escape(label));
        let _ = write!(out, "<span><i class=\"f{colour}\"></i>{label}</span> ");
    }
    out.push_str("</p>\n");
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chart(series: &[(String, Vec<f64>)]) -> String {
        draw(&Chart { title: "a < b", unit: "\"1\"/s", x: "seconds", series, marks: &[] })
    }

    fn series(list: &[(&str, &[f64])]) -> Vec<(String, Vec<f64>)> {
        list.iter().map(|(label, values)| (label.to_string(), values.to_vec())).collect()
    }

    /// Widths of the rectangles of one colour.
    fn widths(svg: &str, colour: &str) -> Vec<f64> {
        let bars = svg.lines().filter(|line| line.starts_with("<rect") && line.contains(colour));
        let width = |line: &str| line.split(" width=\"").nth(1)?.split('"').next()?.parse().ok();
        bars.filter_map(width).collect()
    }

    /// Texts are escaped (V1), non-finite values have no bar (V2), colours are those of the page
    /// (V4).
    #[test]
    fn chart_of_one_value_each_has_bars() {
        let svg = chart(&series(&[("ours<1>", &[10.0]), ("kernel", &[5.0]), ("x", &[f64::NAN])]));
        assert!(svg.contains("a &lt; b") && svg.contains("ours&lt;1&gt;"), "{svg}");
        assert!(!svg.contains("a < b") && !svg.contains("NaN") && !svg.contains("inf"), "{svg}");
        assert!(svg.contains("no value") && !svg.contains("xmlns"), "{svg}");
        let (ours, other) = (widths(&svg, "#1668B8"), widths(&svg, "#9AA7B2"));
        assert_eq!((ours.len(), other.len()), (1, 1), "{svg}");
        assert!((ours[0] / other[0] - 2.0).abs() < 0.02, "twice as long: {svg}");
        assert_eq!(svg.matches("<svg").count(), 1);
        assert_eq!(svg.matches("</svg>").count(), 1);
    }

    #[test]
    fn chart_draws_lines_with_gaps_and_legend() {
        let values = [1.0, 2.0, f64::NAN, 4.0, f64::INFINITY, 5.0, 6.0];
        let svg = chart(&series(&[("ours", &values), ("short", &[3.0]), ("none", &[])]));
        assert!(!svg.contains("NaN") && !svg.contains("inf"), "{svg}");
        let ours = svg.lines().filter(|l| l.starts_with("<polyline") && l.contains("#1668B8"));
        assert_eq!(ours.count(), 2, "{svg}");
        assert_eq!(svg.matches("<circle").count(), 2, "a value between gaps, and one alone");
        assert_eq!(svg.matches("<i class=\"f").count(), 3, "the legend names all series");
        assert!(svg.contains("&quot;1&quot;/s") && svg.contains("seconds"), "{svg}");
    }

    #[test]
    fn chart_file_has_title_and_legend() {
        let series = series(&[("ours<1>", &[1.0, 2.0]), ("kernel", &[2.0, 1.0])]);
        let chart = Chart { title: "a < b", unit: "1/s", x: "s", series: &series, marks: &[] };
        let svg = file(&chart);
        assert!(svg.starts_with("<svg xmlns=\"http://www.w3.org/2000/svg\""), "{svg}");
        assert_eq!(svg.matches("<svg").count(), svg.matches("</svg>").count());
        for text in [">a &lt; b<", ">ours&lt;1&gt;<", ">kernel<", "fill=\"#D9701A\""] {
            assert!(svg.contains(text), "{text}: {svg}");
        }
        assert_eq!(file(&Chart { series: &[], ..chart }), "");
    }

    /// V1, V2: a mark is a line with its label; a mark at NaN is omitted.
    #[test]
    fn chart_marks_moments_of_lines() {
        let series = series(&[("a", &[1.0, 2.0, 3.0])]);
        let marks = [("backup < 1".to_string(), 1.5), ("never".to_string(), f64::NAN)];
        let chart = Chart { title: "t", unit: "1/s", x: "s", series: &series, marks: &marks };
        let svg = draw(&chart);
        assert!(svg.contains("backup &lt; 1") && !svg.contains("never"), "{svg}");
    }

    /// Values that cannot be drawn reach no coordinate (V2).
    #[test]
    fn chart_draws_empty_and_extreme_values_without_panic() {
        assert_eq!(chart(&[]), "");
        assert_eq!(chart(&series(&[("a", &[])])), "");
        let odd: [&[f64]; 9] = [
            &[0.0],
            &[-5.0],
            &[f64::NAN],
            &[1e300],
            &[1e-300],
            &[f64::MAX, f64::MIN],
            &[1e300, -1e300],
            &[1e-300, 0.0],
            &[f64::NAN, f64::NAN],
        ];
        for values in odd {
            let svg = chart(&series(&[("a", values)]));
            assert!(!svg.contains("NaN") && !svg.contains("inf"), "{values:?}: {svg}");
        }
    }

    /// The value axis includes zero (V3).
    #[test]
    fn chart_axis_holds_zero() {
        for (values, low, high) in [([37.0, 911.0], 0.0, 911.0), ([-3.0, -4.0], -4.0, 0.0)] {
            let series = series(&[("a", &values)]);
            let range = range(&Chart { title: "", unit: "", x: "", series: &series, marks: &[] });
            assert!(range.start <= low && range.end >= high && range.contains(&(low + 0.5)));
        }
    }

    #[test]
    fn short_numbers_stay_short() {
        let texts = [0.0, 0.25, 1.0, 12.34, 999.9, 9999.0, 65441.0, 1_527_000.0].map(short);
        assert_eq!(texts, ["0", "0.25", "1", "12.3", "1000", "9999", "65.4k", "1.53M"]);
    }
}
