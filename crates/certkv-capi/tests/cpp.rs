//! `include/certkv.hpp`: every compiler mode takes it, programs in C++ get what they were promised, and misuse does not compile.
mod common;
use common::{compiler, install, note, output, program, root, run, scratch, with};
use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Beside those that C is held to.
const WARNINGS: [&str; 4] = ["-Wpedantic", "-Wshadow", "-Wconversion", "-Wsign-conversion"];
const BARE: [&str; 2] = ["-fno-exceptions", "-fno-rtti"];

fn flags<'a>(more: &[&'a str]) -> Vec<&'a str> {
    [&WARNINGS[..], more].concat()
}

/// Compiles a text, in a file of that name, to an object.
fn object(command: &mut Command, dir: &Path, name: &str, text: &str) -> std::process::Output {
    let source = dir.join(name).with_extension("cpp");
    fs::write(&source, text).expect("a test source");
    output(command.args(WARNINGS).arg("-c").arg(&source).arg("-o").arg(source.with_extension("o")))
}

fn compiled(command: &mut Command, dir: &Path, name: &str, text: &str) -> PathBuf {
    let done = object(command, dir, name, text);
    assert!(done.status.success(), "{command:?}\n{text}\n{}", String::from_utf8_lossy(&done.stderr));
    dir.join(name).with_extension("o")
}

fn header() -> String {
    fs::read_to_string(root().join("include/certkv.hpp")).expect("include/certkv.hpp")
}

#[test]
fn every_compiler_mode_takes_the_header() {
    let dir = scratch("cpp_matrix");
    let once = "#include <certkv.hpp>\nint certkv_test();\nint certkv_test() { return certkv::Result<void>().ok(); }\n";
    let twice = format!("#include <certkv.hpp>\n#include <certkv.h>\n{once}");
    for name in ["g++", "clang++"] {
        if Command::new(name).arg("--version").output().is_err() {
            assert_ne!(name, "g++", "the tests of the C ABI need g++");
            note(&format!("certkv.hpp: {name} is not there: the header was not compiled with it"));
            continue;
        }
        for standard in ["c++17", "c++20", "c++23"] {
            if standard == "c++23" && !object(&mut with(name, standard), &dir, "none", "").status.success() {
                note(&format!("certkv.hpp: {name} does not take {standard}: the header was not compiled with it"));
                continue;
            }
            for bare in [&[][..], &BARE] {
                for (file, text) in [("once", once), ("twice", &twice)] {
                    compiled(with(name, standard).args(bare), &dir, file, text);
                }
            }
        }
        // The matrix can fail: a warning is an error in it.
        let bad =
            format!("{once}static int narrowed(long wide) {{ return wide; }}\nint other() {{ return narrowed(1); }}\n");
        assert!(!object(&mut with(name, "c++17"), &dir, "bad", &bad).status.success());
    }
}

/// Macros after `text`.
fn macros(dir: &Path, text: &str) -> BTreeSet<String> {
    let source = dir.join("macros.cpp");
    fs::write(&source, text).expect("a test source");
    let said = run(compiler("c++17").args(["-dM", "-E"]).arg(&source));
    said.lines().filter_map(|line| line.split_whitespace().nth(1)).map(str::to_owned).collect()
}

#[test]
fn no_macro_is_left_behind() {
    let dir = scratch("cpp_macros");
    let includes: String =
        header().lines().filter(|line| line.starts_with("#include")).map(|line| format!("{line}\n")).collect();
    assert!(includes.contains("#include \"certkv.h\"") && includes.lines().count() > 5, "{includes}");
    let (without, all) = (macros(&dir, &includes), macros(&dir, "#include <certkv.hpp>\n"));
    let left: Vec<_> = all.difference(&without).collect();
    assert_eq!(left, ["CERTKV_HPP"]);
    let planted = macros(&dir, "#include <certkv.hpp>\n#define PLANTED\n");
    assert_eq!(planted.difference(&all).collect::<Vec<_>>(), ["PLANTED"]);
}

/// One file knows no exceptions and is C++17, the other is C++20 and throws: they see the same classes.
#[test]
fn files_of_different_modes_link_together() {
    let dir = scratch("cpp_two_files");
    install(&dir);
    let (mut first, mut second) = (String::new(), String::new());
    for (text, own, other) in [(&mut first, "first", "second"), (&mut second, "second", "first")] {
        *text = format!(
            "#include <certkv.hpp>\n\
             certkv::Result<certkv::Cache> {other}(const certkv::Config &config);\n\
             certkv::Result<certkv::Cache> {own}(const certkv::Config &config) {{ return certkv::Cache::create(config); }}\n\
             const void *{own}_version() {{ return reinterpret_cast<const void *>(&certkv::version_number); }}\n"
        );
    }
    second += "#include <cstdio>\n\
               const void *first_version();\n\
               int main() {\n  certkv::Config config;\n  config.layers = config.kv_heads = config.q_heads = 1;\n  \
               config.head_dim = 64;\n  config.max_tokens = 64;\n  certkv::Cache cache = first(config).value_or_throw();\n  \
               std::printf(\"%d%d\\n\", first_version() == second_version(), second(config).ok());\n  config.layers = 0;\n  \
               try { cache = first(config).value_or_throw(); } catch (const certkv::Exception &) { return 0; }\n  return 1;\n}\n";
    // The linker compares types of both files (-Wodr).
    let lto = ["-O1", "-flto"];
    let link = |objects: &[PathBuf], to: &Path| {
        let mut link = compiler("c++20");
        link.args(lto).args(objects).arg("-o").arg(to).arg("-L").arg(&dir);
        output(link.arg("-lcertkv").arg(format!("-Wl,-rpath,{}", dir.display())))
    };
    let made = dir.join("both");
    let modes = |first: &str, second: &str| {
        let a = compiled(compiler("c++17").args(lto).args(BARE), &dir, "first", first);
        [a, compiled(compiler("c++20").args(lto), &dir, "second", second)]
    };
    let done = link(&modes(&first, &second), &made);
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    assert_eq!(run(&mut Command::new(&made)), "11\n");
    // The linker sees a class that differs.
    let planted = |field: &str| {
        format!("struct Planted {{ {field} a; virtual {field} get() {{ return a; }} }};\nPlanted planted_{field};\n")
    };
    let done = link(&modes(&format!("{first}{}", planted("int")), &format!("{second}{}", planted("long"))), &made);
    assert!(!done.status.success(), "two classes of one name went by");
    // No state: nothing of ours is in writable memory.
    let object = compiled(compiler("c++20").arg("-fkeep-inline-functions"), &dir, "state", "#include <certkv.hpp>\n");
    let symbols = run(Command::new("nm").arg(object));
    let ours = |symbols: &str| symbols.lines().filter(|line| line.contains("certkv") && line.contains(" W ")).count();
    let state = |symbols: &str| {
        let data = |line: &&str| line.split_whitespace().rev().nth(1).is_some_and(|kind| "BbDdu".contains(kind));
        symbols.lines().filter(|line| line.contains("certkv")).filter(data).count()
    };
    assert!(ours(&symbols) > 60, "{symbols}");
    assert_eq!(state(&symbols), 0, "{symbols}");
    let text = "#include <certkv.hpp>\nnamespace certkv { inline int planted = 1; }\nint use() { return certkv::planted++; }\n";
    assert_eq!(state(&run(Command::new("nm").arg(compiled(&mut compiler("c++20"), &dir, "planted", text)))), 1);
}

/// One program per object, and how many checks it makes at least.
const PROGRAMS: [(&str, u32); 15] = [
    ("result", 30),
    ("cache", 35),
    ("sequence", 55),
    ("step", 120),
    ("save", 20),
    ("prefixes", 30),
    ("events", 25),
    ("figures", 14),
    ("log", 18),
    ("gpu", 27),
    ("device", 35),
    ("store", 60),
    ("calibration", 25),
    ("levels", 40),
    ("thrown", 9),
];

fn passes(name: &str, least: u32, made: &Path, dir: &Path) {
    let done = output(Command::new(made).arg(dir));
    let (said, why) = (String::from_utf8_lossy(&done.stdout), String::from_utf8_lossy(&done.stderr));
    assert!(done.status.success(), "{name}: {}: {said}{why}", done.status);
    let checks = said.strip_prefix("checks ").and_then(|rest| rest.split_once(' ')).expect("a count").0;
    assert!(checks.parse::<u32>().expect("a number") >= least, "{name}: {said}");
    assert!(why.is_empty(), "{name}: {why}");
}

/// Symbols of an object or program after `option`, as C++ writes them.
fn symbols(file: &Path, option: &str) -> BTreeSet<String> {
    let said = run(Command::new("nm").args(["-C", option]).arg(file));
    let names = said
        .lines()
        .filter_map(|line| line.trim_start_matches(|c: char| c.is_ascii_hexdigit()).trim_start().split_once(' '));
    names.map(|(_, name)| name.split('@').next().unwrap_or_default().to_owned()).collect()
}

#[test]
fn programs_get_what_they_were_promised() {
    let dir = scratch("cpp_programs");
    install(&dir);
    let (mut called, mut made_of) = (BTreeSet::new(), BTreeSet::new());
    for (name, least) in PROGRAMS {
        let source = root().join("ffi-tests").join(name).with_extension("cpp");
        // Throwing is what one program is about; the others do without.
        let bare = if name == "thrown" { &["-fno-rtti"][..] } else { &BARE };
        let made = program(&dir, "c++17", &source, &flags(bare));
        passes(name, least, &made, &dir);
        called.extend(symbols(&made, "--undefined-only"));
        made_of.extend(symbols(&made, "--defined-only"));
        // Optimised, where g++ sees more.
        passes(name, least, &program(&dir, "c++20", &source, &flags(&["-O2"])), &dir);
    }
    // Every function of the library was reached, and every function of the header that is no template.
    let exported = fs::read_to_string(root().join("ffi-tests/symbols.txt")).expect("ffi-tests/symbols.txt");
    let missing: Vec<&str> = exported.lines().filter(|name| !called.contains(*name)).collect();
    assert!(missing.is_empty() && exported.lines().count() > 30, "no program calls {missing:?}");
    let object = compiled(compiler("c++17").arg("-fkeep-inline-functions"), &dir, "all", "#include <certkv.hpp>\n");
    let all: Vec<String> =
        symbols(&object, "--defined-only").into_iter().filter(|name| name.starts_with("certkv::")).collect();
    let unused: Vec<&String> = all.iter().filter(|name| !made_of.contains(*name)).collect();
    assert!(unused.is_empty() && all.len() > 60, "of {} no program uses {unused:#?}", all.len());
    assert!(!made_of.contains("certkv::Step::planted()") && !called.contains("certkv_step_planted"));
}

#[test]
fn memory_is_sound_under_sanitizers() {
    let dir = scratch("cpp_sanitizers");
    install(&dir);
    let sanitizers = ["-g", "-fsanitize=address,undefined", "-fno-sanitize-recover=all"];
    for name in ["result", "cache", "sequence", "step", "store", "thrown"] {
        let source = root().join("ffi-tests").join(name).with_extension("cpp");
        passes(name, 4, &program(&dir, "c++17", &source, &sanitizers), &dir);
    }
    // They see what is wrong.
    for (name, wrong) in [
        ("freed", "delete one; return *one;"),
        ("wide", "return *one << (32 + *one);"),
        ("kept", "one = nullptr; return 0;"),
    ] {
        let source = dir.join(name).with_extension("cpp");
        let text = format!("int *volatile one;\nint main(int count, char **) {{ one = new int(count); {wrong} }}\n");
        fs::write(&source, text).expect("a test source");
        let done = output(&mut Command::new(program(&dir, "c++17", &source, &sanitizers)));
        assert!(!done.status.success(), "{name} went by");
    }
}

/// Names of functions of the library in the header, without its comments.
fn faces(text: &str) -> BTreeSet<String> {
    let code = text.lines().map(|line| line.split("//").next().unwrap_or_default());
    let word = |c: char| !(c.is_ascii_alphanumeric() || c == '_');
    code.flat_map(|line| line.split(word)).filter(|name| name.starts_with("certkv_")).map(str::to_owned).collect()
}

#[test]
fn every_exported_function_has_a_face() {
    let exported = fs::read_to_string(root().join("ffi-tests/symbols.txt")).expect("ffi-tests/symbols.txt");
    let missing = |text: &str| -> Vec<String> {
        let faces = faces(text);
        exported.lines().filter(|name| !faces.contains(*name)).map(str::to_owned).collect()
    };
    assert!(missing(&header()).is_empty(), "include/certkv.hpp lacks {:?}", missing(&header()));
    // A comment is no face, nor is a longer name.
    for planted in ["// certkv_step_finish(", "certkv_step_finish_all("] {
        assert_eq!(missing(&header().replace("certkv_step_finish(", planted)), ["certkv_step_finish"]);
    }
}

#[test]
fn misuse_does_not_compile() {
    let dir = scratch("cpp_misuse");
    let text = |body: &str| {
        format!(
            "#include <certkv.hpp>\n#include <vector>\nvoid use(certkv::Cache &cache, certkv::Sequence &sequence, certkv::Step &step,\n\
             certkv::Ring &ring, certkv::Capture &capture, std::vector<float> &row, const std::vector<float> &fixed);\n\
             void use(certkv::Cache &cache, certkv::Sequence &sequence, certkv::Step &step,\n\
             certkv::Ring &ring, certkv::Capture &capture, std::vector<float> &row, const std::vector<float> &fixed) {{\n\
             (void)cache, (void)sequence, (void)step, (void)ring, (void)capture, (void)row, (void)fixed;\n{body}\n}}\n"
        )
    };
    // What is right, what is wrong, and a word of why.
    for (right, wrong, why) in [
        ("(void)step.finish();", "step.finish();", "nodiscard"),
        ("(void)step.append(0, row, row);", "step.append(0, row, row);", "nodiscard"),
        ("(void)sequence.release();", "sequence.release();", "nodiscard"),
        ("(void)cache.create_sequence();", "cache.create_sequence();", "nodiscard"),
        ("(void)cache.detach();", "cache.detach();", "nodiscard"),
        ("(void)certkv::Error::latest();", "certkv::Error::latest();", "nodiscard"),
        ("auto a = std::move(cache);", "auto a = cache;", "deleted"),
        ("auto a = std::move(sequence);", "auto a = sequence;", "deleted"),
        ("auto a = std::move(step);", "auto a = step;", "deleted"),
        ("auto a = std::move(ring);", "auto a = ring;", "deleted"),
        ("auto a = std::move(capture);", "auto a = capture;", "deleted"),
        ("auto a = *certkv::Store::memory();", "auto b = certkv::Store::memory(); auto a = *b;", "deleted"),
        ("(void)certkv::Store::memory();", "certkv::Store::memory();", "nodiscard"),
        ("certkv::Cache a; a = std::move(cache);", "certkv::Cache a; a = cache;", "deleted"),
        ("auto a = *cache.begin(sequence);", "auto b = cache.begin(sequence); auto a = *b;", "deleted"),
        ("(void)step.attend(0, fixed, row);", "(void)step.attend(0, row, fixed);", "convert"),
        (
            "std::array<std::uint8_t, 32> k{}; certkv::SaveScope(\"a\").with_key(k);",
            "certkv::SaveScope(\"a\").with_key({});",
            "deleted",
        ),
        ("if (step.finish()) { row[0] = 1; }", "bool done = step.finish(); (void)done;", "convert"),
    ] {
        compiled(&mut compiler("c++17"), &dir, "right", &text(right));
        let done = object(&mut compiler("c++17"), &dir, "wrong", &text(wrong));
        let said = String::from_utf8_lossy(&done.stderr);
        assert!(!done.status.success() && said.contains(why), "{wrong}: {said}");
    }
    // Without exceptions nothing can be asked to throw.
    for call in ["step.finish().value_or_throw();", "(void)cache.create_sequence().value_or_throw();"] {
        compiled(&mut compiler("c++17"), &dir, "right", &text(call));
        let done = object(compiler("c++17").args(BARE), &dir, "wrong", &text(call));
        let said = String::from_utf8_lossy(&done.stderr);
        assert!(!done.status.success() && said.contains("never defined"), "{call}: {said}");
    }
    // Nor may a store's functions throw, and they have to say that they do not.
    let store = |promise: &str| {
        let functions: String = [("put", "put"), ("get", "get"), ("exists", "key"), ("remove", "key")]
            .map(|(name, item)| format!("void {name}(certkv::span<certkv_{item}_item>) {promise} {{}}\n"))
            .concat();
        format!(
            "#include <certkv.hpp>\nstruct Own {{ {functions} }};\nbool made() {{ return certkv::Store::of(std::make_unique<Own>()).ok(); }}\n"
        )
    };
    compiled(&mut compiler("c++17"), &dir, "right", &store(""));
    compiled(compiler("c++17").args(BARE), &dir, "right", &store("noexcept"));
    let done = object(compiler("c++17").args(BARE), &dir, "wrong", &store(""));
    let said = String::from_utf8_lossy(&done.stderr);
    assert!(!done.status.success() && said.contains("never defined"), "{said}");
}

/// Defined, where std::optional would read what is not there.
#[test]
#[cfg(unix)]
fn reading_the_value_of_a_failure_ends_the_program() {
    use std::os::unix::process::ExitStatusExt;
    let dir = scratch("cpp_failure");
    install(&dir);
    for (name, read, signal) in
        [("bad", "*failed", Some(6)), ("arrow", "*failed.operator->()", Some(6)), ("good", "*fine", None)]
    {
        let source = dir.join(name).with_extension("cpp");
        let text = format!(
            "#include <certkv.hpp>\nint main() {{\n  certkv::Result<int> fine = 0, failed = certkv::Error(CERTKV_SHAPE, \"no\");\n  \
             return fine.ok() && failed.ok() ? 1 : {read};\n}}\n"
        );
        fs::write(&source, text).expect("a test source");
        let done = output(&mut Command::new(program(&dir, "c++17", &source, &flags(&BARE))));
        assert_eq!(done.status.signal(), signal, "{name}: {}", done.status);
    }
}
