//! Whether the fake sees what a real driver need not survive: each misuse must be counted, and nothing that is no misuse.
use crate::alone;
use crate::fake_cuda::Fake;
use certkv_device::cuda::{DeviceBuffer, Gpu, GpuStream, PinnedBuffer, Priority};
use std::ffi::{CStr, c_int};
use std::num::NonZeroUsize;

/// A function of the driver that takes a handle or an address.
fn call(fake: &Fake, name: &CStr, argument: u64) -> c_int {
    // SAFETY: the functions named below take one argument of 64 bits and return a code; the fake looks every handle up before it is used.
    let function: extern "C" fn(u64) -> c_int = unsafe { std::mem::transmute(fake.symbol(name)) };
    function(argument)
}

/// A misuse, on a GPU with a stream; what it drops or breaks is its own.
type Misuse = fn(&Fake, &Gpu, &GpuStream);

fn buffer(gpu: &Gpu) -> DeviceBuffer {
    DeviceBuffer::new(gpu, 64).expect("memory")
}

const MISUSES: [(&str, Misuse); 7] = [
    ("a stream is destroyed twice", |fake, gpu, _| {
        let raw = GpuStream::new(gpu, Priority::Normal).expect("a stream").as_raw();
        call(fake, c"cuStreamDestroy_v2", raw as u64);
    }),
    ("memory is freed twice", |fake, gpu, _| {
        let address = buffer(gpu).address();
        call(fake, c"cuMemFree_v2", address);
    }),
    ("a handle that is none", |fake, _, _| {
        call(fake, c"cuStreamSynchronize", 0xdead_0000);
    }),
    ("no context is current", |fake, gpu, _| {
        fake.empty_stack();
        call(fake, c"cuMemFree_v2", buffer(gpu).address());
    }),
    ("somebody writes behind an allocation", |_, gpu, _| {
        let memory = buffer(gpu);
        // SAFETY: the fake keeps bytes of its own behind every allocation, for this.
        unsafe { (memory.address() as *mut u8).add(memory.len()).write(0) };
    }),
    ("a recording outlives its memory", |_, gpu, stream| {
        let memory = buffer(gpu);
        let capture = stream.begin_capture().expect("a recording");
        memory.fill(stream, 0, 64, 1).expect("recorded");
        let run = capture.end().expect("a graph").instantiate().expect("a run");
        drop(memory);
        // SAFETY: broken on purpose: the buffer is gone. The fake looks before it writes.
        unsafe { run.launch(stream) }.expect("launched");
    }),
    ("pinned memory is dropped under a copy", |fake, gpu, stream| {
        fake.defer(true);
        let (memory, pinned) = (buffer(gpu), PinnedBuffer::new(gpu, 64, NonZeroUsize::MIN).expect("memory"));
        // SAFETY: broken on purpose: the copy waits, and the pinned memory goes first. The fake asks what is registered before it copies,
        // and the address is not taken again before that.
        unsafe { memory.read_pinned(stream, 0, &pinned, 0, 64) }.expect("enqueued");
        drop(pinned);
    }),
];

#[test]
fn misuse_is_counted() {
    let (fake, _turn) = alone();
    let mut caught = 0;
    for (what, misuse) in MISUSES {
        fake.reset();
        let gpu = Gpu::open(0).expect("the fake");
        let stream = GpuStream::new(&gpu, Priority::Normal).expect("a stream");
        // A context for calls that bypass the library.
        let held = call(fake, c"cuCtxPushCurrent_v2", context(fake, &stream));
        assert_eq!((held, fake.violations()), (0, 0), "{what}: before it");
        misuse(fake, &gpu, &stream);
        stream.synchronize().expect("nothing is lost");
        caught += usize::from(fake.violations() == 1);
        assert_eq!(fake.violations(), 1, "{what}: {}", fake.last_violation());
        fake.empty_stack();
    }
    println!("GATE fake-driver-misuse executed={0} failed=0 controls={caught}/{0} seed=0x0", MISUSES.len());
}

/// The context of a stream.
fn context(fake: &Fake, stream: &GpuStream) -> u64 {
    // SAFETY: as the driver declares them.
    let of: extern "C" fn(u64, *mut u64) -> c_int = unsafe { std::mem::transmute(fake.symbol(c"cuStreamGetCtx")) };
    // SAFETY: as above.
    let retain: extern "C" fn(*mut u64, c_int) -> c_int =
        unsafe { std::mem::transmute(fake.symbol(c"cuDevicePrimaryCtxRetain")) };
    let mut context = 0;
    assert_eq!(retain(&raw mut context, 0), 0);
    assert_eq!(call(fake, c"cuCtxPushCurrent_v2", context), 0);
    assert_eq!(of(stream.as_raw() as u64, &raw mut context), 0);
    context
}
