//! Results of `database`: rows, ratios and bars, the chart, and whether the run is a comparison at
//! all.
//!
//! Invariants: V1 every column that ran has its rows, whatever they show. V2 ratios compare runs of
//! one round. The result is the median over rounds; for losses it is the worst round. V3 a bar is
//! judged only in a run of full length in which the gate holds and each compared backup kept its
//! pace.

use super::column::{BEST, Found, OURS, OURS_UNCACHED, Run, SQLITE, TAR, slack};
use super::data::PAGE;
use super::setting::{Form, Setting};
use crate::report::model::{Good, Plot, Report, median};
use forebay_base::units::{MIB, format_size};

/// Share of the hot set that plain `tar` must cost the kernel, percent.
pub const GATE: f64 = 20.0;
/// Share of its pace that a backup must reach to be compared.
const PACE_MIN: f64 = 0.9;

/// Whether plain `tar` costs the kernel enough hot pages for a comparison.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Gate {
    Holds(f64),
    Kept(f64),
    NotRun,
}

impl Gate {
    fn of(found: &Found) -> Self {
        match values(found, TAR, |run| run.lost_percent().unwrap_or(f64::NAN)) {
            all if all.is_empty() => Self::NotRun,
            all => match median(&all) {
                lost if lost >= GATE => Self::Holds(lost),
                lost => Self::Kept(lost),
            },
        }
    }

    fn note(self) -> String {
        match self {
            Self::Holds(lost) => format!("plain tar cost the kernel {lost:.0} % of its hot set"),
            Self::Kept(lost) => format!(
                "the kernel kept its hot set: plain tar cost it {lost:.0} %, less than {GATE:.0} %: \
                 not a comparison"
            ),
            Self::NotRun => "the kernel's columns did not run: not a comparison".to_string(),
        }
    }
}

fn values(found: &Found, column: &str, of: impl Fn(&Run) -> f64) -> Vec<f64> {
    found.get(column).into_iter().flatten().map(of).collect()
}

fn during(run: &Run) -> f64 {
    run.rates[1]
}

/// Lookups during the backup of one column over those of another (V2).
fn ratio(found: &Found, ours: &str, other: &str) -> f64 {
    let pairs = values(found, ours, during).into_iter().zip(values(found, other, during));
    median(&pairs.map(|(a, b)| a / b.max(1e-9)).collect::<Vec<_>>())
}

/// Lookups during the backup over those before it.
fn share(found: &Found, column: &str) -> f64 {
    median(&values(found, column, |run| run.rates[1] / run.rates[0].max(1e-9)))
}

/// The kernel's column with the most lookups during the backup.
fn best(found: &Found) -> Option<&'static str> {
    let ran = BEST.into_iter().filter(|name| found.contains_key(name));
    ran.max_by(|a, b| {
        let of = |name| median(&values(found, name, during));
        of(a).total_cmp(&of(b))
    })
}

/// The least share of its pace that a compared backup reached. Without a pace: the rate of
/// Forebay's backup over that of plain `tar` on the kernel.
fn pace_share(found: &Found, form: Form, names: &[&str]) -> f64 {
    let rate = |name: &&str| median(&values(found, name, |run| run.backup));
    let Some(pace) = form.pace() else { return rate(&OURS) / rate(&TAR).max(1e-9) };
    let rates = names.iter().filter(|name| found.contains_key(**name)).map(rate);
    rates.fold(f64::INFINITY, f64::min) * 1e6 / pace as f64
}

/// Builds names of figures, with the form, and with the budget if several are compared.
struct Names {
    form: Form,
    suffix: String,
}

impl Names {
    fn metric(&self, name: &str) -> String {
        format!("{}_{name}{}", self.form.name(), self.suffix)
    }
}

/// Adds the results with one budget and one form.
pub fn add(report: &mut Report, setting: &Setting, form: Form, swept: bool, found: &Found) {
    let suffix = if swept { format!("_{}m", setting.budget / MIB) } else { String::new() };
    let names = Names { form, suffix };
    rows(report, &names, found);
    let gate = Gate::of(found);
    notes(report, setting, form, gate, found);
    ratios(report, setting, &names, gate, found);
    chart(report, setting, form, found);
}

/// Adds the rows of every column that ran (V1).
fn rows(report: &mut Report, names: &Names, found: &Found) {
    for (column, runs) in found {
        let mut row = |metric: &str, unit: &'static str, of: &dyn Fn(&Run) -> f64| {
            let values: Vec<f64> = runs.iter().map(of).collect();
            report.row(column, &names.metric(metric), unit, &values);
        };
        row("lookups_alone", "1/s", &|r| r.rates[0]);
        row("lookups_during", "1/s", &|r| r.rates[1]);
        row("lookups_after", "1/s", &|r| r.rates[2]);
        row("p99_alone", "us", &|r| r.p99[0]);
        row("p99_during", "us", &|r| r.p99[1]);
        row("hot_set_before", "%", &|r| r.hot.map_or(f64::NAN, |hot| hot[0] * 100.0));
        row("hot_set_lost", "%", &|r| r.lost_percent().unwrap_or(f64::NAN));
        row("backup_rate", "MB/s", &|r| r.backup);
        row("memory", "MiB", &|r| r.memory as f64 / MIB as f64);
    }
}

fn notes(report: &mut Report, setting: &Setting, form: Form, gate: Gate, found: &Found) {
    let name = form.name();
    report.note(format!(
        "database {name}: budget {}, database {}, hot set of {} pages, SQLite's own cache 1 MiB; \
         {} s a run, a backup of {} of {}; the kernel's columns have a memory \
         cgroup of the budget, what their processes hold, and {}",
        format_size(setting.budget),
        format_size(setting.rows() * PAGE as u64),
        setting.hot_pages(),
        setting.seconds,
        format_size(setting.backup_bytes(form)),
        form.words(),
        format_size(slack(setting.budget)),
    ));
    report.note(format!("database {name}: {}", gate.note()));
    if setting.is_short() {
        report.note(format!(
            "database {name}: {} round(s) of {} s: not judged, not for quoting",
            setting.rounds, setting.seconds
        ));
    }
    if let Some(best) = best(found) {
        report.note(format!("database {name}: the kernel's best way is {best}"));
    }
    let stolen = found.values().flatten().map(|run| run.stolen).fold(0.0, f64::max);
    report.note(format!("database {name}: the hypervisor took at most {stolen:.0} % of a run"));
}

fn ratios(report: &mut Report, setting: &Setting, names: &Names, gate: Gate, found: &Found) {
    let Some(ours) = found.get(OURS).filter(|runs| !runs.is_empty()) else { return };
    let best = best(found).unwrap_or(BEST[0]);
    let pace = pace_share(found, names.form, &[OURS, TAR, best]);
    if pace < PACE_MIN {
        report.note(format!(
            "database {}: a backup made {:.0} % of its pace: not judged",
            names.form.name(),
            pace * 100.0
        ));
    }
    let judged = matches!(gate, Gate::Holds(_)) && !setting.is_short() && pace >= PACE_MIN;
    let lost = ours.iter().filter_map(Run::lost_percent).fold(0.0, f64::max);
    for (name, value, good, bar) in [
        ("lookups_during_vs_alone", share(found, OURS), Good::AtLeast, 0.90),
        ("lookups_vs_tar", ratio(found, OURS, TAR), Good::AtLeast, 1.5),
        ("lookups_vs_best_kernel", ratio(found, OURS, best), Good::AtLeast, 0.95),
        ("hot_set_lost_percent", lost, Good::AtMost, 1.0),
        ("backup_pace_share", pace, Good::AtLeast, PACE_MIN),
    ] {
        let name = names.metric(name);
        match names.form {
            Form::Itself => report.ratio(&name, value),
            Form::Files | Form::Brisk | Form::Fast if judged => {
                report.ratio_with_bar(&name, value, good, bar)
            }
            Form::Files | Form::Brisk | Form::Fast => {
                report.ratio_unjudged(&name, value, good, bar)
            }
        }
    }
    let mut add = |name: &str, value: f64| report.ratio(&names.metric(name), value);
    add("lookups_uncached_during_vs_alone", share(found, OURS_UNCACHED));
    add("lookups_uncached_vs_best_kernel", ratio(found, OURS_UNCACHED, best));
    add("lookups_vs_mmap", ratio(found, OURS, "xfs-mmap-tar"));
    add("lookups_vs_sqlite_cache", ratio(found, OURS, SQLITE));
    add("kernel_lookups_during_vs_alone", share(found, TAR));
    add(
        "kernel_hot_set_lost_percent",
        match gate {
            Gate::Holds(lost) | Gate::Kept(lost) => lost,
            Gate::NotRun => f64::NAN,
        },
    );
}

/// Lookups over time in the last round, of the most important columns.
fn chart(report: &mut Report, setting: &Setting, form: Form, found: &Found) {
    let shown = [OURS, OURS_UNCACHED, TAR, best(found).unwrap_or(TAR), "xfs-mmap-tar", SQLITE];
    let mut series: Vec<(String, Vec<f64>)> = Vec::new();
    let mut marks = Vec::new();
    for name in shown {
        let Some(run) = found.get(name).and_then(|runs| runs.last()) else { continue };
        if series.iter().all(|(label, _)| label != name) {
            series.push((name.to_string(), run.steps.clone()));
        }
        if marks.is_empty() {
            let (alone, during) = run.phases;
            marks.push(("backup starts".to_string(), alone as f64 + 0.5));
            marks.push(("ends".to_string(), (alone + during) as f64 + 0.5));
        }
    }
    report.plots.push(Plot {
        behaviour: "database",
        title: format!(
            "Lookups during a backup of {}, budget {}",
            form.words(),
            format_size(setting.budget)
        ),
        unit: "lookups/s".into(),
        series,
        x: format!("steps of {:.2} s", setting.step().as_secs_f64()),
        marks,
    });
}

#[cfg(test)]
mod tests {
    use super::super::setting::tests::setting;
    use super::*;

    fn run(alone: f64, during: f64, lost: f64, backup: f64) -> Run {
        Run {
            steps: vec![alone, alone, during, during, alone],
            phases: (2, 2),
            rates: [alone, during, alone],
            hot: Some([1.0, 1.0 - lost / 100.0]),
            backup,
            ..Run::default()
        }
    }

    fn found(tar_lost: f64, backup: f64) -> Found {
        Found::from([
            (OURS, vec![run(100.0, 95.0, 0.5, 200.0), run(100.0, 93.0, 0.0, 200.0)]),
            (TAR, vec![run(90.0, 31.0, tar_lost, backup), run(90.0, 31.0, tar_lost, 200.0)]),
            ("xfs-direct", vec![run(90.0, 80.0, 1.0, 200.0), run(90.0, 82.0, 1.0, 200.0)]),
            ("xfs-dontcache", vec![run(90.0, 85.0, 1.0, 200.0), run(90.0, 70.0, 1.0, 200.0)]),
        ])
    }

    fn report(found: &Found, seconds: f64, form: Form) -> Report {
        let mut report = Report::default();
        add(&mut report, &setting(256 * MIB, seconds, 5), form, false, found);
        report
    }

    #[test]
    fn ratios_are_taken_by_round_over_best_kernel_column() {
        let found = found(40.0, 200.0);
        assert_eq!(best(&found), Some("xfs-direct"));
        assert!((ratio(&found, OURS, TAR) - 94.0 / 31.0).abs() < 1e-9, "V2");
        assert!((share(&found, OURS) - 0.94).abs() < 1e-9);
        let full = report(&found, 20.0, Form::Files);
        assert_eq!((full.missed(), full.unjudged()), (0, 0), "{}", full.table());
        assert!(full.table().contains("files_hot_set_lost_percent"), "{}", full.table());
        assert!(full.table().contains("cost the kernel 40 % of its hot set"));
        let rows = full.to_json("database", serde_json::Value::Null);
        let rows = rows["rows"].as_array().unwrap().iter();
        let columns = rows.filter(|row| row["metric"] == "files_lookups_during").count();
        assert_eq!(columns, found.len(), "V1");
    }

    #[test]
    fn kept_hot_set_is_not_judged() {
        assert_eq!(Gate::of(&found(25.0, 200.0)), Gate::Holds(25.0));
        let kept = report(&found(19.0, 200.0), 20.0, Form::Files);
        assert_eq!((kept.missed(), kept.unjudged()), (0, 5), "{}", kept.table());
        assert!(kept.table().contains("the kernel kept its hot set: plain tar cost it 19 %"));
        assert_eq!(Gate::of(&Found::new()), Gate::NotRun);
    }

    #[test]
    fn slow_backup_and_short_run_are_not_judged() {
        let slow = report(&found(40.0, 100.0), 20.0, Form::Files);
        assert_eq!(slow.unjudged(), 5, "{}", slow.table());
        assert!(slow.table().contains("a backup made 75 % of its pace"), "{}", slow.table());
        let short = report(&found(40.0, 200.0), 5.0, Form::Files);
        assert_eq!(short.unjudged(), 5, "V3");
        assert!(short.table().contains("of 5 s: not judged"));
        assert_eq!(report(&found(40.0, 200.0), 20.0, Form::Itself).unjudged(), 0, "no bars");
    }

    #[test]
    fn chart_marks_the_backup() {
        let report = report(&found(40.0, 200.0), 20.0, Form::Files);
        let [plot] = &report.plots[..] else { panic!("one chart") };
        assert_eq!(plot.marks[0], ("backup starts".to_string(), 2.5));
        assert_eq!(plot.marks[1].1, 4.5);
        let labels: Vec<_> = plot.series.iter().map(|(label, _)| label.as_str()).collect();
        assert_eq!(labels, [OURS, TAR, "xfs-direct"]);
    }
}
