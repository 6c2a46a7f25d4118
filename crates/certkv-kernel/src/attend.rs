//! The pass: one look at every block, all heads of the group at once, output and masses together (math.md 5.3, 6.6).
use crate::ahead::{Ahead, Sides};
use crate::arch::{Arch, Ops};
use crate::block::{Block, BlockSource, Element, Rows, Side, Tail};
use crate::certify::{Certificate, certify};
use crate::directions::Directions;
use crate::error::KernelError;
use crate::folded::Folded;
use crate::line::{Line, lines};
use crate::magnitude::{largest_f16, norm, row_norm};
use crate::masses::{Bounds, Entry, Masses, MassesMut};
use crate::page_scale::PageScratch;
use crate::partial::Partial;
use crate::parts::Parts;
use crate::query::{Digits, HEADS, KeyCodes, Scaling, Shape, Softmax, ValueCodes, ValueScratch, X_STRIDE};
use crate::repair::Mend;
use crate::slack::{Slack, gamma, inflate, logit_chain};
use crate::stage::Stage;
use crate::turbo::{Turbo, most_roundings};
use certkv_core::{Dtype, ErrorSummary, Geometry, GroupCode, KeyFormat, RecordLayout, ValueFormat};
use core::ops::Range;
use std::sync::Arc;

/// Attention of one geometry on records of one layout, on one instruction set. Cheap to clone, shared freely.
#[derive(Clone)]
pub struct Kernel {
    pub(crate) layout: RecordLayout,
    pub(crate) shape: Shape,
    pub(crate) scale: f32,
    /// `gamma` of the logits' chain; the same, and the square root of a block's tokens, rounded up.
    pub(crate) rounding: f64,
    pub(crate) gamma: f32,
    pub(crate) root: f32,
    pub(crate) arch: Arch,
    pub(crate) ops: &'static Ops,
    /// Rotation and levels of TurboQuant sides.
    pub(crate) turbo: Option<Arc<Turbo>>,
}

impl core::fmt::Debug for Kernel {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Kernel").field("format", &self.layout.format).field("arch", &self.arch).finish_non_exhaustive()
    }
}

/// Buffers of one thread: about 200 KiB, reused by every call.
#[derive(Debug, Clone)]
pub struct Workspace {
    pub(crate) q: Vec<Line>,
    /// Upper bounds of `s ||q||`.
    pub(crate) reach: [f32; HEADS],
    /// What the queries are to calibrated keys.
    pub(crate) folded: Folded,
    /// Groups of the keys, where they have several.
    pub(crate) parts: Parts,
    /// Upper bound of the norm of the value centre.
    pub(crate) centre: f32,
    pub(crate) digits: Digits,
    pub(crate) x: Vec<Line>,
    /// What codes gave, while their residuals are read; or what residuals gave.
    pub(crate) spare: Vec<Line>,
    pub(crate) values: ValueScratch,
    pub(crate) softmax: Softmax,
    pub(crate) ahead: Ahead,
    pub(crate) stage: Stage,
    /// One block by itself.
    pub(crate) lone: Stage,
    pub(crate) page: PageScratch,
    pub(crate) directions: Directions,
    /// Made when repairs are reserved for, or by the first.
    pub(crate) mend: Option<Box<Mend>>,
}

impl Default for Workspace {
    fn default() -> Self {
        Self::new()
    }
}

impl Workspace {
    /// Buffers for every supported shape.
    pub fn new() -> Self {
        Self {
            q: lines(HEADS * 16),
            reach: [0.0; HEADS],
            folded: Folded::new(),
            parts: Parts::new(),
            centre: 0.0,
            digits: Digits::new(),
            x: lines(HEADS * X_STRIDE),
            spare: lines(HEADS * 16),
            values: ValueScratch::new(),
            softmax: Softmax::new(),
            ahead: Ahead::default(),
            stage: Stage::new(),
            lone: Stage::new(),
            page: PageScratch::new(),
            directions: Directions::new(),
            mend: None,
        }
    }
}

impl Kernel {
    /// A kernel for `geometry` (group size, logit scale) and records of `layout`.
    ///
    /// # Errors
    /// [`KernelError::HeadDim`] if the two disagree, [`KernelError::Unavailable`] if the machine lacks `arch`.
    pub fn new(geometry: &Geometry, layout: &RecordLayout, arch: Arch) -> Result<Self, KernelError> {
        if geometry.head_dim != layout.dim {
            return Err(KernelError::HeadDim { geometry: geometry.head_dim, layout: layout.dim });
        }
        let ops = arch.ops().ok_or(KernelError::Unavailable(arch.name()))?;
        let shape = Shape { heads: geometry.group(), dim: layout.dim, tokens: layout.tokens() };
        let turbo = Turbo::new(layout).map(Arc::new);
        // A rotated query is off by so many roundings of its norm, and a logit by that times the norm of the key.
        let turns = match layout.format.key {
            KeyFormat::Turbo { .. } => turbo.as_ref().map_or(0, |t| t.rotation.roundings()),
            KeyFormat::Gtq { code: GroupCode::Widths { .. } } => most_roundings(shape.dim),
            _ => 0,
        };
        // One more by which a query is divided (4.12a).
        let turns = turns + usize::from(layout.format.key.is_calibrated());
        // Residuals are scored apart, and added.
        let turns = turns + 2 * usize::from(!layout.format.refine.is_none());
        let rounding = gamma(logit_chain(shape.dim) + turns);
        let (gamma, root) = (inflate(rounding), inflate((shape.tokens as f64).sqrt()));
        Ok(Self { layout: layout.clone(), shape, scale: geometry.scale, rounding, gamma, root, arch, ops, turbo })
    }

    /// The same kernel for another number of query heads (1 to 16), for a ladder that recomputes some heads only.
    ///
    /// # Errors
    /// [`KernelError::Length`] outside 1 to 16.
    pub fn with_heads(&self, heads: usize) -> Result<Self, KernelError> {
        if heads == 0 || heads > HEADS {
            return Err(KernelError::Length { argument: "heads", expected: HEADS, given: heads });
        }
        Ok(Self { shape: Shape { heads, ..self.shape }, ..self.clone() })
    }

    /// Implementation in use.
    pub fn arch(&self) -> Arch {
        self.arch
    }

    /// Query heads per call.
    pub fn heads(&self) -> usize {
        self.shape.heads
    }

    /// One split of the pass: attention of `queries` (`[heads][dim]`, unscaled) over blocks `blocks` of `source` and,
    /// after them, `tail`. `out` is overwritten. With `masses`, every block leaves its entry at its own index and the
    /// tail at index `blocks.end`; the entries' range must fit, see [`MassesMut::split_at`]. No block and no tail gives
    /// the empty state.
    ///
    /// # Errors
    /// A wrong length, a query that is not finite, a block or tail too short. `out` is then meaningless.
    #[allow(clippy::too_many_arguments, reason = "the pass has these inputs; a struct would only rename them")]
    pub fn attend<S: BlockSource + ?Sized>(
        &self,
        queries: &[f32],
        source: &S,
        blocks: Range<usize>,
        tail: Option<Tail<'_>>,
        work: &mut Workspace,
        out: &mut Partial,
        mut masses: Option<MassesMut<'_>>,
    ) -> Result<(), KernelError> {
        self.check_out(out)?;
        out.clear();
        self.load_query(queries, source.key_metric(self.layout.format.key), work)?;
        if let Some(m) = &masses {
            m.check(blocks.start..blocks.end + usize::from(tail.is_some()), self.shape.heads)?;
        }
        work.softmax = Softmax::new();
        work.stage.clear();
        work.values.clear();
        work.centre = norm(source.centre());
        let mut entry = Entry::ZERO;
        let mut next = (!blocks.is_empty()).then(|| source.block(blocks.start));
        for index in blocks.clone() {
            let Some(block) = next.take() else { break };
            if index + 1 < blocks.end {
                next = Some(source.block(index + 1));
            }
            work.ahead = self.look_ahead(&block, next.as_ref(), Sides::Both);
            self.keys(index, &block, None, work, &mut entry)?;
            self.ops_weigh(self.shape.tokens, block.left_out, work, out);
            self.values(index, &block, work, out, &mut entry)?;
            (self.ops.finish)(&mut work.ahead.record);
            if let Some(m) = &mut masses {
                self.stage(index, &entry, work, m);
            }
        }
        if let Some(m) = &mut masses {
            self.seal(blocks.end.saturating_sub(1), work, m);
        }
        if let Some(tail) = tail {
            let entry = self.tail_keys(&tail, work)?;
            self.ops_weigh(tail.tokens, 0, work, out);
            self.tail_values(&tail, work, out);
            if let Some(m) = &mut masses {
                m.put(blocks.end, &entry, &self.bounds(&entry, work));
            }
        }
        self.close(source.centre(), work, out);
        Ok(())
    }

    /// Certificate of `head` after a pass: see [`Certificate`]. `output_radius` is an upper bound of `||O' - c||`,
    /// `O'` the finished output and `c` the head's value centre.
    ///
    /// # Errors
    /// [`KernelError::NoToken`] for an empty state; [`KernelError::Length`] for a head out of range.
    pub fn certify(
        &self,
        masses: &Masses,
        partial: &Partial,
        head: usize,
        output_radius: f32,
    ) -> Result<Certificate, KernelError> {
        certify(self.ops.certify_tiles, masses, partial, head, output_radius)
    }

    pub(crate) fn check_out(&self, out: &Partial) -> Result<(), KernelError> {
        let (expected, given) = (self.shape.heads * self.shape.dim, out.heads * out.dim);
        if (out.heads, out.dim) != (self.shape.heads, self.shape.dim) {
            return Err(KernelError::Length { argument: "out", expected, given });
        }
        Ok(())
    }

    /// One block into the state; appends its logits to `x`. `known` as in [`Kernel::keys`].
    pub(crate) fn one(
        &self,
        index: usize,
        block: Block<'_>,
        known: Option<&[Line]>,
        work: &mut Workspace,
        out: &mut Partial,
        x: &mut Vec<Line>,
    ) -> Result<(Entry, Bounds), KernelError> {
        work.ahead = Ahead::default();
        let mut entry = Entry::ZERO;
        self.keys(index, &block, known, work, &mut entry)?;
        x.extend_from_slice(&work.x[..self.shape.heads * X_STRIDE]);
        self.ops_weigh(self.shape.tokens, block.left_out, work, out);
        self.values(index, &block, work, out, &mut entry)?;
        let bounds = self.bounds(&entry, work);
        Ok((entry, bounds))
    }

    /// Logits of one block into `work.x`, and the key part of its entry. Where the logits of its codes are `known` (`[head][tokens / 16]`),
    /// scales and residuals alone are read, to the same bits.
    pub(crate) fn keys(
        &self,
        index: usize,
        block: &Block<'_>,
        known: Option<&[Line]>,
        work: &mut Workspace,
        entry: &mut Entry,
    ) -> Result<(), KernelError> {
        let (l, shape) = (&self.layout, self.shape);
        let summary = ErrorSummary::from_bytes(block.record.get(l.summary.clone()).unwrap_or(&[]));
        let exact = block.keys.is_some() || l.format.key.is_exact();
        describe(entry, &summary, shape.tokens, exact, block.values.is_some() || l.format.value.is_exact());
        let s = f64::from(self.scale);
        entry.slack.magnitude = if exact { summary.key_norm } else { summary.key_mag };
        let (unit, fine) = (self.unit(), self.fine_keys(block));
        if exact {
            let rows = self.rows(index, block.keys, block.record, &l.key_codes, "keys")?;
            let rows = Side { rows, element: Element::of(l.store), n: shape.tokens, ahead: work.ahead.keys };
            (self.ops.score_rows)(&rows, &work.q, unit, shape, &mut work.x);
            return Ok(());
        }
        if l.format.key.is_calibrated() && !work.folded.ready {
            return Err(KernelError::Metric { index });
        }
        let section = part(index, block.record, &l.key_codes, "record")?;
        let mut scales = part(index, block.record, &l.key_scales, "record")?;
        if let Some(tier) = l.format.key.tier() {
            self.direction_keys((section, scales), tier.bits().into(), &summary, work, entry);
            return Ok(());
        }
        let mut page = core::mem::take(&mut work.page);
        match l.format.key.page() {
            Some(code) if code.is_float() => {
                work.page = page;
                self.float_keys(section, scales, code, &summary, work, entry);
                return Ok(());
            }
            Some(_) => scales = page.scales(scales, shape.tokens),
            None => {}
        }
        let (bits, mut mul, mut add) = (l.format.key.bits(), [0.0; HEADS], [0.0; HEADS]);
        // Bounds below are sums of non-negative terms with at most `logit_chain` roundings each.
        let up = 1.0 + 2.0 * self.rounding;
        let levels = match l.format.key {
            KeyFormat::Gtq { .. } => work.parts.iter().next().map(|part| &part.levels),
            _ => self.turbo.as_ref().and_then(|t| t.keys.as_ref()),
        };
        let half = f64::from((1u32 << if levels.is_some() { 8 } else { bits }) / 2);
        let scaling = match l.format.key {
            KeyFormat::Token { .. } | KeyFormat::Turbo { .. } | KeyFormat::Gtq { .. } | KeyFormat::Page { .. } => {
                // `Delta <= s ||q|| eps`, or (4.4) with the folded query; the residual of each channel meets a code of at most
                // 2^(b-1), and the largest scale.
                let largest = half * f64::from(largest_f16(scales)) * s;
                entry.slack.set_keys(f64::from(summary.eps), largest * up, f64::from(summary.kappa));
                for h in 0..HEADS {
                    mul[h] = work.digits.step[h] * unit;
                }
                add = work.folded.logit;
                match l.format.key {
                    KeyFormat::Gtq { .. } => Scaling::Parts { scales, parts: &work.parts },
                    _ => Scaling::Token { scales, group: l.format.key.group(shape.dim) },
                }
            }
            _ => {
                (self.ops.channel_digits)(
                    &work.q,
                    scales,
                    self.meta(),
                    shape,
                    &mut work.digits,
                    &mut work.ahead.record,
                );
                let d = &work.digits;
                // (4.15) for 16-bit digits: the residual of each channel meets a code of at most 2^(b-1).
                match fine {
                    0 => {
                        entry.slack.set_keys(s * 0.5 * up, s * half * up, s * f64::from(summary.kappa) * up);
                        entry.slack.norm = summary.eps;
                    }
                    bits => self.fine_slack(block, bits, half, up, &mut entry.slack),
                }
                for h in 0..HEADS {
                    mul[h] = d.step[h] * unit;
                    add[h] = d.offset[h] * unit;
                }
                Scaling::Channel
            }
        };
        if l.format.key.is_mean() {
            work.page = page;
            for (h, logit) in add.iter().enumerate().take(shape.heads) {
                work.x[h * X_STRIDE..][..shape.tokens / 16].fill(Line([*logit; 16]));
            }
            return Ok(());
        }
        let codes = KeyCodes { section, bits, levels, scaling, mul, add };
        let scratch = &mut work.values.codes;
        match known {
            Some(known) => self.load_logits(known, &mut work.x),
            None => {
                (self.ops.score_codes)(&codes, &work.digits, scratch, shape, &mut work.x, &mut work.ahead.record);
            }
        }
        work.page = page;
        if fine > 0 { self.residual_keys(index, block, fine, work) } else { Ok(()) }
    }

    /// Weights of the block but for those rows, and everything summed so far moved to the new exponents.
    pub(crate) fn ops_weigh(&self, n: usize, left_out: u64, work: &mut Workspace, out: &mut Partial) {
        (self.ops.weigh)(&mut work.x, n, self.shape, &mut work.softmax);
        self.leave_out(left_out, work);
        let s = &mut work.softmax;
        for h in (0..self.shape.heads).take_while(|_| s.moved) {
            if s.rescale[h] != 1.0 {
                out.rescale(h, s.rescale[h]);
                work.values.rescale(h, self.shape, s.rescale[h]);
                out.l[h] *= s.rescale[h];
                s.skipped[h] *= s.rescale[h];
            }
        }
        // Heads that do not exist weigh nothing.
        for (l, sum) in out.l.iter_mut().zip(&s.sum) {
            *l += sum;
        }
        out.tokens += n;
    }

    /// The block's values summed into `out`, and the rest of its entry.
    pub(crate) fn values(
        &self,
        index: usize,
        block: &Block<'_>,
        work: &mut Workspace,
        out: &mut Partial,
        entry: &mut Entry,
    ) -> Result<(), KernelError> {
        let (l, shape) = (&self.layout, self.shape);
        let s = &mut work.softmax;
        if block.skip_values && !entry.exact_values {
            // (6.9): the centre stands for every value, which is off by at most R_b.
            entry.skipped_values = true;
            (entry.eta, entry.sop) = (entry.radius, f32::INFINITY);
            entry.value_norm = work.centre;
            for h in 0..shape.heads {
                s.skipped[h] += s.sum[h];
            }
            out.chain += 1;
            return Ok(());
        }
        let fine = if entry.exact_values { 0 } else { self.fine_values(block) };
        if fine > 0 {
            self.fine_entry(block, entry);
        }
        let s = &work.softmax;
        match l.format.value {
            ValueFormat::Page { code, .. } if code.is_float() && !entry.exact_values => {
                let section = part(index, block.record, &l.value_codes, "record")?;
                let scales = part(index, block.record, &l.value_scales, "record")?;
                self.float_values(section, scales, code, work, out);
            }
            ValueFormat::Channel { .. } if !entry.exact_values => {
                let section = part(index, block.record, &l.value_codes, "record")?;
                let scales = part(index, block.record, &l.value_scales, "record")?;
                let residuals =
                    (fine > 0).then(|| part(index, block.record, &l.value_residuals, "record")).transpose()?;
                let residuals = residuals.map(|section| (section, fine));
                self.channel_values((section, scales), l.format.value.bits(), residuals, work, out, entry);
            }
            ValueFormat::Affine { .. } | ValueFormat::Turbo { .. } | ValueFormat::Page { .. }
                if !entry.exact_values =>
            {
                let mut scales = part(index, block.record, &l.value_scales, "record")?;
                let section = part(index, block.record, &l.value_codes, "record")?;
                let mut page = core::mem::take(&mut work.page);
                if l.format.value.page().is_some() {
                    scales = page.scales(scales, shape.tokens);
                }
                let v = ValueCodes {
                    section,
                    bits: l.format.value.bits(),
                    levels: self.turbo.as_ref().and_then(|t| t.values.as_ref()),
                    group: l.format.value.group(shape.dim),
                    offsets: matches!(l.format.value, ValueFormat::Affine { .. }),
                    scales,
                };
                let ahead = &mut work.ahead.record;
                // Rotated values have a sum of their own, see `close`.
                let mut turned = core::mem::take(&mut work.values.turned);
                let sums = if v.levels.is_some() { &mut turned } else { &mut out.o };
                let slack = (self.ops.value_codes)(&v, &work.x, s, shape, &mut work.values, sums, ahead);
                work.values.turned = turned;
                // With residuals the digits meet a step more.
                let most = f64::from(v.half()) + if fine > 0 { 1.0 } else { 0.0 };
                let half_codes = most * shape.tokens as f64 * f64::from(slack.sigma);
                work.page = page;
                // The counterpart of (4.14) for weights: each product is off by half a unit and meets a centred code of at
                // most 2^(m-1); with a weight too small for digits, by all of it. The relative roundings of digit and unit
                // (9 u) are in the chain that `close` declares.
                entry.slack.set_values(0.5 / f64::from(self.ops.weight_levels) * half_codes);
                // The two parts of a coded value are summed apart: their sizes, not that of the value, carry rounding.
                entry.value_norm = inflate(f64::from(entry.value_norm) + 2.0 * f64::from(slack.middle));
                out.chain += 1 + shape.tokens / 16;
                if fine > 0 {
                    self.residual_values(index, block, fine, work, out, entry)?;
                }
            }
            _ => {
                let rows = self.rows(index, block.values, block.record, &l.value_codes, "values")?;
                let rows = Side { rows, element: Element::of(l.store), n: shape.tokens, ahead: work.ahead.values };
                (self.ops.value_rows)(&rows, &work.x, shape, &mut out.o);
                out.chain += shape.tokens;
            }
        }
        Ok(())
    }

    /// Logits of the open block into `work.x`, and its entry but for the weights.
    pub(crate) fn tail_keys(&self, tail: &Tail<'_>, work: &mut Workspace) -> Result<Entry, KernelError> {
        let (shape, n) = (self.shape, tail.tokens);
        if n == 0 || n > shape.tokens {
            return Err(KernelError::Length { argument: "tail.tokens", expected: shape.tokens, given: n });
        }
        for (argument, side) in [("tail.keys", tail.keys), ("tail.values", tail.values)] {
            if side.len() < n * shape.dim {
                return Err(KernelError::Length { argument, expected: n * shape.dim, given: side.len() });
            }
        }
        let store = self.layout.store;
        let (key_norm, value_norm) =
            (row_norm(tail.keys, store, n, shape.dim), row_norm(tail.values, store, n, shape.dim));
        let summary = ErrorSummary {
            key_norm,
            radius: inflate(f64::from(value_norm) + f64::from(tail.centre_norm)),
            value_norm,
            ..ErrorSummary::default()
        };
        let mut entry = Entry::ZERO;
        describe(&mut entry, &summary, n, true, true);
        entry.slack.magnitude = key_norm;
        (self.ops.score_rows)(&Side::open(tail.keys, store, n), &work.q, self.unit(), shape, &mut work.x);
        Ok(entry)
    }

    /// The open block's values summed into `out`.
    pub(crate) fn tail_values(&self, tail: &Tail<'_>, work: &Workspace, out: &mut Partial) {
        let rows = Side::open(tail.values, self.layout.store, tail.tokens);
        (self.ops.value_rows)(&rows, &work.x, self.shape, &mut out.o);
        out.chain += tail.tokens;
    }

    /// Offsets of the coded values and the centre of the skipped ones into the output, exponents and counts into the
    /// state.
    pub(crate) fn close(&self, centre: &[f32], work: &mut Workspace, out: &mut Partial) {
        let shape = self.shape;
        let n = shape.dim_lines();
        for h in 0..shape.heads {
            let skipped = work.softmax.skipped[h];
            // Written so that NaN goes on to the output.
            if !(skipped == 0.0) {
                for (line, c) in out.o[h * n..(h + 1) * n].iter_mut().zip(centre.chunks_exact(16)) {
                    for (lane, c) in line.0.iter_mut().zip(c) {
                        *lane += skipped * c;
                    }
                }
            }
        }
        if let (Some(turbo), ValueFormat::Turbo { .. }, true) =
            (self.turbo.as_ref(), self.layout.format.value, out.tokens > 0)
        {
            for h in 0..shape.heads {
                turbo.add_back(&work.values.turned[h * n..(h + 1) * n], &mut out.o[h * n..(h + 1) * n]);
            }
            // The rotation, and one more sum.
            out.chain += turbo.rotation.roundings() + 1;
        }
        let offset = matches!(self.layout.format.value, ValueFormat::Affine { .. } | ValueFormat::Page { .. });
        if offset && out.tokens > 0 {
            let group = self.layout.format.value.group(shape.dim);
            for h in 0..shape.heads {
                for g in 0..shape.dim / group {
                    let offset = work.values.middle[h * crate::query::GROUPS + g].sum();
                    for line in &mut out.o[h * n + g * group / 16..h * n + (g + 1) * group / 16] {
                        for lane in &mut line.0 {
                            *lane += offset;
                        }
                    }
                }
            }
        }
        out.exponent = work.softmax.exponent;
        out.gross = out.l;
        out.chain += 8 + shape.tokens / 16;
    }

    /// `s log2 e`: base-2 logits per unit of `q.k`.
    pub(crate) fn unit(&self) -> f32 {
        (f64::from(self.scale) * core::f64::consts::LOG2_E) as f32
    }

    /// True where codes meet a query that does not depend on the block, and a product is scaled per token.
    pub(crate) fn scales_after_products(&self) -> bool {
        let key = self.layout.format.key;
        key.is_rotated() || key.tier().is_some() || matches!(key, KeyFormat::Token { .. } | KeyFormat::Page { .. })
    }

    fn meta(&self) -> Dtype {
        match self.layout.format.key {
            KeyFormat::Channel { meta, .. } => meta,
            _ => Dtype::F16,
        }
    }

    pub(crate) fn rows<'a>(
        &self,
        index: usize,
        side: Option<&'a [u16]>,
        record: &'a [u8],
        range: &Range<usize>,
        name: &'static str,
    ) -> Result<Rows<'a>, KernelError> {
        let rows = match side {
            Some(words) => Rows::Words(words),
            None => Rows::Bytes(part(index, record, range, "record")?),
        };
        if rows.len() < self.layout.count() { Err(KernelError::Block { index, part: name }) } else { Ok(rows) }
    }
}

pub(crate) fn part<'a>(
    index: usize,
    record: &'a [u8],
    range: &Range<usize>,
    name: &'static str,
) -> Result<&'a [u8], KernelError> {
    record.get(range.clone()).ok_or(KernelError::Block { index, part: name })
}

/// Fills what does not depend on the head, and clears what exact sides do not have.
pub(crate) fn describe(entry: &mut Entry, summary: &ErrorSummary, tokens: usize, exact_keys: bool, exact_values: bool) {
    (entry.radius, entry.value_norm, entry.tokens) = (summary.radius, summary.value_norm, tokens);
    (entry.eta, entry.sop) = if exact_values { (0.0, 0.0) } else { (summary.eta, summary.sop) };
    (entry.exact_keys, entry.exact_values, entry.skipped_values) = (exact_keys, exact_values, false);
    entry.slack = Slack::ZERO;
}
