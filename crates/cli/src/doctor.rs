//! `forebay doctor`: what this machine offers, what would be chosen, and what to change.
//!
//! Every check ends in one line: `ok`, `note` (works, could be better) or `problem`.

mod container;
mod finding;

use crate::failure::{Failure, Outcome};
use crate::{machine, output};
use clap::Args;
use finding::{Finding, Level};
use forebay_base::units::format_size;
use forebay_block::{Aio, DirectIo, Engine, FileDevice, FileOptions};
use rustix::process::{Resource, getrlimit};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};

/// `forebay doctor`
#[derive(Args, Debug)]
pub struct DoctorArgs {
    /// Say also how this image would be opened
    #[arg(value_name = "IMAGE")]
    pub image: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// What is missing for a mount, and what to use instead; `None`: nothing is missing.
pub fn without_mounts() -> Option<(String, &'static str)> {
    let found = container::fuse();
    found.advice.map(|advice| (found.text, advice))
}

/// Runs the command. A problem makes it fail, a note does not.
pub fn doctor(args: &DoctorArgs) -> Outcome {
    let mut findings = vec![
        kernel(),
        processors(),
        memory(),
        cgroup(),
        container::container(),
        cache_size(),
        engine(),
        huge_pages(),
        memlock(),
        io_flusher(),
        nofile(),
        container::fuse(),
        container::loops(),
    ];
    if let Some(image) = &args.image {
        findings.push(direct_io(image));
    }
    if args.json {
        let list: Vec<Value> = findings.iter().map(to_json).collect();
        output::json(&list.into());
    } else {
        findings.iter().for_each(show);
    }
    match findings.iter().filter(|f| f.level == Level::Problem).count() {
        0 => Ok(()),
        n => Err(Failure::new(format!("{n} problem(s) found"))),
    }
}

fn word(level: Level) -> &'static str {
    match level {
        Level::Ok => "ok",
        Level::Note => "note",
        Level::Problem => "problem",
    }
}

fn show(finding: &Finding) {
    output::line(format!("{:<8} {:<11} {}", word(finding.level), finding.what, finding.text));
    if let Some(advice) = finding.advice {
        output::line(format!("{:<20} -> {advice}", ""));
    }
}

fn to_json(finding: &Finding) -> Value {
    json!({
        "level": word(finding.level),
        "what": finding.what,
        "text": finding.text,
        "advice": finding.advice,
    })
}

fn kernel() -> Finding {
    let release = rustix::system::uname().release().to_string_lossy().into_owned();
    if machine::version(&release) >= (5, 10) {
        Finding::ok("kernel", format!("Linux {release}"))
    } else {
        let advice = "Forebay is tested on 5.10 and newer";
        Finding::note("kernel", format!("Linux {release}"), advice)
    }
}

fn io_flusher() -> Finding {
    match forebay_base::io_flusher::probe() {
        Ok(()) => Finding::ok("write-out", "its threads do not wait for their own write-out"),
        Err(why) => {
            let advice = "give it CAP_SYS_RESOURCE where a client on this machine uses much memory";
            Finding::note("write-out", format!("ordinary threads: {why}"), advice)
        }
    }
}

fn processors() -> Finding {
    let number = std::thread::available_parallelism().map_or(1, usize::from);
    Finding::ok("processors", format!("{number} usable"))
}

fn memory() -> Finding {
    let (total, free) = (machine::meminfo("MemTotal"), machine::meminfo("MemAvailable"));
    let (total, free) = (total.unwrap_or(0), free.unwrap_or(0));
    Finding::ok("memory", format!("{}, {} available", format_size(total), format_size(free)))
}

fn cgroup() -> Finding {
    match machine::cgroup_limit() {
        Some(limit) => {
            let (size, version) = (format_size(limit.bytes), limit.version);
            let file = limit.file.display();
            Finding::ok("cgroup", format!("memory limit {size}, version {version}, {file}"))
        }
        None => Finding::ok("cgroup", "no memory limit"),
    }
}

fn cache_size() -> Finding {
    let budget = forebay::CacheConfig::default().budget;
    let text = format!("{} by default, `--cache-size` sets it", format_size(budget));
    Finding::ok("cache", text)
}

fn engine() -> Finding {
    let chosen = match Engine::new(Aio::Auto) {
        Ok(engine) => engine.kind(),
        Err(e) => return Finding::problem("engine", e.to_string(), "see the error"),
    };
    let text = format!("{}: {}", chosen.0, chosen.1);
    if chosen.0 == "io_uring" {
        return Finding::ok("engine", text);
    }
    Finding::note("engine", text, container::io_uring())
}

fn huge_pages() -> Finding {
    // Only the rules for anonymous memory matter, because the arena is such memory.
    let folder = "/sys/kernel/mm/transparent_hugepage";
    let rule = |file: &str| machine::chosen(&format!("{folder}/{file}")).unwrap_or("?".into());
    let collapses = machine::read_line(&format!("{folder}/khugepaged/defrag"));
    let rules = format!(
        "kernel: enabled={}, defrag={}, khugepaged/defrag={}",
        rule("enabled"),
        rule("defrag"),
        collapses.unwrap_or("?".into()),
    );
    let stats = match small_arena() {
        Ok(stats) => stats,
        Err(e) => {
            return Finding::problem(
                "huge pages",
                e.to_string(),
                "a small cache could not be made",
            );
        }
    };
    let (huge, all) = (format_size(stats.arena_huge_bytes), format_size(stats.arena_bytes));
    let text = format!("{huge} of an arena of {all} are on huge pages; {rules}");
    // The part of the arena that does not fill a huge page is on small pages on each machine.
    if stats.arena_huge_bytes + (4 << 20) > stats.arena_bytes {
        Finding::ok("huge pages", text)
    } else {
        let advice = "cached reads are about a fifth slower; check that memory is not fragmented";
        Finding::note("huge pages", text, advice)
    }
}

/// Statistics of a small cache on this machine, with its arena populated.
fn small_arena() -> forebay::Result<forebay::Stats> {
    let config = forebay::CacheConfig::default().budget(16 << 20).prefault(true);
    Ok(forebay::Cache::new(config)?.stats())
}

fn limit(resource: Resource) -> Option<u64> {
    getrlimit(resource).current
}

fn memlock() -> Finding {
    match limit(Resource::Memlock) {
        None => Finding::ok("memlock", "unlimited"),
        Some(bytes) if bytes >= 8 << 20 => Finding::ok("memlock", format_size(bytes)),
        Some(bytes) => Finding::note(
            "memlock",
            format_size(bytes),
            "kernels before 5.12 count io_uring's queues against it: ulimit -l 8192",
        ),
    }
}

fn nofile() -> Finding {
    match limit(Resource::Nofile) {
        None => Finding::ok("open files", "unlimited"),
        Some(n) if n >= 512 => Finding::ok("open files", format!("{n}")),
        Some(n) => {
            let advice = "each client needs one: ulimit -n 1024";
            Finding::note("open files", format!("{n}"), advice)
        }
    }
}

fn direct_io(image: &Path) -> Finding {
    let options =
        FileOptions { read_only: true, direct_io: DirectIo::Auto, ..FileOptions::default() };
    let opened = Engine::new(Aio::Threads)
        .and_then(|engine| FileDevice::open(image, &options, &engine))
        .map(|device| device.direct_io());
    match opened {
        Ok((true, reason)) => Finding::ok("direct-io", format!("on for it: {reason}")),
        Ok((false, reason)) => Finding::note(
            "direct-io",
            format!("off for it: {reason}"),
            "the kernel caches the image a second time",
        ),
        Err(e) => Finding::problem("image", e.to_string(), "it could not be opened for reading"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_check_says_something() {
        for finding in
            [kernel(), processors(), memory(), cgroup(), memlock(), nofile(), container::fuse()]
        {
            assert!(!finding.text.is_empty(), "{}", finding.what);
            assert_eq!(finding.advice.is_some(), finding.level != Level::Ok, "{}", finding.what);
        }
    }

    /// The story: the check reported the rule for shared memory, which does not concern the arena,
    /// and not how much of the arena was on huge pages.
    #[test]
    fn huge_pages_are_told_by_what_the_arena_reached() {
        let (finding, stats) = (huge_pages(), small_arena().unwrap());
        let (huge, all) = (stats.arena_huge_bytes, stats.arena_bytes);
        assert!(huge <= all && all > 8 << 20);
        assert!(
            finding.text.contains(&format!("of an arena of {}", format_size(all))),
            "{}",
            finding.text
        );
        assert_eq!(finding.text.starts_with("0 "), finding.level == Level::Note && huge == 0);
        for rule in ["enabled=", "defrag=", "khugepaged/defrag="] {
            assert!(finding.text.contains(rule), "{}", finding.text);
        }
        assert!(!finding.text.contains("shmem"));
    }

    #[test]
    fn missing_image_is_reported_as_problem() {
        let finding = direct_io(Path::new("/nonexistent/x.img"));
        assert_eq!(finding.level, Level::Problem);
        assert!(finding.text.contains("/nonexistent/x.img"), "{}", finding.text);
    }
}
