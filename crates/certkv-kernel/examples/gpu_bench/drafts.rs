//! `--drafts T[,T2,..]`: the last T tokens of every sequence in one launch, beside the step of one token.
use super::{DIM, Failure, GROUP, KV_HEADS, Pool, replay, upload, zeroed};
use certkv_core::Dtype;
use certkv_device::cuda::{Gpu, GpuStream, LaunchOptions};
use certkv_kernel::cuda::args::{AttendArgs, Certificate, Draft, Strides};
use certkv_kernel::cuda::{Kernels, Variant, Verb, launch};
use certkv_testkit::generate::Rng;

/// The variants asked for, of those tokens that fit a launch.
pub(crate) fn asked(list: Option<&str>, of: &Variant) -> Result<Vec<Variant>, Failure> {
    let mut all = Vec::new();
    for tokens in list.into_iter().flat_map(|list| list.split(',')) {
        all.extend(of.clone().drafting(tokens.parse()?).ok());
    }
    Ok(all)
}

/// Prints what a launch of each takes over sequences of those lengths, all of whose blocks are full: later tokens of the last one are unseen by earlier
/// ones. `table`: the blocks' pages for the i-th launch.
pub(crate) fn measure(
    gpu: &Gpu,
    stream: &GpuStream,
    (pool, kernels, variants): (&Pool, &Kernels, &[Variant]),
    (lens, blocks, launches): (&[usize], usize, usize),
    table: &dyn Fn(usize) -> u64,
) -> Result<(), Failure> {
    for variant in variants {
        let (seqs, tokens, columns) = (lens.len(), variant.draft(), variant.group());
        let heads = seqs * KV_HEADS;
        let mut r = Rng::new(11);
        let queries: Vec<u16> =
            (0..heads * columns * DIM).map(|_| Dtype::F16.encode16((1.5 * r.normal()) as f32)).collect();
        let query = upload(gpu, stream, &queries)?;
        let draft = |(i, n): (usize, &usize)| Draft::new(n - tokens + 1, tokens, i * tokens).words();
        let told: Vec<u32> = lens.iter().enumerate().flat_map(draft).collect();
        let drafts = upload(gpu, stream, &told)?;
        let out = zeroed(gpu, stream, queries.len() * 2)?;
        let certificates = zeroed(gpu, stream, heads * columns * size_of::<Certificate>())?;
        let masses = zeroed(gpu, stream, heads * blocks * columns * 4)?;
        let partials = zeroed(gpu, stream, launch::partial_bytes(variant, gpu.info().multiprocessors as usize, heads))?;
        let function = kernels.get(variant, Verb::Attend)?;
        let shape = variant.shape();
        let capture = stream.begin_capture()?;
        for i in 0..launches {
            let args = AttendArgs {
                table: table(i),
                masses: masses.address(),
                seqs: seqs as u32,
                table_stride: blocks as u32,
                query: query.address(),
                out: out.address(),
                certificates: certificates.address(),
                partials: partials.address(),
                drafts: drafts.address(),
                query_strides: Strides::dense(KV_HEADS * variant.heads(), DIM),
                out_strides: Strides::dense(KV_HEADS * variant.heads(), DIM),
                ..pool.base
            };
            let options = LaunchOptions { programmatic: true, ..LaunchOptions::default() };
            let (ctas, threads, shared) = (gpu.info().multiprocessors, shape.threads() as u32, shape.shared as u32);
            // SAFETY: every address is that of a live buffer of the size that the kernel's argument documents.
            unsafe { function.launch(stream, ctas, threads, shared, &args, options)? };
        }
        let mut times = replay(gpu, stream, &capture.end()?.instantiate()?, launches)?;
        times.sort_by(f64::total_cmp);
        let us = times[times.len() / 2];
        println!(
            "          drafts of {tokens} ({GROUP} query heads each): {us:7.1} us, {:7.1} us a token, {:?}",
            us / tokens as f64,
            shape
        );
    }
    Ok(())
}
