//! The options of the five behaviours, on each front end: each test fails where the option does
//! nothing.

use crate::common::front::{By, Front, Kind, folder};
use crate::common::place::{Place, may_run};
use crate::common::{stderr, until};
use serde_json::Value;

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;
/// Bytes of a read that is one request on each front end.
const LEFT: u64 = 128 * KIB;

/// Bytes that write-out writes for one durable write of so many bytes, where our cache has the
/// folio of `folio` bytes. With `cache=kernel` it has only what was written and not flushed yet.
fn written_out(front: &mut Front, len: u64, folio: u64) -> u64 {
    if front.kind == Kind::MountKernel {
        front.tune(&["dirty_background_bytes=4096"]);
        front.client().write(2 * MIB, folio as usize);
        until("write-out, before a flush", || {
            front.counter("dirty_bytes") == 0 && front.counter("unflushed_bytes") >= folio
        });
    } else {
        front.read(2 * MIB, MIB as usize);
    }
    let before = front.counter("written_bytes");
    front.write(2 * MIB, len as usize);
    front.counter("written_bytes") - before
}

/// Behaviour 1. The same write costs a folio or a block.
#[test]
fn dirty_tracking_and_folio_size_decide_what_a_write_costs() {
    if !may_run() {
        return;
    }
    for kind in Kind::ALL {
        let mut front = Front::new(kind, &["mode=cached", "dirty_tracking=folio"]);
        let folio = 64 * KIB;
        assert_eq!(written_out(&mut front, 4 * KIB, folio), folio, "{kind:?}: a folio");
        front.tune(&["dirty_tracking=block"]);
        assert_eq!(written_out(&mut front, 4 * KIB, folio), 4 * KIB, "{kind:?}: a block");
        drop(front);
        let large = ["mode=cached", "dirty_tracking=folio", "folio_size=256k"];
        let mut front = Front::new(kind, &large);
        let folio = 256 * KIB;
        assert_eq!(written_out(&mut front, 4 * KIB, folio), folio, "{kind:?}: a large folio");
    }
}

/// Behaviour 1, in the default mode of a mount: what a program has read is in the kernel's cache
/// alone. So a write to it costs a block with either value; `docs/reference/options.md` says so.
#[test]
fn dirty_tracking_decides_nothing_about_what_the_kernel_caches() {
    if !may_run() {
        return;
    }
    for tracking in ["dirty_tracking=folio", "dirty_tracking=block"] {
        let mut front = Front::new(Kind::MountKernel, &["mode=cached", tracking]);
        front.read(2 * MIB, MIB as usize);
        assert!(front.in_kernel() >= MIB, "{tracking}");
        let before = front.counter("written_bytes");
        front.write(2 * MIB, 4096);
        assert_eq!(front.counter("written_bytes") - before, 4096, "{tracking}");
    }
}

/// Behaviour 1. On images, the block is what the option says.
#[test]
fn block_size_decides_what_a_small_write_costs() {
    if !may_run() {
        return;
    }
    for kind in [Kind::ExportImage, Kind::DeviceImage] {
        let mut all = vec!["mode=cached", "direct_io=off"];
        if kind == Kind::DeviceImage {
            all.push("sector_size=512");
        }
        let mut front = Front::new(kind, &all);
        assert_eq!(written_out(&mut front, 512, 64 * KIB), 4096, "{kind:?}");
        drop(front);
        all.push("block_size=512");
        let mut front = Front::new(kind, &all);
        assert_eq!(written_out(&mut front, 512, 64 * KIB), 512, "{kind:?}");
    }
}

/// Behaviour 2. The kernel caches the image below, or does not; switched while it is served.
#[test]
fn direct_io_decides_whether_the_image_is_cached_below() {
    if !may_run() {
        return;
    }
    for kind in Kind::ALL {
        let mut front = Front::new(kind, &["mode=cached", "direct_io=off"]);
        let read_anew = |front: &mut Front| {
            front.drop_clean();
            front.read(2 * MIB, MIB as usize);
            front.below()
        };
        assert!(read_anew(&mut front) >= MIB, "{kind:?}: off");
        for (mode, outcome, reason) in
            [("on", true, "switched on"), ("auto", true, "auto: "), ("off", false, "switched off")]
        {
            front.tune(&[&format!("direct_io={mode}")]);
            let stat = front.stat();
            assert_eq!(stat["direct_io"], outcome, "{kind:?} {mode}: {stat}");
            let why = stat["direct_io_reason"].as_str().expect("a reason");
            assert!(why.contains(reason), "{kind:?} {mode}: {why}");
            let below = read_anew(&mut front);
            assert_eq!(below < MIB, outcome, "{kind:?} {mode}: {below} bytes below");
        }
    }
}

/// Behaviour 2. Where `O_DIRECT` is not possible, `on` is refused with the reason, and `auto` says
/// it.
#[test]
fn direct_io_on_is_refused_where_it_is_not_possible() {
    if !may_run() {
        return;
    }
    for kind in Kind::ALL {
        let place = folder(kind, &[]);
        let _memory = InMemory::new(&place, if kind.is_volume() { "vol" } else { "disk" });
        let words = [&kind.command()[..], &["--direct-io", "on", "--cache-size", "64M"]].concat();
        let words = if kind.is_mount() { &words[..words.len() - 2] } else { &words[..] };
        let done = place.folder.forebay(words);
        let said = stderr(&done);
        assert!(!done.status.success() && said.contains("tmpfs"), "{kind:?}: {said}");
        let front = Front::in_folder(kind, place, &[]);
        let stat = front.stat();
        assert_eq!(
            (&stat["direct_io"], &stat["options"]["direct_io"]),
            (&false.into(), &"auto".into())
        );
        let why = stat["direct_io_reason"].as_str().expect("a reason");
        assert!(why.contains("tmpfs"), "{kind:?}: {why}");
        let said = front.refused(1, &["tune", "direct_io=on"]);
        assert!(said.contains("tmpfs"), "{kind:?}: {said}");
    }
}

/// An image that is moved to memory, with a link in its place; removed when dropped.
struct InMemory(std::path::PathBuf);

impl InMemory {
    fn new(place: &Place, name: &str) -> Self {
        let folder = place.folder.path("");
        let folder = folder.file_name().expect("a name").display().to_string();
        let moved = Self(std::path::Path::new("/dev/shm").join(format!("{folder}-{name}")));
        let to = moved.0.display().to_string();
        let line = "cp --sparse=always \"$0\" \"$1\" && ln -sf \"$1\" \"$0\"";
        place.run("sh", &["-c", line, name, &to]);
        moved
    }
}

impl Drop for InMemory {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// Behaviour 2. Which way a read takes, and what it leaves in our cache, by the mode at the start
/// and by `tune`.
#[test]
fn mode_decides_what_a_read_leaves_in_the_cache() {
    if !may_run() {
        return;
    }
    const COUNTERS: [&str; 2] = ["direct_read_bytes", "uncached_read_bytes"];
    let passes = |front: &mut Front, kind: Kind, mode: &str| {
        front.drop_clean();
        let before = COUNTERS.map(|name| front.counter(name));
        front.read(2 * MIB, LEFT as usize);
        let after = COUNTERS.map(|name| front.counter(name));
        let ways = [after[0] - before[0] >= LEFT, after[1] - before[1] >= LEFT];
        // What the kernel reads into its cache passes ours.
        let passes_ours = mode != "cached" || kind == Kind::MountKernel;
        assert_eq!(ways, [mode == "direct", passes_ours], "{kind:?} {mode}: {ways:?}");
        assert_eq!(front.stat()["mode"], mode);
        if Kind::FRONT_ENDS.contains(&kind) {
            let resident = front.resident();
            assert_eq!(resident >= LEFT, !passes_ours, "{kind:?} {mode}: {resident} bytes");
        }
        if kind.is_mount() {
            let (kernel, keeps) = (front.in_kernel(), kind == Kind::MountKernel);
            assert_eq!(kernel >= LEFT, keeps && mode == "cached", "{kind:?} {mode}: {kernel}");
        }
    };
    for kind in Kind::ALL {
        let mut front = Front::new(kind, &["mode=direct"]);
        passes(&mut front, kind, "direct");
        for mode in ["cached", "uncached", "direct"] {
            front.tune(&[&format!("mode={mode}")]);
            passes(&mut front, kind, mode);
        }
        drop(front);
        let mut front = Front::new(kind, &["mode=uncached"]);
        passes(&mut front, kind, "uncached");
    }
}

/// Behaviour 3. With `stable_pages=on` the strategy `snapshot` writes copies, `wait` does not; with
/// `off` nothing does. A volume with checksums needs stable pages always, and says so.
#[test]
fn stable_pages_and_strategy_decide_what_is_copied() {
    if !may_run() {
        return;
    }
    for kind in Kind::ALL {
        let sums: &[&str] = if kind.is_volume() { &["--checksum", "none"] } else { &[] };
        let options = ["mode=cached", "stable_pages=on", "stable=snapshot"];
        let mut front = Front::in_folder(kind, folder(kind, sums), &options);
        let mut copies = |settings: &[&str], need: bool, why: &str| {
            if !settings.is_empty() {
                front.tune(settings);
            }
            let stat = front.stat();
            assert_eq!(stat["stable_pages_required"], need, "{kind:?} {settings:?}: {stat}");
            assert_eq!(stat["stable_pages_reason"], why, "{kind:?} {settings:?}: {stat}");
            let before = front.counter("stable_snapshots");
            front.write(2 * MIB, 64 << 10);
            front.counter("stable_snapshots") > before
        };
        assert!(copies(&[], true, "switched on"), "{kind:?}: snapshot");
        assert!(!copies(&["stable=wait"], true, "switched on"), "{kind:?}: wait");
        let off = copies(&["stable=snapshot", "stable_pages=off"], false, "switched off");
        assert!(!off, "{kind:?}: off");
    }
    let front = Front::new(Kind::Mount, &["mode=cached"]);
    let said = front.refused(1, &["tune", "stable_pages=off"]);
    assert!(said.contains("checksums"), "{said}");
    let stat = front.stat();
    assert_eq!(stat["stable_pages_required"], true, "{stat}");
    assert_eq!(stat["stable_pages_reason"], "checksums of the volume");
}

/// Behaviour 3. A writer that meets a block in write-out waits, or gets a fresh frame.
#[test]
fn stable_decides_about_writes_to_blocks_in_write_out() {
    if !may_run() {
        return;
    }
    for kind in Kind::ALL {
        let mut front = Front::new(kind, &["mode=cached", "stable_pages=on", "stable=wait"]);
        let (waits, copies) = meet_write_out(&mut front);
        assert!(waits > 0 && copies == 0, "{kind:?} wait: {waits} waits, {copies} copies");
        front.tune(&["stable=cow"]);
        let (waits, copies) = meet_write_out(&mut front);
        assert!(waits == 0 && copies > 0, "{kind:?} cow: {waits} waits, {copies} copies");
    }
}

/// Rewrites blocks, which the flusher writes out at once, until the writer has met a write-out.
/// Returns the waits and the copies.
fn meet_write_out(front: &mut Front) -> (u64, u64) {
    front.tune(&["dirty_background_bytes=4096"]);
    let values = |front: &Front| ["stable_waits", "stable_copies"].map(|name| front.counter(name));
    let before = values(front);
    let hits = front.counter("stable_hits");
    until("a writer meets a write-out", || {
        (0..200).for_each(|_| front.client().write(2 * MIB, 256 << 10));
        front.counter("stable_hits") > hits
    });
    let after = values(front);
    (after[0] - before[0], after[1] - before[1])
}

/// Behaviour 4. `noaccess` caches what an uncached request reads, the others do not. One request
/// reads it: a second one would be a stream, whose read-ahead stays until it is used.
#[test]
fn uncached_strategy_decides_what_an_uncached_read_leaves() {
    if !may_run() {
        return;
    }
    for kind in Kind::FRONT_ENDS {
        let mut front = Front::new(kind, &["mode=uncached", "uncached_strategy=noaccess"]);
        let mut left = |strategy: &str| {
            front.tune(&[&format!("uncached_strategy={strategy}")]);
            front.drop_clean();
            front.read(2 * MIB, LEFT as usize);
            front.resident()
        };
        for (strategy, is_kept) in [("noaccess", true), ("dropbehind", false), ("ours", false)] {
            let resident = left(strategy);
            assert_eq!(resident >= LEFT, is_kept, "{kind:?} {strategy}: {resident} bytes");
        }
        drop(front);
        let mut front = Front::new(kind, &["mode=uncached", "uncached_strategy=noaccess"]);
        front.read(2 * MIB, LEFT as usize);
        assert!(front.resident() >= LEFT, "{kind:?}: by the option at the start");
    }
}

/// Behaviour 4, in the default mode of a mount: a cached read is in the kernel's cache alone, with
/// each strategy.
#[test]
fn uncached_strategy_holds_no_cached_read_twice() {
    if !may_run() {
        return;
    }
    for strategy in ["noaccess", "dropbehind", "ours"] {
        let strategy = format!("uncached_strategy={strategy}");
        let mut front = Front::new(Kind::MountKernel, &["mode=cached", &strategy]);
        front.drop_clean();
        front.read(2 * MIB, LEFT as usize);
        let (kernel, ours) = (front.in_kernel(), front.resident());
        assert!(kernel >= LEFT && ours < LEFT, "{strategy}: {kernel} and {ours} bytes");
    }
}

/// Behaviour 4. With `dropbehind` a writer writes out itself, so that each rewrite of a block goes
/// to the device. With the others the flusher writes it later, once for many rewrites.
#[test]
fn uncached_strategy_decides_who_writes_out() {
    if !may_run() {
        return;
    }
    const REWRITES: u64 = 64;
    for kind in Kind::ALL {
        let mut front = Front::new(kind, &["mode=uncached", "uncached_strategy=dropbehind"]);
        let written = |front: &mut Front| {
            let before = front.counter("written_bytes");
            (0..REWRITES).for_each(|_| front.client().write(2 * MIB, 4096));
            front.client().sync();
            (front.counter("written_bytes") - before) / 4096
        };
        assert_eq!(written(&mut front), REWRITES, "{kind:?}: dropbehind");
        for strategy in ["ours", "noaccess"] {
            front.tune(&[&format!("uncached_strategy={strategy}")]);
            let writes = written(&mut front);
            assert!(writes < REWRITES / 2, "{kind:?} {strategy}: {writes} writes");
        }
    }
}

/// Behaviour 5. A direct write takes a turn from the threshold on, with `alloc=serialized` alone.
/// It takes blocks out of a window with `alloc=reserve` alone.
#[test]
fn alloc_and_threshold_decide_which_writes_take_turns() {
    if !may_run() {
        return;
    }
    for kind in Kind::VOLUMES {
        for alloc in ["interleaved", "serialized", "reserve"] {
            let alloc_option = format!("alloc={alloc}");
            let options = ["mode=direct", &alloc_option, "serialized_dio_pages=8"];
            let mut front = Front::new(kind, &options);
            let mut turns = |pages: usize| {
                let turns = |front: &Front| {
                    let stat = front.stat();
                    assert_eq!(stat["alloc"]["mode"], alloc, "{stat}");
                    stat["alloc"]["turns"].as_u64().expect("a number")
                };
                let before = turns(&front);
                front.write(2 * MIB, pages << 12);
                turns(&front) - before
            };
            let takes = u64::from(alloc == "serialized");
            assert_eq!((turns(7), turns(8)), (0, takes), "{kind:?} {alloc}");
            let windows = front.stat()["alloc"]["windows"].as_u64().expect("a number");
            assert_eq!(windows > 0, alloc == "reserve", "{kind:?} {alloc}: {windows} windows");
            front.tune(&["serialized_dio_pages=16"]);
            let mut turns_of = |pages: usize| {
                let before = front.stat()["alloc"]["turns"].as_u64();
                front.write(2 * MIB, pages << 12);
                front.stat()["alloc"]["turns"].as_u64() != before
            };
            assert_eq!((turns_of(8), turns_of(16)), (false, takes == 1), "{kind:?} {alloc}");
        }
    }
}

/// What makes no sense is refused by name and with the reason, when a command starts and by `tune`.
#[test]
fn invalid_option_is_refused_by_name_with_reason() {
    if !may_run() {
        return;
    }
    for kind in Kind::ALL {
        let place = folder(kind, &[]);
        let refused: &[(&str, &str, &str)] = match kind.is_volume() {
            true => &[("block_size", "4k", "was created with")],
            false => &[
                ("alloc", "reserve", "allocates no blocks"),
                ("serialized_dio_pages", "8", "allocates no blocks"),
            ],
        };
        for (name, value, why) in refused {
            let flag = format!("--{}", name.replace('_', "-"));
            let said = place.folder.refused(2, &[&kind.command()[..], &[&flag, value]].concat());
            let named = said.contains(name) || said.contains(&flag);
            assert!(named && said.contains(why), "{kind:?} {name}: {said}");
        }
        if kind.is_mount() {
            let words = [&kind.command()[..], &["-o", "block_size=4k"]].concat();
            assert!(place.folder.refused(2, &words).contains("was created with"));
            let words = [&kind.command()[..], &["-o", "stable=often"]].concat();
            assert!(place.folder.refused(2, &words).contains("stable=often"));
        }
        let front = Front::in_folder(kind, place, &[]);
        let fixed = [("folio_size=64k", "starts"), ("block_size=4k", ""), ("alloc=reserve", "")];
        let never = refused.iter().map(|(name, value, why)| (format!("{name}={value}"), *why));
        let fixed = fixed.iter().map(|(setting, why)| (setting.to_string(), *why));
        for (setting, why) in fixed.chain(never) {
            let said = front.refused(2, &["tune", &setting]);
            let name = setting.split('=').next().expect("a name");
            assert!(said.contains(name) && said.contains(why), "{kind:?} {setting}: {said}");
        }
        let stat = front.stat();
        for (name, _, _) in refused {
            assert_eq!(stat["options"][name], Value::Null, "{kind:?}: {stat}");
        }
        let options = stat["options"].as_object().expect("options");
        let shown = options.values().filter(|value| value.is_string()).count();
        assert_eq!((options.len(), shown), (10, 10 - refused.len()), "{kind:?}: {stat}");
        let text = front.ask(&["stat"]);
        for part in ["direct-io on (auto: ", "stable_pages_required ", " folio_size=65536 "] {
            assert!(text.contains(part), "{kind:?}: {part} is not in {text}");
        }
    }
}

/// Values of the options: at the start, which is no default, and by `tune`, if that can change it.
const VALUES: [(&str, &str, Option<&str>); 10] = [
    ("folio_size", "131072", None),
    ("block_size", "512", None),
    ("dirty_tracking", "folio", Some("block")),
    ("stable", "snapshot", Some("wait")),
    ("stable_pages", "on", Some("auto")),
    ("uncached_strategy", "dropbehind", Some("noaccess")),
    ("mode", "uncached", Some("cached")),
    ("direct_io", "off", Some("auto")),
    ("alloc", "interleaved", None),
    ("serialized_dio_pages", "9", Some("10")),
];

/// Each option has one name on the command line, after `-o`, in fstab, for `tune`, and in `stat`.
#[test]
fn option_has_one_name_everywhere() {
    if !may_run() {
        return;
    }
    let others = Kind::ALL.into_iter().filter(|kind| !kind.is_mount());
    let mounts = [By::Words, By::Flags, By::Fstab].map(|by| (Kind::Mount, by));
    let mounts = mounts.into_iter().chain([(Kind::MountKernel, By::Words)]);
    for (kind, by) in others.map(|kind| (kind, By::Flags)).chain(mounts) {
        let has = |name: &str| match kind.is_volume() {
            true => name != "block_size",
            false => !["alloc", "serialized_dio_pages"].contains(&name),
        };
        let values: Vec<_> = VALUES.into_iter().filter(|(name, _, _)| has(name)).collect();
        let mut options: Vec<_> =
            values.iter().map(|(name, value, _)| format!("{name}={value}")).collect();
        options.extend((kind == Kind::DeviceImage).then(|| "sector_size=512".to_string()));
        let options: Vec<&str> = options.iter().map(|option| &**option).collect();
        let mut front = Front::given(kind, folder(kind, &[]), &options, by);
        let shown = |front: &Front, name: &str| front.stat()["options"][name].clone();
        for (name, value, _) in &values {
            assert_eq!(shown(&front, name), *value, "{kind:?} {by:?}: {name}");
        }
        let tunables = front.ask(&["tune"]);
        for (name, _, later) in &values {
            let Some(later) = later else { continue };
            assert!(tunables.contains(&format!("{name}=")), "{kind:?}: {name} in {tunables}");
            front.tune(&[&format!("{name}={later}")]);
            assert_eq!(shown(&front, name), *later, "{kind:?}: tune {name}");
        }
    }
}

/// On a mount an option of the command line overrules the word of fstab. A file's own policy
/// overrules the mode of the mount.
#[test]
fn command_line_overrules_words_and_policy_overrules_mode() {
    if !may_run() {
        return;
    }
    let place = folder(Kind::Mount, &[]);
    let control = place.folder.path("ctl").display().to_string();
    let words = format!("cache_size=64M,cache=own,control={control},stable=wait,mode=uncached");
    place.folder.ok(&["mount", "vol", "mnt", "-o", &words, "--stable", "cow"]);
    let stat = place.folder.ok(&["stat", "mnt", "--json"]);
    let stat: Value = serde_json::from_str(&stat).expect("JSON");
    assert_eq!(stat["mounts"][0]["options"]["stable"], "cow", "{stat}");
    assert_eq!(stat["mounts"][0]["options"]["mode"], "uncached", "{stat}");
    let resident = || {
        let read = "open('mnt/disk', 'rb+', buffering=0).read(1 << 20)";
        place.run("python3", &["-c", read]);
        let found = place.folder.ok(&["fincore", "mnt/disk", "--json"]);
        let found: Value = serde_json::from_str(&found).expect("JSON");
        found["resident_blocks"].as_u64().expect("a number")
    };
    assert_eq!(resident(), 0, "the mode of the mount");
    place.folder.ok(&["policy", "mnt/disk", "cached"]);
    assert!(resident() >= 256, "the policy of the file");
    place.forebay_umount();
}
