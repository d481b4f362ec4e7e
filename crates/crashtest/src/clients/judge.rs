//! Judges whether the histories allow what is recovered of a life of several clients.
//!
//! No locks.

use super::client::{all_names, path};
use super::file::IMAGE;
use super::ground::IMAGE_BYTES;
use super::history::{FileHistory, Span};
use super::log::Synced;
use super::run::Ran;
use super::workload::Clients;
use crate::verdict::{Checked, Found, Recoveries};
use crate::workload::{At, Ground};
use forebay_sim::CrashState;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::sync::Arc;

/// What a disk holds after a crash.
#[derive(Clone)]
pub enum Remains {
    /// A volume, as it was recovered.
    Volume(Rc<Found>),
    /// A raw image, and one number for it.
    Image(Arc<Vec<u8>>, u64),
}

impl Remains {
    /// The content of a crash state, and whether a volume was recovered for it. A raw image needs
    /// no recovery.
    ///
    /// # Errors
    /// What is wrong.
    pub fn of(
        clients: &Clients,
        state: &CrashState,
        recoveries: &mut Recoveries,
    ) -> Checked<(Self, bool)> {
        match clients.is_volume {
            true => {
                let (found, is_new) = recoveries.of(&clients.setup, state)?;
                Ok((Self::Volume(found), is_new))
            }
            false => Ok((Self::image(state), false)),
        }
    }

    /// The content of a raw image.
    pub fn image(state: &CrashState) -> Self {
        Self::Image(Arc::new(state.peek(0, IMAGE_BYTES as usize)), state.sum())
    }

    /// A hash of all content, by which distinct results are counted.
    pub fn key(&self) -> u64 {
        match self {
            Self::Volume(found) => found.key(),
            Self::Image(_, sum) => *sum,
        }
    }

    /// What the next life begins with.
    ///
    /// # Errors
    /// A file has a name that was never made.
    pub fn ground(&self) -> Checked<Ground> {
        let mut ground = Ground::default();
        match self {
            Self::Volume(found) => {
                ground.names = names_of(found)?;
                let files = found.files.values();
                ground.left = files.map(|(ino, content)| (*ino, content.clone())).collect();
                let bad = found.unreadable.iter();
                let blocks = bad.flat_map(|(ino, blocks)| blocks.iter().map(|n| (*ino, *n as u64)));
                ground.decayed = blocks.collect();
            }
            Self::Image(bytes, _) => drop(ground.left.insert(IMAGE, bytes.clone())),
        }
        Ok(ground)
    }
}

/// Inodes by their names.
fn names_of(found: &Found) -> Checked<BTreeMap<At, u64>> {
    let letters: BTreeMap<Vec<u8>, At> = all_names().map(|at| (path(at), at)).collect();
    let at = |path: &Vec<u8>| {
        let at = letters.get(path).copied();
        at.ok_or_else(|| format!("{} was never made", path.escape_ascii()))
    };
    found.files.iter().map(|(path, (ino, _))| Ok((at(path)?, *ino))).collect()
}

/// What is known of one life.
#[derive(Clone, Copy)]
pub struct Judge<'a> {
    /// What came of it.
    pub ran: &'a Ran,
    /// Unit in which content is old or new, bytes: what the volume, or the disk, does not tear.
    pub block: u64,
}

impl Judge<'_> {
    /// Checks that the histories allow what a crash at this time leaves.
    ///
    /// # Errors
    /// What is wrong.
    pub fn of(&self, remains: &Remains, time: u64) -> Checked<()> {
        match remains {
            Remains::Volume(found) => self.volume(found, time),
            Remains::Image(bytes, _) => self.content(IMAGE, bytes, &BTreeSet::new(), (0, time)),
        }
    }

    /// Checks that the names are those of a prefix of an order, and the content of each file.
    fn volume(&self, found: &Found, time: u64) -> Checked<()> {
        let names = names_of(found)?;
        let (orders, now) = (&self.ran.orders, time + 1);
        let acked = self.ran.past.syncs.iter().filter(|sync| sync.end < now);
        let synced = acked.map(|sync| sync.begin).max().unwrap_or(0);
        let prefixes = orders.prefixes(synced, now);
        let is_known = |ino| orders.is_known(ino);
        let (all, none) = (&found.unreadable, BTreeSet::new());
        let bad = all.iter().flat_map(|(ino, blocks)| blocks.iter().map(|n| (*ino, *n as u64)));
        if let Some((ino, n)) = bad.into_iter().find(|at| !self.ran.past.had_decayed(*at, time)) {
            return Err(format!("block {n} of #{ino} cannot be read, and has not decayed"));
        }
        let mut why = None;
        for prefix in prefixes.iter().filter(|prefix| prefix.are(&names, is_known)) {
            let content = found.files.values().try_for_each(|(ino, content)| {
                let floor = prefix.floors.get(ino).copied().unwrap_or(0);
                let bad = all.get(ino).unwrap_or(&none);
                self.content(*ino, content, bad, (floor, time))
            });
            match content {
                Ok(()) => return Ok(()),
                Err(what) => why = Some(what),
            }
        }
        let may = || prefixes.iter().map(|names| format!("{:?}", names.entries));
        Err(why.unwrap_or_else(|| {
            let may: Vec<String> = may().take(8).collect();
            format!(
                "at {time}, synced at {synced}: the names are {names:?}, may be {}",
                may.join(" or ")
            )
        }))
    }

    /// Checks the content of one file. Changes from before `floor` must be there: a rename promises
    /// that. `bad` are blocks that could not be read.
    fn content(
        &self,
        ino: u64,
        bytes: &[u8],
        bad: &BTreeSet<usize>,
        (floor, time): (u64, u64),
    ) -> Checked<()> {
        let past = &self.ran.past;
        let of = |sync: &&Synced| sync.of.is_none_or(|of| of == ino) && sync.end <= time;
        let syncs = || past.syncs.iter().filter(of);
        // After a loss the syncs of later openers cover the rest of the file, and the size that its
        // end has without what is lost.
        let has_lost = |sync: &&Synced| sync.lost.iter().any(|(of, _)| *of == ino);
        let whole = syncs().filter(|sync| !has_lost(sync)).map(|sync| sync.begin).max();
        let rest = syncs().map(|sync| sync.begin).max().unwrap_or(0);
        let synced = whole.unwrap_or(0);
        let later = syncs().filter(|sync| sync.begin > synced).flat_map(|sync| &sync.lost);
        let later = later.filter(|(of, _)| *of == ino).map(|(_, number)| *number);
        // Such a sync records that size before it ends, and the volume may do so once the file is
        // open again.
        let gaps = past.gaps_of(ino, (synced, time));
        let lost: BTreeSet<u64> = later.chain(gaps).collect();
        // By the contract, a direct write, and growth of the file since, may be missing after a
        // durable rename if the disk loses them.
        let floor = if past.has_lost_direct(ino, (synced, time)) { 0 } else { floor };
        let span = Span { from: synced.max(floor), to: time + 1, crashed: true };
        let unknown = FileHistory::default();
        let file = past.files.get(&ino).unwrap_or(&unknown);
        let checked = file.check_size(bytes.len() as u64, span);
        let readable = |number: u64| !bad.contains(&(number as usize));
        // What is lost behind the end of before is a hole.
        let zeros = |number: u64| {
            let part = bytes.chunks(self.block as usize).nth(number as usize);
            part.is_some_and(|part| part.iter().all(|byte| *byte == 0))
        };
        let is_older = |number| readable(number) && lost.contains(&number) && !zeros(number);
        let is_other = |number| readable(number) && !lost.contains(&number);
        let newer = Span { from: rest.max(floor), ..span };
        let checked = checked
            .and_then(|()| file.check_where(bytes, self.block, newer, is_other))
            .and_then(|()| file.check_where(bytes, self.block, span, is_older));
        let since = format!("synced {synced}, renamed {floor}");
        checked.map_err(|what| format!("#{ino}, at {time}, {since}: {what}"))
    }
}

#[cfg(test)]
mod tests;
