//! Runs mutants: one build holds all of them, a run of the tests switches one on; the fast programs first,
//! up to the first test that fails.
//!
//! Invariants: Z4 a mutant is judged by tests that pass without it: each program runs first with none on,
//! and has to pass. Z5 what hangs is ended, with all its children, and counts as killed: what takes
//! five times as long as without a mutant, and twenty seconds more, or three minutes.

use crate::mutants::{Mutation, all, sample};
use crate::mutants_build::{Copy, Program, SWITCH};
use std::collections::BTreeSet;
use std::fmt::Write;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// Help text of the command.
pub const USAGE: &str = "\
usage: cargo xtask mutants [--seed S] [--count N] [--jobs J] [--only A,B,..] [--shuttle] [--list]

  draws N (150) of the small changes to the sources of cache and iomap by the seed S (1), builds one copy
  of the tree with all of them in it, runs the tests of cache, iomap and the library with each switched on,
  J (2) at a time, and writes the table to target/mutants.md; --only runs these of the drawn ones, by
  number; --shuttle runs the tests of random interleavings instead; --list only says which there are";

/// Seeds of fsx, of power cuts, of ends of file and of interleavings for a mutant: enough to find what they
/// can find at all, as a rule.
const FEW: [(&str, &str); 5] = [
    ("FOREBAY_FSX_RUNS", "12"),
    ("FOREBAY_CUT_RUNS", "12"),
    ("FOREBAY_EOF_RUNS", "12"),
    ("FOREBAY_EOF_SECONDS", "1"),
    ("FOREBAY_SHUTTLE_RUNS", "2000"),
];
/// The first to be ended when memory runs out: a mutant may allocate without end. (A limit of address
/// space would refuse the arena, which reserves far more than it uses.)
const EXPENDABLE: [&str; 4] = ["choom", "-n", "1000", "--"];
/// No program may take longer with a mutant on.
const LIMIT: Duration = Duration::from_secs(180);
/// Tests that take longer than the rest of their program, and are left out: a mutant that only they would
/// find counts as survivor.
const SLOW: [&str; 2] =
    ["domain::a_dead_device_stops_only_its_own_files", "many::ten_thousand_files_open_at_once"];

/// What was asked for.
struct Options {
    seed: u64,
    count: usize,
    jobs: usize,
    only: Option<BTreeSet<usize>>,
    list: bool,
    shuttle: bool,
}

impl Options {
    fn parse(words: &[String]) -> Result<Self, String> {
        let (only, list, shuttle) = (None, false, false);
        let mut options = Self { seed: 1, count: 150, jobs: 2, only, list, shuttle };
        let mut words = words.iter();
        while let Some(word) = words.next() {
            let flag = match word.as_str() {
                "--list" => &mut options.list,
                "--shuttle" => &mut options.shuttle,
                _ => {
                    options.set(word, words.next())?;
                    continue;
                }
            };
            *flag = true;
        }
        Ok(options)
    }

    fn set(&mut self, word: &str, value: Option<&String>) -> Result<(), String> {
        let value = value.ok_or_else(|| format!("`{word}` needs a number"))?;
        let numbers: Result<BTreeSet<usize>, _> = value.split(',').map(str::parse).collect();
        let numbers = numbers.map_err(|e| format!("`{word} {value}`: {e}"))?;
        let number = numbers.first().copied().filter(|_| numbers.len() == 1);
        match (word, number) {
            ("--only", _) => self.only = Some(numbers),
            ("--seed", Some(number)) => self.seed = number as u64,
            ("--count", Some(number)) => self.count = number,
            ("--jobs", Some(number)) => self.jobs = number.max(1),
            _ => return Err(format!("no option `{word} {value}`")),
        }
        Ok(())
    }
}

/// What became of a mutant.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Fate {
    NotBuilding,
    /// By this program, and this test of it.
    Killed(String, String),
    /// This program did not come to an end.
    Hung(String),
    Survived,
}

impl Fate {
    fn word(&self) -> String {
        match self {
            Self::NotBuilding => "not building".into(),
            Self::Killed(by, test) => format!("killed by {by}: {test}"),
            Self::Hung(by) => format!("killed by {by} (hung)"),
            Self::Survived => "SURVIVED".into(),
        }
    }
}

/// A mutant with its number among those drawn.
type Numbered<'a> = (u32, &'a Mutation);
/// The same with its fate.
type Judged<'a> = (u32, &'a Mutation, Fate);

/// A program, and how long it may take.
struct Step {
    program: Program,
    limit: Duration,
}

/// The command; `Err` is a text for standard error.
pub fn run(root: &Path, words: &[String]) -> Result<(), String> {
    let options = Options::parse(words).map_err(|e| format!("{e}\n{USAGE}"))?;
    let found = all(root)?;
    let of = found.len();
    let drawn = sample(found, options.seed, options.count);
    println!("{} of {of} mutants, seed {}", drawn.len(), options.seed);
    let wanted = |n: usize| options.only.as_ref().is_none_or(|only| only.contains(&n));
    let chosen: Vec<Numbered<'_>> =
        (1_u32..).zip(&drawn).filter(|(number, _)| wanted(*number as usize)).collect();
    if options.list {
        chosen.iter().for_each(|(number, m)| println!("{number:>4} {}", m.describe()));
        return Ok(());
    }
    let target = PathBuf::from(std::env::var("CARGO_TARGET_DIR").unwrap_or("target".into()));
    let target = root.join(target);
    let (on, programs) = build(root, &target.join("mutants"), &chosen, options.shuttle)?;
    let steps = baseline(programs)?;
    let judged = judge_all(&options, &steps, &on)?;
    let fate =
        |number: &u32| judged.iter().find(|(n, _)| n == number).map(|(_, fate)| fate.clone());
    let fates: Vec<Judged<'_>> = chosen
        .iter()
        .map(|(number, m)| (*number, *m, fate(number).unwrap_or(Fate::NotBuilding)))
        .collect();
    let table = table(&options, of, &steps, &fates);
    let path = target.join("mutants.md");
    std::fs::write(&path, &table).map_err(|e| format!("{}: {e}", path.display()))?;
    println!("\n{table}\nwritten to {}", path.display());
    Ok(())
}

/// Builds the copy; leaves out what does not build.
fn build<'a>(
    root: &Path,
    scratch: &Path,
    chosen: &[Numbered<'a>],
    shuttle: bool,
) -> Result<(Vec<Numbered<'a>>, Vec<Program>), String> {
    let mut on = chosen.to_vec();
    loop {
        let copy = Copy::new(root, scratch, &on, shuttle)?;
        let refused = copy.refused()?;
        if refused.is_empty() {
            println!("{} of {} build", on.len(), chosen.len());
            return Ok((on, copy.programs()?));
        }
        for (number, mutation) in on.iter().filter(|(number, _)| refused.contains(number)) {
            println!("{number:>4}  {}  {}", Fate::NotBuilding.word(), mutation.describe());
        }
        on.retain(|(number, _)| !refused.contains(number));
    }
}

/// Runs everything with no mutant on (Z4); the fastest first.
fn baseline(programs: Vec<Program>) -> Result<Vec<Step>, String> {
    let mut timed = Vec::new();
    for program in programs {
        let start = Instant::now();
        let step = Step { program, limit: 5 * LIMIT };
        match step.run(0)? {
            Fate::Survived => timed.push((start.elapsed(), step)),
            fate => return Err(format!("without a mutant: {}", fate.word())),
        }
    }
    timed.sort_by_key(|(time, _)| *time);
    for (time, step) in &mut timed {
        println!("{:>6} ms  {}", time.as_millis(), step.name());
        step.limit = (*time * 5 + Duration::from_secs(20)).min(LIMIT);
    }
    Ok(timed.into_iter().map(|(_, step)| step).collect())
}

fn judge_all(
    options: &Options,
    steps: &[Step],
    on: &[Numbered<'_>],
) -> Result<Vec<(u32, Fate)>, String> {
    let (next, fates) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    let work = || -> Result<(), String> {
        while let Some((number, mutation)) = on.get(next.fetch_add(1, Ordering::Relaxed)) {
            let start = Instant::now();
            let fate = judge(steps, *number, mutation)?;
            let (seconds, word) = (start.elapsed().as_secs(), fate.word());
            println!("{number:>4} {seconds:>4} s  {word}  {}", mutation.describe());
            fates.lock().expect("nobody panics with it").push((*number, fate));
        }
        Ok(())
    };
    let ends: Vec<Result<(), String>> = std::thread::scope(|scope| {
        let jobs: Vec<_> = (0..options.jobs).map(|_| scope.spawn(work)).collect();
        let end = |job: std::thread::ScopedJoinHandle<'_, _>| job.join();
        jobs.into_iter().map(|job| end(job).unwrap_or(Err("a job panicked".into()))).collect()
    });
    ends.into_iter().collect::<Result<(), String>>()?;
    Ok(fates.into_inner().expect("all jobs are over"))
}

/// Runs the programs that a change of this crate can reach.
fn judge(steps: &[Step], number: u32, mutation: &Mutation) -> Result<Fate, String> {
    let below = mutation.file.starts_with("crates/iomap/");
    for step in steps.iter().filter(|step| !(below && step.program.krate == "cache")) {
        match step.run(number)? {
            Fate::Survived => {}
            fate => return Ok(fate),
        }
    }
    Ok(Fate::Survived)
}

impl Step {
    fn name(&self) -> String {
        let Program { krate, target, .. } = &self.program;
        if target.starts_with("forebay") {
            format!("{krate} (unit)")
        } else {
            format!("{krate} {target}")
        }
    }

    /// Runs it up to its first failure; `timeout` ends its whole process group (Z5).
    fn run(&self, number: u32) -> Result<Fate, String> {
        let mut command = Command::new("timeout");
        command.args(["-k", "5", &self.limit.as_secs().to_string()]).args(EXPENDABLE);
        command.arg(&self.program.path).current_dir(&self.program.folder);
        command.args(SLOW.iter().flat_map(|test| ["--skip", test]));
        command.envs(FEW).env(SWITCH, number.to_string());
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut child = command.spawn().map_err(|e| format!("timeout: {e}"))?;
        let output = child.stdout.take().ok_or("no output")?;
        let mut failed = None;
        for line in BufReader::new(output).split(b'\n').map_while(Result::ok) {
            let line = String::from_utf8_lossy(&line).into_owned();
            let test = line.strip_prefix("test ").and_then(|line| line.strip_suffix(" ... FAILED"));
            if let Some(test) = test {
                failed = Some(test.to_string());
                // It passes the signal on. That it has ended meanwhile is no failure.
                let pid = child.id().to_string();
                let _ = Command::new("kill").arg(pid).stderr(Stdio::null()).status();
                break;
            }
        }
        let status = child.wait().map_err(|e| format!("timeout: {e}"))?;
        Ok(match (failed, status.code()) {
            (Some(test), _) => Fate::Killed(self.name(), test),
            (None, Some(0)) => Fate::Survived,
            (None, Some(124 | 137)) => Fate::Hung(self.name()),
            (None, _) => Fate::Killed(self.name(), "the process".into()),
        })
    }
}

fn table(options: &Options, of: usize, steps: &[Step], fates: &[Judged<'_>]) -> String {
    let count = |fits: &dyn Fn(&Fate) -> bool| fates.iter().filter(|(.., f)| fits(f)).count();
    let not = count(&|f| *f == Fate::NotBuilding);
    let survived = count(&|f| *f == Fate::Survived);
    let killed = fates.len() - not - survived;
    let mut out = format!(
        "`cargo xtask mutants --seed {} --count {}`: {} of {of}, {killed} killed, {survived} survived, \
         {not} not building\n\n| program | killed | hung |\n|---|---|---|\n",
        options.seed,
        options.count,
        fates.len(),
    );
    for program in steps.iter().map(Step::name) {
        let failed = count(&|f| matches!(f, Fate::Killed(by, _) if *by == program));
        let hung = count(&|f| *f == Fate::Hung(program.clone()));
        let _ = writeln!(out, "| {program} | {failed} | {hung} |");
    }
    out.push_str("\n| number | survivor | change |\n|---|---|---|\n");
    for (number, mutation, _) in fates.iter().filter(|(.., fate)| *fate == Fate::Survived) {
        let _ = writeln!(out, "| {number} | {} |", mutation.describe());
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
        let options = parse(&["--seed", "7", "--count", "3", "--only", "2,3", "--list"]).unwrap();
        assert_eq!((options.seed, options.count, options.list), (7, 3, true));
        assert_eq!(options.only, Some(BTreeSet::from([2, 3])));
        for wrong in [&["--seed"][..], &["--what", "1"], &["--seed", "1,2"], &["--count", "x"]] {
            assert!(parse(wrong).is_err());
        }
        let text = "fn f(a: bool, b: bool) -> bool { a || b }";
        let found = crate::mutants_find::of("a.rs", text).unwrap();
        let or = found.iter().find(|m| m.old == "||").unwrap();
        let killed = Fate::Killed("forebay library".into(), "t".into());
        let (path, folder) = ("p".into(), "f".into());
        let program = Program { krate: "forebay".into(), target: "library".into(), path, folder };
        let steps = [Step { program, limit: Duration::ZERO }];
        let fates = [(1, or, killed), (2, or, Fate::Survived), (3, or, Fate::NotBuilding)];
        let text = table(&options, 90, &steps, &fates);
        assert!(text.contains("3 of 90, 1 killed, 1 survived, 1 not building"), "{text}");
        assert!(text.contains("| forebay library | 1 | 0 |"), "{text}");
        assert!(text.ends_with("| 2 | a.rs:1 | `\\|\\|` becomes `&&` |\n"), "{text}");
    }

    #[test]
    fn z5_what_hangs_or_fails_or_dies_is_seen_as_such() {
        let run = |script: &str| {
            let folder =
                std::env::temp_dir().join(format!("forebay-mutants-{}", std::process::id()));
            std::fs::create_dir_all(&folder).unwrap();
            let path = folder.join("program");
            std::fs::write(&path, format!("#!/bin/sh\n{script}\n")).unwrap();
            Command::new("chmod").arg("+x").arg(&path).status().unwrap();
            let (krate, target) = ("forebay".into(), "library".into());
            let program = Program { krate, target, path, folder: folder.clone() };
            let limit = Duration::from_secs(2);
            let fate = Step { program, limit }.run(7).unwrap();
            std::fs::remove_dir_all(folder).unwrap();
            fate
        };
        let by = || "forebay library".to_string();
        assert_eq!(run("test $FOREBAY_MUTANT = 7"), Fate::Survived);
        assert_eq!(run("sleep 100"), Fate::Hung(by()));
        assert_eq!(
            run("echo 'test a::b ... FAILED'; exec sleep 100"),
            Fate::Killed(by(), "a::b".into())
        );
        assert_eq!(run("kill -SEGV $$"), Fate::Killed(by(), "the process".into()));
    }
}
