//! Fixed scales of a cache: checked once, when it is made.
use crate::{Config, Error};
use certkv_control::scales::ScaleHeads;
use certkv_core::Format;

/// True if a side of `format` has one scale per block.
pub(crate) fn takes(format: &Format) -> bool {
    format.key.page().is_some() || format.value.page().is_some()
}

/// # Errors
/// [`Error::Config`] for scales that no format takes; [`Error::Calibration`] for those of another geometry.
pub(crate) fn check(config: &Config) -> Result<(), Error> {
    let Some(scales) = &config.scales else { return Ok(()) };
    if !config.formats.iter().any(takes) {
        let why = "no format has one scale per block (such as p8 or e4m3); it must be `None`".to_owned();
        return Err(Error::Config { field: "scales", why });
    }
    let g = &config.geometry;
    let wanted = ScaleHeads { layers: g.layers, kv_heads: g.kv_heads, head_dim: g.head_dim };
    Ok(scales.heads().check_for(&wanted)?)
}
