//! The options of the five behaviours, on each front end: each test fails where the option does
//! nothing.

use crate::common::front::{Front, Kind, folder};
use crate::common::place::may_run;
use serde_json::Value;

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;
/// Bytes of a read that is one request on each front end.
const LEFT: u64 = 128 * KIB;

/// Bytes that write-out writes for one durable write of so many bytes, in a cached range.
fn written_out(front: &mut Front, len: u64) -> u64 {
    front.read(2 * MIB, MIB as usize);
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
    for kind in Kind::FRONT_ENDS {
        let mut front = Front::new(kind, &["mode=cached", "dirty_tracking=folio"]);
        assert_eq!(written_out(&mut front, 4 * KIB), 64 * KIB, "{kind:?}: a folio");
        front.tune(&["dirty_tracking=block"]);
        assert_eq!(written_out(&mut front, 4 * KIB), 4 * KIB, "{kind:?}: a block");
        drop(front);
        let large = ["mode=cached", "dirty_tracking=folio", "folio_size=256k"];
        let mut front = Front::new(kind, &large);
        assert_eq!(written_out(&mut front, 4 * KIB), 256 * KIB, "{kind:?}: a large folio");
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
        assert_eq!(written_out(&mut front, 512), 4096, "{kind:?}");
        drop(front);
        all.push("block_size=512");
        let mut front = Front::new(kind, &all);
        assert_eq!(written_out(&mut front, 512), 512, "{kind:?}");
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
            front.ask(&["tune", "--drop-clean"]);
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

/// Behaviour 2. What a read leaves in our cache, by the mode at the start and by `tune`.
#[test]
fn mode_decides_what_a_read_leaves_in_the_cache() {
    if !may_run() {
        return;
    }
    for kind in Kind::FRONT_ENDS {
        let mut front = Front::new(kind, &["mode=direct"]);
        for (mode, is_kept, is_direct) in
            [("direct", false, true), ("cached", true, false), ("uncached", false, false)]
        {
            if mode != "direct" {
                front.tune(&[&format!("mode={mode}")]);
            }
            front.ask(&["tune", "--drop-clean"]);
            let before = front.counter("direct_read_bytes");
            front.read(2 * MIB, LEFT as usize);
            let direct = front.counter("direct_read_bytes") - before;
            assert_eq!(direct >= LEFT, is_direct, "{kind:?} {mode}: {direct} bytes past the cache");
            let resident = front.resident();
            assert_eq!(resident >= LEFT, is_kept, "{kind:?} {mode}: {resident} bytes");
            assert_eq!(front.stat()["mode"], mode);
        }
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
            front.ask(&["tune", "--drop-clean"]);
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

/// Behaviour 5. A direct write takes a turn from the threshold on, with `alloc=serialized` alone.
#[test]
fn alloc_and_threshold_decide_which_writes_take_turns() {
    if !may_run() {
        return;
    }
    for kind in Kind::VOLUMES {
        for alloc in ["serialized", "reserve"] {
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
        if kind == Kind::Mount {
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
