//! Ten thousand background tasks on a few threads. In a file of its own, because it counts the
//! threads of its process.
//!
//! The story: each background task had a thread of its own. So 8,000 open files were 8,004 threads,
//! and at the limit of threads the process panicked.

use forebay_base::pool::THREADS_MAX;
use forebay_base::task::{block_on, oneshot};
use forebay_base::world::RealWorld;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

const TASKS: usize = 10_000;

/// Threads of this process, and how many of them belong to the pool by their names.
fn threads() -> (usize, usize) {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("Threads:")).unwrap();
    let names = std::fs::read_dir("/proc/self/task").unwrap().flatten();
    let names = names.filter_map(|t| std::fs::read_to_string(t.path().join("comm")).ok());
    let ours = names.filter(|name| name.starts_with("forebay-bg-")).count();
    (line.trim().parse().unwrap(), ours)
}

#[test]
fn pool_ten_thousand_tasks_need_few_threads() {
    let world = RealWorld::with_seed(1);
    let before = threads().0;
    let most = Arc::new(AtomicUsize::new(0));
    let done = Arc::new(AtomicUsize::new(0));
    let (last, all) = oneshot();
    let mut last = Some(last);
    // Each task sleeps, waits for its predecessor, and wakes its successor.
    let (first, mut wait) = oneshot::<()>();
    for index in 0..TASKS {
        let (next, woken) = oneshot::<()>();
        let (me, done, most) = (world.clone(), done.clone(), most.clone());
        let last = (index + 1 == TASKS).then(|| last.take().unwrap());
        let before = std::mem::replace(&mut wait, woken);
        let task = async move {
            me.sleep(Duration::from_millis((index % 7) as u64)).await;
            before.await;
            if index % 500 == 0 {
                most.fetch_max(threads().0, Ordering::Relaxed);
                me.sleep(Duration::from_millis(1)).await;
            }
            done.fetch_add(1, Ordering::Relaxed);
            next.send(());
            if let Some(last) = last {
                last.send(());
            }
        };
        world.spawn("link", Box::pin(task));
    }
    most.fetch_max(threads().0, Ordering::Relaxed);
    first.send(());
    block_on(all).unwrap();
    assert_eq!(done.load(Ordering::Relaxed), TASKS);
    let (now, ours) = threads();
    let most = most.load(Ordering::Relaxed).max(now);
    // Those of the pool, and the timer.
    assert!(ours <= THREADS_MAX && most <= before + THREADS_MAX + 1, "{ours} of {most}, {before}");
}
