use super::*;

#[test]
fn text_round_trips() {
    for s in [
        "k8-v4g32-b32",
        "k8f32-v6g64-b16",
        "k4-v4g32-b32",
        "k2-c2-b64",
        "k0-c0-b64",
        "t4-c0-b16",
        "t4-v4g32-b64",
        "t8g32-f16-b16",
        "tq4-tq3-b64",
        "ctq4-v4g64-b64",
        "gtq3-tq3-b64",
        "gtq2.5-v4g64-b32",
        "s1-tq3-b64",
        "s2-f16-b16",
        "s3-v4g64-b32",
        "e4m3-e5m2g64-b64",
        "p8g32-p4-b16",
        "f16-f16-b32",
        "bf16-bf16-b16",
    ] {
        let f = s.parse::<Format>().unwrap();
        assert_eq!(f.to_string(), s);
        assert!(f.refine.is_none());
    }
    let s = "k8-v4g64-b64-r5.4";
    let f = s.parse::<Format>().unwrap();
    assert_eq!((f.to_string().as_str(), f.refine), (s, Refine { key: 5, value: 4 }));
    let none: Format = "k8-v4g64-b64-r0.0".parse().unwrap();
    assert_eq!(none, Format { refine: Refine::default(), ..f });
    assert_eq!(none.to_string(), "k8-v4g64-b64");
    let [plain, calibrated] = ["tq4-v4g64-b64", "ctq4-v4g64-b64"].map(|s| s.parse::<Format>().unwrap());
    assert!(!plain.key.is_calibrated() && calibrated.key.is_calibrated() && plain != calibrated);
}

#[test]
fn residuals_need_steps_on_both_sides() {
    for fine in
        ["k8-v4g64-b64-r1.8", "k4-c4-b32-r4.4", "k8f32-v2g16-b16-r8.1", "k8bf16-v8g32-b32-r5.4", "f16-f16-b32-r0.0"]
    {
        assert!(fine.parse::<Format>().unwrap().validated(128, Dtype::F16).is_ok(), "{fine}");
    }
    for (s, key, value) in [
        ("k8-v4g64-b64", 5, 0),
        ("k8-v4g64-b64", 0, 4),
        ("k8-v4g64-b64", 9, 4),
        ("k8-v4g64-b64", 4, 9),
        ("t8-v4g64-b64", 5, 4),
        ("f16-v4g64-b64", 5, 4),
        ("k8-f16-b64", 5, 4),
    ] {
        let f: Format = format!("{s}-r{key}.{value}").parse().unwrap();
        let wrong = FormatError::Refine { refine: Refine { key, value }, key: f.key, value: f.value };
        assert!(wrong.to_string().contains(&format!("r{key}.{value}")), "{wrong}");
        assert_eq!(f.validated(128, Dtype::F16), Err(wrong), "{f}");
    }
}

#[test]
fn refuses_what_it_does_not_understand() {
    for s in [
        "",
        "k8",
        "k8-v4g32",
        "k-v4g32-b32",
        "k4f32-v4g32-b32",
        "kx-v4g32-b32",
        "k8-v4-b32",
        "k8-v4g32-32",
        "k8-v4g32-b48",
        "k8-v4g32-b32-x",
        "tq-tq4-b64",
        "tq4-tqx-b64",
        "ctq-tq4-b64",
        "tq4-ctq4-b64",
        "ct4-v4g32-b64",
        "gtq-tq4-b64",
        "gtq2.25-tq4-b64",
        "gtq.5-tq4-b64",
        "gtq2.-tq4-b64",
        "gtq200-tq4-b64",
        "tq4-gtq4-b64",
        "s-tq4-b64",
        "s0-tq4-b64",
        "s4-tq4-b64",
        "s1g16-tq4-b64",
        "tq4-s1-b64",
        "p-p8-b64",
        "p12-p8-b64",
        "e4m3x-p8-b64",
        "e4m3g-p8-b64",
        "e3m4-p8-b64",
        "p8-e5m2g6x-b64",
    ] {
        assert!(s.parse::<Format>().is_err(), "{s}");
    }
    for s in ["", "r", "r5", "r5.", "r.4", "5.4", "r5.4.3", "r5.4-x", "r-5.4", "r300.4", "r5,4"] {
        let refused = format!("k8-v4g32-b32-{s}").parse::<Format>();
        assert!(matches!(refused, Err(FormatError::Syntax(_))), "{s}");
    }
    for (s, bits) in [
        ("k8-v9g32-b32", 9),
        ("k9-v4g32-b32", 9),
        ("k1-c0-b32", 1),
        ("k0-c1-b32", 1),
        ("t0-c0-b32", 0),
        ("k0-v0g32-b32", 0),
    ] {
        let f: Format = s.parse().unwrap();
        assert_eq!(f.validated(128, Dtype::F16), Err(FormatError::Bits(bits)));
    }
    for (s, bits) in [("tq7-tq4-b64", 7), ("tq4-tq0-b64", 0), ("ctq7-tq4-b64", 7), ("ctq0-tq4-b64", 0)] {
        let f: Format = s.parse().unwrap();
        assert_eq!(f.validated(128, Dtype::F16), Err(FormatError::TurboBits(bits)));
    }
    for (s, halves, dim, tiles) in
        [("gtq0.5-tq4-b64", 1, 128, 8), ("gtq6.5-tq4-b64", 13, 128, 8), ("gtq2.5-tq4-b16", 5, 96, 3)]
    {
        let f: Format = s.parse().unwrap();
        let refused = f.validated(dim, Dtype::F16).unwrap_err();
        assert_eq!(refused, FormatError::GtqBits { halves, tiles });
        assert!(refused.to_string().contains(&s[3..6]), "{refused}");
    }
    for (s, bits) in [("p1-p8-b64", 1), ("p8-p9-b64", 9), ("p0g32-e4m3-b64", 0)] {
        let f: Format = s.parse().unwrap();
        assert_eq!(f.validated(128, Dtype::F16), Err(FormatError::Bits(bits)));
    }
    for s in ["e4m3g48-p8-b32", "p8-e5m2g24-b32"] {
        assert!(matches!(s.parse::<Format>().unwrap().validated(128, Dtype::F16), Err(FormatError::Group { .. })));
    }
    let f: Format = "k8-v4g48-b32".parse().unwrap();
    assert_eq!(f.validated(128, Dtype::F16), Err(FormatError::Group { group: 48, head_dim: 128 }));
    assert!(f.validated(96, Dtype::F16).is_ok());
    assert!(Format::DENSE_F16.validated(128, Dtype::Bf16).is_err());
}
