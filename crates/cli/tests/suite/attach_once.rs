//! An attached device with default options: nothing is cached twice, and the outcome of direct I/O
//! follows what is below the image.

use crate::common::front::{Front, Kind, folder};
use crate::common::place::{Place, may_run};
use crate::common::until;
use serde_json::Value;

/// Forebay's cache and the kernel's cache of the image stay empty, whatever a file system above
/// reads and writes through the kernel's cache. With the earlier default, `cached`, ours was full.
#[test]
fn default_device_under_a_file_system_caches_nothing_twice() {
    if !may_run() {
        return;
    }
    for (mode, is_once) in [(None, true), (Some("mode=cached"), false)] {
        let place = folder(Kind::DeviceImage, &[]);
        let image = std::fs::File::options().write(true).open(place.folder.path("disk"));
        image.and_then(|file| file.set_len(128 << 20)).expect("a larger image");
        let front = Front::in_folder(Kind::DeviceImage, place, mode.as_slice());
        let place = &front.place;
        let stat = front.stat();
        let device = stat["device"].as_str().expect("a path");
        place.run("mkfs.ext4", &["-q", "-b", "4096", device]);
        let lines = "mount $0 mnt && dd if=/dev/zero of=mnt/file bs=1M count=32 status=none && \
                     umount mnt && mount $0 mnt && cat mnt/file > /dev/null";
        place.run("sh", &["-c", lines, device]);
        let (ours, below) = (front.resident(), front.below());
        place.run("umount", &["mnt"]);
        assert_eq!(ours == 0, is_once, "{mode:?}: {ours} bytes in our cache");
        assert_eq!(below, 0, "{mode:?}: bytes of the image in the kernel's cache");
    }
}

/// L1: ext4 does no direct I/O on a file with journaled data, which can be switched while the file is
/// in use. The outcome stayed as it was when the image was opened.
#[test]
fn l1_outcome_follows_the_file_system_below() {
    if !may_run() {
        return;
    }
    let place = Place { folder: crate::common::Folder::new() };
    let run = |line: &str| place.run("sh", &["-ec", line]);
    run("mkdir below && truncate -s 64M ext4 && mkfs.ext4 -q ext4 && mount -o loop ext4 below");
    let _below = Below(&place);
    run("truncate -s 8M below/disk");
    let words = ["attach", "below/disk", "--cache-size", "64M", "--control", "ctl"];
    let device = place.folder.ok(&words);
    let shown = || {
        let stat = place.folder.ok(&["stat", "--json", "--control", "ctl"]);
        let stat: Value = serde_json::from_str(&stat).expect("JSON");
        let device = &stat["devices"][0];
        let why = device["direct_io_reason"].as_str().expect("a reason").to_string();
        (device["direct_io"] == true, why)
    };
    assert!(shown().0, "{:?}", shown());
    run("chattr +j below/disk");
    until("direct I/O is off, and why", || {
        let (is_on, why) = shown();
        !is_on && why.contains("does not support it")
    });
    let write =
        format!("dd if=/dev/urandom of={} bs=64k count=4 oflag=direct,dsync", device.trim());
    run(&write);
    run("chattr -j below/disk");
    until("direct I/O is on again", || shown().0);
    run(&write);
    place.folder.ok(&["detach", device.trim()]);
}

/// The file system below, unmounted on drop.
struct Below<'a>(&'a Place);

impl Drop for Below<'_> {
    fn drop(&mut self) {
        let dir = self.0.folder.path("below");
        let _ = rustix::mount::unmount(dir, rustix::mount::UnmountFlags::DETACH);
    }
}
