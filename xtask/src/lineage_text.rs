//! The format of `xtask/lineage.txt`: a word, then its value, one of them on each line. Indentation
//! and lines that are empty or start with `#` say nothing.
//!
//! ```text
//! run COMMIT HEADING         a section of docs/figures.md and the code that it measured; then:
//!   machine TEXT             the machine, as the section names it
//! behaviour BENCH TITLE      what follows belongs to it
//! promise TEXT               a sentence of the patch, in our words; then about it:
//!   option TEXT              what turns it on
//!   test NAME                a line of the checklist (d1) or a test function
//!   figure BENCH RATIO       what shows it; its value and goal are in docs/figures.md; then:
//!     command ARGUMENTS      what `forebay bench BENCH` was given, or `-`; one for each part
//!     cell RIVAL -> CELL     the value is that cell of the worst and best ones
//!     row TEXT               its row, if that has neither the ratio's words nor its name
//!     goal >= NUMBER         the goal, if the table has none or the patch promises another
//!     not-measured TEXT      why it has no value
//!     not-saved TEXT         why a value that was measured is in no table
//!   without TEXT             why no ratio shows it
//!   not-carried TEXT         what is not carried over, and why
//! id ID TEXT                 a line of the checklist
//! later TEXT                 the promise or line above is to come, and with what
//! spirit TEXT                the line above has no meaning here to the letter: what is kept of it
//! not-carried TEXT           the line above is not held, and why
//! ```

/// All of the file.
#[derive(Debug, Default)]
pub struct Lineage {
    /// Runs of the benches; the first that has a value counts.
    pub runs: Vec<Run>,
    /// The five.
    pub behaviours: Vec<Behaviour>,
}

/// A section of docs/figures.md.
#[derive(Clone, Debug, Default)]
pub struct Run {
    /// The code that was measured.
    pub commit: String,
    /// The section's heading.
    pub heading: String,
    /// Where it was measured.
    pub machine: String,
}

/// One of the five.
#[derive(Debug, Default)]
pub struct Behaviour {
    /// Name of its bench.
    pub bench: String,
    /// What it is.
    pub title: String,
    /// In the order of the patch.
    pub promises: Vec<Promise>,
    /// Its checklist.
    pub lines: Vec<Line>,
}

/// One sentence of a patch.
#[derive(Debug, Default)]
pub struct Promise {
    /// In our words.
    pub text: String,
    /// What turns it on.
    pub options: Vec<String>,
    /// Checklist lines in small letters, or functions.
    pub tests: Vec<String>,
    /// Ratios.
    pub figures: Vec<Figure>,
    /// Why there is no ratio.
    pub without: Vec<String>,
    /// What is not carried over, and why.
    pub not_carried: Vec<String>,
    /// What it waits for.
    pub later: Option<String>,
}

/// A ratio of a bench.
#[derive(Debug, Default)]
pub struct Figure {
    /// Name of the bench.
    pub bench: String,
    /// Name of the ratio.
    pub ratio: String,
    /// Arguments of the bench.
    pub commands: Vec<String>,
    /// Rival and cell, if the value is that of a cell.
    pub cell: Option<(String, String)>,
    /// The row, if it has words of its own.
    pub row: Option<String>,
    /// The goal in place of the table's.
    pub goal: Option<String>,
    /// "not measured" or "not saved", and why.
    pub no_value: Option<(&'static str, String)>,
}

/// A line of a checklist.
#[derive(Debug, Default)]
pub struct Line {
    /// Its id, such as `D1`.
    pub id: String,
    /// In our words.
    pub text: String,
    /// How we stand to it.
    pub standing: Standing,
}

/// How we stand to a line of a checklist.
#[derive(Debug, Default, PartialEq, Eq)]
pub enum Standing {
    /// Held as it is written.
    #[default]
    Held,
    /// It has no meaning here to the letter; this is kept of it, and tested.
    Spirit(String),
    /// Not held, for this reason.
    NotCarried(String),
    /// It waits for this.
    Later(String),
}

/// What the words after it are about.
#[derive(Clone, Copy, PartialEq)]
enum Last {
    None,
    Promise,
    Line,
}

/// Reads the file; an error names the line.
pub fn parse(text: &str) -> Result<Lineage, String> {
    let (mut found, mut last): (Lineage, Last) = (Lineage::default(), Last::None);
    for (number, line) in text.lines().enumerate() {
        let line = line.trim();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        take(line, &mut found, &mut last).map_err(|e| format!("line {}: {e}", number + 1))?;
    }
    for behaviour in &found.behaviours {
        behaviour.complete()?;
    }
    Ok(found)
}

fn take(line: &str, found: &mut Lineage, last: &mut Last) -> Result<(), String> {
    let (word, value) = line.split_once(' ').ok_or_else(|| format!("`{line}` has no value"))?;
    let value = value.trim();
    if value.contains('|') {
        return Err("`|` would end a cell of the table".into());
    }
    let pair = || value.split_once(' ').ok_or_else(|| format!("`{word}` needs two values"));
    let texts = || pair().map(|(a, b)| (a.to_string(), b.trim().to_string()));
    match word {
        "behaviour" => {
            let (bench, title) = texts()?;
            found.behaviours.push(Behaviour { bench, title, ..Behaviour::default() });
            *last = Last::None;
            return Ok(());
        }
        "run" => {
            let (commit, heading) = texts()?;
            found.runs.push(Run { commit, heading, ..Run::default() });
            return Ok(());
        }
        "machine" => {
            let run = found.runs.last_mut().ok_or("`machine` without a run above it")?;
            run.machine = value.into();
            return Ok(());
        }
        _ => {}
    }
    let behaviour = found.behaviours.last_mut().ok_or("before the first behaviour")?;
    match word {
        "promise" => {
            behaviour.promises.push(Promise { text: value.into(), ..Promise::default() });
            *last = Last::Promise;
            return Ok(());
        }
        "id" => {
            let (id, text) = texts()?;
            behaviour.lines.push(Line { id, text, ..Line::default() });
            *last = Last::Line;
            return Ok(());
        }
        "later" | "spirit" | "not-carried" if *last == Last::Line => {
            let line = behaviour.lines.last_mut().expect("a line was the last");
            if line.standing != Standing::Held {
                return Err(format!("`{}` stands twice", line.id));
            }
            line.standing = match word {
                "later" => Standing::Later(value.into()),
                "spirit" => Standing::Spirit(value.into()),
                _ => Standing::NotCarried(value.into()),
            };
            return Ok(());
        }
        _ => {}
    }
    if *last != Last::Promise {
        return Err(format!("`{word}` without a promise above it"));
    }
    behaviour.promises.last_mut().expect("a promise was the last").take(word, value)
}

impl Promise {
    fn take(&mut self, word: &str, value: &str) -> Result<(), String> {
        match word {
            "option" => self.options.push(value.into()),
            "test" => self.tests.push(value.into()),
            "without" => self.without.push(value.into()),
            "not-carried" => self.not_carried.push(value.into()),
            "later" => self.later = Some(value.into()),
            "figure" => {
                let (bench, ratio) = value.split_once(' ').ok_or("`figure` needs two values")?;
                let (bench, ratio) = (bench.to_string(), ratio.trim().to_string());
                self.figures.push(Figure { bench, ratio, ..Figure::default() });
            }
            other => match self.figures.last_mut() {
                Some(figure) => return figure.take(other, value),
                None => return Err(format!("`{other}` means nothing here")),
            },
        }
        Ok(())
    }
}

impl Figure {
    fn take(&mut self, word: &str, value: &str) -> Result<(), String> {
        match word {
            "command" => self.commands.push(value.into()),
            "row" => self.row = Some(value.into()),
            "goal" => self.goal = Some(value.into()),
            "not-measured" => self.no_value = Some(("not measured", value.into())),
            "not-saved" => self.no_value = Some(("not saved", value.into())),
            "cell" => {
                let (rival, cell) =
                    value.split_once(" -> ").ok_or("`cell` needs `RIVAL -> CELL`")?;
                self.cell = Some((rival.into(), cell.into()));
            }
            other => return Err(format!("`{other}` means nothing here")),
        }
        Ok(())
    }
}

impl Behaviour {
    /// Every promise has an option, a test and a figure, or says why not.
    fn complete(&self) -> Result<(), String> {
        for promise in self.promises.iter().filter(|promise| promise.later.is_none()) {
            let excused = !promise.without.is_empty() || !promise.not_carried.is_empty();
            let unshown = promise.figures.is_empty() && !excused;
            let untested = promise.tests.is_empty() && !excused;
            if promise.options.is_empty() || unshown || untested {
                let text = &promise.text;
                return Err(format!("{}: `{text}` lacks option, test or figure", self.bench));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_promises_and_lines() {
        let text = "# c\nrun abc Engine and cache\n  machine EPYC\nbehaviour dirty Sub-page dirty\n\n\
                    promise  it holds\n  option --x y\n  test d1\n  figure dirty ratio_a\n    \
                    command --part a\n    cell a: b -> c d\n    goal >= 2\n  without because\n  \
                    not-carried x\nid D1 text of it\nid A1 b\nlater c d\nid D5 e\n\
                    spirit f\nid D6 g\nnot-carried h i\n";
        let found = parse(text).unwrap();
        let run = &found.runs[0];
        assert_eq!([&run.commit, &run.heading, &run.machine], ["abc", "Engine and cache", "EPYC"]);
        let behaviour = &found.behaviours[0];
        assert_eq!(
            (behaviour.bench.as_str(), behaviour.title.as_str()),
            ("dirty", "Sub-page dirty")
        );
        let promise = &behaviour.promises[0];
        assert_eq!((promise.text.as_str(), promise.options[0].as_str()), ("it holds", "--x y"));
        assert_eq!(promise.figures[0].ratio, "ratio_a");
        let (figure, wanted) = (&promise.figures[0], &["--part a".to_string()][..]);
        assert_eq!(figure.cell, Some(("a: b".into(), "c d".into())));
        assert_eq!((figure.commands.as_slice(), figure.goal.as_deref()), (wanted, Some(">= 2")));
        assert_eq!(promise.not_carried, ["x"]);
        let standing: Vec<_> = behaviour.lines.iter().map(|line| &line.standing).collect();
        let later = Standing::Later("c d".into());
        let (spirit, not) = (Standing::Spirit("f".into()), Standing::NotCarried("h i".into()));
        assert_eq!(standing, [&Standing::Held, &later, &spirit, &not]);
    }

    #[test]
    fn errors_name_the_line() {
        for (bad, at) in [
            ("promise x", "line 1: before"),
            ("behaviour a b\nid D1", "line 2: `id` needs"),
            ("behaviour a b\noption x", "line 2: `option` without"),
            ("behaviour a b\npromise x\nwhat x", "line 3: `what` means"),
            ("behaviour a b\npromise x | y", "line 2: `|`"),
            ("machine x", "line 1: `machine` without"),
            ("behaviour a b\npromise x\nfigure a b\ncell x", "line 4: `cell` needs"),
            ("behaviour a b\nalone", "line 2: `alone` has no value"),
            ("behaviour a b\nid D1 x\nspirit y\nlater z", "line 4: `D1` stands twice"),
            ("behaviour a b\npromise x\noption y\ntest d1", "a: `x` lacks"),
        ] {
            let error = parse(bad).unwrap_err();
            assert!(error.starts_with(at), "{bad}: {error}");
        }
    }
}
