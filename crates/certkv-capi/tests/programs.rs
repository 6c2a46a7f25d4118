//! C and C++ programs against the library as a user links it.
mod common;
use common::{built, compiler, install, output, program, root, run, scratch};
use std::process::Command;

fn check_decode(said: &str) {
    let lines: Vec<&str> = said.lines().collect();
    assert_eq!(lines.len(), 8 * 4 + 1, "{said}");
    for (at, line) in lines[..32].iter().enumerate() {
        assert!(line.starts_with(&format!("token {} head {}: ", 96 + at / 4, at % 4)), "{line}");
        let bound = line.split_once("|error| <= ").and_then(|(_, rest)| rest.split_once(',')).expect("a bound").0;
        let bound: f64 = bound.parse().expect("a number");
        assert!(bound > 0.0 && bound < 0.5, "{line}");
        assert!(line.contains(": certified") || line.contains(": exact"), "{line}");
    }
    let version = env!("CARGO_PKG_VERSION");
    assert_eq!(lines[32], format!("certkv {version}: 32 of 32 outputs within tolerance or exact"));
}

#[test]
fn the_example_decodes_with_certificates() {
    let dir = scratch("example");
    install(&dir);
    let source = root().join("cpp-examples/minimal_decode.c");
    let text = std::fs::read_to_string(&source).expect("the example");
    assert!(text.lines().count() < 100, "an example that is read at a glance");
    let said = run(&mut Command::new(program(&dir, "c11", &source, &[])));
    check_decode(&said);
    // The same source is C++.
    assert_eq!(run(&mut Command::new(program(&dir, "c++17", &source, &[]))), said);
    // And the same again without the shared library.
    let made = dir.join("static");
    let mut link = compiler("c11");
    link.arg(&source).arg(built("libcertkv_c.a")).args(["-lpthread", "-ldl", "-lm", "-lgcc_s", "-o"]).arg(&made);
    run(&mut link);
    assert_eq!(run(&mut Command::new(made)), said);
    // In C++ with certkv.hpp: the same numbers.
    let source = source.with_extension("cpp");
    assert!(std::fs::read_to_string(&source).expect("the example").lines().count() < 80, "shorter than in C");
    for standard in ["c++17", "c++20"] {
        assert_eq!(run(&mut Command::new(program(&dir, standard, &source, &["-Wshadow", "-Wconversion"]))), said);
    }
}

#[test]
fn the_custom_tier_changes_no_certificate() {
    let dir = scratch("tier-example");
    install(&dir);
    let source = root().join("cpp-examples/custom_tier.cpp");
    assert!(
        std::fs::read_to_string(&source).expect("the example").lines().count() < 215,
        "an example that is read in one go"
    );
    for standard in ["c++17", "c++20"] {
        let said = run(&mut Command::new(program(&dir, standard, &source, &["-Wshadow", "-Wconversion"])));
        let lines: Vec<&str> = said.lines().collect();
        assert_eq!(lines.len(), 8, "{said}");
        for line in &lines[..4] {
            let bounds: Vec<f64> = line.split([' ', ',']).filter_map(|word| word.parse().ok()).collect();
            let [one, other] = bounds[..] else { panic!("{line}") };
            assert!(one.to_bits() == other.to_bits() && one > 0.0 && one < 0.1, "{line}");
        }
        let numbers = |line: &str| line.split(' ').filter_map(|word| word.parse::<u64>().ok()).collect::<Vec<_>>();
        let [spilled, back] = numbers(lines[4])[..] else { panic!("{said}") };
        assert!(spilled > 10 && back > 5, "{said}");
        assert_eq!(lines[5], "carried 16 units, 1024 tokens; certificates hold");
        assert_eq!(lines[6], "144 certificates, all equal bit for bit");
        // What spilled is deleted with its cache; the units stay.
        assert!(lines[7].starts_with("store: ") && lines[7].ends_with(" read, 16 records left"), "{said}");
    }
}

/// With a GPU the programs look at what they did; without one they say why and hold nothing.
#[test]
fn the_gpu_examples_decode_or_say_why_not() {
    let dir = scratch("gpu-example");
    install(&dir);
    let examples = [
        ("custom_tier.cpp", ["c++17", "c++20"], "144 certificates, all held by their outputs"),
        ("gpu_decode.c", ["c11", "c++17"], ": 640 outputs on the GPU, 0 beyond their bound"),
        ("cuda_stream.cpp", ["c++17", "c++20"], ": 1920 outputs of 3 sequences, 0 beyond their bound"),
    ];
    for (name, standards, well) in examples {
        let source = root().join("cpp-examples").join(name);
        for standard in standards {
            let mut command = Command::new(program(&dir, standard, &source, &["-ldl"]));
            command.args((name == "custom_tier.cpp").then_some("gpu"));
            let done = output(command.arg(dir.join("kernels")));
            let (said, why) = (String::from_utf8_lossy(&done.stdout), String::from_utf8_lossy(&done.stderr));
            match done.status.code() {
                Some(0) => assert!(said.contains(well), "{said}"),
                Some(3) => assert!(said.is_empty() && why.starts_with("CERTKV_DEVICE: "), "{said}{why}"),
                other => panic!("{other:?}: {said}{why}"),
            }
        }
    }
}

/// One program per object, and how many checks it makes at least.
const HOSTILE: [(&str, u32); 20] = [
    ("misuse", 330),
    ("swap", 60),
    ("save", 80),
    ("snapshot", 50),
    ("prefixes", 100),
    ("events", 75),
    ("log", 140),
    ("parts", 200),
    ("allocator", 60),
    ("admit", 50),
    ("store", 150),
    ("calibration", 550),
    ("tensor", 2000),
    ("moves", 90),
    ("scrub", 90),
    ("levels", 200),
    ("decides", 300),
    ("scales", 800),
    ("threads", 80),
    ("numbers", 4000),
];

/// A hundred thousand random calls under sanitizers; `CERTKV_FUZZ_CALLS` and `CERTKV_FUZZ_SEED` say otherwise. Allocations of the library are
/// among what they watch: it asks the C library for memory, as the program does.
#[test]
fn random_calls_get_statuses_and_leave_nothing() {
    let dir = scratch("fuzz");
    install(&dir);
    let sanitizers = ["-g", "-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-Wno-unused-function"];
    let made = program(&dir, "c11", &root().join("ffi-tests/fuzz/calls.c"), &sanitizers);
    let number = |name: &str, default: u64| std::env::var(name).ok().and_then(|n| n.parse().ok()).unwrap_or(default);
    let (seed, calls) = (number("CERTKV_FUZZ_SEED", 1), number("CERTKV_FUZZ_CALLS", 100_000));
    let done = output(Command::new(made).arg(&dir).args([seed.to_string(), calls.to_string()]));
    let (said, why) = (String::from_utf8_lossy(&done.stdout), String::from_utf8_lossy(&done.stderr));
    assert!(done.status.success() && why.is_empty(), "{}: {said}{why}", done.status);
    let numbers: Vec<i64> = said.split_whitespace().filter_map(|word| word.parse().ok()).collect();
    let [ran, failed, statuses, ok, bytes, stores] = numbers[..] else { panic!("{said}") };
    // Planted: a store that stays, memory that is lost, an answer that the header does not name.
    let caught = ["-DPLANT=1", "-DPLANT=2", "-DPLANT=3"].into_iter().filter(|plant| {
        let flags: Vec<&str> = sanitizers.iter().copied().chain([*plant]).collect();
        let made = program(&dir, "c11", &root().join("ffi-tests/fuzz/calls.c"), &flags);
        !output(Command::new(made).arg(&dir).args(["1", "20000"])).status.success()
    });
    let caught = caught.count();
    println!(
        "GATE ffi-fuzz executed={ran} failed={failed} controls={caught}/3 seed={seed:#x} statuses={statuses} ok={ok}"
    );
    assert_eq!(caught, 3);
    assert!(ran as u64 >= calls && (failed, bytes, stores) == (0, 0, 0), "{said}");
    // The calls went somewhere: most statuses that a cache on the host has, and a share of successes.
    assert!(statuses >= 25 && ok * 20 > ran, "{said}");
}

#[test]
fn hostile_calls_get_statuses() {
    let dir = scratch("misuse");
    install(&dir);
    for (name, least) in HOSTILE {
        let source = root().join("ffi-tests").join(name).with_extension("c");
        for standard in ["c99", "c++17"] {
            // Not every program calls every helper of its headers.
            let made = program(&dir, standard, &source, &["-Wno-unused-function", "-Wno-unused-variable"]);
            let done = output(Command::new(made).arg(&dir));
            let said = String::from_utf8_lossy(&done.stdout);
            let status = done.status;
            assert!(status.success(), "{name}: {status}: {said}{}", String::from_utf8_lossy(&done.stderr));
            let checks = said.strip_prefix("checks ").and_then(|rest| rest.split_once(' ')).expect("a count").0;
            assert!(checks.parse::<u32>().expect("a number") > least, "{name}: {said}");
            assert!(done.stderr.is_empty(), "the library printed: {}", String::from_utf8_lossy(&done.stderr));
        }
    }
}
