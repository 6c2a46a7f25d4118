//! Tables of streams: a plain model of rows beside them, then rules and refusals.
use crate::streams::{StreamClass, StreamCounts, StreamDropped, StreamError, StreamMove, StreamRow, StreamTable};
use crate::word::State;
use crate::{PageAllocator, PageError, PageId, Stamp};
use certkv_core::{fail, hash::splitmix64};
use proptest::prelude::*;
use std::collections::{HashMap, HashSet};

const BITS: [u8; 4] = [2, 3, 4, 8];

fn classes(rows: [usize; 4], pages: usize) -> Vec<StreamClass> {
    let class = |(bits, rows)| StreamClass { bits, rows, pages: PageAllocator::create(pages).unwrap() };
    BITS.into_iter().zip(rows).map(class).collect()
}

fn free(classes: &[StreamClass]) -> Vec<usize> {
    classes.iter().map(|class| class.pages.check().unwrap().free).collect()
}

/// What a sequence should hold: width and content of each token of each head.
struct Sequence {
    table: StreamTable,
    tokens: Vec<Vec<(usize, u64)>>,
}

/// Pages with contents, and sequences over them.
struct World {
    classes: Vec<StreamClass>,
    rows: HashMap<(usize, u32, usize), u64>,
    sequences: Vec<Sequence>,
    heads: usize,
    next: u64,
    stamp: u64,
    moved: usize,
    refused: usize,
}

impl World {
    fn new(seed: u64) -> Self {
        let rows = [0u64, 1, 2, 3].map(|i| 1 + (seed >> (8 * i)) as usize % 5);
        let heads = 1 + (seed >> 40) as usize % 3;
        let classes = classes(rows, 24);
        let (rows, sequences) = Default::default();
        Self { classes, rows, sequences, heads, next: 0, stamp: 1, moved: 0, refused: 0 }
    }

    /// Every fence has passed.
    fn settle(&self) {
        for class in &self.classes {
            class.pages.reclaim(&mut |_| true);
        }
    }

    fn retire(&mut self, dropped: StreamDropped) {
        self.stamp += 1;
        let stamp = Stamp(self.stamp);
        dropped.retire(|| stamp).unwrap();
        self.settle();
    }

    fn content(&self, row: StreamRow) -> u64 {
        self.rows[&(row.class, row.page.index, row.row)]
    }

    fn act(&mut self, kind: u64, a: u64, b: u64) {
        let s = if self.sequences.is_empty() { 0 } else { a as usize % self.sequences.len() };
        match kind % 10 {
            _ if self.sequences.is_empty() => {
                let table = StreamTable::create(&self.classes, self.heads, 60).unwrap();
                self.sequences.push(Sequence { table, tokens: vec![vec![]; self.heads] });
            }
            0..=3 => {
                let widths: Vec<usize> =
                    (0..self.heads as u64 * (b % 6)).map(|i| splitmix64(b ^ i) as usize % BITS.len()).collect();
                let before = free(&self.classes);
                let reservation = match self.sequences[s].table.reserve(&widths) {
                    Ok(reservation) => reservation,
                    Err(StreamError::Page { error: PageError::Exhausted { .. }, .. } | StreamError::TooLong { .. }) => {
                        self.refused += 1;
                        assert_eq!(free(&self.classes), before, "a refusal took pages");
                        return;
                    }
                    Err(other) => panic!("{other}"),
                };
                for (i, span) in reservation.rows().enumerate() {
                    assert_eq!((span.head, span.from), (i % self.heads, None));
                    assert_eq!(span.to.class, widths[i]);
                    self.next += 1;
                    self.rows.insert((span.to.class, span.to.page.index, span.to.row), self.next);
                    if !a.is_multiple_of(16) {
                        self.sequences[s].tokens[span.head].push((span.to.class, self.next));
                    }
                }
                if a.is_multiple_of(16) {
                    reservation.abort(|| Stamp(1));
                    self.settle();
                    assert_eq!(free(&self.classes), before);
                } else {
                    let dropped = self.sequences[s].table.commit(reservation).unwrap();
                    assert_eq!(dropped.pages().count(), 0);
                    self.retire(dropped);
                }
            }
            4..=6 => {
                let len = self.sequences[s].table.len();
                let picked: HashSet<(usize, usize)> = (0..if len == 0 { 0 } else { b % 9 })
                    .map(|i| (splitmix64(b ^ i) as usize % self.heads, splitmix64(a ^ i) as usize % len))
                    .collect();
                let moves = picked.into_iter().map(|(head, token)| StreamMove {
                    head,
                    token,
                    class: splitmix64(b ^ token as u64) as usize % BITS.len(),
                });
                let moves: Vec<StreamMove> = moves.collect();
                let Ok(reservation) = self.sequences[s].table.reserve_moves(&moves) else {
                    self.refused += 1;
                    return;
                };
                let spans: Vec<_> = reservation.rows().collect();
                for (span, m) in spans.iter().zip(&moves) {
                    assert_eq!((span.head, span.token, span.to.class), (m.head, m.token, m.class));
                    let content = self.content(span.from.unwrap());
                    self.rows.insert((span.to.class, span.to.page.index, span.to.row), content);
                }
                let Sequence { table, tokens } = &mut self.sequences[s];
                let dropped = table.commit(reservation).unwrap();
                spans.iter().for_each(|span| tokens[span.head][span.token].0 = span.to.class);
                self.moved += spans.len();
                self.retire(dropped);
            }
            7 => {
                let Sequence { table, tokens } = &mut self.sequences[s];
                let len = (b % (table.len() as u64 + 1)) as usize;
                let dropped = table.truncate(len).unwrap();
                tokens.iter_mut().for_each(|tokens| tokens.truncate(len));
                self.retire(dropped);
            }
            8 if self.sequences.len() < 4 => {
                let before = free(&self.classes);
                let Ok((table, copies)) = self.sequences[s].table.fork() else {
                    assert_eq!(free(&self.classes), before);
                    self.refused += 1;
                    return;
                };
                for copy in copies {
                    for row in 0..copy.rows {
                        if let Some(content) = self.rows.get(&(copy.class, copy.from.index, row)).copied() {
                            self.rows.insert((copy.class, copy.to.index, row), content);
                        }
                    }
                }
                let tokens = self.sequences[s].tokens.clone();
                self.sequences.push(Sequence { table, tokens });
            }
            _ => {
                let Sequence { table, .. } = self.sequences.swap_remove(s);
                if b.is_multiple_of(4) {
                    drop(table);
                    self.settle();
                } else {
                    let dropped = table.release();
                    self.retire(dropped);
                }
            }
        }
    }

    /// Contents, both maps, states, owners and counts.
    fn verify(&self) {
        let mut owners: HashMap<(usize, PageId), u32> = HashMap::new();
        for Sequence { table, tokens } in &self.sequences {
            assert_eq!(table.len(), tokens[0].len());
            let mut counts = [StreamCounts::default(); 4];
            for (head, tokens) in tokens.iter().enumerate() {
                for (token, (class, content)) in tokens.iter().enumerate() {
                    let row = table.get(head, token).unwrap();
                    assert_eq!((row.class, self.content(row)), (*class, *content), "head {head} token {token}");
                    assert_eq!(table.token(head, row), Some(token));
                }
                assert!(table.get(head, tokens.len()).is_none());
                for (class, counts) in counts.iter_mut().enumerate() {
                    let mut seen = vec![];
                    for (page, rows) in table.pages(head, class) {
                        let rows: Vec<Option<usize>> = rows.collect();
                        let state = self.classes[class].pages.snapshot(page).unwrap().state;
                        let full = rows.len() == self.classes[class].rows;
                        assert_eq!(state, if full { State::Packed } else { State::Open });
                        assert!(!full || rows.iter().any(Option::is_some), "a full page of dead rows is held");
                        *owners.entry((class, page)).or_default() += 1;
                        counts.pages += 1;
                        counts.live += rows.iter().flatten().count();
                        counts.dead += rows.iter().filter(|row| row.is_none()).count();
                        seen.extend(rows.into_iter().flatten());
                    }
                    seen.sort_unstable();
                    let expected = tokens.iter().enumerate().filter(|(_, t)| t.0 == class).map(|(i, _)| i);
                    assert!(expected.eq(seen));
                }
            }
            (0..4).for_each(|class| assert_eq!(table.counts(class), counts[class]));
        }
        for (class, of) in self.classes.iter().enumerate() {
            let live = owners.keys().filter(|(c, _)| *c == class).count();
            assert_eq!(of.pages.check().unwrap().live, live);
        }
        for ((class, page), owners) in owners {
            assert_eq!(self.classes[class].pages.references(page), Ok(owners));
        }
    }
}

#[test]
fn random_operations_agree_with_the_model() {
    let (mut executed, mut moved, mut refused) = (0, 0, 0);
    for world in 0..super::worlds(60) {
        let seed = splitmix64(world);
        let (mut w, mut dice) = (World::new(seed), seed);
        let mut roll = || {
            dice = splitmix64(dice);
            dice
        };
        for _ in 0..400 {
            w.act(roll(), roll(), roll());
            w.verify();
            executed += 1;
        }
        (moved, refused) = (moved + w.moved, refused + w.refused);
    }
    println!("GATE stream-model executed={executed} failed=0 moved={moved} refused={refused}");
    assert!(moved > 1000 && refused > 50, "{moved} {refused}");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]
    #[test]
    fn short_histories_agree_with_the_model(
        seed: u64, history in prop::collection::vec((any::<u64>(), any::<u64>(), any::<u64>()), 1..100),
    ) {
        let mut world = World::new(seed);
        for (kind, a, b) in history {
            world.act(kind, a, b);
            world.verify();
        }
    }
}

fn append(table: &mut StreamTable, widths: &[usize]) {
    let reservation = table.reserve(widths).unwrap();
    table.commit(reservation).unwrap().retire(|| Stamp(1)).unwrap();
}

#[test]
fn the_last_row_that_moves_away_takes_its_page_along() {
    let classes = classes([2, 2, 2, 2], 8);
    let mut table = StreamTable::create(&classes, 1, 16).unwrap();
    append(&mut table, &[3, 3, 3]);
    let old = table.get(0, 0).unwrap();
    let go = |token| StreamMove { head: 0, token, class: 0 };
    for (token, gone) in [(0, 0), (1, 1)] {
        let reservation = table.reserve_moves(&[go(token)]).unwrap();
        let dropped = table.commit(reservation).unwrap();
        assert_eq!(dropped.pages().count(), gone);
        assert_eq!(dropped.retire(|| Stamp(5)), Ok(gone));
    }
    assert_eq!(table.token(0, old), None);
    assert_eq!(table.counts(3), StreamCounts { pages: 1, live: 1, dead: 0 });
    // Behind its stamp only.
    assert_eq!(classes[3].pages.counts().retiring, 1);
    assert_eq!(classes[3].pages.reclaim(&mut |stamp| stamp == Stamp(5)), 1);
    // The one row of a page that stays sparse moves within its width, and the page goes.
    append(&mut table, &[3]);
    let reservation = table.reserve_moves(&[StreamMove { head: 0, token: 2, class: 1 }]).unwrap();
    drop(table.commit(reservation).unwrap());
    assert_eq!(table.counts(3), StreamCounts { pages: 1, live: 1, dead: 1 });
    let reservation = table.reserve_moves(&[StreamMove { head: 0, token: 3, class: 3 }]).unwrap();
    assert_eq!(table.commit(reservation).unwrap().pages().count(), 1);
    assert_eq!(table.counts(3), StreamCounts { pages: 1, live: 1, dead: 0 });
}

#[test]
fn bad_input_is_named_and_changes_nothing() {
    let classes = classes([2, 2, 2, 2], 4);
    let shape = |classes: &[StreamClass], heads, max_tokens| {
        assert_eq!(
            StreamTable::create(classes, heads, max_tokens).map(drop).unwrap_err(),
            StreamError::BadShape { classes: classes.len(), heads, max_tokens }
        );
    };
    shape(&[], 1, 8);
    shape(&classes, 0, 8);
    shape(&classes, 1, usize::MAX);
    shape(&[StreamClass { rows: 0, ..classes[0].clone() }], 1, 8);
    shape(&[classes[0].clone(), StreamClass { bits: 2, ..classes[1].clone() }], 1, 8);
    shape(&[classes[0].clone(), StreamClass { bits: 5, ..classes[0].clone() }], 1, 8);
    let mut table = StreamTable::create(&classes, 2, 4).unwrap();
    append(&mut table, &[0, 1, 0, 1]);
    let before = free(&classes);
    assert_eq!(table.reserve(&[0]).unwrap_err(), StreamError::Widths { given: 1, heads: 2 });
    assert_eq!(table.reserve(&[0, 4]).unwrap_err(), StreamError::NoClass { class: 4, classes: 4 });
    assert_eq!(table.reserve(&[0; 6]).unwrap_err(), StreamError::TooLong { len: 2, tokens: 3, limit: 4 });
    let to = |head, token, class| StreamMove { head, token, class };
    assert_eq!(table.reserve_moves(&[to(2, 0, 0)]).unwrap_err(), StreamError::NoToken { head: 2, token: 0 });
    assert_eq!(table.reserve_moves(&[to(0, 2, 0)]).unwrap_err(), StreamError::NoToken { head: 0, token: 2 });
    let twice = [to(0, 0, 1), to(1, 0, 2), to(0, 0, 2)];
    assert_eq!(table.reserve_moves(&twice).unwrap_err(), StreamError::Twice { head: 0, token: 0 });
    assert!(table.reserve_moves(&twice[..2]).is_ok(), "a refusal leaves no mark");
    assert_eq!(table.truncate(3).map(drop).unwrap_err(), StreamError::BeyondEnd { asked: 3, len: 2 });
    assert!(table.get(2, 0).is_none() && table.token(9, table.get(0, 0).unwrap()).is_none());
    assert_eq!((table.pages(9, 0).count(), table.counts(9)), (0, StreamCounts::default()));
    assert_eq!(free(&classes), before);

    let mut other = StreamTable::create(&classes, 2, 4).unwrap();
    let reservation = table.reserve(&[0, 1]).unwrap();
    let refused = other.commit(reservation).unwrap_err();
    assert_eq!(refused.error, StreamError::ForeignReservation);
    table.truncate(1).unwrap().retire(|| Stamp(1)).unwrap();
    let refused = table.commit(refused.reservation).unwrap_err();
    assert_eq!(refused.error, StreamError::OutdatedReservation);
    // Classes are taken in turn: the first pages go back when a later class has none.
    drop(refused);
    let held: Vec<PageId> = std::iter::from_fn(|| classes[3].pages.allocate().ok()).collect();
    let before = free(&classes);
    let none = table.reserve(&[2, 3]).unwrap_err();
    assert!(matches!(none, StreamError::Page { bits: 8, error: PageError::Exhausted { .. } }), "{none}");
    assert_eq!((free(&classes), held.len(), table.len()), (before, 4, 1));
}

#[test]
fn every_fault_leaves_everything_as_it_was() {
    type Act = fn(&mut StreamTable) -> Result<(), StreamError>;
    let acts: [(Act, u64); 3] = [
        (|t| t.reserve(&[0, 1, 2, 3, 0, 1]).map(drop), 6),
        (|t| t.reserve_moves(&[StreamMove { head: 1, token: 0, class: 3 }]).map(drop), 1),
        (|t| t.fork().map(drop), 2),
    ];
    for (act, most) in acts {
        let mut faults = 0;
        for nth in 1.. {
            let classes = classes([2, 2, 2, 2], 12);
            let mut table = StreamTable::create(&classes, 2, 16).unwrap();
            append(&mut table, &[0, 1, 0, 1, 0, 1]);
            let before = (free(&classes), (0..4).map(|class| table.counts(class)).collect::<Vec<_>>());
            fail::arm(Some(nth));
            let result = act(&mut table);
            fail::arm(None);
            if result.is_ok() {
                break;
            }
            faults += 1;
            assert!(matches!(result, Err(StreamError::Page { error: PageError::Fault(_), .. })));
            assert_eq!((free(&classes), (0..4).map(|class| table.counts(class)).collect::<Vec<_>>()), before);
        }
        assert!(faults > 0 && faults <= most, "{faults}");
    }
}
