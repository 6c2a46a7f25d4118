//! Every fault point is made to fail, and another one when the call is made again: it reports each and leaves everything as it was.
use super::pools;
use crate::{BlockTable, PageAllocator, PageError, Pools, Stamp, TableError};
use certkv_core::fail;

fn state(pools: &Pools, table: &BlockTable) -> impl PartialEq + std::fmt::Debug + use<> {
    let counts = [&pools.host, &pools.packed, &pools.tail].map(|pages| pages.check().unwrap());
    (counts, table.blocks().to_vec(), table.len())
}

/// Runs `act` on a fresh table of 10 tokens with the n-th fault, for all n, and each time once more with the m-th, for all m; the third time
/// it must succeed. Returns how many faults there were.
fn sweep<T>(
    prepare: impl Fn(&BlockTable) -> Option<BlockTable>,
    act: impl Fn(&mut BlockTable) -> Result<T, TableError>,
) -> u64 {
    let mut faults = None;
    for nth in 1.. {
        for mth in 1.. {
            let pools = pools(8, 8, 4);
            let mut table = BlockTable::create(&pools, 4, 8).unwrap();
            let reservation = table.reserve(10).unwrap();
            table.commit(reservation).unwrap().dropped.retire(|| Stamp(1)).unwrap();
            let other = prepare(&table);
            let before = state(&pools, &table);
            let mut attempt = |nth| {
                fail::arm(Some(nth));
                let result = act(&mut table);
                let fired = fail::fired();
                fail::arm(None);
                match result {
                    Ok(_) => assert_eq!(fired, None),
                    Err(TableError::Page { error: PageError::Fault(fault), .. }) => {
                        assert_eq!(fired, Some(fault.point))
                    }
                    Err(error) => panic!("{error}"),
                }
                if fired.is_some() {
                    assert_eq!(state(&pools, &table), before, "fault {nth}, {fired:?}");
                }
                fired.is_some()
            };
            if !attempt(nth) {
                faults = Some(nth - 1);
                break;
            }
            if !attempt(mth) {
                assert_eq!(
                    mth,
                    1 + *faults.get_or_insert(mth - 1),
                    "a call that failed has other faults the next time"
                );
                break;
            }
            assert!(!attempt(u64::MAX));
            drop(other);
        }
        if let Some(faults) = faults.filter(|faults| *faults < nth) {
            return faults;
        }
    }
    unreachable!("the sweep ends with a run without fault")
}

#[test]
fn every_fault_leaves_everything_as_it_was() {
    let alone = |_: &BlockTable| None;
    assert_eq!(sweep(alone, |t| t.reserve(7).map(drop)), 2 + 2 + 1);
    assert_eq!(sweep(alone, |t| t.fork().map(drop)), 2);
    assert_eq!(sweep(alone, |t| t.truncate(6).map(drop)), 1);
    assert_eq!(sweep(|t| Some(t.fork().unwrap().0), |t| t.truncate(6).map(drop)), 2);

    fail::arm(Some(1));
    let refused = PageAllocator::create(4).map(|_| ()).unwrap_err();
    fail::arm(None);
    assert!(matches!(refused, PageError::Fault(fault) if fault.point == "page.alloc.create"));
}
