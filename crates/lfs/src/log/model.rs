//! A model of the log's turns without a volume: which tasks wait, are woken, or are dropped. For
//! tests, with random schedules here, and with random thread interleavings under `--cfg shuttle`.
//!
//! Checked in every schedule: a task that waits for a record gets a result, whichever tasks are
//! dropped and whatever fails (log.L8). A record that was reported as durable was flushed after it
//! was written (lfs.I12).
//!
//! Locks: that of the simulated device, a leaf lock.

use super::turn::{FlushTurn, WriteTurn};
use super::{GROUPS_AHEAD, Group, Head, Log, Pending, Step};
use crate::format::record::RecordKind;
use crate::space::Grant;
use forebay_base::sync::{Arc, Mutex};
use forebay_base::task::BoxFuture;
use forebay_base::{Error, ErrorKind, Result};
use forebay_block::flush_turns::Turn;
use std::collections::VecDeque;

/// Most records of a group, so that some are left for the next.
const GROUP_MAX: usize = 3;

/// A simulated device request: a future that says whether it succeeded.
pub type Io = dyn Fn() -> BoxFuture<'static, bool> + Send + Sync;

/// The simulated content of the device, as tickets.
#[derive(Default)]
struct Medium {
    next: u64,
    queue: VecDeque<Pending>,
    /// Records of completed writes, and those that were reported as durable.
    written: Vec<u64>,
    flushed: Vec<u64>,
    /// Those that were written before a flush that succeeded.
    covered: Vec<u64>,
}

/// A log of empty records.
pub struct Model {
    log: Arc<Log>,
    medium: Mutex<Medium>,
    io: Box<Io>,
}

fn failed() -> Error {
    Error::new(ErrorKind::Io, "model", "as asked")
}

fn record(ticket: u64) -> Pending {
    Pending {
        ticket,
        kind: RecordKind::Changes,
        body: Vec::new(),
        changes: 0,
        payloads: Vec::new(),
        runs: Vec::new(),
        grant: Grant::default(),
        cut: None,
    }
}

impl Model {
    /// An empty log.
    pub fn new(io: Box<Io>) -> Self {
        let head = Head {
            segment: None,
            previous: None,
            offset: 0,
            sequence: 1,
            generation: 1,
            predecessor: 0,
        };
        Self { log: Arc::new(Log::new(head)), medium: Mutex::default(), io }
    }

    /// Appends a record and waits for it; returns whether it is durable.
    ///
    /// # Panics
    /// If it was reported as durable and is not.
    pub async fn synced(&self) -> bool {
        let ticket = {
            let mut medium = self.medium.lock();
            medium.next += 1;
            let ticket = medium.next;
            medium.queue.push_back(record(ticket));
            ticket
        };
        let entered = self.log.failures();
        loop {
            match self.log.wait_for(ticket, || self.log.step(ticket, entered, false)).await {
                Step::Done(result) => {
                    self.log.leave(&result);
                    let flushed = self.medium.lock().flushed.contains(&ticket);
                    assert!(result.is_err() || flushed, "{ticket} was said to be durable");
                    return result.is_ok();
                }
                Step::Write => self.write(WriteTurn::new(self.log.clone(), ticket)).await,
                Step::Flush => {
                    let _failed = self.flush(FlushTurn::new(self.log.clone(), ticket)).await;
                }
            }
        }
    }

    /// Runs or shares a flush, as a caller that needs one for other purposes than a commit.
    ///
    /// # Panics
    /// If it worked, and something is not flushed that was written before.
    pub async fn flush_independently(&self) {
        let before = self.medium.lock().written.clone();
        let wanted = self.log.next_flush();
        let done = match self.log.flush_turn(wanted).await {
            Turn::Done(result) => result,
            Turn::Run => self.flush(FlushTurn::new(self.log.clone(), super::ANY)).await,
        };
        let is_covered = |medium: &Medium| before.iter().all(|id| medium.covered.contains(id));
        assert!(done.is_err() || is_covered(&self.medium.lock()), "L16: it began before");
    }

    async fn write(&self, mut turn: WriteTurn) {
        if self.log.ctl.lock().repair && !self.repair(&mut turn).await {
            return turn.end(|ctl, group| {
                ctl.groups.extend(group);
                Log::fail(ctl, failed());
            });
        }
        let head = self.log.ctl.lock().head;
        let taken = {
            let mut medium = self.medium.lock();
            let len = medium.queue.len().min(GROUP_MAX);
            medium.queue.drain(..len).collect()
        };
        let mut group = empty(head);
        group.records = taken;
        turn.group = Some(group);
        let worked = (self.io)().await;
        turn.end(|ctl, group| {
            let group = group.expect("put there above");
            if worked {
                self.medium.lock().written.extend(tickets(&group));
                let last = tickets(&group).last().unwrap_or(0);
                ctl.written_ticket = last.max(ctl.written_ticket);
            } else {
                Log::fail(ctl, failed());
            }
            ctl.groups.push_back(group);
            assert!(!worked || ctl.groups.len() <= GROUPS_AHEAD, "L6: so many ahead");
        });
    }

    /// Queues records again that are not durable.
    async fn repair(&self, turn: &mut WriteTurn) -> bool {
        let (held, failures) = {
            let mut ctl = self.log.ctl.lock();
            let mut held = empty(ctl.durable);
            held.records = ctl.groups.drain(..).flat_map(|group| group.records).collect();
            ctl.written_ticket = ctl.durable_ticket;
            (held, ctl.failures)
        };
        turn.group = Some(held);
        if !(self.io)().await {
            return false;
        }
        let group = turn.group.take().expect("put there above");
        {
            let mut medium = self.medium.lock();
            group.records.into_iter().rev().for_each(|record| medium.queue.push_front(record));
        }
        let mut ctl = self.log.ctl.lock();
        ctl.repair = ctl.failures != failures;
        true
    }

    async fn flush(&self, turn: FlushTurn) -> Result<()> {
        let covered = self.medium.lock().written.clone();
        let done = if (self.io)().await { Ok(()) } else { Err(failed()) };
        turn.end(&done, |ctl, count| {
            let mut medium = self.medium.lock();
            for group in ctl.groups.drain(..count) {
                assert!(tickets(&group).all(|ticket| covered.contains(&ticket)), "L2");
                medium.flushed.extend(tickets(&group));
                ctl.durable_ticket = tickets(&group).last().unwrap_or(0).max(ctl.durable_ticket);
            }
            if done.is_ok() {
                medium.covered.extend(covered);
            }
        });
        done
    }
}

fn tickets(group: &Group) -> impl DoubleEndedIterator<Item = u64> + '_ {
    group.records.iter().map(|record| record.ticket)
}

fn empty(head: Head) -> Group {
    Group { records: Vec::new(), payloads: Vec::new(), head, cut: None, opened: Vec::new() }
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use super::*;
    use forebay_base::task::{OneSender, oneshot};
    use forebay_base::world::split_mix;
    use std::sync::Arc as StdArc;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::task::{Context, Poll, Wake, Waker};

    struct Flag(AtomicBool);

    impl Wake for Flag {
        fn wake(self: StdArc<Self>) {
            self.0.store(true, Ordering::Relaxed);
        }
    }

    struct Task<'a> {
        future: BoxFuture<'a, ()>,
        woken: StdArc<Flag>,
    }

    type Waiting = StdArc<Mutex<Vec<OneSender<bool>>>>;

    fn model() -> (Model, Waiting) {
        let waiting = Waiting::default();
        let theirs = waiting.clone();
        let io = move || -> BoxFuture<'static, bool> {
            let (tx, rx) = oneshot();
            theirs.lock().push(tx);
            Box::pin(async move { rx.await.unwrap_or(false) })
        };
        (Model::new(Box::new(io)), waiting)
    }

    /// Runs tasks in an order decided by `draw` until none progresses. `cancelled` percent of the
    /// steps drop a task, and `fails` percent of the device's answers are failures. Returns the
    /// number of polls.
    fn run(
        tasks: Vec<BoxFuture<'_, ()>>,
        waiting: &Waiting,
        (cancelled, fails): (u64, u64),
        mut draw: impl FnMut() -> u64,
    ) -> u64 {
        let awake = || StdArc::new(Flag(AtomicBool::new(true)));
        let mut tasks: Vec<_> =
            tasks.into_iter().map(|future| Task { future, woken: awake() }).collect();
        let mut polls = 0;
        loop {
            if !tasks.is_empty() && draw() % 100 < cancelled {
                let gone = tasks.swap_remove(draw() as usize % tasks.len());
                drop(gone);
            }
            let ready: Vec<usize> =
                (0..tasks.len()).filter(|t| tasks[*t].woken.0.load(Ordering::Relaxed)).collect();
            let device = waiting.lock().len();
            let all = ready.len() + device;
            if all == 0 {
                assert!(tasks.is_empty(), "{} wait for ever", tasks.len());
                return polls;
            }
            let chosen = draw() as usize % all;
            if chosen < device {
                let tx = waiting.lock().swap_remove(chosen);
                tx.send(draw() % 100 >= fails);
                continue;
            }
            let at = ready[chosen - device];
            let task = &mut tasks[at];
            task.woken.0.store(false, Ordering::Relaxed);
            let waker = Waker::from(task.woken.clone());
            polls += 1;
            if let Poll::Ready(()) = task.future.as_mut().poll(&mut Context::from_waker(&waker)) {
                drop(tasks.swap_remove(at));
            }
        }
    }

    /// log.L8: the log wakes only tasks that can take a turn. So a woken task must take it, or
    /// ensure that another task does, also if it is dropped, fails, or finds its record durable.
    #[test]
    fn l8_every_waiter_gets_answer_despite_drops_and_failures() {
        let (mut durable, mut refused) = (0, 0);
        for seed in 0..30_000 {
            let mut state = seed;
            let mut draw = || split_mix(&mut state);
            let (model, waiting) = model();
            let count = 2 + draw() % 6;
            let odds = [(0, 0), (0, 20), (3, 0), (3, 20)][seed as usize % 4];
            let answers = Mutex::new((0, 0));
            let tasks = (0..count).map(|n| -> BoxFuture<'_, ()> {
                let rounds = 1 + draw() % 4;
                let (model, answers) = (&model, &answers);
                Box::pin(async move {
                    for round in 0..rounds {
                        if n == 0 && round == 1 {
                            model.flush_independently().await;
                        }
                        let is_durable = model.synced().await;
                        let mut answers = answers.lock();
                        answers.0 += u64::from(is_durable);
                        answers.1 += u64::from(!is_durable);
                    }
                })
            });
            run(tasks.collect(), &waiting, odds, &mut draw);
            let (good, bad) = *answers.lock();
            // log.L5: dropped tasks fail no other commit.
            assert!(odds.1 != 0 || bad == 0, "seed {seed}");
            (durable, refused) = (durable + good, refused + bad);
        }
        assert!(durable > 10_000 && refused > 10_000, "{durable} and {refused}: both are met");
    }

    /// The story: sixteen syncing tasks were all woken for each write and for each flush, which
    /// cost nine thread switches per sync.
    #[test]
    fn l8_sixteen_syncs_do_not_wake_each_other() {
        let mut state = 1;
        let mut draw = || split_mix(&mut state);
        let (model, waiting) = model();
        let task = |_| -> BoxFuture<'_, ()> {
            Box::pin(async {
                for _ in 0..100 {
                    assert!(model.synced().await);
                }
            })
        };
        let polls = run((0..16).map(task).collect(), &waiting, (0, 0), &mut draw);
        let each = polls as f64 / 1600.0;
        assert!(each < 3.0, "{each} polls for each sync");
    }
}
