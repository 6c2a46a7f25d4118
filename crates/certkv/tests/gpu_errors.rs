//! What a program gets on a machine without a GPU: typed errors, and nothing else.
use certkv::Error;
use certkv::gpu::{Compiler, CudaError, Gpu, GpuCache, GpuConfig};
use certkv::{Chunk, Geometry, Policy, Seed000, SequenceId};

/// The GPU of this machine; without one, the error is looked at.
fn gpu() -> Option<Gpu> {
    match Gpu::open(0) {
        Ok(gpu) => Some(gpu),
        Err(e) => {
            let driverless = matches!(e, CudaError::NoDriver | CudaError::NoDevice { .. });
            let unusable = matches!(e, CudaError::DriverTooOld { .. } | CudaError::UnsupportedArch { .. });
            assert!(driverless || unusable, "{e:?}");
            assert!(Error::from(e).to_string().starts_with("device: "));
            None
        }
    }
}

#[test]
fn a_gpu_that_is_not_there_is_a_typed_error() {
    gpu();
    assert!(Gpu::open(1 << 20).is_err());
    assert_eq!(
        Error::from(CudaError::NoDriver).to_string(),
        "device: no CUDA driver library (libcuda) on this machine"
    );
}

/// Refused before any memory is taken or any kernel looked for; needs a GPU only because a cache is made on one.
#[test]
fn bad_configurations_are_refused_by_field() {
    let Some(gpu) = gpu() else { return };
    let geometry = Geometry::new(1, 4, 2, 64).unwrap();
    let good = GpuConfig::new(geometry, 1024);
    let bad = [
        ("max_context", GpuConfig { max_context: 2048, ..good.clone() }),
        ("max_sequences", GpuConfig { max_sequences: 0, ..good.clone() }),
        ("threads", GpuConfig { threads: 0, ..good.clone() }),
    ];
    let compiler = Compiler::new().without_nvrtc();
    for (name, config) in bad {
        match GpuCache::new(&gpu, &compiler, config) {
            Err(Error::Config { field, .. }) => assert_eq!(field, name),
            other => panic!("{name}: {other:?}"),
        }
    }
    let seed = GpuConfig { policy: Policy::Seed000(Seed000::default()), ..good.clone() };
    assert!(matches!(GpuCache::new(&gpu, &compiler, seed), Err(Error::Policy(_))));
    let small = GpuConfig { device_budget: 1 << 10, ..good.clone() };
    assert!(matches!(GpuCache::new(&gpu, &compiler, small), Err(Error::Budget(_))));
    assert!(matches!(GpuCache::new(&gpu, &compiler, good), Err(Error::Kernels(_))));
    assert_eq!(gpu.usage().device_bytes, 0, "nothing is held after a refusal");
}

#[test]
fn steps_check_their_arguments_before_anything_is_enqueued() {
    let Some(gpu) = gpu() else { return };
    let mut config = GpuConfig::new(Geometry::new(2, 4, 2, 64).unwrap(), 256);
    config.max_sequences = 2;
    let mut cache = match GpuCache::new(&gpu, &Compiler::new(), config) {
        Ok(cache) => cache,
        Err(Error::Kernels(_)) => return,
        Err(e) => panic!("{e}"),
    };
    let a = cache.create().unwrap();
    let b = cache.create().unwrap();
    assert!(matches!(cache.create(), Err(Error::TooManySequences { max_sequences: 2 })));
    let gone = SequenceId { slot: 1, generation: 77 };
    let chunk = |sequence, tokens| Chunk { sequence, tokens };
    assert!(matches!(cache.begin(&[]), Err(Error::Shape { .. })));
    assert!(matches!(cache.begin(&[chunk(a, 0)]), Err(Error::Shape { .. })));
    assert!(matches!(cache.begin(&[chunk(gone, 1)]), Err(Error::UnknownSequence(_))));
    assert!(matches!(cache.begin(&[chunk(a, 1), chunk(a, 1)]), Err(Error::BusySequence(_))));
    assert!(matches!(cache.begin(&[chunk(a, 257)]), Err(Error::TooLong { .. })));
    assert_eq!(cache.live_pages(), 0);
    let (kv, q) = (vec![0.5f32; 2 * 128], vec![0.1f32; 2 * 256]);
    let mut out = vec![0.0f32; 2 * 256];
    let mut step = cache.begin(&[chunk(a, 1), chunk(b, 1)]).unwrap();
    assert!(matches!(step.attend(0, &q), Err(Error::Order { layer: 0, .. })));
    assert!(matches!(step.append(0, &kv[1..], &kv), Err(Error::Shape { argument: "keys", .. })));
    assert!(matches!(step.append(2, &kv, &kv), Err(Error::Layer { layer: 2, layers: 2 })));
    let mut wild = kv.clone();
    wild[130] = f32::INFINITY;
    assert!(matches!(step.append(0, &kv, &wild), Err(Error::NonFinite { argument: "values", token: 1, element: 2 })));
    step.append(0, &kv, &kv).unwrap();
    assert!(matches!(step.append(0, &kv, &kv), Err(Error::Order { layer: 0, .. })));
    assert!(matches!(step.outputs(0, &mut out, &mut []), Err(Error::Order { layer: 0, .. })));
    step.attend(0, &q).unwrap();
    step.outputs(0, &mut out, &mut []).unwrap();
    assert!(out.iter().all(|x| (x - 0.5).abs() < 1e-5));
    assert!(matches!(step.finish(), Err(Error::Order { layer: 1, .. })));
    assert_eq!((cache.len(a).unwrap(), cache.live_pages()), (0, 0));
    cache.release(a).unwrap();
    assert!(matches!(cache.len(a), Err(Error::UnknownSequence(_))));
    assert!(matches!(cache.truncate(b, 1), Err(Error::Length { asked: 1, len: 0 })));
}
