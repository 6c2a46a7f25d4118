//! The ring of certificates, watched by another thread while steps run: every step that it sees must be what the step itself says.
use crate::world::Failure;
use certkv::gpu::{
    CertificateRing, DeviceBuffer, Element, Gpu, GpuStep, GpuStream, Missed, PublishedCertificate, PublishedStep,
    Tensor,
};
use certkv::{Certificate, Status};
use certkv_device::cuda::Priority;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};

/// Certificates of one layer, `[token][query head]`, by the number of the step.
pub(crate) type Steps = BTreeMap<u64, Vec<Certificate>>;

/// What a watcher saw.
#[derive(Debug, Default)]
pub(crate) struct Seen {
    steps: BTreeMap<u64, Vec<Option<PublishedCertificate>>>,
    reads: usize,
    overwritten: usize,
    /// Steps that were not the same twice.
    changed: usize,
}

/// Reads the newest steps and those about to be overwritten until `stop`.
pub(crate) fn watch(ring: &CertificateRing, layer: usize, stop: &AtomicBool) -> Seen {
    let (mut seen, mut step) = (Seen::default(), PublishedStep::default());
    while !stop.load(Ordering::Acquire) {
        let newest = ring.published();
        for number in [newest.wrapping_sub(1), newest.wrapping_sub(ring.len() as u64)] {
            match ring.read(number, &mut step) {
                Ok(()) => {
                    seen.reads += 1;
                    let places =
                        (0..step.sequences()).flat_map(|place| (0..step.q_heads()).map(move |head| (place, head)));
                    let heads: Vec<_> = places.map(|(place, head)| step.head(layer, place, head)).collect();
                    let known = seen.steps.entry(number).or_insert_with(|| heads.clone());
                    seen.changed += usize::from(*known != heads);
                }
                Err(Missed::Overwritten) => seen.overwritten += 1,
                Err(Missed::NotYet) => {}
            }
        }
    }
    seen
}

/// What is published is the device's own figure, rounded up; the step's certificate adds its terms again, which may come out a little lower.
fn alike(want: &Certificate, got: Option<&PublishedCertificate>) -> bool {
    got.is_some_and(|got| {
        let (bound, said) = (f64::from(got.bound), want.bound());
        let near = bound >= said * (1.0 - 1e-6) && bound <= said * (1.0 + 1e-4);
        (near || want.status == Status::Uncertified) && got.status == want.status && got.rung == want.rung
    })
}

/// The step's certificates in device memory, beside what the step says itself: heads, those that differ, and controls: planted, and seen.
pub(crate) fn in_device_memory(
    gpu: &Gpu,
    step: &mut GpuStep<'_>,
    batch: &[(usize, usize)],
) -> Result<[usize; 4], Failure> {
    let bytes = step.published_bytes()?;
    let (memory, stream) = (DeviceBuffer::new(gpu, bytes)?, GpuStream::new(gpu, Priority::Normal)?);
    memory.fill(&stream, 0, bytes, 0xee)?;
    stream.synchronize()?;
    step.publish_to(Tensor::of(&memory, 0, Element::F32, bytes / 4)?)?;
    let geometry = *step.cache().geometry();
    let mut said = vec![vec![Certificate::UNCERTIFIED; step.tokens() * geometry.q_heads]; geometry.layers];
    for (layer, certificates) in said.iter_mut().enumerate() {
        // Waits for all that was enqueued.
        step.certificates(layer, certificates)?;
    }
    let mut words = vec![0u64; bytes / 8];
    memory.read(&stream, 0, &mut words)?;
    let published = PublishedStep::of_memory(&words).ok_or("what was published is not whole")?;
    let (mut heads, mut failed, mut caught) = (0, 0, 0);
    // Of a step of drafts all tokens are there, of others those that are alone.
    let all = published.sequences() == step.tokens();
    let rows = batch.iter().flat_map(|(_, tokens)| core::iter::repeat_n(*tokens, *tokens)).enumerate();
    let rows: Vec<usize> = rows.filter(|(_, tokens)| all || *tokens == 1).map(|(row, _)| row).collect();
    failed += rows.len().abs_diff(published.sequences());
    for (layer, certificates) in said.iter().enumerate() {
        for (place, row) in rows.iter().enumerate() {
            for head in 0..geometry.q_heads {
                let (want, got) = (&certificates[row * geometry.q_heads + head], published.head(layer, place, head));
                heads += 1;
                failed += usize::from(!alike(want, got.as_ref()));
                let other = got.map(|got| PublishedCertificate { status: Status::Failed, ..got });
                caught += usize::from(!alike(want, other.as_ref()));
            }
        }
    }
    Ok([heads, failed, heads, caught])
}

/// Compares what was seen with what the steps said, and prints a gate. Returns whether it held.
pub(crate) fn judge(name: &str, said: &Steps, seen: &Seen, seed: u64) -> bool {
    let (mut heads, mut failed, mut planted, mut caught) = (0, seen.changed, 0, 0);
    for (number, want) in said {
        let Some(got) = seen.steps.get(number) else { continue };
        failed += usize::from(got.len() != want.len());
        for (want, got) in want.iter().zip(got) {
            heads += 1;
            let good = alike(want, got.as_ref());
            failed += usize::from(!good);
            if !good && failed <= 3 {
                println!("WRONG ring {name}, step {number}: {got:?} for {want:?}");
            }
        }
        // A bound that is another head's, or a status that was not said, is seen.
        if let (Some(want), Some(Some(got))) = (want.first(), got.first()) {
            let other = Status::Failed;
            planted += 1;
            caught += usize::from(!alike(want, Some(&PublishedCertificate { status: other, ..*got })));
        }
    }
    println!(
        "ring {name}: {} steps of {} seen in {} reads, {} overwritten meanwhile",
        seen.steps.len(),
        said.len(),
        seen.reads,
        seen.overwritten
    );
    println!("GATE gpu-engine-ring-{name} executed={heads} failed={failed} controls={caught}/{planted} seed={seed:#x}");
    failed == 0 && caught == planted && planted > 0
}
