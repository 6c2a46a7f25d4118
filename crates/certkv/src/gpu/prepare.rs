//! The kernels of a configuration, with a cache or before there is one.
use super::config::GpuConfig;
use super::draft_sections::Widths;
use super::kit::{self, Kit, LevelKits};
use super::plan::GpuMachine;
use super::window;
use crate::Error;
use certkv_core::RecordLayout;
use certkv_device::cuda::Gpu;
use certkv_kernel::cuda::{Arch, Compiler, Kernels, Origin, Variant, Verb};

/// What [`GpuConfig::prepare`] found or made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct PreparedKernels {
    /// Kernels that a cache runs: verbs of variants.
    pub kernels: usize,
    /// Of these, those whose machine code was neither at hand nor kept, and was compiled.
    pub compiled: usize,
}

/// Variants of the kernels that a cache needs, one list for each format, with windows or without, and whose is which layer's.
pub(super) struct Wanted {
    variants: Vec<Vec<(Variant, Vec<Verb>)>>,
    /// Of levels that blocks have.
    levels: Vec<[kit::Launched; 3]>,
    pub(super) kit_of: Vec<usize>,
    extends: bool,
}

impl Wanted {
    /// # Errors
    /// A format or a shape that the kernels do not have.
    pub(super) fn of(config: &GpuConfig, layouts: &[RecordLayout], arch: Arch) -> Result<Self, Error> {
        let mut formats: Vec<(&RecordLayout, bool)> = Vec::new();
        let mut kit_of = Vec::with_capacity(layouts.len());
        for (layout, window) in layouts.iter().zip(window::by_layer(config)) {
            let known = formats.iter().position(|(of, seen)| of.format == layout.format && *seen == window.is_some());
            kit_of.push(known.unwrap_or(formats.len()));
            if known.is_none() {
                formats.push((layout, window.is_some()));
            }
        }
        // Those of levels are their kits'.
        let extends = config.chunk_tokens > 0 && config.levels.is_empty();
        let widths = Widths::of(config.draft_tokens(), layouts, config.geometry.group(), arch);
        let chunks = extends.then_some(widths);
        let of = |(layout, windowed)| kit::variants(arch, config, layout, windowed, chunks);
        let variants = formats.into_iter().map(of).collect::<Result<_, _>>()?;
        Ok(Self { variants, levels: kit::level_variants(arch, config)?, kit_of, extends })
    }

    fn load(&self, gpu: &Gpu, compiler: &Compiler) -> Result<Kernels, Error> {
        let all = [self.variants.concat(), self.levels.concat()].concat();
        Ok(Kernels::prepare_each(gpu, &all, compiler)?)
    }

    /// Loads them, or compiles them first. `ctas`: of a launch.
    pub(super) fn kits(
        &self,
        gpu: &Gpu,
        compiler: &Compiler,
        ctas: u32,
    ) -> Result<(Vec<Kit>, Option<LevelKits>), Error> {
        let kernels = self.load(gpu, compiler)?;
        let kits = self.variants.iter().map(|all| Kit::new(&kernels, all, ctas, self.extends));
        Ok((kits.collect::<Result<_, _>>()?, LevelKits::new(&kernels, &self.levels, ctas)?))
    }
}

impl GpuConfig {
    /// Finds or compiles every kernel that a cache of this configuration runs on a GPU, and loads each, to see that the driver takes it. With a
    /// folder that keeps machine code ([`Compiler::with_cache`]) a cache that is made later, by this process or another, compiles nothing.
    /// Budgets do not count, and no memory stays taken. Milliseconds where nothing is compiled, else seconds to minutes on all cores.
    ///
    /// # Errors
    /// As [`GpuCache::new`](super::GpuCache::new) for what it checks before it takes memory; [`Error::Kernels`], [`Error::Gpu`].
    pub fn prepare(&self, gpu: &Gpu, compiler: &Compiler) -> Result<PreparedKernels, Error> {
        let machine = GpuMachine::of(gpu)?;
        let layouts = self.layouts()?;
        self.calibrated()?;
        self.check_scales()?;
        self.plan(machine)?;
        let kernels = Wanted::of(self, &layouts, machine.arch)?.load(gpu, compiler)?;
        let compiled = kernels.report().iter().filter(|prepared| prepared.origin == Origin::Nvrtc).count();
        Ok(PreparedKernels { kernels: kernels.report().len(), compiled })
    }
}
