// ckv_publish: certificates of a step to memory of the host, where they are read without waiting for the GPU.
//
// One launch behind the step's last layer. What it writes is a ring of entries, `certkv_device::mailbox`: this is its writing side. The number of
// the step comes from device memory, so that a recorded launch publishes every step that it is run for. A CTA takes a layer at a time. Of a
// head that was repaired, the certificate of the launch that computed it last counts; whoever ran the ladder is known from its lists.
//
// A step of drafts (attend/draft.cuh) has entries by token. A layer of it takes several launches; each has certificates and lists of its own, by the draft and
// the token of the group.
#include "machine.cuh"
#include "attend/args.cuh"

// Words of 8 bytes before the first slot, of a slot before its entry, of an entry before its heads, and of a head.
constexpr u32 RING_HEAD = 8, MARKS = 2, ENTRY_HEAD = 2, HEAD_WORDS = 2;
// What a head's state says. Status: of certkv_bound's Status; rungs: of its Rung.
constexpr u32 UNCERTIFIED = 0, CERTIFIED = 1, EXACT = 2, FAILED = 3, ABSENT = 255;
constexpr u32 PACKED = 0, MORE_KEYS = 1, EXACT_VALUES = 2, DENSE_HEAD = 3, DENSE_LAYER = 4;
constexpr u32 RULE_PACKED = 0, RULE_CERTIFIED = 1, RULE_DENSE = 2;
// Layers whose flags the arguments hold.
constexpr u32 MOST_LAYERS = 256;
// Launches that a layer can have.
constexpr u32 MOST_LAUNCHES = 8;

struct CkvPublishArgs {
    const u8* certificates;              // of a launch CkvCertificate[places][kv_heads][each][group]: of the first pass, and of the last that computed a repaired head
    const u8* lists;                     // of a launch u32[2][]: count, then place * kv_heads + head: repaired, and of those dense
    const u32* errors;                   // [rows] what append refused of a row
    const u32* rows;                     // [seqs]
    const CkvDraft* drafts;              // [launches][drafts_most], with none a token (count 0) where a launch has no more of it; null: of place i token i
    u64* ring;                           // mapped
    u64* published;                      // steps so far
    u32* arrived;                        // zero between launches
    u64 certificate_bytes;               // from those of the first pass to those of the last
    u64 certificate_layer;               // from a layer's to the next's
    u64 list_bytes;                      // the same of lists
    u64 list_layer;
    u64 launch_bytes;                    // from a launch's certificates to the next's, and from its lists
    u64 slot_words;
    u32 slots;
    u32 layers;
    u32 seqs;      // places of the entry: sequences, or tokens of drafts
    u32 kv_heads;
    u32 group;
    u32 rule;
    u32 launches;  // of a layer, at most
    u32 places;    // sequences of a launch, at most
    u32 drafts_most;
    u32 each[MOST_LAUNCHES];  // tokens of a sequence that a launch has room for
    u32 attended[MOST_LAYERS / 32];  // a bit a layer: whether it has certificates of this step
    u32 exact[MOST_LAYERS / 32];     // whether its records are the originals, of which nothing is repaired
};

// Two words of a head: bound and tolerance, norm and state.
CKV_FN Vec4 head_of(const CkvPublishArgs& a, const CkvCertificate& c, u32 place, u32 rung) {
    const bool sound = fabsf(c.bound) < u32_as_float(0x7f800000u) && fabsf(c.e_arith) < u32_as_float(0x7f800000u);
    u32 status = FAILED;
    if (a.rule == RULE_PACKED) status = UNCERTIFIED;
    else if (a.rule == RULE_CERTIFIED && c.status == CERTIFIED && sound) status = CERTIFIED;
    else if (c.status == EXACT && sound) status = EXACT;
    if (a.errors[a.rows[place]]) status = FAILED;
    return Vec4{float_as_u32(c.bound), float_as_u32(c.tolerance), float_as_u32(c.norm), status | rung << 8};
}

// The draft at a place of a launch.
CKV_FN CkvDraft draft_at(const CkvPublishArgs& a, u32 launch, u32 place) {
    return a.drafts == nullptr ? CkvDraft{0, 1, place, 0} : a.drafts[launch * a.drafts_most + place];
}

// Where head `h` of token `t` of KV head `kv` of a draft is in a layer's entries.
CKV_FN u32 entry_of(const CkvPublishArgs& a, const CkvDraft& d, u32 kv, u32 t, u32 h) { return ((d.row + t) * a.kv_heads + kv) * a.group + h; }

CKV_FN bool has(const u32* bits, u32 layer) { return bits[layer / 32] >> (layer % 32) & 1; }

extern "C" __global__ void __launch_bounds__(256, 1) ckv_publish(const __grid_constant__ CkvPublishArgs a) {
    grid_dependency_wait();
    grid_dependency_launch();
    const u64 number = *a.published + 1;
    u64* slot = a.ring + RING_HEAD + (number - 1) % a.slots * a.slot_words;
    const u32 me = threadIdx.x, heads = a.kv_heads * a.group, all = a.seqs * heads;
    if (me == 0) {
        *(volatile u64*)slot = number;
        fence_system();
        if (blockIdx.x == 0) {
            slot[MARKS] = a.seqs | (u64)a.layers << 32;
            slot[MARKS + 1] = heads | (u64)a.rule << 32;
        }
    }
    sync_threads();
    for (u32 layer = blockIdx.x; layer < a.layers; layer += gridDim.x) {
        Vec4* to = (Vec4*)(slot + MARKS + ENTRY_HEAD + (u64)layer * all * HEAD_WORDS);
        if (!has(a.attended, layer)) {
            for (u32 i = me; i < all; i += blockDim.x) to[i] = Vec4{0, 0, 0, ABSENT};
            continue;
        }
        const u32 rung = a.rule == RULE_DENSE ? DENSE_LAYER : PACKED;
        for (u32 launch = 0; launch < a.launches; launch++) {
            const u32 columns = a.each[launch] * a.group;
            if (columns == 0) continue;
            const CkvCertificate* first = (const CkvCertificate*)(a.certificates + layer * a.certificate_layer + launch * a.launch_bytes);
            const CkvCertificate* last = (const CkvCertificate*)((const u8*)first + a.certificate_bytes);
            // Column i % columns of head i / columns of the launch, of pass `from` on rung `on`.
            const auto put = [&](u32 i, const CkvCertificate* from, u32 on) {
                const u32 place = i / columns / a.kv_heads, kv = i / columns % a.kv_heads, t = i % columns / a.group;
                const CkvDraft d = draft_at(a, launch, place);
                const u32 at = entry_of(a, d, kv, t, i % a.group);
                if (t < d.count && at < all) to[at] = head_of(a, from[i], d.row + t, on);
            };
            for (u32 i = me; i < a.places * a.kv_heads * columns; i += blockDim.x) put(i, first, rung);
            if (a.rule != RULE_CERTIFIED || has(a.exact, layer)) continue;
            for (u32 list = 0; list < 2; list++) {
                const u32* ids = (const u32*)(a.lists + layer * a.list_layer + launch * a.launch_bytes + list * a.list_bytes);
                const u32 most = a.places * a.kv_heads, count = ids[0] < most ? ids[0] : most;
                sync_threads();
                for (u32 j = me; j < count * columns; j += blockDim.x) {
                    if (ids[1 + j / columns] >= most) continue;
                    const u32 i = ids[1 + j / columns] * columns + j % columns;
                    const u32 repaired = first[i].e_key >= first[i].e_val ? MORE_KEYS : EXACT_VALUES;
                    put(i, last, list ? DENSE_HEAD : repaired);
                }
            }
        }
    }
    // Every thread's words before its CTA's count, every CTA's before the mark.
    fence_system();
    sync_threads();
    if (me == 0 && atomic_add_acq_rel(a.arrived, 1) == gridDim.x - 1) {
        *a.arrived = 0;
        *a.published = number;
        fence_system();
        ((volatile u64*)slot)[1] = number;
        fence_system();
        *(volatile u64*)a.ring = number;
    }
}
