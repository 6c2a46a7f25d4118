//! Appending rows: tail and host first, then the codes of every block that becomes full.
use crate::Error;
use crate::cache::Cache;
use crate::centre;
use crate::group::{Group, Side};
use crate::levels::encoder_of;
use crate::step::Part;
use crate::work::Workspace;
use certkv_codec::{CodecError, Encoder};
use certkv_core::{Dtype, ErrorSummary, Geometry, reserve_total};
use certkv_page::RowSpan;

/// Rows as the caller gives them.
#[derive(Clone, Copy)]
pub(crate) enum Rows<'a> {
    F32 { keys: &'a [f32], values: &'a [f32] },
    Bits { keys: &'a [u16], values: &'a [u16] },
}

/// The rows of one append as 16-bit patterns, `[token][kv_width]`.
#[derive(Debug, Default)]
pub(crate) struct RowBuffer {
    keys: Vec<u16>,
    values: Vec<u16>,
    width: usize,
}

fn round_into(
    argument: &'static str,
    rows: &[f32],
    width: usize,
    store: Dtype,
    out: &mut Vec<u16>,
) -> Result<(), Error> {
    reserve_total(out, rows.len())?;
    store.encode16_all(rows, out);
    match store.nonfinite16_at(out) {
        None => Ok(()),
        Some(at) => {
            let (token, element) = (at / width, at % width);
            Err(if rows[at].is_finite() {
                Error::Overflow { argument, token, element }
            } else {
                Error::NonFinite { argument, token, element }
            })
        }
    }
}

fn copy_into(
    argument: &'static str,
    rows: &[u16],
    width: usize,
    store: Dtype,
    out: &mut Vec<u16>,
) -> Result<(), Error> {
    if let Some(at) = store.nonfinite16_at(rows) {
        return Err(Error::NonFinite { argument, token: at / width, element: at % width });
    }
    out.clear();
    reserve_total(out, rows.len())?;
    out.extend_from_slice(rows);
    Ok(())
}

impl RowBuffer {
    /// Rounds and checks all rows before anything is written (math.md (0.4)).
    pub(crate) fn load(&mut self, rows: Rows<'_>, geometry: &Geometry) -> Result<(), Error> {
        self.width = geometry.kv_width();
        let (width, store) = (self.width, geometry.store);
        match rows {
            Rows::F32 { keys, values } => {
                round_into("keys", keys, width, store, &mut self.keys)?;
                round_into("values", values, width, store, &mut self.values)
            }
            Rows::Bits { keys, values } => {
                copy_into("keys", keys, width, store, &mut self.keys)?;
                copy_into("values", values, width, store, &mut self.values)
            }
        }
    }

    fn row(&self, token: usize, head: usize, side: Side, dim: usize) -> &[u16] {
        let rows = if side == Side::Key { &self.keys } else { &self.values };
        let start = token * self.width + head * dim;
        &rows[start..start + dim]
    }
}

/// Writes the rows of `part` for one layer of a group, and codes the blocks that become full. Costs one copy of the rows to the
/// tail and one to the host; a full block costs its encoding.
pub(crate) fn append(
    cache: &Cache,
    group: &Group,
    index: usize,
    layer: usize,
    part: &mut Part,
    work: &mut Workspace,
) -> Result<(), Error> {
    let (size, strand) = (group.layout.tokens(), group.strand(layer));
    if part.state.centres[strand].is_empty() && part.len + part.tokens >= size {
        part.state.centres[strand] = first_centre(cache, group, index, layer, part, work)?;
    }
    let Part { state, reservations, first_row, len, .. } = part;
    let Some(reservation) = reservations.get(index) else { return Ok(()) };
    for span in reservation.rows() {
        let token = *first_row + span.block * size + span.first_row - *len;
        store_rows(cache, group, layer, span, token, work)?;
        if let Some(packed) = span.packed {
            gather(cache, group, layer, span, token, work)?;
            let mut page = group.packed.write(group.slot(packed, layer), &cache.main)?;
            page.set_tag(Group::tag(packed));
            let encoders = &mut work.encoders[encoder_of(group, index, 0)];
            let centre = &state.centres[strand];
            let coded = encode(cache, group, (layer, 0), centre, &work.block, encoders, page.bytes_mut())?;
            cache.counters.saturated(coded.saturated);
            if !coded.whole {
                let uncoded = &mut state.uncoded[strand];
                let blocks = uncoded.capacity().max(span.block + 1);
                uncoded.reserve(blocks)?;
                uncoded.resize(blocks);
                uncoded.insert(span.block);
            }
            group.seal_at(0, layer, span.block, packed).written_by(span.writer).write(page.bytes_mut());
        }
    }
    Ok(())
}

/// Mean of the first values of the strand: rows of the open block, then of this step.
fn first_centre(
    cache: &Cache,
    group: &Group,
    index: usize,
    layer: usize,
    part: &Part,
    work: &Workspace,
) -> Result<Vec<f32>, Error> {
    let (dim, store) = (group.layout.dim, cache.geometry().store);
    let open = part.state.tables[index].blocks().first().and_then(|entry| entry.tail);
    let tail = match open {
        Some(page) => Some(group.tail.read_tagged(group.slot(page, layer), &cache.main, Group::tag(page))?),
        None => None,
    };
    let old = if tail.is_some() { part.len } else { 0 };
    Ok(centre::mean(old + part.tokens, group.width(), |row, element| {
        let (head, channel) = (element / dim, element % dim);
        let bits = match &tail {
            Some(tail) if row < old => tail.words()[group.side(head, Side::Value).start + row * dim + channel],
            _ => work.rows.row(part.first_row + row - old, group.first_head + head, Side::Value, dim)[channel],
        };
        store.decode16(bits)
    }))
}

/// Copies new rows to the tail slot (if the block has one) and to the host page.
fn store_rows(
    cache: &Cache,
    group: &Group,
    layer: usize,
    span: RowSpan,
    token: usize,
    work: &Workspace,
) -> Result<(), Error> {
    let dim = group.layout.dim;
    let mut targets = [(&group.host, &cache.lane, Some(span.host)), (&group.tail, &cache.main, span.tail)];
    for (arena, stream, page) in &mut targets {
        let Some(page) = *page else { continue };
        let tag = Group::tag(page);
        let slot = if arena.same(&group.host) { group.host_slot(page, layer)? } else { group.slot(page, layer) };
        // The first row claims the slot; later ones must find it still theirs.
        let mut guard = if span.first_row == 0 {
            let mut guard = arena.write(slot, stream)?;
            guard.set_tag(tag);
            guard
        } else {
            arena.write_tagged(slot, stream, tag)?
        };
        for head in 0..group.kv_heads {
            for side in [Side::Key, Side::Value] {
                let start = group.side(head, side).start + span.first_row * dim;
                let rows = guard.words_mut()[start..start + span.rows * dim].chunks_exact_mut(dim);
                for (row, into) in rows.enumerate() {
                    into.copy_from_slice(work.rows.row(token + row, group.first_head + head, side, dim));
                }
            }
        }
    }
    Ok(())
}

/// Collects a full block, `[head][side][B][d]`: rows of earlier steps from the tail, new ones from the step's input.
fn gather(
    cache: &Cache,
    group: &Group,
    layer: usize,
    span: RowSpan,
    token: usize,
    work: &mut Workspace,
) -> Result<(), Error> {
    let dim = group.layout.dim;
    let old = span.first_row * dim;
    let tail = match span.tail {
        Some(page) if old > 0 => {
            Some(group.tail.read_tagged(group.slot(page, layer), &cache.main, Group::tag(page))?)
        }
        _ => None,
    };
    work.block.clear();
    reserve_total(&mut work.block, group.kv_heads * 2 * group.layout.count())?;
    for head in 0..group.kv_heads {
        for side in [Side::Key, Side::Value] {
            if let Some(tail) = &tail {
                work.block.extend_from_slice(&tail.words()[group.side(head, side)][..old]);
            }
            for row in 0..span.rows {
                work.block.extend_from_slice(work.rows.row(token + row, group.first_head + head, side, dim));
            }
        }
    }
    Ok(())
}

/// KV heads whose blocks are coded side by side.
const AT_ONCE: usize = 32;

/// What coding a block came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Coded {
    /// False if a scale overflowed its type: the records then hold infinite summaries and the block is read from its originals.
    pub(crate) whole: bool,
    /// Elements beyond fixed scales.
    pub(crate) saturated: u64,
}

/// Encodes a block, `[head][side][B][d]`, into the records of a page of `level`, heads in parallel. The same rows give the same bytes.
pub(crate) fn encode(
    cache: &Cache,
    group: &Group,
    (layer, level): (usize, u8),
    centre: &[f32],
    block: &[u16],
    encoders: &mut [Encoder],
    page: &mut [u8],
) -> Result<Coded, Error> {
    let layout = group.layout_at(level);
    let (dim, words) = (layout.dim, layout.count());
    let jobs = encoders.iter_mut().zip(page[crate::group::SEAL_BYTES..].chunks_exact_mut(layout.bytes));
    let jobs = jobs.zip(block.chunks_exact(2 * words)).zip(centre.chunks_exact(dim)).enumerate();
    let mut jobs = jobs.map(|(head, (((e, r), b), c))| (head, e, r, b, c, 0, Ok(())));
    let mut coded = Coded { whole: true, saturated: 0 };
    loop {
        // On the stack: a block that becomes full asks for no memory.
        let mut some: [_; AT_ONCE] = core::array::from_fn(|_| jobs.next());
        let count = some.iter().take_while(|job| job.is_some()).count();
        if count == 0 {
            break;
        }
        cache.pool.run(
            &mut some[..count],
            || (),
            |(), _, job| {
                let Some((head, encoder, record, block, centre, saturated, result)) = job else { return };
                let (keys, values) = block.split_at(words);
                let metric = group.key_metric(layout.format.key, layer, *head);
                let fixed = encoder.fix_scales(group.fixed_scales(layer, *head));
                *result = fixed.and_then(|()| encoder.encode_in(metric.as_ref(), keys, values, centre, record));
                *saturated = encoder.take_saturated();
            },
        );
        for (.., saturated, result) in some.into_iter().flatten() {
            coded.saturated += saturated;
            match result {
                Ok(()) => {}
                Err(CodecError::ScaleOverflow { .. }) => coded.whole = false,
                Err(other) => return Err(other.into()),
            }
        }
    }
    if !coded.whole {
        let blocks = block.chunks_exact(2 * words).zip(centre.chunks_exact(dim));
        for (head, (block, centre)) in blocks.enumerate() {
            let record = &mut page[group.record_at(level, head)];
            record.fill(0);
            let (keys, values) = block.split_at(words);
            let summary = uncoded_summary(keys, values, dim, centre, cache.geometry().store);
            put_uncoded(&summary, &mut record[layout.summary.clone()]);
        }
    }
    Ok(coded)
}

/// Writes the summary of a block that has no codes into its record's section. There are no residuals: bounds of them are no numbers.
pub(crate) fn put_uncoded(summary: &ErrorSummary, section: &mut [u8]) {
    section.fill(0xff);
    section.iter_mut().zip(summary.to_bytes()).for_each(|(to, byte)| *to = byte);
}

/// Summary of a block that has no codes, of rows of `dim` elements; an empty centre is zero: no bound on codes, the true norms of its originals for the arithmetic.
pub(crate) fn uncoded_summary(keys: &[u16], values: &[u16], dim: usize, centre: &[f32], store: Dtype) -> ErrorSummary {
    let norm = |row: &[u16], less: &dyn Fn(usize) -> f64| {
        row.iter().enumerate().map(|(c, b)| (f64::from(store.decode16(*b)) - less(c)).powi(2)).sum::<f64>().sqrt()
    };
    let most = |rows: &[u16], less: &dyn Fn(usize) -> f64| {
        let norms = rows.chunks_exact(dim).map(|row| norm(row, less));
        certkv_core::round::up_f32(norms.fold(0.0, f64::max) * (1.0 + 1e-9))
    };
    let inf = f32::INFINITY;
    ErrorSummary {
        kappa: inf,
        eps: inf,
        key_mag: inf,
        key_norm: most(keys, &|_| 0.0),
        eta: inf,
        sop: inf,
        radius: most(values, &|c| f64::from(centre.get(c).copied().unwrap_or(0.0))),
        value_norm: most(values, &|_| 0.0),
    }
}
