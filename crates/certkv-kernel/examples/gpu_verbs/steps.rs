//! What a step adds to attention: an append a layer, and one launch at its end for the blocks that filled.
use crate::metrics::Metrics;
use crate::{Bench, DIM, Failure, KV_HEADS, normals};
use certkv_device::cuda::{DeviceBuffer, EventPool, GpuStream, LaunchOptions, PinnedBuffer, Priority};
use certkv_kernel::cuda::args::{Element, Strides};
use certkv_kernel::cuda::close::{CLOSE_LAYERS, CloseArgs, CloseLayer};
use certkv_kernel::cuda::encode::{AppendArgs, PACK_THREADS, append_flag, pack_shared};
use certkv_kernel::cuda::launch::row_norm_bytes;
use certkv_kernel::cuda::{Kernels, Variant, Verb};
use std::num::NonZeroUsize;

/// As a model of medium size has.
const LAYERS: usize = CLOSE_LAYERS;
/// As in the engine.
const CHAINED: LaunchOptions = LaunchOptions { programmatic: true, cluster: None };

/// Prints, for `seqs` sequences: an append; the end of a step of [`LAYERS`] layers in which the blocks of none, one, and all sequences fill; and both
/// for a token and a layer, with blocks that fill spread evenly over the tokens.
pub(crate) fn steps(bench: &Bench<'_>, kernels: &Kernels, variant: &Variant, seqs: usize) -> Result<(), Failure> {
    let layout = variant.layout();
    let (b, side) = (layout.tokens(), layout.original_side_bytes());
    let metrics = bench.upload(&Metrics::usual(layout, KV_HEADS).words().unwrap_or_default())?;
    let rows = bench.upload(&normals(seqs * KV_HEADS * DIM))?;
    let count = bench.upload(&[seqs as u32])?;
    let errors = bench.zeroed(seqs * 4)?;
    let numbers = bench.upload(&(0..seqs as u32).collect::<Vec<_>>())?;
    let (tail_stride, page) = (KV_HEADS * 2 * side, KV_HEADS * layout.bytes);
    let tails = bench.upload(&normals(LAYERS * seqs * tail_stride / 2))?;
    let norms = bench.zeroed(seqs * row_norm_bytes(KV_HEADS, b))?;
    let packed = bench.zeroed(LAYERS * seqs * page)?;
    let threads = NonZeroUsize::new(8).unwrap_or(NonZeroUsize::MIN);
    let host = PinnedBuffer::new(bench.gpu, LAYERS * seqs * tail_stride, threads)?;
    let centres = bench.zeroed(seqs * KV_HEADS * DIM * 4)?;
    // Token `t` finds each sequence at a place of its own, or all at one.
    let upload = |offset: &dyn Fn(usize) -> usize| -> Result<Vec<[DeviceBuffer; 2]>, Failure> {
        let lens = |t: usize, more: u32| (0..seqs).map(|s| ((offset(s) + t) % b) as u32 + more).collect::<Vec<_>>();
        (0..b).map(|t| Ok([bench.upload(&lens(t, 0))?, bench.upload(&lens(t, 1))?])).collect()
    };
    let [spread, together, alone] =
        [upload(&|s| s * b / seqs)?, upload(&|_| 0)?, upload(&|s| if s == 0 { 0 } else { 1 })?];
    let append = kernels.get(variant, Verb::Append)?;
    let close = kernels.get(variant, Verb::Close)?;
    let multiprocessors = bench.gpu.info().multiprocessors as usize;
    let appended = |layer: usize, before: &DeviceBuffer| -> Result<(), Failure> {
        let args = AppendArgs {
            keys: rows.address(),
            values: rows.address(),
            count: count.address(),
            lens: before.address(),
            errors: errors.address(),
            tails: numbers.address(),
            tail_base: tails.address() + (layer * seqs * tail_stride) as u64,
            tail_stride: tail_stride as u64,
            row_norms: norms.address(),
            key_strides: Strides::dense(KV_HEADS, DIM),
            value_strides: Strides::dense(KV_HEADS, DIM),
            blocks: 1,
            kv_heads: KV_HEADS as u32,
            key_input: Element::F16 as u32,
            value_input: Element::F16 as u32,
            flags: append_flag::SETTLED,
            ..AppendArgs::default()
        };
        let grid = (seqs * KV_HEADS).min(2 * multiprocessors) as u32;
        // SAFETY: every address is that of a live buffer of the size that the kernel's argument documents.
        unsafe { append.launch(bench.stream, grid, PACK_THREADS, 0, &args, CHAINED)? };
        Ok(())
    };
    let closed = |after: &DeviceBuffer| -> Result<(), Failure> {
        let mut of = [CloseLayer::default(); LAYERS];
        for (layer, to) in of.iter_mut().enumerate() {
            *to = CloseLayer {
                tails: numbers.address(),
                tail_base: tails.address() + (layer * seqs * tail_stride) as u64,
                packed: numbers.address(),
                packed_base: packed.address() + (layer * seqs * page) as u64,
                centres: centres.address(),
                metrics: metrics.address(),
                reaches: 0,
            };
        }
        let args = CloseArgs {
            count: count.address(),
            lens: after.address(),
            tail_stride: tail_stride as u64,
            packed_stride: page as u64,
            record_stride: layout.bytes as u64,
            blocks: 1,
            kv_heads: KV_HEADS as u32,
            layers: LAYERS as u32,
            of,
            ..CloseArgs::default()
        };
        let (grid, shared) = (2 * multiprocessors as u32, pack_shared(layout));
        // SAFETY: as above.
        unsafe { close.launch(bench.stream, grid, PACK_THREADS, shared, &args, CHAINED)? };
        Ok(())
    };
    let one = bench.time(|i| appended(i % LAYERS, &spread[0][0]))?;
    let nothing = bench.time(|_| closed(&together[0][1]))?;
    let of_full = |lens: &[[DeviceBuffer; 2]]| bench.time(|_| closed(&lens[b - 1][1]));
    let (first, all) = (of_full(&alone)?, of_full(&together)?);
    // Originals leave beside what comes, on a stream of their own, as in the engine, but in a recording and so one by one: the last ones are waited for.
    let (outward, events) = (GpuStream::new(bench.gpu, Priority::Normal)?, EventPool::new(bench.gpu, 4)?);
    let leave = |t: usize| -> Result<(), Failure> {
        let full: Vec<usize> = (0..seqs).filter(|s| (s * b / seqs + t + 1).is_multiple_of(b)).collect();
        if !full.is_empty() {
            outward.wait(&bench.stream.record(&events)?)?;
        }
        for (layer, s) in full.iter().flat_map(|s| (0..LAYERS).map(move |layer| (layer, s))) {
            let at = (layer * seqs + s) * tail_stride;
            // SAFETY: both buffers outlive the runs of the graph, which are waited for.
            unsafe { tails.read_pinned(&outward, at, &host, at, tail_stride)? };
        }
        Ok(())
    };
    let mut whole = [0.0; 2];
    for (us, originals) in whole.iter_mut().zip([true, false]) {
        *us = bench.time_of(b, |t| {
            (0..LAYERS).try_for_each(|layer| appended(layer, &spread[t][0]))?;
            closed(&spread[t][1])?;
            if originals {
                leave(t)?;
            }
            if originals && t + 1 == b {
                bench.stream.wait(&outward.record(&events)?)?;
            }
            Ok(())
        })? / LAYERS as f64;
    }
    let mut bits = vec![0u32; seqs];
    errors.read(bench.stream, 0, &mut bits)?;
    println!(
        "{seqs:2} sequences, {LAYERS} layers: append {one:.2} us; end of a step without a full block {nothing:.1} us, with those of one sequence {first:.1}, of all {all:.1}; a token and layer {:.2} us with originals that leave beside it ({:.2} without){}",
        whole[0],
        whole[1],
        if bits.iter().any(|b| *b != 0) { "  ERROR BITS SET" } else { "" }
    );
    Ok(())
}
