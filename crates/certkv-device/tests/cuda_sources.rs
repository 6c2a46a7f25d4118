//! Rules of the CUDA door, read off its source: every driver call goes through the table, every fault point has its
//! own name, and nothing replaces the caller's current context.
use std::{fs, path::Path};

fn sources() -> Vec<(String, String)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/cuda");
    let mut found: Vec<_> = fs::read_dir(folder)
        .expect("the module's folder")
        .flatten()
        .map(|file| {
            let name = file.file_name().to_string_lossy().into_owned();
            (name, fs::read_to_string(file.path()).expect("UTF-8 source"))
        })
        .collect();
    found.sort();
    found
}

/// Direct uses of cudarc's functions, which panic when a symbol is missing; types and the library handle are allowed.
fn direct_calls(sources: &[(String, String)]) -> Vec<String> {
    let mut bad = Vec::new();
    for (name, text) in sources {
        for (n, line) in text.lines().enumerate().filter(|(_, line)| !line.trim_start().starts_with("//")) {
            for prefix in ["sys::cu", "sys::nvrtc"] {
                let mut rest = line;
                while let Some(at) = rest.find(prefix) {
                    rest = &rest[at + prefix.len()..];
                    let word: String = rest.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect();
                    if !["lib", "Program"].contains(&word.as_str()) {
                        bad.push(format!("{name}:{}: {prefix}{word}", n + 1));
                    }
                }
            }
        }
    }
    bad
}

/// Functions that would change the calling thread's current context for good, or the device's state under others.
fn context_changes(sources: &[(String, String)]) -> Vec<String> {
    let forbidden = ["cuCtxSetCurrent", "cuCtxCreate", "cuDevicePrimaryCtxReset", "cuDevicePrimaryCtxSetFlags"];
    let uses = |(name, text): &(String, String)| {
        forbidden.iter().filter(|f| text.contains(**f)).map(|f| format!("{name}: {f}")).collect::<Vec<_>>()
    };
    sources.iter().flat_map(uses).collect()
}

#[test]
fn driver_calls_go_through_the_table() {
    assert!(sources().len() > 15);
    assert_eq!(direct_calls(&sources()), Vec::<String>::new());
    let planted = ("a.rs".to_owned(), "unsafe { sys::cuInit(0) };".to_owned());
    assert_eq!(direct_calls(&[planted]).len(), 1, "the rule cannot fail");
}

#[test]
fn nothing_replaces_the_current_context() {
    assert_eq!(context_changes(&sources()), Vec::<String>::new());
    assert_eq!(context_changes(&[("a.rs".into(), "cuCtxSetCurrent(c)".into())]).len(), 1, "the rule cannot fail");
    // A push outside of the one guard would lack its pop.
    let pushes: usize = sources().iter().map(|s| s.1.matches("cuCtxPushCurrent_v2(self").count()).sum();
    assert_eq!(pushes, 1);
}

#[test]
fn every_allocation_copy_launch_and_record_has_a_fault_point() {
    let all: String = sources().into_iter().map(|s| s.1).collect();
    for point in [
        "open",
        "alloc",
        "pin",
        "copy",
        "copy.batch",
        "module",
        "launch",
        "record",
        "wait",
        "event",
        "stream",
        "compile",
        "graph.begin",
        "graph.end",
        "graph.instantiate",
        "graph.launch",
        "graph.upload",
        "synchronize",
    ] {
        assert!(all.contains(&format!("fail_point!(\"cuda.{point}\")")), "{point}");
    }
}
