//! The emulator of the GPU's machine: every operation gives what it promises, and every planted fault is caught.
#[path = "emulated/mod.rs"]
mod emulated;
use emulated::{Buffer, Emulated, Launch, selftest};

/// Runs the self-test; returns what it wrote and the counters.
fn run(kernels: Emulated, input: &[u32], ctas: u32, how: Launch) -> (Vec<u32>, Vec<u32>) {
    let words = Buffer::of(input);
    let out = Buffer::zeroed(selftest::WRITTEN * selftest::THREADS * 4);
    let counters = Buffer::zeroed((4 + ctas as usize) * 4);
    let args = selftest::Args { out: out.pointer(), input: words.pointer(), counters: counters.pointer() };
    kernels.launch("ckv_selftest", how, &args, &[&words, &out, &counters]).expect("the self-test runs");
    (out.read(), counters.read())
}

#[test]
fn every_operation_of_the_machine_is_emulated() {
    let (mut executed, mut wrong, mut caught, mut planted) = (0, Vec::new(), 0, 0);
    for bulk in [1, 0] {
        let kernels = Emulated::build("emulate/selftest.cu", &[("CKV_BULK", bulk)]).expect("the self-test compiles");
        for seed in 0..12u64 {
            let (ctas, input) = (1 + seed as u32 % 4, selftest::input(seed));
            let plain = Launch::new(ctas, selftest::THREADS as u32, selftest::SHARED).seed(seed);
            for how in [plain, plain.truncating(), plain.noisy()] {
                let (mut out, counters) = run(kernels, &input, ctas, how);
                wrong.extend(selftest::judge(&input, &out, &counters, ctas as usize));
                executed += out.len();
                // A flipped bit of any section is seen: a high one where there is a bound, one of the low 16 elsewhere.
                for section in 0..if seed == 0 { selftest::WRITTEN } else { 0 } {
                    let at = section * selftest::THREADS + 17;
                    let flip =
                        if selftest::SECTIONS[section].1 == selftest::Same::Bound { 0x4000_4000 } else { 0x4000 };
                    out[at] ^= flip;
                    planted += 1;
                    caught += selftest::judge(&input, &out, &counters, ctas as usize).len().min(1);
                    out[at] ^= flip;
                }
            }
        }
    }
    println!("GATE emulator executed={executed} failed={} controls={caught}/{planted} seed=0x0", wrong.len());
    assert!(wrong.is_empty(), "{} wrong, first {:#?}", wrong.len(), &wrong[..wrong.len().min(20)]);
    assert_eq!(caught, planted, "a flipped bit was not seen");
}

#[test]
fn the_switches_change_only_what_they_name() {
    let kernels = Emulated::build("emulate/selftest.cu", &[("CKV_BULK", 1)]).expect("the self-test compiles");
    let plain = Launch::new(1, selftest::THREADS as u32, selftest::SHARED);
    let input = selftest::input(3);
    let (reference, _) = run(kernels, &input, 1, plain);
    let changed = |how: Launch| -> Vec<&str> {
        let (out, _) = run(kernels, &input, 1, how);
        let section = |s: usize| s * selftest::THREADS..(s + 1) * selftest::THREADS;
        (0..selftest::WRITTEN)
            .filter(|s| out[section(*s)] != reference[section(*s)])
            .map(|s| selftest::SECTIONS[s].0)
            .collect()
    };
    assert_eq!(changed(plain.seed(9)), Vec::<&str>::new(), "the order of threads shows");
    let rounded: Vec<String> = (0..4).map(|i| format!("mma_f16 rounded {i}")).collect();
    assert_eq!(changed(plain.truncating()), rounded);
    assert_eq!(changed(plain.seed(9).noisy()), ["ex2", "lg2", "rcp"]);
}

/// The twin of `CkvFaultsArgs`.
#[repr(C)]
#[derive(Clone, Copy)]
struct Faults {
    out: u64,
    input: u64,
    fault: u32,
}

#[test]
fn every_planted_fault_is_caught() {
    let kernels = Emulated::build("emulate/faults.cu", &[]).expect("the faults compile");
    let input: Vec<u32> = (0..64).map(|i| 0x0100_0000 + i).collect();
    let run = |fault: u32, block: u32, seed: u64| {
        let (words, out) = (Buffer::of(&input), Buffer::zeroed(256));
        let args = Faults { out: out.pointer(), input: words.pointer(), fault };
        kernels
            .launch("ckv_faults", Launch::new(1, block, 1024).seed(seed), &args, &[&words, &out])
            .map(|()| out.read::<u32>())
    };
    // Per fault: what the error must say, or that the result must be poison.
    const POISON: &str = "";
    let faults = [
        (1, "divergence: at "),
        (2, "divergence"),
        (3, "ldg of 4 bytes out of bounds"),
        (4, "deadlock"),
        (5, "misaligned shared address"),
        (6, "cp_async16 of 16 bytes out of bounds of shared memory"),
        (7, "outside its 1024 bytes of dynamic shared memory"),
        (8, "without fence_barrier_init"),
        (9, "not initialised"),
        (10, "deadlock"),
        (11, "1 bulk copies in flight at its end"),
        (12, POISON),
        (13, POISON),
        (14, POISON),
        (15, POISON),
        (16, "spins without end"),
        (17, "access to misaligned address"),
    ];
    let (mut caught, mut clean) = (0, 0);
    for seed in 0..6u64 {
        clean += usize::from(run(0, 64, seed).expect("without a fault it runs") == input);
        for (fault, says) in faults {
            let met = match run(fault, 64, seed) {
                Err(error) => !says.is_empty() && error.contains(says),
                Ok(out) => says.is_empty() && out.contains(&u32::MAX),
            };
            assert!(met, "fault {fault}, seed {seed}: {:?}", run(fault, 64, seed));
            caught += 1;
        }
    }
    let planted = 6 * faults.len();
    println!("GATE emulator-faults executed={planted} failed={} controls={caught}/{planted} seed=0x0", 6 - clean);
    assert_eq!((caught, clean), (planted, 6));
}

#[test]
fn a_launch_that_does_not_fit_is_refused() {
    let kernels = Emulated::build("emulate/faults.cu", &[]).expect("the faults compile");
    let (words, out) = (Buffer::of(&[7u32; 64]), Buffer::zeroed(256));
    let args = Faults { out: out.pointer(), input: words.pointer(), fault: 0 };
    let try_it = |name: &str, how: Launch| kernels.launch(name, how, &args, &[&words, &out]).expect_err("refused");
    assert!(try_it("ckv_nothing", Launch::new(1, 64, 0)).contains("no kernel"));
    assert!(try_it("ckv_faults", Launch::new(1, 48, 0)).contains("multiple of 32"));
    assert!(try_it("ckv_faults", Launch::new(1, 64, 1 << 20)).contains("shared memory"));
    let error = kernels.launch("ckv_faults", Launch::new(1, 64, 0), &7u64, &[&words]).expect_err("refused");
    assert!(error.contains("bytes of arguments"), "{error}");
    // A plain store behind a buffer is found by its guards.
    let short = Buffer::zeroed(128);
    let args = Faults { out: short.pointer(), ..args };
    let error = kernels.launch("ckv_faults", Launch::new(1, 64, 0), &args, &[&words, &short]).expect_err("found");
    assert!(error.contains("wrote outside buffer 1"), "{error}");
    assert!(Emulated::build("emulate/faults.cu", &[("args", 1)]).is_err(), "a compiler error is an error");
}
