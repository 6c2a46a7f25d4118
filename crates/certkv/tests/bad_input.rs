//! Bad input of every kind is a typed error that names the argument, writes nothing and leaves the cache as it was.
mod common;

use certkv::{
    Cache, Certificate, Certified, Chunk, Config, Dtype, Error, Geometry, GeometryError, Policy, Seed000, SequenceId,
    Side, Spill, Status, Step, store::MemoryStore,
};
use certkv_core::Class;
use certkv_testkit::generate::Rng;
use common::{Answer, Model, fill, original_faults, random_queries, random_rows, step};
use std::sync::Arc;

fn geometry() -> Geometry {
    Geometry::new(2, 4, 2, 64).unwrap()
}

fn config() -> Config {
    Config { max_sequences: 3, ..Config::new(geometry(), 128) }.with_format("k8-v4g32-b32".parse().unwrap())
}

/// A cache with one sequence of 70 tokens, and what it holds.
fn filled() -> (Cache, SequenceId, Model, Rng) {
    let mut r = Rng::new(1);
    let cache = Cache::new(config()).unwrap();
    let sequence = cache.create().unwrap();
    let rows = random_rows(&geometry(), 70, &mut r);
    fill(&cache, sequence, &rows).unwrap();
    (cache, sequence, rows, r)
}

fn floats(bits: &[u16]) -> Vec<f32> {
    bits.iter().map(|b| Dtype::F16.decode16(*b)).collect()
}

#[test]
fn configurations_are_refused_by_field() {
    let refused = |config: Config| Cache::new(config).expect_err("a bad configuration was taken");
    let field = |config: Config| match refused(config) {
        Error::Config { field, why } => {
            assert!(!why.is_empty());
            field
        }
        other => panic!("{other}"),
    };
    let bad = Geometry { layers: 0, ..geometry() };
    assert!(matches!(refused(Config::new(bad, 64)), Error::Geometry(GeometryError::Layers(0))));
    let bad = Geometry { kv_heads: usize::MAX, ..geometry() };
    assert!(matches!(refused(Config::new(bad, 64)), Error::Geometry(GeometryError::KvHeads(_))));
    let bad = Geometry { head_dim: 63, ..geometry() };
    assert!(matches!(refused(Config::new(bad, 64)), Error::Geometry(GeometryError::HeadDim(63))));
    let bad = Geometry { scale: f32::NAN, ..geometry() };
    assert!(matches!(refused(Config::new(bad, 64)), Error::Geometry(GeometryError::Scale(_))));
    let bad = Geometry { store: Dtype::F32, ..geometry() };
    assert!(matches!(refused(Config::new(bad, 64)), Error::Geometry(GeometryError::Store(_))));

    for tokens in [0, (1 << 31) + 1, usize::MAX] {
        assert_eq!(field(Config { max_tokens: tokens, ..config() }), "max_tokens");
    }
    for sequences in [0, (1 << 20) + 1, usize::MAX] {
        assert_eq!(field(Config { max_sequences: sequences, ..config() }), "max_sequences");
    }
    for threads in [0, 257, usize::MAX] {
        assert_eq!(field(Config { threads, ..config() }), "threads");
    }
    let format = config().formats[0];
    assert_eq!(field(Config { formats: vec![], ..config() }), "formats");
    assert_eq!(field(Config { formats: vec![format; 3], ..config() }), "formats");
    let wide: certkv::Format = "k8-v4g128-b32".parse().unwrap();
    assert!(matches!(refused(config().with_format(wide)), Error::Format(_)));
    let odd = certkv::Format { block: 48, ..format };
    assert!(matches!(refused(config().with_format(odd)), Error::Format(_)));
    // Residuals of a format that they do not fit, and of blocks with levels.
    let keys_by_token =
        certkv::Format { refine: certkv::Refine { key: 4, value: 4 }, .."t4-v4g32-b32".parse().unwrap() };
    assert!(matches!(refused(config().with_format(keys_by_token)), Error::Format(_)));
    let levels =
        ["k8-v4g32-b32-r4.4", "t4-v4g32-b32"].map(|f| certkv::Level { format: f.parse().unwrap(), tokens: 256 });
    match refused(config().with_levels(levels.into())) {
        Error::Config { field: "levels", why } => assert!(why.contains("r4.4") && why.contains("residuals"), "{why}"),
        other => panic!("{other}"),
    }
    let lopsided = certkv::Format { refine: certkv::Refine { key: 5, value: 0 }, ..format };
    assert!(matches!(refused(config().with_format(lopsided)), Error::Format(_)));
    // More slots than an index can name.
    let deep = Geometry { layers: 4096, ..geometry() };
    assert_eq!(field(Config::new(deep, 1 << 31)), "max_tokens");
    // More bytes than any machine maps, without a budget to stop it.
    let wide = Geometry { kv_heads: 1024, q_heads: 1024, head_dim: 256, ..geometry() };
    assert!(matches!(
        refused(Config::new(wide, 1 << 30)),
        Error::Device(_) | Error::Config { field: "max_tokens", .. }
    ));
}

#[test]
fn policies_are_refused_by_parameter() {
    let (cache, sequence, rows, _) = filled();
    for tol_rel in [0.0, -1.0, f64::NAN, f64::INFINITY] {
        let policy = Policy::Certified(Certified { tol_rel, ..Certified::default() });
        let refused = Cache::new(Config { policy, ..config() }).err();
        assert!(matches!(&refused, Some(Error::Policy(why)) if why.contains("tol_rel")), "{refused:?}");
        let refused = cache.begin_with(&[Chunk { sequence, tokens: 1 }], policy).err();
        assert!(matches!(&refused, Some(Error::Policy(why)) if why.contains("tol_rel")), "{refused:?}");
    }
    let policy = Policy::Seed000(Seed000 { tau_cov: 1.5, ..Seed000::default() });
    assert!(matches!(Cache::new(Config { policy, ..config() }), Err(Error::Policy(why)) if why.contains("tau_cov")));
    assert_eq!(original_faults(&cache, sequence, &rows), 0);
}

/// Without a byte in the store nothing leaves: a sequence has what host memory has room for, whole, and says when that is used up.
#[test]
fn a_store_without_a_byte_takes_nothing() {
    let geometry = Geometry::new(4, 2, 1, 64).unwrap();
    let spill = Spill { disk_budget: 0, ..Spill::new(Arc::new(MemoryStore::new(u64::MAX)), 64) };
    let config = Config { spill: Some(spill), max_sequences: 1, ..Config::new(geometry, 512) };
    let cache = Cache::new(config.with_format("k8-v4g32-b32".parse().unwrap())).unwrap();
    let (mut r, id) = (Rng::new(3), cache.create().unwrap());
    let mut whole = Model::new(&geometry);
    let refused = loop {
        let rows = random_rows(&geometry, 10, &mut r);
        match fill(&cache, id, &rows) {
            Ok(()) => whole.append(&rows),
            Err(error) => break error,
        }
    };
    assert!(matches!(refused, Error::CapacityExhausted { class: "host", .. }), "{refused:?}");
    let len = whole.len(&geometry);
    assert!((64..512).contains(&len) && cache.len(id).unwrap() == len, "{len}");
    assert_eq!(original_faults(&cache, id, &whole), 0);
    assert_eq!(cache.snapshot().spills.map_or(0, |moves| moves.done.count()), 0);
    cache.release(id).unwrap();
    let again = cache.create().unwrap();
    fill(&cache, again, &random_rows(&geometry, 40, &mut r)).unwrap();
}

#[test]
fn a_budget_that_is_too_small_is_named() {
    let (by_class, limits) = Cache::new(config()).unwrap().reserved();
    assert_eq!(limits, (usize::MAX, usize::MAX));
    let [packed, scratch, tables, host] = by_class;
    let exact = Config { device_budget: packed + scratch + tables, host_budget: host, ..config() };
    let (again, _) = Cache::new(exact.clone()).unwrap().reserved();
    assert_eq!(again, by_class, "the budget is not what is reserved");
    let cases = [
        (Config { device_budget: 0, ..exact.clone() }, Class::Packed, 0),
        (Config { device_budget: 100, ..exact.clone() }, Class::Packed, 100),
        (Config { device_budget: packed, ..exact.clone() }, Class::Scratch, packed),
        (
            Config { device_budget: packed + scratch + tables - 1, ..exact.clone() },
            Class::Tables,
            packed + scratch + tables - 1,
        ),
        (Config { host_budget: 0, ..exact.clone() }, Class::Host, 0),
        (Config { host_budget: host - 1, ..exact }, Class::Host, host - 1),
    ];
    for (config, class, limit) in cases {
        match Cache::new(config) {
            Err(Error::Budget(refused)) => {
                assert_eq!((refused.class, refused.limit), (class, limit));
                let text = Error::Budget(refused).to_string();
                assert!(text.contains("budget") && text.contains(&class.to_string()), "{text}");
            }
            other => panic!("{class}: {other:?}"),
        }
    }
}

/// Runs `spoil` inside a step, then the step as it should have been; outputs, certificates and originals must be those of
/// a cache that never saw the bad call.
fn no_trace(what: &str, spoil: impl Fn(&mut Step<'_>, &Model, &mut Rng)) {
    let run = |spoiled: bool| {
        let (cache, sequence, mut model, mut r) = filled();
        let g = geometry();
        let rows = random_rows(&g, 30, &mut r);
        let queries = random_queries(&g, 30, &mut r);
        let mut begun = cache.begin(&[Chunk { sequence, tokens: 30 }]).unwrap();
        let mut answers = Vec::new();
        for layer in 0..g.layers {
            if spoiled && layer == 0 {
                spoil(&mut begun, &rows, &mut Rng::new(9));
            }
            begun.append_bits(layer, &rows.keys[layer], &rows.values[layer]).unwrap();
            let mut answer = Answer::new(&g, 30);
            begun.attend(layer, &queries, &mut answer.out, &mut answer.certificates).unwrap();
            answers.push(answer.bits());
        }
        begun.finish().unwrap();
        model.append(&rows);
        for _ in 0..3 {
            let (rows, queries) = (random_rows(&g, 1, &mut r), random_queries(&g, 1, &mut r));
            for answer in step(&cache, sequence, &rows, &queries, Policy::default()).unwrap() {
                answers.push(answer.bits());
                let bounds = answer.certificates.iter().map(|c| c.bound().to_bits());
                answers.push(bounds.map(|b| (b ^ b >> 32) as u32).collect());
            }
            model.append(&rows);
        }
        assert_eq!(original_faults(&cache, sequence, &model), 0, "{what}");
        answers
    };
    assert_eq!(run(true), run(false), "{what} left a trace");
}

#[test]
fn rows_that_are_not_finite_are_named_and_leave_no_trace() {
    let width = geometry().kv_width();
    let values = [f32::NAN, f32::INFINITY, f32::NEG_INFINITY];
    for (i, bad) in values.into_iter().enumerate() {
        for side in ["keys", "values"] {
            no_trace("a value that is not finite", |begun, rows, r| {
                let (mut keys, mut values) = (floats(&rows.keys[0]), floats(&rows.values[0]));
                let (token, element) = (r.below(30), r.below(width));
                let at = token * width + element;
                if side == "keys" {
                    keys[at] = bad
                } else {
                    values[at] = bad
                }
                let refused = begun.append(0, &keys, &values);
                let named = matches!(&refused, Err(Error::NonFinite { argument, token: t, element: e })
                    if (*argument, *t, *e) == (side, token, element));
                assert!(named, "{refused:?}");
                assert!(refused.unwrap_err().to_string().contains(side));
            });
        }
        no_trace("a pattern that is not finite", |begun, rows, _| {
            let mut keys = rows.keys[0].clone();
            keys[width + 2] = [0x7e00, 0x7c00, 0xfc00][i];
            let refused = begun.append_bits(0, &keys, &rows.values[0]);
            assert!(matches!(refused, Err(Error::NonFinite { argument: "keys", token: 1, element: 2 })), "{refused:?}");
        });
    }
}

#[test]
fn values_beyond_the_stored_type_are_named_and_leave_no_trace() {
    for (value, fits) in [(65504.0f32, true), (65519.0, true), (65520.0, false), (-7e4, false), (f32::MAX, false)] {
        let (cache, sequence, _, mut r) = filled();
        let rows = random_rows(&geometry(), 1, &mut r);
        let mut keys = floats(&rows.keys[0]);
        keys[5] = value;
        let mut begun = cache.begin(&[Chunk { sequence, tokens: 1 }]).unwrap();
        let taken = begun.append(0, &keys, &floats(&rows.values[0]));
        assert_eq!(taken.is_ok(), fits, "{value}: {taken:?}");
        if let Err(e) = taken {
            assert!(matches!(e, Error::Overflow { argument: "keys", token: 0, element: 5 }), "{e}");
        }
    }
    no_trace("an overflow", |begun, rows, _| {
        let mut values = floats(&rows.values[0]);
        values[3 * geometry().kv_width()] = 1e9;
        let refused = begun.append(0, &floats(&rows.keys[0]), &values);
        assert!(matches!(refused, Err(Error::Overflow { argument: "values", token: 3, element: 0 })), "{refused:?}");
    });
}

#[test]
fn bad_queries_leave_outputs_alone_and_certificates_uncertified() {
    let (cache, sequence, _, mut r) = filled();
    let g = geometry();
    let rows = random_rows(&g, 1, &mut r);
    let claims = Certificate { status: Status::Certified, e_key: 0.0, e_val: 0.0, ..Certificate::UNCERTIFIED };
    let mut begun = cache.begin(&[Chunk { sequence, tokens: 1 }]).unwrap();
    begun.append_bits(0, &rows.keys[0], &rows.values[0]).unwrap();
    let good = random_queries(&g, 1, &mut r);
    let mut attend = |layer: usize, queries: &[f32], outs: usize, certs: usize| {
        let (mut out, mut certificates) = (vec![7.0; outs], vec![claims; certs]);
        let error = begun.attend(layer, queries, &mut out, &mut certificates).expect_err("bad input was taken");
        assert!(out.iter().all(|x| *x == 7.0), "an output was written: {error}");
        assert!(certificates.iter().all(|c| c.status == Status::Uncertified && c.bound() == f64::INFINITY), "{error}");
        error
    };
    for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
        let mut queries = good.clone();
        queries[77] = bad;
        let error = attend(0, &queries, g.q_width(), g.q_heads);
        assert!(matches!(error, Error::NonFinite { argument: "queries", token: 0, element: 77 }), "{error}");
    }
    let error = attend(0, &good[1..], g.q_width(), g.q_heads);
    assert!(matches!(error, Error::Shape { argument: "queries", expected: 256, given: 255 }), "{error}");
    assert!(matches!(attend(0, &good, 257, g.q_heads), Error::Shape { argument: "out", given: 257, .. }));
    assert!(matches!(attend(0, &good, 0, 0), Error::Shape { argument: "out", given: 0, .. }));
    let error = attend(0, &good, g.q_width(), 3);
    assert!(matches!(error, Error::Shape { argument: "certificates", expected: 4, given: 3 }), "{error}");
    assert!(matches!(attend(1, &good, g.q_width(), g.q_heads), Error::Order { layer: 1, .. }));
    assert!(matches!(attend(2, &good, g.q_width(), g.q_heads), Error::Layer { layer: 2, layers: 2 }));
    assert!(matches!(attend(usize::MAX, &good, g.q_width(), g.q_heads), Error::Layer { .. }));
    // No certificates wanted is fine, and so is asking twice.
    let mut out = vec![f32::NAN; g.q_width()];
    begun.attend(0, &good, &mut out, &mut []).unwrap();
    assert!(out.iter().all(|x| x.is_finite()));
}

#[test]
fn shapes_and_order_are_checked() {
    let (cache, sequence, model, mut r) = filled();
    let g = geometry();
    let rows = random_rows(&g, 2, &mut r);
    let mut begun = cache.begin(&[Chunk { sequence, tokens: 2 }]).unwrap();
    let (k, v) = (&rows.keys[0], &rows.values[0]);
    assert!(matches!(
        begun.append_bits(0, &k[1..], v),
        Err(Error::Shape { argument: "keys", expected: 256, given: 255 })
    ));
    assert!(matches!(begun.append_bits(0, k, &[]), Err(Error::Shape { argument: "values", given: 0, .. })));
    assert!(matches!(begun.append(0, &floats(k), &floats(v)[..128]), Err(Error::Shape { argument: "values", .. })));
    assert!(matches!(begun.append_bits(2, k, v), Err(Error::Layer { layer: 2, layers: 2 })));
    begun.append_bits(0, k, v).unwrap();
    assert!(matches!(begun.append_bits(0, k, v), Err(Error::Order { layer: 0, .. })));
    assert!(matches!(begun.finish(), Err(Error::Order { layer: 1, .. })));
    // The unfinished step left nothing.
    assert_eq!(cache.len(sequence).unwrap(), 70);
    assert_eq!(original_faults(&cache, sequence, &model), 0);
    fill(&cache, sequence, &rows).unwrap();
    assert_eq!(cache.len(sequence).unwrap(), 72);
}

#[test]
fn sequences_that_are_unknown_stale_busy_or_named_twice_are_refused() {
    let (cache, a, model, _) = filled();
    let b = cache.create().unwrap();
    cache.release(b).unwrap();
    let of = |sequence| Chunk { sequence, tokens: 1 };
    // What another cache of the process gave out, for the place that `a` has here.
    let (_other, foreign, ..) = filled();
    assert!(foreign.slot == a.slot && foreign != a);
    let strangers = [
        b,
        foreign,
        SequenceId::from_bits(0),
        SequenceId::from_bits(u64::MAX),
        SequenceId { slot: 999, generation: 1 },
    ];
    for id in strangers {
        assert!(matches!(cache.begin(&[of(a), of(id)]), Err(Error::UnknownSequence(x)) if x == id));
        assert!(matches!(cache.len(id), Err(Error::UnknownSequence(_))));
        assert!(matches!(cache.fork(id), Err(Error::UnknownSequence(_))));
        assert!(matches!(cache.truncate(id, 0), Err(Error::UnknownSequence(_))));
        assert!(matches!(cache.release(id), Err(Error::UnknownSequence(_))));
        assert!(matches!(cache.originals(id, 0, 0, Side::Key), Err(Error::UnknownSequence(_))));
        assert!(matches!(cache.packed_page(id, 0, 0), Err(Error::UnknownSequence(_))));
    }
    // The slot's next owner has another id.
    let c = cache.create().unwrap();
    assert!(c.slot == b.slot && c != b && matches!(cache.len(b), Err(Error::UnknownSequence(_))));

    assert!(matches!(cache.begin(&[]), Err(Error::Shape { argument: "chunks", .. })));
    let empty = Chunk { sequence: c, tokens: 0 };
    assert!(matches!(cache.begin(&[of(a), empty]), Err(Error::Shape { argument: "chunk.tokens", .. })));
    assert!(matches!(cache.begin(&[of(a), of(c), of(a)]), Err(Error::BusySequence(x)) if x == a));
    let begun = cache.begin(&[of(a)]).unwrap();
    assert!(matches!(cache.begin(&[of(c), of(a)]), Err(Error::BusySequence(x)) if x == a));
    assert!(matches!(cache.len(a), Err(Error::BusySequence(_))));
    assert!(matches!(cache.fork(a), Err(Error::BusySequence(_))));
    assert!(matches!(cache.truncate(a, 0), Err(Error::BusySequence(_))));
    assert!(matches!(cache.release(a), Err(Error::BusySequence(_))));
    assert!(matches!(cache.originals(a, 0, 0, Side::Value), Err(Error::BusySequence(_))));
    assert_eq!(cache.len(c).unwrap(), 0, "the refused step kept a sequence");
    drop(begun);
    assert_eq!(original_faults(&cache, a, &model), 0);
}

#[test]
fn lengths_layers_and_capacity_are_checked() {
    let (cache, a, model, mut r) = filled();
    let g = geometry();
    for asked in [71, usize::MAX] {
        assert!(matches!(cache.truncate(a, asked), Err(Error::Length { len: 70, .. })));
    }
    assert!(matches!(cache.originals(a, 2, 0, Side::Key), Err(Error::Layer { layer: 2, layers: 2 })));
    assert!(matches!(cache.originals(a, 0, 2, Side::Key), Err(Error::Shape { argument: "kv_head", .. })));
    assert!(matches!(cache.packed_page(a, 9, 0), Err(Error::Layer { .. })));
    assert!(
        matches!(cache.packed_page(a, 0, 2), Err(Error::Shape { argument: "block", .. })),
        "the open block is not packed"
    );
    assert!(matches!(cache.packed_page(a, 0, usize::MAX), Err(Error::Shape { argument: "block", .. })));
    assert!(matches!(cache.layout(2), Err(Error::Layer { .. })));

    // Past what one sequence may hold, past the pages that are left, and numbers that overflow.
    let b = cache.create().unwrap();
    for tokens in [100, usize::MAX - 1, usize::MAX] {
        let one = [Chunk { sequence: a, tokens }];
        let two = [Chunk { sequence: b, tokens: 1 }, Chunk { sequence: a, tokens }];
        for chunks in [&one[..], &two[..]] {
            let refused = cache.begin(chunks).err().unwrap();
            assert!(matches!(refused, Error::TooLong { len: 70, tokens: t, .. } if t == tokens), "{refused}");
            assert!(refused.to_string().contains("chunk.tokens"), "{refused}");
        }
    }
    let refused = cache.begin(&[Chunk { sequence: b, tokens: 96 }]).err().unwrap();
    assert!(matches!(refused, Error::CapacityExhausted { class: "packed", .. }), "{refused}");
    let pages = cache.live_pages();
    let c = cache.create().unwrap();
    assert!(matches!(cache.create(), Err(Error::TooManySequences { max_sequences: 3 })));
    assert!(matches!(cache.fork(a), Err(Error::TooManySequences { max_sequences: 3 })));
    assert_eq!(cache.live_pages(), pages, "a refused fork kept pages");
    cache.release(c).unwrap();

    // The capacity is usable to the last token.
    let rest = random_rows(&g, 58, &mut r);
    fill(&cache, a, &rest).unwrap();
    let mut whole = model;
    whole.append(&rest);
    assert_eq!((cache.len(a).unwrap(), original_faults(&cache, a, &whole)), (128, 0));
    cache.release(a).unwrap();
    cache.release(b).unwrap();
    assert_eq!((cache.live_pages(), cache.check_report().findings()), (0, 0));
}

/// Attention over nothing cannot be asked for: a step brings at least one token, and sees it.
#[test]
fn a_first_token_attends_to_itself() {
    let cache = Cache::new(config()).unwrap();
    let sequence = cache.create().unwrap();
    let (g, mut r) = (geometry(), Rng::new(5));
    let (rows, queries) = (random_rows(&g, 1, &mut r), random_queries(&g, 1, &mut r));
    let answers = step(&cache, sequence, &rows, &queries, Policy::default()).unwrap();
    for (layer, answer) in answers.iter().enumerate() {
        let exact = rows.attend(&g, layer, 1, &queries);
        assert_eq!(common::decode_faults(&exact, &answer.out, &answer.certificates, 0.05), 0);
    }
}
