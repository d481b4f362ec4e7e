//! Options that several commands have.

use crate::behaviours::{Given, Store};
use crate::failure::{Failure, Outcome};
use clap::Args;
use clap::builder::PossibleValuesParser;
use forebay_base::units::{format_size, parse_size};

/// What `export` and `attach` are told of the cache, and of what is below it.
#[derive(Args, Debug)]
pub struct CacheArgs {
    /// Bytes for everything that grows [default: 25% of RAM, at most 50% of the cgroup's limit]
    #[arg(long, value_name = "SIZE", value_parser = size)]
    pub cache_size: Option<u64>,
    /// The options of docs/reference/options.md.
    #[command(flatten)]
    pub behaviours: Given,
    /// I/O engine
    #[arg(long, value_name = "ENGINE", default_value = "auto",
          value_parser = PossibleValuesParser::new(["auto", "io_uring", "threads"]))]
    pub aio: String,
    /// Refuse writes
    #[arg(short, long)]
    pub read_only: bool,
}

impl CacheArgs {
    /// The size, if one was given; a usage error if it is below `least` bytes.
    pub fn size(&self, least: u64) -> Outcome<Option<u64>> {
        match self.cache_size {
            Some(size) if size < least => {
                let (size, least) = (format_size(size), format_size(least));
                Err(Failure::usage(format!("--cache-size {size}: at least {least}")))
            }
            size => Ok(size),
        }
    }

    /// Refuses options that make no sense for any of these stores.
    pub fn check_behaviours(&self, command: &str, stores: &[Store]) -> Outcome {
        match self.behaviours.refusal(stores) {
            Some((entry, why)) => {
                Err(Failure::usage(format!("{command}: --{}: {why}", entry.flag)))
            }
            None => Ok(()),
        }
    }
}

/// A size, as in `64M`.
pub fn size(text: &str) -> Result<u64, String> {
    parse_size(text).map_err(|_| "a whole number with an optional k, M, G or T".to_string())
}
