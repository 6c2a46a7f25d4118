//! A store of the host's own functions.
//!
//! They block and do a batch at a time. The other way, where the host takes a batch and calls back when it is done, would need a right to touch
//! buffers that outlives the call, and rules for a host that calls back twice, late or never. Here a buffer is the host's for as long as its
//! function runs, whatever has become of the call that waits for it; a host whose store is asynchronous waits in the function, on a thread that is
//! there for that.
use crate::argument;
use crate::guard::Failure;
use crate::status::certkv_status::{CERTKV_NULL_POINTER, CERTKV_RESERVED};
use certkv::store::{Backend, Parts, StoreError, StoreKey};
use core::ffi::c_void;
use core::mem::offset_of;

/// Name of a record: 32 bytes that are as good as random. All of them tell it from others.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct certkv_store_key {
    /// The bytes.
    pub bytes: [u8; 32],
}

/// What a callback says of one item. Items are given with CERTKV_ITEM_FAILED: one that the callback does not set has failed.
pub type certkv_item_result = i32;
/// Done: the record is stored, is in its buffer, is there, is not there any more.
pub const CERTKV_ITEM_DONE: certkv_item_result = 0;
/// Not done; so is any number that is none of these. What is under the key is what was there, or of a put or a delete whose answer was lost, what it
/// should be.
pub const CERTKV_ITEM_FAILED: certkv_item_result = 1;
/// Of a get or an exists: there is no such record.
pub const CERTKV_ITEM_NOT_FOUND: certkv_item_result = 2;
/// Of a put: there is no room. The key has what it had.
pub const CERTKV_ITEM_FULL: certkv_item_result = 3;
/// Of a get: the record has more bytes than the buffer.
pub const CERTKV_ITEM_TOO_LARGE: certkv_item_result = 4;

/// A record to be stored in place of what is under its key: `head` and then `body`. It becomes visible whole or not at all.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct certkv_put_item {
    /// Its name.
    pub key: certkv_store_key,
    /// The first bytes of the record.
    pub head: *const c_void,
    /// How many.
    pub head_bytes: u64,
    /// The bytes behind them.
    pub body: *const c_void,
    /// How many.
    pub body_bytes: u64,
    /// Set by the callback: one of the CERTKV_ITEM values.
    pub result: certkv_item_result,
    /// Set by the callback, if it likes: a number for the text of an error, errno say.
    pub code: i32,
}

/// A record to be read.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct certkv_get_item {
    /// Its name.
    pub key: certkv_store_key,
    /// Where to, `head` and `body` one behind the other.
    pub buffer: *mut c_void,
    /// Bytes of the buffer: no record that was put under this key by this kind of cache has more.
    pub capacity: u64,
    /// Set by the callback: bytes of the record.
    pub bytes: u64,
    /// Set by the callback: one of the CERTKV_ITEM values.
    pub result: certkv_item_result,
    /// As of certkv_put_item.
    pub code: i32,
}

/// A record to be looked for, or to be deleted.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct certkv_key_item {
    /// Its name.
    pub key: certkv_store_key,
    /// Set by the callback: one of the CERTKV_ITEM values. To delete a record that is not there is CERTKV_ITEM_DONE.
    pub result: certkv_item_result,
    /// As of certkv_put_item.
    pub code: i32,
}

/// Functions of a store. Set all of it to 0 bytes, then `struct_size`, `context` and the functions.
///
/// Each does a batch of `n` items, at least one, and blocks until it is done. The items are the library's; they and what they point to may be read,
/// and what is said to be set may be set, until the function returns, also where the call that wanted it has given up waiting.
///
/// Threads. They are called on threads of the library, several at once, never on one of the host's. No lock of the library is held, so they may
/// call into it, for the cache that they serve too. A call that needs the store itself (to begin, attend, cut or save what has spilled) waits for
/// the call that waits for the callback, and one of the two ends with CERTKV_STORE_LATE or CERTKV_CAPACITY after `config->spill_deadline_ms`. A
/// cache must not be destroyed from within a callback of its store.
/// They must return, by no exception and no longjmp. While one of them does not, the calls that wait for it end with CERTKV_STORE_LATE, and
/// neither its thread nor `context` goes.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct certkv_store_callbacks {
    /// sizeof(certkv_store_callbacks) of the caller's header.
    pub struct_size: u32,
    /// 0.
    pub reserved: u32,
    /// Handed to each function.
    pub context: *mut c_void,
    /// Stores records.
    pub put: Option<unsafe extern "C" fn(context: *mut c_void, items: *mut certkv_put_item, n: u64)>,
    /// Reads records.
    pub get: Option<unsafe extern "C" fn(context: *mut c_void, items: *mut certkv_get_item, n: u64)>,
    /// Looks for records: done, or not found.
    pub exists: Option<unsafe extern "C" fn(context: *mut c_void, items: *mut certkv_key_item, n: u64)>,
    /// Deletes records.
    pub remove: Option<unsafe extern "C" fn(context: *mut c_void, items: *mut certkv_key_item, n: u64)>,
    /// Called once, after all others have returned, when nobody uses the store any more: on the thread that ended its last user, or on one of the
    /// library's. NULL for nothing to do.
    pub destroy: Option<unsafe extern "C" fn(context: *mut c_void)>,
}

/// A batch of one kind of item.
type Batch<T> = unsafe extern "C" fn(*mut c_void, *mut T, u64);

/// The functions of one store, which ends with this value.
pub(crate) struct Callbacks {
    context: *mut c_void,
    put: Batch<certkv_put_item>,
    get: Batch<certkv_get_item>,
    exists: Batch<certkv_key_item>,
    remove: Batch<certkv_key_item>,
    destroy: Option<unsafe extern "C" fn(*mut c_void)>,
}

// SAFETY: the host's promise: functions and context are for any thread.
unsafe impl Send for Callbacks {}
// SAFETY: as above, several at once.
unsafe impl Sync for Callbacks {}

impl Callbacks {
    /// # Safety
    /// `given` is NULL or a struct of its `struct_size` bytes, whose functions and context keep the promises of [`certkv_store_callbacks`].
    pub(crate) unsafe fn read(given: *const certkv_store_callbacks) -> Result<Self, Failure> {
        // SAFETY: by the caller's promise; integers, pointers and functions that may be NULL, for which zero bits are a value.
        let given = unsafe { argument::read_struct(given, "callbacks", offset_of!(certkv_store_callbacks, destroy))? };
        if given.reserved != 0 {
            return Err(Failure::new(CERTKV_RESERVED, "callbacks->reserved is not 0"));
        }
        let certkv_store_callbacks { context, destroy, .. } = given;
        Ok(Self {
            context,
            put: there(given.put, "put")?,
            get: there(given.get, "get")?,
            exists: there(given.exists, "exists")?,
            remove: there(given.remove, "remove")?,
            destroy,
        })
    }

    /// Has a batch done.
    ///
    /// # Safety
    /// What the items point to is as they say, and nobody else's.
    unsafe fn call<T>(&self, batch: Batch<T>, items: &mut [T]) {
        // SAFETY: the host's function, with its context and as many items as are there. It touches them and what they point to, by the
        // caller's promise its own for now, and returns, by the host's.
        unsafe { batch(self.context, items.as_mut_ptr(), items.len() as u64) }
    }

    /// Has a batch of names done.
    fn names(&self, batch: Batch<certkv_key_item>, keys: &[StoreKey]) -> Vec<certkv_key_item> {
        let item = |key: &StoreKey| certkv_key_item { key: name(key), result: CERTKV_ITEM_FAILED, code: 0 };
        let mut items: Vec<_> = keys.iter().map(item).collect();
        // SAFETY: these items point nowhere.
        unsafe { self.call(batch, &mut items) };
        items
    }
}

fn there<T>(given: Option<T>, which: &str) -> Result<T, Failure> {
    given.ok_or_else(|| Failure::new(CERTKV_NULL_POINTER, format!("callbacks->{which} is NULL")))
}

fn name(key: &StoreKey) -> certkv_store_key {
    certkv_store_key { bytes: key.0 }
}

/// Why an item that is not done was not.
fn refused(key: &StoreKey, result: certkv_item_result, code: i32, [bytes, limit]: [u64; 2]) -> StoreError {
    let key = *key;
    match result {
        CERTKV_ITEM_NOT_FOUND => StoreError::NotFound { key },
        CERTKV_ITEM_FULL => StoreError::Full { key, bytes, free: None },
        CERTKV_ITEM_TOO_LARGE => StoreError::TooLarge { key, bytes, limit },
        CERTKV_ITEM_FAILED => StoreError::unavailable(key, format_args!("the host's function failed, code {code}")),
        other => {
            StoreError::unavailable(key, format_args!("the host's function said {other}, not a CERTKV_ITEM value"))
        }
    }
}

impl Backend for Callbacks {
    fn put(&self, key: &StoreKey, record: &Parts<'_>) -> Result<(), StoreError> {
        one(key, self.put_batch(&[(*key, *record)]))
    }

    fn get(&self, key: &StoreKey, limit: usize, into: &mut Vec<u8>) -> Result<(), StoreError> {
        one(key, self.get_batch(limit, &mut [(*key, into)]))
    }

    fn exists(&self, key: &StoreKey) -> Result<bool, StoreError> {
        one(key, self.exists_batch(&[*key]))
    }

    fn delete(&self, key: &StoreKey) -> Result<(), StoreError> {
        one(key, self.delete_batch(&[*key]))
    }

    fn put_batch(&self, records: &[(StoreKey, Parts<'_>)]) -> Vec<Result<(), StoreError>> {
        let item = |(key, [head, body]): &(StoreKey, Parts<'_>)| certkv_put_item {
            key: name(key),
            head: head.as_ptr().cast(),
            head_bytes: head.len() as u64,
            body: body.as_ptr().cast(),
            body_bytes: body.len() as u64,
            result: CERTKV_ITEM_FAILED,
            code: 0,
        };
        let mut items: Vec<_> = records.iter().map(item).collect();
        // SAFETY: the records are borrowed for longer than the call, and only read.
        unsafe { self.call(self.put, &mut items) };
        let said = |(item, (key, [head, body])): (&certkv_put_item, &(StoreKey, Parts<'_>))| match item.result {
            CERTKV_ITEM_DONE => Ok(()),
            // Nothing is too large for itself, and nothing is looked for.
            result @ (CERTKV_ITEM_NOT_FOUND | CERTKV_ITEM_TOO_LARGE) => {
                Err(StoreError::unavailable(*key, format_args!("the host's put said {result}")))
            }
            result => Err(refused(key, result, item.code, [(head.len() + body.len()) as u64, 0])),
        };
        items.iter().zip(records).map(said).collect()
    }

    fn get_batch(&self, limit: usize, gets: &mut [(StoreKey, &mut Vec<u8>)]) -> Vec<Result<(), StoreError>> {
        let mut items = Vec::with_capacity(gets.len());
        for (key, into) in gets.iter_mut() {
            into.clear();
            // Bytes that the host does not write are 0 and not those of the buffer's last record.
            if into.try_reserve_exact(limit).is_ok() {
                into.resize(limit, 0);
            }
            let (buffer, capacity) = (into.as_mut_ptr().cast(), into.len() as u64);
            items.push(certkv_get_item {
                key: name(key),
                buffer,
                capacity,
                bytes: 0,
                result: CERTKV_ITEM_FAILED,
                code: 0,
            });
        }
        // SAFETY: each buffer is borrowed for longer than the call, has so many bytes, and nobody else looks at it.
        unsafe { self.call(self.get, &mut items) };
        let said = |(item, (key, into)): (certkv_get_item, &mut (StoreKey, &mut Vec<u8>))| {
            let room = into.len() as u64;
            match item.result {
                CERTKV_ITEM_DONE if item.bytes <= room => {
                    into.truncate(item.bytes as usize);
                    return Ok(());
                }
                CERTKV_ITEM_DONE => {
                    into.clear();
                    let why = format_args!("the host's get said {} bytes for a buffer of {room}", item.bytes);
                    return Err(StoreError::unavailable(*key, why));
                }
                _ => into.clear(),
            }
            Err(refused(key, item.result, item.code, [item.bytes, room]))
        };
        items.into_iter().zip(gets).map(said).collect()
    }

    fn exists_batch(&self, keys: &[StoreKey]) -> Vec<Result<bool, StoreError>> {
        let items = self.names(self.exists, keys);
        let said = |(item, key): (certkv_key_item, &StoreKey)| match item.result {
            CERTKV_ITEM_DONE => Ok(true),
            CERTKV_ITEM_NOT_FOUND => Ok(false),
            result => Err(refused(key, result, item.code, [0; 2])),
        };
        items.into_iter().zip(keys).map(said).collect()
    }

    fn delete_batch(&self, keys: &[StoreKey]) -> Vec<Result<(), StoreError>> {
        let items = self.names(self.remove, keys);
        let said = |(item, key): (certkv_key_item, &StoreKey)| match item.result {
            CERTKV_ITEM_DONE | CERTKV_ITEM_NOT_FOUND => Ok(()),
            result => Err(refused(key, result, item.code, [0; 2])),
        };
        items.into_iter().zip(keys).map(said).collect()
    }
}

impl Drop for Callbacks {
    fn drop(&mut self) {
        if let Some(destroy) = self.destroy {
            // SAFETY: the host's function, once; nobody is inside another one, as all of them borrow this value.
            unsafe { destroy(self.context) };
        }
    }
}

fn one<R>(key: &StoreKey, mut results: Vec<Result<R, StoreError>>) -> Result<R, StoreError> {
    results.pop().unwrap_or_else(|| Err(StoreError::unavailable(*key, "no result")))
}
