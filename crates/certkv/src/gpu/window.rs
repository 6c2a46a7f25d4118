//! Sliding windows of a cache on a GPU. Layers with the same window are a group: they share block tables and have pages of their own, which
//! are given up when no later query of theirs can see them. Which blocks that leaves of a sequence, the kernels see from its length
//! (`kernels/window.cuh`).
use super::config::GpuConfig;
use super::core::Core;
use super::step::Part;
use certkv_kernel::cuda::Sight;
use certkv_page::Window;

/// The window of each layer. One, none or one per layer are given.
pub(super) fn by_layer(config: &GpuConfig) -> Vec<Option<Window>> {
    let given = &config.windows;
    let of = |layer: usize| given.get(if given.len() == 1 { 0 } else { layer }).copied().flatten();
    (0..config.geometry.layers).map(of).collect()
}

/// Layers with the same window, which share block tables and pages: the window, and the layers' numbers.
pub(super) fn groups(windows: &[Option<Window>]) -> Vec<(Option<Window>, Vec<usize>)> {
    let mut groups: Vec<(Option<Window>, Vec<usize>)> = Vec::new();
    for (layer, window) in windows.iter().enumerate() {
        match groups.iter_mut().find(|group| group.0 == *window) {
            Some(group) => group.1.push(layer),
            None => groups.push((*window, vec![layer])),
        }
    }
    groups
}

/// A window as kernels take it. Its numbers were checked to be at most 2^31.
pub(super) fn sight(window: Window) -> Sight {
    Sight { tokens: window.tokens as u32, sinks: window.sinks as u32 }
}

/// Blocks that the query of the last of `tokens` tokens reads, the open one included.
pub(super) fn blocks_seen(window: Option<Window>, block: usize, tokens: usize) -> usize {
    let all = tokens.div_ceil(block);
    let Some(window) = window else { return all };
    let start = tokens.saturating_sub(window.tokens);
    let hidden = if start > window.sinks { (start / block).saturating_sub(window.sink_blocks(block)) } else { 0 };
    all - hidden
}

/// As many blocks, but for one a head, as attention of `seqs` sequences can read in a layer.
pub(super) fn most_blocks(core: &Core, layer: usize, seqs: usize) -> usize {
    let s = &core.sizes;
    seqs * s.kv_heads * blocks_seen(s.window(layer), s.block, s.stride * s.block)
}

/// Blocks that attention of the batch's new tokens reads in a layer.
pub(super) fn blocks(core: &Core, layer: usize, parts: &[Part]) -> usize {
    let s = &core.sizes;
    let seen = |part: &Part| blocks_seen(s.window(layer), s.block, part.len + 1);
    parts.iter().filter(|part| part.place.is_some()).map(|part| seen(part) * s.kv_heads).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn layers_with_the_same_window_are_a_group() {
        let [narrow, wide] = [Some(Window::new(40).with_sinks(70)), Some(Window::new(100))];
        let groups = groups(&[wide, None, narrow, wide, None]);
        assert_eq!(groups, [(wide, vec![0, 3]), (None, vec![1, 4]), (narrow, vec![2])]);
    }

    #[test]
    fn blocks_are_counted_as_they_are_seen() {
        for (tokens, sinks, len) in (1..9).flat_map(|t| (0..9).flat_map(move |s| (1..40).map(move |n| (t, s, n)))) {
            let window = Window::new(tokens).with_sinks(sinks);
            let seen = |b: usize| (4 * b..(4 * b + 4).min(len)).any(|t| t < sinks || t + tokens > len - 1);
            let blocks = (0..len.div_ceil(4)).filter(|b| seen(*b)).count();
            assert_eq!(blocks_seen(Some(window), 4, len), blocks, "{window:?} {len}");
        }
    }
}
