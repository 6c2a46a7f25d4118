//! A host's store for tests, through the C callbacks: a map, and what a host can do wrong.
use crate::*;
use core::ffi::c_void;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

/// What its functions do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum Way {
    /// What they should.
    #[default]
    Right,
    /// Say that they failed.
    Fails,
    /// Set nothing at all.
    Silent,
    /// Say a number that means nothing.
    Babbles,
    /// There is no room, or no record.
    Refuses,
    /// There is a record larger than any.
    Huge,
    /// A get says done, and how many bytes came is not set.
    Empty,
    /// A get brings the first half of the record.
    Short,
    /// A get says more bytes than its buffer has.
    Long,
    /// A get flips a bit.
    Flips,
    /// A get brings the record of another key.
    Swaps,
    /// A get says that what is there is not.
    Loses,
    /// A get does not return before it is told to.
    Hangs,
}

/// The store; its functions are `callbacks`.
#[derive(Default)]
pub(crate) struct Host {
    pub(crate) records: Mutex<BTreeMap<[u8; 32], Vec<u8>>>,
    pub(crate) puts: Mutex<Way>,
    pub(crate) gets: Mutex<Way>,
    pub(crate) removes: Mutex<Way>,
    /// Items asked for, by function.
    pub(crate) put: AtomicU64,
    pub(crate) got: AtomicU64,
    pub(crate) looked: AtomicU64,
    pub(crate) removed: AtomicU64,
    pub(crate) destroyed: AtomicUsize,
    /// Calls on the host's own threads, of which there must be none.
    pub(crate) on_mine: AtomicUsize,
    /// Gets that hang go on.
    go_on: (Mutex<bool>, Condvar),
    /// Called from within the next get.
    pub(crate) inside: Mutex<Option<Box<dyn FnMut() + Send>>>,
    /// Called from within the next put.
    pub(crate) inside_put: Mutex<Option<Box<dyn FnMut() + Send>>>,
    /// Another thread was inside while one was.
    now: AtomicI64,
    pub(crate) together: AtomicBool,
}

/// Its functions are under way.
struct Visit<'a>(&'a Host);

impl<'a> Visit<'a> {
    fn new(host: &'a Host) -> Self {
        if host.now.fetch_add(1, Ordering::SeqCst) > 0 {
            host.together.store(true, Ordering::SeqCst);
        }
        let mine = !std::thread::current().name().is_some_and(|name| name.starts_with("certkv-store-"));
        host.on_mine.fetch_add(usize::from(mine), Ordering::SeqCst);
        Self(host)
    }
}

impl Drop for Visit<'_> {
    fn drop(&mut self) {
        self.0.now.fetch_sub(1, Ordering::SeqCst);
    }
}

/// What is said whatever was asked; `None` where more is to do.
fn said(way: Way, put: bool) -> Option<certkv_item_result> {
    match way {
        Way::Fails => Some(CERTKV_ITEM_FAILED),
        Way::Babbles => Some(77),
        Way::Refuses => Some(if put { CERTKV_ITEM_FULL } else { CERTKV_ITEM_NOT_FOUND }),
        Way::Huge => Some(CERTKV_ITEM_TOO_LARGE),
        _ => None,
    }
}

/// # Safety
/// `context` is a host that lives, and there are `n` items.
unsafe extern "C" fn put(context: *mut c_void, items: *mut certkv_put_item, n: u64) {
    // SAFETY: by the caller's promise.
    let (host, items) = unsafe { (&*context.cast::<Host>(), core::slice::from_raw_parts_mut(items, n as usize)) };
    let (_visit, way) = (Visit::new(host), *host.puts.lock().unwrap());
    let inside = host.inside_put.lock().unwrap().take();
    if let Some(mut inside) = inside {
        inside();
    }
    assert!(!items.is_empty());
    for item in items {
        host.put.fetch_add(1, Ordering::SeqCst);
        item.code = 28;
        match said(way, true) {
            _ if way == Way::Silent => {}
            Some(result) => item.result = result,
            None => {
                // SAFETY: both parts have the bytes that the item says.
                let record = unsafe {
                    let head = core::slice::from_raw_parts(item.head.cast::<u8>(), item.head_bytes as usize);
                    [head, core::slice::from_raw_parts(item.body.cast::<u8>(), item.body_bytes as usize)].concat()
                };
                host.records.lock().unwrap().insert(item.key.bytes, record);
                item.result = CERTKV_ITEM_DONE;
            }
        }
    }
}

/// # Safety
/// As [`put`].
unsafe extern "C" fn get(context: *mut c_void, items: *mut certkv_get_item, n: u64) {
    // SAFETY: by the caller's promise.
    let (host, items) = unsafe { (&*context.cast::<Host>(), core::slice::from_raw_parts_mut(items, n as usize)) };
    let (_visit, way) = (Visit::new(host), *host.gets.lock().unwrap());
    let inside = host.inside.lock().unwrap().take();
    if let Some(mut inside) = inside {
        inside();
    }
    if way == Way::Hangs {
        let wait = host.go_on.1.wait_timeout_while(host.go_on.0.lock().unwrap(), Duration::from_secs(60), |on| !*on);
        assert!(*wait.unwrap().0, "nobody told it to go on");
    }
    for item in items {
        host.got.fetch_add(1, Ordering::SeqCst);
        // SAFETY: the buffer has so many bytes.
        let before = unsafe { core::slice::from_raw_parts(item.buffer.cast::<u8>(), item.capacity as usize) };
        assert!(before.iter().all(|byte| *byte == 0), "a buffer of another record");
        item.code = 5;
        match said(way, false) {
            _ if way == Way::Silent => continue,
            Some(result) => {
                (item.result, item.bytes) = (result, item.capacity + 1);
                continue;
            }
            None => {}
        }
        let records = host.records.lock().unwrap();
        let other = records.iter().find(|(key, _)| **key != item.key.bytes).map(|(_, record)| record);
        let found = match way {
            Way::Loses => None,
            Way::Swaps => other,
            _ => records.get(&item.key.bytes),
        };
        let Some(record) = found else {
            item.result = CERTKV_ITEM_NOT_FOUND;
            continue;
        };
        let mut bytes = record.clone();
        match way {
            Way::Short => bytes.truncate(record.len() / 2),
            Way::Flips => bytes[record.len() - 100] ^= 4,
            _ => {}
        }
        assert!(bytes.len() as u64 <= item.capacity, "room for every record that was put");
        // SAFETY: the buffer has so many bytes, and more.
        unsafe { ptr::copy_nonoverlapping(bytes.as_ptr(), item.buffer.cast::<u8>(), bytes.len()) };
        item.bytes = match way {
            Way::Empty => 0,
            Way::Long => item.capacity + 1,
            _ => bytes.len() as u64,
        };
        item.result = CERTKV_ITEM_DONE;
    }
}

/// # Safety
/// As [`put`].
unsafe extern "C" fn exists(context: *mut c_void, items: *mut certkv_key_item, n: u64) {
    // SAFETY: by the caller's promise.
    let (host, items) = unsafe { (&*context.cast::<Host>(), core::slice::from_raw_parts_mut(items, n as usize)) };
    let (_visit, way) = (Visit::new(host), *host.gets.lock().unwrap());
    for item in items {
        host.looked.fetch_add(1, Ordering::SeqCst);
        let there = host.records.lock().unwrap().contains_key(&item.key.bytes);
        let found = if there { CERTKV_ITEM_DONE } else { CERTKV_ITEM_NOT_FOUND };
        item.result = if way == Way::Silent { item.result } else { said(way, false).unwrap_or(found) };
    }
}

/// # Safety
/// As [`put`].
unsafe extern "C" fn remove(context: *mut c_void, items: *mut certkv_key_item, n: u64) {
    // SAFETY: by the caller's promise.
    let (host, items) = unsafe { (&*context.cast::<Host>(), core::slice::from_raw_parts_mut(items, n as usize)) };
    let (_visit, way) = (Visit::new(host), *host.removes.lock().unwrap());
    for item in items {
        host.removed.fetch_add(1, Ordering::SeqCst);
        item.result = said(way, true).unwrap_or_else(|| {
            host.records.lock().unwrap().remove(&item.key.bytes);
            CERTKV_ITEM_DONE
        });
    }
}

/// # Safety
/// `context` is of [`Host::store`].
unsafe extern "C" fn destroy(context: *mut c_void) {
    // SAFETY: counted up when it was given away.
    let host = unsafe { Arc::from_raw(context.cast::<Host>()) };
    host.destroyed.fetch_add(1, Ordering::SeqCst);
}

/// A handle of a store that ends with its test.
pub(crate) struct Store(pub(crate) *mut certkv_store);

impl Drop for Store {
    fn drop(&mut self) {
        // SAFETY: a live handle.
        assert_eq!(unsafe { certkv_store_destroy(self.0) }, CERTKV_OK);
    }
}

impl Host {
    pub(crate) fn callbacks(self: &Arc<Self>) -> certkv_store_callbacks {
        certkv_store_callbacks {
            struct_size: size_of::<certkv_store_callbacks>() as u32,
            reserved: 0,
            context: Arc::as_ptr(self).cast_mut().cast(),
            put: Some(put),
            get: Some(get),
            exists: Some(exists),
            remove: Some(remove),
            destroy: Some(destroy),
        }
    }

    pub(crate) fn store(self: &Arc<Self>) -> Store {
        let mut made = ptr::null_mut();
        let callbacks =
            certkv_store_callbacks { context: Arc::into_raw(Arc::clone(self)).cast_mut().cast(), ..self.callbacks() };
        // SAFETY: the functions are for this context, which `destroy` gives back.
        assert_eq!(unsafe { certkv_store_create(&callbacks, &mut made) }, CERTKV_OK, "{}", message());
        Store(made)
    }

    pub(crate) fn len(&self) -> usize {
        self.records.lock().unwrap().len()
    }

    pub(crate) fn let_go(&self) {
        *self.go_on.0.lock().unwrap() = true;
        self.go_on.1.notify_all();
    }
}
