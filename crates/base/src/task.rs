//! Waiting without threads: futures, and how the stack drives them.
//!
//! Every operation is plan, issue, complete; an `async fn` strings the three together and waits
//! between them. A blocking caller drives its operation with [`block_on`] on its own thread. An
//! event loop polls many operations; the simulated world polls one task at a time.
//!
//! While a device borrows memory of the *caller*, the caller must not drop the future. So only
//! blocking calls let a device borrow a caller's memory (see `forebay-block`); in all other
//! requests the bio owns the memory.

use crate::sync::atomic::{AtomicBool, Ordering};
use crate::sync::{Arc, Mutex, thread};
use std::any::Any;
use std::cell::Cell;
use std::future::Future;
use std::os::fd::BorrowedFd;
use std::pin::{Pin, pin};
use std::task::{Context, Poll, Wake, Waker};

pub use crate::wait::{Pick, WaitQueue, WaitUntil};

/// A boxed future that may be sent to another thread.
pub type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// Space for one future after another. A future of the same type as the previous one reuses its
/// box, so an operation that is started repeatedly allocates nothing.
pub struct FutureSlot<T>(Option<Box<dyn Holds<T>>>);

/// A box for futures of one type.
trait Holds<T>: Send {
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<T>;
    fn as_any(&mut self) -> &mut dyn Any;
}

struct Holder<F>(Pin<Box<Option<F>>>);

impl<F: Future + Send + 'static> Holds<F::Output> for Holder<F> {
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<F::Output> {
        let future = self.0.as_mut().as_pin_mut().expect("a future is polled until it ends");
        let value = future.poll(cx);
        if value.is_ready() {
            self.0.set(None);
        }
        value
    }

    fn as_any(&mut self) -> &mut dyn Any {
        self
    }
}

impl<T> FutureSlot<T> {
    /// Stores a future, and drops the previous one even if it has not ended.
    pub fn put<F: Future<Output = T> + Send + 'static>(&mut self, future: F) {
        let held = self.0.as_mut().and_then(|held| held.as_any().downcast_mut::<Holder<F>>());
        match held {
            Some(held) => held.0.set(Some(future)),
            None => self.0 = Some(Box::new(Holder(Box::pin(Some(future))))),
        }
    }
}

impl<T> Default for FutureSlot<T> {
    fn default() -> Self {
        Self(None)
    }
}

/// Polls the future that was stored last. Panics if there is none, or if it has ended already.
impl<T> Future for FutureSlot<T> {
    type Output = T;
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<T> {
        self.0.as_mut().expect("a future was put in").poll(cx)
    }
}

struct ThreadWaker {
    thread: thread::Thread,
    ready: AtomicBool,
}

impl Wake for ThreadWaker {
    fn wake(self: std::sync::Arc<Self>) {
        self.wake_by_ref();
    }
    fn wake_by_ref(self: &std::sync::Arc<Self>) {
        if !self.ready.swap(true, Ordering::AcqRel) {
            self.thread.unpark();
        }
    }
}

std::thread_local! {
    static SIMULATING: Cell<bool> = const { Cell::new(false) };
}

/// While this guard lives its thread runs a simulated world: parking the thread would hang the
/// simulation.
pub(crate) struct Simulating(());

impl Simulating {
    pub(crate) fn enter() -> Self {
        assert!(!SIMULATING.replace(true), "one simulated world at a time on a thread");
        Self(())
    }

    fn forbid_wait() {
        assert!(!SIMULATING.get(), "block_on would wait inside the simulated world");
    }
}

impl Drop for Simulating {
    fn drop(&mut self) {
        SIMULATING.set(false);
    }
}

std::thread_local! {
    static ON_POOL: Cell<bool> = const { Cell::new(false) };
}

/// While this guard lives its thread runs background tasks: if it parked to wait for another task,
/// it could wait for ever.
pub(crate) struct OnPool(());

impl OnPool {
    pub(crate) fn enter() -> Self {
        ON_POOL.set(true);
        Self(())
    }

    fn forbid_wait() {
        debug_assert!(!ON_POOL.get(), "block_on would wait inside a background task");
    }
}

impl Drop for OnPool {
    fn drop(&mut self) {
        ON_POOL.set(false);
    }
}

/// Runs `future` to its end on the calling thread, parking while it waits.
pub fn block_on<T>(future: impl Future<Output = T>) -> T {
    let mut future = pin!(future);
    // `ready` keeps a wake that arrives before this thread parks.
    let inner = std::sync::Arc::new(ThreadWaker {
        thread: thread::current(),
        ready: AtomicBool::new(false),
    });
    let waker = Waker::from(inner.clone());
    let mut cx = Context::from_waker(&waker);
    loop {
        if let Poll::Ready(value) = future.as_mut().poll(&mut cx) {
            return value;
        }
        while !inner.ready.swap(false, Ordering::AcqRel) {
            Simulating::forbid_wait();
            OnPool::forbid_wait();
            thread::park();
        }
    }
}

/// The I/O queue of one event-loop thread. While it lives, devices of its engine submit this
/// thread's I/O to it, and the completions run on this thread, inside [`LocalQueue::reap`]. Another
/// thread may carry out requests that a device has held back.
pub trait LocalQueue {
    /// Becomes readable when there is something to reap; for epoll.
    fn as_fd(&self) -> BorrowedFd<'_>;
    /// Passes the requests submitted since the last call to the kernel, in one system call.
    fn flush(&mut self);
    /// Runs the completions that have arrived, without waiting; returns how many.
    fn reap(&mut self) -> usize;
}

enum Slot<T> {
    Empty,
    Waiting(Waker),
    Full(T),
    Closed,
}

/// The sending end of a one-value channel. Dropped without `send`, the receiver gets `None`.
pub struct OneSender<T>(Arc<Mutex<Slot<T>>>);

/// The receiving end; a future.
pub struct OneReceiver<T>(Arc<Mutex<Slot<T>>>);

/// A channel for one value.
pub fn oneshot<T>() -> (OneSender<T>, OneReceiver<T>) {
    let slot = Arc::new(Mutex::new(Slot::Empty));
    (OneSender(slot.clone()), OneReceiver(slot))
}

impl<T> OneSender<T> {
    /// Hands over the value and wakes the receiver.
    pub fn send(self, value: T) {
        self.put(Slot::Full(value));
    }

    fn put(&self, new: Slot<T>) {
        let mut slot = self.0.lock();
        if matches!(*slot, Slot::Full(_)) {
            return;
        }
        let old = std::mem::replace(&mut *slot, new);
        drop(slot);
        if let Slot::Waiting(waker) = old {
            waker.wake();
        }
    }
}

impl<T> Drop for OneSender<T> {
    fn drop(&mut self) {
        self.put(Slot::Closed);
    }
}

impl<T> Future for OneReceiver<T> {
    type Output = Option<T>;
    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<T>> {
        let mut slot = self.0.lock();
        match std::mem::replace(&mut *slot, Slot::Closed) {
            Slot::Full(value) => Poll::Ready(Some(value)),
            Slot::Closed => Poll::Ready(None),
            Slot::Empty | Slot::Waiting(_) => {
                *slot = Slot::Waiting(cx.waker().clone());
                Poll::Pending
            }
        }
    }
}

/// Yields once: pending on the first poll, ready on the second.
pub async fn yield_now() {
    let mut yielded = false;
    std::future::poll_fn(|cx| {
        if std::mem::replace(&mut yielded, true) {
            return Poll::Ready(());
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}

/// Runs futures at the same time on this task, and returns their results in the same order. A
/// wake-up polls all that have not ended, so it is for few futures.
pub async fn join_all<'a, T>(futures: impl IntoIterator<Item = BoxFuture<'a, T>>) -> Vec<T> {
    let mut running: Vec<_> = futures.into_iter().map(Some).collect();
    let mut done: Vec<Option<T>> = running.iter().map(|_| None).collect();
    std::future::poll_fn(|cx| {
        for (future, done) in running.iter_mut().zip(&mut done) {
            if let Some(Poll::Ready(value)) = future.as_mut().map(|f| f.as_mut().poll(cx)) {
                (*future, *done) = (None, Some(value));
            }
        }
        match running.iter().all(Option::is_none) {
            true => Poll::Ready(()),
            false => Poll::Pending,
        }
    })
    .await;
    done.into_iter().flatten().collect()
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use super::*;

    #[test]
    fn joined_futures_run_together_and_keep_their_order() {
        let (tx, rx) = oneshot();
        let first: BoxFuture<'_, Option<u8>> = Box::pin(rx);
        let second = Box::pin(async move {
            tx.send(1);
            yield_now().await;
            Some(2)
        });
        assert_eq!(block_on(join_all([first, second])), [Some(1), Some(2)]);
        assert_eq!(block_on(join_all::<u8>([])), []);
    }

    #[test]
    fn future_slot_runs_futures_in_turn() {
        let mut slot = FutureSlot::default();
        for n in 0..3 {
            slot.put(async move {
                yield_now().await;
                n
            });
            assert_eq!(block_on(&mut slot), n);
        }
        // A future of another type; then one that replaces it before it was polled.
        let (tx, rx) = oneshot::<()>();
        slot.put(async move { if rx.await.is_none() { 7 } else { 8 } });
        let dropped = std::sync::Arc::new(());
        let theirs = dropped.clone();
        slot.put(async move { std::sync::Arc::strong_count(&theirs) });
        drop(tx);
        assert_eq!(block_on(&mut slot), 2);
        assert_eq!(std::sync::Arc::strong_count(&dropped), 1, "what has ended is gone");
    }

    #[test]
    fn oneshot_wakes_and_closes() {
        let (tx, rx) = oneshot();
        let sender = std::thread::spawn(move || tx.send(5));
        assert_eq!(block_on(rx), Some(5));
        sender.join().unwrap();
        let (tx, rx) = oneshot::<u8>();
        drop(tx);
        assert_eq!(block_on(rx), None);
    }
}
