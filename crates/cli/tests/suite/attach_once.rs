//! An attached device with default options: nothing is cached twice, and the outcome of direct I/O
//! follows what is below the image.

use crate::common::front::{Front, Kind, folder};
use crate::common::place::{Place, may_run};
use crate::common::{Folder, until};
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

/// The story: with a small cache the kernel had 8 requests in progress at most, so 16 readers of a
/// file system above waited for each other. The kernel's loop device has 128.
#[test]
fn device_with_a_small_cache_has_many_requests_in_progress() {
    if !may_run() {
        return;
    }
    let front = Front::new(Kind::DeviceImage, &[]);
    std::fs::create_dir(front.place.folder.path("fusectl")).expect("a directory");
    let line = "mount -t fusectl none fusectl && cat fusectl/*/max_background; umount fusectl";
    let limits = front.place.run("sh", &["-c", line]);
    assert!(limits.lines().any(|limit| limit == "128"), "{limits}");
}

/// lineage.L1: the device below gets blocks larger than the image's, and smaller ones again. The
/// outcome stayed as it was when the image was opened, and requests failed.
#[test]
fn l1_outcome_follows_the_device_below() {
    if !may_run() {
        return;
    }
    let place = Place { folder: Folder::new() };
    place.folder.image("disk", 8 << 20);
    let words = ["--find", "--show", "--sector-size", "512", "disk"];
    let below = Below(place.run("losetup", &words).trim().to_string());
    let words = ["--sector-size", "512", "--block-size", "512", "-r", "--cache-size", "64M"];
    let device = place.folder.ok(&[&["attach", &below.0], &words[..]].concat());
    let shown = || {
        let stat = place.folder.ok(&["stat", "--json"]);
        let stat: Value = serde_json::from_str(&stat).expect("JSON");
        let device = &stat["devices"][0];
        let why = device["direct_io_reason"].as_str().expect("a reason").to_string();
        (device["direct_io"] == true, why)
    };
    assert!(shown().0, "{:?}", shown());
    let input = format!("if={}", device.trim());
    let read = ["of=/dev/null", "bs=512", "count=8", "skip=3", "iflag=direct"];
    place.run("losetup", &["--sector-size", "4096", &below.0]);
    until("direct I/O is off, and why", || {
        let (is_on, why) = shown();
        !is_on && why.contains("4096")
    });
    place.run("dd", &[&[&*input], &read[..]].concat());
    place.run("losetup", &["--sector-size", "512", &below.0]);
    until("direct I/O is on again", || shown().0);
    place.run("dd", &[&[&*input], &read[..]].concat());
    place.folder.ok(&["detach", device.trim()]);
}

/// A loop device of the kernel's, detached on drop.
struct Below(String);

impl Drop for Below {
    fn drop(&mut self) {
        let _ = std::process::Command::new("losetup").args(["--detach", &self.0]).status();
    }
}
