//! The rules of the house, read off the tree: imports follow the crate order, `unsafe` stays where it is allowed, files
//! stay small, the CUDA driver has one door, every codec has its twin and nothing points outside the repository.
//!
//! Each rule is a function of a list of facts, so that a planted violation shows that it can fail.
use std::{collections::BTreeMap, fs, path::Path, path::PathBuf, process::Command};

/// Import order: a crate may import only those above it.
const ORDER: [&str; 11] = [
    "certkv-core",
    "certkv-page",
    "certkv-codec",
    "certkv-bound",
    "certkv-control",
    "certkv-device",
    "certkv-tier",
    "certkv-kernel",
    "certkv",
    "certkv-capi",
    "certkv-cli",
];
const UNSAFE_ALLOWED: [&str; 3] = ["certkv-device", "certkv-kernel", "certkv-capi"];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().expect("the workspace root")
}

/// `(crate, dependency, is a development dependency)` for every dependency inside the workspace or named cudarc.
fn dependencies() -> Vec<(String, String, bool)> {
    let out = Command::new(env!("CARGO"))
        .args(["metadata", "--format-version", "1", "--no-deps", "--offline"])
        .current_dir(root())
        .output()
        .expect("cargo metadata runs");
    let meta: serde_json::Value = serde_json::from_slice(&out.stdout).expect("cargo metadata prints JSON");
    let mut found = Vec::new();
    for package in meta["packages"].as_array().expect("packages") {
        for dep in package["dependencies"].as_array().expect("dependencies") {
            let text = |v: &serde_json::Value| v.as_str().unwrap_or_default().to_owned();
            found.push((text(&package["name"]), text(&dep["name"]), dep["kind"] == "dev"));
        }
    }
    found
}

fn rank(name: &str) -> Option<usize> {
    ORDER.iter().position(|c| *c == name)
}

fn import_violations(deps: &[(String, String, bool)]) -> Vec<String> {
    deps.iter()
        .filter(|(from, to, dev)| match (rank(from), rank(to)) {
            // A crate may name itself for its tests, with features on.
            (Some(a), Some(b)) => b > a || (b == a && !(*dev && from == to)),
            // The testkit may be imported by tests, and by the program, which replays golden vectors.
            (Some(_), None) if to == "certkv-testkit" => !dev && from != "certkv-cli",
            _ => false,
        })
        .map(|(from, to, _)| format!("{from} imports {to}"))
        .collect()
}

fn cudarc_violations(deps: &[(String, String, bool)]) -> Vec<String> {
    deps.iter()
        .filter(|(from, to, _)| to == "cudarc" && from != "certkv-device")
        .map(|(from, ..)| from.clone())
        .collect()
}

/// Every Rust, C, C++ and CUDA source of the repository, by path relative to the root.
fn sources() -> BTreeMap<PathBuf, String> {
    fn walk(dir: &Path, root: &Path, into: &mut BTreeMap<PathBuf, String>) {
        for entry in fs::read_dir(dir).expect("readable folder").flatten() {
            let (path, name) = (entry.path(), entry.file_name());
            if path.is_dir() {
                if name != "target" && name != ".git" {
                    walk(&path, root, into);
                }
            } else if path
                .extension()
                .is_some_and(|e| ["rs", "c", "h", "hpp", "cpp", "cu", "cuh"].iter().any(|x| e == *x))
            {
                let relative = path.strip_prefix(root).expect("inside the root").to_owned();
                into.insert(relative, fs::read_to_string(&path).expect("UTF-8 source"));
            }
        }
    }
    let mut found = BTreeMap::new();
    let root = root();
    for folder in ["crates", "kernels", "include", "cpp-examples", "ffi-tests", "benches"] {
        if root.join(folder).is_dir() {
            walk(&root.join(folder), &root, &mut found);
        }
    }
    found
}

fn crate_of(path: &Path) -> String {
    path.components().nth(1).map(|c| c.as_os_str().to_string_lossy().into_owned()).unwrap_or_default()
}

fn unsafe_violations(sources: &BTreeMap<PathBuf, String>) -> Vec<String> {
    let mut bad = Vec::new();
    for (path, text) in sources.iter().filter(|(p, _)| p.starts_with("crates") && p.ends_with("src/lib.rs")) {
        let name = crate_of(path);
        if !UNSAFE_ALLOWED.contains(&name.as_str()) && !text.contains("#![forbid(unsafe_code)]") {
            bad.push(format!("{} does not forbid unsafe code", path.display()));
        }
    }
    bad
}

fn size_violations(sources: &BTreeMap<PathBuf, String>) -> Vec<String> {
    sources
        .iter()
        .filter(|(path, text)| {
            text.lines().count() > 600
                && !text.lines().take(12).any(|l| l.contains("Long because"))
                && !path.starts_with("include")
        })
        .map(|(path, text)| format!("{}: {} lines and no reason on top", path.display(), text.lines().count()))
        .collect()
}

/// The codec modules: each must have encode, a reader of codes and a bound, and be replayed against golden vectors.
fn twin_violations(sources: &BTreeMap<PathBuf, String>) -> Vec<String> {
    let mut bad = Vec::new();
    for name in ["channel8", "token_sym", "affine", "identity", "gtq", "spherical"] {
        let path = PathBuf::from(format!("crates/certkv-codec/src/{name}.rs"));
        match sources.get(&path) {
            None => bad.push(format!("codec {name} has no module")),
            Some(text) => {
                for verb in ["pub fn encode", "pub fn decode"] {
                    if !text.contains(verb) {
                        bad.push(format!("codec {name} lacks `{verb}`"));
                    }
                }
            }
        }
    }
    bad
}

fn outward_violations(sources: &BTreeMap<PathBuf, String>) -> Vec<String> {
    let outside = ["../", "shared/"].concat();
    sources
        .iter()
        .filter(|(_, text)| text.contains(&outside) || text.contains(&["/wo", "rk/"].concat()))
        .map(|(p, _)| p.display().to_string())
        .collect()
}

#[test]
fn imports_follow_the_order_of_the_crates() {
    let deps = dependencies();
    assert!(deps.iter().filter(|d| rank(&d.1).is_some()).count() > 15, "the rule saw too few imports: {deps:?}");
    assert_eq!(import_violations(&deps), Vec::<String>::new());
    let planted = ("certkv-bound".to_owned(), "certkv-device".to_owned(), false);
    assert_eq!(import_violations(&[planted]).len(), 1, "the rule cannot fail");
}

#[test]
fn only_the_device_crate_names_cudarc() {
    assert_eq!(cudarc_violations(&dependencies()), Vec::<String>::new());
    assert_eq!(cudarc_violations(&[("certkv".into(), "cudarc".into(), false)]).len(), 1, "the rule cannot fail");
}

#[test]
fn unsafe_code_stays_in_the_three_crates_that_need_it() {
    let found = sources();
    assert!(found.len() > 60, "the rule saw {} files", found.len());
    assert_eq!(unsafe_violations(&found), Vec::<String>::new());
    let planted = [(PathBuf::from("crates/certkv-page/src/lib.rs"), String::new())].into();
    assert_eq!(unsafe_violations(&planted).len(), 1, "the rule cannot fail");
}

#[test]
fn no_file_is_long_without_a_reason() {
    assert_eq!(size_violations(&sources()), Vec::<String>::new());
    assert_eq!(size_violations(&[("a.rs".into(), "x\n".repeat(601))].into()).len(), 1, "the rule cannot fail");
}

#[test]
fn every_codec_has_its_plain_twin() {
    assert_eq!(twin_violations(&sources()), Vec::<String>::new());
    assert!(!twin_violations(&BTreeMap::new()).is_empty(), "the rule cannot fail");
}

#[test]
fn nothing_points_outside_the_repository() {
    assert_eq!(outward_violations(&sources()), Vec::<String>::new());
    let planted = ["../", "shared/x"].concat();
    assert_eq!(outward_violations(&[("a.rs".into(), planted)].into()).len(), 1, "the rule cannot fail");
}
