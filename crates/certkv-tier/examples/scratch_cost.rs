//! Prints what look-ups and fills cost on this machine: `cargo run --release -p certkv-tier --example scratch_cost`.
use certkv_core::PageId;
use certkv_device::{Mode, SimDevice, SimOptions};
use certkv_tier::{Lane, OriginalLayout, Originals, Scratch, ScratchConfig, Side, SideKey};
use std::error::Error;
use std::time::Instant;

const PAGES: u32 = 256;

fn main() -> Result<(), Box<dyn Error>> {
    let device = SimDevice::new(SimOptions { mode: Mode::Eager, check: false });
    let layout = OriginalLayout::new(1, 8, 32, 128)?;
    let originals = Originals::new(&device, layout, PAGES)?;
    let config = ScratchConfig { key_slots: 1024, value_slots: 0, slot_bytes: layout.side_bytes() };
    let scratch = Scratch::new(&device, config)?;
    let (lane, compute) = (Lane::new(&device, "lane"), device.stream("compute"));
    let keys: Vec<SideKey> = (0..PAGES)
        .flat_map(|index| (0..8).map(move |head| SideKey::new(PageId { index, generation: 1 }, 0, head, Side::Key)))
        .collect();
    let figure = |what: &str, n: usize, start: Instant| {
        println!("{what}: {:.1} ns", start.elapsed().as_nanos() as f64 / n as f64);
    };
    for batch in [1, 64] {
        let (start, mut n) = (Instant::now(), 0);
        for _ in 0..20 {
            for keys in keys.chunks(batch) {
                let items: Vec<_> = keys.iter().map(|&key| originals.item(key, key.page.index, None)).collect();
                drop(scratch.prefetch(&lane, originals.arena(), &items)?);
                n += items.len();
            }
        }
        figure(&format!("fill of 8 KiB with eviction, batches of {batch}"), n, start);
    }
    let resident: Vec<SideKey> = keys.iter().copied().filter(|key| scratch.contains(key)).collect();
    let mut leases = Vec::with_capacity(resident.len());
    let start = Instant::now();
    for _ in 0..100 {
        for key in &resident {
            leases.extend(scratch.lookup(key, &compute)?);
        }
        leases.clear();
    }
    figure("look-up with lease", 100 * resident.len(), start);
    println!("{:?}", scratch.stats());
    Ok(())
}
