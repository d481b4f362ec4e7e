//! Shows and changes the options of a running process.
//!
//! Locks: `switching`, held while `direct_io` is changed; under it that of the value, a leaf.

use super::{ENTRIES, Entry, Store};
use crate::control::answers;
use forebay::{Cache, DirectIo, Error, ErrorKind, ExportMode, File, LiveMode, Result, Volume};
use forebay_fuse::ioctl::{MODE_CACHED, MODE_DIRECT, MODE_UNCACHED, MountMode};
use serde_json::{Map, Value, json};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::sync::{Mutex, MutexGuard};
use std::thread::JoinHandle;
use std::time::Duration;

/// How requests use the cache; changed live.
pub enum Mode {
    /// Of exports and devices.
    Export(LiveMode),
    /// Of openings on a mount.
    Mount(MountMode),
}

impl Mode {
    /// The mode now.
    pub fn get(&self) -> ExportMode {
        match self {
            Self::Export(mode) => mode.get(),
            Self::Mount(mode) => match mode.get() {
                MODE_UNCACHED => ExportMode::Uncached,
                MODE_DIRECT => ExportMode::Direct,
                _ => ExportMode::Cached,
            },
        }
    }

    /// Sets the mode of later requests or openings.
    pub fn set(&self, to: ExportMode) {
        match self {
            Self::Export(mode) => mode.set(to),
            Self::Mount(mode) => {
                let is_known = mode.set(match to {
                    ExportMode::Cached => MODE_CACHED,
                    ExportMode::Uncached => MODE_UNCACHED,
                    ExportMode::Direct => MODE_DIRECT,
                });
                debug_assert!(is_known, "one of the three");
            }
        }
    }
}

/// What is served under one name.
#[derive(Clone)]
pub enum Served {
    /// An image, or a file of a volume.
    File(File),
    /// A volume.
    Volume(Volume),
}

impl Served {
    /// The volume itself, or the one that contains the file; `None` for an image.
    pub fn volume(&self) -> Option<&Volume> {
        match self {
            Self::File(file) => file.volume(),
            Self::Volume(volume) => Some(volume),
        }
    }

    /// Whether it is in a volume.
    pub fn store(&self) -> Store {
        if self.volume().is_some() { Store::Volume } else { Store::Image }
    }

    fn direct_io(&self) -> (bool, String) {
        match self {
            Self::File(file) => file.direct_io(),
            Self::Volume(volume) => volume.direct_io(),
        }
    }

    /// The value of `direct_io` that is in force.
    fn direct_io_mode(&self) -> DirectIo {
        match self {
            Self::File(file) => file.direct_io_mode(),
            Self::Volume(volume) => volume.direct_io_mode(),
        }
    }

    fn set_direct_io(&self, mode: DirectIo) -> Result<()> {
        match self {
            Self::File(file) => file.set_direct_io(mode),
            Self::Volume(volume) => volume.set_direct_io(mode),
        }
    }

    /// Decides anew about direct I/O, if the storage below has changed. False: that failed.
    fn refresh_direct_io(&self) -> bool {
        let done = match self {
            Self::File(file) => file.refresh_direct_io(),
            Self::Volume(volume) => volume.refresh_direct_io(),
        };
        match done {
            Ok(false) => {}
            Ok(true) => {
                let (on, reason) = self.direct_io();
                log::warn!("direct-io {}: {reason}", if on { "on" } else { "off" });
            }
            Err(e) => {
                log::warn!("what is below has changed: {e}");
                return false;
            }
        }
        true
    }

    /// Whether bytes in flight are kept from changing, and why.
    pub fn stable_pages_required(&self) -> (bool, &'static str) {
        match self {
            Self::File(file) => file.stable_pages_required().unwrap_or((true, "not known")),
            Self::Volume(volume) => volume.stable_pages_required(),
        }
    }

    /// Whether the device below needs stable bytes, and why.
    pub fn device_stable_pages_required(&self) -> (bool, &'static str) {
        match self {
            Self::File(file) => file.device_stable_pages_required(),
            Self::Volume(volume) => volume.device_stable_pages_required(),
        }
    }

    fn block_size(&self) -> u32 {
        match self {
            Self::File(file) => file.block_size().unwrap_or(0),
            Self::Volume(volume) => volume.block_size(),
        }
    }
}

/// The options of a running process.
pub struct Live {
    cache: Cache,
    mode: Mode,
    served: Vec<Served>,
    /// The value that the command line or `tune` has set last, for everything that is served.
    direct_io: Mutex<DirectIo>,
    /// Held while `direct_io` is changed, which waits for the devices.
    switching: Mutex<()>,
    /// Decides anew about direct I/O. Its thread ends before what is served is released.
    _watch: Watch,
}

/// Interval of the check whether the storage below the images has changed.
const WATCH_PERIOD: Duration = Duration::from_secs(2);

/// Most periods from one failed decision to the next try: each try writes all dirty data out.
const PERIODS_MAX: u32 = 64;

/// When a decision that fails is tried again: after twice as many periods each time.
#[derive(Default)]
struct Retry {
    failures: u32,
    /// Periods to wait.
    left: u32,
}

impl Retry {
    /// Whether to try in this period.
    fn is_due(&mut self) -> bool {
        let is_due = self.left == 0;
        self.left = self.left.saturating_sub(1);
        is_due
    }

    /// Records whether the try succeeded.
    fn note(&mut self, succeeded: bool) {
        self.failures = if succeeded { 0 } else { self.failures + 1 };
        self.left =
            1_u32.checked_shl(self.failures).map_or(PERIODS_MAX, |n| n.min(PERIODS_MAX)) - 1;
    }
}

/// A thread that decides anew about direct I/O where its value is `auto`. It ends when this is
/// dropped.
struct Watch {
    stop: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Watch {
    fn new(served: Vec<Served>) -> Self {
        let (stop, stopped) = channel::<()>();
        let work = move || {
            let mut watched: Vec<_> = served.iter().map(|one| (one, Retry::default())).collect();
            while stopped.recv_timeout(WATCH_PERIOD) == Err(RecvTimeoutError::Timeout) {
                for (served, retry) in &mut watched {
                    if retry.is_due() {
                        retry.note(served.refresh_direct_io());
                    }
                }
            }
        };
        let thread = std::thread::Builder::new().name("forebay-below".into()).spawn(work);
        if let Err(e) = &thread {
            log::warn!("changes below the images are not noticed: {e}");
        }
        Self { stop: Some(stop), thread: thread.ok() }
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        drop(self.stop.take());
        if self.thread.take().is_some_and(|thread| thread.join().is_err()) {
            log::error!("the thread that watches what is below the images panicked");
        }
    }
}

/// Sets the mode of all or of none: if one refuses, each one before it gets its own mode back.
fn switch_all<T>(
    all: &[T],
    mode: DirectIo,
    get: impl Fn(&T) -> DirectIo,
    set: impl Fn(&T, DirectIo) -> Result<()>,
) -> Result<()> {
    let modes: Vec<_> = all.iter().map(get).collect();
    for (at, one) in all.iter().enumerate() {
        let Err(error) = set(one, mode) else { continue };
        for (before, own) in all[..at].iter().zip(modes) {
            if let Err(e) = set(before, own) {
                log::warn!("direct_io is still {mode} after a failed change: {e}");
            }
        }
        return Err(error);
    }
    Ok(())
}

impl Live {
    /// Everything in `served` is open. `direct_io`: the value with which the process was started.
    pub fn new(cache: &Cache, mode: Mode, served: Vec<Served>, direct_io: DirectIo) -> Self {
        let watch = Watch::new(served.clone());
        let (cache, direct_io) = (cache.clone(), Mutex::new(direct_io));
        Self { cache, mode, served, direct_io, switching: Mutex::default(), _watch: watch }
    }

    fn direct_io(&self) -> MutexGuard<'_, DirectIo> {
        self.direct_io.lock().unwrap_or_else(|p| p.into_inner())
    }

    fn stores(&self) -> Vec<Store> {
        self.served.iter().map(Served::store).collect()
    }

    /// The value of an option that is in force for `served`; `None`: it cannot have the option.
    fn value(&self, entry: &Entry, served: &Served) -> Option<String> {
        if entry.refusal(&[served.store()]).is_some() {
            return None;
        }
        match entry.name {
            "folio_size" => Some(self.cache.folio_size().to_string()),
            "block_size" => Some(served.block_size().to_string()),
            "mode" => Some(self.mode.get().to_string()),
            "direct_io" => Some(served.direct_io_mode().to_string()),
            "alloc" => served.volume().map(|volume| volume.alloc_mode().to_string()),
            name => {
                let all = self.cache.tunables();
                all.into_iter().find_map(|(known, value)| (known == name).then_some(value))
            }
        }
    }

    /// What `stat` shows of `served`: the value of each option, and its effect.
    pub fn stat(&self, served: &Served) -> Value {
        let options: Map<String, Value> = ENTRIES
            .iter()
            .map(|entry| (entry.name.to_string(), self.value(entry, served).into()))
            .collect();
        let (direct, reason) = served.direct_io();
        let (stable, why) = served.stable_pages_required();
        let (below, why_below) = served.device_stable_pages_required();
        json!({
            "mode": self.mode.get().to_string(),
            "direct_io": direct,
            "direct_io_reason": reason,
            "stable_pages": options["stable_pages"],
            "stable_pages_required": stable,
            "stable_pages_reason": why,
            "device_stable_pages_required": below,
            "device_stable_pages_reason": why_below,
            "alloc": served.volume().map(answers::alloc),
            "options": options,
        })
    }

    /// The settings that `tune` can change: those of the cache, and the options.
    pub fn tunables(&self) -> Map<String, Value> {
        let mut all = answers::tunables(&self.cache);
        all.insert("direct_io".into(), self.direct_io().to_string().into());
        all.insert("mode".into(), self.mode.get().to_string().into());
        all
    }

    /// Changes an option, or another setting of the cache (behaviours.O1).
    pub fn tune(&self, name: &str, value: &str) -> Result<()> {
        let Some(entry) = Entry::find(name) else { return self.cache.tune(name, value) };
        let refused = |why: &str| Err(Error::new(ErrorKind::InvalidInput, "tune", why));
        if let Some(why) = entry.refusal(&self.stores()).or(entry.fixed()) {
            return refused(&format!("{name}: {why}"));
        }
        if let Err(why) = entry.check(value) {
            return refused(&format!("{name}={value}: {why}"));
        }
        match name {
            "mode" => self.mode.set(value.parse()?),
            "direct_io" => {
                let _one_at_a_time = self.switching.lock().unwrap_or_else(|p| p.into_inner());
                let mode = value.parse()?;
                switch_all(&self.served, mode, Served::direct_io_mode, Served::set_direct_io)?;
                *self.direct_io() = mode;
            }
            _ => return self.cache.tune(name, value),
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;

    /// The story: after a change that could not be undone for one device, the devices had different
    /// modes. The next refused change gave all of them the mode that was set last.
    #[test]
    fn refused_switch_gives_each_device_its_own_mode_back() {
        let devices = [DirectIo::On, DirectIo::Auto, DirectIo::Auto].map(Cell::new);
        let set = |device: &Cell<DirectIo>, mode| match std::ptr::eq(device, &devices[2]) {
            true => Err(Error::new(ErrorKind::Busy, "switch", "for the test")),
            false => {
                device.set(mode);
                Ok(())
            }
        };
        switch_all(&devices, DirectIo::Off, Cell::get, set).unwrap_err();
        assert_eq!(
            devices.each_ref().map(Cell::get),
            [DirectIo::On, DirectIo::Auto, DirectIo::Auto]
        );
    }

    /// The story: a decision that always failed wrote all dirty data out, and was logged, every 2
    /// s.
    #[test]
    fn failed_decision_is_tried_again_after_ever_longer() {
        let mut retry = Retry::default();
        let mut gap = |succeeds| {
            let gap = (1..).find(|_| retry.is_due()).unwrap();
            retry.note(succeeds);
            gap
        };
        assert_eq!([(); 9].map(|()| gap(false)), [1, 2, 4, 8, 16, 32, 64, 64, 64]);
        assert_eq!([gap(true), gap(false), gap(false)], [64, 1, 2]);
        (0..40).for_each(|_| assert!(gap(false) <= 64));
    }
}
