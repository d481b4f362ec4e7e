//! Hostile client 31 of docs/reference/nbd.md: 1,024 TRIMs of one range from 128 clients, on a
//! real file. A clean client is served throughout.
//!
//! The story: each trim that ended woke all who waited for the range, and each of these looked and
//! registered again: half a million polls on the thread of the loop, which served no other client
//! meanwhile.

use crate::common::nbd::{Client, TRIM};
use crate::common::{Folder, PATIENCE};
use forebay::{Cache, CacheConfig, ExportMode, OpenOptions};
use forebay_base::Result;
use forebay_base::task::BoxFuture;
use forebay_nbd::{Server, ServerConfig};
use forebay_testkit::behind::{Before, Behind};
use forebay_vfs::Export;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Instant;

const MIB: u64 = 1 << 20;
const IMAGE: u64 = 64 * MIB;
const CLIENTS: usize = 128;
const TRIMS: u64 = 1024;
/// A trim waits for the range, then for the device, perhaps for a folio.
const POLLS_EACH: u64 = 8;

#[derive(Default)]
struct Counts {
    polls: AtomicU64,
    under_way: AtomicU64,
    most: AtomicU64,
}

/// Counts the polls of trims.
struct Counting(Arc<Counts>);

impl Before for Counting {
    fn trim(&self, mut trim: BoxFuture<'static, Result<()>>) -> BoxFuture<'static, Result<()>> {
        let counts = self.0.clone();
        let now = counts.under_way.fetch_add(1, Ordering::SeqCst) + 1;
        counts.most.fetch_max(now, Ordering::SeqCst);
        Box::pin(std::future::poll_fn(move |cx| {
            counts.polls.fetch_add(1, Ordering::SeqCst);
            let done = trim.as_mut().poll(cx);
            if done.is_ready() {
                counts.under_way.fetch_sub(1, Ordering::SeqCst);
            }
            done
        }))
    }
    fn for_client(&self) -> Option<Self> {
        Some(Self(self.0.clone()))
    }
}

/// Stops the server and the clean client, also when an assertion fails.
struct Stop<'a>(&'a Server, &'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.1.store(true, Ordering::SeqCst);
        self.0.stop();
    }
}

#[test]
fn thousand_trims_of_one_range_take_linear_work() {
    let folder = Folder::new();
    let image = folder.path("disk.img");
    std::fs::File::create(&image).unwrap().set_len(IMAGE).unwrap();
    let cache = Cache::new(CacheConfig::with_budget(16 * MIB)).unwrap();
    let file = OpenOptions::read_write().open(&cache, &image).unwrap();
    let counts = Arc::<Counts>::default();
    let export = Behind::new(file.export(ExportMode::Cached).unwrap(), Counting(counts.clone()));
    let exports: Vec<(String, Arc<dyn Export>)> = vec![("disk".into(), export)];
    let config = ServerConfig { clients_max: CLIENTS + 8, threads: 1, ..Default::default() };
    let server = Server::new(config, exports).unwrap();
    let socket = folder.path("sock");
    server.listen_unix(&socket).unwrap();
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let _stop = Stop(&server, &over);
        scope.spawn(|| server.run().unwrap());
        let clean = scope.spawn(|| {
            let mut client = Client::connect(&socket, "disk").unwrap();
            let mut served = 0_u64;
            while !over.load(Ordering::SeqCst) {
                let block = [served as u8; 4096];
                client.write(IMAGE - 4096, &block).unwrap();
                assert_eq!(client.read(IMAGE - 4096, 4096).unwrap(), block);
                served += 1;
            }
            served
        });
        let start = Instant::now();
        // Sent until they met: a trim may be over before the next one comes.
        while counts.most.load(Ordering::SeqCst) < TRIMS / 2 {
            assert!(start.elapsed() < PATIENCE, "the trims never met");
            let (polls, mut clients) = (counts.polls.load(Ordering::SeqCst), Vec::new());
            for _ in 0..CLIENTS {
                clients.push(Client::connect(&socket, "disk").unwrap());
            }
            for client in &mut clients {
                (0..TRIMS / CLIENTS as u64)
                    .for_each(|_| client.send(TRIM, 0, MIB, 32 * MIB as u32, &[]).unwrap());
            }
            for client in &mut clients {
                (0..TRIMS / CLIENTS as u64).for_each(|_| client.reply().unwrap());
            }
            let polls = counts.polls.load(Ordering::SeqCst) - polls;
            assert!(polls <= TRIMS * POLLS_EACH, "{polls} polls of {TRIMS} trims");
        }
        over.store(true, Ordering::SeqCst);
        assert!(clean.join().unwrap() > 0, "the clean client is served");
    });
}
