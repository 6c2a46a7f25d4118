//! Scratch over many steps: few slots, small lists, shared pages, pages given to others.
use crate::emulated::Buffer;
use crate::world::{BLOCK, Plan, SIDE, World, kernel};
use certkv_kernel::cuda::select::{ROW_ENTRY, SelectArgs, SelectMode, SlotPool};
use certkv_testkit::generate::Rng;

/// A run over steps of new masses. Returns how often a rule was broken.
fn churn(plan: Plan, steps: u32, spoil: bool) -> (usize, World) {
    let kernel = kernel(plan.group);
    let mut w = World::new(plan);
    let mut r = Rng::new(w.plan.seed + 77);
    let mut wrong = 0;
    for step in 1..=steps {
        w.set_step(step);
        let before: Vec<(Vec<u32>, Vec<u32>)> = (0..2).map(|s| (w.owners[s].read(), w.stamps[s].read())).collect();
        if spoil {
            // Control: a slot in use that looks old.
            w.stamps[0].write(0, &vec![0u32; w.plan.slots[0]]);
            w.stamps[1].write(0, &vec![0u32; w.plan.slots[1]]);
        }
        w.repair(&kernel, &[0, 1], 0.6, 2, u64::from(step) * 3);
        w.plan_step(&kernel, 1 + step % 5, u64::from(step));
        for (s, (owners, stamps)) in before.iter().enumerate() {
            for (i, owner) in w.owners[s].read::<u32>().iter().enumerate() {
                wrong += usize::from(owners[i] != 0 && *owner != owners[i] && stamps[i] + 1 >= step);
            }
        }
        let (queued, counted) = (w.counted(), w.queue.read::<u32>()[0] as usize);
        assert!(counted <= w.plan.capacity);
        w.gather();
        wrong += w.inconsistencies().len();
        assert!(queued.copies as usize <= w.plan.capacity * step as usize);
        w.draw(&mut r);
    }
    (wrong, w)
}

#[test]
fn no_slot_in_use_changes_hands_and_every_address_leads_to_its_item() {
    let (mut failed, mut caught, mut planted) = (0, 0, 0);
    let mut runs = 0;
    let mut evictions = 0;
    for (slots, capacity) in
        [([4096, 4096], 4096), ([60, 50], 4096), ([200, 3], 30), ([0, 40], 9), ([1, 1], 1), ([8, 100], 0)]
    {
        for forked in [false, true] {
            let plan = Plan {
                forked,
                slots,
                capacity,
                seed: runs + 3,
                ..Plan::new(4, &[120 * BLOCK, 130 * BLOCK, 20 * BLOCK])
            };
            let (wrong, w) = churn(plan, 8, false);
            failed += wrong;
            runs += 1;
            evictions += w.counted().evictions;
            let s = w.counted();
            assert!(capacity > 0 || s.copies == 0);
            assert!(s.resident > 0 || capacity <= 1, "{s:?}");
            assert!(s.refused > 0 || capacity == 4096 && slots[0] == 4096, "{s:?}");
        }
    }
    for seed in 0..4 {
        let plan = Plan { slots: [60, 50], seed, ..Plan::new(4, &[120 * BLOCK, 130 * BLOCK]) };
        planted += 1;
        caught += u32::from(churn(plan, 6, true).0 > 0);
    }
    println!("GATE gpu-select-slots executed={runs} failed={failed} controls={caught}/{planted} seed=0x3");
    assert_eq!(failed, 0);
    assert_eq!(caught, planted);
    assert!(evictions > 100, "{evictions}");
}

#[test]
fn rows_that_share_a_page_share_its_slot() {
    let plan = Plan { forked: true, ..Plan::new(4, &[100 * BLOCK, 100 * BLOCK, 100 * BLOCK]) };
    let (wrong, w) = churn(plan, 3, false);
    assert_eq!(wrong, 0);
    for s in 0..2 {
        let mut owners: Vec<u32> = w.owners[s].read::<u32>().into_iter().filter(|x| *x != 0).collect();
        owners.sort_unstable();
        let all = owners.len();
        owners.dedup();
        assert_eq!(owners.len(), all);
        assert!(all <= 200 && all > 0);
    }
}

/// Of a page that is forgotten and erased the slots are zero, all of them and no other; of one that is forgotten alone they are as they were.
#[test]
fn slots_of_erased_pages_are_zero_and_no_others() {
    for mode in [SelectMode::Erase, SelectMode::Forget] {
        let plan = Plan { slots: [90, 70], ..Plan::new(4, &[60 * BLOCK, 50 * BLOCK]) };
        let (wrong, w) = churn(plan, 3, false);
        assert_eq!(wrong, 0);
        let kernel = kernel(4);
        let gone: Vec<u32> = (0..60).step_by(2).collect();
        let mut words = vec![gone.len() as u32];
        words.extend(&gone);
        w.only.write(0, &words);
        let scratch = w.plan.slots.map(|slots| Buffer::of(&vec![0xa5a5_a5a5u32; slots * SIDE as usize / 4]));
        let before: Vec<Vec<u32>> = w.owners.iter().map(Buffer::read).collect();
        let pool = |pool: SlotPool, side: usize| SlotPool { base: scratch[side].pointer(), ..pool };
        let (keys, values) = (pool(w.args.keys, 0), pool(w.args.values, 1));
        w.launch(&kernel, SelectArgs { mode: mode as u32, keys, values, ..w.args }, 3, 9);
        let (mut erased, mut kept) = (0, 0);
        for (side, owners) in before.iter().enumerate() {
            let bytes = scratch[side].read::<u32>();
            for (slot, owner) in owners.iter().enumerate() {
                let page = owner.checked_sub(1).map(|item| item / 2 / w.plan.kv_heads as u32);
                let zero = page.is_some_and(|page| gone.contains(&page)) && mode == SelectMode::Erase;
                let words = SIDE as usize / 4;
                let expected = if zero { 0 } else { 0xa5a5_a5a5 };
                assert!(bytes[slot * words..][..words].iter().all(|word| *word == expected), "{mode:?} {side} {slot}");
                (erased, kept) = (erased + usize::from(zero), kept + usize::from(!zero));
            }
        }
        assert!(kept > 20 && (erased > 20) == (mode == SelectMode::Erase), "{mode:?}: {erased} {kept}");
        assert_eq!(w.inconsistencies(), Vec::<String>::new());
    }
}

#[test]
fn forgotten_pages_and_rows_leave_nothing_behind() {
    let (wrong, mut w) = churn(Plan::new(4, &[60 * BLOCK, 50 * BLOCK]), 3, false);
    assert_eq!(wrong, 0);
    let kernel = kernel(4);
    w.set_step(4);
    w.repair(&kernel, &[0, 1, 2, 3], 0.3, 2, 1);
    // Row 1 is the first sequence: pages 0..60.
    let mut list: Vec<u32> = (0..60).collect();
    list.push(ROW_ENTRY | 1);
    let mut words = vec![list.len() as u32];
    words.extend(&list);
    w.only.write(0, &words);
    let other = w.words(2);
    w.launch(&kernel, SelectArgs { mode: SelectMode::Forget as u32, ..w.args }, 3, 9);
    let (resident, sides) = (w.resident.read::<u32>(), w.all_sides());
    let items = 60 * 2 * 2;
    assert!(resident[..items].iter().all(|x| *x == 0) && resident[items..].iter().any(|x| *x != 0));
    let half = sides.len() / 2;
    assert!(sides[..items].iter().chain(&sides[half..half + items]).all(|x| *x == 0));
    assert!(sides[half + items..].iter().any(|x| *x != 0));
    for s in 0..2 {
        assert!(w.owners[s].read::<u32>().iter().all(|x| *x == 0 || *x as usize > items));
    }
    assert!(w.words(0).iter().chain(&w.words(1)).all(|x| *x == 0));
    assert_eq!(w.words(2), other);
    assert_eq!(w.inconsistencies(), Vec::<String>::new());
    // And all goes on from there.
    w.plan_step(&kernel, 2, 3);
    w.gather();
    assert_eq!(w.inconsistencies(), Vec::<String>::new());
}
