//! Layers with sliding windows: every output within its bound of exact attention over exactly the visible tokens, and memory that does
//! not grow with the context. The query at position `p` sees `t < sinks` and `t + window > p`.
#![allow(clippy::neg_cmp_op_on_partial_ord, reason = "!(error <= bound) is how NaN fails")]
mod common;

use certkv::gpu::GpuConfig;
use certkv::{Cache, Chunk, Config, Error, Geometry, Policy, SaveScope, Side, Window};
use certkv::{Rung, Status};
use certkv_testkit::generate::{Rng, decode};
use certkv_testkit::oracle::distance;
use common::{Answer, Model, decode_faults, exact, fill, random_queries, random_rows, step};
use proptest::prelude::*;

const FORMATS: [&str; 6] =
    ["tq4-tq4-b32", "k8-v4g32-b16", "k8-v4g32-b32", "k8-v4g64-b64", "t4-v4g32-b32", "k8-f16-b32"];

const SCOPE: SaveScope<'_> = SaveScope { model: b"m", key: None };

fn geometry() -> Geometry {
    Geometry::new(2, 4, 2, 64).unwrap()
}

fn config(format: &str, window: Window, tokens: usize) -> Config {
    Config { max_sequences: 3, ..Config::new(geometry(), tokens) }
        .with_format(format.parse().unwrap())
        .with_window(window)
}

/// Appends `tokens` tokens with attention; returns faults: decode outputs beyond their bounds, chunk outputs beyond rounding.
fn advance(
    cache: &Cache,
    id: certkv::SequenceId,
    model: &mut Model,
    windows: &[Option<Window>],
    tokens: usize,
    policy: Policy,
    r: &mut Rng,
) -> (usize, Vec<Answer>) {
    let g = geometry();
    let (rows, queries) = (random_rows(&g, tokens, r), random_queries(&g, tokens, r));
    let first = model.len(&g);
    model.append(&rows);
    let answers = step(cache, id, &rows, &queries, policy).unwrap();
    let mut faults = 0;
    for (layer, answer) in answers.iter().enumerate() {
        for (i, q) in queries.chunks_exact(g.q_width()).enumerate() {
            let truth = exact(&g, model, layer, first + i, windows[layer], q);
            let out = &answer.out[i * g.q_width()..(i + 1) * g.q_width()];
            if tokens == 1 && matches!(policy, Policy::Certified(_)) {
                faults += decode_faults(&truth, out, &answer.certificates, 0.05);
                continue;
            }
            for (h, truth) in truth.iter().enumerate() {
                let got: Vec<f64> = out[h * 64..(h + 1) * 64].iter().map(|x| f64::from(*x)).collect();
                let c = answer.certificates[i * g.q_heads + h];
                let allowed = if tokens == 1 { c.bound() } else { 2e-3 };
                faults += usize::from(!(distance(truth, &got) <= allowed));
            }
        }
    }
    (faults, answers)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    /// Random shapes, lengths, chunks, cuts, forks and releases.
    #[test]
    fn every_output_is_within_its_bound_of_what_is_visible(
        format in 0usize..FORMATS.len(),
        tokens in prop_oneof![Just(1usize), 2usize..16, 16usize..120], sinks in prop_oneof![Just(0usize), 1usize..70],
        slack in prop_oneof![Just(None), (0usize..40).prop_map(Some)],
        mixed: bool, scratch: bool, threads in 1usize..3, seed: u64,
    ) {
        let window = Window { tokens, sinks, slack, chunk: 80 };
        let mut config = config(FORMATS[format], window, 700);
        let windows = if mixed { [Some(window), None] } else { [Some(window); 2] };
        config.windows = windows.to_vec();
        config.threads = threads;
        if scratch {
            (config.scratch_keys, config.scratch_values) = (8, 8);
        }
        let plan = config.plan().unwrap();
        let cache = Cache::new(config).unwrap();
        prop_assert_eq!(cache.reserved().0[0], plan.classes[0]);
        let mut r = Rng::new(seed);
        let mut sequences = vec![(cache.create().unwrap(), Model::new(&geometry()))];
        let rows = Policy::Certified(certkv::Certified { row_share: 0.25, ..Default::default() });
        let policies = [Policy::default(), rows, Policy::Dense, Policy::Packed, Policy::Seed000(Default::default())];
        let block = FORMATS[format].rsplit('b').next().unwrap().parse::<usize>().unwrap();
        for _ in 0..14 {
            let (at, alive) = (r.below(sequences.len()), sequences.len());
            let (id, model) = &mut sequences[at];
            let len = model.len(&geometry());
            match r.below(9) {
                0 if len > 0 => {
                    // Within the slack a cut always works; beyond it, it works or says what would.
                    let to = if r.chance(0.5) { r.below(len) } else { len - r.below(slack.unwrap_or(block).min(len) + 1) };
                    match cache.truncate(*id, to) {
                        Ok(()) => model.truncate(&geometry(), to),
                        Err(Error::WindowPassed { asked, least, within }) => {
                            prop_assert!(asked == to && within < to && to < least);
                            prop_assert_eq!(cache.len(*id).unwrap(), len);
                        }
                        Err(other) => prop_assert!(false, "{other}"),
                    }
                }
                1 if alive < 3 => {
                    let fork = cache.fork(sequences[at].0).unwrap();
                    let model = sequences[at].1.clone();
                    sequences.push((fork, model));
                }
                2 if alive > 1 => {
                    let (id, _) = sequences.swap_remove(at);
                    cache.release(id).unwrap();
                }
                3 if len < 600 => {
                    let n = 1 + r.below(80);
                    if let Ok(certkv::Admission::Fits) = cache.admit(Some(*id), n) {
                        let (faults, _) = advance(&cache, *id, model, &windows, n, Policy::default(), &mut r);
                        prop_assert_eq!(faults, 0, "a chunk of {} at {}", n, len);
                    }
                }
                4 => {
                    // Saved and restored, it goes on in its own place.
                    let mut file = Vec::new();
                    cache.save(*id, &SCOPE, &mut file).unwrap();
                    match cache.restore(&SCOPE, &mut &file[..]) {
                        Ok(back) => cache.release(core::mem::replace(id, back)).unwrap(),
                        Err(Error::CapacityExhausted { .. } | Error::TooManySequences { .. }) => {}
                        Err(other) => prop_assert!(false, "{other}"),
                    }
                }
                _ => for _ in 0..6 {
                    if let Ok(certkv::Admission::Fits) = cache.admit(Some(*id), 1) {
                        let policy = policies[r.below(policies.len())];
                        let len = model.len(&geometry());
                        let (faults, answers) = advance(&cache, *id, model, &windows, 1, policy, &mut r);
                        // The packed policy claims nothing, the published one its own figures.
                        let claims = matches!(policy, Policy::Certified(_) | Policy::Dense);
                        let finite = answers.iter().all(|a| a.out.iter().all(|x| x.is_finite()));
                        prop_assert!(finite && (faults == 0 || !claims), "{} faults at {} under {:?}", faults, len, policy);
                    }
                },
            }
        }
        prop_assert!(cache.memory().tables <= cache.reserved().0[2], "tables take more than was reserved");
        for (id, _) in sequences {
            cache.release(id).unwrap();
        }
        prop_assert_eq!(cache.live_pages(), 0);
    }
}

/// The check sees a mask that is off by one token, at either end and of the sinks.
#[test]
fn a_rule_that_is_off_by_one_is_seen() {
    let window = Window::new(20).with_sinks(3);
    for wrong in [Window::new(19).with_sinks(3), Window::new(21).with_sinks(3), Window::new(20).with_sinks(4)] {
        let cache = Cache::new(config("k8-v4g32-b16", window, 400)).unwrap();
        let (id, mut model, mut r) = (cache.create().unwrap(), Model::new(&geometry()), Rng::new(5));
        let run = |model: &mut Model, windows: Window, tokens: usize, policy: Policy, r: &mut Rng| {
            advance(&cache, id, model, &[Some(windows); 2], tokens, policy, r).0
        };
        assert_eq!(run(&mut model, window, 70, Policy::default(), &mut r), 0);
        assert!(run(&mut model, wrong, 40, Policy::default(), &mut r) > 0, "{wrong:?} in a chunk");
        assert!(run(&mut model, wrong, 1, Policy::Dense, &mut r) > 0, "{wrong:?} in a decode step");
    }
}

#[test]
fn a_window_wider_than_the_context_changes_no_bit() {
    for (format, sinks) in FORMATS.iter().flat_map(|f| [(f, 0), (f, 70)]) {
        let answers: Vec<Vec<Vec<u32>>> = [None, Some(Window::new(400).with_sinks(sinks))]
            .into_iter()
            .map(|window| {
                let cache =
                    Cache::new(Config { windows: vec![window], ..config(format, Window::new(1), 400) }).unwrap();
                let id = cache.create().unwrap();
                let (mut r, mut model) = (Rng::new(3), Model::new(&geometry()));
                let windows = [window; 2];
                let chunks = [100, 1, 1, 1, 33, 1, 1, 70, 1, 1];
                let run = |tokens: usize| {
                    let (faults, answers) =
                        advance(&cache, id, &mut model, &windows, tokens, Policy::default(), &mut r);
                    assert_eq!(faults, 0);
                    answers.iter().flat_map(Answer::bits).collect()
                };
                chunks.into_iter().map(run).collect()
            })
            .collect();
        assert_eq!(answers[0], answers[1], "{format} sinks {sinks}");
    }
}

#[test]
fn a_window_of_one_returns_the_newest_value() {
    let cache = Cache::new(config("k8-v4g32-b16", Window::new(1), 200)).unwrap();
    let (id, g, mut r) = (cache.create().unwrap(), geometry(), Rng::new(1));
    for _ in 0..40 {
        let (rows, queries) = (random_rows(&g, 1, &mut r), random_queries(&g, 1, &mut r));
        for (layer, answer) in step(&cache, id, &rows, &queries, Policy::default()).unwrap().iter().enumerate() {
            for (h, out) in answer.out.chunks_exact(64).enumerate() {
                let value = decode(&rows.values[layer][h / 2 * 64..(h / 2 + 1) * 64], g.store);
                assert!(out.iter().zip(value).all(|(a, b)| (f64::from(*a) - b).abs() <= 1e-5 * b.abs()));
                let c = answer.certificates[h];
                assert!(c.status == Status::Certified && c.quantisation() == 0.0 && c.rung == Rung::Packed, "{c:?}");
                // One row of keys and values, and nothing of its block besides.
                assert_eq!(c.bytes.host, 4 * 64);
            }
        }
    }
}

#[test]
fn memory_stays_as_it_is_while_the_context_grows_a_hundredfold() {
    let window = Window { chunk: 32, ..Window::new(64).with_sinks(4) };
    let mut config = config("k8-v4g32-b16", window, 12_800);
    config.max_sequences = 1;
    let full = Config { windows: Vec::new(), ..config.clone() }.plan().unwrap();
    let plan = config.plan().unwrap();
    // Sinks 1, 79 kept tokens and 32 new ones in 8 blocks more: 9 of 800.
    assert!(plan.classes[0] * 80 < full.classes[0] && plan.host.bytes * 80 < full.host.bytes, "{plan:?} {full:?}");
    let cache = Cache::new(config).unwrap();
    let (id, g, mut r) = (cache.create().unwrap(), geometry(), Rng::new(9));
    let rows = random_rows(&g, 32, &mut r);
    let (mut early, mut late) = (0, 0);
    for at in 0..200 {
        fill(&cache, id, &rows).unwrap();
        let memory = cache.memory();
        let most = if at < 6 { &mut early } else { &mut late };
        *most = (*most).max(memory.packed);
    }
    assert_eq!((cache.len(id).unwrap(), early), (6400, late));
    assert!(matches!(cache.originals(id, 0, 0, Side::Key), Err(Error::Gone { first: 16, .. })));
    assert!(matches!(cache.packed_page(id, 0, 100), Err(Error::Shape { .. })) && cache.packed_page(id, 0, 0).is_ok());
    let long = cache.begin(&[Chunk { sequence: id, tokens: 33 }]).map(drop).unwrap_err();
    assert!(matches!(long, Error::LongChunk { tokens: 33, chunk: 32 }), "{long}");
    assert!(matches!(cache.admit(Some(id), 6000), Ok(certkv::Admission::Fits)));
    assert!(matches!(cache.truncate(id, 100), Err(Error::WindowPassed { asked: 100, within: 16, .. })));
    cache.truncate(id, 10).unwrap();
    fill(&cache, id, &rows).unwrap();
    assert_eq!(cache.originals(id, 0, 0, Side::Key).unwrap().len(), 42 * 64);
}

#[test]
fn what_does_not_go_with_windows_is_refused_by_name() {
    let field = |config: Config| match Cache::new(config) {
        Err(Error::Config { field, .. }) => field,
        other => panic!("{other:?}"),
    };
    let with = |windows| Config { windows, ..Config::new(geometry(), 100) };
    for window in [Window::new(0), Window { chunk: 0, ..Window::new(4) }, Window::new(usize::MAX)] {
        assert_eq!(field(with(vec![Some(window)])), "windows");
    }
    assert_eq!(field(with(vec![None; 3])), "windows");

    let machine = certkv::gpu::GpuMachine::H200;
    let gpu = |windows: &[Option<Window>]| GpuConfig { windows: windows.to_vec(), ..GpuConfig::new(geometry(), 1024) };
    let field = |config: GpuConfig| match config.plan(machine) {
        Err(Error::Config { field, .. }) => field,
        other => panic!("{other:?}"),
    };
    for window in [Window::new(0), Window { chunk: 0, ..Window::new(4) }, Window::new(usize::MAX)] {
        assert_eq!(field(gpu(&[None, Some(window)])), "windows");
    }
    assert_eq!(field(gpu(&[None; 3])), "windows");
    assert!(gpu(&[Some(Window::new(4)), None]).plan(machine).is_ok() && gpu(&[None]).plan(machine).is_ok());
}

/// On a GPU, too, the pages of a layer with a window follow from it and not from the context.
#[test]
fn pages_on_a_gpu_follow_from_the_windows() {
    let plan = |windows: &[Option<Window>], context: usize| {
        let config = GpuConfig { max_sequences: 2, ..GpuConfig::new(geometry(), context) };
        let config = GpuConfig { windows: windows.to_vec(), scratch_keys: 0, scratch_values: 0, ..config };
        config.plan(certkv::gpu::GpuMachine::H200).unwrap()
    };
    let packed = |windows: &[Option<Window>], context| plan(windows, context).of(certkv::Class::Packed);
    let [narrow, wide] = [64, 640].map(|tokens| Some(Window { chunk: 32, ..Window::new(tokens).with_sinks(4) }));
    assert_eq!(packed(&[narrow], 12_800), packed(&[narrow], 128_000));
    assert!(packed(&[narrow], 128_000) * 40 < packed(&[], 128_000));
    // Every group of layers has its own.
    let half = |windows: &[Option<Window>]| packed(windows, 128_000) / 2;
    assert_eq!(packed(&[narrow, wide], 128_000), half(&[narrow]) + half(&[wide]));
    assert_eq!(packed(&[narrow, None], 128_000), half(&[narrow]) + half(&[]));
}
