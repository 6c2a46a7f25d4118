//! What sequences leave is erased, whichever call of the driver fails: at once, or with the next call, and before anybody else has it.
use crate::fake_cuda::sweep::code_for;
use crate::kernels::{self, BLOCK, DIM, GROUP, KV_HEADS};
use crate::levels::{self, LADDERS};
use crate::life::{FORMATS, LAYERS, config};
use crate::{alone, every};
use certkv::gpu::{Compiler, Gpu, GpuCache, GpuConfig};
use certkv::{Chunk, Error, Policy, PrefixScope, Retention, SequenceId, retention};

const KV: usize = KV_HEADS * DIM;
const SCOPE: PrefixScope<'_> = PrefixScope::new(b"domain", b"model");

/// Makes a call until it succeeds: a failure that comes once is over by the third time.
fn insist<T>(errors: &mut Vec<Error>, mut call: impl FnMut() -> Result<T, Error>) -> T {
    for _ in 0..3 {
        match call() {
            Ok(done) => return done,
            Err(error) => errors.push(error),
        }
    }
    call().unwrap_or_else(|error| panic!("the failure came once: {error}, after {errors:?}"))
}

/// Tokens of numbers that are not zero.
fn grow(cache: &mut GpuCache, errors: &mut Vec<Error>, id: SequenceId, tokens: usize) {
    let rows = vec![0x3c01u16; tokens * KV];
    insist(errors, || {
        let mut step = cache.begin_with(&[Chunk { sequence: id, tokens }], Policy::Packed)?;
        for layer in 0..LAYERS {
            step.append_bits(layer, &rows, &rows)?;
            step.attend(layer, &vec![0.5; tokens * KV * GROUP])?;
        }
        step.finish()
    });
}

/// Sequences that give pages up in every way, and at last all of them. Bytes that are left, and the errors that there were.
fn live(compiler: &Compiler, format: &str, erase: bool) -> (usize, Vec<Error>) {
    kernels::begin(format);
    let mut errors = Vec::new();
    let gpu = insist(&mut errors, || Ok(Gpu::open(0)?));
    let config = GpuConfig { erase, ..config(format) };
    let mut cache = insist(&mut errors, || GpuCache::new(&gpu, compiler, config.clone()));
    let id = insist(&mut errors, || cache.create());
    grow(&mut cache, &mut errors, id, BLOCK + 3);
    (0..BLOCK).for_each(|_| grow(&mut cache, &mut errors, id, 1));
    let fork = insist(&mut errors, || cache.fork(id));
    // One that failed half-way has cut to whole blocks.
    insist(&mut errors, || cache.truncate(id, cache.len(id)?.min(BLOCK - 2)));
    insist(&mut errors, || {
        cache.swap_out(fork).map(drop).or_else(|e| if cache.is_swapped_out(fork)? { Ok(()) } else { Err(e) })
    });
    grow(&mut cache, &mut errors, id, 4);
    insist(&mut errors, || {
        cache.swap_in(fork).map(drop).or_else(|e| if cache.is_swapped_out(fork)? { Err(e) } else { Ok(()) })
    });
    let tokens: Vec<u32> = (0..2 * BLOCK as u32).collect();
    insist(&mut errors, || cache.publish(fork, &SCOPE, (&tokens[..]).into()));
    for id in [id, fork] {
        insist(&mut errors, || match cache.release(id) {
            Err(Error::UnknownSequence(_)) => Ok(()),
            result => result,
        });
    }
    insist(&mut errors, || cache.evict_prefixes(usize::MAX));
    let left = insist(&mut errors, || cache.residue());
    assert_eq!(cache.live_pages(), 0);
    (left, errors)
}

/// The same of blocks that have levels, and change them.
fn live_at_levels(compiler: &Compiler, ladder: &str, erase: bool) -> (usize, Vec<Error>) {
    let ladder: Vec<&str> = ladder.split(' ').collect();
    kernels::begin(ladder[0]);
    let mut errors = Vec::new();
    let gpu = insist(&mut errors, || Ok(Gpu::open(0)?));
    // Who decides has blocks coded beside all pages; this one asks in every call.
    let rule = retention::Rule { every: 1, looks: 1, ..retention::Rule::default() };
    let control = Some(Retention { rule, ..Retention::new(levels::budget(&ladder)) }.into());
    let config = GpuConfig { erase, control, ..levels::config(&ladder, 0) };
    let mut cache = insist(&mut errors, || GpuCache::new(&gpu, compiler, config.clone()));
    let id = insist(&mut errors, || cache.create());
    grow(&mut cache, &mut errors, id, 2 * BLOCK + 3);
    let attended = |cache: &mut GpuCache| -> Result<(), Error> {
        let rows = vec![0x3c01u16; KV];
        let mut step = cache.begin_with(&[Chunk { sequence: id, tokens: 1 }], Policy::Packed)?;
        for layer in 0..LAYERS {
            step.append_bits(layer, &rows, &rows)?;
            step.attend(layer, &[0.5; kernels::GROUP * KV])?;
        }
        step.finish()
    };
    for block in [0, 1, 0] {
        insist(&mut errors, || attended(&mut cache));
        insist(&mut errors, || cache.control(id));
        let level = (cache.level(id, 1, block).expect("a level") + 1) % ladder.len();
        insist(&mut errors, || cache.change_level(id, 1, block, level));
    }
    let fork = insist(&mut errors, || cache.fork(id));
    insist(&mut errors, || cache.change_level(fork, 0, 1, ladder.len() - 1));
    insist(&mut errors, || cache.truncate(id, cache.len(id)?.min(BLOCK + 2)));
    for id in [id, fork] {
        insist(&mut errors, || match cache.release(id) {
            Err(Error::UnknownSequence(_)) => Ok(()),
            result => result,
        });
    }
    let left = insist(&mut errors, || cache.residue());
    assert_eq!(cache.live_pages(), 0);
    (left, errors)
}

#[test]
fn nothing_is_left_whichever_call_fails() {
    let (fake, compiler, _turn) = alone();
    let (mut executed, mut failed, mut reported, mut seen) = (0, Vec::new(), 0, 0);
    let ladder = LADDERS[1].join(" ");
    for format in FORMATS.into_iter().chain([&ladder[..]]) {
        let live = if format.contains(' ') { live_at_levels } else { live };
        fake.reset();
        let (left, errors) = live(compiler, format, true);
        assert!(left == 0 && errors.is_empty(), "{format}: {left} bytes, {errors:?}");
        let names = fake.trace();
        fake.reset();
        seen += usize::from(live(compiler, format, false).0 > 0);
        let step = every().unwrap_or(40);
        // A context that could not be popped stays on the thread's stack.
        for at in (0..names.len()).filter(|at| at.is_multiple_of(step) || names[*at].starts_with("cuMemset")) {
            fake.reset();
            fake.empty_stack();
            fake.fail(at as u64 + 1, code_for(names[at], at as u64), false);
            let (left, errors) = live(compiler, format, true);
            executed += 1;
            reported += usize::from(!errors.is_empty());
            if left > 0 {
                failed.push(format!("{format}, call {at}, {}: {left} bytes", names[at]));
            }
        }
        fake.reset();
        fake.empty_stack();
    }
    println!(
        "GATE erase-gpu executed={executed} failed={} controls={seen}/4 seed=0x0 reported={reported}",
        failed.len()
    );
    assert!(failed.is_empty(), "{failed:#?}");
    assert!(seen == 4 && executed > 100 && reported > executed / 4, "{seen} {executed} {reported}");
}
