//! The cost of cached reads of 4 KiB through the Rust interface; `tests/c/hits.c` is its twin in C.
//!
//! `hits FILE COUNT ROUNDS` prints the nanoseconds of a read, a line for each round.
//! `scripts/hit-cost` runs both.

use forebay::{Aio, Cache, CacheConfig, OpenOptions};
use std::time::Instant;

const BLOCK: usize = 4096;

/// On a page of its own: the copy takes half as long again to some addresses within a page, and a
/// stack begins at another one in each process.
#[repr(align(4096))]
struct Block([u8; BLOCK]);

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [path, count, rounds] = &arguments[..] else { return Err("FILE COUNT ROUNDS".into()) };
    let (count, rounds): (u64, u64) = (count.parse()?, rounds.parse()?);
    let config = CacheConfig::with_budget(16 << 20).aio(Aio::Threads);
    let cache = Cache::new(config)?;
    let file = OpenOptions::new().read(true).open(&cache, path)?;
    let (mut block, mut blocks, mut state) = (Block([0; BLOCK]), 0, 1u64);
    while file.read_at(&mut block.0, blocks * BLOCK as u64)? == BLOCK {
        blocks += 1;
    }
    for _ in 0..rounds {
        let begin = Instant::now();
        for _ in 0..count {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            let offset = (state >> 33) % blocks * BLOCK as u64;
            assert_eq!(file.read_at(&mut block.0, offset)?, BLOCK);
        }
        println!("{:.2}", begin.elapsed().as_nanos() as f64 / count as f64);
    }
    Ok(file.close()?)
}
