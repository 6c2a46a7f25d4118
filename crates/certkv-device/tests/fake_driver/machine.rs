//! Machines that are not what we need: drivers without one of their functions, too old, or without a GPU.
use crate::fake_cuda::sweep::Ran;
use crate::fake_cuda::{Fake, build, driver_functions, driver_sources, folder};
use crate::{alone, workload};
use certkv_device::cuda::{CudaError, DeviceBuffer, Gpu, GpuStream, PinnedBuffer, Priority};
use std::num::NonZeroUsize;
use std::path::Path;
use std::process::Command;
use std::{env, fs};

/// Functions that a driver may lack.
const OPTIONAL: [&str; 3] = ["cuFuncGetParamInfo", "cuEventElapsedTime_v2", "cuMemcpyBatchAsync_v2"];
/// Tell a child which driver to load and what it lacks.
const LIBRARY: &str = "CERTKV_TEST_FAKE_LIBRARY";
const LACKS: &str = "CERTKV_TEST_FAKE_LACKS";

/// The library with one of its names misspelt: nobody finds the function.
fn without(library: &[u8], name: &str) -> Vec<u8> {
    let mut library = library.to_vec();
    let name = format!("\0{name}\0");
    let at = library.windows(name.len()).position(|bytes| bytes == name.as_bytes()).expect("the table of names");
    library[at + 1] = b'x';
    library
}

#[test]
fn a_driver_without_a_function_is_an_error_that_names_it() {
    let folder = folder("fake-cuda-lacking");
    let (whole, lacking) = (folder.join("whole.so"), folder.join("libcuda.so"));
    build("libcuda.so", &driver_sources(), &whole, &[]);
    let whole = fs::read(&whole).expect("the library");
    let program = env::current_exe().expect("this test");
    let functions = driver_functions();
    for name in &functions {
        fs::write(&lacking, without(&whole, name)).expect("a folder of ours");
        // A table is loaded once in a process.
        let mut child = Command::new(&program);
        child.args(["--exact", "machine::a_child_looks_at_its_driver", "--ignored", "--nocapture"]);
        let output = child.env(LIBRARY, &lacking).env(LACKS, name).output().expect("this test again");
        let said = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success() && said.contains("looked"), "without {name}: {said}");
    }
    fs::remove_dir_all(&folder).expect("what was made can be removed");
    println!("GATE fake-driver-symbols executed={} failed=0 controls=0/0 seed=0x0", functions.len());
}

#[test]
#[ignore = "half of the test above, which runs it in a process of its own"]
fn a_child_looks_at_its_driver() {
    let library = env::var_os(LIBRARY).expect("the parent says");
    let lacks = env::var(LACKS).expect("the parent says");
    let fake = Fake::at(Path::new(&library));
    workload::declare(&fake);
    let Ran { result, unreleased } = workload::run();
    let error = result.err().and_then(|(_, error)| error);
    let missing = |symbol| Some(CudaError::MissingSymbol { library: "CUDA driver", symbol });
    match OPTIONAL.into_iter().find(|name| *name == lacks) {
        // Times are for benchmarks; the others have something in their place.
        Some("cuEventElapsedTime_v2") => assert_eq!(error, missing("cuEventElapsedTime_v2")),
        Some(_) => assert_eq!(error, None),
        None => {
            let named = matches!(&error, Some(CudaError::MissingSymbol { symbol, .. }) if *symbol == lacks);
            assert!(named, "without {lacks}: {error:?}");
            assert_eq!(
                (fake.calls(), Gpu::open(0).is_err()),
                (0, true),
                "nothing is called of a driver that lacks something"
            );
        }
    }
    assert_eq!((unreleased, fake.live(), fake.violations()), (0, [0; 8], 0));
    println!("looked");
}

#[test]
fn machines_that_will_not_do_are_refused_with_the_reason() {
    let (fake, _turn) = alone();
    fake.reset();
    let open = |devices, version, (major, minor): (i32, i32), ordinal| {
        fake.machine(devices, version, major, minor);
        Gpu::open(ordinal).map(|gpu| gpu.info().arch_number())
    };
    assert_eq!(open(1, 13_000, (9, 0), 0), Ok(90));
    assert_eq!(open(2, 12_000, (8, 0), 1), Ok(80));
    assert_eq!(open(0, 13_000, (9, 0), 0), Err(CudaError::NoDevice { ordinal: 0, count: 0 }));
    assert_eq!(open(2, 13_000, (9, 0), 2), Err(CudaError::NoDevice { ordinal: 2, count: 2 }));
    assert_eq!(open(1, 11_080, (9, 0), 0), Err(CudaError::DriverTooOld { found: 11_080, needs: 12_000 }));
    assert_eq!(open(1, 13_000, (7, 5), 0), Err(CudaError::UnsupportedArch { found: 75, needs: 80 }));
    for (code, expected) in [(100, CudaError::NoDevice { ordinal: 0, count: 0 }), (34, CudaError::NoDriver)] {
        fake.reset();
        fake.fail(1, code, false);
        assert_eq!(Gpu::open(0).map(drop), Err(expected), "cuInit gives {code}");
    }
    assert_eq!((fake.live(), fake.violations()), ([0; 8], 0));
}

/// What belongs to one GPU is refused by another before the driver is asked.
#[test]
fn two_gpus_are_kept_apart() {
    let (fake, _turn) = alone();
    fake.reset();
    fake.machine(2, 13_000, 9, 0);
    let [one, two] = [0, 1].map(|ordinal| Gpu::open(ordinal).expect("the fake"));
    let (here, there) = (DeviceBuffer::new(&one, 64).expect("memory"), DeviceBuffer::new(&two, 64).expect("memory"));
    let stream = GpuStream::new(&two, Priority::Normal).expect("a stream");
    let calls = fake.calls();
    assert_eq!(here.fill(&stream, 0, 64, 0), Err(CudaError::ForeignStream));
    assert_eq!(here.copy_from(&stream, 0, &there, 0, 64), Err(CudaError::Foreign { argument: "source buffer" }));
    assert_eq!(fake.calls(), calls);
    // SAFETY: a live stream, which outlives the call.
    let borrowed = unsafe { GpuStream::borrow(&one, stream.as_raw()) };
    assert_eq!(borrowed.map(drop), Err(CudaError::ForeignStream));
    assert_eq!(fake.violations(), 0);
    let wrong = one.check_device_pointer("query", there.address(), 16);
    assert_eq!(wrong, Err(CudaError::WrongMemorySpace { argument: "query", found: "memory of another GPU" }));
}

/// Memory that is used up is an error of its own, and leaves nothing behind; less of it can be had in the same process.
#[test]
fn limits_of_memory_are_typed_errors() {
    let (fake, _turn) = alone();
    fake.reset();
    fake.limit_device(1 << 20);
    fake.limit_pinned(1 << 20);
    let gpu = Gpu::open(0).expect("the fake");
    let held = [DeviceBuffer::new(&gpu, 1 << 19).expect("half"), DeviceBuffer::new(&gpu, 1 << 19).expect("the rest")];
    assert_eq!(DeviceBuffer::new(&gpu, 1).map(drop), Err(CudaError::OutOfDeviceMemory { bytes: 1 }));
    drop(held);
    assert!(DeviceBuffer::new(&gpu, 1 << 20).is_ok());
    let pin = |bytes| PinnedBuffer::new(&gpu, bytes, NonZeroUsize::MIN);
    let refused = CudaError::OutOfPinnedMemory { bytes: 1 << 21, call: "cuMemHostRegister_v2", code: 2 };
    assert_eq!(pin(1 << 21).map(drop), Err(refused));
    assert_eq!((gpu.usage(), fake.live()[1]), (Default::default(), 0));
    assert!(pin(1 << 20).is_ok());
    drop(gpu);
    assert_eq!((fake.live(), fake.reaped(), fake.violations()), ([0; 8], [0; 8], 0));
}
