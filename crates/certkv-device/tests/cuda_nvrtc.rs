//! Kernels compiled by NVRTC, without a GPU. `CERTKV_TEST_NVRTC` may name the library; else the system's search path
//! decides, and a machine without NVRTC skips with a line that says so.
use certkv_device::cuda::{CudaError, nvrtc};
use std::sync::Once;

/// Whether NVRTC is there; prints what is skipped otherwise.
fn nvrtc_or_skip(test: &str) -> bool {
    static PRELOAD: Once = Once::new();
    PRELOAD.call_once(|| {
        if let Some(path) = std::env::var_os("CERTKV_TEST_NVRTC") {
            nvrtc::preload(path.as_ref()).expect("CERTKV_TEST_NVRTC names a library that loads");
        }
    });
    match nvrtc::version() {
        Ok((major, minor)) => {
            assert!(major >= 12, "NVRTC {major}.{minor}");
            true
        }
        Err(CudaError::NvrtcMissing) => {
            println!("SKIPPED {test}: no NVRTC on this machine");
            false
        }
        Err(error) => panic!("{error}"),
    }
}

fn options(extra: &[&str]) -> Vec<String> {
    [&["--gpu-architecture=sm_90a", "--std=c++17"], extra].concat().iter().map(|s| (*s).to_owned()).collect()
}

const SCALE: &str = r#"
#include "scale.cuh"
extern "C" __global__ void scale(const __grid_constant__ Args a) {
    unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < a.n) a.data[i] *= FACTOR;
}
"#;
const HEADERS: &[(&str, &str)] = &[("scale.cuh", "struct Args { float* data; unsigned n; };\n")];

#[test]
fn a_kernel_with_a_header_becomes_machine_code_and_reports_its_registers() {
    if !nvrtc_or_skip("machine code") {
        return;
    }
    let options = options(&["-DFACTOR=2.0f", nvrtc::REPORT_RESOURCES]);
    let program = nvrtc::Program { source: SCALE, name: "scale.cu", headers: HEADERS, options: &options };
    let compiled = nvrtc::compile(program).expect("compiles");
    assert_eq!(&compiled.cubin[..4], b"\x7fELF");
    assert!(compiled.log.contains("registers") && compiled.log.contains("scale"), "log: {}", compiled.log);
    assert_eq!(nvrtc::compile(program).expect("compiles again").cubin, compiled.cubin);
}

#[test]
fn a_kernel_that_does_not_compile_returns_the_log() {
    if !nvrtc_or_skip("the log of a failure") {
        return;
    }
    let options = options(&[]);
    let program = nvrtc::Program { source: SCALE, name: "scale.cu", headers: HEADERS, options: &options };
    match nvrtc::compile(program) {
        Err(CudaError::Compile { program, code, log }) => {
            assert_eq!(program, "scale.cu");
            assert!(code != 0 && log.contains("FACTOR") && log.contains("scale.cu"), "{code} {log}");
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn an_unknown_option_a_virtual_gpu_and_a_zero_byte_are_refused() {
    if !nvrtc_or_skip("refused arguments") {
        return;
    }
    let compile = |source: &str, options: &[String]| {
        nvrtc::compile(nvrtc::Program { source, name: "empty.cu", headers: &[], options })
    };
    let unknown = compile("", &options(&["--no-such-option"]));
    assert!(matches!(&unknown, Err(CudaError::Compile { log, .. }) if log.contains("no-such-option")), "{unknown:?}");
    let ptx = compile("", &["--gpu-architecture=compute_90".to_owned()]);
    assert!(matches!(ptx, Err(CudaError::BadArgument { argument: "options", .. })), "{ptx:?}");
    let zero = compile("a\0b", &options(&[]));
    assert!(matches!(zero, Err(CudaError::BadArgument { argument: "source", .. })), "{zero:?}");
}

#[test]
fn the_architectures_of_the_kernels_are_supported() {
    if !nvrtc_or_skip("architectures") {
        return;
    }
    let archs = nvrtc::supported_archs().expect("a list");
    for needed in [80, 86, 89, 90] {
        assert!(archs.contains(&needed), "{needed} is not among {archs:?}");
    }
}
