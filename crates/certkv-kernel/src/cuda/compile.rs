//! From a variant and a verb to machine code.
use super::ahead::Ahead;
use super::cache::{self, Found, Key};
use super::source::{Source, Verb};
use super::variant::{Arch, Variant};
use certkv_device::cuda::{CudaError, nvrtc};
use core::fmt;
use std::path::PathBuf;

/// Changes whenever the meaning of a key does.
const KEY_VERSION: &[u8] = b"certkv kernels 1";

/// Why there is no machine code.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CompileError {
    /// This version has no source for the verb.
    NoSource(Verb),
    /// The variant has no layout to transcode from, see [`Variant::transcoding`].
    NoOldLayout,
    /// Nothing was made ahead of time, nothing is cached and NVRTC is not there (or not wanted).
    NoCode {
        /// The verb.
        verb: Verb,
        /// The variant, as it is displayed.
        variant: String,
        /// File that a folder of code made ahead of time would have to hold.
        file: String,
    },
    /// NVRTC failed.
    Nvrtc {
        /// The verb.
        verb: Verb,
        /// The variant, as it is displayed.
        variant: String,
        /// Its error.
        error: CudaError,
    },
}

impl fmt::Display for CompileError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoSource(verb) => write!(f, "kernel {verb}: the library was built without its source"),
            Self::NoOldLayout => f.write_str("kernel transcode: the variant has no layout to transcode from"),
            Self::NoCode { verb, variant, file } => {
                write!(f, "kernel {verb} for {variant}: no cubin ({file}) and NVRTC absent")
            }
            Self::Nvrtc { verb, variant, error } => write!(f, "kernel {verb} for {variant}: {error}"),
        }
    }
}
impl std::error::Error for CompileError {}

/// Where machine code came from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Origin {
    /// Made ahead of time.
    Ahead,
    /// The cache on disk.
    Cache,
    /// Compiled now.
    Nvrtc,
}

/// Something that went another way than it should have, without harm to the result.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Note {
    /// An entry made ahead of time is not whole or cannot be read; it was passed over.
    AheadDamaged,
    /// The cache's file is not whole or cannot be read; it was compiled again.
    CacheDamaged(PathBuf),
    /// The cache could not be written: the next process will compile again.
    CacheNotWritten {
        /// The file.
        file: PathBuf,
        /// The system's reason.
        reason: String,
    },
}

/// Machine code of one verb.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cubin {
    /// The ELF file for the driver.
    pub bytes: Vec<u8>,
    /// Where it came from.
    pub origin: Origin,
    /// What went another way.
    pub notes: Vec<Note>,
}

/// Source, headers and options of one verb and variant: all that decides its machine code but the compiler itself.
#[derive(Debug, Clone)]
pub struct Recipe {
    verb: Verb,
    source: &'static Source,
    variant: String,
    options: Vec<String>,
    key: Key,
}

impl Recipe {
    /// The recipe of `verb` for `variant`.
    ///
    /// # Errors
    /// [`CompileError::NoSource`], [`CompileError::NoOldLayout`].
    pub fn new(variant: &Variant, verb: Verb) -> Result<Self, CompileError> {
        let source = verb.source().ok_or(CompileError::NoSource(verb))?;
        if verb == Verb::Transcode && variant.from().is_none() {
            return Err(CompileError::NoOldLayout);
        }
        let mut options = base_options(variant.arch());
        // A macro that the source does not use would only make a second copy of the same code.
        let macros = variant.macros().into_iter().filter(|(name, _)| source.mentions(name));
        options.extend(macros.map(|(name, value)| format!("-D{name}={value}")));
        let texts = [(source.name, source.text)].into_iter().chain(source.headers.iter().copied());
        let texts = texts.flat_map(|(name, text)| [name.as_bytes(), text.as_bytes()]);
        let count = (options.len() as u64).to_le_bytes();
        let key =
            cache::digest([KEY_VERSION, &count].into_iter().chain(options.iter().map(String::as_bytes)).chain(texts));
        Ok(Self { verb, source, variant: variant.to_string(), options, key })
    }

    /// Name of its file in a folder of code made ahead of time.
    pub fn file(&self) -> String {
        format!("{}.cubin", cache::hex(&self.key))
    }

    /// Whether the source uses this macro; the variants that differ in no other share the recipe.
    pub fn uses(&self, name: &str) -> bool {
        self.source.mentions(name)
    }

    /// Options for the compiler.
    pub fn options(&self) -> &[String] {
        &self.options
    }

    /// Compiles it with NVRTC, past every cache; the log tells registers, spills and shared memory.
    ///
    /// # Errors
    /// [`CompileError::Nvrtc`].
    pub fn compile(&self) -> Result<nvrtc::Compiled, CompileError> {
        let mut options = self.options.clone();
        options.push(nvrtc::REPORT_RESOURCES.to_owned());
        let Source { text, name, headers, .. } = self.source;
        nvrtc::compile(nvrtc::Program { source: text, name, headers, options: &options })
            .map_err(|error| CompileError::Nvrtc { verb: self.verb, variant: self.variant.clone(), error })
    }

    /// Name of its file in the cache: code of one compiler does not hide that of a better one.
    fn cache_file(&self, (major, minor): (u32, u32)) -> String {
        let version = [major.to_le_bytes(), minor.to_le_bytes()].concat();
        format!("{}.cubin", cache::hex(&cache::digest([self.key.as_slice(), &version])))
    }
}

/// Options of every kernel for an architecture.
///
/// No fast mathematics: bounds of the certificate are sums rounded upwards and exact divisions, which it would replace by
/// approximations and by flushing subnormals. No contraction, which is on by default: what a kernel fuses it says with
/// `fma_rn`, so that its arithmetic is the one in the proof and the one that the emulator runs. No line table: it would
/// put the text's shape into the code's bytes.
fn base_options(arch: Arch) -> Vec<String> {
    let arch = format!("--gpu-architecture=sm_{arch}");
    [arch.as_str(), "--std=c++17", "-default-device", "--fmad=false"].map(str::to_owned).into()
}

/// Finds machine code: made ahead of time, then the cache, then NVRTC. Threads may share it, and processes its cache.
#[derive(Debug, Clone)]
pub struct Compiler {
    ahead: Vec<Ahead>,
    cache: Option<PathBuf>,
    nvrtc: bool,
}

impl Default for Compiler {
    fn default() -> Self {
        Self::new()
    }
}

impl Compiler {
    /// One that has only NVRTC.
    pub fn new() -> Self {
        Self { ahead: Vec::new(), cache: None, nvrtc: true }
    }

    /// Looks into `ahead` first, after what was added before.
    #[must_use]
    pub fn with_ahead(mut self, ahead: Ahead) -> Self {
        self.ahead.push(ahead);
        self
    }

    /// Keeps what NVRTC makes in `folder`. What lies there is run on the GPU: nobody else should be able to write to it.
    #[must_use]
    pub fn with_cache(mut self, folder: impl Into<PathBuf>) -> Self {
        self.cache = Some(folder.into());
        self
    }

    /// Never compiles, and reads no cache, whose files are named after the compiler.
    #[must_use]
    pub fn without_nvrtc(mut self) -> Self {
        self.nvrtc = false;
        self
    }

    /// Machine code of `verb` for `variant`: well below 1 ms if it is found, 1 to 5 s if it is compiled.
    ///
    /// # Errors
    /// [`CompileError`]. A damaged entry, or a cache that cannot be written, is a note of the result and no error.
    pub fn cubin(&self, variant: &Variant, verb: Verb) -> Result<Cubin, CompileError> {
        self.make(&Recipe::new(variant, verb)?)
    }

    pub(super) fn make(&self, recipe: &Recipe) -> Result<Cubin, CompileError> {
        let version = || if self.nvrtc { nvrtc::version() } else { Err(CudaError::NvrtcMissing) };
        self.make_with(recipe, version, || recipe.compile().map(|compiled| compiled.cubin))
    }

    /// `version` and `compile` are NVRTC.
    fn make_with(
        &self,
        recipe: &Recipe,
        version: impl FnOnce() -> Result<(u32, u32), CudaError>,
        compile: impl FnOnce() -> Result<Vec<u8>, CompileError>,
    ) -> Result<Cubin, CompileError> {
        let mut notes = Vec::new();
        for ahead in &self.ahead {
            match ahead.find(&recipe.key) {
                Found::Code(bytes) => return Ok(Cubin { bytes, origin: Origin::Ahead, notes }),
                Found::Nothing => {}
                Found::Damaged => notes.push(Note::AheadDamaged),
            }
        }
        let variant = || recipe.variant.clone();
        let version = version().map_err(|error| match error {
            CudaError::NvrtcMissing => {
                CompileError::NoCode { verb: recipe.verb, variant: variant(), file: recipe.file() }
            }
            error => CompileError::Nvrtc { verb: recipe.verb, variant: variant(), error },
        })?;
        let Some(folder) = &self.cache else {
            return Ok(Cubin { bytes: compile()?, origin: Origin::Nvrtc, notes });
        };
        let name = recipe.cache_file(version);
        match cache::read(folder, &name) {
            Found::Code(bytes) => return Ok(Cubin { bytes, origin: Origin::Cache, notes }),
            Found::Nothing => {}
            Found::Damaged => notes.push(Note::CacheDamaged(folder.join(&name))),
        }
        let bytes = compile()?;
        if let Err(error) = cache::write(folder, &name, &bytes) {
            notes.push(Note::CacheNotWritten { file: folder.join(name), reason: error.to_string() });
        }
        Ok(Cubin { bytes, origin: Origin::Nvrtc, notes })
    }
}

#[cfg(test)]
#[path = "compile_tests.rs"]
mod tests;
