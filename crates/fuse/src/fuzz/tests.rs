//! The fuzzer's short run: each target over the kept corpus, then over changes of it.
//!
//! `FOREBAY_FUZZ_RUNS` sets the number of inputs (default 20,000), `FOREBAY_SEED` the seed. An
//! input that is refused for a new reason is kept for the run, and with `FOREBAY_BLESS=1` written
//! to `fuzz/corpus`, which is committed.
//!
//! No locks.

use super::{TARGETS, Target};
use forebay_base::world::split_mix;
use forebay_base::{ErrorKind, checksum};
use std::collections::BTreeSet;
use std::path::PathBuf;

fn number(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(default)
}

fn folder(target: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("fuzz/corpus").join(target)
}

fn corpus(target: &str) -> Vec<Vec<u8>> {
    let files = std::fs::read_dir(folder(target)).into_iter().flatten().flatten();
    let mut paths: Vec<_> = files.map(|entry| entry.path()).collect();
    paths.sort();
    paths.iter().map(|path| std::fs::read(path).expect("a file of the corpus")).collect()
}

struct Random(u64);

impl Random {
    fn below(&mut self, n: usize) -> usize {
        (split_mix(&mut self.0) % n.max(1) as u64) as usize
    }
}

/// Mutates an input once or a few times: bits, bytes, boundary values, truncation, repetition, the
/// tail of another input.
fn mutate(random: &mut Random, from: &[u8], other: &[u8]) -> Vec<u8> {
    let mut data = from.to_vec();
    for _ in 0..=random.below(3) {
        let at = random.below(data.len());
        match random.below(7) {
            0 if !data.is_empty() => data[at] ^= 1 << random.below(8),
            1 if !data.is_empty() => data[at] = random.below(256) as u8,
            2 => {
                let numbers = [0, 1, 7, 8, 0x7fff_ffff, u32::MAX, u32::MAX - 7, 4096, 1 << 20];
                let number = numbers[random.below(numbers.len())].to_le_bytes();
                if let Some(place) = data.get_mut(at / 4 * 4..).and_then(|d| d.first_chunk_mut()) {
                    *place = number;
                }
            }
            3 => data.truncate(at),
            4 => data.extend_from_slice(&from[at.min(from.len())..]),
            5 => {
                data.truncate(at);
                data.extend_from_slice(&other[random.below(other.len())..]);
            }
            _ => {
                // The operation code of another request, with the same arguments.
                if let Some(code) = data.get_mut(4..8) {
                    code.copy_from_slice(&(random.below(56) as u32).to_le_bytes());
                }
            }
        }
    }
    data.truncate(1 << 16);
    data
}

/// The words of an error without numbers.
fn reason(text: &str) -> String {
    let words = text.split_whitespace().filter(|w| !w.contains(|c: char| c.is_ascii_digit()));
    words.collect::<Vec<_>>().join(" ")
}

/// Runs a target; returns the reason if it refuses the input.
fn run(name: &str, target: Target, data: &[u8]) -> Option<String> {
    let e = target(data).err()?;
    let known = matches!(e.kind(), ErrorKind::Corrupt | ErrorKind::Protocol);
    assert!(known, "{name}: {e} (Z1)");
    Some(reason(&e.to_string()))
}

/// proto.P1, fuzz.Z1, fuzz.Z2: and the fuzzer reaches code after the first checks.
#[test]
fn any_bytes_are_refused_or_parsed() {
    let seed = number("FOREBAY_SEED", 1);
    for (name, target) in TARGETS {
        let mut inputs = corpus(name);
        assert!(inputs.len() > 20, "{name}: no corpus");
        let (mut random, mut reasons, mut taken) = (Random(seed), BTreeSet::new(), 0);
        for data in &inputs {
            match run(name, *target, data) {
                None => taken += 1,
                Some(why) => drop(reasons.insert(why)),
            }
        }
        assert!(taken > 20, "{name}: nothing in the corpus is valid");
        taken = 0;
        for _ in 0..number("FOREBAY_FUZZ_RUNS", 20_000) {
            let (one, other) = (random.below(inputs.len()), random.below(inputs.len()));
            let data = mutate(&mut random, &inputs[one], &inputs[other]);
            match run(name, *target, &data) {
                None => taken += 1,
                Some(why) if reasons.insert(why.clone()) => {
                    if std::env::var_os("FOREBAY_BLESS").is_some() && data.len() <= 4096 {
                        let file = format!("{:08x}", checksum::crc32c(&data));
                        std::fs::write(folder(name).join(file), &data).expect("a file");
                    }
                    inputs.push(data);
                }
                Some(_) => {}
            }
        }
        assert!(taken > 100 && reasons.len() >= 20, "{name}: gone blind: {taken}, {reasons:#?}");
    }
}
