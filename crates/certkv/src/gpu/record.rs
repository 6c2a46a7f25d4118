//! A step recorded once and run many times: what changes from step to step is in device memory.
use super::cache::GpuCache;
use super::core::Core;
use super::ladder::{self, Call};
use super::policy::Rule;
use super::published;
use super::queries::{check_elements, check_queries};
use super::step::most_blocks;
use crate::{Error, Policy};
use certkv_kernel::cuda::queue::Recording;
use certkv_kernel::cuda::tensor::Tensor;
use core::marker::PhantomData;
use std::sync::Arc;

/// Where one layer's rows arrive and its outputs go, for a batch of one token per sequence.
#[derive(Debug, Clone, Copy)]
pub struct LayerIo<'t> {
    /// `[seqs][kv_heads * head_dim]`, or [`Rows`](super::Rows) of as many.
    pub keys: Tensor<'t>,
    /// The same.
    pub values: Tensor<'t>,
    /// `[seqs][q_heads * head_dim]`, or [`Rows`](super::Rows) of as many.
    pub query: Tensor<'t>,
    /// The same.
    pub out: Tensor<'t>,
}

/// Appends and attention of all layers as one graph, for [`GpuStep::replay`](super::GpuStep::replay).
///
/// It serves every step of the same number of sequences, whichever they are and however long. It keeps the cache's memory.
#[derive(Debug)]
pub struct GpuGraph<'t> {
    /// Before the memory that it names.
    recording: Recording,
    pub(super) core: Arc<Core>,
    pub(super) seqs: usize,
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
        let rule = Rule::of(policy)?;
        let (s, g) = (&self.core.sizes, &self.config.geometry);
        if seqs == 0 || seqs > s.rows {
            return Err(Error::TooManySequences { max_sequences: s.rows });
        }
        if layers.len() != s.layers {
            return Err(Error::Shape { argument: "layers", expected: s.layers, given: layers.len() });
        }
        for io in layers {
            let (kv, q) = (seqs * g.kv_width(), seqs * g.q_width());
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
                core.append(layer, seqs, io.keys, io.values)?;
                let blocks = most_blocks(&core, layer, seqs);
                ladder::attend(
                    &core,
                    &Call { layer, seqs, blocks, query: io.query, out: io.out, rule, fresh: true, drafts: None },
                )?;
                if core.plans_apart(layer) && matches!(rule, Rule::Certified(_)) {
                    core.plan_beside(layer, seqs)?;
                }
            }
            core.join()?;
            published::publish(&core, seqs, rule, layers.iter().map(|_| true))?;
            core.close(seqs)
        })?;
        Ok(GpuGraph { recording, core, seqs, rule, tensors: PhantomData })
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
