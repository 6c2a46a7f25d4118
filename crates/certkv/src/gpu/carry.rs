//! Rows in device memory that the host has to see, those of steps with longer chunks that the GPU has no room for, or does not attend; and copies of rows on the device.
//!
//! *Cost:* each row once over the host's link, with a wait for the device after every slot of staging, and room for all rows in single
//! precision.
use super::cache::GpuCache;
use super::step::GpuStep;
use crate::Error;
use certkv_core::{Dtype, reserve_total, rows, try_resize};
use certkv_kernel::cuda::args::Element;
use certkv_kernel::cuda::copies;
use certkv_kernel::cuda::encode::GatherItem;
use certkv_kernel::cuda::tensor::Tensor;

/// Words of an item.
const WORDS: usize = size_of::<GatherItem>() / 8;

/// Bytes before the items of a list: their number, on a line of its own.
const ITEMS: usize = 64;

/// What longer chunks need on the host, kept with its memory from step to step where they are drafts.
#[derive(Debug, Default)]
pub(super) struct Carry {
    addresses: Vec<u64>,
    items: Vec<u64>,
    bits: Vec<u16>,
    /// Keys and values, or queries and outputs, `[tokens][heads][channels]`.
    rows: [Vec<f32>; 2],
}

/// The 16-bit type of an element; `None`: single precision.
pub(super) fn narrow(element: Element) -> Option<Dtype> {
    match element {
        Element::F16 => Some(Dtype::F16),
        Element::Bf16 => Some(Dtype::Bf16),
        Element::F32 => None,
    }
}

/// A slot of staging with a list of copies and room for the rows that they move.
struct Slot {
    at: usize,
    rows: usize,
    bytes: usize,
}

impl Slot {
    /// Rows of `bytes` bytes that a slot holds.
    fn most(cache: &GpuCache, bytes: usize) -> usize {
        ((cache.ring.most() - ITEMS) / (size_of::<GatherItem>() + bytes)).max(1)
    }

    fn take(cache: &mut GpuCache, rows: usize, bytes: usize) -> Result<Self, Error> {
        let GpuCache { core, ring, .. } = cache;
        let at = ring.take(&core.queue, ITEMS + rows * (size_of::<GatherItem>() + bytes))?;
        Ok(Self { at, rows, bytes })
    }

    fn rows_at(&self) -> usize {
        self.at + ITEMS + self.rows * size_of::<GatherItem>()
    }

    /// Enqueues the copies between the slot's rows and those at `addresses` of `tensor`.
    fn copy(
        &self,
        cache: &GpuCache,
        tensor: Tensor<'_>,
        (addresses, items): (&[u64], &mut Vec<u64>),
        to_slot: bool,
    ) -> Result<(), Error> {
        let (core, area) = (&cache.core, cache.ring.area());
        let rows = area.span(self.rows_at(), self.rows * self.bytes)?;
        let own = (0..self.rows).map(|i| rows.address() + (i * self.bytes) as u64);
        let item = |(own, given): (u64, &u64)| match to_slot {
            true => [*given, own, self.bytes as u64, 0],
            false => [own, *given, self.bytes as u64, 0],
        };
        items.clear();
        reserve_total(items, WORDS * self.rows)?;
        items.extend(own.zip(addresses).flat_map(item));
        area.write(self.at, &[self.rows as u32])?;
        area.write(self.at + ITEMS, items.as_slice())?;
        let length = area.span(self.at, 4)?;
        let listed = area.span(self.at + ITEMS, size_of_val(items.as_slice()))?;
        let moves = if to_slot { [tensor.span(), rows] } else { [rows, tensor.span()] };
        Ok(copies::copy(&core.queue, &core.kit(0).gather, (listed, length, self.rows), moves)?)
    }
}

impl GpuStep<'_> {
    /// Lends the lists, and what rows are carried in.
    pub(super) fn carried(
        &mut self,
        call: impl FnOnce(&mut Self, &mut Carry, &mut [Vec<f32>; 2]) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let mut lists = core::mem::take(&mut self.cache.carried);
        let mut rows = core::mem::take(&mut lists.rows);
        let done = call(self, &mut lists, &mut rows);
        lists.rows = rows;
        self.cache.carried = lists;
        done
    }
}

/// Rows of `[tokens, heads, channels]`, one after the other, to `into`. Waits for the device.
///
/// # Errors
/// A tensor of other rows, a device error.
pub(super) fn fetch(
    cache: &mut GpuCache,
    argument: &'static str,
    tensor: Tensor<'_>,
    shape: [usize; 3],
    lists: &mut Carry,
    into: &mut Vec<f32>,
) -> Result<(), Error> {
    let Carry { addresses, items, bits, .. } = lists;
    tensor.row_addresses(argument, shape, addresses)?;
    let (dim, element) = (shape[2], tensor.element());
    let bytes = dim * element.bytes();
    into.clear();
    reserve_total(into, addresses.len() * dim)?;
    for part in addresses.chunks(Slot::most(cache, bytes)) {
        let slot = Slot::take(cache, part.len(), bytes)?;
        slot.copy(cache, tensor, (part, items), true)?;
        cache.core.finish()?;
        let area = cache.ring.area();
        match narrow(element) {
            None => {
                let start = into.len();
                into.resize(start + part.len() * dim, 0.0);
                area.read(slot.rows_at(), &mut into[start..])?;
            }
            Some(dtype) => {
                try_resize(bits, part.len() * dim, 0u16)?;
                area.read(slot.rows_at(), bits)?;
                into.extend(bits.iter().map(|bits| dtype.decode16(*bits)));
            }
        }
    }
    Ok(())
}

/// Enqueues copies of tokens between tensors on the device, of one type: from the first to the second, by their numbers there.
///
/// # Errors
/// As [`fetch`].
pub(super) fn between(
    cache: &mut GpuCache,
    (argument, [heads, dim]): (&'static str, [usize; 2]),
    [from, to]: [Tensor<'_>; 2],
    tokens: impl Iterator<Item = (usize, usize)>,
) -> Result<(), Error> {
    let mut lists = core::mem::take(&mut cache.carried);
    let Carry { addresses, items, .. } = &mut lists;
    let bytes = dim * from.element().bytes();
    items.clear();
    for (old, new) in tokens {
        for (tensor, token) in [(from, old), (to, new)] {
            tensor.tokens(argument, [heads, dim], (token, 1))?.row_addresses(argument, [1, heads, dim], addresses)?;
            items.extend_from_slice(addresses);
        }
    }
    // Sources and targets of a token's heads lie one behind the other.
    addresses.clear();
    for token in items.chunks_exact(2 * heads) {
        let (old, new) = token.split_at(heads);
        addresses.extend(old.iter().zip(new).flat_map(|(old, new)| [*old, *new, bytes as u64, 0]));
    }
    let most = (cache.ring.most() - ITEMS) / size_of::<GatherItem>() * WORDS;
    for part in addresses.chunks(most) {
        let count = part.len() / WORDS;
        let GpuCache { core, ring, .. } = &mut *cache;
        let at = ring.take(&core.queue, ITEMS + size_of_val(part))?;
        let area = ring.area();
        area.write(at, &[count as u32])?;
        area.write(at + ITEMS, part)?;
        let listed = (area.span(at + ITEMS, size_of_val(part))?, area.span(at, 4)?, count);
        copies::copy(&core.queue, &core.kit(0).gather, listed, [from.span(), to.span()])?;
    }
    cache.carried = lists;
    Ok(())
}

/// Enqueues the way back, for rows that hold numbers of the tensor's type.
///
/// # Errors
/// As [`fetch`]; rows may be written then.
pub(super) fn put(
    cache: &mut GpuCache,
    argument: &'static str,
    tensor: Tensor<'_>,
    shape: [usize; 3],
    lists: &mut Carry,
    rows: &[f32],
) -> Result<(), Error> {
    let Carry { addresses, items, bits, .. } = lists;
    tensor.row_addresses(argument, shape, addresses)?;
    let (dim, element) = (shape[2], tensor.element());
    let bytes = dim * element.bytes();
    let most = Slot::most(cache, bytes);
    for (part, rows) in addresses.chunks(most).zip(rows.chunks(most * dim)) {
        let slot = Slot::take(cache, part.len(), bytes)?;
        let area = cache.ring.area();
        match narrow(element) {
            None => area.write(slot.rows_at(), rows)?,
            Some(dtype) => {
                bits.clear();
                reserve_total(bits, rows.len())?;
                dtype.encode16_all(rows, bits);
                area.write(slot.rows_at(), bits.as_slice())?;
            }
        }
        slot.copy(cache, tensor, (part, items), false)?;
    }
    Ok(())
}

/// Rounds rows to a type, and writes to `lost` how far each of them moved; of single precision nothing does.
///
/// # Errors
/// [`Error::Overflow`] for a number that the type cannot hold.
pub(super) fn round(
    element: Element,
    rows: &mut [f32],
    [heads, dim]: [usize; 2],
    lost: &mut Vec<f64>,
) -> Result<(), Error> {
    lost.clear();
    let Some(dtype) = narrow(element) else { return Ok(()) };
    for (row, all) in rows.chunks_exact_mut(dim).enumerate() {
        let beyond =
            |channel| Error::Overflow { argument: "out", token: row / heads, element: row % heads * dim + channel };
        lost.push(rows::round(dtype, all).map_err(beyond)?);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_does_not_fit_is_named() {
        let mut rows: Vec<f32> = (0..256).map(|i| 1.0 + i as f32 * 0.001).collect();
        let before = rows.clone();
        let mut lost = vec![7.0];
        assert!(round(Element::F32, &mut rows, [2, 64], &mut lost).is_ok() && lost.is_empty() && rows == before);
        round(Element::Bf16, &mut rows, [2, 64], &mut lost).expect("numbers");
        assert!(lost.len() == 4 && lost.iter().all(|lost| *lost > 0.005) && rows != before);
        rows[3 * 64 + 7] = 7e4;
        let refused = round(Element::F16, &mut rows, [2, 64], &mut lost);
        assert!(matches!(refused, Err(Error::Overflow { argument: "out", token: 1, element: 71 })), "{refused:?}");
    }
}
