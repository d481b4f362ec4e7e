//! `forebay export`: opens the images behind one cache, serves them, and ends without losing a
//! byte.
//!
//! ```text
//!   parse -> open (lock) images and volumes -> listen -> control socket -> print URIs -> wait
//!     signal, or the --run command has ended
//!   -> stop accepting, drain requests, end sessions -> write out and flush -> remove sockets
//!   -> exit
//! ```
//! X1 A URI is printed only when clients can connect to it.
//! X2 Exit status 0 means that everything accepted is durable.
//! X3 The sockets that were made are removed, also after an error and by the second signal.

mod args;
mod front;
mod listen;
mod run;
mod served;
mod sizes;
mod spec;
mod target;

pub use args::ExportArgs;

use crate::behaviours::{self, Mode, Store};
use crate::control::server::ControlServer;
use crate::failure::{Failure, Outcome, status};
use crate::{live, output, signals};
use forebay::{Cache, CacheConfig, ExportMode, LiveMode};
use forebay_base::units::format_size;
use forebay_nbd::ServerConfig;
use listen::{Cleanup, CleanupGuard};
use run::{Child, Event};
use served::{Served, look_at};
use sizes::{CACHE_MIN, DATA_MIN, client_memory};
use spec::{ImageSpec, Socket};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Instant;
use target::{Target, Watched};

/// Runs the command and returns its exit status.
pub fn export(args: &ExportArgs) -> Outcome<u8> {
    let specs = spec::parse_images(&args.images)?;
    check(args, &specs)?;
    specs.iter().try_for_each(|s| look_at(s).map(drop))?;
    let cleanup = Cleanup::default();
    let _guard = CleanupGuard(cleanup.clone());
    let wanted = listen::wanted(args, &cleanup)?;
    let (http, given) = (live::bind(&args.live)?, &args.cache.behaviours);
    let mode = LiveMode::new(given.mode(ExportMode::Cached));
    let (config, server) = config(args)?;
    log::info!("a cache of up to {}", format_size(config.budget));
    let cache = Cache::new(config)?;
    let opened = open_all(&cache, &specs, args)?;
    let mut exports = Vec::new();
    for served in &opened {
        exports.push((served.name.clone(), served.export(&mode)?));
    }
    let listening = front::listen(wanted, exports, server)?;
    cache.add_rows(listening.rows());
    let place = listening.place.clone();
    if let Socket::Unix(path) = &place.socket {
        cleanup.add(path);
    }
    let files = opened.iter().map(|served| served.file.clone()).collect();
    let shown = behaviours::Live::new(&cache, Mode::Export(mode), files, given.direct_io());
    let target = Arc::new_cyclic(|me| Target {
        collector: Watched::collector(&cache, me),
        behaviours: shown,
        cache: cache.clone(),
        served: opened,
        place: place.clone(),
        front: Box::new(listening.numbers()),
        resizing: Mutex::new(()),
        start: Instant::now(),
        page: OnceLock::new(),
    });
    let control = start_control(args, &target, &cleanup)?;
    let page = live::serve(&cache, &target.collector, http)?;
    target.page_is(page.as_ref());
    let (sender, events) = channel();
    watch_signals(sender.clone(), &cache, &cleanup)?;
    let server = listening.serve(sender.clone())?;
    output::announce(&target.uris());
    let child = match &args.run {
        Some(command) => Some(Child::start(command, &place, &specs[0].name, sender)?),
        None => None,
    };
    // The signal thread keeps a sender for life, so the wait ends by an event only.
    let event = events.recv().unwrap_or(Event::Stop);
    if let (Event::Stop | Event::ServerEnded, Some(child)) = (event, &child) {
        child.terminate();
    }
    drop(page);
    let stopped = server.stop();
    if let Some(control) = &control {
        control.end_sessions();
    }
    finish(&cache)?;
    // Called once for each file of a volume; all calls but the first do nothing.
    for volume in target.served.iter().filter_map(|served| served.file.volume()) {
        volume.clone().close()?;
    }
    drop(control);
    stopped?;
    Ok(match event {
        Event::Stop => status::OK,
        Event::ChildEnded(status) => status,
        Event::ServerEnded => status::FAILED,
    })
}

/// Opens the images, and sets the options that depend on all of them.
fn open_all(cache: &Cache, specs: &[ImageSpec], args: &ExportArgs) -> Outcome<Vec<Served>> {
    let opened = specs.iter().map(|s| served::open(cache, s, args)).collect::<Outcome<_>>()?;
    args.cache.behaviours.tune(cache)?;
    Ok(opened)
}

/// What clap cannot check.
fn check(args: &ExportArgs, specs: &[ImageSpec]) -> Outcome {
    if specs.len() > 1 && (args.offset != 0 || args.size_limit.is_some()) {
        let text = "export: --offset and --size-limit apply to a single image";
        return Err(Failure::usage(text).hint("start one `forebay export` for each"));
    }
    let inside = specs.iter().any(|spec| spec.inside.is_some());
    if inside && (args.offset != 0 || args.size_limit.is_some()) {
        let text = "export: --offset and --size-limit are for images";
        return Err(Failure::usage(text).hint("a file of a volume is served as it is"));
    }
    let stores: Vec<Store> = specs.iter().map(ImageSpec::store).collect();
    args.cache.check_behaviours("export", &stores)?;
    args.cache.size(CACHE_MIN).map(drop)
}

/// The settings of the cache and of the server; together their memory is `--cache-size`.
fn config(args: &ExportArgs) -> Outcome<(CacheConfig, ServerConfig)> {
    let mut config = CacheConfig::default();
    let whole = args.cache.cache_size.unwrap_or(config.budget).max(CACHE_MIN);
    let server = front::config(args, client_memory(whole))?;
    let least = server.memory_bound() as u64 + DATA_MIN;
    if whole < least {
        let (size, least) = (format_size(whole), format_size(least));
        let text = format!("--cache-size {size}: so many threads and clients need {least}");
        return Err(Failure::usage(text).hint("fewer --threads or --clients"));
    }
    config.budget = whole - server.memory_bound() as u64;
    config.prefault = args.prefault;
    config.aio = args.cache.aio.parse()?;
    args.cache.behaviours.configure(&mut config);
    Ok((config, server))
}

/// Starts the control socket. A failure ends the command only if `--control` requested the socket.
fn start_control(
    args: &ExportArgs,
    target: &Arc<Target>,
    cleanup: &Cleanup,
) -> Outcome<Option<ControlServer>> {
    match ControlServer::start(args.control.as_deref(), target.clone()) {
        Ok(server) => {
            log::info!("control socket {}", server.path().display());
            cleanup.add(server.path());
            Ok(Some(server))
        }
        Err(e) if args.control.is_some() => Err(e),
        Err(e) => {
            log::warn!("no control socket: {}", e.message);
            Ok(None)
        }
    }
}

fn watch_signals(stop: Sender<Event>, cache: &Cache, cleanup: &Cleanup) -> Outcome {
    let (cache, cleanup) = (cache.clone(), cleanup.clone());
    signals::watch(stop, Event::Stop, move |signal| {
        eprintln!(
            "forebay: stopped at once by a second signal ({signal}): {} bytes were not written",
            cache.unwritten_bytes()
        );
        cleanup.run();
    })
}

/// Writes out and flushes (X2).
fn finish(cache: &Cache) -> Outcome {
    let dirty = cache.unwritten_bytes();
    if dirty > 0 {
        log::info!("writing out {}", format_size(dirty));
    }
    cache.shutdown().map_err(|e| {
        let lost = cache.unwritten_bytes();
        let text = format!("{e}; {lost} bytes were not written");
        Failure::new(text)
            .hint("the image is older than what clients wrote, where they did not sync")
    })
}
