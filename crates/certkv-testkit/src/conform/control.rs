//! Controllers: allocations and gates are exact.
use super::certificates::{BOUND_LIMIT, columns};
use super::{ConformError, Family, Report};
use crate::cgv::Vectors;
use certkv_control::{Allocator, Choices, Gate, allocate_bits, danger};

pub(crate) const FAMILIES: &[Family] = &[
    Family { prefix: "alloc_bytes", replay: alloc_bytes },
    Family { prefix: "gtq_alloc", replay: gtq_alloc },
    Family { prefix: "gate", replay: gate },
];

fn alloc_bytes(_: &str, v: &Vectors, report: &mut Report) -> Result<(), ConformError> {
    let [cost, loss] = columns(v, ["cost", "dist"])?;
    let choices = Choices { levels: v.matrix("cost")?.1, cost: &cost, loss: &loss };
    let mut allocator = Allocator::new();
    for i in (0..).take_while(|i| v.has(&format!("budget{i}"))) {
        let found = allocator.solve(&choices, v.scalar(&format!("budget{i}"))?).map_err(ConformError::refused)?;
        let levels = found.level.iter().map(|level| i64::from(*level));
        report.exact_ints("levels within a budget of bytes", levels, &v.i64s(&format!("level{i}"))?);
        report.relative("bytes of these levels", &[found.used], &[v.scalar(&format!("used{i}"))?], BOUND_LIMIT);
    }
    Ok(())
}

fn gtq_alloc(_: &str, v: &Vectors, report: &mut Report) -> Result<(), ConformError> {
    let mut bits = Vec::new();
    for i in (0..).take_while(|i| v.has(&format!("score{i}"))) {
        let number = |name: &str| v.scalar(&format!("{name}{i}"));
        let (budget, least, most) = (number("budget")?, number("min")?, number("max")?);
        allocate_bits(&v.f64s(&format!("score{i}"))?, budget as usize, least as u8, most as u8, &mut bits)
            .map_err(ConformError::refused)?;
        report.exact_ints("bits of pairs", bits.iter().map(|b| i64::from(*b)), &v.i64s(&format!("bits{i}"))?);
    }
    Ok(())
}

fn gate(_: &str, v: &Vectors, report: &mut Report) -> Result<(), ConformError> {
    let [mass, delta] = columns(v, ["lm", "D"])?;
    let mut found = Vec::new();
    danger(&mass, &delta, &mut found).map_err(ConformError::refused)?;
    report.relative("danger", &found, &v.f64s("danger")?, BOUND_LIMIT);
    let mut gate = Gate::default();
    let on = v.f64s("trace")?.into_iter().map(|x| i64::from(gate.step(x)));
    report.exact_ints("gate", on, &v.i64s("on")?);
    Ok(())
}
