//! The format of `xtask/lineage.txt`: a word, then its value, one of them on each line. Indentation
//! and lines that are empty or start with `#` say nothing.
//!
//! ```text
//! behaviour BENCH TITLE      what follows belongs to it
//! promise TEXT               a sentence of the patch, in our words; then about it:
//!   option TEXT              what turns it on
//!   test NAME                a line of the checklist (d1) or a test function
//!   figure BENCH RATIO       what shows it
//!   without TEXT             why no ratio shows it
//!   not-carried TEXT         what is not carried over, and why
//! id ID TEXT                 a line of the checklist
//! later TEXT                 the promise or line above is to come, and with what
//! spirit TEXT                the line above has no meaning here to the letter: what is kept of it
//! not-carried TEXT           the line above is not held, and why
//! ```

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
#[derive(Debug)]
pub struct Figure {
    /// Name of the bench.
    pub bench: String,
    /// Name of the ratio.
    pub ratio: String,
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
pub fn parse(text: &str) -> Result<Vec<Behaviour>, String> {
    let (mut found, mut last): (Vec<Behaviour>, Last) = (Vec::new(), Last::None);
    for (number, line) in text.lines().enumerate() {
        let line = line.trim();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        take(line, &mut found, &mut last).map_err(|e| format!("line {}: {e}", number + 1))?;
    }
    for behaviour in &found {
        behaviour.complete()?;
    }
    Ok(found)
}

fn take(line: &str, found: &mut Vec<Behaviour>, last: &mut Last) -> Result<(), String> {
    let (word, value) = line.split_once(' ').ok_or_else(|| format!("`{line}` has no value"))?;
    let value = value.trim();
    if value.contains('|') {
        return Err("`|` would end a cell of the table".into());
    }
    let pair = || value.split_once(' ').ok_or_else(|| format!("`{word}` needs two values"));
    let texts = || pair().map(|(a, b)| (a.to_string(), b.trim().to_string()));
    if word == "behaviour" {
        let (bench, title) = texts()?;
        found.push(Behaviour { bench, title, ..Behaviour::default() });
        *last = Last::None;
        return Ok(());
    }
    let behaviour = found.last_mut().ok_or("before the first behaviour")?;
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
    let promise = behaviour.promises.last_mut().expect("a promise was the last");
    match word {
        "option" => promise.options.push(value.into()),
        "test" => promise.tests.push(value.into()),
        "without" => promise.without.push(value.into()),
        "not-carried" => promise.not_carried.push(value.into()),
        "later" => promise.later = Some(value.into()),
        "figure" => {
            let (bench, ratio) = texts()?;
            promise.figures.push(Figure { bench, ratio });
        }
        other => return Err(format!("`{other}` means nothing here")),
    }
    Ok(())
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
        let text = "# c\nbehaviour dirty Sub-page dirty\n\npromise  it holds\n  option --x y\n  test d1\n\
                    \x20 figure dirty ratio_a\n  without because\n  not-carried x\nid D1 text of it\n\
                    id A1 b\nlater c d\nid D5 e\nspirit f\nid D6 g\nnot-carried h i\n";
        let found = parse(text).unwrap();
        let behaviour = &found[0];
        assert_eq!(
            (behaviour.bench.as_str(), behaviour.title.as_str()),
            ("dirty", "Sub-page dirty")
        );
        let promise = &behaviour.promises[0];
        assert_eq!((promise.text.as_str(), promise.options[0].as_str()), ("it holds", "--x y"));
        assert_eq!(promise.figures[0].ratio, "ratio_a");
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
            ("behaviour a b\nalone", "line 2: `alone` has no value"),
            ("behaviour a b\nid D1 x\nspirit y\nlater z", "line 4: `D1` stands twice"),
            ("behaviour a b\npromise x\noption y\ntest d1", "a: `x` lacks"),
        ] {
            let error = parse(bad).unwrap_err();
            assert!(error.starts_with(at), "{bad}: {error}");
        }
    }
}
