//! Steps of a cache on a GPU, over a driver without one.
use crate::cache::{Cache, config};
use crate::fake_cuda::Fake;
use crate::life::{BATCH, Calls, Counts, LAYERS, Life, PROMPT};
use crate::{alone, kernels};
use certkv::gpu::{DeviceBuffer, Gpu, GpuStream};
use certkv_c::certkv_status::CERTKV_OK;
use certkv_c::*;
use certkv_device::cuda::Priority;
use core::ffi::c_void;
use core::ptr;

const WIDTH: usize = kernels::KV_HEADS * kernels::DIM;
const Q: usize = WIDTH * kernels::GROUP;
const HEADS: usize = kernels::KV_HEADS * kernels::GROUP;

struct OnGpu {
    cache: Cache,
    sequences: [certkv_sequence; BATCH],
    rows: Vec<u16>,
    queries: Vec<f32>,
    out: Vec<f32>,
    records: Vec<certkv_certificate>,
    /// Rows, queries and outputs in device memory; prompts come from the host, which has to have them.
    device: Option<[DeviceBuffer; 3]>,
    draft: u64,
}

impl OnGpu {
    fn new(config: &certkv_config, device: bool) -> Self {
        let cache = Cache::new(config);
        let sequences = [cache.create(), cache.create(), cache.create()];
        let draft = config.chunk_tokens.max(1);
        let batch = BATCH * draft as usize;
        let (rows, queries) = (vec![0x3c00; WIDTH * BATCH * PROMPT as usize], vec![0.5; batch * Q]);
        let device = device.then(|| {
            let gpu = Gpu::open(0).unwrap();
            let stream = GpuStream::new(&gpu, Priority::Normal).unwrap();
            let buffers =
                [2 * batch * WIDTH, 4 * batch * Q, 4 * batch * Q].map(|n| DeviceBuffer::new(&gpu, n).unwrap());
            buffers[0].write(&stream, 0, &rows[..batch * WIDTH]).unwrap();
            buffers[1].write(&stream, 0, &queries).unwrap();
            buffers
        });
        let records = vec![certkv_certificate::default(); batch * HEADS];
        Self { cache, sequences, rows, queries, out: vec![0.0; batch * Q], records, device, draft }
    }
}

impl Calls for OnGpu {
    fn cache(&self) -> *mut certkv_cache {
        self.cache.0
    }

    fn sequences(&self) -> [certkv_sequence; BATCH] {
        self.sequences
    }

    fn draft(&self) -> u64 {
        self.draft
    }

    fn append(&mut self, step: *mut certkv_step, layer: u32, tokens: u64) -> certkv_status {
        let (at, space) = match &self.device {
            Some([rows, ..]) if tokens == self.draft => (rows.address() as *const c_void, CERTKV_SPACE_DEVICE),
            _ => (self.rows.as_ptr().cast(), CERTKV_SPACE_HOST),
        };
        // SAFETY: rows of as many tokens.
        unsafe { certkv_step_append(step, layer, at, at, (BATCH * WIDTH) as u64 * tokens, CERTKV_F16, space) }
    }

    fn attend(&mut self, step: *mut certkv_step, layer: u32) -> certkv_status {
        let (at, heads, n) = (self.records.as_mut_ptr(), self.records.len() as u64, self.out.len() as u64);
        let (from, to, space) = match &self.device {
            Some([_, queries, out]) => (queries.address() as _, out.address() as _, CERTKV_SPACE_DEVICE),
            None => (self.queries.as_ptr(), self.out.as_mut_ptr(), CERTKV_SPACE_HOST),
        };
        // SAFETY: every buffer has the elements that are given with it.
        let attended = unsafe { certkv_step_attend(step, layer, from, to, n, at, heads, space) };
        assert!(self.records.iter().all(|c| c.status == CERTKV_EXACT || c.bound - c.e_arith <= c.tol));
        // SAFETY: a number.
        let planned = unsafe { certkv_step_plan(step, layer) };
        if planned == CERTKV_OK { attended } else { planned }
    }
}

#[test]
fn a_steady_step_on_a_gpu_asks_for_nothing() {
    let _turn = alone();
    let fake = Fake::get();
    fake.with_compiler();
    kernels::declare(fake);
    kernels::begin("k8-v4g32-b16");
    let config = certkv_config {
        device: CERTKV_DEVICE_CUDA,
        layers: LAYERS,
        q_heads: HEADS as u32,
        kv_heads: kernels::KV_HEADS as u32,
        max_tokens: 1024,
        ..config()
    };
    let mut counts = Counts::default();
    // Beside a store: its originals do not go there, since host memory has room for all of them.
    let mut store = ptr::null_mut();
    // SAFETY: a local.
    assert_eq!(unsafe { certkv_store_create_memory(u64::MAX, &mut store) }, CERTKV_OK);
    for (what, device, spills, chunk_tokens) in [
        ("host rows", false, false, 0),
        ("device rows", true, false, 0),
        ("host rows beside a store", false, true, 0),
        ("device rows beside a store", true, true, 0),
        ("drafts of four in host memory", false, false, 4),
        ("drafts of four in device memory", true, false, 4),
    ] {
        let (spill_store, spill_host_tokens) = if spills { (store, 1024) } else { (ptr::null_mut(), 0) };
        let config =
            certkv_config { plan_apart: device.into(), chunk_tokens, spill_store, spill_host_tokens, ..config };
        kernels::draft_tokens(chunk_tokens as usize);
        counts.judge(what, Life::new(OnGpu::new(&config, device)), 200);
    }
    // Blocks of two levels.
    let levels =
        [c"t8-v8g32-b16", c"t4-v4g32-b16"].map(|format| certkv_level { format: format.as_ptr(), tokens: 1024 });
    for (what, device) in [("levels, host rows", false), ("levels, device rows", true)] {
        let config = certkv_config {
            plan_apart: device.into(),
            format: ptr::null(),
            levels: levels.as_ptr(),
            n_levels: 2,
            prefix_units: 0,
            swap_tokens: 0,
            ..config
        };
        kernels::draft_tokens(0);
        let calls = OnGpu::new(&config, device);
        let life = Life::new(calls);
        for (sequence, block) in life.calls.sequences.into_iter().flat_map(|id| [(id, 0), (id, 2)]) {
            // SAFETY: a live handle.
            let changed = unsafe { certkv_sequence_change_level(life.calls.cache.0, sequence, 1, block, 1) };
            assert_eq!(changed, CERTKV_OK);
        }
        counts.judge(what, life, 200);
    }
    // SAFETY: a live handle.
    assert_eq!(unsafe { certkv_store_destroy(store) }, CERTKV_OK);
    counts.report("no-allocation-gpu");
}
