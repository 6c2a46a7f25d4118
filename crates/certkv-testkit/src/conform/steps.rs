//! Full steps: first phase, promotion, mixed pass, certificates and checks of every head.
use super::certificates::{BOUND_LIMIT, close};
use super::select::padded;
use super::{ConformError, Family, Report};
use crate::cgv::Vectors;
use crate::oracle::{Attention, Pass, Sides, distance, norm};
use certkv_bound::checks::{canary_mass_ok, canary_ok};
use certkv_bound::distribution::{tail_mass_up, tv_closed};
use certkv_bound::exact_root::{DroppedBlock, TailBlock, exact_root};
use certkv_bound::published::{PublishedBound, TEXT_INFLATION};
use certkv_bound::robust::{Candidate, robust_bound};
use certkv_bound::terms::{key_terms, value_term};
use certkv_bound::trivial::{emitted, trivial_cap};
use certkv_bound::{Annotation, Finished, Stream, Used, drop, logit};
use certkv_control::joint::{JointBudget, JointPick, JointTerms};
use certkv_control::{BitSet, Coverage};

pub(crate) const FAMILIES: &[Family] = &[Family { prefix: "step_", replay: step }];

/// The file as numbers.
struct Step {
    name: String,
    dim: usize,
    tokens: usize,
    block: usize,
    blocks: usize,
    scale: f64,
    softcap: f64,
    sink: Option<f64>,
    keys: Vec<f64>,
    values: Vec<f64>,
    decoded_keys: Vec<f64>,
    decoded_values: Vec<f64>,
    centre: Vec<f64>,
    mask: Vec<bool>,
    dropped: Vec<bool>,
    compressed: Vec<bool>,
    sigma: Vec<f64>,
    low: Vec<f64>,
    high: Vec<f64>,
    kappa: Vec<f64>,
    eta: Vec<f64>,
    sop: Vec<f64>,
    radius: Vec<f64>,
    nu: Vec<f64>,
    value_max: f64,
}

fn flags(v: &Vectors, name: &str) -> Result<Vec<bool>, ConformError> {
    Ok(v.i64s(name)?.into_iter().map(|x| x != 0).collect())
}

impl Step {
    fn read(name: &str, v: &Vectors) -> Result<Self, ConformError> {
        let (tokens, dim) = v.matrix("k")?;
        let block = v.scalar("block_size")? as usize;
        let blocks = tokens.div_ceil(block.max(1));
        let (keys, values) = (v.f64s("k")?, v.f64s("v")?);
        let compressed = flags(v, "compressed")?;
        let code = |t: usize| compressed.get(t / block.max(1)).copied().unwrap_or(false);
        let (key_codes, sigma, offset) = (v.f64s("k_codes")?, v.f64s("k_sigma")?, v.f64s("k_z")?);
        let (value_codes, value_sigma, value_offset) = (v.f64s("v_codes")?, v.f64s("v_sigma")?, v.f64s("v_z")?);
        let group = v.scalar("vgroup")? as usize;
        let sizes = [
            (key_codes.len(), tokens * dim),
            (value_codes.len(), tokens * dim),
            (values.len(), tokens * dim),
            (sigma.len(), blocks * dim),
            (offset.len(), blocks * dim),
            (value_sigma.len() * group, tokens * dim),
            (value_offset.len(), value_sigma.len()),
            (compressed.len(), blocks),
        ];
        if block == 0 || group == 0 || sizes.iter().any(|(a, b)| a != b) {
            return Err(ConformError::refused("arrays of the step do not fit together"));
        }
        let decoded_keys = (0..tokens * dim).map(|i| {
            let (t, at) = (i / dim, i / dim / block * dim + i % dim);
            if code(t) { key_codes[i] * sigma[at] + offset[at] } else { keys[i] }
        });
        let decoded_values = (0..tokens * dim).map(|i| {
            let (t, at) = (i / dim, i / group);
            if code(t) { value_codes[i] * value_sigma[at] + value_offset[at] } else { values[i] }
        });
        let column = |what: &str| -> Result<Vec<f64>, ConformError> {
            let x = v.f64s(what)?;
            if x.len() == blocks {
                Ok(x)
            } else {
                Err(ConformError::refused(format_args!("`{what}` is not per block")))
            }
        };
        Ok(Self {
            name: name.to_owned(),
            dim,
            tokens,
            block,
            blocks,
            scale: v.scalar("scale")?,
            softcap: v.scalar("softcap")?,
            sink: (v.scalar("has_sink")? != 0.0).then_some(v.scalar("sink")?),
            decoded_keys: decoded_keys.collect(),
            decoded_values: decoded_values.collect(),
            centre: v.f64s("centre")?,
            mask: flags(v, "mask")?,
            dropped: flags(v, "drop")?,
            low: v.f64s("lo")?,
            high: v.f64s("hi")?,
            kappa: column("kappa")?,
            eta: column("eta")?,
            sop: column("sop")?,
            radius: column("R")?,
            nu: column("nu")?,
            value_max: values.chunks_exact(dim).map(norm).fold(0.0, f64::max),
            compressed,
            sigma,
            keys,
            values,
        })
    }

    fn attention<'a>(&'a self, query: &'a [f64]) -> Attention<'a> {
        Attention {
            query,
            scale: self.scale,
            mask: Some(&self.mask),
            bias: None,
            softcap: self.softcap,
            sink: self.sink,
        }
    }

    fn span(&self, b: usize) -> std::ops::Range<usize> {
        b * self.block..((b + 1) * self.block).min(self.tokens)
    }

    fn row<'a>(&self, per_channel: &'a [f64], b: usize) -> &'a [f64] {
        &per_channel[b * self.dim..(b + 1) * self.dim]
    }

    fn visible(&self, b: usize) -> usize {
        self.span(b).filter(|&t| self.mask[t]).count()
    }

    /// Compressed and scored: the blocks that promotion is about.
    fn live(&self, b: usize) -> bool {
        self.compressed[b] && !self.dropped[b]
    }

    fn mixed(&self, a: &Attention<'_>, keys: &[bool], values: &[bool]) -> Result<Pass, ConformError> {
        let sides = Sides {
            keys: &self.keys,
            decoded_keys: &self.decoded_keys,
            values: &self.values,
            decoded_values: &self.decoded_values,
            block: self.block,
            exact_keys: keys,
            exact_values: values,
            dropped: &self.dropped,
        };
        a.mixed(&sides).map_err(ConformError::refused)
    }

    fn drop_logit(&self, query: &[f64], b: usize) -> f64 {
        drop::logit_box(query, self.row(&self.low, b), self.row(&self.high, b), self.scale)
    }
}

fn step(name: &str, v: &Vectors, report: &mut Report) -> Result<(), ConformError> {
    let s = Step::read(name, v)?;
    let (heads, dim) = v.matrix("q")?;
    if dim != s.dim {
        return Err(ConformError::refused("`q` and `k` differ in channels"));
    }
    let queries = v.f64s("q")?;
    for (h, query) in queries.chunks_exact(dim).enumerate().take(heads) {
        Head { step: &s, vectors: v, index: h, query }.replay(report)?;
    }
    Ok(())
}

/// One query head of a step.
struct Head<'a> {
    step: &'a Step,
    vectors: &'a Vectors,
    index: usize,
    query: &'a [f64],
}

impl Head<'_> {
    /// This head's row of an output array.
    fn want(&self, name: &str) -> Result<Vec<f64>, ConformError> {
        let all = self.vectors.f64s(&format!("out_{name}"))?;
        let heads = self.vectors.matrix("q")?.0;
        let width = all.len() / heads;
        Ok(all[self.index * width..(self.index + 1) * width].to_vec())
    }

    fn want_ints(&self, name: &str) -> Result<Vec<i64>, ConformError> {
        Ok(self.want(name)?.into_iter().map(|x| x as i64).collect())
    }

    fn relative(&self, report: &mut Report, label: &str, got: &[f64], want: &str) -> Result<(), ConformError> {
        report.relative(label, got, &self.want(want)?, BOUND_LIMIT);
        Ok(())
    }

    /// Logarithms are judged by `1 + |x|`.
    fn logs(&self, report: &mut Report, label: &str, got: &[f64], want: &str) -> Result<(), ConformError> {
        let want = self.want(want)?;
        let off = |(a, b): (&f64, &f64)| if a == b { 0.0 } else { (a - b).abs() / (1.0 + b.abs()) };
        let worst =
            got.iter().zip(&want).map(off).fold(if got.len() == want.len() { 0.0 } else { f64::INFINITY }, f64::max);
        report.record(label, "of 1 + |x|", want.len(), worst, BOUND_LIMIT);
        Ok(())
    }

    fn replay(&self, report: &mut Report) -> Result<(), ConformError> {
        let s = self.step;
        let attention = s.attention(self.query);
        let tail: Vec<bool> = s.compressed.iter().map(|c| !c).collect();
        let first = s.mixed(&attention, &tail, &tail)?;
        self.logs(report, "step first-phase lse", &[first.lse], "p1_lse")?;
        self.logs(report, "step first-phase log-mass", &first.log_mass, "p1_logmass")?;
        self.relative(report, "step first-phase mass", &first.mass, "p1_rho")?;
        self.top_k(report, &first, &tail)?;

        let notes: Vec<Annotation> = (0..s.blocks).map(|b| self.annotation(b)).collect();
        let column = |f: fn(&Annotation) -> f64| -> Vec<f64> { notes.iter().map(f).collect() };
        let (delta, lambda) = (column(|a| a.delta), column(|a| a.lambda));
        self.relative(report, "step Delta", &delta, "D")?;
        self.relative(report, "step Lambda", &lambda, "Lam")?;

        let (keys, values) = self.promote(report, &first, &notes, &tail)?;
        let pass = s.mixed(&attention, &keys, &values)?;
        let finished = self.stream(&pass, &notes, &keys, &values)?;
        close(report, "step output", &pass.output, &self.want("O")?, s.value_max);
        close(report, "step output of the stream", &finished.output, &self.want("O")?, s.value_max);
        self.logs(report, "step lse", &[finished.lse], "lse")?;
        self.relative(report, "step mass", &pass.mass, "rho")?;
        self.relative(report, "step root of squares", &pass.root, "p")?;
        self.certificates(report, &pass, &finished, &notes, &keys, &values)?;
        self.reports(report, &first, &pass, &notes, &keys, &values)
    }

    /// (4.2) with half steps and (4.8); an exact tail has no error.
    fn annotation(&self, b: usize) -> Annotation {
        let s = self.step;
        let sigma = s.row(&s.sigma, b);
        Annotation {
            delta: logit::delta_half_steps(self.query, sigma, s.scale),
            lambda: logit::lambda_channels(self.query, sigma, s.kappa[b], s.scale),
            radius: s.radius[b],
            eta: s.eta[b],
            sop: s.sop[b],
        }
    }

    fn top_k(&self, report: &mut Report, first: &Pass, tail: &[bool]) -> Result<(), ConformError> {
        let s = self.step;
        let masses: Vec<f64> = (0..s.blocks).map(|b| if s.dropped[b] { 0.0 } else { first.mass[b] }).collect();
        let mut picks = Vec::new();
        let rule = Coverage { tau: 0.9, k_min: 1, k_max: 3 };
        rule.select(&masses, &BitSet::from_bools(tail), &mut picks).map_err(ConformError::refused)?;
        report.exact_ints("step top-k", padded(&picks, s.blocks), &self.want_ints("topk")?);
        Ok(())
    }

    /// (6.6) with unit costs from the first phase; the case that promotes everything is promoted by decree.
    fn promote(
        &self,
        report: &mut Report,
        first: &Pass,
        notes: &[Annotation],
        tail: &[bool],
    ) -> Result<(Vec<bool>, Vec<bool>), ConformError> {
        let s = self.step;
        let eps = 0.05 * norm(&first.output);
        self.relative(report, "step tolerance", &[eps], "eps")?;
        let out_distance = distance(&first.output, &s.centre);
        let (mut key, mut shrink, mut value) = (vec![0.0; s.blocks], vec![0.0; s.blocks], vec![0.0; s.blocks]);
        for b in (0..s.blocks).filter(|&b| s.live(b)) {
            let (a, mass, root) = (&notes[b], first.mass[b], first.root[b]);
            let (g, h) = key_terms(mass, root, a.delta, a.lambda);
            (key[b], shrink[b], value[b]) = (g * (a.radius + out_distance), h, value_term(mass, root, a.eta, a.sop));
        }
        let ones = vec![1.0; s.blocks];
        let terms = JointTerms {
            key: &key,
            shrink: &shrink,
            value: &value,
            key_cost: &ones,
            value_cost: &ones,
            dropped: &[],
            dropped_cost: &[],
        };
        let (mut keys, mut values) = (tail.to_vec(), tail.to_vec());
        if s.name.ends_with("all_promoted") {
            (keys, values) = (vec![true; s.blocks], vec![true; s.blocks]);
        } else {
            let mut pick = JointPick::default();
            JointBudget::new().solve(&terms, eps, &mut pick).map_err(ConformError::refused)?;
            pick.keys.iter().for_each(|&b| keys[b as usize] = true);
            pick.values.iter().for_each(|&b| values[b as usize] = true);
        }
        report.exact_ints("step promoted keys", keys.iter().map(|&x| i64::from(x)), &self.want_ints("FK")?);
        report.exact_ints("step promoted values", values.iter().map(|&x| i64::from(x)), &self.want_ints("FV")?);
        Ok((keys, values))
    }

    /// The mixed pass again, as two merged streams.
    fn stream(
        &self,
        pass: &Pass,
        notes: &[Annotation],
        keys: &[bool],
        values: &[bool],
    ) -> Result<Finished, ConformError> {
        let s = self.step;
        let mut halves = [Stream::new(s.dim), Stream::new(s.dim)];
        for b in 0..s.blocks {
            let (half, span) = (&mut halves[b % 2], s.span(b));
            if s.dropped[b] {
                half.add_drop(s.visible(b), self.step.drop_logit(self.query, b), s.radius[b]);
                continue;
            }
            let from = if values[b] { &s.values } else { &s.decoded_values };
            let rows = &from[span.start * s.dim..span.end * s.dim];
            let used = Used { exact_keys: keys[b], exact_values: values[b] };
            half.add_block(&pass.logits[span], rows, &notes[b], used).map_err(ConformError::refused)?;
        }
        let [mut whole, other] = halves;
        whole.merge(&other).map_err(ConformError::refused)?;
        if let Some(z) = s.sink {
            let used = Used { exact_keys: true, exact_values: true };
            whole.add_block(&[z], &vec![0.0; s.dim], &Annotation::EXACT, used).map_err(ConformError::refused)?;
        }
        whole.finish(&s.centre).map_err(ConformError::refused)
    }

    fn certificates(
        &self,
        report: &mut Report,
        pass: &Pass,
        f: &Finished,
        notes: &[Annotation],
        keys: &[bool],
        values: &[bool],
    ) -> Result<(), ConformError> {
        let s = self.step;
        for (label, got, want) in [
            ("step E_key", f.e_key, "E_key"),
            ("step E_val", f.e_val, "E_val"),
            ("step E_drop", f.e_drop, "E_drop"),
            ("step E streaming", f.bound, "E_stream"),
        ] {
            self.relative(report, label, &[got], want)?;
        }
        let at = |b: usize| notes[b].radius + f.out_distance;
        let tail: Vec<TailBlock> = (0..s.blocks)
            .filter(|&b| !keys[b] && !s.dropped[b])
            .map(|b| TailBlock::new(pass.mass[b], notes[b].delta, at(b)))
            .collect();
        let drops: Vec<DroppedBlock> = (0..s.blocks)
            .filter(|&b| s.dropped[b])
            .map(|b| {
                let omega = drop::omega(s.visible(b), s.drop_logit(self.query, b), f.lse);
                DroppedBlock { omega, distance: at(b) }
            })
            .collect();
        let root = exact_root(&tail, &drops, self.value_sum(pass, notes, values));
        self.relative(report, "step E exact root", &[root], "E_exact")?;
        let radii = (0..s.blocks).filter(|&b| s.visible(b) > 0).map(|b| notes[b].radius);
        let cap = trivial_cap(radii, f.out_distance, s.sink.map(|_| norm(&f.output)));
        let bound = emitted(f.bound, Some(root), cap);
        self.relative(report, "step E emitted", &[bound], "E")?;
        let true_error = self.want("true_err")?[0];
        // Both sides are computed in f64, so a bound of 0 meets errors of rounding size.
        let excess = (true_error - bound) / s.value_max.max(f64::MIN_POSITIVE);
        report.record("step true error above E", "of max ||v||", 1, excess.max(0.0), 1e-12);
        Ok(())
    }

    fn value_sum(&self, pass: &Pass, notes: &[Annotation], values: &[bool]) -> f64 {
        let s = self.step;
        (0..s.blocks)
            .filter(|&b| !values[b] && !s.dropped[b])
            .map(|b| value_term(pass.mass[b], pass.root[b], notes[b].eta, notes[b].sop))
            .sum()
    }

    /// Reported bounds, the dense reference and the canary.
    fn reports(
        &self,
        report: &mut Report,
        first: &Pass,
        pass: &Pass,
        notes: &[Annotation],
        keys: &[bool],
        values: &[bool],
    ) -> Result<(), ConformError> {
        let s = self.step;
        let attention = s.attention(self.query);
        let dense = attention.dense(&s.keys, &s.values, s.block).map_err(ConformError::refused)?;
        close(report, "step dense output", &dense.output, &self.want("dense")?, s.value_max);
        let error = distance(&dense.output, &pass.output);
        close(report, "step true error", &[error], &self.want("true_err")?, s.value_max);
        let (mut rho, mut delta, mut tail_mass) = (Vec::new(), Vec::new(), 0.0);
        for b in (0..s.blocks).filter(|&b| !keys[b] && !s.dropped[b]) {
            rho.push(pass.mass[b]);
            delta.push(notes[b].delta);
            tail_mass += first.mass[b];
        }
        self.relative(report, "step tv closed form", &[tv_closed(&rho, &delta)], "tv_closed")?;
        self.relative(report, "step tail mass", &[tail_mass_up(&rho, &delta)], "tail_mass_up")?;
        let published = PublishedBound {
            tail_mass,
            delta_max: notes.iter().map(|a| a.delta).fold(0.0, f64::max),
            value_max: s.nu.iter().copied().fold(0.0, f64::max),
            e_val: self.value_sum(pass, notes, values),
            inflation: TEXT_INFLATION,
        };
        self.relative(report, "step published bound", &[published.total()], "e15")?;
        let candidates: Vec<Candidate> = (0..s.blocks)
            .filter(|&b| s.live(b))
            .map(|b| Candidate {
                mass: first.mass[b],
                root: first.root[b],
                annotation: notes[b],
                promote_keys: keys[b],
                promote_values: values[b],
            })
            .collect();
        let cap = (0..s.blocks).map(|b| s.radius[b] + s.eta[b]).fold(0.0, f64::max);
        self.relative(report, "step robust bound", &[robust_bound(&candidates, cap)], "robust")?;
        let exact = attention.logits(&s.keys).map_err(ConformError::refused)?;
        let code = attention.logits(&s.decoded_keys).map_err(ConformError::refused)?;
        self.logs(report, "step exact logits", &exact, "z16")?;
        self.logs(report, "step code logits", &code, "z8")?;
        let rounding = 1e-12 * (1.0 + exact.iter().filter(|z| z.is_finite()).fold(0.0, |m: f64, z| m.max(z.abs())));
        let quiet = |b: usize| {
            let (z, y) = (&exact[s.span(b)], &code[s.span(b)]);
            let mass = |z: &[f64]| crate::oracle::log_sum_exp(z);
            canary_ok(z, y, notes[b].delta, rounding) && canary_mass_ok(mass(z), mass(y), notes[b].delta, rounding)
        };
        let alarms = (0..s.blocks).filter(|&b| !quiet(b)).count();
        report.record("step canary alarms", Report::BIT_EXACT, s.blocks, alarms as f64, 0.0);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use crate::cgv::{Element, Vectors};
    use crate::conform::{Report, replay_bytes};

    fn golden(name: &str) -> Vec<u8> {
        let path = format!("{}/../../testdata/golden/{name}.cgv", env!("CARGO_MANIFEST_DIR"));
        std::fs::read(path).unwrap()
    }

    /// Where the data of an array starts in the file.
    fn position(bytes: &[u8], array: &str) -> usize {
        let end = bytes.windows(5).position(|w| w == b"\nEND\n").unwrap() + 5;
        let head = std::str::from_utf8(&bytes[..end]).unwrap();
        let line = head.lines().find(|l| l.split(' ').next() == Some(array)).unwrap();
        end.next_multiple_of(16) + line.rsplit(' ').nth(1).unwrap().parse::<usize>().unwrap()
    }

    /// Every result stored in these files, changed a little, is noticed.
    #[test]
    fn planted_deviations_are_caught() {
        let (mut planted, mut caught) = (0, 0);
        for (name, inputs) in [
            ("step_gqa4", None),
            ("step_drops", None),
            ("step_sink_logit", None),
            ("certificates", Some("rho D dist p Lam omega dist_drop eval_mass")),
            ("topk", Some("p exact args")),
            ("value_budget", Some("rho eta eps")),
            ("joint_budget", Some("gD h ev cost_k cost_v eps0 eps1 eps2")),
            ("group_cover", Some("gains cost need")),
        ] {
            let bytes = golden(name);
            let vectors = Vectors::parse(&bytes).unwrap();
            let results = vectors.iter().filter(|(array, a)| {
                let result = match inputs {
                    None => array.starts_with("out_"),
                    Some(list) => !list.split(' ').any(|i| i == *array),
                };
                result && !a.is_empty()
            });
            for (array, a) in results {
                // The lowest exponent bits of a number, the lowest bit of an integer.
                let offset = if a.element == Element::F64 { 6 } else { 0 };
                let mut changed = bytes.clone();
                changed[position(&bytes, array) + offset] ^= 0x11;
                let mut report = Report::default();
                // A changed promotion is either a deviation or data that is refused.
                let noticed = replay_bytes(name, &changed, &mut report).is_err() || !report.passed();
                planted += 1;
                caught += usize::from(noticed);
                assert!(noticed, "{name} {array} went unnoticed");
            }
            let mut clean = Report::default();
            replay_bytes(name, &bytes, &mut clean).unwrap();
            assert!(clean.passed(), "{name}: {clean}");
        }
        println!("GATE golden-steps executed={planted} failed=0 controls={caught}/{planted} seed=0x11");
        assert!(planted > 80 && planted == caught);
    }
}
