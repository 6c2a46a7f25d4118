//! Names of cached prefixes: what a prompt finds that differs from the published one in one thing.
use certkv::{Cache, Config, Eviction, Geometry, PrefixConfig, PrefixScope, PrefixSecret};
use certkv_testkit::generate::Rng;

use crate::common::{fill, random_rows};

const TOKENS: usize = 64;

/// Publishes under one scope; the same prompt there is found, and no other prompt or scope finds anything.
pub(crate) fn run(seed: u64) -> Result<u64, String> {
    let mut r = Rng::new(seed);
    let geometry = Geometry::new(1, 2, 1, 64).map_err(|e| e.to_string())?;
    let secret = PrefixSecret::new(std::array::from_fn(|_| r.below(256) as u8));
    let prefixes = Some(PrefixConfig { secret, units: 8, eviction: Eviction::Lru });
    let config = Config { prefixes, max_sequences: 8, ..Config::new(geometry, 4 * TOKENS) };
    let config = config.with_format("k8-v4g32-b16".parse().map_err(|_| "a format")?);
    let cache = Cache::new(config).map_err(|e| e.to_string())?;
    let own = PrefixScope { adapter: Some(b"first"), ..PrefixScope::new(b"a tenant", b"a model") };
    let tokens: Vec<u32> = (0..TOKENS).map(|_| r.below(1 << 16) as u32).collect();
    let id = cache.create().map_err(|e| e.to_string())?;
    fill(&cache, id, &random_rows(&geometry, TOKENS, &mut r)).map_err(|e| e.to_string())?;
    cache.publish(id, &own, tokens[..].into()).map_err(|e| e.to_string())?;
    let find = |scope: &PrefixScope<'_>, tokens: &[u32]| -> Result<usize, String> {
        let (id, found) = cache.create_from(scope, tokens.into()).map_err(|e| e.to_string())?;
        cache.release(id).map_err(|e| e.to_string())?;
        Ok(found)
    };
    let found = find(&own, &tokens)?;
    if found != TOKENS {
        return Err(format!("the prompt itself finds {found} tokens"));
    }
    let mut other = tokens.clone();
    other[r.below(16)] ^= 1 << r.below(16);
    let strangers = [
        ("another adapter", PrefixScope { adapter: Some(b"second"), ..own }, &tokens),
        ("no adapter", PrefixScope { adapter: None, ..own }, &tokens),
        ("another circle", PrefixScope { domain: b"another tenant", ..own }, &tokens),
        ("another token", own, &other),
    ];
    for (who, scope, tokens) in strangers {
        let found = find(&scope, tokens)?;
        if found > 0 {
            return Err(format!("{who} finds {found} tokens"));
        }
    }
    Ok(1 + strangers.len() as u64)
}
