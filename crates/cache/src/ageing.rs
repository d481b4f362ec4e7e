//! What goes and what comes: [`queues`] (what to evict first), [`reclaim`] (evicting it), `frames`
//! (taking frames, waiting for them), [`readahead`] (the windows of streams).

mod frames;
pub mod queues;
pub mod readahead;
pub mod reclaim;
