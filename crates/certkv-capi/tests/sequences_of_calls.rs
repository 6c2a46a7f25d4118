//! Random calls through the C functions against a small model of what they do: no panic, the status that the model
//! says, and no page left at the end.
use certkv_c::certkv_status::*;
use certkv_c::*;
use core::cell::RefCell;
use core::ptr;
use proptest::prelude::*;
use proptest::test_runner::TestRunner;

const KV: usize = 64;
const Q: usize = 2 * 64;
const SLOTS: usize = 3;
const MAX_TOKENS: u64 = 160;
const LAYERS: u32 = 2;

#[derive(Debug, Clone)]
enum Call {
    Create(usize),
    Fork {
        from: usize,
        to: usize,
    },
    Truncate {
        slot: usize,
        length: u64,
    },
    Release(usize),
    Length(usize),
    Memory,
    Begin(Vec<(usize, u64)>),
    Append {
        layer: u32,
        dtype: i32,
        hostile: bool,
    },
    Attend {
        layer: u32,
        certificates: bool,
    },
    Finish,
    Abort,
    /// All layers of a step, as a well-behaved caller makes them.
    Whole {
        slot: usize,
        tokens: u64,
    },
}

fn call() -> impl Strategy<Value = Call> {
    let slot = || 0..SLOTS;
    prop_oneof![
        3 => slot().prop_map(Call::Create),
        2 => (slot(), slot()).prop_map(|(from, to)| Call::Fork { from, to }),
        3 => (slot(), 0..90u64).prop_map(|(slot, length)| Call::Truncate { slot, length }),
        2 => slot().prop_map(Call::Release),
        1 => slot().prop_map(Call::Length),
        1 => Just(Call::Memory),
        6 => proptest::collection::vec((slot(), 0..50u64), 0..3).prop_map(Call::Begin),
        8 => (0..3u32, 0..5i32, proptest::bool::weighted(0.2))
            .prop_map(|(layer, dtype, hostile)| Call::Append { layer, dtype, hostile }),
        4 => (0..3u32, any::<bool>()).prop_map(|(layer, certificates)| Call::Attend { layer, certificates }),
        1 => Just(Call::Finish),
        1 => Just(Call::Abort),
        5 => (slot(), 1..50u64).prop_map(|(slot, tokens)| Call::Whole { slot, tokens }),
    ]
}

/// Slots and tokens of a step.
type Parts = Vec<(usize, u64)>;

/// What the calls should have made.
#[derive(Default)]
struct Model {
    /// Number and length of each live sequence; ended ones stay in `stale`.
    slots: [Option<(certkv_sequence, u64)>; SLOTS],
    stale: Vec<certkv_sequence>,
    /// Slots and tokens of the step, and which layers were appended.
    step: Option<(Parts, Vec<bool>)>,
}

struct Caller {
    cache: *mut certkv_cache,
    step: *mut certkv_step,
    model: Model,
    noise: u64,
    statuses: Vec<certkv_status>,
}

impl Caller {
    fn number(&mut self) -> f32 {
        self.noise = self.noise.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (self.noise >> 40) as f32 / (1 << 23) as f32 - 1.0
    }

    fn rows(&mut self, n: usize) -> Vec<f32> {
        (0..n).map(|_| self.number()).collect()
    }

    /// A live number of the slot, or one that must be refused.
    fn sequence(&self, slot: usize) -> certkv_sequence {
        self.model.slots[slot].map_or_else(|| self.model.stale.last().copied().unwrap_or(99), |(sequence, _)| sequence)
    }

    fn busy(&self, slot: usize) -> bool {
        self.model.step.as_ref().is_some_and(|(parts, _)| parts.iter().any(|(at, _)| *at == slot))
    }

    /// What a call on the slot's sequence says if it says nothing worse.
    fn standing(&self, slot: usize) -> certkv_status {
        match self.model.slots[slot] {
            None => CERTKV_UNKNOWN_SEQUENCE,
            Some(_) if self.busy(slot) => CERTKV_BUSY_SEQUENCE,
            Some(_) => CERTKV_OK,
        }
    }

    fn tokens(&self) -> usize {
        self.model.step.as_ref().map_or(1, |(parts, _)| parts.iter().map(|(_, tokens)| *tokens as usize).sum())
    }

    /// Remembers a status, which must be the model's.
    fn saw(&mut self, got: certkv_status, want: certkv_status) -> Result<bool, TestCaseError> {
        self.statuses.push(got);
        prop_assert!(got == want, "{got:?}, not {want:?}");
        Ok(got == CERTKV_OK)
    }

    /// The same for a call that may find no page: the model does not count pages.
    fn saw_pages(&mut self, got: certkv_status, want: certkv_status) -> Result<bool, TestCaseError> {
        let ran_out = want == CERTKV_OK && got == CERTKV_CAPACITY;
        self.saw(got, if ran_out { got } else { want })
    }

    fn apply(&mut self, call: &Call) -> Result<(), TestCaseError> {
        match call {
            Call::Create(slot) => {
                let mut made = 0;
                if self.model.slots[*slot].is_some() {
                    return Ok(());
                }
                // SAFETY: the out parameter is a local.
                let got = unsafe { certkv_sequence_create(self.cache, &mut made) };
                if self.saw(got, CERTKV_OK)? {
                    self.model.slots[*slot] = Some((made, 0));
                }
            }
            Call::Fork { from, to } => {
                let mut made = 0;
                if self.model.slots[*to].is_some() {
                    return Ok(());
                }
                // SAFETY: the out parameter is a local.
                let got = unsafe { certkv_sequence_fork(self.cache, self.sequence(*from), &mut made) };
                if self.saw_pages(got, self.standing(*from))? {
                    self.model.slots[*to] = self.model.slots[*from].map(|(_, length)| (made, length));
                }
            }
            Call::Truncate { slot, length } => {
                // SAFETY: no pointers.
                let got = unsafe { certkv_sequence_truncate(self.cache, self.sequence(*slot), *length) };
                let mut want = self.standing(*slot);
                if want == CERTKV_OK && self.model.slots[*slot].is_some_and(|(_, now)| *length > now) {
                    want = CERTKV_LENGTH;
                }
                if self.saw_pages(got, want)? {
                    self.model.slots[*slot] = self.model.slots[*slot].map(|(sequence, _)| (sequence, *length));
                }
            }
            Call::Release(slot) => {
                // SAFETY: no pointers.
                let got = unsafe { certkv_sequence_release(self.cache, self.sequence(*slot)) };
                if self.saw(got, self.standing(*slot))?
                    && let Some((sequence, _)) = self.model.slots[*slot].take()
                {
                    self.model.stale.push(sequence);
                }
            }
            Call::Length(slot) => {
                let mut length = 0;
                // SAFETY: the out parameter is a local.
                let got = unsafe { certkv_sequence_length(self.cache, self.sequence(*slot), &mut length) };
                if self.saw(got, self.standing(*slot))? {
                    prop_assert_eq!(Some(length), self.model.slots[*slot].map(|(_, length)| length));
                }
            }
            Call::Memory => {
                let memory = memory(self.cache);
                if self.model.step.is_none() {
                    let tokens: u64 = self.model.slots.iter().flatten().map(|(_, length)| length).sum();
                    prop_assert_eq!(memory.tokens, tokens);
                }
            }
            Call::Begin(parts) => self.begin(parts)?,
            Call::Append { layer, dtype, hostile } => self.append(*layer, *dtype, *hostile)?,
            Call::Attend { layer, certificates } => self.attend(*layer, *certificates)?,
            Call::Finish => self.finish()?,
            Call::Abort => {
                // SAFETY: a handle, live or not.
                let got = unsafe { certkv_step_abort(self.step) };
                let live = self.model.step.take().is_some() || self.step.is_null();
                self.saw(got, if live { CERTKV_OK } else { CERTKV_INVALID_HANDLE })?;
            }
            Call::Whole { slot, tokens } => {
                self.begin(&[(*slot, *tokens)])?;
                for layer in 0..LAYERS {
                    self.append(layer, CERTKV_F32, false)?;
                    self.attend(layer, true)?;
                }
                self.finish()?;
            }
        }
        Ok(())
    }

    fn begin(&mut self, parts: &[(usize, u64)]) -> Result<(), TestCaseError> {
        if self.model.step.is_some() {
            return Ok(());
        }
        let chunks: Vec<certkv_chunk> = parts
            .iter()
            .map(|(slot, tokens)| certkv_chunk { sequence: self.sequence(*slot), tokens: *tokens })
            .collect();
        // SAFETY: the chunks are a slice, the out parameter a field.
        let got = unsafe { certkv_step_begin(self.cache, chunks.as_ptr(), chunks.len() as u64, &mut self.step) };
        let mut want = if parts.is_empty() { CERTKV_SHAPE } else { CERTKV_OK };
        for (at, (slot, tokens)) in parts.iter().enumerate() {
            let length = self.model.slots[*slot].map_or(0, |(_, length)| length);
            let standing = self.standing(*slot);
            want = match standing {
                _ if *tokens == 0 => CERTKV_SHAPE,
                CERTKV_OK if parts[..at].iter().any(|(earlier, _)| earlier == slot) => CERTKV_BUSY_SEQUENCE,
                // The last block of a table may be longer than the limit on tokens.
                CERTKV_OK if length + tokens > MAX_TOKENS && got == CERTKV_LENGTH => got,
                CERTKV_OK => continue,
                refused => refused,
            };
            break;
        }
        self.statuses.push(got);
        // An earlier part may find no page before a later one is looked at.
        prop_assert!(got == want || got == CERTKV_CAPACITY && !parts.is_empty(), "{got:?}, not {want:?}");
        prop_assert_eq!(self.step.is_null(), got != CERTKV_OK);
        if got == CERTKV_OK {
            self.model.step = Some((parts.to_vec(), vec![false; LAYERS as usize]));
        }
        Ok(())
    }

    /// What a call on the step says if it says nothing worse.
    fn step_standing(&self) -> certkv_status {
        match (self.step.is_null(), &self.model.step) {
            (true, _) => CERTKV_NULL_POINTER,
            (_, None) => CERTKV_INVALID_HANDLE,
            _ => CERTKV_OK,
        }
    }

    fn append(&mut self, layer: u32, dtype: i32, hostile: bool) -> Result<(), TestCaseError> {
        let n = self.tokens() * KV;
        let (mut keys, values) = (self.rows(n), self.rows(n));
        if hostile {
            keys[n / 2] = f32::NAN;
        }
        let halves = |rows: &[f32], sixteen: fn(f32) -> u16| -> Vec<u16> { rows.iter().map(|x| sixteen(*x)).collect() };
        let sixteen: fn(f32) -> u16 = if dtype == CERTKV_F16 {
            |x| half::f16::from_f32(x).to_bits()
        } else {
            |x| half::bf16::from_f32(x).to_bits()
        };
        let (k16, v16) = (halves(&keys, sixteen), halves(&values, sixteen));
        let wide = dtype != CERTKV_F16 && dtype != CERTKV_BF16;
        let (k, v) = if wide {
            (keys.as_ptr().cast(), values.as_ptr().cast())
        } else {
            (k16.as_ptr().cast(), v16.as_ptr().cast())
        };
        // SAFETY: both buffers have `n` elements of the type, or of a wider one than a refused type.
        let got = unsafe { certkv_step_append(self.step, layer, k, v, n as u64, dtype, CERTKV_SPACE_HOST) };
        let mut want = self.step_standing();
        if let (CERTKV_OK, Some((_, appended))) = (want, &mut self.model.step) {
            want = match appended.get(layer as usize) {
                _ if !(CERTKV_F32..=CERTKV_BF16).contains(&dtype) => CERTKV_INVALID_ARGUMENT,
                None => CERTKV_LAYER,
                Some(true) => CERTKV_ORDER,
                Some(false) if hostile => CERTKV_NOT_FINITE,
                Some(false) => {
                    appended[layer as usize] = true;
                    CERTKV_OK
                }
            };
        }
        self.saw(got, want)?;
        Ok(())
    }

    fn attend(&mut self, layer: u32, certificates: bool) -> Result<(), TestCaseError> {
        let tokens = self.tokens();
        let (queries, mut out) = (self.rows(tokens * Q), vec![f32::NAN; tokens * Q]);
        let mut records = vec![certkv_certificate::default(); if certificates { tokens * 2 } else { 0 }];
        let (n, heads) = ((tokens * Q) as u64, records.len() as u64);
        let (from, to) = (queries.as_ptr(), out.as_mut_ptr());
        let at = if certificates { records.as_mut_ptr() } else { ptr::null_mut() };
        // SAFETY: all buffers have the elements that are given with them.
        let got = unsafe { certkv_step_attend(self.step, layer, from, to, n, at, heads, CERTKV_SPACE_HOST) };
        let mut want = self.step_standing();
        if let (CERTKV_OK, Some((_, appended))) = (want, &self.model.step) {
            want = match appended.get(layer as usize) {
                None => CERTKV_LAYER,
                Some(false) => CERTKV_ORDER,
                Some(true) => CERTKV_OK,
            };
        }
        if self.saw(got, want)? {
            prop_assert!(out.iter().all(|x| x.is_finite()));
            for record in &records {
                // Prefill is dense; its arithmetic is not bounded.
                let exact = record.status == CERTKV_EXACT && (tokens > 1 || record.bound.is_finite());
                prop_assert!(exact || (record.status == CERTKV_CERTIFIED && record.bound <= record.tol), "{record:?}");
            }
        } else {
            prop_assert!(out.iter().all(|x| x.is_nan()) && records.iter().all(|r| r.status == CERTKV_UNCERTIFIED));
        }
        Ok(())
    }

    fn finish(&mut self) -> Result<(), TestCaseError> {
        // SAFETY: a handle, live or not.
        let got = unsafe { certkv_step_finish(self.step) };
        let mut want = self.step_standing();
        if let Some((parts, appended)) = self.model.step.take() {
            if appended.iter().all(|done| *done) {
                for (slot, tokens) in parts {
                    if let Some((_, length)) = &mut self.model.slots[slot] {
                        *length += tokens;
                    }
                }
            } else {
                want = CERTKV_ORDER;
            }
        }
        self.saw(got, want)?;
        Ok(())
    }
}

fn memory(cache: *mut certkv_cache) -> certkv_memory {
    let mut memory = certkv_memory { struct_size: size_of::<certkv_memory>() as u32, ..Default::default() };
    // SAFETY: the struct has the size that it says.
    assert_eq!(unsafe { certkv_cache_memory(cache, &mut memory) }, CERTKV_OK);
    memory
}

fn new_cache(policy: i32, store: i32) -> *mut certkv_cache {
    let mut config = core::mem::MaybeUninit::<certkv_config>::uninit();
    let mut cache = ptr::null_mut();
    // SAFETY: the struct has the size that is given; the out parameter is a local.
    unsafe {
        assert_eq!(certkv_config_init(config.as_mut_ptr(), size_of::<certkv_config>() as u32), CERTKV_OK);
        let mut config = config.assume_init();
        (config.layers, config.q_heads, config.kv_heads, config.head_dim) = (LAYERS, 2, 1, 64);
        (config.max_tokens, config.max_sequences) = (MAX_TOKENS, SLOTS as u32);
        (config.policy, config.store) = (policy, store);
        assert_eq!(certkv_cache_create(&config, &mut cache), CERTKV_OK);
    }
    cache
}

/// Runs the calls on a new cache, ends everything, and gives the statuses that were seen.
fn play(calls: &[Call], policy: i32, store: i32, noise: u64) -> Result<Vec<certkv_status>, TestCaseError> {
    let cache = new_cache(policy, store);
    let mut caller = Caller { cache, step: ptr::null_mut(), model: Model::default(), noise, statuses: Vec::new() };
    for call in calls {
        caller.apply(call)?;
    }
    if caller.model.step.is_some() {
        caller.apply(&Call::Abort)?;
    }
    for slot in 0..SLOTS {
        caller.apply(&Call::Length(slot))?;
        caller.apply(&Call::Release(slot))?;
    }
    let left = memory(cache);
    prop_assert_eq!((left.live_pages, left.tokens, left.tables), (0, 0, 0));
    // SAFETY: a live handle.
    prop_assert_eq!(unsafe { certkv_cache_destroy(cache) }, CERTKV_OK);
    Ok(caller.statuses)
}

#[test]
fn any_calls_do_what_the_model_says_and_leave_no_page() {
    let policies = prop_oneof![Just(CERTKV_POLICY_DENSE), Just(CERTKV_POLICY_CERTIFIED)];
    let stores = prop_oneof![Just(CERTKV_F16), Just(CERTKV_BF16)];
    let calls = proptest::collection::vec(call(), 1..80);
    let config = ProptestConfig { cases: 512, failure_persistence: None, ..ProptestConfig::default() };
    let mut runner = TestRunner::new(config);
    let seen = RefCell::new(Vec::new());
    let run = runner.run(&(calls, policies, stores, any::<u64>()), |(calls, policy, store, noise)| {
        seen.borrow_mut().extend(play(&calls, policy, store, noise)?);
        Ok(())
    });
    run.unwrap_or_else(|e| panic!("{e}"));
    let seen = seen.into_inner();
    // The calls went somewhere: every status that they can meet was met, and no other.
    let expected = [
        CERTKV_OK,
        CERTKV_NULL_POINTER,
        CERTKV_INVALID_ARGUMENT,
        CERTKV_SHAPE,
        CERTKV_LAYER,
        CERTKV_NOT_FINITE,
        CERTKV_INVALID_HANDLE,
        CERTKV_UNKNOWN_SEQUENCE,
        CERTKV_LENGTH,
        CERTKV_BUSY_SEQUENCE,
        CERTKV_ORDER,
    ];
    let missed: Vec<_> = expected.iter().filter(|status| !seen.contains(status)).collect();
    assert!(missed.is_empty(), "never met: {missed:?}");
    let strange = seen.iter().find(|status| !expected.contains(status) && **status != CERTKV_CAPACITY);
    assert_eq!(strange, None);
}

#[test]
fn the_token_that_fills_a_block_has_a_finite_bound_under_every_policy() {
    let calls = [Call::Create(0), Call::Whole { slot: 0, tokens: 31 }, Call::Whole { slot: 0, tokens: 1 }];
    for policy in [CERTKV_POLICY_DENSE, CERTKV_POLICY_CERTIFIED] {
        play(&calls, policy, CERTKV_F16, 0).unwrap_or_else(|e| panic!("policy {policy}: {e}"));
    }
}

#[test]
fn a_leak_would_be_seen() {
    let calls = [Call::Create(0), Call::Whole { slot: 0, tokens: 40 }, Call::Fork { from: 0, to: 1 }];
    let cache = new_cache(CERTKV_POLICY_CERTIFIED, CERTKV_F16);
    let mut caller = Caller { cache, step: ptr::null_mut(), model: Model::default(), noise: 1, statuses: Vec::new() };
    calls.iter().for_each(|call| caller.apply(call).unwrap());
    caller.apply(&Call::Release(0)).unwrap();
    assert!(caller.statuses.iter().all(|s| *s == CERTKV_OK), "{:?}", caller.statuses);
    assert!(memory(cache).live_pages > 0, "the fork still holds its pages");
    caller.apply(&Call::Release(1)).unwrap();
    assert_eq!(memory(cache).live_pages, 0);
    // SAFETY: a live handle.
    assert_eq!(unsafe { certkv_cache_destroy(cache) }, CERTKV_OK);
}
