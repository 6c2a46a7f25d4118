//! Number formats, FP8 tables and the hash: all bit-exact.
use super::{ConformError, Family, Report};
use crate::cgv::Vectors;
use certkv_codec::fp8::Fp8;
use certkv_core::{
    hash::{hash64, splitmix64},
    round::{self, BF16, E4M3, E5M2, F16, F32, Fp},
};

pub(crate) const FAMILIES: &[Family] = &[
    Family { prefix: "round_", replay: rounding },
    Family { prefix: "fp8_", replay: fp8_table },
    Family { prefix: "hash", replay: hashes },
];

fn format_named(name: &str) -> Result<Fp, ConformError> {
    let last = name.rsplit('_').next().unwrap_or(name);
    Ok(match last {
        "f32" => F32,
        "f16" => F16,
        "bf16" => BF16,
        "e4m3" => E4M3,
        "e5m2" => E5M2,
        _ => return Err(ConformError::refused(format_args!("no number format `{last}`"))),
    })
}

/// The FP8 type that a file name ends with.
pub(super) fn fp8_named(name: &str) -> Result<Fp8, ConformError> {
    match name.rsplit('_').next() {
        Some("e4m3") => Ok(Fp8::E4m3),
        Some("e5m2") => Ok(Fp8::E5m2),
        _ => Err(ConformError::refused(format_args!("no FP8 type in `{name}`"))),
    }
}

fn rounding(name: &str, v: &Vectors, report: &mut Report) -> Result<(), ConformError> {
    let fp = format_named(name)?;
    let x = v.f64s("x")?;
    for (mode, f) in [("nearest", round::nearest as fn(f64, Fp) -> f64), ("up", round::up), ("down", round::down)] {
        let got: Vec<f64> = x.iter().map(|x| f(*x, fp)).collect();
        report.exact(&format!("round {mode}"), &got, &v.f64s(mode)?);
    }
    Ok(())
}

fn fp8_table(name: &str, v: &Vectors, report: &mut Report) -> Result<(), ConformError> {
    let kind = fp8_named(name)?;
    let table: Vec<f64> = (0..=255).map(|code| kind.value(code)).collect();
    report.exact("fp8 table", &table, &v.f64s("table")?);
    let codes = v.f64s("x")?.into_iter().map(|x| i64::from(kind.code(x)));
    report.exact_ints("fp8 codes of numbers", codes, &v.i64s("code")?);
    Ok(())
}

fn hashes(_: &str, v: &Vectors, report: &mut Report) -> Result<(), ConformError> {
    let seeds: Vec<u64> = v.i64s("seed")?.into_iter().map(|s| s as u64).collect();
    report.exact_ints("splitmix64", seeds.iter().map(|s| splitmix64(*s) as i64), &v.i64s("splitmix64")?);
    report.exact_ints("hash64", seeds.iter().map(|s| hash64(&[*s, 7, 9]) as i64), &v.i64s("hash64_seed_7_9")?);
    // Signs and permutations of math.md (2.10), (2.11) are plain uses of the hash.
    let sign = |i: u64| if hash64(&[1, 0, i]) >> 63 == 1 { -1 } else { 1 };
    report.exact_ints("hash signs", (0..128).map(sign), &v.i64s("signs128_seed1_salt0")?);
    let mut order: Vec<u64> = (0..48).collect();
    order.sort_by_key(|i| (hash64(&[1, 101, *i]), *i));
    report.exact_ints("hash permutation", order.iter().map(|i| *i as i64), &v.i64s("perm48_seed1_salt101")?);
    Ok(())
}
