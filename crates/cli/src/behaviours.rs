//! The options of the five behaviours (docs/reference/options.md): one table, from which `export`,
//! `mount`, `attach`, the words after `-o`, `tune` and `stat` take names, values and help. `given`
//! has the options with which a command was started, `live` those of a running process.
//!
//! Invariant: behaviours.O1 an option that makes no sense for what is served, or that a running
//! process cannot change, is refused by name and with the reason.
//!
//! No locks.

mod given;
mod live;

pub use given::Given;
pub use live::{Live, Mode, Served};

use forebay::{DirtyTracking, StablePages, StableStrategy, UncachedStrategy};
use forebay_base::units::{MIB, format_size, parse_size};

/// What is served.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Store {
    /// A raw image.
    Image,
    /// A volume, or a file in one.
    Volume,
}

/// What an option accepts.
#[derive(Debug)]
pub enum Values {
    /// A power of two.
    Size {
        /// Bytes.
        least: u64,
        /// Bytes.
        most: u64,
    },
    /// One of these.
    Words(&'static [&'static str]),
    /// A number of pages.
    Pages,
}

/// An option of the table.
#[derive(Debug)]
pub struct Entry {
    /// Its name after `-o`, and for `tune` and `stat`.
    pub name: &'static str,
    /// Its name on the command line, without the leading hyphens.
    pub flag: &'static str,
    /// What it accepts.
    pub values: Values,
    /// For `--help`.
    pub about: &'static str,
    /// The kind of store that cannot have the option, and why; `None`: each kind can.
    refused: Option<(Store, &'static str)>,
    /// Why a running process cannot change the option; `None`: it can.
    fixed: Option<&'static str>,
}

const NO_BLOCKS: &str = "an image allocates no blocks, a volume does";

/// All options.
pub static ENTRIES: [Entry; 10] = [
    Entry {
        name: "folio_size",
        flag: "folio-size",
        values: Values::Size { least: 4096, most: 2 * MIB },
        about: "Unit of lookup and ageing in the cache, 4k to 2M [default: 64k]",
        refused: None,
        fixed: Some("the cache is divided by it when the process starts"),
    },
    Entry {
        name: "block_size",
        flag: "block-size",
        values: Values::Size { least: 512, most: 4096 },
        about: "Images: unit of dirty tracking, 512 to 4k [default: 4k]",
        refused: Some((Store::Volume, "a volume has the blocks that it was created with")),
        fixed: Some("the cache tracks an image by it from its opening on"),
    },
    Entry {
        name: "dirty_tracking",
        flag: "dirty-tracking",
        values: Values::Words(DirtyTracking::WORDS),
        about: "What a write-out takes of a dirty folio: its dirty blocks, or all that is up to \
                date [default: block]",
        refused: None,
        fixed: None,
    },
    Entry {
        name: "stable",
        flag: "stable",
        values: Values::Words(StableStrategy::WORDS),
        about: "How bytes in flight are kept from changing, if they must be [default: auto]",
        refused: None,
        fixed: None,
    },
    Entry {
        name: "stable_pages",
        flag: "stable-pages",
        values: Values::Words(StablePages::WORDS),
        about: "Whether they must be: if the device asks for it, always, never [default: auto]",
        refused: None,
        fixed: None,
    },
    Entry {
        name: "uncached_strategy",
        flag: "uncached-strategy",
        values: Values::Words(UncachedStrategy::WORDS),
        about: "What uncached requests do with blocks that are not cached [default: ours]",
        refused: None,
        fixed: None,
    },
    Entry {
        name: "mode",
        flag: "mode",
        values: Values::Words(&["cached", "uncached", "direct"]),
        about: "How requests use the cache; on a mount, of files without a policy [default: cached, \
                direct for attach]",
        refused: None,
        fixed: None,
    },
    Entry {
        name: "direct_io",
        flag: "direct-io",
        values: Values::Words(&["auto", "on", "off"]),
        about: "Whether the image is opened with `O_DIRECT` [default: auto]",
        refused: None,
        fixed: None,
    },
    Entry {
        name: "alloc",
        flag: "alloc",
        values: Values::Words(&["interleaved", "serialized", "reserve"]),
        about: "Volumes: how blocks are allocated [default: reserve]",
        refused: Some((Store::Image, NO_BLOCKS)),
        fixed: Some("a volume allocates by it from its opening on"),
    },
    Entry {
        name: "serialized_dio_pages",
        flag: "serialized-dio-pages",
        values: Values::Pages,
        about: "Volumes with `alloc` serialized: direct writes of so many pages of 4k allocate \
                one at a time; 0 is always [default: 64]",
        refused: Some((Store::Image, NO_BLOCKS)),
        fixed: None,
    },
];

impl Entry {
    /// The option of this name.
    pub fn find(name: &str) -> Option<&'static Self> {
        ENTRIES.iter().find(|entry| entry.name == name)
    }

    /// The placeholder of a value in help texts.
    pub fn value_name(&self) -> &'static str {
        match self.values {
            Values::Size { .. } => "SIZE",
            Values::Words(_) => "MODE",
            Values::Pages => "N",
        }
    }

    /// Checks a value; the error says which values are valid.
    pub fn check(&self, value: &str) -> Result<(), String> {
        match &self.values {
            Values::Words(words) => match words.contains(&value) {
                true => Ok(()),
                false => Err(format!("one of {}", words.join(", "))),
            },
            Values::Size { least, most } => match parse_size(value) {
                Ok(size) if size.is_power_of_two() && (*least..=*most).contains(&size) => Ok(()),
                _ => {
                    let (least, most) = (format_size(*least), format_size(*most));
                    Err(format!("a power of two from {least} to {most}"))
                }
            },
            Values::Pages => match parse_size(value) {
                Ok(_) => Ok(()),
                Err(_) => Err("a number of pages".to_string()),
            },
        }
    }

    /// Why the option makes no sense for any of these stores, if it does not (behaviours.O1).
    pub fn refusal(&self, stores: &[Store]) -> Option<&'static str> {
        let (store, why) = self.refused?;
        stores.iter().all(|served| *served == store).then_some(why)
    }

    /// Why a running process cannot change the option, if it cannot (behaviours.O1).
    pub fn fixed(&self) -> Option<&'static str> {
        self.fixed
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay::{AllocMode, DirectIo, ExportMode};

    #[test]
    fn flags_are_the_names_with_hyphens() {
        for entry in &ENTRIES {
            assert_eq!(entry.flag, entry.name.replace('_', "-"));
        }
    }

    /// Each word of an option can be parsed by the type that takes it.
    #[test]
    fn every_word_is_understood() {
        let words = |name: &str| match Entry::find(name).unwrap().values {
            Values::Words(words) => words,
            _ => panic!("{name} has no words"),
        };
        assert!(words("mode").iter().all(|word| word.parse::<ExportMode>().is_ok()));
        assert!(words("direct_io").iter().all(|word| word.parse::<DirectIo>().is_ok()));
        assert!(words("alloc").iter().all(|word| word.parse::<AllocMode>().is_ok()));
    }

    #[test]
    fn wrong_values_are_refused() {
        for (name, right, wrong) in [
            ("folio_size", "2M", "4M"),
            ("folio_size", "4k", "5k"),
            ("block_size", "512", "8k"),
            ("mode", "direct", "sometimes"),
            ("serialized_dio_pages", "0", "many"),
        ] {
            let entry = Entry::find(name).unwrap();
            assert_eq!(entry.check(right), Ok(()), "{name}");
            assert!(entry.check(wrong).is_err(), "{name}={wrong}");
        }
        assert!(Entry::find("folio-size").is_none());
    }

    /// O1: an option is refused if nothing that is served can have it.
    #[test]
    fn option_is_refused_where_no_store_has_it() {
        let refused =
            |name: &str, stores: &[Store]| Entry::find(name).unwrap().refusal(stores).is_some();
        assert!(refused("alloc", &[Store::Image]) && !refused("alloc", &[Store::Volume]));
        assert!(!refused("alloc", &[Store::Image, Store::Volume]));
        assert!(refused("block_size", &[Store::Volume]) && !refused("mode", &[Store::Volume]));
    }

    /// `docs/reference/options.md` has a row for each option, with its values, and says the same
    /// of stores and of `tune`.
    #[test]
    fn docs_have_the_table() {
        let docs = include_str!("../../../docs/reference/options.md");
        let rows = docs.lines().filter(|line| line.starts_with("| `")).map(|line| {
            line.trim_matches('|').split(" | ").map(|cell| cell.trim().replace('`', "")).collect()
        });
        let rows: Vec<Vec<String>> = rows.filter(|row: &Vec<String>| row.len() == 6).collect();
        assert_eq!(rows.len(), ENTRIES.len(), "{rows:?}");
        for (row, entry) in rows.iter().zip(&ENTRIES) {
            let said = |cell: &str, refused: bool| cell.starts_with("refused") == refused;
            assert_eq!(row[0], entry.name);
            let values = match &entry.values {
                Values::Words(words) => words.join(", "),
                Values::Size { least, most } => {
                    format!("{} to {}", format_size(*least), format_size(*most))
                }
                Values::Pages => "a number".to_string(),
            };
            assert_eq!(row[1], values, "{}", entry.name);
            assert!(said(&row[3], entry.refusal(&[Store::Image]).is_some()), "{row:?}");
            assert!(said(&row[4], entry.refusal(&[Store::Volume]).is_some()), "{row:?}");
            assert!(said(&row[5], entry.fixed().is_some()), "{row:?}");
            for why in entry.refused.map(|(_, why)| why).into_iter().chain(entry.fixed) {
                assert!(row.concat().contains(why), "{}: {why}", entry.name);
            }
        }
    }
}
