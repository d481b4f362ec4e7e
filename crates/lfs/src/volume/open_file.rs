//! An open file: implements [`forebay_vfs::OpenFile`].
//!
//! Lock: the state lock, for one lookup or one change. It is not held across a wait.

use crate::fault::Planted;
use crate::format::inode::FileType;
use crate::names::content::{AT_ONCE, Content};
use crate::names::lookup::{Stop, Tried};
use crate::transaction::state::State;
use crate::volume::Inner;
use forebay_base::buf::AlignedBuf;
use forebay_base::task::{BoxFuture, block_on, yield_now};
use forebay_base::units::{round_down, round_up};
use forebay_base::{Error, ErrorKind, IoFlags, Result};
use forebay_iomap::file::ZeroFlags;
use forebay_iomap::{Handle, Source, Target};
use forebay_vfs::rules::{self, At, attrs, refuse};
use forebay_vfs::types::FILE_SIZE_MAX;
use forebay_vfs::{
    Attr, Fallocate, FileKind, Ino, KeepInode, OpenFile, OpenFlags, Privileges, ReadResult,
    RenameFlags, Seek, SetAttr, WriteResult, Wrote,
};
use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::{Arc, OnceLock};

/// How often one write requests space.
const ROOM_ROUNDS: u32 = 4;

/// An opener of a file, with its flags. When it is dropped, it releases the inode.
pub(crate) struct VolumeFile {
    inner: Arc<Inner>,
    ino: Ino,
    flags: OpenFlags,
    /// Whether dropping it counts as a close of the file.
    closes: bool,
    /// The content of a regular file, set at its first use.
    content: OnceLock<(Arc<Content>, Handle)>,
}

/// How many bytes of `first..end` are beyond the size of a file. Counted in whole blocks of `unit`
/// bytes, because the map reserves these.
fn new_bytes(first: u64, end: u64, size: u64, unit: u64) -> u64 {
    if end <= size {
        return 0;
    }
    round_up(end, unit) - round_down(first.max(size), unit)
}

impl VolumeFile {
    /// Opens an inode. The caller holds the state lock and has found the inode.
    pub fn count(
        inner: &Arc<Inner>,
        state: &mut State,
        ino: Ino,
        flags: OpenFlags,
    ) -> Result<Self> {
        if !state.note_opened(ino) {
            return refuse(ErrorKind::Stale, "open", format!("{ino:?}"));
        }
        Ok(Self::counted(inner, ino, flags))
    }

    /// The opener of an inode that is counted already.
    pub fn counted(inner: &Arc<Inner>, ino: Ino, flags: OpenFlags) -> Self {
        Self { inner: inner.clone(), ino, flags, closes: true, content: OnceLock::new() }
    }

    /// Holds the inode open during a call. The end of the call does not count as a close.
    fn hold(inner: &Arc<Inner>, state: &mut State, ino: Ino) -> Result<Self> {
        let mut held = Self::count(inner, state, ino, OpenFlags::WRITE)?;
        held.closes = false;
        Ok(held)
    }
}

impl VolumeFile {
    /// The content, and the handle of this opener. Errors: `IsDirectory`, `InvalidInput`,
    /// `BadHandle`.
    fn content(&self, op: &'static str, needed: OpenFlags) -> Result<&(Arc<Content>, Handle)> {
        let (there, allowed) =
            (self.content.get(), rules::check_handle(op, self.ino, self.flags, needed));
        if there.is_none() && allowed.is_err() {
            // The error for an inode that is no regular file comes first.
            rules::regular(&*self.inner.state.lock(), op, self.ino).map_err(Stop::open)?;
        }
        allowed?;
        if let Some(there) = there {
            return Ok(there);
        }
        let content = self.inner.files.content(op, self.ino).map_err(Stop::open)?;
        let handle = content.file.open_handle();
        Ok(self.content.get_or_init(|| (content, handle)))
    }

    async fn write_now(
        &self,
        offset: u64,
        buf: Source<'_>,
        flags: IoFlags,
        privileges: Privileges,
    ) -> Result<Wrote> {
        flags.check(true)?;
        let flags = match self.inner.plant.has(Planted::DsyncWithoutCommit) {
            true => flags - IoFlags::DSYNC - IoFlags::SYNC,
            false => flags,
        };
        let (content, handle) = self.content("write", OpenFlags::WRITE)?;
        self.inner.check_running("write")?;
        let append = flags.contains(IoFlags::APPEND);
        let first = if append { content.file.size() } else { offset };
        let wanted = buf.bytes().len();
        let len = attrs::write_len(first, wanted)?;
        if len == 0 {
            return Ok(Wrote { offset: first, len: 0 });
        }
        let mut part = (len < wanted).then(|| AlignedBuf::copy_of(&buf.bytes()[..len]));
        let mut source = match &mut part {
            Some(part) => Source::Owned(part),
            None => buf,
        };
        let (mut rounds, mut place) = (0, None);
        if append && self.inner.plant.has(Planted::AppendRangeTwice) {
            yield_now().await;
            place = Some(first..first + len as u64);
        }
        let range = loop {
            let again = match &mut source {
                Source::Owned(buf) => Source::Owned(buf),
                Source::Slice(slice) => Source::Slice(slice),
            };
            // An append keeps its place after the first attempt. A later attempt at the current end
            // of file could write it twice, or after a gap.
            let (offset, flags) = match &place {
                Some(Range { start, .. }) => (*start, flags - IoFlags::APPEND),
                None => (offset, flags),
            };
            let file = &content.file;
            let done = file.write_to_place(handle, offset, again, flags, &mut place).await;
            let full = done.as_ref().is_err_and(|e| e.kind() == ErrorKind::NoSpace);
            // Another writer may take the new space, so this repeats. For an overwrite no space is
            // made, unless it is uncached: writing out dirty data of other files may help it.
            let (size, unit) = (content.file.size(), self.inner.layout.block_bytes());
            let start = if append { size } else { offset };
            let first = place.as_ref().map_or(start, |place| place.start);
            let new = new_bytes(first, first + len as u64, size, unit);
            let past = rounds == 0 && flags.intersects(IoFlags::DIRECT | IoFlags::UNCACHED);
            if !full || rounds == ROOM_ROUNDS || new == 0 && !past {
                break done?;
            }
            if past {
                self.inner.files.write_out_dirty().await;
            }
            if new > 0 && !self.inner.files.make_space_for(new, false).await {
                break done?;
            }
            rounds += 1;
        };
        self.touch_content(privileges)?;
        if flags.intersects(IoFlags::DSYNC | IoFlags::SYNC) {
            self.commit_outstanding(false).await?;
        }
        Ok(Wrote { offset: range.start, len: (range.end - range.start) as usize })
    }

    async fn read_now(&self, offset: u64, buf: Target<'_>, flags: IoFlags) -> Result<usize> {
        // A caller that knows the path of the file has added it already.
        let named = |e: Error| match e.path() {
            None if matches!(e.kind(), ErrorKind::Corrupt | ErrorKind::Io) => {
                e.with_path(format!("{:?}", self.ino))
            }
            _ => e,
        };
        self.read_bytes(offset, buf, flags).await.map_err(named)
    }

    async fn read_bytes(&self, offset: u64, mut buf: Target<'_>, flags: IoFlags) -> Result<usize> {
        flags.check(false)?;
        let (content, handle) = self.content("read", OpenFlags::READ)?;
        let wanted = buf.bytes().len();
        if wanted == 0 || offset >= content.file.size() {
            if wanted > 0 {
                self.touch_atime();
            }
            return Ok(0);
        }
        let most = FILE_SIZE_MAX - offset;
        let len = if wanted as u64 <= most {
            content.file.read(handle, offset, buf, flags).await?
        } else {
            // No byte exists after the largest offset.
            let mut part = AlignedBuf::new(most as usize);
            let len = content.file.read(handle, offset, Target::Owned(&mut part), flags).await?;
            buf.bytes()[..len].copy_from_slice(&part[..len]);
            len
        };
        self.touch_atime();
        Ok(len)
    }

    async fn sync_now(&self, data_only: bool, here: bool) -> Result<()> {
        let done = self.sync_unreported(data_only, here).await;
        self.inner.files.passed_on(self.ino, done)
    }

    async fn sync_unreported(&self, data_only: bool, here: bool) -> Result<()> {
        let files = &self.inner.files;
        let file = self.content.get().is_some() || {
            let seen = rules::inode(&*self.inner.state.lock(), "sync", self.ino);
            seen.map_err(Stop::open)?.kind == FileKind::File
        };
        if !file || self.inner.options.cache.is_none() {
            let times = if data_only { Ok(()) } else { self.record_times().await };
            // A volume that turned read-only records no times, but still makes durable what it had
            // accepted (read_only.F11).
            if times.is_err() && self.inner.check_running("sync").is_ok() {
                return times;
            }
            return files.commit_for_one(here).await.and(times);
        }
        let (content, handle) = self.content("sync", OpenFlags::empty())?;
        let times = &content.published.times;
        let number = (!data_only).then(|| times.want());
        match here {
            true => content.file.sync_here(handle).await?,
            false => content.file.sync(handle).await?,
        }
        if number.is_some_and(|number| !times.is_durable(number)) {
            self.record_times().await?;
            return files.commit_for_one(here).await;
        }
        self.commit_outstanding(here).await
    }

    async fn record_times(&self) -> Result<()> {
        self.inner.with_space(|state| state.write_times(Some(self.ino))).await
    }

    /// The result of a write for its program ([`OpenFiles::passed_on`]).
    fn passed_on(&self, flags: IoFlags, done: Result<Wrote>) -> Result<Wrote> {
        match flags.intersects(IoFlags::DSYNC | IoFlags::SYNC) {
            true => self.inner.files.passed_on(self.ino, done),
            false => done,
        }
    }

    /// Outstanding content of other files that can be written becomes durable (outstanding.S17).
    async fn commit_outstanding(&self, here: bool) -> Result<()> {
        match self.inner.has_outstanding.is_set() {
            true => self.inner.files.commit_for_one(here).await,
            false => Ok(()),
        }
    }

    fn touch_atime(&self) {
        let options = &self.inner.options;
        if options.noatime || options.read_only {
            return;
        }
        // Whether a day has passed (`relatime`) needs no precise time.
        let now = options.clock.coarse();
        if self.content.get().is_none_or(|(content, _)| !content.times.is_read(now)) {
            let now = options.clock.now();
            self.inner.state.lock().touch_atime(self.ino, now, false);
        }
    }

    fn touch_content(&self, privileges: Privileges) -> Result<()> {
        let now = self.inner.options.clock.now();
        if self.content.get().is_some_and(|(content, _)| content.times.try_write(now)) {
            return Ok(());
        }
        let (done, waits) = {
            let mut state = self.inner.state.lock();
            let done = state.touch_content(self.ino, now, privileges);
            (done, !state.queue().is_empty())
        };
        if waits {
            self.inner.note_change();
        }
        done.map_err(Stop::open)
    }

    async fn fallocate_now(
        &self,
        how: Fallocate,
        offset: u64,
        len: u64,
        privileges: Privileges,
    ) -> Result<()> {
        let of = (self.ino, self.flags);
        let checked = attrs::check_fallocate(&*self.inner.state.lock(), of, offset, len);
        checked.map_err(Stop::open)?;
        let (content, _) = self.content("fallocate", OpenFlags::WRITE)?;
        self.inner.check_running("fallocate")?;
        let (file, end) = (&content.file, offset + len);
        if let Fallocate::PunchHole | Fallocate::ZeroRange { .. } = how {
            let end = end.min(file.size());
            if offset < end {
                let zero = || file.zero(offset, end - offset, ZeroFlags::default());
                self.inner.retry_with_space(zero).await?;
            }
        }
        if how.grows() && end > file.size() {
            self.inner.retry_with_space(|| file.grow_to(end)).await?;
        }
        self.touch_content(privileges)
    }

    async fn seek_now(&self, what: Seek, offset: u64) -> Result<u64> {
        let (content, _) = self.content("seek", OpenFlags::empty())?;
        let (file, size) = (&content.file, content.file.size());
        let found = match what {
            _ if offset >= size => None,
            Seek::Data => file.next_data(offset..size).await?,
            Seek::Hole => Some(file.next_hole(offset..size).await?),
        };
        match found {
            Some(at) => Ok(at),
            None => refuse(ErrorKind::PastEnd, "seek", format!("{offset} of {size}")),
        }
    }
}

impl Drop for VolumeFile {
    fn drop(&mut self) {
        if let Some((content, handle)) = self.content.take() {
            content.file.close_handle(&handle);
        }
        self.inner.state.lock().released(self.ino, self.closes);
        self.inner.files.tidy(Some(self.ino.0), AT_ONCE);
        self.inner.note_queued();
    }
}

impl Inner {
    /// Runs an operation on content, and runs it again after `NoSpace` if space could be made.
    async fn retry_with_space<T, F: Future<Output = Result<T>>>(
        &self,
        mut op: impl FnMut() -> F,
    ) -> Result<T> {
        for _ in 0..ROOM_ROUNDS {
            match op().await {
                // Another writer may have taken the new space, so this repeats.
                Err(error) if error.kind() == ErrorKind::NoSpace => {
                    if !self.requests.make_space().await {
                        return Err(error);
                    }
                }
                done => return done,
            }
        }
        op().await
    }

    /// Sets attributes, and returns all of them as they are in the same hold of the lock.
    pub(crate) async fn setattr(&self, ino: Ino, set: &SetAttr) -> Result<Attr> {
        let set_all = |state: &mut State, now| {
            state.setattr(ino, set, now)?;
            state.attr("setattr", ino)
        };
        let Some(size) = set.size else { return self.tried(set_all).await };
        // The file is held open, so that its inode stays in memory.
        let me = self.me.upgrade().expect("a caller holds the volume");
        let held = self.tried(|state, _| {
            attrs::check_set(state, ino, set)?;
            Ok(VolumeFile::hold(&me, state, ino)?)
        });
        let held = held.await?;
        let (content, _) = held.content("setattr", OpenFlags::WRITE)?;
        // A truncation within a block makes the block dirty, which needs space (admission.P23).
        self.retry_with_space(|| content.file.set_len(size)).await?;
        self.tried(set_all).await
    }

    /// The regular files in memory that a rename puts in the place of another entry: one file, or
    /// both files of an exchange.
    fn replacing(
        state: &State,
        (from, to): (At<'_>, At<'_>),
        flags: RenameFlags,
    ) -> Tried<Vec<(Ino, Arc<Content>)>> {
        let mut files = Vec::new();
        if flags.contains(RenameFlags::NOREPLACE) {
            return Ok(files);
        }
        let (Some((_, first)), Some((_, second))) = (state.entry_of(from)?, state.entry_of(to)?)
        else {
            return Ok(files);
        };
        let second = flags.contains(RenameFlags::EXCHANGE).then_some(second);
        for (ino, kind) in [first].into_iter().chain(second) {
            let node = state.look(ino)?.filter(|_| kind == FileType::Regular);
            files.extend(node.and_then(|node| node.content.clone()).map(|c| (Ino(ino), c)));
        }
        Ok(files)
    }

    /// Renames. A file that replaces another one is written out before the record of the rename. So
    /// whenever the new name is durable, its content is, too. Returns a replaced inode open if it
    /// lost its last name and `keeps` names it.
    pub(crate) async fn rename(
        &self,
        (from, to): (At<'_>, At<'_>),
        flags: RenameFlags,
        keeps: KeepInode<'_>,
    ) -> Result<Option<VolumeFile>> {
        let me = self.me.upgrade().expect("a caller holds the volume");
        let mut written = BTreeSet::new();
        let early = self.plant.has(Planted::RenameBeforeData);
        loop {
            let tried = self.tried(|state, now| {
                let files = Self::replacing(state, (from, to), flags)?;
                let first = files.into_iter().find(|(ino, _)| !written.contains(ino) && !early);
                if first.is_some() {
                    return Ok((first, None));
                }
                let op = |state: &mut State| state.rename(from, to, flags, now);
                let kept = state.keeping(to, keeps, op)?;
                let kept = kept.map(|ino| VolumeFile::counted(&me, ino, OpenFlags::empty()));
                Ok((None, kept))
            });
            match tried.await {
                // The write-out runs without a lock, and then the names are looked up again.
                Ok((Some((ino, content)), _)) => {
                    self.files.write_out_replacing(&content).await?;
                    written.insert(ino);
                }
                done => {
                    self.files.tidy(None, AT_ONCE);
                    return done.map(|(_, kept)| kept);
                }
            }
        }
    }
}

impl OpenFile for VolumeFile {
    fn ino(&self) -> Ino {
        self.ino
    }

    fn flags(&self) -> OpenFlags {
        self.flags
    }

    fn try_read(&self, offset: u64, dst: &mut [u8], flags: IoFlags) -> Option<Result<usize>> {
        // Invalid requests, and those without bytes, use the slow path.
        let end = offset.checked_add(dst.len() as u64)?;
        if !self.flags.contains(OpenFlags::READ) || dst.is_empty() || end > FILE_SIZE_MAX {
            return None;
        }
        // The first use takes over the content that the last close retained, so the read can be a
        // cache hit.
        let (content, handle) = self.content("read", OpenFlags::READ).ok()?;
        let done = content.file.try_read(handle, offset, dst, flags)?;
        if done.is_ok() {
            self.touch_atime();
        }
        Some(done)
    }

    fn read(&self, offset: u64, mut buf: AlignedBuf, flags: IoFlags) -> BoxFuture<'_, ReadResult> {
        Box::pin(async move {
            let done = self.read_now(offset, Target::Owned(&mut buf), flags).await;
            (buf, done)
        })
    }

    fn wait_read(&self, offset: u64, dst: &mut [u8], flags: IoFlags) -> Result<usize> {
        block_on(self.read_now(offset, Target::Slice(dst), flags))
    }

    fn try_write(
        &self,
        offset: u64,
        src: &[u8],
        flags: IoFlags,
        privileges: Privileges,
    ) -> Option<Result<Wrote>> {
        let (content, _) = self.content.get()?;
        let end = offset.checked_add(src.len() as u64)?;
        if !self.flags.contains(OpenFlags::WRITE) || src.is_empty() || end > FILE_SIZE_MAX {
            return None;
        }
        if let Err(error) = self.inner.check_running("write") {
            return Some(Err(error));
        }
        let done = content.file.try_write(offset, src, flags)?;
        if done.as_ref().is_err_and(|error| error.kind() == ErrorKind::NoSpace) {
            // The slow path may wait until there is space.
            return None;
        }
        let touched = done.and_then(|len| {
            self.touch_content(privileges)?;
            Ok(Wrote { offset, len })
        });
        Some(touched)
    }

    fn write(
        &self,
        offset: u64,
        mut buf: AlignedBuf,
        flags: IoFlags,
        privileges: Privileges,
    ) -> BoxFuture<'_, WriteResult> {
        Box::pin(async move {
            let done = self.write_now(offset, Source::Owned(&mut buf), flags, privileges).await;
            (buf, self.passed_on(flags, done))
        })
    }

    fn wait_write(
        &self,
        offset: u64,
        src: &[u8],
        flags: IoFlags,
        privileges: Privileges,
    ) -> Result<Wrote> {
        let done = block_on(self.write_now(offset, Source::Slice(src), flags, privileges));
        self.passed_on(flags, done)
    }

    fn fallocate(
        &self,
        how: Fallocate,
        offset: u64,
        len: u64,
        privileges: Privileges,
    ) -> BoxFuture<'_, Result<()>> {
        Box::pin(self.fallocate_now(how, offset, len, privileges))
    }

    fn seek(&self, what: Seek, offset: u64) -> BoxFuture<'_, Result<u64>> {
        Box::pin(self.seek_now(what, offset))
    }

    fn sync(&self, data_only: bool) -> BoxFuture<'_, Result<()>> {
        Box::pin(self.sync_now(data_only, false))
    }

    fn sync_waiting(&self, data_only: bool) -> BoxFuture<'_, Result<()>> {
        Box::pin(self.sync_now(data_only, true))
    }
}
