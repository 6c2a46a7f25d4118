//! Replays the golden vectors of the repository, and plants deviations that must be found.
use certkv_testkit::cgv::Vectors;
use certkv_testkit::conform::{Report, replay, replay_bytes};
use proptest::prelude::*;
use std::{fs, path::PathBuf};

fn golden() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../testdata/golden")
}

#[test]
fn every_golden_vector_agrees() {
    let report = replay(&golden()).expect("golden vectors are readable");
    println!("{report}");
    let names: Vec<String> = fs::read_to_string(golden().join("INDEX.txt"))
        .expect("INDEX.txt")
        .lines()
        .filter_map(|l| l.split('\t').next().map(str::to_owned))
        .collect();
    assert_eq!(names.len(), report.files, "every file of INDEX.txt is replayed");
    assert!(report.unknown.is_empty(), "golden files without a family: {:?}", report.unknown);
    for quantity in [
        "k8 codes",
        "affine codes",
        "symmetric codes",
        "fp8 codes",
        "annotation kappa",
        "bytes",
        "record channel keys (2.3) codes",
        "record channel values (2.9b) codes",
        "record mean keys (2.9c) scales",
        "record residuals (2.23)",
        "record spherical indices (2.20)",
        "record Block-GTQ codes (2.19c)",
    ] {
        assert!(report.quantities.iter().any(|q| q.name == quantity && q.cases > 0), "{quantity} was not compared");
    }
    let (planted, caught) = planted_deviations();
    println!(
        "GATE golden executed={} failed={} controls={caught}/{planted} seed=0x4f24",
        report.cases(),
        report.failures.len()
    );
    assert!(report.passed(), "{report}");
    assert_eq!(caught, planted, "a planted deviation went unnoticed");
}

/// Changes one byte of one array in each of several files; counts those that the replay reports.
fn planted_deviations() -> (usize, usize) {
    let cases = [
        ("k8_d128_n16_f16", "codes", 777),
        ("k8_d128_n16_f16", "z", 4),
        ("k8_d64_n16_f32", "true_kappa", 7),
        ("v4_d128_n16_g16", "codes", 100),
        ("v4_d128_n16_g16", "packed", 3),
        ("v6_d256_n16_g64", "true_sop", 7),
        ("sym3_token_rise", "codes", 60),
        ("sym8_static", "saturated", 0),
        ("fp8codec_e4m3", "s", 2),
        ("k8refine_d64_n16_f32", "residual", 30),
        ("rht_48", "y", 7),
        ("codebooks", "n64", 2),
        ("tq4_m64_lsq", "codes", 3),
        ("tq4_m64_lsq", "xhat", 7),
        ("gtq_half", "codes_b3", 9),
        ("gtq_half", "bits", 4),
        ("gtq_half", "xhat", 7),
        ("gtq_inter", "score_geo", 5),
        ("gtq_inter", "balance", 2),
        ("gtq_inter", "channels_b2", 0),
        ("gtq_inter", "sopg", 2),
        ("gtq_inter", "lambda_groups", 6),
        ("gtq_alloc", "bits0", 0),
        ("sph_b1", "idx", 21),
        ("sph_b1", "xhat", 7),
        ("sph_b2", "u", 5),
        ("sph_b2", "s", 2),
        ("sph_b2", "logits", 5),
        ("sph_b3", "egrp", 6),
        ("sph_b3", "delta_groups", 5),
        ("round_e5m2", "up", 6),
        ("hash", "hash64_seed_7_9", 1),
        ("bytes", "rows", 16),
        ("topk", "pick", 0),
        ("certificates", "stream_l2", 6),
        ("stream_merge", "O", 6),
        ("step_plain", "out_E", 6),
        ("step_gqa4", "out_FK", 1),
        ("record_k3_c4_b16_d64_f16", "k_codes", 70),
        ("record_k3_c4_b16_d64_f16", "v_codes", 71),
        ("record_k4_c6_b16_d128_bf16", "k_sigma", 20),
        ("record_k4_c6_b16_d128_bf16", "v_z", 22),
        ("record_k6_c4_b32_d64_bf16", "k_hat", 800),
        ("record_k6_c4_b32_d64_bf16", "true_value_norm", 6),
        ("record_k0_c0_b64_d64_f16", "k_z", 12),
        ("record_k0_c0_b32_d128_bf16", "v_sigma", 12),
        ("record_k4_v4g32_b16_r4_4_d64_f16", "k_residual", 100),
        ("record_k8_v4g32_b16_r8_4_d64_bf16", "v_refined", 800),
        ("record_k8_v4g32_b16_r8_4_d64_bf16", "true_refined_eta", 6),
        ("record_s1_f16_b16_d64_f16", "k_idx", 9),
        ("record_s2_f16_b16_d64_f16", "k_sigma", 2),
        ("record_s3_bf16_b16_d64_bf16", "k_radii", 9),
        ("record_gtq3_f16_b32_d64_f16", "k_codes", 33),
        ("record_gtq2_5_bf16_b16_d128_bf16", "k_sigma", 4),
        ("record_gtq3_f16_b16_d96_f16", "k_hat", 5),
    ];
    let mut caught = 0;
    for (file, array, at) in cases {
        let mut bytes = fs::read(golden().join(file).with_extension("cgv")).expect("golden file");
        let mut clean = Report::default();
        replay_bytes(file, &bytes, &mut clean).expect("golden file replays");
        assert!(clean.passed(), "{file} before the change: {clean}");
        let at = position(&bytes, array) + at;
        bytes[at] ^= 1;
        let mut report = Report::default();
        replay_bytes(file, &bytes, &mut report).expect("changed file replays");
        caught += usize::from(!report.passed() && report.failures.iter().all(|f| f.file == file));
    }
    (cases.len(), caught)
}

/// Byte at which an array's data starts.
fn position(bytes: &[u8], array: &str) -> usize {
    let end = bytes.windows(5).position(|w| w == b"\nEND\n").expect("header") + 5;
    let head = std::str::from_utf8(&bytes[..end]).expect("header is text");
    let line = head.lines().find(|l| l.split(' ').next() == Some(array)).expect("array");
    let offset: usize = line.rsplit(' ').nth(1).and_then(|w| w.parse().ok()).expect("offset");
    end.next_multiple_of(16) + offset
}

/// Nothing in the files of whole records is decoration: each array of each, input or figure, is changed in turn and noticed.
#[test]
fn every_array_of_a_record_matters() {
    let index = fs::read_to_string(golden().join("INDEX.txt")).expect("INDEX.txt");
    let names = index.lines().filter_map(|l| l.split_once(".cgv\t")).map(|(name, _)| name);
    let (mut planted, mut missed) = (0, Vec::new());
    for file in names.filter(|name| name.starts_with("record_")) {
        let whole = fs::read(golden().join(file).with_extension("cgv")).expect("golden file");
        for (array, a) in Vectors::parse(&whole).expect("golden file").iter() {
            let (width, zero) = (a.element.bytes(), a.f64s().is_some_and(|x| x == [0.0]));
            // No errors have no bound: more than that cannot be told from them.
            if zero && array.starts_with("bound_") {
                continue;
            }
            let mut bytes = whole.clone();
            let at = position(&bytes, array) + a.len() / 2 * width + width - 1;
            bytes[at] ^= match (width, bytes[at]) {
                (1, _) => 1,
                // A figure becomes less, since more of one that only limits is no deviation.
                (8, high @ 1..) => 0x80 >> high.leading_zeros(),
                // Inputs become loud.
                (4, high) if high & 0x40 != 0 => 0x20,
                _ => 0x40,
            };
            let mut report = Report::default();
            planted += 1;
            if replay_bytes(file, &bytes, &mut report).is_ok() && report.passed() {
                missed.push(format!("{file} {array}"));
            }
        }
    }
    println!("GATE golden records controls={}/{planted}", planted - missed.len());
    assert!(planted > 300 && missed.is_empty(), "{planted} planted, unnoticed: {missed:?}");
}

#[test]
fn nothing_replayed_is_not_a_pass() {
    assert!(!Report::default().passed());
    let mut report = Report::default();
    replay_bytes("unheard_of", b"", &mut report).expect("unknown files are named");
    assert_eq!((report.files, &report.unknown[..]), (0, &["unheard_of".to_owned()][..]));
    assert!(!report.passed());
    // Nor is a file that was passed over among others that agree.
    let mut report = Report::default();
    let bytes = fs::read(golden().join("hash.cgv")).expect("golden file");
    replay_bytes("hash", &bytes, &mut report).expect("golden file replays");
    assert!(report.passed());
    replay_bytes("unheard_of", &bytes, &mut report).expect("unknown files are named");
    assert!(!report.passed() && report.to_string().contains("unheard_of: no family"));
}

#[test]
fn nan_and_short_results_fail_closed() {
    let mut report = Report::default();
    report.relative("nan", &[f64::NAN], &[1.0], 1.0);
    report.never_below("nan bound", &[f64::NAN], &[1.0]);
    report.ratio("nan ratio", &[f64::NAN], &[1.0], 1.6);
    report.exact("short", &[1.0], &[1.0, 2.0]);
    report.exact("nan against number", &[f64::NAN], &[1.0]);
    report.exact_ints("short", [1], &[1, 2]);
    assert_eq!(report.failures.len(), 6);
}

#[test]
fn malformed_golden_files_are_errors() {
    let whole = fs::read(golden().join("k8_d64_n16_f32.cgv")).expect("golden file");
    for cut in [0, 3, 40, whole.len() / 2, whole.len() - 16] {
        assert!(Vectors::parse(&whole[..cut]).is_err(), "cut at {cut}");
        assert!(replay_bytes("k8_d64_n16_f32", &whole[..cut], &mut Report::default()).is_err());
    }
    assert!(replay(&golden().join("no such directory")).is_err());
}

/// Small files of every family.
const SMALL: [&str; 22] = [
    "k8_d64_n5_f16_huge",
    "k8refine_d128_n1_f16",
    "v4_d64_n1_g8",
    "v3_d64_n4_g16",
    "sym4_token_tread",
    "sym8_static",
    "fp8codec_e5m2",
    "gtq_inter",
    "sph_b2",
    "sph_b3",
    "record_k0_c3_b16_d64_f16",
    "record_s3_bf16_b16_d64_bf16",
    "record_gtq3_f16_b16_d96_f16",
    "reject_overflow",
    "bytes",
    "hash",
    "topk",
    "joint_budget",
    "rank_checks",
    "certificates",
    "stream_merge",
    "step_one_token",
];

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    /// A damaged file is an error, a deviation or unharmed; the replay never panics.
    #[test]
    fn damaged_files_never_panic(file in prop::sample::select(&SMALL[..]), edits in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4), header: bool) {
        let mut bytes = fs::read(golden().join(file).with_extension("cgv")).expect("golden file");
        let reach = if header { bytes.windows(5).position(|w| w == b"\nEND\n").expect("header") } else { bytes.len() };
        for (at, byte) in edits {
            let at = at.index(reach);
            bytes[at] = if header { b" 0123456789_kvsqxf"[usize::from(byte) % 18] } else { byte };
        }
        let mut report = Report::default();
        let _ = replay_bytes(file, &bytes, &mut report);
    }
}
