//! Prefill on one stretch: the plain version of the register-blocked product.
use super::softmax::{power, weight};
use crate::block::Rows;
use crate::line::Line;
use crate::prefill::{Stretch, Strip};
use crate::slack::CLAMP;
use certkv_core::Dtype;

/// Rows to the stretch: keys transposed, values as they are.
pub(crate) fn unpack(keys: Rows<'_>, values: Rows<'_>, store: Dtype, n: usize, at: usize, out: &mut Stretch) {
    let dim = out.dim;
    for t in 0..n {
        let to = at + t;
        for c in 0..dim {
            out.keys[c * 4 + to / 16].0[to % 16] = store.decode16(keys.get(t * dim + c));
            out.values[to * dim / 16 + c / 16].0[c % 16] = store.decode16(values.get(t * dim + c));
        }
    }
}

/// Moves one row's state to the weights of its logits `x`; returns them in place.
#[inline(always)]
pub(crate) fn weigh_row(x: &mut [Line; 4], visible: u64, exponent: &mut f32, l: &mut f32, o: &mut [Line]) {
    let mut most = *exponent;
    for t in (0..64).filter(|t| visible >> t & 1 == 1) {
        let v = &mut x[t / 16].0[t % 16];
        *v = if *v < -CLAMP {
            -CLAMP
        } else if *v > CLAMP {
            CLAMP
        } else {
            *v
        };
        most = if v.ceil() > most { v.ceil() } else { most };
    }
    if most != *exponent {
        let f = power(*exponent - most);
        *l *= f;
        for line in o.iter_mut() {
            line.scale(f);
        }
        *exponent = most;
    }
    let mut sum = Line::ZERO;
    for t in 0..64 {
        let v = &mut x[t / 16].0[t % 16];
        *v = if visible >> t & 1 == 1 { weight(*v, most) } else { 0.0 };
        sum.0[t % 16] += *v;
    }
    *l += sum.sum();
}

/// All rows, one at a time.
#[inline(always)]
pub(crate) fn strip(s: &Stretch, rows: &mut Strip<'_>) {
    let n = s.dim / 16;
    for r in 0..rows.visible.len() {
        if rows.visible[r] == 0 {
            continue;
        }
        let mut x = [Line::ZERO; 4];
        for c in 0..s.dim {
            let q = rows.q[r * n + c / 16].0[c % 16];
            for (x, k) in x.iter_mut().zip(&s.keys[4 * c..4 * c + 4]) {
                x.axpy(q, k);
            }
        }
        for line in &mut x {
            line.scale(rows.unit);
        }
        let o = &mut rows.o[r * n..(r + 1) * n];
        weigh_row(&mut x, rows.visible[r], &mut rows.exponent[r], &mut rows.l[r], o);
        for t in 0..64 {
            for (o, v) in o.iter_mut().zip(&s.values[t * n..(t + 1) * n]) {
                o.axpy(x[t / 16].0[t % 16], v);
            }
        }
    }
}
