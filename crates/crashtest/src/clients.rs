//! Several clients at once, and operations that are dropped while they wait.
//!
//! The clients work on the same files and names of one volume, or on one raw image. The seed
//! interleaves them at every wait. Their operations overlap, so no single model has the result.
//! Instead each file has a *history*: which operation changed which bytes from when to when. The
//! *names* have all the orders of operations that explain every answer. The suite compares with the
//! histories what clients read, and what is recovered after a power loss at each write and flush.
//!
//! A dropped operation may take effect or not. It takes no effect after a change of the same block
//! that began later and was acknowledged, and it harms no other operation.
//!
//! Reading order: `plan`, `history`, `names`, `log`, `client`, `weather`, `ground`, `run`, `grow`,
//! `workload`, `judge`, `life`, `search`, `draw`.

mod client;
mod draw;
mod drop;
mod early;
mod file;
mod ground;
mod grow;
mod history;
mod judge;
mod life;
mod log;
mod names;
mod plan;
mod run;
mod search;
mod weather;
mod workload;

pub(crate) use draw::{
    draw_decay, draw_dropped, draw_growing, draw_host_full, draw_late, draw_older, draw_several,
};
pub(crate) use search::{carry_out, list_steps};
