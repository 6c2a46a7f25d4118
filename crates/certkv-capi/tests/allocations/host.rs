//! Steps of a cache on the host.
use crate::life::{BATCH, Calls, Counts, LAYERS, Life, PROMPT};
use crate::{alone, message};
use certkv_c::certkv_status::CERTKV_OK;
use certkv_c::*;
use core::mem::zeroed;
use core::ptr;

const Q_HEADS: usize = 8;
const KV_HEADS: usize = 2;
const DIM: usize = 64;

struct Host {
    cache: *mut certkv_cache,
    sequences: [certkv_sequence; BATCH],
    rows: Vec<f32>,
    out: Vec<f32>,
    halves: Vec<u16>,
    records: Vec<certkv_certificate>,
    /// By certkv_step_append_tensors and certkv_step_attend_tensors, with outputs of 16 bits.
    tensors: bool,
}

/// Tokens that the cache has room for.
const TOKENS: u64 = 4096;

impl Host {
    /// `host_tokens`: so many have originals in host memory, others in a store; 0 for no store.
    fn new(tensors: bool, host_tokens: u64, threads: u32) -> Self {
        let (mut cache, mut sequences, mut store) = (ptr::null_mut(), [0; BATCH], ptr::null_mut());
        // SAFETY: a whole struct, and locals.
        unsafe {
            let mut config: certkv_config = zeroed();
            assert_eq!(certkv_config_init(&mut config, size_of::<certkv_config>() as u32), CERTKV_OK);
            (config.layers, config.q_heads, config.kv_heads) = (LAYERS, Q_HEADS as u32, KV_HEADS as u32);
            (config.head_dim, config.max_tokens, config.format) = (DIM as u32, TOKENS, c"k8-v4g32-b16".as_ptr());
            config.threads = threads;
            if host_tokens > 0 {
                assert_eq!(certkv_store_create_memory(u64::MAX, &mut store), CERTKV_OK);
                (config.spill_store, config.spill_host_tokens) = (store, host_tokens);
            }
            assert_eq!(certkv_cache_create(&config, &mut cache), CERTKV_OK, "{}", message());
            assert_eq!(certkv_store_destroy(store), CERTKV_OK);
            for sequence in &mut sequences {
                assert_eq!(certkv_sequence_create(cache, sequence), CERTKV_OK);
            }
        }
        let rows =
            (0..BATCH * KV_HEADS * DIM * PROMPT as usize).map(|i| (i * 7919 % 257) as f32 / 257.0 - 0.5).collect();
        let (out, halves) = (vec![0.0; BATCH * Q_HEADS * DIM], vec![0; BATCH * Q_HEADS * DIM]);
        let records = vec![certkv_certificate::default(); BATCH * Q_HEADS];
        Self { cache, sequences, rows, out, halves, records, tensors }
    }
}

impl Calls for Host {
    fn cache(&self) -> *mut certkv_cache {
        self.cache
    }

    fn sequences(&self) -> [certkv_sequence; BATCH] {
        self.sequences
    }

    fn append(&mut self, step: *mut certkv_step, layer: u32, tokens: u64) -> certkv_status {
        let (at, elements) = (self.rows.as_ptr(), tokens * (BATCH * KV_HEADS * DIM) as u64);
        let tensor = tensor(at.cast_mut().cast(), CERTKV_F32);
        // SAFETY: rows of as many tokens.
        unsafe {
            match self.tensors {
                true => certkv_step_append_tensors(step, layer, &tensor, &tensor),
                false => certkv_step_append(step, layer, at.cast(), at.cast(), elements, CERTKV_F32, CERTKV_SPACE_HOST),
            }
        }
    }

    fn attend(&mut self, step: *mut certkv_step, layer: u32) -> certkv_status {
        let (from, at, heads) = (self.rows.as_ptr(), self.records.as_mut_ptr(), self.records.len() as u64);
        let queries = tensor(from.cast_mut().cast(), CERTKV_F32);
        let out = tensor(self.halves.as_mut_ptr().cast(), CERTKV_F16);
        // SAFETY: rows, outputs and records of one token.
        let attended = unsafe {
            match self.tensors {
                true => certkv_step_attend_tensors(step, layer, &queries, &out, at, heads),
                false => {
                    let (to, n) = (self.out.as_mut_ptr(), self.out.len() as u64);
                    certkv_step_attend(step, layer, from, to, n, at, heads, CERTKV_SPACE_HOST)
                }
            }
        };
        assert!(self.records.iter().all(|c| c.status == CERTKV_EXACT || c.bound <= c.tol));
        attended
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        // SAFETY: a live handle.
        assert_eq!(unsafe { certkv_cache_destroy(self.cache) }, CERTKV_OK);
    }
}

fn tensor(data: *mut core::ffi::c_void, dtype: certkv_dtype) -> certkv_tensor {
    let (struct_size, space) = (size_of::<certkv_tensor>() as u32, CERTKV_SPACE_HOST);
    certkv_tensor { struct_size, dtype, space, reserved: 0, data, token_stride: 0, head_stride: 0 }
}

#[test]
fn a_steady_step_asks_for_nothing() {
    let _turn = alone();
    let mut counts = Counts::default();
    // Beside a store: its originals do not go there, since host memory has room for all of them.
    for (what, tensors, host_tokens, threads) in [
        ("rows", false, 0, 1),
        ("tensors", true, 0, 1),
        ("beside a store", false, 1024, 1),
        ("on three threads", false, 0, 3),
        ("on three threads, beside a store", true, 1024, 3),
    ] {
        counts.judge(what, Life::new(Host::new(tensors, host_tokens, threads)), 300);
    }
    counts.report("no-allocation");
}
