//! What the gate must see: a kernel that has to spill, and one whose sources are not those of its record.
use crate::bounds::Bounds;
use crate::log;
use certkv_device::cuda::{CudaError, nvrtc};
use certkv_kernel::cuda::Arch;

/// 128 values alive at once in a block of 1024 threads, which has 64 registers for each.
const SOURCE: &str = r#"
extern "C" __global__ void __launch_bounds__(1024, 1) ckv_spills(const float* from, float* to) {
    float x[128];
#pragma unroll
    for (int i = 0; i < 128; i++) x[i] = ((const volatile float*)from)[i * 1024 + threadIdx.x];
    __syncthreads();
#pragma unroll
    for (int i = 127; i >= 0; i--) ((volatile float*)to)[i * 1024 + threadIdx.x] = x[i];
}
"#;

/// Whether the planted kernel is refused on the last of `archs`, even with a bound that it keeps, and is not taken for the one that was
/// recorded once its sources have changed.
pub(crate) fn caught(archs: &[Arch]) -> Result<bool, CudaError> {
    let Some(arch) = archs.last() else { return Ok(false) };
    let options = [format!("--gpu-architecture=sm_{arch}"), nvrtc::REPORT_RESOURCES.to_owned()];
    let program = nvrtc::Program { source: SOURCE, name: "spills.cu", headers: &[], options: &options };
    let usages = log::usages(&nvrtc::compile(program)?.log);
    let mut bounds = Bounds::default();
    for usage in &usages {
        bounds.record("planted", "then", &log::Usage { spill: 0, ..usage.clone() });
    }
    let changed =
        |u: &log::Usage| bounds.settles(&u.kernel, "planted", "then") && !bounds.settles(&u.kernel, "planted", "now");
    Ok(usages.len() == 1 && usages.iter().all(|u| bounds.judge("planted", u, true).is_some() && changed(u)))
}
