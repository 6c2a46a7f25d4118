//! Ids of sequences that are not there: released ones whose place is another's, and those of another cache.
use certkv::{Cache, Chunk, Config, Error, Geometry, SequenceId};
use certkv_testkit::generate::Rng;

use crate::common::{fill, random_rows};

/// Every call refuses them, and the sequence that has their place keeps its tokens.
pub(crate) fn run(seed: u64) -> Result<u64, String> {
    let mut r = Rng::new(seed);
    let geometry = Geometry::new(1, 2, 1, 64).map_err(|e| e.to_string())?;
    let cache = || {
        let config = Config { max_sequences: 2, ..Config::new(geometry, 64) };
        Cache::new(config.with_format("k8-v4g32-b16".parse().map_err(|_| "a format")?)).map_err(|e| e.to_string())
    };
    let (here, there) = (cache()?, cache()?);
    let [stale, foreign] = [&here, &there].map(Cache::create);
    let (stale, foreign) = (stale.map_err(|e| e.to_string())?, foreign.map_err(|e| e.to_string())?);
    here.release(stale).map_err(|e| e.to_string())?;
    let own = here.create().map_err(|e| e.to_string())?;
    fill(&here, own, &random_rows(&geometry, 20, &mut r)).map_err(|e| e.to_string())?;
    for id in [stale, foreign] {
        if id.slot != own.slot {
            return Err("the places differ".into());
        }
        refused(&here, id)?;
    }
    match here.len(own) {
        Ok(20) => Ok(8),
        len => Err(format!("the owner of the place has {len:?} tokens")),
    }
}

fn refused(cache: &Cache, id: SequenceId) -> Result<(), String> {
    let answers = [
        ("len", cache.len(id).err()),
        ("begin", cache.begin(&[Chunk { sequence: id, tokens: 1 }]).err()),
        ("truncate", cache.truncate(id, 3).err()),
        ("release", cache.release(id).err()),
    ];
    for (what, answer) in answers {
        if !matches!(answer, Some(Error::UnknownSequence(unknown)) if unknown == id) {
            return Err(format!("{what} of {id}: {answer:?}"));
        }
    }
    Ok(())
}
