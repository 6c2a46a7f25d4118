//! The extend kernel of the GPU, run on the emulator, against causal attention in f64: outputs and bounds of every query of every chunk.
#[path = "emulated/mod.rs"]
mod emulated;
#[path = "device_cases/extend.rs"]
mod extend_cases;
#[path = "emulated_extend/relays.rs"]
mod relays;
use certkv_core::Dtype;
use certkv_kernel::cuda::args::{Certificate, Element, Strides};
use certkv_kernel::cuda::extend::ExtendArgs;
use certkv_kernel::cuda::{Arch, Sight, Variant};
use certkv_testkit::generate::Kind;
use emulated::{Buffer, Emulated, Launch};
use extend_cases::{Case, Spec, Verdict};
use rayon::prelude::*;
use std::cell::RefCell;

fn variant(spec: &Spec, warps: usize, stages: usize) -> Variant {
    let variant = Variant::new(spec.layout(), spec.group, Arch::Sm90a).and_then(|v| v.with_extend_shape(warps, stages));
    let variant = variant.unwrap_or_else(|e| panic!("{e}"));
    if spec.sight.is_some() { variant.windowed() } else { variant }
}

struct Run {
    out: Vec<f32>,
    certificates: Vec<Certificate>,
}

fn run(case: &Case, variant: &Variant, certify: bool, out_type: Element, seed: u64) -> Run {
    let macros: Vec<(&str, i64)> = variant.macros().into_iter().map(|(name, value)| (name, value as i64)).collect();
    let kernel = Emulated::build("extend.cu", &macros).unwrap_or_else(|e| panic!("{e}"));
    let memory = RefCell::new(Vec::new());
    let placed = case.place(variant, &mut |bytes| {
        let buffer = Buffer::of(bytes);
        let at = buffer.pointer();
        memory.borrow_mut().push(buffer);
        at
    });
    // Rows of outputs with something between them.
    let (dim, apart) = (case.spec.dim, case.spec.seed as usize / 2 % 2 * 8);
    let out = Buffer::of(&vec![0xffu8; placed.heads * (dim + apart) * out_type.bytes()]);
    let certificates = Buffer::of(&vec![u32::MAX; placed.heads * Certificate::WORDS]);
    let args = ExtendArgs {
        out: out.pointer(),
        out_type: out_type as u32,
        out_strides: Strides::dense(case.spec.group * case.spec.kv_heads, dim + apart),
        certificates: if certify { certificates.pointer() } else { 0 },
        ..placed.args
    };
    let memory = memory.into_inner();
    let all: Vec<&Buffer> = memory.iter().chain([&out, &certificates]).collect();
    let shape = variant.extend_shape();
    let ctas = args.tiles * args.kv_heads;
    let launch = Launch::new(ctas, shape.threads() as u32, shape.shared as u32).seed(seed).truncating().noisy();
    kernel.launch("ckv_extend", launch, &args, &all).unwrap_or_else(|e| panic!("{:?}: {e}", case.spec));
    let out: Vec<f32> = match out_type {
        Element::F32 => out.read(),
        Element::F16 => out.read::<u16>().iter().map(|x| Dtype::F16.decode16(*x)).collect(),
        Element::Bf16 => out.read::<u16>().iter().map(|x| Dtype::Bf16.decode16(*x)).collect(),
    };
    assert!(out.chunks_exact(dim + apart).all(|row| row[dim..].iter().all(|x| x.is_nan())), "{:?}", case.spec);
    let out = out.chunks_exact(dim + apart).flat_map(|row| &row[..dim]).copied().collect();
    let certificates = certificates.read::<u32>().as_chunks().0.iter().map(Certificate::from_words).collect();
    Run { out, certificates }
}

fn check(spec: &Spec, warps: usize, stages: usize) -> Verdict {
    let case = Case::new(spec);
    let r = run(&case, &variant(spec, warps, stages), true, Element::F32, spec.seed);
    let v = case.judge(&r.out, &r.certificates);
    assert!(v.wrong.is_empty(), "{spec:?}: {} wrong, first {:#?}", v.wrong.len(), &v.wrong[..v.wrong.len().min(5)]);
    println!(
        "{:16} d {:3} group {:2} {:?} {:?}: {} outputs, rounding {:.1e}, e_arith {:.1e}, bound {:.3} of the norm, tightness {:.1}",
        spec.format,
        spec.dim,
        spec.group,
        spec.kind,
        spec.chunks,
        v.outputs,
        v.rounding,
        v.arith,
        v.relative,
        v.tightness,
    );
    v
}

#[test]
fn chunks_over_packed_pages_match_attention_in_f64() {
    check(&Spec::new("k8-v4g64-b64", 128, 4, &[(130, 70)]), 2, 2);
    check(&Spec::new("k8-v4g32-b32", 128, 4, &[(64, 33), (0, 40), (95, 2)]), 2, 3);
    // Blocks that are decoded in two parts.
    check(&Spec::new("k8-v8g64-b64", 128, 4, &[(130, 30)]), 2, 2);
    for format in ["tq4-f16-b64", "gtq3-tq3-b64", "s1-v4g64-b64"] {
        check(&Spec::new(format, 128, 4, &[(130, 30)]), 2, 1);
    }
}

#[test]
fn formats_heads_and_groups_match_attention_in_f64() {
    let formats = [
        ("k8-v4g16-b16", 64),
        ("k8-v6g32-b32", 96),
        ("k8-v8g64-b32", 64),
        ("t4-v5g32-b32", 64),
        ("t8g32-v3g32-b16", 64),
        ("f16-f16-b16", 64),
        ("f16-v4g64-b64", 128),
        ("tq4-tq4-b64", 128),
        ("tq3-tq2-b32", 64),
        ("k8-tq4-b32", 128),
        ("tq1-v4g32-b16", 64),
        ("tq2-tq3-b64", 256),
        ("tq6-tq5-b64", 128),
        ("tq5-tq6-b16", 64),
        ("e4m3-e4m3-b64", 128),
        ("e5m2g32-p4g16-b16", 64),
        ("ctq4-tq4-b64", 128),
        ("ctq3-v4g32-b32", 64),
        ("ctq2-f16-b16", 64),
        ("ctq1-tq3-b64", 256),
        ("ctq6-tq6-b32", 128),
        ("gtq3-tq3-b64", 128),
        ("gtq2.5-v4g32-b32", 64),
        ("gtq4-f16-b16", 96),
        ("gtq5-tq3-b64", 256),
        ("gtq6-v4g32-b32", 96),
        ("s1-v4g64-b64", 128),
        ("s1-f16-b16", 64),
        ("s2-tq3-b32", 128),
        ("s3-c4-b32", 96),
        ("s1-tq3-b64", 256),
        ("k8-v4g64-b64-r8.4", 128),
        ("k8-c4-b64", 128),
        ("f16-c5-b16", 96),
        ("k4-v4g64-b64", 128),
        ("k3-c3-b16", 96),
        ("k6-v4g32-b32", 64),
    ];
    formats.into_par_iter().for_each(|(format, dim)| {
        check(&Spec { seed: dim as u64, ..Spec::new(format, dim, 2, &[(67, 45), (16, 5)]) }, 2, 2);
    });
    for group in [1, 3, 5, 8, 16] {
        check(&Spec { seed: group as u64, ..Spec::new("k8-v4g32-b16", 64, group, &[(61, 19)]) }, 2, 2);
    }
    check(&Spec::new("k8-v4g32-b32", 256, 2, &[(75, 20)]), 2, 1);
}

#[test]
fn hard_data_and_bf16_stay_within_the_bound() {
    for kind in Kind::ALL {
        for store in [Dtype::F16, Dtype::Bf16] {
            for format in ["k8-v4g32-b32", "tq4-tq4-b32", "ctq4-tq4-b32", "gtq4-tq4-b32", "s1-tq4-b32"] {
                let seed = 40 + kind as u64;
                check(&Spec { kind, store, seed, ..Spec::new(format, 64, 4, &[(70, 20), (32, 3)]) }, 2, 2);
            }
        }
    }
}

/// Keys are multiplied as halves: of one that is none, or whose codes are none, no bound is small.
#[test]
fn keys_that_halves_do_not_hold_are_not_lost() {
    let mut executed = 0;
    for (format, store) in [
        ("k8-v4g32-b16", Dtype::F16),
        ("k8-v4g32-b16", Dtype::Bf16),
        ("bf16-bf16-b16", Dtype::Bf16),
        ("e4m3-e4m3-b16", Dtype::F16),
        ("e5m2-e5m2-b16", Dtype::F16),
        ("t8-v8g32-b16", Dtype::F16),
        ("p8-p8-b16", Dtype::F16),
        ("tq4-tq4-b16", Dtype::F16),
        ("s1-v4g32-b16", Dtype::Bf16),
    ] {
        for chunks in [[(0, 16)], [(32, 5)]] {
            let of = Spec::new(format, 64, 2, &chunks);
            executed += check(&Spec { store, kind: Kind::TallKey, ..of }, 2, 2).outputs;
        }
    }
    println!("GATE gpu-extend-halves executed={executed} failed=0 controls=0/0 seed=0x0");
}

/// Scales that are fixed for more than a block holds are no numbers that products could not bear: large keys and values under them have bounds.
#[test]
fn scales_beyond_their_blocks_are_multiplied() {
    for (format, fixed) in [("e4m3-e4m3-b16", 131_072.0), ("e4m3g32-e4m3-b32", 131_072.0), ("p8-p8-b16", 65_504.0)] {
        let of = Spec { fixed: Some(fixed), kind: Kind::HugeNorms, ..Spec::new(format, 64, 2, &[(64, 9)]) };
        let v = check(&of, 2, 2);
        assert!(v.relative > 0.0 && v.relative.is_finite(), "{format}: {}", v.relative);
    }
}

#[test]
fn windows_and_sinks_hide_what_they_hide() {
    for (tokens, sinks) in [(1, 0), (20, 0), (40, 5), (33, 16), (100, 40), (1000, 3)] {
        for format in ["k8-v4g32-b32", "tq4-tq4-b16", "ctq4-tq4-b16", "gtq3-tq4-b16", "s2-v4g32-b16"] {
            let sight = Some(Sight { tokens, sinks });
            let spec =
                Spec { sight, seed: u64::from(tokens), ..Spec::new(format, 64, 2, &[(150, 60), (0, 50), (96, 1)]) };
            check(&spec, 2, 2);
        }
    }
}

/// Cuts, stages and an order of threads change no bit; 16-bit outputs are those of single precision, rounded; without certificates the outputs are the
/// same.
#[test]
fn how_it_is_run_changes_nothing() {
    let spec = Spec::new("k8-v4g32-b32", 64, 3, &[(77, 50), (31, 40)]);
    let case = Case::new(&spec);
    let bits = |r: &Run| r.out.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
    let first = run(&case, &variant(&spec, 2, 2), true, Element::F32, 1);
    for (warps, stages, certify) in [(1, 1, true), (4, 3, true), (2, 2, false), (8, 4, false)] {
        let other = run(&case, &variant(&spec, warps, stages), certify, Element::F32, 1);
        assert_eq!(bits(&first), bits(&other), "{warps} warps, {stages} stages");
    }
    for (element, dtype) in [(Element::F16, Dtype::F16), (Element::Bf16, Dtype::Bf16)] {
        let narrow = run(&case, &variant(&spec, 2, 2), true, element, 1);
        let rounded: Vec<u32> = first.out.iter().map(|x| dtype.decode16(dtype.encode16(*x)).to_bits()).collect();
        assert_eq!(rounded, bits(&narrow), "{element:?}");
        let v = case.judge(&narrow.out, &narrow.certificates);
        assert!(v.wrong.is_empty(), "{element:?}: {:?}", &v.wrong[..v.wrong.len().min(4)]);
        let wider = |(a, b): (&Certificate, &Certificate)| a.e_arith > b.e_arith;
        assert!(narrow.certificates.iter().zip(&first.certificates).all(wider), "{element:?}");
    }
}

/// A query, a key or a value that is no number, and a block that could not be coded, leave what they reach uncertified, and nothing else.
#[test]
fn what_is_no_number_is_never_certified() {
    let spec = Spec::new("k8-v4g32-b32", 64, 2, &[(64, 20)]);
    let mut case = Case::new(&spec);
    case.spoil_query(3, 1);
    let r = run(&case, &variant(&spec, 2, 2), true, Element::F32, 1);
    for (i, c) in r.certificates.iter().enumerate() {
        let (token, head) = (i / 4, i % 4);
        assert_eq!(c.bound.is_finite(), (token, head) != (3, 1), "token {token}, head {head}: {c:?}");
    }
    let mut case = Case::new(&spec);
    case.spoil_record(0, 1);
    let r = run(&case, &variant(&spec, 2, 2), true, Element::F32, 1);
    for (i, c) in r.certificates.iter().enumerate() {
        // The cap holds whatever codes say; nothing is certified by it.
        assert_eq!(c.status == 0 && !(c.e_key + c.e_val).is_finite(), i % 4 < 2, "head {}: {c:?}", i % 4);
    }
}

/// Queries so short that bounds are small: rounding is seen beside them, and so are centres and scales that the codes were not made with. What does not
/// fit is not certified, where codes are seen.
#[test]
fn what_folds_queries_is_in_the_bound() {
    for (format, seed, by) in [
        ("ctq4-tq4-b64", 1, 0.05),
        ("ctq4-v4g64-b32", 3, 0.02),
        ("ctq3-f16-b32", 3, 1e-3),
        ("gtq4-tq4-b64", 1, 0.02),
        ("gtq3-v4g64-b32", 3, 0.008),
        ("gtq5-f16-b16", 3, 5e-4),
    ] {
        let spec = Spec { seed, ..Spec::new(format, 128, 2, &[(130, 20), (0, 9)]) };
        let mut case = Case::new(&spec);
        case.scale_queries(by);
        let own = variant(&spec, 2, 2);
        let judged = |case: &Case, told: &Case| {
            let r = run(told, &own, true, Element::F32, seed);
            (case.judge(&r.out, &r.certificates), r.certificates)
        };
        let (v, _) = judged(&case, &case);
        assert!(v.wrong.is_empty() && v.arith < 0.1, "{v:?}");
        // Planted: another centre of one channel, and a query that has no quotient.
        let mut told = Case::new(&spec);
        told.scale_queries(by);
        told.put_metric(1, 0, 17, 300.0 / by);
        assert!(!judged(&case, &told).0.wrong.is_empty(), "{format}");
        told.put_metric(1, 1, 17, 1e-38);
        let (_, certificates) = judged(&case, &told);
        for (i, c) in certificates.iter().enumerate() {
            let (token, head) = (i / 4, i % 4);
            assert_eq!(c.status == 0 && !(c.e_key + c.e_val).is_finite(), token < 20 && head >= 2, "{i}: {c:?}");
        }
    }
}

/// The same of spherical keys: what halves make of radii and directions is in the bound; directions of another head are seen.
#[test]
fn what_decodes_directions_is_in_the_bound() {
    for (format, seed, by) in [("s1-f16-b16", 1, 0.05), ("s2-f16-b16", 2, 0.05), ("s3-v4g64-b16", 3, 0.05)] {
        let spec = Spec { seed, ..Spec::new(format, 128, 2, &[(16, 7), (18, 1)]) };
        let mut case = Case::new(&spec);
        case.scale_queries(by);
        let judged = |told: &Case| {
            let r = run(told, &variant(&spec, 2, 2), true, Element::F32, seed);
            case.judge(&r.out, &r.certificates)
        };
        let v = judged(&case);
        assert!(v.wrong.is_empty() && v.arith < 0.15, "{v:?}");
        let mut told = Case::new(&spec);
        told.scale_queries(by);
        told.exchange_metrics();
        assert!(!judged(&told).wrong.is_empty(), "{format}");
    }
}
