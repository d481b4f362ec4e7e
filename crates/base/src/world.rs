//! The services that the stack needs from its environment: clock, random numbers, tasks and timed
//! waits. They are injected at run time, so that a simulation replays from one seed.

use crate::pool::{Attach, TaskPool};
use crate::sync::{Arc, Mutex};
use crate::task::{BoxFuture, OneSender, oneshot};
use std::collections::BTreeMap;
use std::num::NonZeroU64;
use std::sync::{Condvar, OnceLock};
use std::time::{Duration, Instant};

pub use crate::sim_world as sim;

/// Nanoseconds since the world began. Monotonic.
pub type Nanos = u64;

/// An environment, real or simulated. Cheap to share.
pub trait World: Send + Sync {
    /// Monotonic time.
    fn now(&self) -> Nanos;
    /// A random number; in a simulated world a function of the seed.
    fn random(&self) -> u64;
    /// Runs a background task until it ends. In the real world the tasks share a few threads (see
    /// [`crate::pool`]); in a simulated world the task runs on the simulation's thread. `name` is
    /// for messages.
    ///
    /// A task may compute, and may make system calls that return within milliseconds. It must not
    /// block for longer. A task that blocks for another task may keep that one from getting a
    /// thread, and a device may take long. Such waits use `.await`: a flush, for example, is a
    /// request to the device, whose completion the task awaits.
    fn spawn(&self, name: &str, task: BoxFuture<'static, ()>);
    /// Runs a flusher as a background task; see [`World::spawn`]. Its thread may submit its
    /// requests itself.
    fn spawn_flusher(&self, task: BoxFuture<'static, ()>) {
        self.spawn("forebay-flush", task);
    }
    /// Waits until `at`.
    fn sleep_until(&self, at: Nanos) -> BoxFuture<'static, ()>;

    /// Waits for `duration`.
    fn sleep(&self, duration: Duration) -> BoxFuture<'static, ()> {
        self.sleep_until(self.now() + duration.as_nanos() as u64)
    }
}

/// A shared world.
pub type WorldRef = std::sync::Arc<dyn World>;

/// How late the kernel may wake the thread of the timers.
const TIMER_SLACK_NANOS: u64 = 1_000;

type Timers = BTreeMap<(Nanos, u64), OneSender<()>>;

#[derive(Default)]
struct TimerState {
    timers: Timers,
    serial: u64,
    thread_runs: bool,
}

struct TimerShared {
    // Condvar needs the std mutex; the timer thread is never part of a shuttle test.
    state: std::sync::Mutex<TimerState>,
    changed: Condvar,
}

/// The real world: the system's clock and threads.
pub struct RealWorld {
    start: Instant,
    random: Mutex<u64>,
    timer: Arc<TimerShared>,
    tasks: TaskPool,
    /// For flushers, once they have threads of their own.
    flushers: OnceLock<TaskPool>,
}

impl RealWorld {
    /// The real world, its random numbers seeded from the clock and the process id.
    #[expect(clippy::new_ret_no_self, reason = "a world is only ever used shared")]
    pub fn new() -> WorldRef {
        Self::shared()
    }

    /// As [`RealWorld::new`], for a caller that may call [`RealWorld::attach_flushers`].
    pub fn shared() -> std::sync::Arc<Self> {
        std::sync::Arc::new(Self::of(seed_of_clock()))
    }

    /// From now on flushers start on threads apart, with queues of their own, which `attach` gives.
    pub fn attach_flushers(&self, attach: Attach) {
        match TaskPool::with_queues("forebay-flush", attach) {
            Ok(pool) => assert!(self.flushers.set(pool).is_ok(), "a world gets one pool for them"),
            Err(e) => log::warn!("no threads for flushers: {e}"),
        }
    }

    /// The real world with a given seed for its random numbers.
    pub fn with_seed(seed: u64) -> WorldRef {
        std::sync::Arc::new(Self::of(seed))
    }

    fn of(seed: u64) -> Self {
        Self {
            start: Instant::now(),
            random: Mutex::new(seed),
            timer: Arc::new(TimerShared {
                state: std::sync::Mutex::default(),
                changed: Condvar::new(),
            }),
            tasks: TaskPool::new(),
            flushers: OnceLock::new(),
        }
    }
}

fn seed_of_clock() -> u64 {
    let clock = std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .map_or(0, |d| d.as_nanos() as u64);
    clock ^ (u64::from(std::process::id()) << 32)
}

/// One step of SplitMix64 (Steele, Lea, Flood 2014): enough for jitter, sampling and tests.
pub fn split_mix(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut z = *state;
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

impl World for RealWorld {
    fn now(&self) -> Nanos {
        self.start.elapsed().as_nanos() as u64
    }

    fn random(&self) -> u64 {
        split_mix(&mut self.random.lock())
    }

    fn spawn(&self, name: &str, task: BoxFuture<'static, ()>) {
        self.tasks.spawn(name, task);
    }

    fn spawn_flusher(&self, task: BoxFuture<'static, ()>) {
        self.flushers.get().unwrap_or(&self.tasks).spawn("forebay-flush", task);
    }

    fn sleep_until(&self, at: Nanos) -> BoxFuture<'static, ()> {
        let (tx, rx) = oneshot();
        let mut state = lock(&self.timer);
        state.serial += 1;
        let key = (at, state.serial);
        state.timers.insert(key, tx);
        let start_thread = !std::mem::replace(&mut state.thread_runs, true);
        let is_first = state.timers.first_key_value().is_some_and(|(first, _)| *first == key);
        drop(state);
        if start_thread {
            start_timers(&self.timer, self.start);
        }
        // The thread wakes for the first timer in any case.
        if is_first {
            self.timer.changed.notify_one();
        }
        let armed = Armed { timer: self.timer.clone(), key };
        Box::pin(async move {
            let _armed = armed;
            rx.await;
        })
    }
}

/// Removes a sleep's timer when its future is dropped. Otherwise the timer of a sleep that is
/// dropped early, such as a timeout that was not needed, would stay until it is due.
struct Armed {
    timer: Arc<TimerShared>,
    key: (Nanos, u64),
}

impl Drop for Armed {
    fn drop(&mut self) {
        // Dropped after the lock is released: dropping a sender may run a waker.
        let sender = lock(&self.timer).timers.remove(&self.key);
        drop(sender);
    }
}

fn lock(shared: &TimerShared) -> std::sync::MutexGuard<'_, TimerState> {
    shared.state.lock().unwrap_or_else(|p| p.into_inner())
}

/// Starts the timer thread; retries until the system gives one.
fn start_timers(shared: &Arc<TimerShared>, start: Instant) {
    let mut pause = Duration::from_millis(1);
    loop {
        let theirs = shared.clone();
        let work = move || run_timers(&theirs, start);
        let Err(e) = crate::thread::spawn("forebay-timer", work) else {
            return;
        };
        log::error!("no thread for timers, trying again in {pause:?}: {e}");
        std::thread::sleep(pause);
        pause = (pause * 2).min(Duration::from_secs(1));
    }
}

/// The timer thread. It ends once it has waited for a second with no timer set; the next sleep
/// starts it again. Removing a timer does not wake the thread: it sleeps on until the time of that
/// timer.
fn run_timers(shared: &TimerShared, start: Instant) {
    // Without it each timer is late by the default of 50 us, half of a writer's shortest pause.
    if let Err(e) = rustix::thread::set_current_timer_slack(NonZeroU64::new(TIMER_SLACK_NANOS)) {
        log::debug!("timers are late: {e}");
    }
    let mut state = lock(shared);
    loop {
        let now = start.elapsed().as_nanos() as u64;
        let later = state.timers.split_off(&(now + 1, 0));
        let due = std::mem::replace(&mut state.timers, later);
        if !due.is_empty() {
            drop(state);
            due.into_values().for_each(|tx| tx.send(()));
            state = lock(shared);
            continue;
        }
        let wait = match state.timers.first_key_value() {
            Some(((at, _), _)) => Duration::from_nanos(at - now),
            None => Duration::from_secs(1),
        };
        let idle = state.timers.is_empty();
        let (next, timeout) =
            shared.changed.wait_timeout(state, wait).unwrap_or_else(|p| p.into_inner());
        state = next;
        if idle && timeout.timed_out() && state.timers.is_empty() {
            state.thread_runs = false;
            return;
        }
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use super::*;
    use crate::task::block_on;

    #[test]
    fn sleeps_end_in_order() {
        let world = RealWorld::with_seed(1);
        let start = world.now();
        let long = world.sleep(Duration::from_millis(30));
        let short = world.sleep(Duration::from_millis(5));
        block_on(short);
        block_on(long);
        assert!(world.now() - start >= 30_000_000);
    }

    #[test]
    fn dropped_sleep_leaves_no_timer() {
        let timer =
            Arc::new(TimerShared { state: std::sync::Mutex::default(), changed: Condvar::new() });
        let world = RealWorld {
            start: Instant::now(),
            random: Mutex::new(1),
            timer: timer.clone(),
            tasks: TaskPool::new(),
            flushers: OnceLock::new(),
        };
        let long = world.sleep(Duration::from_secs(3600));
        assert_eq!(lock(&timer).timers.len(), 1);
        drop(long);
        assert!(lock(&timer).timers.is_empty());
    }

    #[test]
    fn random_numbers_follow_the_seed() {
        let (a, b) = (RealWorld::with_seed(7), RealWorld::with_seed(7));
        assert_eq!((a.random(), a.random()), (b.random(), b.random()));
    }
}
