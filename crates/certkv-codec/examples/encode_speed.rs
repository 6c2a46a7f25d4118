//! Time to encode one record, per format, on one core: `cargo run --release -p certkv-codec --example encode_speed`.
use certkv_codec::Encoder;
use certkv_core::{Dtype, Geometry, RecordLayout, hash::splitmix64};
use std::{hint::black_box, time::Instant};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("{:<18} {:>5} {:>9} {:>12} {:>14}", "format", "dim", "bytes", "median us", "tokens/s");
    for (text, dim) in [
        ("k8-v4g32-b64", 128),
        ("k8-v6g64-b64", 128),
        ("k8-v4g32-b32", 128),
        ("k8-v8g64-b32", 128),
        ("k8-v5g32-b32", 128),
        ("t4-v4g32-b32", 128),
        ("t8g32-v3g16-b32", 64),
        ("k8-v4g16-b16", 128),
        ("k8-v4g32-b64", 256),
        ("f16-v4g32-b32", 128),
        ("f16-f16-b32", 128),
    ] {
        let layout = RecordLayout::new(&Geometry::new(1, 1, 1, dim)?, text.parse()?)?;
        let number = |i: usize| (splitmix64(i as u64) % 4001) as f32 / 1000.0 - 2.0;
        let keys: Vec<u16> = (0..layout.count()).map(|i| Dtype::F16.encode16(number(i))).collect();
        let values: Vec<u16> = (0..layout.count()).map(|i| Dtype::F16.encode16(number(i + 77_777))).collect();
        let centre = vec![0.1; dim];
        let mut record = vec![0; layout.bytes];
        let mut encoder = Encoder::new(&layout);
        let mut times: Vec<f64> = (0..400)
            .map(|_| {
                let start = Instant::now();
                let done = encoder.encode(black_box(&keys), black_box(&values), &centre, black_box(&mut record));
                done.map(|()| start.elapsed().as_secs_f64() * 1e6)
            })
            .collect::<Result<_, _>>()?;
        times.sort_by(f64::total_cmp);
        let median = times[times.len() / 2];
        let rate = layout.tokens() as f64 / median * 1e6;
        println!("{text:<18} {dim:>5} {:>9} {median:>12.1} {rate:>14.0}", layout.bytes);
    }
    Ok(())
}
