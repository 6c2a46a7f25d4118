//! What a cache would take, before it takes it.
use crate::sizes::Sizes;
use crate::{Config, Error, Level};
use certkv_core::budget::{ByClass, Class, POOLS, by_pool};
use core::fmt;

/// Bytes needed of one pool, against its budget.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PoolPlan {
    /// Bytes needed.
    pub bytes: usize,
    /// Bytes allowed; `usize::MAX` for no limit.
    pub budget: usize,
}

impl PoolPlan {
    /// Bytes missing; 0 if they suffice.
    pub const fn lacks(&self) -> usize {
        self.bytes.saturating_sub(self.budget)
    }
}

/// What a cache takes when it is made, in bytes: exactly what its ledger will say. See [`Config::plan`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Plan {
    /// By class, in the order of [`crate::CLASSES`].
    pub classes: ByClass,
    /// Device memory.
    pub device: PoolPlan,
    /// Host memory, pinned where there is a GPU.
    pub host: PoolPlan,
    /// The most that is reserved later, in tables: value centres of cached prefixes, as they are published. A budget that has no room
    /// for them is no error: those prefixes are not cached. 0 without prefixes.
    pub later: usize,
}

impl Plan {
    pub(crate) fn new(classes: ByClass, later: usize, device_budget: usize, host_budget: usize) -> Self {
        let [device, host, _] = by_pool(&classes);
        Self {
            classes,
            device: PoolPlan { bytes: device, budget: device_budget },
            host: PoolPlan { bytes: host, budget: host_budget },
            later,
        }
    }

    /// Bytes of one class.
    pub const fn of(&self, class: Class) -> usize {
        self.classes[class as usize]
    }

    /// Whether the budgets suffice.
    pub const fn fits(&self) -> bool {
        self.device.lacks() == 0 && self.host.lacks() == 0
    }

    /// The answer for so many requests of so many tokens each in a cache of this configuration, whose own `max_tokens`,
    /// `max_sequences` and scratch do not count. Allocates nothing; asks some thirty plans.
    ///
    /// # Errors
    /// A configuration that is refused, or no request, or a request without tokens.
    pub fn for_requests(config: &Config, requests: Requests) -> Result<RequestsPlan, Error> {
        requests.answer(|count| {
            let config = config.for_requests(Requests { count, ..requests });
            Ok((config.plan()?, config.max_tokens, config.max_sequences))
        })
    }
}

impl fmt::Display for Plan {
    /// `fits`, or `lacks` with the bytes of each pool that is short.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let short = POOLS.into_iter().zip([self.device.lacks(), self.host.lacks()]).filter(|(_, bytes)| *bytes > 0);
        let mut any = false;
        for (pool, bytes) in short {
            f.write_str(if any { " and " } else { "lacks " })?;
            write!(f, "{bytes} bytes of {pool} memory")?;
            any = true;
        }
        if any { Ok(()) } else { f.write_str("fits") }
    }
}

/// Requests that are to live side by side, none of them sharing a block with another.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Requests {
    /// How many.
    pub count: usize,
    /// Tokens of each: prompt and answer.
    pub tokens: usize,
    /// Share of all key sides, and of all value sides, of which scratch keeps 16-bit copies, 0 to 1. What a tolerance needs depends on
    /// the model, and no rule is honest for all: docs/gpu.md has what was measured on one ([`crate::gpu::SCRATCH_SHARE`]).
    pub scratch: f64,
}

/// What requests come to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RequestsPlan {
    /// Bytes for all of them.
    pub plan: Plan,
    /// The configuration's `max_tokens` for them: each request in whole blocks.
    pub max_tokens: usize,
    /// The configuration's `max_sequences` for them.
    pub max_sequences: usize,
    /// The most requests of this length that fit the budgets, up to what a cache can have at all.
    pub most: usize,
}

/// No cache has more sequences.
const MOST_REQUESTS: usize = 1 << 20;

impl Requests {
    /// The answer, from the plan of any number of requests. What a plan refuses does not fit.
    pub(crate) fn answer(
        self,
        plan: impl Fn(usize) -> Result<(Plan, usize, usize), Error>,
    ) -> Result<RequestsPlan, Error> {
        let wrong = |field, why: &str| Err(Error::Config { field, why: why.into() });
        if self.count == 0 || self.tokens == 0 {
            return wrong("requests", "at least one, of at least one token");
        }
        if !(0.0..=1.0).contains(&self.scratch) {
            return wrong("requests", "scratch must be a share of 0 to 1");
        }
        let (found, max_tokens, max_sequences) = plan(self.count)?;
        let fits = |count: usize| plan(count).is_ok_and(|(plan, ..)| plan.fits());
        // More requests never need less.
        let (mut most, mut beyond) = (0, MOST_REQUESTS + 1);
        while most + 1 < beyond {
            let count = most + (beyond - most) / 2;
            if fits(count) {
                most = count;
            } else {
                beyond = count;
            }
        }
        Ok(RequestsPlan { plan: found, max_tokens, max_sequences, most })
    }

    /// Tokens of all requests, each in whole blocks.
    pub(crate) fn in_blocks(&self, block: usize) -> usize {
        let each = self.tokens.checked_next_multiple_of(block.max(1)).unwrap_or(usize::MAX);
        each.saturating_mul(self.count)
    }
}

impl Config {
    /// What [`crate::Cache::new`] would reserve, without reserving it. Records of spilled originals are no part of it: they come later,
    /// up to [`crate::Spill::disk_budget`]. Pure arithmetic; allocates a few words a layer.
    ///
    /// # Errors
    /// As [`crate::Cache::new`] for a field that is out of range. A budget that is too small is no error here.
    pub fn plan(&self) -> Result<Plan, Error> {
        let sizes = Sizes::new(self)?;
        Ok(Plan::new(sizes.reserved(), sizes.later, self.device_budget, self.host_budget))
    }

    /// The same configuration with room for these requests and no more, nor for longer ones; levels keep their shares of all tokens.
    #[must_use]
    pub fn for_requests(&self, requests: Requests) -> Self {
        let block = self.formats.iter().map(|format| format.block).max().unwrap_or(1);
        let max_tokens = requests.in_blocks(block);
        let each = self.geometry.layers * self.geometry.kv_heads / self.formats.len().max(1);
        let blocks =
            self.formats.iter().map(|format| max_tokens / format.block.max(1) * each).fold(0, usize::saturating_add);
        let sides = blocks as f64 * requests.scratch;
        let slots = (sides.ceil() as usize).min(MOST_SIDES);
        let levels = shared(&self.levels, block, self.max_tokens, max_tokens);
        let (scratch_keys, scratch_values) = (slots, slots);
        let (max_context, max_sequences) = (requests.tokens, requests.count);
        Self { max_tokens, max_context, max_sequences, scratch_keys, scratch_values, levels, ..self.clone() }
    }
}

/// Levels that keep their shares of all tokens, in blocks, which is what there are pages for, where those become other ones.
pub(crate) fn shared(levels: &[Level], block: usize, tokens: usize, other: usize) -> Vec<Level> {
    let of = |tokens: usize| tokens.div_ceil(block.max(1)) as u128;
    let blocks = |own: usize| (of(own) * of(other)).div_ceil(of(tokens).max(1));
    let share = |own: usize| usize::try_from(blocks(own) * block as u128).unwrap_or(usize::MAX);
    levels.iter().map(|level| Level { tokens: share(level.tokens), ..*level }).collect()
}

/// Most sides of one kind in a cache's scratch.
const MOST_SIDES: usize = 1 << 24;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Format, Geometry, RecordLayout};

    fn config() -> Config {
        Config::new(Geometry::new(2, 8, 2, 64).unwrap(), 1)
    }

    #[test]
    fn the_most_that_fits_fits_and_one_more_does_not() {
        let requests = Requests { count: 5, tokens: 1000, scratch: 0.05 };
        let needs = Plan::for_requests(&config(), requests).unwrap();
        assert_eq!((needs.max_tokens, needs.max_sequences, needs.plan.fits()), (5 * 1024, 5, true));
        // Budgets of exactly that much, then of a byte less of either.
        let (device, host) = (needs.plan.device.bytes, needs.plan.host.bytes);
        for (device_budget, host_budget, most, said) in [
            (device, host, 5, "fits"),
            (device - 1, host, 4, "lacks 1 bytes of device memory"),
            (device, host - 7, 4, "lacks 7 bytes of host memory"),
            (device - 2, host - 3, 4, "lacks 2 bytes of device memory and 3 bytes of host memory"),
            (0, host, 0, "device"),
        ] {
            let config = Config { device_budget, host_budget, ..config() };
            let answer = Plan::for_requests(&config, requests).unwrap();
            assert_eq!(answer.most, most);
            assert!(answer.plan.to_string().contains(said), "{}", answer.plan);
            let made = |count| crate::Cache::new(config.for_requests(Requests { count, ..requests })).is_ok();
            assert!((most == 0 || made(most)) && !made(most + 1));
        }
    }

    #[test]
    fn what_no_cache_has_is_refused() {
        for (count, tokens, scratch) in
            [(0, 1, 0.0), (1, 0, 0.0), (1, 1, -0.1), (1, 1, f64::NAN), (1 << 21, 1, 0.0), (2, usize::MAX, 0.0)]
        {
            assert!(matches!(
                Plan::for_requests(&config(), Requests { count, tokens, scratch }),
                Err(Error::Config { .. })
            ));
        }
    }

    /// Levels that have pages for every block of a cache have them for every block of the requests.
    #[test]
    fn levels_keep_their_shares_in_blocks() {
        let level = |format: &str, tokens| Level { format: format.parse().unwrap(), tokens };
        for (max_tokens, each) in [(1000, 321), (64, 1), (640, 640), (129, 100)] {
            let formats = ["t8-v8g64-b64", "t4-v4g64-b64", "t2-v2g64-b64"];
            let base = Config { max_tokens, ..config() }.with_levels(formats.map(|f| level(f, each)).to_vec());
            assert!(base.plan().is_ok(), "{max_tokens} {each}");
            let requests = Requests { count: 10, tokens: 8192, scratch: 0.0 };
            assert!(Plan::for_requests(&base, requests).is_ok(), "{max_tokens} {each}");
        }
    }

    #[test]
    fn scratch_is_a_share_of_all_sides() {
        let mut config = config();
        config.formats = vec!["k8-v4g32-b32".parse().unwrap(), "k8-v4g32-b64".parse().unwrap()];
        let made = config.for_requests(Requests { count: 3, tokens: 100, scratch: 0.5 });
        // 12 blocks of 32 tokens, 6 of 64, two heads.
        assert_eq!((made.max_tokens, made.scratch_keys, made.scratch_values), (384, 18, 18));
    }

    /// Nobody's tables are planned for the tokens of all: eight times as many requests take eight times the memory.
    #[test]
    fn tables_grow_with_the_requests_and_not_with_their_square() {
        let tables = |count| {
            let requests = Requests { count, tokens: 8192, scratch: 0.0 };
            Plan::for_requests(&config(), requests).unwrap().plan.of(Class::Tables)
        };
        let (few, many) = (tables(8), tables(64));
        assert!(many > 7 * few && many < 9 * few, "{few} {many}");
    }

    /// Block tables, masses and the seals in front of pages beside the codes that they are of, for 32 layers of 32 and 8 heads of 128 channels.
    /// (Of `tq2-tq2-b64`, whose records are a third of the default's, they are 1.02%.)
    #[test]
    fn tables_and_headers_are_a_hundredth_of_what_they_are_of() {
        let geometry = Geometry::new(32, 32, 8, 128).unwrap();
        for (format, count, tokens) in [
            (crate::DEFAULT_FORMAT, 64, 32768),
            (crate::DEFAULT_FORMAT, 8, 4096),
            ("tq3-tq3-b64", 64, 32768),
            ("tq3-tq3-b64", 1, 131_072),
            ("k8-v4g32-b32", 32, 8192),
        ] {
            let format: Format = format.parse().unwrap();
            let config = Config::new(geometry, 1).with_format(format);
            let plan = Plan::for_requests(&config, Requests { count, tokens, scratch: 0.0 }).unwrap().plan;
            let record = RecordLayout::new(&geometry, format).unwrap().bytes;
            let codes = count * tokens / format.block * geometry.layers * geometry.kv_heads * record;
            let beside = plan.of(Class::Tables) + plan.of(Class::Packed) - codes;
            assert!(100 * beside <= codes, "{format}, {count} x {tokens}: {beside} bytes beside {codes}");
        }
    }

    #[test]
    fn a_sequence_is_as_long_as_its_cache_lets_it() {
        let config = Config { max_context: 100, ..Config::new(Geometry::new(1, 2, 1, 64).unwrap(), 1024) };
        let cache = crate::Cache::new(config.clone()).unwrap();
        let id = cache.create().unwrap();
        // In whole blocks.
        let most = 100usize.next_multiple_of(config.formats[0].block);
        let begin = |tokens| cache.begin(&[crate::Chunk { sequence: id, tokens }]).map(drop);
        assert!(begin(most).is_ok() && matches!(begin(most + 1), Err(Error::TooLong { .. })));
        // Longer than all together may be it is not.
        for max_context in [0, 1024, 1 << 20] {
            let cache = crate::Cache::new(Config { max_context, ..config.clone() }).unwrap();
            let sequence = cache.create().unwrap();
            assert!(cache.begin(&[crate::Chunk { sequence, tokens: 1024 }]).is_ok());
        }
        assert!(crate::Cache::new(Config { max_context: (1 << 31) + 1, ..config }).is_err());
    }
}
