//! Rotation, codebooks and TurboQuant.
//!
//! Codes are equal (no golden coordinate lies within 1e-5 of a threshold), radii within one unit of the f16 grid, levels
//! within one of the f32 grid: they are computed here, where the golden table was rounded from another solver's.
use super::{ConformError, Family, Report};
use crate::cgv::Vectors;
use certkv_codec::rotation::Rotation;
use certkv_codec::turboquant::{self, Radius};
use certkv_codec::{annotate, codebook};
use certkv_core::Dtype;

pub(crate) const FAMILIES: &[Family] = &[
    Family { prefix: "rht_", replay: rotation },
    Family { prefix: "codebooks", replay: codebooks },
    Family { prefix: "codebook_table", replay: table },
    Family { prefix: "tq", replay: turbo },
];

/// One unit of the f32 grid, of the f16 grid, and float64 against float64.
const F32_GRID: f64 = 1.2e-7;
const F16_GRID: f64 = 9.8e-4;
const CLOSE: f64 = 1e-12;

fn rotation(_: &str, v: &Vectors, report: &mut Report) -> Result<(), ConformError> {
    let (x, y, (_, n)) = (v.f64s("x")?, v.f64s("y")?, v.matrix("x")?);
    let rotation = Rotation::<f64>::new(n, 77);
    let mut turned = x.clone();
    turned.chunks_exact_mut(n).for_each(|row| rotation.turn(row));
    let size = |row: &[f64]| row.iter().map(|x| x * x).sum::<f64>().sqrt();
    let off = |a: &[f64], b: &[f64]| {
        let rows = a.chunks_exact(n).zip(b.chunks_exact(n));
        rows.map(|(a, b)| size(&a.iter().zip(b).map(|(a, b)| a - b).collect::<Vec<_>>()) / size(b)).fold(0.0, f64::max)
    };
    report.record("rotation", "relative to the norm", x.len(), off(&turned, &y), CLOSE);
    turned.chunks_exact_mut(n).for_each(|row| rotation.turn_back(row));
    report.record("rotation and back", "relative to the norm", x.len(), off(&turned, &x), CLOSE);
    Ok(())
}

fn codebooks(_: &str, v: &Vectors, report: &mut Report) -> Result<(), ConformError> {
    for n in v.i64s("n")? {
        let levels: Vec<Vec<f64>> = (1..=codebook::MAX_BITS).map(|b| codebook::levels(n as usize, b)).collect();
        let distortion: Vec<f64> = levels.iter().map(|c| codebook::distortion(n as usize, c)).collect();
        report.relative("codebook levels", &levels.concat(), &v.f64s(&format!("n{n}"))?, F32_GRID);
        report.relative("codebook distortion (2.13)", &distortion, &v.f64s(&format!("dist_n{n}"))?, 1e-6);
    }
    Ok(())
}

/// Every even number of channels.
fn table(_: &str, v: &Vectors, report: &mut Report) -> Result<(), ConformError> {
    let golden = v.f64s("levels")?;
    let mut at = golden.as_slice();
    for n in v.i64s("n")? {
        for bits in 1..=codebook::MAX_BITS {
            let (want, rest) = at.split_at_checked(1 << bits).ok_or_else(|| ConformError::refused("short table"))?;
            at = rest;
            report.relative("codebook table", &codebook::levels(n as usize, bits), want, F32_GRID);
        }
    }
    report.record("codebook table", "levels left over", 1, at.len() as f64, 0.0);
    Ok(())
}

fn turbo(name: &str, v: &Vectors, report: &mut Report) -> Result<(), ConformError> {
    let (x, (rows, dim)) = (v.f64s("x")?, v.matrix("x")?);
    let bits = name.as_bytes().get(2).map_or(0, |b| b.wrapping_sub(b'0'));
    let radius = if name.ends_with("norm") { Radius::Norm } else { Radius::LeastSquares };
    let seed = v.i64s("seed")?.first().copied().unwrap_or_default() as u64;
    let block = turboquant::encode(&x, dim, bits, seed, radius, Dtype::F16).map_err(ConformError::refused)?;
    report.exact_ints("TurboQuant codes", block.codes.iter().map(|c| i64::from(*c)), &v.i64s("codes")?);
    report.relative("TurboQuant radii", &block.radius, &v.f64s("r")?, F16_GRID);

    // Sums over codes are sums over the golden vectors, and the errors are inside the bounds.
    let decoded = v.f64s("xhat")?;
    let q: Vec<f64> = (0..dim).map(|c| (c as f64 * 0.37).cos()).collect();
    let scores = turboquant::score(&block, &q, 1.0).map_err(ConformError::refused)?;
    let dot = |row: &[f64]| row.iter().zip(&q).map(|(x, q)| x * q).sum::<f64>();
    let size = |row: &[f64]| row.iter().zip(&q).map(|(x, q)| (x * q).abs()).sum::<f64>() + f64::MIN_POSITIVE;
    let golden = decoded.chunks_exact(dim).zip(&scores);
    let worst = golden.clone().map(|(row, z)| (z - dot(row)).abs() / size(row)).fold(0.0, f64::max);
    report.record("TurboQuant scores", "relative to sum of magnitudes", rows, worst, F16_GRID);
    let mine = block.decode();
    let scale = x.iter().fold(0.0f64, |m, x| m.max(x.abs()));
    let worst = mine.iter().zip(&decoded).map(|(a, b)| (a - b).abs() / scale).fold(0.0, f64::max);
    report.record("TurboQuant xhat", "relative to the largest", mine.len(), worst, F16_GRID);

    let a = annotate::annotate_keys(&x, &mine, dim, dim, None).map_err(ConformError::refused)?;
    let errors: Vec<f64> =
        x.chunks_exact(dim).zip(mine.chunks_exact(dim)).map(|(x, y)| (dot(x) - dot(y)).abs()).collect();
    let bounds = vec![turboquant::delta(&q, f64::from(a.eps), 1.0); rows];
    report.never_below("TurboQuant Delta over true", &bounds, &errors);
    let spectral = a.group_norms.first().copied().map_or(f64::NAN, f64::from);
    let together = errors.iter().map(|e| e * e).sum::<f64>().sqrt();
    report.never_below("TurboQuant Lambda over true", &[turboquant::lambda(&q, spectral, 1.0)], &[together]);
    Ok(())
}
