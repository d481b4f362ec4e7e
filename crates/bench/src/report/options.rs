//! Arguments of `report`, which needs no bench.

use clap::error::ErrorKind;
use clap::{Arg, ArgAction, ArgMatches, Command};
use std::path::PathBuf;

/// Arguments of `report`.
#[derive(Clone, Debug)]
pub struct ReportOptions {
    /// JSON of earlier runs, in the order of the command line.
    pub inputs: Vec<PathBuf>,
    /// Output file of the page.
    pub html: Option<PathBuf>,
    /// Output file of the first plot, as SVG.
    pub svg: Option<PathBuf>,
    /// Labels of the series in that plot; all if empty.
    pub series: Vec<String>,
    /// Print the tables of `docs/figures.md`.
    pub readme: bool,
    /// Print a few lines for a newcomer.
    pub screen: bool,
    /// Compare the first file with the second.
    pub compare: bool,
}

/// The subcommand that makes a page from saved JSON.
pub const REPORT: &str = "report";
/// The command `report`. Options in `ignored`, which only concern runs, are accepted and have no
/// effect.
pub fn command(ignored: &Command) -> Command {
    let flag = |name: &'static str| Arg::new(name).long(name).action(ArgAction::SetTrue);
    let file = |name: &'static str| {
        Arg::new(name).value_name("FILE").value_parser(clap::value_parser!(PathBuf))
    };
    let own = [
        file("files").action(ArgAction::Append).num_args(1..).help("JSON of an earlier run"),
        file("json").long("json").action(ArgAction::Append).help("The same"),
        file("html").long("html").help("Write a page with tables and charts"),
        file("svg").long("svg").help("Write the first picture, as SVG"),
        Arg::new("series")
            .long("series")
            .value_name("LABEL,..")
            .value_delimiter(',')
            .action(ArgAction::Append)
            .requires("svg")
            .help("What the picture of --svg shows [default: all]"),
        flag("readme").help("Print the tables of docs/figures.md"),
        flag("screen").help("Print a few lines for a newcomer"),
        flag("compare")
            .conflicts_with_all(["readme", "screen", "html", "svg"])
            .help("Print by how much each figure moved from the first file to the second"),
    ];
    let about = "A page, or the figures, of the JSON of earlier runs";
    let mut report = Command::new(REPORT).about(about).args(&own);
    for arg in ignored.get_arguments() {
        if own.iter().all(|other| other.get_id() != arg.get_id()) {
            report = report.arg(arg.clone().global(false).hide(true));
        }
    }
    let outputs = clap::ArgGroup::new("output")
        .args(["html", "svg", "readme", "screen", "compare"])
        .multiple(true)
        .required(true);
    report.group(outputs)
}

impl ReportOptions {
    /// From the arguments of the subcommand [`REPORT`].
    ///
    /// # Errors
    /// Too few or too many files.
    pub fn from_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let mut inputs: Vec<(usize, PathBuf)> = Vec::new();
        for id in ["files", "json"] {
            let indices = matches.indices_of(id).into_iter().flatten();
            let paths = matches.get_many::<PathBuf>(id).into_iter().flatten().cloned();
            inputs.extend(indices.zip(paths));
        }
        inputs.sort();
        let compare = matches.get_flag("compare");
        let (least, most) = if compare { (2, 2) } else { (1, usize::MAX) };
        if !(least..=most).contains(&inputs.len()) {
            let text = if compare { "--compare takes OLD.json and NEW.json" } else { "no FILE" };
            return Err(clap::Error::raw(ErrorKind::WrongNumberOfValues, format!("{text}\n")));
        }
        Ok(Self {
            inputs: inputs.into_iter().map(|(_, path)| path).collect(),
            html: matches.get_one::<PathBuf>("html").cloned(),
            svg: matches.get_one::<PathBuf>("svg").cloned(),
            series: matches.get_many("series").into_iter().flatten().cloned().collect(),
            readme: matches.get_flag("readme"),
            screen: matches.get_flag("screen"),
            compare,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(line: &str) -> Result<ReportOptions, clap::Error> {
        let quick = Arg::new("quick").long("quick").action(ArgAction::SetTrue);
        let command = command(&Command::new("bench").arg(quick));
        ReportOptions::from_matches(&command.try_get_matches_from(line.split(' '))?)
    }

    #[test]
    fn options_of_report_are_read_in_order() {
        let options = report("report --json a b --json c --html p --quick").unwrap();
        assert_eq!(options.inputs, ["a", "b", "c"].map(PathBuf::from));
        assert_eq!(options.html, Some("p".into()));
        let options = report("report a --svg p --series ours,other").unwrap();
        assert_eq!((options.svg, options.series.len()), (Some("p".into()), 2));
        let options = report("report --readme a").unwrap();
        assert_eq!((options.inputs.len(), options.readme), (1, true));
        let options = report("report --compare a b").unwrap();
        assert_eq!((options.inputs.len(), options.compare), (2, true));
    }

    #[test]
    fn report_command_lines_without_sense_are_refused() {
        for bad in [
            "report --readme",
            "report --compare a",
            "report --compare a b c",
            "report --compare --readme a b",
            "report --html p",
            "report a --html p --series ours",
            "report --json a",
            "report a",
        ] {
            assert!(report(bad).is_err(), "{bad}");
        }
    }
}
