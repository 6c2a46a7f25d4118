//! Random calls through the C functions against a small model of what they do: no panic, the status that the model
//! says, and no page left at the end.
mod call;
mod carry;
use call::{Call, call};
use certkv_c::certkv_status::*;
use certkv_c::*;
use core::cell::RefCell;
use core::ptr;
use proptest::prelude::*;
use proptest::test_runner::TestRunner;
use std::ffi::CString;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

const KV: usize = 64;
const Q: usize = 2 * 64;
const SLOTS: usize = 3;
const MAX_TOKENS: u64 = 160;
const LAYERS: u32 = 2;
/// Of a block, and so of a cached unit.
const BLOCK: u64 = 16;
const FILES: usize = 2;

/// Slots and tokens of a step.
type Parts = Vec<(usize, u64)>;

/// What the calls should have made.
#[derive(Default)]
struct Model {
    /// Number and length of each live sequence; ended ones stay in `stale`.
    slots: [Option<(certkv_sequence, u64)>; SLOTS],
    stale: Vec<certkv_sequence>,
    /// Which of them are swapped out.
    out: [bool; SLOTS],
    /// Lengths of saved sequences.
    files: [Option<u64>; FILES],
    /// Slots and tokens of the step, and which layers were appended.
    step: Option<(Parts, Vec<bool>)>,
}

struct Caller {
    cache: *mut certkv_cache,
    step: *mut certkv_step,
    model: Model,
    noise: u64,
    statuses: Vec<certkv_status>,
    /// Bytes swapped, tokens restored, tokens found in prefixes, tokens said not to fit: calls that did something.
    moved: [u64; 4],
    /// For files.
    folder: PathBuf,
}

impl Caller {
    fn new(cache: *mut certkv_cache, noise: u64) -> Self {
        let (model, statuses) = (Model::default(), Vec::new());
        Self { cache, step: ptr::null_mut(), model, noise, statuses, moved: [0; 4], folder: folder() }
    }

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

    /// The same for a call that needs the sequence's codes.
    fn standing_inside(&self, slot: usize) -> certkv_status {
        match self.standing(slot) {
            CERTKV_OK if self.model.out[slot] => CERTKV_SWAPPED_OUT,
            other => other,
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
                if self.saw_pages(got, self.standing_inside(*from))? {
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
                    self.model.out[*slot] = false;
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
            Call::SwapOut(slot) | Call::SwapIn(slot) | Call::IsOut(slot) => self.swap(*slot, call)?,
            Call::Save { slot, file } | Call::Restore { slot, file } => self.file(*slot, *file, call)?,
            Call::Publish(slot) => self.publish(*slot)?,
            Call::CreateFrom { slot, tokens } => self.create_from(*slot, *tokens)?,
            Call::Evict(units) => {
                let mut evicted = u64::MAX;
                // SAFETY: the out parameter is a local.
                let got = unsafe { certkv_cache_evict_prefixes(self.cache, *units, &mut evicted) };
                self.saw(got, CERTKV_OK)?;
                prop_assert!(evicted <= *units);
            }
            Call::Carry { tokens, out } => drop(self.carry(*tokens, *out)?),
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
            Call::Whole { slot, tokens, hostile } => {
                self.begin(&[(*slot, *tokens)])?;
                for layer in 0..LAYERS {
                    if *hostile {
                        self.append(layer, CERTKV_F32, true)?;
                    }
                    self.append(layer, CERTKV_F32, false)?;
                    self.attend(layer, true)?;
                }
                self.finish()?;
            }
        }
        Ok(())
    }

    fn swap(&mut self, slot: usize, call: &Call) -> Result<(), TestCaseError> {
        let (sequence, standing, is_out) = (self.sequence(slot), self.standing(slot), self.model.out[slot]);
        let (mut out, mut bytes) = (7, u64::MAX);
        // SAFETY: the out parameters are locals.
        let got = unsafe {
            match call {
                Call::SwapOut(_) => certkv_sequence_swap_out(self.cache, sequence, &mut bytes),
                Call::SwapIn(_) => certkv_sequence_swap_in(self.cache, sequence, &mut bytes),
                _ => certkv_sequence_is_swapped_out(self.cache, sequence, &mut out),
            }
        };
        let want = match (standing, call) {
            (CERTKV_OK, Call::SwapOut(_)) if is_out => CERTKV_SWAPPED_OUT,
            (CERTKV_OK, Call::SwapIn(_)) if !is_out => CERTKV_NOT_SWAPPED_OUT,
            (other, _) => other,
        };
        if self.saw_pages(got, want)? {
            match call {
                Call::SwapOut(_) => self.model.out[slot] = true,
                Call::SwapIn(_) => {
                    self.model.out[slot] = false;
                    self.moved[0] += bytes;
                }
                _ => prop_assert_eq!(out, u32::from(is_out)),
            }
        }
        prop_assert!(got == CERTKV_OK || (out, bytes) == (7, u64::MAX));
        Ok(())
    }

    fn file(&mut self, slot: usize, file: usize, call: &Call) -> Result<(), TestCaseError> {
        // SAFETY: integers and pointers, for which zero bits are a value.
        let mut scope: certkv_save_scope = unsafe { core::mem::zeroed() };
        scope.struct_size = size_of::<certkv_save_scope>() as u32;
        let path = CString::new(self.folder.join(file.to_string()).into_os_string().into_encoded_bytes()).unwrap();
        if matches!(call, Call::Save { .. }) {
            let sequence = self.sequence(slot);
            // SAFETY: a whole scope, a C string, no bytes wanted.
            let got = unsafe { certkv_sequence_save(self.cache, sequence, &scope, path.as_ptr(), ptr::null_mut()) };
            if self.saw(got, self.standing(slot))? {
                self.model.files[file] = self.model.slots[slot].map(|(_, length)| length);
            }
        } else if self.model.slots[slot].is_none() {
            let mut made = 7;
            // SAFETY: a whole scope, a C string and a local.
            let got = unsafe { certkv_sequence_restore(self.cache, &scope, path.as_ptr(), &mut made) };
            let want = if self.model.files[file].is_some() { CERTKV_OK } else { CERTKV_FILE };
            if self.saw_pages(got, want)? {
                self.model.slots[slot] = self.model.files[file].map(|length| (made, length));
                self.moved[1] += self.model.files[file].unwrap_or(0);
            }
        }
        Ok(())
    }

    /// Every sequence claims to hold the same tokens. Some do not, which nobody can see: it costs publications that stop early.
    fn publish(&mut self, slot: usize) -> Result<(), TestCaseError> {
        let (scope, tokens) = (prefix_scope(), prompt(MAX_TOKENS));
        let mut done = certkv_publication { struct_size: size_of::<certkv_publication>() as u32, ..Default::default() };
        let (sequence, n) = (self.sequence(slot), tokens.len() as u64);
        // SAFETY: a whole scope, a slice and a local.
        let got = unsafe { certkv_cache_publish(self.cache, sequence, &scope, tokens.as_ptr(), n, &mut done) };
        if self.saw(got, self.standing_inside(slot))? {
            let full = self.model.slots[slot].map_or(0, |(_, length)| length / BLOCK * BLOCK);
            prop_assert!(done.added <= done.cached && done.cached <= full, "{done:?} of {full}");
            prop_assert!(done.cached == full || done.stop != CERTKV_STOP_NONE, "{done:?} of {full}");
        }
        Ok(())
    }

    fn create_from(&mut self, slot: usize, n: u64) -> Result<(), TestCaseError> {
        if self.model.slots[slot].is_some() {
            return Ok(());
        }
        let (scope, tokens, mut made, mut found) = (prefix_scope(), prompt(n), 7, u64::MAX);
        // SAFETY: a whole scope, a slice and locals.
        let got = unsafe { certkv_sequence_create_from(self.cache, &scope, tokens.as_ptr(), n, &mut made, &mut found) };
        if self.saw(got, CERTKV_OK)? {
            prop_assert!(found <= n && found.is_multiple_of(BLOCK), "{found} of {n}");
            self.model.slots[slot] = Some((made, found));
            self.moved[2] += found;
        }
        Ok(())
    }

    /// Whether a step of so many tokens is said to fit, which it then has to.
    fn admit(&mut self, slot: usize, tokens: u64) -> Result<bool, TestCaseError> {
        let mut seen = certkv_admission { struct_size: size_of::<certkv_admission>() as u32, ..Default::default() };
        seen.verdict = 7;
        let sequence = self.sequence(slot);
        // SAFETY: the struct has the size that it says.
        let got = unsafe { certkv_cache_admit(self.cache, sequence, tokens, &mut seen) };
        let length = self.model.slots[slot].map_or(0, |(_, length)| length);
        let too_long = length + tokens > MAX_TOKENS && got == CERTKV_LENGTH;
        let told = self.saw(got, if too_long { got } else { self.standing(slot) })?;
        prop_assert_eq!((CERTKV_FITS..=CERTKV_LACKS).contains(&seen.verdict), told);
        prop_assert_eq!(seen.units > 0, seen.verdict == CERTKV_FITS_AFTER_EVICTION);
        prop_assert_eq!(seen.pages > 0, seen.verdict == CERTKV_LACKS);
        self.moved[3] += if seen.verdict == CERTKV_LACKS { tokens } else { 0 };
        Ok(told && seen.verdict != CERTKV_LACKS)
    }

    fn begin(&mut self, parts: &[(usize, u64)]) -> Result<(), TestCaseError> {
        if self.model.step.is_some() {
            return Ok(());
        }
        let chunks: Vec<certkv_chunk> = parts
            .iter()
            .map(|(slot, tokens)| certkv_chunk { sequence: self.sequence(*slot), tokens: *tokens })
            .collect();
        let fits = match parts {
            [(slot, tokens)] => self.admit(*slot, *tokens)?,
            _ => false,
        };
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
                CERTKV_OK if self.model.out[*slot] => CERTKV_SWAPPED_OUT,
                CERTKV_OK => continue,
                refused => refused,
            };
            break;
        }
        self.statuses.push(got);
        // An earlier part may find no page before a later one is looked at.
        prop_assert!(
            got == want || got == CERTKV_CAPACITY && !parts.is_empty() && !fits,
            "{got:?}, not {want:?}; {fits}"
        );
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
                let within = record.bound - record.e_arith <= record.tol * (1.0 + 1e-9);
                prop_assert!(exact || (record.status == CERTKV_CERTIFIED && within), "{record:?}");
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

fn prefix_scope() -> certkv_prefix_scope {
    // SAFETY: integers and pointers, for which zero bits are a value.
    let mut scope: certkv_prefix_scope = unsafe { core::mem::zeroed() };
    scope.struct_size = size_of::<certkv_prefix_scope>() as u32;
    scope
}

fn prompt(tokens: u64) -> Vec<u32> {
    (0..tokens as u32).map(|i| i.wrapping_mul(2_654_435_761)).collect()
}

/// A folder of its own for every run.
fn folder() -> PathBuf {
    static RUNS: AtomicU64 = AtomicU64::new(0);
    let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join("sequences_of_calls");
    let dir = dir.join(RUNS.fetch_add(1, Ordering::Relaxed).to_string());
    let _ = fs::remove_dir_all(&dir);
    fs::create_dir_all(&dir).unwrap();
    dir
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
        (config.swap_tokens, config.prefix_units) = (4 * BLOCK, 4);
        config.format = c"k8-v4g64-b16".as_ptr();
        assert_eq!(certkv_cache_create(&config, &mut cache), CERTKV_OK);
    }
    cache
}

/// Runs the calls on a new cache, ends everything, and gives the statuses that were seen and what was moved.
fn play(calls: &[Call], policy: i32, store: i32, noise: u64) -> Result<(Vec<certkv_status>, [u64; 4]), TestCaseError> {
    let cache = new_cache(policy, store);
    let mut caller = Caller::new(cache, noise);
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
    caller.apply(&Call::Evict(u64::MAX))?;
    let left = memory(cache);
    prop_assert_eq!((left.live_pages, left.tokens, left.tables), (0, 0, 0));
    // SAFETY: a live handle.
    prop_assert_eq!(unsafe { certkv_cache_destroy(cache) }, CERTKV_OK);
    let _ = fs::remove_dir_all(&caller.folder);
    Ok((caller.statuses, caller.moved))
}

#[test]
fn any_calls_do_what_the_model_says_and_leave_no_page() {
    let policies = prop_oneof![Just(CERTKV_POLICY_DENSE), Just(CERTKV_POLICY_CERTIFIED)];
    let stores = prop_oneof![Just(CERTKV_F16), Just(CERTKV_BF16)];
    let calls = proptest::collection::vec(call(), 1..80);
    let config = ProptestConfig { cases: 512, failure_persistence: None, ..ProptestConfig::default() };
    let mut runner = TestRunner::new(config);
    let (seen, moved) = (RefCell::new(Vec::new()), RefCell::new([0; 4]));
    let run = runner.run(&(calls, policies, stores, any::<u64>()), |(calls, policy, store, noise)| {
        let (statuses, did) = play(&calls, policy, store, noise)?;
        seen.borrow_mut().extend(statuses);
        moved.borrow_mut().iter_mut().zip(did).for_each(|(sum, n)| *sum += n);
        Ok(())
    });
    run.unwrap_or_else(|e| panic!("{e}"));
    let (seen, moved) = (seen.into_inner(), moved.into_inner());
    println!("bytes swapped in, tokens restored, found, said not to fit: {moved:?}");
    assert!(moved.iter().all(|n| *n > 50), "nothing was moved: {moved:?}");
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
        CERTKV_SWAPPED_OUT,
        CERTKV_NOT_SWAPPED_OUT,
        CERTKV_FILE,
    ];
    let met = expected.map(|status| (status, seen.iter().filter(|seen| **seen == status).count()));
    println!("statuses met: {met:?}");
    assert!(met.iter().all(|(_, times)| *times > 0), "never met: {met:?}");
    let strange = seen.iter().find(|status| !expected.contains(status) && **status != CERTKV_CAPACITY);
    assert_eq!(strange, None);
}

#[test]
fn the_token_that_fills_a_block_has_a_finite_bound_under_every_policy() {
    let calls = [
        Call::Create(0),
        Call::Whole { slot: 0, tokens: 31, hostile: false },
        Call::Whole { slot: 0, tokens: 1, hostile: false },
    ];
    for policy in [CERTKV_POLICY_DENSE, CERTKV_POLICY_CERTIFIED] {
        play(&calls, policy, CERTKV_F16, 0).unwrap_or_else(|e| panic!("policy {policy}: {e}"));
    }
}

#[test]
fn a_leak_would_be_seen() {
    let calls = [Call::Create(0), Call::Whole { slot: 0, tokens: 40, hostile: false }, Call::Fork { from: 0, to: 1 }];
    let cache = new_cache(CERTKV_POLICY_CERTIFIED, CERTKV_F16);
    let mut caller = Caller::new(cache, 1);
    calls.iter().for_each(|call| caller.apply(call).unwrap());
    caller.apply(&Call::Release(0)).unwrap();
    assert!(caller.statuses.iter().all(|s| *s == CERTKV_OK), "{:?}", caller.statuses);
    assert!(memory(cache).live_pages > 0, "the fork still holds its pages");
    caller.apply(&Call::Release(1)).unwrap();
    assert_eq!(memory(cache).live_pages, 0);
    // SAFETY: a live handle.
    assert_eq!(unsafe { certkv_cache_destroy(cache) }, CERTKV_OK);
}
