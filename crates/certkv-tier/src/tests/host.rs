//! The pool of originals: rows arrive where the layout says, and nowhere else.
use super::world::{World, page, tag};
use crate::{MoveCause, RowStore, Side};
use certkv_device::{DeviceError, Mode};

#[test]
fn rows_of_one_layer_are_stored_and_nothing_else() {
    for mode in [Mode::Eager, Mode::Adversarial { seed: 9 }] {
        let world = World::new(mode, 1, 1).unwrap();
        world.write_tail(page(1)).unwrap();
        let written = world.readers[0].record().unwrap();
        let store = RowStore { tail: 1, page: 2, layer: 1, rows: 1..3, tag: Some(tag(page(1))) };
        let fence = world.originals.store(&world.stores, &written, &world.tails, &[store]).unwrap();
        fence.synchronize().unwrap();
        let host = world.device.host();
        let (stored, tail) = (world.originals.arena().read(2, &host).unwrap(), world.tails.read(1, &host).unwrap());
        let layout = world.originals.layout();
        let mut copied = vec![false; layout.page_bytes() / 2];
        for head in 0..layout.kv_heads() {
            for side in [Side::Key, Side::Value] {
                copied[layout.row_words(1, head, side, 1..3)].fill(true);
            }
        }
        for (i, copied) in copied.into_iter().enumerate() {
            assert_eq!(stored.words()[i], if copied { tail.words()[i] } else { 0 }, "word {i}");
        }
        assert_eq!(stored.tag(), tag(page(1)));
    }
}

#[test]
fn impossible_rows_are_named_and_the_rest_is_stored() {
    let world = World::new(Mode::Eager, 1, 1).unwrap();
    world.write_tail(page(0)).unwrap();
    let written = world.readers[0].record().unwrap();
    let good = RowStore { tail: 0, page: 0, layer: 0, rows: 0..4, tag: None };
    let items = [
        RowStore { rows: 3..5, ..good.clone() },
        good.clone(),
        RowStore { layer: 2, ..good.clone() },
        RowStore { page: 99, ..good.clone() },
        RowStore { tag: Some(1), ..good },
    ];
    let error = world.originals.store(&world.stores, &written, &world.tails, &items).unwrap_err();
    let [(0, rows), (2, layer), (3, slot), (4, content)] = error.not_moved[..] else { panic!("{error:?}") };
    for cause in [rows, layer] {
        assert!(matches!(cause, MoveCause::Device(DeviceError::OutOfRange { .. })));
    }
    assert!(matches!(slot, MoveCause::Device(DeviceError::NoSuchSlot { slot: 99, .. })));
    assert!(matches!(content, MoveCause::Device(DeviceError::WrongContent { .. })));
    assert_eq!(error.fence.map(|f| f.completed()), Some(Ok(true)));
}
