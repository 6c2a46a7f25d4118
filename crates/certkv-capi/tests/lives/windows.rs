//! Sliding windows of some layers.
use crate::*;

/// What the last step of a sequence returned, by layer: its first tokens come from `seed`, and those that a window sees do not.
fn last(config: &certkv_config, seed: u64) -> [Vec<f32>; 2] {
    let cache = Cache::new(config);
    let a = cache.create();
    cache.append(a, 4, 1);
    cache.append(a, 60, seed);
    for i in 0..4 {
        cache.append(a, 10, 3 + i);
    }
    let outputs = cache.append(a, 1, 9).0;
    [outputs[..Q].to_vec(), outputs[Q..].to_vec()]
}

#[test]
fn a_layer_with_a_window_does_not_see_what_has_left_it() {
    let each = [certkv_window { tokens: 32, sinks: 4, chunk: 60 }, certkv_window::default()];
    let plain = certkv_config { prefix_units: 0, policy: CERTKV_POLICY_DENSE, ..config() };
    let windowed = certkv_config { n_windows: 2, windows: each.as_ptr(), ..plain };
    let [one, other] = [5, 6].map(|seed| last(&windowed, seed));
    assert_eq!(one[0], other[0], "60 tokens that only the other layer sees");
    assert_ne!(one[1], other[1]);
    let [full, full_other] = [5, 6].map(|seed| last(&plain, seed));
    assert!(full[0] != full_other[0] && full[0] != one[0] && full[1] == one[1]);
    // One for all layers, whose sinks are seen.
    let all = [certkv_window { tokens: 32, sinks: 0, chunk: 60 }];
    let none = last(&certkv_config { n_windows: 1, windows: all.as_ptr(), ..plain }, 5);
    assert!(none[0] != one[0] && none[1] != one[1]);
    // A chunk has a most.
    let cache = Cache::new(&windowed);
    let a = cache.create();
    assert_eq!(cache.begin(a, 61), Err(CERTKV_LENGTH));
    assert!(message().contains("60"), "{}", message());
    // What is cut must still be there.
    cache.append(a, 60, 1);
    cache.append(a, 60, 2);
    // SAFETY: no pointers but the handle.
    assert_eq!(unsafe { certkv_sequence_truncate(cache.0, a, 30) }, CERTKV_LENGTH);
    assert_eq!(cache.length(a), 120);
}
