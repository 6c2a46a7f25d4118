//! Copies of originals to scratch beside attention: `--beside P[,M]` has each layer bring P% of its key blocks over the host's link on a second stream, while the
//! next layers attend, and with M copy M MB on the device in front of each attention, for a model's other work. By CTAs that copy: beside the same launches
//! over an empty list, as in a step that misses nothing, and beside attention without them. What the last layer brings nothing hides, so a step has as
//! many layers as a model: with few of them that is most of what there is to see.
use crate::{Failure, Words, replay, upload};
use certkv_device::cuda::{DeviceBuffer, EventPool, Function, Gpu, GpuStream, LaunchOptions, PinnedBuffer, Priority};
use certkv_kernel::cuda::encode::GatherArgs;
use core::num::NonZeroUsize;

/// Layers of a step: those of a model of 8 billion parameters.
const LAYERS: usize = 32;

/// What is copied, and what stands for the model.
pub(crate) struct Beside {
    share: f64,
    model: usize,
}

impl Beside {
    pub(crate) fn asked(words: &Words) -> Result<Option<Self>, Failure> {
        let Some(given) = words.value("--beside") else { return Ok(None) };
        let (share, model) = given.split_once(',').unwrap_or((given, "0"));
        Ok(Some(Self { share: share.parse::<f64>()? / 100.0, model: model.parse::<usize>()? << 20 }))
    }

    /// `sides`: key sides of a launch, of `bytes` each; `attend` enqueues the i-th launch of a step, and leaves so many multiprocessors alone.
    pub(crate) fn measure(
        &self,
        gpu: &Gpu,
        stream: &GpuStream,
        gather: &Function,
        (sides, bytes): (usize, usize),
        attend: &dyn Fn(&GpuStream, usize, u32) -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        const THREADS: u32 = 512;
        let pieces = (sides as f64 * self.share).round() as usize;
        let pinned = PinnedBuffer::new(gpu, (pieces * bytes).max(16), NonZeroUsize::MIN)?;
        let scratch = DeviceBuffer::new(gpu, (pieces * bytes).max(16))?;
        let items = (0..pieces).flat_map(|i| {
            // Scattered: 7919 is a prime.
            let from = pinned.device_address() + (i * 7919 % pieces * bytes) as u64;
            [from, scratch.address() + (i * bytes) as u64, bytes as u64, 0]
        });
        let items = upload(gpu, stream, &items.collect::<Vec<u64>>())?;
        let count = upload(gpu, stream, &[pieces as u32, 0])?;
        let args = GatherArgs { items: items.address(), count: count.address(), ..GatherArgs::default() };
        let nothing = GatherArgs { count: count.address() + 4, ..args };
        let (lane, events) = (GpuStream::new(gpu, Priority::Normal)?, EventPool::new(gpu, 4)?);
        let weights = [DeviceBuffer::new(gpu, self.model.max(16))?, DeviceBuffer::new(gpu, self.model.max(16))?];
        let copy = |on: &GpuStream, ctas: u32, args: &GatherArgs| -> Result<(), Failure> {
            // SAFETY: the items name live memory of as many bytes, and their number, or 0, is at `count`.
            Ok(unsafe { gather.launch(on, ctas, THREADS, 0, args, LaunchOptions::default()) }?)
        };
        // Alone, beside attention, and beside attention and a model.
        let mut line =
            format!("          {pieces} pieces, {:.2} MB a layer, {LAYERS} layers:", (pieces * bytes) as f64 * 1e-6);
        for ctas in [2, 4, 6, 8, 16] {
            let capture = stream.begin_capture()?;
            (0..4).try_for_each(|_| copy(stream, ctas, &args))?;
            let alone = middle(replay(gpu, stream, &capture.end()?.instantiate()?, 4)?);
            line += &format!(" {ctas} CTAs {alone:.1} us ({:.1} GB/s)", (pieces * bytes) as f64 / alone * 1e-3);
        }
        println!("{line}");
        for (model, leaves) in [(false, false), (false, true), (true, false), (true, true)] {
            if model && self.model == 0 {
                continue;
            }
            let mut line = format!(
                "          {}{}:",
                if model { "with a model's work" } else { "attention" },
                if leaves { ", which leaves them as many multiprocessors" } else { "" }
            );
            let graph = |ctas: u32, args: &GatherArgs| -> Result<_, Failure> {
                let capture = stream.begin_capture()?;
                for i in 0..LAYERS {
                    if model {
                        weights[0].copy_from(stream, 0, &weights[1], 0, self.model)?;
                    }
                    attend(stream, i, if leaves { ctas } else { 0 })?;
                    if ctas > 0 {
                        lane.wait(&stream.record(&events)?)?;
                        copy(&lane, ctas, args)?;
                    }
                }
                if ctas > 0 {
                    stream.wait(&lane.record(&events)?)?;
                }
                Ok(capture.end()?.instantiate()?)
            };
            for ctas in [0, 2, 4, 6, 8, 16] {
                let graphs = [graph(ctas, &nothing)?, graph(ctas, &args)?];
                let mut times = [Vec::new(), Vec::new()];
                // By turns.
                for _ in 0..3 {
                    for (times, graph) in times.iter_mut().zip(&graphs) {
                        times.extend(replay(gpu, stream, graph, LAYERS)?);
                    }
                }
                let [none, some] = times.map(middle);
                line += &match ctas {
                    0 => format!(" alone {some:.1} us"),
                    _ => format!(
                        "; {ctas} CTAs {some:.1} us, of an empty list {none:.1} ({:+.1}%)",
                        100.0 * (some / none - 1.0)
                    ),
                };
            }
            println!("{line}");
        }
        Ok(())
    }
}

fn middle(mut times: Vec<f64>) -> f64 {
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}
