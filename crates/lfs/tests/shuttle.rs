//! Random interleavings of the log's turns, on threads of their own, in a build of its own:
//! `RUSTFLAGS="--cfg shuttle" cargo test --profile fsx --test shuttle`, with a target directory of
//! its own.
//!
//! In every schedule a task that waits for a record gets an answer (log.L8; shuttle reports a
//! deadlock otherwise), and a record that was reported as durable was flushed (lfs.I12). A hold of
//! the state lock finds all content on the device that was reported as durable before it
//! (state_lock.S22).
#![cfg(shuttle)]

use forebay_base::schedules::check;
use forebay_base::sync::atomic::{AtomicU64, Ordering};
use forebay_base::sync::{Arc, thread};
use forebay_base::task::{BoxFuture, block_on, oneshot};
use forebay_lfs::lock_model;
use forebay_lfs::log_model::Model;
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::task::Poll;

type Job = Box<dyn FnOnce() + Send>;

fn together(jobs: Vec<Job>) {
    let threads: Vec<_> = jobs.into_iter().map(thread::spawn).collect();
    threads.into_iter().for_each(|t| t.join().unwrap());
}

/// A log whose device answers on another thread; the answer of that number is a failure.
fn model(failing: u64) -> Arc<Model> {
    let count = AtomicU64::new(0);
    let io = move || -> BoxFuture<'static, bool> {
        let worked = count.fetch_add(1, Ordering::Relaxed) != failing;
        let (tx, rx) = oneshot();
        thread::spawn(move || tx.send(worked));
        Box::pin(async move { rx.await.unwrap_or(false) })
    };
    Arc::new(Model::new(Box::new(io)))
}

fn syncs(model: &Arc<Model>, times: u64) -> Job {
    let model = model.clone();
    Box::new(move || {
        for _ in 0..times {
            block_on(model.synced());
        }
    })
}

#[test]
fn every_waiter_gets_an_answer() {
    check(|| {
        let model = model(u64::MAX);
        together((0..3).map(|_| syncs(&model, 2)).collect());
    });
}

#[test]
fn every_waiter_gets_an_answer_when_device_fails_once() {
    for failing in 0..4 {
        check(move || {
            let model = model(failing);
            together((0..3).map(|_| syncs(&model, 2)).collect());
        });
    }
}

/// One is polled a few times and goes, with its turn, its place in the queue, or its wake.
#[test]
fn every_waiter_gets_an_answer_when_one_is_dropped() {
    for polls in 1..4 {
        check(move || {
            let model = model(u64::MAX);
            let mut jobs: Vec<Job> = (0..2).map(|_| syncs(&model, 2)).collect();
            let theirs = model.clone();
            jobs.push(Box::new(move || {
                let mut future = pin!(theirs.synced());
                for _ in 0..polls {
                    let once = poll_fn(|cx| Poll::Ready(future.as_mut().poll(cx).is_ready()));
                    if block_on(once) {
                        return;
                    }
                    thread::yield_now();
                }
            }));
            together(jobs);
        });
    }
}

/// log.L16: a task that needs a flush for another purpose shares those of the syncs, and runs some,
/// also while a failure is repaired. The story: such a flush began between the turn of a repair and
/// the moment in which that took the groups back. It then made later groups durable, which it had
/// not covered (log.L2).
#[test]
fn flush_for_another_purpose_is_shared_also_during_repair() {
    for failing in 0..4 {
        check(move || {
            let model = model(failing);
            let mut jobs: Vec<Job> = (0..2).map(|_| syncs(&model, 2)).collect();
            let theirs = model.clone();
            jobs.push(Box::new(move || {
                (0..3).for_each(|_| block_on(theirs.flush_independently()));
            }));
            together(jobs);
        });
    }
}

/// Each of three tasks reports a block as durable, and finds it on the device. So do those who look
/// at the blocks of the others.
#[test]
fn holds_find_what_was_reported_as_durable() {
    check(|| {
        let model = Arc::new(lock_model::Model::new(3));
        let job = |block: u64| -> Job {
            let model = model.clone();
            Box::new(move || {
                let before = model.is_on_device((block + 1) % 3);
                model.note_durable(block);
                assert!(model.is_on_device(block), "S22: {block}");
                assert!(!before || model.is_on_device((block + 1) % 3), "S22: it stays so");
            })
        };
        together((0..3).map(job).collect());
    });
}
