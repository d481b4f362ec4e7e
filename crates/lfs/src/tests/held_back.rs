//! Requests for space delay background cleaning: a request that was answered but whose caller is
//! not polled, and requests that follow one another without end. Other operations that lack space
//! must end all the same.
//!
//! No locks.

use crate::space::{Ask, Need};
use crate::tests::clean::sparse_of;
use crate::tests::reuse::{check, create, setup, write};
use crate::tests::setup::Setup;
use crate::transaction::requests::HOLD;
use crate::{OpenOptions, Volume};
use forebay_base::task::BoxFuture;
use forebay_base::world::WorldRef;
use forebay_block::DeviceRef;
use forebay_sim::SimDisk;
use forebay_vfs::{FileSystem, Ino, Name, OpenFileRef, OpenFlags};
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::Poll;
use std::time::Duration;

const BLOCK: usize = 4096;

/// A volume of which segments hold little that is live, and which has so little free space that
/// the next group of records makes background cleaning due.
async fn low_on_space(setup: &Setup, disk: &SimDisk) -> (Volume, OpenFileRef) {
    let (volume, file, _) = sparse_of(setup, disk, None, 144).await;
    let (_, other) = create(&volume, "other").await.unwrap();
    let segment = volume.0.layout.segment_bytes();
    for n in 0.. {
        if volume.0.state.lock().data_room(Need::New) < 2 * segment {
            break;
        }
        write(&other, n * BLOCK as u64, &[3; BLOCK]).await.unwrap();
        other.sync(true).await.unwrap();
    }
    drop((file, other));
    volume.close().await.unwrap();
    let (device, world): (DeviceRef, WorldRef) = (Arc::new(disk.clone()), disk.world().clone());
    let options = OpenOptions { clean_percent: 20, ..setup.options(&world) };
    let volume = Volume::open(&device, &world, &options).await.unwrap();
    let ino = volume.lookup(Ino::ROOT, Name::new(b"f").unwrap()).await.unwrap().ino;
    let file = volume.open(ino, OpenFlags::READ.union(OpenFlags::WRITE)).await.unwrap();
    (volume, file)
}

async fn poll_once<F: Future + Unpin>(future: &mut F) -> Poll<F::Output> {
    poll_fn(|cx| Poll::Ready(std::pin::Pin::new(&mut *future).poll(cx))).await
}

/// Whether a future ends within a second of the world's clock.
async fn ends(world: &WorldRef, future: impl Future) -> bool {
    let (mut future, mut clock) = (pin!(future), world.sleep(Duration::from_secs(1)));
    poll_fn(|cx| match future.as_mut().poll(cx) {
        Poll::Ready(_) => Poll::Ready(true),
        Poll::Pending => clock.as_mut().poll(cx).map(|()| false),
    })
    .await
}

/// Overwrites a block durably: a group of records is written, and cleaning becomes due.
async fn overwrite(file: &OpenFileRef) {
    write(file, 0, &[9; BLOCK]).await.unwrap();
    file.sync(true).await.unwrap();
}

/// cleaning.C53. The story: a caller was answered, and its executor did not poll it. Background
/// cleaning was due, held back for that caller, and counted as work in progress. Each operation
/// that lacked space waited for it, for ever.
#[test]
fn writer_does_not_wait_for_cleaning_that_is_held_back() {
    let setup = setup(0);
    let disk = setup.blank();
    disk.world().run(async {
        let world: WorldRef = disk.world().clone();
        let (volume, file) = low_on_space(&setup, &disk).await;
        let (requests, files) = (&volume.0.requests, &volume.0.files);
        let mut unpolled = Box::pin(requests.make_space());
        assert!(poll_once(&mut unpolled).await.is_pending());
        // This request is answered after the first one.
        requests.make_space().await;
        overwrite(&file).await;
        assert!(volume.0.cleaning.is_background(), "cleaning is due");
        assert!(ends(&world, files.wait_for_cleaner()).await, "no job does what it waits for");
        assert!(requests.make_space().await, "another caller is answered");
        let before = volume.clean_stats().passes;
        world.sleep(Duration::from_secs(1)).await;
        assert!(volume.clean_stats().passes > before, "J6: cleaning was held back all the while");
        drop(unpolled);
        drop(file);
        volume.close().await.unwrap();
    });
    disk.world().stop();
    assert!(check(&disk).is_clean());
}

/// requests.J5, requests.J6: a pass for the next caller begins when the first caller runs, or after
/// a while. The story: the first caller wanted no pass in progress, was answered, and did not run
/// yet. The job for a caller that posted meanwhile began a pass at once, which reserved log space.
#[test]
fn next_caller_is_answered_though_first_does_not_run() {
    // Too little is short if the checkpoints of the job free enough, too much if the cleaner has no
    // space for a pass. No set-up here makes it begin one, so this tests requests.J6 only.
    for runs in [true, false] {
        for segments in 0..7 {
            next_caller_is_answered(runs, segments);
        }
    }
}

/// A job for the next caller, if space is short by some segments. `runs`: the first caller runs
/// before it.
fn next_caller_is_answered(runs: bool, segments: u64) {
    let setup = setup(0);
    let disk = setup.blank();
    disk.world().run(async {
        let world: WorldRef = disk.world().clone();
        let (volume, file) = low_on_space(&setup, &disk).await;
        let requests = &volume.0.requests;
        let mut first = Box::pin(requests.make_space_and_end_pass());
        let mut with_first = Box::pin(requests.make_space_and_end_pass());
        assert!(poll_once(&mut first).await.is_pending());
        assert!(poll_once(&mut with_first).await.is_pending());
        // The job for these two begins.
        world.sleep(Duration::from_nanos(1)).await;
        let mut next = Box::pin(requests.make_space());
        assert!(poll_once(&mut next).await.is_pending());
        with_first.await;
        let before = volume.clean_stats().passes;
        // No checkpoint ends these grants.
        let mut grants = Vec::new();
        {
            let mut state = volume.0.state.lock();
            let ask = Ask::log(600, Default::default());
            while !state.lacks_space() {
                grants.push(state.grant(&ask, Need::Urgent).unwrap());
            }
            for _ in 0..segments * volume.0.layout.segment_bytes() / 600 {
                grants.extend(state.grant(&ask, Need::Urgent).ok());
            }
        }
        world.sleep(HOLD / 2).await;
        assert_eq!(volume.clean_stats().passes, before, "J5: a pass before the caller ran");
        if runs {
            assert!(poll_once(&mut first).await.is_ready(), "answered before");
        }
        assert!(ends(&world, next).await, "J6: it waits for a caller that does not run");
        drop((first, file));
        for grant in grants {
            volume.0.state.lock().end_grant(grant);
        }
        volume.close().await.unwrap();
    });
    disk.world().stop();
    assert!(check(&disk).is_clean());
}

/// Requests space again and again until it is stopped, and counts the answers.
async fn request_on(volume: Volume, stop: Arc<AtomicBool>, answers: Arc<AtomicU64>) {
    while !stop.load(Ordering::Relaxed) && answers.load(Ordering::Relaxed) < 400 {
        volume.0.requests.make_space().await;
        answers.fetch_add(1, Ordering::Relaxed);
    }
}

/// cleaning.C53. The story: two writers of a full volume requested space in turn, so a request was
/// posted or in progress at all times. Background cleaning was due and never began, but an
/// overwrite past the cache waited for it as long as the two went on.
#[test]
fn writer_is_not_starved_by_callers_that_request_space() {
    let setup = setup(0);
    let disk = setup.blank();
    disk.world().run(async {
        let world: WorldRef = disk.world().clone();
        let (volume, file) = low_on_space(&setup, &disk).await;
        let (stop, answers) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        for _ in 0..2 {
            let task: BoxFuture<'static, ()> =
                Box::pin(request_on(volume.clone(), stop.clone(), answers.clone()));
            world.spawn("requests space", task);
            // The second one posts while the job of the first one is in progress.
            world.sleep(Duration::from_micros(50)).await;
        }
        overwrite(&file).await;
        assert!(volume.0.cleaning.is_background(), "cleaning is due");
        for n in 0..40 {
            let before = answers.load(Ordering::Relaxed);
            volume.0.files.wait_for_cleaner().await;
            let meanwhile = answers.load(Ordering::Relaxed) - before;
            assert!(meanwhile <= 4, "{meanwhile} answers while a writer waited");
            world.sleep(Duration::from_micros(37 * n)).await;
        }
        assert!(answers.load(Ordering::Relaxed) < 400, "requests went on all the while");
        stop.store(true, Ordering::Relaxed);
        world.sleep(Duration::from_secs(1)).await;
        drop(file);
        volume.close().await.unwrap();
    });
    disk.world().stop();
    assert!(check(&disk).is_clean());
}
