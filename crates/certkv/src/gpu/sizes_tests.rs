use super::*;
use certkv_core::Geometry;
use certkv_kernel::cuda::Arch;

fn sizes(max_tokens: usize, max_context: usize, max_sequences: usize) -> Result<Sizes, Error> {
    let geometry = Geometry::new(3, 8, 2, 128).unwrap();
    let format = "k8-v4g32-b32".parse().unwrap();
    let config = GpuConfig { max_context, max_sequences, ..GpuConfig::new(geometry, max_tokens) };
    let config = config.with_format(format).with_scratch(0.125);
    let layouts = config.layouts()?;
    let variant = Variant::new(layouts[0].clone(), 4, Arch::Sm90a).unwrap();
    Sizes::new(&config, &layouts, &variant, 132)
}

#[test]
fn sections_are_aligned_apart_and_as_long_as_their_tables() {
    let s = sizes(1000, 700, 5).unwrap();
    let [group] = &s.groups[..] else { panic!("{:?}", s.groups) };
    assert_eq!((s.stride, group.packed_pages, group.host_pages, s.tail_slots), (22, 32, 37, 10));
    let (t, own) = (&s.tables, &group.tables);
    let lens = [5, 5, 5, 5, 2, 110, 110, 220];
    let all = [&t.before, &t.after, &own.tails, &t.batch, &t.count, &own.packed, &own.hosts, &own.exact];
    let mut end = 0;
    for (range, len) in all.into_iter().zip(lens) {
        assert!(range.start % 64 == 0 && range.start >= end && range.len() == len, "{t:?}");
        end = range.end;
    }
    assert_eq!(s.of_layer[1].page_bytes, 2 * s.of_layer[1].record_bytes);
    assert_eq!(s.original_bytes, 2 * 2 * 32 * 128 * 2);
    let r = s.result_sections();
    for range in [&r.repaired, &r.outputs] {
        assert_eq!(range.start % 256, 0);
    }
    assert!(r.errors.end <= r.repaired.start && r.dense.end <= r.first.start && r.second.end <= r.outputs.start);
    let m = &s.memory;
    let all =
        [&m.sides, &m.resident, &m.keys[0], &m.keys[1], &m.values[0], &m.values[1], &m.hands, &m.queue, &m.copies];
    let lens = [2 * 4 * 64, 2 * 64, 8, 8, 8, 8, 2, 2, 64 * 8];
    let mut end = 0;
    for (range, len) in all.into_iter().zip(lens) {
        assert!(range.start % 64 == 0 && range.start >= end && range.len() == len, "{m:?}");
        end = range.end;
    }
    assert!(m.words >= end && m.words.is_multiple_of(64));
    assert!(s.result_bytes() >= r.outputs.end && s.result_bytes() >= s.original_bytes);
}

#[test]
fn addresses_of_pages_do_not_overlap_between_layers() {
    let s = sizes(1000, 1000, 5).unwrap();
    assert_eq!(s.host_at(1, 0), s.host_at(0, s.groups[0].host_pages as u32 - 1) + s.original_bytes);
    let tail = s.original_bytes + 2 * 4 * s.kv_heads * s.block;
    assert_eq!(s.tail_at(2, 0) - s.tail_at(1, 0), s.tail_slots * tail);
    assert_eq!(s.tails_at(2).end + s.tail_slots * (tail - s.original_bytes), s.tail_bytes().unwrap());
    assert_eq!(s.packed_at(2, s.groups[0].packed_pages as u32 - 1) + s.of_layer[2].page_bytes, s.packed_bytes());
    assert_eq!(s.centre_at(2, 4) + 4 * 2 * 128, 3 * s.centre_bytes());
}

#[test]
fn layers_of_different_formats_lie_one_behind_the_other() {
    let geometry = Geometry::new(3, 8, 2, 128).unwrap();
    let formats = ["k8-v4g64-b64", "k8-v4g64-b64-r8.4", "f16-v6g64-b64"].map(|f| f.parse().unwrap());
    let mut config = GpuConfig { max_sequences: 5, formats: formats.to_vec(), ..GpuConfig::new(geometry, 6400) };
    let layouts = config.layouts().unwrap();
    let variant = Variant::new(layouts[0].clone(), 4, Arch::Sm90a).unwrap();
    let s = Sizes::new(&config, &layouts, &variant, 132).unwrap();
    for (layer, layout) in layouts.iter().enumerate() {
        let own = &s.of_layer[layer];
        assert_eq!((own.record_bytes, own.page_bytes), (layout.bytes, 2 * layout.bytes));
        let end = s.packed_at(layer, s.groups[0].packed_pages as u32 - 1) + own.page_bytes;
        assert_eq!(end, if layer == 2 { s.packed_bytes() } else { s.packed_at(layer + 1, 0) });
        // Residual planes need no scratch.
        assert_eq!(own.slots == [0, 0], layer == 1);
    }
    assert_eq!(s.slot_at(2, 0), s.slot_at(1, 0));
    assert_eq!(s.slot_at(2, 2 * config.scratch_keys), s.scratch_bytes());
    config.formats[1] = "k8-v4g64-b32".parse().unwrap();
    assert!(matches!(config.layouts(), Err(Error::Config { field: "formats", .. })));
    config.formats.clear();
    assert!(matches!(config.layouts(), Err(Error::Config { field: "formats", .. })));
}

#[test]
fn what_no_machine_holds_is_an_error() {
    assert!(matches!(sizes(0, 1, 1), Err(Error::Config { field: "max_context", .. })));
    assert!(matches!(sizes(100, 101, 1), Err(Error::Config { field: "max_context", .. })));
    assert!(matches!(sizes(1 << 31, 1 << 31, 4096), Ok(_) | Err(Error::Config { .. })));
    assert!(matches!(sizes(1 << 40, 100, 4), Err(Error::Config { field: "max_tokens", .. })));
    assert!(matches!(sizes(100, 100, 5000), Err(Error::Config { field: "max_sequences", .. })));
}
