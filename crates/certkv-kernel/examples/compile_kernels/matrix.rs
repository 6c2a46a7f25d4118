//! Which variants are compiled.
use certkv_core::{Dtype, Geometry, RecordLayout};
use certkv_kernel::cuda::{Arch, Recipe, Variant, Verb};
use std::collections::BTreeSet;

const DIMS: [usize; 4] = [64, 96, 128, 256];
const GROUPS: [usize; 5] = [1, 2, 4, 8, 16];
const FORMATS: [(&str, Dtype); 9] = [
    ("k8-v4g32-b32", Dtype::F16),
    ("k8-v4g64-b64", Dtype::F16),
    ("k8-v8g64-b64", Dtype::F16),
    ("k8-v6g64-b32", Dtype::F16),
    ("t4-v4g32-b32", Dtype::F16),
    ("t8-v4g32-b16", Dtype::F16),
    ("f16-f16-b16", Dtype::F16),
    ("k8-v4g32-b32", Dtype::Bf16),
    ("k8-v4g64-b64-r8.4", Dtype::F16),
];
/// The usual variant for levels, among [`EXTRAS`].
const LEVEL: &str = "k8-v4g64-b64/f16/d128/g4/level";
/// What the pairs leave out: the formats in use in both cuts, odd widths, small groups, group sizes that fill no tile, no
/// certificate, single-precision queries, windows, drafts, levels.
const EXTRAS: [&str; 106] = [
    "k8-v4g64-b64/f16/d128/g4/wide",
    "k8-v4g64-b64-r8.4/f16/d128/g4",
    "k8-v4g64-b64-r8.4/f16/d128/g4/wide",
    "k8-v4g64-b64-r5.4/f16/d128/g4/wide",
    "k8-v4g64-b64-r8.4/f16/d128/g4/correct/single",
    "k8-v4g32-b32-r4.4/bf16/d64/g8/correct",
    "k8-v4g32-b32-r4.4/bf16/d64/g8",
    "k8-v6g32-b16-r3.2/f16/d96/g3/single",
    "k8-v4g64-b32/f16/d128/g4",
    "k8-v4g64-b32/f16/d128/g4/wide",
    "k8-v4g32-b32/f16/d128/g4/wide",
    "k8-v8g64-b32/f16/d128/g4",
    "k8-v8g64-b32/f16/d128/g4/wide",
    "f16-f16-b16/f16/d128/g4",
    "f16-f16-b16/f16/d128/g4/wide",
    "k8-v4g64-b32/f16/d128/g16",
    "k8-v3g32-b64/f16/d128/g3",
    "t5g32-v7g16-b16/f16/d96/g7",
    "t6-v5g32-b32/bf16/d64/g6",
    "bf16-bf16-b32/bf16/d128/g12",
    "k8-v2g16-b32/f16/d128/g5",
    "k8-v4g32-b32/f16/d128/g4/plain",
    "k8-v4g32-b32/f16/d128/g8/plain",
    "k8-v4g32-b32/f16/d128/g4/single",
    "t8-v4g32-b16/bf16/d128/g8/single",
    "k8-v4g64-b64/f16/d128/g4/draft4",
    "k8-v4g64-b64/f16/d128/g4/draft2/single",
    "k8-v4g64-b64-r8.4/f16/d128/g4/draft2",
    "k8-v4g64-b64-r8.4/f16/d128/g4/draft2/single",
    "k8-v4g64-b64-r8.4/f16/d128/g4/draft2/correct",
    "k8-v4g32-b32/bf16/d64/g8/draft2",
    "k8-v4g64-b32/f16/d128/g1/draft4",
    "tq4-tq4-b64/f16/d128/g4/draft4",
    "t4-v4g32-b32/f16/d256/g2/draft4/single",
    "k8-v4g64-b64/f16/d128/g4/window",
    "k8-v4g64-b64/f16/d128/g4/window/wide",
    "k8-v4g64-b64-r8.4/f16/d128/g4/window",
    "k8-v4g64-b64-r8.4/f16/d128/g4/window/wide",
    "k8-v4g64-b64-r8.4/f16/d128/g4/correct/window",
    "k8-v4g32-b32/f16/d128/g8/window",
    "k8-v4g32-b32/bf16/d64/g8/window",
    "t4-v4g32-b32/f16/d256/g2/window/single",
    "tq4-tq4-b64/f16/d128/g4",
    "tq4-tq4-b64/f16/d128/g4/wide",
    "tq4-v4g64-b64/f16/d128/g4/wide",
    "tq3-tq3-b64/f16/d128/g4",
    "tq2-tq1-b32/bf16/d64/g8",
    "tq4-tq4-b32/f16/d256/g2",
    "tq4-tq4-b64/f16/d128/g12",
    "tq6-tq5-b64/f16/d128/g4",
    "tq6-tq5-b64/f16/d128/g4/wide",
    "tq5-tq6-b32/f16/d256/g2",
    "ctq5-tq6-b32/bf16/d64/g8",
    "ctq4-tq4-b64/f16/d128/g4",
    "ctq4-tq4-b64/f16/d128/g4/wide",
    "ctq4-tq4-b64/f16/d128/g4/single",
    "ctq3-v4g64-b32/f16/d128/g4/wide",
    "ctq2-tq2-b32/bf16/d64/g8",
    "ctq4-tq4-b32/f16/d256/g2/window",
    "gtq3-tq3-b64/f16/d128/g4",
    "gtq3-tq3-b64/f16/d128/g4/wide",
    "gtq3-v4g64-b64/f16/d128/g4/single",
    "gtq2.5-v4g32-b32/f16/d128/g4/window/wide",
    "gtq4-tq4-b32/bf16/d64/g8",
    "gtq3-c4-b16/f16/d96/g3",
    "gtq3-tq3-b32/f16/d256/g2",
    "s1-v4g64-b64/f16/d128/g4",
    "s1-v4g64-b64/f16/d128/g4/wide",
    "s1-tq3-b64/f16/d128/g4/single",
    "s2-tq3-b64/f16/d128/g4/wide",
    "s2-v4g32-b32/bf16/d64/g8/window",
    "s3-c4-b16/f16/d96/g3",
    "s1-v4g64-b64/f16/d128/g12",
    "s1-tq3-b32/f16/d256/g2",
    "e4m3-e4m3-b64/f16/d128/g4",
    "e4m3-e4m3-b64/f16/d128/g4/wide",
    "e5m2g32-e4m3g16-b16/bf16/d96/g7",
    "p8g32-p4g32-b64/f16/d128/g4",
    "p8-p8-b64/f16/d128/g8",
    "k8-e4m3-b64/f16/d128/g4/window",
    "e4m3-e5m2-b32/f16/d256/g8",
    "k8-c4-b64/f16/d128/g4",
    "k8-c4-b64/f16/d128/g4/wide",
    "k8-c4-b64-r8.4/f16/d128/g4/wide",
    "k8-c4-b64-r8.4/f16/d128/g4/correct",
    "k8-c6-b32/bf16/d64/g8",
    "tq4-c5-b16/f16/d128/g12",
    "k8-c8-b32/f16/d256/g2/window",
    "k4-v4g64-b64/f16/d128/g4",
    "k4-v4g64-b64/f16/d128/g4/wide",
    "k4-v4g64-b64-r4.4/f16/d128/g4/wide",
    "k6-v4g32-b32-r3.2/bf16/d64/g8",
    "k2-v2g16-b32/bf16/d64/g8",
    "k3-c3-b16/f16/d96/g3",
    "k5-v5g32-b32/f16/d256/g2/window",
    "k7-v7g32-b32/f16/d128/g12",
    "k8-v4g64-b64/f16/d128/g4/level",
    "k8-v4g64-b64/f16/d128/g4/level/wide",
    "k8-v4g64-b64/f16/d128/g4/level/single",
    "k4-v4g64-b64/f16/d128/g4/level/wide",
    "t4-v4g32-b32/bf16/d64/g8/level",
    "t2-v2g16-b16/f16/d96/g3/level",
    "tq3-tq3-b64/f16/d128/g4/level/wide",
    "tq2-tq2-b32/f16/d256/g2/level",
    "tq4-tq3-b64/f16/d128/g12/level",
    "e4m3-e4m3-b64/f16/d128/g4/level",
];
/// New and old formats of transcoded records, one per architecture in turn.
const TRANSCODED: [&str; 6] = [
    "t4-v4g32-b32/f16/d128/g1/from=k8-v4g32-b32",
    "k8-v4g32-b32/f16/d128/g1/from=f16-f16-b32",
    "t8-v4g32-b16/f16/d64/g1/from=t8-v8g32-b16",
    "k8-v4g64-b64/bf16/d256/g1/from=bf16-v4g64-b64",
    "t4-v3g32-b32/bf16/d96/g1/from=t8-v6g32-b32",
    "k8-v8g64-b64/f16/d128/g1/from=k8-v4g64-b64",
];

/// One program to compile.
pub(crate) struct Job {
    pub(crate) verb: Verb,
    pub(crate) recipe: Recipe,
    /// The variant, without what the verb does not depend on.
    pub(crate) label: String,
    /// Bytes of dynamic shared memory, where the variant decides them.
    pub(crate) dynamic_shared: usize,
}

/// An architecture by its name.
pub(crate) fn arch(name: &str) -> Result<Arch, String> {
    let known = Arch::ALL.into_iter().find(|a| a.name() == name);
    known.ok_or_else(|| format!("--archs: {name} is none of {}", Arch::ALL.map(Arch::name).join(", ")))
}

/// A choice of every property.
type Point = (usize, usize, (&'static str, Dtype), Arch);

/// `None` where the format does not fit the head, or the ring the shared memory.
fn variant((dim, group, (format, store), arch): Point) -> Option<Variant> {
    let geometry = Geometry { store, ..Geometry::new(1, group, 1, dim).ok()? };
    let layout = RecordLayout::new(&geometry, format.parse().ok()?).ok()?;
    Variant::new(layout, group, arch).ok()
}

fn points(archs: &[Arch], groups: impl Fn(usize) -> Vec<usize>) -> Vec<Point> {
    let mut points = Vec::new();
    for arch in archs {
        for format in FORMATS {
            for dim in DIMS {
                points.extend(groups(dim).into_iter().map(|group| (dim, group, format, *arch)));
            }
        }
    }
    points.retain(|p| variant(*p).is_some());
    points
}

/// The pairs of properties that a point has.
fn pairs((dim, group, format, arch): Point) -> [(usize, String, String); 6] {
    let names = [format!("{dim}"), format!("{group}"), format!("{format:?}"), arch.name().to_owned()];
    [(0, 1), (0, 2), (0, 3), (1, 2), (1, 3), (2, 3)]
        .map(|(a, b): (usize, usize)| (4 * a + b, names[a].clone(), names[b].clone()))
}

fn usual_points(archs: &[Arch]) -> Vec<Point> {
    archs.iter().map(|a| (128, 4, FORMATS[0], *a)).collect()
}

/// Files of the usual variant's programs on every architecture.
pub(crate) fn usual(archs: &[Arch]) -> Result<BTreeSet<String>, String> {
    let variants: Vec<Variant> = usual_points(archs).into_iter().filter_map(variant).collect();
    Ok(jobs(&variants)?.iter().map(|job| job.recipe.file()).collect())
}

/// The usual variant on every architecture, and every pair of head size, group, format and architecture at least once.
pub(crate) fn reduced(archs: &[Arch]) -> Result<Vec<Job>, String> {
    let candidates = points(archs, |_| GROUPS.to_vec());
    let mut open: BTreeSet<_> = candidates.iter().flat_map(|p| pairs(*p)).collect();
    let mut chosen = usual_points(archs);
    // More than eight heads of 256 channels spill up to some dozen bytes in other formats; `--all` shows them.
    let largest = [(256, 16, FORMATS[0], Arch::Sm86), (256, 16, FORMATS[5], Arch::Sm90a)];
    chosen.extend(largest.into_iter().filter(|p| archs.contains(&p.3)));
    let covered = |open: &mut BTreeSet<_>, point| pairs(point).iter().for_each(|pair| _ = open.remove(pair));
    chosen.iter().for_each(|point| covered(&mut open, *point));
    while !open.is_empty() {
        let gain = |p: &Point| pairs(*p).iter().filter(|pair| open.contains(*pair)).count();
        // The first of the best, so that the matrix is the same every time.
        let best = candidates.iter().rev().max_by_key(|p| gain(p)).copied().ok_or("no architecture")?;
        covered(&mut open, best);
        chosen.push(best);
    }
    let mut variants: Vec<Variant> = chosen.into_iter().filter_map(variant).collect();
    let extra =
        archs.iter().copied().find(|a| *a == Arch::Sm90a).or(archs.first().copied()).ok_or("no architecture")?;
    for text in EXTRAS {
        variants.push(parse(text, extra)?);
    }
    // What only levels have: on every machine.
    for arch in archs.iter().filter(|arch| **arch != extra) {
        variants.push(parse(LEVEL, *arch)?);
    }
    for (arch, text) in archs.iter().zip(TRANSCODED.iter().cycle()) {
        variants.push(parse(text, *arch)?);
    }
    let mut jobs = jobs(&variants)?;
    // Their decode kernels fill the registers, and their ladders, of which most steps run none, spill some dozen bytes; `--all` shows these.
    let spilling = |job: &Job| job.verb == Verb::Ladder && job.label.contains("/g16/sm_120a");
    jobs.retain(|job| !spilling(job));
    Ok(jobs)
}

/// Everything.
pub(crate) fn full(archs: &[Arch]) -> Result<Vec<Job>, String> {
    let groups = |dim| if dim == 128 { (1..=16).collect() } else { GROUPS.to_vec() };
    let mut variants: Vec<Variant> = points(archs, groups).into_iter().filter_map(variant).collect();
    for arch in archs {
        for text in EXTRAS.iter().chain(&TRANSCODED) {
            variants.push(parse(text, *arch)?);
        }
    }
    jobs(&variants)
}

/// Variants named as `FORMAT/STORE/dDIM/gGROUP`, then any of `/draftN`, `/correct`, `/plain`, `/single`, `/window`, `/level`, `/wide`, or `/from=FORMAT`, separated by commas, on
/// every architecture. With `/from` only the transcoding is compiled.
pub(crate) fn listed(list: &str, archs: &[Arch]) -> Result<Vec<Job>, String> {
    let mut variants = Vec::new();
    for arch in archs {
        for text in list.split(',').map(str::trim).filter(|t| !t.is_empty()) {
            variants.push(parse(text, *arch)?);
        }
    }
    jobs(&variants)
}

fn parse(text: &str, arch: Arch) -> Result<Variant, String> {
    let bad = |why: &str| format!("variant {text}: {why}");
    let parts: Vec<&str> = text.split('/').collect();
    let [format, store, dim, group, rest @ ..] = &parts[..] else {
        return Err(bad("write for example k8-v4g32-b32/f16/d128/g4"));
    };
    let store = [Dtype::F16, Dtype::Bf16].into_iter().find(|t| t.to_string() == *store).ok_or(bad("f16 or bf16"))?;
    let number = |part: &str, letter| part.strip_prefix(letter)?.parse::<usize>().ok();
    let dim = number(dim, 'd').ok_or(bad("head size dN"))?;
    let group = number(group, 'g').ok_or(bad("group gN"))?;
    let error = |e: &dyn std::error::Error| bad(&e.to_string());
    let geometry = Geometry { store, ..Geometry::new(1, group, 1, dim).map_err(|e| error(&e))? };
    let layout = |format: &str| {
        let format = format.parse().map_err(|e: certkv_core::FormatError| error(&e))?;
        RecordLayout::new(&geometry, format).map_err(|e| error(&e))
    };
    let mut variant = Variant::new(layout(format)?, group, arch).map_err(|e| error(&e))?;
    for part in rest {
        variant = match *part {
            "correct" => variant.correcting().map_err(|e| error(&e))?,
            "plain" => variant.uncertified(),
            "single" => variant.with_single_queries(),
            "window" => variant.windowed(),
            "level" => variant.levelled().map_err(|e| error(&e))?,
            draft if draft.starts_with("draft") => {
                let tokens = draft[5..].parse().map_err(|_| bad("a draft of N tokens is /draftN"))?;
                variant.drafting(tokens).map_err(|e| error(&e))?
            }
            "wide" => variant.wide(),
            from => {
                let why = "only /draftN, /correct, /plain, /single, /window, /level, /wide or /from=FORMAT may follow the group";
                let old = layout(from.strip_prefix("from=").ok_or(bad(why))?)?;
                variant.transcoding(old).map_err(|e| error(&e))?
            }
        };
    }
    Ok(variant)
}

/// A job for every verb of every variant, each program once.
fn jobs(variants: &[Variant]) -> Result<Vec<Job>, String> {
    let (mut jobs, mut known) = (Vec::new(), BTreeSet::new());
    for variant in variants {
        for verb in variant.verbs().filter(|verb| variant.from().is_none() || *verb == Verb::Transcode) {
            let recipe = Recipe::new(variant, verb).map_err(|e| e.to_string())?;
            // Lists of heads are short: no cache has a ladder that is cut for throughput.
            if verb == Verb::Ladder && cut_otherwise(variant) {
                continue;
            }
            if known.insert(recipe.file()) {
                let dynamic_shared = if recipe.uses("CKV_SHARED") {
                    variant.shape().shared
                } else if recipe.uses("CKV_EXTEND_SHARED") {
                    variant.extend_shape().shared
                } else {
                    0
                };
                jobs.push(Job { verb, label: label(variant, &recipe), recipe, dynamic_shared });
            }
        }
    }
    Ok(jobs)
}

/// Whether a CTA of the decode kernel is cut otherwise than usual.
fn cut_otherwise(variant: &Variant) -> bool {
    let usual = Variant::new(variant.layout().clone(), variant.group(), variant.arch());
    usual.map(|v| v.shape()) != Ok(variant.shape())
}

fn label(variant: &Variant, recipe: &Recipe) -> String {
    let l = variant.layout();
    let mut parts = Vec::new();
    if ["CKV_KEY", "CKV_VALUE", "CKV_RECORD"].iter().any(|name| recipe.uses(name)) {
        parts.push(l.format.to_string());
    } else if recipe.uses("CKV_BLOCK") {
        parts.push(format!("b{}", l.tokens()));
    }
    if recipe.uses("CKV_STORE") {
        parts.push(l.store.to_string());
    }
    if recipe.uses("CKV_DIM") {
        parts.push(format!("d{}", l.dim));
    }
    if recipe.uses("CKV_GROUP") {
        parts.push(format!("g{}", variant.group()));
    }
    parts.push(format!("sm_{}", variant.arch()));
    if recipe.uses("CKV_CORRECT") && variant.corrects() {
        parts.push("correct".to_owned());
    }
    if recipe.uses("CKV_DRAFT") && variant.draft() > 0 {
        parts.push(format!("draft{}", variant.draft()));
    }
    if recipe.uses("CKV_WINDOW") && variant.is_windowed() {
        parts.push("window".to_owned());
    }
    if recipe.uses("CKV_LEVEL") && variant.is_levelled() {
        parts.push("level".to_owned());
    }
    if recipe.uses("CKV_CERTIFY") && !variant.certifies() {
        parts.push("plain".to_owned());
    }
    if recipe.uses("CKV_QUERY_LOW") && variant.takes_single_queries() {
        parts.push("single".to_owned());
    }
    if recipe.uses("CKV_WARPS") && cut_otherwise(variant) {
        parts.push(format!("{}x{}", variant.shape().warps, variant.shape().stages));
    }
    if let Some(from) = variant.from() {
        parts.push(format!("from={}", from.format));
    }
    parts.join("/")
}
