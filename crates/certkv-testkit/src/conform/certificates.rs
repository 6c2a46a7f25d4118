//! Certificates from block numbers alone, and the mergeable stream.
use super::{ConformError, Family, Report};
use crate::cgv::Vectors;
use certkv_bound::distribution::{tail_mass_up, tv_closed, tv_sup};
use certkv_bound::exact_root::{DroppedBlock, TailBlock, exact_root};
use certkv_bound::published::{IMPLEMENTATION_INFLATION, PublishedBound, TEXT_INFLATION};
use certkv_bound::stream::certificate;
use certkv_bound::terms::key_terms;
use certkv_bound::{Annotation, Stream, Used};

pub(crate) const FAMILIES: &[Family] =
    &[Family { prefix: "certificates", replay: certificates }, Family { prefix: "stream_merge", replay: stream_merge }];

/// The specification allows 1e-4; both sides compute in `f64`, so far less is expected.
pub(super) const BOUND_LIMIT: f64 = 1e-9;
/// The supremum (5.18) is searched on a grid by the reference and refined here.
const SUPREMUM_LIMIT: f64 = 1e-4;

fn certificates(_: &str, v: &Vectors, report: &mut Report) -> Result<(), ConformError> {
    let [rho, delta, dist, p, lambda] = columns(v, ["rho", "D", "dist", "p", "Lam"])?;
    let [omega, dist_drop] = columns(v, ["omega", "dist_drop"])?;
    let e_val = v.scalar("eval_mass")?;
    let dropped: f64 = omega.iter().zip(&dist_drop).map(|(a, b)| a * b).sum();
    let terms = |spread: bool| -> (Vec<f64>, Vec<f64>) {
        (0..rho.len())
            .map(|b| key_terms(rho[b], p[b], delta[b], if spread { lambda[b] } else { f64::INFINITY }))
            .unzip()
    };
    let (g, h) = terms(true);
    report.relative("terms g", &g, &v.f64s("g")?, BOUND_LIMIT);
    report.relative("terms h", &h, &v.f64s("h")?, BOUND_LIMIT);
    for (name, spread) in [("stream_l1", false), ("stream_l2", true)] {
        let (g, h) = terms(spread);
        let key: f64 = g.iter().zip(&dist).map(|(a, b)| a * b).sum();
        let [.., bound] = certificate(key, e_val, dropped, h.iter().sum());
        report.relative("certificate streaming", &[bound], &[v.scalar(name)?], BOUND_LIMIT);
    }
    let tail: Vec<TailBlock> = (0..rho.len()).map(|b| TailBlock::new(rho[b], delta[b], dist[b])).collect();
    let drops: Vec<DroppedBlock> =
        omega.iter().zip(&dist_drop).map(|(&omega, &distance)| DroppedBlock { omega, distance }).collect();
    let mut one = |name: &str, got: f64, want: &str, limit: f64| -> Result<(), ConformError> {
        report.relative(name, &[got], &[v.scalar(want)?], limit);
        Ok(())
    };
    one("certificate exact root", exact_root(&tail, &drops, e_val), "exact", BOUND_LIMIT)?;
    one("tv closed form", tv_closed(&rho, &delta), "tv_closed", BOUND_LIMIT)?;
    one("tv supremum", tv_sup(&rho, &delta, 2001), "tv_sup", SUPREMUM_LIMIT)?;
    one("tail mass", tail_mass_up(&rho, &delta), "tail_mass_up", BOUND_LIMIT)?;
    for (want, inflation) in [("eq15_e2", TEXT_INFLATION), ("eq15_e3", IMPLEMENTATION_INFLATION)] {
        let published = PublishedBound {
            tail_mass: rho.iter().sum(),
            delta_max: delta.iter().copied().fold(0.0, f64::max),
            value_max: 2.0,
            e_val,
            inflation,
        };
        one("published bound", published.total(), want, BOUND_LIMIT)?;
    }
    Ok(())
}

fn stream_merge(_: &str, v: &Vectors, report: &mut Report) -> Result<(), ConformError> {
    let centre = v.f64s("centre")?;
    let mut whole = Stream::new(centre.len());
    for j in 0.. {
        if !v.has(&format!("z{j}")) {
            break;
        }
        let [delta, lambda, radius, eta, sop] = numbers(v, &format!("ann{j}_D_Lam_R_eta_sop"))?;
        let [exact_keys, exact_values] = numbers(v, &format!("exact{j}_k_v"))?;
        let used = Used { exact_keys: exact_keys != 0.0, exact_values: exact_values != 0.0 };
        let mut part = Stream::new(centre.len());
        part.add_block(
            &v.f64s(&format!("z{j}"))?,
            &v.f64s(&format!("v{j}"))?,
            &Annotation { delta, lambda, radius, eta, sop },
            used,
        )
        .map_err(ConformError::refused)?;
        let state = [part.m, part.l, part.g, part.g_radius, part.h, part.v];
        report.relative("stream state", &state, &v.f64s(&format!("state{j}_m_l_g_gR_h_v"))?, BOUND_LIMIT);
        close(report, "stream state output sum", &part.o, &v.f64s(&format!("state{j}_o"))?, 1.0);
        whole.merge(&part).map_err(ConformError::refused)?;
    }
    let [tokens, logit_up, radius] = numbers(v, "drop_n_zup_R")?;
    whole.add_drop(tokens as usize, logit_up, radius);
    let f = whole.finish(&centre).map_err(ConformError::refused)?;
    close(report, "stream merged output", &f.output, &v.f64s("O")?, 1.0);
    let got = [f.lse, f.e_key, f.e_val, f.e_drop, f.bound];
    report.relative("stream merged certificate", &got, &v.f64s("lse_Ekey_Eval_Edrop_E")?, BOUND_LIMIT);
    Ok(())
}

/// Compares two vectors in the Euclidean norm, in units of `unit`; the limit is the specification's for `f64`.
pub(super) fn close(report: &mut Report, name: &str, got: &[f64], want: &[f64], unit: f64) {
    let same_length = got.len() == want.len();
    let deviation = if same_length { crate::oracle::distance(got, want) / unit } else { f64::INFINITY };
    report.record(name, "norm of difference", want.len(), deviation, 1e-12);
}

/// Several arrays of numbers that must have one length.
pub(super) fn columns<const N: usize>(v: &Vectors, names: [&str; N]) -> Result<[Vec<f64>; N], ConformError> {
    let mut out = [const { Vec::new() }; N];
    for (slot, name) in out.iter_mut().zip(names) {
        *slot = v.f64s(name)?;
    }
    if out.iter().any(|c| c.len() != out[0].len()) {
        return Err(ConformError::refused(format_args!("{names:?} differ in length")));
    }
    Ok(out)
}

/// An array of exactly `N` numbers.
pub(super) fn numbers<const N: usize>(v: &Vectors, name: &str) -> Result<[f64; N], ConformError> {
    let x = v.f64s(name)?;
    x.try_into().map_err(|_| ConformError::refused(format_args!("`{name}` does not hold {N} numbers")))
}
