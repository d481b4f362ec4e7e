//! Values of the lineage's figures, out of the tables of `docs/figures.md`, which
//! `forebay bench report --readme` prints from saved results. So a value stands in one place.
//!
//! Invariants: V1 every figure has a value with the commit and the command of its run, or a reason
//! why it has none, and never both. V2 a value that missed its goal is called "not held". V3 the
//! commit, the machine and the commands of a run are in the section that has its values.

use crate::Findings;
use crate::lineage_text::{Figure, Run};
use crate::report::figures::{ENGINE, Fact, VOLUMES};
use crate::report::words;
use std::collections::BTreeSet;
use std::fmt::Write;
use std::path::Path;

const FIGURES: &str = "docs/figures.md";
/// The section with the worst and the best cell over each rival.
const CELLS: &str = "Worst and best cells";
const NOT_RUN: &str = "not run";

/// Tables with values, and the words by which they name ratios.
#[derive(Default)]
pub struct Saved {
    runs: Vec<Run>,
    /// Heading and text, without newlines in code spans.
    sections: Vec<(String, String)>,
    /// Descriptions of ratios that the tables use.
    facts: Vec<Fact>,
}

/// A value of a figure.
struct Value<'a> {
    shown: String,
    goal: String,
    missed: bool,
    run: &'a Run,
}

/// Figures, counted by result. A figure that several promises name counts once.
#[derive(Clone, Default)]
pub struct Count {
    counted: BTreeSet<String>,
    held: usize,
    not_held: usize,
    no_goal: usize,
    no_value: usize,
}

impl Count {
    /// `| 7 | 1 | 2 | 1 |`.
    pub fn cells(&self) -> String {
        let Self { held, not_held, no_goal, no_value, .. } = self;
        format!("{held} | {not_held} | {no_goal} | {no_value}")
    }

    /// The sum of both.
    pub fn and(&self, other: &Self) -> Self {
        Self {
            counted: &self.counted | &other.counted,
            held: self.held + other.held,
            not_held: self.not_held + other.not_held,
            no_goal: self.no_goal + other.no_goal,
            no_value: self.no_value + other.no_value,
        }
    }
}

impl std::fmt::Display for Count {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { held, not_held, no_goal, no_value, .. } = self;
        write!(
            f,
            "{held} held, {not_held} not held, {no_goal} without a goal, {no_value} unmeasured"
        )
    }
}

impl Saved {
    /// Reads the tables; a finding for a run that its section does not describe (V3).
    pub fn collect(root: &Path, runs: &[Run], findings: &mut Findings) -> Self {
        let figures = std::fs::read_to_string(root.join(FIGURES)).unwrap_or_default();
        Self::new(&figures, &[ENGINE, VOLUMES].concat(), runs, findings)
    }

    /// [`collect`](Self::collect), from the text of the tables and the descriptions.
    pub fn new(figures: &str, facts: &[Fact], runs: &[Run], findings: &mut Findings) -> Self {
        let sections = figures.split("\n## ").skip(1).map(|section| {
            let (heading, text) = section.split_once('\n').unwrap_or((section, ""));
            (heading.trim().to_string(), text.to_string())
        });
        let saved =
            Self { runs: runs.to_vec(), sections: sections.collect(), facts: facts.to_vec() };
        for run in runs {
            let text = one_line(saved.section(&run.heading));
            for part in [&run.commit, &run.machine] {
                if !text.contains(part.as_str()) {
                    findings.push(format!("{FIGURES}, {}: no `{part}`", run.heading));
                }
            }
        }
        saved
    }

    fn section(&self, heading: &str) -> &str {
        self.sections.iter().find(|(own, _)| own == heading).map_or("", |(_, text)| text)
    }

    /// What the page says of a figure, counted; a finding if V1 or V3 does not hold.
    pub fn describe(&self, figure: &Figure, count: &mut Count, findings: &mut Findings) -> String {
        let Figure { bench, ratio, .. } = figure;
        let mut again = Count::default();
        let is_new = count.counted.insert(format!("{bench} {ratio}"));
        let count = if is_new { count } else { &mut again };
        match (self.value(figure, findings), &figure.no_value) {
            (Some(value), None) => self.describe_value(figure, &value, count, findings),
            (None, Some((what, why))) => {
                count.no_value += 1;
                format!("`{ratio}` of `{bench}`: *{what}*, {why}.")
            }
            (Some(_), Some((what, _))) => {
                findings.push(format!("`{ratio}` of `{bench}` is in {FIGURES}, yet \"{what}\""));
                String::new()
            }
            (None, None) => {
                findings.push(format!(
                    "`{ratio}` of `{bench}`: no value in {FIGURES} and no `not-measured REASON`"
                ));
                String::new()
            }
        }
    }

    fn describe_value(
        &self,
        figure: &Figure,
        value: &Value<'_>,
        count: &mut Count,
        findings: &mut Findings,
    ) -> String {
        let Figure { bench, ratio, commands, .. } = figure;
        let mut said = format!("`{ratio}` of `{bench}`: {}", value.shown);
        match (value.goal.is_empty(), value.missed) {
            (true, _) => {
                count.no_goal += 1;
                said.push_str(", no goal");
            }
            (false, true) => {
                count.not_held += 1;
                let _ = write!(said, ", goal {}, **not held**", value.goal);
            }
            (false, false) => {
                count.held += 1;
                let _ = write!(said, ", goal {}, held", value.goal);
            }
        }
        let known = self.commands(value.run);
        for (at, arguments) in commands.iter().enumerate() {
            let command = command(bench, arguments);
            if !known.contains(&command) {
                findings.push(format!("{FIGURES}, {}: no command `{command}`", value.run.heading));
            }
            let _ = write!(said, "{} `{command}`", if at == 0 { ";" } else { "," });
        }
        if commands.is_empty() {
            findings.push(format!("`{ratio}` of `{bench}` has no `command`"));
        }
        let _ = write!(said, " at {}.", value.run.commit);
        said
    }

    fn value(&self, figure: &Figure, findings: &mut Findings) -> Option<Value<'_>> {
        let mut value = match &figure.cell {
            Some((rival, cell)) => self.cell_value(figure, rival, cell)?,
            None => self.row_value(figure)?,
        };
        if let Some(goal) = &figure.goal {
            match holds(value.shown.trim_matches('*'), goal) {
                Some(held) => value.missed = !held,
                None => findings.push(format!("`{}`: goal `{goal}` is none", figure.ratio)),
            }
            value.goal.clone_from(goal);
            let plain = value.shown.trim_matches('*').to_string();
            value.shown = if value.missed { format!("**{plain}**") } else { plain };
        }
        Some(value)
    }

    /// From a row `| bench | words | value | goal |` of the first run that has a value.
    fn row_value(&self, figure: &Figure) -> Option<Value<'_>> {
        let same = |fact: &Fact| (fact.0, fact.1) == (figure.bench.as_str(), figure.ratio.as_str());
        let fact = self.facts.iter().position(same);
        let described = figure.row.clone().into_iter();
        let described = described.chain(fact.map(|at| self.facts[at].2.to_string()));
        let labels: Vec<String> = described.chain(own_names(&figure.ratio)).collect();
        for run in &self.runs {
            let rows: Vec<_> =
                cells_of(self.section(&run.heading)).filter(|row| row.len() == 4).collect();
            for label in &labels {
                let mut fit = rows.iter().filter(|row| row[0] == figure.bench && row[1] == label);
                // Two figures of a bench may have the same words; the tables have their order.
                let before = |at: usize| {
                    let equal =
                        |fact: &&Fact| (fact.0, fact.2) == (figure.bench.as_str(), label.as_str());
                    self.facts[..at].iter().filter(equal).count()
                };
                let Some(row) = fit.nth(fact.map_or(0, before)) else { continue };
                if row[2] != NOT_RUN {
                    let missed = row[2].starts_with("**");
                    let (shown, goal) = (row[2].to_string(), row[3].to_string());
                    return Some(Value { shown, goal, missed, run });
                }
            }
        }
        None
    }

    /// Whether a table has a row that names the ratio by its own name.
    pub fn has_row_named(&self, figure: &Figure) -> bool {
        let names = own_names(&figure.ratio);
        let named = |row: &Vec<&str>| {
            let fits = |cell: &&str| names.iter().any(|name| name == cell);
            row[0] == figure.bench && row.get(1).is_some_and(fits)
        };
        self.runs.iter().any(|run| cells_of(self.section(&run.heading)).any(|row| named(&row)))
    }

    /// From a row `| bench | rival | worst | best | .. |`; the run is the one with the commands.
    fn cell_value(&self, figure: &Figure, rival: &str, cell: &str) -> Option<Value<'_>> {
        let wanted = |row: &Vec<&str>| row.len() == 5 && row[0] == figure.bench && row[1] == rival;
        let rows = cells_of(self.section(CELLS)).find(wanted)?;
        let found = rows[2..4].iter().find_map(|text| {
            let (value, name) = text.split_once("x (")?;
            (name.strip_suffix(')')? == cell).then(|| value.to_string())
        })?;
        let ran = |run: &&Run| {
            let known = self.commands(run);
            figure.commands.iter().all(|words| known.contains(&command(&figure.bench, words)))
        };
        let run = self.runs.iter().find(ran)?;
        Some(Value { shown: found, goal: String::new(), missed: false, run })
    }

    /// The commands of a section, one for each part: `dirty --rounds 1`.
    fn commands(&self, run: &Run) -> Vec<String> {
        let text = one_line(self.section(&run.heading));
        let spans = text.split('`').skip(1).step_by(2);
        spans.flat_map(|span| expand(span.trim_start_matches("forebay bench "))).collect()
    }
}

/// The names of a ratio in the tables, if it has no description: its id, the words that
/// `bench report --readme` prints, and those of tables that earlier versions printed.
fn own_names(ratio: &str) -> [String; 3] {
    let earlier = ratio.replace("_beside_", "_during_").replace('_', " ");
    [format!("`{ratio}`"), words::of_id(ratio), earlier]
}

/// A bench with its arguments, of which `-` are none.
fn command(bench: &str, arguments: &str) -> String {
    if arguments == "-" { bench.to_string() } else { format!("{bench} {arguments}") }
}

/// `x --part a|b y` as one command for each part.
fn expand(command: &str) -> Vec<String> {
    let Some(parts) = command.split(' ').find(|word| word.contains('|')) else {
        return vec![command.to_string()];
    };
    parts.split('|').map(|part| command.replace(parts, part)).collect()
}

fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// The cells of each row of a table that begins with a bench.
fn cells_of(section: &str) -> impl Iterator<Item = Vec<&str>> {
    section.lines().filter_map(|line| {
        let inner = line.strip_prefix("| `")?.strip_suffix('|')?;
        let mut cells: Vec<&str> = inner.split('|').map(str::trim).collect();
        cells[0] = cells[0].trim_end_matches('`');
        Some(cells)
    })
}

/// Whether a value reaches a goal such as `>= 1.7`.
fn holds(value: &str, goal: &str) -> Option<bool> {
    let value: f64 = value.parse().ok()?;
    let (comparison, bound) = goal.split_once(' ')?;
    let bound: f64 = bound.parse().ok()?;
    match comparison {
        ">=" => Some(value >= bound),
        "<=" => Some(value <= bound),
        "<" => Some(value < bound),
        ">" => Some(value > bound),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lineage_text::parse;

    const TABLES: &str = "# F\n\n## Worst and best cells\n\n\
        | `dirty` | ext4 | 0.60x (a volume) | 1.29x (1 job (own)) | 2 of 3 |\n\n\
        ## Engine\n\nEPYC,\ntwo CPUs, at commit abc1234. Commands: `forebay bench dirty\n--rounds 1`,\n\
        `loop --part a|b --rounds 2`.\n\n| `dirty` | bytes | 1.000 | == 1 |\n\
        | `loop` | memory | not run |  |\n| `loop` | read vs all | **0.838** | >= 0.97 |\n\
        | `loop` | there | 1 |  |\n| `loop` | there | 2 |  |\n\
        | `loop` | random reads, over O_DIRECT, 16 jobs | 0.9 | >= 0.8 |\n\
        ## Old\n\nXeon, def5678: `forebay bench loop --rounds 3`\n\n| `loop` | `mem_share` | 0.017 |  |\n";
    const FACTS: &[Fact] = &[
        ("dirty", "bytes_raw", "bytes"),
        ("loop", "mem_share", "memory"),
        ("loop", "one", "there"),
        ("loop", "two", "there"),
    ];
    const RUNS: &str =
        "run abc1234 Engine\nmachine EPYC, two CPUs\nrun def5678 Old\nmachine Xeon\n";

    fn described(figure: &str) -> (Vec<String>, Findings, Count) {
        let text = format!("{RUNS}behaviour dirty D\npromise p\noption o\ntest d1\n{figure}");
        let lineage = parse(&text).unwrap();
        let (mut findings, mut count) = (Findings::new(), Count::default());
        let saved = Saved::new(TABLES, FACTS, &lineage.runs, &mut findings);
        let figures = lineage.behaviours[0].promises[0].figures.iter();
        let said = figures.map(|f| saved.describe(f, &mut count, &mut findings)).collect();
        (said, findings, count)
    }

    #[test]
    fn v1_v2_values_have_goal_command_and_commit() {
        let (said, findings, count) = described(
            "figure dirty bytes_raw\ncommand --rounds 1\nfigure loop read_vs_all\n\
             command --part a --rounds 2\ncommand --part b --rounds 2\nfigure loop two\n\
             command --part b --rounds 2\nfigure loop mem_share\ncommand --rounds 3\n\
             goal <= 0.01\nfigure dirty x\ncell ext4 -> 1 job (own)\ncommand --rounds 1\n\
             goal >= 1.2\nfigure loop read_again\nrow read vs all\ncommand --part a --rounds 2\n\
             figure loop none\nnot-measured a reason\n",
        );
        assert_eq!(findings, Findings::new());
        assert_eq!(
            said[0],
            "`bytes_raw` of `dirty`: 1.000, goal == 1, held; `dirty --rounds 1` at abc1234."
        );
        assert_eq!(
            said[1],
            "`read_vs_all` of `loop`: **0.838**, goal >= 0.97, **not held**; `loop --part a --rounds 2`, \
             `loop --part b --rounds 2` at abc1234."
        );
        assert_eq!(said[2], "`two` of `loop`: 2, no goal; `loop --part b --rounds 2` at abc1234.");
        assert_eq!(
            said[3],
            "`mem_share` of `loop`: **0.017**, goal <= 0.01, **not held**; `loop --rounds 3` at \
             def5678."
        );
        assert_eq!(
            said[4],
            "`x` of `dirty`: 1.29, goal >= 1.2, held; `dirty --rounds 1` at abc1234."
        );
        assert!(said[5].starts_with("`read_again` of `loop`: **0.838**"), "{}", said[5]);
        assert_eq!(said[6], "`none` of `loop`: *not measured*, a reason.");
        assert_eq!(count.cells(), "2 | 3 | 1 | 1");
        let saved = Saved::new(TABLES, FACTS, &parse(RUNS).unwrap().runs, &mut Findings::new());
        let of =
            |ratio: &str| Figure { bench: "loop".into(), ratio: ratio.into(), ..Figure::default() };
        assert!(
            saved.has_row_named(&of("read_vs_all")) && !saved.has_row_named(&of("read_vs_one"))
        );
    }

    /// The story: `bench report --readme` prints words for a ratio without a description. The
    /// check looked for the id with spaces, so a table printed anew had no value for it.
    #[test]
    fn row_in_words_has_value_of_ratio() {
        let (said, findings, _) =
            described("figure loop randread_vs_direct_j16\ncommand --part a --rounds 2\n");
        assert_eq!(findings, Findings::new());
        let wanted = "`randread_vs_direct_j16` of `loop`: 0.9, goal >= 0.8, held; ";
        assert!(said[0].starts_with(wanted), "{}", said[0]);
    }

    #[test]
    fn v1_v3_missing_value_or_command_is_found() {
        let (_, findings, _) = described(
            "figure loop none\nfigure loop mem_share\ncommand --rounds 9\n\
             figure dirty bytes_raw\nnot-saved x\nfigure loop two\nfigure loop one\n\
             command --part a --rounds 2\ngoal about 2\n",
        );
        let wanted = [
            "`none` of `loop`: no value in docs/figures.md and no `not-measured REASON`",
            "docs/figures.md, Old: no command `loop --rounds 9`",
            "`bytes_raw` of `dirty` is in docs/figures.md, yet \"not saved\"",
            "`two` of `loop` has no `command`",
            "`one`: goal `about 2` is none",
        ];
        assert_eq!(findings, wanted);
        let run = Run { commit: "f00".into(), heading: "Old".into(), machine: "EPYC".into() };
        let mut findings = Findings::new();
        Saved::new(TABLES, FACTS, &[run], &mut findings);
        assert_eq!(findings, ["docs/figures.md, Old: no `f00`", "docs/figures.md, Old: no `EPYC`"]);
    }
}
