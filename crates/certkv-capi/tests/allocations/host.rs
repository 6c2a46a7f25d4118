//! Steps of a cache on the host.
use crate::life::{BATCH, Calls, Counts, LAYERS, Life, PROMPT};
use crate::{alone, message};
use certkv_c::certkv_status::CERTKV_OK;
use certkv_c::*;
use core::ffi::CStr;
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
    draft: u64,
    /// Outputs may be as the codes have them.
    packed: bool,
    /// Steps so far: each has rows and queries of its own.
    turn: usize,
    /// Outputs of each rung, and such as took a repair.
    rungs: [usize; 6],
}

/// For each KV head of each layer.
const BY_HEAD: &CStr = c"k8-v4g32-b16+k4-v4g32-b16-r4.4+tq4-tq4-b16+k8-v4g32-b16";

/// A cache of the sizes above.
fn config() -> certkv_config {
    // SAFETY: integers, floats and pointers; the struct has the size that is given.
    unsafe {
        let mut config: certkv_config = zeroed();
        assert_eq!(certkv_config_init(&mut config, size_of::<certkv_config>() as u32), CERTKV_OK);
        (config.layers, config.q_heads, config.kv_heads) = (LAYERS, Q_HEADS as u32, KV_HEADS as u32);
        (config.head_dim, config.max_tokens, config.format) = (DIM as u32, 4096, c"k8-v4g32-b16".as_ptr());
        config
    }
}

impl Host {
    fn new(tensors: bool, config: &certkv_config) -> Self {
        let (mut cache, mut sequences) = (ptr::null_mut(), [0; BATCH]);
        // SAFETY: a whole struct, and locals.
        unsafe {
            assert_eq!(certkv_cache_create(config, &mut cache), CERTKV_OK, "{}", message());
            for sequence in &mut sequences {
                assert_eq!(certkv_sequence_create(cache, sequence), CERTKV_OK);
            }
        }
        let rows =
            (0..BATCH * KV_HEADS * DIM * PROMPT as usize).map(|i| (i * 7919 % 257) as f32 / 257.0 - 0.5).collect();
        let draft = config.chunk_tokens.max(1);
        let heads = BATCH * Q_HEADS * draft as usize;
        let (out, halves) = (vec![0.0; heads * DIM], vec![0; heads * DIM]);
        let records = vec![certkv_certificate::default(); heads];
        Self {
            cache,
            sequences,
            rows,
            out,
            halves,
            records,
            tensors,
            draft,
            packed: [CERTKV_POLICY_PACKED, CERTKV_POLICY_SEED000].contains(&config.policy),
            turn: 0,
            rungs: [0; 6],
        }
    }
}

impl Host {
    /// So many elements of this turn.
    fn rows_of(&self, elements: usize) -> *const f32 {
        &self.rows[self.turn * 521 % (self.rows.len() - elements + 1)]
    }
}

impl Calls for Host {
    fn cache(&self) -> *mut certkv_cache {
        self.cache
    }

    fn sequences(&self) -> [certkv_sequence; BATCH] {
        self.sequences
    }

    fn draft(&self) -> u64 {
        self.draft
    }

    fn append(&mut self, step: *mut certkv_step, layer: u32, tokens: u64) -> certkv_status {
        let elements = tokens * (BATCH * KV_HEADS * DIM) as u64;
        self.turn += 1;
        let at = self.rows_of(elements as usize);
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
        let from = self.rows_of(self.out.len());
        let (at, heads) = (self.records.as_mut_ptr(), self.records.len() as u64);
        let queries = tensor(from.cast_mut().cast(), CERTKV_F32);
        let out = tensor(self.halves.as_mut_ptr().cast(), CERTKV_F16);
        // SAFETY: rows, outputs and records of one draft.
        let attended = unsafe {
            match self.tensors {
                true => certkv_step_attend_tensors(step, layer, &queries, &out, at, heads),
                false => {
                    let (to, n) = (self.out.as_mut_ptr(), self.out.len() as u64);
                    certkv_step_attend(step, layer, from, to, n, at, heads, CERTKV_SPACE_HOST)
                }
            }
        };
        for record in &self.records {
            self.rungs[usize::from(record.rung)] += 1;
            self.rungs[5] += usize::from(record.repairs > 0);
        }
        // What compression costs is within the tolerance; the bound is that and the arithmetic, outputs' rounding to 16 bits among it.
        let within =
            |c: &certkv_certificate| c.status == CERTKV_CERTIFIED && c.bound - c.e_arith <= c.tol * (1.0 + 1e-9);
        assert!(self.packed || self.records.iter().all(|c| c.status == CERTKV_EXACT || within(c)));
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
    let (plain, mut store) = (config(), ptr::null_mut());
    // SAFETY: a local.
    assert_eq!(unsafe { certkv_store_create_memory(u64::MAX, &mut store) }, CERTKV_OK);
    // Its originals do not go to the store: host memory has room for all of them.
    let spills = certkv_config { spill_store: store, spill_host_tokens: 1024, ..plain };
    let window = certkv_window { tokens: 64, sinks: 16, chunk: 0 };
    let windows = [window, certkv_window { tokens: 0, sinks: 0, chunk: 0 }];
    let windows = certkv_config { windows: windows.as_ptr(), n_windows: 2, window_slack: 320, ..plain };
    let levels =
        [c"k8-v4g32-b16", c"k4-v4g32-b16"].map(|format| certkv_level { format: format.as_ptr(), tokens: 4096 });
    let levels = certkv_config { levels: levels.as_ptr(), n_levels: 2, tolerance: 0.02, ..plain };
    for (what, tensors, ways, config) in [
        ("rows", false, &[0][..], plain),
        ("tensors", true, &[0][..], plain),
        ("beside a store", false, &[0][..], spills),
        ("on three threads", false, &[0][..], certkv_config { threads: 3, ..plain }),
        ("on three threads beside a store", true, &[0][..], certkv_config { threads: 3, ..spills }),
        ("drafts of four", false, &[0][..], certkv_config { chunk_tokens: 4, ..plain }),
        ("drafts of eight on three threads", true, &[0][..], certkv_config { chunk_tokens: 8, threads: 3, ..plain }),
        ("repairs", false, &[1, 2, 5][..], certkv_config { tolerance: 0.01, ..plain }),
        ("repairs to almost all", false, &[1, 5][..], certkv_config { tolerance: 0.0005, ..plain }),
        ("dense", false, &[4][..], certkv_config { policy: CERTKV_POLICY_DENSE, ..plain }),
        ("packed", false, &[0][..], certkv_config { policy: CERTKV_POLICY_PACKED, ..plain }),
        ("published", false, &[3][..], certkv_config { policy: CERTKV_POLICY_SEED000, ..plain }),
        ("levels of heads", false, &[0, 5][..], certkv_config { levels_by_head: 1, ..levels }),
        (
            "residual planes",
            false,
            &[0][..],
            certkv_config { tolerance: 0.02, format: c"k4-v4g32-b16-r4.4".as_ptr(), ..plain },
        ),
        ("a window", false, &[0, 2][..], windows),
        ("levels", false, &[0, 5][..], levels),
        ("scratch", false, &[0, 5][..], certkv_config { scratch_keys: 40, scratch_values: 40, ..plain }),
        ("rotated", false, &[0][..], certkv_config { tolerance: 0.02, format: c"tq4-tq4-b16".as_ptr(), ..plain }),
        ("formats by head", false, &[0, 5][..], certkv_config { tolerance: 0.01, format: BY_HEAD.as_ptr(), ..plain }),
    ] {
        let rungs = counts.judge(what, Life::new(Host::new(tensors, &config)), 300).rungs;
        println!("{what}: outputs by rung, and those that took repairs: {rungs:?}");
        // Each life takes the ways that it is there for.
        counts.control(ways.iter().all(|way| rungs[*way] > 0));
    }
    // SAFETY: a live handle.
    assert_eq!(unsafe { certkv_store_destroy(store) }, CERTKV_OK);
    counts.report("no-allocation");
}
