//! The prefix index: keys, one rule each, then random histories against a plain model.
mod circles;
mod events;
mod index;
mod key;
mod model;
mod policy;
mod room;
mod window;

use crate::prefix::{Chain, PrefixSecret, Scope};

const SECRET: PrefixSecret = PrefixSecret::new([7; 32]);

fn scope(domain: &[u8]) -> Scope<'_> {
    Scope { domain, model: b"m", adapter: None, salt: None, layout: b"l", tolerance: 5, first_position: 0 }
}

pub(super) fn chain(domain: &[u8]) -> Chain {
    Chain::new(&SECRET, &scope(domain))
}
