//! Buffers, streams, events and the simulated device with its happens-before checker.
