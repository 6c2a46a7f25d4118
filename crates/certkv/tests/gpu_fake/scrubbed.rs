//! Pages that somebody else wrote to are found while they lie on the device, and no others.
use crate::kernels::{self, BLOCK, DIM, KV_HEADS};
use crate::life::{FORMATS, LAYERS, config};
use crate::{alone, fake_cuda::sweep::code_for};
use certkv::gpu::{Gpu, GpuCache};
use certkv::{Chunk, Class, Damage, Error, Fault, PrefixScope, Scrub, Scrubbed, SequenceId};

const KV: usize = KV_HEADS * DIM;
const SCOPE: PrefixScope<'_> = PrefixScope::new(b"domain", b"model");
const ALL: Scrub = Scrub { pages: usize::MAX, originals: true };

fn grow(cache: &mut GpuCache, id: SequenceId, tokens: usize) -> Result<(), Error> {
    let rows: Vec<u16> = (0..tokens * KV).map(|i| 0x3800 + (i % 977) as u16).collect();
    let mut step = cache.begin(&[Chunk { sequence: id, tokens }])?;
    for layer in 0..LAYERS {
        step.append_bits(layer, &rows, &rows)?;
    }
    step.finish()
}

fn clean(pages: usize) -> Scrubbed {
    Scrubbed { pages, complete: true, ..Scrubbed::default() }
}

#[test]
fn what_is_damaged_on_the_device_is_named() {
    let (fake, compiler, _turn) = alone();
    let (mut executed, mut failed, mut unseen) = (0, 0, 0);
    for format in FORMATS {
        fake.reset();
        kernels::begin(format);
        let gpu = Gpu::open(0).expect("the fake");
        let mut cache = GpuCache::new(&gpu, compiler, config(format)).expect("a cache");
        let reserved = cache.reserved_for(Class::Tables);
        let first = cache.create().expect("a sequence");
        grow(&mut cache, first, 2 * BLOCK + 3).expect("rows");
        let fork = cache.fork(first).expect("a fork");
        grow(&mut cache, fork, BLOCK).expect("rows");
        // Blocks that two have, the fork's own, no open ones: each once.
        let pages = 3 * LAYERS;
        assert_eq!(cache.scrub(ALL).expect("a look"), clean(pages));
        assert!(cache.reserved_for(Class::Tables) > reserved, "digests are reserved");
        // From now on any bit is seen, of records and of originals.
        for (at, (id, block)) in [(first, 0), (first, 1), (fork, 2)].into_iter().enumerate() {
            for layer in 0..LAYERS {
                for (n, originals) in [false, true].into_iter().cycle().take(8).enumerate() {
                    let byte = 131 * n + 37 * at + layer;
                    let fault = |found: &[Damage]| match found {
                        [Damage { layer: l, block: b, sequence: Some(_), fault, .. }] => {
                            (*l, *b) == (layer, block) && (*fault == Fault::Originals) == originals
                        }
                        _ => false,
                    };
                    cache.damage(id, (layer, block), byte, originals).expect("a bit");
                    let found = cache.scrub(ALL).expect("a look");
                    failed += usize::from(!fault(&found.damaged) || found.mended != 0 || found.pages != pages);
                    unseen += usize::from(
                        originals
                            && !cache.scrub(Scrub { originals: false, ..ALL }).expect("a look").damaged.is_empty(),
                    );
                    cache.damage(id, (layer, block), byte, originals).expect("the same bit");
                    failed += usize::from(cache.scrub(ALL).expect("a look") != clean(pages));
                    executed += 1;
                }
            }
        }
        // A few at a time; a failed call is made again; a page that is another's is remembered anew.
        let few = Scrub { pages: 3, originals: true };
        let mut calls = 0;
        while !cache.scrub(few).expect("a look").complete {
            calls += 1;
        }
        assert!((1..4).contains(&calls), "{calls}");
        let launch = fake.trace().len() as u64 + 1;
        fake.fail(launch + 4, code_for("cuLaunchKernelEx", launch), false);
        let _ = cache.scrub(ALL);
        cache.truncate(first, BLOCK + 1).expect("a cut");
        cache.release(fork).expect("a release");
        grow(&mut cache, first, BLOCK).expect("rows");
        assert_eq!(cache.scrub(ALL).expect("a look").damaged, []);
        let tokens: Vec<u32> = (0..2 * BLOCK as u32).collect();
        assert!(cache.publish(first, &SCOPE, (&tokens[..]).into()).expect("a publication").added > 0);
        cache.release(first).expect("a release");
        assert_eq!(cache.scrub(ALL).expect("a look"), clean(2 * LAYERS), "cached alone");
        cache.evict_prefixes(usize::MAX).expect("evictions");
        assert_eq!(cache.scrub(ALL).expect("a look"), clean(0));
    }
    println!("GATE scrub-gpu executed={executed} failed={failed} controls={executed}/{executed} seed=0x0");
    assert_eq!((failed, unseen), (0, 0));
}
