//! The stages of `ckv_ladder` (`kernels/ladder/turns.cuh`) under every interleaving: the emulator runs CTAs one after the other, so that none of
//! them waits there.
//!
//! A twin of the kernel's counting, with its orders. Fewer multiprocessors than CTAs: one begins when another has left.
use loom::sync::atomic::AtomicU32;
use loom::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use loom::thread;

const CTAS: u32 = 3;
const MULTIPROCESSORS: u32 = 2;
/// Heads listed; every second one is left over tolerance by its pass.
const LISTED: usize = 3;

/// What is wrong on purpose.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Plant {
    Nothing,
    /// A task's end releases nothing.
    Unreleased,
    /// Tasks are dealt to CTAs, not taken.
    Dealt,
    /// A stage begins without the end of the one before.
    Hasty,
    /// The first to leave cleans up.
    Early,
}

struct Launch {
    plant: Plant,
    words: [AtomicU32; super::ladder::TURN_WORDS],
    started: AtomicU32,
    /// What choices write for a head, and passes read.
    chosen: [AtomicU32; LISTED],
    /// What the first pass adds to the second one's list.
    left: AtomicU32,
    done: [AtomicU32; LISTED],
}

/// A CTA's view.
struct Turns {
    launch: &'static Launch,
    cta: u32,
    stage: usize,
    task: u32,
}

impl Turns {
    fn take(&mut self, stage: usize) {
        (self.stage, self.task) = (stage, self.launch.words[2 * stage].fetch_add(1, Relaxed));
        if self.launch.plant == Plant::Dealt {
            self.task = self.cta + (self.task / CTAS) * CTAS;
        }
    }

    fn next(&mut self) {
        let order = if self.launch.plant == Plant::Unreleased { Relaxed } else { Release };
        self.launch.words[2 * self.stage + 1].fetch_add(1, order);
        if self.launch.plant == Plant::Dealt {
            self.task += CTAS;
        } else {
            self.take(self.stage);
        }
    }

    fn end(&mut self, tasks: u32) {
        let before = self.stage;
        self.take(before + 1);
        while self.launch.plant != Plant::Hasty && self.launch.words[2 * before + 1].load(Acquire) < tasks {
            thread::yield_now();
        }
    }

    fn leave(&self) {
        let words = &self.launch.words;
        let last = words[words.len() - 1].fetch_add(1, AcqRel) == CTAS - 1;
        if last || self.launch.plant == Plant::Early {
            words.iter().for_each(|word| word.store(0, Relaxed));
        }
    }
}

/// A plain write of whoever has the task.
fn write(at: &AtomicU32) {
    at.store(at.load(Relaxed) + 1, Relaxed);
}

fn cta(launch: &'static Launch, cta: u32) {
    let mut turns = Turns { launch, cta, stage: 0, task: 0 };
    let listed = LISTED as u32;
    turns.take(0);
    while turns.task < listed {
        write(&launch.chosen[turns.task as usize]);
        turns.next();
    }
    turns.end(listed);
    // One share to a head, which reads what was chosen for all of them.
    while turns.task < listed {
        let chosen: u32 = launch.chosen.iter().map(|of| of.load(Relaxed)).sum();
        assert_eq!(chosen, listed, "each head was chosen for once, before a pass begins");
        write(&launch.done[turns.task as usize]);
        if turns.task % 2 == 1 {
            launch.left.fetch_add(1, Relaxed);
        }
        turns.next();
    }
    turns.end(listed);
    let left = launch.left.load(Relaxed);
    assert_eq!(left, listed / 2, "the list is whole");
    while turns.task < left {
        let done: u32 = launch.done.iter().map(|of| of.load(Relaxed)).sum();
        assert_eq!(done, listed, "each share was attended to once");
        turns.next();
    }
    turns.leave();
}

fn explore(plant: Plant) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(2);
    builder.max_branches = 400;
    builder.check(move || {
        // Leaked: a model that has failed drops nothing.
        let launch: &'static Launch = Box::leak(Box::new(Launch {
            plant,
            words: core::array::from_fn(|_| AtomicU32::new(0)),
            started: AtomicU32::new(0),
            chosen: core::array::from_fn(|_| AtomicU32::new(0)),
            left: AtomicU32::new(0),
            done: core::array::from_fn(|_| AtomicU32::new(0)),
        }));
        let run = move || {
            loop {
                let number = launch.started.fetch_add(1, Relaxed);
                if number >= CTAS {
                    break;
                }
                cta(launch, number);
            }
        };
        let others: Vec<_> = (1..MULTIPROCESSORS).map(|_| thread::spawn(run)).collect();
        run();
        others.into_iter().for_each(|other| other.join().unwrap());
        assert!(launch.words.iter().all(|word| word.load(Relaxed) == 0), "words are as they were");
    });
}

#[test]
fn stages_follow_one_another_on_any_number_of_multiprocessors() {
    explore(Plant::Nothing);
}

#[test]
#[should_panic(expected = "whole")]
fn control_an_end_that_releases_nothing_is_caught() {
    explore(Plant::Unreleased);
}

#[test]
#[should_panic(expected = "maximum number of branches")]
fn control_dealt_tasks_wait_for_ctas_that_cannot_begin() {
    explore(Plant::Dealt);
}

#[test]
#[should_panic(expected = "whole")]
fn control_a_stage_that_waits_for_none_is_caught() {
    explore(Plant::Hasty);
}

#[test]
#[should_panic(expected = "each head was chosen for once")]
fn control_words_that_are_cleaned_too_early_are_caught() {
    explore(Plant::Early);
}
