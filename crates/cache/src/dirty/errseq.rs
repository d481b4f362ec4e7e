//! Write-back errors, reported once to each handle that was open: a sequence that grows with each
//! error, and a cursor per opener (the kernel's errseq_t, Jeff Layton 2017).

use forebay_base::Error;
use forebay_base::sync::Mutex;

/// The errors of one file.
#[derive(Default)]
pub struct ErrSeq {
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    number: u64,
    latest: Option<Error>,
    /// An opener has seen the latest error.
    told: bool,
}

/// An opener's position in the sequence: the number of the latest error that it need not see.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Cursor(u64);

impl ErrSeq {
    /// Records an error.
    pub fn set(&self, error: Error) {
        let mut state = self.state.lock();
        *state = State { number: state.number + 1, latest: Some(error), told: false };
    }

    /// The latest error, seen or not.
    pub fn latest(&self) -> Option<Error> {
        self.state.lock().latest.clone()
    }

    /// The latest error, if no opener has seen it.
    pub fn unreported(&self) -> Option<Error> {
        let state = self.state.lock();
        state.latest.clone().filter(|_| !state.told)
    }

    /// A cursor for a new opener: it sees errors from now on, and the latest one if no opener has
    /// seen it yet.
    pub fn sample(&self) -> Cursor {
        let state = self.state.lock();
        Cursor(if state.told { state.number } else { state.number.saturating_sub(1) })
    }

    /// The current position, whatever openers have seen.
    pub fn now(&self) -> Cursor {
        Cursor(self.state.lock().number)
    }

    /// The latest error if it occurred after `since`; moves no cursor.
    pub fn error_since(&self, since: Cursor) -> Option<Error> {
        let state = self.state.lock();
        (state.number != since.0).then(|| state.latest.clone()).flatten()
    }

    /// The latest error if there is one that `cursor` has not seen; moves the cursor.
    pub fn check_and_advance(&self, cursor: &mut Cursor) -> Option<Error> {
        let mut state = self.state.lock();
        if state.number == cursor.0 {
            return None;
        }
        cursor.0 = state.number;
        state.told = true;
        state.latest.clone()
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use super::*;
    use forebay_base::ErrorKind;

    #[test]
    fn each_opener_sees_an_error_once() {
        let seq = ErrSeq::default();
        let (mut a, mut b) = (seq.sample(), seq.sample());
        seq.set(Error::new(ErrorKind::Io, "write out", "x"));
        let mut unreported = seq.sample();
        assert!(seq.check_and_advance(&mut a).is_some());
        assert!(seq.check_and_advance(&mut a).is_none());
        assert!(seq.check_and_advance(&mut b).is_some());
        assert!(seq.check_and_advance(&mut unreported).is_some());
        assert!(seq.check_and_advance(&mut seq.sample()).is_none());
    }
}
