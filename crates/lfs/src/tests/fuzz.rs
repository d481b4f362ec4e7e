//! The fuzzer's short run: each target over the kept corpus, then over mutations of it.
//!
//! `FOREBAY_FUZZ_RUNS` sets the number of inputs for each target (default 6,000), `FOREBAY_SEED`
//! the seed. Inputs that are refused for a new reason are kept during a run. With `FOREBAY_BLESS=1`
//! they are kept in `fuzz/corpus`, which is committed.
//!
//! No locks.

use super::seeds;
use crate::fuzz::make::{Make, geometry, short_geometry};
use crate::fuzz::mutate::mutate;
use crate::fuzz::{RECORD_AT, TARGETS, Target};
use forebay_base::codec::Writer;
use forebay_base::{ErrorKind, checksum};
use std::collections::BTreeSet;
use std::path::PathBuf;

/// Larger inputs are not kept.
const KEPT_BYTES: usize = 4096;
/// The most inputs that are kept of a target.
const KEPT_FILES: usize = 24;

fn corpus_of(target: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("fuzz/corpus").join(target)
}

fn bless() -> bool {
    std::env::var_os("FOREBAY_BLESS").is_some()
}

fn runs() -> u64 {
    std::env::var("FOREBAY_FUZZ_RUNS").ok().and_then(|text| text.parse().ok()).unwrap_or(6000)
}

/// A valid input.
fn valid(target: &str, seed: u64) -> Vec<u8> {
    let g = match seed % 4 {
        3 if matches!(target, "change" | "item") => short_geometry(),
        n => geometry(n % 2 == 0),
    };
    let mut make = Make(seed);
    let mut bytes = vec![0; 1 << 18];
    let len = match target {
        "superblock" => {
            make.superblock().encode_into(&mut bytes[..4096]).unwrap();
            4096
        }
        "segment" => {
            let header = make.segment_header(&g);
            header.encode_into(crate::fuzz::make::seal(), &g, &mut bytes).unwrap();
            128
        }
        "record" => make.record(&mut bytes, RECORD_AT, &g).3.length as usize,
        "change" => {
            let mut w = Writer::new("change", &mut bytes);
            let kind = 1 + (seed % 19) as u16;
            make.change(kind, &g, 65536).encode_into(&mut w, &g).unwrap();
            w.position()
        }
        "item" => {
            let (key, item) = make.item(seed % 9, &g);
            let mut w = Writer::new("item", &mut bytes);
            let key_bytes = key.to_bytes();
            w.u8("key length", key_bytes.as_slice().len() as u8).unwrap();
            w.bytes("key", key_bytes.as_slice()).unwrap();
            let start = w.position();
            let mut value = vec![0; 2000];
            let mut v = Writer::new("value", &mut value);
            item.encode_into(key, &mut v, &g).unwrap();
            w.bytes("value", v.written()).unwrap();
            assert!(w.position() > start);
            w.position()
        }
        "node" if seed.is_multiple_of(3) => {
            make.inner(&mut bytes[..4096], &g);
            4096
        }
        "node" => {
            make.leaf(&mut bytes[..4096], &g);
            4096
        }
        "summary" => {
            let len = crate::format::summary::summary_bytes(&g) as usize;
            make.summary(&mut bytes[..len], &g);
            len
        }
        other => panic!("no target {other}"),
    };
    bytes.truncate(len);
    bytes
}

/// The outcomes of the runs of a target.
#[derive(Default, Debug)]
struct Seen {
    taken: u64,
    refused: u64,
    reasons: BTreeSet<String>,
}

impl Seen {
    /// Runs a target; true if it was refused for a new reason.
    fn run(&mut self, name: &str, target: Target, data: &[u8]) -> bool {
        match target(data) {
            Ok(()) => {
                self.taken += 1;
                false
            }
            Err(e) => {
                let kind = e.kind();
                let known = matches!(kind, ErrorKind::Corrupt | ErrorKind::Unsupported);
                assert!(known, "{name}: {e} (F4, Z1)");
                self.refused += 1;
                self.reasons.insert(reason(&e.to_string()))
            }
        }
    }
}

/// An error without its numbers.
fn reason(text: &str) -> String {
    let text = text.split(": [").next().unwrap_or(text);
    let text = text.split("features: ").next().unwrap_or(text);
    let words = text.split_whitespace().filter(|w| !w.contains(|c: char| c.is_ascii_digit()));
    words.collect::<Vec<_>>().join(" ")
}

/// format.F1, format.F2, format.F4, fuzz.Z1, fuzz.Z2. The fuzzer also has to get past the
/// checksums: each target must have both outcomes, and at least the known number of reasons for a
/// refusal.
#[test]
fn any_bytes_are_refused_or_read_back() {
    let reasons = [
        ("superblock", 18),
        ("segment", 8),
        ("record", 30),
        ("change", 40),
        ("item", 30),
        ("node", 20),
        ("summary", 8),
    ];
    for ((name, target, seal), (of, at_least)) in TARGETS.iter().zip(reasons) {
        assert_eq!(*name, of);
        let mut corpus = kept(name);
        assert!(!corpus.is_empty(), "{name}: no corpus; FOREBAY_BLESS=1 makes one");
        let mut seen = Seen::default();
        for data in &corpus {
            seen.run(name, *target, data);
        }
        assert!(seen.taken > 0, "{name}: nothing in the corpus is valid");
        seen.taken = 0;
        let first = seeds(1).next().unwrap_or_default();
        corpus.extend((0..20).map(|n| valid(name, first * 1000 + n)));
        let mut make = Make(first);
        for run in 0..runs() {
            let pick = |make: &mut Make| make.below(corpus.len() as u64) as usize;
            let (input, other) = (pick(&mut make), pick(&mut make));
            let before = make.clone();
            let mut data = mutate(&mut make, &corpus[input], &corpus[other]);
            if make.below(8) > 0 {
                seal(&mut data);
            }
            let new = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                seen.run(name, *target, &data)
            }));
            let Ok(new) = new else { panic!("{name}: run {run} of seed {first}: {before:?}") };
            if new {
                keep(name, &data);
                corpus.push(data);
            }
        }
        let found = (seen.taken, seen.refused, seen.reasons.len());
        println!("{name}: {found:?} taken, refused, reasons");
        assert!(seen.taken > 0 && seen.refused > 0, "{name}: one outcome only: {found:?}");
        assert!(seen.reasons.len() >= at_least, "{name}: {found:?}: {:#?}", seen.reasons);
    }
}

/// The corpus, in the order of its names. With `FOREBAY_BLESS` it is made first.
fn kept(target: &str) -> Vec<Vec<u8>> {
    for seed in (0..6).filter(|_| bless()) {
        let small = |seed: &u64| valid(target, *seed).len() <= 3 * KEPT_BYTES;
        let seed = (seed * 100..).find(small).expect("some seed makes a small one");
        write(target, &valid(target, seed));
    }
    let files = std::fs::read_dir(corpus_of(target)).into_iter().flatten().flatten();
    let mut paths: Vec<_> = files.map(|entry| entry.path()).collect();
    paths.sort();
    paths.iter().map(|path| std::fs::read(path).expect("a file of the corpus")).collect()
}

fn keep(target: &str, data: &[u8]) {
    let room = std::fs::read_dir(corpus_of(target)).map_or(0, Iterator::count) < KEPT_FILES;
    if bless() && room && data.len() <= KEPT_BYTES {
        write(target, data);
    }
}

fn write(target: &str, data: &[u8]) {
    let folder = corpus_of(target);
    std::fs::create_dir_all(&folder).expect("a folder for the corpus");
    let name = format!("{:08x}", checksum::crc32c(data));
    std::fs::write(folder.join(name), data).expect("a file of the corpus");
}
