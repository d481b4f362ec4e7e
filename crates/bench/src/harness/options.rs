//! Arguments that all benches share.

use forebay_base::units::parse_size;
use std::path::PathBuf;
use std::time::Duration;

/// What the command line asked for.
#[derive(Clone, Debug)]
pub struct Options {
    /// Which bench.
    pub name: String,
    /// Where the images go.
    pub dir: PathBuf,
    /// Where the JSON goes.
    pub json: Option<PathBuf>,
    /// Where the page goes.
    pub html: Option<PathBuf>,
    /// `report`: JSON of earlier runs.
    pub inputs: Vec<PathBuf>,
    /// `report`: print the figures of the README.
    pub readme: bool,
    /// `report`: print a few lines for a newcomer.
    pub screen: bool,
    /// `report`: the first file beside the second.
    pub compare: bool,
    /// Small and short: to see that it works, not for figures.
    pub quick: bool,
    /// Seconds of the bench's timed part.
    pub seconds: Option<f64>,
    /// Rounds to keep.
    pub rounds: Option<usize>,
    /// Bytes of the image.
    pub size: Option<u64>,
    /// `database`: bytes of memory, one set of columns each.
    pub budgets: Vec<u64>,
    /// Leave the images behind.
    pub keep: bool,
    /// Print a line per cycle.
    pub lines: bool,
    /// I/O engine of ours.
    pub aio: String,
    /// The one part of the bench to run.
    pub part: Option<String>,
    /// Benches that `all` leaves out.
    pub without: Vec<String>,
}

/// In place of a bench's name: makes a page from saved JSON.
pub const REPORT: &str = "report";

/// One line per argument.
pub const USAGE: &str = "\
usage: bench NAME [--dir DIR] [--json FILE] [--html FILE] [--quick] [--seconds S] [--rounds N]
             [--size S] [--aio auto|io_uring|threads] [--part PART] [--lines] [--keep]
       bench report --json FILE... --html FILE
       bench report --readme FILE... (the README's figures), --screen FILE... (a few lines)
       bench report --compare OLD.json NEW.json (by how much each figure has moved, worst first)
  --dir DIR      where the images go, on the disk to be measured (default /var/tmp)
  --json FILE    writes rows, ratios and bars as one JSON object
  --html FILE    writes a page with tables and pictures; report makes it from the JSON of earlier runs
  --quick        small and short: shows that it works, gives no figures to quote
  --seconds S    length of the timed part
  --rounds N     rounds to keep
  --size S       bytes of the image (4k, 1M, 2G); of database and pgbench the memory
  --budgets S,.. of database: the memory, one set of columns for each size
  --aio ENGINE   I/O engine of ours
  --part PART    one part alone: dd, fio, volume, jobs, delay, nbd of dirty; delay, scarce, disk,
                 kernel, volume, verify of stable; files, writes, random, hotset, sequential,
                 volume of uncached; cells, depth, memory, sparse of loop;
                 hits, misses, status of nbd; many, dead of files;
                 sync, random, seq, sustained, names, open, full of volume;
                 delay, disk, small, sim, kernel of alloc;
                 read, sync, random, seq, names, uncached, dirty, stable, alloc, attach,
                 kernel, pgbench of mount; files, itself of database
  --without NAME of all: not this bench
  --lines        prints a line per cycle
  --keep         leaves the images behind";

impl Options {
    /// Reads `NAME --flag ..`; the text of an error is for people.
    pub fn parse(args: &[String]) -> Result<Self, String> {
        let mut options = Self {
            name: String::new(),
            dir: PathBuf::from("/var/tmp"),
            json: None,
            html: None,
            inputs: Vec::new(),
            readme: false,
            screen: false,
            compare: false,
            quick: false,
            seconds: None,
            rounds: None,
            size: None,
            budgets: vec![],
            keep: false,
            lines: false,
            aio: "auto".into(),
            part: None,
            without: Vec::new(),
        };
        let mut args = args.iter();
        while let Some(arg) = args.next() {
            let (flag, inline) = match arg.split_once('=') {
                Some((flag, value)) if flag.starts_with("--") => (flag, Some(value.to_string())),
                _ => (arg.as_str(), None),
            };
            let mut value = || {
                let next = inline.clone().or_else(|| args.next().cloned());
                next.ok_or_else(|| format!("{flag} needs a value"))
            };
            match flag {
                "--dir" => options.dir = value()?.into(),
                "--json" if options.name == REPORT => options.inputs.push(value()?.into()),
                "--json" => options.json = Some(value()?.into()),
                "--html" => options.html = Some(value()?.into()),
                "--quick" => options.quick = true,
                "--readme" if options.name == REPORT => options.readme = true,
                "--screen" if options.name == REPORT => options.screen = true,
                "--compare" if options.name == REPORT => options.compare = true,
                "--keep" => options.keep = true,
                "--lines" => options.lines = true,
                "--aio" => options.aio = value()?,
                "--part" => options.part = Some(value()?),
                "--without" if options.name == "all" => options.without.push(value()?),
                "--seconds" => options.seconds = Some(positive(flag, &value()?)?),
                "--rounds" => options.rounds = Some(positive::<u32>(flag, &value()?)? as usize),
                "--size" => options.size = Some(size(&value()?)?),
                "--budgets" if options.name == "database" => options.budgets = sizes(&value()?)?,
                name if !name.starts_with('-') && options.name.is_empty() => {
                    options.name = name.to_string();
                }
                file if !file.starts_with('-') && options.name == REPORT => {
                    options.inputs.push(file.into());
                }
                other => return Err(format!("unknown argument `{other}`\n{USAGE}")),
            }
        }
        let output = options.readme || options.screen || options.html.is_some();
        let inputs = if options.compare { 2..=2 } else { 1..=usize::MAX };
        let shown = output != options.compare;
        if options.name == REPORT && !(shown && inputs.contains(&options.inputs.len())) {
            return Err(format!(
                "report needs --json FILE..., and --html FILE, --readme or --screen; \
                 or --compare OLD NEW\n{USAGE}"
            ));
        }
        Ok(options)
    }

    /// The number of rounds: as asked for, or these defaults.
    pub fn rounds_or(&self, quick: usize, full: usize) -> usize {
        self.rounds.unwrap_or(if self.quick { quick } else { full })
    }

    /// Bytes of the image, whole MiB, at least 1: as asked for, or these defaults.
    pub fn size_or(&self, quick: u64, full: u64) -> u64 {
        let size = self.size.unwrap_or(if self.quick { quick } else { full });
        (size >> 20).max(1) << 20
    }

    /// Whether this part of the bench is to run.
    pub fn wants(&self, part: &str) -> bool {
        self.part.as_deref().is_none_or(|wanted| wanted == part)
    }

    /// A duration in milliseconds that depends on `--quick` alone.
    pub fn millis(&self, quick: u64, full: u64) -> Duration {
        Duration::from_millis(if self.quick { quick } else { full })
    }
}

fn size(text: &str) -> Result<u64, String> {
    parse_size(text).map_err(|e| e.to_string())
}

/// Sizes with commas between them, whole MiB.
fn sizes(list: &str) -> Result<Vec<u64>, String> {
    let one = |text: &str| match size(text)? >> 20 {
        16.. => Ok(size(text)? >> 20 << 20),
        _ => Err(format!("{text}: 16 MiB at least")),
    };
    list.split(',').map(one).collect()
}

fn positive<T>(flag: &str, text: &str) -> Result<T, String>
where
    T: std::str::FromStr + PartialOrd + Default,
{
    let number = text.parse::<T>().ok().filter(|n| *n > T::default());
    number.ok_or_else(|| format!("{flag} `{text}`: a positive number"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(line: &str) -> Result<Options, String> {
        Options::parse(&line.split(' ').map(str::to_string).collect::<Vec<_>>())
    }

    #[test]
    fn reads_what_people_write() {
        let options = parse("hit --dir /x --size=64M --quick --rounds 3 --seconds 0.5").unwrap();
        assert_eq!((options.name.as_str(), options.size_or(1, 2)), ("hit", 64 << 20));
        assert_eq!((options.rounds_or(9, 9), options.seconds), (3, Some(0.5)));
        let options = parse("database --budgets 256M,768M,2G").unwrap();
        assert_eq!(options.budgets, [256 << 20, 768 << 20, 2 << 30]);
        let options = parse("report --json a b --json c --html p").unwrap();
        assert_eq!((options.inputs.len(), options.json), (3, None));
        let options = parse("all --without memcg --without start").unwrap();
        assert_eq!(options.without, ["memcg", "start"]);
        let options = parse("report --readme a").unwrap();
        assert_eq!((options.inputs.len(), options.readme), (1, true));
        let options = parse("report --compare a b").unwrap();
        assert_eq!((options.inputs.len(), options.compare), (2, true));
        for bad in [
            "hit --readme",
            "hit --without memcg",
            "report --readme",
            "report --compare a",
            "report --compare a b c",
            "report --compare --readme a b",
            "hit --compare",
            "hit --budgets 256M",
            "database --budgets 256M,",
            "database --budgets 1M",
            "report --html p",
            "report --json a",
            "report a",
            "hit --html",
        ] {
            assert!(parse(bad).is_err(), "{bad}");
        }
        for bad in ["hit --dir", "hit --rounds 0", "hit --seconds x", "hit --what", "hit hit"] {
            assert!(parse(bad).is_err(), "{bad}");
        }
    }
}
