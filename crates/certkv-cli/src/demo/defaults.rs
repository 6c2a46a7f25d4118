//! The default format and tolerance, and the codes that the twin breaks.

/// Format of the default modes.
pub const FORMAT: &str = certkv::DEFAULT_FORMAT;

/// Relative tolerance of the default modes.
pub const TOLERANCE: f64 = 0.05;

/// Per-token int4 keys with the finest tuned values: on the outlier twin its answers fall apart without a certificate.
pub const TWIN_FORMAT: &str = "t4-v4g16-b16";

/// Seed of every random choice unless one is given.
pub const SEED: u64 = 1;

/// Parts of the bundled text.
pub const TEXT_PARTS: [&str; 2] = ["prose", "code"];
