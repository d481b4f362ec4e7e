//! The strategies that can be chosen, and changed at run time, each with the baseline that it is
//! measured against.

use forebay_base::sync::atomic::{AtomicU8, Ordering};
use forebay_base::{Error, ErrorKind};

macro_rules! strategy {
    ($(#[$doc:meta])* $name:ident, $what:literal, $default:ident:
     $($(#[$vdoc:meta])* $variant:ident = $word:literal,)*) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum $name { $($(#[$vdoc])* $variant,)* }

        impl $name {
            /// All of them.
            pub const ALL: &'static [Self] = &[$(Self::$variant,)*];
            /// Their words on the command line, in the same order.
            pub const WORDS: &'static [&'static str] = &[$($word,)*];

            /// The value at this index of [`Self::ALL`].
            pub fn from_index(index: u8) -> Self {
                Self::ALL[usize::from(index)]
            }
        }

        impl Default for $name {
            fn default() -> Self {
                Self::$default
            }
        }

        impl std::str::FromStr for $name {
            type Err = Error;

            fn from_str(text: &str) -> Result<Self, Error> {
                match text {
                    $($word => Ok(Self::$variant),)*
                    _ => {
                        let text = format!("{} `{text}`: one of {}", $what, Self::WORDS.join(", "));
                        Err(Error::new(ErrorKind::InvalidInput, "parse", text))
                    }
                }
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(match self { $(Self::$variant => $word,)* })
            }
        }
    };
}

strategy! {
    /// How dirty blocks are tracked in a folio.
    DirtyTracking, "dirty_tracking", Block:
    /// A dirty folio is written out with all its up-to-date blocks up to end of file, as Linux
    /// v5.8 did: the baseline.
    Folio = "folio",
    /// Exactly the dirty blocks are written.
    Block = "block",
}

strategy! {
    /// How bytes in flight are kept from changing where the device needs it.
    StableStrategy, "stable", Auto:
    /// Copy on conflict, unless frames are scarce and a wait for the write-out costs less.
    Auto = "auto",
    /// A writer waits until the block's write-out is done.
    Wait = "wait",
    /// Every write-out is of a copy, taken when it starts.
    Snapshot = "snapshot",
    /// A writer that hits a block in flight gets a fresh frame and goes on. It waits only if no
    /// frame can be had.
    Cow = "cow",
}

strategy! {
    /// Whether bytes in flight are kept from changing.
    StablePages, "stable_pages", Auto:
    /// Where the device asks for it.
    Auto = "auto",
    /// Always.
    On = "on",
    /// Never, whatever the device asks for. Files whose map keeps checksums are excepted: these
    /// would not match.
    Off = "off",
}

strategy! {
    /// What an uncached request does with blocks that are not cached.
    UncachedStrategy, "uncached_strategy", Ours:
    /// They are cached as usual, but the request does not count as a touch of them.
    NoAccess = "noaccess",
    /// They are cached for the time of the request and dropped behind it; writers start write-out
    /// themselves and wait for it.
    DropBehind = "dropbehind",
    /// Reads of absent blocks go straight into the caller's memory, with a window read ahead of a
    /// stream. Writes are cached within a window, which the flusher writes out and drops.
    Ours = "ours",
}

/// The current strategies of a cache; a change takes effect with the next decision.
pub struct Strategies {
    dirty_tracking: AtomicU8,
    stable: AtomicU8,
    stable_pages: AtomicU8,
    uncached: AtomicU8,
}

impl Strategies {
    pub(crate) fn new(d: DirtyTracking, s: StableStrategy, u: UncachedStrategy) -> Self {
        let (dirty_tracking, stable) = (AtomicU8::new(d as u8), AtomicU8::new(s as u8));
        let stable_pages = AtomicU8::new(StablePages::default() as u8);
        Self { dirty_tracking, stable, stable_pages, uncached: AtomicU8::new(u as u8) }
    }

    /// How dirty blocks are tracked.
    pub fn dirty_tracking(&self) -> DirtyTracking {
        DirtyTracking::from_index(self.dirty_tracking.load(Ordering::Relaxed))
    }

    /// Changes how dirty blocks are tracked, from the next write-out on.
    pub fn set_dirty_tracking(&self, to: DirtyTracking) {
        self.dirty_tracking.store(to as u8, Ordering::Relaxed);
    }

    /// How bytes in flight are kept from changing.
    pub fn stable(&self) -> StableStrategy {
        StableStrategy::from_index(self.stable.load(Ordering::Relaxed))
    }

    /// Changes how bytes in flight are kept from changing.
    pub fn set_stable(&self, to: StableStrategy) {
        self.stable.store(to as u8, Ordering::Relaxed);
    }

    /// Whether bytes in flight are kept from changing, in files that have no setting of their own.
    pub fn stable_pages(&self) -> StablePages {
        StablePages::from_index(self.stable_pages.load(Ordering::Relaxed))
    }

    /// Changes this setting from the next write on.
    pub fn set_stable_pages(&self, to: StablePages) {
        self.stable_pages.store(to as u8, Ordering::Relaxed);
    }

    /// What uncached requests do.
    pub fn uncached(&self) -> UncachedStrategy {
        UncachedStrategy::from_index(self.uncached.load(Ordering::Relaxed))
    }

    /// Changes what uncached requests do: those that begin from now on.
    pub fn set_uncached(&self, to: UncachedStrategy) {
        self.uncached.store(to as u8, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strategy_names_round_trip_and_unknown_are_reported() {
        for (strategy, word) in StableStrategy::ALL.iter().zip(StableStrategy::WORDS) {
            assert_eq!(&strategy.to_string(), word);
            assert_eq!(word.parse::<StableStrategy>().unwrap(), *strategy);
        }
        let text = "sometimes".parse::<UncachedStrategy>().unwrap_err().to_string();
        assert!(text.contains("sometimes") && text.contains("dropbehind"), "{text}");
        // Earlier, `private` was a strategy: the error for an fstab line that names it lists the
        // others.
        let text = "private".parse::<UncachedStrategy>().unwrap_err().to_string();
        assert!(text.contains("private") && text.contains("ours"), "{text}");
    }

    #[test]
    fn they_change_while_it_runs() {
        let s = Strategies::new(DirtyTracking::Folio, StableStrategy::Wait, UncachedStrategy::Ours);
        s.set_dirty_tracking(DirtyTracking::Block);
        s.set_stable(StableStrategy::Snapshot);
        s.set_uncached(UncachedStrategy::DropBehind);
        assert_eq!(s.stable_pages(), StablePages::Auto);
        s.set_stable_pages(StablePages::On);
        assert_eq!(s.stable_pages(), StablePages::On);
        assert_eq!(s.dirty_tracking(), DirtyTracking::Block);
        assert_eq!(s.stable(), StableStrategy::Snapshot);
        assert_eq!(s.uncached(), UncachedStrategy::DropBehind);
    }
}
