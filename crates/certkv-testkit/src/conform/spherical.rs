//! Spherical keys: indices, radii and scales are bit-exact, annotations at most 1e-5 above the golden ones.
use super::{ConformError, Family, Report};
use crate::cgv::Vectors;
use certkv_codec::spherical::{self, Scheme, Spherical, Tier};

pub(crate) const FAMILIES: &[Family] = &[
    Family { prefix: "sph_b1", replay: first },
    Family { prefix: "sph_b2", replay: second },
    Family { prefix: "sph_b3", replay: third },
];

/// Float64 against float64.
const DECODED: f64 = 1e-12;
/// Annotations above the golden value, and logit bounds against the golden ones.
const CLOSE: f64 = 1e-5;

fn refused(e: impl core::fmt::Display) -> ConformError {
    ConformError::refused(e)
}

fn first(_: &str, v: &Vectors, report: &mut Report) -> Result<(), ConformError> {
    replay(Tier::B1, v, report)
}

fn second(_: &str, v: &Vectors, report: &mut Report) -> Result<(), ConformError> {
    replay(Tier::B2, v, report)
}

fn third(_: &str, v: &Vectors, report: &mut Report) -> Result<(), ConformError> {
    replay(Tier::B3, v, report)
}

fn replay(tier: Tier, v: &Vectors, report: &mut Report) -> Result<(), ConformError> {
    let (x, (rows, dim)) = (v.f64s("x")?, v.matrix("x")?);
    let words: Vec<f32> = v.f64s("books")?.into_iter().map(|c| c as f32).collect();
    let codec = Spherical::new(&Scheme::new(tier, &words)).map_err(refused)?;
    if codec.channels() != dim {
        return Err(refused(format_args!("codebooks of {} channels for keys of {dim}", codec.channels())));
    }
    let block = spherical::encode(&codec, &x).map_err(refused)?;
    report.exact_ints("spherical indices", block.indices.iter().map(|i| i64::from(*i)), &v.i64s("idx")?);
    report.exact_ints("spherical radii", block.radii.iter().map(|u| i64::from(*u)), &v.i64s("u")?);
    report.exact("spherical scales", &block.scale, &v.f64s("s")?);
    let decoded = spherical::decode(&codec, &block).map_err(refused)?;
    report.relative("spherical xhat", &decoded, &v.f64s("xhat")?, DECODED);
    let bytes = spherical::to_bytes(&codec, &block).map_err(refused)?;
    let back = spherical::from_bytes(&codec, &bytes, &block.scale).map_err(refused)?;
    report.exact_ints("spherical codes, read back", [i64::from(back != block)], &[0]);

    // Logits by the table: the golden ones, and those of the decoded keys.
    let (q, scale) = (v.f64s("q")?, (dim as f64).powf(-0.5));
    let table = spherical::table(&codec, &q).map_err(refused)?;
    let scores = spherical::score(&codec, &block, &table, scale).map_err(refused)?;
    let dot = |k: &[f64]| scale * k.iter().zip(&q).map(|(k, q)| k * q).sum::<f64>();
    let size = |k: &[f64]| scale * k.iter().zip(&q).map(|(k, q)| (k * q).abs()).sum::<f64>() + f64::MIN_POSITIVE;
    let golden = v.f64s("logits")?;
    let against = |want: &dyn Fn(usize, &[f64]) -> f64| {
        // `max` would hide a NaN.
        let broken = golden.len() != rows || scores.len() != rows || scores.iter().any(|z| z.is_nan());
        let rows = scores.iter().zip(decoded.chunks_exact(dim)).enumerate();
        let off = rows.map(|(at, (z, k))| (z - want(at, k)).abs() / size(k));
        off.fold(if broken { f64::INFINITY } else { 0.0 }, f64::max)
    };
    let worst = against(&|at, _| golden.get(at).copied().unwrap_or(f64::INFINITY));
    report.record("spherical logits", "relative to sum of magnitudes", rows, worst, DECODED);
    let worst = against(&|_, k| dot(k));
    report.record("spherical logits of decoded keys", "relative to sum of magnitudes", rows, worst, DECODED);

    let errors = spherical::annotate(&codec, &x, &decoded).map_err(refused)?;
    let largest: Vec<f64> = errors.largest.iter().map(|e| f64::from(*e)).collect();
    report.relative("spherical egrp", &largest, &v.f64s("egrp")?, CLOSE);
    let delta = spherical::delta(&codec, &q, &errors, scale).map_err(refused)?;
    let lambda = spherical::lambda(&codec, &q, &errors, scale).map_err(refused)?;
    report.relative("Delta (4.4) by spherical group", &[delta], &v.f64s("delta_groups")?, CLOSE);
    let off: Vec<f64> = scores.iter().zip(x.chunks_exact(dim)).map(|(z, k)| (z - dot(k)).abs()).collect();
    report.never_below("spherical Delta over true", &vec![delta; rows], &off);
    let together = off.iter().map(|e| e * e).sum::<f64>().sqrt();
    report.never_below("spherical Lambda over true", &[lambda], &[together]);
    Ok(())
}
