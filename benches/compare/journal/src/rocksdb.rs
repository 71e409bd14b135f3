//! RocksDB, by its C interface, from the library of the system where there is one (`librocksdb.so`): compiling it takes longer than
//! everything else together.

use std::ffi::{CStr, CString, c_char, c_uchar, c_void};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::ptr::null_mut;
use std::sync::OnceLock;

use crate::store::{Contestant, Error, Store, When, Worker, for_a_while, value};

pub const ROCKSDB: Contestant = Contestant {
    name: "RocksDB",
    setup: "WriteOptions::sync, write batches; recycle_log_file_num = 4, so that a sync finds blocks that are there",
    make,
};

type Handle = *mut c_void;
type Failure = *mut *mut c_char;

/// The functions of `rocksdb/c.h` that are used.
struct Api {
    options_create: unsafe extern "C" fn() -> Handle,
    options_set_create_if_missing: unsafe extern "C" fn(Handle, c_uchar),
    options_set_recycle_log_file_num: unsafe extern "C" fn(Handle, usize),
    open: unsafe extern "C" fn(Handle, *const c_char, Failure) -> Handle,
    close: unsafe extern "C" fn(Handle),
    writeoptions_create: unsafe extern "C" fn() -> Handle,
    writeoptions_set_sync: unsafe extern "C" fn(Handle, c_uchar),
    readoptions_create: unsafe extern "C" fn() -> Handle,
    put: unsafe extern "C" fn(Handle, Handle, *const u8, usize, *const u8, usize, Failure),
    get: unsafe extern "C" fn(Handle, Handle, *const u8, usize, *mut usize, Failure) -> *mut c_char,
    free: unsafe extern "C" fn(*mut c_void),
    flush_wal: unsafe extern "C" fn(Handle, c_uchar, Failure),
    writebatch_create: unsafe extern "C" fn() -> Handle,
    writebatch_put: unsafe extern "C" fn(Handle, *const u8, usize, *const u8, usize),
    writebatch_destroy: unsafe extern "C" fn(Handle),
    write: unsafe extern "C" fn(Handle, Handle, Handle, Failure),
}

/// The library, if the system has it.
fn api() -> Option<&'static Api> {
    static API: OnceLock<Option<Api>> = OnceLock::new();
    API.get_or_init(load).as_ref()
}

/// Whether the system has the library.
pub fn is_there() -> bool {
    api().is_some()
}

fn load() -> Option<Api> {
    let names = [c"librocksdb.so", c"librocksdb.so.9", c"librocksdb.so.8", c"librocksdb.so.7.8"];
    // SAFETY: runs what the library does when it is loaded, as any program that is linked to it.
    let library =
        names.iter().map(|name| unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW) }).find(|l| !l.is_null())?;
    macro_rules! function {
        ($name:ident) => {{
            let name = concat!("rocksdb_", stringify!($name), "\0");
            // SAFETY: the library is never closed; the name ends with a zero.
            let found = unsafe { libc::dlsym(library, name.as_ptr().cast()) };
            if found.is_null() {
                return None;
            }
            // SAFETY: this is the function's type in `rocksdb/c.h`, which only ever adds functions.
            unsafe { std::mem::transmute(found) }
        }};
    }
    Some(Api {
        options_create: function!(options_create),
        options_set_create_if_missing: function!(options_set_create_if_missing),
        options_set_recycle_log_file_num: function!(options_set_recycle_log_file_num),
        open: function!(open),
        close: function!(close),
        writeoptions_create: function!(writeoptions_create),
        writeoptions_set_sync: function!(writeoptions_set_sync),
        readoptions_create: function!(readoptions_create),
        put: function!(put),
        get: function!(get),
        free: function!(free),
        flush_wal: function!(flush_wal),
        writebatch_create: function!(writebatch_create),
        writebatch_put: function!(writebatch_put),
        writebatch_destroy: function!(writebatch_destroy),
        write: function!(write),
    })
}

/// Calls with a place for a message, and turns a message into an error.
fn checked<T>(call: impl FnOnce(Failure) -> T) -> Result<T, Error> {
    let mut message = null_mut();
    let result = call(&mut message);
    if message.is_null() {
        return Ok(result);
    }
    // SAFETY: where there is a message it is a string that ends with a zero. It is not freed: the program ends with it.
    Err(unsafe { CStr::from_ptr(message) }.to_string_lossy().into_owned().into())
}

/// An open database; its options live as long as the program.
struct Rocks {
    api: &'static Api,
    db: Handle,
    synced: Handle,
    lazily: Handle,
    reading: Handle,
}

// SAFETY: a database and options that nobody changes may be used by any thread at a time.
unsafe impl Send for Rocks {}
// SAFETY: as above.
unsafe impl Sync for Rocks {}

fn make(folder: &Path, _: When) -> Result<Box<dyn Store>, Error> {
    let api = api().ok_or("there is no librocksdb.so")?;
    let path = CString::new(folder.join("db").as_os_str().as_bytes())?;
    // SAFETY: calls of the library in the order that its header asks for.
    unsafe {
        let options = (api.options_create)();
        (api.options_set_create_if_missing)(options, 1);
        (api.options_set_recycle_log_file_num)(options, 4);
        let db = checked(|failure| (api.open)(options, path.as_ptr(), failure))?;
        let synced = (api.writeoptions_create)();
        (api.writeoptions_set_sync)(synced, 1);
        let (lazily, reading) = ((api.writeoptions_create)(), (api.readoptions_create)());
        Ok(Box::new(Rocks { api, db, synced, lazily, reading }))
    }
}

impl Drop for Rocks {
    fn drop(&mut self) {
        // SAFETY: nobody uses it any more.
        unsafe { (self.api.close)(self.db) };
    }
}

impl Rocks {
    fn put(&self, options: Handle, key: u64, value: &[u8]) {
        let key = key.to_be_bytes();
        // SAFETY: the database is open; the library copies key and value.
        let put = |failure| unsafe {
            (self.api.put)(self.db, options, key.as_ptr(), key.len(), value.as_ptr(), value.len(), failure)
        };
        checked(put).expect("RocksDB puts");
    }
}

impl Store for Rocks {
    fn worker(&self) -> Box<dyn Worker + '_> {
        Box::new(self)
    }
    fn updates(&self, keys: &mut dyn Iterator<Item = (u64, u64)>) {
        for_a_while(keys, |key, value| self.put(self.lazily, key, &value));
        // SAFETY: the database is open.
        checked(|failure| unsafe { (self.api.flush_wal)(self.db, 1, failure) }).expect("RocksDB flushes");
    }
}

impl Worker for &Rocks {
    fn insert(&mut self, key: u64) {
        self.put(self.synced, key, &value(key, 0));
    }
    fn transaction(&mut self, keys: &[u64], turn: u64) {
        // SAFETY: the batch copies keys and values, and is destroyed after its last use.
        unsafe {
            let batch = (self.api.writebatch_create)();
            for key in keys {
                let (bytes, value) = (key.to_be_bytes(), value(*key, turn));
                (self.api.writebatch_put)(batch, bytes.as_ptr(), bytes.len(), value.as_ptr(), value.len());
            }
            let written = checked(|failure| (self.api.write)(self.db, self.synced, batch, failure));
            (self.api.writebatch_destroy)(batch);
            written.expect("RocksDB writes");
        }
    }
    fn get(&mut self, key: u64) -> Option<Vec<u8>> {
        let (key, mut len) = (key.to_be_bytes(), 0);
        // SAFETY: the database is open; what is found has `len` bytes, and is freed after it was copied.
        unsafe {
            let get = |failure| (self.api.get)(self.db, self.reading, key.as_ptr(), key.len(), &mut len, failure);
            let found = checked(get).expect("RocksDB gets");
            if found.is_null() {
                return None;
            }
            let value = std::slice::from_raw_parts(found.cast::<u8>(), len).to_vec();
            (self.api.free)(found.cast());
            Some(value)
        }
    }
}
