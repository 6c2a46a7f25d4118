//! Random use over random schedules with injected faults: pages change owners, sides come and go, leases are held.
//! The checker must find nothing, every word read must be right; each planted defect must be found.
use super::world::{PAGES, World, page, right, sides_of};
use crate::{ScratchLease, SideKey};
use certkv_core::PageId;
use certkv_core::fail;
use certkv_core::hash::splitmix64;
use certkv_core::plant::{self, Bug};
use certkv_device::{DeviceError, Fence, Mode};

/// What is planted in a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Plant {
    Nothing,
    Bug(Bug),
    /// Sides are found before their copies were seen to have ended.
    Early,
}

/// Ignored pins (B6) are planted elsewhere: here the readers' fence, refused while their guards live, is in front of them.
const PLANTS: [Plant; 5] =
    [Plant::Bug(Bug::B1), Plant::Bug(Bug::B2), Plant::Bug(Bug::B5), Plant::Bug(Bug::B18), Plant::Early];

enum Host {
    /// The original is there.
    Stored(PageId),
    /// Its store is in flight.
    Storing(PageId, Fence),
    /// The tail is the only copy.
    Tail(PageId),
}

struct Run {
    world: World,
    hosts: Vec<Host>,
    leases: Vec<ScratchLease>,
    dice: u64,
    hits: u64,
}

impl Run {
    fn roll(&mut self, n: u64) -> u64 {
        self.dice = splitmix64(self.dice);
        (self.dice >> 20) % n
    }

    fn key(&mut self) -> Option<SideKey> {
        let (p, i) = (self.roll(u64::from(PAGES)) as usize, self.roll(8) as usize);
        match self.hosts[p] {
            Host::Stored(id) => sides_of(id).nth(i),
            _ => None,
        }
    }

    /// Stores settle: success makes the original valid, failure leaves the tail as the authority.
    fn settle(&mut self) {
        for host in &mut self.hosts {
            if let Host::Storing(id, fence) = host {
                match fence.completed() {
                    Ok(true) => *host = Host::Stored(*id),
                    Ok(false) => {}
                    Err(_) => *host = Host::Tail(*id),
                }
            }
        }
    }

    fn step(&mut self) -> Result<(), DeviceError> {
        self.settle();
        match self.roll(12) {
            0 => self.renew(),
            1 | 2 => self.save(),
            3..6 => {
                let n = 1 + self.roll(4);
                let keys: Vec<SideKey> = (0..n).filter_map(|_| self.key()).collect();
                match self.world.prefetch(&keys) {
                    Ok(_) => Ok(()),
                    Err(error) => error.not_moved.iter().try_for_each(|(_, cause)| match *cause {
                        crate::MoveCause::Device(error) => expected(Err(error)),
                        _ => Ok(()),
                    }),
                }
            }
            6 | 7 => {
                self.leases.clear();
                Ok(())
            }
            n => {
                for _ in 0..3 {
                    let Some(key) = self.key() else { continue };
                    // Leases of the second reader are held across steps, those of the first are not.
                    let reader = (n % 2) as usize;
                    let Some(lease) = self.world.scratch.lookup(&key, &self.world.readers[reader])? else { continue };
                    self.hits += 1;
                    if !right(&lease) {
                        return Err(DeviceError::Foreign);
                    }
                    if reader == 1 {
                        self.leases.push(lease);
                    }
                }
                Ok(())
            }
        }
    }

    /// A page gets a new owner, whose rows lie in the tail.
    fn renew(&mut self) -> Result<(), DeviceError> {
        let p = self.roll(u64::from(PAGES)) as usize;
        let Host::Stored(old) = self.hosts[p] else { return Ok(()) };
        self.world.scratch.invalidate_page(old);
        // The tail's last store was seen to have passed, so the writer may go ahead.
        let new = PageId { generation: old.generation + 1, ..old };
        self.world.write_tail(new)?;
        self.hosts[p] = Host::Tail(new);
        Ok(())
    }

    fn save(&mut self) -> Result<(), DeviceError> {
        let p = self.roll(u64::from(PAGES)) as usize;
        let Host::Tail(id) = self.hosts[p] else { return Ok(()) };
        let Ok(written) = self.world.readers[0].record() else { return Ok(()) };
        // Fills may still read the page's last owner.
        if let Some(fills) = self.world.fills.last_fence()
            && self.world.stores.wait(&fills).is_err()
        {
            return Ok(());
        }
        match self.world.store(id, &written) {
            Ok(fence) => {
                self.hosts[p] = Host::Storing(id, fence);
                Ok(())
            }
            Err(error) => {
                // The page is stored again later; what is in flight must be over before its rows are written again.
                let _ = error.fence.map(|fence| fence.synchronize());
                error.not_moved.iter().try_for_each(|(_, cause)| match *cause {
                    crate::MoveCause::Device(error) => expected(Err(error)),
                    _ => Ok(()),
                })
            }
        }
    }
}

/// Injected faults and the checked rule on live guards are no findings.
fn expected(result: Result<(), DeviceError>) -> Result<(), DeviceError> {
    match result {
        Err(DeviceError::Injected(_) | DeviceError::GuardsLive { .. }) => Ok(()),
        other => other,
    }
}

/// Operations and hits of a clean run, or what was found.
fn run(seed: u64, what: Plant) -> Result<(u64, u64), String> {
    let slots = [1 + (seed % 3) as u32, 1 + (seed / 3 % 3) as u32];
    let world = World::try_stored(Mode::Adversarial { seed }, slots[0], slots[1])?;
    if what == Plant::Early {
        world.scratch.show_early();
    }
    let hosts = (0..PAGES).map(|p| Host::Stored(page(p))).collect();
    let mut run = Run { world, hosts, leases: Vec::new(), dice: splitmix64(!seed), hits: 0 };
    for _ in 0..150 {
        let (armed, nth) = (run.roll(6) == 0, 1 + run.roll(6));
        fail::arm(armed.then_some(nth));
        let result = run.step();
        fail::arm(None);
        expected(result).map_err(|e| e.to_string())?;
        if !run.leases.iter().all(right) {
            return Err("a held side changed".into());
        }
        run.world.assert_books(slots, run.leases.len() as u32);
    }
    run.leases.clear();
    let _ = run.world.device.synchronize();
    run.world.assert_books(slots, 0);
    let report = run.world.device.report();
    if report.findings() > 0 { Err(format!("{report:?}")) } else { Ok((report.ops, run.hits)) }
}

#[test]
fn gate_adversarial_use() {
    let default = if cfg!(debug_assertions) { 1000 } else { 10_000 };
    let seeds = std::env::var("CERTKV_SIM_SEEDS").ok().and_then(|s| s.parse().ok()).unwrap_or(default);
    let (mut ops, mut hits, mut failed, start) = (0, 0, 0, std::time::Instant::now());
    for seed in 0..seeds {
        match run(seed, Plant::Nothing) {
            Ok((n, h)) => (ops, hits) = (ops + n, hits + h),
            Err(finding) => {
                println!("seed {seed}: {finding}");
                failed += 1;
            }
        }
    }
    println!("clean: {seeds} seeds, {:.0} seeds/s, {hits} hits", seeds as f64 / start.elapsed().as_secs_f64());
    let mut caught = 0;
    for what in PLANTS {
        plant::arm(if let Plant::Bug(bug) = what { Some(bug) } else { None });
        let found = (0..500).filter(|&seed| run(seed, what).is_err()).count();
        assert!(what == Plant::Early || plant::committed() > 0, "{what:?} was never reached");
        plant::arm(None);
        println!("planted {what:?}: caught in {found} of 500 seeds");
        caught += usize::from(found > 0);
    }
    println!("GATE tier-sim executed={ops} failed={failed} controls={caught}/{} seed=0x0", PLANTS.len());
    assert!(ops > 100 * seeds && hits > 10 * seeds, "the gate did not run: {ops} ops, {hits} hits");
    assert_eq!((failed, caught), (0, PLANTS.len()));
}
