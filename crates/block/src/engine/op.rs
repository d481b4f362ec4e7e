//! A request as io_uring sees it: what it asks of the kernel, and what the answer means.
//!
//! Invariants: O1 what io_uring cannot do at once, or answers oddly, is carried out again from
//! the start by blocking calls on the pool; reads and writes may be repeated. O2 the list of
//! memory that the kernel got lives in the op, which lives until the kernel has answered.

use crate::bio::{BioFlags, BioOp};
use crate::check::check_range;
use crate::file::Job;
use crate::file::xfer::{Next, View, Xfer};
use crate::sys::IoVecs;
use forebay_base::Result;
use io_uring::{opcode, squeue, types};
use std::io;
use std::os::fd::AsRawFd;

/// Calls for one transfer after which the rest goes to the pool.
const CALLS: u32 = 64;
/// Best effort, lowest level (see ioprio_set(2)): for background requests.
const BACKGROUND_PRIO: u16 = (2 << 13) | 7;

enum Work {
    Move(Xfer),
    Flush { resized: bool },
    Fallocate { mode: i32, pos: u64, len: u64 },
}

/// A request with its plan.
pub(crate) struct Op {
    work: Work,
    calls: u32,
    // After `work`: the memory goes last.
    job: Job,
}

/// Where a request goes.
pub(crate) enum Planned {
    Ring(Op),
    Pool(Job),
    Over(Job, Result<()>),
}

/// What follows an answer of the kernel.
pub(crate) enum After {
    Again(Op),
    Pool(Job),
    Over(Job, Result<()>),
}

impl Op {
    /// Plans a request.
    pub(crate) fn plan(mut job: Job) -> Planned {
        match Self::work(&mut job) {
            Ok(Some(work)) => Planned::Ring(Self { work, calls: 0, job }),
            Ok(None) => Planned::Pool(job),
            Err(e) => Planned::Over(job, Err(e)),
        }
    }

    fn work(job: &mut Job) -> Result<Option<Work>> {
        let file = job.pass.file();
        let bio = &mut job.bio;
        let view = View::of(file);
        if bio.op != BioOp::Read && bio.op != BioOp::Write {
            check_range(bio.op, bio.offset, bio.len, &view.limits, view.size)?;
        }
        Ok(match bio.op {
            BioOp::Read | BioOp::Write => {
                // SAFETY: the op keeps the bio, which owns the memory, longer than the list (O2).
                let iovs = unsafe { IoVecs::new(&bio.data.segments()) };
                let range = (bio.offset, bio.len);
                let xfer = Xfer::plan(file, &view, bio.op, range, bio.flags, iovs)?;
                let simple = xfer.tail.is_none() && !xfer.edge && !xfer.is_over();
                simple.then_some(Work::Move(xfer))
            }
            BioOp::Flush => Some(Work::Flush { resized: file.take_resized() }),
            BioOp::Discard | BioOp::WriteZeroes if bio.flags.contains(BioFlags::FUA) => None,
            _ if view.at_edge(file, bio.offset, bio.len) => None,
            BioOp::Discard | BioOp::WriteZeroes => {
                let keep = bio.flags.contains(BioFlags::NO_UNMAP);
                file.fallocate_mode(bio.op == BioOp::Discard, keep).map(|mode| {
                    let (pos, len) = (file.offset + bio.offset, view.clip(bio.offset, bio.len));
                    Work::Fallocate { mode: mode.bits() as i32, pos, len }
                })
            }
        })
    }

    pub(crate) fn is_background(&self) -> bool {
        self.job.flags().contains(BioFlags::BACKGROUND)
    }

    /// The next call.
    pub(crate) fn entry(&self) -> squeue::Entry {
        let file = self.job.pass.file();
        let fd = |direct| types::Fd(file.fd(direct).as_raw_fd());
        match &self.work {
            Work::Move(xfer) => {
                let prio = if self.is_background() { BACKGROUND_PRIO } else { 0 };
                let (window, _) = xfer.iovs.window();
                let (ptr, count) = (window.as_ptr(), window.len() as u32);
                if xfer.write {
                    let call = opcode::Writev::new(fd(xfer.direct), ptr, count);
                    call.offset(xfer.pos).rw_flags(xfer.rwf).ioprio(prio).build()
                } else {
                    let call = opcode::Readv::new(fd(xfer.direct), ptr, count);
                    call.offset(xfer.pos).ioprio(prio).build()
                }
            }
            Work::Flush { resized } => {
                let data = types::FsyncFlags::DATASYNC;
                let flags = if *resized { types::FsyncFlags::empty() } else { data };
                opcode::Fsync::new(fd(false)).flags(flags).build()
            }
            Work::Fallocate { mode, pos, len } => {
                opcode::Fallocate::new(fd(false), *len).offset(*pos).mode(*mode).build()
            }
        }
    }

    /// Takes note of the kernel's answer: a count, or a negated errno.
    pub(crate) fn answer(mut self, res: i32) -> After {
        self.calls += 1;
        let outcome = usize::try_from(res)
            .map_err(|_| io::Error::from_raw_os_error(res.unsigned_abs() as i32));
        let again = [libc::EAGAIN, libc::EINTR, libc::ECANCELED].map(|e| -e).contains(&res);
        match &mut self.work {
            Work::Move(_) if again || self.calls >= CALLS => self.into_pool(),
            Work::Move(xfer) => match xfer.note(self.job.pass.file(), outcome) {
                Ok(Next::More) => After::Again(self),
                Ok(Next::Done) => self.over(Ok(())),
                Err(e) => self.over(Err(e)),
            },
            Work::Flush { resized } => {
                let resized = *resized;
                if again {
                    self.job.pass.file().set_resized(resized);
                    return self.into_pool();
                }
                let result = self.job.pass.file().note_flush(
                    self.job.pass.seen(),
                    resized,
                    outcome.map(drop),
                );
                self.over(result)
            }
            // The blocking way knows what to do instead.
            Work::Fallocate { .. } if res < 0 => self.into_pool(),
            Work::Fallocate { .. } => self.over(Ok(())),
        }
    }

    /// Gives the request to the pool, from the start. The kernel has no hold on it any more.
    pub(crate) fn into_job(self) -> Job {
        if let Work::Flush { resized } = self.work {
            self.job.pass.file().set_resized(resized);
        }
        let Self { work, job, .. } = self;
        drop(work);
        job
    }

    fn into_pool(self) -> After {
        After::Pool(self.into_job())
    }

    fn over(self, result: Result<()>) -> After {
        let Self { work, job, .. } = self;
        drop(work);
        After::Over(job, result)
    }
}
