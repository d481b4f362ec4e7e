//! What a machine does at boot: a line of fstab by mount(8), and the commands of the systemd unit.

use crate::common::place::{Place, may_run};
use std::path::Path;

/// The line of `dist/fstab.example` that is mounted at boot, with other paths, by mount(8) itself:
/// by its place, then with all that fstab has. mount(8) looks for its helpers in the system's
/// folder alone: that is another one here, for this namespace of mounts only.
#[test]
fn fstab_line_mounts_volume() {
    if !may_run() {
        return;
    }
    let place = Place::new(64 << 20);
    let path = |name: &str| place.folder.path(name).display().to_string();
    let example = shipped("fstab.example");
    let line = example.lines().find(|line| line.contains("nofail")).expect("one for the boot");
    let words: Vec<&str> = line.split_whitespace().collect();
    let [_image, _dir, rest @ ..] = &words[..] else { panic!("{line}") };
    let line = format!("{} {} {}\n", path("vol"), path("mnt"), rest.join(" "));
    std::fs::write(path("fstab"), line).unwrap();
    std::fs::create_dir(path("sbin")).unwrap();
    std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_forebay"), path("sbin/mount.forebay")).unwrap();
    let script = "mount --bind sbin /usr/sbin
        mount -T fstab \"$PWD/mnt\"
        echo first > mnt/f
        umount mnt
        test ! -e mnt/f
        mount -a -T fstab
        grep -q ' '\"$PWD\"'/mnt fuseblk.forebay ' /proc/self/mounts
        grep first mnt/f
        umount mnt";
    let words = ["-m", "--propagation", "private", "sh", "-ec", script];
    assert_eq!(place.run("unshare", &words), "first\n");
    assert!(!place.is_mounted());
    place.folder.ok(&["fsck", "vol"]);
}

/// The commands of the unit, carried out as systemd does: variables from the file of settings, the
/// first has ended when the mount can be used, the second when everything is durable.
#[test]
fn systemd_unit_commands_mount_and_unmount() {
    if !may_run() {
        return;
    }
    let place = Place::new(64 << 20);
    let path = |name: &str| place.folder.path(name).display().to_string();
    let unit = shipped("forebay@.service");
    let setting = |key: &str| {
        let mut values = unit.lines().filter_map(|line| line.strip_prefix(key)?.strip_prefix('='));
        values.next().unwrap_or_else(|| panic!("the unit has no {key}")).to_string()
    };
    assert_eq!(setting("Type"), "forking");
    let command = |key: &str| {
        let line = setting(key);
        let line = line.replace("${OPTIONS}", "cache_size=64M");
        let line = line.replace("${VOLUME}", &path("vol")).replace("${DIR}", &path("mnt"));
        assert!(!line.contains('$'), "{line}");
        let (program, words) = line.split_once(' ').expect("words");
        assert_eq!(program, "/usr/bin/forebay");
        let words: Vec<&str> = words.split_whitespace().collect();
        place.run(env!("CARGO_BIN_EXE_forebay"), &words);
    };
    for n in 0..2 {
        command("ExecStart");
        assert!(place.is_mounted());
        let file = place.mnt(&n.to_string());
        std::fs::write(file, [n; 5000]).unwrap();
        command("ExecStop");
        assert!(!place.is_mounted());
        // It is durable: another process may have the volume at once, and finds it.
        assert!(place.folder.ok(&["ls", "vol:/"]).contains(&n.to_string()));
    }
    // And systemd understands all of it; that looks for the program, too.
    let here = unit.replace("/usr/bin/forebay", env!("CARGO_BIN_EXE_forebay"));
    std::fs::write(path("forebay@data.service"), here).unwrap();
    place.run("systemd-analyze", &["--man=no", "verify", "./forebay@data.service"]);
}

/// A file that the package has.
fn shipped(name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../dist").join(name);
    std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}
