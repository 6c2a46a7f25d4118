//! The bound of a spectral norm on the matrix unit (math.md 3.7a), on matrices for which (3.7) is tight and every rounding shows.
use super::emulated::{Buffer, Emulated, Launch};
use super::support::{THREADS, spectral_from_below, uniform};

/// (3.7) in f64.
fn bound(e: &[f64], rows: usize) -> f64 {
    let depth = e.len() / rows;
    let product = |a: &[f64]| -> Vec<f64> {
        let n = a.len() / rows;
        let at = |i: usize, j: usize| (0..n).map(|k| a[i * n + k] * a[j * n + k]).sum::<f64>();
        (0..rows * rows).map(|x| at(x / rows, x % rows)).collect()
    };
    let mut gram = product(e);
    let top = (0..rows).map(|i| gram[i * (rows + 1)]).fold(0.0, f64::max);
    if top == 0.0 {
        return 0.0;
    }
    gram.iter_mut().for_each(|x| *x /= top);
    let row = gram.chunks_exact(rows).map(|r| r.iter().map(|x| x.abs()).sum::<f64>()).fold(0.0, f64::max);
    let fourth = product(&product(&gram));
    let root = fourth.iter().map(|x| x * x).sum::<f64>().powf(0.125);
    assert_eq!(e.len(), rows * depth);
    (row.min(root) * top).sqrt()
}

/// Matrices by name. Of "falls" every number loses almost 2^-11 of itself as a half; of "all fall" every entry of the Gram matrix and of its
/// square loses as much again.
fn matrix(kind: &str, rows: usize, depth: usize, seed: u64) -> Vec<f32> {
    let random = |i: usize| uniform(seed, i) as f32;
    let element = |i: usize| {
        let (r, c) = (i / depth, i % depth);
        match kind {
            "random" => 0.5 * random(i),
            "rank one" => random(r) * random(1000 + c),
            "falls" => 0.25 * (1.0 + 0.000_487),
            // 1099/1024 and almost half a step of halves.
            "all fall" => 0.25 * (1099.0 / 1024.0 + 0.000_48),
            "diagonal" if c == r => 0.5,
            "small" => random(i) * 2f32.powi(-16),
            "one" if i == 7 => 0.37,
            "outlier" if r == 3 => 0.5,
            "outlier" => 0.001 * random(i),
            "huge" => 60000.0 * random(i),
            _ => 0.0,
        }
    };
    (0..rows * depth).map(element).collect()
}

#[test]
fn the_matrix_unit_bounds_spectral_norms() {
    let kinds = ["random", "rank one", "falls", "all fall", "diagonal", "small", "one", "outlier", "huge", "zero"];
    let (mut executed, mut failed, mut loosest, mut caught, mut planted) = (0, Vec::new(), 0.0f64, 0, 0);
    for (rows, depth) in [(64, 128), (64, 64), (32, 128), (32, 96), (16, 256), (16, 64)] {
        let macros = [("CKV_ROWS", rows as i64), ("CKV_CHANNELS", depth as i64)];
        let kernel = Emulated::build("emulate/spectral.cu", &macros).expect("the kernel compiles");
        for (n, kind) in kinds.into_iter().enumerate() {
            let given = matrix(kind, rows, depth, n as u64);
            let exact: Vec<f64> = given.iter().map(|x| f64::from(*x)).collect();
            let (truth, limit) = (spectral_from_below(&exact, depth), bound(&exact, rows));
            let plain = Launch::new(1, THREADS, 65536).seed(n as u64);
            for how in [plain, plain.truncating().noisy()] {
                let (input, out) = (Buffer::of(&given), Buffer::zeroed(8));
                kernel
                    .launch("ckv_spectral", how, &[input.pointer(), out.pointer()], &[&input, &out])
                    .expect("the launch runs");
                let got = f64::from_bits(u64::from_le_bytes(out.read::<u8>().try_into().expect("eight bytes")));
                executed += 1;
                // What halves cannot tell from 0, and 1/128.
                let room = limit / 128.0 + 1e-5;
                loosest = loosest.max((got - limit) / limit.max(1e-3));
                let holds = |bound: f64| bound >= truth && bound <= limit + room;
                // Where (3.7) is tight, what halves hide of the errors shows when it is left out.
                if kind.contains("fall") {
                    planted += 1;
                    caught += usize::from(!holds(got * (1.0 - 2f64.powi(-9))));
                }
                if !holds(got) {
                    failed.push(format!("{kind} {rows} x {depth}: {got:e}, at least {truth:e}, (3.7) {limit:e}"));
                }
            }
        }
    }
    println!("GATE gpu-spectral executed={executed} failed={} controls={caught}/{planted} seed=0x0", failed.len());
    assert!(failed.is_empty(), "{failed:#?}");
    assert!(loosest < 1.0 / 128.0, "{loosest}");
    assert!(caught == planted && planted > 0, "{caught} of {planted}");
}
