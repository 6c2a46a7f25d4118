//! What the end of a prompt teaches layers with residual planes, so that the step behind it does not refine every block.
//!
//! A pass refines by what the steps before it have shown of a head, math.md (6.12), and without history refines everything: in a batch of others, a sequence
//! that joins would be the one that all wait for. The last row of its prompt has an output, too.
use super::core::Core;
use super::step::Part;
use crate::Error;
use certkv_kernel::cuda::args::Demand;

/// What is known of a head behind a row with that output, whose values have that centre: the twin of `learn` in kernels/attend/demand.cuh.
fn learned(before: Demand, output: &[f32], centre: &[f32]) -> Demand {
    let length = |of: &mut dyn Iterator<Item = f32>| of.map(|x| f64::from(x) * f64::from(x)).sum::<f64>().sqrt() as f32;
    let norm = length(&mut output.iter().copied());
    let radius = length(&mut output.iter().zip(centre).map(|(x, c)| x - c));
    let (fresh, faded) = (before.kappa <= 0.0, before.norm * Demand::FADE);
    Demand {
        norm: if fresh || norm < faded { norm } else { faded },
        radius,
        kappa: if fresh { Demand::KAPPA } else { before.kappa },
        unused: 0.0,
    }
}

/// Remembers what the outputs of a chunk's last row, `[q_heads][dim]`, say of a layer's heads. Waits for what was enqueued before, as chunks do.
pub(super) fn learn(core: &Core, layer: usize, part: &Part, outputs: &[f32]) -> Result<(), Error> {
    if core.kit(layer).corrects.is_none() {
        return Ok(());
    }
    let (s, stream) = (&core.sizes, core.queue.stream());
    let mut words = vec![0f32; s.q_heads() * Demand::WORDS];
    let mut centres = vec![0f32; s.kv_heads * s.dim];
    core.demands.read(stream, s.demand_at(layer, part.row), &mut words)?;
    core.centres.read(stream, s.centre_at(layer, part.row), &mut centres)?;
    let heads = words.as_chunks_mut::<{ Demand::WORDS }>().0.iter_mut().zip(outputs.chunks_exact(s.dim));
    for (head, (of, output)) in heads.enumerate() {
        let centre = &centres[head / s.group * s.dim..][..s.dim];
        let [norm, radius, kappa, unused] = *of;
        let d = learned(Demand { norm, radius, kappa, unused }, output, centre);
        *of = [d.norm, d.radius, d.kappa, d.unused];
    }
    Ok(core.demands.write(stream, s.demand_at(layer, part.row), &words)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_head_without_history_begins_with_its_prompt_and_others_go_on() {
        let (output, centre) = ([3.0, 0.0, 4.0], [3.0, -5.0, -8.0]);
        let fresh = learned(Demand::default(), &output, &centre);
        assert_eq!((fresh.norm, fresh.radius, fresh.kappa), (5.0, 13.0, Demand::KAPPA));
        // A smaller norm than of late is believed at once, a larger one slowly; what was learned of the share stays.
        for (late, norm) in [(20.0, 5.0), (1.0, Demand::FADE)] {
            let next = learned(Demand { norm: late, radius: 1.0, kappa: 0.5, unused: 0.0 }, &output, &centre);
            assert_eq!((next.norm, next.radius, next.kappa), (norm, 13.0, 0.5));
        }
    }
}
