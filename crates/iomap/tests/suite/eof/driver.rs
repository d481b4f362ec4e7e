//! One of several tasks that work on the end of a file: appends, writes past the end, trims,
//! truncates, reads, with every flag. The same steps run as tasks of a simulated world and on real
//! threads.

use super::history::History;
use forebay_base::buf::AlignedBuf;
use forebay_base::world::split_mix;
use forebay_base::{Error, ErrorKind, IoFlags, Result};
use forebay_cache::PageCache;
use forebay_cache::strategy::{DirtyTracking, StableStrategy, UncachedStrategy};
use forebay_iomap::file::ZeroFlags;
use forebay_iomap::{Handle, MappedFile, Source, Target};
use std::sync::Arc;

/// One file under test.
pub struct Subject {
    pub file: Arc<MappedFile>,
    pub history: History,
    /// The file may become shorter.
    pub truncates: bool,
}

pub struct Driver {
    pub cache: forebay_base::sync::Arc<PageCache>,
    pub files: Arc<Vec<Subject>>,
    pub rng: u64,
    /// Direct requests are aligned to this.
    pub unit: u64,
    /// Calls are made by threads that block.
    pub blocks: bool,
    /// Of each file an opener that goes on for some steps, and the end of file as it was when that
    /// came: its streams live, and what it thinks of the end is old.
    openers: Vec<Option<(Handle, u64)>>,
}

impl Driver {
    pub fn new(
        cache: &forebay_base::sync::Arc<PageCache>,
        files: &Arc<Vec<Subject>>,
        (rng, unit, blocks): (u64, u64, bool),
    ) -> Self {
        let openers = files.iter().map(|_| None).collect();
        Self { cache: cache.clone(), files: files.clone(), rng, unit, blocks, openers }
    }

    /// Its openers go.
    pub fn close(&mut self) {
        for (subject, opener) in self.files.iter().zip(&mut self.openers) {
            opener.take().inspect(|(handle, _)| subject.file.close_handle(handle));
        }
    }

    fn draw(&mut self, below: u64) -> u64 {
        split_mix(&mut self.rng) % below
    }

    /// One operation on one of the files. `Err` says what was wrong.
    pub async fn step(&mut self) -> std::result::Result<(), String> {
        let files = self.files.clone();
        let which = self.draw(files.len() as u64) as usize;
        let subject = &files[which];
        let new = || (subject.file.open_handle(), subject.file.size());
        let (handle, seen) = self.openers[which].take().unwrap_or_else(new);
        let done = self.operation(subject, &handle, seen).await;
        if done.is_err() || self.draw(4) == 0 {
            subject.file.close_handle(&handle);
        } else {
            self.openers[which] = Some((handle, seen));
        }
        done
    }

    async fn operation(
        &mut self,
        subject: &Subject,
        handle: &Handle,
        seen: u64,
    ) -> std::result::Result<(), String> {
        let kind = self.draw(36);
        let what = |error: Error| format!("operation {kind}: {error}");
        match kind {
            0..8 => self.append(subject, handle).await.map_err(what),
            8..14 => self.write(subject, handle).await.map_err(what),
            14..18 => self.zero(subject).await.map_err(what),
            18..20 if subject.truncates => self.truncate(subject).await.map_err(what),
            18..26 => self.read(subject, handle).await,
            26 => subject.file.sync(handle).await.map_err(what),
            27 | 28 => {
                self.cache.drop_clean();
                Ok(())
            }
            29 => {
                let at = self.near_end(subject);
                subject.file.prefetch(at.saturating_sub(60_000), 200_000).await;
                Ok(())
            }
            30 => {
                self.cache.dirty.wake_all_flushers();
                Ok(())
            }
            31 => {
                self.turn();
                Ok(())
            }
            32 | 33 => self.stream(subject, handle).await,
            _ => self.page(subject, handle, seen).await.map_err(what),
        }
    }

    fn turn(&mut self) {
        let strategies = &self.cache.strategies;
        match self.rng % 3 {
            0 => {
                let all = UncachedStrategy::ALL;
                strategies.set_uncached(all[(self.rng >> 8) as usize % all.len()]);
            }
            1 => {
                let all = StableStrategy::ALL;
                strategies.set_stable(all[(self.rng >> 8) as usize % all.len()]);
            }
            _ => {
                let all = DirtyTracking::ALL;
                strategies.set_dirty_tracking(all[(self.rng >> 8) as usize % all.len()]);
            }
        }
    }

    /// A place near the end of file, on either side of it.
    fn near_end(&mut self, subject: &Subject) -> u64 {
        let near = [600, 5_000, 20_000][self.draw(3) as usize];
        let size = subject.file.size();
        (size + self.draw(near)).saturating_sub(near / 2)
    }

    fn length(&mut self) -> u64 {
        let most = [100, 900, 5_000, 30_000][self.draw(4) as usize];
        1 + self.draw(most)
    }

    fn flags(&mut self) -> IoFlags {
        match self.draw(8) {
            0 | 1 => IoFlags::UNCACHED,
            2 | 3 => IoFlags::DIRECT | IoFlags::FALLBACK,
            4 => IoFlags::DSYNC,
            5 => IoFlags::START_WRITEBACK,
            _ => IoFlags::empty(),
        }
    }

    async fn append(&mut self, subject: &Subject, handle: &Handle) -> Result<()> {
        let (len, flags) = (self.length(), self.flags() | IoFlags::APPEND);
        let value = subject.history.value(split_mix(&mut self.rng));
        let mut data = AlignedBuf::copy_of(&vec![value; len as usize]);
        let begun = subject.history.begin(0..u64::MAX, value, format!("append {len} {flags:?}"));
        let source = if self.blocks { Source::Slice(&data) } else { Source::Owned(&mut data) };
        let done = subject.file.write_placed(handle, 0, source, flags).await;
        subject.history.end(&begun, done.clone().unwrap_or(0..0), done.is_ok());
        done.map(|_| ())
    }

    async fn write(&mut self, subject: &Subject, handle: &Handle) -> Result<()> {
        let (mut at, mut len, flags) = (self.near_end(subject), self.length(), self.flags());
        if flags.contains(IoFlags::DIRECT) && self.draw(2) == 0 {
            at -= at % self.unit;
            // Up to the end of file as it is now, wherever that is.
            let size = subject.file.size();
            len = if at < size && size - at < 60_000 { size - at } else { self.unit };
        }
        let value = subject.history.value(split_mix(&mut self.rng));
        let mut data = AlignedBuf::copy_of(&vec![value; len as usize]);
        let what = format!("write {at}+{len} {flags:?}");
        let begun = subject.history.begin(at..at + len, value, what);
        let now = (flags - IoFlags::DIRECT).is_empty()
            && self.draw(2) == 0
            && matches!(subject.file.try_write(at, &data, IoFlags::empty()), Some(Ok(_)));
        let done = if now {
            Ok(())
        } else {
            let source = if self.blocks { Source::Slice(&data) } else { Source::Owned(&mut data) };
            subject.file.write(handle, at, source, flags).await.map(|_| ())
        };
        subject.history.end(&begun, at..at + len, done.is_ok());
        done
    }

    async fn zero(&mut self, subject: &Subject) -> Result<()> {
        let at = self.near_end(subject);
        let size = subject.file.size();
        let at = if self.draw(4) == 0 { 0 } else { at.min(size) };
        // To the end of file, most of the time.
        let len = if self.draw(4) == 0 { self.length().min(size - at) } else { size - at };
        let flags = ZeroFlags { keep_allocated: self.draw(2) == 0, fast_only: false };
        let begun = subject.history.begin(at..at + len, 0, format!("zero {at}+{len}"));
        let done = subject.file.zero(at, len, flags).await;
        subject.history.end(&begun, at..at + len, done.is_ok());
        match done {
            // The file was cut meanwhile.
            Err(error) if error.kind() == ErrorKind::OutOfRange && subject.truncates => Ok(()),
            other => other,
        }
    }

    async fn truncate(&mut self, subject: &Subject) -> Result<()> {
        let to = match self.draw(3) {
            0 => self.near_end(subject) / 512 * 512,
            _ => self.near_end(subject),
        };
        let begun = subject.history.begin(to..u64::MAX, 0, format!("truncate {to}"));
        let done = subject.file.set_len(to).await;
        subject.history.end(&begun, to..u64::MAX, done.is_ok());
        done
    }

    async fn read(
        &mut self,
        subject: &Subject,
        handle: &Handle,
    ) -> std::result::Result<(), String> {
        let (at, len) = (self.near_end(subject).saturating_sub(8_000), self.length());
        let flags = self.flags() & (IoFlags::UNCACHED | IoFlags::DIRECT | IoFlags::FALLBACK);
        self.read_at(subject, handle, (at, len, flags)).await.map(drop)
    }

    /// Reads on and on towards the end of file, and past it: read ahead, or an uncached window,
    /// goes before.
    async fn stream(
        &mut self,
        subject: &Subject,
        handle: &Handle,
    ) -> std::result::Result<(), String> {
        let (mut at, len) = (self.near_end(subject).saturating_sub(40_000), 500 + self.draw(9_000));
        let flags = self.flags() & IoFlags::UNCACHED;
        for _ in 0..2 + self.draw(6) {
            at += self.read_at(subject, handle, (at, len, flags)).await? as u64;
        }
        Ok(())
    }

    /// As a page of a mapping goes out: from its beginning to its end, or to the end of file as its
    /// owner saw it last.
    async fn page(&mut self, subject: &Subject, handle: &Handle, seen: u64) -> Result<()> {
        let at = self.near_end(subject).min(seen.saturating_sub(1)) / 4096 * 4096;
        let len = seen.saturating_sub(at).min(4096);
        if len == 0 {
            return Ok(());
        }
        let value = subject.history.value(split_mix(&mut self.rng));
        let mut data = AlignedBuf::copy_of(&vec![value; len as usize]);
        let begun = subject.history.begin(at..at + len, value, format!("page {at}+{len}"));
        let source = if self.blocks { Source::Slice(&data) } else { Source::Owned(&mut data) };
        let done = subject.file.write(handle, at, source, IoFlags::empty()).await.map(|_| ());
        subject.history.end(&begun, at..at + len, done.is_ok());
        done
    }

    async fn read_at(
        &mut self,
        subject: &Subject,
        handle: &Handle,
        (at, len, flags): (u64, u64, IoFlags),
    ) -> std::result::Result<usize, String> {
        let mut buf = AlignedBuf::new(len as usize);
        let begin = subject.history.now();
        let file = &subject.file;
        let read = match file.try_read(handle, at, &mut buf, flags) {
            Some(read) => read,
            None if self.blocks => file.read(handle, at, Target::Slice(&mut buf), flags).await,
            None => file.read(handle, at, Target::Owned(&mut buf), flags).await,
        };
        let read = read.map_err(|e| format!("read {at}+{len} {flags:?}: {e}"))?;
        let checked = subject.history.check(begin, at, len, &buf[..read]);
        checked.map(|_| read).map_err(|e| format!("read {flags:?}: {e}"))
    }
}

/// When all is quiet: the whole file, from the cache and then from storage.
pub async fn verify(subject: &Subject, cache: &PageCache) -> std::result::Result<(), String> {
    let handle = subject.file.open_handle();
    let size = subject.file.size();
    let sizes = subject.history.sizes();
    if !sizes.contains(&size) {
        return Err(format!("the size is {size}, may be {sizes:?}"));
    }
    for from in ["the cache", "storage", "storage, directly"] {
        let begin = subject.history.now();
        let mut all = AlignedBuf::new(size as usize);
        let flags = match from {
            "storage, directly" => IoFlags::DIRECT | IoFlags::FALLBACK,
            _ => IoFlags::empty(),
        };
        let read = subject.file.read(&handle, 0, Target::Owned(&mut all), flags).await;
        let read = read.map_err(|e| format!("reading all: {e}"))?;
        if read as u64 != size {
            return Err(format!("read {read} of {size} from {from}"));
        }
        subject.history.check(begin, 0, size, &all).map_err(|e| format!("from {from}: {e}"))?;
        subject.file.sync(&handle).await.map_err(|e| format!("sync: {e}"))?;
        cache.drop_clean();
    }
    subject.file.close_handle(&handle);
    Ok(())
}
