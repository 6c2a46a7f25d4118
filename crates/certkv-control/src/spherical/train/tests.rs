use super::*;
use certkv_core::hash::splitmix64;
use proptest::prelude::*;

fn number(i: u64) -> f32 {
    (splitmix64(i) % 2001) as f32 / 1000.0 - 1.0
}

/// Groups around `centres` directions, of very different lengths.
fn clustered(n: usize, width: usize, centres: usize, noise: f32, seed: u64) -> Vec<f32> {
    let centre = |at: usize, c: usize| number(seed ^ ((at % centres * width + c) as u64) << 8);
    let loud = |at: usize| (2.0 * number(seed.wrapping_add(at as u64) << 32)).exp();
    (0..n * width)
        .map(|i| loud(i / width) * (centre(i / width, i % width) + noise * number(seed ^ (i as u64) << 20 ^ 5)))
        .collect()
}

fn training(objective: Objective, seed: u64) -> Training {
    Training { objective, seed, rounds: 30 }
}

fn is_unit(words: &[f32], width: usize) -> bool {
    words.chunks_exact(width).all(|w| (w.iter().map(|x| f64::from(*x).powi(2)).sum::<f64>() - 1.0).abs() < 1e-6)
}

/// What the directions as they are stored lose of `groups`.
fn loss_of(words: &[f32], groups: &[f32], width: usize, objective: Objective) -> f64 {
    let wide: Vec<f64> = words.iter().map(|x| f64::from(*x)).collect();
    Sample::new(groups, width, objective).unwrap().standing(&wide).unwrap().loss
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn loss_never_rises_and_the_same_seed_gives_the_same_directions(
        (width, count) in prop_oneof![Just((16usize, 64usize)), Just((16, 16)), Just((32, 8)), Just((2, 5)), Just((1, 2))],
        (n, centres) in (64usize..400, 1usize..100),
        noise in prop_oneof![Just(0.0f32), 0.0f32..2.0],
        energy: bool,
        seed: u64,
    ) {
        let objective = if energy { Objective::Energy } else { Objective::Cosine };
        let groups = clustered(n, width, centres, noise, seed);
        let found = train(&groups, width, count, &training(objective, seed)).unwrap();
        prop_assert!(found.loss.windows(2).all(|w| w[1] <= w[0]), "{:?}", found.loss);
        prop_assert!(found.words.len() == count * width && is_unit(&found.words, width));
        prop_assert_eq!(&found, &train(&groups, width, count, &training(objective, seed)).unwrap());
        let (last, kept) = (found.loss[found.loss.len() - 1], loss_of(&found.words, &groups, width, objective));
        prop_assert!((last - kept).abs() < 1e-6, "{last} {kept}");
    }

    /// From any first directions, those that nothing is nearest to among them.
    #[test]
    fn loss_never_rises_from_bad_beginnings(seed: u64, energy: bool, same in 1usize..16) {
        let objective = if energy { Objective::Energy } else { Objective::Cosine };
        let sample = Sample::new(&clustered(300, 16, 40, 0.3, seed), 16, objective).unwrap();
        let words: Vec<f64> = (0..16).flat_map(|word| sample.unit(word.min(15 - same)).to_vec()).collect();
        let found = sample.improve(words, 30).unwrap();
        prop_assert!(found.mended >= same, "copies are nearest to nothing: {} of {same}", found.mended);
        prop_assert!(found.loss.windows(2).all(|w| w[1] <= w[0]), "{:?}", found.loss);
        // Nearly every direction has its use in the end.
        let wide: Vec<f64> = found.words.iter().map(|x| f64::from(*x)).collect();
        let used: std::collections::BTreeSet<u8> =
            sample.standing(&wide).unwrap().nearest.iter().map(|(index, _)| *index).collect();
        prop_assert!(used.len() >= 12, "{used:?}");
    }
}

#[test]
fn planted_directions_are_found() {
    let (width, centres) = (16, 8);
    for objective in Objective::ALL {
        let groups = clustered(800, width, centres, 0.05, 77);
        let found = train(&groups, width, 16, &training(objective, 3)).unwrap();
        let last = found.loss[found.loss.len() - 1];
        assert!(last < 0.01, "{objective} {last}");
        assert!(found.loss[0] >= last);
    }
}

#[test]
fn each_objective_is_best_at_its_own() {
    // Loud groups in a few directions, quiet ones everywhere: k-means on directions spends its directions on the quiet.
    let width = 16;
    let mut groups = clustered(400, width, 400, 0.0, 9);
    groups.extend(clustered(100, width, 12, 0.4, 5).iter().map(|x| 50.0 * x));
    let [cosine, energy] = Objective::ALL.map(|o| train(&groups, width, 16, &training(o, 1)).unwrap().words);
    let loss = |words: &[f32], objective| loss_of(words, &groups, width, objective);
    assert!(loss(&energy, Objective::Energy) < 0.8 * loss(&cosine, Objective::Energy));
    assert!(loss(&cosine, Objective::Cosine) < 0.9 * loss(&energy, Objective::Cosine));
}

#[test]
fn in_the_plane_nothing_is_better() {
    // Two directions for nine on an arc: the best parts are runs, and their directions the means.
    let angles: Vec<f64> = [0.0, 0.2, 0.25, 0.5, 0.9, 1.3, 1.35, 1.5, 2.0].into();
    let groups: Vec<f32> = angles.iter().flat_map(|a| [a.cos() as f32, a.sin() as f32]).collect();
    let kept = |part: &[f64]| {
        let sum = part.iter().fold((0.0, 0.0), |s, a| (s.0 + a.cos(), s.1 + a.sin()));
        f64::hypot(sum.0, sum.1)
    };
    let best = (1..9).map(|cut| kept(&angles[..cut]) + kept(&angles[cut..])).fold(0.0, f64::max);
    let reached = (0..8).map(|seed| {
        let found = train(&groups, 2, 2, &training(Objective::Cosine, seed)).unwrap();
        found.loss[found.loss.len() - 1]
    });
    let least = reached.fold(f64::INFINITY, f64::min);
    assert!((least - (1.0 - best / 9.0)).abs() < 1e-6, "{least} {best}");
}

#[test]
fn what_cannot_be_trained_is_refused() {
    let groups = clustered(10, 4, 10, 0.1, 1);
    let with = |groups: &[f32], count| train(groups, 4, count, &Training::new(1));
    assert!(with(&groups, 10).is_ok());
    assert_eq!(with(&groups, 11), Err(ControlError::Length { what: "directions", got: 10, need: 11 }));
    // Rows of zeros have no direction.
    let mut silent = groups.clone();
    silent[4..8].fill(0.0);
    assert_eq!(with(&silent, 10), Err(ControlError::Length { what: "directions", got: 9, need: 10 }));
    assert!(with(&groups, 0).is_err() && with(&groups, 257).is_err() && with(&[], 1).is_err());
    assert_eq!(with(&groups[1..], 2), Err(ControlError::Length { what: "groups", got: 39, need: 4 }));
    for bad in [f32::NAN, f32::INFINITY] {
        let mut groups = groups.clone();
        groups[13] = bad;
        assert_eq!(with(&groups, 2), Err(ControlError::Invalid { what: "groups", index: 3 }));
    }
    // Fewer different directions than asked for: copies, and an end.
    let same = [1.0f32, 2.0, 3.0, 4.0].repeat(20);
    let found = with(&same, 8).unwrap();
    assert!(found.loss.iter().all(|l| *l < 1e-12) && is_unit(&found.words, 4));
    assert_eq!("energy".parse(), Ok(Objective::Energy));
    assert_eq!("length".parse::<Objective>(), Err(UnknownObjective));
}
