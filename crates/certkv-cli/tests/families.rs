//! Every kind of model that is computed, drawn at random, against a plain forward pass in double precision; and models with a tokenizer through the program.
#![forbid(unsafe_code)]
use certkv_cli::model::{
    Config, Llama, Rows, Tokens,
    config::Norm,
    flat::Flat,
    rope::{Rope, Scaling},
    weights::Weights,
};
use certkv_cli::run;
use certkv_testkit::generate::Rng;
use safetensors::{Dtype, tensor::TensorView};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};

const HIDDEN: usize = 48;
const INNER: usize = 40;

fn scratch(name: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    std::fs::create_dir_all(&folder).unwrap();
    folder
}

/// A model folder with weights of `seed`: all that any family has, of which each reads what is its own.
fn folder(name: &str, kind: &str, head_dim: usize, vocabulary: usize, more: &Value) -> PathBuf {
    let folder = scratch(name);
    // What an earlier run has left.
    let _ = std::fs::remove_file(folder.join("tokenizer.json"));
    let mut config = json!({
        "model_type": kind, "hidden_act": "silu", "hidden_size": HIDDEN, "intermediate_size": INNER, "num_hidden_layers": 2,
        "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": head_dim, "vocab_size": vocabulary,
        "max_position_embeddings": 4096, "rms_norm_eps": 1e-5, "layer_norm_eps": 1e-5, "bos_token_id": 0
    });
    config.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    std::fs::write(folder.join("config.json"), config.to_string()).unwrap();
    let mut rng = Rng::new(head_dim as u64);
    let mut draw = |shape: &[usize], middle: f64, spread: f64| {
        let bytes = (0..shape.iter().product()).flat_map(|_| ((middle + spread * rng.normal()) as f32).to_le_bytes());
        (shape.to_vec(), bytes.collect::<Vec<u8>>())
    };
    let (q, kv) = (4 * head_dim, 2 * head_dim);
    let mut tensors = vec![
        ("model.embed_tokens.weight".to_owned(), draw(&[vocabulary, HIDDEN], 0.0, 1.0)),
        ("lm_head.weight".to_owned(), draw(&[vocabulary, HIDDEN], 0.0, 0.3)),
        ("model.norm.weight".to_owned(), draw(&[HIDDEN], 1.0, 0.2)),
        ("model.norm.bias".to_owned(), draw(&[HIDDEN], 0.0, 0.2)),
    ];
    for layer in 0..2 {
        for (name, shape, middle, spread) in [
            ("input_layernorm.weight", vec![HIDDEN], 1.0, 0.2),
            ("input_layernorm.bias", vec![HIDDEN], 0.0, 0.2),
            ("post_attention_layernorm.weight", vec![HIDDEN], 1.0, 0.2),
            ("post_attention_layernorm.bias", vec![HIDDEN], 0.0, 0.2),
            ("self_attn.q_proj.weight", vec![q, HIDDEN], 0.0, 0.2),
            ("self_attn.k_proj.weight", vec![kv, HIDDEN], 0.0, 0.2),
            ("self_attn.v_proj.weight", vec![kv, HIDDEN], 0.0, 0.2),
            ("self_attn.o_proj.weight", vec![HIDDEN, q], 0.0, 0.1),
            ("self_attn.q_proj.bias", vec![q], 0.0, 0.5),
            ("self_attn.k_proj.bias", vec![kv], 0.0, 0.5),
            ("self_attn.v_proj.bias", vec![kv], 0.0, 0.5),
            ("self_attn.o_proj.bias", vec![HIDDEN], 0.0, 0.5),
            ("self_attn.q_norm.weight", vec![head_dim], 1.0, 0.3),
            ("self_attn.k_norm.weight", vec![head_dim], 1.0, 0.3),
            ("mlp.gate_proj.weight", vec![INNER, HIDDEN], 0.0, 0.2),
            ("mlp.up_proj.weight", vec![INNER, HIDDEN], 0.0, 0.2),
            ("mlp.down_proj.weight", vec![HIDDEN, INNER], 0.0, 0.2),
        ] {
            tensors.push((format!("model.layers.{layer}.{name}"), draw(&shape, middle, spread)));
        }
    }
    let views = tensors
        .iter()
        .map(|(name, (shape, bytes))| (name.as_str(), TensorView::new(Dtype::F32, shape.clone(), bytes).unwrap()));
    std::fs::write(folder.join("model.safetensors"), safetensors::serialize(views, None).unwrap()).unwrap();
    folder
}

/// What the configuration says, without a matrix library.
struct Plain<'a> {
    config: &'a Config,
    weights: &'a Weights,
}

impl Plain<'_> {
    fn get(&self, name: &str) -> Vec<f64> {
        let (_, w) = self.weights.iter().find(|(n, _)| *n == name).unwrap();
        w.data.iter().map(|x| f64::from(*x)).collect()
    }

    fn times(&self, name: &str, x: &[f64]) -> Vec<f64> {
        self.get(name).chunks_exact(x.len()).map(|row| row.iter().zip(x).map(|(a, b)| a * b).sum()).collect()
    }

    fn norm(&self, name: &str, x: &[f64]) -> Vec<f64> {
        let n = x.len() as f64;
        let layer = self.config.norm == Norm::Layer && x.len() == HIDDEN;
        let mean = if layer { x.iter().sum::<f64>() / n } else { 0.0 };
        let scale = (x.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / n + self.config.norm_eps).sqrt();
        let weight = self.get(&format!("{name}.weight"));
        let bias = if layer { self.get(&format!("{name}.bias")) } else { vec![0.0; x.len()] };
        x.iter().zip(weight).zip(bias).map(|((x, w), b)| (x - mean) / scale * w + b).collect()
    }

    fn turned(&self, head: &[f64], position: usize) -> Vec<f64> {
        let half = self.config.rotary / 2;
        let (cos, sin) = Rope::new(self.config.rotary, self.config.rope_theta, self.config.scaling).table(position, 1);
        let mut out = head.to_vec();
        for i in 0..half {
            let (c, s) = (f64::from(cos[i]), f64::from(sin[i]));
            (out[i], out[i + half]) = (head[i] * c - head[i + half] * s, head[i + half] * c + head[i] * s);
        }
        out
    }

    /// Heads of a projection of every token, normed and turned as asked.
    fn heads(&self, layer: usize, side: &str, rows: &[Vec<f64>]) -> Vec<Vec<Vec<f64>>> {
        let name = format!("model.layers.{layer}.self_attn.{side}");
        let project = |(position, x): (usize, &Vec<f64>)| {
            let mut row = self.times(&format!("{name}_proj.weight"), x);
            if self.config.biases {
                row.iter_mut().zip(self.get(&format!("{name}_proj.bias"))).for_each(|(x, b)| *x += b);
            }
            let head = |head: &[f64]| match side {
                "v" => head.to_vec(),
                _ if self.config.head_norms => self.turned(&self.norm(&format!("{name}_norm"), head), position),
                _ => self.turned(head, position),
            };
            row.chunks_exact(self.config.head_dim).map(head).collect()
        };
        rows.iter().enumerate().map(project).collect()
    }

    fn logits(&self, tokens: &[u32]) -> Vec<Vec<f64>> {
        let c = self.config;
        let embedding = self.get("model.embed_tokens.weight");
        let mut rows: Vec<Vec<f64>> =
            tokens.iter().map(|t| embedding[*t as usize * HIDDEN..][..HIDDEN].to_vec()).collect();
        for layer in 0..c.layers {
            let name = |name: &str| format!("model.layers.{layer}.{name}");
            let normed: Vec<Vec<f64>> = rows.iter().map(|x| self.norm(&name("input_layernorm"), x)).collect();
            let [q, k, v] = ["q", "k", "v"].map(|side| self.heads(layer, side, &normed));
            for (t, row) in rows.iter_mut().enumerate() {
                let mut out = Vec::new();
                for (head, query) in q[t].iter().enumerate() {
                    let of = head / (c.heads / c.kv_heads);
                    let dot = |key: &Vec<f64>| query.iter().zip(key).map(|(a, b)| a * b).sum::<f64>();
                    let weights: Vec<f64> =
                        (0..=t).map(|s| (dot(&k[s][of]) / (c.head_dim as f64).sqrt()).exp()).collect();
                    let sum: f64 = weights.iter().sum();
                    out.extend((0..c.head_dim).map(|i| (0..=t).map(|s| weights[s] * v[s][of][i]).sum::<f64>() / sum));
                }
                let mut add = self.times(&name("self_attn.o_proj.weight"), &out);
                if c.output_bias {
                    add.iter_mut().zip(self.get(&name("self_attn.o_proj.bias"))).for_each(|(x, b)| *x += b);
                }
                row.iter_mut().zip(add).for_each(|(x, y)| *x += y);
                let x = self.norm(&name("post_attention_layernorm"), row);
                let [gate, up] = ["gate", "up"].map(|side| self.times(&name(&format!("mlp.{side}_proj.weight")), &x));
                let inner: Vec<f64> = gate.iter().zip(up).map(|(g, u)| g / (1.0 + (-g).exp()) * u).collect();
                row.iter_mut().zip(self.times(&name("mlp.down_proj.weight"), &inner)).for_each(|(x, y)| *x += y);
            }
        }
        let head = if c.tied { "model.embed_tokens.weight" } else { "lm_head.weight" };
        rows.iter().map(|x| self.times(head, &self.norm("model.norm", x))).collect()
    }
}

#[test]
fn every_family_computes_what_its_configuration_says() {
    let llama3 = json!({"rope_scaling": {
        "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 64
    }});
    let yarn = json!({"rope_scaling": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}});
    let cases = [
        ("llama", 16, json!({})),
        ("llama", 16, llama3),
        ("llama", 12, json!({"attention_bias": true, "tie_word_embeddings": true})),
        ("mistral", 16, json!({"sliding_window": 64, "rope_theta": 1e6})),
        ("qwen2", 16, yarn),
        ("qwen3", 24, json!({"attention_bias": false})),
        ("stablelm", 16, json!({"use_qkv_bias": true})),
        ("stablelm", 64, json!({"partial_rotary_factor": 0.5})),
    ];
    let mut all = Vec::new();
    for (number, (kind, dim, more)) in cases.iter().enumerate() {
        let folder = folder(&format!("family-{number}"), kind, *dim, 300, more);
        let model = Llama::load(&folder).unwrap();
        let weights = Weights::read(&folder).unwrap();
        let tokens = model.tokens().encode(b"attention, please: \xf0\x9f\x8e\xbb and more").unwrap();
        let found = model.forward(&tokens, &mut Flat::new(model.config()), Rows::All).unwrap();
        let expected = Plain { config: model.config(), weights: &weights }.logits(&tokens);
        let off = |expected: &[Vec<f64>]| {
            let pairs = found.chunks_exact(300).zip(expected).flat_map(|(a, b)| a.iter().zip(b));
            pairs.map(|(a, b)| (f64::from(*a) - b).abs()).fold(0.0, f64::max)
        };
        assert!(off(&expected) < 2e-4, "{kind} {more}: off by {}", off(&expected));
        // Without what tells it from a Llama it is another model.
        let plain = Config {
            biases: false,
            output_bias: false,
            head_norms: false,
            rotary: *dim,
            scaling: Scaling::None,
            norm: Norm::Rms,
            ..model.config().clone()
        };
        if plain != *model.config() {
            assert!(off(&Plain { config: &plain, weights: &weights }.logits(&tokens)) > 0.01, "{kind} {more}");
        }
        all.push(found);
    }
    assert!(all.iter().enumerate().all(|(i, a)| all[..i].iter().all(|b| a != b)));
}

/// A tokenizer of words, spaces and bytes that begins texts with token 0, as many do.
fn tokenizer() -> Value {
    let mut vocabulary = json!({"<s>": 0, "<unk>": 1});
    let words = [
        "the", "rain", "in", "Spain", "stays", "mainly", "on", "plain", " ", ".", "\n", "magic", "number", "is", "7",
        "9",
    ];
    for (i, word) in words.iter().enumerate() {
        vocabulary[*word] = json!(2 + i);
    }
    json!({
        "version": "1.0", "truncation": null, "padding": null,
        "added_tokens": [{"id": 0, "content": "<s>", "single_word": false, "lstrip": false, "rstrip": false, "normalized": false, "special": true}],
        "normalizer": null,
        "pre_tokenizer": {"type": "Split", "pattern": {"Regex": "\\w+|\\s|[^\\w\\s]"}, "behavior": "Isolated", "invert": false},
        "post_processor": {
            "type": "TemplateProcessing",
            "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
            "pair": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
            "special_tokens": {"<s>": {"id": "<s>", "ids": [0], "tokens": ["<s>"]}}
        },
        "decoder": {"type": "Fuse"},
        "model": {"type": "WordLevel", "vocab": vocabulary, "unk_token": "<unk>"}
    })
}

fn certkv(args: &[&str]) -> Result<String, (u8, String)> {
    let mut out = Vec::new();
    let line = std::iter::once("certkv").chain(args.iter().copied()).map(Into::into);
    run(line, &mut out).map(|()| String::from_utf8(out).unwrap()).map_err(|e| (e.code(), e.to_string()))
}

#[test]
fn a_tokenizer_of_the_folder_says_what_tokens_are() {
    let folder = folder("tokenizer", "qwen3", 64, 64, &json!({"bos_token_id": null}));
    std::fs::write(folder.join("tokenizer.json"), tokenizer().to_string()).unwrap();
    let model = Llama::load(&folder).unwrap();
    let tokens = model.tokens();
    assert!(!tokens.are_bytes());
    let encoded = tokens.encode(b"the rain.").unwrap();
    assert_eq!(encoded, [0, 2, 10, 3, 11]);
    assert_eq!(tokens.decode(&encoded).unwrap(), "the rain.");
    // Ends are of bytes, also behind what is not one to a character, and of what is not UTF-8 no more than there are.
    assert_eq!(tokens.of("é rain".as_bytes()).unwrap().ends, [2, 3, 7]);
    assert_eq!(tokens.of(b"\xff rain").unwrap().ends.last(), Some(&6));
    assert_eq!(tokens.split(b"the magic ", b"number").unwrap(), (vec![0, 2, 10, 13, 10], vec![14]));
    // A word that goes on is another token: it belongs to the rest.
    assert_eq!(tokens.split(b"the ra", b"in").unwrap(), (vec![0, 2, 10], vec![3]));

    // What a tokenizer leaves out cannot be asked for.
    let mut stripping = tokenizer();
    stripping["normalizer"] = json!({"type": "Strip", "strip_left": false, "strip_right": true});
    std::fs::write(folder.join("tokenizer.json"), stripping.to_string()).unwrap();
    let nothing = Llama::load(&folder).unwrap().tokens().split(b"the rain", b" ").unwrap_err().to_string();
    assert!(nothing.contains("adds no token"), "{nothing}");
    std::fs::write(folder.join("tokenizer.json"), tokenizer().to_string()).unwrap();

    let text = folder.join("text.txt");
    std::fs::write(&text, "the rain in Spain stays mainly on the plain.\n".repeat(60)).unwrap();
    let out = folder.join("calibration");
    let [folder_, text_, out_] = [&folder, &text, &out].map(|p| p.to_str().unwrap().to_owned());
    let said =
        certkv(&["calibrate", &folder_, "--text", &text_, "--tokens", "300", "--context", "100", "--out", &out_]);
    assert!(said.as_ref().is_ok_and(|said| said.contains("300 tokens")), "{said:?}");
    // Of another text, and as many tokens as there are: a line has 19, and each sequence begins with one more.
    let all =
        certkv(&["calibrate", &folder_, "--text", &text_, "--tokens", "1152", "--context", "100", "--out", &out_]);
    assert!(all.is_ok(), "{all:?}");
    let refused =
        certkv(&["calibrate", &folder_, "--text", &text_, "--tokens", "1153", "--context", "100", "--out", &out_]);
    assert!(refused.as_ref().is_err_and(|(code, why)| *code == 3 && why.contains("1152")), "{refused:?}");
    for tier in ["b1", "b2"] {
        let books =
            certkv(&["calibrate", &folder_, "--spherical", tier, "--text", &text_, "--tokens", "400", "--out", &out_]);
        assert!(books.is_ok(), "{books:?}");
    }
    let held = ["calibrate", &folder_, "--evidence", "--text", &text_, "--tokens", "200", "--held-skip", "1500"];
    assert!(certkv(&held).is_ok_and(|said| said.contains("200 held out")));
    let near = ["calibrate", &folder_, "--evidence", "--text", &text_, "--tokens", "200", "--held-skip", "300"];
    assert!(certkv(&near).is_err_and(|(code, _)| code == 2));

    let tasks = folder.join("tasks.jsonl");
    let prompt = json!({
        "id": "one", "task": "needle", "length": 256, "prompt": "the magic number is 7.\n".repeat(4) + "the magic number is ", "answer": "7."
    });
    std::fs::write(&tasks, prompt.to_string()).unwrap();
    let eval = [
        "eval",
        "--model",
        &folder_,
        "--tasks",
        tasks.to_str().unwrap(),
        "--format",
        "k8-v4g64-b16",
        "--policy",
        "certified",
        "--json",
    ];
    let said = certkv(&eval);
    assert!(said.is_ok(), "{said:?}");
    let sweep = certkv(&["eval", "--model", &folder_, "--sweep", folder.join("page.html").to_str().unwrap()]);
    assert!(sweep.as_ref().is_err_and(|(code, why)| *code == 2 && why.contains("byte by byte")), "{sweep:?}");
    // Another tokenizer is another model.
    let before = certkv_cli::calibrate::model_digest(&folder).unwrap();
    std::fs::write(folder.join("tokenizer.json"), tokenizer().to_string() + " ").unwrap();
    assert_ne!(certkv_cli::calibrate::model_digest(&folder).unwrap(), before);
}

#[test]
fn what_has_no_tokens_is_refused() {
    let folder = folder("no-tokenizer", "llama", 16, 3000, &json!({}));
    let refused = Llama::load(&folder).err().unwrap().to_string();
    assert!(refused.contains("tokenizer.json is missing"), "{refused}");
    std::fs::write(folder.join("tokenizer.json"), "{\"version\": \"1.0\"").unwrap();
    let refused = Llama::load(&folder).err().unwrap().to_string();
    assert!(refused.contains("tokenizer.json is not a tokenizer"), "{refused}");
    let small = folder_of_bytes();
    assert!(matches!(Tokens::read(&small, &Config::read(&small).unwrap()), Ok(Tokens::Bytes { bos: 0 })));
}

fn folder_of_bytes() -> PathBuf {
    folder("bytes", "llama", 16, 300, &json!({}))
}
