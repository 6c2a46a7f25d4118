//! Steps with longer chunks whose rows, queries and outputs lie in device memory, of 16 bits and of 32, at a distance and one after the other.
use super::Failure;
use super::world::Inputs;
use certkv::gpu::{DeviceBuffer, Element, GpuStep, Rows, Tensor};
use certkv::{Certificate, Dtype};

/// Appends and attends a layer, as with rows of the host.
pub(crate) fn run(
    step: &mut GpuStep<'_>,
    layer: usize,
    inputs: &Inputs,
    (out, certificates): (&mut [f32], &mut [Certificate]),
) -> Result<(), Failure> {
    let (tokens, g) = (step.tokens(), *step.cache().geometry());
    let gpu = step.cache().gpu().clone();
    let stream = step.cache().stream();
    // As they would be stored.
    let element = if g.store == Dtype::F16 { Element::F16 } else { Element::Bf16 };
    let apart = 8 * (tokens / 2 % 2);
    let spread = |rows: &[f32]| -> Vec<u16> {
        let bits = |row: &[f32]| {
            row.iter().map(|x| g.store.encode16(*x)).chain([0x7e00; 8].into_iter().take(apart)).collect::<Vec<_>>()
        };
        rows.chunks(g.head_dim).flat_map(bits).collect()
    };
    let rows = |heads| Rows {
        count: tokens,
        heads,
        dim: g.head_dim,
        stride: heads * (g.head_dim + apart),
        head_stride: g.head_dim + apart,
    };
    let held = |words: &[u16]| -> Result<DeviceBuffer, Failure> {
        let buffer = DeviceBuffer::new(&gpu, 2 * words.len())?;
        buffer.write(stream, 0, words)?;
        Ok(buffer)
    };
    let [keys, values] = [held(&spread(&inputs.keys[layer]))?, held(&spread(&inputs.values[layer]))?];
    let query = DeviceBuffer::new(&gpu, 4 * inputs.queries[layer].len())?;
    query.write(stream, 0, &inputs.queries[layer])?;
    let narrow = tokens % 4 == 1;
    let answers = if narrow { element } else { Element::F32 };
    let room = tokens * g.q_heads * (g.head_dim + apart);
    let answered = DeviceBuffer::new(&gpu, answers.bytes() * room)?;
    answered.fill(stream, 0, answered.len(), 0xff)?;
    let of = |buffer| Tensor::rows_of(buffer, 0, element, rows(g.kv_heads));
    step.append_device(layer, of(&keys)?, of(&values)?)?;
    let query = Tensor::of(&query, 0, Element::F32, tokens * g.q_width())?;
    step.attend_device(layer, query, Tensor::rows_of(&answered, 0, answers, rows(g.q_heads))?)?;
    step.certificates(layer, certificates)?;
    let stream = step.cache().stream();
    let found: Vec<f32> = if narrow {
        let mut bits = vec![0u16; room];
        answered.read(stream, 0, &mut bits)?;
        bits.iter().map(|bits| g.store.decode16(*bits)).collect()
    } else {
        let mut all = vec![0.0; room];
        answered.read(stream, 0, &mut all)?;
        all
    };
    out.copy_from_slice(
        &found.chunks(g.head_dim + apart).flat_map(|row| &row[..g.head_dim]).copied().collect::<Vec<_>>(),
    );
    Ok(())
}
