//! The bundled reference model: golden logits, decode against prefill, the outlier twin, and damaged copies.
#![forbid(unsafe_code)]
use certkv_cli::model::{
    Attention, Config, Llama, ModelError, Rows, flat::Flat, golden, llama::argmax, twin::Twin, weights::Weights,
};
use std::path::{Path, PathBuf};

fn assets() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../assets")
}

fn reference() -> (Config, Weights) {
    let folder = assets().join("ref-d128");
    (Config::read(&folder).unwrap(), Weights::read(&folder).unwrap())
}

#[test]
fn logits_match_the_golden_ones() {
    let model = Llama::load(&assets().join("ref-d128")).unwrap();
    let prompts = golden::read(&assets().join("eval"), "golden").unwrap();
    assert_eq!(prompts.len(), 3);
    let mut worst = 0.0f32;
    for prompt in &prompts {
        let deviation = golden::compare(&model, prompt, &mut Flat::new(model.config())).unwrap();
        assert!(deviation.worst < 2e-3, "off by {}", deviation.worst);
        assert_eq!(deviation.choices, 0);
        worst = worst.max(deviation.worst);
    }
    // The comparison must be able to fail: a nudged logit is seen.
    let mut planted = prompts[0].clone();
    planted.logits[5] += 0.01;
    assert!(golden::compare(&model, &planted, &mut Flat::new(model.config())).unwrap().worst > 2e-3);
    println!("largest difference of a logit {worst:.1e}");
}

#[test]
fn decoding_token_by_token_is_prefilling() {
    let model = Llama::load(&assets().join("ref-d128")).unwrap();
    let tokens = model.tokens().encode(b"VAR QXZA = 90417;\nVAR LMNB = QXZA;\n").unwrap();
    let mut whole = Flat::new(model.config());
    let at_once = model.prefill(&tokens, &mut whole, |_| {}).unwrap();
    let mut stepped = Flat::new(model.config());
    let mut last = Vec::new();
    for token in &tokens {
        last = model.forward(&[*token], &mut stepped, Rows::Last).unwrap();
    }
    assert_eq!(stepped.length(), tokens.len());
    let off = at_once.iter().zip(&last).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
    assert!(off < 1e-3, "off by {off}");
    assert!(matches!(model.forward(&[264], &mut stepped, Rows::Last), Err(ModelError::Token { token: 264, .. })));
    assert_eq!(stepped.length(), tokens.len());
}

#[test]
fn the_twin_computes_the_same_function() {
    let (config, weights) = reference();
    let mut twin_weights = weights.clone();
    Twin::default().apply(&config, &mut twin_weights).unwrap();
    let (base, twin) =
        (Llama::new(config.clone(), &weights).unwrap(), Llama::new(config.clone(), &twin_weights).unwrap());
    let prompt = base.tokens().encode(b"The magic number for river is 48213. The magic number for river is ").unwrap();
    let a = base.forward(&prompt, &mut Flat::new(&config), Rows::All).unwrap();
    let b = twin.forward(&prompt, &mut Flat::new(&config), Rows::All).unwrap();
    let off = a.iter().zip(&b).map(|(x, y)| (x - y).abs()).fold(0.0, f32::max);
    assert!(off < 1e-3, "off by {off}");
    for (x, y) in a.chunks_exact(config.vocabulary).zip(b.chunks_exact(config.vocabulary)) {
        assert_eq!(argmax(x), argmax(y));
    }
    // And it is another model: 6 layers x 2 key heads x 3 pairs x 2 channels were scaled.
    assert_eq!(Twin::default().plan(&config).len(), 36);
    let changed: usize = weights
        .iter()
        .zip(twin_weights.iter())
        .map(|((_, w), (_, t))| w.data.iter().zip(&t.data).filter(|(x, y)| x != y).count())
        .sum();
    assert!(changed > 36 * 2 * 300, "{changed} weights changed");
}

#[test]
fn damaged_folders_are_refused() {
    let folder = std::env::temp_dir().join(format!("certkv-damaged-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    assert!(matches!(Llama::load(&folder), Err(ModelError::Read { .. })));
    let text = std::fs::read_to_string(assets().join("ref-d128/config.json")).unwrap();
    std::fs::write(folder.join("config.json"), &text).unwrap();
    assert!(matches!(Llama::load(&folder), Err(ModelError::Read { .. })));
    let bytes = std::fs::read(assets().join("ref-d128/model.safetensors")).unwrap();
    std::fs::write(folder.join("model.safetensors"), &bytes[..bytes.len() / 2]).unwrap();
    assert!(matches!(Llama::load(&folder), Err(ModelError::Container { .. })));
    std::fs::write(folder.join("model.safetensors"), &bytes).unwrap();
    for (from, to) in [("\"hidden_size\": 320", "\"hidden_size\": 328"), ("_layers\": 6", "_layers\": 7")] {
        std::fs::write(folder.join("config.json"), text.replace(from, to)).unwrap();
        let refused = Llama::load(&folder).err().unwrap();
        assert!(matches!(refused, ModelError::Shape { .. } | ModelError::Missing { .. }), "{refused}");
    }
    std::fs::write(folder.join("config.json"), &text[..100]).unwrap();
    assert!(matches!(Llama::load(&folder), Err(ModelError::Json { .. })));
    std::fs::remove_dir_all(&folder).unwrap();
}
