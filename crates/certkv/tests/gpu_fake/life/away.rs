//! Blocks and sequences that outlive their place: cached, swapped out, in files.
use super::{Held, KV, LAYERS, Life, Over};
use crate::kernels::BLOCK;
use certkv::{Error, PrefixScope, SaveScope};

impl Life {
    /// Caches the full blocks of a sequence and begins another one with them.
    pub(super) fn continued(&mut self, at: usize) -> Result<usize, Over> {
        let whole = self.held[at].len() / BLOCK * BLOCK;
        let tokens: Vec<u32> = (0..self.held[at].len() as u32).collect();
        let scope = PrefixScope::new(b"domain", b"model");
        let done = self.stubbornly(|life| life.cache.publish(life.held[at].id, &scope, tokens[..].into()))?;
        let (id, found) = self.stubbornly(|life| life.cache.create_from(&scope, tokens[..].into()))?;
        if (done.cached, found) != (whole, whole) {
            self.wrong.push(format!("{whole} tokens, cached {done:?}, found {found}"));
        }
        let cut = |side: &Vec<u16>| side[..found * KV].to_vec();
        let rows = self.held[at].rows.iter().map(|[keys, values]| [cut(keys), cut(values)]).collect();
        self.held.push(Held { id, rows });
        Ok(self.held.len() - 1)
    }

    /// Leaves the device and comes back, cut to `len` tokens meanwhile; its records are those that left.
    pub(super) fn swapped(&mut self, at: usize, len: usize) -> Result<(), Over> {
        let id = self.held[at].id;
        let out = self.stubbornly(|life| life.cache.swap_out(id))?;
        if self.cache.is_swapped_out(id).ok() != Some(true) || out == 0 {
            self.wrong.push(format!("{out} bytes swapped out, and still there"));
        }
        if !matches!(self.cache.fork(id), Err(Error::SwappedOut)) {
            self.wrong.push("a sequence that is away was forked".to_owned());
        }
        self.verify()?;
        self.truncate(at, len)?;
        self.verify()?;
        self.stubbornly(|life| life.cache.swap_in(id))?;
        for (block, layer) in (0..len / BLOCK).flat_map(|block| (0..LAYERS).map(move |layer| (block, layer))) {
            let record = self.stubbornly(|life| life.cache.record_bytes(id, layer, block, 0))?;
            // What the machine's kernel marks pages with that leave.
            let item = block * LAYERS + layer;
            if record[5 + item] != 17 + item as u8 {
                self.wrong.push(format!("block {block} of layer {layer} came back as another"));
            }
        }
        self.verify()
    }

    /// Through a file and back, beside the one that stays.
    pub(super) fn saved(&mut self, at: usize) -> Result<(), Over> {
        let id = self.held[at].id;
        let scope = SaveScope { model: b"model", key: None };
        let save = |life: &mut Self, id| {
            life.stubbornly(|life| {
                let mut file = Vec::new();
                life.cache.save(id, &scope, &mut file).map(|_| file)
            })
        };
        let file = save(self, id)?;
        let back = self.stubbornly(|life| life.cache.restore(&scope, &mut &file[..]))?;
        let rows = self.held[at].rows.clone();
        self.held.push(Held { id: back, rows });
        self.verify()?;
        if save(self, back)? != file {
            self.wrong.push("saved again it is another file".to_owned());
        }
        let other = SaveScope { model: b"other", key: None };
        let mut short = file.clone();
        short.truncate(file.len() - 1);
        for (scope, mut bytes) in [(&other, &file[..]), (&scope, &short[..]), (&scope, &file[..100])] {
            match self.cache.restore(scope, &mut bytes) {
                Err(Error::Save(_)) => {}
                Err(error) => self.met(error)?,
                Ok(_) => self.wrong.push("a file that is none was restored".to_owned()),
            }
        }
        self.released()
    }
}
