//! What a snapshot costs, beside 1, 100 and 10,000 sequences: `cargo run --release -p certkv --example snapshot`.
use certkv::{Cache, Config, Eviction, Geometry, PrefixConfig, PrefixSecret};
use std::time::Instant;

fn main() -> Result<(), certkv::Error> {
    for sequences in [1, 100, 10_000] {
        let prefixes = PrefixConfig { secret: PrefixSecret::new([1; 32]), units: 10_000, eviction: Eviction::S3Fifo };
        let config = Config {
            max_sequences: sequences,
            scratch_keys: 1 << 16,
            scratch_values: 1 << 16,
            prefixes: Some(prefixes),
            ..Config::new(Geometry::new(2, 8, 2, 64)?, 1 << 16)
        };
        let cache = Cache::new(config)?;
        for _ in 0..sequences {
            cache.create()?;
        }
        let mut times: Vec<u128> = (0..2001)
            .map(|_| {
                let start = Instant::now();
                std::hint::black_box(cache.snapshot());
                start.elapsed().as_nanos()
            })
            .collect();
        times.sort_unstable();
        println!("{sequences:>6} sequences: {} ns, {} at the 99th percentile", times[1000], times[1980]);
    }
    Ok(())
}
