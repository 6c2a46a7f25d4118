//! Events of the index: a router that follows them knows what is cached.
use super::super::pools;
use super::chain;
use crate::policy::Lru;
use crate::prefix::{
    BlockKey, Cached, Chain, EventKind, EventsRead, GroupShape, Mark, MarkDigest, NotYet, PrefixEvent, PrefixEvents,
    PrefixIndex, Prompt,
};
use crate::{BlockTable, Pools, Stamp};
use std::collections::BTreeMap;

const UNIT: usize = 4;

fn index(pools: &Pools, capacity: usize, events: usize) -> PrefixIndex<()> {
    let group = GroupShape { pools: pools.clone(), block: UNIT, max_blocks: 16, window: None };
    let index = PrefixIndex::create(vec![group], capacity, Box::new(Lru::create(capacity).unwrap())).unwrap();
    index.with_events(events).unwrap()
}

fn filled(pools: &Pools, tokens: usize) -> BlockTable {
    let mut table = BlockTable::create(pools, UNIT, 16).unwrap();
    let reservation = table.reserve(tokens).unwrap();
    table.commit(reservation).unwrap().dropped.retire(|| Stamp(1)).unwrap();
    table
}

fn publish(index: &PrefixIndex<()>, chain: &Chain, prompt: Prompt<'_>, table: &BlockTable) -> usize {
    let done = index.publish(chain, prompt, &[table], |_, _| Some(()));
    done.evicted.retire(|_| Stamp(1)).unwrap();
    done.added
}

/// All events from `from` on, with their tokens, and what the last read said.
fn follow(events: &PrefixEvents, from: u64) -> (Vec<(PrefixEvent, Vec<u32>)>, EventsRead) {
    let mut some = [PrefixEvent { number: 9, ..blank() }; 3];
    let (mut tokens, mut all, mut said) = ([7; 3 * UNIT], Vec::new(), EventsRead::default());
    (said.next, said.newest) = (from, u64::MAX);
    while said.next < said.newest {
        let lost = said.lost;
        said = events.read(said.next, &mut some, &mut tokens).unwrap();
        said.lost += lost;
        let with = some.iter().zip(tokens.chunks(UNIT)).take(said.read);
        all.extend(with.map(|(event, tokens)| (*event, tokens.to_vec())));
    }
    (all, said)
}

fn blank() -> PrefixEvent {
    let key = BlockKey([1; 32]);
    PrefixEvent { number: 0, kind: EventKind::Exported, unit: 9, marked: true, key, parent: key }
}

#[test]
fn events_have_the_names_that_the_chain_gives() {
    let (pools, chain) = (pools(16, 16, 4), chain(b"a"));
    let index = index(&pools, 8, 16);
    let events = index.events().unwrap().clone();
    let tokens: Vec<u32> = (0..14).collect();
    let marks = [Mark { at: 5, what: b"image" }];
    let prompt = Prompt { tokens: &tokens, marks: &marks };
    let table = filled(&pools, 14);
    assert_eq!(publish(&index, &chain, prompt, &table), 3);
    assert_eq!(publish(&index, &chain, prompt, &table), 0, "what is known is told once");
    let (told, said) = follow(&events, 0);
    assert_eq!((told.len(), said.lost, said.next), (3, 0, 3));
    let mut parent = chain.root();
    for (i, (event, words)) in told.iter().enumerate() {
        let own = &tokens[i * UNIT..(i + 1) * UNIT];
        let key = chain.next(&parent, own, &chain.marks(&prompt, i * UNIT, UNIT));
        let (number, unit) = (i as u64, i as u32);
        let wanted = PrefixEvent { number, kind: EventKind::Stored, unit, marked: i == 1, key, parent };
        assert_eq!((event, &words[..]), (&wanted, own));
        parent = key;
    }
    assert_ne!(told[1].0.key, chain.next(&told[0].0.key, &tokens[4..8], &MarkDigest::NONE));
    events.exported(2, told[2].0.key);
    table.release().retire(|| Stamp(1)).unwrap();
    index.evict(9).retire(|_| Stamp(1)).unwrap();
    // Leaves go first, and say what they followed.
    let (told_later, _) = follow(&events, 3);
    let kinds: Vec<_> =
        told_later.iter().map(|(event, words)| (event.kind, event.unit, event.key, words[..] == [0; 4])).collect();
    let gone = |i: usize| (EventKind::Removed, i as u32, told[i].0.key, true);
    assert_eq!(kinds, [(EventKind::Exported, 2, told[2].0.key, true), gone(2), gone(1), gone(0)]);
    assert_eq!(told_later[2].0.parent, told[0].0.key);
    assert_eq!(told_later[3].0.parent, chain.root());
    // They outlive the index.
    drop(index);
    assert_eq!(follow(&events, 0).0.len(), 7);
}

#[test]
fn a_late_reader_is_told_what_it_missed() {
    let (pools, chain) = (pools(16, 16, 4), chain(b"a"));
    let index = index(&pools, 8, 2);
    let events = index.events().unwrap();
    let tokens: Vec<u32> = (0..12).collect();
    let table = filled(&pools, 12);
    assert_eq!(events.read(0, &mut [blank()], &mut []), Ok(EventsRead::default()));
    publish(&index, &chain, tokens[..].into(), &table);
    let mut some = [blank(); 4];
    let said = events.read(0, &mut some, &mut []).unwrap();
    assert_eq!(said, EventsRead { read: 2, lost: 1, next: 3, newest: 3 });
    assert_eq!([some[0].number, some[1].number, some[2].number], [1, 2, 0], "no more than there are");
    // Again, as far as there is room: for events, and for whole units of tokens.
    assert_eq!(events.read(1, &mut some[..1], &mut []), Ok(EventsRead { read: 1, lost: 0, next: 2, newest: 3 }));
    let mut words = [9; UNIT + 3];
    assert_eq!(events.read(1, &mut some, &mut words), Ok(EventsRead { read: 1, lost: 0, next: 2, newest: 3 }));
    assert_eq!(words, [4, 5, 6, 7, 9, 9, 9]);
    assert_eq!(events.read(1, &mut some, &mut words[..3]).unwrap().read, 0);
    assert_eq!(events.read(0, &mut [], &mut []), Ok(EventsRead { read: 0, lost: 1, next: 1, newest: 3 }));
    assert_eq!(events.read(4, &mut some, &mut []), Err(NotYet { asked: 4, next: 3 }));
    assert_eq!(events.read(u64::MAX, &mut some, &mut []).unwrap_err().next, 3);
}

#[test]
fn an_index_that_was_not_asked_tells_nothing() {
    let pools = pools(4, 4, 4);
    let group = GroupShape { pools: pools.clone(), block: UNIT, max_blocks: 4, window: None };
    let quiet = PrefixIndex::<()>::create(vec![group], 4, Box::new(Lru::create(4).unwrap())).unwrap();
    assert!(quiet.events().is_none());
    assert_eq!(quiet.cached(), Ok(None));
    assert_eq!(PrefixEvents::bytes(0, 64, 100), 0);
}

/// What a router makes of events: keys, and what follows what.
#[derive(Default)]
struct Router {
    known: BTreeMap<BlockKey, (BlockKey, u32, Vec<u32>)>,
    next: u64,
    resynchronised: usize,
}

impl Router {
    fn follow(&mut self, index: &PrefixIndex<()>) {
        let (told, said) = follow(index.events().unwrap(), self.next);
        self.next = said.next;
        if said.lost > 0 {
            let Cached { units, tokens, next } = index.cached().unwrap().unwrap();
            (self.next, self.resynchronised) = (next, self.resynchronised + 1);
            self.known.clear();
            let told = units.into_iter().zip(tokens.chunks(UNIT));
            told.for_each(|(event, tokens)| self.hear(&event, tokens));
            return;
        }
        told.iter().for_each(|(event, tokens)| self.hear(event, tokens));
    }

    fn hear(&mut self, event: &PrefixEvent, tokens: &[u32]) {
        match event.kind {
            EventKind::Stored => {
                assert!(event.unit == 0 || self.known.contains_key(&event.parent), "before what it follows");
                let there = self.known.insert(event.key, (event.parent, event.unit, tokens.to_vec()));
                assert_eq!(there, None, "stored twice");
            }
            EventKind::Removed => {
                assert!(self.known.remove(&event.key).is_some(), "removed and never stored");
                assert!(self.known.values().all(|(parent, ..)| *parent != event.key), "removed below others");
            }
            EventKind::Exported => {}
        }
    }
}

#[test]
fn a_router_that_follows_knows_what_is_cached() {
    let pools = pools(64, 64, 16);
    let chains = [chain(b"a"), chain(b"b")];
    for capacity in [6, 1000] {
        let index = index(&pools, 10, capacity);
        let mut router = Router::default();
        let mut noise = 5u64;
        let mut draw = |n: u64| {
            noise = noise.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            ((noise >> 33) % n) as usize
        };
        for _ in 0..600 {
            let tokens: Vec<u32> = (0..4 * draw(5)).map(|i| (i / 4 * 10 + draw(2)) as u32).collect();
            let table = filled(&pools, tokens.len());
            publish(&index, &chains[draw(2)], tokens[..].into(), &table);
            table.release().retire(|| Stamp(1)).unwrap();
            if draw(3) == 0 {
                index.evict(draw(4)).retire(|_| Stamp(1)).unwrap();
            }
            pools.reclaim(&mut |_| true);
            // Not always: events pile up.
            if draw(2) == 0 {
                router.follow(&index);
                let Cached { units, tokens, .. } = index.cached().unwrap().unwrap();
                assert_eq!(units.len(), index.len());
                let there = units.iter().zip(tokens.chunks(UNIT));
                let there = there.map(|(u, tokens)| (u.key, (u.parent, u.unit, tokens.to_vec())));
                assert_eq!(router.known, there.collect());
            }
        }
        assert!(router.next > 500 && (router.resynchronised > 20) == (capacity == 6), "{}", router.resynchronised);
    }
}
