//! The state table in docs/states.md is the one in the code.
use crate::word::{MAX_PINS, Operation, PageWord, Reason, Snapshot, State, WordError, step};

const STATES: [State; 6] = [State::Free, State::Open, State::Closing, State::Packed, State::Retiring, State::Worn];
const OPERATIONS: [Operation; 11] = [
    Operation::Open,
    Operation::CloseBegin,
    Operation::CloseCommit,
    Operation::CloseAbort,
    Operation::Reopen,
    Operation::Pin,
    Operation::Unpin,
    Operation::MoveBegin,
    Operation::MoveEnd,
    Operation::Retire,
    Operation::Free,
];

/// A cell of the table: the state after, then the extra reasons for which it can be refused; or a dash.
fn cell(operation: Operation, state: State) -> String {
    let mut to = None;
    let mut reasons: Vec<Reason> = vec![];
    for moving in [false, true] {
        for pins in [0, 1, MAX_PINS] {
            for generation in [1, u32::MAX] {
                match step(operation, Snapshot { generation, state, moving, pins }) {
                    Ok(next) if generation == 1 => to = Some(next.state),
                    Ok(_) => {}
                    Err(reason) if !reasons.contains(&reason) => reasons.push(reason),
                    Err(_) => {}
                }
            }
        }
    }
    reasons.retain(|reason| *reason != Reason::State);
    reasons.sort_by_key(|reason| format!("{reason:?}"));
    match to {
        None => "-".to_owned(),
        Some(to) if reasons.is_empty() => format!("{to:?}"),
        Some(to) => {
            let reasons: Vec<String> = reasons.iter().map(|reason| format!("{reason:?}")).collect();
            format!("{to:?}; not {}", reasons.join(", "))
        }
    }
}

fn table() -> String {
    let row = |cells: Vec<String>| format!("| {} |\n", cells.join(" | "));
    let mut text = row(["operation".to_owned()].into_iter().chain(STATES.iter().map(|s| format!("{s:?}"))).collect());
    text += &row(vec!["---".to_owned(); STATES.len() + 1]);
    for operation in OPERATIONS {
        let cells = STATES.iter().map(|state| cell(operation, *state));
        text += &row([format!("{operation:?}")].into_iter().chain(cells).collect());
    }
    text
}

#[test]
fn the_documented_table_is_the_table() {
    let doc = include_str!("../../../../docs/states.md");
    let table = table();
    assert!(doc.contains(&table), "docs/states.md must contain:\n{table}");
    let planted = table.replacen("Retiring |", "Free |", 1);
    assert!(!doc.contains(&planted), "the comparison cannot fail");
}

#[test]
fn a_refusal_changes_nothing_and_tells_what_it_found() {
    let mut refused = 0;
    for operation in OPERATIONS {
        for state in STATES {
            for (moving, pins) in [(false, 0), (false, 3), (true, 0)] {
                let page = Snapshot { generation: 9, state, moving, pins };
                let word = PageWord::free_at(9);
                word.force(page);
                let stale = word.apply(operation, 8);
                assert_eq!(stale, Err(WordError::Stale { asked: 8, found: 9 }));
                match word.apply(operation, 9) {
                    Ok(next) => assert_eq!(word.snapshot(), next),
                    Err(WordError::Refused(found)) => {
                        refused += 1;
                        assert_eq!(
                            (found.operation, found.state, found.moving, found.pins),
                            (operation, state, moving, pins)
                        );
                        assert_eq!(word.snapshot(), page);
                    }
                    Err(stale) => panic!("{stale}"),
                }
            }
        }
    }
    assert!(refused > 100, "{refused}");
}

#[test]
fn no_walk_through_the_table_breaks_its_promises() {
    // Every reachable (state, moving, pins <= 2) from Free: a mover is alone, free pages are held by nobody.
    let mut known = vec![Snapshot { generation: 1, state: State::Free, moving: false, pins: 0 }];
    let mut at = 0;
    while at < known.len() {
        let page = known[at];
        at += 1;
        assert!(!(page.moving && page.pins > 0), "{page:?}");
        assert!(!page.moving || matches!(page.state, State::Packed | State::Retiring), "{page:?}");
        if matches!(page.state, State::Free | State::Worn) {
            assert!(!page.moving && page.pins == 0, "{page:?}");
        }
        for operation in OPERATIONS {
            let Ok(next) = step(operation, page) else { continue };
            // Contents may only become others under another generation.
            if page.state == State::Packed && next.state == State::Open || next.state == State::Free {
                assert_eq!(next.generation, page.generation + 1, "{operation:?}");
            } else {
                assert_eq!(next.generation, page.generation, "{operation:?}");
            }
            let next = Snapshot { generation: 1, ..next };
            if next.pins <= 2 && !known.contains(&next) {
                known.push(next);
            }
        }
    }
    assert!(known.len() >= 12, "{}", known.len());
}

/// The short ways on bits do what the table says, from every word.
#[test]
fn short_ways_are_the_tables() {
    use crate::word::{MAX_PINS, PageWord, Snapshot, State, step};
    let states = [State::Free, State::Open, State::Closing, State::Packed, State::Retiring, State::Worn];
    let (mut opened, mut freed) = (0, 0);
    for (state, moving) in states.into_iter().flat_map(|state| [(state, false), (state, true)]) {
        for (pins, generation) in [0, 1, MAX_PINS].into_iter().flat_map(|pins| [1, 77, u32::MAX].map(|g| (pins, g))) {
            let page = Snapshot { generation, state, moving, pins };
            let word = || {
                let word = PageWord::free_at(1);
                word.force(page);
                word
            };
            let (short, long) = (word(), step(Operation::Open, page));
            assert_eq!(short.open_free(), long.ok().filter(|_| pins == 0 && !moving).map(|p| p.generation));
            if pins == 0 && !moving {
                assert_eq!(short.snapshot(), long.unwrap_or(page));
            }
            opened += usize::from(long.is_ok());

            let short = word();
            let retiring = step(Operation::Retire, page);
            let left = retiring.map(|p| step(Operation::Free, p).unwrap_or(p));
            assert_eq!(short.retire_or_free(generation).ok(), left.ok().map(|p| p.state));
            assert_eq!(short.snapshot(), left.unwrap_or(page));
            freed += usize::from(left.is_ok_and(|p| p.state == State::Free));
            assert!(word().retire_or_free(generation.wrapping_sub(1)).is_err());
        }
    }
    assert!(opened > 0 && freed > 0);
}
