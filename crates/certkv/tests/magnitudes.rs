//! Values of any size: what is said of an output whose values are a millionth, or a billionth of a billionth, holds as it does of any. Codes of
//! such values, where their type has no small numbers, can be far longer than they are; a repair takes them out again, and what it leaves behind counts.
mod common;

use certkv::{Cache, Config, Dtype, Geometry, Policy, Rung, Status};
use certkv_testkit::generate::Rng;
use certkv_testkit::oracle::{distance, norm};
use common::{Model, fill, step};

const FORMATS: [&str; 8] = [
    "k8-v8g64-b16",
    "k8-v4g32-b16",
    "t8-v8g64-b16",
    "bf16-v4g32-b32",
    "k8-c4-b16",
    "k4-v4g32-b16-r4.4",
    "tq4-tq4-b16",
    "k8-p8g64-b16",
];
const PROMPT: usize = 164;
const STEPS: usize = 6;

fn rows(g: &Geometry, tokens: usize, size: f64, r: &mut Rng) -> Model {
    let mut rows = Model::new(g);
    for (side, size) in [(&mut rows.keys, 1.0), (&mut rows.values, size)] {
        side[0].extend((0..tokens * g.kv_width()).map(|_| g.store.encode16((r.normal() * size) as f32)));
    }
    rows
}

#[test]
fn outputs_of_values_of_any_size_are_within_their_bounds() {
    let (mut executed, mut failed, mut repaired, mut control) = (0, 0, 0, 0);
    for store in [Dtype::Bf16, Dtype::F16] {
        // Of halves those that are no smaller than their last bit.
        let sizes: &[f64] = match store {
            Dtype::F16 => &[1e-7, 1e-6, 1e-4, 3e3],
            _ => &[1e-34, 1e-28, 1e-20, 1e-16, 1e-12, 1e-10, 3e-10, 1e-8, 1e-4, 1e4, 1e20, 1e30],
        };
        for (format, size) in FORMATS.into_iter().flat_map(|format| sizes.iter().map(move |size| (format, *size))) {
            // Originals as they are have one type.
            if format.starts_with("bf16") && store != Dtype::Bf16 {
                continue;
            }
            for seed in 0..4 {
                let mut r = Rng::new(0x517e + seed);
                let mut g = Geometry::new(1, 2, 1, 64).unwrap();
                g.store = store;
                let config = Config::new(g, PROMPT + STEPS + 64).with_format(format.parse().unwrap());
                let cache = Cache::new(config).unwrap();
                let (id, mut model) = (cache.create().unwrap(), Model::new(&g));
                let prompt = rows(&g, PROMPT, size, &mut r);
                fill(&cache, id, &prompt).unwrap();
                model.append(&prompt);
                for _ in 0..STEPS {
                    let row = rows(&g, 1, size, &mut r);
                    let queries: Vec<f32> = (0..g.q_width()).map(|_| (3.0 * r.normal()) as f32).collect();
                    // Where an output cannot be certified there is none.
                    let answered = step(&cache, id, &row, &queries, Policy::default()).unwrap();
                    model.append(&row);
                    let exact = model.attend(&g, 0, model.len(&g), &queries);
                    for (h, exact) in exact.iter().enumerate() {
                        let (got, c) = (&answered[0].out[h * 64..(h + 1) * 64], &answered[0].certificates[h]);
                        let got: Vec<f64> = got.iter().map(|x| f64::from(*x)).collect();
                        let (error, bound) = (distance(exact, &got), c.bound());
                        let stated = matches!(c.status, Status::Certified | Status::Exact);
                        if !(stated && error <= bound) {
                            failed += 1;
                            println!(
                                "{format} {store:?} {size:e} {seed}: {error:e} > {bound:e}, norm {:e} {c:?}",
                                norm(exact)
                            );
                        }
                        executed += 1;
                        repaired += usize::from(c.rung != Rung::Packed);
                        control += usize::from(error > bound * 1e-6);
                    }
                }
            }
        }
    }
    println!("GATE magnitudes executed={executed} failed={failed} controls={}/1 seed=0x517e", usize::from(control > 0));
    assert!(failed == 0 && repaired > executed / 20 && control > 0, "{failed} of {executed}, {repaired} repaired");
}

/// Logits of any size, from the smallest scale to the largest, with queries that make up for it or do not.
#[test]
fn outputs_under_any_scale_are_within_their_bounds() {
    let (mut executed, mut failed, mut control) = (0, 0, 0);
    for (power, logits) in [-64, -40, -3, 40, 64].into_iter().flat_map(|p| [1e-3, 1.0, 1e4, 1e12, 1e30].map(|l| (p, l)))
    {
        for (format, policy) in FORMATS.into_iter().flat_map(|f| [(f, Policy::default()), (f, Policy::Dense)]) {
            if format.starts_with("bf16") {
                continue;
            }
            let mut r = Rng::new(0x5ca1e);
            let mut g = Geometry::new(1, 2, 1, 64).unwrap();
            g.scale = 2f32.powi(power);
            // Beyond the largest float there is no such query.
            let size = logits / f64::from(g.scale) / 64.0;
            if size > 1e37 {
                continue;
            }
            let cache = Cache::new(Config::new(g, 128).with_format(format.parse().unwrap())).unwrap();
            let (id, mut model) = (cache.create().unwrap(), Model::new(&g));
            let mut prompt = rows(&g, 50, 1.0, &mut r);
            // One key that adds up in every channel.
            prompt.keys[0][7 * 64..8 * 64].fill(g.store.encode16(1010.0));
            fill(&cache, id, &prompt).unwrap();
            model.append(&prompt);
            let row = rows(&g, 1, 1.0, &mut r);
            let queries: Vec<f32> =
                (0..g.q_width()).map(|i| if i < 64 { size as f32 } else { (size * r.normal()) as f32 }).collect();
            let Ok(answered) = step(&cache, id, &row, &queries, policy) else { continue };
            model.append(&row);
            for (h, exact) in model.attend(&g, 0, 51, &queries).iter().enumerate() {
                let got: Vec<f64> = answered[0].out[h * 64..(h + 1) * 64].iter().map(|x| f64::from(*x)).collect();
                let (error, c) = (distance(exact, &got), &answered[0].certificates[h]);
                if !(matches!(c.status, Status::Certified | Status::Exact) && error <= c.bound()) {
                    failed += 1;
                    println!(
                        "{format} 2^{power} {logits:e}: {error:e} > {:e}, norm {:e} {c:?}",
                        c.bound(),
                        norm(exact)
                    );
                }
                executed += 1;
                control += usize::from(error > c.bound() * 1e-6);
            }
        }
    }
    println!("GATE scales executed={executed} failed={failed} controls={}/1 seed=0x5ca1e", usize::from(control > 0));
    assert!(failed == 0 && executed > 200 && control > 0, "{failed} of {executed}");
}

/// A block that one head of a group needs may have no mass at all for another: that is no damage.
#[test]
fn masses_that_vanish_are_no_damage() {
    use certkv::Cause;
    let mut g = Geometry::new(1, 2, 1, 64).unwrap();
    g.store = Dtype::F16;
    for gap in [20.0, 80.0, 100.0, 110.0, 150.0, 300.0] {
        let mut r = Rng::new(3);
        let config = Config::new(g, 512).with_format("k8-v4g64-b64".parse().unwrap());
        let cache = Cache::new(config).unwrap();
        let id = cache.create().unwrap();
        let mut prompt = rows(&g, 256, 1.0, &mut r);
        for (t, key) in prompt.keys[0].chunks_exact_mut(64).enumerate() {
            key.iter_mut().for_each(|bits| *bits = g.store.encode16(0.1 * g.store.decode16(*bits)));
            // The first head is for the first block, the second for the third.
            if let Some(channel) = [Some(0), None, Some(1), None][t / 64] {
                key[channel] = g.store.encode16(gap);
            }
        }
        fill(&cache, id, &prompt).unwrap();
        let queries: Vec<f32> = (0..128).map(|i| if i == 0 || i == 65 { 8.0 } else { 0.0 }).collect();
        let answered =
            step(&cache, id, &rows(&g, 1, 0.1, &mut r), &queries, Policy::Seed000(Default::default())).unwrap();
        assert!(
            answered[0].certificates.iter().all(|c| c.cause != Cause::Integrity),
            "{gap}: {:?}",
            answered[0].certificates
        );
    }
}
