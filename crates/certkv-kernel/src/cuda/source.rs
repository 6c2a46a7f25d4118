//! The sources of the kernels, as strings in the library.
use core::fmt;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::OnceLock;

/// Sources and headers of `kernels/`: `(name as included, text)`, sorted by name.
const FILES: &[(&str, &str)] = include!(concat!(env!("OUT_DIR"), "/kernels.rs"));

/// What kernels do. The verb `x` is the source `kernels/x.cu` with the kernel `ckv_x`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Verb {
    /// One certified decode step.
    Attend,
    /// New tokens into open blocks.
    Append,
    /// What of a step's open blocks is full.
    Close,
    /// Norms of rows of open blocks that did not come by an append.
    Measure,
    /// Rows that were refused are cut off.
    Forgive,
    /// Originals that lie elsewhere by now.
    Rehome,
    /// Full blocks of originals into records.
    Pack,
    /// Originals into the promoted set.
    Gather,
    /// Records between the CPU's order of codes and the GPU's.
    Transcode,
    /// Which blocks to promote.
    Select,
    /// What heads over tolerance need: that choice for them, and the passes that follow.
    Ladder,
    /// Outputs and certificates of what launches for several levels have left.
    Unite,
    /// Blocks that are read as originals whatever was measured.
    Protect,
    /// Scores of blocks by the attention that they get.
    Importance,
    /// What records say of their blocks, to be kept beside what other levels would say.
    Probe,
    /// What levels would lose of blocks.
    Losses,
    /// Certificates to memory of the host.
    Publish,
    /// Whole pages out of device memory, and back.
    Swap,
    /// Attention of chunks of queries.
    Extend,
}

impl Verb {
    /// All verbs.
    pub const ALL: [Self; 19] = [
        Self::Attend,
        Self::Append,
        Self::Close,
        Self::Measure,
        Self::Forgive,
        Self::Rehome,
        Self::Pack,
        Self::Gather,
        Self::Transcode,
        Self::Select,
        Self::Ladder,
        Self::Unite,
        Self::Protect,
        Self::Importance,
        Self::Probe,
        Self::Losses,
        Self::Publish,
        Self::Swap,
        Self::Extend,
    ];

    /// Name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Attend => "attend",
            Self::Append => "append",
            Self::Close => "close",
            Self::Measure => "measure",
            Self::Forgive => "forgive",
            Self::Rehome => "rehome",
            Self::Pack => "pack",
            Self::Gather => "gather",
            Self::Transcode => "transcode",
            Self::Select => "select",
            Self::Ladder => "ladder",
            Self::Unite => "unite",
            Self::Protect => "protect",
            Self::Importance => "importance",
            Self::Probe => "probe",
            Self::Losses => "losses",
            Self::Publish => "publish",
            Self::Swap => "swap",
            Self::Extend => "extend",
        }
    }

    /// Name of the source.
    pub const fn file(self) -> &'static str {
        match self {
            Self::Attend => "attend.cu",
            Self::Append => "append.cu",
            Self::Close => "close.cu",
            Self::Measure => "measure.cu",
            Self::Forgive => "forgive.cu",
            Self::Rehome => "rehome.cu",
            Self::Pack => "pack.cu",
            Self::Gather => "gather.cu",
            Self::Transcode => "transcode.cu",
            Self::Select => "select.cu",
            Self::Ladder => "ladder.cu",
            Self::Unite => "unite.cu",
            Self::Protect => "protect.cu",
            Self::Importance => "importance.cu",
            Self::Probe => "probe.cu",
            Self::Losses => "losses.cu",
            Self::Publish => "publish.cu",
            Self::Swap => "swap.cu",
            Self::Extend => "extend.cu",
        }
    }

    /// Name of the kernel of the same name; a source may hold others beside it.
    pub const fn kernel(self) -> &'static str {
        match self {
            Self::Attend => "ckv_attend",
            Self::Append => "ckv_append",
            Self::Close => "ckv_close",
            Self::Measure => "ckv_measure",
            Self::Forgive => "ckv_forgive",
            Self::Rehome => "ckv_rehome",
            Self::Pack => "ckv_pack",
            Self::Gather => "ckv_gather",
            Self::Transcode => "ckv_transcode",
            Self::Select => "ckv_select",
            Self::Ladder => "ckv_ladder",
            Self::Unite => "ckv_unite",
            Self::Protect => "ckv_protect",
            Self::Importance => "ckv_importance",
            Self::Probe => "ckv_probe",
            Self::Losses => "ckv_losses",
            Self::Publish => "ckv_publish",
            Self::Swap => "ckv_swap",
            Self::Extend => "ckv_extend",
        }
    }

    /// The source; `None` if the library was built without it.
    pub(super) fn source(self) -> Option<&'static Source> {
        static SOURCES: OnceLock<BTreeMap<Verb, Source>> = OnceLock::new();
        let build = || Self::ALL.into_iter().filter_map(|v| Some((v, Source::new(FILES, v.file())?))).collect();
        SOURCES.get_or_init(build).get(&self)
    }

    /// Names of the kernels in the source, in its order.
    pub fn kernels(self) -> impl Iterator<Item = &'static str> {
        self.source().into_iter().flat_map(|s| s.kernels.iter().copied())
    }
}

impl fmt::Display for Verb {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// A source with everything that it includes, directly or not.
#[derive(Debug)]
pub(super) struct Source {
    pub(super) name: &'static str,
    pub(super) text: &'static str,
    /// `(name as included, text)`, sorted by name.
    pub(super) headers: Vec<(&'static str, &'static str)>,
    kernels: Vec<&'static str>,
    /// Every word of the texts that starts with `CKV_`.
    words: BTreeSet<&'static str>,
}

impl Source {
    /// The file `name` out of `files`; `None` if it is not among them. What it includes and is not among them either is left
    /// to the compiler to miss.
    fn new(files: &'static [(&'static str, &'static str)], name: &str) -> Option<Self> {
        let find = |name: &str| files.iter().find(|f| f.0 == name).copied();
        let (name, text) = find(name)?;
        let mut headers = BTreeMap::new();
        let mut open = vec![text];
        while let Some(text) = open.pop() {
            for (name, text) in includes(text).filter_map(find) {
                if headers.insert(name, text).is_none() {
                    open.push(text);
                }
            }
        }
        let texts = || core::iter::once(text).chain(headers.values().copied());
        let words = texts().flat_map(words).filter(|w| w.starts_with("CKV_")).collect();
        Some(Self { name, text, kernels: kernels(text), headers: headers.into_iter().collect(), words })
    }

    /// Whether the macro is used: one that is not does not make another program.
    pub(super) fn mentions(&self, name: &str) -> bool {
        self.words.contains(name)
    }

    /// Every macro in the texts, comments included.
    #[cfg(test)]
    pub(super) fn macros(&self) -> impl Iterator<Item = &'static str> {
        self.words.iter().copied()
    }

    /// Whether the texts define the macro themselves.
    #[cfg(test)]
    pub(super) fn defines(&self, name: &str) -> bool {
        let texts = core::iter::once(self.text).chain(self.headers.iter().map(|h| h.1));
        texts
            .flat_map(str::lines)
            .filter_map(|l| l.trim().strip_prefix("#define "))
            .any(|l| words(l).next() == Some(name))
    }
}

/// Names in `#include "name"`.
fn includes(text: &str) -> impl Iterator<Item = &str> {
    text.lines().filter_map(|line| line.trim().strip_prefix("#include \"")?.split_once('"').map(|(name, _)| name))
}

fn words(text: &str) -> impl Iterator<Item = &str> {
    text.split(|c: char| !(c.is_ascii_alphanumeric() || c == '_')).filter(|w| !w.is_empty())
}

/// Names of the kernels: the first word `ckv_..` after each declaration.
fn kernels(text: &'static str) -> Vec<&'static str> {
    let named = |part: &'static str| words(part).find(|w| w.starts_with("ckv_"));
    text.split("extern \"C\" __global__").skip(1).filter_map(named).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_include_resolves_and_no_system_header_is_asked_for() {
        assert!(FILES.len() > 15, "{}", FILES.len());
        for (name, text) in FILES {
            for included in includes(text) {
                let known = FILES.iter().any(|f| f.0 == included);
                // Only the emulator's branch names the emulator.
                assert!(known || *name == "machine.cuh" && included.starts_with("emulate/"), "{name}: {included}");
            }
            assert!(!text.contains("#include <"), "{name} includes a system header");
        }
    }

    #[test]
    fn every_source_is_the_source_of_a_verb_and_holds_its_kernel() {
        let sources = FILES.iter().filter(|f| f.0.ends_with(".cu"));
        for (name, _) in sources {
            assert!(Verb::ALL.iter().any(|v| v.file() == *name), "{name} belongs to no verb");
        }
        for verb in Verb::ALL {
            assert!(verb.kernels().any(|k| k == verb.kernel()), "{verb}: {:?}", verb.kernels().collect::<Vec<_>>());
        }
    }

    #[test]
    fn headers_of_headers_are_found_once_and_macros_by_whole_words() {
        const TREE: &[(&str, &str)] = &[
            (
                "a.cu",
                "#include \"b.cuh\"\n#if CKV_KEY_BITS\nextern \"C\" __global__ void __launch_bounds__(1) ckv_a(int x)",
            ),
            ("b.cuh", "  #include \"d/c.cuh\"\n// CKV_DIM"),
            ("d/c.cuh", "#include \"b.cuh\"\n#include \"absent.cuh\""),
            ("e.cuh", "CKV_GROUP"),
        ];
        let source = Source::new(TREE, "a.cu").unwrap();
        assert_eq!(source.headers.iter().map(|h| h.0).collect::<Vec<_>>(), ["b.cuh", "d/c.cuh"]);
        assert_eq!(source.kernels, ["ckv_a"]);
        assert!(source.mentions("CKV_KEY_BITS") && source.mentions("CKV_DIM"));
        assert!(!source.mentions("CKV_KEY") && !source.mentions("CKV_GROUP"));
        assert!(Source::new(TREE, "absent.cu").is_none());
    }
}
