//! Compares the CRC-32C crates by size: alternating rounds, medians, std timing only.
//!
//! `cargo run --release -p forebay-base --example crc_bench`

use std::hint::black_box;
use std::time::Instant;

type Crc = fn(&[u8]) -> u32;

/// Bytes hashed in one timed slice.
const SLICE: usize = 8 << 20;
const ROUNDS: usize = 41;

fn slice_gib_per_s(crc: Crc, data: &[u8]) -> f64 {
    let calls = SLICE / data.len();
    let start = Instant::now();
    for _ in 0..calls {
        black_box(crc(black_box(data)));
    }
    (calls * data.len()) as f64 / start.elapsed().as_secs_f64() / (1u64 << 30) as f64
}

fn median(samples: &mut [f64]) -> f64 {
    samples.sort_by(f64::total_cmp);
    samples[samples.len() / 2]
}

fn main() {
    let rivals: [(&str, Crc); 2] =
        [("crc-fast", crc_fast::crc32_iscsi), ("crc32c", crc32c::crc32c)];
    println!("{:>8}  {:>14}  {:>14}  {:>6}", "bytes", "crc-fast GiB/s", "crc32c GiB/s", "ratio");
    for size in [512, 4 << 10, 64 << 10, 1 << 20] {
        let data: Vec<u8> = (0..size).map(|i| (i * 31 + i / 251) as u8).collect();
        let mut samples = [Vec::new(), Vec::new()];
        for round in 0..ROUNDS + 3 {
            for (rival, (_, crc)) in rivals.iter().enumerate() {
                let speed = slice_gib_per_s(*crc, &data);
                // The first rounds warm caches and the crates' feature detection.
                if round >= 3 {
                    samples[rival].push(speed);
                }
            }
        }
        let [fast, other] = samples.each_mut().map(|s| median(s));
        println!("{size:>8}  {fast:>14.2}  {other:>14.2}  {:>6.2}", fast / other);
    }
}
