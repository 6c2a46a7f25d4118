//! Several launches over a chunk, against causal attention in f64.
use super::extend_cases::relays::relays;
use super::{Failure, Outputs, placer, run};
use certkv_device::cuda::{DeviceBuffer, Gpu, GpuStream};
use certkv_kernel::cuda::args::Certificate;
use certkv_kernel::cuda::{Arch, Compiler, Kernels, Variant, Verb};
use std::cell::RefCell;

/// Whether everything held, and what the first launch leaves is missed where bounds are small.
pub(crate) fn parity(gpu: &Gpu, stream: &GpuStream, compiler: &Compiler) -> Result<bool, Failure> {
    let arch = Arch::of(gpu.info().arch)?;
    let (mut executed, mut wrong, mut caught, mut planted) = (0, 0, 0, 0);
    for (relay, short) in relays() {
        let variants: Vec<Variant> = relay.variants(arch, |_, variant| variant);
        let kernels = Kernels::prepare_verbs(gpu, &variants, &[Verb::Extend], compiler)?;
        let kept = DeviceBuffer::new(gpu, relay.kept_bytes())?;
        kept.fill(stream, 0, kept.len(), 0xff)?;
        let (memory, failed) = (RefCell::default(), RefCell::default());
        let placed = relay.place(&variants, kept.address(), &mut placer(gpu, stream, &memory, &failed));
        failed.into_inner().map_or(Ok(()), Err)?;
        let launches: Vec<_> = placed.iter().zip(&variants).map(|(of, variant)| (&kernels, variant, of.args)).collect();
        let sizes = (placed[0].outputs, placed[0].heads);
        let judge = |o: &Outputs| {
            let certificates: Vec<_> = o.certificates.as_chunks().0.iter().map(Certificate::from_words).collect();
            relay.judge(&o.out, &certificates)
        };
        let [first, second] = run(gpu, stream, &launches, sizes)?;
        let bits = |o: &Outputs| o.out.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
        let same = first.certificates == second.certificates && bits(&first) == bits(&second);
        let v = judge(&first);
        println!(
            "{} d {} group {} {:?}: rounding {:.1e} e_arith {:.1e} bound {:.3}{}{}",
            relay.name(),
            relay.spec().dim,
            relay.spec().group,
            relay.spec().chunks,
            v.rounding,
            v.arith,
            v.relative,
            if same { "" } else { "  TWO RUNS DIFFER" },
            v.wrong.first().map(|w| format!("  WRONG {} {w}", v.wrong.len())).unwrap_or_default(),
        );
        (executed, wrong) = (executed + v.outputs, wrong + v.wrong.len() + usize::from(!same));
        // Control: nothing of the first launch.
        if short {
            kept.fill(stream, 0, kept.len(), 0)?;
            let [less, _] = run(gpu, stream, &launches[1..], sizes)?;
            planted += 1;
            caught += usize::from(!judge(&less).wrong.is_empty());
        }
    }
    println!("GATE gpu-extend-relays executed={executed} failed={wrong} controls={caught}/{planted} seed=0x1e7e");
    Ok(wrong == 0 && caught == planted)
}
