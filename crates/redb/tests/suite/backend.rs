//! What redb asks of a back end, on a host file and on a file of a volume.
//!
//! No locks.

use forebay::{Cache, CacheConfig, CreateVolume, File, OpenOptions, Volume, VolumeOptions};
use forebay_redb::Backend;
use redb::{Database, ReadableDatabase, ReadableTableMetadata, StorageBackend, TableDefinition};
use std::path::PathBuf;

const TABLE: TableDefinition<'_, u64, &[u8]> = TableDefinition::new("t");

/// A folder, removed at the end, and openers of a file of each kind in it.
struct Fixture {
    folder: PathBuf,
    cache: Cache,
    volume: Option<Volume>,
}

impl Fixture {
    fn new(name: &str, in_volume: bool) -> Self {
        let id = std::process::id();
        let folder = std::env::temp_dir().join(format!("forebay-redb-{name}-{in_volume}-{id}"));
        let _old = std::fs::remove_dir_all(&folder);
        std::fs::create_dir_all(&folder).unwrap();
        let cache = Cache::new(CacheConfig::with_budget(16 << 20)).unwrap();
        let image = folder.join("v.img");
        let volume = in_volume.then(|| {
            Volume::create(&image, &CreateVolume::default().size(128 << 20)).unwrap();
            cache.open_volume(&image, &VolumeOptions::default()).unwrap()
        });
        Self { folder, cache, volume }
    }

    fn open(&self) -> File {
        let mut options = OpenOptions::read_write();
        options.create(true);
        match &self.volume {
            Some(volume) => options.open_in(volume, "/db").unwrap(),
            None => options.open(&self.cache, self.folder.join("db")).unwrap(),
        }
    }
}

impl Drop for Fixture {
    fn drop(&mut self) {
        if let Some(volume) = self.volume.take() {
            volume.close().unwrap();
        }
        let _left = std::fs::remove_dir_all(&self.folder);
    }
}

/// The rules in the comments of redb's trait.
fn keeps_rules(in_volume: bool) {
    let fixture = Fixture::new("rules", in_volume);
    let backend = Backend::new(fixture.open());
    assert_eq!(backend.len().unwrap(), 0);
    backend.set_len(10_000).unwrap();
    let mut bytes = [1; 10_000];
    backend.read(0, &mut bytes).unwrap();
    assert!(bytes.iter().all(|byte| *byte == 0), "a new range is zero");
    backend.write(5_000, &[7; 5_000]).unwrap();
    backend.set_len(6_000).unwrap();
    backend.set_len(10_000).unwrap();
    backend.read(4_000, &mut bytes[..6_000]).unwrap();
    assert_eq!(bytes[..1_000], [0; 1_000]);
    assert_eq!(bytes[1_000..2_000], [7; 1_000]);
    assert_eq!(bytes[2_000..6_000], [0; 4_000], "what was cut off does not come back");
    assert!(backend.read(9_999, &mut bytes[..2]).is_err(), "a read over the end fails");
    assert!(backend.read(1 << 40, &mut bytes[..1]).is_err());
    backend.sync_data().unwrap();
    backend.close().unwrap();
    assert!(backend.len().is_err() && backend.write(0, &[1]).is_err(), "it is closed");
    assert_eq!(fixture.open().size().unwrap(), 10_000);
}

#[test]
fn host_file_keeps_rules_of_a_back_end() {
    keeps_rules(false);
}

#[test]
fn volume_keeps_rules_of_a_back_end() {
    keeps_rules(true);
}

/// Its commits would succeed, and the database would be gone.
#[test]
fn file_that_appends_is_refused() {
    let fixture = Fixture::new("append", false);
    let mut options = OpenOptions::read_write();
    let file = options.create(true).append(true).open(&fixture.cache, fixture.folder.join("db"));
    let backend = Backend::new(file.unwrap());
    assert_eq!(backend.len().unwrap_err().kind(), std::io::ErrorKind::InvalidInput);
    assert!(backend.write(0, &[1]).is_err());
    assert!(Database::builder().create_with_backend(backend).is_err());
    assert_eq!(fixture.open().size().unwrap(), 0);
}

/// Commits of several sizes, an abort, a savepoint, compaction; then the same content after each
/// opening, and no repair.
fn keeps_content(in_volume: bool) {
    let fixture = Fixture::new("content", in_volume);
    let create = || Database::builder().create_with_backend(Backend::new(fixture.open())).unwrap();
    let db = create();
    for round in 0..4_u64 {
        let write = db.begin_write().unwrap();
        let value = vec![round as u8; 1 << (4 + 3 * round)];
        for n in 0..200 {
            write.open_table(TABLE).unwrap().insert(round * 1_000 + n, value.as_slice()).unwrap();
        }
        write.commit().unwrap();
    }
    let write = db.begin_write().unwrap();
    let savepoint = write.persistent_savepoint().unwrap();
    write.commit().unwrap();
    let write = db.begin_write().unwrap();
    write.delete_table(TABLE).unwrap();
    write.abort().unwrap();
    let write = db.begin_write().unwrap();
    write.open_table(TABLE).unwrap().retain(|key, _| key < 1_000).unwrap();
    write.commit().unwrap();
    let mut write = db.begin_write().unwrap();
    let found = write.get_persistent_savepoint(savepoint).unwrap();
    write.restore_savepoint(&found).unwrap();
    write.delete_persistent_savepoint(savepoint).unwrap();
    write.commit().unwrap();
    drop(db);
    let mut db = create();
    db.compact().unwrap();
    drop(db);
    let mut db = create();
    assert!(db.check_integrity().unwrap());
    let table = db.begin_read().unwrap().open_table(TABLE).unwrap();
    assert_eq!(table.len().unwrap(), 800);
    for round in 0..4_u64 {
        let row = table.get(round * 1_000 + 199).unwrap().unwrap();
        assert_eq!(row.value(), vec![round as u8; 1 << (4 + 3 * round)]);
    }
}

#[test]
fn host_file_keeps_content_over_openings() {
    keeps_content(false);
}

#[test]
fn volume_keeps_content_over_openings() {
    keeps_content(true);
}

/// redb cannot lock ranges here, so a second process is refused at the file.
#[test]
fn host_file_second_cache_is_refused() {
    let fixture = Fixture::new("second", false);
    let backend = Backend::new(fixture.open());
    let other = Cache::new(CacheConfig::with_budget(16 << 20)).unwrap();
    let path = fixture.folder.join("db");
    assert!(OpenOptions::read_write().open(&other, &path).is_err());
    backend.close().unwrap();
    OpenOptions::read_write().open(&other, &path).unwrap();
}
