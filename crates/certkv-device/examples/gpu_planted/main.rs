//! Kernels with one defect each, to see whether a checker finds it: `gpu_planted TOOL [path of libnvrtc]`, TOOL one of memcheck,
//! racecheck, initcheck, synccheck. Run under `compute-sanitizer --tool TOOL --error-exitcode 9` it must end with 9.
//!
//! Exit code 0: the kernel ran; 1: wrong arguments or a failure; 2: no driver, GPU or compiler here.
use certkv_device::cuda::{CudaError, DeviceBuffer, Gpu, GpuStream, LaunchOptions, Module, Priority, nvrtc};
use std::path::Path;
use std::process::ExitCode;

const TOOLS: [&str; 4] = ["memcheck", "racecheck", "initcheck", "synccheck"];
const WORDS: usize = 64;

/// The kernels' parameters.
#[repr(C)]
#[derive(Clone, Copy)]
struct Arguments {
    buffer: u64,
    words: u32,
    pad: u32,
}

fn prepare() -> Result<(Gpu, Module), CudaError> {
    let gpu = Gpu::open(0)?;
    let (major, minor) = gpu.info().arch;
    let options = [format!("--gpu-architecture=sm_{major}{minor}"), "--std=c++17".to_owned()];
    let source = include_str!("kernels.cu");
    let compiled = nvrtc::compile(nvrtc::Program { source, name: "kernels.cu", headers: &[], options: &options })?;
    let module = Module::load(&gpu, &compiled.cubin)?;
    Ok((gpu, module))
}

fn run(gpu: &Gpu, module: &Module, tool: &str) -> Result<(), CudaError> {
    let stream = GpuStream::new(gpu, Priority::Normal)?;
    let buffer = DeviceBuffer::new(gpu, 4 * WORDS)?;
    let kernel = module.function(&format!("planted_{tool}"))?;
    let arguments = Arguments { buffer: buffer.address(), words: WORDS as u32, pad: 0 };
    // SAFETY: not kept, on purpose: the kernels do what a checker has to report. What they miss lies in the same page of the
    // card's memory, which nothing else of this process uses.
    unsafe { kernel.launch(&stream, 1, 64, 0, &arguments, LaunchOptions::default())? };
    stream.synchronize()
}

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let Some(tool) = words.first().filter(|w| TOOLS.contains(&w.as_str())) else {
        eprintln!("gpu_planted {} [path of libnvrtc]", TOOLS.join("|"));
        return ExitCode::FAILURE;
    };
    let prepared = words.get(1).map_or(Ok(()), |path| nvrtc::preload(Path::new(path))).and_then(|()| prepare());
    let (gpu, module) = match prepared {
        Ok(ready) => ready,
        Err(e) => {
            eprintln!("gpu_planted: {e}");
            return ExitCode::from(2);
        }
    };
    match run(&gpu, &module, tool) {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("gpu_planted: {e}");
            ExitCode::FAILURE
        }
    }
}
