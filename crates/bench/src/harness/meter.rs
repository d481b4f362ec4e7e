//! Meters: CPU time and context switches of a process, memory, page cache.

use crate::harness::sys;
use forebay_testkit::cgroup::field;
use rustix::time::{ClockId, clock_gettime};
use std::collections::HashMap;
use std::fs;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::{Duration, Instant};

/// CPU time and context switches of a process so far, or a difference of two such values.
#[derive(Clone, Copy, Debug, Default)]
pub struct Usage {
    /// CPU seconds of all threads, user and system.
    pub cpu_seconds: f64,
    /// Voluntary context switches of all threads.
    pub voluntary: u64,
    /// Involuntary context switches of all threads.
    pub involuntary: u64,
}

impl Usage {
    /// Usage of this process, with its ended threads.
    pub fn own() -> Self {
        let now = clock_gettime(ClockId::ProcessCPUTime);
        let (voluntary, involuntary) = sys::own_switches();
        let cpu_seconds = now.tv_sec as f64 + now.tv_nsec as f64 / 1e9;
        Self { cpu_seconds, voluntary, involuntary }
    }

    /// Usage of the machine since boot; all switches are counted as voluntary.
    pub fn of_machine() -> Self {
        let stat = fs::read_to_string("/proc/stat").unwrap_or_default();
        Self { cpu_seconds: busy_seconds(&stat), voluntary: field(&stat, "ctxt "), involuntary: 0 }
    }

    /// Adds another usage.
    pub fn add(&mut self, other: &Self) {
        self.cpu_seconds += other.cpu_seconds;
        self.voluntary += other.voluntary;
        self.involuntary += other.involuntary;
    }

    /// Usage since `before`.
    pub fn since(&self, before: &Self) -> Self {
        Self {
            cpu_seconds: (self.cpu_seconds - before.cpu_seconds).max(0.0),
            voluntary: self.voluntary.saturating_sub(before.voluntary),
            involuntary: self.involuntary.saturating_sub(before.involuntary),
        }
    }
}

/// Usage of another process, or of the kernel's workers. CPU time is the kernel's own sum of all
/// threads, with ended ones. Switches are read by thread: a thread that ends keeps the value of the
/// last look. So for a server with a thread per connection, call [`Watch::look`] often.
#[derive(Clone, Debug)]
pub struct Watch {
    whose: Whose,
    threads: HashMap<String, Usage>,
    start: Usage,
}

#[derive(Clone, Copy, Debug)]
enum Whose {
    Process(u32),
    /// The kernel threads in which the loop driver submits I/O, and in which write-back runs.
    Kworkers,
}

impl Watch {
    /// Starts to measure a process.
    pub fn start(pid: u32) -> Self {
        Self::of(Whose::Process(pid))
    }

    /// Starts to measure the kernel's workers, for all processes that use them.
    pub fn kworkers() -> Self {
        Self::of(Whose::Kworkers)
    }

    fn of(whose: Whose) -> Self {
        let mut watch = Self { whose, threads: HashMap::new(), start: Usage::default() };
        watch.look();
        watch.start = watch.sum();
        watch
    }

    /// Reads the usage of each live thread.
    pub fn look(&mut self) {
        let (folder, kernel) = match self.whose {
            Whose::Process(pid) => (format!("/proc/{pid}/task"), false),
            Whose::Kworkers => ("/proc".to_string(), true),
        };
        let Ok(tasks) = fs::read_dir(folder) else { return };
        for task in tasks.flatten() {
            let read = |name: &str| fs::read_to_string(task.path().join(name)).unwrap_or_default();
            if kernel && !read("comm").starts_with("kworker/") {
                continue;
            }
            let (sched, status) = (read("schedstat"), read("status"));
            let nanos = sched.split(' ').next().and_then(|n| n.parse::<u64>().ok());
            let Some(nanos) = nanos else { continue };
            let now = Usage {
                cpu_seconds: nanos as f64 / 1e9,
                voluntary: field(&status, "voluntary_ctxt_switches:"),
                involuntary: field(&status, "nonvoluntary_ctxt_switches:"),
            };
            self.threads.insert(task.file_name().to_string_lossy().into_owned(), now);
        }
    }

    fn sum(&self) -> Usage {
        let mut sum = Usage::default();
        for usage in self.threads.values() {
            sum.add(usage);
        }
        if let Whose::Process(pid) = self.whose {
            sum.cpu_seconds = process_cpu_seconds(pid).unwrap_or(sum.cpu_seconds);
        }
        sum
    }

    /// Usage since the start.
    pub fn used(&mut self) -> Usage {
        self.look();
        self.sum().since(&self.start)
    }
}

/// CPU time (utime and stime) of a process with its ended threads, in steps of a clock tick.
pub fn process_cpu_seconds(pid: u32) -> Option<f64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The fields after the name in parentheses: state is the first, utime and stime are the 12th
    // and 13th.
    let rest = stat.rsplit(')').next()?;
    let times = rest.split_whitespace().skip(11).take(2);
    let ticks: u64 = times.map(|n| n.parse::<u64>().unwrap_or(0)).sum();
    Some(ticks as f64 / rustix::param::clock_ticks_per_second() as f64)
}

/// As [`process_cpu_seconds`], with children that have ended and were waited for.
pub fn cpu_seconds_with_ended(pid: u32) -> Option<f64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let rest = stat.rsplit(')').next()?;
    let times = rest.split_whitespace().skip(11).take(4);
    let ticks: u64 = times.map(|n| n.parse::<u64>().unwrap_or(0)).sum();
    Some(ticks as f64 / rustix::param::clock_ticks_per_second() as f64)
}

/// Runs `work` on its own thread and calls `look` at intervals until `work` has ended.
pub fn looking<R: Send>(
    every: Duration,
    mut look: impl FnMut(),
    work: impl FnOnce() -> R + Send,
) -> R {
    std::thread::scope(|scope| {
        let (working, over) = mpsc::channel::<()>();
        let worker = scope.spawn(move || {
            // Dropped when the work ends, also if it panics.
            let _working = working;
            work()
        });
        while over.recv_timeout(every) == Err(RecvTimeoutError::Timeout) {
            look();
        }
        worker.join().expect("the work returns")
    })
}

/// One of `user nice system idle iowait irq softirq steal` of all CPUs in /proc/stat, in seconds.
fn tick_seconds(stat: &str, index: usize) -> f64 {
    let line = stat.lines().next().unwrap_or_default();
    let tick = line.split_whitespace().nth(index + 1).and_then(|n| n.parse::<f64>().ok());
    tick.unwrap_or(0.0) / rustix::param::clock_ticks_per_second() as f64
}

fn busy_seconds(stat: &str) -> f64 {
    [0, 1, 2, 5, 6].into_iter().map(|index| tick_seconds(stat, index)).sum()
}

/// CPU seconds since boot: of the whole machine, of this process with children it has waited for,
/// and stolen by the hypervisor.
#[derive(Clone, Copy, Debug)]
pub struct MachineTime {
    busy: f64,
    own: f64,
    stolen: f64,
    at: Instant,
}

impl MachineTime {
    /// The values now.
    pub fn now() -> Self {
        let hertz = rustix::param::clock_ticks_per_second() as f64;
        let stat = fs::read_to_string("/proc/stat").unwrap_or_default();
        let (busy, stolen) = (busy_seconds(&stat), tick_seconds(&stat, 7));
        let own = fs::read_to_string("/proc/self/stat").unwrap_or_default();
        // The fields after the name in parentheses: state is the first, utime the 12th. It is
        // summed with the three after it: stime, cutime and cstime.
        let rest = own.rsplit(')').next().unwrap_or_default();
        let fields = rest.split_whitespace().skip(11).take(4);
        let own = fields.map(|n| n.parse().unwrap_or(0.0)).sum::<f64>() / hertz;
        Self { busy, own, stolen, at: Instant::now() }
    }

    /// CPU seconds of the machine since `before`.
    pub fn busy_seconds_since(&self, before: &Self) -> f64 {
        self.busy - before.busy
    }

    /// Time since these values were read.
    pub fn elapsed(&self) -> Duration {
        self.at.elapsed()
    }

    /// Percent of the time of all CPUs since `before` that other processes used, and that was
    /// stolen.
    pub fn others_percent(&self, before: &Self) -> (f64, f64) {
        let cpus = std::thread::available_parallelism().map_or(1, |n| n.get()) as f64;
        let all = ((self.at - before.at).as_secs_f64() * cpus).max(1e-9);
        let others = (self.busy - before.busy) - (self.own - before.own);
        (others.max(0.0) / all * 100.0, (self.stolen - before.stolen) / all * 100.0)
    }
}

/// CPU seconds that the kernel's reclaim threads have used since boot.
pub fn kswapd_seconds() -> f64 {
    let mut nanos = 0;
    for entry in fs::read_dir("/proc").into_iter().flatten().flatten() {
        let name = fs::read_to_string(entry.path().join("comm")).unwrap_or_default();
        if name.starts_with("kswapd") {
            let sched = fs::read_to_string(entry.path().join("schedstat")).unwrap_or_default();
            nanos += sched.split(' ').next().and_then(|n| n.parse::<u64>().ok()).unwrap_or(0);
        }
    }
    nanos as f64 / 1e9
}

/// RssAnon + RssShmem of a process, bytes; `None` if the process has ended.
pub fn resident_bytes(pid: u32) -> Option<u64> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    status
        .contains("RssAnon:")
        .then(|| (field(&status, "RssAnon:") + field(&status, "RssShmem:")) * 1024)
}

/// Number of threads of a process.
pub fn threads_of(pid: u32) -> u64 {
    fs::read_to_string(format!("/proc/{pid}/status")).map_or(0, |text| field(&text, "Threads:"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sees_this_process() {
        let pid = std::process::id();
        assert!(resident_bytes(pid).unwrap() > 0);
        assert!(threads_of(pid) >= 1);
        let machine = MachineTime::now();
        let (before, mut watch) = (Usage::own(), Watch::start(pid));
        // /proc counts CPU time in ticks, so run for several of them.
        while Usage::own().since(&before).cpu_seconds < 0.05 {
            std::hint::black_box(&before);
        }
        let (others, stolen) = MachineTime::now().others_percent(&machine);
        assert!((0.0..=200.0).contains(&others) && (0.0..=200.0).contains(&stolen));
        assert!(watch.used().cpu_seconds > 0.0);
    }
}
