//! A recorded step, run again and again while sequences grow, beside a twin that is never recorded.
use crate::watch::Steps;
use crate::world::{Failure, Inputs, Owed, Tally, World};
use certkv::gpu::{DeviceBuffer, Element, Gpu, GpuCache, LayerIo, Tensor};
use certkv::{Certificate, Policy};
use certkv_device::cuda::{GpuStream, Priority};
use std::time::{Duration, Instant};

/// Fixed device memory of one layer.
struct Buffers {
    keys: DeviceBuffer,
    values: DeviceBuffer,
    query: DeviceBuffer,
    out: DeviceBuffer,
}

impl Buffers {
    fn new(gpu: &Gpu, kv: usize, q: usize) -> Result<Self, Failure> {
        let room = |n: usize| DeviceBuffer::new(gpu, 4 * n);
        Ok(Self { keys: room(kv)?, values: room(kv)?, query: room(q)?, out: room(q)? })
    }

    fn io(&self, kv: usize, q: usize) -> Result<LayerIo<'_>, Failure> {
        let of = |buffer, n| Tensor::of(buffer, 0, Element::F32, n);
        Ok(LayerIo {
            keys: of(&self.keys, kv)?,
            values: of(&self.values, kv)?,
            query: of(&self.query, q)?,
            out: of(&self.out, q)?,
        })
    }

    fn fill(&self, stream: &GpuStream, inputs: &Inputs, layer: usize) -> Result<(), Failure> {
        self.keys.write(stream, 0, &inputs.keys[layer])?;
        self.values.write(stream, 0, &inputs.values[layer])?;
        self.query.write(stream, 0, &inputs.queries[layer])?;
        self.out.fill(stream, 0, self.out.len(), 0xff)?;
        Ok(stream.synchronize()?)
    }
}

/// What the replays came to.
#[derive(Debug, Default)]
pub(crate) struct Replayed {
    pub(crate) steps: usize,
    /// Outputs of which a bit differs from the twin's.
    pub(crate) different: usize,
    pub(crate) tally: Tally,
    pub(crate) nodes: usize,
    pub(crate) recorded: Duration,
    pub(crate) plain: Duration,
    /// What steps said of the last layer.
    pub(crate) said: Steps,
    /// Steps that the ring did not have when their work was done.
    pub(crate) unpublished: usize,
}

/// `steps` steps of the first `seqs` sequences of `world` by a recording, `tokens` new tokens each; the last `seqs` are their forks and step plainly. What
/// the certified policy reads exactly depends on earlier steps, so that only outputs of other policies must have the twin's bits.
pub(crate) fn run(
    gpu: &Gpu,
    cache: &mut GpuCache,
    world: &mut World,
    (seqs, tokens, steps): (usize, usize, usize),
    (policy, owed): (Policy, Owed),
) -> Result<Replayed, Failure> {
    let g = world.geometry;
    let must_agree = !matches!(policy, Policy::Certified(_));
    let (kv, q) = (seqs * tokens * g.kv_width(), seqs * tokens * g.q_width());
    let buffers = (0..g.layers).map(|_| Buffers::new(gpu, kv, q)).collect::<Result<Vec<_>, _>>()?;
    let io = buffers.iter().map(|b| b.io(kv, q)).collect::<Result<Vec<_>, _>>()?;
    let stream = GpuStream::new(gpu, Priority::Normal)?;
    let first_twin = world.held.len();
    for at in 0..seqs {
        world.fork(cache, at)?;
    }
    let graph = cache.record_drafts(seqs, tokens, &io, policy)?;
    let mut r = Replayed { nodes: graph.nodes(), ..Replayed::default() };
    let recorded: Vec<(usize, usize)> = (0..seqs).map(|at| (at, tokens)).collect();
    let twins: Vec<(usize, usize)> = (first_twin..first_twin + seqs).map(|at| (at, tokens)).collect();
    let mut certificates = vec![Certificate::default(); seqs * tokens * g.q_heads];
    for i in 0..steps {
        let inputs = world.inputs(seqs * tokens);
        for (layer, b) in buffers.iter().enumerate() {
            b.fill(&stream, &inputs, layer)?;
        }
        let start = Instant::now();
        let mut step = cache.begin_with(&world.chunks(&recorded), policy)?;
        step.replay(&graph)?;
        step.certificates(g.layers - 1, &mut certificates)?;
        r.recorded += start.elapsed();
        r.said.insert(step.number(), certificates.clone());
        let published = step.cache().certificate_ring().map(|ring| ring.published());
        r.unpublished += usize::from(published != Some(step.number() + 1));
        world.remember(&recorded, &inputs);
        let mut outs = Vec::new();
        for (layer, b) in buffers.iter().enumerate() {
            let mut out = vec![0.0f32; q];
            b.out.read(&stream, 0, &mut out)?;
            if i % 8 == 0 || i + 1 == steps {
                step.certificates(layer, &mut certificates)?;
                let tally = world.judge(layer, &recorded, &inputs.queries[layer], &out, &certificates, owed);
                r.tally.add(&tally);
            }
            outs.push(out);
        }
        step.finish()?;
        // The twin: the same rows through host slices.
        let start = Instant::now();
        let mut step = cache.begin_with(&world.chunks(&twins), policy)?;
        for (layer, want) in outs.iter().enumerate() {
            let mut out = vec![0.0f32; q];
            step.append(layer, &inputs.keys[layer], &inputs.values[layer])?;
            step.attend(layer, &inputs.queries[layer])?;
            step.plan(layer)?;
            step.outputs(layer, &mut out, &mut certificates)?;
            let bits = |x: &[f32]| x.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
            r.different += usize::from(must_agree && bits(want) != bits(&out));
        }
        r.said.insert(step.number(), certificates.clone());
        step.finish()?;
        r.plain += start.elapsed();
        world.remember(&twins, &inputs);
        r.steps += 1;
    }
    for _ in 0..seqs {
        world.release(cache, first_twin)?;
    }
    Ok(r)
}

/// A row on the device that is not finite: the host must learn of it, and the sequence is what it was when the step is dropped, or, where nobody looks and
/// others follow until the block is full, when it is cut. Returns whether it is so; that the rows before it are the same, the end of the life says.
pub(crate) fn refusal(gpu: &Gpu, cache: &mut GpuCache, world: &mut World) -> Result<bool, Failure> {
    let g = world.geometry;
    let (kv, q) = (g.kv_width(), g.q_width());
    let stream = GpuStream::new(gpu, Priority::Normal)?;
    let buffers = Buffers::new(gpu, kv, q)?;
    let mut certificates = vec![Certificate::default(); g.q_heads];
    let id = world.held[0].id;
    let mut found = Vec::new();
    for wild in [f32::NAN, 0.5] {
        let mut inputs = world.inputs(1);
        inputs.values[0][kv - 1] = wild;
        buffers.fill(&stream, &inputs, 0)?;
        let io = buffers.io(kv, q)?;
        let mut step = cache.begin(&world.chunks(&[(0, 1)]))?;
        step.append_device(0, io.keys, io.values)?;
        step.attend_device(0, io.query, io.out)?;
        found.push(step.certificates(0, &mut certificates).map_err(|e| e.to_string()));
        drop(step);
    }
    let (block, len) = (cache.layouts()[0].tokens(), world.held[0].len);
    for t in 0..=block - len % block {
        let mut inputs = world.inputs(1);
        inputs.keys[g.layers - 1][0] = if t == 0 { f32::INFINITY } else { 0.25 };
        let mut step = cache.begin(&world.chunks(&[(0, 1)]))?;
        for layer in 0..g.layers {
            buffers.fill(step.cache().stream(), &inputs, layer)?;
            let io = buffers.io(kv, q)?;
            step.append_device(layer, io.keys, io.values)?;
            step.attend_device(layer, io.query, io.out)?;
            if t > 0 && layer == 0 {
                found.push(step.certificates(0, &mut certificates).map_err(|e| e.to_string()));
            }
        }
        step.finish()?;
    }
    cache.truncate(id, len)?;
    let refused = |found: &Result<(), String>| found.as_ref().is_err_and(|e| e.contains("not finite"));
    let right = refused(&found[0]) && found[1].is_ok() && found[2..].iter().all(refused);
    if !right {
        println!("WRONG refusals: {found:?}");
    }
    Ok(right)
}
