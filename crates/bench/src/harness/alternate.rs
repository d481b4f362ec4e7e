//! Alternating slices. Every variant runs for a short time in each cycle, and several cycles are a
//! round. Ratios are taken within rounds, and the result is the median of the rounds.
//!
//! Invariants: H1 within a pass every variant runs once, in an order drawn from the number of the
//! pass, so that a run can be repeated. With a rotated order each variant would always run after
//! the same one. H2 a ratio never mixes rounds. H3 a round whose gate (bare O_DIRECT) varies by
//! more than [`GATE_SPREAD`] between its cycles is run again, at most `repeats_max` times in all.
//! The report contains the number of repeats, and of rounds that were kept although they varied.

use crate::harness::image::Rng;
use crate::harness::load::Slice;
use crate::harness::meter::Usage;
use crate::harness::options::Options;
use crate::report::model::{Plot, Report, median, quantile};
use forebay_base::Result;
use std::time::Duration;

/// Most that the gate may vary within a round: standard deviation over mean.
pub const GATE_SPREAD: f64 = 0.15;

/// Parameters of one slice.
#[derive(Clone, Copy, Debug)]
pub struct Turn {
    /// Equal for all variants of a pass, different between passes.
    pub seed: u64,
    /// Number of the cycle in the run; repeated cycles count, too.
    pub cycle: u64,
    /// Duration.
    pub time: Duration,
}

/// Runs one slice.
pub type SliceFn<'a> = Box<dyn FnMut(&Turn) -> Result<Slice> + 'a>;

/// One of the variants that are compared.
pub struct Variant<'a> {
    /// The name of the variant in rows.
    pub name: &'static str,
    /// Runs one slice. Work that must not be timed (syncing, dropping caches) it does outside the
    /// time of the slice that it returns.
    pub run: SliceFn<'a>,
}

impl<'a> Variant<'a> {
    /// A variant from a closure.
    pub fn new(name: &'static str, run: impl FnMut(&Turn) -> Result<Slice> + 'a) -> Self {
        Self { name, run: Box::new(run) }
    }
}

/// Durations and repetitions.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    /// Rounds to keep.
    pub rounds: usize,
    /// Cycles in a round.
    pub cycles: usize,
    /// Time of each variant in a cycle.
    pub slice: Duration,
    /// Number of slices into which that time is split; the variants alternate after each.
    pub passes: u32,
    /// Variant whose spread decides whether a round counts.
    pub gate: Option<&'static str>,
    /// Most rounds that are run again, in all.
    pub repeats_max: usize,
    /// Print a line for each cycle.
    pub lines: bool,
}

impl Plan {
    /// One cycle in a round, in one pass, without a gate.
    pub fn simple(options: &Options, rounds: usize, slice: Duration) -> Self {
        let (gate, lines) = (None, options.lines);
        Self { rounds, cycles: 1, slice, passes: 1, gate, repeats_max: 0, lines }
    }
}

/// Runs a slice in which other processes do a part of the work, such as the daemon of a mount. Its
/// CPU usage is that of the machine, and no usage is reported for this process.
pub fn whole_machine(work: impl FnOnce() -> Result<Slice>) -> Result<Slice> {
    let before = Usage::of_machine();
    let slice = work()?;
    let machine = Usage::of_machine().since(&before);
    Ok(Slice { usage: Usage::default(), machine, ..slice })
}

/// All slices of a run.
pub struct Outcome {
    names: Vec<&'static str>,
    /// By round, cycle, variant.
    rounds: Vec<Vec<Vec<Slice>>>,
    repeated: usize,
    unsteady: usize,
}

/// Runs all variants as planned.
pub fn alternate(variants: &mut [Variant<'_>], plan: &Plan) -> Result<Outcome> {
    let names: Vec<_> = variants.iter().map(|v| v.name).collect();
    let gate = plan.gate.and_then(|gate| names.iter().position(|name| *name == gate));
    let mut out = Outcome { names, rounds: Vec::new(), repeated: 0, unsteady: 0 };
    let mut cycle = 0;
    while out.rounds.len() < plan.rounds {
        let mut round = Vec::new();
        for _ in 0..plan.cycles {
            let slices = one_cycle(variants, plan, cycle)?;
            if plan.lines {
                print_line(&out.names, cycle, &slices);
            }
            round.push(slices);
            cycle += 1;
        }
        let steady = gate.is_none_or(|gate| {
            let rates: Vec<f64> = round.iter().map(|slices| slices[gate].rate()).collect();
            relative_deviation(&rates) <= GATE_SPREAD
        });
        if !steady && out.repeated < plan.repeats_max {
            out.repeated += 1;
            continue;
        }
        out.unsteady += usize::from(!steady);
        out.rounds.push(round);
    }
    Ok(out)
}

fn one_cycle(variants: &mut [Variant<'_>], plan: &Plan, cycle: u64) -> Result<Vec<Slice>> {
    let count = variants.len();
    let mut slices: Vec<Slice> = (0..count).map(|_| Slice::default()).collect();
    for pass in cycle * u64::from(plan.passes)..(cycle + 1) * u64::from(plan.passes) {
        let turn = Turn { seed: pass + 1, cycle, time: plan.slice / plan.passes };
        for index in order_of(pass, count) {
            slices[index].merge(&(variants[index].run)(&turn)?);
        }
    }
    Ok(slices)
}

/// The order in which the variants of a pass run.
fn order_of(pass: u64, count: usize) -> Vec<usize> {
    let mut rng = Rng::new(pass ^ 0x0bde_70f5);
    let mut order: Vec<usize> = (0..count).collect();
    for last in (1..count).rev() {
        order.swap(last, rng.below(last as u64 + 1) as usize);
    }
    order
}

fn print_line(names: &[&str], cycle: u64, slices: &[Slice]) {
    let rates = names.iter().zip(slices).map(|(name, s)| format!("{name} {:.0}", s.rate()));
    println!("cycle {cycle}: {}", rates.collect::<Vec<_>>().join("  "));
}

/// Standard deviation over mean.
pub fn relative_deviation(values: &[f64]) -> f64 {
    let mean = values.iter().sum::<f64>() / values.len().max(1) as f64;
    let square = values.iter().map(|v| (v - mean).powi(2)).sum::<f64>();
    (square / values.len().max(1) as f64).sqrt() / mean.max(1e-9)
}

impl Outcome {
    fn index(&self, name: &str) -> Option<usize> {
        self.names.iter().position(|n| *n == name)
    }

    /// One merged slice per round.
    pub fn per_round(&self, name: &str) -> Vec<Slice> {
        let Some(index) = self.index(name) else { return Vec::new() };
        let merged = self.rounds.iter().map(|round| {
            let mut sum = Slice::default();
            round.iter().for_each(|slices| sum.merge(&slices[index]));
            sum
        });
        merged.collect()
    }

    /// Rate of one variant over that of another, by round.
    pub fn ratios(&self, ours: &str, other: &str) -> Vec<f64> {
        let (ours, other) = (self.per_round(ours), self.per_round(other));
        ours.iter().zip(&other).map(|(a, b)| a.rate() / b.rate().max(1e-9)).collect()
    }

    /// Median of the ratios by round; NaN when a variant did not run.
    pub fn ratio(&self, ours: &str, other: &str) -> f64 {
        median(&self.ratios(ours, other))
    }

    /// Median over the rounds of one figure of a variant over that of another; NaN when a variant
    /// did not run.
    pub fn ratio_of(&self, ours: &str, other: &str, figure: impl Fn(&Slice) -> f64) -> f64 {
        let (ours, other) = (self.per_round(ours), self.per_round(other));
        let ratios = ours.iter().zip(&other).map(|(a, b)| figure(a) / figure(b).max(1e-9));
        median(&ratios.collect::<Vec<_>>())
    }

    /// The ratio of a variant to the best of several others, round by round; returns the median.
    /// The best has the highest `figure`, or the lowest if `less` is better. NaN if the variant or
    /// all others did not run.
    pub fn ratio_to_best(
        &self,
        ours: &str,
        others: &[&str],
        less: bool,
        figure: impl Fn(&Slice) -> f64,
    ) -> f64 {
        let all: Vec<Vec<Slice>> = others.iter().map(|name| self.per_round(name)).collect();
        let ran = || all.iter().filter(|rounds| !rounds.is_empty());
        let best = |round: usize| {
            let values = ran().map(|rounds| figure(&rounds[round]));
            if less { values.reduce(f64::min) } else { values.reduce(f64::max) }
        };
        let ours = self.per_round(ours).into_iter().enumerate();
        let ratios = ours.filter_map(|(n, s)| Some(figure(&s) / best(n)?.max(1e-9)));
        median(&ratios.collect::<Vec<_>>())
    }

    /// Adds the ratio of a variant to each of the others that ran, for the best and worst cells.
    /// `others`: variant, and its name in the summary.
    pub fn compare(&self, report: &mut Report, cell: &str, ours: &str, others: &[(&str, &str)]) {
        for (variant, rival) in others {
            let ratio = self.ratio(ours, variant);
            if ratio.is_finite() {
                report.cell(rival, cell, ratio);
            }
        }
    }

    /// The rates of one variant, cycle by cycle.
    pub fn per_cycle(&self, name: &str) -> Vec<f64> {
        let Some(index) = self.index(name) else { return Vec::new() };
        self.rounds.iter().flatten().map(|slices| slices[index].rate()).collect()
    }

    /// The `q` quantile of the ratios by cycle.
    pub fn ratio_quantile(&self, ours: &str, other: &str, q: f64) -> f64 {
        let (Some(ours), Some(other)) = (self.index(ours), self.index(other)) else {
            return f64::NAN;
        };
        let cycles = self.rounds.iter().flatten();
        let ratios = cycles.map(|slices| slices[ours].rate() / slices[other].rate().max(1e-9));
        quantile(&ratios.collect::<Vec<_>>(), q)
    }

    /// Number of rounds that were kept.
    pub fn rounds(&self) -> usize {
        self.rounds.len()
    }

    /// Adds the usual rows of every variant; the names of their metrics begin with `prefix`.
    pub fn add_rows(&self, report: &mut Report, prefix: &str) {
        for name in &self.names {
            let rounds = self.per_round(name);
            let mut add = |metric: &str, unit: &'static str, value: &dyn Fn(&Slice) -> f64| {
                let values: Vec<f64> = rounds.iter().map(value).collect();
                report.row(name, &format!("{prefix}_{metric}"), unit, &values);
            };
            let per_op = |s: &Slice, v: f64| v / s.ops.max(1) as f64;
            add("rate", "1/s", &|s| s.rate());
            add("throughput", "MiB/s", &|s| s.bytes as f64 / s.seconds.max(1e-9) / 1048576.0);
            add("p50", "us", &|s| s.hist.percentile(50.0) as f64 / 1e3);
            add("p99", "us", &|s| s.hist.percentile(99.0) as f64 / 1e3);
            add("p99_9", "us", &|s| s.hist.percentile(99.9) as f64 / 1e3);
            add("max", "us", &|s| s.hist.max() as f64 / 1e3);
            // If several processes did the work there is only the usage of the machine.
            if rounds.iter().any(|s| s.usage.cpu_seconds > 0.0) {
                add("cpu_per_io", "us", &|s| per_op(s, s.usage.cpu_seconds * 1e6));
                add("voluntary_switches_per_io", "1", &|s| per_op(s, s.usage.voluntary as f64));
                add("involuntary_switches_per_io", "1", &|s| per_op(s, s.usage.involuntary as f64));
            }
            if rounds.iter().any(|s| s.machine.cpu_seconds > 0.0) {
                add("machine_cpu_per_io", "us", &|s| per_op(s, s.machine.cpu_seconds * 1e6));
                add("machine_switches_per_io", "1", &|s| per_op(s, s.machine.voluntary as f64));
            }
        }
    }

    /// A bar for each variant: the median rate.
    pub fn rates_plot(&self, behaviour: &'static str, title: impl Into<String>) -> Plot {
        let rate = |name: &&str| {
            let rates: Vec<f64> = self.per_round(name).iter().map(Slice::rate).collect();
            (name.to_string(), vec![median(&rates)])
        };
        let series = self.names.iter().map(rate).collect();
        Plot {
            behaviour,
            title: title.into(),
            unit: "operations/s".into(),
            series,
            ..Plot::default()
        }
    }

    /// Adds a note on how often rounds were repeated.
    pub fn add_notes(&self, report: &mut Report, what: &str, gate: &str) {
        let (rounds, repeated, unsteady) = (self.rounds(), self.repeated, self.unsteady);
        let percent = GATE_SPREAD * 100.0;
        report.note(format!(
            "{what}: {rounds} rounds kept, {repeated} repeated because {gate} varied by more \
             than {percent:.0} %, {unsteady} kept although it did"
        ));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn slice(ops: u64) -> Slice {
        Slice { ops, seconds: 1.0, ..Slice::default() }
    }

    /// Rounds of one cycle, with slices that take no time.
    fn short(rounds: usize) -> Plan {
        Plan {
            rounds,
            cycles: 1,
            slice: Duration::ZERO,
            passes: 1,
            gate: None,
            repeats_max: 0,
            lines: false,
        }
    }

    #[test]
    fn slice_of_several_processes_reports_machine_cpu_only() {
        let metrics = |slice: fn() -> Slice| {
            let outcome = alternate(&mut [Variant::new("one", move |_| Ok(slice()))], &short(1));
            let mut report = Report::default();
            outcome.unwrap().add_rows(&mut report, "x");
            report.table()
        };
        fn used(cpu_seconds: f64) -> Usage {
            Usage { cpu_seconds, ..Usage::default() }
        }
        fn work() -> Result<Slice> {
            Ok(Slice { ops: 1, usage: used(0.5), ..Slice::default() })
        }
        let own = metrics(|| work().unwrap());
        assert!(own.contains(" x_cpu_per_io") && !own.contains("machine"), "{own}");
        let whole = metrics(|| Slice { machine: used(0.25), ..whole_machine(work).unwrap() });
        assert!(whole.contains("x_machine_cpu_per_io") && !whole.contains(" x_cpu"), "{whole}");
        assert!(!whole.contains("x_voluntary"), "{whole}");
    }

    /// H1: the variant that runs before another one changes from pass to pass.
    #[test]
    fn orders_are_drawn_and_not_turned() {
        let orders: Vec<Vec<usize>> = (0..64).map(|pass| order_of(pass, 4)).collect();
        for order in &orders {
            let mut sorted = order.clone();
            sorted.sort_unstable();
            assert_eq!(sorted, [0, 1, 2, 3]);
        }
        let behind = |a, b| orders.iter().filter(|o| o.windows(2).any(|w| w == [a, b])).count();
        // With a rotated order, 1 ran after 0 in 3 passes of 4.
        let counts: Vec<usize> = (1..4).map(|b| behind(0, b)).collect();
        assert!(counts.iter().all(|n| (6..32).contains(n)), "{counts:?}");
        assert_eq!(orders, (0..64).map(|pass| order_of(pass, 4)).collect::<Vec<_>>());
    }

    /// H2: a ratio over all rounds at once would be another figure.
    #[test]
    fn ratio_to_best_chooses_rival_by_round() {
        let ours = Variant::new("ours", |_| Ok(slice(100)));
        let one = Variant::new("one", |turn| Ok(slice(if turn.cycle == 0 { 50 } else { 200 })));
        let two = Variant::new("two", |turn| Ok(slice(if turn.cycle == 0 { 100 } else { 20 })));
        let outcome = alternate(&mut [ours, one, two], &short(2)).unwrap();
        let best = |others: &[&str], less| outcome.ratio_to_best("ours", others, less, Slice::rate);
        assert_eq!(best(&["one", "two"], false), 0.75);
        assert_eq!(best(&["one", "two", "absent"], true), 3.5);
        assert_eq!(best(&["one"], false), 1.25);
        assert!(best(&["absent"], false).is_nan());
        let mut report = Report::default();
        outcome.compare(&mut report, "a cell", "ours", &[("one", "the one"), ("absent", "none")]);
        assert_eq!(
            report.to_json("x", serde_json::json!({}))["cells"].as_array().unwrap().len(),
            1
        );
    }

    /// H3: a round whose gate varies is repeated, and the report says so.
    #[test]
    fn unsteady_round_is_repeated_and_reported() {
        let mut calls = 0;
        let gate = Variant::new("direct", |turn| {
            Ok(slice(if turn.cycle < 4 { 100 + turn.cycle * 100 } else { 100 }))
        });
        let ours = Variant::new("ours", |_| {
            calls += 1;
            Ok(slice(50))
        });
        let slice = Duration::from_millis(2);
        let gate_of = Some("direct");
        let plan = Plan { cycles: 4, slice, passes: 2, gate: gate_of, repeats_max: 3, ..short(2) };
        let outcome = alternate(&mut [gate, ours], &plan).unwrap();
        assert_eq!((outcome.rounds(), outcome.repeated, outcome.unsteady), (2, 1, 0));
        assert_eq!(outcome.ratio("ours", "direct"), 0.5);
        assert_eq!(outcome.ratio_quantile("ours", "direct", 0.1), 0.5);
        assert!(outcome.ratio("ours", "absent").is_nan());
        let mut report = Report::default();
        outcome.add_rows(&mut report, "randread");
        outcome.add_notes(&mut report, "randread", "direct");
        assert!(report.table().contains("1 repeated"));
        let plot = outcome.rates_plot("hit", "rates");
        assert_eq!(plot.series[1], ("ours".to_string(), vec![50.0]));
        drop(outcome);
        assert_eq!(calls, 24);
    }
}
