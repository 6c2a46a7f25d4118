//! What pages cost: `cargo bench -p certkv-page --bench pages`. `benches/peers` runs the same things beside a peer.
mod workload;

use certkv_page::PageAllocator;
use criterion::{BatchSize, Criterion, Throughput};
use std::hint::black_box;
use workload::{LONG, Ours, Requests, prompt};

fn one_page(c: &mut Criterion) {
    let mut group = c.benchmark_group("allocate and free a page");
    for threads in [1, 2] {
        group.bench_function(format!("{threads} threads"), |b| {
            let pages = PageAllocator::create(4096).unwrap();
            b.iter_custom(|n| workload::on_threads(threads, || (0..n).for_each(|_| workload::one_page(&pages))));
        });
    }
}

fn long_sequences(c: &mut Criterion) {
    let mut group = c.benchmark_group("128K tokens in blocks of 64");
    let tokens = prompt(1, LONG);
    let ours = Ours::new(64, 3 * LONG / 64, LONG);
    let table = ours.filled(LONG);
    group.bench_function("fork, and release it", |b| b.iter(|| ours.release(table.fork().unwrap().0)));
    group.bench_function("truncate to half", |b| {
        b.iter_batched_ref(
            || table.fork().unwrap().0,
            |fork| ours.retire(black_box(fork.truncate(LONG / 2 + 1).unwrap())),
            BatchSize::SmallInput,
        );
    });
    ours.publish(&tokens, &table);
    group.throughput(Throughput::Elements(LONG as u64));
    group.bench_function("longest prefix, and release it", |b| b.iter(|| ours.look_up(black_box(&tokens))));
}

fn requests(c: &mut Criterion) {
    let mut group = c.benchmark_group("requests under eviction");
    group.bench_function("one", |b| {
        let (ours, mut requests) = (Ours::new(16, 2048, 4096), Requests::new());
        b.iter(|| ours.serve(&requests.next_prompt()));
    });
}

fn main() {
    let mut criterion = Criterion::default().configure_from_args();
    one_page(&mut criterion);
    long_sequences(&mut criterion);
    requests(&mut criterion);
    criterion.final_summary();
}
