//! The simulated world: one thread, a virtual clock, and a seed that decides everything.
//!
//! [`SimWorld::run`] polls one ready task at a time. Which one comes next, and how long it takes
//! in virtual time, follows from the seed; so does the order in which simulated devices complete.
//! The same program with the same seed takes the same steps, and [`SimWorld::digest`] proves it.
//!
//! Invariants: S1 nothing here depends on real time, addresses or thread identity. S2 time only
//! goes forward; it jumps when nothing is ready, and moves on a little with each poll, so that a
//! task that polls in a loop sees its device complete. S3 no task, event or waker runs while the
//! world's lock is held. S4 during a run, a task woken from another thread would break S1: `run`
//! then panics.
//!
//! Everything simulated runs on the thread in `run`; it must not block there. `block_on` panics
//! when it would, rather than hang.
//!
//! Locks: one, innermost, held for a few steps of bookkeeping.

use crate::sync::Mutex;
use crate::sync::atomic::{AtomicBool, Ordering};
use crate::task::{BoxFuture, Simulating, oneshot};
use crate::world::{Nanos, World, split_mix};
use std::any::Any;
use std::collections::BTreeMap;
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::{Pin, pin};
use std::sync::{Arc, Weak};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::ThreadId;

/// Least virtual time that one poll takes, nanoseconds.
const POLL_NANOS_MIN: u64 = 100;
/// A poll takes [`POLL_NANOS_MIN`] and a time below this, drawn from the seed, nanoseconds.
const POLL_NANOS_SPREAD: u64 = 900;
/// Steps of a world after which `run` panics because of a livelock, unless
/// [`SimWorld::set_step_limit`] sets another number.
const STEP_LIMIT: u64 = 20_000_000;
/// The id of the future given to `run`; spawned tasks count from 1.
const ROOT: u64 = 0;

/// Something that happens at a virtual time, such as a device completing a bio.
pub type Event = Box<dyn FnOnce() + Send>;

struct TaskWaker {
    id: u64,
    queued: AtomicBool,
    world: Weak<SimWorld>,
}

impl Wake for TaskWaker {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }
    fn wake_by_ref(self: &Arc<Self>) {
        if !self.queued.swap(true, Ordering::AcqRel)
            && let Some(world) = self.world.upgrade()
        {
            world.make_ready(self);
        }
    }
}

struct Task {
    name: String,
    /// `None` while it is being polled.
    future: Option<BoxFuture<'static, ()>>,
    waker: Arc<TaskWaker>,
}

struct Inner {
    now: Nanos,
    /// State of the generator that decides the schedule.
    choice: u64,
    /// State of `World::random`. Separate from the schedule's generator: a program that draws more
    /// numbers keeps its schedule.
    random: u64,
    tasks: BTreeMap<u64, Task>,
    next_task: u64,
    ready: Vec<Arc<TaskWaker>>,
    /// Events whose time has come.
    due: Vec<(u64, Event)>,
    later: BTreeMap<(Nanos, u64), Event>,
    next_event: u64,
    steps: u64,
    step_limit: u64,
    digest: u64,
    runs_on: Option<ThreadId>,
    foreign_wake: bool,
}

enum Step {
    Poll(Arc<TaskWaker>),
    Fire(Event),
    Stuck,
}

/// A simulated world: one thread, a virtual clock, and a seed that determines each step.
pub struct SimWorld {
    seed: u64,
    me: Weak<SimWorld>,
    inner: Mutex<Inner>,
}

impl SimWorld {
    /// A world at time 0 with no tasks.
    pub fn new(seed: u64) -> Arc<Self> {
        let mut state = seed;
        let inner = Inner {
            now: 0,
            choice: split_mix(&mut state),
            random: split_mix(&mut state),
            tasks: BTreeMap::new(),
            next_task: ROOT + 1,
            ready: Vec::new(),
            due: Vec::new(),
            later: BTreeMap::new(),
            next_event: 0,
            steps: 0,
            step_limit: STEP_LIMIT,
            digest: 0,
            runs_on: None,
            foreign_wake: false,
        };
        Arc::new_cyclic(|me| Self { seed, me: me.clone(), inner: Mutex::new(inner) })
    }

    /// The seed this world was made with.
    pub fn seed(&self) -> u64 {
        self.seed
    }

    /// A hash of which task or event ran when, and of what `note` added. Same program and seed,
    /// same digest.
    pub fn digest(&self) -> u64 {
        self.inner.lock().digest
    }

    /// How many polls and events ran so far.
    pub fn steps(&self) -> u64 {
        self.inner.lock().steps
    }

    /// `run` panics when the world has taken this many steps in all.
    pub fn set_step_limit(&self, limit: u64) {
        self.inner.lock().step_limit = limit;
    }

    /// Mixes something the program saw (a result, a checksum) into the digest.
    pub fn note(&self, value: u64) {
        self.inner.lock().mix(value);
    }

    /// Runs `event` on the simulation's thread once the clock has reached `at`. The seed decides
    /// its order among the tasks and events that are ready then.
    pub fn at(&self, at: Nanos, event: Event) {
        let mut inner = self.inner.lock();
        let serial = inner.next_event;
        inner.next_event += 1;
        inner.later.insert((at, serial), event);
    }

    /// Polls `root`, and the tasks it spawns, until `root` is done. Remaining tasks continue in the
    /// next `run`; [`SimWorld::stop`] ends them.
    ///
    /// # Panics
    /// With the seed in the message: when a task panics; when every task waits and no event is
    /// scheduled; at the step limit; and when another thread wakes a task.
    pub fn run<T>(&self, root: impl Future<Output = T>) -> T {
        let _inside = Simulating::enter();
        let mut root = pin!(root);
        let root_waker = self.waker(ROOT, true);
        {
            let mut inner = self.inner.lock();
            assert!(inner.runs_on.is_none(), "one run at a time");
            inner.runs_on = Some(std::thread::current().id());
            inner.ready.push(root_waker);
        }
        let _running = Running(self);
        loop {
            match self.next_step() {
                Step::Poll(waker) if waker.id == ROOT => {
                    if let Some(value) = self.poll_root(root.as_mut(), waker) {
                        return value;
                    }
                }
                Step::Poll(waker) => self.poll_task(waker),
                Step::Fire(event) => event(),
                Step::Stuck => self.panic_stuck(),
            }
        }
    }

    /// Drops every task and every scheduled event, as when the process dies. Bios that a device
    /// still holds in its events end with `Shutdown`.
    pub fn stop(&self) {
        loop {
            let (tasks, due, later) = {
                let mut inner = self.inner.lock();
                inner.ready.clear();
                let tasks = std::mem::take(&mut inner.tasks);
                let due = std::mem::take(&mut inner.due);
                (tasks, due, std::mem::take(&mut inner.later))
            };
            // Destructors may wake, spawn or schedule again, so no lock is held here
            // (sim_world.S3).
            if tasks.is_empty() && due.is_empty() && later.is_empty() {
                return;
            }
        }
    }

    fn waker(&self, id: u64, queued: bool) -> Arc<TaskWaker> {
        let world = self.me.clone();
        Arc::new(TaskWaker { id, queued: AtomicBool::new(queued), world })
    }

    fn make_ready(&self, waker: &Arc<TaskWaker>) {
        let mut inner = self.inner.lock();
        if inner.runs_on.is_some_and(|id| id != std::thread::current().id()) {
            inner.foreign_wake = true;
        }
        inner.ready.push(waker.clone());
    }

    /// Chooses what happens next and moves the clock.
    fn next_step(&self) -> Step {
        let mut guard = self.inner.lock();
        let inner = &mut *guard;
        let seed = self.seed;
        assert!(!inner.foreign_wake, "seed {seed}: a task was woken from another thread (S4)");
        let limit = inner.step_limit;
        assert!(inner.steps < limit, "seed {seed}: no end after {limit} steps: a livelock");
        inner.steps += 1;
        inner.collect_due();
        if inner.ready.is_empty() && inner.due.is_empty() {
            let Some((&(at, _), _)) = inner.later.first_key_value() else {
                return Step::Stuck;
            };
            inner.now = inner.now.max(at);
            inner.collect_due();
        }
        let choices = inner.ready.len() + inner.due.len();
        let pick = (split_mix(&mut inner.choice) % choices as u64) as usize;
        if pick >= inner.ready.len() {
            let (serial, event) = inner.due.swap_remove(pick - inner.ready.len());
            inner.mix(!serial);
            return Step::Fire(event);
        }
        let waker = inner.ready.swap_remove(pick);
        inner.now += POLL_NANOS_MIN + split_mix(&mut inner.choice) % POLL_NANOS_SPREAD;
        inner.mix(waker.id);
        Step::Poll(waker)
    }

    fn poll_root<T>(
        &self,
        root: Pin<&mut impl Future<Output = T>>,
        me: Arc<TaskWaker>,
    ) -> Option<T> {
        me.queued.store(false, Ordering::Release);
        let waker = Waker::from(me);
        match self.guarded("root", || root.poll(&mut Context::from_waker(&waker))) {
            Poll::Ready(value) => Some(value),
            Poll::Pending => None,
        }
    }

    fn poll_task(&self, me: Arc<TaskWaker>) {
        me.queued.store(false, Ordering::Release);
        let id = me.id;
        let taken = self.inner.lock().tasks.get_mut(&id).and_then(|task| {
            let future = task.future.take()?;
            Some((std::mem::take(&mut task.name), future))
        });
        // A task that was woken in its last poll has ended when its turn comes.
        let Some((name, mut future)) = taken else { return };
        let waker = Waker::from(me);
        let polled = self.guarded(&name, || future.as_mut().poll(&mut Context::from_waker(&waker)));
        let mut inner = self.inner.lock();
        if polled.is_ready() {
            let ended = inner.tasks.remove(&id);
            drop(inner);
            drop((ended, future));
        } else if let Some(task) = inner.tasks.get_mut(&id) {
            (task.name, task.future) = (name, Some(future));
        }
    }

    /// Runs a poll; a panic in it is passed on with the seed.
    fn guarded<R>(&self, name: &str, poll: impl FnOnce() -> R) -> R {
        catch_unwind(AssertUnwindSafe(poll)).unwrap_or_else(|cause| {
            let (seed, now) = (self.seed, self.now());
            panic!("seed {seed}: task `{name}` panicked at {now} ns: {}", text_of(&*cause))
        })
    }

    fn panic_stuck(&self) -> ! {
        let inner = self.inner.lock();
        let waiting: Vec<String> = inner.tasks.values().map(|t| t.name.clone()).collect();
        let (seed, now, steps) = (self.seed, inner.now, inner.steps);
        drop(inner);
        panic!(
            "seed {seed}: stuck at {now} ns after {steps} steps: the root and {} tasks wait, \
             nothing is to come: {}",
            waiting.len(),
            waiting.join(", ")
        );
    }
}

fn text_of(cause: &(dyn Any + Send)) -> &str {
    match (cause.downcast_ref::<&str>(), cause.downcast_ref::<String>()) {
        (Some(text), _) => text,
        (_, Some(text)) => text,
        _ => "no message",
    }
}

/// The world counts as running until this is dropped, also by a panic.
struct Running<'a>(&'a SimWorld);

impl Drop for Running<'_> {
    fn drop(&mut self) {
        let mut inner = self.0.inner.lock();
        inner.runs_on = None;
        inner.ready.retain(|waker| waker.id != ROOT);
    }
}

impl Inner {
    fn collect_due(&mut self) {
        while let Some(entry) = self.later.first_entry()
            && entry.key().0 <= self.now
        {
            let ((_, serial), event) = entry.remove_entry();
            self.due.push((serial, event));
        }
    }

    fn mix(&mut self, value: u64) {
        let mut state = self.digest ^ value.rotate_left(32) ^ self.now;
        self.digest = split_mix(&mut state);
    }
}

impl World for SimWorld {
    fn now(&self) -> Nanos {
        self.inner.lock().now
    }

    fn random(&self) -> u64 {
        split_mix(&mut self.inner.lock().random)
    }

    fn spawn(&self, name: &str, task: BoxFuture<'static, ()>) {
        let mut inner = self.inner.lock();
        let id = inner.next_task;
        inner.next_task += 1;
        let waker = self.waker(id, true);
        inner.ready.push(waker.clone());
        inner.tasks.insert(id, Task { name: name.to_string(), future: Some(task), waker });
    }

    fn sleep_until(&self, at: Nanos) -> BoxFuture<'static, ()> {
        let (tx, rx) = oneshot();
        self.at(at, Box::new(move || tx.send(())));
        Box::pin(async move {
            rx.await;
        })
    }
}

impl Drop for Task {
    fn drop(&mut self) {
        // A late wake of a task that is gone does nothing.
        self.waker.queued.store(true, Ordering::Release);
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use super::*;
    use crate::task::{WaitQueue, block_on, yield_now};
    use std::time::Duration;

    type Log = Arc<Mutex<Vec<u64>>>;

    /// Eight tasks that sleep, yield and write down their turns.
    fn busy(seed: u64) -> (Vec<u64>, u64) {
        let world = SimWorld::new(seed);
        let log = Log::default();
        let done = Arc::new(WaitQueue::new());
        let left = Arc::new(Mutex::new(8));
        for id in 0..8u64 {
            let (w, log, done, left) = (world.clone(), log.clone(), done.clone(), left.clone());
            let task = async move {
                for _ in 0..5 {
                    log.lock().push(id);
                    yield_now().await;
                    w.sleep(Duration::from_nanos(w.random() % 5000)).await;
                }
                *left.lock() -= 1;
                done.wake_all();
            };
            world.spawn("busy", Box::pin(task));
        }
        world.run(done.wait_until(|| (*left.lock() == 0).then_some(())));
        let turns = log.lock().clone();
        (turns, world.digest())
    }

    /// Notes when it is used, and when it is dropped, whether the lock of the world is free.
    struct Probe(Weak<SimWorld>, Arc<Mutex<Vec<(&'static str, bool)>>>, &'static str);

    impl Probe {
        fn note(&self, what: &'static str) {
            let is_free = self.0.upgrade().is_some_and(|world| world.inner.try_lock().is_some());
            self.1.lock().push((what, is_free));
        }
    }

    impl Drop for Probe {
        fn drop(&mut self) {
            self.note(self.2);
        }
    }

    /// A task with a probe, which is dropped with the task. True: it ends at its first poll.
    struct ProbedTask(Probe, bool);

    impl Future for ProbedTask {
        type Output = ();

        fn poll(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<()> {
            self.0.note("task");
            if self.1 { Poll::Ready(()) } else { Poll::Pending }
        }
    }

    /// S3: tasks and events run, and are dropped, without the lock of the world: at their end, and
    /// when the world stops.
    #[test]
    fn s3_tasks_and_events_run_and_drop_without_lock() {
        let world = SimWorld::new(1);
        let seen = Arc::default();
        let probe = |dropped| Probe(world.me.clone(), Arc::clone(&seen), dropped);
        for (ends, dropped) in [(true, "task ended"), (false, "task stopped")] {
            world.spawn("probe", Box::pin(ProbedTask(probe(dropped), ends)));
        }
        for (at, dropped) in [(1_000, "event ended"), (1 << 40, "event stopped")] {
            let probe = probe(dropped);
            world.at(at, Box::new(move || probe.note("event")));
        }
        world.run(world.sleep(Duration::from_millis(1)));
        world.stop();
        let mut found = seen.lock().clone();
        assert!(found.iter().all(|(_, is_free)| *is_free), "S3: {found:?}");
        found.sort_unstable();
        let mut wanted = ["event", "event ended", "event stopped", "task", "task"].to_vec();
        wanted.extend(["task ended", "task stopped"]);
        assert_eq!(found.into_iter().map(|(what, _)| what).collect::<Vec<_>>(), wanted);
    }

    #[test]
    fn sim_world_sleeps_end_in_order() {
        let world = SimWorld::new(1);
        let log = Log::default();
        for hours in [3u64, 1, 2] {
            let (w, log) = (world.clone(), log.clone());
            world.spawn(
                "sleeper",
                Box::pin(async move {
                    w.sleep(Duration::from_secs(hours * 3600)).await;
                    log.lock().push(hours);
                }),
            );
        }
        let w = world.clone();
        let end = world.run(async move {
            w.sleep(Duration::from_secs(4 * 3600)).await;
            w.now()
        });
        assert_eq!(*log.lock(), [1, 2, 3]);
        assert!((14_400_000_000_000..14_400_001_000_000).contains(&end), "S2: it jumps: {end}");
    }

    #[test]
    fn same_seed_same_digest_other_seed_other_order() {
        let runs: Vec<_> = (0..20).map(busy).collect();
        for (seed, run) in runs.iter().enumerate() {
            assert_eq!(&busy(seed as u64), run, "S1: seed {seed}");
        }
        for (a, b) in runs.iter().zip(&runs[1..]) {
            assert_ne!(a, b);
        }
    }

    #[test]
    fn events_run_at_their_time_even_while_tasks_spin() {
        let world = SimWorld::new(3);
        let fired = Arc::new(AtomicBool::new(false));
        let (f, w) = (fired.clone(), world.clone());
        world.at(50_000, Box::new(move || f.store(true, Ordering::Release)));
        world.run(async move {
            while !fired.load(Ordering::Acquire) {
                yield_now().await;
            }
            assert!(w.now() >= 50_000);
        });
    }

    #[test]
    #[should_panic(expected = "seed 77: stuck")]
    fn deadlock_is_reported() {
        let world = SimWorld::new(77);
        world.run(std::future::pending::<()>());
    }

    #[test]
    #[should_panic(expected = "seed 78: no end after 1000 steps")]
    fn livelock_is_reported() {
        let world = SimWorld::new(78);
        world.set_step_limit(1000);
        world.run(async {
            loop {
                yield_now().await;
            }
        });
    }

    #[test]
    #[should_panic(expected = "seed 79: task `bad` panicked")]
    fn panic_message_has_seed() {
        let world = SimWorld::new(79);
        world.spawn("bad", Box::pin(async { panic!("oh") }));
        world.run(std::future::pending::<()>());
    }

    #[test]
    #[should_panic(expected = "block_on would wait inside the simulated world")]
    fn blocking_inside_is_a_panic() {
        let world = SimWorld::new(80);
        world.run(async { block_on(std::future::pending::<()>()) });
    }

    #[test]
    fn sim_world_stop_drops_tasks_and_events() {
        let world = SimWorld::new(4);
        let weak = Arc::downgrade(&world);
        let w = world.clone();
        world.spawn(
            "forever",
            Box::pin(async move {
                loop {
                    w.sleep(Duration::from_millis(1)).await;
                }
            }),
        );
        world.run(world.sleep(Duration::from_millis(10)));
        world.stop();
        drop(world);
        assert!(weak.upgrade().is_none());
    }
}
