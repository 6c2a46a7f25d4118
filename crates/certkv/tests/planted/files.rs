//! What left the cache and returns: a file of another format with records of the same size, and a page with a bit changed.
use certkv::seal::Seal;
use certkv::{Cache, Config, Error, Geometry, SaveError, SaveScope, SequenceId};
use certkv_testkit::generate::Rng;

use crate::common::{fill, random_rows};

const SCOPE: SaveScope<'_> = SaveScope { model: b"weights", key: None };

/// A cache of `format` with a sequence of 40 tokens.
fn filled(format: &str, r: &mut Rng) -> Result<(Cache, SequenceId), String> {
    let geometry = Geometry::new(1, 2, 1, 64).map_err(|e| e.to_string())?;
    let format = format.parse().map_err(|_| "a format")?;
    let config = Config { max_sequences: 4, ..Config::new(geometry, 128) };
    let cache = Cache::new(config.with_format(format)).map_err(|e| e.to_string())?;
    let id = cache.create().map_err(|e| e.to_string())?;
    fill(&cache, id, &random_rows(&geometry, 40, r)).map_err(|e| e.to_string())?;
    Ok((cache, id))
}

/// Codes of e4m3 are as many as those of e5m2 and mean something else.
pub(crate) fn run(seed: u64) -> Result<u64, String> {
    let mut r = Rng::new(seed);
    let (from, id) = filled("e4m3-e4m3-b16", &mut r)?;
    let (to, _) = filled("e5m2-e5m2-b16", &mut r)?;
    let mut file = Vec::new();
    from.save(id, &SCOPE, &mut file).map_err(|e| e.to_string())?;
    match to.restore(&SCOPE, &mut &file[..]) {
        Err(Error::Save(SaveError::Differs { .. })) => {}
        answer => return Err(format!("a file of another format: {answer:?}")),
    }
    match from.restore(&SCOPE, &mut &file[..]) {
        Ok(_) => Ok(2),
        Err(e) => Err(format!("its own file: {e}")),
    }
}

/// A seal is read from the page as it is, and from none with a bit changed.
pub(crate) fn run_rot(seed: u64) -> Result<u64, String> {
    let mut r = Rng::new(seed);
    let (cache, id) = filled("k8-v4g32-b16", &mut r)?;
    let mut page = cache.packed_page(id, 0, 1).map_err(|e| e.to_string())?;
    let sealed = Seal::read(&page).map_err(|e| e.to_string())?;
    for _ in 0..20 {
        let at = r.below(8 * page.len());
        page[at / 8] ^= 1 << (at % 8);
        if Seal::read(&page).as_ref() == Ok(&sealed) {
            return Err(format!("bit {at} of {} changed, and the seal holds", 8 * page.len()));
        }
        page[at / 8] ^= 1 << (at % 8);
    }
    Ok(20)
}
