//! Calibrations and codebooks for caches whose formats need them, of rows such as tests have.
use super::{random_queries, random_rows};
use certkv::{Config, Tier};
use certkv_testkit::calibrate::{calibration, codebooks};
use certkv_testkit::generate::Rng;

/// The configuration with what its formats need, those of levels included.
pub(crate) fn calibrated(mut config: Config, seed: u64) -> Config {
    let (geometry, mut r) = (config.geometry, Rng::new(seed));
    let formats = config.formats.iter().chain(config.levels.iter().map(|level| &level.format));
    let keys: Vec<_> = formats.map(|format| format.key).filter(|key| key.is_calibrated()).collect();
    let rows = random_rows(&geometry, if keys.is_empty() { 0 } else { 200 }, &mut r);
    let seen: Vec<f32> = rows.keys[0].iter().map(|bits| geometry.store.decode16(*bits)).collect();
    if keys.iter().any(|key| key.tier().is_none()) {
        let queries = random_queries(&geometry, 200, &mut r);
        config.calibration = Some(calibration(&geometry, &seen, &queries, 0).into());
    }
    let tiers = Tier::ALL.into_iter().filter(|tier| keys.iter().any(|key| key.tier() == Some(*tier)));
    config.codebooks = tiers.map(|tier| codebooks(&geometry, tier, &seen, 0).into()).collect();
    config
}
