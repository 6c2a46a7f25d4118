//! Calibrated keys of a cache on a GPU: accepted where kernels code them, refused by a status where not.
use crate::cache::{Cache, LAYERS, message};
use crate::calls::named;
use crate::kernels::{self, DIM, GROUP, KV_HEADS};
use crate::{WIDTH, alone, append};
use certkv::calibration::{Calibration, Heads, Meter, Rule, Source};
use certkv::scales::{ScaleHeads, Scales};
use certkv::spherical::{Codebooks, HeadBooks, KeyHeads, Training};
use certkv::{Pairing, Tier};
use certkv_c::certkv_status::*;
use certkv_c::*;
use core::ptr;

const MODEL: [u8; 32] = [7; 32];

/// The handle of a file.
struct Handle(*mut certkv_calibration);

impl Handle {
    fn of(bytes: &[u8]) -> Self {
        let (mut handle, n) = (ptr::null_mut(), bytes.len() as u64);
        // SAFETY: as many bytes, 32 of a digest, and a local.
        let read = unsafe { certkv_calibration_read(bytes.as_ptr().cast(), n, MODEL.as_ptr(), &mut handle) };
        assert_eq!(read, CERTKV_OK, "{}", message());
        Self(handle)
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        // SAFETY: a live handle.
        assert_eq!(unsafe { certkv_calibration_destroy(self.0) }, CERTKV_OK);
    }
}

fn schemes(layers: usize) -> Handle {
    let (q_heads, kv_heads, head_dim) = (GROUP * KV_HEADS, KV_HEADS, DIM);
    let heads = Heads { layers, q_heads, kv_heads, head_dim, rotary: DIM, pairing: Pairing::Half };
    let (mut meter, tokens) = (Meter::new(heads).unwrap(), Meter::LEAST_TOKENS as usize);
    let rows = |width: usize| (0..tokens * width).map(|i| (i % 13) as f32 / 4.0 - 1.0).collect::<Vec<_>>();
    (0..layers).for_each(|layer| meter.add(layer, &rows(WIDTH * GROUP), &rows(WIDTH)).unwrap());
    let (seen, tokens) = meter.finish().unwrap();
    let source = Source { model: MODEL, text: [0; 32], tokens };
    Handle::of(&Calibration::choose(heads, source, Rule::new(4 * heads.pairs()), seen).unwrap().to_bytes())
}

fn directions() -> Handle {
    let (layers, tier) = (LAYERS as usize, Tier::B1);
    let heads = KeyHeads { layers, kv_heads: KV_HEADS, head_dim: DIM };
    let mut words = vec![0.0; DIM * tier.words()];
    words.chunks_exact_mut(tier.group()).enumerate().for_each(|(i, word)| word[i % tier.group()] = 1.0);
    let books = vec![HeadBooks { words, loss: vec![1.0; DIM / tier.group()] }; layers * KV_HEADS];
    let source = Source { model: MODEL, text: [0; 32], tokens: 4096 };
    Handle::of(&Codebooks::new(heads, source, tier, Training::new(1), books).unwrap().to_bytes())
}

/// Fixed scales are taken where a format has one scale per block; the count is the device's.
#[test]
fn fixed_scales_are_taken() {
    let (_fake, config, _turn) = alone();
    let scales = |kv_heads: usize| {
        let heads = ScaleHeads { layers: LAYERS as usize, kv_heads, head_dim: DIM };
        let all = || vec![1.0; LAYERS as usize * kv_heads * DIM / 16];
        let source = Source { model: MODEL, text: [0; 32], tokens: 9 };
        let bytes = Scales::new(heads, source, 100.0, all(), all()).unwrap().to_bytes();
        let mut handle = ptr::null_mut();
        // SAFETY: as many bytes, 32 of a digest, and a local.
        let read =
            unsafe { certkv_scales_read(bytes.as_ptr().cast(), bytes.len() as u64, MODEL.as_ptr(), &mut handle) };
        assert_eq!(read, CERTKV_OK, "{}", message());
        handle
    };
    let (mine, other) = (scales(KV_HEADS), scales(KV_HEADS + 1));
    let fixed = certkv_config { format: c"p8-p8-b16".as_ptr(), scales: mine, ..config };
    let mut cache = ptr::dangling_mut();
    for (config, status, word) in [
        (certkv_config { scales: other, ..fixed }, CERTKV_FILE_REFUSED, "config->scales"),
        (certkv_config { scales: mine, ..config }, CERTKV_INVALID_ARGUMENT, "config->scales"),
    ] {
        // SAFETY: a whole configuration and a local.
        named(unsafe { certkv_cache_create(&config, &mut cache) }, status, word);
        assert!(cache.is_null());
    }
    kernels::begin("p8-p8-b16");
    let cache = Cache::new(&fixed);
    // SAFETY: live handles. The cache keeps what it needs.
    unsafe { assert_eq!([mine, other].map(|scales| certkv_scales_destroy(scales)), [CERTKV_OK; 2]) };
    let id = cache.create();
    kernels::watched_reaches();
    append(&cache, id, 40);
    let told = kernels::watched_reaches();
    assert!(
        told.iter()
            .any(|(kernel, reaches)| *kernel == "pack" && reaches.iter().all(|x| *x == 1.0) && !reaches.is_empty())
    );
}

#[test]
fn keys_of_one_width_or_of_several_are_coded_by_a_calibration() {
    let (_fake, config, _turn) = alone();
    let (mine, other, books) = (schemes(LAYERS as usize), schemes(LAYERS as usize + 1), directions());
    let coded = certkv_config { format: c"ctq4-v4g32-b16".as_ptr(), calibration: mine.0, ..config };
    let mut cache = ptr::dangling_mut();
    for (config, status, word) in [
        (certkv_config { calibration: ptr::null(), ..coded }, CERTKV_INVALID_ARGUMENT, "config->calibration"),
        (certkv_config { calibration: other.0, ..coded }, CERTKV_FILE_REFUSED, "config->calibration"),
        (certkv_config { calibration: mine.0, ..config }, CERTKV_INVALID_ARGUMENT, "config->calibration"),
        (certkv_config { calibration: books.0, ..coded }, CERTKV_INVALID_ARGUMENT, "config->calibration"),
        (
            certkv_config { format: c"s2-v4g32-b16".as_ptr(), calibration: books.0, ..config },
            CERTKV_INVALID_ARGUMENT,
            "config->calibration",
        ),
        (certkv_config { format: c"s1-v4g32-b16".as_ptr(), ..coded }, CERTKV_INVALID_ARGUMENT, "config->calibration"),
    ] {
        // SAFETY: a whole configuration and a local.
        named(unsafe { certkv_cache_create(&config, &mut cache) }, status, word);
        assert!(cache.is_null());
    }
    let own = certkv_config { format: c"gtq3-v4g32-b16".as_ptr(), ..coded };
    let directed = certkv_config { format: c"s1-v4g32-b16".as_ptr(), calibration: books.0, ..config };
    let caches = [&coded, &own, &directed].map(Cache::new);
    // Caches keep what they need.
    drop((mine, books));
    for cache in caches {
        kernels::watch_metrics(2 * DIM);
        let a = cache.create();
        append(&cache, a, 20);
        let told = kernels::watched_metrics();
        assert!(told.iter().any(|(kernel, told)| *kernel == "pack" && told.len() == KV_HEADS * 2 * DIM));
    }
}
