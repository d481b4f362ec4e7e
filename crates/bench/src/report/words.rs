//! Labels in words for the ids of ratios (`randread_vs_direct_j4`), of metrics, and of variants
//! (`ours-block-2m`). The house checks compile this file, too: they read the tables that it labels.
//!
//! Invariant: L1 a label contains no id: no underscore follows a small letter or a digit outside of
//! code spans.

use crate::report::figures::{self, Fact};

/// Parts of ids and their words. Where two match, the one with more parts counts.
const PARTS: &[(&str, &str)] = &[
    ("at_many_vs_few", "at the largest number, over the smallest"),
    ("avg", "mean"),
    ("beside_dead", "with dead files"),
    ("beside_block_status", "during block status requests"),
    ("beside_flush", "during a full flush"),
    ("beside_vs_alone", "during the backup, over alone"),
    ("bios_per_request", "device requests per request"),
    ("btrfs", "btrfs on a loop"),
    ("btrfs_on_loop", "btrfs on a loop"),
    ("cow", "copy on write"),
    ("cpu", "CPU"),
    ("dd4k", "`dd bs=4k`"),
    ("direct", "O_DIRECT"),
    ("direct_cache", "the kernel's cache"),
    ("direct_qd4", "O_DIRECT by 4 threads in turns"),
    ("dontcache", "RWF_DONTCACHE"),
    ("drawn", "as drawn"),
    ("dsync", "fdatasync"),
    ("dsync16", "fdatasync, 16 threads"),
    ("empty", "an empty FUSE server"),
    ("empty_fuse", "an empty FUSE server"),
    ("ext4_on_loop", "ext4 on a loop"),
    ("extents_per_file", "runs per file"),
    ("extents_per_request", "runs per request"),
    ("f2fs_on_loop", "F2FS on a loop"),
    ("fdatasync8", "fdatasync, 8 jobs"),
    ("folio", "write-back by folio"),
    ("folio_mode", "written back by folio"),
    ("host", "the host's file system"),
    ("io", "I/O"),
    ("io_uring", "`io_uring`"),
    ("iops", "IOPS"),
    ("jcpus", ", a thread for each CPU"),
    ("kib", "KiB"),
    ("kib_per_extent", "KiB per run"),
    ("ls", "`ls -l`"),
    ("max", "longest"),
    ("mib", "MiB"),
    ("multiwrite", "sequential writes by four"),
    ("nbd", "NBD"),
    ("nosums", "no checksums"),
    ("not_needed", "no need for stable pages"),
    ("p99_9", "p99.9"),
    ("p99_beside", "p99 during the load"),
    ("p99_99", "p99.99"),
    ("p999", "p99.9"),
    ("prealloc", ", preallocated images"),
    ("randread", "random reads"),
    ("randwrite", "random writes"),
    ("raw", "a raw image"),
    ("read64k", "random 64 KiB reads"),
    ("rss", "memory"),
    ("rss_anon_and_shmem", "RssAnon + RssShmem"),
    ("seqread", "sequential reads"),
    ("seqwrite", "sequential writes"),
    ("sparse", ", images without blocks"),
    ("sync16", "sync, 16 threads"),
    ("tpcb", "TPC-B"),
    ("rate_beside", "rate during the load"),
    ("tps", "transactions per second"),
    ("tps_beside", "transactions per second during the load"),
    ("vs", ", over"),
    ("vs_raw_ratio", ", over the same ratio of O_DIRECT"),
    ("vs_wait", ", over waiting"),
    ("write64k", "random 64 KiB writes"),
    ("write_amplification", "bytes written per byte changed"),
    ("xfs", "XFS on a loop"),
    ("xfs_on_loop", "XFS on a loop"),
];

/// Variants whose parts would mislead.
const VARIANTS: &[(&str, &str)] = &[
    ("direct-again", "O_DIRECT, again"),
    ("direct-qd1", "O_DIRECT by 1 thread"),
    ("forebay", "a mount"),
    ("forebay-uncached", "a mount, backup by `forebay run --uncached`"),
    ("nbdkit-file-cache-none", "nbdkit file, cache=none"),
    ("ours-block-2m", "ours, by block, folios of 2 MiB"),
    ("ours-block-64k", "ours, by block, folios of 64 KiB"),
    ("ours-direct-io-off", "ours, image opened buffered"),
    ("ours-direct-io-on", "ours, image opened with O_DIRECT"),
    ("ours-folio-2m", "ours, by folio, folios of 2 MiB"),
    ("ours-folio-64k", "ours, by folio, folios of 64 KiB"),
    ("ours-mode-direct", "ours, requests past the cache"),
    ("ours-mode-uncached", "ours, requests uncached"),
    ("ours-sparse-threads", "ours, an image without blocks, threads"),
    ("ours-sparse-uring", "ours, an image without blocks, `io_uring`"),
    ("qemu-nbd", "qemu-nbd"),
    ("sqlite-cache", "SQLite's own cache of the budget"),
    ("volume-folio-64k", "volume, by folio, folios of 64 KiB"),
    ("xfs-direct", "the kernel, backup by O_DIRECT"),
    ("xfs-direct-reader", "the kernel, backup by O_DIRECT"),
    ("xfs-dontcache", "the kernel, backup by RWF_DONTCACHE"),
    ("xfs-drop-behind", "the kernel, backup drops each piece after reading it"),
    ("xfs-loop stable_writes=0", "XFS on a loop, `stable_writes=0`"),
    ("xfs-loop stable_writes=1", "XFS on a loop, `stable_writes=1`"),
    ("xfs-mmap-tar", "the kernel, database mapped, backup by `tar`"),
    ("xfs-nocache", "the kernel, backup by `nocache`"),
    ("xfs-tar", "the kernel, backup by `tar`"),
    ("xfs-tar-apart", "the kernel, backup by `tar` in a memory cgroup"),
];

/// The label of a ratio: the words of `docs/figures.md` where they stand alone, or those of its id.
pub fn of_ratio(bench: &str, id: &str) -> String {
    let complete = |fact: &&Fact| (fact.0, fact.1) == (bench, id) && figures::stands_alone(fact.2);
    let mut facts = figures::ENGINE.iter().chain(figures::VOLUMES);
    facts.find(complete).map_or_else(|| of_id(id), |fact| fact.2.to_string())
}

/// The words of an id.
pub fn of_id(id: &str) -> String {
    let parts: Vec<&str> = id.split('_').filter(|part| !part.is_empty()).collect();
    let (mut out, mut at) = (String::new(), 0);
    while at < parts.len() {
        let found = (1..=4).rev().filter(|len| at + len <= parts.len()).find_map(|len| {
            let key = parts[at..at + len].join("_");
            PARTS.iter().find(|part| part.0 == key).map(|part| (len, part.1.to_string()))
        });
        let (len, words) = found.unwrap_or_else(|| (1, of_part(parts[at])));
        if !out.is_empty() && !words.starts_with(',') {
            out.push(' ');
        }
        out.push_str(if out.is_empty() { words.trim_start_matches([',', ' ']) } else { &words });
        at += len;
    }
    out
}

/// The words of a variant, whose id joins its parts by `-`.
pub fn of_variant(id: &str) -> String {
    let own = VARIANTS.iter().find(|variant| variant.0 == id);
    own.map_or_else(|| of_id(&id.replace('-', "_")), |variant| variant.1.to_string())
}

/// A text in which each id is replaced by its words.
pub fn of_text(text: &str) -> String {
    let words = text.split(' ').map(|word| match is_id(word) {
        true => of_id(word),
        false => word.to_string(),
    });
    words.collect::<Vec<_>>().join(" ")
}

/// Whether a word is an id: small letters, digits and underscores between them.
fn is_id(word: &str) -> bool {
    let inner = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
    word.contains('_') && word.chars().all(inner)
}

/// The words of a part with a number, such as `j16`, `c4`, `64k` and `1job`; others as they are.
fn of_part(part: &str) -> String {
    let is_number = |text: &str| text.parse::<u64>().is_ok();
    let plural = |count: &str, what: &str| match count {
        "1" => format!(", 1 {what}"),
        _ => format!(", {count} {what}s"),
    };
    let sizes = [("k", "KiB"), ("m", "MiB"), ("g", "GiB")];
    let size = |text: &str| {
        sizes.iter().find_map(|(end, unit)| {
            let count = text.strip_suffix(end).filter(|count| is_number(count))?;
            Some(format!("{count} {unit}"))
        })
    };
    for (start, what) in [("j", "job"), ("c", "connection"), ("depth", "depth"), ("d", "depth")] {
        match part.strip_prefix(start).filter(|count| is_number(count)) {
            Some(depth) if what == "depth" => return format!(", depth {depth}"),
            Some(count) => return plural(count, what),
            None => {}
        }
    }
    if let Some(jobs) = part.strip_suffix("jobs").or(part.strip_suffix("job")) {
        return if is_number(jobs) { plural(jobs, "job") } else { part.to_string() };
    }
    if let Some(each) = part.strip_prefix("append").and_then(size) {
        return format!("appends of {each}");
    }
    if let Some((count, each)) = part.split_once('x')
        && let (true, Some(each)) = (is_number(count), size(each))
    {
        return format!("{count} writers of {each}");
    }
    if let Some((readers, writers)) = part.strip_suffix('w').and_then(|p| p.split_once('r'))
        && is_number(readers)
        && is_number(writers)
    {
        return format!("{readers} readers, {writers} writers");
    }
    size(part).unwrap_or_else(|| part.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_become_words() {
        for (id, words) in [
            ("randread_vs_direct_j16", "random reads, over O_DIRECT, 16 jobs"),
            ("write_vs_buffered_1job", "write, over buffered, 1 job"),
            ("nbd_hit_vs_nbdkit_memory_c4", "NBD hit, over nbdkit memory, 4 connections"),
            ("delay_10x2m_waves_p99_9", "delay 10 writers of 2 MiB waves p99.9"),
            ("small_disk_8r16w_rate", "small disk 8 readers, 16 writers rate"),
            ("disk_append4k_free_runs", "disk appends of 4 KiB free runs"),
            ("synced_1g_written_per_byte_dirtied", "synced 1 GiB written per byte dirtied"),
            ("memcg_kills_io_uring", "memcg kills `io_uring`"),
            ("rate", "rate"),
            ("_", ""),
        ] {
            assert_eq!(of_id(id), words);
        }
        assert_eq!(of_text("sustained_skewed on xfs-on-loop"), "sustained skewed on xfs-on-loop");
        assert_eq!(of_text("RWF_DONTCACHE"), "RWF_DONTCACHE");
    }

    /// L1. The story: the page showed variants by their ids.
    #[test]
    fn variants_become_words() {
        for (id, words) in [
            ("ours-block-2m", "ours, by block, folios of 2 MiB"),
            ("direct-4k", "O_DIRECT 4 KiB"),
            ("xfs-on-loop-sparse", "XFS on a loop, images without blocks"),
            ("volume-nosums", "volume no checksums"),
            ("ours-during-cached-stream", "ours during cached stream"),
            ("all in process", "all in process"),
            ("host", "the host's file system"),
        ] {
            assert_eq!(of_variant(id), words);
        }
        for (id, words) in VARIANTS {
            assert!(!words.split('`').step_by(2).any(|prose| prose.split(' ').any(is_id)), "{id}");
        }
    }

    /// L1, for each published figure.
    #[test]
    fn labels_of_ratios_have_no_id() {
        for (bench, id, text) in figures::ENGINE.iter().chain(figures::VOLUMES) {
            let label = of_ratio(bench, id);
            let prose: String = label.split('`').step_by(2).collect();
            assert!(!prose.split(' ').any(is_id), "{id}: {label}");
            assert!(!label.starts_with("the same"), "{id}: {label}");
            assert!(label == *text || label == of_id(id), "{id}: {label}");
        }
        let label = of_ratio("uncached", "hot_set_evicted_blocks");
        assert_eq!(label, "hot blocks lost during an uncached stream");
    }
}
