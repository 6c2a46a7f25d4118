//! Block-GTQ keys: scores, balance scale and schedule from calibration queries, then the codec in that scheme.
//!
//! As for TurboQuant, codes are equal and radii within one unit of the f16 grid; what follows from radii and levels is compared
//! relative to the keys.
use super::{ConformError, Family, Report};
use crate::cgv::Vectors;
use certkv_codec::gtq::{self, BlockGtq, Scheme};
use certkv_control::{Energies, Score, allocate_bits};
use certkv_core::Pairing;

pub(crate) const FAMILIES: &[Family] =
    &[Family { prefix: "gtq_half", replay: half }, Family { prefix: "gtq_inter", replay: interleaved }];

const F32_GRID: f64 = 1.2e-7;
const F16_GRID: f64 = 9.8e-4;
const CLOSE: f64 = 1e-12;

fn refused(e: impl std::fmt::Display) -> ConformError {
    ConformError::refused(e)
}

fn half(_: &str, v: &Vectors, report: &mut Report) -> Result<(), ConformError> {
    block_gtq(Pairing::Half, v, report)
}

fn interleaved(_: &str, v: &Vectors, report: &mut Report) -> Result<(), ConformError> {
    block_gtq(Pairing::Interleaved, v, report)
}

/// Mean squared norms of the pairs over the rows.
fn energies(rows: &[f64], dim: usize, pairing: Pairing) -> Vec<f64> {
    let of = |pair: usize| {
        let [i, j] = pairing.channels(dim, pair);
        rows.chunks_exact(dim).map(|row| row[i] * row[i] + row[j] * row[j]).sum::<f64>() / (rows.len() / dim) as f64
    };
    (0..dim / 2).map(of).collect()
}

fn block_gtq(pairing: Pairing, v: &Vectors, report: &mut Report) -> Result<(), ConformError> {
    let (x, (rows, dim), golden_bits) = (v.f64s("x")?, v.matrix("x")?, v.i64s("bits")?);
    let calibration = v.f64s("calib_q")?;
    if dim == 0
        || !dim.is_multiple_of(2)
        || rows == 0
        || calibration.is_empty()
        || !calibration.len().is_multiple_of(dim)
    {
        return Err(refused("keys and queries of no head"));
    }
    let (a, k) = (energies(&calibration, dim, pairing), energies(&x, dim, pairing));
    let e = Energies { queries: &a, keys: &k };
    for (score, name) in
        [(Score::Average, "score_avg"), (Score::Geometric, "score_geo"), (Score::Logit2, "score_logit2")]
    {
        report.relative("Block-GTQ scores", &e.scores(score).map_err(refused)?, &v.f64s(name)?, CLOSE);
    }
    let mut bits = Vec::new();
    for (score, name) in [(Score::Average, "bits_avg"), (Score::Logit2, "bits")] {
        let scores = e.scores(score).map_err(refused)?;
        allocate_bits(&scores, 3 * dim / 2, 1, 8, &mut bits).map_err(refused)?;
        report.exact_ints("Block-GTQ schedule", bits.iter().map(|b| i64::from(*b)), &v.i64s(name)?);
    }
    let mut mine = vec![0.0; dim];
    for (pair, scale) in e.balance().map_err(refused)?.into_iter().enumerate() {
        pairing.channels(dim, pair).into_iter().for_each(|c| mine[c] = scale);
    }
    let balance = v.f64s("balance")?;
    report.relative("Block-GTQ balance scale (9.4)", &mine, &balance, F32_GRID);

    // The codec takes what the file says, so that a deviation above stays one deviation.
    let bits: Vec<u8> = golden_bits.iter().map(|b| u8::try_from(*b).unwrap_or(0)).collect();
    let seed = v.i64s("seed")?.first().copied().unwrap_or_default() as u64;
    let codec =
        BlockGtq::new(&Scheme { pairing, balance: Some(&balance), ..Scheme::new(&bits, seed) }).map_err(refused)?;
    let block = gtq::encode(&codec, &x).map_err(refused)?;
    for (group, part) in codec.groups().iter().zip(&block) {
        let named = |what: &str| format!("{what}_b{}", group.bits());
        let channels = group.channels().iter().map(|c| *c as i64);
        report.exact_ints("Block-GTQ groups", channels, &v.i64s(&named("channels"))?);
        report.exact_ints("Block-GTQ codes", part.codes.iter().map(|c| i64::from(*c)), &v.i64s(&named("codes"))?);
        report.relative("Block-GTQ radii", &part.radius, &v.f64s(&named("r"))?, F16_GRID);
    }
    let decoded = gtq::decode(&codec, &block).map_err(refused)?;
    let (golden, largest) = (v.f64s("xhat")?, x.iter().fold(0.0f64, |m, x| m.max(x.abs())));
    let off = decoded.iter().zip(&golden).map(|(a, b)| (a - b).abs() / largest).fold(0.0, f64::max);
    report.record("Block-GTQ xhat", "relative to the largest", decoded.len(), off, F16_GRID);

    let errors = gtq::annotate(&codec, &x, &decoded).map_err(refused)?;
    let wide = |x: &[f32]| x.iter().map(|x| f64::from(*x)).collect::<Vec<f64>>();
    report.relative("Block-GTQ egrp", &wide(&errors.largest), &v.f64s("egrp")?, F16_GRID);
    report.relative("Block-GTQ sopg", &wide(&errors.spectral), &v.f64s("sopg")?, F16_GRID);

    let (queries, scale) = (v.f64s("q")?, (dim as f64).powf(-0.5));
    let (mut deltas, mut lambdas, mut largest, mut together) = (vec![], vec![], vec![], vec![]);
    for q in queries.chunks_exact(dim) {
        deltas.push(gtq::delta(&codec, q, &errors, scale).map_err(refused)?);
        lambdas.push(gtq::lambda(&codec, q, &errors, scale).map_err(refused)?);
        let dot = |k: &[f64]| scale * k.iter().zip(q).map(|(k, q)| k * q).sum::<f64>();
        let size = |k: &[f64]| scale * k.iter().zip(q).map(|(k, q)| (k * q).abs()).sum::<f64>() + f64::MIN_POSITIVE;
        let scores = gtq::score(&codec, &block, q, scale).map_err(refused)?;
        let against = scores.iter().zip(decoded.chunks_exact(dim));
        let worst = against.map(|(z, k)| (z - dot(k)).abs() / size(k)).fold(0.0, f64::max);
        report.record("Block-GTQ scores from codes", "relative to sum of magnitudes", rows, worst, CLOSE);
        let errors = scores.iter().zip(x.chunks_exact(dim)).map(|(z, k)| (z - dot(k)).abs());
        largest.push(errors.clone().fold(0.0, f64::max));
        together.push(errors.map(|e| e * e).sum::<f64>().sqrt());
    }
    report.relative("Delta (4.4) by width", &deltas, &v.f64s("delta_groups")?, F16_GRID);
    report.relative("Lambda (4.9) by width", &lambdas, &v.f64s("lambda_groups")?, F16_GRID);
    report.relative("Block-GTQ largest logit error", &largest, &v.f64s("true_max_logit_err")?, F16_GRID);
    report.never_below("Block-GTQ Delta over true", &deltas, &largest);
    report.never_below("Block-GTQ Lambda over true", &lambdas, &together);
    Ok(())
}
