//! `forebay stat` and `forebay tune`.

use crate::control::client::Client;
use crate::control::proto::Request;
use crate::control::which::Which;
use crate::failure::{Failure, Outcome};
use crate::{output, volume};
use clap::Args;
use forebay_base::units::format_size;
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// `forebay stat`
#[derive(Args, Debug)]
pub struct StatArgs {
    /// A mount: its process. Or a volume, or a path in one: what that is
    #[arg(value_name = "DIR|VOLUME[:/PATH]")]
    pub path: Option<String>,
    /// Which process.
    #[command(flatten)]
    pub which: Which,
    /// Show what the memory is used for, and each part's bound
    #[arg(long, conflicts_with_all = ["prometheus", "watch"])]
    pub budget: bool,
    /// Print JSON
    #[arg(long, conflicts_with = "prometheus")]
    pub json: bool,
    /// Print again every SECONDS, with rates
    #[arg(long, value_name = "SECONDS", num_args = 0..=1, default_missing_value = "1",
          value_parser = clap::value_parser!(u32).range(1..=3600))]
    pub watch: Option<u32>,
    /// With --watch: stop after N times
    #[arg(long, value_name = "N", requires = "watch")]
    pub count: Option<u64>,
    /// Print in the text format of Prometheus
    #[arg(long, conflicts_with = "watch")]
    pub prometheus: bool,
}

/// `forebay tune`
#[derive(Args, Debug)]
pub struct TuneArgs {
    /// Which process.
    #[command(flatten)]
    pub which: Which,
    /// A mount whose process is meant, and settings to change; no setting shows all
    #[arg(value_name = "DIR|NAME=VALUE", value_parser = tune_word)]
    pub words: Vec<TuneWord>,
    /// Evict everything clean from the cache
    #[arg(long)]
    pub drop_clean: bool,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// A word after `tune`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TuneWord {
    /// `NAME=VALUE`
    Set(String, String),
    /// Anything without `=`: a mount.
    Mount(PathBuf),
}

fn tune_word(text: &str) -> Result<TuneWord, String> {
    match text.split_once('=') {
        Some((name, value)) if !name.is_empty() && !value.is_empty() => {
            Ok(TuneWord::Set(name.trim().to_string(), value.trim().to_string()))
        }
        None if Path::new(text).is_dir() => Ok(TuneWord::Mount(text.into())),
        _ => Err("expected NAME=VALUE or a mount; `forebay tune` alone lists the names".into()),
    }
}

/// Runs `forebay stat`.
pub fn stat(args: &StatArgs) -> Outcome {
    match &args.path {
        None => process(Client::find(&args.which)?, args),
        Some(word) if Path::new(word).is_dir() => {
            args.which.refuse_with_mount("stat", Path::new(word))?;
            process(Client::of_mount(Path::new(word))?, args)
        }
        Some(_) if args.budget || args.prometheus || args.watch.is_some() => {
            let text = "stat: --budget, --prometheus and --watch are about a process";
            Err(Failure::usage(text).hint("name a mount, or none of them"))
        }
        Some(word) => volume::stat::stat(word, &args.which, args.json),
    }
}

fn process(mut client: Client, args: &StatArgs) -> Outcome {
    if args.prometheus {
        let text = client.ask(&Request::Prometheus)?;
        output::line(text.as_str().unwrap_or_default().trim_end());
        return Ok(());
    }
    if args.budget {
        let budget = client.ask(&Request::Budget)?;
        match args.json {
            true => output::line(pretty(&budget)),
            false => output::table(&budget_rows(&budget)),
        }
        return Ok(());
    }
    let Some(seconds) = args.watch else {
        let now = client.ask(&Request::Stat)?;
        match args.json {
            true => output::line(pretty(&now)),
            false => show(&now),
        }
        return Ok(());
    };
    watch(&mut client, args, Duration::from_secs(seconds.into()))
}

fn watch(client: &mut Client, args: &StatArgs, pause: Duration) -> Outcome {
    let mut before = (Instant::now(), client.ask(&Request::Stat)?);
    let mut shown = 0;
    while args.count.is_none_or(|n| shown < n) {
        std::thread::sleep(pause);
        let now = (Instant::now(), client.ask(&Request::Stat)?);
        if args.json {
            output::line(now.1.to_string());
        } else {
            if shown % 20 == 0 {
                output::line(WATCH_HEAD);
            }
            output::line(watch_row(&before, &now));
        }
        (before, shown) = (now, shown + 1);
    }
    Ok(())
}

const WATCH_HEAD: &str =
    "  hits/s   miss/s  hit%  from-disk MB/s  to-disk MB/s    resident       dirty  in-flight";

fn watch_row(before: &(Instant, Value), now: &(Instant, Value)) -> String {
    let seconds = (now.0 - before.0).as_secs_f64().max(0.001);
    let delta = |name: &str| counter(&now.1, name).saturating_sub(counter(&before.1, name)) as f64;
    let (hits, misses) = (delta("hits"), delta("misses"));
    // Direct reads that reach the device are counted in `uncached_read_bytes`, too.
    let from_disk = delta("miss_bytes") + delta("readahead_bytes") + delta("uncached_read_bytes");
    format!(
        "{:8.0} {:8.0} {:>5} {:15.1} {:13.1} {:>11} {:>11} {:>10}",
        hits / seconds,
        misses / seconds,
        percent(hits, hits + misses),
        from_disk / seconds / 1e6,
        delta("written_bytes") / seconds / 1e6,
        format_size(resident(&now.1)),
        format_size(counter(&now.1, "dirty_bytes")),
        format_size(counter(&now.1, "writeback_bytes")),
    )
}

fn counter(stat: &Value, name: &str) -> u64 {
    stat["stats"][name].as_u64().unwrap_or(0)
}

fn resident(stat: &Value) -> u64 {
    let frames = counter(stat, "frames_total").saturating_sub(counter(stat, "frames_free"));
    frames.saturating_mul(4096)
}

fn percent(part: f64, whole: f64) -> String {
    if whole > 0.0 { format!("{:.1}", 100.0 * part / whole) } else { "-".into() }
}

fn pretty(value: &Value) -> String {
    serde_json::to_string_pretty(value).expect("a JSON value prints")
}

fn show(stat: &Value) {
    output::line(format!(
        "forebay {} pid {} up {} s, engine {} ({})",
        stat["version"].as_str().unwrap_or("?"),
        stat["pid"],
        stat["uptime_seconds"],
        stat["aio"].as_str().unwrap_or("?"),
        stat["aio_reason"].as_str().unwrap_or("?"),
    ));
    for export in stat["exports"].as_array().into_iter().flatten() {
        show_store(&format!("export {}", export["name"]), export);
    }
    for device in stat["devices"].as_array().into_iter().flatten() {
        show_store(&format!("device {}", text_of(device, "device")), device);
    }
    stat["mounts"].as_array().into_iter().flatten().for_each(show_mount);
    let (hits, misses) = (counter(stat, "hits") as f64, counter(stat, "misses") as f64);
    output::line(format!(
        "cache {}: {} resident, {} dirty, {} in write-out, hit ratio {} %",
        format_size(counter(stat, "budget_bytes")),
        format_size(resident(stat)),
        format_size(counter(stat, "dirty_bytes")),
        format_size(counter(stat, "writeback_bytes")),
        percent(hits, hits + misses),
    ));
    let rows: Vec<Vec<String>> = stat["stats"]
        .as_object()
        .into_iter()
        .flatten()
        .map(|(name, value)| vec![name.clone(), shown(name, value)])
        .collect();
    output::table(&rows);
}

fn text_of<'a>(shown: &'a Value, key: &str) -> &'a str {
    shown[key].as_str().unwrap_or("?")
}

fn read_only(shown: &Value) -> &'static str {
    if shown["read_only"].as_bool() == Some(true) { ", read-only" } else { "" }
}

fn direct_io(shown: &Value) -> String {
    let direct = if shown["direct_io"].as_bool() == Some(true) { "on" } else { "off" };
    format!("direct-io {direct} ({})", text_of(shown, "direct_io_reason"))
}

/// What exports and devices have.
fn show_store(what: &str, shown: &Value) {
    output::line(format!(
        "{what}: {} {}, {}{}, {}",
        text_of(shown, "path"),
        format_size(shown["size"].as_u64().unwrap_or(0)),
        text_of(shown, "mode"),
        read_only(shown),
        direct_io(shown),
    ));
    show_behaviours(shown);
}

/// Prints the effects and the values of the options of docs/reference/options.md.
fn show_behaviours(shown: &Value) {
    let need = |key: &str| u8::from(shown[key].as_bool() == Some(true));
    output::line(format!(
        "  stable_pages_required {} ({}), its device {} ({})",
        need("stable_pages_required"),
        text_of(shown, "stable_pages_reason"),
        need("device_stable_pages_required"),
        text_of(shown, "device_stable_pages_reason"),
    ));
    let options = shown["options"].as_object().into_iter().flatten();
    let set = options.filter_map(|(name, value)| Some(format!("{name}={}", value.as_str()?)));
    output::line(format!("  {}", set.collect::<Vec<_>>().join(" ")));
}

fn show_mount(mount: &Value) {
    output::line(format!(
        "mount {}: {}, {}{}, cache {}, {}, {}",
        text_of(mount, "dir"),
        text_of(mount, "volume"),
        text_of(mount, "kind"),
        read_only(mount),
        text_of(mount, "cache"),
        text_of(mount, "mode"),
        direct_io(mount),
    ));
    show_behaviours(mount);
    let (known, open) = (&mount["inodes_known"], &mount["open_files"]);
    let trees = &mount["process_trees"];
    output::line(format!(
        "  {known} inodes known to the kernel, {open} open files, {trees} process trees with their own mode"
    ));
    let bytes = format_size(mount["kernel_fill_bytes"].as_u64().unwrap_or(0));
    let fills = &mount["kernel_fills"];
    output::line(format!("  {bytes} read into the kernel's cache by {fills} requests"));
}

/// A counter, or a ratio of two.
fn shown(name: &str, value: &Value) -> String {
    match value.as_u64() {
        Some(number) => human(name, number),
        None => format!("{:.3}", value.as_f64().unwrap_or(0.0)),
    }
}

/// A counter with its unit, which is the end of its name.
fn human(name: &str, value: u64) -> String {
    if name.ends_with("_bytes") {
        format_size(value)
    } else if name.ends_with("_nanos") {
        format!("{:.1} ms", value as f64 / 1e6)
    } else {
        value.to_string()
    }
}

fn budget_rows(budget: &Value) -> Vec<Vec<String>> {
    let mut rows = vec![vec!["what".to_string(), "now".into(), "bound".into()]];
    let (mut now, mut bound) = (0, 0);
    for part in budget.as_array().into_iter().flatten() {
        let number = |key: &str| part[key].as_u64().unwrap_or(0);
        now += number("now");
        bound += number("bound");
        let what = part["what"].as_str().unwrap_or("?").to_string();
        rows.push(vec![what, format_size(number("now")), format_size(number("bound"))]);
    }
    rows.push(vec!["sum".into(), format_size(now), format_size(bound)]);
    rows
}

/// The mount, if one is named, and the settings to change.
type Split<'a> = (Option<&'a Path>, Vec<(&'a String, &'a String)>);

fn split(words: &[TuneWord]) -> Outcome<Split<'_>> {
    let (mut dir, mut settings) = (None, Vec::new());
    for word in words {
        match word {
            TuneWord::Set(name, value) => settings.push((name, value)),
            TuneWord::Mount(path) if dir.is_none() => dir = Some(path.as_path()),
            TuneWord::Mount(path) => {
                let text = format!("tune: {}: a setting is NAME=VALUE", path.display());
                return Err(Failure::usage(text));
            }
        }
    }
    Ok((dir, settings))
}

/// Runs `forebay tune`.
pub fn tune(args: &TuneArgs) -> Outcome {
    let (dirs, settings) = split(&args.words)?;
    let mut client = match dirs {
        Some(dir) => {
            args.which.refuse_with_mount("tune", dir)?;
            Client::of_mount(dir)?
        }
        None => Client::find(&args.which)?,
    };
    for (name, value) in &settings {
        client.ask(&Request::Tune(name.to_string(), value.to_string()))?;
    }
    if args.drop_clean {
        let dropped = client.ask(&Request::DropClean)?;
        log::info!("{} evicted", format_size(dropped.as_u64().unwrap_or(0)));
    }
    let tunables = client.ask(&Request::Tunables)?;
    let all = tunables.as_object().ok_or_else(|| Failure::new("tune: an odd reply"))?;
    // After a change only the changed settings are shown; their values may have been rounded.
    let asked = |name: &str| settings.is_empty() || settings.iter().any(|s| s.0 == name);
    if args.json {
        output::line(pretty(&tunables));
    } else {
        for (name, value) in all.iter().filter(|(name, _)| asked(name)) {
            output::line(format!("{name}={}", value.as_str().unwrap_or_default()));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    /// Each counter of a row exists, and is in its column.
    #[test]
    fn watch_row_has_increase_of_each_counter() {
        let fields = forebay::Stats::default().fields();
        let of = |amounts: &[(&str, u64)]| {
            let amount =
                |name: &str| amounts.iter().find(|(of, _)| *of == name).map_or(0, |of| of.1);
            let pairs = fields.iter().map(|(name, _)| (name.to_string(), amount(name).into()));
            json!({ "stats": pairs.collect::<serde_json::Map<_, _>>() })
        };
        let start = Instant::now();
        let amounts = [
            ("hits", 30),
            ("misses", 10),
            ("miss_bytes", 1_000_000),
            ("readahead_bytes", 2_000_000),
            ("uncached_read_bytes", 4_000_000),
            ("direct_read_bytes", 8_000_000),
            ("written_bytes", 16_000_000),
            ("frames_total", 5),
            ("frames_free", 1),
            ("dirty_bytes", 8192),
            ("writeback_bytes", 4096),
        ];
        let second = (start + Duration::from_secs(1), of(&amounts));
        let row = watch_row(&(start, of(&[])), &second);
        let cells: Vec<&str> = row.split_whitespace().collect();
        let wanted = "30 10 75.0 7.0 16.0 16 KiB 8 KiB 4 KiB";
        assert_eq!(cells.join(" "), wanted, "{row}");
    }

    #[test]
    fn counters_show_their_unit() {
        assert_eq!(human("dirty_bytes", 4096), "4 KiB");
        assert_eq!(human("reclaim_nanos", 1_500_000), "1.5 ms");
        assert_eq!(human("hits", 12), "12");
        assert_eq!(shown("write_amplification", &json!(8.5)), "8.500");
        assert_eq!(percent(0.0, 0.0), "-");
    }

    #[test]
    fn budget_table_ends_with_sum() {
        let budget = json!([{ "what": "frames", "now": 4096, "bound": 8192 },
                            { "what": "index", "now": 4096, "bound": 8192 }]);
        let rows = budget_rows(&budget);
        assert_eq!(rows.last().unwrap(), &["sum", "8 KiB", "16 KiB"]);
    }
}
