//! A violation, and where it was found.
//!
//! No locks.

use forebay_sim::Fate;
use std::fmt;
use std::str::FromStr;

/// Where a violation was found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Spot {
    /// While the workload ran.
    Running,
    /// After a power loss at this moment, with these fates of the pending writes (letters of
    /// [`Fate`]). With the flag: in the life after that.
    Cut(usize, String, bool),
    /// After a kill of the process at this moment, or in the life that follows.
    Killed(usize),
}

impl fmt::Display for Spot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Running => f.write_str("run"),
            Self::Cut(cut, fates, false) => write!(f, "{cut}:{fates}"),
            Self::Cut(cut, fates, true) => write!(f, "{cut}:{fates}:then"),
            Self::Killed(cut) => write!(f, "{cut}:killed"),
        }
    }
}

impl FromStr for Spot {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("`{text}` is none of run, CUT:FATES, CUT:FATES:then, CUT:killed");
        if text == "run" {
            return Ok(Self::Running);
        }
        let mut parts = text.split(':');
        let cut = parts.next().and_then(|cut| cut.parse().ok()).ok_or_else(wrong)?;
        match (parts.next(), parts.next(), parts.next()) {
            (Some("killed"), None, None) => Ok(Self::Killed(cut)),
            (Some(fates), then @ (None | Some("then")), None) => {
                match fates.chars().all(|letter| Fate::from_letter(letter).is_some()) {
                    true => Ok(Self::Cut(cut, fates.into(), then.is_some())),
                    false => Err(wrong()),
                }
            }
            _ => Err(wrong()),
        }
    }
}

/// A violation of the crash contract.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Violation {
    /// Where.
    pub spot: Spot,
    /// A sentence that describes it.
    pub what: String,
}

/// The part of a run to execute.
#[derive(Clone, Copy, Default)]
pub struct Part<'a> {
    /// The steps at these positions; none: all.
    pub keep: Option<&'a [usize]>,
    /// This spot alone; none: every state of every moment.
    pub spot: Option<&'a Spot>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spots_read_back() {
        for text in ["run", "3:", "12:+.<e0", "12:+.:then", "7:killed"] {
            assert_eq!(text.parse::<Spot>().unwrap().to_string(), text);
        }
        for text in ["", "3", "x:+", "3:+:later", "3:+:then:x", "3:?", "-1:+"] {
            assert!(text.parse::<Spot>().is_err(), "{text}");
        }
    }
}
