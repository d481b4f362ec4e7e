//! Several clients at once, and operations that are dropped while they wait.
//!
//! The clients work on the same files and names of one volume, or on one raw image, interleaved
//! by the seed at every wait. No single model says what is there afterwards, because their
//! operations overlap. So each file has a *history* of who changed which bytes from when to
//! when, and the *names* have all the orders of operations that explain every answer. Reads
//! while it runs are held against the histories, and so is what is recovered after a power loss
//! at each write and flush.
//!
//! A dropped operation may have happened or not, but not after a change of the same block that began
//! later and was acknowledged. Nothing else may be harmed by it.
//!
//! Reading order: `plan`, `history`, `names`, `log`, `client`, `ground`, `run`, `judge`, `search`,
//! `life`.

mod client;
mod drop;
mod early;
mod file;
mod ground;
mod history;
mod judge;
mod life;
mod log;
mod names;
mod plan;
mod run;
mod search;

pub(crate) use ground::Ground;
pub(crate) use search::{carry_out, draw_dropped, draw_several, list_steps};
