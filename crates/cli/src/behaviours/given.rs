//! What a command was started with: options from the command line, and words after `-o`.
//!
//! Invariant: every value that is kept was checked.
//!
//! No locks.

use super::{ENTRIES, Entry, Store, Values};
use clap::builder::{PossibleValuesParser, ValueParser};
use clap::{Arg, ArgMatches, Args, Command, FromArgMatches};
use forebay::{Cache, CacheConfig, DirectIo, Error, ExportMode, OpenOptions, VolumeOptions};
use forebay_base::units::parse_size;
use std::collections::BTreeMap;
use std::str::FromStr;

/// The options that were given, by name.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Given(BTreeMap<&'static str, String>);

impl Given {
    /// Sets the value of an option. The error says which values are valid.
    pub fn set(&mut self, entry: &'static Entry, value: &str) -> Result<(), String> {
        entry.check(value)?;
        self.0.insert(entry.name, value.to_string());
        Ok(())
    }

    /// Adds the options of `others`; if both have an option, the value of `others` counts.
    pub fn overrule_by(&mut self, others: &Self) {
        self.0.extend(others.0.iter().map(|(name, value)| (*name, value.clone())));
    }

    /// The first option that makes no sense for any of these stores, and the reason.
    pub fn refusal(&self, stores: &[Store]) -> Option<(&'static Entry, &'static str)> {
        let given = ENTRIES.iter().filter(|entry| self.0.contains_key(entry.name));
        given.into_iter().find_map(|entry| Some((entry, entry.refusal(stores)?)))
    }

    fn parsed<T: FromStr<Err = Error>>(&self, name: &str) -> Option<T> {
        let value = self.0.get(name)?;
        Some(value.parse().unwrap_or_else(|e| panic!("{name}={value} was checked: {e}")))
    }

    fn number(&self, name: &str) -> Option<u32> {
        let number = parse_size(self.0.get(name)?).expect("checked to be a number");
        Some(u32::try_from(number).unwrap_or(u32::MAX))
    }

    /// How requests use the cache.
    pub fn mode(&self, default: ExportMode) -> ExportMode {
        self.parsed("mode").unwrap_or(default)
    }

    /// Whether the image is opened with `O_DIRECT`.
    pub fn direct_io(&self) -> DirectIo {
        self.parsed("direct_io").unwrap_or_default()
    }

    /// Sets the options that a cache takes when it is created.
    pub fn configure(&self, config: &mut CacheConfig) {
        config.folio_size = self.number("folio_size").unwrap_or(config.folio_size);
        config.dirty_tracking = self.parsed("dirty_tracking").unwrap_or(config.dirty_tracking);
        config.stable = self.parsed("stable").unwrap_or(config.stable);
        let strategy = self.parsed("uncached_strategy");
        config.uncached_strategy = strategy.unwrap_or(config.uncached_strategy);
    }

    /// Sets the options that a cache can check only when everything is open.
    pub fn tune(&self, cache: &Cache) -> forebay::Result<()> {
        self.0.get("stable_pages").map_or(Ok(()), |value| cache.tune("stable_pages", value))
    }

    /// The options for opening an image.
    pub fn open_options(&self) -> OpenOptions {
        let mut options = OpenOptions::new();
        options.direct_io(self.direct_io());
        if let Some(bytes) = self.number("block_size") {
            options.block_size(bytes);
        }
        options
    }

    /// The options for opening a volume.
    pub fn volume_options(&self) -> VolumeOptions {
        let mut options = VolumeOptions::default().direct_io(self.direct_io());
        options.alloc = self.parsed("alloc").unwrap_or(options.alloc);
        let pages = self.number("serialized_dio_pages");
        options.serialized_dio_pages = pages.unwrap_or(options.serialized_dio_pages);
        options
    }
}

fn argument(entry: &'static Entry) -> Arg {
    let parser = match entry.values {
        Values::Words(words) => ValueParser::from(PossibleValuesParser::new(words)),
        _ => ValueParser::from(move |value: &str| entry.check(value).map(|()| value.to_string())),
    };
    let argument = Arg::new(entry.name).long(entry.flag).value_name(entry.value_name());
    argument.help(entry.about).value_parser(parser)
}

impl FromArgMatches for Given {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let value = |entry: &Entry| matches.get_one::<String>(entry.name).cloned();
        let given = ENTRIES.iter().filter_map(|entry| Some((entry.name, value(entry)?)));
        Ok(Self(given.collect()))
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        self.overrule_by(&Self::from_arg_matches(matches)?);
        Ok(())
    }
}

impl Args for Given {
    fn augment_args(command: Command) -> Command {
        command.args(ENTRIES.iter().map(argument))
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn given(words: &[(&str, &str)]) -> Given {
        let mut given = Given::default();
        for (name, value) in words {
            given.set(Entry::find(name).unwrap(), value).unwrap();
        }
        given
    }

    /// Each option reaches the struct of the library that has it.
    #[test]
    fn every_option_is_handed_on() {
        let all = given(&[
            ("folio_size", "2M"),
            ("block_size", "512"),
            ("dirty_tracking", "folio"),
            ("stable", "cow"),
            ("uncached_strategy", "noaccess"),
            ("mode", "uncached"),
            ("direct_io", "off"),
            ("alloc", "serialized"),
            ("serialized_dio_pages", "8"),
        ]);
        let mut config = CacheConfig::default();
        all.configure(&mut config);
        let shown = [
            config.folio_size.to_string(),
            config.dirty_tracking.to_string(),
            config.stable.to_string(),
            config.uncached_strategy.to_string(),
        ];
        assert_eq!(shown, ["2097152", "folio", "cow", "noaccess"]);
        assert_eq!(all.mode(ExportMode::Direct), ExportMode::Uncached);
        let volume = all.volume_options();
        assert_eq!(
            (volume.alloc.to_string(), volume.serialized_dio_pages),
            ("serialized".into(), 8)
        );
        assert_eq!(volume.direct_io, DirectIo::Off);
        let image = format!("{:?}", all.open_options());
        assert!(image.contains("block_size: Some(512)") && image.contains("Some(Off)"), "{image}");
        let none = Given::default();
        assert_eq!(none.mode(ExportMode::Direct), ExportMode::Direct);
        assert_eq!(none.volume_options().serialized_dio_pages, 64);
    }

    /// The command line overrules the words of fstab, option by option.
    #[test]
    fn later_options_overrule_earlier_ones() {
        let mut words = given(&[("mode", "direct"), ("stable", "wait")]);
        words.overrule_by(&given(&[("mode", "cached")]));
        assert_eq!(words, given(&[("mode", "cached"), ("stable", "wait")]));
    }

    #[test]
    fn first_option_without_a_sense_is_named() {
        let both = given(&[("alloc", "reserve"), ("mode", "direct"), ("block_size", "512")]);
        let (entry, why) = both.refusal(&[Store::Image]).unwrap();
        assert_eq!((entry.name, why.contains("allocates no blocks")), ("alloc", true));
        assert_eq!(both.refusal(&[Store::Volume]).unwrap().0.name, "block_size");
        assert!(both.refusal(&[Store::Volume, Store::Image]).is_none());
    }
}
