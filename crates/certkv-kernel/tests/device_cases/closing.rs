//! Batches behind a step's append: blocks that the last token has filled lie in their tails.
use super::{Refining, Spec};
use certkv_core::Dtype;
use certkv_kernel::cuda::Sight;

/// Full blocks, one that is all there is, beside open ones; every kind of format, residuals read in every way, windows.
pub fn specs() -> Vec<Spec> {
    let mut all = Vec::new();
    let formats = [
        ("k8-v4g64-b64", 128, 4, [256, 64, 100]),
        ("k8-v4g32-b16", 64, 2, [16, 160, 7]),
        ("t4-v5g32-b32", 96, 3, [32, 321, 64]),
        ("f16-f16-b16", 64, 6, [48, 33, 16]),
        ("tq4-tq4-b64", 128, 4, [128, 64, 65]),
        ("gtq3-tq3-b32", 64, 4, [96, 32, 31]),
        ("s1-c4-b64", 128, 8, [64, 192, 1]),
        ("k4-v4g32-b64", 256, 2, [128, 64, 63]),
    ];
    for (i, (format, dim, group, lens)) in formats.into_iter().enumerate() {
        let store = if format.contains("f16") { Dtype::F16 } else { [Dtype::F16, Dtype::Bf16][i % 2] };
        all.push(Spec { store, closing: true, seed: i as u64, ..Spec::new(format, dim, group, &lens) });
    }
    let modes =
        [Refining::Never, Refining::All, Refining::OnDemand(0.0), Refining::OnDemand(1.0), Refining::Picked(0.5)];
    for (i, refine) in modes.into_iter().enumerate() {
        let (format, dim, lens) =
            [("k8-v4g64-b64-r8.4", 128, [320, 64, 90]), ("k8-v4g32-b32-r5.4", 64, [32, 64, 200])][i % 2];
        let promoted = if i % 2 == 0 { 0.0 } else { 0.3 };
        let spec = Spec { refine, keys: promoted, values: promoted, ..Spec::new(format, dim, 4, &lens) };
        all.push(Spec { closing: true, seed: i as u64, ..spec });
    }
    for (i, (tokens, sinks)) in [(40, 5), (16, 0), (64, 16), (1, 3)].into_iter().enumerate() {
        let sight = Some(Sight { tokens, sinks });
        let spec = Spec::new("k8-v4g32-b16", 64, 2, &[160, 16, 75, 32]);
        all.push(Spec { sight, closing: true, seed: i as u64, ..spec });
    }
    all
}
