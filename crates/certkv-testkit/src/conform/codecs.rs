//! K8, affine, symmetric and FP8 codecs, refinement and rejects.
//!
//! Codes, scales, offsets and packed bytes are bit-exact; annotations are never below the true value in the file and at
//! most 1e-5 above the golden one; spectral bounds at most 1.6 times the true norm.
use super::{ConformError, Family, Report, formats::fp8_named};
use crate::cgv::{Element, Vectors};
use certkv_codec::token_sym::{Mode, Sharing, Spec};
use certkv_codec::{
    CodecError, Encoder, affine, annotate, channel8, decode, fp8, identity, logit, pack, refine, token_sym,
};
use certkv_core::{Dtype, Format, Geometry, KeyFormat, RecordLayout, Refine, ValueFormat};

pub(crate) const FAMILIES: &[Family] = &[
    Family { prefix: "k8_", replay: channel_keys },
    Family { prefix: "k8refine_", replay: refinement },
    Family { prefix: "v2_", replay: affine_values },
    Family { prefix: "v3_", replay: affine_values },
    Family { prefix: "v4_", replay: affine_values },
    Family { prefix: "v5_", replay: affine_values },
    Family { prefix: "v6_", replay: affine_values },
    Family { prefix: "v7_", replay: affine_values },
    Family { prefix: "v8_", replay: affine_values },
    Family { prefix: "sym", replay: symmetric },
    Family { prefix: "sym8_static", replay: symmetric_static },
    Family { prefix: "fp8codec_", replay: fp8_codec },
    Family { prefix: "reject_", replay: reject },
    Family { prefix: "reject_overflow", replay: reject_overflow },
];

/// Float64 decode against float64 decode.
const DECODED: f64 = 1e-12;
/// Annotations above the golden value, and logit bounds against the golden ones.
const CLOSE: f64 = 1e-5;
/// Spectral bounds above the true norm.
const SPECTRAL: f64 = 1.6;

fn refused(e: impl core::fmt::Display) -> ConformError {
    ConformError::refused(e)
}

fn wide(x: &[f32]) -> Vec<f64> {
    x.iter().map(|x| f64::from(*x)).collect()
}

fn meta_of(v: &Vectors) -> Result<Dtype, ConformError> {
    match v.text("meta")? {
        "f32" => Ok(Dtype::F32),
        "f16" => Ok(Dtype::F16),
        "bf16" => Ok(Dtype::Bf16),
        other => Err(refused(format_args!("no metadata type `{other}`"))),
    }
}

/// The 16-bit type of an array of originals.
fn store_of(v: &Vectors, name: &str) -> Result<Dtype, ConformError> {
    match v.get(name)?.element {
        Element::F16 => Ok(Dtype::F16),
        Element::Bf16 => Ok(Dtype::Bf16),
        e => Err(refused(format_args!("originals of type {e:?}"))),
    }
}

fn words(v: &Vectors, name: &str) -> Result<Vec<u16>, ConformError> {
    Ok(v.i64s(name)?.into_iter().map(|w| w as u16).collect())
}

/// An annotation: not below the truth, hardly above the golden value.
fn annotation(report: &mut Report, v: &Vectors, name: &str, got: &[f64]) -> Result<(), ConformError> {
    report.never_below(&format!("annotation {name}"), got, &v.f64s(&format!("true_{name}"))?);
    above_golden(report, v, name, got)
}

fn above_golden(report: &mut Report, v: &Vectors, name: &str, got: &[f64]) -> Result<(), ConformError> {
    let golden = v.f64s(name)?;
    let above = |(a, b): (&f64, &f64)| if a == b { 0.0 } else { ((a - b) / b).max(0.0) };
    // `max` would hide a NaN.
    let broken = got.len() != golden.len() || got.iter().any(|x| x.is_nan());
    let worst = got.iter().zip(&golden).map(above).fold(if broken { f64::INFINITY } else { 0.0 }, f64::max);
    report.record(&format!("annotation {name}"), "above golden", golden.len(), worst, CLOSE);
    Ok(())
}

/// A spectral bound: not below the truth, at most 1.6 times it.
fn spectral(report: &mut Report, v: &Vectors, name: &str, got: &[f64]) -> Result<(), ConformError> {
    let truth = v.f64s(&format!("true_{name}"))?;
    report.never_below(&format!("annotation {name}"), got, &truth);
    report.ratio(&format!("annotation {name}"), got, &truth, SPECTRAL);
    Ok(())
}

/// The layout of a record for this block, if records hold such blocks; the other side is kept as originals.
fn layout(
    rows: usize,
    dim: usize,
    store: Dtype,
    key: Option<KeyFormat>,
    value: Option<ValueFormat>,
) -> Option<RecordLayout> {
    let geometry = Geometry { store, ..Geometry::new(1, 1, 1, dim).ok()? };
    let dense =
        if store == Dtype::F16 { (KeyFormat::F16, ValueFormat::F16) } else { (KeyFormat::Bf16, ValueFormat::Bf16) };
    let format =
        Format { key: key.unwrap_or(dense.0), value: value.unwrap_or(dense.1), block: rows, refine: Refine::NONE };
    RecordLayout::new(&geometry, format).ok()
}

type ReadRow = fn(&RecordLayout, &[u8], usize, &mut [f64]) -> Result<(), CodecError>;

fn record_rows(layout: &RecordLayout, record: &[u8], read: ReadRow) -> Result<Vec<f64>, ConformError> {
    let mut out = vec![0.0; layout.count()];
    for (token, row) in out.chunks_exact_mut(layout.dim).enumerate() {
        read(layout, record, token, row).map_err(refused)?;
    }
    Ok(out)
}

fn channel_keys(_: &str, v: &Vectors, report: &mut Report) -> Result<(), ConformError> {
    let (x, (rows, dim), meta) = (v.f64s("x")?, v.matrix("x")?, meta_of(v)?);
    let block = channel8::encode(&x, dim, 8, meta).map_err(refused)?;
    let decoded = block.decode();
    report.exact_ints("k8 codes", block.codes.iter().map(|c| i64::from(*c)), &v.i64s("codes")?);
    report.exact("k8 sigma", &block.sigma, &v.f64s("sigma")?);
    report.exact("k8 z", &block.z, &v.f64s("z")?);
    report.relative("k8 xhat", &decoded, &v.f64s("xhat")?, DECODED);
    report.exact_ints("k8 packed bytes", [pack::row_bytes(dim, 8) as i64], &v.i64s("packed_bytes_per_row")?);

    let a = annotate::annotate_keys(&x, &decoded, dim, dim, Some(&block.sigma)).map_err(refused)?;
    annotation(report, v, "eps2", &[f64::from(a.eps)])?;
    annotation(report, v, "ech", &wide(&a.channel_errors))?;
    annotation(report, v, "egrp", &wide(&a.group_errors))?;
    spectral(report, v, "sopg", &wide(&a.group_norms))?;
    spectral(report, v, "kappa", &[f64::from(a.kappa)])?;
    above_golden(report, v, "kn", &[f64::from(a.key_norm)])?;
    report.exact("annotation lo", &wide(&a.lo), &v.f64s("lo")?);
    report.exact("annotation hi", &wide(&a.hi), &v.f64s("hi")?);

    let (q, scale) = (v.f64s("q")?, (dim as f64).powf(-0.5));
    let kappa = v.scalar("kappa")?;
    let ech = wide(&a.channel_errors);
    let of_queries = |f: &dyn Fn(&[f64]) -> f64| q.chunks_exact(dim).map(f).collect::<Vec<f64>>();
    let half_sigma = of_queries(&|q| channel8::delta(q, &block.sigma, scale));
    let measured = of_queries(&|q| logit::delta_channels(q, &ech, scale));
    let lambda = of_queries(&|q| channel8::lambda(q, &block.sigma, f64::from(a.kappa), scale));
    let golden_lambda = of_queries(&|q| channel8::lambda(q, &block.sigma, kappa, scale));
    let sigma_norm = of_queries(&|q| channel8::delta_sigma_norm(q, &block.sigma, scale));
    let int8 = of_queries(&|q| channel8::delta_query_int8(q, &block.sigma, block.code_l1(), scale));
    report.relative("Delta (4.2) half step", &half_sigma, &v.f64s("delta_l1_half_sigma")?, CLOSE);
    report.relative("Delta (4.2) measured", &measured, &v.f64s("delta_l1_measured")?, CLOSE);
    report.relative("Delta (4.6)", &sigma_norm, &v.f64s("delta_sigma_norm")?, CLOSE);
    report.relative("Lambda (4.8)", &golden_lambda, &v.f64s("lambda_k8")?, CLOSE);
    report.relative("Delta_q (4.14)", &int8, &v.f64s("delta_query_int8")?, CLOSE);
    let truth = v.f64s("true_max_logit_err")?;
    for (name, delta) in [("half step", &half_sigma), ("measured", &measured), ("(4.6)", &sigma_norm)] {
        report.never_below(&format!("Delta {name} over true"), delta, &truth);
    }
    report.never_below("Lambda over true", &lambda, &v.f64s("true_l2_logit_err")?);

    // Scoring from codes is the same real number as scoring the decoded keys.
    for q in q.chunks_exact(dim) {
        let scores = channel8::score(&block, q, scale).map_err(refused)?;
        let direct = |k: &[f64]| scale * k.iter().zip(q).map(|(k, q)| k * q).sum::<f64>();
        let size = |k: &[f64]| scale * k.iter().zip(q).map(|(k, q)| (k * q).abs()).sum::<f64>();
        let off = |(got, k): (&f64, &[f64])| if *got == direct(k) { 0.0 } else { (got - direct(k)).abs() / size(k) };
        let worst = scores.iter().zip(decoded.chunks_exact(dim)).map(off).fold(0.0, f64::max);
        report.record("k8 score from codes", "relative to sum of magnitudes", rows, worst, DECODED);
    }

    let store = store_of(v, "x")?;
    if let Some(l) = layout(rows, dim, store, Some(KeyFormat::Channel { bits: 8, meta }), None) {
        let x = words(v, "x")?;
        let mut record = vec![0; l.bytes];
        Encoder::new(&l).encode(&x, &x, &vec![0.0; dim], &mut record).map_err(refused)?;
        report.exact("k8 record decoded", &record_rows(&l, &record, decode::decode_key)?, &decoded);
        let summary = decode::read_summary(&l, &record);
        annotation(report, v, "eps2", &[f64::from(summary.eps)])?;
        spectral(report, v, "kappa", &[f64::from(summary.kappa)])?;
    }
    Ok(())
}

fn refinement(_: &str, v: &Vectors, report: &mut Report) -> Result<(), ConformError> {
    let (x, (_, dim)) = (v.f64s("x")?, v.matrix("x")?);
    let (sigma, z) = (v.f64s("sigma")?, v.f64s("z")?);
    let codes = v.i64s("codes")?.into_iter().map(|c| c as i8).collect();
    let block = channel8::Channel8 { dim, codes, sigma: sigma.clone(), z };
    let decoded = block.decode();
    let residual = refine::encode(&x, &decoded, &sigma, 8).map_err(refused)?;
    report.exact_ints("refinement residuals", residual.iter().map(|r| i64::from(*r)), &v.i64s("residual")?);
    let refined = refine::decode(&decoded, &residual, &sigma, 8).map_err(refused)?;
    report.relative("refinement xhat", &refined, &v.f64s("xhat")?, DECODED);
    let errors: Vec<f64> = x.iter().zip(&refined).map(|(a, b)| (a - b).abs()).collect();
    // The decoded numbers are rounded to float64 themselves.
    let bound = |(s, x): (&f64, &f64)| refine::bound(*s, 8) + x.abs() * f64::EPSILON;
    let bounds: Vec<f64> = sigma.iter().cycle().zip(&x).map(bound).collect();
    report.never_below("refinement bound (2.23)", &bounds, &errors);
    Ok(())
}

fn affine_values(name: &str, v: &Vectors, report: &mut Report) -> Result<(), ConformError> {
    let (x, (rows, dim)) = (v.f64s("x")?, v.matrix("x")?);
    let (_, groups) = v.matrix("sigma")?;
    let bits = name.as_bytes().get(1).map_or(0, |b| b.wrapping_sub(b'0'));
    let group = dim / groups;
    let block = affine::encode(&x, dim, group, bits, Dtype::F16).map_err(refused)?;
    let decoded = block.decode();
    report.exact_ints("affine codes", block.codes.iter().map(|c| i64::from(*c)), &v.i64s("codes")?);
    report.exact("affine sigma", &block.sigma, &v.f64s("sigma")?);
    report.exact("affine z", &block.z, &v.f64s("z")?);
    report.relative("affine xhat", &decoded, &v.f64s("xhat")?, DECODED);
    packing(report, v, "affine packed", &block.codes, dim, bits)?;

    let centre = v.f64s("centre")?;
    let a = annotate::annotate_values(&x, &decoded, &centre, dim).map_err(refused)?;
    annotation(report, v, "eta", &[f64::from(a.eta)])?;
    annotation(report, v, "nu", &[f64::from(a.nu)])?;
    annotation(report, v, "R", &[f64::from(a.radius)])?;
    spectral(report, v, "sop", &[f64::from(a.sop)])?;
    report.never_below("eta from steps over true", &[affine::eta(&block)], &v.f64s("true_eta")?);

    let value = ValueFormat::Affine { bits, group: group as u16 };
    if let Some(l) = layout(rows, dim, store_of(v, "x")?, None, Some(value)) {
        let x = words(v, "x")?;
        let centre: Vec<f32> = centre.iter().map(|c| *c as f32).collect();
        let mut record = vec![0; l.bytes];
        Encoder::new(&l).encode(&x, &x, &centre, &mut record).map_err(refused)?;
        report.exact("affine record decoded", &record_rows(&l, &record, decode::decode_value)?, &decoded);
        let summary = decode::read_summary(&l, &record);
        annotation(report, v, "eta", &[f64::from(summary.eta)])?;
        annotation(report, v, "R", &[f64::from(summary.radius)])?;
        spectral(report, v, "sop", &[f64::from(summary.sop)])?;
    }
    Ok(())
}

/// Packs codes and unpacks the golden bytes.
fn packing(
    report: &mut Report,
    v: &Vectors,
    name: &str,
    codes: &[u8],
    dim: usize,
    bits: u8,
) -> Result<(), ConformError> {
    let golden = v.i64s("packed")?;
    let packed = pack::pack(codes, dim, bits).map_err(refused)?;
    report.exact_ints(name, packed.iter().map(|b| i64::from(*b)), &golden);
    let bytes: Vec<u8> = golden.iter().map(|b| *b as u8).collect();
    let unpacked = pack::unpack(&bytes, codes.len() / dim, dim, bits).map_err(refused)?;
    let mask = (1u16 << bits) - 1;
    let low: Vec<i64> = codes.iter().map(|c| i64::from(u16::from(*c) & mask)).collect();
    report.exact_ints(&format!("{name}, read back"), unpacked.iter().map(|c| i64::from(*c)), &low);
    Ok(())
}

fn symmetric(name: &str, v: &Vectors, report: &mut Report) -> Result<(), ConformError> {
    let (x, (rows, dim)) = (v.f64s("x")?, v.matrix("x")?);
    let (scale_rows, groups) = v.matrix("s")?;
    let bits = name.as_bytes().get(3).map_or(0, |b| b.wrapping_sub(b'0'));
    let sharing = if scale_rows == rows { Sharing::Token } else { Sharing::Block };
    let mode = if name.ends_with("rise") { Mode::Rise } else { Mode::Tread };
    let spec = Spec { bits, group: dim / groups, sharing, mode, meta: Dtype::F16 };
    let block = token_sym::encode(&x, dim, spec).map_err(refused)?;
    report.exact_ints("symmetric codes", block.codes.iter().map(|c| i64::from(*c)), &v.i64s("codes")?);
    report.exact("symmetric scales", &block.scale, &v.f64s("s")?);
    report.exact_ints("symmetric saturated", [block.saturated as i64], &v.i64s("saturated")?);
    report.relative("symmetric xhat", &block.decode(), &v.f64s("xhat")?, DECODED);
    let codes: Vec<u8> = block.codes.iter().map(|c| *c as u8).collect();
    packing(report, v, "symmetric packed", &codes, dim, bits)
}

fn symmetric_static(_: &str, v: &Vectors, report: &mut Report) -> Result<(), ConformError> {
    let (x, (_, dim), scale) = (v.f64s("x")?, v.matrix("x")?, v.f64s("scale")?);
    let group = dim / scale.len().max(1);
    let spec = Spec { bits: 8, group, sharing: Sharing::Block, mode: Mode::Tread, meta: Dtype::F16 };
    let block = token_sym::encode_static(&x, dim, spec, &scale).map_err(refused)?;
    report.exact_ints("static codes", block.codes.iter().map(|c| i64::from(*c)), &v.i64s("codes")?);
    report.exact_ints("static saturated", [block.saturated as i64], &v.i64s("saturated")?);
    report.relative("static xhat", &block.decode(), &v.f64s("xhat")?, DECODED);
    Ok(())
}

fn fp8_codec(name: &str, v: &Vectors, report: &mut Report) -> Result<(), ConformError> {
    let (x, (rows, dim), kind) = (v.f64s("x")?, v.matrix("x")?, fp8_named(name)?);
    let (scale_rows, groups) = v.matrix("s")?;
    let sharing = if scale_rows == rows { Sharing::Token } else { Sharing::Block };
    let block = fp8::encode(&x, dim, dim / groups, kind, sharing, Dtype::F32).map_err(refused)?;
    report.exact_ints("fp8 codes", block.codes.iter().map(|c| i64::from(*c)), &v.i64s("codes")?);
    report.exact("fp8 scales", &block.scale, &v.f64s("s")?);
    report.relative("fp8 xhat", &block.decode(), &v.f64s("xhat")?, DECODED);
    Ok(())
}

/// Every codec on one block; `expected` says whether its answer is the right one.
fn every_codec(
    name: &str,
    words: &[u16],
    dim: usize,
    store: Dtype,
    report: &mut Report,
    expected: fn(&CodecError) -> bool,
    identity_too: bool,
) -> Result<(), ConformError> {
    let x: Vec<f64> = words.iter().map(|w| f64::from(store.decode16(*w))).collect();
    let spec = Spec { bits: 8, group: 16, sharing: Sharing::Token, mode: Mode::Tread, meta: Dtype::F16 };
    let rise = Spec { bits: 4, sharing: Sharing::Block, mode: Mode::Rise, ..spec };
    let mut results = vec![
        channel8::encode(&x, dim, 8, Dtype::F16).err(),
        affine::encode(&x, dim, 16, 4, Dtype::F16).err(),
        token_sym::encode(&x, dim, spec).err(),
        token_sym::encode(&x, dim, rise).err(),
        fp8::encode(&x, dim, 16, fp8::Fp8::E4m3, Sharing::Token, Dtype::F16).err(),
    ];
    if identity_too {
        results.push(identity::encode(words, dim, store).err());
    }
    let wrong = results.iter().filter(|r| !r.as_ref().is_some_and(expected)).count();
    report.record(name, "codecs that accepted", results.len(), wrong as f64, 0.0);

    // Records: each side in turn holds the block, the other one is clean; nothing may be written.
    let clean = vec![0; 16 * dim];
    let bad: Vec<u16> = words.iter().copied().cycle().take(16 * dim).collect();
    let (k8, affine) = (KeyFormat::Channel { bits: 8, meta: Dtype::F16 }, ValueFormat::Affine { bits: 4, group: 16 });
    for (keys, values) in [(&bad, &clean), (&clean, &bad)] {
        let Some(l) = layout(16, dim, store, Some(k8), Some(affine)) else { continue };
        let mut record = vec![0xa5; l.bytes];
        let result = Encoder::new(&l).encode(keys, values, &vec![0.0; dim], &mut record);
        let fine = result.as_ref().is_err_and(expected) && record.iter().all(|b| *b == 0xa5);
        report.record(&format!("{name}, record untouched"), "records written", 1, f64::from(u8::from(!fine)), 0.0);
    }
    Ok(())
}

fn reject(_: &str, v: &Vectors, report: &mut Report) -> Result<(), ConformError> {
    let ((_, dim), words) = (v.matrix("x_bits")?, words(v, "x_bits")?);
    let expected = |e: &CodecError| matches!(e, CodecError::NonFinite { row: 2, channel: 5, .. });
    every_codec("reject not finite", &words, dim, Dtype::F16, report, expected, true)
}

fn reject_overflow(_: &str, v: &Vectors, report: &mut Report) -> Result<(), ConformError> {
    let ((_, dim), store) = (v.matrix("x")?, store_of(v, "x")?);
    let expected = |e: &CodecError| matches!(e, CodecError::ScaleOverflow { .. });
    every_codec("reject scale overflow", &words(v, "x")?, dim, store, report, expected, false)
}
