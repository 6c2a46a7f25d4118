//! The engine behind the forward pass: golden logits, and an evaluation whose certificates are checked against the
//! exact outputs.
#![forbid(unsafe_code)]
use certkv::Protection;
use certkv_cli::{
    engine::{CpuEngine, engine},
    eval::{self, Mode, Models, Plan, Work, fake::FakeEngine, score::Judging},
    model::{Config, Llama, golden, twin::Twin, weights::Weights},
    progress::Progress,
    stats::Quantiles,
    tasks::{Prompt, text},
};
use std::path::{Path, PathBuf};

fn assets() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../assets")
}

#[test]
fn prefill_through_the_engine_gives_the_golden_choices() {
    let model = Llama::load(&assets().join("ref-d128")).unwrap();
    for prompt in golden::read(&assets().join("eval"), "golden").unwrap() {
        let mut cache = engine(1).open(&Mode::dense(false), model.config(), 512).unwrap();
        let deviation = golden::compare(&model, &prompt, cache.as_mut()).unwrap();
        // Keys and values are stored in half precision here; the golden logits were made without that rounding.
        assert!(deviation.worst < 0.1, "off by {}", deviation.worst);
        assert!(deviation.choices <= 1, "{} first choices differ", deviation.choices);
    }
}

/// One needle in a little text, on the twin whose keys the codes cannot hold.
#[test]
fn certificates_hold_on_the_twin() {
    let folder = assets().join("ref-d128");
    let config = Config::read(&folder).unwrap();
    let mut weights = Weights::read(&folder).unwrap();
    let base = Llama::new(config.clone(), &weights).unwrap();
    Twin::default().apply(&config, &mut weights).unwrap();
    let twin = Llama::new(config.clone(), &weights).unwrap();
    let filler = "The cache holds keys and values of every token. ".repeat(4);
    let prompt = Prompt {
        id: "n".into(),
        task: "needle".into(),
        length: 512,
        prompt: format!(
            "{filler}The magic number for river is 48213.\n{filler}\nQuestion: What is the magic number for river?\n\
             Answer: The magic number for river is "
        ),
        answer: "48213.".into(),
    };
    let plan = Plan {
        modes: vec![
            Mode::dense(true),
            Mode::packed("t4-v4g16-b16", true).unwrap(),
            Mode::certified("t4-v4g16-b16", 0.05, true).unwrap(),
        ],
        base: Work::default(),
        twin: Work { prompts: vec![prompt], windows: Vec::new() },
        judging: Judging::TeacherForcing,
        witness_every: 1,
        side_by_side: false,
    };
    let models = Models { base: &base, twin: Some(&twin) };
    let outcome = eval::run(&plan, models, engine(1).as_mut(), &Progress::off()).unwrap();
    let [dense, naive, certified] = &outcome.modes[..] else { panic!("{} modes", outcome.modes.len()) };
    let worst = |m: &eval::ModeOutcome| m.gathered.true_error.iter().copied().fold(0.0, f64::max);
    let head_steps = 6 * config.layers * config.heads;
    assert_eq!(dense.accuracy(None), (1, 1));
    assert_eq!(certified.accuracy(None), (1, 1));
    assert_eq!(certified.gathered.certified as usize, head_steps);
    assert_eq!(certified.gathered.true_error.len(), head_steps);
    assert_eq!(certified.gathered.violations, 0);
    assert!(worst(certified) <= 0.051, "certified outputs off by {}", worst(certified));
    // The control: the same codes without repairs are far outside, so the check above can fail.
    let beyond = naive.gathered.true_error.iter().filter(|e| **e > 0.051).count();
    println!(
        "GATE twin-certificates executed={head_steps} failed={} controls={}/1 seed=0x1",
        certified.gathered.violations,
        usize::from(beyond > 0)
    );
    assert!(beyond > 0 && worst(naive) > 0.2, "naive outputs off by at most {}", worst(naive));
    assert!(certified.footprint.per_token() < dense.footprint.per_token());
    // Where all tokens are protected the same codes are not read.
    let mut engine = CpuEngine::new(1).protecting(Protection::new(0, 4096));
    let outcome = eval::run(&plan, models, &mut engine, &Progress::off()).unwrap();
    let naive = &outcome.modes[1];
    assert!(worst(naive) < 1e-3 && naive.gathered.violations == 0, "off by {}", worst(naive));
}

/// The naive mode is naive about the right thing: a plain quantizer, written apart from the engine, is as far off.
#[test]
fn naive_errors_are_those_of_a_plain_quantizer() {
    let folder = assets().join("ref-d128");
    let config = Config::read(&folder).unwrap();
    let mut weights = Weights::read(&folder).unwrap();
    Twin::default().apply(&config, &mut weights).unwrap();
    let twin = Llama::new(config, &weights).unwrap();
    let cut = text::Cut { length: 640, scored: Some(10), limit: 1 };
    let windows = text::windows(&assets().join("eval/text.bin"), &["prose", "code"], cut).unwrap();
    let plan = Plan {
        modes: vec![Mode::packed("t4-v4g16-b16", true).unwrap()],
        base: Work::default(),
        twin: Work { prompts: Vec::new(), windows },
        judging: Judging::TeacherForcing,
        witness_every: 1,
        side_by_side: false,
    };
    let models = Models { base: &twin, twin: Some(&twin) };
    let error = |engine: &mut dyn eval::Engine| {
        let outcome = eval::run(&plan, models, engine, &Progress::off()).unwrap();
        Quantiles::of(outcome.modes[0].gathered.true_error.iter().copied())
    };
    let (ours, theirs) = (error(engine(1).as_mut()), error(&mut FakeEngine));
    assert_eq!(ours.count, theirs.count);
    assert!((ours.median / theirs.median - 1.0).abs() < 0.1, "{ours:?} {theirs:?}");
    assert!((ours.p90 / theirs.p90 - 1.0).abs() < 0.1, "{ours:?} {theirs:?}");
}

/// Modes that run side by side, each on a thread of its own, find what they find in turn, to the bit.
#[test]
fn modes_side_by_side_find_what_they_find_in_turn() {
    let model = Llama::load(&assets().join("ref-d128")).unwrap();
    let cut = text::Cut { length: 320, scored: Some(6), limit: 1 };
    let windows = text::windows(&assets().join("eval/text.bin"), &["prose"], cut).unwrap();
    let run = |engine: CpuEngine, side_by_side| {
        let plan = Plan {
            modes: vec![
                Mode::dense(false),
                Mode::packed("t4-v4g16-b16", false).unwrap(),
                Mode::certified("k8-v4g64-b64", 0.05, false).unwrap(),
                Mode::certified("tq3-tq3-b64", 0.05, false).unwrap(),
            ],
            base: Work { prompts: Vec::new(), windows: windows.clone() },
            twin: Work::default(),
            judging: Judging::TeacherForcing,
            witness_every: 1,
            side_by_side,
        };
        let mut engine = engine;
        let models = Models { base: &model, twin: None };
        eval::run(&plan, models, &mut engine, &Progress::off()).unwrap()
    };
    let (turns, together) = (run(CpuEngine::new(1), false), run(CpuEngine::new(2).side_by_side(), true));
    assert_eq!((turns.modes.len(), together.modes.len()), (4, 4));
    for (one, other) in turns.modes.iter().zip(&together.modes) {
        assert_eq!((&one.mode, &one.text), (&other.mode, &other.text));
        let (a, b) = (&one.gathered, &other.gathered);
        assert!(a.steps > 0 && !a.true_error.is_empty());
        assert_eq!(
            (a.rungs, &a.timeline, a.certified, a.violations),
            (b.rungs, &b.timeline, b.certified, b.violations)
        );
        assert_eq!((&a.true_error, &a.bounds, &a.e_key, &a.e_val), (&b.true_error, &b.bounds, &b.e_key, &b.e_val));
    }
}
