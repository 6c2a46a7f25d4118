//! Rows in device memory that the host has to see: those of steps with longer chunks.
//!
//! *Cost:* each row once over the host's link, with a wait for the device after every slot of staging, and room for all rows in single
//! precision.
use super::cache::GpuCache;
use crate::Error;
use certkv_core::{Dtype, rows};
use certkv_kernel::cuda::args::Element;
use certkv_kernel::cuda::copies;
use certkv_kernel::cuda::encode::GatherItem;
use certkv_kernel::cuda::tensor::Tensor;

/// Bytes before the items of a list: their number, on a line of its own.
const ITEMS: usize = 64;

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
    fn copy(&self, cache: &GpuCache, tensor: Tensor<'_>, addresses: &[u64], to_slot: bool) -> Result<(), Error> {
        let (core, area) = (&cache.core, cache.ring.area());
        let rows = area.span(self.rows_at(), self.rows * self.bytes)?;
        let own = (0..self.rows).map(|i| rows.address() + (i * self.bytes) as u64);
        let item = |(own, given): (u64, &u64)| match to_slot {
            true => [*given, own, self.bytes as u64, 0],
            false => [own, *given, self.bytes as u64, 0],
        };
        let items: Vec<u64> = own.zip(addresses).flat_map(item).collect();
        area.write(self.at, &[self.rows as u32])?;
        area.write(self.at + ITEMS, &items)?;
        let length = area.span(self.at, 4)?;
        let listed = area.span(self.at + ITEMS, size_of_val(items.as_slice()))?;
        let moves = if to_slot { [tensor.span(), rows] } else { [rows, tensor.span()] };
        Ok(copies::copy(&core.queue, &core.kit(0).gather, (listed, length, self.rows), moves)?)
    }
}

/// Rows of `[tokens, heads, channels]`, one after the other. Waits for the device.
///
/// # Errors
/// A tensor of other rows, a device error.
pub(super) fn fetch(
    cache: &mut GpuCache,
    argument: &'static str,
    tensor: Tensor<'_>,
    shape: [usize; 3],
) -> Result<Vec<f32>, Error> {
    let addresses = tensor.row_addresses(argument, shape)?;
    let (dim, element) = (shape[2], tensor.element());
    let bytes = dim * element.bytes();
    let mut rows = Vec::with_capacity(addresses.len() * dim);
    let (mut wide, mut bits) = (Vec::new(), Vec::new());
    for part in addresses.chunks(Slot::most(cache, bytes)) {
        let slot = Slot::take(cache, part.len(), bytes)?;
        slot.copy(cache, tensor, part, true)?;
        cache.core.finish()?;
        let area = cache.ring.area();
        match narrow(element) {
            None => {
                wide.resize(part.len() * dim, 0.0f32);
                area.read(slot.rows_at(), &mut wide)?;
                rows.extend_from_slice(&wide);
            }
            Some(dtype) => {
                bits.resize(part.len() * dim, 0u16);
                area.read(slot.rows_at(), &mut bits)?;
                rows.extend(bits.iter().map(|bits| dtype.decode16(*bits)));
            }
        }
    }
    Ok(rows)
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
    rows: &[f32],
) -> Result<(), Error> {
    let addresses = tensor.row_addresses(argument, shape)?;
    let (dim, element) = (shape[2], tensor.element());
    let bytes = dim * element.bytes();
    let most = Slot::most(cache, bytes);
    for (part, rows) in addresses.chunks(most).zip(rows.chunks(most * dim)) {
        let slot = Slot::take(cache, part.len(), bytes)?;
        let area = cache.ring.area();
        match narrow(element) {
            None => area.write(slot.rows_at(), rows)?,
            Some(dtype) => {
                let bits: Vec<u16> = rows.iter().map(|x| dtype.encode16(*x)).collect();
                area.write(slot.rows_at(), &bits)?;
            }
        }
        slot.copy(cache, tensor, part, false)?;
    }
    Ok(())
}

/// Rounds rows to a type, and says how far each of them moved; of single precision nothing does.
///
/// # Errors
/// [`Error::Overflow`] for a number that the type cannot hold.
pub(super) fn round(element: Element, rows: &mut [f32], [heads, dim]: [usize; 2]) -> Result<Vec<f64>, Error> {
    let Some(dtype) = narrow(element) else { return Ok(Vec::new()) };
    let each = rows.chunks_exact_mut(dim).enumerate().map(|(row, all)| {
        let beyond =
            |channel| Error::Overflow { argument: "out", token: row / heads, element: row % heads * dim + channel };
        rows::round(dtype, all).map_err(beyond)
    });
    each.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_does_not_fit_is_named() {
        let mut rows: Vec<f32> = (0..256).map(|i| 1.0 + i as f32 * 0.001).collect();
        let before = rows.clone();
        assert!(round(Element::F32, &mut rows, [2, 64]).is_ok_and(|lost| lost.is_empty()) && rows == before);
        let lost = round(Element::Bf16, &mut rows, [2, 64]).expect("numbers");
        assert!(lost.len() == 4 && lost.iter().all(|lost| *lost > 0.005) && rows != before);
        rows[3 * 64 + 7] = 7e4;
        let refused = round(Element::F16, &mut rows, [2, 64]);
        assert!(matches!(refused, Err(Error::Overflow { argument: "out", token: 1, element: 71 })), "{refused:?}");
    }
}
