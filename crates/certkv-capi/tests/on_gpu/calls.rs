//! What a call for a GPU takes beside plain rows: tolerances, tensors in device memory, a calibration; and events of what moves.
use crate::cache::{BLOCK, Cache, LAYERS, message};
use crate::kernels::{self, DIM, GROUP, KV_HEADS};
use crate::{WIDTH, alone, append, swap_in, swap_out};
use certkv::gpu::{DeviceBuffer, Gpu};
use certkv_c::certkv_status::*;
use certkv_c::*;
use core::ffi::c_void;
use core::ptr;

const Q: usize = WIDTH * GROUP;
const HEADS: usize = KV_HEADS * GROUP;

/// Up to 512 events from `from` on, and what the call said.
pub(crate) fn moves(cache: &Cache, from: u64) -> Result<(Vec<certkv_move_event>, certkv_events_read), certkv_status> {
    let mut told = vec![certkv_move_event::default(); 512];
    let mut said = certkv_events_read { struct_size: size_of::<certkv_events_read>() as u32, ..Default::default() };
    // SAFETY: as many events as there is room for, and a local.
    match unsafe { certkv_cache_moves(cache.0, from, told.as_mut_ptr(), 512, &mut said) } {
        CERTKV_OK => {
            told.truncate(said.read as usize);
            Ok((told, said))
        }
        refused => Err(refused),
    }
}

/// What the cache holds.
pub(crate) fn memory(cache: &Cache) -> certkv_memory {
    let mut memory = certkv_memory { struct_size: size_of::<certkv_memory>() as u32, ..Default::default() };
    // SAFETY: a whole struct.
    assert_eq!(unsafe { certkv_cache_memory(cache.0, &mut memory) }, CERTKV_OK, "{}", message());
    memory
}

/// The text that Prometheus reads.
pub(crate) fn metrics(cache: &Cache) -> String {
    let (mut text, mut bytes) = (vec![0u8; 1 << 16], 0);
    let room = text.len() as u64;
    // SAFETY: as many bytes as are said, and a local.
    let done =
        unsafe { certkv_cache_metrics(cache.0, c"a".as_ptr().cast(), 1, text.as_mut_ptr().cast(), room, &mut bytes) };
    assert_eq!(done, CERTKV_OK, "{}", message());
    text.truncate(bytes as usize);
    String::from_utf8(text).unwrap()
}

pub(crate) fn named(status: certkv_status, expected: certkv_status, word: &str) {
    assert!(status == expected && message().contains(word), "{status:?}: {}", message());
}

fn rows(step: *mut certkv_step, layer: u32) {
    let (row, n) = ([0x3c00u16; WIDTH], WIDTH as u64);
    let at = row.as_ptr().cast();
    // SAFETY: both buffers have the elements that are given with them.
    let done = unsafe { certkv_step_append(step, layer, at, at, n, CERTKV_F16, CERTKV_SPACE_HOST) };
    assert_eq!(done, CERTKV_OK, "{}", message());
}

#[test]
fn calls_and_heads_on_a_gpu_have_their_own_tolerances() {
    let (_fake, config, _turn) = alone();
    let cache = Cache::new(&config);
    let a = cache.create();
    append(&cache, a, 40);
    let step = cache.begin(a, 1).unwrap();
    rows(step, 0);
    let set = |given: &[certkv_tolerance]| {
        // SAFETY: a slice.
        unsafe { certkv_step_set_tolerances(step, given.as_ptr(), given.len() as u64) }
    };
    let held = || {
        let (queries, mut out) = ([0.5f32; Q], [0f32; Q]);
        let mut found = [certkv_certificate::default(); HEADS];
        let (from, to, at, n) = (queries.as_ptr(), out.as_mut_ptr(), found.as_mut_ptr(), HEADS as u64);
        // SAFETY: every buffer has the elements that are given with it.
        let done = unsafe { certkv_step_attend(step, 0, from, to, Q as u64, at, n, CERTKV_SPACE_HOST) };
        assert_eq!(done, CERTKV_OK, "{}", message());
        assert!(out == queries);
        found.map(|c| c.tol)
    };
    let all_held = || {
        let found = held();
        assert!(found.iter().all(|tol| *tol == found[0]));
        found[0]
    };
    let tolerance = |relative, absolute| certkv_tolerance { relative, absolute };
    assert!((all_held() - 0.1).abs() < 1e-6);
    // Outputs of the fake have a norm of 2.
    let each: [_; HEADS] = std::array::from_fn(|h| tolerance(0.25 * (h % 2) as f64, 0.125 * (1 - h % 2) as f64));
    let of_each = std::array::from_fn(|h| if h % 2 == 1 { 0.5 } else { 0.125 });
    assert_eq!((set(&each), held()), (CERTKV_OK, of_each));
    assert_eq!((set(&[tolerance(0.0, 0.75)]), all_held()), (CERTKV_OK, 0.75));
    named(set(&[tolerance(0.25, 0.0); 3]), CERTKV_SHAPE, "tolerances");
    named(set(&[tolerance(f64::NAN, 0.0)]), CERTKV_POLICY, "tolerances[0]");
    named(set(&[tolerance(0.0, 0.0)]), CERTKV_POLICY, "tolerances[0]");
    assert_eq!(all_held(), 0.75, "what was refused changes nothing");
    assert_eq!((set(&[tolerance(0.25, 0.0); HEADS]), all_held()), (CERTKV_OK, 0.5));
    assert_eq!((set(&[tolerance(0.125, 0.0)]), all_held()), (CERTKV_OK, 0.25));
    assert_eq!(set(&[]), CERTKV_OK);
    assert!((all_held() - 0.1).abs() < 1e-6);
    // SAFETY: a live handle.
    assert_eq!(unsafe { certkv_step_abort(step) }, CERTKV_OK);
    let options = certkv_step_options {
        struct_size: size_of::<certkv_step_options>() as u32,
        policy: CERTKV_POLICY_DENSE,
        tolerance: 0.0,
    };
    let (chunk, mut step, one) = (certkv_chunk { sequence: a, tokens: 1 }, ptr::null_mut(), tolerance(0.5, 0.0));
    // SAFETY: one of each, and a local.
    unsafe {
        assert_eq!(certkv_step_begin_with(cache.0, &chunk, 1, &options, &mut step), CERTKV_OK);
        named(certkv_step_set_tolerances(step, &one, 1), CERTKV_POLICY, "tolerances");
        assert_eq!(certkv_step_abort(step), CERTKV_OK);
    }
}

/// Of one row each.
fn tensor(buffer: &DeviceBuffer, dtype: certkv_dtype, token_stride: u64, head_stride: u64) -> certkv_tensor {
    let (struct_size, data) = (size_of::<certkv_tensor>() as u32, buffer.address() as *mut c_void);
    certkv_tensor { struct_size, dtype, space: CERTKV_SPACE_DEVICE, reserved: 0, data, token_stride, head_stride }
}

#[test]
fn tensors_in_device_memory() {
    let (fake, config, _turn) = alone();
    let cache = Cache::new(&config);
    let a = cache.create();
    append(&cache, a, 40);
    let gpu = Gpu::open(0).unwrap();
    let stream = certkv::gpu::GpuStream::new(&gpu, certkv_device::cuda::Priority::Normal).unwrap();
    let [kv, queries, out] = [4 * WIDTH, 4 * Q, 4 * Q].map(|bytes| DeviceBuffer::new(&gpu, bytes).unwrap());
    kv.write(&stream, 0, &[0x3c00u16; WIDTH]).unwrap();
    let step = cache.begin(a, 1).unwrap();
    let append = |keys: &certkv_tensor, values: &certkv_tensor| {
        // SAFETY: whole structs.
        unsafe { certkv_step_append_tensors(step, 0, keys, values) }
    };
    let mut found = [certkv_certificate::default(); HEADS];
    let mut attend = |queries: &certkv_tensor, out: &certkv_tensor| {
        // SAFETY: whole structs, and as many certificates as are given.
        unsafe { certkv_step_attend_tensors(step, 0, queries, out, found.as_mut_ptr(), HEADS as u64) }
    };
    let plain = tensor(&kv, CERTKV_F16, 0, 0);
    named(append(&tensor(&kv, CERTKV_F16, 0, DIM as u64 + 4), &plain), CERTKV_UNSUPPORTED, "keys: head_stride");
    named(append(&plain, &tensor(&kv, CERTKV_F16, 0, 1 << 32)), CERTKV_UNSUPPORTED, "values: head_stride");
    named(append(&plain, &certkv_tensor { space: CERTKV_SPACE_HOST, ..plain }), CERTKV_INVALID_ARGUMENT, "space");
    let nowhere = certkv_tensor { data: ptr::dangling_mut::<[u128; 4]>().cast(), ..plain };
    assert!(append(&nowhere, &plain) != CERTKV_OK && message().contains("keys"), "{}", message());
    // What 0 stands for is no stride, and there is none to another token.
    let fused = tensor(&kv, CERTKV_F16, 3 * WIDTH as u64, DIM as u64);
    assert_eq!(append(&fused, &plain), CERTKV_OK, "{}", message());

    // Queries of any type, and outputs.
    let wide = tensor(&out, CERTKV_F32, 0, 0);
    let read = || {
        let mut read = vec![0f32; Q];
        out.read(&stream, 0, &mut read).unwrap();
        read
    };
    queries.write(&stream, 0, &[0.5f32; Q]).unwrap();
    assert_eq!(
        (attend(&tensor(&queries, CERTKV_F32, 0, 0), &wide), read()),
        (CERTKV_OK, vec![0.5; Q]),
        "{}",
        message()
    );
    for (dtype, three) in [(CERTKV_F16, 0x4200u16), (CERTKV_BF16, 0x4040)] {
        queries.write(&stream, 0, &[three; Q]).unwrap();
        assert_eq!((attend(&tensor(&queries, dtype, 0, 0), &wide), read()), (CERTKV_OK, vec![3.0; Q]), "{}", message());
    }
    let given = tensor(&queries, CERTKV_F32, 0, 0);
    let odd = DIM as u64 + 4;
    named(attend(&given, &tensor(&out, CERTKV_F32, 0, odd)), CERTKV_UNSUPPORTED, "out: head_stride");
    named(attend(&tensor(&queries, CERTKV_F16, 0, odd), &wide), CERTKV_UNSUPPORTED, "queries: head_stride");
    assert_eq!(read(), vec![3.0; Q], "what was refused wrote nothing");
    queries.write(&stream, 0, &[3f32; Q]).unwrap();
    for (dtype, three) in [(CERTKV_F16, 0x4200u16), (CERTKV_BF16, 0x4040)] {
        out.fill(&stream, 0, out.len(), 0).unwrap();
        assert_eq!(attend(&given, &tensor(&out, dtype, 0, 0)), CERTKV_OK, "{}", message());
        let mut read = vec![0u16; 2 * Q];
        out.read(&stream, 0, &mut read).unwrap();
        assert_eq!((&read[..Q], &read[Q..]), (&[three; Q][..], &[0; Q][..]));
    }
    // Heads apart, from one buffer to another.
    let (row, heads) = (DIM + 8, Q / DIM);
    let [from, to] = [4 * heads * row; 2].map(|bytes| DeviceBuffer::new(&gpu, bytes).unwrap());
    let apart: Vec<f32> = (0..heads * row).map(|i| if i % row < DIM { i as f32 } else { f32::NAN }).collect();
    from.write(&stream, 0, &apart).unwrap();
    to.fill(&stream, 0, to.len(), 0xff).unwrap();
    let of = |buffer| tensor(buffer, CERTKV_F32, 0, row as u64);
    assert_eq!(attend(&of(&from), &of(&to)), CERTKV_OK, "{}", message());
    let mut read = vec![0f32; heads * row];
    to.read(&stream, 0, &mut read).unwrap();
    assert!(read.iter().zip(&apart).all(|(x, y)| x == y || (x.is_nan() && y.is_nan())));
    assert!(read.iter().filter(|x| x.is_nan()).count() == 8 * heads, "what is between the heads was written");
    // Onto what is read: whole or in part. Rows between the other's are apart.
    let both = DeviceBuffer::new(&gpu, 8 * Q).unwrap();
    let at = |bytes: usize| certkv_tensor {
        data: tensor(&both, CERTKV_F32, 0, 0).data.wrapping_byte_add(bytes),
        ..tensor(&both, CERTKV_F32, 0, 2 * DIM as u64)
    };
    for bytes in [0, 16, 4 * DIM - 16, 8 * DIM] {
        named(attend(&at(0), &at(bytes)), CERTKV_OVERLAP, "out and queries");
        named(attend(&at(bytes), &at(0)), CERTKV_OVERLAP, "out and queries");
    }
    both.write(&stream, 0, &[2f32; 2 * Q]).unwrap();
    assert_eq!(attend(&at(0), &at(4 * DIM)), CERTKV_OK, "{}", message());
    // SAFETY: addresses on the device, which a call that is refused does not look at.
    unsafe {
        let (from, space) = (at(0).data.cast::<f32>(), CERTKV_SPACE_DEVICE);
        let refused = certkv_step_attend(step, 0, from, from.wrapping_add(Q - 4), Q as u64, ptr::null_mut(), 0, space);
        named(refused, CERTKV_OVERLAP, "out and queries");
    }
    // SAFETY: a live handle.
    assert_eq!(unsafe { certkv_step_abort(step) }, CERTKV_OK);
    assert_eq!(fake.violations(), 0, "{}", fake.last_violation());
}

/// Elements of a token: queries, keys, values.
const ALL: usize = Q + 2 * WIDTH;

/// A step of two sequences whose keys and values are slices of one buffer: what the launch is told, as the fake kernel reads it.
fn fused(cache: &Cache, ids: [certkv_sequence; 2], buffer: &DeviceBuffer, strides: [u64; 2]) -> [kernels::Appended; 2] {
    let (mut step, chunks) = (ptr::null_mut(), ids.map(|sequence| certkv_chunk { sequence, tokens: 1 }));
    let of = |first: usize, stride| {
        let data = (buffer.address() as usize + 2 * first) as *mut c_void;
        certkv_tensor { data, ..tensor(buffer, CERTKV_F16, stride, DIM as u64) }
    };
    let (keys, values) = (of(Q, strides[0]), of(Q + WIDTH, strides[1]));
    // SAFETY: two chunks, whole structs, and a local.
    unsafe {
        assert_eq!(certkv_step_begin(cache.0, chunks.as_ptr(), 2, &mut step), CERTKV_OK, "{}", message());
        let told = [0, 1].map(|layer| {
            assert_eq!(certkv_step_append_tensors(step, layer, &keys, &values), CERTKV_OK, "{}", message());
            kernels::appended()
        });
        for (wrong, status, word) in [
            (certkv_tensor { token_stride: ALL as u64 + 4, ..values }, CERTKV_UNSUPPORTED, "values: token_stride"),
            (certkv_tensor { token_stride: 1 << 32, ..values }, CERTKV_UNSUPPORTED, "values: token_stride"),
            (
                certkv_tensor { token_stride: ALL as u64, head_stride: DIM as u64 + 4, ..values },
                CERTKV_UNSUPPORTED,
                "values: head_stride",
            ),
            (certkv_tensor { dtype: 77, ..values }, CERTKV_INVALID_ARGUMENT, "values->dtype"),
            (certkv_tensor { token_stride: WIDTH as u64 - 8, ..values }, CERTKV_SHAPE, "values: rows"),
            (certkv_tensor { data: (buffer.address() + 2) as *mut c_void, ..values }, CERTKV_MISALIGNED, "values"),
        ] {
            named(certkv_step_append_tensors(step, 0, &keys, &wrong), status, word);
        }
        assert_eq!(certkv_step_finish(step), CERTKV_OK, "{}", message());
        told
    }
}

#[test]
fn slices_of_a_fused_buffer_reach_the_launch() {
    let (fake, config, _turn) = alone();
    let cache = Cache::new(&config);
    let ids = [cache.create(), cache.create()];
    let gpu = Gpu::open(0).unwrap();
    let buffer = DeviceBuffer::new(&gpu, 2 * 4 * ALL).unwrap();
    let at = |first: usize| buffer.address() + 2 * first as u64;
    let told = |strides: [u64; 2]| {
        let want = [(at(Q), [strides[0], DIM as u64]), (at(Q + WIDTH), [strides[1], DIM as u64])];
        fused(&cache, ids, &buffer, strides)
            .iter()
            .all(|told| told.map(|(at, stride)| (at, [stride.token, stride.head].map(u64::from))) == want)
    };
    let all = ALL as u64;
    assert!(told([all, all]) && told([WIDTH as u64 + 8, 2 * all]));
    // Planted: a launch of rows that follow each other.
    kernels::plant(kernels::Plant::OneStride);
    assert!(!told([all, all]), "another stride was not seen");
    kernels::plant(kernels::Plant::Nothing);
    // What 0 stands for.
    assert_eq!(fused(&cache, ids, &buffer, [0, 0])[0].map(|(_, stride)| stride.token), [WIDTH as u32; 2]);
    assert_eq!(fake.violations(), 0, "{}", fake.last_violation());
}

#[test]
fn moves_are_told_while_a_step_has_the_cache() {
    let (_fake, config, _turn) = alone();
    let silent = Cache::new(&config);
    assert_eq!(moves(&silent, 0).unwrap_err(), CERTKV_UNSUPPORTED);
    drop(silent);
    let cache = Cache::new(&certkv_config { move_events: 3, ..config });
    let a = cache.create();
    append(&cache, a, 2 * BLOCK);
    let (out, back) = (swap_out(&cache, a).unwrap(), swap_in(&cache, a).unwrap());
    let step = cache.begin(a, 1).unwrap();
    let (told, said) = moves(&cache, 0).unwrap();
    assert_eq!((told.len(), said.lost, said.next, said.newest), (3, 1, 4, 4));
    let kinds: Vec<_> = told.iter().map(|event| (event.number, event.kind, event.block)).collect();
    assert_eq!(
        kinds,
        [(1, CERTKV_MOVE_SWAPPED_OUT, 1), (2, CERTKV_MOVE_SWAPPED_IN, 0), (3, CERTKV_MOVE_SWAPPED_IN, 1)]
    );
    assert!(told.iter().all(|event| (event.sequence, event.layer, event.layers) == (a, 0, LAYERS)));
    assert_eq!((out, told[1].bytes + told[2].bytes), (back, back));
    assert_eq!(moves(&cache, 9).unwrap_err(), CERTKV_INVALID_ARGUMENT);
    // SAFETY: a live handle.
    assert_eq!(unsafe { certkv_step_abort(step) }, CERTKV_OK);
}

#[test]
fn what_a_gpu_has_no_kernels_for_is_named() {
    let (_fake, config, _turn) = alone();
    kernels::begin("k8-v4g32-b16");
    let mut cache = ptr::dangling_mut();
    let mut refused = |config: &certkv_config| {
        // SAFETY: a whole configuration and a local.
        let status = unsafe { certkv_cache_create(config, &mut cache) };
        assert!(cache.is_null());
        status
    };
    let levels = [c"t8-v8g64-b16", c"t4-v4g64-b16"].map(|format| certkv_level { format: format.as_ptr(), tokens: 160 });
    // SAFETY: integers and floats, for which zero bits are a value.
    let mut control: certkv_control = unsafe { core::mem::zeroed() };
    // SAFETY: the struct has this size.
    assert_eq!(unsafe { certkv_control_init(&mut control, size_of::<certkv_control>() as u32) }, CERTKV_OK);
    for (config, status, word) in [
        (
            certkv_config { format: c"ctq4-v4g32-b16".as_ptr(), ..config },
            CERTKV_INVALID_ARGUMENT,
            "config->calibration",
        ),
        (certkv_config { format: c"s1-v4g32-b16".as_ptr(), ..config }, CERTKV_INVALID_ARGUMENT, "config->calibration"),
        (certkv_config { move_events: (1 << 24) + 1, ..config }, CERTKV_INVALID_ARGUMENT, "config->move_events"),
        // Beside what the configuration at hand has.
        (
            certkv_config { chunk_tokens: 0, levels_by_head: 1, ..leveled(&levels, &config) },
            CERTKV_UNSUPPORTED,
            "config->levels_by_head",
        ),
        (certkv_config { control: &control, ..config }, CERTKV_INVALID_ARGUMENT, "config->control"),
    ] {
        named(refused(&config), status, word);
    }
    let cache = Cache::new(&config);
    let (a, mut level) = (cache.create(), 7);
    // SAFETY: a live handle and a local.
    unsafe {
        named(certkv_sequence_level(cache.0, a, 0, 0, &mut level), CERTKV_LEVEL, "not full");
        named(certkv_sequence_change_level(cache.0, a, 0, 0, 1), CERTKV_LEVEL, "not full");
        // Nobody decides.
        assert_eq!(certkv_sequence_control(cache.0, a, ptr::null_mut()), CERTKV_OK);
        let mut plan = certkv_level_plan { struct_size: size_of::<certkv_level_plan>() as u32, ..Default::default() };
        let planned = certkv_sequence_plan_levels(cache.0, a, 0.05, 0, ptr::null_mut(), 0, &mut plan);
        named(planned, CERTKV_INVALID_ARGUMENT, "config->control");
    }
    assert_eq!(level, 7);
}

/// Levels of 160 tokens each, of formats with the block size of the tests' cache.
fn leveled(levels: &[certkv_level; 2], config: &certkv_config) -> certkv_config {
    certkv_config { format: ptr::null(), levels: levels.as_ptr(), n_levels: 2, ..*config }
}

#[test]
fn blocks_have_levels_that_smartkv_decides() {
    let (_fake, config, _turn) = alone();
    kernels::begin("k8-v4g32-b16");
    let levels = [c"t8-v8g64-b16", c"t4-v4g64-b16"].map(|format| certkv_level { format: format.as_ptr(), tokens: 160 });
    // SAFETY: integers and floats, for which zero bits are a value.
    let mut control: certkv_control = unsafe { core::mem::zeroed() };
    // SAFETY: the struct has this size.
    assert_eq!(unsafe { certkv_control_init(&mut control, size_of::<certkv_control>() as u32) }, CERTKV_OK);
    // Between the two levels.
    control.bytes_per_token = 420.0;
    let config = certkv_config {
        max_tokens: 10 * BLOCK,
        max_context: 9 * BLOCK,
        control: &control,
        ..leveled(&levels, &config)
    };
    let cache = Cache::new(&config);
    let a = cache.create();
    append(&cache, a, 4 * BLOCK + 3);
    let level_of = |layer, block| {
        let mut level = 9;
        // SAFETY: a live handle and a local.
        assert_eq!(unsafe { certkv_sequence_level(cache.0, a, layer, block, &mut level) }, CERTKV_OK, "{}", message());
        level
    };
    // SAFETY: a live handle.
    unsafe {
        assert_eq!(certkv_sequence_change_level(cache.0, a, 1, 0, 1), CERTKV_OK, "{}", message());
        assert_eq!(certkv_sequence_change_head_level(cache.0, a, 1, 0, 1, 1), CERTKV_OK, "{}", message());
        named(certkv_sequence_change_level(cache.0, a, 1, 0, 2), CERTKV_LEVEL, "no such level");
        named(certkv_sequence_change_head_level(cache.0, a, 1, 99, 1, 1), CERTKV_SHAPE, "kv_head");
    }
    assert_eq!([0, 1, 2].map(|block| level_of(1, block)), [1, 1, 0]);
    // What a step leaves, and what is made of it.
    let step = attended(&cache, a);
    // SAFETY: live handles; a step has the cache.
    unsafe {
        named(certkv_sequence_control(cache.0, a, ptr::null_mut()), CERTKV_BUSY_STEP, "one step");
        assert_eq!(certkv_step_finish(step), CERTKV_OK, "{}", message());
    }
    let mut told: Vec<u64> = Vec::new();
    unsafe extern "C" fn tell(user: *mut c_void, entry: *const certkv_control_entry) {
        // SAFETY: what the call below gave, and an entry that lives as long as this call.
        let (told, entry) = unsafe { (&mut *user.cast::<Vec<u64>>(), &*entry) };
        // Masses stay on the GPU; the first decision is by their scores.
        assert!(entry.attention.is_null() && !entry.scores.is_null() && entry.drift_moved.is_nan());
        assert_eq!(entry.scored, entry.blocks);
        told.push(entry.blocks);
    }
    let mut done = certkv_controlled { struct_size: size_of::<certkv_controlled>() as u32, ..Default::default() };
    let user = (&raw mut told).cast();
    // SAFETY: a live handle, a function that takes `user`, and a whole struct.
    let status = unsafe { certkv_sequence_control_logged(cache.0, a, Some(tell), user, &mut done) };
    assert_eq!(status, CERTKV_OK, "{}", message());
    assert_eq!((told, done.decided), (vec![4; LAYERS as usize], u64::from(LAYERS)));
    assert!(done.changed > 0 && done.failed + done.refused == 0, "{done:?}");
}

/// A step of one token, attended in every layer.
fn attended(cache: &Cache, sequence: certkv_sequence) -> *mut certkv_step {
    let step = cache.begin(sequence, 1).unwrap();
    for layer in 0..LAYERS {
        rows(step, layer);
        let (queries, mut out) = ([0.5f32; Q], [0f32; Q]);
        let (from, to) = (queries.as_ptr(), out.as_mut_ptr());
        // SAFETY: every buffer has the elements that are given with it.
        let done =
            unsafe { certkv_step_attend(step, layer, from, to, Q as u64, ptr::null_mut(), 0, CERTKV_SPACE_HOST) };
        assert_eq!((done, out), (CERTKV_OK, queries), "{}", message());
    }
    step
}

#[test]
fn levels_are_planned_by_what_they_lose() {
    let (_fake, config, _turn) = alone();
    kernels::begin("k8-v4g32-b16");
    let levels = [c"t8-v8g64-b16", c"t4-v4g64-b16"].map(|format| certkv_level { format: format.as_ptr(), tokens: 160 });
    // SAFETY: integers and floats, for which zero bits are a value.
    let mut retention: certkv_retention = unsafe { core::mem::zeroed() };
    // SAFETY: the struct has this size.
    assert_eq!(unsafe { certkv_retention_init(&mut retention, size_of::<certkv_retention>() as u32) }, CERTKV_OK);
    retention.bytes_per_token = 420.0;
    let config = certkv_config {
        max_tokens: 10 * BLOCK,
        max_context: 9 * BLOCK,
        retention: &retention,
        ..leveled(&levels, &config)
    };
    let cache = Cache::new(&config);
    let a = cache.create();
    append(&cache, a, 4 * BLOCK + 3);
    let plan = || {
        let mut plan = certkv_level_plan { struct_size: size_of::<certkv_level_plan>() as u32, ..Default::default() };
        let mut of = [9u32; 4 * LAYERS as usize];
        // SAFETY: a live handle, and so many levels.
        let planned = unsafe {
            certkv_sequence_plan_levels(cache.0, a, 0.5, u64::MAX, of.as_mut_ptr(), of.len() as u64, &mut plan)
        };
        (planned, plan.planned, plan.blocks, of)
    };
    // Nothing was seen behind a prompt.
    assert_eq!(plan(), (CERTKV_OK, 0, 0, [9; 4 * LAYERS as usize]));
    let step = attended(&cache, a);
    assert_eq!(plan().0, CERTKV_BUSY_STEP, "{}", message());
    // SAFETY: a live handle.
    assert_eq!(unsafe { certkv_step_finish(step) }, CERTKV_OK, "{}", message());
    let (planned, there, blocks, of) = plan();
    assert_eq!((planned, there, blocks), (CERTKV_OK, 1, 4), "{}", message());
    assert!(of.iter().all(|level| *level < 2), "{of:?}");
    // It may be set as it is.
    let mut set = certkv_controlled { struct_size: size_of::<certkv_controlled>() as u32, ..Default::default() };
    // SAFETY: a live handle, and so many levels.
    unsafe {
        assert_eq!(certkv_sequence_set_levels(cache.0, a, of.as_ptr(), of.len() as u64, &mut set), CERTKV_OK);
        let moved = of.iter().filter(|level| **level > 0).count() as u64;
        assert_eq!((set.changed, set.refused + set.failed), (moved, 0), "{}", message());
        for (at, wanted) in of.iter().enumerate() {
            let mut level = 9;
            let (layer, block) = (at as u32 / 4, at as u64 % 4);
            assert_eq!(certkv_sequence_level(cache.0, a, layer, block, &mut level), CERTKV_OK);
            assert_eq!(level, *wanted, "layer {layer}, block {block}");
        }
    }
    // And who decides moves them.
    let mut done = certkv_controlled { struct_size: size_of::<certkv_controlled>() as u32, ..Default::default() };
    // SAFETY: a live handle and a whole struct.
    assert_eq!(unsafe { certkv_sequence_control(cache.0, a, &mut done) }, CERTKV_OK, "{}", message());
    assert!(done.decided > 0 && done.failed == 0, "{done:?}");
}
