//! Tests of the scratch cache and the pool of originals over the simulated device.
mod adversarial;
mod explore;
mod faults;
mod host;
mod scratch;
mod world;
