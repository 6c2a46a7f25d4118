//! Rows that nobody wrote take no part: whatever lies behind an open block's last row, answers have the same bits.
use crate::group::{Group, Side};
use crate::{
    Cache, Cause, Certificate, Certified, Chunk, Config, Error, Geometry, Mode, Policy, Rung, SequenceId, SimOptions,
    Status,
};
use certkv_core::hash::splitmix64;
use certkv_core::plant::{self, Bug};

const DIM: usize = 64;
const KV_HEADS: usize = 2;
const BLOCK: usize = 16;

/// What lies in rows that were not written.
#[derive(Debug, Clone, Copy)]
enum Fill {
    Zero,
    Nan,
    Infinity,
    /// Rows of another sequence.
    Tenant,
}

/// Finite halves.
fn halves(seed: u64, n: usize) -> Vec<u16> {
    (0..n as u64).map(|i| splitmix64(seed ^ i << 20) as u16 & 0xbbff).collect()
}

fn fill_slot(cache: &Cache, group: &Group, id: SequenceId, fill: Fill) -> Result<(), Error> {
    cache.join_lane()?;
    cache.with(id, |state| {
        let (len, entry) = (state.len(), state.tables[0].blocks().last().copied());
        let Some(entry) = entry.filter(|_| len % BLOCK > 0) else { return Ok(()) };
        for layer in 0..group.layers {
            for (arena, page) in [(&group.host, Some(entry.host)), (&group.tail, entry.tail)] {
                let Some(page) = page else { continue };
                let mut guard = arena.write_tagged(group.slot(page, layer), &cache.main, Group::tag(page))?;
                for (head, side) in (0..KV_HEADS).flat_map(|head| [(head, Side::Key), (head, Side::Value)]) {
                    let rows = &mut guard.words_mut()[group.side(head, side)][len % BLOCK * DIM..];
                    match fill {
                        Fill::Zero => rows.fill(0),
                        Fill::Nan => rows.fill(0x7e01),
                        Fill::Infinity => rows.fill(0x7c00),
                        Fill::Tenant => rows.copy_from_slice(&halves(77, rows.len())),
                    }
                }
            }
        }
        Ok(())
    })
}

/// Bits of the outputs and bounds of steps of every kind, or what stopped them.
fn answers(len: usize, fill: Fill) -> Result<Vec<u64>, Error> {
    let geometry = Geometry::new(2, 2 * KV_HEADS, KV_HEADS, DIM)?;
    let device = SimOptions { mode: Mode::Eager, check: true };
    let formats = vec!["k8-v4g32-b16".parse()?];
    let cache = Cache::new(Config { formats, device, ..Config::new(geometry, 4 * BLOCK) })?;
    let id = cache.create()?;
    let certified = Policy::Certified(Certified::default());
    let mut bits = Vec::new();
    for (n, (tokens, policy)) in
        [(len, certified), (1, certified), (1, Policy::Dense), (1, Policy::Packed), (2, certified)]
            .into_iter()
            .enumerate()
    {
        fill_slot(&cache, &cache.groups[0], id, fill)?;
        let mut step = cache.begin_with(&[Chunk { sequence: id, tokens }], policy)?;
        for layer in 0..2 {
            let seed = (n * 2 + layer) as u64;
            let [keys, values] = [seed, !seed].map(|seed| halves(seed, tokens * KV_HEADS * DIM));
            step.append_bits(layer, &keys, &values)?;
            let queries: Vec<f32> =
                halves(seed << 8, tokens * 2 * KV_HEADS * DIM).iter().map(|h| f32::from(*h) / 65536.0 - 0.5).collect();
            let mut out = vec![0.0; queries.len()];
            let mut certificates = vec![Certificate::default(); tokens * 2 * KV_HEADS];
            step.attend(layer, &queries, &mut out, &mut certificates)?;
            bits.extend(out.iter().map(|x| u64::from(x.to_bits())));
            bits.extend(certificates.iter().map(|c| c.bound().to_bits()));
        }
        step.finish()?;
    }
    Ok(bits)
}

/// Lengths for which four fills do not give one answer.
fn unlike() -> Vec<usize> {
    let bits = |len, fill| answers(len, fill).map_err(|e| e.to_string());
    let same = |len| {
        let first = bits(len, Fill::Zero);
        first.is_ok() && [Fill::Nan, Fill::Infinity, Fill::Tenant].iter().all(|fill| bits(len, *fill) == first)
    };
    (1..2 * BLOCK).filter(|len| !same(*len)).collect()
}

#[test]
fn unwritten_rows_take_no_part() {
    let failed = unlike();
    plant::arm(Some(Bug::B12));
    let seen = unlike();
    assert!(plant::committed() > 0, "a row too many was never read");
    plant::arm(None);
    let (executed, caught) = (4 * (2 * BLOCK - 1), u8::from(seen.len() > BLOCK));
    println!("GATE unwritten-rows executed={executed} failed={} controls={caught}/1 seed=0x4d", failed.len());
    assert_eq!((failed, caught), (vec![], 1), "a row too many is seen at lengths {seen:?} only");
}

/// Originals and codes of one KV head that disagree in one layer: no certificate of that layer stands, whichever pages its other heads are in.
#[test]
fn a_failed_canary_sends_heads_of_other_groups_to_the_originals() {
    let geometry = Geometry::new(2, 2 * KV_HEADS, KV_HEADS, DIM).unwrap();
    let formats = ["k8-v4g32-b16", "t4-v4g32-b32"].map(|f| f.parse().unwrap());
    let cache = |damage: bool| {
        let cache = Cache::new(Config { formats: [formats; 2].concat(), ..Config::new(geometry, 100) }).unwrap();
        let id = cache.create().unwrap();
        let mut step = cache.begin(&[Chunk { sequence: id, tokens: 70 }]).unwrap();
        let rows = |seed| halves(seed, 70 * KV_HEADS * DIM);
        (0..2).for_each(|layer| step.append_bits(layer, &rows(1), &rows(2)).unwrap());
        step.finish().unwrap();
        if damage {
            cache.join_lane().unwrap();
            let (group, page) = (&cache.groups[0], cache.with(id, |s| Ok(s.tables[0].blocks()[1].host)).unwrap());
            let mut guard = group.host.write_tagged(group.slot(page, 1), &cache.main, Group::tag(page)).unwrap();
            guard.words_mut()[group.side(0, Side::Key)].fill(0x4400);
        }
        (cache, id)
    };
    let step = |(cache, id): &(Cache, SequenceId), policy| {
        let mut step = cache.begin_with(&[Chunk { sequence: *id, tokens: 1 }], policy).unwrap();
        let row = halves(3, KV_HEADS * DIM);
        let queries: Vec<f32> = (0..geometry.q_width()).map(|i| (i % 7) as f32 / 4.0 - 0.8).collect();
        let mut found = Vec::new();
        for layer in 0..2 {
            step.append_bits(layer, &row, &row).unwrap();
            let (mut out, mut certificates) =
                (vec![0.0; geometry.q_width()], vec![Certificate::default(); geometry.q_heads]);
            step.attend(layer, &queries, &mut out, &mut certificates).unwrap();
            found.push((out.into_iter().map(f32::to_bits).collect::<Vec<_>>(), certificates));
        }
        found
    };
    // Every block is looked at, so that the canary sees the one.
    let policy = Policy::Certified(Certified { explore_rate: 1.0, ..Certified::default() });
    let [whole, dense] = [policy, Policy::Dense].map(|policy| step(&cache(false), policy));
    let damaged = step(&cache(true), policy);
    let failed = |c: &Certificate| (c.cause, c.rung, c.status) == (Cause::Integrity, Rung::DenseLayer, Status::Exact);
    assert!(whole.iter().chain(&damaged[..1]).flat_map(|(_, found)| found).all(|c| c.cause != Cause::Integrity));
    assert!(damaged[1].1.iter().all(failed), "{:?}", damaged[1].1);
    // What was not damaged has the bits of dense attention, and had others.
    let width = geometry.group() * DIM;
    assert_eq!(damaged[1].0[width..], dense[1].0[width..]);
    assert_ne!(whole[1].0[width..], dense[1].0[width..]);
}

/// Of a chunk's tokens one has seen the damage, and others have read the same codes: none of them keeps its certificate.
#[test]
fn a_failed_canary_sends_all_tokens_of_a_chunk_to_the_originals() {
    const TOKENS: usize = 8;
    let geometry = Geometry::new(1, 2, 1, DIM).unwrap();
    let format = "k8-v4g32-b16".parse().unwrap();
    let cache = Cache::new(Config { chunk_tokens: TOKENS, ..Config::new(geometry, 200).with_format(format) }).unwrap();
    let id = cache.create().unwrap();
    let mut step = cache.begin(&[Chunk { sequence: id, tokens: 100 }]).unwrap();
    step.append_bits(0, &halves(1, 100 * DIM), &halves(2, 100 * DIM)).unwrap();
    step.finish().unwrap();
    cache.join_lane().unwrap();
    let (group, page) = (&cache.groups[0], cache.with(id, |s| Ok(s.tables[0].blocks()[1].host)).unwrap());
    let mut guard = group.host.write_tagged(group.slot(page, 0), &cache.main, Group::tag(page)).unwrap();
    guard.words_mut()[group.side(0, Side::Key)].fill(0x4400);
    drop(guard);
    // Some tokens look at the block, and some do not.
    let policy = Policy::Certified(Certified { explore_rate: 0.1, tol_rel: 0.5, ..Certified::default() });
    let (mut alone, mut all) = (0, 0);
    for _ in 0..60 {
        let mut step = cache.begin_with(&[Chunk { sequence: id, tokens: TOKENS }], policy).unwrap();
        let rows = halves(3, TOKENS * DIM);
        step.append_bits(0, &rows, &rows).unwrap();
        let queries: Vec<f32> = (0..TOKENS * geometry.q_width()).map(|i| (i % 7) as f32 / 4.0 - 0.8).collect();
        let mut certificates = vec![Certificate::default(); TOKENS * geometry.q_heads];
        step.attend(0, &queries, &mut vec![0.0; queries.len()], &mut certificates).unwrap();
        let failed = |c: &&Certificate| c.cause == Cause::Integrity && c.status == Status::Exact;
        match certificates.iter().filter(failed).count() {
            0 => alone += 1,
            count => {
                assert_eq!(count, certificates.len(), "{certificates:?}");
                all += 1;
            }
        }
    }
    assert!(alone > 0 && all > 0, "{alone} steps that did not look, {all} that did");
}
