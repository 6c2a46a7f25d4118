//! The program's answers to bad command lines and bad files: typed, with the documented exit code, and nothing written.
#![forbid(unsafe_code)]
use certkv_cli::run;
use std::path::{Path, PathBuf};

fn code(args: &[&str]) -> (u8, String) {
    let mut out = Vec::new();
    let line = std::iter::once("certkv").chain(args.iter().copied()).map(Into::into);
    match run(line, &mut out) {
        Ok(()) => (0, String::from_utf8(out).unwrap()),
        Err(e) => (e.code(), e.to_string()),
    }
}

fn scratch(name: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    std::fs::create_dir_all(&folder).unwrap();
    folder
}

#[test]
fn usage_is_code_2() {
    let bad: [&[&str]; 55] = [
        &[],
        &["fly"],
        &["--fly"],
        &["eval", "--fly"],
        &["eval", "--tolerance", "0"],
        &["eval", "--tolerance", "NaN"],
        &["eval", "--limit", "0"],
        &["eval", "--context", "3"],
        &["eval", "--protect", "4"],
        &["eval", "--protect", "4,-1"],
        &["eval", "--policy", "hope"],
        &["eval", "--format", "ctq4-v4g64-b64"],
        &["eval", "--calibration", "x", "--format", "tq4-v4g64-b64"],
        &["eval", "--calibration", "x", "--format", "ctq4-v4g64-b64", "--twin"],
        &["eval", "--curves", "x.json", "--policy", "packed"],
        &["eval", "--curves", "x.json", "--twin-only"],
        &["eval", "--bytes", "2000", "--format", "k8-v4g64-b64"],
        &["eval", "--per-head", "--format", "k8-v4g64-b64"],
        &["eval", "--per-head", "--format", "k8-v4g64-b64", "--format", "k4-v4g64-b64", "--policy", "packed"],
        &["eval", "--per-head", "--format", "k8-v4g64-b64", "--format", "k4-v4g64-b64", "--device", "cuda:0"],
        &["demo", "--threads", "0"],
        &["demo", "--device", "gpu"],
        &["eval", "--device", "cuda:x"],
        &["bench", "--device", "cuda:0"],
        &["conform"],
        &["bench", "--heads", "5", "--kv-heads", "2"],
        &["plan", "--requests", "0"],
        &["plan", "--device-budget", "80 GB"],
        &["plan", "--tokens", "99999999999999G"],
        &["plan", "--scratch", "2"],
        &["plan", "--on", "abacus"],
        &["calibrate"],
        &["calibrate", "model", "--out", "x"],
        &["calibrate", "--compare", "a"],
        &["calibrate", "model", "--evidence", "--out", "x"],
        &["calibrate", "model", "--score", "l1"],
        &["calibrate", "model", "--style", "thirds"],
        &["calibrate", "model", "--budget", "NaN"],
        &["calibrate", "model", "--centre", "maybe"],
        &["calibrate", "model", "--least", "0"],
        &["calibrate", "model", "--spherical", "b4"],
        &["calibrate", "model", "--spherical", "all", "--text", "x", "--out", "y"],
        &["calibrate", "model", "--spherical", "b1", "--out", "y"],
        &["calibrate", "model", "--spherical", "b1", "--evidence", "--out", "y"],
        &["calibrate", "model", "--spherical", "b1", "--budget", "3"],
        &["calibrate", "model", "--spherical", "b1", "--text", "x", "--out", "y", "--drift"],
        &["calibrate", "model", "--evidence", "--drift"],
        &["calibrate", "model", "--scales", "0", "--text", "x", "--out", "y"],
        &["calibrate", "model", "--scales", "101", "--text", "x", "--out", "y"],
        &["calibrate", "model", "--scales", "99", "--out", "y"],
        &["calibrate", "model", "--scales", "99", "--text", "x", "--out", "y", "--budget", "3"],
        &["eval", "--format", "k8-v4g64-b64", "--scales", "x"],
        &["calibrate", "model", "--spherical", "b1", "--objective", "length"],
        &["calibrate", "model", "--text", "x", "--out", "y", "--objective", "cosine"],
        &["calibrate", "model", "--text", "x", "--out", "y", "--seed", "3"],
    ];
    for args in bad {
        assert_eq!(code(args).0, 2, "{args:?}: {}", code(args).1);
    }
    for args in [
        &["--help"][..],
        &["calibrate", "--help"],
        &["eval", "--help"],
        &["demo", "-h"],
        &["bench", "-h"],
        &["plan", "-h"],
        &["--version"],
    ] {
        assert_eq!(code(args).0, 0, "{args:?}");
    }
}

#[test]
fn a_gpu_that_is_not_there_is_code_3() {
    let (code, said) = code(&["eval", "--device", "cuda:1048576", "--quiet"]);
    assert_eq!(code, 3, "{said}");
    assert!(said.starts_with("device: "), "{said}");
}

#[test]
fn refused_files_are_code_3_and_name_what_is_wrong() {
    let folder = scratch("refused");
    let tasks = folder.join("tasks.jsonl");
    std::fs::write(&tasks, "{\"id\":\"a\"}\n").unwrap();
    let tasks = tasks.to_str().unwrap().to_owned();
    let page = folder.join("page.html");
    let page_name = page.to_str().unwrap().to_owned();
    let empty = scratch("refused/empty").to_str().unwrap().to_owned();
    let cases: [(&[&str], &str); 8] = [
        (&["eval", "--model", "/nowhere", "--quiet"], "config.json"),
        (&["eval", "--tasks", &tasks, "--report", &page_name], "tasks.jsonl:1"),
        (&["eval", "--tasks", "/nowhere.gz"], "nowhere"),
        (&["eval", "--format", "k9-v4g32-b32"], "9 bits"),
        (&["eval", "--tasks", "none", "--text", "bundled", "--context", "300000"], "300000"),
        (&["demo", "--assets", &empty], "ref-d128"),
        (&["conform", &empty], "no vectors"),
        (&["inspect", "nothing-of-the-kind"], "neither"),
    ];
    for (args, part) in cases {
        let (code, text) = code(args);
        assert!(code == 3 && text.contains(part), "{args:?} gave {code}: {text}");
    }
    assert!(!page.exists());
}

#[test]
fn packed_pages_are_inspected_and_damage_is_seen() {
    use certkv::{Cache, Chunk, Config, Geometry};
    let cache = Cache::new(Config::new(Geometry::new(1, 2, 1, 64).unwrap(), 256)).unwrap();
    let sequence = cache.create().unwrap();
    let rows: Vec<f32> = (0..128 * 64).map(|i| (i as f32 * 0.37).sin()).collect();
    let mut step = cache.begin(&[Chunk { sequence, tokens: 128 }]).unwrap();
    step.append(0, &rows, &rows).unwrap();
    step.finish().unwrap();
    let mut page = cache.packed_page(sequence, 0, 1).unwrap();
    let path = scratch("pages").join("page.bin");
    let name = path.to_str().unwrap().to_owned();
    std::fs::write(&path, &page).unwrap();
    let (ok, text) = code(&["inspect", &name, "--json"]);
    let value: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert_eq!((ok, value["block"].as_u64(), value["head_dim"].as_u64()), (0, Some(1), Some(64)));
    let last = page.len() - 40;
    page[last] ^= 1;
    std::fs::write(&path, &page).unwrap();
    assert_eq!(code(&["inspect", &name]).0, 3);
    std::fs::write(&path, &page[..20]).unwrap();
    assert_eq!(code(&["inspect", &name]).0, 3);
}

#[test]
fn calibrations_are_written_compared_and_refused() {
    let assets = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../assets");
    let path = |p: &Path| p.to_str().unwrap().to_owned();
    let (model, text) = (path(&assets.join("ref-d128")), path(&assets.join("eval/text.bin")));
    let folder = scratch("calibrations");
    let [a, b, short] = ["a", "b", "short"].map(|name| path(&folder.join(name)));
    let make = |skip: &str, to: &str, more: &[&str]| {
        let line =
            ["calibrate", &model, "--text", &text, "--skip", skip, "--tokens", "96", "--context", "64", "--out", to];
        code(&[&line[..], &["--quiet"], more].concat())
    };
    let (ok, said) = make("0", &a, &[]);
    assert!(ok == 0 && said.contains("96 tokens; 3 bits") && said.lines().count() == 2 + 12, "{said}");
    let file = std::fs::read(&a).unwrap();
    let found = certkv_control::Calibration::from_bytes(&file).unwrap();
    assert_eq!((found.heads().layers, found.heads().pairs(), found.rule().budget), (6, 64, 192));
    assert_eq!(found.source().tokens, 96);
    // The same again gives the same bytes, and no distance.
    assert_eq!(make("0", &b, &[]).0, 0);
    assert_eq!(std::fs::read(&b).unwrap(), file);
    let (ok, said) = code(&["calibrate", "--compare", &a, &b]);
    assert!(
        ok == 0 && said.contains("the same model, the same text") && said.contains(" all    0.0000  1.0000"),
        "{said}"
    );
    let (ok, said) = make("9000", &b, &["--budget", "2.5", "--published", "--json"]);
    let value: serde_json::Value = serde_json::from_str(&said).unwrap();
    assert_eq!((ok, value["score"].as_str(), value["bits"][5][1].as_array().map(Vec::len)), (0, Some("avg"), Some(64)));
    let (ok, said) = code(&["calibrate", "--compare", &b, &a, "--json"]);
    let value: serde_json::Value = serde_json::from_str(&said).unwrap();
    assert!(ok == 0 && value[0]["hamming"].as_f64().unwrap() > 0.1 && value[0]["regret"].as_f64().unwrap() > 0.0);

    // Damage, text that is too short, rules that cannot be: a reason, and no file.
    let mut damaged = file.clone();
    damaged[5000] ^= 4;
    std::fs::write(&b, &damaged).unwrap();
    for (bytes, part) in [(&damaged[..], "damaged"), (&file[..900], "has 900 bytes"), (b"none", "4 bytes")] {
        std::fs::write(&b, bytes).unwrap();
        let (code, said) = code(&["calibrate", "--compare", &a, &b]);
        assert!(code == 3 && said.contains(part), "{code} {said}");
    }
    for (skip, more, part) in [
        ("262100", &["--tokens", "96"][..], "has 45 tokens; at least 96 are needed"),
        ("262144", &["--tokens", "1"], "has 0 tokens; at least 64 are needed"),
        ("0", &["--least", "4", "--most", "4"], "budget cannot be 192"),
        ("0", &["--least", "4", "--most", "3"], "widths cannot be"),
    ] {
        let (code, said) = make(skip, &short, more);
        assert!(code == 3 && said.contains(part), "{code} {said}");
    }
    assert!(!Path::new(&short).exists());
    let nowhere = code(&["calibrate", "/nowhere", "--text", &text, "--out", &short]);
    assert!(nowhere.0 == 3 && nowhere.1.contains("config.json"), "{}", nowhere.1);
}

#[test]
fn calibrated_keys_are_evaluated_with_the_calibration_of_their_model() {
    let assets = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../assets");
    let path = |p: &Path| p.to_str().unwrap().to_owned();
    let (model, text) = (path(&assets.join("ref-d128")), path(&assets.join("eval/text.bin")));
    let file = path(&scratch("calibrated").join("file"));
    let line = ["calibrate", &model, "--text", &text, "--skip", "9000", "--tokens", "96", "--quiet", "--out", &file];
    assert_eq!(code(&line).0, 0);
    let eval = |file: &str| {
        let work = ["--text", "bundled", "--context", "256", "--scored", "8", "--windows", "1", "--witness", "1"];
        let line = ["eval", "--quiet", "--tasks", "none", "--format", "ctq4-v4g64-b32", "--calibration", file];
        code(&[&line[..], &["--format", "gtq3-tq3-b32"], &work].concat())
    };
    let (ok, said) = eval(&file);
    assert!(ok == 0 && said.contains("ctq4-v4g64-b32") && said.contains("gtq3-tq3-b32"), "{said}");
    // Nothing, something else, another version, another model: named, with the file.
    let (whole, nowhere) = (std::fs::read(&file).unwrap(), format!("{file}-nowhere"));
    let calibration = certkv_control::Calibration::from_bytes(&whole).unwrap();
    let (ok, said) = code(&["inspect", &file, "--json"]);
    let value: serde_json::Value = serde_json::from_str(&said).unwrap();
    let digest: String = certkv::calibration_digest(&calibration).iter().map(|byte| format!("{byte:02x}")).collect();
    assert_eq!((ok, value["digest"].as_str(), value["tokens"].as_u64()), (0, Some(&digest[..]), Some(96)));
    let (ok, said) = code(&["inspect", &file]);
    assert!(ok == 0 && said.contains(&digest) && said.lines().count() == 3 + 2 + 12, "{said}");
    let mut source = *calibration.source();
    source.model[0] ^= 1;
    let seen = (0..12).map(|at| calibration.head(at / 2, at % 2).unwrap().0.clone()).collect();
    let other = certkv_control::Calibration::choose(*calibration.heads(), source, *calibration.rule(), seen).unwrap();
    let mut newer = whole.clone();
    newer[8] ^= 64;
    let cases = [(other.to_bytes(), "weights"), (newer, "version"), (whole[..50].to_vec(), "50 bytes")];
    for (bytes, part) in cases {
        std::fs::write(&file, bytes).unwrap();
        let (code, said) = eval(&file);
        assert!(code == 3 && said.contains(part) && said.contains(&file), "{code} {said}");
        let (shown, said) = self::code(&["inspect", &file]);
        assert!(if part == "weights" { shown == 0 } else { shown == 3 && said.contains(part) }, "{shown} {said}");
    }
    assert!(eval(&nowhere).0 == 3);
    // The bench has no model: it calibrates on what it measures.
    let small =
        ["--context", "256", "--heads", "2", "--kv-heads", "1", "--repeats", "1", "--head-dim", "64", "--quiet"];
    let (ok, said) = code(&[&["bench", "--format", "ctq4-tq4-b32", "--format", "gtq2.5-tq2-b64"][..], &small].concat());
    assert!(ok == 0 && said.contains("ctq4-tq4-b32") && said.contains("gtq2.5-tq2-b64"), "{said}");
}

#[test]
fn spherical_keys_are_evaluated_with_the_codebooks_of_their_model() {
    let assets = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../assets");
    let path = |p: &Path| p.to_str().unwrap().to_owned();
    let (model, text) = (path(&assets.join("ref-d128")), path(&assets.join("eval/text.bin")));
    let folder = scratch("codebooks");
    let [b1, b3, schemes] = ["b1", "b3", "schemes"].map(|name| path(&folder.join(name)));
    let make = |more: &[&str], out: &str| {
        let line = ["calibrate", &model, "--text", &text, "--skip", "9000", "--tokens", "96", "--quiet", "--out", out];
        let (ok, said) = code(&[&line[..], more].concat());
        assert_eq!(ok, 0, "{said}");
    };
    make(&["--spherical", "b1", "--rounds", "2"], &b1);
    make(&["--spherical", "b3", "--rounds", "2"], &b3);
    make(&[], &schemes);
    let eval = |formats: &[&str], files: &[&str]| {
        let work = ["--text", "bundled", "--context", "256", "--scored", "8", "--windows", "1", "--witness", "1"];
        let mut line = [&["eval", "--quiet", "--tasks", "none"][..], &work].concat();
        formats.iter().for_each(|format| line.extend(["--format", format]));
        files.iter().for_each(|file| line.extend(["--calibration", file]));
        code(&line)
    };
    let all = ["s1-tq3-b64", "s3-v4g64-b32", "ctq4-tq4-b32"];
    let (ok, said) = eval(&all, &[&b1, &b3, &schemes]);
    assert!(ok == 0 && all.iter().all(|format| said.contains(format)), "{said}");
    for (formats, files, part) in [
        (&all[..1], &[][..], "s1-tq3-b64 needs --calibration FILE"),
        (&all[..1], &[&b3][..], "s1-tq3-b64 needs --calibration FILE with codebooks b1"),
        (&all[..1], &[&schemes][..], "s1-tq3-b64 needs --calibration FILE with codebooks b1"),
        (&all[2..], &[&b1][..], "ctq4-tq4-b32 needs --calibration FILE with schemes"),
        (&all[..1], &[&b1, &b3][..], "codebooks b3 without a format"),
        (&all[..1], &[&b1, &schemes][..], "schemes of a calibration without a format"),
        (&all[..2], &[&b1, &b3, &b1][..], "a second file of its kind"),
    ] {
        let files: Vec<&str> = files.iter().map(|file| file.as_str()).collect();
        let (code, said) = eval(formats, &files);
        assert!(code == 2 && said.contains(part), "{code} {said}");
    }
    let mut damaged = std::fs::read(&b1).unwrap();
    damaged[700] ^= 1;
    std::fs::write(&b1, &damaged).unwrap();
    let (code, said) = eval(&all[..1], &[&b1]);
    assert!(code == 3 && said.contains("damaged") && said.contains(&b1), "{code} {said}");
    let small =
        ["--context", "256", "--heads", "2", "--kv-heads", "1", "--repeats", "1", "--head-dim", "64", "--quiet"];
    let (ok, said) = self::code(&[&["bench", "--format", "s1-tq3-b64", "--format", "s2-f16-b32"][..], &small].concat());
    assert!(ok == 0 && said.contains("s1-tq3-b64") && said.contains("s2-f16-b32"), "{said}");
}

#[test]
fn schedules_are_measured_on_text_that_they_have_not_seen() {
    let assets = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../assets/ref-d128");
    let line = ["calibrate", assets.to_str().unwrap(), "--evidence", "--tokens", "256", "--budget", "3", "--quiet"];
    let (ok, said) = code(&[&line[..], &["--json"]].concat());
    assert_eq!(ok, 0, "{said}");
    let value: serde_json::Value = serde_json::from_str(&said).unwrap();
    let rows = value[0]["rows"].as_array().unwrap();
    let errors = |name: &str| -> Vec<f64> {
        let row = rows.iter().find(|r| r["coding"] == name).unwrap_or_else(|| panic!("{name} in {said}"));
        row["error"].as_array().unwrap().iter().map(|e| e.as_f64().unwrap()).collect()
    };
    let (uniform, ours) = (errors("TurboQuant"), errors("Block-GTQ logit2, centred, balanced"));
    assert_eq!(uniform.len(), 6);
    assert!(uniform.iter().zip(&ours).all(|(u, o)| o < u), "{uniform:?} {ours:?}");
    // The same through the records of a cache: without and with a calibration.
    let stored = ["tq3", "ctq3", "gtq3"].map(|key| errors(&format!("{key}, as stored")));
    let mean = |errors: &[f64]| errors.iter().sum::<f64>() / 6.0;
    assert!(stored[2].iter().zip(&stored[0]).all(|(ours, plain)| ours < plain), "{stored:?}");
    assert!(mean(&stored[2]) < 0.9 * mean(&stored[1]), "{stored:?}");
    let (seen, said) = code(&[&line[..], &["--held-skip", "100"]].concat());
    assert!(seen == 2 && said.contains("--held-skip"), "{said}");
}

#[test]
fn codebooks_are_written_and_refused() {
    use certkv_control::spherical::{Codebooks, Objective};
    let assets = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../assets");
    let path = |p: &Path| p.to_str().unwrap().to_owned();
    let (model, text) = (path(&assets.join("ref-d128")), path(&assets.join("eval/text.bin")));
    let folder = scratch("codebooks");
    let [a, b, none] = ["a", "b", "none"].map(|name| path(&folder.join(name)));
    let make = |tier: &str, tokens: &str, to: &str, more: &[&str]| {
        let line =
            ["calibrate", &model, "--spherical", tier, "--text", &text, "--tokens", tokens, "--out", to, "--quiet"];
        code(&[&line[..], more].concat())
    };
    let (ok, said) = make("b1", "160", &a, &[]);
    assert!(ok == 0 && said.contains("160 tokens, objective `energy`") && said.lines().count() == 2 + 12, "{said}");
    let file = std::fs::read(&a).unwrap();
    let found = Codebooks::from_bytes(&file).unwrap();
    assert_eq!((found.heads().layers, found.heads().kv_heads, found.heads().head_dim), (6, 2, 128));
    assert_eq!((found.source().tokens, found.head(5, 1).unwrap().words.len()), (160, 128 * 64));
    let (ok, said) = code(&["inspect", &a, "--json"]);
    let value: serde_json::Value = serde_json::from_str(&said).unwrap();
    assert_eq!((ok, value["tier"].as_str(), value["objective"].as_str()), (0, Some("b1"), Some("energy")));
    assert!(code(&["inspect", &a]).1.contains("160 tokens"));
    std::fs::write(&none, &file[..file.len() - 1]).unwrap();
    assert_eq!(code(&["inspect", &none]).0, 3);
    std::fs::remove_file(&none).unwrap();
    // The same again gives the same bytes; another seed and objective do not.
    assert_eq!(make("b1", "160", &b, &["--threads", "1"]).0, 0);
    assert_eq!(std::fs::read(&b).unwrap(), file);
    let (ok, said) = make("b1", "160", &b, &["--seed", "2", "--objective", "cosine", "--rounds", "3", "--json"]);
    let value: serde_json::Value = serde_json::from_str(&said).unwrap();
    let losses = value["losses"][5][1].as_array().map(Vec::len);
    assert_eq!((ok, value["objective"].as_str(), losses), (0, Some("cosine"), Some(8)));
    let other = Codebooks::from_bytes(&std::fs::read(&b).unwrap()).unwrap();
    assert_eq!((other.training().objective, other.training().rounds, other.training().seed), (Objective::Cosine, 3, 2));
    assert_ne!(other.head(0, 0), found.head(0, 0));
    // A text with fewer tokens than directions, and a file that is none: a reason, and no file.
    let (code_, said) = make("b1", "63", &none, &["--skip", "262082"]);
    assert!(code_ == 3 && said.contains("at least 64 are needed"), "{code_} {said}");
    assert!(!Path::new(&none).exists());
    let (code_, said) = code(&["calibrate", "--compare", &a, &b]);
    assert!(code_ == 3 && said.contains("the file is none"), "{code_} {said}");
}

#[test]
fn trained_directions_are_measured_beside_random_ones() {
    let assets = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../assets/ref-d128");
    let line = ["calibrate", assets.to_str().unwrap(), "--evidence", "--tokens", "256", "--quiet"];
    let (ok, said) = code(&[&line[..], &["--spherical", "all", "--json"]].concat());
    assert_eq!(ok, 0, "{said}");
    let value: serde_json::Value = serde_json::from_str(&said).unwrap();
    let rows = value["rows"].as_array().unwrap();
    let row = |name: &str| rows.iter().find(|r| r["coding"] == name).unwrap_or_else(|| panic!("{name} in {said}"));
    let errors = |name: &str| -> Vec<f64> {
        row(name)["error"].as_array().unwrap().iter().map(|e| e.as_f64().unwrap()).collect()
    };
    for (tier, bytes) in [("b1", 14.25), ("b2", 12.25), ("b3", 6.125)] {
        let name = |what: &str| format!("spherical {tier} {what}");
        assert_eq!(row(&name("random"))["bytes"].as_f64(), Some(bytes));
        let random = errors(&name("random"));
        assert_eq!(random.len(), 6);
        for trained in ["energy", "cosine", "cosine, norm"] {
            // 256 tokens are few for 64 directions, and enough for this.
            let trained = errors(&name(trained));
            assert!(trained.iter().zip(&random).all(|(t, r)| t < r), "{tier} {trained:?} {random:?}");
        }
    }
    assert_eq!(row("TurboQuant, 1 bits")["bytes"].as_f64(), Some(18.0));
    // Distributions move more where all layers are coded than where any one is, and most with random directions.
    let (ok, said) = code(&[&line[..], &["--spherical", "b3", "--objective", "energy", "--drift", "--json"]].concat());
    assert_eq!(ok, 0, "{said}");
    let value: serde_json::Value = serde_json::from_str(&said).unwrap();
    let drift = |name: &str| value["drift"].as_array().unwrap().iter().find(|d| d["coding"] == name).unwrap().clone();
    let number = |d: &serde_json::Value, what: &str| d[what].as_f64().unwrap();
    let (random, trained) = (drift("spherical b3 random"), drift("spherical b3 energy"));
    for d in [&random, &trained] {
        let layers = d["layers"].as_array().unwrap();
        assert!(layers.len() == 6 && layers.iter().all(|l| l.as_f64().unwrap() > 0.0), "{d}");
        assert!(
            layers.iter().all(|l| l.as_f64().unwrap() < number(d, "mean")) && number(d, "mean") < number(d, "most")
        );
        assert!((0.0..1.0).contains(&number(d, "overlap")), "{d}");
    }
    assert!(number(&trained, "mean") < number(&random, "mean"), "{trained} {random}");
    let (seen, said) = code(&[&line[..], &["--spherical", "b3", "--held-skip", "100"]].concat());
    assert!(seen == 2 && said.contains("--held-skip"), "{said}");
}

#[test]
fn things_are_inspected() {
    let assets = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../assets/ref-d128");
    let (ok, text) = code(&["inspect", assets.to_str().unwrap()]);
    assert!(ok == 0 && text.contains("7461440 parameters") && text.contains("6144 bytes"), "{text}");
    let (ok, text) = code(&["inspect", "k8-v4g32-b32", "--json"]);
    let value: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert_eq!((ok, value["tokens"].as_u64()), (0, Some(32)));
    assert!(value["of_dense"].as_f64().unwrap() < 0.5);
}

#[test]
fn requests_are_planned() {
    let json = |more: &[&str]| -> serde_json::Value {
        let shape =
            ["plan", "--json", "--layers", "4", "--heads", "8", "--kv-heads", "2", "--requests", "5", "--tokens", "1K"];
        let (ok, text) = code(&[&shape[..], more].concat());
        assert_eq!(ok, 0, "{text}");
        serde_json::from_str(&text).unwrap()
    };
    let free = json(&[]);
    assert_eq!((free["fits"].as_bool(), free["device"]["budget"].is_null()), (Some(true), true));
    assert_eq!((free["max_tokens"].as_u64(), free["max_sequences"].as_u64()), (Some(5 << 10), Some(5)));
    let needs = free["device"]["bytes"].as_u64().unwrap();
    // The answer is what a cache takes.
    let geometry = certkv::Geometry::new(4, 8, 2, 128).unwrap();
    let config = certkv::Config { max_sequences: 5, max_context: 1 << 10, ..certkv::Config::new(geometry, 5 << 10) };
    assert_eq!(free["max_context"].as_u64(), Some(1 << 10));
    let (reserved, _) = certkv::Cache::new(config).unwrap().reserved();
    assert_eq!(needs, reserved[..3].iter().sum::<usize>() as u64);
    let tight = json(&["--device-budget", &(needs - 1).to_string()]);
    assert_eq!((tight["fits"].as_bool(), tight["device"]["lacks"].as_u64()), (Some(false), Some(1)));
    assert_eq!(tight["most_requests"].as_u64(), Some(4));
    let (ok, text) = code(&["plan", "--on", "h200", "--device-budget", "100G"]);
    assert!(ok == 0 && text.contains("lacks") && text.contains("requests of this length fit"), "{text}");
    assert!(
        text.lines().count() == 5 && text.contains("max_tokens 2097152, max_sequences 64, max_context 32768"),
        "{text}"
    );
    let (refused, text) = code(&["plan", "--heads", "5", "--kv-heads", "2"]);
    assert_eq!(refused, 3, "{text}");
}

#[test]
fn recorded_curves_are_inspected_and_damage_is_seen() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../assets/curves/ref-d128.json");
    let (ok, text) = code(&["inspect", path.to_str().unwrap()]);
    assert!(ok == 0 && text.contains("k8-v4g32-b32") && text.contains("eval --curves"), "{text}");
    let whole = std::fs::read_to_string(&path).unwrap();
    let damaged = scratch("curves").join("damaged.json");
    let name = damaged.to_str().unwrap().to_owned();
    for (text, part) in [
        (whole[..whole.len() / 2].to_owned(), "line"),
        (whole.replace("\"tolerance\": 0.05", "\"tolerance\": 5e-10"), "points[2].tolerance"),
        (whole.replace("\"schema\": 1", "\"schema\": 7"), "schema 7"),
    ] {
        std::fs::write(&damaged, text).unwrap();
        let (code, said) = code(&["inspect", &name]);
        assert!(code == 3 && said.contains(part), "{code}: {said}");
    }
}

#[test]
fn a_short_sweep_is_written_whole() {
    use certkv_cli::report::sweep::Sweep;
    let path = scratch("sweep").join("curves.json");
    let name = path.to_str().unwrap().to_owned();
    let _ = std::fs::remove_file(&path);
    let line = [
        "eval",
        "--curves",
        &name,
        "--quiet",
        "--tasks",
        "none",
        "--text",
        "bundled",
        "--context",
        "256",
        "--scored",
        "2",
        "--format",
        "k8-v4g32-b32",
        "--format",
        "k8-v5g64-b64",
    ];
    let (ok, text) = code(&line);
    assert!(ok == 0 && text.ends_with(&format!("Curves: {name}\n")), "{text}");
    let sweep = Sweep::parse(&std::fs::read_to_string(&path).unwrap()).unwrap();
    assert_eq!(sweep.command, format!("certkv {}", line.join(" ")));
    assert_eq!((sweep.curves.len(), sweep.curves[1].points.len(), sweep.work.scored), (2, 5, 4));
    assert_eq!(sweep.curves[0].points[4].layers.len(), 6);
    assert!(sweep.curves.iter().flat_map(|c| &c.points).all(|p| p.read.total() > 0.3 && p.delta.is_some()));
}

/// Within bytes between those of two formats heads have one or the other, the list runs again as it is printed, and reads the same.
#[test]
fn formats_are_chosen_by_head_and_the_list_runs_again() {
    let tasks = certkv_cli::assets::locate(None).unwrap().join("eval/tasks_1024.jsonl.gz");
    let common = ["eval", "--quiet", "--tasks", tasks.to_str().unwrap(), "--task", "niah_single", "--limit", "1"];
    let eval = |more: &[&str]| code(&[&common[..], &["--policy", "certified", "--witness", "4"], more].concat());
    let choose = |bytes: &str| {
        let two = ["--format", "k8-v4g64-b64", "--format", "k2-v2g64-b64"];
        eval(&[&two[..], &["--per-head", "--bytes", bytes]].concat())
    };
    let (ok, said) = choose("2000");
    let mut lines = said.lines().skip_while(|line| !line.starts_with("By head at 5%: "));
    let (found, list) = (lines.next().unwrap(), lines.next().unwrap().trim());
    let (_, stored) = found.rsplit_once(", ").unwrap();
    let stored: f64 = stored.strip_suffix(" bytes of codes a token").unwrap().parse().unwrap();
    assert!(ok == 0 && stored <= 2000.0, "{said}");
    let heads: Vec<&str> = list.split('+').collect();
    assert!(heads.len() == 12 && heads.contains(&"k8-v4g64-b64") && heads.contains(&"k2-v2g64-b64"), "{list}");
    let (ok, again) = eval(&["--format", list]);
    let row = |text: &str| {
        let row = text.lines().find(|line| line.contains("2 formats by head at 5%")).unwrap();
        // Speed is a run's own.
        row.split_whitespace().rev().skip(1).map(str::to_owned).collect::<Vec<_>>()
    };
    assert!(ok == 0 && row(&again) == row(&said), "{said}{again}");
    let (refused, why) = choose("900");
    assert!(refused != 0 && why.contains("900"), "{why}");
}
