//! Steps of three sequences, on the host or on a GPU, and what their calls ask for.
use crate::{asked, asking, message};
use certkv_c::certkv_status::CERTKV_OK;
use certkv_c::*;
use core::hint::black_box;
use core::ptr;

/// Tokens to a block, and of a prompt.
pub(crate) const BLOCK: u64 = 16;
pub(crate) const PROMPT: u64 = 100;
/// Sequences of a step.
pub(crate) const BATCH: usize = 3;
pub(crate) const LAYERS: u32 = 2;

/// Requests of the calls of one step: begin, append, attend, finish.
pub(crate) type Step = [u64; 4];

/// A cache, and how it is called.
pub(crate) trait Calls {
    fn cache(&self) -> *mut certkv_cache;
    fn sequences(&self) -> [certkv_sequence; BATCH];
    fn append(&mut self, step: *mut certkv_step, layer: u32, tokens: u64) -> certkv_status;
    fn attend(&mut self, step: *mut certkv_step, layer: u32) -> certkv_status;
    /// New tokens of each sequence in a step: a draft that is verified where it is more than one.
    fn draft(&self) -> u64 {
        1
    }
}

pub(crate) struct Life<C> {
    pub(crate) calls: C,
    /// Something is allocated beside this call of a step, and only where a block becomes full.
    pub(crate) planted: Option<(usize, bool)>,
}

impl<C: Calls> Life<C> {
    /// With prompts.
    pub(crate) fn new(calls: C) -> Self {
        let mut life = Self { calls, planted: None };
        life.step(PROMPT, false);
        life
    }

    /// One request of a word, if it is planted in this call.
    fn plant(&self, call: usize, fills: bool) {
        if self.planted == Some((call, fills)) {
            black_box(Box::new(7u64));
        }
    }

    /// A step that ends a block, or one that does not.
    fn step(&mut self, tokens: u64, fills: bool) -> Step {
        let chunks = self.calls.sequences().map(|sequence| certkv_chunk { sequence, tokens });
        let mut step = ptr::null_mut();
        let (begin, began) = asked(|| {
            self.plant(0, fills);
            // SAFETY: as many chunks, and a local.
            unsafe { certkv_step_begin(self.calls.cache(), chunks.as_ptr(), BATCH as u64, &mut step) }
        });
        assert_eq!(began, CERTKV_OK, "{}", message());
        let (mut append, mut attend) = (0, 0);
        for layer in 0..LAYERS {
            let (n, appended) = asked(|| {
                if layer == 0 {
                    self.plant(1, fills);
                }
                self.calls.append(step, layer, tokens)
            });
            assert_eq!(appended, CERTKV_OK, "{}", message());
            append += n;
            if tokens == self.calls.draft() {
                let (n, attended) = asked(|| {
                    if layer == 0 {
                        self.plant(2, fills);
                    }
                    self.calls.attend(step, layer)
                });
                assert_eq!(attended, CERTKV_OK, "{}", message());
                attend += n;
            }
        }
        let (finish, finished) = asked(|| {
            self.plant(3, fills);
            // SAFETY: a live handle.
            unsafe { certkv_step_finish(step) }
        });
        assert_eq!(finished, CERTKV_OK, "{}", message());
        [begin, append, attend, finish]
    }

    /// Steps behind a prompt until there are so many tokens: what the steps asked for in which no block became full, and those in which one did;
    /// the first step is apart.
    fn decode(&mut self, until: u64) -> (Step, [Vec<Step>; 2]) {
        for sequence in self.calls.sequences() {
            // SAFETY: a live handle.
            assert_eq!(unsafe { certkv_sequence_truncate(self.calls.cache(), sequence, PROMPT) }, CERTKV_OK);
        }
        let mut steps = [Vec::new(), Vec::new()];
        // What is remembered of a sequence is made anew once it was cut.
        let draft = self.calls.draft();
        let first = self.step(draft, false);
        for tokens in (PROMPT + 2 * draft..=until).step_by(draft as usize) {
            let fills = tokens % BLOCK < draft;
            let asked = self.step(draft, fills);
            steps[usize::from(fills)].push(asked);
        }
        (first, steps)
    }
}

/// What was seen of some lives.
#[derive(Default)]
pub(crate) struct Counts {
    executed: usize,
    failed: usize,
    caught: usize,
    controls: usize,
}

impl Counts {
    /// Steps until there are `until` tokens, twice: the second time their lengths are not new to the cache.
    pub(crate) fn judge<C: Calls>(&mut self, what: &str, mut life: Life<C>, until: u64) -> C {
        // Cold steps are seen to ask.
        let (first, [cold, _]) = life.decode(until);
        self.control(asking(&[first]) + asking(&cold) > 0);
        let (_, steady) = life.decode(until);
        for (steps, which) in steady.iter().zip(["a step", "one that fills a block"]) {
            println!("{what}: {which}: {:?}", steps.iter().max());
            (self.executed, self.failed) = (self.executed + steps.len(), self.failed + asking(steps));
        }
        // Planted: one request of a word, in each call, in steps that fill a block and in others; that many more steps ask than without.
        for planted in (0..4).flat_map(|call| [(call, false), (call, true)]) {
            life.planted = Some(planted);
            let (_, [steps, full]) = life.decode(132);
            let (of, others) = if planted.1 { (&full, &steps) } else { (&steps, &full) };
            let seen = of.iter().all(|calls| calls[planted.0] > 0) && !of.is_empty();
            let alone = cfg!(debug_assertions) || asking(others) == 0;
            self.control(seen && alone);
        }
        life.calls
    }

    /// Something that had to be so, for the rest to mean anything.
    pub(crate) fn control(&mut self, held: bool) {
        (self.caught, self.controls) = (self.caught + usize::from(held), self.controls + 1);
    }

    /// Says what was seen. In debug builds devices ask for themselves.
    pub(crate) fn report(&self, gate: &str) {
        let Self { executed, failed, caught, controls } = self;
        println!("GATE {gate} executed={executed} failed={failed} controls={caught}/{controls} seed=0x0");
        assert_eq!(caught, controls);
        assert!(cfg!(debug_assertions) || *failed == 0);
    }
}
