//! Everything that a configuration can launch, loaded before it serves.
use super::compile::{CompileError, Compiler, Cubin, Note, Origin, Recipe};
use super::source::Verb;
use super::variant::{Arch, Variant, VariantError};
use certkv_device::cuda::{CudaError, Function, FunctionInfo, Gpu, Module};
use core::fmt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

/// Why kernels cannot be prepared, or were not.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PrepareError {
    /// The GPU is of no architecture that we have.
    Variant(VariantError),
    /// A variant is for other GPUs than this one.
    Arch {
        /// The variant's.
        variant: Arch,
        /// The GPU's.
        gpu: Arch,
    },
    /// There is no machine code.
    Compile(CompileError),
    /// The driver refused a kernel.
    Load {
        /// The kernel.
        kernel: &'static str,
        /// Its error.
        error: CudaError,
    },
    /// The compiled kernel cannot run with the threads of its variant: too many registers.
    Registers {
        /// The kernel.
        kernel: &'static str,
        /// Registers of a thread.
        registers: u32,
        /// Threads that a block may have with them.
        most_threads: u32,
        /// Threads of the variant.
        threads: usize,
    },
    /// The kernel needs more shared memory than the GPU gives to a block.
    SharedMemory {
        /// The kernel.
        kernel: &'static str,
        /// Bytes needed, static and dynamic.
        needs: usize,
        /// Bytes given.
        limit: usize,
    },
    /// A kernel was asked for that was not prepared. Nothing is compiled while tokens are being made.
    NotPrepared {
        /// The kernel.
        kernel: String,
        /// The variant, as it is displayed.
        variant: String,
    },
}

impl fmt::Display for PrepareError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Variant(error) => error.fmt(f),
            Self::Arch { variant, gpu } => write!(f, "variant: for sm_{variant}, but the GPU is sm_{gpu}"),
            Self::Compile(error) => error.fmt(f),
            Self::Load { kernel, error } => write!(f, "{kernel}: {error}"),
            Self::Registers { kernel, registers, most_threads, threads } => write!(
                f,
                "{kernel}: with {registers} registers a block has at most {most_threads} threads, {threads} are needed"
            ),
            Self::SharedMemory { kernel, needs, limit } => {
                write!(f, "{kernel}: needs {needs} bytes of shared memory, the GPU gives {limit}")
            }
            Self::NotPrepared { kernel, variant } => write!(f, "{kernel} for {variant} was not prepared"),
        }
    }
}
impl std::error::Error for PrepareError {}

/// What became of one verb of one variant.
#[derive(Debug, Clone)]
pub struct Prepared {
    /// The variant.
    pub variant: Variant,
    /// The verb.
    pub verb: Verb,
    /// Where its machine code came from.
    pub origin: Origin,
    /// What went another way than it should have.
    pub notes: Vec<Note>,
    /// Bytes of machine code.
    pub bytes: usize,
    /// Time to find or compile it; zero if an earlier variant has the same code.
    pub time: Duration,
    /// Every kernel with what the compiler made of it. Local memory means spilled registers: correct, but slow.
    pub kernels: Vec<(&'static str, FunctionInfo)>,
}

struct Entry {
    variant: Variant,
    verb: Verb,
    functions: Vec<(&'static str, Function)>,
}

/// Loaded kernels of one GPU.
pub struct Kernels {
    entries: Vec<Entry>,
    report: Vec<Prepared>,
}

impl fmt::Debug for Kernels {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Kernels").field("report", &self.report).finish()
    }
}

impl Kernels {
    /// Finds or compiles the kernels of all `variants` (compilations in parallel), loads them, and lets each use as much
    /// shared memory as the GPU gives to a block. Takes milliseconds when nothing has to be compiled.
    ///
    /// # Errors
    /// [`PrepareError`]; then nothing stays loaded.
    pub fn prepare(gpu: &Gpu, variants: &[Variant], compiler: &Compiler) -> Result<Self, PrepareError> {
        Self::prepare_verbs(gpu, variants, &Verb::ALL, compiler)
    }

    /// As [`Kernels::prepare`], but only the kernels of `verbs`.
    ///
    /// # Errors
    /// As there.
    pub fn prepare_verbs(
        gpu: &Gpu,
        variants: &[Variant],
        verbs: &[Verb],
        compiler: &Compiler,
    ) -> Result<Self, PrepareError> {
        let of = |v: &Variant| (v.clone(), v.verbs().filter(|verb| verbs.contains(verb)).collect());
        Self::prepare_each(gpu, &variants.iter().map(of).collect::<Vec<_>>(), compiler)
    }

    /// As [`Kernels::prepare`], but of each variant only the kernels of its own verbs.
    ///
    /// # Errors
    /// As there.
    pub fn prepare_each(
        gpu: &Gpu,
        variants: &[(Variant, Vec<Verb>)],
        compiler: &Compiler,
    ) -> Result<Self, PrepareError> {
        let arch = Arch::of(gpu.info().arch).map_err(PrepareError::Variant)?;
        if let Some((other, _)) = variants.iter().find(|(v, _)| v.arch() != arch) {
            return Err(PrepareError::Arch { variant: other.arch(), gpu: arch });
        }
        let plan = Plan::new(variants)?;
        let cubins = plan.make(compiler)?;
        let mut modules: Vec<Module> = Vec::with_capacity(cubins.len());
        for ((cubin, _), (_, verb)) in cubins.iter().zip(&plan.recipes) {
            let load = |error| PrepareError::Load { kernel: verb.kernel(), error };
            modules.push(Module::load(gpu, &cubin.bytes).map_err(load)?);
        }
        let mut kernels = Self { entries: Vec::new(), report: Vec::new() };
        for Use { variant, verb, recipe, first } in plan.uses {
            let functions = functions(gpu, &modules[recipe], &variant, verb)?;
            let (cubin, time) = &cubins[recipe];
            kernels.report.push(Prepared {
                variant: variant.clone(),
                verb,
                origin: cubin.origin,
                notes: cubin.notes.clone(),
                bytes: cubin.bytes.len(),
                time: if first { *time } else { Duration::ZERO },
                kernels: functions.iter().map(|(name, f)| (*name, f.info())).collect(),
            });
            kernels.entries.push(Entry { variant, verb, functions });
        }
        Ok(kernels)
    }

    /// The kernel of a verb. A short search: keep what it returns rather than asking at every step.
    ///
    /// # Errors
    /// [`PrepareError::NotPrepared`].
    pub fn get(&self, variant: &Variant, verb: Verb) -> Result<&Function, PrepareError> {
        self.kernel(variant, verb, verb.kernel())
    }

    /// A kernel by its name, for sources that hold more than one.
    ///
    /// # Errors
    /// [`PrepareError::NotPrepared`].
    pub fn kernel(&self, variant: &Variant, verb: Verb, kernel: &str) -> Result<&Function, PrepareError> {
        let entry = self.entries.iter().find(|e| e.verb == verb && e.variant == *variant);
        let found = entry.and_then(|e| e.functions.iter().find(|f| f.0 == kernel)).map(|f| &f.1);
        let missing = || PrepareError::NotPrepared { kernel: kernel.to_owned(), variant: variant.to_string() };
        found.ok_or_else(missing)
    }

    /// What became of every verb of every variant.
    pub fn report(&self) -> &[Prepared] {
        &self.report
    }
}

/// All kernels of a module, checked against the variant.
fn functions(
    gpu: &Gpu,
    module: &Module,
    variant: &Variant,
    verb: Verb,
) -> Result<Vec<(&'static str, Function)>, PrepareError> {
    let limit = gpu.info().shared_per_block;
    let mut found = Vec::new();
    for kernel in verb.kernels() {
        let load = |error| PrepareError::Load { kernel, error };
        let function = module.function(kernel).map_err(load)?;
        let info = function.info();
        if matches!(verb, Verb::Attend | Verb::Ladder) {
            let needs = info.static_shared + variant.shape().shared;
            if needs > limit {
                return Err(PrepareError::SharedMemory { kernel, needs, limit });
            }
            let threads = variant.shape().threads();
            if (info.max_threads as usize) < threads {
                let (registers, most_threads) = (info.registers, info.max_threads);
                return Err(PrepareError::Registers { kernel, registers, most_threads, threads });
            }
        }
        // A permission, not a reservation: launches say how much they use.
        function.set_max_dynamic_shared(limit.saturating_sub(info.static_shared)).map_err(load)?;
        function.prefer_shared_memory().map_err(load)?;
        found.push((kernel, function));
    }
    Ok(found)
}

/// What has to be made: variants that differ in nothing a verb uses share its code.
struct Plan {
    recipes: Vec<(Recipe, Verb)>,
    uses: Vec<Use>,
}

struct Use {
    variant: Variant,
    verb: Verb,
    /// Index into the recipes.
    recipe: usize,
    /// Whether no earlier one uses it.
    first: bool,
}

impl Plan {
    fn new(variants: &[(Variant, Vec<Verb>)]) -> Result<Self, PrepareError> {
        let mut plan = Self { recipes: Vec::new(), uses: Vec::<Use>::new() };
        for (variant, verbs) in variants {
            for verb in verbs.iter().copied() {
                if plan.uses.iter().any(|u| u.variant == *variant && u.verb == verb) {
                    continue;
                }
                let recipe = Recipe::new(variant, verb).map_err(PrepareError::Compile)?;
                let known = plan.recipes.iter().position(|(r, _)| r.file() == recipe.file());
                let at = known.unwrap_or(plan.recipes.len());
                if known.is_none() {
                    plan.recipes.push((recipe, verb));
                }
                plan.uses.push(Use { variant: variant.clone(), verb, recipe: at, first: known.is_none() });
            }
        }
        Ok(plan)
    }

    /// Machine code of every recipe, by as many threads as there are processors.
    fn make(&self, compiler: &Compiler) -> Result<Vec<(Cubin, Duration)>, PrepareError> {
        let next = AtomicUsize::new(0);
        let done = Mutex::new(Vec::new());
        let work = || {
            loop {
                let at = next.fetch_add(1, Ordering::Relaxed);
                let Some((recipe, _)) = self.recipes.get(at) else { return };
                let start = Instant::now();
                let made = compiler.make(recipe).map(|cubin| (cubin, start.elapsed()));
                if made.is_err() {
                    // The others finish what they have begun.
                    next.store(self.recipes.len(), Ordering::Relaxed);
                }
                done.lock().unwrap_or_else(PoisonError::into_inner).push((at, made));
            }
        };
        let threads = thread::available_parallelism().map_or(1, usize::from).min(self.recipes.len());
        thread::scope(|scope| {
            for _ in 1..threads {
                scope.spawn(work);
            }
            work();
        });
        let mut done = done.into_inner().unwrap_or_else(PoisonError::into_inner);
        done.sort_by_key(|(at, _)| *at);
        done.into_iter().map(|(_, made)| made.map_err(PrepareError::Compile)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use certkv_core::{Geometry, RecordLayout};

    fn variant(group: usize) -> Variant {
        let geometry = Geometry::new(1, group, 1, 128).unwrap();
        let layout = RecordLayout::new(&geometry, "k8-v4g32-b32".parse().unwrap()).unwrap();
        Variant::new(layout, group, Arch::Sm90a).unwrap()
    }

    #[test]
    fn variants_share_the_code_of_verbs_that_do_not_see_their_difference() {
        let all = |group| (variant(group), variant(group).verbs().collect::<Vec<_>>());
        let plan = Plan::new(&[all(4), all(8), all(4), (variant(8), vec![Verb::Attend])]).unwrap();
        let verbs = variant(4).verbs().count();
        assert_eq!(plan.uses.len(), 2 * verbs, "the same variant twice is one");
        let made = |verb| plan.recipes.iter().filter(|r| r.1 == verb).count();
        assert_eq!(made(Verb::Attend), 2);
        assert_eq!(made(Verb::Pack), 1, "packing does not depend on the query heads");
        assert_eq!(plan.uses.iter().filter(|u| u.first).count(), plan.recipes.len());
        for Use { variant, verb, recipe, .. } in &plan.uses {
            assert_eq!(plan.recipes[*recipe].0.file(), Recipe::new(variant, *verb).unwrap().file());
        }
    }

    #[test]
    fn one_missing_cubin_fails_the_whole_preparation_with_its_name() {
        let plan = Plan::new(&[(variant(4), variant(4).verbs().collect())]).unwrap();
        let error = plan.make(&Compiler::new().without_nvrtc()).unwrap_err();
        assert!(matches!(&error, PrepareError::Compile(CompileError::NoCode { .. })), "{error}");
        assert!(error.to_string().contains("k8-v4g32-b32/f16/d128/g4/sm_90a"), "{error}");
    }
}
