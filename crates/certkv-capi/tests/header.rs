//! `include/certkv.h` is what the crate exports, and every C and C++ compiler mode takes it.
mod common;
use common::{install, note, program, root, run, scratch, with};
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

const STANDARDS: [&str; 6] = ["c99", "c11", "c17", "c++14", "c++17", "c++20"];

const OPENING: &str = "\
/* certkv: certified, paged, compressed KV cache for decode attention. C interface, host memory and GPUs.
 *
 * Generated from crates/certkv-capi; do not edit. CERTKV_WRITE_HEADER=1 cargo test -p certkv-capi writes it anew.
 *
 * Results. Every call that can fail returns a certkv_status; certkv_last_error has the text. On error nothing changed,
 * unless the call says otherwise. Nothing is printed, thrown or aborted.
 * An output that is not certified is no error: its certificate says so.
 * Handles and sequences. A handle or sequence that is stale, foreign or made up is refused with a status.
 * Memory. Pointers are borrowed for the length of the call unless the call says otherwise. Buffers must have the size
 * that is given with them: this cannot be checked.
 * Structs that may grow start with struct_size. Reserved fields are 0.
 * Threads. All calls may come from any thread and run concurrently; one step takes one call at a time.
 * Callbacks. There are three kinds: the functions of a host's own store (certkv_store_callbacks), on threads of the library, a log
 * (certkv_log_callback) and its memory for pages (certkv_allocator), on the host's.
 * Numbers. Calls compute in the floating-point environment that C begins with, whatever the thread's is (rounded otherwise, without
 * subnormal numbers), which is its own again when they return. A host's store and its memory for pages are called in it, too.
 * Stream, Capture. Stream says what a call enqueues where; a cache on a GPU has a stream of its own, which
 * certkv_step_after_stream and certkv_step_before_stream order with the caller's. Capture says whether a call may be made
 * while a CUDA graph is captured.
 */";

fn version_macros() -> String {
    let (major, minor, patch) =
        (env!("CARGO_PKG_VERSION_MAJOR"), env!("CARGO_PKG_VERSION_MINOR"), env!("CARGO_PKG_VERSION_PATCH"));
    let mut text = String::from("\n/* Version of this header; certkv_version() is that of the library. */\n");
    for (name, value) in [("MAJOR", major), ("MINOR", minor), ("PATCH", patch)] {
        let _ = writeln!(text, "#define CERTKV_VERSION_{name} {value}");
    }
    text.push_str(
        "#define CERTKV_VERSION_NUMBER \\\n  \
         (CERTKV_VERSION_MAJOR * 1000000 + CERTKV_VERSION_MINOR * 1000 + CERTKV_VERSION_PATCH)\n",
    );
    let _ = write!(text, "#define CERTKV_VERSION_STRING \"{}\"", env!("CARGO_PKG_VERSION"));
    text
}

fn generated() -> String {
    let mut config = cbindgen::Config {
        language: cbindgen::Language::C,
        cpp_compat: true,
        include_guard: Some("CERTKV_H".into()),
        no_includes: true,
        sys_includes: vec!["stdint.h".into()],
        header: Some(OPENING.into()),
        after_includes: Some(version_macros()),
        style: cbindgen::Style::Both,
        documentation_style: cbindgen::DocumentationStyle::Doxy,
        ..Default::default()
    };
    config.export.include = vec!["certkv_status".into()];
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut builder = cbindgen::Builder::new().with_config(config);
    for file in [
        "version",
        "status",
        "log",
        "error",
        "callbacks",
        "store",
        "window",
        "allocator",
        "calibration",
        "level",
        "control",
        "control_log",
        "retention",
        "bound_budget",
        "scales",
        "config",
        "machine",
        "cache",
        "sequence",
        "prefetch",
        "swap",
        "save",
        "prefix",
        "offload",
        "events",
        "moves",
        "scrub",
        "admit",
        "certificate",
        "step",
        "tensor",
        "tolerance",
        "capture",
        "ring",
        "statistics",
        "snapshot",
        "metrics",
        "plan",
    ] {
        builder = builder.with_src(source.join(file).with_extension("rs"));
    }
    let mut text = Vec::new();
    builder.generate().expect("cbindgen reads the crate").write(&mut text);
    String::from_utf8(text).expect("a header in UTF-8")
}

fn header() -> PathBuf {
    root().join("include/certkv.h")
}

#[test]
fn the_committed_header_is_the_generated_one() {
    let generated = generated();
    if std::env::var_os("CERTKV_WRITE_HEADER").is_some_and(|value| value == "1") {
        fs::write(header(), &generated).expect("the header is written");
    }
    let committed = fs::read_to_string(header()).unwrap_or_default();
    for (at, (committed, generated)) in committed.lines().zip(generated.lines()).enumerate() {
        assert_eq!(committed, generated, "line {} of include/certkv.h; CERTKV_WRITE_HEADER=1 writes it anew", at + 1);
    }
    assert_eq!(committed.lines().count(), generated.lines().count(), "CERTKV_WRITE_HEADER=1 writes include/certkv.h");
}

/// A file that the header is not made from would be missed otherwise.
#[test]
fn every_exported_function_is_declared() {
    let symbols = fs::read_to_string(root().join("ffi-tests/symbols.txt")).unwrap();
    let header = generated();
    let declared = |name: &str| header.contains(&format!(" {name}(")) || header.contains(&format!("*{name}("));
    let missing: Vec<&str> = symbols.lines().filter(|name| !declared(name)).collect();
    assert!(missing.is_empty() && !declared("certkv_step_begi") && symbols.lines().count() > 20, "{missing:?}");
}

/// What the doc comment of every function has, in this order.
const SECTIONS: [&str; 4] = ["Threads:", "Stream:", "Capture:", "Errors:"];
/// Words by which `Errors` says what has changed.
const CHANGED: [&str; 13] = [
    "unchanged",
    "othing changed",
    "othing happened",
    "othing was ",
    "othing is held",
    "is NULL if it can be written",
    "is as it was",
    "are as they were",
    "as it was",
    "rolled back",
    "as certkv_",
    "is where it was",
    "stays",
];

/// Functions of a header that lack a section, or do not say what has changed on error; and how many there are.
fn undocumented(header: &str) -> (Vec<String>, usize) {
    let (mut comment, mut inside, mut lacking, mut functions) = (String::new(), false, Vec::new(), 0);
    for line in header.lines() {
        if line.starts_with("/**") {
            (inside, comment) = (true, String::new());
        }
        if inside {
            comment += line.trim_start_matches([' ', '*', '/']);
            comment.push(' ');
            inside = !line.ends_with("*/");
            continue;
        }
        let Some((name, _)) = line.split_once('(').filter(|_| !line.starts_with([' ', '#', '/', '}'])) else {
            continue;
        };
        let Some(name) = name.rsplit([' ', '*']).next().filter(|name| name.starts_with("certkv_")) else { continue };
        functions += 1;
        let places = SECTIONS.map(|section| comment.find(section));
        let errors = places[3].map_or("", |at| &comment[at..]);
        let silent = errors.starts_with("Errors: none") || CHANGED.iter().any(|words| errors.contains(words));
        if places.contains(&None) || !places.is_sorted() || !silent {
            lacking.push(name.to_owned());
        }
        comment.clear();
    }
    (lacking, functions)
}

#[test]
fn every_function_says_where_it_may_be_called_and_what_an_error_leaves() {
    let text = fs::read_to_string(header()).expect("include/certkv.h");
    let symbols = fs::read_to_string(root().join("ffi-tests/symbols.txt")).unwrap().lines().count();
    assert_eq!(undocumented(&text), (Vec::new(), symbols));
    // A section that is gone, two in another order, and an error that says nothing of its effects are seen.
    let (start, end) = (text.find("certkv_sequence_fork(").unwrap(), text.find("certkv_sequence_truncate(").unwrap());
    let changed = |from: &str, to: &str| {
        let part = text[start..end].replace(from, to);
        assert_ne!(part, text[start..end], "{from}");
        undocumented(&format!("{}{part}{}", &text[..start], &text[end..])).0
    };
    for (from, to) in [("Capture:", "Captured:"), ("Threads:", "Stream: Threads:"), ("othing changed", "othing")] {
        assert_eq!(changed(from, to), ["certkv_sequence_truncate"], "{from}");
    }
}

#[test]
fn every_macro_and_type_has_the_prefix() {
    let text = fs::read_to_string(header()).expect("include/certkv.h");
    for line in text.lines() {
        if let Some(name) = line.strip_prefix("#define ") {
            assert!(name.starts_with("CERTKV_"), "{line}");
        }
        if let Some(end) = line.strip_prefix("} ").and_then(|end| end.strip_suffix(';')) {
            assert!(end.starts_with("certkv_"), "{line}");
        }
    }
}

#[test]
fn every_compiler_mode_takes_the_header() {
    let dir = scratch("header_matrix");
    let once = "#include <certkv.h>\nint certkv_test(void);\nint certkv_test(void) { return CERTKV_OK; }\n";
    let twice = format!("#include <certkv.h>\n{once}");
    let late = format!("#include <stddef.h>\n#include <stdio.h>\n#include <string.h>\n{once}");
    // The matrix can fail: a warning is an error in it.
    let bad = dir.join("bad.c");
    fs::write(&bad, "#include <certkv.h>\nstatic int unused(void) { return CERTKV_OK; }\n").expect("a test source");
    for (c, cpp) in [("gcc", "g++"), ("clang", "clang++")] {
        if [c, cpp].iter().any(|name| Command::new(name).arg("--version").output().is_err()) {
            assert_ne!(c, "gcc", "the tests of the C ABI need gcc and g++");
            note(&format!("certkv.h: {c} and {cpp} are not both there: the header was not compiled with them"));
            continue;
        }
        let mut compiled = 0;
        for standard in STANDARDS {
            let (compiler, extension) = if standard.starts_with("c++") { (cpp, "cpp") } else { (c, "c") };
            for (name, text) in [("once", once), ("twice", &twice), ("late", &late)] {
                let source = dir.join(format!("{name}-{standard}.{extension}"));
                fs::write(&source, text).expect("a test source");
                run(with(compiler, standard).arg("-c").arg(&source).arg("-o").arg(source.with_extension("o")));
                compiled += 1;
            }
            // Alone, as a file of its own.
            let language = if extension == "c" { "c" } else { "c++" };
            run(with(compiler, standard)
                .args(["-x", language, "-fsyntax-only", "-include"])
                .arg(header())
                .arg("/dev/null"));
        }
        assert_eq!(compiled, 18);
        assert!(!common::output(with(c, "c99").arg("-c").arg(&bad).arg("-o").arg(dir.join("bad.o"))).status.success());
    }
}

macro_rules! layout {
    ($text:ident: $($name:ident { $($field:ident),* $(,)? })*) => {$(
        let _ = writeln!($text, "  CHECK(sizeof({0}) == {1});", stringify!($name), size_of::<certkv_c::$name>());
        $(let _ = writeln!($text, "  CHECK(offsetof({0}, {1}) == {2});", stringify!($name), stringify!($field),
            core::mem::offset_of!(certkv_c::$name, $field));)*
    )*};
}

#[test]
fn both_sides_agree_on_every_offset_and_version() {
    let dir = scratch("header_layout");
    install(&dir);
    let mut text = String::from(
        "#include <certkv.h>\n#include <stddef.h>\n#include <stdio.h>\n#include <string.h>\n\
         #define CHECK(x) do { checks++; if (!(x)) { printf(\"%s\\n\", #x); failed++; } } while (0)\n\
         int main(void) {\n  int checks = 0, failed = 0;\n",
    );
    layout!(text:
        certkv_error_info { struct_size, status, cuda_result, reserved, message }
        certkv_config {
            struct_size, layers, q_heads, kv_heads, head_dim, store, scale, threads, format, max_tokens, device_budget,
            host_budget, scratch_keys, scratch_values, tolerance, max_sequences, policy, device, certificate_ring,
            max_context, kernels, swap_tokens, prefix_units, prefix_secret, prefix_eviction, erase, spill_store,
            spill_host_tokens, spill_budget, spill_workers, spill_in_flight, spill_deadline_ms, n_windows, windows,
            prefix_events, window_slack, allocator, chunk_tokens, calibration,
            move_events, levels, control, scales, n_levels, plan_apart, log, retention,
            bound_budget, row_share, calibrations, n_calibrations, levels_by_head, protect_sinks, protect_recent,
            prefix_low, prefix_high,
        }
        certkv_log { struct_size, level, callback, user }
        certkv_calibration_info {
            struct_size, layers, q_heads, kv_heads, head_dim, rotary, interleaved, centred, balanced, tier, tokens,
            model, text, digest,
        }
        certkv_capabilities { struct_size, cpu, gpus, cuda }
        certkv_gpu_info {
            struct_size, supported, capability_major, capability_minor, multiprocessors, driver, memory, memory_free, name,
        }
        certkv_prepared { struct_size, reserved, kernels, compiled }
        certkv_prefetched { struct_size, reserved, wanted, fetched, left, bytes }
        certkv_window { tokens, sinks, chunk }
        certkv_level { format, tokens }
        certkv_control {
            struct_size, checks, bytes_per_token, points, keep_rank, alpha, drift, drift_moved, keep, keep_head, mix, life,
            protected_first, protected_last, interval, drift_every, gate_protect, gate_release,
        }
        certkv_controlled { struct_size, reserved, decided, below_floor, changed, refused, failed }
        certkv_control_entry {
            struct_size, layer, blocks, kept, heads, n_levels, levels, attention, loss, danger, bound_loss, bound_shrink,
            bound_cap, trigger, forced, wanted, bytes, bound, lacks, lacking, kv_head, scored, scores, drift_divergence,
            drift_moved,
        }
        certkv_retention {
            struct_size, measure, bytes_per_token, layer_bytes_per_token, keep, down, up, stick, gate_protect, gate_release,
            protected_first, protected_last, interval, cooldown, reserved, head_bytes_per_token,
        }
        certkv_bound_budget { struct_size, reserved, bytes_per_token, epsilon, gain, interval }
        certkv_level_plan { struct_size, planned, blocks, bytes, bound, lacks, lacking, reserved }
        certkv_scales_info { struct_size, layers, kv_heads, head_dim, percentile, tokens, model, text }
        certkv_allocator { struct_size, reserved, context, allocate, free }
        certkv_store_key { bytes }
        certkv_put_item { key, head, head_bytes, body, body_bytes, result, code }
        certkv_get_item { key, buffer, capacity, bytes, result, code }
        certkv_key_item { key, result, code }
        certkv_store_callbacks { struct_size, reserved, context, put, get, exists, remove, destroy }
        certkv_chunk { sequence, tokens }
        certkv_published_head { bound, tol, out_norm, status, rung, reserved }
        certkv_published_step { struct_size, layers, sequences, q_heads }
        certkv_published_memory { number, reserved, begun, done, sequences, layers, q_heads, rule }
        certkv_certificate {
            version, status, rung, cause, reserved8, bound, tol, out_norm, e_key, e_val, e_drop, e_arith, cap,
            candidate_e_key, candidate_e_val, candidate_e_drop, candidate_bound, promoted_keys, promoted_values,
            dropped, repairs, packed_bytes, scratch_bytes, host_bytes, reserved,
        }
        certkv_memory {
            struct_size, reserved, tokens, live_pages, packed, scratch, tables, host, reserved_packed, reserved_scratch,
            reserved_tables, reserved_host, device_limit, host_limit,
        }
        certkv_save_scope { struct_size, reserved, model, model_bytes, key }
        certkv_prefix_scope {
            struct_size, tolerance_class, domain, domain_bytes, model, model_bytes, adapter, adapter_bytes, salt,
            salt_bytes, first_position, marks, n_marks,
        }
        certkv_mark { at, what, what_bytes }
        certkv_tolerance { relative, absolute }
        certkv_tensor { struct_size, dtype, space, reserved, data, token_stride, head_stride }
        certkv_step_options { struct_size, policy, tolerance }
        certkv_requests { struct_size, reserved, count, tokens, scratch }
        certkv_requests_plan {
            struct_size, assumed, max_tokens, max_sequences, most, device_bytes, device_lacks, host_bytes, host_lacks,
        }
        certkv_scratch_use {
            empty, named, retiring, hits, misses, pending, evicted, invalidated, filled, refused, failed, filled_bytes,
        }
        certkv_publication { struct_size, stop, cached, added }
        certkv_prefix_event { number, kind, unit, marked, reserved, key, parent }
        certkv_damage { sequence, layer, kv_head, block, fault }
        certkv_scrubbed { struct_size, complete, pages, mended, damaged, busy }
        certkv_move_event { number, kind, layer, layers, block, sequence, page, bytes }
        certkv_events_read { struct_size, unit_tokens, read, lost, next, newest }
        certkv_class_use { used, reserved, peak }
        certkv_pool_use { reserved, peak, budget }
        certkv_page_use { free, live, retiring, worn }
        certkv_moves { done, bytes, refused, failed }
        certkv_snapshot {
            struct_size, reserved, sequences, busy, tokens, packed, scratch, tables, host, device_memory, host_memory,
            packed_pages, open_pages, host_pages, swap_pages, stores, copies, saves, restores, swap_outs, swap_ins,
            prefix_units, prefix_capacity, prefix_lookups, prefix_asked, prefix_hits, prefix_published, prefix_evicted,
            originals_resident, originals_stored, originals_spilled, originals_free, spills, fetches, records_deleted,
            record_delete_failures, records_doomed, disk, disk_memory, outputs_certified, outputs_exact,
            outputs_uncertified, outputs_failed, outputs_by_rung, prompt_outputs, read_packed, read_scratch, read_host,
            scratch_keys, scratch_values, waits, wait_nanoseconds, recodes, saturated,
        }
        certkv_plan {
            struct_size, assumed, packed, scratch, tables, host, device_bytes, device_budget, device_lacks, host_bytes,
            host_budget, host_lacks, later,
        }
    );
    // The sizes are part of the ABI: what changes them needs new names.
    for (name, size) in [
        ("certkv_error_info", 24),
        ("certkv_config", 360),
        ("certkv_log", 24),
        ("certkv_calibration_info", 144),
        ("certkv_capabilities", 16),
        ("certkv_gpu_info", 104),
        ("certkv_prepared", 24),
        ("certkv_prefetched", 40),
        ("certkv_published_memory", 96),
        ("certkv_window", 24),
        ("certkv_level", 16),
        ("certkv_control", 136),
        ("certkv_controlled", 48),
        ("certkv_control_entry", 168),
        ("certkv_retention", 112),
        ("certkv_bound_budget", 40),
        ("certkv_level_plan", 48),
        ("certkv_scales_info", 96),
        ("certkv_allocator", 32),
        ("certkv_store_key", 32),
        ("certkv_put_item", 72),
        ("certkv_get_item", 64),
        ("certkv_key_item", 40),
        ("certkv_store_callbacks", 56),
        ("certkv_chunk", 16),
        ("certkv_certificate", 160),
        ("certkv_memory", 104),
        ("certkv_published_head", 16),
        ("certkv_published_step", 16),
        ("certkv_save_scope", 32),
        ("certkv_prefix_scope", 96),
        ("certkv_mark", 24),
        ("certkv_step_options", 16),
        ("certkv_tensor", 40),
        ("certkv_tolerance", 16),
        ("certkv_requests", 32),
        ("certkv_requests_plan", 64),
        ("certkv_scratch_use", 96),
        ("certkv_publication", 24),
        ("certkv_prefix_event", 88),
        ("certkv_events_read", 40),
        ("certkv_move_event", 48),
        ("certkv_damage", 24),
        ("certkv_scrubbed", 40),
        ("certkv_class_use", 24),
        ("certkv_pool_use", 24),
        ("certkv_page_use", 32),
        ("certkv_moves", 32),
        ("certkv_snapshot", 1072),
        ("certkv_plan", 96),
        ("certkv_status", 4),
    ] {
        let _ = writeln!(text, "  CHECK(sizeof({name}) == {size});");
    }
    let version = env!("CARGO_PKG_VERSION");
    let mut parts = version.split(['.', '-', '+']);
    for name in ["MAJOR", "MINOR", "PATCH"] {
        let _ = writeln!(text, "  CHECK(CERTKV_VERSION_{name} == {});", parts.next().expect("three numbers"));
    }
    let _ = writeln!(text, "  CHECK(strcmp(CERTKV_VERSION_STRING, \"{version}\") == 0);");
    text.push_str("  CHECK(strcmp(CERTKV_VERSION_STRING, certkv_version()) == 0);\n");
    text.push_str("  CHECK(CERTKV_VERSION_NUMBER == certkv_version_number());\n");
    text.push_str("  printf(\"checks %d failed %d\\n\", checks, failed);\n  return failed != 0;\n}\n");
    let source = dir.join("layout.c");
    fs::write(&source, &text).expect("a test source");
    for standard in ["c99", "c++17"] {
        let said = run(&mut Command::new(program(&dir, standard, &source, &[])));
        let checks = text.matches("CHECK(").count() - 1;
        assert_eq!(said, format!("checks {checks} failed 0\n"));
    }
}
