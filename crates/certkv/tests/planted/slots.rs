//! Slots further apart than 32 bits can say. Memory is mapped when it is touched: of four gigabytes a few pages are.
use certkv_device::{Mode, SimDevice, SimOptions};

const SLOT_BYTES: usize = 1 << 16;
/// Slots in 4 GiB.
const FAR: u32 = 1 << 16;

/// A slot behind the first 4 GiB is written, and no other changes.
pub(crate) fn run(seed: u64) -> Result<u64, String> {
    let device = SimDevice::new(SimOptions { mode: Mode::Eager, check: true });
    let text = |e: certkv_device::DeviceError| e.to_string();
    let (main, near) = (device.stream("main"), (seed >> 32) as u32 % 4);
    let arena = device.arena("large", FAR + 4, SLOT_BYTES).map_err(text)?;
    for (slot, byte) in [(near, 1), (FAR + near, 2)] {
        arena.write(slot, &main).map_err(text)?.bytes_mut().fill(byte);
    }
    for (slot, byte) in [(near, 1), (FAR + near, 2)] {
        let guard = arena.read(slot, &main).map_err(text)?;
        if guard.bytes().iter().any(|b| *b != byte) {
            return Err(format!("slot {slot} holds another slot's bytes"));
        }
    }
    Ok(4)
}
