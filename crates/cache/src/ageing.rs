//! Caching and eviction: [`queues`] (the eviction order), [`reclaim`] (eviction), `frames` (taking
//! frames, waiting for them), [`readahead`] (the windows of streams).

mod frames;
pub mod queues;
pub mod readahead;
pub mod reclaim;
