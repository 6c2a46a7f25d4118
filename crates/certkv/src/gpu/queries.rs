//! Queries of a step, on their way to the kernels.
use super::cache::GpuCache;
use crate::Error;
use certkv_kernel::cuda::args::Element;
use certkv_kernel::cuda::tensor::Tensor;

/// Sends the batch's queries, for places from `first` on, in the type that the kernels take from the host.
pub(super) fn send_queries(cache: &mut GpuCache, width: usize, first: usize) -> Result<Element, Error> {
    let GpuCache { core, ring, batch_words, batch_queries, config, .. } = cache;
    let (queue, at) = (&core.queue, core.query_offset() + first * width * config.queries.bytes());
    let dtype = match config.queries {
        Element::F32 => {
            ring.send(queue, &core.inputs, at, batch_queries)?;
            return Ok(Element::F32);
        }
        Element::F16 => crate::Dtype::F16,
        Element::Bf16 => crate::Dtype::Bf16,
    };
    dtype.encode16_all(batch_queries, batch_words);
    if let Some(at) = dtype.nonfinite16_at(batch_words) {
        return Err(Error::Overflow { argument: "queries", token: at / width, element: at % width });
    }
    ring.send(queue, &core.inputs, at, batch_words)?;
    Ok(config.queries)
}

/// A tensor of as many elements.
pub(super) fn check_elements(argument: &'static str, tensor: Tensor<'_>, expected: usize) -> Result<(), Error> {
    let given = tensor.elements();
    if given == expected { Ok(()) } else { Err(Error::Shape { argument, expected, given }) }
}

/// Kernels for 16-bit queries certify nothing for wider ones.
pub(super) fn check_queries(cache: &GpuCache, element: Element) -> Result<(), Error> {
    if element == Element::F32 && cache.config.queries != Element::F32 {
        let why = "kernels were made for queries of 16 bits, and single precision was given".into();
        return Err(Error::Config { field: "queries", why });
    }
    Ok(())
}
