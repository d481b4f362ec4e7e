//! Futures: many reads in flight on one thread, with buffers that the calls own meanwhile. Any
//! executor runs them; `join` here polls all that are not done yet.
//!
//! `cargo run --example futures`

use forebay::{AlignedBuf, Cache, CacheConfig, File, IoFlags, OpenOptions, Result, block_on};
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::task::Poll;

const BLOCK: usize = 64 << 10;
const BLOCKS: u64 = 64;

async fn sum(file: File, block: u64) -> Result<u64> {
    let buf = AlignedBuf::new(BLOCK);
    let (buf, read) = file.read_at_async(buf, block * BLOCK as u64, IoFlags::UNCACHED).await;
    Ok(buf[..read?].iter().map(|byte| u64::from(*byte)).sum())
}

/// The results of all futures, in order, with all of them in flight at once.
async fn join<F: Future + Unpin>(mut futures: Vec<F>) -> Vec<F::Output> {
    let mut results: Vec<Option<F::Output>> = futures.iter().map(|_| None).collect();
    poll_fn(|context| {
        for (future, result) in futures.iter_mut().zip(&mut results) {
            if result.is_none()
                && let Poll::Ready(value) = Pin::new(future).poll(context)
            {
                *result = Some(value);
            }
        }
        if results.iter().all(Option::is_some) { Poll::Ready(()) } else { Poll::Pending }
    })
    .await;
    results.into_iter().flatten().collect()
}

/// Adds up the bytes of a file.
pub fn total() -> Result<u64> {
    let path = std::env::temp_dir().join(format!("forebay-futures-{}", std::process::id()));
    std::fs::write(&path, vec![1; BLOCK * BLOCKS as usize]).expect("a writable folder");
    let cache = Cache::new(CacheConfig::with_budget(16 << 20))?;
    let file = OpenOptions::new().read(true).open(&cache, &path)?;
    let reads = (0..BLOCKS).map(|block| Box::pin(sum(file.clone(), block))).collect();
    let sums = block_on(join(reads));
    drop(file);
    std::fs::remove_file(&path).expect("made above");
    sums.into_iter().sum()
}

/// Shows it.
pub fn main() -> Result<()> {
    println!("{} bytes of 1", total()?);
    Ok(())
}
