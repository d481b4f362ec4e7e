//! What is kept and what is read ahead: [`queues`] (the eviction order), [`readahead`] (the windows
//! of streams).

pub mod queues;
pub mod readahead;
