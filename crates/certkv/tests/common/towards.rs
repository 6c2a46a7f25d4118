//! Decoding with queries that attend to a block that one chooses, and levels of what is attended to.
use super::{Answer, Model, decode_faults, random_rows};
use certkv::retention::{Budgets, Controller, Layer, Rule, Told};
use certkv::{
    Cache, Certified, Chunk, Config, Control, ControlEntry, Controlled, Dtype, Error, Geometry, Level, Policy,
    RecordLayout, SequenceId,
};
use certkv_testkit::generate::Rng;

/// Tokens of a block.
pub(crate) const BLOCK: usize = 16;
/// Layers that share one budget, and the tolerance of their outputs.
pub(crate) const LAYERS: usize = 3;
pub(crate) const TOLERANCE: f64 = 0.05;

pub(crate) fn geometry() -> Geometry {
    Geometry::new(LAYERS, 4, 2, 64).unwrap()
}

/// Formats of the levels of such layers, the best first.
pub(crate) struct Ladder(pub(crate) [&'static str; 3]);

impl Ladder {
    /// Bytes of a page in one layer.
    pub(crate) fn page(&self, level: usize) -> f64 {
        let layout = RecordLayout::new(&geometry(), self.0[level].parse().unwrap()).unwrap();
        (64 + 2 * layout.bytes) as f64
    }

    /// Room for so many tokens of each level.
    pub(crate) fn config(&self, tokens: [usize; 3], control: impl Into<Control>) -> Config {
        let level = |(f, tokens): (&&str, usize)| Level { format: f.parse().unwrap(), tokens };
        let policy = Policy::Certified(Certified { tol_rel: TOLERANCE, ..Certified::default() });
        let levels = self.0.iter().zip(tokens).map(level).collect();
        let config = Config { policy, threads: 2, ..Config::new(geometry(), 640).with_levels(levels) };
        Config { control: Some(control.into()), swap_tokens: 640, ..config }
    }

    /// Of blocks at these levels.
    pub(crate) fn bytes(&self, levels: &[Vec<usize>]) -> f64 {
        levels.iter().flatten().map(|level| self.page(*level)).sum()
    }
}

/// Queries that attend to one block: the key of one of its tokens, but for the channels that are large in all tokens.
pub(crate) fn towards(g: &Geometry, model: &Model, layer: usize, block: usize, r: &mut Rng) -> Vec<f32> {
    let (dim, token) = (g.head_dim, block * BLOCK + r.below(BLOCK));
    let mut channel = |h: usize, c: usize| {
        let key = model.keys[layer][token * g.kv_width() + h / g.group() * dim + c];
        let large = (h / g.group() * dim + c) % 29 == 3;
        if large { 0.0 } else { 2.0 * Dtype::F16.decode16(key) + 0.1 * r.normal() as f32 }
    };
    (0..g.q_heads).flat_map(|h| (0..dim).map(move |c| (h, c))).map(|(h, c)| channel(h, c)).collect()
}

/// One step of all layers towards `block`; every output is within its bound, and that within the tolerance.
pub(crate) fn decode(cache: &Cache, id: SequenceId, model: &mut Model, block: usize, tolerance: f64, r: &mut Rng) {
    let g = *cache.geometry();
    let rows = random_rows(&g, 1, r);
    let mut open = cache.begin(&[Chunk { sequence: id, tokens: 1 }]).unwrap();
    model.append(&rows);
    for layer in 0..g.layers {
        open.append_bits(layer, &rows.keys[layer], &rows.values[layer]).unwrap();
        let queries = towards(&g, model, layer, block, r);
        let mut answer = Answer::new(&g, 1);
        open.attend(layer, &queries, &mut answer.out, &mut answer.certificates).unwrap();
        let exact = model.attend(&g, layer, model.len(&g), &queries);
        assert_eq!(decode_faults(&exact, &answer.out, &answer.certificates, tolerance), 0);
    }
    assert!(matches!(cache.control(id), Err(Error::BusySequence(_))), "a step is open");
    open.finish().unwrap();
}

/// Whether retention that is told the log, so many entries a call, decides what it says.
pub(crate) fn replays(rule: &Rule, log: &[ControlEntry], (cost, budgets): (&[f64], Budgets), each: usize) -> bool {
    let (mut layers, mut controller) = (vec![Layer::default(); each], Controller::new());
    log.chunks_exact(each).all(|entries| {
        let told = entries.iter().map(|e| Told {
            kept: e.kept,
            loss: e.loss.as_deref(),
            danger: e.danger.as_deref(),
            levels: &e.levels,
        });
        let (told, mut layers): (Vec<_>, Vec<_>) = (told.collect(), layers.iter_mut().collect());
        let again = controller.tell(rule, &mut layers, &told, cost, budgets).unwrap();
        entries.iter().map(|e| &e.decision).eq(&again)
    })
}

/// Levels of all full blocks of a layer.
pub(crate) fn levels(cache: &Cache, id: SequenceId, layer: usize) -> Vec<usize> {
    (0..cache.len(id).unwrap() / BLOCK).map(|block| cache.level(id, layer, block).unwrap()).collect()
}

/// Those of all layers.
pub(crate) fn all_levels(cache: &Cache, id: SequenceId) -> Vec<Vec<usize>> {
    (0..LAYERS).map(|layer| levels(cache, id, layer)).collect()
}

pub(crate) fn add(all: &mut Controlled, more: Controlled) {
    all.decided += more.decided;
    all.below_floor += more.below_floor;
    all.changed += more.changed;
    all.refused += more.refused;
    all.failed += more.failed;
}
