//! Images that claim more than they have: refused within 64 MiB of memory; and large sparse ones
//! that are what they say, opened within the same.
//!
//! Invariant: E1 each process joins a memory cgroup before its first instruction, so that the
//! kernel counts all its memory, and kills it for more.

use crate::common::{Folder, output, stderr};
use forebay_lfs::format::superblock::{SLOT_BYTES, Superblock};
use forebay_testkit::cgroup::Memcg;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::process::{Command, Output};
use std::time::Instant;

/// What a process may have of memory, bytes.
const LIMIT: u64 = 64 << 20;

/// An image that is removed with the test. In memory: a file of other file systems cannot be so
/// long.
struct Sparse(PathBuf);

impl Drop for Sparse {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// A volume of 8 MiB whose slots claim so many segments, up to the end of a file of that size.
fn claims(folder: &Folder, segments: u32, clean: bool) -> Sparse {
    folder.ok(&["create", "v", "--size", "8M"]);
    std::fs::write(folder.path("one"), b"1").unwrap();
    folder.ok(&["cp", "one", "v:/"]);
    let name = format!("forebay-test-{}-{segments}-{clean}", std::process::id());
    let sparse = Sparse(PathBuf::from("/dev/shm").join(name));
    std::fs::copy(folder.path("v"), &sparse.0).unwrap();
    let file = std::fs::OpenOptions::new().read(true).write(true).open(&sparse.0).unwrap();
    for slot in 0..4 {
        let (mut bytes, at) = (vec![0; SLOT_BYTES], u64::from(slot) * SLOT_BYTES as u64);
        file.read_exact_at(&mut bytes, at).unwrap();
        let mut claimed = Superblock::decode(&bytes, slot).unwrap();
        claimed.state = if clean { claimed.state } else { 0 };
        claimed.segment_count = segments;
        let segment_bytes = u64::from(claimed.geometry.segment_bytes());
        claimed.recorded_end_bytes = segment_bytes * (u64::from(segments) + 1);
        file.set_len(claimed.recorded_end_bytes).unwrap();
        claimed.encode_into(&mut bytes).unwrap();
        file.write_all_at(&bytes, at).unwrap();
    }
    sparse
}

/// A cgroup, if there may be one here; without, the test fails, unless that is allowed by name.
fn group(name: &str) -> Option<Memcg> {
    match Memcg::create(name, LIMIT) {
        Ok(group) => Some(group),
        Err(e) => {
            let allowed = std::env::var("FOREBAY_ALLOW_SKIP").is_ok_and(|v| v == "1");
            assert!(allowed, "this test requires root and a memory cgroup: {e}");
            eprintln!("skipped: requires root and a memory cgroup: {e}");
            None
        }
    }
}

/// `forebay` with these words, in the cgroup. Prints how long it took.
fn limited(folder: &Folder, group: &Memcg, words: &[&str]) -> Output {
    let plain = folder.command(words);
    let mut command = Command::new("sh");
    command.args(["-c", "echo $$ > \"$0\" && exec \"$@\""]).arg(group.procs());
    command.arg(plain.get_program()).args(plain.get_args());
    command.current_dir(plain.get_current_dir().expect("the folder"));
    command.envs(plain.get_envs().filter_map(|(name, value)| Some((name, value?))));
    let started = Instant::now();
    let output = output(command);
    println!("{:.3} s: {}", started.elapsed().as_secs_f64(), words.join(" "));
    output
}

/// An image that claimed 2^28 segments got a table of 20 GiB before anything of it was verified.
#[test]
fn image_with_false_segment_count_is_refused_without_allocation() {
    let Some(group) = group("claims") else { return };
    for clean in [true, false] {
        let folder = Folder::new();
        let sparse = claims(&folder, 1 << 28, clean);
        let volume = sparse.0.to_str().unwrap();
        let inside = format!("{volume}:/one");
        for words in [&["fsck", volume][..], &["ls", volume], &["cp", &inside, "out"]] {
            let output = limited(&folder, &group, words);
            let said = [&output.stdout[..], &output.stderr].concat();
            let said = String::from_utf8_lossy(&said);
            assert!(output.status.code().is_some_and(|code| code > 0), "{words:?}: {output:?}");
            assert!(said.contains("in the usage table"), "{words:?}: {said}");
        }
        assert_eq!(group.oom_kills(), 0);
        let output = limited(&folder, &group, &["recover", volume, "--to", "out"]);
        assert!(output.status.code().is_some_and(|code| code > 0), "{output:?}");
    }
}

/// A sparse volume of a TiB, and one that grew a thousandfold, have what they claim.
#[test]
fn large_sparse_volume_opens_in_little_memory() {
    let Some(group) = group("large") else { return };
    let folder = Folder::new();
    std::fs::write(folder.path("one"), b"1").unwrap();
    folder.ok(&["create", "v", "--size", "1T"]);
    folder.ok(&["cp", "one", "v:/"]);
    for words in [&["fsck", "v"][..], &["ls", "v"]] {
        let output = limited(&folder, &group, words);
        assert!(output.status.success(), "{words:?}: {}", stderr(&output));
    }
    folder.ok(&["create", "small", "--size", "64M"]);
    folder.ok(&["grow", "small", "--size", "64G"]);
    for words in [&["fsck", "small"][..], &["ls", "small"]] {
        let output = limited(&folder, &group, words);
        assert!(output.status.success(), "{words:?}: {}", stderr(&output));
    }
}
