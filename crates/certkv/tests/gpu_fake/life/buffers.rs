//! Steps that the host does not feed: their rows, queries and outputs lie in device memory.
use super::{HEADS, KV, LAYERS, Q, Rows, judge};
use certkv::gpu::{DeviceBuffer, Element, Gpu, GpuStep, GpuStream, LayerIo, Tensor};
use certkv::{Certificate, Error};
use certkv_device::cuda::CudaError;

/// Those of one layer.
pub(super) struct Buffers {
    keys: DeviceBuffer,
    values: DeviceBuffer,
    query: DeviceBuffer,
    out: DeviceBuffer,
    seqs: usize,
}

impl Buffers {
    pub(super) fn all(gpu: &Gpu, seqs: usize) -> Result<Vec<Self>, Error> {
        let one = || {
            let room = |bytes| DeviceBuffer::new(gpu, seqs * bytes);
            Ok(Self { keys: room(2 * KV)?, values: room(2 * KV)?, query: room(4 * Q)?, out: room(4 * Q)?, seqs })
        };
        (0..LAYERS).map(|_| one()).collect()
    }

    pub(super) fn io(&self) -> Result<LayerIo<'_>, CudaError> {
        let (kv, q) = (self.seqs * KV, self.seqs * Q);
        Ok(LayerIo {
            keys: Tensor::of(&self.keys, 0, Element::F16, kv)?,
            values: Tensor::of(&self.values, 0, Element::F16, kv)?,
            query: Tensor::of(&self.query, 0, Element::F32, q)?,
            out: Tensor::of(&self.out, 0, Element::F32, q)?,
        })
    }
}

pub(super) fn fill(buffers: &[Buffers], stream: &GpuStream, rows: &Rows) -> Result<(), Error> {
    for (layer, b) in buffers.iter().enumerate() {
        b.keys.write(stream, 0, &rows.keys[layer])?;
        b.values.write(stream, 0, &rows.values[layer])?;
        b.query.write(stream, 0, &rows.queries[layer])?;
        b.out.fill(stream, 0, b.out.len(), 0xff)?;
    }
    Ok(())
}

/// Certified outputs in device memory are those of this step.
pub(super) fn judge_device(
    step: &mut GpuStep<'_>,
    buffers: &[Buffers],
    rows: &Rows,
    wrong: &mut Vec<String>,
) -> Result<(), Error> {
    for (layer, b) in buffers.iter().enumerate() {
        let mut certificates = vec![Certificate::default(); b.seqs * HEADS];
        step.certificates(layer, &mut certificates)?;
        let mut out = vec![0.0; b.seqs * Q];
        b.out.read(step.cache().stream(), 0, &mut out)?;
        judge(&out, &certificates, &rows.queries[layer], true, wrong);
    }
    Ok(())
}
