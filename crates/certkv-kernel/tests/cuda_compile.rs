//! Kernels from source to machine code through the real compiler. `CERTKV_TEST_NVRTC` may name the library; a machine
//! without NVRTC skips with a line that says so. All variants on all architectures are the gate `.ci/kernels`.
use certkv_core::{Geometry, RecordLayout};
use certkv_device::cuda::{CudaError, nvrtc};
use certkv_kernel::cuda::{Ahead, Arch, CompileError, Compiler, Origin, Recipe, Variant, Verb, seal};
use std::fs;

/// Whether NVRTC is there; prints what is skipped otherwise.
fn nvrtc_or_skip(test: &str) -> bool {
    if let Some(path) = std::env::var_os("CERTKV_TEST_NVRTC") {
        nvrtc::preload(path.as_ref()).expect("CERTKV_TEST_NVRTC names a library that loads");
    }
    match nvrtc::version() {
        Ok(_) => true,
        Err(CudaError::NvrtcMissing) => {
            println!("SKIPPED {test}: no NVRTC on this machine");
            false
        }
        Err(error) => panic!("{error}"),
    }
}

fn variant(group: usize) -> Variant {
    let geometry = Geometry::new(1, group, 1, 64).expect("a geometry");
    let layout = RecordLayout::new(&geometry, "k8-v4g32-b32".parse().expect("a format")).expect("a layout");
    Variant::new(layout, group, Arch::Sm90a).expect("a variant")
}

#[test]
fn compiled_code_is_cached_and_serves_as_code_made_ahead_of_time() {
    let (variant, verb) = (variant(4), Verb::Attend);
    if !nvrtc_or_skip("the cache of compiled code") {
        let error = Compiler::new().cubin(&variant, verb).expect_err("nothing can make code");
        assert!(matches!(error, CompileError::NoCode { .. }), "{error}");
        return;
    }
    let folder = std::env::temp_dir().join(format!("certkv-compile-{}", std::process::id()));
    let compiler = Compiler::new().with_cache(&folder);
    let made = compiler.cubin(&variant, verb).expect("compiles");
    assert_eq!((made.origin, made.notes.len()), (Origin::Nvrtc, 0));
    assert_eq!(&made.bytes[..4], b"\x7fELF");
    let cached = compiler.cubin(&variant, verb).expect("is cached");
    assert_eq!((cached.origin, &cached.bytes), (Origin::Cache, &made.bytes));

    let recipe = Recipe::new(&variant, verb).expect("a recipe");
    let pack = Ahead::pack([(recipe.file().as_str(), seal(made.bytes.clone()).as_slice())]);
    let ahead = Compiler::new().without_nvrtc().with_ahead(Ahead::Pack(pack.into()));
    let found = ahead.cubin(&variant, verb).expect("is in the pack");
    assert_eq!((found.origin, &found.bytes), (Origin::Ahead, &made.bytes));
    fs::remove_dir_all(&folder).expect("the cache's folder goes");
}

#[test]
fn the_kernel_counts_its_shared_memory_as_the_host_does() {
    if !nvrtc_or_skip("the count of shared memory") {
        return;
    }
    // The kernel asserts it when it is compiled; a wrong count does not compile.
    for group in [1, 5, 16] {
        let compiled = Recipe::new(&variant(group), Verb::Attend).expect("a recipe").compile();
        assert!(compiled.expect("compiles").log.contains("ckv_attend"), "{group}");
    }
}
