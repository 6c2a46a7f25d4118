//! A step recorded once and run many times: what changes from step to step is in device memory.
use super::cache::GpuCache;
use super::core::Core;
use super::drafts;
use super::ladder::{self, Call};
use super::policy::Rule;
use super::published::{self, Whose};
use super::queries::{check_elements, check_queries};
use super::window::most_blocks;
use crate::{Error, Policy};
use certkv_kernel::cuda::queue::Recording;
use certkv_kernel::cuda::tensor::Tensor;
use core::marker::PhantomData;
use std::sync::Arc;

/// Where one layer's rows arrive and its outputs go, for a batch of one token per sequence, or of a draft of each: `rows` are all tokens then, those of a sequence one
/// after the other.
#[derive(Debug, Clone, Copy)]
pub struct LayerIo<'t> {
    /// `[rows][kv_heads * head_dim]`, or [`Rows`](super::Rows) of as many.
    pub keys: Tensor<'t>,
    /// The same.
    pub values: Tensor<'t>,
    /// `[rows][q_heads * head_dim]`, or [`Rows`](super::Rows) of as many.
    pub query: Tensor<'t>,
    /// The same.
    pub out: Tensor<'t>,
}

/// Steps that a recording serves: of so many sequences, with so many new tokens each.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Shape {
    pub(super) seqs: usize,
    pub(super) tokens: usize,
}

impl Shape {
    fn rows(self) -> usize {
        self.seqs * self.tokens
    }

    fn whose(self) -> Whose {
        let Self { seqs, tokens } = self;
        if tokens == 1 { Whose::Batch(seqs) } else { Whose::Drafts { seqs, tokens: self.rows(), longest: tokens } }
    }
}

/// Appends and attention of all layers as one graph, for [`GpuStep::replay`](super::GpuStep::replay).
///
/// It serves every step of the same number of sequences with as many tokens each, whichever they are and however long. It keeps the cache's memory.
#[derive(Debug)]
pub struct GpuGraph<'t> {
    /// Before the memory that it names.
    recording: Recording,
    pub(super) core: Arc<Core>,
    pub(super) shape: Shape,
    pub(super) rule: Rule,
    tensors: PhantomData<&'t ()>,
}

impl GpuCache {
    /// Records a step of `seqs` sequences, one token each, under `policy`. Nothing runs. A few ms.
    ///
    /// # Errors
    /// More sequences than the cache can have, another number of layers, a tensor of the wrong size or type, a policy that
    /// the GPU does not have; the driver's.
    pub fn record<'t>(&self, seqs: usize, layers: &[LayerIo<'t>], policy: Policy) -> Result<GpuGraph<'t>, Error> {
        self.record_drafts(seqs, 1, layers, policy)
    }

    /// The same with `tokens` new tokens of each sequence: [drafts](super::GpuConfig::chunk_tokens).
    ///
    /// # Errors
    /// As [`GpuCache::record`]; [`Error::Config`] for more tokens than drafts have, or where layers attend them otherwise.
    pub fn record_drafts<'t>(
        &self,
        seqs: usize,
        tokens: usize,
        layers: &[LayerIo<'t>],
        policy: Policy,
    ) -> Result<GpuGraph<'t>, Error> {
        let shape = Shape { seqs, tokens };
        let rule = Rule::of(policy)?;
        let (s, g) = (&self.core.sizes, &self.config.geometry);
        if seqs == 0 || seqs > s.rows {
            return Err(Error::TooManySequences { max_sequences: s.rows });
        }
        if layers.len() != s.layers {
            return Err(Error::Shape { argument: "layers", expected: s.layers, given: layers.len() });
        }
        let drafts = tokens != 1;
        if drafts && (!s.drafts_alone || tokens == 0 || tokens > s.drafts.tokens) {
            let most = if s.drafts_alone { s.drafts.tokens } else { 0 };
            let why = format!("drafts have at most {most} tokens, and {tokens} are to be recorded");
            return Err(Error::Config { field: "chunk_tokens", why });
        }
        for io in layers {
            let rows = shape.rows();
            let (kv, q) = (rows * g.kv_width(), rows * g.q_width());
            for (argument, given) in [("keys", io.keys.elements()), ("values", io.values.elements())] {
                if given != kv {
                    return Err(Error::Shape { argument, expected: kv, given });
                }
            }
            check_elements("query", io.query, q)?;
            check_elements("out", io.out, q)?;
            check_queries(self, io.query.element())?;
        }
        let core = Arc::clone(&self.core);
        (0..s.layers).try_for_each(|layer| core.settle(layer))?;
        let recording = core.queue.record(|| -> Result<(), Error> {
            for (layer, io) in layers.iter().enumerate() {
                if drafts {
                    core.append_drafts(layer, shape.rows(), [io.keys, io.values])?;
                    let launches = drafts::of_each(&core, shape);
                    drafts::enqueue(&core, (layer, 0, true), launches, (io.query, io.out), (rule, true))?;
                    continue;
                }
                core.append(layer, seqs, io.keys, io.values)?;
                let blocks = most_blocks(&core, layer, seqs);
                let LayerIo { query, out, .. } = *io;
                ladder::attend(&core, &Call { layer, seqs, blocks, query, out, rule, fresh: true, drafts: None })?;
                if core.plans_apart(layer) && matches!(rule, Rule::Certified(_)) {
                    core.plan_beside(layer, seqs)?;
                }
            }
            core.join()?;
            published::publish(&core, shape.whose(), rule, layers.iter().map(|_| true))?;
            if drafts { core.close_drafts(seqs) } else { core.close(seqs) }
        })?;
        Ok(GpuGraph { recording, core, shape, rule, tensors: PhantomData })
    }
}

impl GpuGraph<'_> {
    /// Kernels, copies and fills in it.
    pub fn nodes(&self) -> usize {
        self.recording.nodes()
    }

    pub(super) fn run(&self, core: &Core) -> Result<(), Error> {
        Ok(core.queue.replay(&self.recording)?)
    }
}
