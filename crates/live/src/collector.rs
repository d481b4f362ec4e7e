//! Samples a source at intervals, and keeps the samples for all watchers: at most [`POINTS`] points
//! and one snapshot of the cache.
//!
//! Invariants: B1 the collector takes a snapshot only on request, at most one every [`PAUSE`], and
//! fewer if they take long: at most one part in [`SHARE`] of one CPU's time, however many clients
//! watch. B2 when [`Collector::close`] returns, the source is dropped and no thread samples it any
//! more.
//!
//! Lock: one, held while the collector samples the source, which one thread does at a time.

use crate::json;
use crate::source::{CacheSource, Source};
use forebay::Stats;
use forebay::latency::Taken;
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

pub use crate::sample::{Point, View};

/// Points kept: five minutes of them.
pub const POINTS: usize = 300;
/// Time between two samples.
pub const PAUSE: Duration = Duration::from_millis(900);
/// Snapshots take at most one part in this many of one CPU's time (collector.B1).
pub const SHARE: u32 = 200;

/// How long the collector shows a snapshot before it takes another one, given the time that it took
/// (collector.B1).
fn rest_after(cost: Duration) -> Duration {
    PAUSE.max(cost * SHARE)
}

/// The samples of one source.
pub struct Collector(Mutex<Inner>);

struct Inner {
    source: Option<Box<dyn Source>>,
    made: Instant,
    points: VecDeque<Point>,
    /// Time, counters and histograms of the latest point, from which the next point's changes
    /// count.
    sums: (Option<Instant>, Stats, [(&'static str, Taken); 3]),
    turn: usize,
    /// The latest view as JSON: when, what it cost, and the text.
    view: Option<(Instant, Duration, Arc<str>)>,
}

impl Collector {
    /// A collector of a source.
    pub fn new(source: CacheSource) -> Arc<Self> {
        Self::of(Box::new(source))
    }

    /// A collector of any source.
    pub fn of(source: Box<dyn Source>) -> Arc<Self> {
        let sums = (None, source.stats(), source.latencies());
        let (points, made) = (VecDeque::new(), Instant::now());
        Arc::new(Self(Mutex::new(Inner {
            source: Some(source),
            made,
            points,
            sums,
            turn: 0,
            view: None,
        })))
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().unwrap_or_else(|p| p.into_inner())
    }

    /// Drops the source (collector.B2).
    pub fn close(&self) {
        self.lock().source = None;
    }

    /// Samples the counters, unless the last sample is recent. Called once a second, it makes a
    /// history.
    pub fn tick(&self) {
        self.lock().advance();
    }

    /// The latest view, for the page and for `top`; `None` once the collector is closed.
    pub fn view(&self) -> Option<Arc<str>> {
        self.lock().view()
    }

    /// All points, oldest first.
    pub fn history(&self) -> String {
        let mut inner = self.lock();
        inner.advance();
        json::history(inner.points.iter())
    }

    /// Numbers in Prometheus' text form; `None` once the collector is closed.
    pub fn metrics(&self) -> Option<String> {
        let inner = self.lock();
        let source = inner.source.as_ref()?;
        let uptime = inner.made.elapsed().as_secs_f64();
        Some(crate::metrics::text(&**source, uptime))
    }

    /// The health check of the source.
    pub fn health(&self) -> Result<(), String> {
        let inner = self.lock();
        inner.source.as_ref().map_or_else(|| Err("it is ending".into()), |source| source.health())
    }
}

impl Inner {
    /// Adds a point, unless the last one was added less than [`PAUSE`] ago.
    fn advance(&mut self) {
        let Some(source) = &self.source else { return };
        let now = Instant::now();
        let (before, old_stats, old_latencies) = &self.sums;
        if before.is_some_and(|before| now - before < PAUSE) {
            return;
        }
        let (stats, latencies) = (source.stats(), source.latencies());
        let mut taken = latencies;
        for (new, old) in taken.iter_mut().zip(old_latencies) {
            new.1 = new.1.since(&old.1);
        }
        let point = Point {
            number: self.points.back().map_or(0, |point| point.number) + 1,
            at_seconds: (now - self.made).as_secs_f64(),
            over_seconds: (now - before.unwrap_or(self.made)).as_secs_f64(),
            since: stats.since(old_stats),
            stats: stats.clone(),
            latencies: taken,
        };
        if self.points.len() == POINTS {
            self.points.pop_front();
        }
        self.points.push_back(point);
        self.sums = (Some(now), stats, latencies);
    }

    fn view(&mut self) -> Option<Arc<str>> {
        if let Some((at, cost, text)) = &self.view
            && at.elapsed() < rest_after(*cost)
        {
            self.source.as_ref()?;
            return Some(text.clone());
        }
        self.advance();
        let source = self.source.as_ref()?;
        let began = Instant::now();
        let view = View {
            what: source.what().to_string(),
            engine: source.engine(),
            point: self.points.back().cloned().unwrap_or_default(),
            snapshot: source.snapshot(self.turn),
            front: source.front().map_or_else(Vec::new, |front| front.numbers()),
            health: source.health(),
        };
        self.turn = self.turn.wrapping_add(1);
        let text: Arc<str> = json::view(&view).to_string().into();
        self.view = Some((Instant::now(), began.elapsed(), text.clone()));
        Some(text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The story: no test failed when the CPU time of snapshots had no limit.
    #[test]
    fn b1_slow_snapshot_is_shown_longer() {
        assert_eq!(rest_after(Duration::from_millis(1)), PAUSE);
        for millis in [5, 10, 300] {
            let cost = Duration::from_millis(millis);
            assert!(rest_after(cost) >= cost * 200, "a 200th of a CPU");
        }
    }
}
