//! A host so far ahead of the GPU that its staging memory comes round: calls around the marks and waits of the ring fail.
use crate::fake_cuda::sweep::{Fault, Ran, Tally, code_for};
use crate::kernels::{DIM, GROUP, KV_HEADS};
use crate::life::{FORMATS, config, driver_error};
use crate::{alone, kernels};
use certkv::gpu::{Compiler, Gpu, GpuCache};
use certkv::{Chunk, Error, Policy};

const SEQS: usize = 4;
const Q: usize = GROUP * KV_HEADS * DIM;
/// Attentions of 4 KiB of queries each: more than the ring's four slots of 256 KiB hold.
const TIMES: usize = 340;

/// One step that attends again and again; an attention that fails is made again.
fn hurry(compiler: &Compiler, first: &mut Option<Error>) -> Result<(), Error> {
    let gpu = Gpu::open(0)?;
    let mut cache = GpuCache::new(&gpu, compiler, config(FORMATS[0]))?;
    let mut chunks = Vec::new();
    for _ in 0..SEQS {
        chunks.push(Chunk { sequence: cache.create()?, tokens: 1 });
    }
    let mut step = cache.begin_with(&chunks, Policy::Packed)?;
    let rows = vec![0x3c00; SEQS * KV_HEADS * DIM];
    step.append_bits(0, &rows, &rows)?;
    let mut queries = vec![0.0f32; SEQS * Q];
    for time in 0..TIMES {
        queries.iter_mut().enumerate().for_each(|(i, q)| *q = (time * 7 + i) as f32);
        if let Err(error) = step.attend(0, &queries) {
            first.get_or_insert(error);
            step.attend(0, &queries)?;
        }
    }
    let mut out = vec![0.0; SEQS * Q];
    step.outputs(0, &mut out, &mut [])?;
    assert_eq!(out, queries, "the last queries' outputs");
    Ok(())
}

fn run(compiler: &Compiler) -> Ran {
    let mut first = None;
    let ended = hurry(compiler, &mut first);
    let error = first.or(ended.err());
    Ran { result: error.map_or(Ok(()), |e| Err((e.to_string(), driver_error(&e)))), unreleased: 0 }
}

#[test]
fn staging_memory_that_comes_round_survives_failures() {
    let (fake, compiler, _turn) = alone();
    kernels::begin(FORMATS[0]);
    let mut all = Tally::default();
    for deferred in [false, true] {
        all.run(fake, &[], deferred, || run(compiler));
        assert!(all.wrong.is_empty(), "without a fault: {:?}", all.wrong);
        let names = fake.trace();
        let turns = |name: &&str| matches!(*name, "cuEventRecord" | "cuEventSynchronize");
        let around: Vec<usize> = (0..names.len()).filter(|i| names[*i..].iter().take(4).any(turns)).collect();
        assert!(names.contains(&"cuEventSynchronize") && around.len() > 16, "the ring came round");
        for i in around {
            let fault = Fault { at: i as u64 + 1, code: code_for(names[i], i as u64), lost: false };
            all.run(fake, &[fault], deferred, || run(compiler));
        }
    }
    all.print_wrong();
    println!("GATE fake-driver-staging executed={} failed={} controls=0/0 seed=0x0", all.executed, all.wrong.len());
    assert!(all.wrong.is_empty());
}
