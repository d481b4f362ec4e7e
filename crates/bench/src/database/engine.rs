//! SQLite and Forebay's C library in this process: a connection, a prepared statement, and files on
//! the cache that the VFS uses.
//!
//! Unsafe: calls of C. The pointer of a connection, statement or file is valid from its opening to
//! the drop of its owner. A statement holds its connection, so it is dropped first. A connection is
//! neither `Send` nor `Sync`, so one thread uses it; any thread may use a file.

use forebay_base::{Error, ErrorKind, Result};
use forebay_c as _;
use libsqlite3_sys as sqlite;
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::path::Path;
use std::ptr::{null, null_mut};
use std::rc::Rc;

/// `FBY_RWF_DONTCACHE` of `forebay.h`.
pub const UNCACHED: c_int = 0x80;

/// `fby_residency_info` of `forebay.h`.
#[repr(C)]
#[derive(Default)]
struct ResidencyInfo {
    block_size: u64,
    total_blocks: u64,
    resident_blocks: u64,
    dirty_blocks: u64,
    referenced_blocks: u64,
}

unsafe extern "C" {
    fn forebay_sqlite_register(make_default: c_int) -> c_int;
    fn forebay_sqlite_cache() -> *mut c_void;
    fn fby_open(
        cache: *mut c_void,
        path: *const c_char,
        flags: c_int,
        how: *const c_void,
        how_size: usize,
        file: *mut *mut c_void,
    ) -> c_int;
    fn fby_close(file: *mut c_void) -> c_int;
    fn fby_preadv2(
        file: *mut c_void,
        iov: *const libc::iovec,
        iovcnt: c_int,
        offset: i64,
        flags: c_int,
    ) -> i64;
    fn fby_residency(
        file: *mut c_void,
        offset: i64,
        len: i64,
        info: *mut ResidencyInfo,
        info_size: usize,
    ) -> i64;
    fn fby_last_error() -> *const c_char;
}

fn c_string(path: &Path) -> Result<CString> {
    CString::new(path.as_os_str().as_encoded_bytes())
        .map_err(|_| Error::new(ErrorKind::InvalidInput, "open", "a name with a zero byte"))
}

/// A URI for SQLite: `file:PATH?vfs=VFS`, with the special characters of URIs escaped.
pub fn uri(path: &Path, parameters: &str) -> String {
    let mut out = String::from("file:");
    for c in path.to_string_lossy().chars() {
        match c {
            '%' => out.push_str("%25"),
            '?' => out.push_str("%3f"),
            '#' => out.push_str("%23"),
            c => out.push(c),
        }
    }
    out + "?" + parameters
}

/// Registers the VFS `forebay` with SQLite.
pub fn register() -> Result<()> {
    // SAFETY: the function takes no pointer.
    match unsafe { forebay_sqlite_register(0) } {
        sqlite::SQLITE_OK => Ok(()),
        code => Err(Error::new(ErrorKind::Io, "register the VFS", format!("SQLite code {code}"))),
    }
}

/// A connection.
pub struct Connection(*mut sqlite::sqlite3);

impl Connection {
    /// Opens a database by its URI.
    pub fn open(uri: &str) -> Result<Rc<Self>> {
        let name = c_string(Path::new(uri))?;
        let mut db = null_mut();
        let flags =
            sqlite::SQLITE_OPEN_READWRITE | sqlite::SQLITE_OPEN_CREATE | sqlite::SQLITE_OPEN_URI;
        // SAFETY: the name is a C string, and `db` a place for a pointer.
        let code = unsafe { sqlite::sqlite3_open_v2(name.as_ptr(), &mut db, flags, null()) };
        let this = Self(db);
        this.check("open a database", code).map_err(|e| e.with_path(uri)).map(|()| Rc::new(this))
    }

    /// Runs statements whose rows are ignored.
    pub fn run(&self, text: &str) -> Result<()> {
        let text = c_string(Path::new(text))?;
        // SAFETY: the connection is open. No callback is given; the error text is read from the
        // connection.
        let code =
            unsafe { sqlite::sqlite3_exec(self.0, text.as_ptr(), None, null_mut(), null_mut()) };
        self.check("run a statement", code)
    }

    fn check(&self, op: &'static str, code: c_int) -> Result<()> {
        if code == sqlite::SQLITE_OK {
            return Ok(());
        }
        // SAFETY: the connection is open, or a null pointer, for which SQLite returns a text, too.
        let text = unsafe { CStr::from_ptr(sqlite::sqlite3_errmsg(self.0)) };
        let text = format!("{} (SQLite code {code})", text.to_string_lossy());
        Err(Error::new(ErrorKind::Io, op, text))
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        // SAFETY: the connection is open, and no statement is left, since each holds the
        // connection. A null pointer is ignored.
        unsafe { sqlite::sqlite3_close(self.0) };
    }
}

/// A prepared statement.
pub struct Statement {
    statement: *mut sqlite::sqlite3_stmt,
    db: Rc<Connection>,
}

impl Statement {
    /// Prepares a statement.
    pub fn new(db: &Rc<Connection>, text: &str) -> Result<Self> {
        let text = c_string(Path::new(text))?;
        let mut statement = null_mut();
        // SAFETY: the connection is open, the text ends with a zero, `statement` is a place for a
        // pointer.
        let code = unsafe {
            sqlite::sqlite3_prepare_v2(db.0, text.as_ptr(), -1, &mut statement, null_mut())
        };
        let this = Self { statement, db: db.clone() };
        db.check("prepare a statement", code).map(|()| this)
    }

    /// Runs it with a number and, if not empty, bytes; passes the first column of the first row to
    /// `see`. False: there was no row.
    #[inline]
    pub fn with(&self, number: i64, bytes: &[u8], see: impl FnOnce(&[u8])) -> Result<bool> {
        // SAFETY: the statement is prepared; the bytes live until it is reset below.
        let code = unsafe {
            sqlite::sqlite3_bind_int64(self.statement, 1, number);
            if !bytes.is_empty() {
                let (data, len) = (bytes.as_ptr().cast(), bytes.len() as c_int);
                sqlite::sqlite3_bind_blob(self.statement, 2, data, len, sqlite::SQLITE_STATIC());
            }
            sqlite::sqlite3_step(self.statement)
        };
        if code == sqlite::SQLITE_ROW {
            // SAFETY: the statement is prepared; SQLite keeps the column's bytes until the reset
            // below. A column without bytes is a null pointer, for which none are read.
            unsafe {
                let data = sqlite::sqlite3_column_blob(self.statement, 0).cast::<u8>();
                let len = sqlite::sqlite3_column_bytes(self.statement, 0).max(0) as usize;
                see(if data.is_null() { &[] } else { std::slice::from_raw_parts(data, len) });
            }
        }
        // SAFETY: the statement is prepared.
        let reset = unsafe { sqlite::sqlite3_reset(self.statement) };
        self.db.check("run a statement", reset)?;
        Ok(code == sqlite::SQLITE_ROW)
    }
}

impl Drop for Statement {
    fn drop(&mut self) {
        // SAFETY: the statement is prepared, and finalized once. A null pointer is ignored.
        unsafe { sqlite::sqlite3_finalize(self.statement) };
    }
}

/// A file of the host, opened on the cache that the VFS uses.
pub struct CachedFile(*mut c_void);

// SAFETY: any thread may use a file of the library.
unsafe impl Send for CachedFile {}
// SAFETY: several threads may use a file at once.
unsafe impl Sync for CachedFile {}

impl CachedFile {
    /// Opens it for reading. The cache exists once a database is open.
    pub fn open(path: &Path) -> Result<Self> {
        let name = c_string(path)?;
        let mut file = null_mut();
        // SAFETY: the cache is open as long as the process, the name is a string, no `how` is
        // given, and `file` is a place for a pointer.
        let code = unsafe {
            let cache = forebay_sqlite_cache();
            fby_open(cache, name.as_ptr(), libc::O_RDONLY, null(), 0, &mut file)
        };
        if code < 0 { Err(last_error("open", code.into()).with_path(path)) } else { Ok(Self(file)) }
    }

    /// Reads at an offset; fewer bytes than requested only at the end of file.
    pub fn read_at(&self, buf: &mut [u8], offset: u64, flags: c_int) -> Result<usize> {
        let iov = libc::iovec { iov_base: buf.as_mut_ptr().cast(), iov_len: buf.len() };
        // SAFETY: the file is open; the vector is one buffer that this call alone uses.
        let got = unsafe { fby_preadv2(self.0, &iov, 1, offset as i64, flags) };
        usize::try_from(got).map_err(|_| last_error("read", got))
    }

    /// Whether the range is in the cache.
    pub fn is_resident(&self, offset: u64, len: u64) -> Result<bool> {
        let mut info = ResidencyInfo::default();
        // SAFETY: the file is open; the struct has the layout and the size that it is passed with.
        let done = unsafe {
            fby_residency(self.0, offset as i64, len as i64, &mut info, size_of_val(&info))
        };
        if done < 0 {
            return Err(last_error("residency", done));
        }
        Ok(info.total_blocks > 0 && info.resident_blocks == info.total_blocks)
    }
}

impl Drop for CachedFile {
    fn drop(&mut self) {
        // SAFETY: the file is open until now, and closed once. Nothing was written, so no error is
        // lost.
        unsafe { fby_close(self.0) };
    }
}

fn last_error(op: &'static str, code: i64) -> Error {
    // SAFETY: the library returns a string of this thread, which the next call may change.
    let text = unsafe { CStr::from_ptr(fby_last_error()) };
    let text = text.to_string_lossy().into_owned();
    Error::new(ErrorKind::Io, op, if text.is_empty() { format!("error {code}") } else { text })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn database_on_the_vfs_shares_its_cache_with_files() {
        register().unwrap();
        let dir = std::env::temp_dir().join(format!("forebay-engine-{}", std::process::id()));
        std::fs::create_dir(&dir).unwrap();
        let (path, other) = (dir.join("a?b%.db"), dir.join("other"));
        std::fs::write(&other, [7; 8192]).unwrap();
        {
            let db = Connection::open(&uri(&path, "vfs=forebay&budget=32M")).unwrap();
            db.run("CREATE TABLE t(id INTEGER PRIMARY KEY, data BLOB)").unwrap();
            let insert = Statement::new(&db, "INSERT INTO t VALUES(?1, ?2)").unwrap();
            assert!(!insert.with(5, b"five", |_| panic!("no row")).unwrap());
            let select = Statement::new(&db, "SELECT data FROM t WHERE id = ?1").unwrap();
            let mut seen = Vec::new();
            assert!(select.with(5, &[], |data| seen = data.to_vec()).unwrap());
            assert_eq!(seen, b"five");
            assert!(!select.with(6, &[], |_| panic!("no row")).unwrap());
            assert!(db.run("nonsense").unwrap_err().to_string().contains("syntax error"));
            let file = CachedFile::open(&other).unwrap();
            assert!(!file.is_resident(0, 4096).unwrap());
            let mut buf = [0; 4096];
            assert_eq!(file.read_at(&mut buf, 4096, UNCACHED).unwrap(), 4096);
            assert!(buf == [7; 4096] && !file.is_resident(4096, 4096).unwrap());
            assert_eq!(file.read_at(&mut buf, 0, 0).unwrap(), 4096);
            assert!(file.is_resident(0, 4096).unwrap());
            assert!(CachedFile::open(&dir.join("none")).is_err());
        }
        assert!(path.exists(), "the name has its odd characters");
        std::fs::remove_dir_all(&dir).unwrap();
    }
}
