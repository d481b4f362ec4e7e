//! Two file systems side by side: the same operations, the same answers, the same trees.
//!
//! [`op::Op`] is an operation in terms that hold on any file system (paths of few names, slots for
//! open files); [`generate::OpGen`] makes them from a seed, [`run::Runner`] carries them out and
//! says what came of it; [`tree`] is a complete file system, sorted, to compare; [`mod@compare`]
//! puts them together and shortens a sequence that fails.
//!
//! No locks.

pub mod compare;
pub mod generate;
pub mod op;
pub mod run;
pub mod suite;
pub mod tree;

pub use compare::{Config, Mismatch, Report, compare, replay, shrink};
pub use generate::{Limits, OpGen};
pub use op::{Op, Path, Target};
pub use run::{Answer, Outcome, Runner, Shape, Times, find};
pub use tree::{Node, Tree};
