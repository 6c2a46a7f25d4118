use super::*;
use certkv_core::{Geometry, RecordLayout};
use std::cell::Cell;
use std::fs;
use std::path::Path;
use std::sync::Barrier;
use std::sync::atomic::{AtomicU32, Ordering};

fn variant(format: &str, group: usize, arch: Arch) -> Variant {
    let layout = RecordLayout::new(&Geometry::new(1, group, 1, 128).unwrap(), format.parse().unwrap()).unwrap();
    Variant::new(layout, group, arch).unwrap()
}

fn recipe() -> Recipe {
    Recipe::new(&variant("k8-v4g32-b32", 4, Arch::Sm90a), Verb::Attend).unwrap()
}

/// A folder of its own for every test, removed at its end.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let unique = format!("certkv-{name}-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let path = std::env::temp_dir().join(unique);
        fs::create_dir_all(&path).unwrap();
        Self(path)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn files(folder: &Path) -> Vec<PathBuf> {
    let mut found: Vec<PathBuf> = fs::read_dir(folder).unwrap().map(|f| f.unwrap().path()).collect();
    found.sort();
    found
}

const CODE: &[u8] = b"machine code of the first compiler";

/// With a compiler of version 13.0 that makes [`CODE`]; counts its runs.
fn make(compiler: &Compiler, runs: &Cell<u32>) -> Cubin {
    let compile = || {
        runs.set(runs.get() + 1);
        Ok(CODE.to_vec())
    };
    compiler.make_with(&recipe(), || Ok((13, 0)), compile).unwrap()
}

#[test]
fn the_second_look_up_comes_from_the_cache() {
    let (folder, runs) = (Folder::new("hit"), Cell::new(0));
    // A folder that does not exist yet is made.
    let compiler = Compiler::new().with_cache(folder.0.join("a").join("b"));
    for (origin, count) in [(Origin::Nvrtc, 1), (Origin::Cache, 1), (Origin::Cache, 1)] {
        let cubin = make(&compiler, &runs);
        assert_eq!((cubin.bytes.as_slice(), cubin.origin, cubin.notes.len()), (CODE, origin, 0));
        assert_eq!(runs.get(), count);
    }
    // Another version of the compiler does not see it, nor another source.
    let newer = compiler.make_with(&recipe(), || Ok((13, 1)), || Ok(b"newer".to_vec())).unwrap();
    assert_eq!((newer.bytes.as_slice(), newer.origin), (b"newer".as_slice(), Origin::Nvrtc));
    let mut other = recipe();
    other.key[31] ^= 1;
    assert_eq!(compiler.make_with(&other, || Ok((13, 0)), || Ok(vec![1])).unwrap().origin, Origin::Nvrtc);
}

#[test]
fn a_damaged_file_is_compiled_again_and_replaced() {
    let (folder, runs) = (Folder::new("damage"), Cell::new(0));
    let compiler = Compiler::new().with_cache(&folder.0);
    make(&compiler, &runs);
    let file = files(&folder.0).remove(0);
    let whole = fs::read(&file).unwrap();
    let mut flipped = whole.clone();
    flipped[3] ^= 1;
    for (n, damaged) in [&whole[..whole.len() / 2], &[], b"text", &flipped].into_iter().enumerate() {
        fs::write(&file, damaged).unwrap();
        let cubin = make(&compiler, &runs);
        assert_eq!((cubin.bytes.as_slice(), cubin.origin), (CODE, Origin::Nvrtc));
        assert_eq!(cubin.notes, [Note::CacheDamaged(file.clone())]);
        assert_eq!(runs.get(), n as u32 + 2);
        assert_eq!(fs::read(&file).unwrap(), whole);
    }
    assert_eq!(make(&compiler, &runs).origin, Origin::Cache);
}

#[test]
fn a_cache_that_cannot_be_written_is_a_note_and_leaves_nothing_behind() {
    let (folder, runs) = (Folder::new("readonly"), Cell::new(0));
    // A file in the folder's place refuses root, too, which the mode of a folder does not.
    let blocked = folder.0.join("cache");
    fs::write(&blocked, "in the way").unwrap();
    let compiler = Compiler::new().with_cache(&blocked);
    for _ in 0..2 {
        let cubin = make(&compiler, &runs);
        assert_eq!((cubin.bytes.as_slice(), cubin.origin), (CODE, Origin::Nvrtc));
        assert!(cubin.notes.iter().any(|n| matches!(n, Note::CacheNotWritten { reason, .. } if !reason.is_empty())));
    }
    assert_eq!(runs.get(), 2);
    // A folder in the file's place: the rename fails, and the temporary file goes.
    let compiler = Compiler::new().with_cache(folder.0.join("second"));
    let name = recipe().cache_file((13, 0));
    fs::create_dir_all(folder.0.join("second").join(&name).join("full")).unwrap();
    let cubin = make(&compiler, &runs);
    assert_eq!(cubin.notes.len(), 2, "{:?}", cubin.notes);
    assert_eq!(files(&folder.0.join("second")).len(), 1);
}

#[test]
fn threads_that_race_for_one_file_all_get_whole_code() {
    let folder = Folder::new("race");
    let compiler = Compiler::new().with_cache(&folder.0);
    let (recipe, compiled) = (recipe(), AtomicU32::new(0));
    for round in 0..20 {
        let barrier = Barrier::new(4);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    barrier.wait();
                    for _ in 0..20 {
                        let compile = || {
                            compiled.fetch_add(1, Ordering::Relaxed);
                            Ok(CODE.repeat(100))
                        };
                        let cubin = compiler.make_with(&recipe, || Ok((13, 0)), compile).unwrap();
                        assert_eq!(cubin.bytes, CODE.repeat(100));
                        assert_eq!(cubin.notes, []);
                    }
                });
            }
        });
        let left = files(&folder.0);
        assert_eq!(left.len(), 1, "{left:?}");
        if round < 19 {
            fs::remove_file(&left[0]).unwrap();
        }
    }
    assert!(compiled.into_inner() >= 20);
}

#[test]
fn code_made_ahead_of_time_comes_first_then_the_cache_then_the_compiler_then_an_error() {
    let (folder, runs) = (Folder::new("order"), Cell::new(0));
    let (ahead, cache) = (folder.0.join("ahead"), folder.0.join("cache"));
    fs::create_dir_all(&ahead).unwrap();
    let compiler = Compiler::new().with_ahead(Ahead::Folder(ahead.clone())).with_cache(&cache);
    make(&compiler, &runs);
    assert_eq!(make(&compiler, &runs).origin, Origin::Cache);

    let file = ahead.join(recipe().file());
    fs::write(&file, cache::seal(b"ahead".to_vec())).unwrap();
    let found = make(&compiler, &runs);
    assert_eq!((found.bytes.as_slice(), found.origin), (b"ahead".as_slice(), Origin::Ahead));
    // Neither NVRTC nor the cache is asked.
    let missing = || Err(CudaError::NvrtcMissing);
    let unused = || -> Result<Vec<u8>, CompileError> { unreachable!("nothing has to be compiled") };
    assert_eq!(compiler.make_with(&recipe(), missing, unused).unwrap().origin, Origin::Ahead);

    // A damaged entry is passed over; a pack after it serves.
    fs::write(&file, "damaged").unwrap();
    let passed = make(&compiler, &runs);
    assert_eq!((passed.origin, passed.notes.as_slice()), (Origin::Cache, [Note::AheadDamaged].as_slice()));
    let name = recipe().file();
    let pack = Ahead::pack([(name.as_str(), cache::seal(b"packed".to_vec()).as_slice())]);
    let both = compiler.clone().with_ahead(Ahead::Pack(pack.into()));
    assert_eq!(make(&both, &runs).bytes, b"packed");
    assert_eq!(runs.get(), 1);

    fs::remove_file(&file).unwrap();
    let error = compiler.make_with(&recipe(), missing, unused).unwrap_err();
    assert!(matches!(&error, CompileError::NoCode { file, .. } if *file == recipe().file()), "{error}");
    assert!(error.to_string().contains("no cubin") && error.to_string().contains("NVRTC absent"), "{error}");
    let plain = Compiler::new().without_nvrtc().cubin(&variant("k8-v4g32-b32", 4, Arch::Sm90a), Verb::Attend);
    assert!(matches!(plain, Err(CompileError::NoCode { .. })));
}

#[test]
fn keys_tell_apart_what_makes_other_code_and_nothing_else() {
    let key = |variant: &Variant, verb| Recipe::new(variant, verb).unwrap().key;
    let base = variant("k8-v4g32-b32", 4, Arch::Sm90a);
    let attend = |v: &Variant| key(v, Verb::Attend);
    let others = [
        variant("k8-v4g32-b32", 4, Arch::Sm100a),
        variant("k8-v4g32-b32", 8, Arch::Sm90a),
        variant("k8-v4g64-b32", 4, Arch::Sm90a),
        variant("k8-v4g32-b64", 4, Arch::Sm90a),
        base.clone().uncertified(),
        base.clone().with_shape(4, 2).unwrap(),
    ];
    let mut keys: Vec<Key> = others.iter().chain([&base]).map(attend).collect();
    keys.sort();
    keys.dedup();
    assert_eq!(keys.len(), others.len() + 1);
    assert_eq!(attend(&base), attend(&variant("k8-v4g32-b32", 4, Arch::Sm90a)));
    let (four, eight) = (key(&base, Verb::Pack), key(&others[1], Verb::Pack));
    assert_eq!(four, eight, "packing does not depend on the query heads");
    assert_ne!(four, attend(&base));
}

#[test]
fn options_name_the_gpu_and_ask_for_no_inexact_arithmetic() {
    let recipe = recipe();
    assert_eq!(recipe.options()[0], "--gpu-architecture=sm_90a");
    for wanted in ["--std=c++17", "-default-device", "--fmad=false", "-DCKV_DIM=128", "-DCKV_SHARED="] {
        assert!(recipe.options().iter().any(|o| o.starts_with(wanted)), "{wanted}");
    }
    for option in recipe.options() {
        for unwanted in ["fast_math", "fast-math", "ftz", "lineinfo", "vectorization", "-G"] {
            assert!(!option.contains(unwanted), "{option}");
        }
    }
}

#[test]
fn errors_name_verb_and_variant() {
    let error = CompileError::Nvrtc { verb: Verb::Pack, variant: "v".into(), error: CudaError::NvrtcMissing };
    assert_eq!(error.to_string(), "kernel pack for v: no NVRTC library (libnvrtc) on this machine");
    let error = Recipe::new(&variant("k8-v4g32-b32", 4, Arch::Sm90a), Verb::Transcode).unwrap_err();
    assert_eq!(error, CompileError::NoOldLayout);
    assert_eq!(CompileError::NoSource(Verb::Pack).to_string(), "kernel pack: the library was built without its source");
}
