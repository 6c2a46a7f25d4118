//! Every call of the store is made to fail, in turn and in pairs, loudly and unseen.
use crate::common::{Model, decode_faults, fill, original_faults, random_queries, random_rows, step};
use crate::life::{geometry, left_behind, spilling};
use crate::unruly::{FAULTS, Fault, Unruly};
use certkv::store::StoreError;
use certkv::{Cache, Certified, Config, Error, FetchCause, Mode, Policy, SequenceId, Side, SimOptions};
use certkv_testkit::generate::Rng;
use certkv_testkit::{cores, side_by_side};
use std::sync::Arc;

const TOLERANCE: f64 = 0.01;

struct Run {
    cache: Cache,
    backend: Arc<Unruly>,
    live: Vec<(SequenceId, Model)>,
    errors: Vec<Error>,
    r: Rng,
}

/// What a failing store may become, and nothing else.
fn is_typed(error: &Error) -> bool {
    match error {
        Error::Fetch(_) | Error::CapacityExhausted { class: "host", .. } => true,
        Error::Shortened { cause, .. } => is_typed(cause),
        _ => false,
    }
}

fn is_corrupt(error: &Error) -> bool {
    let Error::Fetch(error) = error else { return false };
    matches!(error.cause, FetchCause::Store(StoreError::Corrupt { .. } | StoreError::TooLarge { .. }))
}

impl Run {
    fn new(faults: &[(u64, Fault)]) -> Self {
        let backend = Arc::new(Unruly::new());
        backend.arm(faults);
        let device = SimOptions { mode: Mode::Eager, check: true };
        let config = Config { prefixes: None, ..spilling(device, backend.clone()) };
        let cache = Cache::new(config).unwrap();
        Self { cache, backend, live: Vec::new(), errors: Vec::new(), r: Rng::new(5) }
    }

    fn grow(&mut self, i: usize, tokens: usize) {
        let rows = random_rows(&geometry(), tokens, &mut self.r);
        match fill(&self.cache, self.live[i].0, &rows) {
            Ok(()) => self.live[i].1.append(&rows),
            Err(error) => self.errors.push(error),
        }
    }

    fn decode(&mut self, i: usize, policy: Policy) {
        let g = geometry();
        let (rows, queries) = (random_rows(&g, 1, &mut self.r), random_queries(&g, 1, &mut self.r));
        match step(&self.cache, self.live[i].0, &rows, &queries, policy) {
            Err(error) => self.errors.push(error),
            Ok(answers) => {
                let model = &mut self.live[i].1;
                model.append(&rows);
                for (layer, a) in answers.iter().enumerate() {
                    let exact = model.attend(&g, layer, model.len(&g), &queries);
                    assert_eq!(
                        decode_faults(&exact, &a.out, &a.certificates, TOLERANCE),
                        0,
                        "an output beyond its bound"
                    );
                }
            }
        }
    }

    fn cut(&mut self, i: usize, len: usize) {
        let len = len.min(self.live[i].1.len(&geometry()));
        match self.cache.truncate(self.live[i].0, len) {
            Ok(()) => self.live[i].1.truncate(&geometry(), len),
            Err(Error::Shortened { len, cause }) => {
                self.live[i].1.truncate(&geometry(), len);
                self.errors.push(*cause);
            }
            Err(error) => self.errors.push(error),
        }
    }

    fn prefetch(&mut self, i: usize) {
        let ahead = self.cache.prefetch(self.live[i].0);
        self.errors.extend(ahead.err());
    }

    fn script(&mut self) {
        let certified = Policy::Certified(Certified { tol_rel: TOLERANCE, ..Certified::default() });
        let id = self.cache.create().unwrap();
        self.live.push((id, Model::new(&geometry())));
        for _ in 0..9 {
            self.grow(0, 30);
        }
        for _ in 0..2 {
            self.decode(0, certified);
        }
        self.decode(0, Policy::Dense);
        match self.cache.fork(id) {
            Ok(fork) => self.live.push((fork, self.live[0].1.clone())),
            Err(error) => self.errors.push(error),
        }
        let last = self.live.len() - 1;
        self.cut(last, 137);
        self.grow(last, 25);
        self.prefetch(0);
        self.decode(0, certified);
        self.decode(last, Policy::Dense);
        self.cut(0, 70);
        self.decode(last, Policy::Dense);
    }

    /// Rows that are not the model's; originals that the store damaged unseen may be refused.
    fn wrong_rows(&self, may_be_corrupt: bool) -> usize {
        let g = geometry();
        let mut wrong = 0;
        for (id, model) in &self.live {
            assert_eq!(self.cache.len(*id).unwrap(), model.len(&g));
            for (layer, side) in (0..g.layers).flat_map(|layer| [(layer, Side::Key), (layer, Side::Value)]) {
                wrong += match self.cache.originals(*id, layer, 0, side) {
                    Ok(rows) => usize::from(rows != model.side(&g, layer, 0, side)),
                    Err(error) => usize::from(!(may_be_corrupt && is_corrupt(&error))),
                };
            }
        }
        wrong
    }

    /// With nothing armed: what was committed is there, the cache works, and nothing is left when everything is released.
    fn survives(mut self, context: &str, damage: bool) {
        self.backend.arm(&[]);
        assert!(self.errors.iter().all(is_typed), "{context}: {:?}", self.errors);
        // A store that refused is asked again after a while.
        std::thread::sleep(std::time::Duration::from_millis(if self.errors.is_empty() { 0 } else { 110 }));
        assert_eq!(self.wrong_rows(damage), 0, "{context}: originals");
        let before = self.errors.len();
        for i in 0..self.live.len() {
            // Blocks that the store damaged are lost to whoever needs their originals, and to nobody else.
            let policy = Certified { tol_rel: TOLERANCE, ..Certified::default() };
            if !damage {
                self.decode(i, Policy::Certified(policy));
            }
            self.grow(i, 20);
        }
        assert_eq!(self.errors.len(), before, "{context}: the cache is not usable: {:?}", self.errors);
        assert_eq!(self.wrong_rows(damage), 0, "{context}: originals after more steps");
        for (id, _) in core::mem::take(&mut self.live) {
            self.cache.release(id).unwrap();
        }
        assert_eq!(left_behind(&self.cache, false), [0; 3], "{context}: pages, frames, records");
        assert_eq!(self.backend.inner.bytes(), 0, "{context}: bytes in the store");
        assert_eq!(self.cache.check_report().findings(), 0, "{context}");
    }
}

/// Faults after which a record may lie in the store that is not what was put.
fn damages(fault: Fault) -> bool {
    matches!(fault, Fault::Flips | Fault::Cuts | Fault::Swaps | Fault::Stale)
}

#[test]
fn every_call_of_the_store_fails() {
    let mut clean = Run::new(&[]);
    clean.script();
    let calls = clean.backend.calls();
    assert!(clean.errors.is_empty(), "{:?}", clean.errors);
    // The control: a model that is one row off is seen.
    let (id, mut model) = clean.live[0].clone();
    let at = model.values[2].len() - 1;
    model.values[2][at] ^= 1;
    let caught = u8::from(original_faults(&clean.cache, id, &model) == 1);
    clean.survives("no fault", false);
    // Whether the fault was met, and whether somebody was told.
    let one = |faults: &Vec<(u64, Fault)>| {
        let mut run = Run::new(faults);
        run.script();
        let seen = (run.backend.fired() > 0, run.backend.fired() > 0 && !run.errors.is_empty());
        run.survives(&format!("{faults:?}"), faults.iter().any(|(_, fault)| damages(*fault)));
        seen
    };
    let every = std::env::var("CERTKV_SPILL_FAULTS").map_or(9, |v| v.parse().unwrap_or(1));
    let mut cases = Vec::new();
    for (number, fault) in FAULTS.into_iter().enumerate() {
        cases.extend((1 + number as u64 % every..=calls).step_by(every as usize).map(|call| vec![(call, fault)]));
    }
    let mut r = Rng::new(8);
    for _ in 0..40 {
        let mut any = || (1 + r.below(calls as usize) as u64, FAULTS[r.below(FAULTS.len())]);
        cases.push(vec![any(), any()]);
    }
    // They wait more than they work.
    let seen = side_by_side(4 * cores(), &cases, one);
    let [executed, typed] = [seen.iter().filter(|seen| seen.0).count(), seen.iter().filter(|seen| seen.1).count()];
    println!("spill-faults: {calls} calls of the store, {typed} runs with typed errors");
    println!("GATE spill-faults executed={executed} failed=0 controls={caught}/1 seed=0x5");
    assert!(caught == 1 && executed > 100 && typed > 20);
}

/// Down for everything, from the start: the cache holds what host memory has room for, and refuses the rest as one without a store.
#[test]
fn a_store_that_takes_nothing_costs_nothing_but_room() {
    for fault in [Fault::Refuses, Fault::SaysNo, Fault::Panics] {
        let mut run = Run::new(&[]);
        run.backend.down(Some(fault));
        let id = run.cache.create().unwrap();
        run.live.push((id, Model::new(&geometry())));
        for _ in 0..6 {
            run.grow(0, 20);
        }
        assert!(
            !run.errors.is_empty()
                && run.errors.iter().all(|e| matches!(e, Error::CapacityExhausted { class: "host", .. })),
            "{:?}",
            run.errors
        );
        assert!(run.live[0].1.len(&geometry()) >= 40);
        assert_eq!(run.wrong_rows(false), 0);
        let snapshot = run.cache.snapshot();
        let spills = snapshot.spills.unwrap();
        assert!(spills.done.count() == 0 && spills.refused + spills.failed > 0);
        run.backend.down(None);
        run.errors.clear();
        run.survives("down", false);
    }
}
