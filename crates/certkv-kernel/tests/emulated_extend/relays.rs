//! Several launches over a chunk, over records of several levels or over all originals in parts: each takes over what the ones before have left.
use crate::emulated::{Buffer, Emulated, Launch};
use crate::extend_cases::relays::{Relay, relays};
use certkv_kernel::cuda::args::{Certificate, Element};
use certkv_kernel::cuda::extend::ExtendArgs;
use certkv_kernel::cuda::{Arch, Variant};
use rayon::prelude::*;
use std::cell::RefCell;

/// `warps`: of the first launch's CTAs; those of the others are cut otherwise. `spoil`: what to change of the outputs that it has left.
fn run(relay: &Relay, warps: usize, certify: bool, spoil: fn(f32) -> f32) -> (Vec<f32>, Vec<Certificate>) {
    let cut = |at: usize, variant: Variant| {
        let warps = if at.is_multiple_of(2) { warps } else { 3 - warps };
        variant.with_extend_shape(warps, 1 + at % 2).unwrap_or_else(|e| panic!("{e}"))
    };
    let variants = relay.variants(Arch::Sm90a, cut);
    let memory = RefCell::new(Vec::new());
    // Nobody reads what nobody has left.
    let kept = Buffer::of(&vec![0xffu8; relay.kept_bytes()]);
    let placed = relay.place(&variants, kept.pointer(), &mut |bytes| {
        let buffer = Buffer::of(bytes);
        let at = buffer.pointer();
        memory.borrow_mut().push(buffer);
        at
    });
    let (outputs, heads) = (placed[0].outputs, placed[0].heads);
    let out = Buffer::of(&vec![u32::MAX; outputs]);
    let certificates = Buffer::of(&vec![u32::MAX; heads * Certificate::WORDS]);
    let memory = memory.into_inner();
    for (at, (placed, variant)) in placed.iter().zip(&variants).enumerate() {
        let macros: Vec<(&str, i64)> = variant.macros().into_iter().map(|(name, x)| (name, x as i64)).collect();
        let kernel = Emulated::build("extend.cu", &macros).unwrap_or_else(|e| panic!("{e}"));
        let args = ExtendArgs {
            out: out.pointer(),
            sums: out.pointer(),
            out_type: Element::F32 as u32,
            certificates: if certify { certificates.pointer() } else { 0 },
            ..placed.args
        };
        // Those but the last write no certificate.
        let written = if at + 1 == variants.len() { 3 } else { 2 };
        let all: Vec<&Buffer> =
            memory.iter().chain([&kept, &out, &certificates]).take(memory.len() + written).collect();
        let shape = variant.extend_shape();
        let launch = Launch::new(args.tiles * args.kv_heads, shape.threads() as u32, shape.shared as u32);
        let launch = launch.seed(relay.spec().seed).truncating().noisy();
        kernel.launch("ckv_extend", launch, &args, &all).unwrap_or_else(|e| panic!("{}: {e}", relay.name()));
        if at == 0 {
            let words: Vec<u32> = out.read();
            out.write(0, &words.iter().map(|w| spoil(f32::from_bits(*w)).to_bits()).collect::<Vec<_>>());
        }
    }
    let certificates = certificates.read::<u32>().as_chunks().0.iter().map(Certificate::from_words).collect();
    (out.read(), certificates)
}

#[test]
fn chunks_in_several_launches_match_attention_in_f64() {
    let of = |(relay, short): (Relay, bool)| {
        let name = relay.name();
        let (out, certificates) = run(&relay, 2, true, |x| x);
        let v = relay.judge(&out, &certificates);
        assert!(v.wrong.is_empty(), "{name}: {} wrong, first {:#?}", v.wrong.len(), &v.wrong[..v.wrong.len().min(4)]);
        println!(
            "{name}: {} outputs, rounding {:.1e}, e_arith {:.1e}, bound {:.3}",
            v.outputs, v.rounding, v.arith, v.relative
        );
        // Certificates change no bit; how CTAs are cut does, where weights are small, within the bound.
        let bits = |out: &[f32]| out.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
        assert_eq!(bits(&run(&relay, 2, false, |x| x).0), bits(&out), "{name}");
        let (out, certificates) = run(&relay, 1, true, |x| x);
        assert!(relay.judge(&out, &certificates).wrong.is_empty(), "{name}");
        if !short {
            return (v.outputs, None);
        }
        // Half of what the first launch leaves of outputs.
        let (out, certificates) = run(&relay, 2, true, |x| x * 0.5);
        (v.outputs, Some(!relay.judge(&out, &certificates).wrong.is_empty()))
    };
    let found: Vec<(usize, Option<bool>)> = relays().into_par_iter().map(of).collect();
    let executed: usize = found.iter().map(|v| v.0).sum();
    let controls: Vec<bool> = found.iter().filter_map(|v| v.1).collect();
    let (seen, planted) = (controls.iter().filter(|seen| **seen).count(), controls.len());
    println!("GATE gpu-extend-relays executed={executed} failed=0 controls={seen}/{planted} seed=0x1e7e");
    assert_eq!(seen, planted);
}
