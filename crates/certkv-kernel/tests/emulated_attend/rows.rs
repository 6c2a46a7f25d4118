//! Queries and outputs that do not follow each other, and outputs of 16 bits.
use super::device_cases::{Arranged, Case, Spec};
use super::{checked, run, run_behind, variant};
use certkv_core::Dtype;
use certkv_kernel::cuda::args::{AttendArgs, Element, Strides};

/// Outputs are those of rows that follow each other, to the bit; of 16 bits those rounded, and the bound has what rounding took.
#[test]
fn rows_apart_have_the_outputs_of_rows_that_follow_each_other() {
    let (mut executed, mut narrow, mut caught) = (0, 0, 0);
    for (format, dim, group, store) in [
        ("k8-v4g64-b64", 128, 4, Dtype::F16),
        ("tq4-tq3-b32", 64, 6, Dtype::Bf16),
        ("k8-v4g32-b32", 256, 9, Dtype::F16),
        ("k8-v4g32-b16-r3.2", 64, 2, Dtype::F16),
    ] {
        let plain = Spec { store, seed: 9, ..Spec::new(format, dim, group, &[70, 33, 5]) };
        let dense = run(&Case::new(&plain), 4, |l| l.seed(3));
        for rows in Arranged::ways() {
            let spec = Spec { rows, ..plain.clone() };
            let case = Case::new(&spec);
            let r = run(&case, 4, |l| l.seed(3));
            checked(&case, &r);
            let rounded = |x: f32| match rows.out {
                Element::F32 => x,
                Element::F16 => Dtype::F16.decode16(Dtype::F16.encode16(x)),
                Element::Bf16 => Dtype::Bf16.decode16(Dtype::Bf16.encode16(x)),
            };
            for (i, (a, b)) in dense.certificates.iter().zip(&r.certificates).enumerate() {
                let [before, after] = [&dense.out, &r.out].map(|out| &out[i * dim..(i + 1) * dim]);
                assert!(before.iter().zip(after).all(|(x, y)| rounded(*x) == *y), "{format} {rows:?}, head {i}");
                let lost = |from: &[f32]| {
                    let squares = from.iter().zip(after).map(|(x, y)| (f64::from(*x) - f64::from(*y)).powi(2));
                    squares.sum::<f64>().sqrt()
                };
                let counted = f64::from(b.e_arith) - f64::from(a.e_arith);
                // By the rounding of the difference; a bound that is the cap has it twice.
                let slack = 1e-6 * f64::from(b.e_arith) + 1e-9;
                assert!(counted >= lost(before) - slack && counted <= 2.1 * lost(before) + slack, "{a:?} {b:?}");
                if rows.out == Element::F32 {
                    assert_eq!((a.bound, a.norm, a.status), (b.bound, b.norm, b.status));
                } else {
                    narrow += 1;
                    // A certificate that does not know of the rounding fails the check above.
                    caught += usize::from(lost(before) > slack);
                }
                executed += 1;
            }
        }
    }
    assert!(caught == narrow && narrow > executed / 2, "{caught} of {narrow}");
    println!("GATE gpu-rows executed={executed} failed=0 controls={caught}/{narrow} seed=0x9");
}

/// The controls: a launch that steps over nothing reads other queries, and writes between the outputs.
#[test]
fn a_launch_that_steps_over_nothing_is_seen() {
    let rows = Arranged { gap: 8, outside: false, out: Element::F32 };
    let case = Case::new(&Spec { rows, ..Spec::new("k8-v4g32-b32", 64, 2, &[70, 33]) });
    let dense = Strides::dense(4, 64);
    let with = |query_strides: Option<Strides>, out_strides: Option<Strides>| {
        run_behind(
            &case,
            &variant(&case.spec),
            true,
            3,
            |l| l.seed(1),
            |args, _| {
                let (query_strides, out_strides) =
                    (query_strides.unwrap_or(args.query_strides), out_strides.unwrap_or(args.out_strides));
                (AttendArgs { query_strides, out_strides, ..*args }, Vec::new())
            },
        )
    };
    let judged = |r: Result<super::Run, String>| r.map(|r| case.judge(&r.out, &r.certificates, &r.masses, &[]).wrong);
    assert_eq!(judged(with(None, None)), Ok(Vec::new()));
    assert!(judged(with(Some(dense), None)).is_ok_and(|wrong| !wrong.is_empty()));
    assert!(judged(with(None, Some(dense))).is_err_and(|why| why.contains("between outputs")));
}

/// An output that halves cannot hold is no output.
#[test]
fn an_output_beyond_halves_is_uncertified() {
    let rows = Arranged { out: Element::F16, ..Arranged::DENSE };
    let spec = Spec { rows, store: Dtype::Bf16, keys: 1.0, values: 1.0, ..Spec::new("k8-v4g32-b16", 64, 2, &[20]) };
    let mut case = Case::new(&spec);
    let small = run(&case, 2, |l| l.seed(1));
    assert!(small.certificates.iter().all(|c| c.bound.is_finite()));
    // Only the open block: its values are read as they are.
    for head in &mut case.heads {
        let from = 16 * 64;
        let large = |x: &u16| Dtype::Bf16.encode16(1e5 + Dtype::Bf16.decode16(*x));
        head.data.values =
            head.data.values.iter().enumerate().map(|(i, x)| if i < from { *x } else { large(x) }).collect();
        head.data.queries =
            head.data.queries.iter().map(|x| Dtype::Bf16.encode16(0.0 * Dtype::Bf16.decode16(*x))).collect();
    }
    // A fifth of 1e5 is held; four times as much is not.
    let held = run(&case, 2, |l| l.seed(1));
    assert!(held.certificates.iter().all(|c| c.bound.is_finite()), "{:?}", held.certificates[0]);
    for head in &mut case.heads {
        let more = |x: &u16| Dtype::Bf16.encode16(8.0 * Dtype::Bf16.decode16(*x));
        head.data.values =
            head.data.values.iter().enumerate().map(|(i, x)| if i < 16 * 64 { *x } else { more(x) }).collect();
    }
    let beyond = run(&case, 2, |l| l.seed(1));
    assert!(beyond.certificates.iter().all(|c| c.bound == f32::INFINITY && c.status == 0));
}
