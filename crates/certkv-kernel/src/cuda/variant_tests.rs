use super::*;
use certkv_core::Geometry;

fn layout(format: &str, dim: usize, store: Dtype) -> RecordLayout {
    let geometry = Geometry { store, ..Geometry::new(1, 1, 1, dim).unwrap() };
    RecordLayout::new(&geometry, format.parse().unwrap()).unwrap()
}

fn value(variant: &Variant, name: &str) -> usize {
    variant.macros().iter().find(|m| m.0 == name).unwrap().1
}

#[test]
fn macros_are_what_the_sources_ask_for() {
    let v = Variant::new(layout("k8-v4g32-b32", 128, Dtype::F16), 4, Arch::Sm90a).unwrap();
    for (name, expected) in [
        ("CKV_DIM", 128),
        ("CKV_BLOCK", 32),
        ("CKV_GROUP", 4),
        ("CKV_STORE", 0),
        ("CKV_KEY", 1),
        ("CKV_KEY_BITS", 8),
        ("CKV_KEY_GROUP", 1),
        ("CKV_KEY_META", 0),
        ("CKV_VALUE", 1),
        ("CKV_VALUE_BITS", 4),
        ("CKV_VALUE_GROUP", 32),
        ("CKV_KEY_CODES", 0),
        ("CKV_KEY_SCALES", 4096),
        ("CKV_VALUE_CODES", 4608),
        ("CKV_VALUE_SCALES", 6656),
        ("CKV_SUMMARY", 7168),
        ("CKV_RECORD", 7232),
        ("CKV_WARPS", 8),
        ("CKV_CERTIFY", 1),
    ] {
        assert_eq!(value(&v, name), expected, "{name}");
    }
    assert_eq!(value(&v.uncertified(), "CKV_CERTIFY"), 0);

    let tread = Variant::new(layout("t4-v6g64-b64", 128, Dtype::Bf16), 12, Arch::Sm80).unwrap();
    let seen = ["CKV_STORE", "CKV_KEY", "CKV_KEY_BITS", "CKV_KEY_GROUP", "CKV_VALUE_BITS"].map(|n| value(&tread, n));
    assert_eq!(seen, [1, 2, 4, 128, 6]);

    let exact = Variant::new(layout("bf16-bf16-b16", 64, Dtype::Bf16), 1, Arch::Sm120a).unwrap();
    let seen = ["CKV_STORE", "CKV_KEY", "CKV_VALUE", "CKV_KEY_BITS", "CKV_KEY_GROUP"].map(|n| value(&exact, n));
    assert_eq!(seen, [1, 0, 0, 16, 64]);
}

/// Words of `kernels/` that stand for a macro of ours: all of them must be set.
#[test]
fn no_source_uses_a_macro_that_is_not_set() {
    let l = layout("k8-v4g32-b32", 128, Dtype::F16);
    let variant = Variant::new(l.clone(), 4, Arch::Sm90a).unwrap().transcoding(l).unwrap();
    // Some are set for rotated sides only, where alone they are used.
    let turbo = Variant::new(layout("tq5-tq6-b32", 128, Dtype::F16), 4, Arch::Sm90a).unwrap();
    let set: Vec<&str> = variant.macros().iter().chain(&turbo.macros()).map(|m| m.0).collect();
    // Defined by the sources themselves, and the prefix as comments name it.
    let own = ["CKV_BULK", "CKV_LINE", "CKV_FN", "CKV_DYNAMIC_SHARED", "CKV_STATIC_SHARED", "CKV_EMULATE", "CKV_FROM_"];
    assert!(variant.verbs().count() > 0);
    for verb in variant.verbs() {
        let source = verb.source().unwrap();
        let names = source.macros().count();
        assert!(verb != Verb::Attend || names > 21, "the rule saw {names} macros");
        for word in source.macros() {
            let defined = set.contains(&word) || own.contains(&word) || source.defines(word);
            assert!(defined, "{verb}: {word} is set by nobody");
        }
    }
}

#[test]
fn rotated_sides_have_up_to_32_magnitudes_and_powers_of_two() {
    let new = |text: &str, dim: usize| Variant::new(layout(text, dim, Dtype::F16), 4, Arch::Sm90a);
    let turbo = new("tq4-tq2-b64", 128).unwrap();
    // Ascending magnitudes below 64, a byte each; thresholds below 1.
    let levels = (value(&turbo, "CKV_KEY_LEVELS") as u64).to_le_bytes();
    assert!(levels.windows(2).all(|w| w[0] < w[1]) && levels[7] == 63);
    let at = |name| f64::from_bits(value(&turbo, name) as u64);
    assert!(0.0 < at("CKV_KEY_THRESHOLD_1") && at("CKV_KEY_THRESHOLD_1") < at("CKV_KEY_THRESHOLD_7"));
    assert!(at("CKV_KEY_THRESHOLD_7") < 0.5 && at("CKV_VALUE_THRESHOLD_1") > 0.0 && at("CKV_VALUE_THRESHOLD_2") == 0.0);
    // Of 6 bits 32 magnitudes below 128.
    let wide = new("tq6-tq5-b64", 128).unwrap();
    let words = |side| ["", "_1", "_2", "_3"].map(|i| value(&wide, &format!("CKV_{side}_LEVELS{i}")) as u64);
    let levels: Vec<u8> = words("KEY").iter().flat_map(|word| word.to_le_bytes()).collect();
    assert!(levels.windows(2).all(|w| w[0] < w[1]) && levels[31] == 127);
    let [low, _, again, _] = words("VALUE");
    assert_eq!(low, again);
    let last = f64::from_bits(value(&wide, "CKV_KEY_THRESHOLD_31") as u64);
    assert!(last > f64::from_bits(value(&wide, "CKV_KEY_THRESHOLD_30") as u64) && last < 1.0);
    assert!(value(&wide, "CKV_VALUE_THRESHOLD_15") > 0 && value(&wide, "CKV_VALUE_THRESHOLD_16") == 0);
    for (text, dim, what) in [
        ("tq4-tq4-b32", 96, "head_dim of a tq format:"),
        ("ctq4-tq4-b32", 96, "head_dim of a tq format:"),
        ("gtq3-tq4-b32", 96, "head_dim of a tq format:"),
    ] {
        assert!(matches!(new(text, dim), Err(VariantError::Unsupported { what: said, .. }) if said == what), "{text}");
    }
    let many = Variant::new(layout("k8-e4m3-b32", 256, Dtype::F16), 9, Arch::Sm90a);
    assert!(matches!(many, Err(VariantError::Unsupported { value: 9, .. })));
    let page = layout("k8-e4m3-b32", 128, Dtype::F16);
    assert!(new("k8-v4g32-b32", 128).unwrap().transcoding(page).is_err());
    let (old, plain) = (layout("tq4-tq4-b32", 128, Dtype::F16), new("k8-v4g32-b32", 128).unwrap());
    assert!(
        plain.transcoding(old).is_err()
            && new("tq4-v4g32-b32", 128).unwrap().transcoding(layout("k8-v4g32-b32", 128, Dtype::F16)).is_err()
            && new("gtq3-v4g32-b32", 128).unwrap().transcoding(layout("k8-v4g32-b32", 128, Dtype::F16)).is_err()
            && new("s1-v4g32-b32", 128).unwrap().transcoding(layout("k8-v4g32-b32", 128, Dtype::F16)).is_err()
    );
    // Widths are data: what is compiled says how many bits and radii there are in all, and how much is told of a head.
    let grouped = new("gtq2.5-v4g32-b32", 96).unwrap();
    let own = ["CKV_KEY", "CKV_FOLD", "CKV_GROUPED"].map(|name| value(&grouped, name));
    assert!(own == [3, 1, 5] && value(&grouped, "CKV_KEY_SLOTS") == grouped.layout().key_slots());
    let spherical = new("s3-v4g32-b32", 96).unwrap();
    let own = ["CKV_KEY", "CKV_FOLD", "CKV_KEY_BITS", "CKV_METRIC"].map(|name| value(&spherical, name));
    assert!(own == [7, 0, 3, 96 * 8] && spherical.is_calibrated());
    assert!(value(&grouped, "CKV_METRIC") > 2 * 96 && value(&new("ctq4-v4g32-b32", 128).unwrap(), "CKV_METRIC") == 256);
}

#[test]
fn transcoding_has_the_macros_of_both_layouts_and_needs_one_geometry() {
    let (old, new) = (layout("k8-v4g32-b32", 128, Dtype::F16), layout("t4-v4g32-b32", 128, Dtype::F16));
    let plain = Variant::new(new.clone(), 4, Arch::Sm90a).unwrap();
    assert!(plain.verbs().all(|verb| verb != Verb::Transcode));
    let both = plain.clone().transcoding(old.clone()).unwrap();
    let seen = ["CKV_KEY", "CKV_KEY_BITS", "CKV_FROM_KEY", "CKV_FROM_KEY_BITS", "CKV_FROM_SUMMARY"];
    assert_eq!(seen.map(|name| value(&both, name)), [2, 4, 1, 8, old.summary.start]);
    assert_eq!(both.to_string(), "t4-v4g32-b32/f16/d128/g4/sm_90a/from=k8-v4g32-b32");
    assert!(both != plain && both.from() == Some(&old));
    for (format, dim, store) in
        [("k8-v4g32-b64", 128, Dtype::F16), ("k8-v4g32-b32", 64, Dtype::F16), ("k8-v4g32-b32", 128, Dtype::Bf16)]
    {
        assert!(matches!(
            plain.clone().transcoding(layout(format, dim, store)),
            Err(VariantError::Unsupported { needs: "that of the new layout", .. })
        ));
    }
}

/// The constants of kernels/attend/shape.cuh, evaluated by hand for one case.
#[test]
fn shared_memory_is_counted_as_the_kernel_counts() {
    let l = layout("k8-v4g32-b32", 128, Dtype::F16);
    let (warps, stages) = (8, 2);
    let keys = warps * stages * 4608;
    let values = warps * stages * (7232 - 4608);
    let merge = warps * (4 * 128 + 4 * 13) * 4;
    let lots = warps * (32 * 16 + 8 * 40 + 65 * 16);
    let finish = 4 * (4 * 13 + 3 * 4 + 4) + 128 + 4 * 4 * 128;
    let rest = warps * stages * 8 + warps * stages * 24 + lots + finish + 4 * 264;
    assert_eq!(shared_bytes(&l, 4, warps, stages), keys + values + merge + rest);
    // With more heads the columns of two tiles, and what merging takes of twelve more heads.
    let more = 4 * 16 * 128 - 4 * 4 * 128;
    let heads = warps * 12 * (128 + 13) * 4 + 4 * 12 * (13 + 3) - warps * 6 * 40;
    assert_eq!(shared_bytes(&l, 16, warps, stages), shared_bytes(&l, 4, warps, stages) + more + heads);
    // Nine heads' numbers end three words before a multiple of 16 bytes, and what is merged of them none.
    assert_eq!(shared_bytes(&l, 9, 1, 1) - 9 * (141 + 16) * 4 - 12, shared_bytes(&l, 16, 1, 1) - 16 * (141 + 16) * 4);
    assert_eq!(partial_stride(96, 1), 112);
    assert_eq!(partial_stride(64, 3), 232);
}

#[test]
fn shapes_are_the_widest_and_deepest_that_fit() {
    let v = |format, dim, group, arch| Variant::new(layout(format, dim, Dtype::F16), group, arch).unwrap().shape();
    let h100 = v("k8-v4g32-b32", 128, 4, Arch::Sm90a);
    assert_eq!((h100.warps, h100.stages, h100.threads()), (8, 3, 256));
    let wide = Variant::new(layout("k8-v4g32-b32", 128, Dtype::F16), 4, Arch::Sm90a).unwrap().wide();
    assert_eq!((wide.shape().warps, wide.shape().stages), (12, 2));
    let many = Variant::new(layout("k8-v4g32-b32", 128, Dtype::F16), 16, Arch::Sm90a).unwrap();
    assert_eq!(many.clone().wide(), many);
    for (format, dim, group) in [("k8-v8g64-b64", 256, 16), ("f16-f16-b64", 256, 1), ("t4-v4g32-b32", 64, 1)] {
        for arch in Arch::ALL {
            let l = layout(format, dim, Dtype::F16);
            let Ok(variant) = Variant::new(l.clone(), group, arch) else {
                // Then not even one warp with one record fits.
                assert!(shared_bytes(&l, group, 1, 1) > arch.shared_limit(), "{format} {dim} {group} {arch}");
                continue;
            };
            let s = variant.shape();
            assert_eq!(s.shared, shared_bytes(&l, group, s.warps, s.stages));
            assert!(s.shared <= arch.shared_limit());
            if s.stages > 1 {
                assert!(s.stages == 8 || shared_bytes(&l, group, s.warps, s.stages + 1) > arch.shared_limit());
                assert!(s.warps == 8 || shared_bytes(&l, group, 2 * s.warps, 2) > arch.shared_limit());
                // Some eight blocks to a warp, ten where one record fits.
                let from =
                    |format, dim| Variant::new(layout(format, dim, Dtype::F16), 4, Arch::Sm90a).unwrap().wide_from(132);
                let froms = [("k8-v4g32-b32", 128), ("k8-v4g64-b64", 64), ("k8-v4g64-b64", 128)]
                    .map(|(format, dim)| from(format, dim));
                assert_eq!(froms, [132 * 12 * 8, 132 * 12 * 8, 132 * 12 * 10]);
            }
        }
    }
}

#[test]
fn what_the_kernels_cannot_read_is_refused_by_name() {
    let refused = |format, dim, group| Variant::new(layout(format, dim, Dtype::F16), group, Arch::Sm80).unwrap_err();
    for (format, word) in [
        ("k8f32-v4g32-b32", "f32 metadata"),
        ("k8bf16-v4g32-b32", "bf16 metadata"),
        ("t4g16-v4g32-b32", "key group"),
        ("k0-v4g32-b32", "key's code"),
        ("k8-c0-b32", "value's code"),
    ] {
        let error = refused(format, 128, 4).to_string();
        assert!(error.contains(word), "{error}");
    }
    for (format, dim, group, word) in [
        ("k8-v4g32-b32-r8.4", 128, 9, "group of a refinable"),
        ("k8-v4g32-b32-r8.4", 256, 4, "head_dim of a refinable"),
        ("k8-v4g32-b32-r8.5", 128, 4, "value residuals"),
        ("k4-v4g32-b32-r5.4", 128, 4, "key residuals"),
    ] {
        let error = refused(format, dim, group).to_string();
        assert!(error.contains(word), "{error}");
    }
    let refinable = layout("k8-v4g32-b32-r8.4", 128, Dtype::F16);
    let plain = Variant::new(layout("k8-v4g32-b32", 128, Dtype::F16), 4, Arch::Sm80).unwrap();
    assert!(plain.transcoding(refinable).unwrap_err().to_string().contains("residual"));
    assert_eq!(refused("k8-v4g32-b32", 128, 0), VariantError::Group(0));
    assert_eq!(refused("k8-v4g32-b32", 128, 17), VariantError::Group(17));
    let v = Variant::new(layout("k8-v4g32-b32", 128, Dtype::F16), 4, Arch::Sm80).unwrap();
    assert!(v.clone().with_shape(8, 1).is_ok());
    assert!(matches!(v.clone().with_shape(8, 40), Err(VariantError::SharedMemory { .. })));
    assert!(v.clone().with_shape(0, 1).is_err() && v.with_shape(16, 1).is_err());
}

#[test]
fn capabilities_have_the_code_that_runs_on_them() {
    let of = |major, minor| Arch::of((major, minor)).map(Arch::name);
    assert_eq!([of(8, 0), of(8, 6), of(8, 7), of(8, 9)], [Ok("80"), Ok("86"), Ok("86"), Ok("89")]);
    assert_eq!([of(9, 0), of(10, 0), of(12, 0)], [Ok("90a"), Ok("100a"), Ok("120a")]);
    for capability in [(7, 5), (9, 1), (10, 3), (12, 1), (0, 0)] {
        assert_eq!(Arch::of(capability), Err(VariantError::Capability(capability)));
    }
}

#[test]
fn a_variant_is_displayed_with_all_that_tells_it_from_others() {
    let v = Variant::new(layout("t8-v4g32-b16", 96, Dtype::Bf16), 7, Arch::Sm100a).unwrap();
    assert_eq!(v.to_string(), "t8-v4g32-b16/bf16/d96/g7/sm_100a");
    assert_eq!(v.uncertified().to_string(), "t8-v4g32-b16/bf16/d96/g7/sm_100a/plain");
}

#[test]
fn what_corrects_is_a_decode_kernel_for_residuals() {
    let fine = Variant::new(layout("k8-v4g64-b64-r8.4", 128, Dtype::F16), 4, Arch::Sm90a).unwrap();
    let corrects = fine.clone().correcting().unwrap();
    assert_eq!((value(&fine, "CKV_CORRECT"), value(&corrects, "CKV_CORRECT")), (0, 1));
    assert!(corrects.corrects() && corrects.verbs().eq([Verb::Attend, Verb::Ladder]) && fine.verbs().count() > 1);
    assert_eq!(corrects.partial_stride(), fine.partial_stride());
    assert!(corrects.to_string().contains("/correct"));
    let plain = Variant::new(layout("k8-v4g64-b64", 128, Dtype::F16), 4, Arch::Sm90a).unwrap();
    assert!(plain.correcting().unwrap_err().to_string().contains("residuals"));
}

#[test]
fn windows_are_a_variant_of_their_own() {
    let plain = Variant::new(layout("k8-v4g64-b64", 128, Dtype::F16), 4, Arch::Sm90a).unwrap();
    let windowed = plain.clone().windowed();
    let differ: Vec<&str> =
        plain.macros().iter().zip(windowed.macros()).filter(|(a, b)| *a != b).map(|(a, _)| a.0).collect();
    assert_eq!((differ, windowed.shape()), (vec!["CKV_WINDOW"], plain.shape()));
    assert!(windowed.is_windowed() && !plain.is_windowed() && windowed.to_string().ends_with("/window"));
}

#[test]
fn drafts_are_wider_groups_that_fit_wherever_a_step_does() {
    let plain =
        Variant::new(layout("k8-v4g64-b64-r8.4", 128, Dtype::F16), 4, Arch::Sm90a).unwrap().with_single_queries();
    let drafts = plain.clone().drafting(2).unwrap();
    assert_eq!((drafts.group(), drafts.heads(), drafts.draft(), plain.most_drafted()), (8, 4, 2, 2));
    assert!(drafts.takes_single_queries() && drafts.to_string().contains("/g4/sm_90a/draft2"));
    assert!(drafts.verbs().eq([Verb::Attend, Verb::Select, Verb::Ladder]), "{:?}", drafts.verbs().collect::<Vec<_>>());
    for (variant, tokens) in [(plain.clone(), 0), (plain.clone(), 3), (plain.windowed(), 1)] {
        assert!(matches!(variant.drafting(tokens), Err(VariantError::Unsupported { .. })), "{tokens}");
    }
    let mut short = 0;
    for arch in Arch::ALL {
        for format in ["f16-f16-b64", "k8-v4g64-b64", "k8-p8-b64", "tq4-tq4-b64", "k8-v4g64-b64-r8.4"] {
            for (dim, group) in [(64, 1), (128, 4), (128, 8), (256, 2), (256, 8), (256, 16)] {
                let Ok(variant) = Variant::new(layout(format, dim, Dtype::F16), group, arch) else { continue };
                let most = variant.most_drafted();
                // Of one warp there are no drafts: a sequence can have two blocks in tails.
                let single = variant.shape().warps == 1;
                assert!(most >= 1 || single, "{variant}");
                assert!(most == 0 || variant.clone().drafting(most).is_ok_and(|v| v.shape().warps > 1), "{variant}");
                // Sixteen heads of the largest records do not fit the smallest memories.
                let widest = Variant::new(layout(format, dim, Dtype::F16), 16 / group * group, arch);
                short += usize::from(matches!(widest, Err(VariantError::SharedMemory { .. })));
            }
        }
    }
    assert!(short > 0, "shared memory kept no launch from sixteen heads");
}
