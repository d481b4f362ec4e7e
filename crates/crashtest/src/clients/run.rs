//! Several clients on one volume, or on one raw image: one run, with every moment at which the power may go.
//!
//! Invariants: run.M1 an operation ends within a bounded number of steps of the world, and the world is never
//! stuck while one has not ended. run.M2 the cache stays within its budget.
//!
//! No locks across a wait.

use super::client::{Client, DIRECTORY, Site, all_names, path};
use super::file::{IMAGE, Opened};
use super::history::{FileHistory, Span, fill};
use super::log::{Log, Past, Synced};
use super::names::{At, Names, Orders};
use super::plan::Step;
use crate::setup::Setup;
use forebay_base::IoFlags;
use forebay_base::buf::AlignedBuf;
use forebay_base::sim_world::SimWorld;
use forebay_base::sync::Arc as SharedArc;
use forebay_base::task::WaitQueue;
use forebay_base::world::{World, WorldRef};
use forebay_block::DeviceRef;
use forebay_cache::PageCache;
use forebay_iomap::MappedFile;
use forebay_iomap::identity::Identity;
use forebay_lfs::Volume;
use forebay_sim::{CrashState, Fate, PowerCut, SimConfig, SimDisk};
use forebay_vfs::{FileKind, FileSystem, Ino, Name, NewInode, OpenFlags, Privileges};
use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Steps of the world in one run, at most (M1).
const STEPS_MAX: u64 = 400_000;
/// Bytes of a raw image.
pub const IMAGE_BYTES: u64 = 64 << 10;
/// Patterns of what files begin with.
const FIRST_IDS: u8 = 240;

/// What a run begins with.
pub struct Ground {
    /// The disk.
    pub disk: CrashState,
    /// Its names.
    pub names: BTreeMap<At, u64>,
    /// Its files: pattern and size.
    pub files: BTreeMap<u64, (u8, u64)>,
}

/// What came of a run.
pub struct Ran {
    /// Every moment; the last one is behind everything.
    pub cuts: Vec<PowerCut>,
    /// What was done.
    pub past: Past,
    /// Orders of the operations on names.
    pub orders: Orders,
}

/// A run that is over, and what was wrong with it.
pub type Outcome = Result<Ran, String>;

fn text(error: forebay_base::Error) -> String {
    error.to_string()
}

impl Ground {
    /// A volume with two directories and four files, everything durable.
    ///
    /// # Errors
    /// What the volume says.
    pub fn volume(setup: &Setup) -> Result<Self, forebay_base::Error> {
        let disk = setup.blank()?;
        let world = disk.world().clone();
        let device: DeviceRef = Arc::new(disk.clone());
        let asked: WorldRef = world.clone();
        let options = setup.options(&asked)?;
        let (mut names, mut files) = (BTreeMap::new(), BTreeMap::new());
        let made = world.run(async {
            let volume = Volume::open(&device, &asked, &options).await?;
            let new = NewInode::of(FileKind::Directory, 0o755);
            let dirs = [Ino::ROOT, volume.mkdir(Ino::ROOT, Name::new(DIRECTORY)?, &new).await?.ino];
            for (n, at) in (0..).zip([(0, 0), (0, 1), (1, 0), (1, 2)]) {
                let (id, size) = (FIRST_IDS + n, [9_001, 700, 16_384, 0][usize::from(n)]);
                let mut buf = AlignedBuf::new(size);
                fill(id, 0, &mut buf);
                let (new, full) = (NewInode::of(FileKind::File, 0o644), path(at));
                let name = Name::new(&full[full.len() - 1..])?;
                let dir = dirs[usize::from(at.0)];
                let made = volume.create(dir, name, &new, OpenFlags::WRITE).await?;
                if size > 0 {
                    made.1.write(0, buf, IoFlags::empty(), Privileges::Keep).await.1?;
                }
                names.insert(at, made.0.ino.0);
                files.insert(made.0.ino.0, (id, size as u64));
            }
            volume.close().await
        });
        world.stop();
        made.map(|()| Self { disk: all_kept(&disk), names, files })
    }

    /// A raw image full of one pattern.
    pub fn image(setup: &Setup) -> Self {
        let config = SimConfig { size: IMAGE_BYTES, sector: setup.sector, ..SimConfig::default() };
        let disk = SimDisk::new(SimWorld::new(setup.seed), config);
        let mut bytes = vec![0; IMAGE_BYTES as usize];
        fill(FIRST_IDS, 0, &mut bytes);
        disk.poke(0, &bytes);
        let files = BTreeMap::from([(IMAGE, (FIRST_IDS, IMAGE_BYTES))]);
        Self { disk: all_kept(&disk), names: BTreeMap::new(), files }
    }

    fn histories(&self) -> BTreeMap<u64, FileHistory> {
        let of = |(ino, (id, size)): (&u64, &(u8, u64))| (*ino, FileHistory::new(*id, *size));
        self.files.iter().map(of).collect()
    }
}

fn all_kept(disk: &SimDisk) -> CrashState {
    let cut = disk.cut_now();
    cut.state(&vec![Fate::Whole; cut.pending()])
}

/// Carries the steps out.
///
/// # Errors
/// What was wrong while it ran.
pub fn run(setup: &Setup, ground: &Ground, is_volume: bool, steps: &[Step]) -> Outcome {
    let world = SimWorld::new(setup.seed ^ 0xc11e);
    world.set_step_limit(STEPS_MAX);
    let disk = ground.disk.mount(world.clone());
    let log = Arc::new(Log::new(&disk, ground.histories()));
    disk.record_cuts();
    let life = Life { setup, steps, disk: &disk, log: &log };
    let done = catch_unwind(AssertUnwindSafe(|| {
        world.run(async {
            match is_volume {
                true => life.volume().await,
                false => life.image().await,
            }
        })
    }));
    // A world that is stuck, or at no end, names the operations that wait (M1).
    let done = done.unwrap_or_else(|cause| {
        let said = cause.downcast_ref::<String>().map_or("a panic", String::as_str);
        Err(format!("{said}; not ended: {}", log.running()))
    });
    world.stop();
    if let Some(what) = log.take_wrong() {
        return Err(what);
    }
    done?;
    let mut cuts = disk.take_cuts();
    cuts.push(disk.cut_now());
    let past = log.take();
    let first = Names { entries: ground.names.clone(), ..Names::default() };
    let orders = Orders::of(past.names.clone(), first)?;
    Ok(Ran { cuts, past, orders })
}

/// One run.
struct Life<'a> {
    setup: &'a Setup,
    steps: &'a [Step],
    disk: &'a SimDisk,
    log: &'a Arc<Log>,
}

impl Life<'_> {
    async fn volume(&self) -> Result<(), String> {
        let world = self.disk.world().clone();
        let device: DeviceRef = Arc::new(self.disk.clone());
        let asked: WorldRef = world.clone();
        let options = self.setup.options(&asked).map_err(text)?;
        let opened = Volume::open(&device, &asked, &options).await;
        let volume = opened.map_err(|e| format!("it does not open: {e}"))?;
        let directory = volume.lookup(Ino::ROOT, Name::new(DIRECTORY).map_err(text)?).await;
        let dirs = [Ino::ROOT, directory.map_err(text)?.ino];
        let block = u64::from(self.setup.block_bytes);
        let (log, shared) = (self.log.clone(), volume.clone());
        let site = Site { world, log, volume: Some(shared), dirs, block };
        self.clients(&site, None).await;
        if self.log.is_wrong() {
            return Ok(());
        }
        self.check_budget(options.cache.as_ref())?;
        self.check_files(&volume, &site).await?;
        let full = self.log.look(|past| past.full > 0);
        drop(site);
        let begin =
            self.log.begin(usize::MAX, "closing".into(), |_| super::log::Changed::Nothing).0;
        match volume.close().await {
            Err(error) if full || error.kind() == forebay_base::ErrorKind::NoSpace => {
                log::debug!("a full volume does not close: {error}");
                return Ok(());
            }
            done => done.map_err(|e| format!("closing: {e}"))?,
        }
        self.all_synced(begin);
        Ok(())
    }

    async fn image(&self) -> Result<(), String> {
        let world = self.disk.world().clone();
        let asked: WorldRef = world.clone();
        let options = self.setup.options(&asked).map_err(text)?;
        let cache = options.cache.ok_or("a cache is needed")?;
        let device: DeviceRef = Arc::new(self.disk.clone());
        let (map, block) = (Arc::new(Identity::new(device)), self.setup.block_bytes);
        let file = MappedFile::new(&cache, map, block, IMAGE_BYTES, false).map_err(text)?;
        let handle = Arc::new(file.open_handle());
        let opened = Opened::Image(file.clone(), handle.clone());
        let (log, dirs, block) = (self.log.clone(), [Ino::ROOT; 2], u64::from(block));
        let site = Site { world, log, volume: None, dirs, block };
        self.clients(&site, Some(&opened)).await;
        if self.log.is_wrong() {
            return Ok(());
        }
        self.check_budget(Some(&cache))?;
        self.check_content(&opened, block).await?;
        let begin =
            self.log.begin(usize::MAX, "the last sync".into(), |_| super::log::Changed::Nothing).0;
        file.sync(&handle).await.map_err(|e| format!("the last sync: {e}"))?;
        self.all_synced(begin);
        Ok(())
    }

    /// Runs all clients, interleaved by the seed, until the last one is done.
    async fn clients(&self, site: &Site, opened: Option<&Opened>) {
        let count = self.steps.iter().map(|step| step.client + 1).max().unwrap_or(0);
        let (left, done) = (Arc::new(AtomicUsize::new(count)), Arc::new(WaitQueue::new()));
        for n in 0..count {
            let own = self.steps.iter().cloned().enumerate().filter(|(_, step)| step.client == n);
            let own: Vec<(usize, Step)> = own.collect();
            let client = Client { site: site.clone(), opened: opened.cloned() };
            let (left, done) = (left.clone(), done.clone());
            let work = async move {
                client.work(own).await;
                left.fetch_sub(1, Ordering::AcqRel);
                done.wake_all();
            };
            site.world.spawn(&format!("client {n}"), Box::pin(work));
        }
        done.wait_until(|| (left.load(Ordering::Acquire) == 0).then_some(())).await;
    }

    fn all_synced(&self, begin: u64) {
        self.log.end(usize::MAX, super::log::Changed::Nothing, true, |past| {
            past.syncs.push(Synced { of: None, begin, end: past.clock });
        });
    }

    /// M2.
    fn check_budget(&self, cache: Option<&SharedArc<PageCache>>) -> Result<(), String> {
        let rows = cache.map(|cache| cache.budget()).unwrap_or_default();
        match rows.iter().find(|(_, now, bound)| now > bound) {
            Some((what, now, bound)) => Err(format!("{what}: {now} bytes, at most {bound}")),
            None => Ok(()),
        }
    }

    /// Reads every file that has a name.
    async fn check_files(&self, volume: &Volume, site: &Site) -> Result<(), String> {
        let mut letters: Vec<At> = all_names().collect();
        letters.sort_unstable();
        for at in letters {
            let full = path(at);
            let name = Name::new(&full[full.len() - 1..]).map_err(text)?;
            let Ok(attr) = volume.lookup(site.dirs[usize::from(at.0)], name).await else {
                continue;
            };
            let file = volume.open(attr.ino, OpenFlags::READ).await.map_err(text)?;
            self.check_content(&Opened::File(volume.clone(), file), site.block).await?;
        }
        Ok(())
    }

    async fn check_content(&self, opened: &Opened, block: u64) -> Result<(), String> {
        let begin = self.log.look(|past| past.clock);
        let asked = self.setup.file_bytes.max(IMAGE_BYTES) * 2;
        let len = if opened.ino() == IMAGE { IMAGE_BYTES } else { asked };
        let read = opened.read(0, len, IoFlags::empty()).await;
        let bytes = read.map_err(|e| format!("reading #{} at the end: {e}", opened.ino()))?;
        self.log.look(|past| {
            let span = Span { from: begin, to: past.clock + 1, crashed: false };
            let file = past.files.entry(opened.ino()).or_default();
            let checked = file.check_read((0, len), &bytes, block, span);
            checked.map_err(|what| format!("#{} at the end: {what}", opened.ino()))
        })
    }
}
