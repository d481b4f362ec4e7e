//! Each rival at its best: several of its configurations are tried, and the fastest is measured.

use crate::harness::alternate::Turn;
use crate::harness::load::Slice;
use crate::harness::options::Options;
use crate::report::model::{Report, number};
use crate::rivals::server::{Configuration, Kind};
use forebay_base::Result;

/// The configuration with the highest `rate`; a note lists the rates of all. `None`: no
/// configuration works here, which is reported as not run.
pub fn best(
    configurations: Vec<Configuration>,
    what: &str,
    report: &mut Report,
    mut rate: impl FnMut(&Kind) -> Result<f64>,
) -> Option<Kind> {
    let (mut tried, mut kept, mut why) = (Vec::new(), None, None);
    for configuration in configurations {
        match rate(&configuration.kind) {
            Ok(rate) => {
                tried.push(format!("{} {}/s", configuration.how, number(rate)));
                if kept.as_ref().is_none_or(|(most, _)| rate > *most) {
                    kept = Some((rate, configuration));
                }
            }
            Err(e) => {
                tried.push(format!("{} failed", configuration.how));
                why = Some(e);
            }
        }
    }
    let Some((_, configuration)) = kept else {
        match why {
            Some(e) => report.left_out(what, e),
            None => report.not_run(what, "no configuration to start it"),
        }
        return None;
    };
    report.note(format!(
        "{what}: at its best with {} (tried: {})",
        configuration.how,
        tried.join("; ")
    ));
    Some(configuration.kind)
}

/// The better rate of two short slices, operations per second.
pub fn try_out(options: &Options, mut slice: impl FnMut(&Turn) -> Result<Slice>) -> Result<f64> {
    let time = options.millis(60, 700);
    let mut most = 0.0;
    for seed in 1..=if options.quick { 1 } else { 2 } {
        most = slice(&Turn { seed, cycle: 0, time })?.rate().max(most);
    }
    Ok(most)
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_base::{Error, ErrorKind};

    #[test]
    fn best_keeps_fastest_and_names_failures() {
        let configuration =
            |how: &str| Configuration { how: how.into(), kind: Kind::Qemu(vec![how.into()]) };
        let mut report = Report::default();
        let rate = |kind: &Kind| match kind {
            Kind::Qemu(words) if words[0] == "broken" => {
                Err(Error::new(ErrorKind::Io, "start", "no such option"))
            }
            Kind::Qemu(words) => Ok(words[0].len() as f64),
            _ => unreachable!("only these are tried"),
        };
        let configurations = vec![
            configuration("ab"),
            configuration("broken"),
            configuration("abc"),
            configuration("a"),
        ];
        let Some(Kind::Qemu(kept)) = best(configurations, "x", &mut report, rate) else {
            panic!("none")
        };
        assert_eq!(kept, ["abc"]);
        let table = report.table();
        assert!(table.contains("at its best with abc") && table.contains("broken failed"));
        assert!(best(vec![configuration("broken")], "y", &mut report, rate).is_none());
        assert!(report.table().contains("FAILED  y: "), "it is there and does not start");
        assert!(best(Vec::new(), "z", &mut report, rate).is_none());
        assert!(report.table().contains("not run  z: "));
    }
}
