//! A snapshot through the `metrics` facade. Whoever embeds the cache calls this as often as it likes; nothing else of the library knows
//! that there is a recorder.
use crate::counters::{Moves, Outputs};
use crate::snapshot::{PageUse, PrefixUse, ScratchUse, Snapshot};
use crate::spill::SpillUse;
use crate::{BytesRead, Histogram};
use certkv_core::histogram::BUCKETS;
use metrics::{Label, counter, gauge};

/// One publication: the labels that every number has.
struct To {
    labels: Vec<Label>,
}

/// A label whose value is a word of this library.
type Word = (&'static str, &'static str);

const RUNGS: [&str; 5] = ["packed", "more keys", "exact values", "dense head", "dense layer"];

impl To {
    fn with(&self, words: &[Word]) -> Vec<Label> {
        let words = words.iter().map(|(key, value)| Label::from_static_parts(key, value));
        self.labels.iter().cloned().chain(words).collect()
    }

    fn gauge(&self, name: &'static str, words: &[Word], value: usize) {
        gauge!(name, self.with(words)).set(value as f64);
    }

    fn counter(&self, name: &'static str, words: &[Word], value: u64) {
        counter!(name, self.with(words)).absolute(value);
    }

    /// Cumulative counts up to the last bucket that has any, then all of them, as Prometheus has it.
    fn histogram(&self, [bucket, sum, count]: [&'static str; 3], words: &[Word], of: &Histogram) {
        let last = of.counts.iter().rposition(|n| *n > 0).map_or(0, |at| at + 1);
        let mut below = 0;
        for (i, n) in of.counts.iter().enumerate().take(last.min(BUCKETS - 1)) {
            below += n;
            let Some(upper) = Histogram::upper(i) else { break };
            let mut labels = self.with(words);
            labels.push(Label::new("le", upper.to_string()));
            counter!(bucket, labels).absolute(below);
        }
        let mut labels = self.with(words);
        labels.push(Label::from_static_parts("le", "+Inf"));
        counter!(bucket, labels).absolute(of.count());
        self.counter(sum, words, of.sum);
        self.counter(count, words, of.count());
    }

    fn pages(&self, number: usize, pages: &PageUse) {
        for (class, counts) in
            [("host", &pages.host), ("packed", &pages.packed), ("tail", &pages.tail), ("swap", &pages.swap)]
        {
            let states =
                [("free", counts.free), ("live", counts.live), ("retiring", counts.retiring), ("worn", counts.worn)];
            for (state, n) in states {
                let mut labels = self.with(&[("class", class), ("state", state)]);
                labels.push(Label::new("group", number.to_string()));
                gauge!("certkv_pages", labels).set(n as f64);
            }
        }
    }

    fn scratch(&self, scratch: &ScratchUse) {
        let side = ("side", if scratch.side == crate::Side::Key { "key" } else { "value" });
        let (slots, stats) = (&scratch.slots, &scratch.stats);
        for (state, n) in [("empty", slots.empty), ("named", slots.named), ("retiring", slots.retiring)] {
            self.gauge("certkv_scratch_slots", &[side, ("state", state)], n);
        }
        let absent = stats.misses.saturating_sub(stats.pending);
        for (result, n) in [("hit", stats.hits), ("pending", stats.pending), ("miss", absent)] {
            self.counter("certkv_scratch_lookups", &[side, ("result", result)], n);
        }
        for (why, n) in [("evicted", stats.evictions), ("invalidated", stats.invalidated)] {
            self.counter("certkv_scratch_dropped", &[side, ("why", why)], n);
        }
        for (result, n) in [("done", stats.filled), ("refused", stats.refused), ("failed", stats.failed)] {
            self.counter("certkv_fills", &[side, ("result", result)], n);
        }
        self.counter("certkv_fill_bytes", &[side], scratch.filled_bytes);
        let hit =
            ["certkv_scratch_age_at_hit_bucket", "certkv_scratch_age_at_hit_sum", "certkv_scratch_age_at_hit_count"];
        self.histogram(hit, &[side], &stats.age_at_hit);
        let names = [
            "certkv_scratch_age_at_eviction_bucket",
            "certkv_scratch_age_at_eviction_sum",
            "certkv_scratch_age_at_eviction_count",
        ];
        self.histogram(names, &[side], &stats.age_at_eviction);
    }

    fn prefixes(&self, prefixes: &PrefixUse) {
        let stats = &prefixes.stats;
        self.gauge("certkv_prefix_units", &[("state", "cached")], prefixes.units);
        self.gauge("certkv_prefix_units", &[("state", "free")], prefixes.most.saturating_sub(prefixes.units));
        self.counter("certkv_prefix_lookups", &[], stats.lookups);
        for (result, n) in [("hit", stats.hits), ("miss", stats.asked.saturating_sub(stats.hits))] {
            self.counter("certkv_prefix_units_asked", &[("result", result)], n);
        }
        self.counter("certkv_prefix_units_published", &[], stats.published);
        self.counter("certkv_prefix_units_evicted", &[], stats.evicted);
        self.counter("certkv_prefix_blocks_hollowed", &[], stats.hollowed);
        self.counter("certkv_prefix_collisions", &[], stats.collisions);
        let hit = ["certkv_prefix_age_at_hit_bucket", "certkv_prefix_age_at_hit_sum", "certkv_prefix_age_at_hit_count"];
        self.histogram(hit, &[], &stats.age_at_hit);
        let eviction = [
            "certkv_prefix_age_at_eviction_bucket",
            "certkv_prefix_age_at_eviction_sum",
            "certkv_prefix_age_at_eviction_count",
        ];
        self.histogram(eviction, &[], &stats.age_at_eviction);
    }

    fn spill(&self, spill: &SpillUse) {
        let places =
            [("resident", spill.resident), ("stored", spill.stored), ("spilled", spill.spilled), ("free", spill.free)];
        for (state, n) in places {
            self.gauge("certkv_spill_slots", &[("state", state)], n);
        }
        for (result, n) in [("done", spill.records.deleted), ("failed", spill.records.delete_failures)] {
            self.counter("certkv_spill_deletes", &[("result", result)], n);
        }
        self.gauge("certkv_spill_doomed", &[], spill.records.doomed);
        let waits = [
            "certkv_spill_wait_nanoseconds_bucket",
            "certkv_spill_wait_nanoseconds_sum",
            "certkv_spill_wait_nanoseconds_count",
        ];
        self.histogram(waits, &[], &spill.waits);
    }

    fn moves(&self, kind: &'static str, moves: &Moves) {
        let kind = ("kind", kind);
        for (result, n) in [("done", moves.done.count()), ("refused", moves.refused), ("failed", moves.failed)] {
            self.counter("certkv_moves", &[kind, ("result", result)], n);
        }
        let names = ["certkv_move_bytes_bucket", "certkv_move_bytes_sum", "certkv_move_bytes_count"];
        self.histogram(names, &[kind], &moves.done);
    }

    fn outputs(&self, outputs: &Outputs) {
        let statuses = [
            ("certified", outputs.certified),
            ("exact", outputs.exact),
            ("uncertified", outputs.uncertified),
            ("failed", outputs.failed),
        ];
        for (status, n) in statuses {
            self.counter("certkv_outputs", &[("status", status)], n);
        }
        for (rung, n) in RUNGS.into_iter().zip(outputs.by_rung) {
            self.counter("certkv_outputs_by_rung", &[("rung", rung)], n);
        }
        self.counter("certkv_prompt_outputs", &[], outputs.prompt);
    }

    fn read(&self, read: &BytesRead) {
        for (from, n) in [("packed", read.packed), ("scratch", read.scratch), ("host", read.host)] {
            self.counter("certkv_bytes_read", &[("from", from)], n);
        }
    }
}

impl Snapshot {
    /// Gives every number to the recorder of the `metrics` facade, under the names in docs/metrics.md, each with the label `cache`. What
    /// is `None` is not given. Without a recorder nothing happens.
    ///
    /// Costs some 150 look-ups of the recorder, and allocates their labels: for once a second, not for once a step.
    pub fn publish(&self, cache: &str) {
        let to = To { labels: vec![Label::new("cache", cache.to_owned())] };
        self.pages.iter().enumerate().for_each(|(number, pages)| to.pages(number, pages));
        for of in &self.classes {
            let class = [("class", of.class.name())];
            to.gauge("certkv_bytes_used", &class, of.used);
            to.gauge("certkv_bytes_reserved", &class, of.reserved);
            to.gauge("certkv_bytes_reserved_peak", &class, of.peak);
        }
        for of in &self.pools {
            let pool = [("pool", of.pool.name())];
            to.gauge("certkv_pool_bytes", &pool, of.reserved);
            to.gauge("certkv_pool_bytes_peak", &pool, of.peak);
            if of.budget < usize::MAX {
                to.gauge("certkv_pool_budget_bytes", &pool, of.budget);
            }
        }
        to.gauge("certkv_sequences", &[("state", "idle")], self.sequences - self.busy);
        to.gauge("certkv_sequences", &[("state", "busy")], self.busy);
        to.gauge("certkv_tokens", &[], self.tokens);
        self.scratch.iter().flatten().for_each(|scratch| to.scratch(scratch));
        self.prefixes.iter().for_each(|prefixes| to.prefixes(prefixes));
        self.spill.iter().for_each(|spill| to.spill(spill));
        let moves = [
            ("spill", self.spills.as_ref()),
            ("fetch", self.fetches.as_ref()),
            ("store", self.stores.as_ref()),
            ("copy", Some(&self.copies)),
            ("save", Some(&self.saves)),
            ("restore", Some(&self.restores)),
            ("swap out", Some(&self.swap_outs)),
            ("swap in", Some(&self.swap_ins)),
            ("recode", self.recodes.as_ref()),
        ];
        for (kind, moves) in moves {
            moves.into_iter().for_each(|moves| to.moves(kind, moves));
        }
        self.outputs.iter().for_each(|outputs| to.outputs(outputs));
        self.read.iter().for_each(|read| to.read(read));
        self.rows.iter().for_each(|n| to.counter("certkv_rows_read", &[], *n));
        self.saturated.iter().for_each(|n| to.counter("certkv_saturated", &[], *n));
        let waits = ["certkv_wait_nanoseconds_bucket", "certkv_wait_nanoseconds_sum", "certkv_wait_nanoseconds_count"];
        to.histogram(waits, &[], &self.waits);
    }
}
