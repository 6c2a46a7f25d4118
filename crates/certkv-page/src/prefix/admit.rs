//! Whether a request would fit, and how much to evict before anybody has to wait.
use super::evict::Evicted;
use super::index::{GroupShape, PrefixIndex, State};
use crate::inspect::Counts;
use crate::pools::PageClass;
use crate::table::Need;

/// What a request would find.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Admission {
    /// Free pages are enough.
    Fits,
    /// Free pages and those whose fences have yet to pass are enough.
    FitsSoon,
    /// Enough, once cached units that nobody uses are evicted.
    FitsAfterEviction {
        /// Units to evict. 0 where pages of windows or of levels alone are short: the step that needs them takes them. Units with
        /// windows stay then.
        units: usize,
    },
    /// Not even then: sequences have to end, or give pages up.
    Lacks {
        /// Number of the KV group.
        group: usize,
        /// The class of pages that is short.
        class: PageClass,
        /// Pages short.
        pages: usize,
    },
}

/// When cached units are evicted ahead of time, so that who needs pages does not have to: in tokens whose pages are free, or soon will be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Watermarks {
    /// Eviction starts where fewer are.
    pub low: usize,
    /// It ends where as many are.
    pub high: usize,
}

impl Watermarks {
    /// Pages of blocks of `block` tokens to evict now: 0 unless `counts` are below the low mark.
    pub const fn wanted(self, counts: Counts, block: usize) -> usize {
        let coming = counts.free + counts.retiring;
        if coming < self.low.div_ceil(block) { self.high.div_ceil(block).saturating_sub(coming) } else { 0 }
    }
}

impl<T> PrefixIndex<T> {
    /// Removes idle units, as [`evict`](Self::evict), where fewer tokens have free pages than the low mark says, until as many do as the high one says.
    /// Pages of windows, and of single levels, do not count: they do not go with units. `None` where nothing is to do, which costs a
    /// look at the counts of every class.
    pub fn evict_ahead(&self, marks: Watermarks) -> Option<Evicted> {
        let mut units = 0;
        for group in &self.groups {
            let whole = |class: &PageClass| !matches!(class, PageClass::Tail | PageClass::Swap) && !group.lacks(*class);
            for class in group.pools.classes().filter(whole) {
                let pages = marks.wanted(group.pools.of(class).counts(), group.block);
                units = units.max(pages.div_ceil(self.unit() / group.block));
            }
        }
        (units > 0).then(|| self.evict(units)).filter(|evicted| !evicted.is_empty())
    }

    /// Whether `needs`, one per group as [`BlockTable::plan_append`](crate::BlockTable::plan_append) gives them, could be
    /// taken now. Nothing is reserved, so the answer is old when another thread allocates. Looks at every entry if free pages
    /// do not suffice.
    pub fn admit(&self, needs: &[Need]) -> Admission {
        let (mut soon, mut short, mut hollow) = (true, 0, false);
        // Of a group, in a class: pages short, and pages that a unit gives back for sure.
        let missing = |group: &GroupShape, class, wanted: usize| {
            let counts = group.pools.of(class).counts();
            let each = if class == PageClass::Tail || group.lacks(class) { 0 } else { self.unit() / group.block };
            (wanted.saturating_sub(counts.free + counts.retiring), each, wanted <= counts.free)
        };
        // What can be had of a class whose pages do not go with whole units. Tails are never cached.
        let idle_of = |number: usize, group: &GroupShape, class| {
            if group.lacks(class) { self.idle_pages(number, class) } else { 0 }
        };
        for (number, (group, need)) in self.groups.iter().zip(needs).enumerate() {
            for (class, wanted) in need.by_class() {
                let (missing, each, free) = missing(group, class, wanted);
                soon &= free;
                if each > 0 {
                    // A unit has as many host pages as packed ones.
                    short = short.max(missing.div_ceil(each));
                } else if missing > 0 {
                    let idle = idle_of(number, group, class);
                    if missing > idle {
                        return Admission::Lacks { group: number, class, pages: missing - idle };
                    }
                    hollow = true;
                }
            }
        }
        if short == 0 && !hollow {
            return if soon { Admission::Fits } else { Admission::FitsSoon };
        }
        let idle = if short > 0 { self.idle_units() } else { 0 };
        if short <= idle {
            return Admission::FitsAfterEviction { units: short };
        }
        for (number, (group, need)) in self.groups.iter().zip(needs).enumerate() {
            for (class, wanted) in need.by_class() {
                let (missing, each, _) = missing(group, class, wanted);
                if each > 0 && missing > idle * each {
                    return Admission::Lacks { group: number, class, pages: missing - idle * each };
                }
            }
        }
        // Pages came back between the two looks.
        Admission::FitsSoon
    }

    /// Units that eviction could free, one after the other: nobody uses their pages, nor those of a block behind them.
    pub fn idle_units(&self) -> usize {
        let mut state = self.state.lock();
        state.walks += 1;
        let State { entries, walks, .. } = &mut *state;
        let slots: Vec<u32> = entries.slots().collect();
        let mut held = 0;
        for slot in &slots {
            if self.is_unused(entries.pages_of(*slot)) {
                continue;
            }
            // It and everything before it has to stay.
            let mut at = *slot;
            while let Some(node) = entries.nodes.get_mut(at as usize)
                && node.seen != *walks
            {
                node.seen = *walks;
                held += 1;
                at = node.parent;
            }
        }
        slots.len() - held
    }
}
