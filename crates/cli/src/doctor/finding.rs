//! What a check of the machine found.

/// How good something is on this machine.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Level {
    /// It needs no change.
    Ok,
    /// Works, could be better.
    Note,
    /// Does not work.
    Problem,
}

/// The result of one check.
pub struct Finding {
    /// How good it is.
    pub level: Level,
    /// What was checked.
    pub what: &'static str,
    /// What is there.
    pub text: String,
    /// What to change; none for [`Level::Ok`].
    pub advice: Option<&'static str>,
}

impl Finding {
    /// A check that found nothing to change.
    pub fn ok(what: &'static str, text: impl Into<String>) -> Self {
        Self { level: Level::Ok, what, text: text.into(), advice: None }
    }

    /// A check that found what could be better.
    pub fn note(what: &'static str, text: impl Into<String>, advice: &'static str) -> Self {
        Self { level: Level::Note, what, text: text.into(), advice: Some(advice) }
    }

    /// A check that found what does not work.
    pub fn problem(what: &'static str, text: impl Into<String>, advice: &'static str) -> Self {
        Self { level: Level::Problem, what, text: text.into(), advice: Some(advice) }
    }
}
