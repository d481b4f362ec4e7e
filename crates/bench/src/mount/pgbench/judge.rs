//! What the figures of `pgbench` are judged by.

use super::figures::Run;
use super::model::{Column, Figures, Found, PACE_SHARE_MIN, Setting};
use crate::report::model::{Good, Report, median};

/// Load, and the bar of our rate alone over that of XFS.
const ALONE: [(&str, f64); 2] = [("select", 0.85), ("tpcb", 0.7)];

/// Adds the ratios of during to alone, by column; those of Forebay's uncached column have bars
/// (pgbench.N6).
pub fn judge(report: &mut Report, setting: &Setting, found: &Found) {
    let pace = setting.pace as f64 / 1e6;
    for ((column, load), all) in found {
        let each = |of: &dyn Fn(&Run, bool) -> f64| {
            let pairs: Vec<f64> =
                all.iter().map(|f| of(&f.run, true) / of(&f.run, false)).collect();
            median(&pairs)
        };
        let (tps, p99) = (each(&Run::median_tps), each(&Run::p99));
        let name = column.name().replace('-', "_");
        let (tps_name, p99_name) = (
            format!("pgbench_{load}_{name}_beside_vs_alone"),
            format!("pgbench_{load}_{name}_p99_beside_vs_alone"),
        );
        let rate = median(&all.iter().map(|f| f.backup.rate).collect::<Vec<_>>());
        let slow = rate < PACE_SHARE_MIN * pace;
        if slow {
            report.note(format!(
                "pgbench: {load}, {}: the backup made {rate:.0} of {pace:.0} MB/s: not judged, and not \
                 to be compared with columns whose backup was faster",
                column.name()
            ));
        }
        if *column != Column::ForebayUncached {
            report.ratio(&tps_name, tps);
            report.ratio(&p99_name, p99);
            continue;
        }
        let judged = !slow && !setting.is_short();
        for (name, value, good, bar) in
            [(&tps_name, tps, Good::AtLeast, 0.88), (&p99_name, p99, Good::AtMost, 1.2)]
        {
            add(report, judged, name, (value, good, bar));
        }
        let lost = all.iter().map(Figures::lost_percent).fold(0.0, f64::max);
        let lost_name = format!("pgbench_{load}_{name}_tables_lost_percent");
        add(report, judged, &lost_name, (lost, Good::AtMost, 0.0));
        if let Some(xfs) = found.get(&(Column::Xfs, *load)) {
            compared_with_xfs(report, judged, (load, all, xfs));
        }
    }
}

/// Adds our uncached column over XFS with an ordinary tar, by round.
fn compared_with_xfs(
    report: &mut Report,
    judged: bool,
    (load, ours, xfs): (&str, &[Figures], &[Figures]),
) {
    let ratio = |of: &dyn Fn(&Figures) -> f64| {
        median(&ours.iter().zip(xfs).map(|(a, b)| of(a) / of(b)).collect::<Vec<_>>())
    };
    let name = |what: &str| format!("pgbench_{load}_forebay_uncached_{what}_vs_xfs");
    if let Some((_, bar)) = ALONE.iter().find(|(of, _)| *of == load) {
        let alone = ratio(&|f| f.run.median_tps(false));
        add(report, judged, &name("alone"), (alone, Good::AtLeast, *bar));
    }
    let cpu = ratio(&Figures::cpu_per_byte);
    add(report, judged, &name("cpu_per_byte"), (cpu, Good::AtMost, 2.0));
}

fn add(report: &mut Report, judged: bool, name: &str, (value, good, bar): (f64, Good, f64)) {
    match judged {
        true => report.ratio_with_bar(name, value, good, bar),
        false => report.ratio_unjudged(name, value, good, bar),
    }
}

#[cfg(test)]
mod tests {
    use super::super::backup;
    use super::*;
    use forebay_base::units::MIB;
    use std::path::PathBuf;

    fn judged(rate: f64, seconds: u64, rounds: usize) -> Report {
        let setting = Setting {
            cache: 256 * MIB,
            scale: 1,
            backup: MIB,
            pace: 200_000_000,
            seconds: (10, seconds),
            rounds,
            bin: PathBuf::new(),
            folder: PathBuf::new(),
        };
        let run = Run { tps: vec![100.0, 100.0, 50.0, 50.0], alone: 2, ..Run::default() };
        let backup = backup::Done { rate, cpu_seconds: 1.0, seconds: 2.0 };
        let figures = Figures { run, backup, cpu: [0.0; 4], hits: 1.0, cached: [1.0; 2], limit: 0 };
        let mut report = Report::default();
        let found = Found::from([((Column::ForebayUncached, "select"), vec![figures])]);
        judge(&mut report, &setting, &found);
        report
    }

    /// pgbench.N6. The story: `make run` was judged by one round of two seconds.
    #[test]
    fn slow_backup_or_short_run_is_not_judged() {
        assert_eq!((judged(195.0, 20, 3).missed(), judged(195.0, 20, 3).unjudged()), (1, 1));
        for (rate, seconds, rounds) in [(179.0, 20, 3), (195.0, 5, 3), (195.0, 20, 1)] {
            let report = judged(rate, seconds, rounds);
            assert_eq!((report.missed(), report.unjudged()), (0, 3), "{rate} {seconds} {rounds}");
            let table = report.table();
            assert!(table.contains("0.500   bar >= 0.88  not judged"), "{table}");
            assert_eq!(table.contains("179 of 200 MB/s: not judged"), rate < 180.0, "{table}");
        }
    }
}
