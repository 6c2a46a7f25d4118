//! Prints what a guard, a copy and a fence cost on this machine: `cargo run --release -p certkv-device --example device_cost`.
use certkv_device::{DeviceError, Dst, Mode, SimDevice, SimOptions, Src};
use std::time::Instant;

fn main() -> Result<(), DeviceError> {
    for (name, mode, check) in [
        ("eager", Mode::Eager, false),
        ("eager, checked", Mode::Eager, true),
        ("adversarial, checked", Mode::Adversarial { seed: 1 }, true),
    ] {
        let device = SimDevice::new(SimOptions { mode, check });
        let (one, two) = (device.arena("one", 4096, 8192)?, device.arena("two", 64, 8192)?);
        let stream = device.stream("compute");
        let figure = |what: &str, n: u32, run: &mut dyn FnMut(u32) -> Result<(), DeviceError>| {
            let start = Instant::now();
            (0..n).try_for_each(run)?;
            println!("{name}: {what} {:.1} ns", start.elapsed().as_nanos() as f64 / f64::from(n));
            Ok::<(), DeviceError>(())
        };
        figure("read guard", 1_000_000, &mut |i| one.read(i % 4096, &stream).map(drop))?;
        let mut held = Vec::with_capacity(4096);
        figure("read guard kept in a Vec", 1_000_000, &mut |i| {
            if i % 4096 == 0 {
                held.clear();
            }
            held.push(one.read(i % 4096, &stream)?);
            Ok(())
        })?;
        drop(held);
        figure("write guard", 1_000_000, &mut |i| one.write(i % 4096, &stream).map(drop))?;
        for bytes in [256, 8192] {
            figure(&format!("copy of {bytes} bytes"), 500_000, &mut |i| {
                let src = Src { arena: &one, slot: i % 64, range: 0..bytes, expect: None };
                device.copy(&stream, src, Dst { arena: &two, slot: i % 64, offset: 0 })
            })?;
        }
        figure("fence recorded and waited for", 100_000, &mut |_| stream.wait(&stream.record()?))?;
    }
    Ok(())
}
