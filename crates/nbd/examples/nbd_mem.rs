//! Serves memory over NBD, for measuring the server alone.
//!
//! `nbd_mem SOCKET SIZE [THREADS [LATE_EVERY]]`, ends on SIGTERM by default action; prints its
//! counters every second if `NBD_MEM_STATS` is set.

use forebay_base::units::parse_size;
use forebay_nbd::{Server, ServerConfig};
use forebay_testkit::mem_export::MemExport;
use std::sync::Arc;
use std::time::Duration;

fn main() -> forebay_base::Result<()> {
    let args: Vec<String> = std::env::args().collect();
    let (Some(path), Some(size)) = (args.get(1), args.get(2)) else {
        eprintln!("usage: nbd_mem SOCKET SIZE [THREADS [LATE_EVERY]]");
        std::process::exit(2);
    };
    let number = |at: usize| args.get(at).and_then(|a| a.parse().ok());
    let mut export = MemExport::new(parse_size(size)?);
    if let Some(every) = number(4) {
        export = export.with_late(every, Duration::ZERO);
    }
    let threads = number(3).unwrap_or(1) as usize;
    let config = ServerConfig { threads, ..Default::default() };
    let server = Server::new(config, vec![("memory".into(), Arc::new(export))])?;
    server.listen_unix(path)?;
    std::thread::scope(|scope| {
        if std::env::var_os("NBD_MEM_STATS").is_some() {
            scope.spawn(|| {
                loop {
                    std::thread::sleep(Duration::from_secs(1));
                    eprintln!("{:?}", server.stats());
                }
            });
        }
        server.run()
    })
}
