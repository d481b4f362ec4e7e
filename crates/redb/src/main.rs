//! A program on redb and Forebay: counts in a database, one commit for each number.
//!
//! `forebay-redb write FILE` commits and prints each number whose commit has returned, until it is
//! killed. `forebay-redb judge FILE` opens the database, checks every number and prints the last.
//! With a third word, the path of a volume's image, FILE is a file of that volume, which `write`
//! makes if it is missing.
//!
//! No locks.

#![forbid(unsafe_code)]

use forebay::{Cache, CacheConfig, CreateVolume, OpenOptions, Volume, VolumeOptions};
use forebay_redb::Backend;
use redb::{Database, ReadableDatabase, ReadableTable, ReadableTableMetadata, TableDefinition};
use std::error::Error;
use std::io::Write;
use std::path::Path;

type Done<T> = Result<T, Box<dyn Error>>;

/// A row for each number: its key and its bytes follow from the number, and keys are far apart.
const ROWS: TableDefinition<'_, u64, &[u8]> = TableDefinition::new("rows");
/// The last number, which each commit overwrites.
const LAST: TableDefinition<'_, (), u64> = TableDefinition::new("last");

/// Bytes of a new volume.
const VOLUME_BYTES: u64 = 256 << 20;

/// A key far from that of the number before.
fn key(number: u64) -> u64 {
    number.wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

/// Between 0 and 2999 bytes.
fn content(number: u64) -> Vec<u8> {
    vec![number as u8; (key(number) % 3000) as usize]
}

/// Opens the database with caches of a few pages, so that redb's writes reach the disk before their
/// commit, too.
fn opened(name: &str, image: Option<&String>) -> Done<(Database, Option<Volume>)> {
    let cache = Cache::new(CacheConfig::with_budget(16 << 20))?;
    let mut options = OpenOptions::read_write();
    options.create(true);
    let volume = match image {
        Some(image) => {
            if !Path::new(image).exists() {
                Volume::create(image, &CreateVolume::default().size(VOLUME_BYTES))?;
            }
            Some(cache.open_volume(image, &VolumeOptions::default())?)
        }
        None => None,
    };
    let file = match &volume {
        Some(volume) => options.open_in(volume, name)?,
        None => options.open(&cache, name)?,
    };
    let db = Database::builder().set_cache_size(256 << 10).create_with_backend(Backend::new(file));
    Ok((db?, volume))
}

fn last(db: &Database) -> Done<u64> {
    let write = db.begin_write()?;
    let number = write.open_table(LAST)?.get(())?.map_or(0, |number| number.value());
    write.open_table(ROWS)?;
    write.commit()?;
    Ok(number)
}

fn write(db: &Database) -> Done<()> {
    let first = last(db)? + 1;
    for number in first.. {
        let write = db.begin_write()?;
        write.open_table(ROWS)?.insert(key(number), content(number).as_slice())?;
        write.open_table(LAST)?.insert((), number)?;
        write.commit()?;
        writeln!(std::io::stdout(), "{number}")?;
    }
    Ok(())
}

fn judge(db: &mut Database) -> Done<()> {
    if !db.check_integrity()? {
        return Err("the database had to be repaired after it was opened".into());
    }
    let number = last(db)?;
    let rows = db.begin_read()?.open_table(ROWS)?;
    if rows.len()? != number {
        return Err(format!("{} rows, and the last number is {number}", rows.len()?).into());
    }
    for number in 1..=number {
        let found = rows.get(key(number))?.map(|row| row.value() == content(number));
        if found != Some(true) {
            return Err(format!("row {number} is {found:?}").into());
        }
    }
    writeln!(std::io::stdout(), "{number}")?;
    Ok(())
}

fn main() -> Done<()> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let [what, name, image @ ..] = words.as_slice() else {
        return Err("usage: forebay-redb write|judge FILE [IMAGE]".into());
    };
    let (mut db, volume) = opened(name, image.first())?;
    match what.as_str() {
        "write" => write(&db)?,
        "judge" => judge(&mut db)?,
        _ => return Err(format!("{what}: neither write nor judge").into()),
    }
    drop(db);
    volume.map_or(Ok(()), |volume| volume.close().map_err(Box::from))
}
