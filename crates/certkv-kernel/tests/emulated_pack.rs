//! Packing, appending, transcoding and page-in on the GPU, through the emulator: records are the CPU encoder's in fragment order, code for
//! code, and their summaries are true.
#[path = "emulated_pack/append.rs"]
mod append;
#[path = "device_cases/books.rs"]
#[allow(unreachable_pub, reason = "other test programs use it, too")]
mod books;
#[path = "emulated/mod.rs"]
mod emulated;
#[path = "emulated_pack/fixed.rs"]
mod fixed;
#[path = "emulated_pack/gather.rs"]
mod gather;
#[path = "emulated_pack/pack.rs"]
mod pack;
#[path = "emulated_pack/refused.rs"]
mod refused;
#[path = "emulated_pack/rehome.rs"]
mod rehome;
#[path = "emulated_pack/spectral.rs"]
mod spectral;
#[path = "emulated_pack/support.rs"]
mod support;
#[path = "emulated_pack/swap.rs"]
mod swap;
#[path = "emulated_pack/transcode.rs"]
mod transcode;
#[path = "device_cases/widths.rs"]
#[allow(unreachable_pub, reason = "other test programs use it, too")]
mod widths;
