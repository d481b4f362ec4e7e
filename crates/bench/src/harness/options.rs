//! Arguments of all benches: one description for parsing, help, man pages and completions.

use crate::report::model::Report;
use clap::builder::PossibleValuesParser;
use clap::error::ErrorKind;
use clap::parser::ValueSource;
use clap::{Arg, ArgAction, ArgMatches, Args, Command, FromArgMatches};
use forebay_base::units::parse_size;
use std::path::PathBuf;
use std::time::Duration;

/// Options of every bench.
#[derive(Args, Clone, Debug)]
pub struct Options {
    /// Which bench.
    #[arg(skip)]
    pub name: String,
    /// Small and short: shows that it works, gives no figures to quote
    #[arg(long, global = true)]
    pub quick: bool,
    /// Directory of the images, on the disk to measure
    #[arg(long, global = true, value_name = "DIR", default_value = "/var/tmp")]
    pub dir: PathBuf,
    /// Write rows, ratios and bars as one JSON object
    #[arg(long, global = true, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// Write a page with tables and charts; `report` makes it from the JSON of earlier runs
    #[arg(long, global = true, value_name = "FILE")]
    pub html: Option<PathBuf>,
    /// Length of the timed part
    #[arg(long, global = true, value_name = "S", value_parser = positive::<f64>)]
    pub seconds: Option<f64>,
    /// Rounds to keep
    #[arg(long, global = true, value_name = "N", value_parser = positive::<usize>)]
    pub rounds: Option<usize>,
    /// Bytes of the image (4k, 1M, 2G); of `database` and of pgbench the memory
    #[arg(long, global = true, value_name = "SIZE", value_parser = size)]
    pub size: Option<u64>,
    /// I/O engine of Forebay
    #[arg(long, global = true, value_name = "ENGINE", default_value = "auto",
          value_parser = PossibleValuesParser::new(["auto", "io_uring", "threads"]))]
    pub aio: String,
    /// One part alone, of a bench that has parts: its own help lists them
    #[arg(long, global = true, value_name = "PART")]
    pub part: Option<String>,
    /// Print a line for each cycle
    #[arg(long, global = true)]
    pub lines: bool,
    /// Leave the images behind
    #[arg(long, global = true)]
    pub keep: bool,
    /// `database`: bytes of memory, one set of columns each.
    #[arg(skip)]
    pub budgets: Vec<u64>,
    /// Benches that `all` leaves out.
    #[arg(skip)]
    pub without: Vec<String>,
    /// The options that were given, as words, for the command that repeats one bench.
    #[arg(skip)]
    pub words: Vec<String>,
}

/// What the command line describes of a bench: name, summary, names of its parts.
pub type Described = (&'static str, &'static str, &'static [&'static str]);

/// The subcommand that runs every bench.
pub const ALL: &str = "all";

/// The names in a table of parts.
pub const fn names_of<const N: usize, F>(parts: &[(&'static str, F); N]) -> [&'static str; N] {
    let (mut names, mut n) = ([""; N], 0);
    while n < N {
        names[n] = parts[n].0;
        n += 1;
    }
    names
}

/// A part of a bench: its name and its function.
pub type Part = (&'static str, fn(&Options, &mut Report) -> forebay_base::Result<()>);

/// Runs all parts of a bench, or the selected one. A failed part does not prevent the others.
pub fn run_parts(bench: &str, parts: &[Part], options: &Options, report: &mut Report) {
    for (name, part) in parts.iter().filter(|(name, _)| options.wants(name)) {
        if let Err(e) = part(options, report) {
            report.left_out(&format!("{bench} {name}"), e);
        }
    }
}

/// The command `bench` with a subcommand for each bench, and `all`.
pub fn command(benches: &[Described]) -> Command {
    let mut command = Options::augment_args(Command::new("bench"))
        .about("Measure against the kernel, memcpy and other servers, in alternating slices")
        .subcommand_required(true)
        .arg_required_else_help(true)
        .disable_help_subcommand(true)
        .subcommand_value_name("NAME")
        .subcommand_help_heading("Benches");
    for (name, about, parts) in benches {
        let mut bench = Command::new(*name).about(*about);
        if !parts.is_empty() {
            bench = bench.after_help(format!("Parts: {}", parts.join(", ")));
        }
        if *name == "database" {
            bench = bench.arg(budgets());
        }
        command = command.subcommand(bench);
    }
    let names: Vec<&'static str> = benches.iter().map(|(name, ..)| *name).collect();
    let without = Arg::new("without")
        .long("without")
        .value_name("NAME")
        .action(ArgAction::Append)
        .value_parser(PossibleValuesParser::new(names))
        .help("Not this bench");
    let all = Command::new(ALL).about("All benches, and what they say of each behaviour");
    command.subcommand(all.arg(without))
}

fn budgets() -> Arg {
    Arg::new("budgets")
        .long("budgets")
        .value_name("SIZE,..")
        .value_delimiter(',')
        .action(ArgAction::Append)
        .value_parser(budget)
        .help("Bytes of memory, one set of columns for each size")
}

impl Default for Options {
    /// The options of an empty command line.
    fn default() -> Self {
        let matches = Self::augment_args(Command::new("bench")).get_matches_from(["bench"]);
        Self::from_arg_matches(&matches).expect("no option is required")
    }
}

impl Options {
    /// From the arguments of a bench's subcommand, or of [`ALL`].
    ///
    /// # Errors
    /// A part that no chosen bench has.
    pub fn from_matches(
        name: &str,
        matches: &ArgMatches,
        benches: &[Described],
    ) -> Result<Self, clap::Error> {
        let list = |id: &str| matches.try_contains_id(id).unwrap_or(false);
        let mut options = Self::from_arg_matches(matches)?;
        options.name = name.to_string();
        if list("budgets") {
            options.budgets = matches.get_many("budgets").into_iter().flatten().copied().collect();
        }
        if list("without") {
            options.without = matches.get_many("without").into_iter().flatten().cloned().collect();
        }
        options.words = given(matches);
        let chosen = benches.iter().filter(|(bench, ..)| name == ALL || *bench == name);
        let parts: Vec<&str> = chosen.flat_map(|(.., parts)| *parts).copied().collect();
        match &options.part {
            Some(part) if !parts.contains(&part.as_str()) => {
                let text =
                    format!("{name} has no part `{part}`; its parts: {}\n", parts.join(", "));
                Err(clap::Error::raw(ErrorKind::InvalidValue, text))
            }
            _ => Ok(options),
        }
    }

    /// Number of rounds: that of the command line, or these defaults.
    pub fn rounds_or(&self, quick: usize, full: usize) -> usize {
        self.rounds.unwrap_or(if self.quick { quick } else { full })
    }

    /// Size of the image in bytes, a multiple of 1 MiB and at least that: from the command line, or
    /// these defaults.
    pub fn size_or(&self, quick: u64, full: u64) -> u64 {
        let size = self.size.unwrap_or(if self.quick { quick } else { full });
        (size >> 20).max(1) << 20
    }

    /// Whether this part of the bench was selected.
    pub fn wants(&self, part: &str) -> bool {
        self.part.as_deref().is_none_or(|wanted| wanted == part)
    }

    /// A duration in milliseconds that depends on `--quick` alone.
    pub fn millis(&self, quick: u64, full: u64) -> Duration {
        Duration::from_millis(if self.quick { quick } else { full })
    }
}

/// The options of the command line, as words, apart from output files and the benches that `all`
/// omits.
fn given(matches: &ArgMatches) -> Vec<String> {
    let described = Options::augment_args(Command::new("")).arg(budgets());
    let mut words = Vec::new();
    for arg in described.get_arguments() {
        let id = arg.get_id().as_str();
        let is_given = matches.try_contains_id(id).unwrap_or(false)
            && matches.value_source(id) == Some(ValueSource::CommandLine);
        if !is_given || ["json", "html"].contains(&id) {
            continue;
        }
        words.push(format!("--{id}"));
        if arg.get_action().takes_values() {
            let values = matches.get_raw(id).into_iter().flatten();
            let values: Vec<_> = values.map(|value| value.to_string_lossy()).collect();
            words.push(values.join(","));
        }
    }
    words
}

fn size(text: &str) -> Result<u64, String> {
    parse_size(text).map_err(|e| e.to_string())
}

/// Parses a size of at least 16 MiB.
fn budget(text: &str) -> Result<u64, String> {
    match size(text)? >> 20 {
        mib @ 16.. => Ok(mib << 20),
        _ => Err("16 MiB at least".into()),
    }
}

fn positive<T>(text: &str) -> Result<T, String>
where
    T: std::str::FromStr + PartialOrd + Default,
{
    let number = text.parse::<T>().ok().filter(|n| *n > T::default());
    number.ok_or_else(|| "a positive number is needed".to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    const BENCHES: &[Described] = &[
        ("hit", "a", &[]),
        ("nbd", "b", &["hits", "misses"]),
        ("database", "c", &["files"]),
        ("memcg", "d", &[]),
        ("start", "e", &[]),
    ];

    fn matched(line: &str) -> Result<(String, ArgMatches), clap::Error> {
        let command = command(BENCHES).no_binary_name(true);
        let matches = command.try_get_matches_from(line.split(' '))?;
        let (name, matches) = matches.subcommand().expect("clap requires it");
        Ok((name.to_string(), matches.clone()))
    }

    fn parse(line: &str) -> Result<Options, clap::Error> {
        let (name, matches) = matched(line)?;
        Options::from_matches(&name, &matches, BENCHES)
    }

    #[test]
    fn command_description_is_consistent() {
        command(BENCHES).debug_assert();
    }

    #[test]
    fn options_of_benches_are_read() {
        let options = parse("hit --dir /x --size=64M --quick --rounds 3 --seconds 0.5").unwrap();
        assert_eq!((options.name.as_str(), options.size_or(1, 2)), ("hit", 64 << 20));
        assert_eq!((options.rounds_or(9, 9), options.seconds), (3, Some(0.5)));
        assert_eq!(options.dir, PathBuf::from("/x"));
        let options = parse("hit").unwrap();
        assert_eq!((options.dir, options.aio.as_str()), ("/var/tmp".into(), "auto"));
        let options = parse("database --budgets 256M,768M,2G").unwrap();
        assert_eq!(options.budgets, [256 << 20, 768 << 20, 2 << 30]);
        let options = parse("all --without memcg --without start").unwrap();
        assert_eq!(options.without, ["memcg", "start"]);
        let options = parse("--dir /d --part hits nbd --lines").unwrap();
        assert_eq!((options.part.as_deref(), options.lines), (Some("hits"), true));
        assert!(options.wants("hits") && !options.wants("misses"));
    }

    #[test]
    fn command_lines_without_sense_are_refused() {
        for bad in [
            "hit --readme",
            "hit --without memcg",
            "hit --compare",
            "hit --budgets 256M",
            "hit --part hits",
            "nbd --part none",
            "database --budgets 256M,",
            "database --budgets 1M",
            "hit --html",
            "hit --dir",
            "hit --rounds 0",
            "hit --seconds x",
            "hit --aio magic",
            "hit --what",
            "hit hit",
            "nonsense",
        ] {
            assert!(parse(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn given_options_come_back_as_words() {
        let line = "all --quick --dir /d --json x --html=y --rounds 3 --without hit";
        assert_eq!(parse(line).unwrap().words, ["--quick", "--dir", "/d", "--rounds", "3"]);
        assert_eq!(parse("--dir a&b nbd --lines").unwrap().words, ["--dir", "a&b", "--lines"]);
        let options = parse("database --budgets 256M,1G").unwrap();
        assert_eq!(options.words, ["--budgets", "256M,1G"]);
    }
}
