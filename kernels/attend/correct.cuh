// Corrections, math.md (6.11): what some blocks have added to a pass is taken away, and what they say with more of their residuals is added.
//
// How finely a pass has to read a block it can only estimate (refine.cuh). When it is over, everything is known: the sum of exponentials, the output and
// its norm, and every block's term. So a pass keeps its state; for a head over tolerance the select kernel picks the sides that it needs (6.6), and this
// variant of the kernel goes over the blocks picked alone. What it reads is proportional to what was picked.
#pragma once

#if CKV_CORRECT

// old <- w - old as pairs of halves: the difference of the high halves, and in the low ones what that misses (by Knuth's sum) with the difference
// of theirs.
CKV_FN void subtract_from(Weights& old, const Weights& w) {
#pragma unroll
    for (int t = 0; t < TILES; t++) {
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const u32 x = high_weights(w, t, 0, i), y = high_weights(old, t, 0, i) ^ 0x80008000u;
            const u32 high = h2_add(x, y), part = h2_add(high, x ^ 0x80008000u);
            const u32 missed = h2_add(h2_add(x, h2_add(high, part ^ 0x80008000u) ^ 0x80008000u), h2_add(y, part ^ 0x80008000u));
            const u32 low = h2_add(missed, h2_add(low_weights(w, t, 0, i), low_weights(old, t, 0, i) ^ 0x80008000u));
            old.own[t][0][i] = PAIRED ? by_column(high, low, low_columns()) : high;
            old.rest[t][0][i] = PAIRED ? by_column(low, high, low_columns()) : low;
        }
    }
}

CKV_FN u32 refined_kind(u32 sides) { return (sides & KEYS ? REFINED_KEYS : 0) | (sides & VALUES ? REFINED_VALUES : 0); }

// One block into the state. What the pass has multiplied by the old weights is multiplied by the difference of both; residuals of values that it
// has not read, by the new ones.
CKV_FN void correct_block(const CkvAttendArgs& a, const Ring& ring, const Block& b, const Aside& aside, Query& q, State& st, Lot& lot) {
    static_assert(LOT % 2 == 0 && COLUMNS == 1, "two entries of a lot to a block, one column tile");
    const u32* summary = (const u32*)(b.record + CKV_SUMMARY);
    const u32 sides = b.flight.tail >> 1 & 3, before = b.flight.tail >> 3 & 3;
    // Whether the weights change.
    const bool moves = (sides & ~before & KEYS) != 0;
    if constexpr (QUERY_ASIDE) take_only_units(aside, q);
    Logits s, old_logits;
    KeySums key_sums;
    clear(s);
    bool finer = false;
#pragma unroll 1
    while (true) {
        score_codes<0>(b.record, q, finer, s, key_sums);
        if (!finer || !moves) old_logits = s;
        if (finer || !(sides & KEYS)) break;
        fetch_residuals<CKV_KEY_CODES>(ring, b.k, b.slot, CKV_KEY_RESIDUALS, KEY_PLANE);
        await_residuals(ring);
        finer = true;
    }
    if constexpr (WINDOWED) hide_rows(s, hidden_of(b.flight.tail)), hide_rows(old_logits, hidden_of(b.flight.tail));
    if constexpr (DRAFTED) hide_unseen<0>(s, hidden_of(b.flight.tail)), hide_unseen<0>(old_logits, hidden_of(b.flight.tail));
    if constexpr (SPLIT) {
        free_slot<KEYS>(a, ring, b);
        wait_slot<VALUES>(ring, b.slot, b.parity);
    }
    // Weights of both must stay within the halves.
    Logits larger;
#pragma unroll
    for (int t = 0; t < TILES; t++) {
#pragma unroll
        for (int i = 0; i < 4; i++) larger.x[t][0][i] = fmaxf(s.x[t][0][i], old_logits.x[t][0][i]);
    }
    follow<0>(larger, q, lift_of(u32_as_float(summary[7])), st);
    Weights w, old;
    // First what it weighed, then what it weighs: by one copy of the instructions.
#pragma unroll 1
    for (u32 now = 0; now < 2; now++) {
        float mass[COLUMNS][4];
        if (now) old = w, old_logits = s;
        weigh<0>(old_logits, q, st, w, mass);
        leave<0>(lot, st, mass, key_sums, summary, b.index, now ? refined_kind(sides) : TAKEN_BACK | refined_kind(before));
        const float sign = now ? 1.0f : -1.0f;
        st.l[0][0] = fma_rn(sign, mass[0][0], st.l[0][0]), st.l[0][1] = fma_rn(sign, mass[0][1], st.l[0][1]);
    }
    subtract_from(old, w);
    if (moves) add_codes<0>(b.record, old, false, st);
    if ((sides & VALUES) && (moves || !(before & VALUES))) {
        fetch_residuals<CKV_VALUE_CODES>(ring, b.k, b.slot, CKV_VALUE_RESIDUALS, VALUE_PLANE);
        await_residuals(ring);
        if (before & VALUES) w = old;
        add_codes<0>(b.record, w, true, st);
    }
    free_slot<SPLIT ? VALUES : WHOLE>(a, ring, b);
}
#endif
