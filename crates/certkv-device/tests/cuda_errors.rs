//! What a machine without a driver or GPU gets, and how errors read. With a GPU the same calls are checked to succeed.
use certkv_core::fail;
use certkv_device::cuda::{CudaError, Gpu, nvrtc};

#[test]
fn a_machine_without_a_driver_gets_a_typed_error_again_and_again() {
    match Gpu::count() {
        Err(CudaError::NoDriver) => {
            for ordinal in [0, 0, 7, u32::MAX] {
                assert_eq!(Gpu::open(ordinal).map(|g| g.info().clone()), Err(CudaError::NoDriver));
            }
            assert_eq!(CudaError::NoDriver.to_string(), "no CUDA driver library (libcuda) on this machine");
        }
        // A driver whose kernel module or GPU is missing.
        Err(error) => assert!(matches!(error, CudaError::Call { .. } | CudaError::MissingSymbol { .. }), "{error}"),
        Ok(count) => {
            println!("this machine has {count} GPUs: NoDriver was not tested");
            for ordinal in [count, u32::MAX] {
                let error = Gpu::open(ordinal).map(|g| g.info().clone());
                assert_eq!(error, Err(CudaError::NoDevice { ordinal, count }));
            }
        }
    }
}

#[test]
fn armed_fault_points_fail_before_anything_is_touched() {
    fail::arm(Some(1));
    assert!(matches!(Gpu::open(0), Err(CudaError::Injected(f)) if f.point == "cuda.open"));
    fail::arm(Some(1));
    let compiled = nvrtc::compile(nvrtc::Program { source: "", name: "", headers: &[], options: &[] });
    assert!(matches!(compiled, Err(CudaError::Injected(f)) if f.point == "cuda.compile"));
    fail::arm(None);
}

#[test]
fn errors_say_what_was_wrong_with_what() {
    let cases = [
        (CudaError::NoDevice { ordinal: 3, count: 2 }, "no GPU 3: the driver sees 2"),
        (
            CudaError::DriverTooOld { found: 11_080, needs: 12_000 },
            "the driver is of CUDA 11.8, at least 12.0 is needed",
        ),
        (
            CudaError::UnsupportedArch { found: 75, needs: 80 },
            "the GPU has compute capability 75, at least 80 is needed",
        ),
        (
            CudaError::Call { call: "cuInit", code: 999, text: "CUDA_ERROR_UNKNOWN (unknown error)".into() },
            "cuInit failed with code 999: CUDA_ERROR_UNKNOWN (unknown error)",
        ),
        (CudaError::OutOfDeviceMemory { bytes: 7 }, "the GPU has no memory for 7 bytes"),
        (
            CudaError::OutOfPinnedMemory { bytes: 7, call: "mmap", code: 12 },
            "cannot pin 7 bytes of host memory: mmap failed with code 12",
        ),
        (
            CudaError::Misaligned { argument: "q", address: 0x1008, needs: 16 },
            "q: address 0x1008 is not a multiple of 16",
        ),
        (
            CudaError::OutOfRange { argument: "device range", start: 4, bytes: 8, len: 10 },
            "device range: 8 bytes from byte 4 of a buffer of 10 bytes",
        ),
        (
            CudaError::WrongMemorySpace { argument: "q", found: "pinned host memory" },
            "q: the pointer is pinned host memory",
        ),
        (CudaError::ArgumentSize { given: 8, needs: 24 }, "kernel arguments of 8 bytes where the kernel takes 24"),
        (
            CudaError::Compile { program: "a.cu".into(), code: 6, log: "a.cu(1): error".into() },
            "a.cu did not compile (NVRTC code 6):\na.cu(1): error",
        ),
    ];
    for (error, text) in cases {
        assert_eq!(error.to_string(), text);
    }
}

#[test]
fn only_errors_of_running_work_lose_the_context() {
    let call = |code| CudaError::Call { call: "cuStreamSynchronize", code, text: String::new() };
    assert!([214, 700, 702, 710, 717, 719].into_iter().all(|code| call(code).context_lost()));
    assert!(![1, 2, 100, 400, 600, 900, 999].into_iter().any(|code| call(code).context_lost()));
    assert!(!CudaError::NoDriver.context_lost() && !CudaError::OutOfDeviceMemory { bytes: 1 }.context_lost());
}
