use super::*;
use crate::checks::tests::Lcg;

const NONE: Used = Used { exact_keys: false, exact_values: false };
const BOTH: Used = Used { exact_keys: true, exact_values: true };

fn block(r: &mut Lcg, n: usize, d: usize) -> (Vec<f64>, Vec<f64>, Annotation) {
    let z = (0..n).map(|_| 2.0 * r.normal()).collect();
    let v = (0..n * d).map(|_| r.normal()).collect();
    let a = Annotation {
        delta: 0.1 * r.uniform(),
        lambda: 0.1 * r.uniform(),
        radius: 3.0 * r.uniform(),
        eta: 0.1 * r.uniform(),
        sop: 0.1 * r.uniform(),
    };
    (z, v, a)
}

fn close(a: &Finished, b: &Finished, tol: f64) {
    assert!(a.output.iter().zip(&b.output).all(|(x, y)| (x - y).abs() <= tol));
    assert!((a.lse - b.lse).abs() <= tol && (a.bound - b.bound).abs() <= tol * (1.0 + b.bound));
}

#[test]
fn splits_in_any_order_give_the_same_certificate() {
    let mut r = Lcg(3);
    for _ in 0..50 {
        let blocks: Vec<_> = (0..6).map(|_| block(&mut r, 4, 3)).collect();
        let whole = |order: &[usize]| {
            let mut s = Stream::new(3);
            for &b in order {
                s.add_block(&blocks[b].0, &blocks[b].1, &blocks[b].2, NONE).unwrap();
            }
            s
        };
        let c = [0.1, -0.2, 0.3];
        let reference = whole(&[0, 1, 2, 3, 4, 5]).finish(&c).unwrap();
        close(&whole(&[5, 3, 1, 0, 2, 4]).finish(&c).unwrap(), &reference, 1e-12);
        let mut s = whole(&[4, 5]);
        s.merge(&Stream::new(3)).unwrap();
        s.merge(&whole(&[0])).unwrap();
        s.merge(&whole(&[1, 3, 2])).unwrap();
        close(&s.finish(&c).unwrap(), &reference, 1e-12);
    }
}

#[test]
fn repair_equals_recomputation() {
    let mut r = Lcg(4);
    let mut refused = 0;
    for _ in 0..200 {
        let blocks: Vec<_> = (0..6).map(|_| block(&mut r, 4, 3)).collect();
        let run = |promoted: Option<usize>| {
            let mut s = Stream::new(3);
            for (b, (z, v, a)) in blocks.iter().enumerate() {
                s.add_block(z, v, a, if promoted == Some(b) { BOTH } else { NONE }).unwrap();
            }
            s
        };
        let (z, v, a) = &blocks[2];
        let mut s = run(None);
        match s.remove_block(z, v, a, NONE) {
            Ok(()) => {
                s.add_block(z, v, a, BOTH).unwrap();
                close(&s.finish(&[0.0; 3]).unwrap(), &run(Some(2)).finish(&[0.0; 3]).unwrap(), 1e-11);
            }
            Err(BoundError::Cancellation { share }) => {
                assert!(share > 0.5);
                assert_eq!(s, run(None), "a refused removal changes nothing");
                refused += 1;
            }
            Err(e) => panic!("{e}"),
        }
    }
    assert!(refused > 0, "the cancellation guard was never exercised");
}

#[test]
fn empty_masked_and_far_apart() {
    let mut s = Stream::new(2);
    s.add_block(&[f64::NEG_INFINITY; 3], &[1.0; 6], &Annotation { delta: 1.0, ..Annotation::EXACT }, NONE).unwrap();
    assert_eq!(s, Stream::new(2));
    assert_eq!(s.finish(&[0.0; 2]), Err(BoundError::NothingVisible));
    s.add_block(&[700.0], &[1.0, 1.0], &Annotation::EXACT, BOTH).unwrap();
    let mut far = Stream::new(2);
    far.add_block(&[-700.0], &[0.0, 0.0], &Annotation::EXACT, BOTH).unwrap();
    far.merge(&s).unwrap();
    let f = far.finish(&[0.0; 2]).unwrap();
    assert_eq!((f.output.as_slice(), f.bound), ([1.0, 1.0].as_slice(), 0.0));
}

#[test]
fn overflow_and_damage_are_reported_not_hidden() {
    let wide = Annotation { delta: 1e4, lambda: f64::INFINITY, radius: 1.0, eta: 0.0, sop: 0.0 };
    let nan = Annotation { radius: f64::NAN, delta: 0.1, ..Annotation::EXACT };
    let nan = Annotation { lambda: 1.0, ..nan };
    for a in [wide, nan] {
        let mut s = Stream::new(1);
        s.add_block(&[0.0], &[1.0], &Annotation::EXACT, BOTH).unwrap();
        s.add_block(&[0.0], &[1.0], &a, NONE).unwrap();
        let f = s.finish(&[0.0]).unwrap();
        assert_eq!([f.e_key, f.e_val, f.e_drop, f.bound], [f64::INFINITY; 4]);
    }
    let mut s = Stream::new(1);
    assert_eq!(
        s.add_block(&[f64::NAN], &[1.0], &Annotation::EXACT, BOTH),
        Err(BoundError::NotFinite { what: "logits", index: 0 })
    );
    assert_eq!(
        s.add_block(&[1.0], &[f64::INFINITY], &Annotation::EXACT, BOTH),
        Err(BoundError::NotFinite { what: "values", index: 0 })
    );
    assert!(s.add_block(&[1.0], &[1.0, 2.0], &Annotation::EXACT, BOTH).is_err());
    assert!(s.merge(&Stream::new(2)).is_err());
    assert_eq!(s, Stream::new(1));
}

#[test]
fn a_denominator_at_or_below_zero_is_infinite() {
    assert_eq!(certificate(0.1, 0.0, 0.0, 1.0), [f64::INFINITY; 4]);
    // 1 - h of rounding size: the quotient would be noise (seen: 3e65 where the exact value was infinite).
    assert_eq!(certificate(0.1, 0.0, 0.0, 1.0 - f64::EPSILON), [f64::INFINITY; 4]);
    assert!(certificate(0.1, 0.0, 0.0, 1.0 - 2.0 * LEAST_SLACK)[3] < f64::INFINITY);
    assert_eq!(certificate(f64::NAN, 0.0, 0.0, 0.0), [f64::INFINITY; 4]);
    assert_eq!(certificate(0.1, 0.2, 0.3, 0.5)[0], 0.2);
}

#[test]
fn drops_without_tokens_add_nothing_and_damaged_ones_are_infinite() {
    let mut s = Stream::new(1);
    s.add_block(&[0.0], &[1.0], &Annotation::EXACT, BOTH).unwrap();
    let before = s.clone();
    s.add_drop(0, 50.0, 1.0);
    s.add_drop(5, f64::NEG_INFINITY, 1.0);
    assert_eq!(s, before);
    s.add_drop(16, -3.0, 2.0);
    let f = s.finish(&[0.0]).unwrap();
    assert!((f.e_drop - 16.0 * (-3.0f64).exp() * (2.0 + 1.0)).abs() < 1e-12);
    s.add_drop(16, -3.0, f64::NAN);
    assert_eq!(s.finish(&[0.0]).unwrap().bound, f64::INFINITY);
}
