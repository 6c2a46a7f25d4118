// Drafts: several new tokens of a sequence in one launch. Variants with CKV_DRAFT take so many of them as if they were query heads of the same group: a
// block is read, decoded and refined once for all of them.
//
// A group has CKV_DRAFT times the query heads of a KV head, token by token. All tokens are stored, and the lengths of the launch count them; what a
// token does not see of the last blocks, those behind it, weighs nothing for its heads. A block that a draft fills before its last token lies in its tail until
// the step is over (close.cu), as one that the last token fills, so that a sequence can have two. Where a draft has fewer tokens the last one stands in
// for those missing, and is written once. Without drafts (CKV_DRAFT 0) a group is what it was, and nothing of this is compiled.
#pragma once

constexpr bool DRAFTED = CKV_DRAFT > 0;
// Query heads of a token.
constexpr int OF_TOKEN = DRAFTED ? GROUP / (DRAFTED ? CKV_DRAFT : 1) : GROUP;
static_assert(!DRAFTED || (GROUP % CKV_DRAFT == 0 && !WINDOWED), "whole tokens, which see all before them");
static_assert(!DRAFTED || WARPS > 1, "two tails of a sequence are two warps'");
// Whether blocks may be seen in part.
constexpr bool PARTLY = WINDOWED || DRAFTED;

// The first number of one of a launch's tables of query heads for head `h` of KV head `kv`, which is the same for all tokens of a draft.
CKV_FN u32 query_head(u32 kv, int h) { return kv * OF_TOKEN + (DRAFTED ? h % OF_TOKEN : h); }

CKV_FN CkvDraft draft_of(const CkvAttendArgs& a, u32 seq) {
    const Vec4 words = ldg((const Vec4*)(a.drafts + seq));
    return CkvDraft{words.x, words.y, words.z, words.w};
}

// Where the caller has head `h` of the group of KV head `kv` of a sequence: the first of its elements in queries or in outputs. Of a token that the draft
// lacks it is the last one's, which is read in its place; `own`: whether it is the head's own, and written.
CKV_FN u64 own_row(const CkvAttendArgs& a, const CkvStrides& strides, u32 seq, u32 kv, int h, bool& own) {
    own = true;
    if constexpr (!DRAFTED) return row_at(strides, seq, kv * GROUP + h);
    const CkvDraft d = draft_of(a, seq);
    const u32 token = (u32)(h / OF_TOKEN);
    own = token < d.count;
    return row_at(strides, d.row + (own ? token : d.count - 1), kv * OF_TOKEN + h % OF_TOKEN);
}

// Whether what head `h` of a group has learned is kept: that of the draft's last token.
CKV_FN bool learns(const CkvAttendArgs& a, u32 seq, int h) { return !DRAFTED || (u32)(h / OF_TOKEN) + 1 == draft_of(a, seq).count; }

// Whether head `h` of a group sees a token of block `block`.
CKV_FN bool sees_block(const CkvAttendArgs& a, u32 seq, u32 block, int h) {
    if constexpr (!DRAFTED) return true;
    const CkvDraft d = draft_of(a, seq);
    const u32 token = (u32)(h / OF_TOKEN), last = d.count - 1;
    return d.first + (token < last ? token : last) > block * BLOCK;
}

// What tokens of a draft see of block `block`: 0 if each sees all of it. Else how many of its rows the first one sees, less than none where the block
// lies behind it, plus CKV_DRAFT; and 256 times the draft's tokens.
CKV_FN u32 unseen_of(const CkvAttendArgs& a, u32 seq, u32 block) {
    if constexpr (!DRAFTED) return 0;
    const CkvDraft d = draft_of(a, seq);
    const i32 rows = (i32)d.first - (i32)(block * BLOCK);
    if (rows >= BLOCK) return 0;
    return (u32)((rows < -CKV_DRAFT ? -CKV_DRAFT : rows) + CKV_DRAFT) | d.count << 8;
}

// Rows that a token does not see weigh nothing for its heads. Column tiles from FIRST on.
template <int FIRST, class Logits> CKV_FN void hide_unseen(Logits& s, u32 unseen) {
    if (!DRAFTED || unseen == 0) return;
    const int rows = (int)(unseen & 0xffu) - CKV_DRAFT - (int)(lane() >> 2), last = (int)(unseen >> 8) - 1;
#pragma unroll
    for (int nt = 0; nt < COLUMNS; nt++) {
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const int column = (PAIRED ? 2 * (int)(lane() & 1) : 8 * (FIRST + nt) + 2 * (int)(lane() & 3)) + (i & 1);
            const int token = column / OF_TOKEN, seen = rows + (token < last ? token : last);
#pragma unroll
            for (int t = 0; t < TILES; t++) {
                if (16 * t + (i & 2) * 4 >= seen) s.x[t][nt][i] = -u32_as_float(0x7f800000u);
            }
        }
    }
}
