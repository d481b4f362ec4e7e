//! An operation that its caller drops while it waits.
//!
//! No locks.

use super::plan::Drop;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

/// A future that is dropped at one of its polls. Its output is `None` then.
pub struct Dropping<'a, T> {
    inner: Option<Pin<Box<dyn Future<Output = T> + Send + 'a>>>,
    dropped: Option<Drop>,
    is_due: bool,
}

impl<'a, T> Dropping<'a, T> {
    /// Polls `inner` to its end, or until it is dropped.
    pub fn new(inner: impl Future<Output = T> + Send + 'a, dropped: Option<Drop>) -> Self {
        Self { inner: Some(Box::pin(inner)), dropped, is_due: false }
    }
}

impl<T> Future for Dropping<'_, T> {
    type Output = Option<T>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<T>> {
        if self.is_due {
            self.inner = None;
            return Poll::Ready(None);
        }
        let Some(inner) = &mut self.inner else { return Poll::Ready(None) };
        if let Poll::Ready(done) = inner.as_mut().poll(context) {
            self.inner = None;
            return Poll::Ready(Some(done));
        }
        let Some(dropped) = &mut self.dropped else { return Poll::Pending };
        if dropped.polls > 0 {
            dropped.polls -= 1;
            return Poll::Pending;
        }
        if dropped.late {
            self.is_due = true;
            return Poll::Pending;
        }
        self.inner = None;
        Poll::Ready(None)
    }
}
