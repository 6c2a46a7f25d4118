//! A chunk of several tokens: causal attention over the originals, exact up to the kernel's arithmetic.
use crate::attend::decide::Hint;
use crate::attend::pages::{Pages, View};
use crate::group::Group;
use crate::sequence::SequenceState;
use crate::spill::Turn;
use crate::step::Part;
use crate::work::Workspace;
use crate::{Cache, Error};
use certkv_bound::Certificate;
use certkv_core::{reserve_total, try_resize};
use certkv_kernel::{Causal, CausalWindow, PrefillWork};

/// Queries per task: the kernel unpacks the past once for each.
const ROWS: usize = 64;

struct Task<'a> {
    head: usize,
    first: usize,
    rows: usize,
    /// `[rows][query heads of the group][dim]`.
    out: &'a mut [f32],
    result: Result<(), Error>,
}

/// Attention of all rows of `part`. Peak memory is the chunk's outputs; costs one unpacking of the past per 64 rows.
#[allow(clippy::too_many_arguments, reason = "one call site; the values have nothing else in common")]
pub(crate) fn prefill(
    cache: &Cache,
    turn: &mut Turn<'_>,
    group: &Group,
    index: usize,
    layer: usize,
    part: &mut Part,
    queries: &[f32],
    work: &mut Workspace,
) -> Result<(), Error> {
    let geometry = cache.geometry();
    let (width, group_width) = (geometry.q_width(), geometry.group() * geometry.head_dim);
    let Workspace { pages, out, .. } = work;
    pages.open(cache, group, index, layer, part, None)?;
    let all = 0..pages.host_blocks();
    pages.want(all.len(), |wanted| wanted.extend(all))?;
    if pages.lacks(group, layer) {
        pages.bring(cache, index, layer, part.id, turn)?;
    }
    pages.hold_wanted(cache, group, layer)?;
    let pages: &Pages = pages;
    let blocks = pages.blocks();
    // Blocks that no row sees are not in the source, whatever else the table has.
    let size = group.layout.tokens();
    let hole = group.window.map_or(0..0, |window| window.hidden(size, part.len));
    let position = part.len - hole.len() * size;
    let window = group.window.map(|window| CausalWindow {
        tokens: window.tokens,
        sinks: window.sinks,
        after: if hole.is_empty() { 0 } else { hole.start * size },
    });
    let mut tiles = Vec::new();
    try_resize(&mut tiles, part.tokens * group.kv_heads * group_width, f32::NAN)?;
    let (mut tasks, mut rest) = (Vec::new(), &mut tiles[..]);
    reserve_total(&mut tasks, part.tokens.div_ceil(ROWS) * group.kv_heads)?;
    for first in (0..part.tokens).step_by(ROWS) {
        for head in 0..group.kv_heads {
            let rows = ROWS.min(part.tokens - first);
            let (out, more) = rest.split_at_mut(rows * group_width);
            rest = more;
            tasks.push(Task { head, first, rows, out, result: Ok(()) });
        }
    }
    // Late rows see the most tokens: the long tasks start first.
    tasks.reverse();
    cache.pool.run(&mut tasks, PrefillWork::default, |work, _, task| {
        let view = View::exact(pages, group, task.head);
        let start = (part.first_row + task.first) * width + (group.first_head + task.head) * group_width;
        let queries = &queries[start..];
        let first = position + task.first;
        let causal = Causal { queries, stride: width, rows: task.rows, first, window };
        let tail = pages.tail(group, task.head, 0.0);
        task.result = group.kernel.prefill(work, &causal, &view, blocks, tail, task.out).map_err(Error::from);
    });
    for task in tasks {
        task.result?;
        for (row, from) in task.out.chunks_exact(group_width).enumerate() {
            let start = (part.first_row + task.first + row) * width + (group.first_head + task.head) * group_width;
            out[start..start + group_width].copy_from_slice(from);
        }
    }
    hint(cache, group, layer, part, out);
    work.pages.close();
    let rows = work.certificates.chunks_exact_mut(geometry.q_heads);
    for row in rows.skip(part.first_row).take(part.tokens) {
        row[group.q_heads(geometry)].fill(Certificate::PREFILL);
    }
    Ok(())
}

/// The last row's outputs are what the first decision has to go by.
fn hint(cache: &Cache, group: &Group, layer: usize, part: &mut Part, out: &[f32]) {
    let geometry = cache.geometry();
    let (dim, width) = (geometry.head_dim, geometry.q_width());
    let SequenceState { centres, heads, .. } = &mut *part.state;
    let (start, q_heads) = ((part.first_row + part.tokens - 1) * width, group.q_heads(geometry));
    let row = &out[start + q_heads.start * dim..start + q_heads.end * dim];
    for (head, memory) in heads[group.memories(layer)].iter_mut().enumerate() {
        let centre = centres[group.strand(layer)].get(head * dim..(head + 1) * dim).unwrap_or(&[]);
        let outputs = row[head * geometry.group() * dim..(head + 1) * geometry.group() * dim].chunks_exact(dim);
        memory.hints.clear();
        memory.hints.extend(outputs.map(|out| Hint::of(out, centre)));
    }
}
