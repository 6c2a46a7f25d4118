//! The default format and tolerance, and the codes that the twin breaks.

/// Format of the default modes.
pub const FORMAT: &str = certkv::DEFAULT_FORMAT;

/// Relative tolerance of the default modes.
pub const TOLERANCE: f64 = 0.05;

/// Formats that the default was chosen from: values of 4 to 8 bits, in groups and blocks of several sizes.
pub const SWEEP_FORMATS: [&str; 7] =
    ["k8-v4g64-b64", "k8-v4g32-b64", "k8-v4g64-b32", "k8-v4g32-b32", "k8-v5g64-b64", "k8-v6g64-b64", "k8-v8g64-b64"];

/// Tolerances that the default was chosen from.
pub const SWEEP_TOLERANCES: [f64; 5] = [0.01, 0.02, 0.05, 0.1, 0.2];

/// Tasks of the sweep, one prompt of 8K tokens each: a needle among near misses, a dictionary, a chain of variables.
pub const SWEEP_TASKS: [&str; 3] = ["niah_grid", "kv_near", "vt"];

/// Bytes predicted at the end of each window of the sweep's text.
pub const SWEEP_SCORED: usize = 48;

/// Per-token int4 keys with the finest tuned values: on the outlier twin its answers fall apart without a certificate.
pub const TWIN_FORMAT: &str = "t4-v4g16-b16";

/// Seed of every random choice unless one is given.
pub const SEED: u64 = 1;

/// Parts of the bundled text.
pub const TEXT_PARTS: [&str; 2] = ["prose", "code"];
