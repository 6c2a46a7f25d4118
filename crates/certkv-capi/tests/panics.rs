//! Defects: a panic in any export is a status, what it passed through is refused from then on, and nothing reaches the caller's frames.
use certkv_c::certkv_status::*;
use certkv_c::*;
use certkv_core::fail;
use certkv_core::plant::{self, Bug};
use core::ffi::CStr;
use core::ptr;
use std::fs;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::Command;

/// NULL, 0, or the first of an enumeration, whatever the argument is.
fn nothing<T>() -> T {
    // SAFETY: arguments of exports are pointers, numbers, optional functions and `repr(C)` enumerations with a 0.
    unsafe { core::mem::zeroed() }
}

/// An export by name, and a call of it with nothing in every argument.
type Export = (&'static str, fn() -> certkv_status);

/// `(_, _) name, name;`: exports that return a status, by their number of arguments.
macro_rules! exports {
    ($($args:tt $($name:ident),*;)*) => { [$($(exports!(@ $name $args)),*),*] };
    (@ $name:ident ($($arg:tt),*)) => {
        (stringify!($name), || {
            // SAFETY: NULL and 0 are arguments that every export refuses.
            unsafe { $name($(exports!(- $arg)),*) }
        })
    };
    (- _) => { nothing() };
}

const EXPORTS: [Export; 82] = exports! {
    (_) certkv_cache_destroy, certkv_calibration_destroy, certkv_capabilities_describe, certkv_capture_destroy, certkv_last_error, certkv_ring_destroy, certkv_scales_destroy, certkv_step_abort, certkv_step_finish, certkv_store_destroy;
    (_, _) certkv_bound_budget_init, certkv_cache_create, certkv_cache_memory, certkv_cache_residue, certkv_cache_snapshot, certkv_calibration_describe, certkv_config_init, certkv_config_plan, certkv_control_init, certkv_gpu_describe, certkv_prepare, certkv_retention_init, certkv_ring_open, certkv_ring_published, certkv_scales_describe, certkv_sequence_create, certkv_sequence_release, certkv_step_after_stream, certkv_step_before_stream, certkv_step_number, certkv_step_plan, certkv_step_replayed, certkv_store_create, certkv_store_create_memory;
    (_, _, _) certkv_cache_evict_prefixes, certkv_calibration_open, certkv_config_plan_requests, certkv_log_set, certkv_scales_open, certkv_sequence_control, certkv_sequence_fork, certkv_sequence_is_swapped_out, certkv_sequence_length, certkv_sequence_prefetch, certkv_sequence_swap_in, certkv_sequence_swap_out, certkv_sequence_truncate, certkv_step_captured, certkv_step_publish, certkv_step_set_tolerances;
    (_, _, _, _) certkv_cache_admit, certkv_calibration_read, certkv_scales_read, certkv_sequence_restore, certkv_step_append_tensors, certkv_step_begin, certkv_step_certificates, certkv_store_open_files;
    (_, _, _, _, _) certkv_cache_moves, certkv_cache_prefix_key, certkv_ring_read, certkv_sequence_change_level, certkv_sequence_control_logged, certkv_sequence_level, certkv_sequence_save, certkv_sequence_set_levels, certkv_step_begin_with;
    (_, _, _, _, _, _) certkv_cache_cached_prefixes, certkv_cache_metrics, certkv_cache_publish, certkv_cache_scrub, certkv_sequence_change_head_level, certkv_sequence_create_from, certkv_sequence_head_level, certkv_step_attend_tensors;
    (_, _, _, _, _, _, _) certkv_cache_events, certkv_cache_import_prefix, certkv_sequence_plan_levels, certkv_step_append;
    (_, _, _, _, _, _, _, _) certkv_cache_export_prefix, certkv_cache_missing_prefix, certkv_step_attend;
};

/// Exports that return something else.
const VALUES: [&str; 3] = ["certkv_status_name", "certkv_version", "certkv_version_number"];

/// The names of all of them, from the sources.
fn exports() -> Vec<String> {
    let sources = fs::read_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("src")).expect("the sources");
    let texts = sources.map(|file| fs::read_to_string(file.expect("a file").path()).expect("a source"));
    let named = |after: &str| Some(after.split_once("fn ")?.1.split_once('(')?.0.to_owned());
    let mut names: Vec<String> = texts
        .flat_map(|text| text.split("#[unsafe(no_mangle)]").skip(1).filter_map(named).collect::<Vec<_>>())
        .collect();
    names.sort_unstable();
    names
}

/// Runs `call` with a defect at the `nth` place that can have one; whether the call came that far.
fn with_defect<T>(nth: u64, call: impl FnOnce() -> T) -> (T, bool) {
    fail::arm(Some(nth));
    let answer = call();
    let reached = fail::fired().is_some();
    fail::arm(None);
    (answer, reached)
}

fn last_error() -> String {
    let mut info: certkv_error_info = nothing();
    info.struct_size = size_of::<certkv_error_info>() as u32;
    // SAFETY: a struct of its own size; the text is valid until the next call.
    unsafe {
        assert_eq!(certkv_last_error(&mut info), CERTKV_OK);
        CStr::from_ptr(info.message).to_str().expect("UTF-8").to_owned()
    }
}

#[test]
fn a_panic_in_any_export_is_a_status() {
    let mut known: Vec<&str> = EXPORTS.iter().map(|(name, _)| *name).chain(VALUES).collect();
    known.sort_unstable();
    assert_eq!(known, exports(), "the table has every export");
    for (name, call) in EXPORTS {
        assert_eq!(with_defect(1, call), (CERTKV_PANIC, true), "{name}");
        if name != "certkv_last_error" {
            let said = last_error();
            assert!(said.starts_with("defect in certkv at ") && said.contains("capi.export"), "{name}: {said}");
        }
        // Without a defect nothing is one.
        assert_ne!(call(), CERTKV_PANIC, "{name}");
    }
    let (version, reached) = with_defect(1, || certkv_version());
    assert!(reached && !version.is_null());
    assert_eq!(with_defect(1, || certkv_version_number()), (0, true));
    let (name, reached) = with_defect(1, || certkv_status_name(0));
    assert!(reached && !name.is_null());
    let crossed = child_dies();
    println!(
        "GATE capi-panics executed={} failed=0 controls={}/1 seed=0x0",
        EXPORTS.len() + VALUES.len(),
        u8::from(crossed)
    );
    assert!(crossed, "planted B24 was not seen");
}

/// Set in the process that is to die.
const CHILD: &str = "CERTKV_TEST_PANICS_CHILD";

/// Whether a process whose guard does not catch ends by `abort`: so a panic that crossed would be seen.
fn child_dies() -> bool {
    let this = std::env::current_exe().expect("this program");
    let mut child = Command::new(this);
    child.args(["--exact", "planted_panics_cross", "--nocapture"]).env(CHILD, "1");
    let ended = child.output().expect("a process").status;
    ended.signal() == Some(libc::SIGABRT)
}

/// Does nothing but in the process that [`child_dies`] begins.
#[test]
fn planted_panics_cross() {
    if std::env::var_os(CHILD).is_none() {
        return;
    }
    plant::arm(Some(Bug::B24));
    with_defect(1, || certkv_version_number());
    println!("nothing crossed");
}

/// A cache with a sequence of three tokens and, at times, an open step.
struct World {
    cache: *mut certkv_cache,
    sequence: certkv_sequence,
    step: *mut certkv_step,
}

impl World {
    fn new(open: bool) -> Self {
        let mut world = Self { cache: ptr::null_mut(), sequence: nothing(), step: ptr::null_mut() };
        let mut config: certkv_config = nothing();
        // SAFETY: structs and variables of the sizes that are said, live handles.
        unsafe {
            assert_eq!(certkv_config_init(&mut config, size_of::<certkv_config>() as u32), CERTKV_OK);
            (config.layers, config.q_heads, config.kv_heads, config.head_dim) = (1, 2, 1, 64);
            (config.max_tokens, config.max_sequences, config.swap_tokens) = (160, 3, 64);
            (config.prefix_units, config.format) = (2, c"k8-v4g64-b16".as_ptr());
            assert_eq!(certkv_cache_create(&config, &mut world.cache), CERTKV_OK);
            assert_eq!(certkv_sequence_create(world.cache, &mut world.sequence), CERTKV_OK);
            for tokens in [3, 1].into_iter().take(1 + usize::from(open)) {
                let chunk = certkv_chunk { sequence: world.sequence, tokens };
                assert_eq!(certkv_step_begin(world.cache, &chunk, 1, &mut world.step), CERTKV_OK);
                if tokens == 3 {
                    let rows = [0.5f32; 3 * 64];
                    let rows = rows.as_ptr().cast();
                    assert_eq!(
                        certkv_step_append(world.step, 0, rows, rows, 3 * 64, CERTKV_F32, CERTKV_SPACE_HOST),
                        CERTKV_OK
                    );
                    assert_eq!(certkv_step_finish(world.step), CERTKV_OK);
                }
            }
        }
        world
    }

    /// Ends it: works whatever has happened.
    fn end(self, open: bool) {
        // SAFETY: handles, which are looked up.
        unsafe {
            if open {
                assert_eq!(certkv_step_abort(self.step), CERTKV_OK);
            }
            assert_eq!(certkv_cache_destroy(self.cache), CERTKV_OK);
        }
    }
}

/// A struct that says its size.
macro_rules! sized {
    ($kind:ident) => {{
        let mut given: $kind = nothing();
        given.struct_size = size_of::<$kind>() as u32;
        given
    }};
}

/// Calls on a cache; its sequence ends with the last.
const ON_CACHE: [&str; 14] = [
    "create",
    "fork",
    "length",
    "truncate",
    "swap out",
    "swap in",
    "is swapped out",
    "evict",
    "control",
    "memory",
    "snapshot",
    "admit",
    "begin",
    "release",
];
/// Calls on an open step.
const ON_STEP: [&str; 6] = ["append", "attend", "certificates", "number", "tolerances", "finish"];

impl World {
    /// A call with arguments that would do.
    fn call(&self, what: &str) -> certkv_status {
        let Self { cache, sequence, step } = *self;
        let row = [0.5f32; 128];
        let (chunk, mut out) = (certkv_chunk { sequence, tokens: 1 }, [0.0f32; 128]);
        let (side, mut certificates) = (row.as_ptr().cast(), [nothing(), nothing()]);
        // SAFETY: structs and arrays of the sizes that are said, handles and numbers that are looked up.
        unsafe {
            match what {
                "create" => certkv_sequence_create(cache, &mut 0),
                "fork" => certkv_sequence_fork(cache, sequence, &mut 0),
                "length" => certkv_sequence_length(cache, sequence, &mut 0),
                "truncate" => certkv_sequence_truncate(cache, sequence, 2),
                "swap out" => certkv_sequence_swap_out(cache, sequence, &mut 0),
                "swap in" => certkv_sequence_swap_in(cache, sequence, &mut 0),
                "is swapped out" => certkv_sequence_is_swapped_out(cache, sequence, &mut 0),
                "evict" => certkv_cache_evict_prefixes(cache, 1, &mut 0),
                "control" => certkv_sequence_control(cache, sequence, &mut sized!(certkv_controlled)),
                "memory" => certkv_cache_memory(cache, &mut sized!(certkv_memory)),
                "snapshot" => certkv_cache_snapshot(cache, &mut sized!(certkv_snapshot)),
                "admit" => certkv_cache_admit(cache, sequence, 1, &mut sized!(certkv_admission)),
                "begin" => certkv_step_begin(cache, &chunk, 1, &mut ptr::null_mut()),
                "release" => certkv_sequence_release(cache, sequence),
                "append" => certkv_step_append(step, 0, side, side, 64, CERTKV_F32, CERTKV_SPACE_HOST),
                "attend" => {
                    let to = out.as_mut_ptr();
                    certkv_step_attend(step, 0, row.as_ptr(), to, 128, ptr::null_mut(), 0, CERTKV_SPACE_HOST)
                }
                "certificates" => certkv_step_certificates(step, 0, certificates.as_mut_ptr(), 2),
                "number" => certkv_step_number(step, &mut 0),
                "tolerances" => certkv_step_set_tolerances(step, ptr::null(), 0),
                "finish" => certkv_step_finish(step),
                other => unreachable!("{other}"),
            }
        }
    }
}

/// A defect inside a call on a cache, or on a step of it: from then on every call says so and does nothing, but for those that end them.
#[test]
fn what_a_panic_passed_through_is_inert() {
    let (mut executed, mut reached) = (0, 0);
    for open in [false, true] {
        let defects = if open { &ON_STEP[..] } else { &ON_CACHE };
        for defect in defects {
            let world = World::new(open);
            let (answer, inside) = with_defect(2, || world.call(defect));
            assert_eq!((answer, inside), (CERTKV_PANIC, true), "{defect}");
            reached += 1;
            for what in ON_CACHE.iter().chain(if open { &ON_STEP[..] } else { &[] }) {
                assert_eq!(world.call(what), CERTKV_POISONED, "{what} after a defect in {defect}");
                executed += 1;
            }
            world.end(open);
        }
    }
    // Without one they do what they are asked, or refuse it for another reason.
    let mut well = 0;
    for open in [false, true] {
        let calls = if open { &ON_STEP[..] } else { &ON_CACHE };
        let world = World::new(open);
        for what in calls {
            let answer = world.call(what);
            assert!(![CERTKV_PANIC, CERTKV_POISONED].contains(&answer), "{what}");
            well += usize::from(answer == CERTKV_OK);
        }
        // The step that was begun or finished is no handle any more.
        let world = World { step: ptr::null_mut(), ..world };
        assert_eq!(world.call("memory"), CERTKV_OK);
    }
    println!(
        "GATE capi-poison executed={executed} failed=0 controls={reached}/20 seed=0x0, {well} of 20 do well otherwise"
    );
    assert!(well >= 16, "{well}");
}
