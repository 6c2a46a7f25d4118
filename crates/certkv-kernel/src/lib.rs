//! The computations: attention on codes, dense attention, packing, certificates; CPU.
