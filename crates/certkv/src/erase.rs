//! What sequences leave is overwritten before anybody else has it ([`Config::erase`](crate::Config::erase)).
//!
//! A page that was given up is free once its readers are done, and allocated again only when it has been erased ([`PageAllocator::erase`]): so nothing is
//! erased under a reader, and nothing is handed out as it was left.
//!
//! [`PageAllocator::erase`]: certkv_page::PageAllocator::erase
use crate::Error;
use crate::cache::Cache;
use crate::group::Group;
use certkv_core::PageId;
use certkv_device::Arena;
use certkv_page::{PageAllocator, PageClass, PageError, PageRef};

/// A slab of pages that are erased, or handed out as they were left.
pub(crate) fn pages(erased: bool, capacity: usize) -> Result<PageAllocator, PageError> {
    if erased { PageAllocator::create_erased(capacity) } else { PageAllocator::create(capacity) }
}

impl Cache {
    /// Pages whose readers are done are free. Every call that needs pages begins with it, and every one that gives some up ends with it.
    pub(crate) fn reclaim(&self, group: &Group) {
        group.pools.reclaim(&mut |stamp| self.passed(stamp));
        if self.config.erase {
            group.pools.erase(&mut |class, ids| ids.iter().all(|id| erase_page(group, PageRef { class, id: *id })));
            self.erase_frames(group);
            group.scratch.as_ref().map(certkv_tier::Scratch::erase);
        }
    }

    /// Bytes that are not zero in memory that nobody holds: in free pages of all classes, free frames and free scratch. With
    /// [`Config::erase`](crate::Config::erase) that is 0, but for what is given up and still read. Reads all of them: for audits and tests.
    ///
    /// # Errors
    /// The device's.
    pub fn residue(&self) -> Result<usize, Error> {
        let _turn = self.turn.lock();
        let mut left = 0;
        for group in &self.groups {
            self.reclaim(group);
            for class in group.pools.classes() {
                let Some(arena) = group.arena_of(class) else { continue };
                for index in group.pools.of(class).free_slots() {
                    let page = PageId { index, generation: 0 };
                    for layer in group.first..group.first + group.layers {
                        left += arena.read(group.slot(page, layer), &self.main)?.residue();
                    }
                }
            }
            if let Some(map) = group.map() {
                let free: Vec<u32> = map.lock().free_frames().collect();
                for frame in free {
                    left += group.host.read(frame, &self.main)?.residue();
                }
            }
            left += group.scratch.as_ref().map_or(Ok(0), |scratch| scratch.residue(&self.main))?;
        }
        Ok(left)
    }

    /// Frames of originals that were given up, where a store has originals too. Their pages have no memory of their own. The computing stream
    /// does it: it may have read them for the store when their pages were already given up.
    pub(crate) fn erase_frames(&self, group: &Group) {
        let Some(map) = group.map().filter(|_| self.config.erase) else { return };
        loop {
            // Nothing is written under the map's lock.
            let Some(frame) = map.lock().take_soiled() else { return };
            let done = group.host.write(frame, &self.main).map(|mut frame| {
                frame.bytes_mut().fill(0);
                frame.set_tag(0);
            });
            let done = done.is_ok();
            map.lock().erased(frame, done);
            if !done {
                return;
            }
        }
    }
}

/// Whether all of a page's memory is erased: in every layer of its group.
fn erase_page(group: &Group, page: PageRef) -> bool {
    let mut layers = group.first..group.first + group.layers;
    group.arena_of(page.class).is_none_or(|arena| layers.all(|layer| arena.erase(group.slot(page.id, layer)).is_ok()))
}

impl Group {
    /// Where the pages of a class lie; `None` where they have no memory of their own.
    fn arena_of(&self, class: PageClass) -> Option<&Arena> {
        match class {
            PageClass::Host => Some(&self.host).filter(|_| self.residency.is_none()),
            PageClass::Tail => Some(&self.tail),
            PageClass::Swap => self.swap.as_ref(),
            PageClass::Packed => Some(&self.packed),
            PageClass::Level(level) => Some(self.packed_at(level)),
        }
    }
}
