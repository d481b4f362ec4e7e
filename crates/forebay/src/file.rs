//! One open file.

use crate::cache::{Cache, Shared};
use crate::export::{ExportMode, FileExport, LiveMode};
use crate::registry::{Lingering, Locked, Resident, View};
use forebay_base::task::{block_on, yield_now};
use forebay_base::{Error, ErrorKind, IoFlags, Result};
use forebay_block::{DirectIo, FileDevice, FileIdentity};
use forebay_cache::State;
use forebay_cache::strategy::StablePages;
use forebay_iomap::{Handle, MappedFile, Source, Target};
use forebay_vfs::{Export, Extent};
use std::sync::Arc;

pub(crate) struct Opener {
    pub cache: Cache,
    pub file: Arc<MappedFile>,
    pub handle: Handle,
    /// Opened for reading only, though others may write the file.
    read_only: bool,
    raw: Option<Arc<FileDevice>>,
    /// Goes after the handle; shared by all openers of the file.
    closing: Arc<Closing>,
}

impl Opener {
    /// Whether this opener may not write.
    pub fn read_only(&self) -> bool {
        self.read_only || self.file.read_only()
    }

    #[cfg(test)]
    pub fn raw(&self) -> &Arc<FileDevice> {
        self.raw.as_ref().expect("a raw file")
    }

    /// `ReadOnly` if this opener may not write.
    pub fn check_writable(&self) -> Result<()> {
        match self.read_only() {
            true => Err(Error::new(ErrorKind::ReadOnly, "write", "opened for reading only")),
            false => Ok(()),
        }
    }
}

impl Drop for Opener {
    fn drop(&mut self) {
        self.file.close_handle(&self.handle);
    }
}

/// What the last opener leaves to do. Openers are counted apart from the file itself, which
/// background work holds at times too.
pub(crate) struct Closing {
    shared: Arc<Shared>,
    file: Option<Arc<MappedFile>>,
    raw: Option<Raw>,
}

/// A raw file: its device, which file it is, and what of it is shown.
pub(crate) struct Raw {
    pub device: Arc<FileDevice>,
    pub key: FileIdentity,
    pub view: View,
    pub locked: Locked,
}

impl Closing {
    pub fn new(shared: &Arc<Shared>, file: Arc<MappedFile>, raw: Option<Raw>) -> Arc<Self> {
        Arc::new(Self { shared: shared.clone(), file: Some(file), raw })
    }

    pub fn file(&self) -> &Arc<MappedFile> {
        self.file.as_ref().expect("there until it is dropped")
    }

    pub fn raw(&self) -> Option<(&Arc<FileDevice>, View)> {
        self.raw.as_ref().map(|raw| (&raw.device, raw.view))
    }
}

impl Drop for Closing {
    fn drop(&mut self) {
        let file = self.file.take().expect("closed once");
        let id = file.mapping.id;
        if !file.read_only() {
            // Whoever wants to know whether it worked has synced. Nobody is told here.
            if let Err(error) = block_on(file.sync_untold()) {
                let (name, bytes) = (file.device().name(), file.mapping.failed_bytes());
                log::warn!("closing {name}: {error}; {bytes} bytes are kept and tried again");
            }
        }
        // They hold the device, and its lock.
        block_on(file.wait_fills());
        block_on(file.mapping.domain.wait_released(id));
        let settled = file.mapping.is_settled();
        if !settled {
            file.keep_until_settled();
        }
        let weak = Arc::downgrade(&file);
        let Some(Raw { device: raw, key, view, locked }) = self.raw.take() else {
            drop(file);
            return self.shared.forget(id, &weak);
        };
        let stamp = if settled { raw.final_stamp() } else { None };
        let resident = stamp.map(|stamp| Resident { id, view, stamp });
        if resident.is_some() {
            file.leave_folios();
        }
        let weak_raw = Arc::downgrade(&raw);
        drop((raw, file));
        self.shared.forget(id, &weak);
        let lingering = Lingering { file: weak, raw: weak_raw, view, resident, locked };
        self.shared.registry.closed(key, lingering);
    }
}

/// An open file. Clones share the opener: its readahead streams and its view of write errors.
/// [`File::reopen`] makes a new opener.
#[derive(Clone)]
pub struct File {
    pub(crate) opener: Arc<Opener>,
}

/// What of a range is in the cache.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Residency {
    /// Bytes of a block.
    pub block_size: u32,
    /// Blocks of the range.
    pub total_blocks: u64,
    /// Blocks in the cache.
    pub resident_blocks: u64,
    /// Blocks newer than the device.
    pub dirty_blocks: u64,
    /// Blocks touched since reclaim last looked.
    pub referenced_blocks: u64,
    /// Runs that are in the cache: (offset, length) in bytes.
    pub runs: Vec<(u64, u64)>,
}

impl File {
    /// A new opener.
    pub(crate) fn opened(cache: Cache, closing: Arc<Closing>, read_only: bool) -> Self {
        let file = closing.file().clone();
        let raw = closing.raw().map(|(raw, _)| raw.clone());
        let handle = file.open_handle();
        Self { opener: Arc::new(Opener { cache, file, handle, read_only, raw, closing }) }
    }

    /// Reads at `offset` through the cache; short only at the end of file.
    #[inline]
    pub fn read_at(&self, buf: &mut [u8], offset: u64) -> Result<usize> {
        self.read_at_with(buf, offset, IoFlags::empty())
    }

    /// Reads with flags. Errors: unknown flags, unaligned `DIRECT`, `NOWAIT` that would wait, I/O.
    #[inline]
    pub fn read_at_with(&self, buf: &mut [u8], offset: u64, flags: IoFlags) -> Result<usize> {
        let Opener { file, handle, .. } = &*self.opener;
        match file.try_read(handle, offset, buf, flags) {
            Some(done) => done,
            None => block_on(file.read(handle, offset, Target::Slice(buf), flags)),
        }
    }

    /// Writes at `offset` into the cache; written back later. Writes all or fails.
    #[inline]
    pub fn write_at(&self, buf: &[u8], offset: u64) -> Result<usize> {
        self.write_at_with(buf, offset, IoFlags::empty())
    }

    /// Writes with flags. With `NOWAIT` it may write less than all. Errors: read-only, past the
    /// end, unknown flags, unaligned `DIRECT`, `NOWAIT` that would wait, I/O.
    pub fn write_at_with(&self, buf: &[u8], offset: u64, flags: IoFlags) -> Result<usize> {
        self.opener.check_writable()?;
        let Opener { file, handle, .. } = &*self.opener;
        match file.try_write(offset, buf, flags) {
            Some(done) => done,
            None => block_on(file.write(handle, offset, Source::Slice(buf), flags)),
        }
    }

    /// Writes at the end of file, whole, wherever that is by then; returns where the bytes went. `flags`
    /// as for [`File::write_at_with`].
    pub fn append(&self, buf: &[u8], flags: IoFlags) -> Result<u64> {
        self.opener.check_writable()?;
        let Opener { file, handle, .. } = &*self.opener;
        let written = file.write_placed(handle, 0, Source::Slice(buf), flags | IoFlags::APPEND);
        block_on(written).map(|range| range.start)
    }

    /// Sets the size in bytes: what is cut off is gone, what is added reads as zeros. Errors: read-only,
    /// `Unsupported` where the size is fixed (block devices, images with a size limit), I/O.
    pub fn set_len(&self, size: u64) -> Result<()> {
        self.opener.check_writable()?;
        block_on(self.opener.file.set_len(size))
    }

    /// Makes everything written so far durable.
    pub fn sync_data(&self) -> Result<()> {
        block_on(self.opener.file.sync_here(&self.opener.handle))
    }

    /// As [`File::sync_data`]: a raw file has no other metadata.
    pub fn sync_all(&self) -> Result<()> {
        self.sync_data()
    }

    /// The range reads as zeros afterwards, and its space is given back where that is possible.
    pub fn trim(&self, offset: u64, len: u64) -> Result<()> {
        self.zero_with(offset, len, false, false)
    }

    /// The range reads as zeros afterwards; its space stays allocated.
    pub fn zero(&self, offset: u64, len: u64) -> Result<()> {
        self.zero_with(offset, len, true, false)
    }

    fn zero_with(&self, offset: u64, len: u64, keep: bool, fast: bool) -> Result<()> {
        self.opener.check_writable()?;
        let flags = forebay_iomap::file::ZeroFlags { keep_allocated: keep, fast_only: fast };
        block_on(self.opener.file.zero(offset, len, flags))
    }

    /// Size in bytes.
    pub fn size(&self) -> u64 {
        self.opener.file.size()
    }

    /// Unit of state in the cache, bytes.
    pub fn block_size(&self) -> u32 {
        self.opener.file.mapping.block_size() as u32
    }

    /// A new opener of the same file.
    pub fn reopen(&self) -> File {
        let Opener { cache, closing, read_only, .. } = &*self.opener;
        Self::opened(cache.clone(), closing.clone(), *read_only)
    }

    /// Bytes accepted whose write-out failed: they are kept and tried again.
    pub fn failed_bytes(&self) -> u64 {
        self.opener.file.mapping.failed_bytes()
    }

    /// Gives up what could not be written: it is dropped, and the file reads there as the device has it.
    /// Returns the bytes dropped. The only way to lose accepted data but for dropping the cache.
    pub fn discard_failed(&self) -> Result<u64> {
        self.opener.check_writable()?;
        Ok(block_on(self.opener.file.discard_failed()))
    }

    /// What of a range is cached.
    pub fn residency(&self, offset: u64, len: u64) -> Residency {
        residency(&self.opener.file, offset, len)
    }

    /// Switches direct I/O below the cache, live: dirty data is flushed first, and no range is dirty
    /// in the system's page cache while it is on. Errors: not a raw file, not eligible.
    pub fn set_direct_io(&self, mode: DirectIo) -> Result<()> {
        let Some(raw) = &self.opener.raw else {
            let text = "only a raw file has a page cache below";
            return Err(Error::new(ErrorKind::Unsupported, "set direct I/O", text));
        };
        raw.announce_direct_io(mode);
        if !self.opener.file.read_only()
            && let Err(error) = self.sync_data()
        {
            raw.announce_direct_io(DirectIo::Off);
            return Err(error);
        }
        raw.set_direct_io(mode)
    }

    /// Whether direct I/O is on below the cache, and why.
    pub fn direct_io(&self) -> (bool, String) {
        match &self.opener.raw {
            Some(raw) => raw.direct_io(),
            None => (false, "not a raw file".into()),
        }
    }

    /// Map of a range: which runs hold data.
    pub fn extents(&self, offset: u64, len: u64) -> Result<Vec<Extent>> {
        block_on(extents(&self.opener.file, offset, len, usize::MAX))
    }

    /// Whether bytes in flight are kept from changing on this file, and why: what its device asks for
    /// now, unless [`File::set_stable_pages`] says otherwise.
    pub fn stable_pages_required(&self) -> (bool, &'static str) {
        let need = self.opener.file.stable_need();
        (need.required, need.reason)
    }

    /// What the device below asks for now, and why.
    pub fn device_stable_pages_required(&self) -> (bool, &'static str) {
        let need = self.opener.file.device().limits().stable_writes;
        (need.required, need.reason)
    }

    /// Whether the need comes from the device (`Auto`) or from here. Counts from the next write on,
    /// for all openers of the file. `Off` is `Unsupported` where checksums are kept.
    pub fn set_stable_pages(&self, to: StablePages) -> Result<()> {
        self.opener.file.set_stable_pages(to)
    }

    /// As it was set last.
    pub fn stable_pages(&self) -> StablePages {
        self.opener.file.stable_pages()
    }

    /// This file as an export for front ends.
    pub fn export(&self, mode: ExportMode) -> Arc<dyn Export> {
        self.export_live(&LiveMode::new(mode))
    }

    /// This file as an export whose mode can be changed while it is served.
    pub fn export_live(&self, mode: &LiveMode) -> Arc<dyn Export> {
        Arc::new(FileExport::new(self.reopen(), mode.clone()))
    }
}

/// What of a range of a file is cached.
pub(crate) fn residency(file: &MappedFile, offset: u64, len: u64) -> Residency {
    let (mapping, pages) = (&*file.mapping, &*file.cache);
    let block = mapping.block_size();
    let end = offset.saturating_add(len).min(file.size());
    let range = offset.min(end)..end;
    let mut out = Residency { block_size: block as u32, ..Residency::default() };
    if range.is_empty() {
        return out;
    }
    out.total_blocks = range.end.div_ceil(block) - range.start / block;
    for index in pages.folios_present(mapping, &range) {
        let Some(folio) = pages.lock_folio(mapping, index) else { continue };
        let blocks = mapping.blocks_touched(index, &range);
        let count =
            |state| -> u64 { folio.runs_with(blocks, state).map(|r| u64::from(r.len())).sum() };
        out.dirty_blocks += count(State::Dirty);
        out.referenced_blocks += count(State::Referenced);
        for run in folio.runs_with(blocks, State::Uptodate) {
            out.resident_blocks += u64::from(run.len());
            let bytes = mapping.range_of(index, run);
            match out.runs.last_mut() {
                Some((at, len)) if *at + *len == bytes.start => *len += bytes.end - bytes.start,
                _ => out.runs.push((bytes.start, bytes.end - bytes.start)),
            }
        }
    }
    out
}

/// Runs of the map below that are asked for at once.
const RUNS_STEP: usize = 256;
/// Folios that are looked at in one poll.
const FOLIOS_STEP: u64 = 512;

/// The map of a range from its start on, at most `max` extents, with blocks that are dirty in the
/// cache counted as data. Gives way between its steps, so that an event loop may drive it.
pub(crate) async fn extents(
    file: &MappedFile,
    offset: u64,
    len: u64,
    max: usize,
) -> Result<Vec<Extent>> {
    let end = offset.checked_add(len).filter(|&end| end <= file.size());
    let Some(end) = end else {
        let error = Error::new(ErrorKind::OutOfRange, "map", "past the end");
        return Err(error.with_range(offset, len));
    };
    let mut out = Extents { list: Vec::new(), max: max.max(1), full: false };
    let mut at = offset;
    while at < end && !out.full {
        let runs = file.ops.extents(at..end, RUNS_STEP).await?;
        if runs.is_empty() {
            return Err(Error::new(ErrorKind::Io, "map", "the device gave no map"));
        }
        for (start, len, data) in runs {
            at = start + len;
            if data {
                out.push(len, false);
            } else {
                hole(file, start..at, &mut out).await;
            }
        }
        yield_now().await;
    }
    Ok(out.list)
}

/// A hole below may have dirt above it.
async fn hole(file: &MappedFile, range: std::ops::Range<u64>, out: &mut Extents) {
    let step = file.mapping.folio_size() * FOLIOS_STEP;
    let mut at = range.start;
    while at < range.end && !out.full {
        let part = at..range.end.min((at / step + 1) * step);
        for run in dirty_runs(file, part.clone()) {
            out.push(run.start - at, true);
            out.push(run.end - run.start, false);
            at = run.end;
        }
        out.push(part.end - at, true);
        at = part.end;
        if at < range.end {
            yield_now().await;
        }
    }
}

/// Extents so far; neighbours of one kind are one.
struct Extents {
    list: Vec<Extent>,
    max: usize,
    full: bool,
}

impl Extents {
    fn push(&mut self, len: u64, hole: bool) {
        if len == 0 || self.full {
            return;
        }
        let at_most = self.list.len() == self.max;
        match self.list.last_mut() {
            Some(last) if last.hole == hole => last.len += len,
            _ if at_most => self.full = true,
            _ => self.list.push(Extent { len, hole, zero: hole }),
        }
    }
}

fn dirty_runs(file: &MappedFile, range: std::ops::Range<u64>) -> Vec<std::ops::Range<u64>> {
    let (mapping, pages) = (&*file.mapping, &*file.cache);
    let mut out = Vec::new();
    for index in pages.folios_present(mapping, &range) {
        let Some(folio) = pages.lock_folio(mapping, index) else { continue };
        let blocks = mapping.blocks_touched(index, &range);
        let runs =
            folio.runs(blocks, |t, s, g| t.bits(s, State::Dirty, g) | t.bits(s, State::Writing, g));
        out.extend(runs.into_iter().map(|run| {
            let bytes = mapping.range_of(index, run);
            bytes.start.max(range.start)..bytes.end.min(range.end)
        }));
    }
    out
}
