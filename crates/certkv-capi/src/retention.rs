//! Retention for `config->retention`.
use crate::argument;
use crate::guard::{Failure, guard};
use crate::parameters::{Parameters, gate_fields};
use crate::status::certkv_status;
use certkv::retention::Rule;
use certkv::{Measure, Retention};
use core::mem::offset_of;

/// Which loss of a block at a level retention goes by.
pub type certkv_measure = i32;
/// What its terms in the certificate come to as errors become small. It tells levels apart whose bounds say no more than that an output may be
/// anything. The default.
pub const CERTKV_MEASURE_LINEAR: certkv_measure = 0;
/// The terms themselves.
pub const CERTKV_MEASURE_BOUND: certkv_measure = 1;

/// Rate-distortion retention over `config->levels`, with blocks of layers for items: each level counts for what it would lose in the certificates of the
/// last step, and all layers share one budget of bytes. Fill it with certkv_retention_init, then set `bytes_per_token`. Every field is taken as it
/// is: 0 is no default. Each block is coded once at every level, to see what it loses there.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct certkv_retention {
    /// sizeof(certkv_retention) of the caller's header.
    pub struct_size: u32,
    /// Which loss it goes by.
    pub measure: certkv_measure,
    /// Bytes that a token of a full block may take in a layer on average over all layers, all KV heads together: codes, scales, summaries and seals.
    pub bytes_per_token: f64,
    /// The same on average over any one layer; infinite for no such limit, as it is filled.
    pub layer_bytes_per_token: f64,
    /// Share of a loss that stays from decision to decision; at least 0, below 1.
    pub keep: f64,
    /// A block goes down by itself if it loses at most this share of the price per byte; not negative,
    pub down: f64,
    /// and up if it saves at least so many times the price; above `down`, finite. Above 1 others make room for it.
    pub up: f64,
    /// What any change of a block counts for beside its loss, as a share of what the bytes of its first level are worth; finite, not negative.
    pub stick: f64,
    /// A gate over blocks whose rank is in danger: a block is protected from this danger on,
    pub gate_protect: f64,
    /// and down to this one, which is below it and not negative. Both 0, as they are filled: no gate.
    pub gate_release: f64,
    /// So many first blocks have the first level, always.
    pub protected_first: u64,
    /// And so many last ones.
    pub protected_last: u64,
    /// Steps between decisions of the first layers, 1 to 2^31.
    pub interval: u64,
    /// Decisions that a block rests after a change.
    pub cooldown: u32,
    /// 0.
    pub reserved: u32,
    /// The same as `layer_bytes_per_token` on average over any one KV head, all heads of the layer having as much; infinite for no such limit, as it is filled. Only where
    /// `config->levels_by_head` is 1.
    pub head_bytes_per_token: f64,
}

/// Fields that every caller has; those behind have their defaults in a caller's shorter struct.
const LEAST: usize = offset_of!(certkv_retention, head_bytes_per_token);

/// Fills `retention` with the defaults, and no budget: `bytes_per_token` is 0, which certkv_cache_create refuses. `struct_size` is the caller's
/// sizeof(certkv_retention); nothing is written beyond it.
///
/// Threads: any, at any time.
/// Stream: none.
/// Capture: safe.
/// Errors: NULL_POINTER, MISALIGNED, STRUCT_SIZE; `retention` is unchanged then.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn certkv_retention_init(retention: *mut certkv_retention, struct_size: u32) -> certkv_status {
    guard(|| {
        argument::aligned(retention, "retention")?;
        let size = argument::known_size::<certkv_retention>(struct_size, "retention", LEAST)?;
        let Rule { every, looks: _, keep, down, up, cooldown, stick, gate, ends } = Rule::default();
        let [gate_protect, gate_release] = gate_fields(gate);
        let filled = certkv_retention {
            struct_size,
            measure: CERTKV_MEASURE_LINEAR,
            bytes_per_token: 0.0,
            layer_bytes_per_token: f64::INFINITY,
            keep,
            down,
            up,
            stick,
            gate_protect,
            gate_release,
            protected_first: ends[0] as u64,
            protected_last: ends[1] as u64,
            interval: every as u64,
            cooldown,
            reserved: 0,
            head_bytes_per_token: f64::INFINITY,
        };
        // SAFETY: the caller's struct has `struct_size` bytes, and `size` is no more.
        unsafe { argument::write_prefix(retention, &filled, size) };
        Ok(())
    })
}

/// Reads what a configuration says of retention.
///
/// # Safety
/// `retention` is a struct of its `struct_size` bytes.
pub(crate) unsafe fn read(retention: *const certkv_retention) -> Result<Retention, Failure> {
    let name = "config->retention";
    // SAFETY: by the caller's promise; integers and floats, for which zero bits are a value.
    let given = unsafe { argument::read_struct(retention, name, LEAST)? };
    let parameters = Parameters::of(name);
    if given.reserved != 0 {
        return parameters.wrong("reserved", &given.reserved, "0");
    }
    let measure = match given.measure {
        CERTKV_MEASURE_LINEAR => Measure::Linear,
        CERTKV_MEASURE_BOUND => Measure::Bound,
        other => return parameters.wrong("measure", &other, "a CERTKV_MEASURE value"),
    };
    parameters.shares(&[("keep", given.keep)])?;
    parameters.finite(&[("down", given.down), ("up", given.up), ("stick", given.stick)])?;
    if given.up <= given.down {
        return parameters.wrong("up", &given.up, &format!("above down, {}", given.down));
    }
    parameters.counts(1, &[("interval", given.interval)])?;
    let ends = [("protected_first", given.protected_first), ("protected_last", given.protected_last)];
    parameters.counts(0, &ends)?;
    let rule = Rule {
        every: given.interval as usize,
        looks: Rule::default().looks,
        keep: given.keep,
        down: given.down,
        up: given.up,
        cooldown: given.cooldown,
        stick: given.stick,
        gate: parameters.gate(given.gate_protect, given.gate_release)?,
        ends: ends.map(|(_, blocks)| blocks as usize),
    };
    let (bytes_per_token, layer_bytes_per_token) = (given.bytes_per_token, given.layer_bytes_per_token);
    let shorter = given.struct_size as usize <= LEAST;
    let head_bytes_per_token = if shorter { f64::INFINITY } else { given.head_bytes_per_token };
    Ok(Retention { bytes_per_token, layer_bytes_per_token, head_bytes_per_token, measure, rule })
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::mem::zeroed;

    #[test]
    fn the_parameters_are_those_of_the_engine() {
        // SAFETY: integers and floats, for which zero bits are a value.
        let mut retention: certkv_retention = unsafe { zeroed() };
        let size = size_of::<certkv_retention>() as u32;
        // SAFETY: a whole struct.
        let read = unsafe {
            assert_eq!(certkv_retention_init(&mut retention, size), certkv_status::CERTKV_OK);
            retention.bytes_per_token = 99.0;
            read(&retention).unwrap()
        };
        assert_eq!(read, Retention::new(99.0));
    }
}
