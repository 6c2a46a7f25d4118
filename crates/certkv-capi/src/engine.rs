//! What a cache handle runs on: memory of this process, or a GPU.
use crate::guard::Failure;
use crate::status::certkv_status::{CERTKV_BUSY_STEP, CERTKV_UNSUPPORTED};
use certkv::gpu::{
    Ahead, CertificateRing, Compiler, CudaError, Gpu, GpuCache, GpuConfig, GpuMachine, GpuStream, PreparedKernels,
};
use certkv::{Cache, Error, Geometry, MemoryUse, Plan, Requests, RequestsPlan, SequenceId, Snapshot};
use certkv_device::cuda::EventPool;
use core::ffi::c_void;
use parking_lot::Mutex;
use std::path::PathBuf;

/// What a configuration asks for.
pub(crate) enum Wanted {
    /// A cache in this process's memory.
    Host(Box<certkv::Config>),
    /// One on a GPU.
    Gpu {
        /// Its number.
        ordinal: u32,
        /// The cache.
        config: Box<GpuConfig>,
        /// A folder with machine code, in which compiled code is kept, too.
        kernels: Option<PathBuf>,
    },
}

impl Wanted {
    /// What it would take, and whether that is of the machine at hand: without a CUDA driver it is of an H200.
    pub(crate) fn plan(&self) -> Result<(Plan, bool), Failure> {
        match self {
            Self::Host(config) => Ok((config.plan()?, true)),
            Self::Gpu { ordinal, config, .. } => match Gpu::open(*ordinal) {
                Ok(gpu) => Ok((config.plan(GpuMachine::of(&gpu)?)?, true)),
                Err(CudaError::NoDriver) => Ok((config.plan(GpuMachine::H200)?, false)),
                Err(other) => Err(refused(other)),
            },
        }
    }
}

/// Of a folder with machine code, in which compiled code is kept, too.
fn compiler(kernels: Option<PathBuf>) -> Compiler {
    match kernels {
        Some(folder) => Compiler::new().with_ahead(Ahead::Folder(folder.clone())).with_cache(folder),
        None => Compiler::new(),
    }
}

impl Wanted {
    /// Its kernels, found or made; there are none on the host.
    pub(crate) fn prepare(self) -> Result<PreparedKernels, Failure> {
        match self {
            Self::Host(config) => config.plan().map(|_| PreparedKernels::default()).map_err(Failure::from),
            Self::Gpu { ordinal, config, kernels } => {
                let gpu = Gpu::open(ordinal).map_err(refused)?;
                Ok(config.prepare(&gpu, &compiler(kernels))?)
            }
        }
    }
}

impl Wanted {
    /// As [`Wanted::plan`], for requests.
    pub(crate) fn plan_requests(&self, requests: Requests) -> Result<(RequestsPlan, bool), Failure> {
        match self {
            Self::Host(config) => Ok((Plan::for_requests(config, requests)?, true)),
            Self::Gpu { ordinal, config, .. } => match Gpu::open(*ordinal) {
                Ok(gpu) => Ok((config.plan_requests(GpuMachine::of(&gpu)?, requests)?, true)),
                Err(CudaError::NoDriver) => Ok((config.plan_requests(GpuMachine::H200, requests)?, false)),
                Err(other) => Err(refused(other)),
            },
        }
    }
}

/// A cache, wherever it lies.
#[derive(Debug)]
pub(crate) enum Engine {
    /// In memory of the process.
    Host(Box<Cache>),
    /// On a GPU.
    Gpu(Box<OnGpu>),
}

/// Pages and bytes of a cache.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Memory {
    /// Pages in use.
    pub(crate) live_pages: usize,
    /// Bytes in use.
    pub(crate) used: MemoryUse,
    /// Bytes reserved by class, and the budgets.
    pub(crate) reserved: ([usize; 4], (usize, usize)),
}

impl Memory {
    // Pages whose last use is over count as free once they were counted.
    fn of_gpu(cache: &GpuCache) -> Self {
        Self { live_pages: cache.live_pages(), used: cache.memory(), reserved: cache.reserved() }
    }
}

/// A cache on a GPU, at home or away with the one step that may be open; then what it was like when it left.
#[derive(Debug)]
struct Place {
    cache: Option<Box<GpuCache>>,
    left: Snapshot,
    holds: Memory,
}

/// A cache on a GPU.
#[derive(Debug)]
pub(crate) struct OnGpu {
    geometry: Geometry,
    gpu: Gpu,
    events: EventPool,
    /// Read while a step has the cache, too.
    ring: Option<CertificateRing>,
    place: Mutex<Place>,
}

fn refused(e: CudaError) -> Failure {
    Failure::from(Error::Gpu(e))
}

fn away() -> Failure {
    Failure::new(CERTKV_BUSY_STEP, "a cache on a GPU has one step at a time, and one is open")
}

impl OnGpu {
    fn open(ordinal: u32, config: GpuConfig, kernels: Option<PathBuf>) -> Result<Self, Failure> {
        // A wrong field is named on a machine without a GPU, too.
        config.check()?;
        let gpu = Gpu::open(ordinal).map_err(refused)?;
        let compiler = compiler(kernels);
        let geometry = config.geometry;
        let cache = GpuCache::new(&gpu, &compiler, config)?;
        let events = EventPool::new(&gpu, 2).map_err(refused)?;
        let ring = cache.certificate_ring();
        let place = Place { left: cache.snapshot(), holds: Memory::of_gpu(&cache), cache: Some(Box::new(cache)) };
        Ok(Self { geometry, gpu, events, ring, place: Mutex::new(place) })
    }

    /// Works on the cache if no step has it.
    fn at_home<T>(&self, work: impl FnOnce(&mut GpuCache) -> Result<T, Error>) -> Result<T, Failure> {
        let mut place = self.place.lock();
        Ok(work(place.cache.as_deref_mut().ok_or_else(away)?)?)
    }

    /// Takes the cache away for a step. What it was like is kept: a few short locks and two walks over the live sequences.
    pub(crate) fn take(&self) -> Result<Box<GpuCache>, Failure> {
        let mut place = self.place.lock();
        let cache = place.cache.take().ok_or_else(away)?;
        cache.refresh(&mut place.left);
        place.holds = Memory::of_gpu(&cache);
        Ok(cache)
    }

    /// Brings it back.
    pub(crate) fn bring(&self, cache: Box<GpuCache>) {
        self.place.lock().cache = Some(cache);
    }

    /// Where its steps' certificates are published, if they are.
    pub(crate) fn ring(&self) -> Option<CertificateRing> {
        self.ring.clone()
    }

    /// The GPU.
    pub(crate) fn gpu(&self) -> &Gpu {
        &self.gpu
    }

    /// Lets `after` wait for what `before` was given so far, one of the two being the caller's `stream`.
    ///
    /// # Safety
    /// `stream` is NULL, a special handle of CUDA, or a live stream.
    pub(crate) unsafe fn order(&self, own: &GpuStream, stream: *mut c_void, own_waits: bool) -> Result<(), Failure> {
        // SAFETY: by the caller's promise; the borrow ends with this call.
        let theirs = unsafe { GpuStream::borrow(&self.gpu, stream) }.map_err(refused)?;
        let (before, after) = if own_waits { (&theirs, own) } else { (own, &theirs) };
        let mark = before.record(&self.events).map_err(refused)?;
        after.wait(&mark).map_err(refused)
    }
}

impl Engine {
    /// Takes all memory.
    pub(crate) fn new(wanted: Wanted) -> Result<Self, Failure> {
        Ok(match wanted {
            Wanted::Host(config) => Self::Host(Box::new(Cache::new(*config)?)),
            Wanted::Gpu { ordinal, config, kernels } => Self::Gpu(Box::new(OnGpu::open(ordinal, *config, kernels)?)),
        })
    }

    /// The GPU's, for what only it has.
    pub(crate) fn on_gpu(&self) -> Result<&OnGpu, Failure> {
        match self {
            Self::Gpu(gpu) => Ok(gpu),
            Self::Host(_) => Err(Failure::new(CERTKV_UNSUPPORTED, "the cache is not on a GPU (config->device)")),
        }
    }

    pub(crate) fn geometry(&self) -> &Geometry {
        match self {
            Self::Host(cache) => cache.geometry(),
            Self::Gpu(gpu) => &gpu.geometry,
        }
    }

    /// Runs one verb where the cache lies. On a GPU an open step has the cache, which is a status; another thread's call is waited for.
    pub(crate) fn on<T>(
        &self,
        host: impl FnOnce(&Cache) -> Result<T, Error>,
        gpu: impl FnOnce(&mut GpuCache) -> Result<T, Error>,
    ) -> Result<T, Failure> {
        match self {
            Self::Host(cache) => Ok(host(cache)?),
            Self::Gpu(at) => at.at_home(gpu),
        }
    }

    pub(crate) fn create(&self) -> Result<SequenceId, Failure> {
        self.on(Cache::create, GpuCache::create)
    }

    pub(crate) fn fork(&self, id: SequenceId) -> Result<SequenceId, Failure> {
        self.on(|cache| cache.fork(id), |cache| cache.fork(id))
    }

    pub(crate) fn truncate(&self, id: SequenceId, len: usize) -> Result<(), Failure> {
        self.on(|cache| cache.truncate(id, len), |cache| cache.truncate(id, len))
    }

    pub(crate) fn release(&self, id: SequenceId) -> Result<(), Failure> {
        self.on(|cache| cache.release(id), |cache| cache.release(id))
    }

    pub(crate) fn len(&self, id: SequenceId) -> Result<usize, Failure> {
        self.on(|cache| cache.len(id), |cache| cache.len(id))
    }

    /// What it holds; on a GPU while a step is open, what it held when that began.
    pub(crate) fn memory(&self) -> Memory {
        match self {
            Self::Host(cache) => {
                Memory { live_pages: cache.live_pages(), used: cache.memory(), reserved: cache.reserved() }
            }
            Self::Gpu(at) => {
                let place = at.place.lock();
                place.cache.as_deref().map_or(place.holds, Memory::of_gpu)
            }
        }
    }

    /// The cache in numbers; on a GPU while a step is open, as it was when that began.
    pub(crate) fn snapshot(&self) -> Snapshot {
        match self {
            Self::Host(cache) => cache.snapshot(),
            Self::Gpu(at) => {
                let place = at.place.lock();
                place.cache.as_deref().map_or_else(|| place.left.clone(), GpuCache::snapshot)
            }
        }
    }
}
