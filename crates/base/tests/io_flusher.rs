//! Background tasks, the flusher among them, run on threads marked as writing data out
//! (PR_SET_IO_FLUSHER).

use forebay_base::io_flusher;
use forebay_base::task::{block_on, oneshot};
use forebay_base::world::RealWorld;

#[test]
fn background_tasks_run_on_marked_threads() {
    let world = RealWorld::with_seed(1);
    let (said, asked) = oneshot();
    let task = async move { said.send(rustix::process::is_io_flusher() == Ok(true)) };
    world.spawn("flusher", Box::pin(task));
    let marked = block_on(asked).unwrap();
    assert_eq!(marked, io_flusher::probe().is_ok(), "{:?}", io_flusher::probe());
}
