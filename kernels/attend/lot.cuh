// Certificates in lots: one block needs its four heads' numbers judged, which would leave 28 lanes idle and every warp waiting.
// So blocks leave their sums here, and LOT of them are certified at once, a block and head per lane.
#pragma once

struct Lot {
    Vec4* sums;          // [LOT][HEADS]: sum of weights, of their squares, of (q sigma)^2 over channels, and the exponent
    u32* summaries;      // [LOT][SUMMARY_WORDS]
    u32* blocks;         // [LOT][2]: index among those of the sequence that are seen; kind
    int count;
};

constexpr u32 EXACT_KEYS = 1, EXACT_VALUES = 2, OPEN = 4, REFINED_KEYS = 8, REFINED_VALUES = 16, TAKEN_BACK = 32;

// How a block is read before residuals are asked for.
CKV_FN u32 kind_of(bool exact_keys, bool exact_values, bool open) {
    return (exact_keys ? EXACT_KEYS : 0) | (exact_values ? EXACT_VALUES : 0) | (open ? OPEN : 0);
}

CKV_FN Lot lot_at(u8* shared) {
    Lot l;
    l.sums = (Vec4*)shared;
    l.summaries = (u32*)(shared + 32 * 16);
    l.blocks = l.summaries + LOT * SUMMARY_WORDS;
    l.count = 0;
    return l;
}

// Leaves column tiles from FIRST on of one block. `summary`: SUMMARY_WORDS words that every lane can read.
template <int FIRST>
CKV_FN void leave(Lot& l, const State& st, const float (&mass)[COLUMNS][4], const KeySums& keys, const u32* summary, u32 block, u32 kind) {
    const int r = lane() >> 2, c4 = lane() & 3;
    // The lane of row r, column r has head r's sums; which of its two columns that is depends on the parity of r.
    if (c4 == (r & 7) >> 1 && (!PAIRED || r < 4)) {
#pragma unroll
        for (int nt = 0; nt < COLUMNS; nt++) {
            const bool odd = r & 1;
            l.sums[l.count * HEADS + 8 * (FIRST + nt) + r] =
                Vec4{float_as_u32(odd ? mass[nt][1] : mass[nt][0]), float_as_u32(odd ? mass[nt][3] : mass[nt][2]),
                     float_as_u32(keys.square[nt]), float_as_u32(odd ? st.m[FIRST + nt][1] : st.m[FIRST + nt][0])};
        }
    }
    if constexpr (FIRST + COLUMNS < NT) return;
    if (lane() < SUMMARY_WORDS) l.summaries[l.count * SUMMARY_WORDS + lane()] = summary[lane()];
    if (lane() == SUMMARY_WORDS) *(Vec2*)(l.blocks + 2 * l.count) = Vec2{block, kind};
    l.count++;
}

// Certifies what was left. `aside`: where the sums are with SUMS_ASIDE; they are also returned. `row`: of the tables' heads.
CKV_FN void certify_lot(const CkvAttendArgs& a, Lot& l, const Query& q, u32 row, const Segment& seg, Sums& sums, const Aside& aside) {
    syncwarp();
    if constexpr (SUMS_ASIDE) take_sums(aside, sums);
    const int slot = lane() / HEADS, h = lane() % HEADS;
    if (slot < l.count && h < GROUP) {
        const u32* summary = l.summaries + slot * SUMMARY_WORDS;
        Summary b = load_summary((const u8*)summary);
        const Vec4 left = l.sums[lane()];
        const u32 kind = l.blocks[2 * slot + 1];
        if constexpr (REFINABLE) {
            // What is left of the errors of a side whose residuals were read.
            const Vec4 fine = *(const Vec4*)(summary + 8);
            if (kind & REFINED_KEYS) b.kappa = u32_as_float(fine.x), b.eps = u32_as_float(fine.y);
            if (kind & REFINED_VALUES) b.eta = u32_as_float(fine.z), b.sop = u32_as_float(fine.w);
        }
        const bool keys = kind & EXACT_KEYS, values = kind & EXACT_VALUES;
        const float m = u32_as_float(left.w);
        const float reach = take_reach(aside, q), step = take_step(aside, q);
        const LogitBound bound = bound_of_codes(b, q, h, reach, step, u32_as_float(left.z));
        const float zeta = keys ? row_zeta(b.key_norm, reach, step) : bound.zeta;
        const u32 index = l.blocks[2 * slot];
        // A block of which a token sees nothing adds nothing. There may be no exponent yet, which no rounding is relative to.
        const bool seen = !DRAFTED || sees_block(a, seg.seq, CORRECTS ? a.picks[(u64)seg.head * a.table_stride + index] >> 4 : index, h);
        if (seen) rescale(sums, m);
#if CKV_CORRECT
        if (seen && (kind & TAKEN_BACK)) {
            take_back(sums, b, bound, u32_as_float(left.x), u32_as_float(left.y));
        } else if (seen) {
            add_block(sums, b, bound, zeta, keys, values, u32_as_float(left.x), u32_as_float(left.y));
            sums.gross += u32_as_float(left.x) * 1.001f + BLOCK * 6.0e-8f;
        }
#else
        Found found = {0.0f, 0.0f};
        if (seen) found = add_block(sums, b, bound, zeta, keys, values, u32_as_float(left.x), u32_as_float(left.y));
        if (a.masses && !(kind & OPEN)) {
            const u64 at = (u64)row * a.table_stride + home_of(a, seg.row, seen_of(a, seg.tokens).number(index));
            a.masses[at * GROUP + h] = mass_word(m, u32_as_float(left.x), found);
            if (REFINABLE && a.looks && h == 0) a.looks[at] = (u8)((kind & REFINED_KEYS ? KEYS : 0) | (kind & REFINED_VALUES ? VALUES : 0));
        }
#endif
    }
    if constexpr (SUMS_ASIDE) put_sums(aside, sums);
    syncwarp();
    l.count = 0;
}

// Joins the lanes of each head: lanes 0..GROUP-1 hold the sums, relative to the running exponents of the state.
CKV_FN void join_sums(const State& st, Sums& s) {
    const int h = lane() % HEADS, r = lane() >> 2;
    const int keeper = 4 * (h & 7) + ((h & 7) >> 1);
    float m = 0.0f;
#pragma unroll
    for (int nt = 0; nt < NT; nt++) {
        const float x = shfl(r & 1 ? st.m[nt][1] : st.m[nt][0], keeper);
        if (h / 8 == nt) m = x;
    }
    rescale(s, m);
#pragma unroll
    for (int d = HEADS; d < 32; d <<= 1) {
        s.g += shfl_xor(s.g, d), s.gr += shfl_xor(s.gr, d), s.h += shfl_xor(s.h, d), s.v += shfl_xor(s.v, d);
        s.g_rows += shfl_xor(s.g_rows, d), s.gr_rows += shfl_xor(s.gr_rows, d);
        if constexpr (CORRECTS) s.gross += shfl_xor(s.gross, d);
        s.radius = most(shfl_xor(s.radius, d), s.radius);
        s.value_norm = most(shfl_xor(s.value_norm, d), s.value_norm);
    }
}
