//! The C functions for tests: a cache that ends with its test, and what every call wants set.
#![allow(dead_code, reason = "shared by tests that use different parts of it")]
use certkv_c::certkv_status::*;
use certkv_c::*;
use core::ffi::CStr;
use core::mem::zeroed;
use core::ptr;
use std::ffi::CString;
use std::fs;
use std::path::{Path, PathBuf};

pub(crate) const LAYERS: u32 = 2;
pub(crate) const KV: usize = 64;
pub(crate) const Q: usize = 2 * 64;
/// Of a block.
pub(crate) const BLOCK: u64 = 16;

pub(crate) fn config() -> certkv_config {
    // SAFETY: integers, floats and pointers; the struct has the size that is given.
    unsafe {
        let mut config: certkv_config = zeroed();
        assert_eq!(certkv_config_init(&mut config, size_of::<certkv_config>() as u32), CERTKV_OK);
        (config.layers, config.q_heads, config.kv_heads, config.head_dim) = (LAYERS, 2, 1, 64);
        (config.max_tokens, config.max_sequences, config.format) = (160, 4, c"k8-v4g32-b16".as_ptr());
        (config.swap_tokens, config.prefix_units) = (128, 8);
        config
    }
}

/// A cache that ends with its test.
pub(crate) struct Cache(pub(crate) *mut certkv_cache);

// SAFETY: a handle is a number, and calls may come from any thread.
unsafe impl Send for Cache {}
// SAFETY: as above, at once.
unsafe impl Sync for Cache {}

impl Drop for Cache {
    fn drop(&mut self) {
        // SAFETY: a live handle.
        assert_eq!(unsafe { certkv_cache_destroy(self.0) }, CERTKV_OK);
    }
}

impl Cache {
    pub(crate) fn new(config: &certkv_config) -> Self {
        let mut cache = ptr::null_mut();
        // SAFETY: a whole configuration and a local.
        assert_eq!(unsafe { certkv_cache_create(config, &mut cache) }, CERTKV_OK, "{}", message());
        Self(cache)
    }

    pub(crate) fn create(&self) -> certkv_sequence {
        let mut made = 0;
        // SAFETY: the out parameter is a local.
        assert_eq!(unsafe { certkv_sequence_create(self.0, &mut made) }, CERTKV_OK);
        made
    }

    pub(crate) fn begin(&self, sequence: certkv_sequence, tokens: u64) -> Result<*mut certkv_step, certkv_status> {
        let (chunk, mut step) = (certkv_chunk { sequence, tokens }, ptr::null_mut());
        // SAFETY: one chunk, and a local.
        match unsafe { certkv_step_begin(self.0, &chunk, 1, &mut step) } {
            CERTKV_OK => Ok(step),
            refused => Err(refused),
        }
    }

    /// Appends so many tokens whose rows `seed` decides; outputs and certificates of all layers.
    pub(crate) fn append(
        &self,
        sequence: certkv_sequence,
        tokens: u64,
        seed: u64,
    ) -> (Vec<f32>, Vec<certkv_certificate>) {
        let step = self.begin(sequence, tokens).unwrap();
        let n = tokens as usize;
        let rows = |salt: u64, n: usize| -> Vec<f32> {
            let mut noise = seed << 8 | salt;
            let mut next = || {
                noise = noise.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
                (noise >> 40) as f32 / (1 << 23) as f32 - 1.0
            };
            (0..n).map(|_| next()).collect()
        };
        let (mut outputs, mut certificates) = (Vec::new(), Vec::new());
        for layer in 0..LAYERS {
            let salt = u64::from(layer) * 4;
            let (keys, values, queries) = (rows(salt, n * KV), rows(salt + 1, n * KV), rows(salt + 2, n * Q));
            let (mut out, mut certified) = (vec![0f32; n * Q], vec![certkv_certificate::default(); n * 2]);
            let (k, v) = (keys.as_ptr().cast(), values.as_ptr().cast());
            // SAFETY: every buffer has the elements that are given with it.
            unsafe {
                let elements = (n * KV) as u64;
                assert_eq!(certkv_step_append(step, layer, k, v, elements, CERTKV_F32, CERTKV_SPACE_HOST), CERTKV_OK);
                let (from, to, elements) = (queries.as_ptr(), out.as_mut_ptr(), (n * Q) as u64);
                let (at, heads) = (certified.as_mut_ptr(), 2 * tokens);
                let done = certkv_step_attend(step, layer, from, to, elements, at, heads, CERTKV_SPACE_HOST);
                assert_eq!(done, CERTKV_OK);
            }
            outputs.extend(out);
            certificates.extend(certified);
        }
        // SAFETY: a live handle.
        assert_eq!(unsafe { certkv_step_finish(step) }, CERTKV_OK);
        (outputs, certificates)
    }

    pub(crate) fn length(&self, sequence: certkv_sequence) -> u64 {
        let mut length = 0;
        // SAFETY: the out parameter is a local.
        assert_eq!(unsafe { certkv_sequence_length(self.0, sequence, &mut length) }, CERTKV_OK);
        length
    }

    pub(crate) fn is_out(&self, sequence: certkv_sequence) -> u32 {
        let mut out = 7;
        // SAFETY: the out parameter is a local.
        assert_eq!(unsafe { certkv_sequence_is_swapped_out(self.0, sequence, &mut out) }, CERTKV_OK);
        out
    }

    pub(crate) fn release(&self, sequence: certkv_sequence) {
        // SAFETY: no pointers but the handle.
        assert_eq!(unsafe { certkv_sequence_release(self.0, sequence) }, CERTKV_OK);
    }

    pub(crate) fn snapshot(&self) -> certkv_snapshot {
        let mut seen = certkv_snapshot { struct_size: size_of::<certkv_snapshot>() as u32, ..Default::default() };
        // SAFETY: the struct has the size that it says.
        assert_eq!(unsafe { certkv_cache_snapshot(self.0, &mut seen) }, CERTKV_OK);
        seen
    }

    pub(crate) fn save(
        &self,
        sequence: certkv_sequence,
        scope: &certkv_save_scope,
        path: &CStr,
    ) -> Result<u64, certkv_status> {
        let mut bytes = 7;
        // SAFETY: a whole scope, a C string and a local.
        match unsafe { certkv_sequence_save(self.0, sequence, scope, path.as_ptr(), &mut bytes) } {
            CERTKV_OK => Ok(bytes),
            refused => {
                assert_eq!(bytes, 7);
                Err(refused)
            }
        }
    }

    pub(crate) fn restore(&self, scope: &certkv_save_scope, path: &CStr) -> Result<certkv_sequence, certkv_status> {
        let mut made = 7;
        // SAFETY: a whole scope, a C string and a local.
        match unsafe { certkv_sequence_restore(self.0, scope, path.as_ptr(), &mut made) } {
            CERTKV_OK => Ok(made),
            refused => {
                assert_eq!(made, CERTKV_NO_SEQUENCE);
                Err(refused)
            }
        }
    }

    pub(crate) fn publish(
        &self,
        sequence: certkv_sequence,
        scope: &certkv_prefix_scope,
        tokens: &[u32],
    ) -> Result<certkv_publication, certkv_status> {
        let mut done = certkv_publication { struct_size: size_of::<certkv_publication>() as u32, ..Default::default() };
        let (at, n) = (tokens.as_ptr(), tokens.len() as u64);
        // SAFETY: a whole scope, a slice and a local.
        match unsafe { certkv_cache_publish(self.0, sequence, scope, at, n, &mut done) } {
            CERTKV_OK => Ok(done),
            refused => Err(refused),
        }
    }

    pub(crate) fn create_from(
        &self,
        scope: &certkv_prefix_scope,
        tokens: &[u32],
    ) -> Result<(certkv_sequence, u64), certkv_status> {
        let (mut made, mut found) = (7, 7);
        let (at, n) = (tokens.as_ptr(), tokens.len() as u64);
        // SAFETY: a whole scope, a slice and locals.
        match unsafe { certkv_sequence_create_from(self.0, scope, at, n, &mut made, &mut found) } {
            CERTKV_OK => Ok((made, found)),
            refused => {
                assert_eq!((made, found), (CERTKV_NO_SEQUENCE, 7));
                Err(refused)
            }
        }
    }

    /// Verdict, units and pages.
    pub(crate) fn admit(&self, sequence: certkv_sequence, tokens: u64) -> Result<(i32, u64, u64), certkv_status> {
        let size = size_of::<certkv_admission>() as u32;
        let mut seen = certkv_admission { struct_size: size, verdict: 7, units: 7, pages: 7 };
        // SAFETY: the struct has the size that it says.
        match unsafe { certkv_cache_admit(self.0, sequence, tokens, &mut seen) } {
            CERTKV_OK => Ok((seen.verdict, seen.units, seen.pages)),
            refused => {
                assert_eq!((seen.verdict, seen.units, seen.pages), (7, 7, 7));
                Err(refused)
            }
        }
    }

    pub(crate) fn evict(&self, units: u64) -> Result<u64, certkv_status> {
        let mut evicted = 7;
        // SAFETY: the out parameter is a local.
        match unsafe { certkv_cache_evict_prefixes(self.0, units, &mut evicted) } {
            CERTKV_OK => Ok(evicted),
            refused => {
                assert_eq!(evicted, 7);
                Err(refused)
            }
        }
    }

    /// Units, put into the store.
    pub(crate) fn export(&self, store: *mut certkv_store, tokens: &[u32], first: u64) -> Result<u64, certkv_status> {
        let (scope, mut n) = (prefix_scope(b"tenant"), 7);
        let (at, len) = (tokens.as_ptr(), tokens.len() as u64);
        // SAFETY: a whole scope, a slice and a local.
        let said = unsafe { certkv_cache_export_prefix(self.0, store, &scope, at, len, first, 20_000, &mut n) };
        assert!(said == CERTKV_OK || n == 7);
        if said == CERTKV_OK { Ok(n) } else { Err(said) }
    }

    /// Units that are missing, and of these in the store.
    pub(crate) fn missing(&self, store: *mut certkv_store, tokens: &[u32]) -> Result<[u64; 2], certkv_status> {
        let (scope, mut n) = (prefix_scope(b"tenant"), [7; 2]);
        let (at, len, [missing, stored]) = (tokens.as_ptr(), tokens.len() as u64, &mut n);
        // SAFETY: a whole scope, a slice and locals.
        let said = unsafe { certkv_cache_missing_prefix(self.0, store, &scope, at, len, 20_000, missing, stored) };
        assert!(said == CERTKV_OK || n == [7; 2]);
        if said == CERTKV_OK { Ok(n) } else { Err(said) }
    }

    /// Tokens that are cached now.
    pub(crate) fn import(
        &self,
        store: *mut certkv_store,
        tokens: &[u32],
        timeout_ms: u32,
    ) -> Result<u64, certkv_status> {
        let (scope, mut n) = (prefix_scope(b"tenant"), 7);
        let (at, len) = (tokens.as_ptr(), tokens.len() as u64);
        // SAFETY: a whole scope, a slice and a local.
        let said = unsafe { certkv_cache_import_prefix(self.0, store, &scope, at, len, timeout_ms, &mut n) };
        assert!(said == CERTKV_OK || n == 7);
        if said == CERTKV_OK { Ok(n) } else { Err(said) }
    }
}

/// The calling thread's latest error, in words.
pub(crate) fn message() -> String {
    let mut info = certkv_error_info {
        struct_size: size_of::<certkv_error_info>() as u32,
        status: CERTKV_OK,
        cuda_result: 0,
        reserved: 0,
        message: ptr::null(),
    };
    // SAFETY: the struct has the size that it says; the text lives until the thread's next call.
    unsafe {
        assert_eq!(certkv_last_error(&mut info), CERTKV_OK);
        CStr::from_ptr(info.message).to_str().unwrap().to_owned()
    }
}

pub(crate) fn save_scope(model: &'static [u8], key: Option<&'static [u8; 32]>) -> certkv_save_scope {
    certkv_save_scope {
        struct_size: size_of::<certkv_save_scope>() as u32,
        reserved: 0,
        model: model.as_ptr().cast(),
        model_bytes: model.len() as u64,
        key: key.map_or(ptr::null(), |key| key.as_ptr()),
    }
}

pub(crate) fn prefix_scope(domain: &'static [u8]) -> certkv_prefix_scope {
    // SAFETY: integers and pointers.
    let mut scope: certkv_prefix_scope = unsafe { zeroed() };
    scope.struct_size = size_of::<certkv_prefix_scope>() as u32;
    (scope.domain, scope.domain_bytes) = (domain.as_ptr().cast(), domain.len() as u64);
    (scope.model, scope.model_bytes) = (b"model".as_ptr().cast(), 5);
    scope
}

/// A fresh folder.
pub(crate) fn folder(test: &str) -> PathBuf {
    let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join("lives").join(test);
    let _ = fs::remove_dir_all(&dir);
    fs::create_dir_all(&dir).unwrap();
    dir
}

pub(crate) fn c_path(path: &Path) -> CString {
    CString::new(path.to_str().unwrap()).unwrap()
}

/// Nobody's handle, and one that was destroyed.
pub(crate) fn no_caches() -> [(*mut certkv_cache, certkv_status); 3] {
    let cache = Cache::new(&config());
    let stale = cache.0;
    drop(cache);
    let foreign = ptr::without_provenance_mut(0x1000);
    [(ptr::null_mut(), CERTKV_NULL_POINTER), (foreign, CERTKV_INVALID_HANDLE), (stale, CERTKV_INVALID_HANDLE)]
}
