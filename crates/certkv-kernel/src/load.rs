//! The queries of a call, made ready for every block: folded, rotated, and as digits where no block's scales are in them.
use crate::arch::generic::keys::digits_of;
use crate::attend::{Kernel, Workspace};
use crate::error::KernelError;
use crate::line::{Line, fill};
use crate::magnitude::square;
use crate::query::Shape;
use crate::slack::inflate;
use crate::turbo::turn_in;
use certkv_codec::KeyMetric;
use certkv_core::PageCode;

impl Kernel {
    /// Copies and checks the queries, and makes what does not depend on the block. Of a calibrated format without `metric`
    /// nothing can be scored but rows.
    pub(crate) fn load_query(
        &self,
        queries: &[f32],
        metric: Option<KeyMetric<'_>>,
        work: &mut Workspace,
    ) -> Result<(), KernelError> {
        let Shape { heads, dim, .. } = self.shape;
        if queries.len() != heads * dim {
            return Err(KernelError::Length { argument: "queries", expected: heads * dim, given: queries.len() });
        }
        for (h, q) in queries.chunks_exact(dim).enumerate() {
            if q.iter().any(|x| !x.is_finite()) {
                return Err(KernelError::NonFiniteQuery { head: h });
            }
            work.reach[h] = inflate(f64::from(self.scale) * square(q).sqrt());
        }
        fill(&mut work.q, queries);
        let calibrated = self.layout.format.key.is_calibrated();
        work.folded.clear();
        let metric = metric.filter(|m| calibrated && m.check(&self.layout).is_ok());
        if let Some(books) = metric.and_then(|m| m.books()) {
            self.load_directions(books, work);
            return Ok(());
        }
        if let Some(metric) = metric {
            work.folded.fold(queries, &metric, self.scale);
        }
        if calibrated && !work.folded.ready {
            return Ok(());
        }
        let groups = metric.and_then(|m| m.groups());
        if let Some(groups) = groups {
            work.parts.set(groups, self.shape.tokens);
        }
        if self.layout.format.key.page().is_some_and(PageCode::is_float) {
            self.load_float_query(work);
        } else if self.scales_after_products() {
            // Groups of unlike width are made of tiles, whose digits are summed together below.
            let (n, group) = (dim / 16, if groups.is_some() { 16 } else { self.layout.format.key.group(dim) });
            let mut turned = [Line::ZERO; 16];
            for h in 0..heads {
                let from = if calibrated { &work.folded.q } else { &work.q };
                let plain = &from[h * n..(h + 1) * n];
                let q = match (groups, self.turbo.as_ref().filter(|t| t.keys.is_some())) {
                    (Some(groups), _) => {
                        turn_in(groups, plain, &mut turned);
                        &turned[..n]
                    }
                    (None, Some(turbo)) => {
                        turbo.turn(plain, &mut turned);
                        &turned[..n]
                    }
                    (None, None) => plain,
                };
                digits_of(q, h, group, &mut work.digits);
                if groups.is_some() {
                    work.parts.gather(&mut work.digits.sums[h]);
                }
                let reach = if calibrated { work.folded.reach[h] } else { work.reach[h] };
                (work.digits.l1[h], work.digits.square[h]) = (reach, reach);
            }
        }
        Ok(())
    }
}
