//! What a plan for a million items costs: `cargo run --release -p certkv-control --example plan_cost`.
use certkv_control::smartkv::{Items, Ladder, WidthAllocator};
use certkv_control::{Allocator, BitSet, Choices, ControlError};
use certkv_core::hash::splitmix64;
use std::time::Instant;

const ITEMS: usize = 1_000_000;
const RUNS: usize = 9;

fn number(i: u64) -> f64 {
    (splitmix64(i) >> 11) as f64 / (1u64 << 53) as f64
}

/// Median milliseconds.
fn time(mut work: impl FnMut() -> Result<f64, ControlError>) -> Result<f64, ControlError> {
    let mut all = [0.0; RUNS];
    for time in &mut all {
        let start = Instant::now();
        std::hint::black_box(work()?);
        *time = start.elapsed().as_secs_f64() * 1e3;
    }
    all.sort_by(f64::total_cmp);
    Ok(all[RUNS / 2])
}

fn main() -> Result<(), ControlError> {
    let score: Vec<f64> = (0..ITEMS as u64).map(number).collect();
    let (none, mut widths, mut allocator) = (BitSet::new(ITEMS), WidthAllocator::new(), Allocator::new());
    let items = Items { score: &score, previous: &[], may_rise: &none, may_fall: &none, protected: [4, 2], held: None };
    let ladder = Ladder { bits: &[2, 3, 4, 8], cost: &[36.0, 52.0, 68.0, 132.0] };
    let cost: Vec<f64> = [28.0, 24.0, 12.0, 0.0].repeat(ITEMS);
    let loss: Vec<f64> = score.iter().flat_map(|x| [0.0, 0.1 * x, 0.5 * x, 2.0 * x]).collect();
    let choices = Choices { levels: 4, cost: &cost, loss: &loss };
    for share in [0.1, 0.5, 0.9] {
        let budget = (36.0 + 96.0 * share) * ITEMS as f64;
        let spent = time(|| Ok(widths.solve(&ladder, &items, 0.6, budget)?.used))?;
        let found = time(|| Ok(allocator.solve(&choices, 28.0 * share * ITEMS as f64)?.used))?;
        println!("{ITEMS} items, {share} of the range: SmartKV widths {spent:.0} ms, levels by hulls {found:.0} ms");
    }
    Ok(())
}
