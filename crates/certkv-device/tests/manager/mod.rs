//! A small tier manager of production shape over the simulated device: pages in device memory, originals in host
//! memory, a staging buffer, three streams. Any one of eight real bugs can be planted in it.
use certkv_core::fail;
use certkv_core::hash::splitmix64;
use certkv_device::{Arena, DeviceError, Dst, Fence, Mode, SimDevice, SimOptions, Src, Stream};

const PAGE_BYTES: usize = 64;

/// Bug classes that KV caches really had; each variant removes one line of the manager.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Bug {
    /// B1: a store to host does not wait for the kernel that writes the page.
    MissingEvent,
    /// B2: a load does not wait for the kernels that still read the page's last owner.
    LoadOverRead,
    /// B3: a page is back in the pool before its last use has passed.
    ReuseWithoutFence,
    /// B4: a staging buffer is rewritten before its copy ran.
    StagingRewritten,
    /// B5: a host slot is freed while a copy reads or writes it.
    HostFreed,
    /// B6: a page is looked up, not pinned, evicted, then used.
    NoPin,
    /// B7: a page is freed twice.
    DoubleFree,
    /// B18: a failed copy is taken for done.
    CopyFailureIgnored,
}

pub(crate) const BUGS: [Bug; 8] = [
    Bug::MissingEvent,
    Bug::LoadOverRead,
    Bug::ReuseWithoutFence,
    Bug::StagingRewritten,
    Bug::HostFreed,
    Bug::NoPin,
    Bug::DoubleFree,
    Bug::CopyFailureIgnored,
];

/// What ended a run early.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Finding {
    Device(DeviceError),
    Content { block: u64, found: u64 },
    Accounting { pages: usize, hosts: usize },
}

struct Block {
    id: u64,
    page: Option<(u32, Option<Fence>)>,
    host: Option<u32>,
    /// The store is known to have succeeded.
    stored: bool,
    /// Copies that read or write the host slot.
    host_uses: Vec<Fence>,
}

/// A slot and the fences after which it may be used again.
type Retired = (u32, Vec<Fence>);

pub(crate) struct Manager {
    bug: Option<Bug>,
    pub(crate) device: SimDevice,
    /// Blocks read back and found right.
    pub(crate) reads: u64,
    compute: Stream,
    load: Stream,
    store: Stream,
    pages: Arena,
    hosts: Arena,
    staging: Arena,
    tables: Arena,
    free_pages: Vec<Retired>,
    free_hosts: Vec<Retired>,
    blocks: Vec<Block>,
    staged: Option<Fence>,
    next_id: u64,
    dice: u64,
    faults: bool,
}

fn pattern(id: u64) -> u64 {
    splitmix64(id ^ 0x5eed)
}

impl Manager {
    pub(crate) fn new(seed: u64, bug: Option<Bug>, faults: bool) -> Self {
        let device = SimDevice::new(SimOptions { mode: Mode::Adversarial { seed }, check: true });
        let pages = 4 + (seed % 3) as u32;
        let arena = |name, slots| device.arena(name, slots, PAGE_BYTES).expect("a small arena");
        Self {
            bug,
            compute: device.stream("compute"),
            load: device.stream("load"),
            store: device.stream("store"),
            pages: arena("pages", pages),
            hosts: arena("hosts", 6),
            staging: arena("staging", 1),
            tables: arena("tables", 1),
            free_pages: (0..pages).map(|p| (p, Vec::new())).collect(),
            free_hosts: (0..6).map(|h| (h, Vec::new())).collect(),
            blocks: Vec::new(),
            staged: None,
            next_id: 1,
            dice: splitmix64(!seed),
            faults,
            reads: 0,
            device,
        }
    }

    fn roll(&mut self, n: usize) -> usize {
        self.dice = splitmix64(self.dice);
        (self.dice >> 16) as usize % n
    }

    fn has(&self, bug: Bug) -> bool {
        self.bug == Some(bug)
    }

    /// Runs `steps` random steps and then lets everything finish.
    pub(crate) fn run(&mut self, steps: usize) -> Result<(), Finding> {
        for _ in 0..steps {
            if self.faults {
                let armed = self.roll(8) == 0;
                let nth = 1 + self.roll(6) as u64;
                fail::arm(armed.then_some(nth));
            }
            let result = match self.roll(8) {
                0 | 1 => self.create(),
                2 => self.save(),
                3 => self.evict(),
                4 => self.bring(),
                5 => self.upload(),
                6 if self.roll(2) == 0 => self.release(),
                _ => self.attend(),
            };
            fail::arm(None);
            result?;
            self.account()?;
        }
        let _ = self.device.synchronize();
        Ok(())
    }

    /// Free + owned = capacity, for pages and host slots.
    fn account(&self) -> Result<(), Finding> {
        let pages = self.free_pages.len() + self.blocks.iter().filter(|b| b.page.is_some()).count();
        let hosts = self.free_hosts.len() + self.blocks.iter().filter(|b| b.host.is_some()).count();
        if (pages, hosts) == (self.pages.slots() as usize, self.hosts.slots() as usize) || self.has(Bug::DoubleFree) {
            return Ok(());
        }
        Err(Finding::Accounting { pages, hosts })
    }

    /// A fence at the end of `stream`, or `None` if everything has run instead; the error is that of its copies.
    fn mark(stream: &Stream) -> Result<Option<Fence>, Finding> {
        match stream.record() {
            Ok(fence) => Ok(Some(fence)),
            Err(DeviceError::Injected(_)) => match stream.synchronize() {
                Ok(()) | Err(DeviceError::CopyFailed { .. }) => Ok(None),
                Err(error) => Err(Finding::Device(error)),
            },
            Err(error) => Err(Finding::Device(error)),
        }
    }

    /// Orders `stream` after `fence`, on the host if the device refuses.
    fn order(stream: &Stream, fence: &Fence) {
        if stream.wait(fence).is_err() {
            let _ = fence.synchronize();
        }
    }

    /// A page and the stream that may use it: taken out of the pool, its last uses waited for by the stream.
    fn take_page(&mut self, load: bool) -> Option<u32> {
        if self.free_pages.is_empty() {
            return None;
        }
        let i = self.roll(self.free_pages.len());
        let (slot, uses) = self.free_pages.swap_remove(i);
        if !(load && self.has(Bug::LoadOverRead)) {
            let stream = if load { &self.load } else { &self.compute };
            uses.iter().for_each(|fence| Self::order(stream, fence));
        }
        Some(slot)
    }

    fn create(&mut self) -> Result<(), Finding> {
        let Some(slot) = self.take_page(false) else { return Ok(()) };
        let id = self.next_id;
        self.next_id += 1;
        let mut guard = self.pages.write(slot, &self.compute).map_err(Finding::Device)?;
        guard.bytes_mut()[..8].copy_from_slice(&pattern(id).to_le_bytes());
        guard.bytes_mut()[56..].copy_from_slice(&pattern(id).to_le_bytes());
        guard.set_tag(id);
        self.blocks.push(Block { id, page: Some((slot, None)), host: None, stored: false, host_uses: Vec::new() });
        Ok(())
    }

    fn pick(&mut self, wanted: impl Fn(&Block) -> bool) -> Option<usize> {
        let found: Vec<usize> = (0..self.blocks.len()).filter(|&i| wanted(&self.blocks[i])).collect();
        if found.is_empty() { None } else { Some(found[self.roll(found.len())]) }
    }

    /// Copies a page to host memory.
    fn save(&mut self) -> Result<(), Finding> {
        self.settle()?;
        let Some(i) = self.pick(|b| b.page.is_some() && b.host.is_none()) else { return Ok(()) };
        let Some((host, uses)) = self.free_hosts.pop() else { return Ok(()) };
        uses.iter().for_each(|fence| Self::order(&self.store, fence));
        if !self.has(Bug::MissingEvent)
            && let Some(written) = Self::mark(&self.compute)?
        {
            Self::order(&self.store, &written);
        }
        let block = &mut self.blocks[i];
        let Some((page, fill)) = &block.page else { return Ok(()) };
        fill.iter().for_each(|fence| Self::order(&self.store, fence));
        let src = Src { arena: &self.pages, slot: *page, range: 0..PAGE_BYTES, expect: Some(block.id) };
        let copied = self.device.copy(&self.store, src, Dst { arena: &self.hosts, slot: host, offset: 0 });
        if let Err(error) = copied
            && !(self.bug == Some(Bug::CopyFailureIgnored) && matches!(error, DeviceError::Injected(_)))
        {
            self.free_hosts.push((host, uses));
            return if matches!(error, DeviceError::Injected(_)) { Ok(()) } else { Err(Finding::Device(error)) };
        }
        match Self::mark(&self.store)? {
            Some(fence) => {
                block.host = Some(host);
                block.host_uses.push(fence);
            }
            // Everything has run, but whether the copy succeeded was not seen: give the slot back and store again.
            None => self.free_hosts.push((host, Vec::new())),
        }
        Ok(())
    }

    /// Looks at finished stores and loads: success makes them valid, failure takes them back.
    fn settle(&mut self) -> Result<(), Finding> {
        let ignore = self.has(Bug::CopyFailureIgnored);
        for block in &mut self.blocks {
            if !block.stored
                && let (Some(host), Some(fence)) = (block.host, block.host_uses.first())
            {
                match fence.completed() {
                    Ok(done) => block.stored = done,
                    Err(_) if ignore => block.stored = true,
                    Err(_) => {
                        self.free_hosts.push((host, std::mem::take(&mut block.host_uses)));
                        block.host = None;
                    }
                }
            }
            if let Some((page, Some(fence))) = &block.page {
                match fence.completed() {
                    Err(_) if !ignore => {
                        self.free_pages.push((*page, vec![fence.clone()]));
                        block.page = None;
                    }
                    Ok(false) => {}
                    _ => block.page = Some((*page, None)),
                }
            }
        }
        Ok(())
    }

    /// Drops the page of a block whose original is safe.
    fn evict(&mut self) -> Result<(), Finding> {
        self.settle()?;
        let Some(i) = self.pick(|b| b.stored && matches!(b.page, Some((_, None)))) else { return Ok(()) };
        let read = Self::mark(&self.compute)?;
        let Some((page, _)) = self.blocks[i].page.take() else { return Ok(()) };
        let uses = if self.has(Bug::ReuseWithoutFence) { Vec::new() } else { read.into_iter().collect() };
        self.free_pages.push((page, uses));
        Ok(())
    }

    /// Copies an original back into a page.
    fn bring(&mut self) -> Result<(), Finding> {
        self.settle()?;
        let Some(i) = self.pick(|b| b.stored && b.page.is_none()) else { return Ok(()) };
        let Some(page) = self.take_page(true) else { return Ok(()) };
        let block = &mut self.blocks[i];
        let Some(host) = block.host else { return Ok(()) };
        let src = Src { arena: &self.hosts, slot: host, range: 0..PAGE_BYTES, expect: Some(block.id) };
        let copied = self.device.copy(&self.load, src, Dst { arena: &self.pages, slot: page, offset: 0 });
        let ignored = self.bug == Some(Bug::CopyFailureIgnored) && matches!(copied, Err(DeviceError::Injected(_)));
        let done = Self::mark(&self.load)?;
        if let (Ok(()), Some(fence)) | (Err(_), Some(fence)) = (&copied, &done)
            && (copied.is_ok() || ignored)
        {
            block.page = Some((page, Some(fence.clone())));
            block.host_uses.push(fence.clone());
            return Ok(());
        }
        // Nothing was copied, or the outcome was not seen; the fence also covers the waits for the page's last uses.
        self.free_pages.push((page, done.into_iter().collect()));
        match copied {
            Ok(()) | Err(DeviceError::Injected(_)) => Ok(()),
            Err(error) => Err(Finding::Device(error)),
        }
    }

    /// Reads some resident blocks, as attention does, and checks what it read.
    fn attend(&mut self) -> Result<(), Finding> {
        self.settle()?;
        let ready = |b: &Block| matches!(b.page, Some((_, None)));
        let mut chosen: Vec<(u64, u32)> = Vec::new();
        for _ in 0..3 {
            if let Some(i) = self.pick(ready)
                && let Some((page, _)) = self.blocks[i].page
            {
                chosen.push((self.blocks[i].id, page));
            }
        }
        if self.has(Bug::NoPin) {
            // The looked-up pages are held by nothing while the pool turns over.
            self.evict()?;
            self.create()?;
        }
        for (id, page) in chosen {
            let guard = self.pages.read_tagged(page, &self.compute, id).map_err(Finding::Device)?;
            for part in [&guard.bytes()[..8], &guard.bytes()[56..]] {
                let found = u64::from_le_bytes(part.try_into().unwrap_or_default());
                if found != pattern(id) {
                    return Err(Finding::Content { block: id, found });
                }
            }
            self.reads += 1;
        }
        Ok(())
    }

    /// Writes a block table into the staging buffer, copies it to the device and reads it there.
    fn upload(&mut self) -> Result<(), Finding> {
        if !self.has(Bug::StagingRewritten)
            && let Some(fence) = &self.staged
        {
            let _ = fence.synchronize();
        }
        let version = splitmix64(self.dice);
        let mut guard = self.staging.write(0, &self.device.host()).map_err(Finding::Device)?;
        guard.bytes_mut()[..8].copy_from_slice(&version.to_le_bytes());
        drop(guard);
        if let Some(read) = Self::mark(&self.compute)? {
            Self::order(&self.load, &read);
        }
        let src = Src { arena: &self.staging, slot: 0, range: 0..8, expect: None };
        let copied = self.device.copy(&self.load, src, Dst { arena: &self.tables, slot: 0, offset: 0 });
        self.staged = Self::mark(&self.load)?;
        match (copied, &self.staged) {
            (Ok(()), Some(fence)) => {
                Self::order(&self.compute, fence);
                let found = {
                    let guard = self.tables.read(0, &self.compute).map_err(Finding::Device)?;
                    u64::from_le_bytes(guard.bytes()[..8].try_into().unwrap_or_default())
                };
                // The reader ran the copy; a copy that failed is seen here, before the table is believed.
                if found != version && !matches!(fence.completed(), Err(DeviceError::CopyFailed { .. })) {
                    return Err(Finding::Content { block: 0, found });
                }
                Ok(())
            }
            (Ok(()) | Err(DeviceError::Injected(_)), _) => Ok(()),
            (Err(error), _) => Err(Finding::Device(error)),
        }
    }

    /// Forgets a block: its page and its host slot go back to their pools.
    fn release(&mut self) -> Result<(), Finding> {
        self.settle()?;
        let Some(i) = self.pick(|_| true) else { return Ok(()) };
        let read = Self::mark(&self.compute)?;
        let block = self.blocks.swap_remove(i);
        if let Some((page, _)) = block.page {
            // A store may still read the page, or a load write it.
            let uses: Vec<Fence> = read.into_iter().chain(block.host_uses.iter().cloned()).collect();
            if self.has(Bug::DoubleFree) {
                self.free_pages.push((page, uses.clone()));
            }
            self.free_pages.push((page, uses));
        }
        if let Some(host) = block.host {
            let uses = if self.has(Bug::HostFreed) { Vec::new() } else { block.host_uses };
            self.free_hosts.push((host, uses));
        }
        Ok(())
    }
}
