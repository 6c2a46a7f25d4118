//! What the shared library exports, and what every export must have.
mod common;
use common::{built, root, run};
use std::fs;
use std::path::Path;
use std::process::Command;

/// One export as written: its name, the documentation above it, its body.
struct Export {
    name: String,
    doc: Vec<String>,
    body: String,
}

/// Exports of a source text. Relies on rustfmt: a body ends at the first line that is a closing brace alone.
fn exports(text: &str) -> Vec<Export> {
    let lines: Vec<&str> = text.lines().collect();
    let mut found = Vec::new();
    for (at, line) in lines.iter().enumerate().filter(|(_, line)| line.starts_with("#[unsafe(no_mangle)]")) {
        let before = lines[..at].iter().rev().take_while(|line| line.starts_with("///"));
        let mut doc: Vec<String> = before.map(|line| line.trim_start_matches('/').trim().to_owned()).collect();
        doc.reverse();
        let after = lines[at + 1..].join("\n");
        let (signature, rest) = after.split_once(" {\n").expect("a function after no_mangle");
        let name = signature.split_once("fn ").and_then(|(_, rest)| rest.split_once('(')).expect("a name").0.to_owned();
        assert!(signature.contains("extern \"C\""), "{name}: {line}");
        let body = rest.split_once("\n}").expect("a body").0.trim().to_owned();
        found.push(Export { name, doc, body });
    }
    found
}

/// What is wrong with an export.
fn defects(export: &Export) -> Vec<String> {
    let mut wrong = Vec::new();
    let guards = ["guard(", "guard_value(", "guard_quiet("];
    // One expression: nothing runs before or after the guard.
    let whole = guards.iter().any(|guard| export.body.starts_with(guard)) && {
        let mut depth = 0i32;
        let first_zero = export.body.char_indices().find_map(|(at, c)| {
            depth += i32::from(c == '(') - i32::from(c == ')');
            (c == ')' && depth == 0).then_some(at)
        });
        first_zero == Some(export.body.len() - 1)
    };
    if !whole {
        wrong.push(format!("{}: the body is not one guard", export.name));
    }
    for line in ["Threads:", "Stream:", "Capture:", "Errors:"] {
        if !export.doc.iter().any(|doc| doc.starts_with(line)) {
            wrong.push(format!("{}: no line `{line}`", export.name));
        }
    }
    if !export.name.starts_with("certkv_") {
        wrong.push(format!("{}: no prefix", export.name));
    }
    wrong
}

fn sources() -> Vec<String> {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let files = fs::read_dir(dir).expect("the sources");
    files.map(|file| fs::read_to_string(file.expect("a file").path()).expect("a source")).collect()
}

#[test]
fn every_export_is_guarded_and_documented() {
    let all: Vec<Export> = sources().iter().flat_map(|text| exports(text)).collect();
    let wrong: Vec<String> = all.iter().flat_map(defects).collect();
    assert!(wrong.is_empty(), "{wrong:#?}");
    // Every spelling of an export is seen.
    let spelled: usize = sources().iter().map(|text| text.matches("no_mangle").count()).sum();
    assert_eq!(spelled, all.len());
    assert!(sources().iter().all(|text| !text.contains("export_name")));
    // Planted: a call before the guard, one after it, no guard, a missing line.
    let planted = "/// Threads: any.\n/// Stream: none.\n/// Capture: safe.\n#[unsafe(no_mangle)]\n\
                   pub extern \"C\" fn certkv_a() -> i32 {\n    BODY\n}\n";
    let caught = |body: &str| defects(&exports(&planted.replace("BODY", body))[0]).len();
    assert_eq!(["guard(|| Ok(()))", "x(); guard(|| f())", "guard(|| f()); g()", "f()"].map(caught), [1, 2, 2, 2]);
}

#[test]
fn the_library_exports_the_committed_list() {
    let listed = run(Command::new("nm").args(["-D", "--defined-only"]).arg(built("libcertkv_c.so")));
    let mut exported: Vec<&str> = listed.lines().filter_map(|line| line.split_whitespace().last()).collect();
    exported.sort_unstable();
    let committed = fs::read_to_string(root().join("ffi-tests/symbols.txt")).expect("ffi-tests/symbols.txt");
    let committed: Vec<&str> = committed.lines().collect();
    assert_eq!(exported, committed);
    let mut written: Vec<String> = sources().iter().flat_map(|text| exports(text)).map(|export| export.name).collect();
    written.sort_unstable();
    assert_eq!(exported, written);
}

#[test]
#[cfg(target_os = "linux")]
fn the_library_has_its_soname() {
    let said = run(Command::new("readelf").arg("-d").arg(built("libcertkv_c.so")));
    assert!(said.contains("Library soname: [libcertkv.so.0]"), "{said}");
}
