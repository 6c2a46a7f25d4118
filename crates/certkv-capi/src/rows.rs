//! 16-bit rows on their way into a cache of the same or the other 16-bit type.
use crate::config::{CERTKV_F16, certkv_dtype};
use crate::guard::Failure;
use crate::owned::OwnedStep;
use crate::status::certkv_status::CERTKV_OUT_OF_MEMORY;
use certkv::Dtype;
use half::{bf16, f16};

/// Rows widened to f32, kept between calls.
#[derive(Debug, Default)]
pub(crate) struct Rows {
    keys: Vec<f32>,
    values: Vec<f32>,
}

impl Rows {
    /// Of memory that it has.
    pub(crate) fn bytes(&self) -> usize {
        4 * (self.keys.capacity() + self.values.capacity())
    }

    /// Appends 16-bit rows of type `dtype` (f16 or bf16): as they are if the cache stores that type, else by way of
    /// f32, which holds both exactly, so that there is one rounding.
    pub(crate) fn append(
        &mut self,
        step: &mut OwnedStep,
        layer: usize,
        keys: &[u16],
        values: &[u16],
        dtype: certkv_dtype,
        store: Dtype,
    ) -> Result<(), Failure> {
        let given = if dtype == CERTKV_F16 { Dtype::F16 } else { Dtype::Bf16 };
        if given == store {
            return step.append_bits(layer, keys, values);
        }
        widen(&mut self.keys, keys, given)?;
        widen(&mut self.values, values, given)?;
        step.append(layer, &self.keys, &self.values)
    }
}

fn widen(to: &mut Vec<f32>, from: &[u16], dtype: Dtype) -> Result<(), Failure> {
    to.clear();
    to.try_reserve(from.len())
        .map_err(|_| Failure::new(CERTKV_OUT_OF_MEMORY, format!("rows: {} bytes could not be had", 4 * from.len())))?;
    match dtype {
        Dtype::F16 => to.extend(from.iter().map(|bits| f16::from_bits(*bits).to_f32())),
        _ => to.extend(from.iter().map(|bits| bf16::from_bits(*bits).to_f32())),
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn widening_is_exact() {
        let mut to = vec![9.0; 3];
        widen(&mut to, &[0x3c00, 0xc100, 0x0001], Dtype::F16).unwrap();
        assert_eq!(to, [1.0, -2.5, 2f32.powi(-24)]);
        widen(&mut to, &[0x3f80, 0x7f80], Dtype::Bf16).unwrap();
        assert_eq!(to, [1.0, f32::INFINITY]);
    }
}
