//! What a kernel is specialised for, as macros of its source.
pub use super::arch::Arch;
use super::directions;
use super::extend::ExtendShape;
use super::grouped;
use super::metrics::metric_stride;
use super::source::Verb;
use super::supported;
use super::turbo;
use certkv_core::{Dtype, GroupCode, KeyFormat, PageCode, RecordLayout, ValueFormat};
use core::fmt;

/// Why there is no such variant.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum VariantError {
    /// No machine code is made for this compute capability (major, minor).
    Capability((u32, u32)),
    /// Query heads per KV head outside 1 to 16.
    Group(usize),
    /// The GPU kernels do not read this layout; the CPU does.
    Unsupported {
        /// The property of the layout.
        what: &'static str,
        /// Its value.
        value: usize,
        /// What the kernels need of it.
        needs: &'static str,
    },
    /// Not even the smallest ring fits the shared memory.
    SharedMemory {
        /// Bytes of the smallest.
        needs: usize,
        /// Bytes that the architecture gives to a block.
        limit: usize,
    },
}

impl fmt::Display for VariantError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Capability((major, minor)) => {
                write!(f, "GPU: no kernels for compute capability {major}.{minor}; 8.x, 9.0, 10.0 and 12.0 have them")
            }
            Self::Group(n) => write!(f, "group: {n} query heads per KV head; must be 1 to 16"),
            Self::Unsupported { what, value, needs } => {
                write!(f, "layout: {what} {value} is not supported on the GPU: {needs}")
            }
            Self::SharedMemory { needs, limit } => {
                write!(f, "layout: the smallest ring takes {needs} bytes of shared memory, the GPU gives {limit}")
            }
        }
    }
}
impl std::error::Error for VariantError {}

/// How a CTA of the decode kernel is cut.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Shape {
    /// Warps; each streams whole records.
    pub warps: usize,
    /// Records in flight per warp.
    pub stages: usize,
    /// Bytes of dynamic shared memory.
    pub shared: usize,
}

impl Shape {
    /// The widest and then deepest that fits `limit` bytes. Warps come first: eight keep all four schedulers busy while
    /// others wait for memory; past eight stages nothing is gained. A single stage holds the sides of a record apart and
    /// copies one while the other is worked on.
    fn fitting(layout: &RecordLayout, group: usize, limit: usize) -> Result<Self, VariantError> {
        let shapes = [8, 4, 2, 1].into_iter().flat_map(|warps| (1..=8).rev().map(move |stages| (warps, stages)));
        let mut needs = 0;
        for (warps, stages) in shapes {
            needs = shared_bytes(layout, group, warps, stages);
            if needs <= limit {
                return Ok(Self { warps, stages, shared: needs });
            }
        }
        Err(VariantError::SharedMemory { needs, limit })
    }

    /// Threads of the CTA.
    pub const fn threads(&self) -> usize {
        32 * self.warps
    }
}

/// Scalars of a head beside its output: `SCALARS` of kernels/attend/shape.cuh.
const SCALARS: usize = 13;
/// Norms of a slice of its output: `NORMS` there.
const NORMS: usize = 3;
/// `SAMPLES` there: how many sequences or listed heads a CTA keeps the place of.
const SAMPLES: usize = 256;
/// Query heads to a KV head of a refinable format, at most: room for what a block may add.
pub(super) const MOST_REFINED_HEADS: usize = 8;

/// `PARTIAL_STRIDE` of kernels/attend/shape.cuh: floats of one partial result.
pub(super) const fn partial_stride(dim: usize, group: usize) -> usize {
    (group * (dim + SCALARS)).next_multiple_of(4)
}

/// `SHARED_BYTES` of kernels/attend/shape.cuh. The kernel asserts that it counts the same.
fn shared_bytes(layout: &RecordLayout, group: usize, warps: usize, stages: usize) -> usize {
    let refinable = !layout.format.refine.is_none();
    let ring = (warps * stages * layout.main_bytes).next_multiple_of(128);
    // What a warp has beside its slots.
    let partial = 4 * partial_stride(layout.dim, group);
    // A ring of one slot is filled side by side.
    let barriers = (8 * (stages * if stages == 1 { 2 } else { 1 } + usize::from(refinable))).next_multiple_of(16);
    let flights = (24 * stages).next_multiple_of(16);
    // Blocks that wait for their certificate, a block and head per lane.
    let heads = if group <= 4 { 4 } else { group.next_power_of_two().max(8) };
    let summary_words = if refinable { 12 } else { 8 };
    let lots = 32 * 16 + 32 / heads * (4 * summary_words + 8);
    // Where its next blocks lie, and which they are.
    let places = 65 * 16;
    let warp = partial + barriers + flights + lots + places;
    let vector = [4, 2, 1].into_iter().find(|v| layout.dim.is_multiple_of(32 * v)).unwrap_or(1);
    let finish = (4 * (group * SCALARS + NORMS * group * (layout.dim / (32 * vector)) + 4)).next_multiple_of(16);
    // The latter is what all warps know of the launch and of the head at hand.
    let (entries, known) = (4 * (SAMPLES + 8), 128);
    // Of many heads or channels all columns of the matrix unit stay there, and behind the queries where residuals are read.
    let columns = if group > 8 { 16 } else { 8 };
    let lean = group > 8 || layout.dim == 256;
    let kept = match (lean, layout.format.key.is_rotated()) {
        // As it is, and rotated.
        (_, true) => group + 2 * columns,
        // As it is, which a head's products are made of.
        _ if layout.format.key.tier().is_some() => group + columns,
        (true, false) => columns,
        (false, false) => group + if refinable { columns } else { 0 },
    };
    // What keys are coded by.
    let table = match (grouped::halves(layout), turbo::folds(layout)) {
        (0, false) => directions::table_bytes(layout, group),
        (0, true) => 4 * 2 * layout.dim,
        _ => grouped::copied_bytes(layout.dim),
    };
    let queries = 4 * layout.dim * kept + table + if turbo::folds(layout) { 16 * columns } else { 0 };
    // What a block may add unrefined, per head.
    let limits = if refinable { 16 * MOST_REFINED_HEADS } else { 0 };
    ring + warps * warp + queries + finish + known + limits + entries
}

/// What the kernels of one configuration are specialised for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Variant {
    layout: RecordLayout,
    /// Of a launch: query heads per KV head, times the tokens of a draft.
    group: usize,
    /// 0 without drafts.
    draft: usize,
    arch: Arch,
    certify: bool,
    single_queries: bool,
    corrects: bool,
    windowed: bool,
    levelled: bool,
    from: Option<RecordLayout>,
    shape: Shape,
    extend: ExtendShape,
}

/// Macros of a layout, and of the old one where records are transcoded.
const LAYOUT_MACROS: [(&str, &str); 19] = [
    ("CKV_DIM", "CKV_FROM_DIM"),
    ("CKV_BLOCK", "CKV_FROM_BLOCK"),
    ("CKV_STORE", "CKV_FROM_STORE"),
    ("CKV_KEY", "CKV_FROM_KEY"),
    ("CKV_KEY_BITS", "CKV_FROM_KEY_BITS"),
    ("CKV_KEY_GROUP", "CKV_FROM_KEY_GROUP"),
    ("CKV_KEY_META", "CKV_FROM_KEY_META"),
    ("CKV_VALUE", "CKV_FROM_VALUE"),
    ("CKV_VALUE_BITS", "CKV_FROM_VALUE_BITS"),
    ("CKV_VALUE_GROUP", "CKV_FROM_VALUE_GROUP"),
    ("CKV_KEY_CODES", "CKV_FROM_KEY_CODES"),
    ("CKV_KEY_SCALES", "CKV_FROM_KEY_SCALES"),
    ("CKV_VALUE_CODES", "CKV_FROM_VALUE_CODES"),
    ("CKV_VALUE_SCALES", "CKV_FROM_VALUE_SCALES"),
    ("CKV_SUMMARY", "CKV_FROM_SUMMARY"),
    ("CKV_KEY_REFINE", "CKV_FROM_KEY_REFINE"),
    ("CKV_VALUE_REFINE", "CKV_FROM_VALUE_REFINE"),
    ("CKV_KEY_RESIDUALS", "CKV_FROM_KEY_RESIDUALS"),
    ("CKV_VALUE_RESIDUALS", "CKV_FROM_VALUE_RESIDUALS"),
];

/// `KIND` of `codec/page_scale.cuh`.
const fn page_kind(code: PageCode) -> usize {
    match code {
        PageCode::Int(_) => 0,
        PageCode::E4m3 => 1,
        PageCode::E5m2 => 2,
    }
}

/// Values of [`LAYOUT_MACROS`].
fn layout_values(l: &RecordLayout) -> [usize; 19] {
    let (key, value) = (l.format.key, l.format.value);
    let dtype = |t| match t {
        Dtype::F16 => 0,
        Dtype::Bf16 => 1,
        Dtype::F32 => 2,
    };
    let (key_kind, meta) = match key {
        KeyFormat::F16 | KeyFormat::Bf16 => (0, Dtype::F16),
        KeyFormat::Channel { meta, .. } => (1, meta),
        KeyFormat::Token { .. } => (2, Dtype::F16),
        KeyFormat::Gtq { code: GroupCode::Directions(_) } => (7, Dtype::F16),
        KeyFormat::Turbo { .. } | KeyFormat::Gtq { .. } => (3, Dtype::F16),
        KeyFormat::Page { code, .. } => (4 + page_kind(code), Dtype::F16),
    };
    let value_kind = match value {
        ValueFormat::F16 | ValueFormat::Bf16 => 0,
        ValueFormat::Affine { .. } => 1,
        ValueFormat::Turbo { .. } => 2,
        ValueFormat::Page { code, .. } => 3 + page_kind(code),
        ValueFormat::Channel { .. } => 6,
    };
    [
        l.dim,
        l.tokens(),
        dtype(l.store),
        key_kind,
        key.bits(),
        key.group(l.dim),
        dtype(meta),
        value_kind,
        value.bits(),
        value.group(l.dim),
        l.key_codes.start,
        l.key_scales.start,
        l.value_codes.start,
        l.value_scales.start,
        l.summary.start,
        usize::from(l.format.refine.key),
        usize::from(l.format.refine.value),
        l.key_residuals.start,
        l.value_residuals.start,
    ]
}

impl Variant {
    /// Kernels for records of `layout`, `group` query heads per KV head and GPUs of `arch`, with certificates.
    ///
    /// # Errors
    /// [`VariantError`] names what the kernels do not support.
    pub fn new(layout: RecordLayout, group: usize, arch: Arch) -> Result<Self, VariantError> {
        supported::check(&layout, group)?;
        let limit = arch.shared_limit();
        let shape = Shape::fitting(&layout, group, limit)?;
        let extend = ExtendShape::fitting(&layout, group, limit)
            .ok_or(VariantError::SharedMemory { needs: layout.main_bytes, limit })?;
        Ok(Self {
            layout,
            group,
            draft: 0,
            arch,
            certify: true,
            single_queries: false,
            corrects: false,
            windowed: false,
            levelled: false,
            from: None,
            shape,
            extend,
        })
    }

    /// The same without certificates: what certifying costs is measured against this one. Its outputs are uncertified.
    #[must_use]
    pub fn uncertified(mut self) -> Self {
        self.certify = false;
        self
    }

    /// The same for queries in single precision. Others take queries of 16 bits only, and certify nothing for wider ones.
    #[must_use]
    pub fn with_single_queries(mut self) -> Self {
        self.single_queries = true;
        self
    }

    /// The same for layers whose queries see a sliding window with sinks ([`Sight`](super::Sight)) and no other token. Not with drafts.
    #[must_use]
    pub fn windowed(mut self) -> Self {
        self.windowed = true;
        self
    }

    /// Kernels for one of several levels (kernels/attend/level.cuh): formats that blocks of a sequence have. A launch goes over the blocks of its own, and
    /// [`unite`](super::unite::unite) makes outputs of what all have left.
    ///
    /// # Errors
    /// [`VariantError::Unsupported`] beside windows, drafts or residuals.
    pub fn levelled(mut self) -> Result<Self, VariantError> {
        let beside =
            [self.windowed, self.draft > 0, !self.layout.format.refine.is_none()].into_iter().filter(|x| *x).count();
        if beside > 0 {
            let needs = "levels are codes alone, of single tokens that see everything";
            return Err(VariantError::Unsupported { what: "windows, drafts and residuals:", value: beside, needs });
        }
        self.levelled = true;
        Ok(self)
    }

    /// Kernels that attend `tokens` new tokens of a sequence in one launch (kernels/attend/draft.cuh): the query heads of all of them are one group, which reads a
    /// block once. Of that group a decode kernel takes as many heads as of any ([`Variant::most_drafted`] tokens). Called on what [`Variant::new`] gave.
    ///
    /// # Errors
    /// [`VariantError::Unsupported`] for more tokens than that, or none; [`VariantError::SharedMemory`].
    pub fn drafting(self, tokens: usize) -> Result<Self, VariantError> {
        if tokens == 0 || tokens > self.most_drafted() || self.windowed {
            let needs = "at least one, and no more than fit a launch, of layers without a window";
            return Err(VariantError::Unsupported { what: "draft of tokens:", value: tokens, needs });
        }
        let wider = Self::new(self.layout, self.group * tokens, self.arch)?;
        debug_assert!(wider.shape.warps > 1, "two tails of a sequence are two warps'");
        Ok(Self { draft: tokens, single_queries: self.single_queries, certify: self.certify, ..wider })
    }

    /// Tokens of a draft that one launch can attend at most, of as many query heads per KV head each: what there are kernels for, and shared memory; 0 where it
    /// has room for one warp.
    pub fn most_drafted(&self) -> usize {
        let wider = |tokens: usize| Self::new(self.layout.clone(), self.group * tokens, self.arch);
        // A sequence can have two blocks in tails, which two warps read.
        let fits = |tokens: &usize| wider(*tokens).is_ok_and(|variant| variant.shape.warps > 1);
        (1..=16 / self.group).rev().find(fits).unwrap_or(0)
    }

    /// The decode kernel that corrects blocks picked after a pass over records of a format with residuals. Other verbs are those of the variant itself.
    ///
    /// # Errors
    /// [`VariantError::Unsupported`] for a format without.
    pub fn correcting(mut self) -> Result<Self, VariantError> {
        if self.layout.format.refine.is_none() {
            return Err(VariantError::Unsupported {
                what: "residuals of bits",
                value: 0,
                needs: "some to correct with",
            });
        }
        self.corrects = true;
        Ok(self)
    }

    /// The same with [`Verb::Transcode`], from records of the layout `from` to its own.
    ///
    /// # Errors
    /// [`VariantError::Unsupported`] if head size, tokens per block or type of originals differ.
    pub fn transcoding(mut self, from: RecordLayout) -> Result<Self, VariantError> {
        let both = |l: &RecordLayout| [l.dim, l.tokens(), usize::from(l.store == Dtype::Bf16)];
        let names = ["head_dim of the old layout", "block of the old layout", "type of the old layout's originals"];
        for ((what, value), own) in names.into_iter().zip(both(&from)).zip(both(&self.layout)) {
            if value != own {
                return Err(VariantError::Unsupported { what, value, needs: "that of the new layout" });
            }
        }
        for (l, what) in [(&from, "residual bits of the old layout"), (&self.layout, "residual bits of the new layout")]
        {
            supported::transcoded(l, what)?;
        }
        self.from = Some(from);
        Ok(self)
    }

    /// The same cut for throughput: twelve warps of two records, or of one, where registers and shared memory allow it. Faster from about
    /// [`Variant::wide_from`] blocks on; below, the latency of one block decides and eight warps are quicker.
    #[must_use]
    pub fn wide(self) -> Self {
        // More heads or channels need more registers than twelve warps leave to each.
        let refines_singles = self.single_queries && !self.layout.format.refine.is_none();
        if self.group > 4 || self.layout.dim > 128 || refines_singles {
            return self;
        }
        [2, 1].into_iter().find_map(|stages| self.clone().with_shape(12, stages).ok()).unwrap_or(self)
    }

    /// Blocks of one launch, over all sequences and KV heads, from which [`Variant::wide`] is the better choice on a GPU of
    /// `multiprocessors`: some 8 to each of its warps, and 10 where only one record fits. From there on eight warps are up to 4% faster on
    /// some cards and up to 10% slower on others.
    pub fn wide_from(&self, multiprocessors: usize) -> usize {
        let Shape { warps, stages, .. } = self.clone().wide().shape;
        multiprocessors * warps * if stages == 1 { 10 } else { 8 }
    }

    /// The same cut otherwise, for measurements.
    ///
    /// # Errors
    /// [`VariantError::SharedMemory`] if that does not fit.
    pub fn with_shape(mut self, warps: usize, stages: usize) -> Result<Self, VariantError> {
        let (needs, limit) = (shared_bytes(&self.layout, self.group, warps, stages), self.arch.shared_limit());
        if warps == 0 || stages == 0 || warps > 16 || needs > limit {
            return Err(VariantError::SharedMemory { needs, limit });
        }
        self.shape = Shape { warps, stages, shared: needs };
        Ok(self)
    }

    /// The same with a CTA of the extend kernel cut otherwise, for measurements and tests.
    ///
    /// # Errors
    /// [`VariantError::SharedMemory`] if that does not fit.
    pub fn with_extend_shape(mut self, warps: usize, stages: usize) -> Result<Self, VariantError> {
        let limit = self.arch.shared_limit();
        self.extend = ExtendShape::cut(&self.layout, self.group, limit, warps, stages)
            .filter(|s| (1..=16).contains(&s.warps) && s.stages > 0)
            .ok_or(VariantError::SharedMemory { needs: self.layout.main_bytes, limit })?;
        Ok(self)
    }

    /// The records.
    pub fn layout(&self) -> &RecordLayout {
        &self.layout
    }

    /// Query heads per KV head, those of all tokens of a draft.
    pub fn group(&self) -> usize {
        self.group
    }

    /// Tokens of a draft; 0 of a variant without drafts.
    pub fn draft(&self) -> usize {
        self.draft
    }

    /// Query heads per KV head of one token.
    pub fn heads(&self) -> usize {
        self.group / self.draft.max(1)
    }

    /// The GPUs.
    pub fn arch(&self) -> Arch {
        self.arch
    }

    /// Whether the decode kernel computes certificates.
    pub fn certifies(&self) -> bool {
        self.certify
    }

    /// Whether the decode kernel corrects what a pass has kept.
    pub fn corrects(&self) -> bool {
        self.corrects
    }

    /// Whether queries see a window.
    pub fn is_windowed(&self) -> bool {
        self.windowed
    }

    /// Whether the decode kernel is for one of several levels.
    pub fn is_levelled(&self) -> bool {
        self.levelled
    }

    /// Whether keys are coded by a calibration, which launches are told of.
    pub fn is_calibrated(&self) -> bool {
        metric_stride(&self.layout) > 0
    }

    /// Whether queries may be in single precision.
    pub fn takes_single_queries(&self) -> bool {
        self.single_queries
    }

    /// The layout that is transcoded from.
    pub fn from(&self) -> Option<&RecordLayout> {
        self.from.as_ref()
    }

    /// Verbs that this variant has: transcoding only from a layout, nothing but the decode kernel and the ladder where that corrects, of drafts what
    /// attends and chooses, and of levels what attends, chooses and unites, which others do not.
    pub fn verbs(&self) -> impl Iterator<Item = Verb> {
        let has = |verb: &Verb| {
            (*verb != Verb::Transcode || self.from.is_some())
                && (matches!(verb, Verb::Attend | Verb::Ladder) || !self.corrects)
                && (matches!(verb, Verb::Attend | Verb::Ladder | Verb::Select) || self.draft == 0)
                && match verb {
                    Verb::Attend | Verb::Select => true,
                    Verb::Unite | Verb::Importance | Verb::Probe | Verb::Losses => self.levelled,
                    _ => !self.levelled,
                }
        };
        Verb::ALL.into_iter().filter(has)
    }

    /// How a CTA of the decode kernel is cut.
    pub fn shape(&self) -> Shape {
        self.shape
    }

    /// How a CTA of the extend kernel is cut.
    pub fn extend_shape(&self) -> ExtendShape {
        self.extend
    }

    /// Floats of one partial result of the decode kernel.
    pub fn partial_stride(&self) -> usize {
        partial_stride(self.layout.dim, self.group)
    }

    /// Every macro of the sources, with its value, in a fixed order.
    pub fn macros(&self) -> Vec<(&'static str, usize)> {
        let new = LAYOUT_MACROS.into_iter().map(|names| names.0).zip(layout_values(&self.layout));
        let from = self.from.iter().flat_map(layout_values);
        let old = LAYOUT_MACROS.into_iter().map(|names| names.1).zip(from);
        let rest = [
            ("CKV_RECORD", self.layout.main_bytes),
            ("CKV_GROUP", self.group),
            ("CKV_WARPS", self.shape.warps),
            ("CKV_STAGES", self.shape.stages),
            ("CKV_CORRECT", usize::from(self.corrects)),
            ("CKV_WINDOW", usize::from(self.windowed)),
            ("CKV_LEVEL", usize::from(self.levelled)),
            ("CKV_DRAFT", self.draft),
            ("CKV_CERTIFY", usize::from(self.certify)),
            ("CKV_QUERY_LOW", usize::from(self.single_queries)),
            ("CKV_SHARED", self.shape.shared),
            ("CKV_EXTEND_WARPS", self.extend.warps),
            ("CKV_EXTEND_STAGES", self.extend.stages),
            ("CKV_EXTEND_SHARED", self.extend.shared),
            ("CKV_EXTEND_CTAS", self.extend.ctas),
        ];
        new.chain(rest).chain(old).chain(turbo::macros(&self.layout)).collect()
    }
}

impl fmt::Display for Variant {
    /// `k8-v4g32-b32/f16/d128/g4/sm_90a`, then `/draftN` if it attends drafts of so many tokens, `/correct` if it corrects, `/window` if queries see one, `/level` if it is for one of several, `/plain` if it does not certify, `/single` if it takes queries in
    /// single precision, `/from=FORMAT` if it transcodes.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let l = &self.layout;
        write!(f, "{}/{}/d{}/g{}/sm_{}", l.format, l.store, l.dim, self.heads(), self.arch)?;
        if self.draft > 0 {
            write!(f, "/draft{}", self.draft)?;
        }
        if self.corrects {
            f.write_str("/correct")?;
        }
        if self.windowed {
            f.write_str("/window")?;
        }
        if self.levelled {
            f.write_str("/level")?;
        }
        if !self.certify {
            f.write_str("/plain")?;
        }
        if self.single_queries {
            f.write_str("/single")?;
        }
        self.from.as_ref().map_or(Ok(()), |from| write!(f, "/from={}", from.format))
    }
}

#[cfg(test)]
#[path = "variant_tests.rs"]
mod tests;
