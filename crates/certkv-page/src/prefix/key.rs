//! Names of blocks of tokens: 256-bit keyed hashes, chained, over every field that changes what a page holds.
//!
//! Each field goes in behind a tag of its own and its length, so that no two lists of fields have the same bytes; the
//! hash is BLAKE3 keyed with a secret, so that nobody outside can aim for a collision or recognise a prompt by its key.
use certkv_core::planted;
use core::fmt;

/// Version of the scheme: another one never meets this one's keys.
const SCHEME: &str = "certkv prefix 1";

/// The key of the hash: whoever lacks it can neither foresee nor forge a key.
#[derive(Clone)]
pub struct PrefixSecret([u8; 32]);

impl PrefixSecret {
    /// A secret that the host server keeps: the same on every machine and run that may share stored pages.
    pub const fn new(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }

    /// A secret of this process, from the operating system.
    ///
    /// # Errors
    /// [`NoRandomness`] where the system has none to give.
    pub fn random() -> Result<Self, NoRandomness> {
        let mut bytes = [0; 32];
        getrandom::fill(&mut bytes).map_err(|_| NoRandomness)?;
        Ok(Self(bytes))
    }
}

impl fmt::Debug for PrefixSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("PrefixSecret")
    }
}

/// The operating system gave no random bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NoRandomness;

impl fmt::Display for NoRandomness {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the operating system gave no random bytes")
    }
}
impl core::error::Error for NoRandomness {}

/// Who may meet whose pages, and everything but the tokens that decides what a page holds. Two scopes that differ in one
/// field share nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Scope<'a> {
    /// The circle of trust: a tenant, say. The *host server* sets it, never its client: within a domain, whoever sends a
    /// prompt can tell by the time it takes whether someone sent it before.
    pub domain: &'a [u8],
    /// The model's weights, by whatever name or digest the server has for them.
    pub model: &'a [u8],
    /// The adapter on top of the model; none is not the same as an empty name.
    pub adapter: Option<&'a [u8]>,
    /// A further division within the domain.
    pub salt: Option<&'a [u8]>,
    /// What the pages are: geometry, formats, rotation and version of the layout, in the engine's words.
    pub layout: &'a [u8],
    /// Class of tolerance that the formats were chosen for.
    pub tolerance: u32,
    /// Position of the first token: rotations depend on it.
    pub first_position: u64,
}

/// Key of the blocks up to and including one, in one scope.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct BlockKey(pub [u8; 32]);

impl BlockKey {
    /// The first eight bytes: uniform, since the whole is.
    pub(crate) fn head(&self) -> u64 {
        let [a, b, c, d, e, f, g, h, ..] = self.0;
        u64::from_le_bytes([a, b, c, d, e, f, g, h])
    }
}

impl fmt::Debug for BlockKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "key {:016x}", self.head())
    }
}

/// What a token's number does not tell about a position: an image's digest behind its placeholder, say.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Mark<'a> {
    /// Position in the prompt.
    pub at: usize,
    /// What makes this position different.
    pub what: &'a [u8],
}

/// Tokens by number, and marks in ascending order of position.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Prompt<'a> {
    /// Token numbers, from the first position on.
    pub tokens: &'a [u32],
    /// Several marks may stand at one position. Those behind the last token are ignored.
    pub marks: &'a [Mark<'a>],
}

impl<'a> From<&'a [u32]> for Prompt<'a> {
    fn from(tokens: &'a [u32]) -> Self {
        Self { tokens, marks: &[] }
    }
}

/// Tokens of the largest block.
const MOST_AT_ONCE: usize = 64;

/// Hashes blocks of one scope.
#[derive(Debug, Clone)]
pub struct Chain {
    secret: PrefixSecret,
    root: BlockKey,
}

/// Tags of what is hashed. A number is never used for anything else.
mod tag {
    pub(super) const ROOT: u8 = 1;
    pub(super) const MARKS: u8 = 3;
    pub(super) const DOMAIN: u8 = 16;
    pub(super) const MODEL: u8 = 17;
    pub(super) const ADAPTER: u8 = 18;
    pub(super) const NO_ADAPTER: u8 = 19;
    pub(super) const SALT: u8 = 20;
    pub(super) const NO_SALT: u8 = 21;
    pub(super) const LAYOUT: u8 = 22;
    pub(super) const TOLERANCE: u8 = 23;
    pub(super) const POSITION: u8 = 24;
    pub(super) const MARK: u8 = 25;
}

/// A keyed hash of tagged fields.
struct Fields(blake3::Hasher);

impl Fields {
    fn new(secret: &PrefixSecret, what: u8) -> Self {
        let mut hasher = blake3::Hasher::new_keyed(&secret.0);
        hasher.update(SCHEME.as_bytes());
        hasher.update(&[what]);
        Self(hasher)
    }

    fn begin(&mut self, tag: u8, bytes: usize) {
        let mut head = [tag; 9];
        head[1..].copy_from_slice(&(bytes as u64).to_le_bytes());
        self.0.update(&head);
    }

    fn field(&mut self, tag: u8, bytes: &[u8]) {
        self.begin(tag, bytes.len());
        self.0.update(bytes);
    }

    fn optional(&mut self, tag: u8, absent: u8, bytes: Option<&[u8]>) {
        match bytes {
            Some(bytes) => self.field(tag, bytes),
            None => self.field(absent, &[]),
        }
    }

    fn finish(self) -> [u8; 32] {
        *self.0.finalize().as_bytes()
    }
}

impl Chain {
    /// The chain of a scope.
    pub fn new(secret: &PrefixSecret, scope: &Scope<'_>) -> Self {
        // Every field by name: one that is added to `Scope` and forgotten here does not compile.
        let Scope { domain, model, adapter, salt, layout, tolerance, first_position } = *scope;
        let mut fields = Fields::new(secret, tag::ROOT);
        fields.field(tag::DOMAIN, if planted!(B11) { &[] } else { domain });
        fields.field(tag::MODEL, model);
        fields.optional(tag::ADAPTER, tag::NO_ADAPTER, adapter.filter(|_| !planted!(B9)));
        fields.optional(tag::SALT, tag::NO_SALT, salt);
        fields.field(tag::LAYOUT, layout);
        fields.field(tag::TOLERANCE, &tolerance.to_le_bytes());
        fields.field(tag::POSITION, &first_position.to_le_bytes());
        Self { secret: secret.clone(), root: BlockKey(fields.finish()) }
    }

    /// What the first block follows.
    pub fn root(&self) -> BlockKey {
        self.root
    }

    /// Key of the block of `tokens` behind `parent`: the hash of the tokens, keyed with the parent. A block with marks is
    /// behind its marks, which are behind the parent; what they hash is no whole number of tokens, so that neither is taken
    /// for the other.
    pub fn next(&self, parent: &BlockKey, tokens: &[u32], marks: &MarkDigest) -> BlockKey {
        let mut key = parent.0;
        if *marks != MarkDigest::NONE {
            let mut bytes = [tag::MARKS; 33];
            bytes[1..].copy_from_slice(&marks.0);
            key = *blake3::keyed_hash(&key, &bytes).as_bytes();
        }
        let mut bytes = [0; 4 * MOST_AT_ONCE];
        let put = |bytes: &mut [u8; 4 * MOST_AT_ONCE], tokens: &[u32]| {
            for (place, token) in bytes.chunks_exact_mut(4).zip(tokens) {
                place.copy_from_slice(&token.to_le_bytes());
            }
        };
        if tokens.len() <= MOST_AT_ONCE {
            put(&mut bytes, tokens);
            return BlockKey(*blake3::keyed_hash(&key, &bytes[..4 * tokens.len()]).as_bytes());
        }
        let mut hasher = blake3::Hasher::new_keyed(&key);
        for part in tokens.chunks(MOST_AT_ONCE) {
            put(&mut bytes, part);
            hasher.update(&bytes[..4 * part.len()]);
        }
        BlockKey(*hasher.finalize().as_bytes())
    }

    /// Digest of the marks that stand in `block` tokens from `start` on.
    pub fn marks(&self, prompt: &Prompt<'_>, start: usize, block: usize) -> MarkDigest {
        let first = prompt.marks.partition_point(|mark| mark.at < start);
        let mut here = prompt.marks[first..].iter().take_while(|mark| mark.at < start + block).peekable();
        if here.peek().is_none() {
            return MarkDigest::NONE;
        }
        let mut fields = Fields::new(&self.secret, tag::MARKS);
        for mark in here {
            fields.begin(tag::MARK, mark.what.len());
            fields.0.update(&((mark.at - start) as u64).to_le_bytes());
            fields.0.update(mark.what);
        }
        MarkDigest(fields.finish())
    }
}

/// Digest of the marks of one block.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct MarkDigest([u8; 32]);

impl MarkDigest {
    /// A block without marks; no list of marks has this digest but by a chance of 2^-256.
    pub const NONE: Self = Self([0; 32]);
}
