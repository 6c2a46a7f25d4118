//! Rows of one append on the host, rounded and checked before anything is written (math.md (0.4)).
use crate::{Error, Side};
use certkv_core::{Dtype, reserve_total};

/// 16-bit patterns, `[token][kv_width]`.
#[derive(Debug, Default)]
pub(super) struct Rows {
    keys: Vec<u16>,
    values: Vec<u16>,
    width: usize,
}

impl Rows {
    /// Rounds single precision to the type of the originals.
    pub(super) fn round(&mut self, keys: &[f32], values: &[f32], width: usize, store: Dtype) -> Result<(), Error> {
        self.width = width;
        for (argument, rows, out) in [("keys", keys, &mut self.keys), ("values", values, &mut self.values)] {
            out.clear();
            reserve_total(out, rows.len())?;
            store.encode16_all(rows, out);
            if let Some(at) = store.nonfinite16_at(out) {
                let (token, element) = (at / width, at % width);
                return Err(if rows[at].is_finite() {
                    Error::Overflow { argument, token, element }
                } else {
                    Error::NonFinite { argument, token, element }
                });
            }
        }
        Ok(())
    }

    /// Takes patterns of the type of the originals.
    pub(super) fn copy(&mut self, keys: &[u16], values: &[u16], width: usize, store: Dtype) -> Result<(), Error> {
        self.width = width;
        for (argument, rows, out) in [("keys", keys, &mut self.keys), ("values", values, &mut self.values)] {
            if let Some(at) = store.nonfinite16_at(rows) {
                return Err(Error::NonFinite { argument, token: at / width, element: at % width });
            }
            out.clear();
            reserve_total(out, rows.len())?;
            out.extend_from_slice(rows);
        }
        Ok(())
    }

    /// One side of all tokens.
    pub(super) fn all(&self, side: Side) -> &[u16] {
        if side == Side::Key { &self.keys } else { &self.values }
    }

    /// One side of `token`, all heads.
    pub(super) fn side(&self, token: usize, side: Side) -> &[u16] {
        &self.all(side)[token * self.width..(token + 1) * self.width]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_halves_cannot_hold_is_named() {
        let mut rows = Rows::default();
        let load = |rows: &mut Rows, keys: &[f32], values: &[f32]| rows.round(keys, values, 2, Dtype::F16);
        assert!(load(&mut rows, &[1.0, 2.0, 3.0, 4.0], &[0.0; 4]).is_ok());
        assert_eq!(rows.side(1, Side::Key), [0x4200, 0x4400]);
        let refused = load(&mut rows, &[0.0; 4], &[0.0, 0.0, 0.0, 7e4]);
        assert!(matches!(refused, Err(Error::Overflow { argument: "values", token: 1, element: 1 })));
        let refused = load(&mut rows, &[0.0, f32::NAN], &[0.0; 2]);
        assert!(matches!(refused, Err(Error::NonFinite { argument: "keys", token: 0, element: 1 })));
        let refused = rows.copy(&[0x7c00, 0], &[0; 2], 2, Dtype::F16);
        assert!(matches!(refused, Err(Error::NonFinite { argument: "keys", token: 0, element: 0 })));
    }
}
