//! Cases for the decode kernels of a GPU: a ragged batch with its pages, and attention in f64 to compare with. The same cases run
//! on the emulator and on the device.
#![allow(
    dead_code,
    unused_imports,
    unreachable_pub,
    clippy::needless_range_loop,
    clippy::neg_cmp_op_on_partial_ord,
    reason = "each test program uses its part; formulas keep indices; NaN fails every check"
)]
pub mod closing;
mod dense;
pub mod drafts;
mod limits;
#[path = "metrics.rs"]
mod metrics;
mod refined;
mod rows;
use certkv_codec::decode::{decode_value, refined_key, refined_value};
use certkv_codec::{CodecError, Encoder, KeyMetric};
use certkv_core::fragment::{key_place, value_place};
use certkv_core::{Dtype, ErrorSummary, Geometry, RecordLayout, RefinedSummary};
use certkv_kernel::cuda::Sight;
use certkv_kernel::cuda::args::{AttendArgs, Certificate, Draft, Element, MassWord, Sides};
use certkv_testkit::generate::{Heads, Kind, Rng, Shape, decode, heads};
use dense::{dense, dense_over, distance};
use metrics::Metrics;
use refined::finer;
pub use refined::{Correction, Refining, demand_words};
pub use rows::Arranged;

/// What a case is made of.
#[derive(Debug, Clone)]
pub struct Spec {
    pub format: &'static str,
    pub dim: usize,
    pub group: usize,
    pub kv_heads: usize,
    /// Tokens of each sequence.
    pub lens: Vec<usize>,
    pub store: Dtype,
    pub kind: Kind,
    /// Shares of blocks whose keys and values are promoted.
    pub keys: f64,
    pub values: f64,
    /// Sequences after the first share its full blocks as far as they go.
    pub forked: bool,
    pub relative: f32,
    /// What becomes of residuals; for refinable formats.
    pub refine: Refining,
    /// What queries see; `None`: everything.
    pub sight: Option<Sight>,
    /// Columns of the group are those of so many tokens; 0: of the last one alone.
    pub draft: usize,
    /// Of each sequence, where columns are several tokens'.
    pub drafts: Vec<Draft>,
    pub seed: u64,
    /// One tolerance for all heads, whatever the seed: see [`limits`].
    pub one_limit: bool,
    /// Where queries and outputs are.
    pub rows: Arranged,
    /// Whether a block that the last token fills still lies in its tail.
    pub closing: bool,
}

impl Spec {
    /// Where heads' tolerances come from.
    fn limit_seed(&self) -> u64 {
        if self.one_limit { 1 } else { self.seed }
    }

    pub fn new(format: &'static str, dim: usize, group: usize, lens: &[usize]) -> Self {
        Self {
            format,
            dim,
            group,
            kv_heads: 2,
            lens: lens.to_vec(),
            store: Dtype::F16,
            kind: Kind::Gaussian,
            keys: 0.2,
            values: 0.2,
            forked: false,
            relative: 0.05,
            refine: Refining::Never,
            sight: None,
            draft: 0,
            drafts: Vec::new(),
            seed: 1,
            one_limit: false,
            rows: Arranged::DENSE,
            closing: false,
        }
    }

    /// Blocks of a sequence that have records.
    pub fn recorded(&self, tokens: usize) -> usize {
        (tokens - usize::from(self.closing)) / self.layout().tokens()
    }

    pub fn layout(&self) -> RecordLayout {
        let mut geometry = Geometry::new(1, self.group * self.kv_heads, self.kv_heads, self.dim).unwrap();
        geometry.store = self.store;
        RecordLayout::new(&geometry, self.format.parse().unwrap()).unwrap()
    }
}

/// Where in a 16-bit side in fragment order an element lies, in elements.
pub fn original_index(token: usize, channel: usize, dim: usize, keys: bool) -> usize {
    let p = if keys { key_place(token, channel, dim) } else { value_place(token, channel, dim) };
    p.unit * 512 + p.lane * 16 + p.pair * 2 + p.el
}

/// Rows `[token][channel]` as a side of `block` tokens in fragment order; missing tokens are NaN.
pub fn side(rows: &[u16], block: usize, dim: usize, keys: bool) -> Vec<u16> {
    let mut out = vec![0xffff; block * dim];
    for (t, row) in rows.chunks_exact(dim).enumerate() {
        for (c, x) in row.iter().enumerate() {
            out[original_index(t, c, dim, keys)] = *x;
        }
    }
    out
}

/// One KV head of one sequence.
pub struct Head {
    pub data: Heads,
    pub centre: Vec<f32>,
    pub records: Vec<Vec<u8>>,
    /// Blocks whose keys, values are used exactly (coded blocks only).
    pub exact: Vec<(bool, bool)>,
}

/// A batch on the host.
pub struct Case {
    pub spec: Spec,
    pub layout: RecordLayout,
    pub heads: Vec<Head>,
    /// What their keys are coded in.
    pub metrics: Metrics,
}

fn encode(
    layout: &RecordLayout,
    metric: Option<&KeyMetric<'_>>,
    keys: &[u16],
    values: &[u16],
    centre: &[f32],
) -> (Vec<u8>, bool) {
    let mut record = vec![0; layout.bytes];
    let coded = match Encoder::new(layout).encode_in(metric, keys, values, centre, &mut record) {
        Ok(()) => true,
        Err(CodecError::ScaleOverflow { .. }) => {
            let most = |rows: &[u16], c: Option<&[f32]>| {
                let norms = decode(rows, layout.store);
                let norms = norms.chunks_exact(layout.dim).map(|row| {
                    row.iter().enumerate().map(|(i, x)| (x - c.map_or(0.0, |c| f64::from(c[i]))).powi(2)).sum::<f64>()
                });
                certkv_core::round::up_f32(norms.fold(0.0, f64::max).sqrt() * (1.0 + 1e-9))
            };
            let inf = f32::INFINITY;
            let summary = ErrorSummary {
                kappa: inf,
                eps: inf,
                key_mag: inf,
                key_norm: most(keys, None),
                eta: inf,
                sop: inf,
                radius: most(values, Some(centre)),
                value_norm: most(values, None),
            };
            let at = layout.summary.start;
            record[at..at + 32].copy_from_slice(&summary.to_bytes());
            if !layout.format.refine.is_none() {
                let refined = RefinedSummary { kappa: inf, eps: inf, eta: inf, sop: inf };
                record[at + 32..at + 48].copy_from_slice(&refined.to_bytes());
            }
            false
        }
        Err(e) => panic!("{e}"),
    };
    (record, coded)
}

impl Case {
    pub fn new(spec: &Spec) -> Self {
        Self::with(spec, |_| {})
    }

    /// The same of data that `change` has changed, a head at a time, before it is coded.
    pub fn with(spec: &Spec, change: impl Fn(&mut Heads)) -> Self {
        let layout = spec.layout();
        let (b, d) = (layout.tokens(), spec.dim);
        let mut r = Rng::new(spec.seed ^ 0xd0);
        let metrics = Metrics::of(&layout, spec.kv_heads, spec.seed);
        let mut all: Vec<Head> = Vec::new();
        for (s, &tokens) in spec.lens.iter().enumerate() {
            for h in 0..spec.kv_heads {
                let shape = Shape { tokens, head_dim: d, group: spec.group, block: b, store: spec.store };
                let mut data = heads(spec.kind, shape, spec.seed.wrapping_mul(977) + (s * 64 + h) as u64);
                // `OneToken` ignores the length asked for.
                if data.shape.tokens != tokens {
                    data = heads(Kind::Gaussian, shape, spec.seed);
                }
                change(&mut data);
                let shared = if spec.forked && s > 0 { tokens.min(spec.lens[0]) / b } else { 0 };
                if shared > 0 {
                    let (k, v) = (all[h].data.keys.clone(), all[h].data.values.clone());
                    data.keys[..shared * b * d].copy_from_slice(&k[..shared * b * d]);
                    data.values[..shared * b * d].copy_from_slice(&v[..shared * b * d]);
                }
                let values = decode(&data.values, spec.store);
                let rows = tokens.min(256);
                let mut centre: Vec<f32> =
                    (0..d).map(|c| ((0..rows).map(|t| values[t * d + c]).sum::<f64>() / rows as f64) as f32).collect();
                if shared > 0 {
                    centre.clone_from(&all[h].centre);
                }
                let (mut records, mut exact) = (Vec::new(), Vec::new());
                for j in 0..spec.recorded_of(s) {
                    let range = j * b * d..(j + 1) * b * d;
                    let (metric, keys) = (metrics.head(h), &data.keys[range.clone()]);
                    let (record, coded) = encode(&layout, metric.as_ref(), keys, &data.values[range], &centre);
                    records.push(record);
                    exact.push((r.chance(spec.keys) || !coded, r.chance(spec.values) || !coded));
                }
                all.push(Head { data, centre, records, exact });
            }
        }
        Self { spec: spec.clone(), layout, heads: all, metrics }
    }

    pub fn stride(&self) -> usize {
        self.spec.lens.iter().max().unwrap() / self.layout.tokens() + 1
    }

    /// Whether the query of a sequence of `tokens` tokens sees token `t`, by the rule itself.
    fn sees_token(&self, tokens: usize, t: usize) -> bool {
        self.spec.sight.is_none_or(|sight| t < sight.sinks as usize || t + sight.tokens as usize >= tokens)
    }

    /// The tokens that it sees.
    pub fn seen(&self, tokens: usize) -> Vec<usize> {
        (0..tokens).filter(|t| self.sees_token(tokens, *t)).collect()
    }

    /// Whether it sees a token of full block `j`.
    pub fn sees(&self, tokens: usize, j: usize) -> bool {
        let b = self.layout.tokens();
        (j * b..(j + 1) * b).any(|t| self.sees_token(tokens, t))
    }

    /// Heads of the launch, partial results it may need, for `ctas` CTAs.
    pub fn launch_heads(&self) -> usize {
        self.spec.lens.len() * self.spec.kv_heads
    }

    /// Puts the batch into a device's memory: `place` copies bytes and returns their address; `room` takes zeroed bytes.
    pub fn place(
        &self,
        ctas: usize,
        place: &mut dyn FnMut(&[u8]) -> u64,
        room: &mut dyn FnMut(usize) -> u64,
    ) -> Placed {
        let (spec, l) = (&self.spec, &self.layout);
        let (b, d, stride) = (l.tokens(), spec.dim, self.stride());
        let head_stride = l.bytes;
        let page_stride = head_stride * spec.kv_heads + 64;
        let mut r = Rng::new(spec.seed ^ 0x9a9e);
        let pages: usize = (0..spec.lens.len()).map(|s| spec.recorded_of(s)).sum::<usize>().max(1);
        let mut free: Vec<u32> = (0..pages as u32).collect();
        for i in (1..free.len()).rev() {
            free.swap(i, r.below(i + 1));
        }
        let mut packed = vec![0xffu8; pages * page_stride];
        let mut table = vec![u32::MAX; spec.lens.len() * stride];
        let mut promoted = vec![0u32; self.launch_heads() * stride];
        let (mut sides, mut tails, mut centres) = (Vec::new(), Vec::new(), Vec::<u32>::new());
        let mut row_norms = Vec::<u32>::new();
        let (mut filled_tails, mut filled_norms) = (Vec::new(), Vec::new());
        let mut fragment = vec![0; l.bytes];
        for (s, &tokens) in spec.lens.iter().enumerate() {
            for j in 0..spec.recorded_of(s) {
                if !self.sees(tokens, j) {
                    // Its pages are gone: what is read of them is an error.
                    (0..spec.kv_heads).for_each(|h| promoted[(s * spec.kv_heads + h) * stride + j] = u32::MAX);
                    continue;
                }
                let shared = spec.forked && s > 0 && j < spec.recorded(tokens.min(spec.lens[0]));
                let page = if shared { table[j] } else { free.pop().unwrap() };
                table[s * stride + j] = page;
                for h in 0..spec.kv_heads {
                    let head = &self.heads[s * spec.kv_heads + h];
                    self.metrics.to_fragment(h, l, &head.records[j], &mut fragment);
                    // An uncoded side lies in fragment order too.
                    let range = j * b * d..(j + 1) * b * d;
                    if l.format.key.is_exact() {
                        let rows = side(&head.data.keys[range.clone()], b, d, true);
                        fragment[l.key_codes.clone()].copy_from_slice(&bytes(&rows));
                    }
                    if l.format.value.is_exact() {
                        let rows = side(&head.data.values[range.clone()], b, d, false);
                        fragment[l.value_codes.clone()].copy_from_slice(&bytes(&rows));
                    }
                    let at = page as usize * page_stride + h * head_stride;
                    packed[at..at + l.bytes].copy_from_slice(&fragment);
                    let (keys, values) = head.exact[j];
                    if keys || values {
                        let mut at = Sides::default();
                        if keys {
                            at.keys = place(&bytes(&side(&head.data.keys[range.clone()], b, d, true)));
                        }
                        if values {
                            at.values = place(&bytes(&side(&head.data.values[range], b, d, false)));
                        }
                        sides.push(at);
                        promoted[(s * spec.kv_heads + h) * stride + j] = sides.len() as u32;
                    }
                }
            }
            // A block that a draft has filled lies in a slot behind those of all sequences' last ones.
            for block in spec.recorded_of(s)..=spec.recorded(tokens) {
                let (tail, norms) = self.tail(s, block);
                let filled = block < spec.recorded(tokens);
                if filled { &mut filled_tails } else { &mut tails }.extend(tail);
                if filled { &mut filled_norms } else { &mut row_norms }.extend(norms);
            }
            for h in 0..spec.kv_heads {
                centres.extend(self.heads[s * spec.kv_heads + h].centre.iter().map(|x| x.to_bits()));
            }
        }
        tails.extend(filled_tails);
        row_norms.extend(filled_norms);
        let queries = self.queries();
        let n = self.launch_heads();
        let sides: Vec<u64> = sides.iter().flat_map(|s| [s.keys, s.values]).collect();
        let args = AttendArgs {
            packed: place(&packed),
            page_stride: page_stride as u64,
            head_stride: head_stride as u64,
            table: place(&bytes32(&table)),
            lens: place(&bytes32(&spec.lens.iter().map(|n| *n as u32).collect::<Vec<_>>())),
            promoted: place(&bytes32(&promoted)),
            sides: place(&sides.iter().flat_map(|x| x.to_le_bytes()).collect::<Vec<_>>()),
            rows: 0,
            tails: place(&bytes32(&(0..spec.lens.len() as u32).collect::<Vec<_>>())),
            tail_base: place(&tails),
            tail_stride: (spec.kv_heads * 2 * l.original_side_bytes()) as u64,
            row_norms: place(&bytes32(&row_norms)),
            centres: place(&bytes32(&centres)),
            query: place(&bytes(&spec.rows.scatter(&queries, self.shape()))),
            out: 0,
            certificates: 0,
            masses: 0,
            only: 0,
            failures: 0,
            partials: room((ctas + n) * (spec.group * (d + 13) + 4) * 4),
            counters: room(n * 4),
            seqs: spec.lens.len() as u32,
            kv_heads: spec.kv_heads as u32,
            table_stride: stride as u32,
            query_type: if spec.store == Dtype::Bf16 { Element::Bf16 } else { Element::F16 } as u32,
            out_type: spec.rows.out as u32,
            query_strides: spec.rows.strides(self.shape()),
            out_strides: spec.rows.strides(self.shape()),
            scale: (d as f32).powf(-0.5),
            relative: spec.relative,
            absolute: 0.0,
            refine_all: u32::from(spec.refine == Refining::All),
            // Nothing is written while a case runs: either will do.
            settled: u32::from(spec.seed % 2 == 1),
            closing: u32::from(spec.closing),
            window: spec.sight.map_or(0, |sight| sight.tokens),
            sinks: spec.sight.map_or(0, |sight| sight.sinks),
            drafts: match &spec.drafts[..] {
                [] => 0,
                _ => place(&bytes32(&spec.told().iter().flat_map(Draft::words).collect::<Vec<_>>())),
            },
            limits: limits::words(spec.limit_seed(), spec.relative, spec.kv_heads * spec.heads())
                .map_or(0, |w| place(&bytes32(&w))),
            metrics: self.metrics.words().map_or(0, |w| place(&bytes32(&w))),
            ..AttendArgs::default()
        };
        Placed {
            args,
            outputs: spec.rows.out_words(self.shape()),
            heads: n * spec.group,
            masses: n * stride * spec.group,
        }
    }

    /// Compares outputs and certificates with attention in f64. Returns what is wrong, and the largest figures seen. `looks`: sides whose
    /// residuals were read, `[head][stride]`; empty: as the mode says.
    pub fn judge(&self, out: &[f32], certificates: &[Certificate], masses: &[u32], looks: &[u8]) -> Verdict {
        self.judge_levels(out, certificates, masses, looks, &|_, _| self)
    }

    /// The same where blocks have levels: `coded_in` says, of a block of a head, in which of several cases of the same data its record is.
    pub fn judge_levels<'a>(
        &'a self,
        out: &[f32],
        certificates: &[Certificate],
        masses: &[u32],
        looks: &[u8],
        coded_in: &dyn Fn(usize, usize) -> &'a Self,
    ) -> Verdict {
        let spec = &self.spec;
        let (b, d, stride) = (self.layout.tokens(), spec.dim, self.stride());
        let scale = (d as f64).powf(-0.5);
        let mut v = Verdict::default();
        let all = spec.refine.reads_all() == Some(true);
        // Masses are those of the pass, which a correction does not change.
        let corrected = matches!(spec.refine, Refining::Picked(_));
        for (i, head) in self.heads.iter().enumerate() {
            let (keys, values) = (head.data.keys_f64(), head.data.values_f64());
            let tokens = head.data.shape.tokens;
            let (mut used_keys, mut used_values) = (keys.clone(), values.clone());
            // The first block that is not.
            let mut coded = usize::MAX;
            for j in (0..head.records.len()).filter(|j| self.sees(tokens, *j)) {
                let case = coded_in(i, j);
                let (l, head) = (&case.layout, &case.heads[i]);
                let record = &head.records[j];
                let finer = finer(l, record);
                let look = looks.get(i * stride + j).copied().unwrap_or(if all { 3 } else { 0 });
                let refined = look & 1 != 0 && finer.0;
                let value = if look & 2 != 0 && finer.1 { refined_value } else { decode_value };
                for t in 0..b {
                    let at = (j * b + t) * d..(j * b + t + 1) * d;
                    if !head.exact[j].0 && !l.format.key.is_exact() {
                        let key = &mut used_keys[at.clone()];
                        if refined {
                            refined_key(l, record, t, key).unwrap();
                        } else {
                            case.metrics.decode(i % spec.kv_heads, l, record, t, key);
                        }
                        coded = coded.min(j);
                    }
                    if !head.exact[j].1 && !l.format.value.is_exact() {
                        value(l, record, t, &mut used_values[at]).unwrap();
                        coded = coded.min(j);
                    }
                }
            }
            for g in 0..spec.group {
                let q = head.data.query_f64(self.column(i, g));
                let length = self.length(i, g);
                let seen = if spec.draft > 0 { (0..length).collect() } else { self.seen(length) };
                // A draft's first tokens may see nothing of it.
                let exact = coded.saturating_mul(b) >= length;
                let (truth, _) = dense_over(&seen, &q, &keys, &values, scale);
                let (used, logits) = dense_over(&seen, &q, &used_keys, &used_values, scale);
                let row = i * spec.group + g;
                let got: Vec<f64> = out[row * d..(row + 1) * d].iter().map(|x| f64::from(*x)).collect();
                let c = certificates[row];
                let (error, rounding) = (distance(&got, &truth), distance(&got, &used));
                let norm = got.iter().map(|x| x * x).sum::<f64>().sqrt();
                v.heads += 1;
                if c.status == 0 && c.bound == f32::INFINITY && !got.iter().all(|x| x.is_finite()) {
                    // Refused: codes that halves cannot hold. Such an output must not come from harmless data.
                    v.refused += 1;
                    if head.data.keys_f64().iter().all(|x| x.abs() < 8000.0) {
                        v.wrong.push(format!("head {i}.{g}: refused without a reason"));
                    }
                    continue;
                }
                if !(error <= f64::from(c.bound)) {
                    v.wrong.push(format!("head {i}.{g}: error {error:.3e} above bound {:.3e} ({c:?})", c.bound));
                }
                if !(rounding <= f64::from(c.e_arith)) {
                    v.wrong
                        .push(format!("head {i}.{g}: rounding {rounding:.3e} above e_arith {:.3e} ({c:?})", c.e_arith));
                }
                let lse = certkv_testkit::oracle::log_sum_exp(&logits);
                if !((lse - f64::from(c.lse)).abs() <= 1e-4 + 1e-5 * lse.abs()) {
                    v.wrong.push(format!("head {i}.{g}: lse {} instead of {lse}", c.lse));
                }
                // Of an output before it was rounded to 16 bits. Squares that vanish leave less: a tolerance is the smaller for it.
                let round = if spec.rows.out == Element::F32 { 1e-3 } else { 5e-3 };
                let vanished = if f64::from(c.norm) <= norm { (d as f64 * 1.2e-38).sqrt() } else { 0.0 };
                if !((norm - f64::from(c.norm)).abs() <= round * norm + vanished) {
                    v.wrong.push(format!("head {i}.{g}: norm {} instead of {norm}", c.norm));
                }
                let limit = limits::limit(
                    spec.limit_seed(),
                    spec.relative,
                    i % spec.kv_heads * spec.heads() + g % spec.heads(),
                );
                if !limits::is_named(&c, limit) {
                    v.wrong.push(format!("head {i}.{g}: held to {}, not to {limit:?} ({c:?})", c.tolerance));
                }
                let passes = c.e_key + c.e_val <= c.tolerance;
                let status = if exact { 2 } else { u32::from(passes) };
                if !(c.e_key >= 0.0 && c.e_val >= 0.0) {
                    v.wrong.push(format!("head {i}.{g}: a component is no number ({c:?})"));
                }
                if c.status != status && !((c.e_key + c.e_val - c.tolerance).abs() <= 1e-3 * c.tolerance) {
                    v.wrong.push(format!("head {i}.{g}: status {} instead of {status} ({c:?})", c.status));
                }
                v.rounding = v.rounding.max(rounding / norm);
                v.arith = v.arith.max(f64::from(c.e_arith) / norm);
                if c.bound.is_finite() {
                    v.tightness += f64::from(c.bound) / error.max(1e-30);
                    v.relative += f64::from(c.bound) / norm;
                    v.finite += 1;
                }
                if masses.is_empty() || corrected {
                    continue;
                }
                for j in 0..spec.recorded_of(i / spec.kv_heads) {
                    let place = |t: usize| seen.partition_point(|other| *other < t);
                    let own = &logits[place(j * b)..place((j + 1) * b)];
                    let word = MassWord(masses[(i * stride + j) * spec.group + g]);
                    if own.is_empty() {
                        // Of a block that a draft's later tokens alone see: next to nothing.
                        let nothing = |mass| f64::from(mass) < lse / std::f64::consts::LN_2 - 30.0;
                        let none = spec.draft > 0 && word.log2_mass().is_none_or(nothing);
                        if word.0 != u32::MAX && !none {
                            v.wrong.push(format!("head {i}.{g} block {j}: a mass of what is not seen"));
                        }
                        continue;
                    }
                    let mass = certkv_testkit::oracle::log_sum_exp(own) / std::f64::consts::LN_2;
                    let sayable = mass.min(f64::from(MassWord::MOST_LOG2_MASS));
                    let said = word.log2_mass().map_or(f64::NEG_INFINITY, f64::from);
                    let top = lse / std::f64::consts::LN_2;
                    // Weights thin out 37 octaves below the largest: each of a block may be off by that much, which is seen where a calibrated
                    // query's logits lie so far apart that blocks come near the edge.
                    let thin = (1.0 + b as f64 * (top - mass - 37.0).exp2()).log2();
                    let near = 0.03 + if self.layout.format.key.is_calibrated() { thin } else { 0.0 };
                    if mass > top - 30.0 && !((said - sayable).abs() <= near) {
                        v.wrong.push(format!("head {i}.{g} block {j}: log-mass {said} instead of {mass}"));
                    }
                    // Weights of codes are not those of originals, within the bound of the logits: wide margins.
                    let most = own.iter().fold(f64::MIN, |a, x| a.max(*x));
                    let (sum, square) = own.iter().fold((0.0, 0.0), |(s, q), x| {
                        let w = (x - most).exp();
                        (s + w, q + w * w)
                    });
                    let even = 0.5 * f64::log2(square) - f64::log2(sum);
                    let said = word.log2_evenness().map_or(f64::NAN, f64::from);
                    if mass > top - 20.0 && !(said >= even - 0.1 && said <= even + 0.25) {
                        v.wrong.push(format!("head {i}.{g} block {j}: evenness {said} instead of {even}"));
                    }
                }
            }
        }
        v
    }
}

/// Little-endian bytes.
pub fn bytes(words: &[u16]) -> Vec<u8> {
    words.iter().flat_map(|w| w.to_le_bytes()).collect()
}
pub fn bytes32(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|w| w.to_le_bytes()).collect()
}

/// A placed batch: arguments without outputs, and how many elements those need.
pub struct Placed {
    pub args: AttendArgs,
    pub outputs: usize,
    pub heads: usize,
    pub masses: usize,
}

/// What came of a case.
#[derive(Debug, Default)]
pub struct Verdict {
    pub wrong: Vec<String>,
    pub heads: usize,
    pub finite: usize,
    /// Heads without a number, whose certificates say so.
    pub refused: usize,
    /// Largest rounding of the output against f64 on the operands used, and largest e_arith, over the norm.
    pub rounding: f64,
    pub arith: f64,
    /// Sums of bound over true error and of bound over norm.
    pub tightness: f64,
    pub relative: f64,
}
