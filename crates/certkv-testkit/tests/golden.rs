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
    for quantity in ["k8 codes", "affine codes", "symmetric codes", "fp8 codes", "annotation kappa", "bytes"] {
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
const SMALL: [&str; 19] = [
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
