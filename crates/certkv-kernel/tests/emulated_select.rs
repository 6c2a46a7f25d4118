//! The selection kernel of the GPU, run on the emulator: what it chooses against the same choice in f64, what it does with slots,
//! and the ladder attend, repair, attend.
#![allow(clippy::neg_cmp_op_on_partial_ord, reason = "`!(a <= b)` is written where NaN has to fail")]
#[path = "emulated_select/choice.rs"]
mod choice;
#[path = "device_cases/mod.rs"]
mod device_cases;
#[path = "emulated_select/elsewhere.rs"]
mod elsewhere;
#[path = "emulated/mod.rs"]
mod emulated;
#[path = "emulated_select/ladder.rs"]
mod ladder;
#[path = "emulated_select/levels.rs"]
mod levels;
#[path = "emulated_select/protect.rs"]
mod protect;
#[path = "emulated_select/slots.rs"]
mod slots;
#[path = "emulated_select/stages.rs"]
mod stages;
#[path = "emulated_select/world.rs"]
mod world;
