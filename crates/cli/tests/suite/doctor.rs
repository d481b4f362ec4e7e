//! `forebay doctor`: something about each part, for people and as JSON.

use crate::common::Folder;

#[test]
fn doctor_reports_findings() {
    let folder = Folder::new();
    folder.image("disk.img", 1 << 20);
    let text = folder.ok(&["doctor", "disk.img"]);
    for part in [
        "kernel",
        "memory",
        "cgroup",
        "engine",
        "huge pages",
        "open files",
        "write-out",
        "direct-io",
    ] {
        assert!(text.contains(part), "{part} is not in:\n{text}");
    }
    let json = folder.ok(&["doctor", "--json"]);
    let value: serde_json::Value = serde_json::from_str(&json).unwrap();
    let list = value.as_array().unwrap();
    assert!(list.len() >= 10 && list.iter().all(|f| f["level"].is_string()), "{json}");
}

/// In a container without devices it says what works there and what to start it with; without one,
/// nothing of that.
#[test]
fn in_a_container_it_says_what_to_use_instead() {
    if !crate::common::place::may_run() {
        return;
    }
    let folder = Folder::new();
    std::fs::create_dir(folder.path("dev")).unwrap();
    std::fs::write(folder.path("dev/null"), "").unwrap();
    let line = "mount --bind dev /dev && exec \"$0\" doctor --json";
    let mut command = std::process::Command::new("unshare");
    command.args(["--mount", "sh", "-ec", line, env!("CARGO_BIN_EXE_forebay")]);
    command.current_dir(folder.path("")).env("container", "podman");
    let done = crate::common::output(command);
    let found: serde_json::Value = serde_json::from_slice(&done.stdout).expect("JSON");
    let of = |what: &str| {
        let all = found.as_array().expect("a list");
        all.iter().find(|f| f["what"] == what).unwrap_or_else(|| panic!("{what}: {found}")).clone()
    };
    assert!(of("container")["text"].as_str().unwrap().starts_with("podman"));
    let fuse = of("fuse");
    assert_eq!(fuse["level"], "note");
    let advice = fuse["advice"].as_str().unwrap();
    for word in
        ["--device /dev/fuse", "--cap-add SYS_ADMIN", "apparmor=unconfined", "forebay export"]
    {
        assert!(advice.contains(word), "{advice}");
    }
    assert!(advice.contains("library"), "{advice}");
    assert!(of("loop")["advice"].as_str().unwrap().contains("forebay umount"));
    assert_eq!(done.status.code(), Some(0), "it works, by other means");
    let mut outside = folder.command(&["doctor"]);
    outside.env_remove("container");
    let text = String::from_utf8(crate::common::output(outside).stdout).unwrap();
    assert!(
        text.contains("/dev/fuse can be opened") && text.contains("/dev/loop-control"),
        "{text}"
    );
}

/// Root in a container with the device and without the right to mount was told that fusermount3
/// does it.
#[test]
fn without_the_right_to_mount_the_helper_has_none_either() {
    if !crate::common::place::may_run() {
        return;
    }
    let mut command = std::process::Command::new("setpriv");
    command.args(["--bounding-set=-sys_admin", env!("CARGO_BIN_EXE_forebay"), "doctor", "--json"]);
    command.env("container", "podman");
    let done = crate::common::output(command);
    let found: serde_json::Value = serde_json::from_slice(&done.stdout).expect("JSON");
    let fuse = found.as_array().expect("a list").iter().find(|f| f["what"] == "fuse");
    let fuse = fuse.expect("a row");
    assert_eq!(fuse["level"], "note", "{fuse}");
    assert!(fuse["text"].as_str().unwrap().contains("not allowed"), "{fuse}");
}
