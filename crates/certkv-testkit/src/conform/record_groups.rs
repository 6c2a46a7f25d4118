//! Records whose keys need a calibration: spherical (2.20), (2.21) and Block-GTQ (2.19c), as in [`super::records`].
use super::records::{Block, patterns, refused};
use super::{ConformError, Report};
use crate::cgv::Vectors;
use certkv_codec::spherical::{Scheme, Spherical};
use certkv_codec::{KeyGroups, KeyMetric, decode};
use certkv_core::layout::{key_index, read_code};
use certkv_core::{Pairing, Tier};

/// `S'` (2.19d) is two roundings of single precision; what a rotation and its inverse leave of a row in float64.
const F32_GRID: f64 = 2.4e-7;
const TURNED: f64 = 1e-12;

fn single(v: &Vectors, name: &str) -> Result<Vec<f32>, ConformError> {
    Ok(v.f64s(name)?.into_iter().map(|x| x as f32).collect())
}

/// Radii, then indices, `[group][token]`; what they decode to is exact in float64, section 2.9.
pub(super) fn directions(report: &mut Report, v: &Vectors, block: &Block, tier: Tier) -> Result<Vec<u8>, ConformError> {
    let l = &block.layout;
    let books = Spherical::new(&Scheme::new(tier, &single(v, "books")?)).map_err(refused)?;
    let record = block.encode(Some(&KeyMetric::directions(&books)))?;
    let (groups, tokens) = (books.books().len(), l.tokens());
    let section = record.get(l.key_codes.clone()).unwrap_or_default();
    let (radii, indices) = section.split_at_checked(groups * tokens).unwrap_or_default();
    let by_token = |read: &dyn Fn(usize) -> u8| -> Vec<i64> {
        (0..tokens * groups).map(|i| i64::from(read(i % groups * tokens + i / groups))).collect()
    };
    let index = |at| read_code(indices, usize::from(tier.bits()), groups * tokens, at);
    report.exact_ints("record spherical indices (2.20)", by_token(&index), &v.i64s("k_idx")?);
    let radius = |at| radii.get(at).copied().unwrap_or_default();
    report.exact_ints("record spherical radii (2.21)", by_token(&radius), &v.i64s("k_radii")?);
    report.exact_ints("record spherical scales (2.21)", patterns(&record, &l.key_scales), &v.i64s("k_sigma")?);
    let read = |token: usize, row: &mut [f64]| decode::decode_key_of(&books, l, &record, token, row);
    report.exact("record spherical decoded (2.21)", &block.rows(read)?, &v.f64s("k_hat")?);
    Ok(record)
}

/// Codes of one width after another, each as if its channels were the head; `radius[group][token]`. Rows are in the metric.
pub(super) fn widths(report: &mut Report, v: &Vectors, block: &Block) -> Result<Vec<u8>, ConformError> {
    let l = &block.layout;
    let pairing: Pairing = v.text("pairing")?.parse().map_err(refused)?;
    let bits: Vec<u8> = v.i64s("bits")?.into_iter().map(|b| b as u8).collect();
    let groups = KeyGroups::new(&bits, pairing, v.scalar("rotary")? as usize).map_err(refused)?;
    let (centre, balance, metric) = (single(v, "key_centre")?, single(v, "balance")?, v.f64s("metric")?);
    let weighted: Vec<f64> = groups.weighted(&balance).into_iter().map(f64::from).collect();
    report.relative("record metric (2.19d)", &weighted, &metric, F32_GRID);
    // The codec takes the metric of the file, so that a deviation above stays one deviation.
    let metric = single(v, "metric")?;
    let metric = KeyMetric::new(&centre, &metric).and_then(|m| m.grouped(&groups)).map_err(refused)?;
    let record = block.encode(Some(&metric))?;

    let section = record.get(l.key_codes.clone()).unwrap_or_default();
    let (tokens, mut codes) = (l.tokens(), vec![0; l.count()]);
    for part in groups.parts() {
        let (n, of_part) = (part.places.len(), section.get(part.codes(tokens)).unwrap_or_default());
        for (token, row) in codes.chunks_exact_mut(l.dim).enumerate() {
            for (i, code) in row.iter_mut().skip(part.places.start).take(n).enumerate() {
                let at = key_index(token, i, n);
                *code = i64::from(read_code(of_part, usize::from(part.bits), tokens * n, at));
            }
        }
    }
    report.exact_ints("record Block-GTQ codes (2.19c)", codes, &v.i64s("k_codes")?);
    let (radii, slots) = (v.i64s("k_sigma")?, l.key_slots());
    let by_group = (0..slots).flat_map(|g| radii.iter().skip(g).step_by(slots).copied()).collect::<Vec<_>>();
    report.exact_ints("record Block-GTQ radii (2.19c)", patterns(&record, &l.key_scales), &by_group);

    let rows = block.rows(|token, row| decode::decode_key_in(&groups, l, &record, token, row))?;
    let golden = v.f64s("k_hat")?;
    let norm = |row: &[f64]| row.iter().map(|x| x * x).sum::<f64>().sqrt();
    let mut worst = if golden.len() == rows.len() { 0.0f64 } else { f64::INFINITY };
    for (got, want) in rows.chunks_exact(l.dim).zip(golden.chunks_exact(l.dim)) {
        let off: Vec<f64> = got.iter().zip(want).map(|(a, b)| a - b).collect();
        let off = norm(&off) / norm(want).max(f64::MIN_POSITIVE);
        worst = if off.is_nan() { f64::INFINITY } else { worst.max(off) };
    }
    report.record("record Block-GTQ decoded (2.19c)", "relative to the row's norm", rows.len(), worst, TURNED);
    Ok(record)
}
