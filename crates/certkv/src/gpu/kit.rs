//! The kernels of one format, with windows or without, and what the launches of its layers have to know of it.
use super::config::GpuConfig;
use super::core::Drafts;
use super::draft_sections::Widths;
use crate::Error;
use certkv_core::RecordLayout;
use certkv_device::cuda::Function;
use certkv_kernel::cuda::args::Element;
use certkv_kernel::cuda::{Arch, Kernels, PrepareError, Variant, Verb};

/// Kernels of one format, with windows or without.
#[derive(Debug)]
pub(super) struct Kit {
    pub(super) variant: Variant,
    pub(super) attend: Function,
    /// The decode kernel cut for throughput.
    wide: (Function, Variant),
    /// Blocks of a launch from which `wide` decodes it.
    wide_from: usize,
    pub(super) append: Function,
    pub(super) close: Function,
    pub(super) measure: Function,
    pub(super) forgive: Function,
    pub(super) rehome: Function,
    pub(super) protect: Function,
    pub(super) pack: Function,
    pub(super) select: Function,
    /// Repairs of heads over tolerance, and dense attention of what is left.
    pub(super) ladder: Function,
    pub(super) gather: Function,
    pub(super) publish: Function,
    pub(super) swap: Function,
    /// Attention of longer chunks, where the cache has room for them.
    pub(super) extend: Option<Function>,
    /// Whether records hold the originals themselves.
    pub(super) exact: bool,
    /// The ladder that corrects, if records have residual planes.
    pub(super) corrects: Option<(Function, Variant)>,
    /// Attention of drafts, where the cache has room for chunks, of layers that see everything: for each width of a launch.
    pub(super) drafts: Vec<DraftKit>,
}

/// Kernels that attend several new tokens of a sequence as one group of query heads.
#[derive(Debug)]
pub(super) struct DraftKit {
    pub(super) variant: Variant,
    pub(super) attend: Function,
    pub(super) select: Function,
    pub(super) ladder: Function,
    pub(super) corrects: Option<(Function, Variant)>,
}

/// The variant that runs records of `layout` on a GPU, the same cut for throughput, and for records with residual planes the one that corrects; then, with
/// longer chunks and without windows, those of drafts; with what a cache launches of each.
///
/// `windowed`: for layers with a window. `chunks`: with attention of longer chunks, and of so many tokens of a draft in a launch.
pub(super) fn variants(
    arch: Arch,
    config: &GpuConfig,
    layout: &RecordLayout,
    windowed: bool,
    chunks: Option<Widths>,
) -> Result<Vec<(Variant, Vec<Verb>)>, Error> {
    let variant = Variant::new(layout.clone(), config.geometry.group(), arch).map_err(PrepareError::Variant)?;
    let variant = if config.queries == Element::F32 { variant.with_single_queries() } else { variant };
    let variant = if windowed { variant.windowed() } else { variant };
    let correcting = |variant: &Variant| {
        let corrects = (!layout.format.refine.is_none()).then(|| variant.clone().correcting());
        corrects.transpose().map_err(PrepareError::Variant)
    };
    let corrects = correcting(&variant)?;
    let mut drafts = Vec::new();
    for tokens in chunks.filter(|_| !windowed).into_iter().flat_map(Widths::each) {
        let own = variant.clone().drafting(tokens).map_err(PrepareError::Variant)?;
        let corrects = correcting(&own)?.map(|corrects| (corrects, vec![Verb::Ladder]));
        drafts.extend([(own.clone(), own.verbs().collect())].into_iter().chain(corrects));
    }
    let verbs = variant.verbs().filter(|verb| chunks.is_some() || *verb != Verb::Extend).collect();
    let corrects = corrects.map(|corrects| (corrects, vec![Verb::Ladder]));
    let own = [(variant.clone(), verbs), (variant.wide(), vec![Verb::Attend])];
    Ok(own.into_iter().chain(corrects).chain(drafts).collect())
}

/// A variant, and what a cache launches of it.
pub(super) type Launched = (Variant, Vec<Verb>);

/// Kernels of one of several levels of blocks.
#[derive(Debug)]
pub(super) struct LevelKit {
    pub(super) variant: Variant,
    attend: Function,
    wide: (Function, Variant),
    wide_from: usize,
    /// Blocks into records of the level, and the variant that this and `extend` are of.
    pub(super) pack: (Function, Variant),
    /// Attention of longer chunks, where the cache has room for them.
    pub(super) extend: Option<Function>,
}

/// Kernels for blocks that have levels.
#[derive(Debug)]
pub(super) struct LevelKits {
    pub(super) each: Vec<LevelKit>,
    pub(super) select: Function,
    pub(super) unite: Function,
    pub(super) importance: Function,
    pub(super) probe: Function,
    pub(super) losses: Function,
}

/// The variants that run levels, with what a cache launches of each: by level, those that attend, narrow and wide, and the one that codes and attends longer chunks.
pub(super) fn level_variants(arch: Arch, config: &GpuConfig) -> Result<Vec<[Launched; 3]>, Error> {
    let of = |(level, layout): (usize, RecordLayout)| {
        let variant = Variant::new(layout, config.geometry.group(), arch).map_err(PrepareError::Variant)?;
        let variant = if config.queries == Element::F32 { variant.with_single_queries() } else { variant };
        let levelled = variant.clone().levelled().map_err(PrepareError::Variant)?;
        let wide = levelled.clone().wide();
        let verbs = if level == 0 { levelled.verbs().collect() } else { vec![Verb::Attend] };
        let plain =
            [Verb::Pack, Verb::Extend].into_iter().filter(|verb| *verb == Verb::Pack || config.chunk_tokens > 0);
        Ok([(levelled, verbs), (wide, vec![Verb::Attend]), (variant, plain.collect())])
    };
    config.level_layouts()?.into_iter().enumerate().map(of).collect()
}

impl LevelKits {
    /// For what [`level_variants`] gave; `None` of none.
    pub(super) fn new(kernels: &Kernels, levels: &[[Launched; 3]], ctas: u32) -> Result<Option<Self>, Error> {
        let Some([(first, _), ..]) = levels.first() else { return Ok(None) };
        let of = |[(variant, _), (wide, _), (plain, verbs)]: &[Launched; 3]| {
            let extends = verbs.contains(&Verb::Extend);
            Ok::<_, Error>(LevelKit {
                attend: kernels.get(variant, Verb::Attend)?.clone(),
                wide_from: variant.wide_from(ctas as usize),
                wide: (kernels.get(wide, Verb::Attend)?.clone(), wide.clone()),
                pack: (kernels.get(plain, Verb::Pack)?.clone(), plain.clone()),
                extend: extends.then(|| kernels.get(plain, Verb::Extend).cloned()).transpose()?,
                variant: variant.clone(),
            })
        };
        let kernel = |verb| kernels.get(first, verb).cloned();
        Ok(Some(Self {
            each: levels.iter().map(of).collect::<Result<_, _>>()?,
            select: kernel(Verb::Select)?,
            unite: kernel(Verb::Unite)?,
            importance: kernel(Verb::Importance)?,
            probe: kernel(Verb::Probe)?,
            losses: kernel(Verb::Losses)?,
        }))
    }
}

impl LevelKit {
    /// The cut of the decode kernel for a launch over so many blocks.
    pub(super) fn cut_for(&self, blocks: usize) -> (&Function, &Variant) {
        if blocks >= self.wide_from { (&self.wide.0, &self.wide.1) } else { (&self.attend, &self.variant) }
    }
}

impl Kit {
    /// For what [`variants`] gave. `extends`: with the kernel for longer chunks.
    pub(super) fn new(
        kernels: &Kernels,
        variants: &[(Variant, Vec<Verb>)],
        ctas: u32,
        extends: bool,
    ) -> Result<Self, Error> {
        let [(variant, _), (wide, _), rest @ ..] = variants else {
            return Err(Error::Config { field: "formats", why: "no kernels".into() });
        };
        let (variant, wide) = (variant.clone(), wide.clone());
        let corrects = |draft: usize| {
            let own = rest.iter().find(|(v, _)| v.corrects() && v.draft() == draft);
            own.map(|(v, _)| kernels.get(v, Verb::Ladder).map(|f| (f.clone(), v.clone()))).transpose()
        };
        let drafts = rest.iter().filter(|(v, _)| v.draft() > 0 && !v.corrects()).map(|(v, _)| {
            let kernel = |verb| kernels.get(v, verb).cloned();
            Ok::<_, Error>(DraftKit {
                attend: kernel(Verb::Attend)?,
                select: kernel(Verb::Select)?,
                ladder: kernel(Verb::Ladder)?,
                corrects: corrects(v.draft())?,
                variant: v.clone(),
            })
        });
        let kernel = |verb| kernels.get(&variant, verb).cloned();
        let format = variant.layout().format;
        Ok(Self {
            attend: kernel(Verb::Attend)?,
            wide_from: variant.wide_from(ctas as usize),
            wide: (kernels.get(&wide, Verb::Attend)?.clone(), wide),
            append: kernel(Verb::Append)?,
            close: kernel(Verb::Close)?,
            measure: kernel(Verb::Measure)?,
            forgive: kernel(Verb::Forgive)?,
            rehome: kernel(Verb::Rehome)?,
            protect: kernel(Verb::Protect)?,
            pack: kernel(Verb::Pack)?,
            select: kernel(Verb::Select)?,
            ladder: kernel(Verb::Ladder)?,
            gather: kernel(Verb::Gather)?,
            publish: kernel(Verb::Publish)?,
            swap: kernel(Verb::Swap)?,
            extend: extends.then(|| kernel(Verb::Extend)).transpose()?,
            exact: format.key.is_exact() && format.value.is_exact(),
            corrects: corrects(0)?,
            drafts: drafts.collect::<Result<_, _>>()?,
            variant,
        })
    }

    /// The kernels of a call, where it is of drafts.
    pub(super) fn for_drafts(&self, drafts: Option<Drafts>) -> Option<&DraftKit> {
        drafts.and_then(|drafts| self.drafts.iter().find(|kit| kit.variant.draft() == drafts.cut.width))
    }

    /// The cut of the decode kernel for a launch over so many blocks.
    pub(super) fn cut_for(&self, blocks: usize) -> (&Function, &Variant) {
        if blocks >= self.wide_from { (&self.wide.0, &self.wide.1) } else { (&self.attend, &self.variant) }
    }
}
