//! Listings while entries come, go and are renamed.
//!
//! No locks.

use super::subject::{Case, Subject, case, name, new, refused};
use forebay_base::task::block_on;
use forebay_base::world::split_mix;
use forebay_base::{ErrorKind, Result};
use forebay_vfs::types::{Cookie, FileKind, Ino, RenameFlags};
use std::collections::BTreeMap;

pub const CASES: &[Case] = &[
    case("f4_what_stays_is_listed_once", stays),
    case("f4_a_listing_ends", ends),
    case("f4_any_number_is_a_cookie", any_cookie),
    Case { is_large: true, ..case("f4_a_hundred_thousand_entries", large) },
];

/// Entries that stay.
const STAY: usize = 150;

fn stays(s: &Subject) -> Result<()> {
    s.mkdir("d")?;
    let dir = s.ino("d")?;
    let mut comers: Vec<String> = Vec::new();
    for n in 0..STAY {
        s.file(&format!("d/stays{n}"))?;
    }
    let mut rng = 11;
    for round in 0..30 {
        let mut seen: BTreeMap<Box<[u8]>, u32> = BTreeMap::new();
        let (mut after, mut serial) = (Cookie::START, 0);
        loop {
            let batch = block_on(s.fs.readdir(dir, after, 1 + split_mix(&mut rng) as usize % 7))?;
            let Some(last) = batch.last() else { break };
            after = last.cookie;
            for entry in batch {
                *seen.entry(entry.name).or_default() += 1;
            }
            for _ in 0..split_mix(&mut rng) % 4 {
                serial += 1;
                disturb(s, dir, &mut comers, &mut rng, &format!("comes{round}-{serial}"))?;
            }
        }
        for n in 0..STAY {
            let times = seen.get(format!("stays{n}").as_bytes()).copied();
            assert_eq!(times, Some(1), "F4: stays{n} in round {round}");
        }
    }
    s.tree();
    Ok(())
}

/// Makes, removes or renames an entry that is not among those that stay.
fn disturb(
    s: &Subject,
    dir: Ino,
    comers: &mut Vec<String>,
    rng: &mut u64,
    fresh: &str,
) -> Result<()> {
    let at = split_mix(rng) as usize % comers.len().max(1);
    match split_mix(rng) % 4 {
        0 if !comers.is_empty() => {
            block_on(s.fs.unlink(dir, name(&comers.swap_remove(at))))?;
        }
        1 if !comers.is_empty() => {
            let from = std::mem::replace(&mut comers[at], fresh.to_string());
            let flags = RenameFlags::NOREPLACE;
            block_on(s.fs.rename(dir, name(&from), dir, name(fresh), flags))?;
        }
        _ => {
            block_on(s.fs.mknod(dir, name(fresh), &new(FileKind::File)))?;
            comers.push(fresh.to_string());
        }
    }
    Ok(())
}

/// A caller that renames everything that a listing returns must reach its end all the same.
fn ends(s: &Subject) -> Result<()> {
    s.mkdir("d")?;
    let dir = s.ino("d")?;
    for n in 0..STAY {
        s.file(&format!("d/{n}"))?;
    }
    let (mut after, mut returned) = (Cookie::START, 0);
    loop {
        let batch = block_on(s.fs.readdir(dir, after, 1))?;
        let Some(entry) = batch.into_iter().next() else { break };
        after = entry.cookie;
        returned += 1;
        assert!(returned < 100 * STAY, "F4: a listing that goes on and on");
        let old = forebay_vfs::name::Name::new(&entry.name)?;
        let fresh = format!("again{returned}");
        block_on(s.fs.rename(dir, old, dir, name(&fresh), RenameFlags::empty()))?;
    }
    assert!(returned >= STAY, "F4: {returned} of {STAY} listed");
    Ok(())
}

fn any_cookie(s: &Subject) -> Result<()> {
    for n in 0..40 {
        s.file(&format!("{n}"))?;
    }
    let all = block_on(s.fs.readdir(Ino::ROOT, Cookie::START, 100))?;
    assert_eq!(all.len(), 40, "F4: one batch holds all");
    let mut asked = vec![1, 15, 16, u64::MAX, i64::MAX as u64];
    asked.extend(all.iter().flat_map(|e| [e.cookie.0 - 1, e.cookie.0, e.cookie.0 + 1]));
    for after in asked {
        let got = block_on(s.fs.readdir(Ino::ROOT, Cookie(after), 100))?;
        let rest: Vec<_> = all.iter().filter(|e| e.cookie.0 > after).cloned().collect();
        assert_eq!(got, rest, "F4: after {after}");
    }
    assert!(all.iter().all(|e| e.cookie.0 <= i64::MAX as u64), "F4: cookies fit into an offset");
    Ok(())
}

/// Entries of a large directory. Every third one stays.
const MANY: usize = 100_000;

fn large(s: &Subject) -> Result<()> {
    let dir = s.mkdir("d")?.ino;
    let one = s.file("one")?.ino;
    // Links of few inodes: the test needs many entries, not many inodes.
    let mut inodes = vec![one];
    for n in 0..MANY {
        let (text, at) = (format!("entry{n}"), n % 40);
        if n % 4000 == 0 {
            block_on(s.fs.syncfs())?;
        }
        match inodes.get(at) {
            Some(ino) => drop(block_on(s.fs.link(*ino, dir, name(&text)))?),
            None => inodes.push(block_on(s.fs.mknod(dir, name(&text), &new(FileKind::File)))?.ino),
        }
    }
    let (mut seen, mut after, mut rng, mut changed) = (vec![0u8; MANY], Cookie::START, 5, 0);
    loop {
        let batch = block_on(s.fs.readdir(dir, after, 1000))?;
        let Some(last) = batch.last() else { break };
        after = last.cookie;
        for entry in &batch {
            let text = str::from_utf8(&entry.name).unwrap_or_default();
            let number = text.strip_prefix("entry").and_then(|n| n.parse::<usize>().ok());
            number.into_iter().for_each(|n| seen[n] += 1);
        }
        block_on(s.fs.syncfs())?;
        for _ in 0..300 {
            changed += change_many(s, dir, one, split_mix(&mut rng) as usize % MANY)?;
        }
    }
    assert!(changed > MANY / 10, "{changed} entries came and went meanwhile");
    for (n, seen) in seen.iter().enumerate() {
        assert!(*seen <= 1 && (n % 3 > 0 || *seen == 1), "F4: entry{n} is listed {seen} times");
    }
    let found = |n: usize| block_on(s.fs.lookup(dir, name(&format!("entry{n}"))));
    assert_eq!(found(99_999)?.ino, inodes[99_999 % 40], "F1: one of many");
    refused(found(MANY), ErrorKind::NotFound, "F1: one of many that is not there");
    s.empty_many(dir)?;
    s.rmdir("d")
}

/// Removes or renames an entry that need not stay. If it was removed before, makes and removes
/// another one. Returns how many entries have changed.
fn change_many(s: &Subject, dir: Ino, one: Ino, n: usize) -> Result<usize> {
    let (text, other) = (format!("entry{n}"), format!("other{n}"));
    match n % 3 {
        0 => return Ok(0),
        1 => match block_on(s.fs.unlink(dir, name(&text))) {
            Ok(()) => {}
            Err(e) if e.kind() == ErrorKind::NotFound => {
                block_on(s.fs.link(one, dir, name(&other)))?;
                block_on(s.fs.unlink(dir, name(&other)))?;
            }
            Err(e) => return Err(e),
        },
        _ => match block_on(s.fs.rename(dir, name(&text), dir, name(&other), RenameFlags::empty()))
        {
            Ok(()) => {}
            Err(e) if e.kind() == ErrorKind::NotFound => return Ok(0),
            Err(e) => return Err(e),
        },
    }
    Ok(1)
}

impl Subject {
    /// Empties a large directory. Until then its removal is refused.
    fn empty_many(&self, dir: Ino) -> Result<()> {
        refused(self.rmdir("d"), ErrorKind::NotEmpty, "F1: with entries in it");
        loop {
            let batch = block_on(self.fs.readdir(dir, Cookie::START, 1000))?;
            block_on(self.fs.syncfs())?;
            if batch.is_empty() {
                return Ok(());
            }
            for entry in batch {
                block_on(self.fs.unlink(dir, forebay_vfs::name::Name::new(&entry.name)?))?;
            }
        }
    }
}
