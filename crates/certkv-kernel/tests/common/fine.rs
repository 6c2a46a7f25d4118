//! Residuals of refinable formats, by the reference codec.
use super::{decode, get, norm, spectral};
use certkv_codec::refine;
use certkv_core::layout::{key_index, read_code, value_index, write_code};
use certkv_core::round::up_f32;
use certkv_core::summary::SUMMARY_BYTES;
use certkv_core::{Dtype, ErrorSummary, KeyFormat, RecordLayout, RefinedSummary, ValueFormat};

type Rows = Vec<Vec<f64>>;

/// The step of every element, keys and values, row-major.
fn steps(l: &RecordLayout, record: &[u8]) -> [Vec<f64>; 2] {
    let of = |f: &dyn Fn(usize, usize) -> f64| (0..l.count()).map(|i| f(i / l.dim, i % l.dim)).collect();
    let (key, value) = (&record[l.key_scales.clone()], &record[l.value_scales.clone()]);
    let KeyFormat::Channel { meta, .. } = l.format.key else { panic!("{} has no residuals", l.format) };
    let value_step = |t: usize, c: usize| match l.format.value {
        ValueFormat::Affine { group, .. } => get(value, Dtype::F16, c / usize::from(group) * l.tokens() + t),
        _ => get(value, Dtype::F16, 2 * c),
    };
    [of(&|_, c| get(key, meta, c)), of(&value_step)]
}

/// Residual sections, refined summary and the value norm of a record whose codes are written.
pub fn write(l: &RecordLayout, record: &mut [u8], k: &Rows, v: &Rows) {
    if l.format.refine.is_none() {
        return;
    }
    let ([key_steps, value_steps], (dk, dv)) = (steps(l, record), decode(None, l, record));
    let bits = [l.format.refine.key, l.format.refine.value];
    let sides = [(k, dk, key_steps, l.key_residuals.clone()), (v, dv, value_steps, l.value_residuals.clone())];
    let mut left = Vec::new();
    for (i, (x, y, steps, section)) in sides.into_iter().enumerate() {
        let (x, y) = (x.concat(), y.concat());
        let residuals = refine::encode(&x, &y, &steps, bits[i]).unwrap();
        for (e, r) in residuals.iter().enumerate() {
            let at = [key_index, value_index][i](e / l.dim, e % l.dim, l.dim);
            let stored = (i16::from(*r) + (1 << (bits[i] - 1))) as u8;
            write_code(&mut record[section.clone()], bits[i].into(), l.count(), at, stored);
        }
        let fine = refine::decode(&y, &residuals, &steps, bits[i]).unwrap();
        let errors: Vec<f64> = x.iter().zip(&fine).map(|(x, y)| x - y).collect();
        left.push((errors, fine, steps));
    }
    let rows = |x: &[f64]| -> Rows { x.chunks_exact(l.dim).map(<[f64]>::to_vec).collect() };
    let widest = |x: &Rows| x.iter().map(|r| norm(r)).fold(0.0, f64::max);
    let up = |x: f64| up_f32(x * (1.0 + 2f64.powi(-40)));
    let scaled: Vec<f64> = left[0].0.iter().zip(&left[0].2).map(|(e, s)| if *s > 0.0 { e / s } else { *e }).collect();
    let (ek, ev) = (rows(&left[0].0), rows(&left[1].0));
    let refined = RefinedSummary {
        kappa: up(spectral(&rows(&scaled))),
        eps: up(widest(&ek)),
        eta: up(widest(&ev)),
        sop: up(spectral(&ev)),
    };
    let summary = l.summary.start;
    record[summary + SUMMARY_BYTES..l.summary.end].copy_from_slice(&refined.to_bytes());
    let mut coarse = ErrorSummary::from_bytes(&record[l.summary.clone()]);
    if let ValueFormat::Affine { .. } = l.format.value {
        coarse.value_norm = coarse.value_norm.max(up(widest(&rows(&left[1].1))));
    }
    record[summary..summary + SUMMARY_BYTES].copy_from_slice(&coarse.to_bytes());
}

/// Adds to decoded sides what those that are read `fine` have in residuals.
pub fn read(l: &RecordLayout, record: &[u8], fine: (bool, bool), decoded: &mut (Rows, Rows)) {
    if l.format.refine.is_none() {
        return;
    }
    let bits = [l.format.refine.key, l.format.refine.value];
    let sides = [(fine.0, &mut decoded.0, &l.key_residuals), (fine.1, &mut decoded.1, &l.value_residuals)];
    for (i, ((fine, rows, section), steps)) in sides.into_iter().zip(steps(l, record)).enumerate() {
        for (e, step) in steps.iter().enumerate().filter(|_| fine) {
            let (t, c) = (e / l.dim, e % l.dim);
            let at = [key_index, value_index][i](t, c, l.dim);
            let stored = read_code(&record[section.clone()], bits[i].into(), l.count(), at);
            let r = f64::from(stored) - f64::from(1u16 << (bits[i] - 1));
            rows[t][c] += (r + 0.5) * step / f64::from(1u16 << bits[i]);
        }
    }
}
