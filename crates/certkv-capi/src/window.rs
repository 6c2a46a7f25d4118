//! Sliding windows, as C says them.
use crate::argument;
use crate::config::CERTKV_NO_SLACK;
use crate::guard::Failure;
use crate::status::certkv_status::CERTKV_INVALID_ARGUMENT;
use certkv::Window;

/// What the queries of a layer see: the last `tokens` tokens, their own among them, and the first `sinks` of the sequence. All 0 for a layer
/// without a window.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct certkv_window {
    /// Newest tokens that a query sees, its own among them, at most 2^31; 0 for all, and then the other fields are 0.
    pub tokens: u64,
    /// First tokens of the sequence that every later query sees as well, at most 2^31.
    pub sinks: u64,
    /// Most tokens of a sequence in one step, at most 2^31; 0 for 512.
    pub chunk: u64,
}

/// Windows of all layers.
///
/// # Safety
/// `windows` is NULL or has `n` elements.
pub(crate) unsafe fn read(windows: *const certkv_window, n: u32, slack: u64) -> Result<Vec<Option<Window>>, Failure> {
    // SAFETY: by the caller's promise.
    let given = unsafe { argument::slice(windows, n.into(), "config->windows")? };
    let slack = match slack {
        0 => None,
        CERTKV_NO_SLACK => Some(0),
        n if n > 1 << 31 => {
            return Err(argument::invalid(format!("config->window_slack = {n}: more than 2^31")));
        }
        n => Some(n as usize),
    };
    if slack.is_some() && given.iter().all(|window| window.tokens == 0) {
        return Err(argument::invalid("config->window_slack is set, and no layer has a window".to_owned()));
    }
    let one = |(at, window)| Ok(self::one(at, window)?.map(|window| Window { slack, ..window }));
    given.iter().enumerate().map(one).collect()
}

fn one(at: usize, given: &certkv_window) -> Result<Option<Window>, Failure> {
    let size = |n: u64| usize::try_from(n).unwrap_or(usize::MAX);
    let certkv_window { tokens, sinks, chunk } = *given;
    match tokens {
        0 if (sinks, chunk) == (0, 0) => Ok(None),
        0 => {
            let why = format!("config->windows[{at}]: no tokens, and sinks or a chunk");
            Err(Failure::new(CERTKV_INVALID_ARGUMENT, why))
        }
        _ => {
            let window = Window::new(size(tokens)).with_sinks(size(sinks));
            Ok(Some(Window { chunk: if chunk == 0 { window.chunk } else { size(chunk) }, ..window }))
        }
    }
}
