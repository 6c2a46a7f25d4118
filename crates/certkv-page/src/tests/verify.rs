//! What must hold after every operation of the driver.
use super::model::World;
use crate::word::State;
use crate::{PageClass, PageRef};
use std::collections::HashMap;

/// `Err` says which promise was broken.
pub(super) type Verdict = Result<(), String>;

fn require(holds: bool, what: impl FnOnce() -> String) -> Verdict {
    if holds { Ok(()) } else { Err(what()) }
}

impl World {
    /// Contents, shapes, states, owners and counts of everything.
    pub(super) fn verify(&self) -> Verdict {
        let mut owners: HashMap<PageRef, u32> = HashMap::new();
        for (s, sequence) in self.sequences.iter().enumerate() {
            let (table, tokens) = (&sequence.table, &sequence.tokens);
            require(table.len() == tokens.len(), || format!("sequence {s}: {} tokens, {}", table.len(), tokens.len()))?;
            let kept = (0..tokens.len().div_ceil(self.block)).filter(|b| !sequence.gone.contains(b));
            require(table.numbered().map(|(b, _)| b).eq(kept), || format!("sequence {s}: blocks {:?}", table.hole()))?;
            require(table.blocks().len() <= table.room(), || {
                format!("sequence {s}: more blocks than it has room for")
            })?;
            for (b, entry) in table.numbered() {
                require(table.get(b) == Some(entry), || format!("{s}.{b} is not where its number says"))?;
                let rows = &tokens[b * self.block..tokens.len().min((b + 1) * self.block)];
                let full = rows.len() == self.block;
                let (inside, outside) = (full && !table.is_out(), full && table.is_out());
                let tail = !full && !table.is_out();
                let found = (entry.packed.is_some(), entry.swapped.is_some(), entry.tail.is_some());
                require(found == (inside, outside, tail), || format!("{s}.{b}: {entry:?}"))?;
                for page in entry.pages() {
                    *owners.entry(page).or_default() += 1;
                    let stored = self.rows(page, rows.len());
                    require(stored == rows, || format!("{s}.{b} {page:?} holds {stored:x?}, not {rows:x?}"))?;
                    let state = self.pools.of(page.class).snapshot(page.id).map_err(|e| format!("{s}.{b}: {e}"))?.state;
                    let expected = if full { State::Packed } else { State::Open };
                    require(state == expected, || format!("{s}.{b} {page:?} is {state:?}"))?;
                }
                require(full || table.is_exclusive(b), || format!("{s}.{b} is open and shared"))?;
            }
        }
        for class in [PageClass::Host, PageClass::Packed, PageClass::Tail, PageClass::Swap] {
            let pages = self.pools.of(class);
            let counts = pages.check().map_err(|v| format!("{class}: {v}"))?;
            let live = owners.keys().filter(|page| page.class == class).count();
            require(counts.live == live, || format!("{class}: {counts:?}, the tables hold {live}"))?;
        }
        for (page, owners) in owners {
            let counted = self.pools.of(page.class).references(page.id);
            require(counted == Ok(owners), || format!("{page:?}: {owners} owners, {counted:?} counted"))?;
        }
        for page in &self.movers {
            let now = self.pools.of(page.class).snapshot(page.id).map_err(|e| format!("mover: {e}"))?;
            require(now.moving && now.pins == 0, || format!("{page:?} is moved and {now:?}"))?;
        }
        for reader in &self.readers {
            let now = self.rows(reader.page, reader.rows.len());
            require(now == reader.rows, || format!("{:?} changed under a reader: {now:x?}", reader.page))?;
        }
        Ok(())
    }
}
