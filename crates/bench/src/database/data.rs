//! The database, its hot set, and the files of the backup.
//!
//! Each row fills a page, so "a hot row" and "a hot page" are the same, and the page of a row is
//! known. The hot set is drawn from all leaf pages of the finished file, so it is scattered. It is
//! kept in a file next to the database.
//!
//! Invariant: D1 a row begins with its number, so a lookup that returns other bytes is detected.

use super::engine::{Connection, Statement, uri};
use crate::harness::image::{Rng, drop_file_cache};
use forebay_base::{Error, ErrorKind, Result};
use std::collections::HashSet;
use std::fs::File;
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::Path;

/// Size of a page of the database, bytes.
pub const PAGE: usize = 4096;
/// Size of a row: two rows do not fit in a page, and one needs no overflow page.
const ROW: usize = 3900;
/// Size of a file of the backup, bytes.
const FILE: u64 = 64 << 20;

/// A row and the page that it fills.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Hot {
    /// Number of the row.
    pub row: u32,
    /// Number of the page, from 0.
    pub page: u32,
}

/// Makes a database of `rows` rows with SQLite's own VFS, and drops it from the kernel's cache.
pub fn make_database(path: &Path, rows: u64) -> Result<()> {
    {
        let db = Connection::open(&uri(path, "vfs=unix"))?;
        db.run("PRAGMA page_size=4096; PRAGMA journal_mode=OFF; PRAGMA synchronous=OFF;")?;
        db.run("PRAGMA locking_mode=EXCLUSIVE; PRAGMA cache_size=-16384;")?;
        db.run("CREATE TABLE t(id INTEGER PRIMARY KEY, data BLOB NOT NULL); BEGIN")?;
        let insert = Statement::new(&db, "INSERT INTO t VALUES(?1, ?2)")?;
        let mut data: Vec<u8> = (0..ROW).map(|n| ((n * 131) >> 3) as u8).collect();
        for row in 1..=rows {
            data[..8].copy_from_slice(&row.to_le_bytes());
            insert.with(row as i64, &data, |_| ())?;
        }
        db.run("COMMIT")?;
    }
    drop_cached(path)
}

/// Whether `data` is the row of this number (D1).
#[inline]
pub fn is_row(data: &[u8], row: u64) -> bool {
    data.len() == ROW && data[..8] == row.to_le_bytes()
}

/// Writes a file back and drops it from the kernel's cache.
pub fn drop_cached(path: &Path) -> Result<()> {
    let file = File::open(path).and_then(|file| drop_file_cache(&file));
    file.map_err(|e| Error::from_io("drop from the cache", e).with_path(path))
}

/// Decodes a varint of SQLite's record format; returns the value and its length.
fn varint(bytes: &[u8]) -> Option<(u64, usize)> {
    let mut value = 0;
    for (n, byte) in bytes.iter().take(8).enumerate() {
        value = value << 7 | u64::from(byte & 0x7f);
        if byte & 0x80 == 0 {
            return Some((value, n + 1));
        }
    }
    None
}

/// The row of a table leaf page that holds one row; `None` for other pages.
fn row_of_leaf(page: &[u8]) -> Option<u32> {
    const LEAF_OF_TABLE: u8 = 0x0d;
    let cells = u16::from_be_bytes([page[3], page[4]]);
    if page[0] != LEAF_OF_TABLE || cells != 1 {
        return None;
    }
    let at = usize::from(u16::from_be_bytes([page[8], page[9]]));
    let (_payload, len) = varint(page.get(at..)?)?;
    let (row, _) = varint(page.get(at + len..)?)?;
    u32::try_from(row).ok()
}

/// Draws `count` leaf pages of the database.
pub fn draw_hot_set(path: &Path, count: usize, seed: u64) -> Result<Vec<Hot>> {
    let fail = |e| Error::from_io("draw the hot set", e).with_path(path);
    let file = File::open(path).map_err(fail)?;
    let pages = file.metadata().map_err(fail)?.len() / PAGE as u64;
    if (count as u64) * 10 > pages * 9 {
        let text = format!("{count} hot pages of {pages}");
        return Err(Error::new(ErrorKind::InvalidInput, "draw the hot set", text));
    }
    let (mut rng, mut seen, mut hot) = (Rng::new(seed), HashSet::new(), Vec::new());
    let mut bytes = [0; PAGE];
    while hot.len() < count {
        let page = 1 + rng.below(pages - 1);
        if !seen.insert(page) {
            continue;
        }
        file.read_exact_at(&mut bytes, page * PAGE as u64).map_err(fail)?;
        if let Some(row) = row_of_leaf(&bytes) {
            hot.push(Hot { row, page: page as u32 });
        }
    }
    drop_cached(path)?;
    Ok(hot)
}

/// Writes a hot set to a file.
pub fn save_hot_set(path: &Path, hot: &[Hot]) -> Result<()> {
    let bytes: Vec<u8> = hot
        .iter()
        .flat_map(|hot| [hot.row.to_le_bytes(), hot.page.to_le_bytes()])
        .flatten()
        .collect();
    std::fs::write(path, bytes).map_err(|e| Error::from_io("write", e).with_path(path))
}

/// Reads a hot set from a file.
pub fn load_hot_set(path: &Path) -> Result<Vec<Hot>> {
    let bytes = std::fs::read(path).map_err(|e| Error::from_io("read", e).with_path(path))?;
    let number = |b: &[u8]| u32::from_le_bytes([b[0], b[1], b[2], b[3]]);
    Ok(bytes
        .chunks_exact(8)
        .map(|pair| Hot { row: number(pair), page: number(&pair[4..]) })
        .collect())
}

/// Writes files of `bytes` bytes in all to the new directory `at`, without zeros.
pub fn make_files(at: &Path, bytes: u64) -> Result<()> {
    let fail = |e| Error::from_io("write files", e).with_path(at);
    std::fs::create_dir(at).map_err(fail)?;
    let mut chunk: Vec<u8> = (0..1_u32 << 20).map(|n| ((n * 131) >> 3) as u8).collect();
    for n in 0..bytes.div_ceil(FILE) {
        let mut file = File::create(at.join(format!("part-{n:04}"))).map_err(fail)?;
        for at in 0..FILE.min(bytes - n * FILE) >> 20 {
            chunk[..8].copy_from_slice(&(n << 32 | at).to_le_bytes());
            file.write_all(&chunk).map_err(fail)?;
        }
        drop_file_cache(&file).map_err(fail)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hot_set_pages_hold_their_rows() {
        let dir = std::env::temp_dir().join(format!("forebay-data-{}", std::process::id()));
        std::fs::create_dir(&dir).unwrap();
        let path = dir.join("t.db");
        make_database(&path, 500).unwrap();
        let size = std::fs::metadata(&path).unwrap().len();
        assert!((500..510).contains(&(size / PAGE as u64)), "a row a page: {size}");
        let hot = draw_hot_set(&path, 200, 3).unwrap();
        let rows: HashSet<u32> = hot.iter().map(|hot| hot.row).collect();
        assert_eq!(rows.len(), 200, "drawn once each");
        assert!(rows.iter().any(|row| *row > 400) && rows.iter().any(|row| *row < 100));
        let file = File::open(&path).unwrap();
        for hot in &hot {
            let mut page = [0; PAGE];
            file.read_exact_at(&mut page, u64::from(hot.page) * PAGE as u64).unwrap();
            // SQLite puts the first cell at the end of the page.
            assert!(is_row(&page[PAGE - ROW..], u64::from(hot.row)), "D1: {hot:?}");
        }
        save_hot_set(&dir.join("hot"), &hot).unwrap();
        assert_eq!(load_hot_set(&dir.join("hot")).unwrap(), hot);
        assert!(draw_hot_set(&path, 480, 3).is_err(), "nearly all pages are no hot set");
        std::fs::remove_dir_all(&dir).unwrap();
    }

    #[test]
    fn varints_are_those_of_sqlite() {
        assert_eq!(varint(&[0x7f]), Some((127, 1)));
        assert_eq!(varint(&[0x81, 0x00]), Some((128, 2)));
        assert_eq!(varint(&[0x80 | 2, 0x80 | 3, 4]), Some(((2 << 14) + (3 << 7) + 4, 3)));
        assert_eq!(varint(&[0xff; 3]), None);
        assert_eq!(row_of_leaf(&[0x05; PAGE]), None, "an inner page");
    }
}
