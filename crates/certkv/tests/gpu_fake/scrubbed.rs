//! Pages that somebody else wrote to are found while they lie on the device, and no others.
use crate::kernels::{self, BLOCK, DIM, KV_HEADS};
use crate::levels::{self, LADDERS};
use crate::life::{FORMATS, LAYERS, config};
use crate::{alone, fake_cuda::sweep::code_for};
use certkv::gpu::{Gpu, GpuCache};
use certkv::{Chunk, Class, Error, Fault, PrefixScope, Scrub, Scrubbed, SequenceId};

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

/// Damages bits of records and of originals of blocks, whose pages have all been looked at: how many were, what was not found as it should be, what was found in originals that
/// nobody asked for, and how often a page was beyond mending.
fn damage(cache: &mut GpuCache, blocks: &[(SequenceId, usize)], pages: usize) -> [usize; 4] {
    let [mut executed, mut failed, mut unseen, mut both] = [0; 4];
    for (at, (id, block)) in blocks.iter().copied().enumerate() {
        for layer in 0..LAYERS {
            for n in 0..8 {
                let (byte, at) = (131 * n + 37 * at + layer, (layer, block));
                // Of a record this driver's kernels write a few bytes.
                let record_bytes = cache.record_bytes(id, layer, block, 0).expect("a record").len();
                let coded = n % KV_HEADS * record_bytes + kernels::MARK + n;
                let is = |found: &Scrubbed, faults: &[bool]| {
                    let told = found
                        .damaged
                        .iter()
                        .map(|damage| (damage.layer, damage.block, damage.fault == Fault::Originals));
                    told.eq(faults.iter().map(|originals| (layer, block, *originals))) && found.pages == pages
                };
                let record = |cache: &GpuCache, id| {
                    (0..KV_HEADS)
                        .map(|head| cache.record_bytes(id, layer, block, head).expect("a record"))
                        .collect::<Vec<_>>()
                };
                let before = record(cache, id);
                // Of records alone: coded again.
                cache.damage(id, at, coded, false).expect("a bit");
                let found = cache.scrub(ALL).expect("a look");
                failed += usize::from(!is(&found, &[]) || found.mended != 1 || record(cache, id) != before);
                // Of originals alone: named, and the records stay.
                cache.damage(id, at, byte, true).expect("a bit");
                let found = cache.scrub(ALL).expect("a look");
                failed += usize::from(!is(&found, &[true]) || found.mended != 0 || record(cache, id) != before);
                unseen += cache.scrub(Scrub { originals: false, ..ALL }).expect("a look").damaged.len();
                // Of both: the originals do not give what was seen first, unless no code depends on that bit.
                cache.damage(id, at, coded, false).expect("a bit");
                let bad = record(cache, id);
                let found = cache.scrub(ALL).expect("a look");
                let mended = found.mended == 1 && is(&found, &[true]) && record(cache, id) == before;
                let named = found.mended == 0 && is(&found, &[false, true]) && record(cache, id) == bad;
                failed += usize::from(!(mended || named));
                both += usize::from(named);
                if named {
                    cache.damage(id, at, coded, false).expect("the same bit");
                }
                cache.damage(id, at, byte, true).expect("the same bit");
                failed += usize::from(cache.scrub(ALL).expect("a look") != clean(pages));
                executed += 3;
            }
        }
    }
    [executed, failed, unseen, both]
}

#[test]
fn what_is_damaged_on_the_device_is_named() {
    let (fake, compiler, _turn) = alone();
    let mut sum = [0; 4];
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
        let found = damage(&mut cache, &[(first, 0), (first, 1), (fork, 2)], pages);
        sum.iter_mut().zip(found).for_each(|(sum, n)| *sum += n);
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
    // Blocks of several levels: each page by its own number and size, coded again in its own format.
    fake.reset();
    kernels::begin(LADDERS[1][0]);
    let gpu = Gpu::open(0).expect("the fake");
    let mut cache = GpuCache::new(&gpu, compiler, levels::config(LADDERS[1], 0)).expect("a cache");
    let id = cache.create().expect("a sequence");
    grow(&mut cache, id, 3 * BLOCK + 3).expect("rows");
    for (layer, block, level) in [(0, 0, 1), (0, 1, 2), (1, 2, 1), (1, 0, 2)] {
        cache.change_level(id, layer, block, level).expect("another level");
    }
    assert_eq!(cache.scrub(ALL).expect("a look"), clean(3 * LAYERS));
    let found = damage(&mut cache, &[(id, 0), (id, 1), (id, 2)], 3 * LAYERS);
    sum.iter_mut().zip(found).for_each(|(sum, n)| *sum += n);
    cache.change_level(id, 0, 0, 0).expect("the first level");
    assert_eq!(cache.scrub(ALL).expect("a look"), clean(3 * LAYERS), "another page is another's");
    let [executed, failed, unseen, both] = sum;
    println!("GATE scrub-gpu executed={executed} failed={failed} controls={both}/{both} seed=0x0");
    assert_eq!((failed, unseen), (0, 0));
    assert!(both > 20, "{both} beyond mending");
}
