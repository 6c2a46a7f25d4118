//! The figures of a record's summary, and of that of its refined block, against the true ones of the file.
//!
//! Every figure is at least the true one, and at most 1e-5 of it too large; a spectral norm at most 1e-5 above what (3.7) makes of
//! the errors, which is itself at most `n^(1/16)` times the norm.
use super::{ConformError, Report};
use crate::cgv::Vectors;
use certkv_codec::decode;
use certkv_core::RecordLayout;

/// What single precision and the factor of math.md section 3 may put on top of a figure.
const CLOSE: f64 = 1.0 + 1e-5;

pub(super) fn figures(report: &mut Report, v: &Vectors, l: &RecordLayout, record: &[u8]) -> Result<(), ConformError> {
    let s = decode::read_summary(l, record);
    spectral(report, v, l, "kappa", s.kappa)?;
    spectral(report, v, l, "sop", s.sop)?;
    let plain = [
        ("eps", s.eps),
        ("key_mag", s.key_mag),
        ("key_norm", s.key_norm),
        ("eta", s.eta),
        ("radius", s.radius),
        ("value_norm", s.value_norm),
    ];
    plain.into_iter().try_for_each(|(name, got)| figure(report, v, name, got))?;
    if l.format.refine.is_none() {
        return Ok(());
    }
    let r = decode::read_refined_summary(l, record);
    spectral(report, v, l, "refined_kappa", r.kappa)?;
    spectral(report, v, l, "refined_sop", r.sop)?;
    figure(report, v, "refined_eps", r.eps)?;
    figure(report, v, "refined_eta", r.eta)
}

fn figure(report: &mut Report, v: &Vectors, name: &str, got: f32) -> Result<(), ConformError> {
    let (got, truth) = ([f64::from(got)], [v.scalar(&format!("true_{name}"))?]);
    report.never_below(&format!("record {name}"), &got, &truth);
    report.ratio(&format!("record {name}"), &got, &truth, CLOSE);
    Ok(())
}

fn spectral(report: &mut Report, v: &Vectors, l: &RecordLayout, name: &str, got: f32) -> Result<(), ConformError> {
    let (got, truth) = ([f64::from(got)], [v.scalar(&format!("true_{name}"))?]);
    report.never_below(&format!("record {name}"), &got, &truth);
    report.ratio(&format!("record {name} over (3.7)"), &got, &[v.scalar(&format!("bound_{name}"))?], CLOSE);
    let most = (l.tokens() as f64).powf(1.0 / 16.0) * CLOSE;
    report.ratio(&format!("record {name} of {} tokens", l.tokens()), &got, &truth, most);
    Ok(())
}
