//! Awaits an operation until it ends, and bounds the polls until then. Each request to the disk
//! takes a poll or more, so the same bound holds for requests.
//!
//! Invariant: meter.E1 an operation that has not ended within its polls ends the run, and the
//! violation names it with the figure.
//!
//! No locks.

use super::bounds::{Bounds, Operation, Usage};
use forebay_base::sim_world::SimWorld;
use forebay_sim::SimDisk;
use std::cell::Cell;
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Awaits the operations of one run, one after the other.
pub struct Meter {
    bounds: Bounds,
    disk: SimDisk,
    /// The run ends after this step of the world.
    run_end: u64,
    /// The operation that is awaited, and its bound.
    now: Cell<Option<(Operation, u64)>>,
}

impl Meter {
    /// For a run of `run_steps` steps of the world from now on, on this disk.
    pub fn new(bounds: Bounds, disk: &SimDisk, run_steps: u64) -> Self {
        let run_end = disk.world().steps() + run_steps;
        disk.world().set_step_limit(run_end);
        Self { bounds, disk: disk.clone(), run_end, now: Cell::new(None) }
    }

    /// Awaits an operation (meter.E1). Returns its result, and what it used.
    pub async fn measure<T>(
        &self,
        operation: Operation,
        work: impl Future<Output = T>,
    ) -> (T, Usage) {
        let (world, start) = (self.disk.world(), self.disk.requests().end);
        let (begin, polls_max) = (world.steps(), self.bounds.polls_max(operation));
        world.set_step_limit(self.run_end.min(begin + polls_max));
        self.now.set(Some((operation, polls_max)));
        let done = work.await;
        self.now.set(None);
        world.set_step_limit(self.run_end);
        let (polls, requests) = (world.steps() - begin, self.disk.requests().end - start);
        (done, Usage { polls, requests, memory: 0 })
    }

    /// Awaits an operation (meter.E1).
    pub async fn ended<T>(&self, operation: Operation, work: impl Future<Output = T>) -> T {
        self.measure(operation, work).await.0
    }

    /// Runs a life in the world. If the world is stuck or at its limit, the error names the
    /// operation that has not ended (meter.E1), or what `others` says.
    ///
    /// # Errors
    /// Those of `life`, and a panic.
    pub fn run<T>(
        &self,
        world: &SimWorld,
        others: impl Fn() -> String,
        life: impl Future<Output = Result<T, String>>,
    ) -> Result<T, String> {
        catch_unwind(AssertUnwindSafe(|| world.run(life))).unwrap_or_else(|cause| {
            let said = cause.downcast_ref::<String>().map_or("a panic", String::as_str);
            let others = others();
            match self.now.get() {
                Some((operation, polls_max)) => {
                    let name = operation.name();
                    Err(format!("{name}: not ended in {polls_max} polls; {others}; {said}"))
                }
                None => Err(format!("the run has not ended; {others}; {said}")),
            }
        })
    }
}
