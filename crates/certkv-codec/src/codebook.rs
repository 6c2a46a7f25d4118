//! Lloyd-Max codebooks of one coordinate of a uniform unit vector, math.md (2.12), (2.13), computed from its exact density.
//!
//! With `t = sin(a)` the density `(1 - t^2)^((n-3)/2)` becomes `cos(a)^(n-2) da`, smooth for every `n >= 2`, so that a Gauss
//! rule over each cell is exact to rounding. Newton's method on "every level is the centroid of its cell", a tridiagonal
//! system, ends in a few dozen steps where Lloyd's own iteration needs thousands.

/// Most bits of a codebook.
pub const MAX_BITS: u8 = 8;

/// Nodes of the Gauss rule of a cell.
const NODES: usize = 48;

/// The levels of `C_{n,b}`, ascending, `2^bits` of them, rounded to f32. `n` is at least 2, `bits` 1 to 8; nothing else has
/// levels. A few milliseconds at 8 bits.
pub fn levels(n: usize, bits: u8) -> Vec<f64> {
    if n < 2 || !(1..=MAX_BITS).contains(&bits) {
        return Vec::new();
    }
    let rule = Rule::new();
    let mut c = start(n, 1 << bits);
    for step in 0..400 {
        let cells = Cells::new(&c, n, &rule);
        let residual: Vec<f64> = c.iter().zip(&cells.centroids).map(|(c, m)| c - m).collect();
        if residual.iter().all(|r| r.abs() < 1e-15) {
            break;
        }
        // A few steps of Lloyd's own bring the levels near enough for Newton's.
        let next = if step < 30 { None } else { cells.newton(&c, &residual, n) };
        c = next.unwrap_or(cells.centroids);
        symmetric(&mut c);
    }
    c.iter().map(|x| f64::from(*x as f32)).collect()
}

/// The midpoints between `levels`: a coordinate's code is the number of them below it.
pub fn thresholds(levels: &[f64]) -> Vec<f64> {
    levels.windows(2).map(|w| 0.5 * (w[0] + w[1])).collect()
}

/// `eta(n, levels)` of (2.13): the expected squared error of a uniformly rotated vector of `n` channels, relative to its
/// squared norm. An average: no certificate uses it.
pub fn distortion(n: usize, levels: &[f64]) -> f64 {
    let rule = Rule::new();
    let (mut error, mut all) = (0.0, 0.0);
    for (level, (lo, hi)) in levels.iter().zip(edges(levels)) {
        rule.over(lo.asin(), hi.asin(), |a, weight| {
            let density = weight * a.cos().powi(n as i32 - 2);
            error += density * (a.sin() - level).powi(2);
            all += density;
        });
    }
    n as f64 * error / all
}

/// The cells of ascending levels.
fn edges(levels: &[f64]) -> impl Iterator<Item = (f64, f64)> {
    let middle = thresholds(levels);
    let low = core::iter::once(-1.0).chain(middle.clone());
    low.zip(middle.into_iter().chain(core::iter::once(1.0)))
}

/// Quantiles of the density to the power 1/3 (Panter and Dite), which good levels follow.
fn start(n: usize, count: usize) -> Vec<f64> {
    const GRID: usize = 20_000;
    let angle = |i: usize| core::f64::consts::PI * (i as f64 / GRID as f64 - 0.5);
    let weight = |i: usize| angle(i).cos().max(1e-300).powf((n as f64 - 3.0) / 3.0 + 1.0);
    let mut sums = vec![0.0; GRID + 1];
    for i in 1..=GRID {
        sums[i] = sums[i - 1] + 0.5 * (weight(i) + weight(i - 1));
    }
    let mut at = 0;
    let mut c: Vec<f64> = (0..count)
        .map(|level| {
            let want = (level as f64 + 0.5) / count as f64 * sums[GRID];
            while at + 1 < GRID && sums[at + 1] < want {
                at += 1;
            }
            let part = (want - sums[at]) / (sums[at + 1] - sums[at]).max(1e-300);
            (angle(at) + part * (angle(at + 1) - angle(at))).sin()
        })
        .collect();
    symmetric(&mut c);
    c
}

fn symmetric(c: &mut [f64]) {
    let last = c.len() - 1;
    for i in 0..=last / 2 {
        let x = 0.5 * (c[i] - c[last - i]);
        (c[i], c[last - i]) = (x, -x);
    }
}

/// Mass and centroid of every cell.
struct Cells {
    edges: Vec<(f64, f64)>,
    mass: Vec<f64>,
    centroids: Vec<f64>,
}

impl Cells {
    fn new(c: &[f64], n: usize, rule: &Rule) -> Self {
        let edges: Vec<_> = edges(c).collect();
        let (mass, centroids) = edges
            .iter()
            .map(|(lo, hi)| {
                let (mut mass, mut moment) = (0.0, 0.0);
                rule.over(lo.asin(), hi.asin(), |a, weight| {
                    let density = weight * a.cos().powi(n as i32 - 2);
                    mass += density;
                    moment += density * a.sin();
                });
                (mass.max(1e-300), moment / mass.max(1e-300))
            })
            .unzip();
        Self { edges, mass, centroids }
    }

    /// One Newton step, unless it would leave the ascending levels of the interval.
    fn newton(&self, c: &[f64], residual: &[f64], n: usize) -> Option<Vec<f64>> {
        let density = |t: f64| if t.abs() < 1.0 { (1.0 - t * t).max(1e-300).powf((n as f64 - 3.0) / 2.0) } else { 0.0 };
        let pull = |i: usize, t: f64| density(t) * (t - self.centroids[i]).abs() / self.mass[i];
        let sides: Vec<(f64, f64)> =
            self.edges.iter().enumerate().map(|(i, (lo, hi))| (0.5 * pull(i, *lo), 0.5 * pull(i, *hi))).collect();
        // Row i: -low[i] x[i-1] + (1 - low[i] - high[i]) x[i] - high[i] x[i+1] = residual[i], solved from the top.
        let (mut upper, mut x) = (vec![0.0; c.len()], residual.to_vec());
        for i in 0..c.len() {
            let (low, high) = sides[i];
            let (before, known) = if i == 0 { (0.0, 0.0) } else { (upper[i - 1], x[i - 1]) };
            let pivot = 1.0 - low - high + low * before;
            upper[i] = -high / pivot;
            x[i] = (x[i] + low * known) / pivot;
        }
        for i in (0..c.len() - 1).rev() {
            x[i] -= upper[i] * x[i + 1];
        }
        let next: Vec<f64> = c.iter().zip(&x).map(|(c, x)| c - x).collect();
        let fine = next.windows(2).all(|w| w[0] < w[1]) && next.iter().all(|x| x.abs() < 1.0);
        fine.then_some(next)
    }
}

/// Gauss-Legendre nodes and weights on [-1, 1].
struct Rule([(f64, f64); NODES]);

impl Rule {
    fn new() -> Self {
        Self(core::array::from_fn(|i| {
            let mut x = (core::f64::consts::PI * (i as f64 + 0.75) / (NODES as f64 + 0.5)).cos();
            let mut slope = 1.0;
            for _ in 0..100 {
                let (mut before, mut p) = (1.0, x);
                for k in 2..=NODES {
                    let k = k as f64;
                    (before, p) = (p, ((2.0 * k - 1.0) * x * p - (k - 1.0) * before) / k);
                }
                slope = NODES as f64 * (x * p - before) / (x * x - 1.0);
                let step = p / slope;
                x -= step;
                if step.abs() < 1e-16 {
                    break;
                }
            }
            (x, 2.0 / ((1.0 - x * x) * slope * slope))
        }))
    }

    /// Calls `f` with every node between `lo` and `hi` and its weight.
    fn over(&self, lo: f64, hi: f64, mut f: impl FnMut(f64, f64)) {
        let (middle, half) = (0.5 * (lo + hi), 0.5 * (hi - lo));
        self.0.iter().for_each(|(x, w)| f(middle + half * x, half * w));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn levels_are_symmetric_centroids_and_better_than_their_neighbours() {
        for n in [2, 3, 10, 64, 96, 128, 256] {
            for bits in 1..=6 {
                let c = levels(n, bits);
                assert_eq!(c.len(), 1 << bits);
                assert!(c.windows(2).all(|w| w[0] < w[1]) && c.iter().zip(c.iter().rev()).all(|(a, b)| *a == -b));
                let best = distortion(n, &c);
                // Rate-distortion theory from above: no more than the Gaussian limit's bound.
                assert!(
                    best < 3f64.sqrt() * core::f64::consts::PI / 2.0 * 4f64.powi(-i32::from(bits)),
                    "{n} {bits} {best}"
                );
                for i in [0, c.len() / 2, c.len() - 1] {
                    for by in [-1e-3, 1e-3] {
                        let mut moved = c.clone();
                        moved[i] += by * (2.0 / c.len() as f64);
                        assert!(distortion(n, &moved) > best, "{n} {bits} {i}");
                    }
                }
            }
        }
        // One bit: the mean of a half, sqrt(2 / (pi n)) in the limit.
        assert!((levels(256, 1)[1] * 16.0 - (2.0 / core::f64::consts::PI).sqrt()).abs() < 2e-3);
        assert!(levels(1, 4).is_empty() && levels(64, 0).is_empty() && levels(64, 9).is_empty());
    }
}
