//! ckv_transcode: codes as if the decoded block had been packed, bounds of both errors together.
use super::emulated::{Buffer, Emulated, Launch};
use super::support::{
    KINDS, THREADS, block, centre, decoded, judge, largest_norm, layout, macros, minus, numbers, pack_shared,
    reference, spectral_from_below,
};
use certkv_core::{Dtype, ErrorSummary, KeyFormat, RecordLayout};

#[repr(C)]
#[derive(Clone, Copy)]
struct Args {
    items: u64,
    count: u64,
    status: u64,
    order: u32,
    unused: u32,
}

struct Case {
    keys: Vec<u16>,
    values: Vec<u16>,
    centre: Vec<f32>,
    old: Vec<u8>,
}

fn case(from: &RecordLayout, kind: usize, seed: u64) -> Case {
    let (n, dim) = (from.tokens(), from.dim);
    let keys = block(KINDS[kind], seed, n, dim, from.store);
    let values = block(KINDS[(kind + 5) % 8], seed ^ 1, n, dim, from.store);
    let centre = centre(seed, dim);
    let old = reference(from, 0, &keys, &values, &centre);
    Case { keys, values, centre, old }
}

fn transcode(from: &RecordLayout, to: &RecordLayout, cases: &[Case], originals: bool) -> (Vec<Vec<u8>>, u32) {
    let names: Vec<(String, i64)> =
        macros(from).into_iter().map(|(name, value)| (name.replace("CKV_", "CKV_FROM_"), value)).collect();
    let mut all = macros(to);
    all.extend(names.iter().map(|(name, value)| (name.as_str(), *value)));
    let kernel = Emulated::build("transcode.cu", &all).expect("the kernel compiles");
    let inputs: Vec<[Buffer; 4]> = cases
        .iter()
        .map(|c| [Buffer::of(&c.old), Buffer::of(&c.keys), Buffer::of(&c.values), Buffer::of(&c.centre)])
        .collect();
    let records: Vec<Buffer> = cases.iter().map(|_| Buffer::of(&vec![0xeeu8; to.bytes])).collect();
    let items: Vec<u64> = inputs
        .iter()
        .zip(&records)
        .flat_map(|([old, k, v, c], r)| {
            let (k, v) = if originals { (k.pointer(), v.pointer()) } else { (0, 0) };
            [old.pointer(), k, v, c.pointer(), r.pointer()]
        })
        .collect();
    let (items, count, status) = (Buffer::of(&items), Buffer::of(&[cases.len() as u32]), Buffer::zeroed(4));
    let args = Args { items: items.pointer(), count: count.pointer(), status: status.pointer(), order: 0, unused: 0 };
    let mut memory = vec![&items, &count, &status];
    memory.extend(inputs.iter().flatten());
    memory.extend(&records);
    let how = Launch::new(3, THREADS, pack_shared(to)).seed(9).noisy();
    kernel.launch("ckv_transcode", how, &args, &memory).expect("the launch runs");
    (records.iter().map(Buffer::read).collect(), status.read::<u32>()[0])
}

fn summary(l: &RecordLayout, record: &[u8]) -> ErrorSummary {
    ErrorSummary::from_bytes(&record[l.summary.clone()])
}

#[test]
fn originals_and_uncoded_sides_give_what_packing_gives() {
    for (from, to, originals) in [
        ("k8-v8g32-b32", "t4-v4g32-b32", true),
        ("f16-f16-b32", "k8-v4g32-b32", false),
        ("f16-f16-b16", "t8-f16-b16", false),
    ] {
        let (from, to) = (layout(from, 64, Dtype::F16), layout(to, 64, Dtype::F16));
        let cases: Vec<Case> = (0..8).map(|i| case(&from, i, i as u64)).collect();
        let (records, status) = transcode(&from, &to, &cases, originals);
        assert_eq!(status, 0);
        for (c, record) in cases.iter().zip(&records) {
            judge(&to, 0, &c.keys, &c.values, &c.centre, record).unwrap();
        }
    }
}

#[test]
fn codes_made_from_codes_bound_both_errors() {
    let (mut executed, mut caught, mut planted) = (0, 0, 0);
    for (from, to, dim, store) in [
        ("k8-v8g32-b32", "k8-v4g32-b32", 128, Dtype::F16),
        ("k8-v6g32-b32", "t4-v4g16-b32", 96, Dtype::F16),
        ("k8f32-v8g64-b64", "t5-v3g32-b64", 64, Dtype::Bf16),
        ("k4-v4g32-b16", "t4-v4g32-b16", 64, Dtype::F16),
        ("t8-v7g32-b16", "t3-v7g32-b16", 256, Dtype::F16),
    ] {
        let (from, to) = (layout(from, dim, store), layout(to, dim, store));
        let cases: Vec<Case> = (0..8).map(|i| case(&from, i, 31 + i as u64)).collect();
        let (records, status) = transcode(&from, &to, &cases, false);
        assert_eq!(status, 0);
        for (c, record) in cases.iter().zip(&records) {
            // The codes are those of the old block, decoded and rounded to the store type.
            let (old_k, old_v) = decoded(&from, &c.old);
            let round = |x: &[f64]| x.iter().map(|x| store.encode16(*x as f32)).collect::<Vec<u16>>();
            let (rk, rv) = (round(&old_k), round(&old_v));
            let fresh = reference(&to, 0, &rk, &rv, &c.centre);
            let same = |a: KeyFormat| a == from.format.key;
            let (was, got, new) = (summary(&from, &c.old), summary(&to, record), summary(&to, &fresh));
            if same(to.format.key) {
                assert_eq!(
                    record[to.key_codes.start..to.key_scales.end],
                    c.old[from.key_codes.start..from.key_scales.end]
                );
                assert_eq!(
                    [got.kappa, got.eps, got.key_mag, got.key_norm],
                    [was.kappa, was.eps, was.key_mag, was.key_norm]
                );
            } else {
                assert_eq!(record[..to.value_codes.start], fresh[..to.value_codes.start]);
            }
            if to.format.value == from.format.value {
                let (now, then) = (to.value_codes.start..to.summary.start, from.value_codes.start..from.summary.start);
                assert_eq!(record[now], c.old[then]);
                assert_eq!(
                    [got.eta, got.sop, got.radius, got.value_norm],
                    [was.eta, was.sop, was.radius, was.value_norm]
                );
            } else {
                let side = to.value_codes.start..to.summary.start;
                assert_eq!(record[side.clone()], fresh[side]);
            }
            let (k, v) = (numbers(store, &c.keys), numbers(store, &c.values));
            let (now_k, now_v) = decoded(&to, record);
            let (ke, ve) = (minus(&k, &now_k), minus(&v, &now_v));
            let (rke, rve) = (minus(&old_k, &numbers(store, &rk)), minus(&old_v, &numbers(store, &rv)));
            let frobenius = |e: &[f64]| e.iter().map(|e| e * e).sum::<f64>().sqrt();
            // Each bound is true, and is the sum of its three parts where the side was coded again.
            let within = |got: f32, truth: f64, parts: [f64; 3], above: f64| {
                let (got, sum) = (f64::from(got), parts.iter().sum::<f64>());
                got >= truth && got >= sum * (1.0 - 1e-9) && got <= sum * (1.0 + 1e-5) + above + 1e-40
            };
            let sums = |got, truth, parts| within(got, truth, parts, 0.0);
            // The matrix unit's bound of the new error may lie above the CPU's, as `judge` says.
            let norms = |got, truth, parts: [f64; 3], largest: f32| {
                let step = (2.0 * f64::from(largest)).max(2f64.powi(-24));
                within(got, truth, parts, parts[2] * 2f64.powi(-7) + 1e-5 * step)
            };
            if !same(to.format.key) {
                let sigma = match from.format.key {
                    KeyFormat::Channel { meta, .. } => {
                        let bytes = &c.old[from.key_scales.start..from.key_scales.start + dim * meta.bytes()];
                        bytes
                            .chunks_exact(meta.bytes())
                            .map(|b| match meta {
                                Dtype::F32 => f64::from(f32::from_le_bytes([b[0], b[1], b[2], b[3]])),
                                _ => f64::from(meta.decode16(u16::from_le_bytes([b[0], b[1]]))),
                            })
                            .fold(0.0, f64::max)
                    }
                    _ => 1.0,
                };
                let parts = [f64::from(was.eps), largest_norm(&rke, dim), f64::from(new.eps)];
                assert!(sums(got.eps, largest_norm(&ke, dim), parts), "{got:?} {parts:?}");
                let parts = [f64::from(was.kappa) * sigma, frobenius(&rke), f64::from(new.kappa)];
                assert!(norms(got.kappa, spectral_from_below(&ke, dim), parts, new.eps), "{got:?} {parts:?}");
                assert_eq!(got.key_norm, was.key_norm);
            }
            if to.format.value != from.format.value {
                let parts = [f64::from(was.eta), largest_norm(&rve, dim), f64::from(new.eta)];
                assert!(sums(got.eta, largest_norm(&ve, dim), parts), "{got:?} {parts:?}");
                // Without the old error, and without the new one.
                for less in [was.eta, new.eta].into_iter().filter(|less| *less > 0.0) {
                    planted += 1;
                    caught += usize::from(!sums(got.eta - less, largest_norm(&ve, dim), parts));
                }
                let parts = [f64::from(was.sop), frobenius(&rve), f64::from(new.sop)];
                assert!(norms(got.sop, spectral_from_below(&ve, dim), parts, new.eta), "{got:?} {parts:?}");
                assert_eq!(got.radius, was.radius);
                let norm = largest_norm(&v, dim).max(largest_norm(&now_v, dim));
                assert!(f64::from(got.value_norm) >= norm && f64::from(got.value_norm) <= 1.5 * norm + 1e-30);
            }
            executed += 1;
        }
    }
    println!("GATE gpu-transcode executed={executed} failed=0 controls={caught}/{planted} seed=0x1f");
    assert!(caught == planted && planted > 30);
}

#[test]
fn what_cannot_be_made_from_codes_is_refused() {
    for (from, to) in
        [("t8-v4g32-b16", "k8-v4g32-b16"), ("k8-v4g32-b16", "k8-f16-b16"), ("k8-v4g32-b16", "f16-v4g32-b16")]
    {
        let (from, to) = (layout(from, 64, Dtype::F16), layout(to, 64, Dtype::F16));
        let cases = [case(&from, 0, 5)];
        let (records, status) = transcode(&from, &to, &cases, false);
        assert_eq!(status, 4);
        let (got, was) = (summary(&to, &records[0]), summary(&from, &cases[0].old));
        let inf = f32::INFINITY;
        if to.format.key != from.format.key {
            assert_eq!([got.kappa, got.eps, got.key_mag, got.key_norm], [inf, inf, inf, was.key_norm]);
            assert!(records[0][..to.value_codes.start].iter().all(|b| *b == 0));
            assert_eq!(got.sop, was.sop);
        } else {
            assert_eq!([got.eta, got.sop, got.radius, got.value_norm], [inf, inf, was.radius, was.value_norm]);
            assert_eq!(got.kappa, was.kappa);
        }
    }
}
