//! What a cache on a GPU would take, before it takes it, with or without that GPU.
use super::config::GpuConfig;
use super::sizes::Sizes;
use crate::Error;
use crate::plan::{Plan, Requests, RequestsPlan, shared};
use certkv_device::cuda::Gpu;
use certkv_kernel::cuda::{Arch, PrepareError};

/// What of a GPU decides how much memory a cache takes there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GpuMachine {
    /// Whose machine code it runs.
    pub arch: Arch,
    /// Streaming multiprocessors.
    pub multiprocessors: u32,
}

impl GpuMachine {
    /// An H100 (SXM), an H200.
    pub const H200: Self = Self { arch: Arch::Sm90a, multiprocessors: 132 };

    /// A GPU that is there.
    ///
    /// # Errors
    /// One for which there are no kernels.
    pub fn of(gpu: &Gpu) -> Result<Self, Error> {
        let info = gpu.info();
        Ok(Self { arch: Arch::of(info.arch).map_err(PrepareError::Variant)?, multiprocessors: info.multiprocessors })
    }
}

impl GpuConfig {
    /// What [`GpuCache::new`](super::GpuCache::new) would reserve on a machine, without reserving it, and without a driver. Pure arithmetic.
    ///
    /// Not in it: what the driver adds for itself (a context, the kernels' code, the rounding of allocations).
    ///
    /// # Errors
    /// As [`GpuCache::new`](super::GpuCache::new) for a field that is out of range. A budget that is too small is no error here.
    pub fn plan(&self, machine: GpuMachine) -> Result<Plan, Error> {
        let sizes = Sizes::of(self, machine)?;
        Ok(Plan::new(sizes.reserved(), sizes.later, self.device_budget, self.host_budget))
    }

    /// The same configuration with room for these requests and no more; levels keep their shares of all tokens.
    #[must_use]
    pub fn for_requests(&self, requests: Requests) -> Self {
        let (max_tokens, max_context) = (requests.in_blocks(self.block()), Requests { count: 1, ..requests });
        let max_context = max_context.in_blocks(self.block());
        let levels = shared(&self.levels, self.block(), self.max_tokens, max_tokens);
        Self { max_tokens, max_context, max_sequences: requests.count, levels, ..self.clone() }
            .with_scratch(requests.scratch)
    }

    /// As [`Plan::for_requests`] on a machine.
    ///
    /// # Errors
    /// As [`Plan::for_requests`].
    pub fn plan_requests(&self, machine: GpuMachine, requests: Requests) -> Result<RequestsPlan, Error> {
        requests.answer(|count| {
            let config = self.for_requests(Requests { count, ..requests });
            Ok((config.plan(machine)?, config.max_tokens, config.max_sequences))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Geometry;
    use certkv_core::Class;

    #[test]
    fn a_budget_holds_what_its_plan_says() {
        let geometry = Geometry::new(32, 32, 8, 128).unwrap();
        let config = GpuConfig::new(geometry, 1);
        let requests = Requests { count: 64, tokens: 32 << 10, scratch: 0.11 };
        let answer = config.plan_requests(GpuMachine::H200, requests).unwrap();
        // 0.41 of dense keys and values, a little for tails and tables, 0.11 of copies.
        let dense = (64usize << 15) * 32 * 8 * 128 * 2 * 2;
        let share = answer.plan.device.bytes as f64 / dense as f64;
        assert!((0.5..0.56).contains(&share), "{share}");
        assert!(answer.plan.host.bytes as f64 / (dense as f64) < 1.01);
        assert_eq!((answer.max_tokens, answer.max_sequences, answer.most), (64 << 15, 64, 4096));
        let tight = GpuConfig { device_budget: answer.plan.device.bytes - 1, ..config };
        let short = tight.plan_requests(GpuMachine::H200, requests).unwrap();
        assert_eq!((short.plan.device.lacks(), short.most), (1, 63));
        assert_eq!(short.plan.classes, answer.plan.classes);
        assert!(short.plan.of(Class::Scratch) > 0);
    }
}
