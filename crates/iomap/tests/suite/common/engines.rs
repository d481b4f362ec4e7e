//! The engines of the system, each requested by name: `Auto` could silently use threads.

use forebay_base::ErrorKind;
use forebay_block::{Aio, Engine};

/// The engine. Containers forbid io_uring: a failure, or with `FOREBAY_ALLOW_SKIP=1` a printed
/// skip.
pub fn engine(aio: Aio) -> Option<Engine> {
    match Engine::new(aio) {
        Ok(engine) => Some(engine),
        Err(error) if aio == Aio::IoUring && error.kind() == ErrorKind::Unsupported => {
            let allowed = std::env::var("FOREBAY_ALLOW_SKIP").is_ok_and(|v| v == "1");
            assert!(allowed, "{error}");
            println!("skipped: {error}");
            None
        }
        Err(error) => panic!("{error}"),
    }
}
