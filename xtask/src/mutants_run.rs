//! Runs mutants: a copy of the tree for each job, with a target folder of its own that stays warm; one
//! change at a time; the fast tests first, up to the first failure.
//!
//! Invariants: Z3 the working tree is never changed. Z4 a mutant is judged by tests that pass without
//! it: the unchanged copy runs first, and has to pass. Z5 what hangs is ended, with all its children, and
//! counts as killed.

use crate::mutants::{Mutation, all, sample};
use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

/// Help text of the command.
pub const USAGE: &str = "\
usage: cargo xtask mutants [--seed S] [--count N] [--jobs J] [--limit SECONDS] [--list]

  draws N (150) of the small changes to the sources of cache and iomap by the seed S (1), runs the tests
  of cache, iomap and the library on each, J (1) at a time, each step for at most so many seconds (180),
  and writes the table to target/mutants.md; --list only says which";

/// Seeds of fsx for a mutant: enough to find what it can find at all, as a rule.
const FSX_RUNS: &str = "24";
/// The first to be ended when memory runs out: a mutant may allocate without end. (A limit of address
/// space would refuse the arena, which reserves far more than it uses.)
const EXPENDABLE: [&str; 4] = ["choom", "-n", "1000", "--"];

/// Steps, the fastest first: what a report calls it, the crate below which it need not run, arguments.
const STEPS: &[(&str, &str, &[&str])] = &[
    ("cache", "cache", &["--package", "forebay-cache", "--lib", "--tests"]),
    ("iomap paths", "iomap", &["--package", "forebay-iomap", "--lib", "--test", "paths"]),
    ("iomap fsx", "iomap", &["--package", "forebay-iomap", "--test", "fsx", "--test", "fsx_many"]),
    ("iomap power cut", "iomap", &["--package", "forebay-iomap", "--test", "power_cut"]),
    ("library", "forebay", &["--package", "forebay", "--tests"]),
];

/// What was asked for.
struct Options {
    seed: u64,
    count: usize,
    jobs: usize,
    limit: u64,
    list: bool,
}

impl Options {
    fn parse(words: &[String]) -> Result<Self, String> {
        let mut options = Self { seed: 1, count: 150, jobs: 1, limit: 180, list: false };
        let mut words = words.iter();
        while let Some(word) = words.next() {
            if word == "--list" {
                options.list = true;
                continue;
            }
            let value = words.next().and_then(|value| value.parse::<u64>().ok());
            let value = value.ok_or_else(|| format!("`{word}` needs a number"))?;
            match word.as_str() {
                "--seed" => options.seed = value,
                "--count" => options.count = value as usize,
                "--jobs" => options.jobs = (value as usize).max(1),
                "--limit" => options.limit = value.max(1),
                _ => return Err(format!("no option `{word}`")),
            }
        }
        Ok(options)
    }
}

/// What became of a mutant.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fate {
    NotBuilding,
    /// By this step.
    Killed(&'static str),
    /// This step did not come to an end.
    Hung(&'static str),
    Survived,
}

/// The command; `Err` is a text for standard error.
pub fn run(root: &Path, words: &[String]) -> Result<(), String> {
    let options = Options::parse(words).map_err(|e| format!("{e}\n{USAGE}"))?;
    let found = all(root);
    let of = found.len();
    let drawn = sample(found, options.seed, options.count);
    println!("{} of {of} mutants, seed {}", drawn.len(), options.seed);
    if options.list {
        drawn.iter().for_each(|mutation| println!("{}", mutation.describe()));
        return Ok(());
    }
    let (next, fates) = (AtomicUsize::new(0), Mutex::new(vec![None; drawn.len()]));
    let target = PathBuf::from(std::env::var("CARGO_TARGET_DIR").unwrap_or("target".into()));
    let target = root.join(target);
    let work = |number: usize| -> Result<(), String> {
        let job = Job::new(root, &target.join("mutants"), number, options.limit)?;
        loop {
            let at = next.fetch_add(1, Ordering::Relaxed);
            let Some(mutation) = drawn.get(at) else { return Ok(()) };
            let start = Instant::now();
            let fate = job.judge(root, mutation)?;
            let seconds = start.elapsed().as_secs();
            println!("{:>4} {seconds:>4} s  {}  {}", at + 1, fate.word(), mutation.describe());
            fates.lock().expect("nobody panics with it")[at] = Some(fate);
        }
    };
    let ends: Vec<Result<(), String>> = std::thread::scope(|scope| {
        let work = &work;
        let jobs: Vec<_> =
            (0..options.jobs).map(|number| scope.spawn(move || work(number))).collect();
        jobs.into_iter()
            .map(|job| job.join().unwrap_or_else(|_| Err("a job panicked".into())))
            .collect()
    });
    ends.into_iter().collect::<Result<(), String>>()?;
    let fates: Vec<Fate> =
        fates.into_inner().expect("all jobs are over").into_iter().flatten().collect();
    let table = table(&options, of, &drawn, &fates);
    let path = target.join("mutants.md");
    std::fs::write(&path, &table).map_err(|e| format!("{}: {e}", path.display()))?;
    println!("\n{table}\nwritten to {}", path.display());
    Ok(())
}

impl Fate {
    fn word(self) -> String {
        match self {
            Self::NotBuilding => "not building".into(),
            Self::Killed(by) => format!("killed by {by}"),
            Self::Hung(by) => format!("killed by {by} (hung)"),
            Self::Survived => "SURVIVED".into(),
        }
    }
}

/// A copy of the tree.
struct Job {
    tree: PathBuf,
    target: PathBuf,
    limit: u64,
}

impl Job {
    /// Copies the tree, builds it, and runs it unchanged (Z4).
    fn new(root: &Path, scratch: &Path, number: usize, limit: u64) -> Result<Self, String> {
        let (tree, target) =
            (scratch.join(format!("tree-{number}")), scratch.join(format!("target-{number}")));
        let job = Self { tree, target, limit };
        copy_tree(root, &job.tree).map_err(|e| format!("{}: {e}", job.tree.display()))?;
        match job.steps("cache")? {
            Fate::Survived => Ok(job),
            fate => Err(format!("without any change: {}", fate.word())),
        }
    }

    fn judge(&self, root: &Path, mutation: &Mutation) -> Result<Fate, String> {
        let (from, to) = (root.join(&mutation.file), self.tree.join(&mutation.file));
        let text = std::fs::read_to_string(&from).map_err(|e| e.to_string())?;
        std::fs::write(&to, mutation.apply(&text)).map_err(|e| e.to_string())?;
        let krate = mutation.file.split('/').nth(1).unwrap_or_default();
        let fate = self.steps(krate);
        std::fs::write(&to, text).map_err(|e| e.to_string())?;
        fate
    }

    /// Runs the steps that a change of this crate can reach.
    fn steps(&self, krate: &str) -> Result<Fate, String> {
        let first = STEPS.iter().position(|(_, of, _)| *of == krate).unwrap_or(0);
        for &(name, _, arguments) in &STEPS[first..] {
            // Builds are not limited as tests are: the first one compiles everything.
            match self.cargo(&["test", "--quiet", "--no-run"], arguments, 1500)? {
                0 => {}
                _ => return Ok(Fate::NotBuilding),
            }
            match self.cargo(&["test", "--quiet"], arguments, self.limit)? {
                0 => {}
                124 | 137 => return Ok(Fate::Hung(name)),
                _ => return Ok(Fate::Killed(name)),
            }
        }
        Ok(Fate::Survived)
    }

    /// Status of a cargo command in the copy; `timeout` ends its whole process group (Z5).
    fn cargo(&self, words: &[&str], arguments: &[&str], limit: u64) -> Result<i32, String> {
        let mut command = Command::new("timeout");
        command.args(["-k", "5", &limit.to_string()]).args(EXPENDABLE).arg("cargo");
        command.args(words).arg("--locked").args(arguments).current_dir(&self.tree);
        command.env("CARGO_TARGET_DIR", &self.target).env("CARGO_INCREMENTAL", "1");
        command.env("CARGO_PROFILE_DEV_OPT_LEVEL", "1").env("CARGO_PROFILE_DEV_DEBUG", "none");
        command.env("RUSTFLAGS", "-Awarnings").env("FOREBAY_FSX_RUNS", FSX_RUNS);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let status = command.status().map_err(|e| format!("timeout: {e}"))?;
        Ok(status.code().unwrap_or(137))
    }
}

/// Copies what git knows, or would; a file that has not changed keeps its time, so that it is not built
/// again.
fn copy_tree(root: &Path, to: &Path) -> std::io::Result<()> {
    let words = ["ls-files", "-co", "--exclude-standard"];
    let listed = Command::new("git").args(words).current_dir(root).output()?;
    for name in String::from_utf8_lossy(&listed.stdout).lines() {
        let (from, to) = (root.join(name), to.join(name));
        let Ok(bytes) = std::fs::read(&from) else { continue };
        if std::fs::read(&to).is_ok_and(|there| there == bytes) {
            continue;
        }
        to.parent().map_or(Ok(()), std::fs::create_dir_all)?;
        std::fs::write(&to, bytes)?;
    }
    Ok(())
}

fn table(options: &Options, of: usize, drawn: &[Mutation], fates: &[Fate]) -> String {
    let count = |fits: &dyn Fn(Fate) -> bool| fates.iter().filter(|f| fits(**f)).count();
    let not = count(&|f| f == Fate::NotBuilding);
    let survived = count(&|f| f == Fate::Survived);
    let killed = fates.len() - not - survived;
    let mut out = format!(
        "`cargo xtask mutants --seed {} --count {}`: {} of {of}, {killed} killed, {survived} survived, \
         {not} not building\n\n| step | killed |\n|---|---|\n",
        options.seed,
        options.count,
        drawn.len(),
    );
    for (name, ..) in STEPS {
        let by = count(&|f| f == Fate::Killed(name) || f == Fate::Hung(name));
        let _ = writeln!(out, "| {name} | {by} |");
    }
    out.push_str("\n| survivor | change |\n|---|---|\n");
    for (mutation, _) in drawn.iter().zip(fates).filter(|(_, fate)| **fate == Fate::Survived) {
        let _ = writeln!(out, "| {} |", mutation.describe());
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_and_table() {
        let parse = |words: &[&str]| {
            let words: Vec<String> = words.iter().map(|w| w.to_string()).collect();
            Options::parse(&words)
        };
        let options = parse(&["--seed", "7", "--count", "3", "--list"]).unwrap();
        assert_eq!((options.seed, options.count, options.list), (7, 3, true));
        assert!(parse(&["--seed"]).is_err() && parse(&["--what", "1"]).is_err());
        let mutation = Mutation {
            file: "a.rs".into(),
            line: 3,
            at: 0,
            old: " || ".into(),
            new: " && ".into(),
        };
        let fates = [Fate::Killed("library"), Fate::Survived, Fate::NotBuilding];
        let drawn = vec![mutation.clone(), mutation.clone(), mutation];
        let text = table(&options, 90, &drawn, &fates);
        assert!(text.contains("3 of 90, 1 killed, 1 survived, 1 not building"), "{text}");
        assert!(text.contains("| library | 1 |"), "{text}");
        assert!(text.ends_with("| a.rs:3 | `\\|\\|` becomes `&&` |\n"), "{text}");
    }
}
