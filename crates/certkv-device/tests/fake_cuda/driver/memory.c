/* Device memory, registered host memory, and copies. */
#include "fake.h"
#include <stdlib.h>
#include <string.h>

/* Where the device sees registered host memory: above every address of the process. */
static const address MAPPED = (address)1 << 56;
enum { GUARD_BYTES = 256, GUARD = 0xc3, UNWRITTEN = 0xa5 };

size_t fake_bytes_of(enum kind kind) {
    size_t bytes = 0;
    for (size_t i = 0; fake_listed(kind, i); i++) bytes += fake_listed(kind, i)->bytes;
    return bytes;
}

static struct object *holding(enum kind kind, address first, size_t bytes) {
    struct object *o;
    for (size_t i = 0; (o = fake_listed(kind, i)); i++) {
        address start = (address)(uintptr_t)o->memory;
        if (first >= start && first - start < o->bytes && bytes <= o->bytes - (first - start)) return o;
    }
    return NULL;
}

/* The host's pointer to an address of the device, the host's own included. */
unsigned char *fake_host(address first) {
    return (unsigned char *)(uintptr_t)(first >= MAPPED ? first - MAPPED : first);
}

/* Whether a range may be touched. `known`: an allocation or registration holds it; else it is the host's own business. A range
 * that begins in an allocation and does not end there is not accessible. */
bool fake_accessible(address first, size_t bytes, bool *known) {
    bool mapped = first >= MAPPED;
    address host = mapped ? first - MAPPED : first;
    *known = holding(REGISTRATION, host, bytes) || (!mapped && holding(ALLOCATION, host, bytes));
    if (*known) return true;
    return !mapped && first != 0 && !holding(ALLOCATION, host, 1) && !holding(REGISTRATION, host, 1);
}

EXPORT int cuMemGetInfo_v2(size_t *free_bytes, size_t *total) {
    CALL_IN_CONTEXT(cuMemGetInfo_v2);
    *total = (size_t)1 << 34;
    *free_bytes = *total - fake_bytes_of(ALLOCATION);
    return OK;
}

EXPORT int cuMemAlloc_v2(address *where, size_t bytes) {
    CALL_IN_CONTEXT(cuMemAlloc_v2);
    fake_forbidden_while_capturing();
    if (bytes == 0) return fake_violation("an allocation of no bytes");
    size_t used = fake_bytes_of(ALLOCATION);
    if (bytes > fake_device_limit || used > fake_device_limit - bytes) return OUT_OF_MEMORY;
    /* 256 bytes are the alignment that the real one promises. */
    size_t room = (bytes + 2 * GUARD_BYTES + 255) / 256 * 256;
    unsigned char *raw = aligned_alloc(256, room);
    if (!raw) return OUT_OF_MEMORY;
    memset(raw, UNWRITTEN, bytes);
    memset(raw + bytes, GUARD, room - bytes);
    struct object *o = fake_make(ALLOCATION, context);
    o->memory = raw;
    o->bytes = bytes;
    *where = (address)(uintptr_t)raw;
    return OK;
}

EXPORT int cuMemFree_v2(address where) {
    CALL_IN_CONTEXT(cuMemFree_v2);
    struct object *o = holding(ALLOCATION, where, 1);
    if (!o || (address)(uintptr_t)o->memory != where) return fake_violation("freed what is no allocation");
    if (o->context != context) return fake_violation("freed in another context");
    fake_drain_all();
    for (size_t i = 0; i < GUARD_BYTES; i++)
        if (o->memory[o->bytes + i] != GUARD) {
            fake_violation("somebody wrote behind an allocation");
            break;
        }
    free(o->memory);
    fake_kill(o);
    return OK;
}

EXPORT int cuMemHostRegister_v2(void *where, size_t bytes, unsigned flags) {
    CALL_IN_CONTEXT(cuMemHostRegister_v2);
    fake_forbidden_while_capturing();
    address first = (address)(uintptr_t)where;
    if (bytes == 0 || first % 4096 || bytes % 4096) return fake_violation("registered what is not whole pages");
    if (holding(REGISTRATION, first, 1) || holding(REGISTRATION, first + bytes - 1, 1)) {
        fake_violation("registered twice");
        return ALREADY_REGISTERED;
    }
    size_t used = fake_bytes_of(REGISTRATION);
    if (bytes > fake_pinned_limit || used > fake_pinned_limit - bytes) return OUT_OF_MEMORY;
    struct object *o = fake_make(REGISTRATION, context);
    o->memory = where;
    o->bytes = bytes;
    o->portable = flags & 1;
    return OK;
}

EXPORT int cuMemHostUnregister(void *where) {
    CALL_IN_CONTEXT(cuMemHostUnregister);
    struct object *o = holding(REGISTRATION, (address)(uintptr_t)where, 1);
    if (!o || o->memory != where) {
        fake_violation("unregistered what is not registered");
        return NOT_REGISTERED;
    }
    fake_kill(o);
    return OK;
}

EXPORT int cuMemHostGetDevicePointer_v2(address *device, void *where, unsigned flags) {
    CALL_IN_CONTEXT(cuMemHostGetDevicePointer_v2);
    if (flags || !holding(REGISTRATION, (address)(uintptr_t)where, 1)) return fake_violation("mapped what is not registered");
    *device = MAPPED + (address)(uintptr_t)where;
    return OK;
}

/* Kinds that each side of a copy may be of. */
enum side { ON_DEVICE, ON_HOST, ANYWHERE };

static bool fits(address first, size_t bytes, enum side side) {
    bool known;
    if (!fake_accessible(first, bytes, &known)) return false;
    bool allocated = holding(ALLOCATION, first, bytes) != NULL;
    return side == ANYWHERE || allocated == (side == ON_DEVICE);
}

static int enqueue_copy(struct object *stream, address to, address from, size_t bytes) {
    struct op op = {.kind = COPY, .to = to, .from = from, .bytes = bytes};
    fake_accessible(to, bytes, &op.to_known);
    fake_accessible(from, bytes, &op.from_known);
    return fake_enqueue(stream, &op);
}

static int copy(address to, enum side to_side, address from, enum side from_side, size_t bytes, handle stream) {
    struct object *s = fake_stream_of(stream);
    if (!s) return INVALID_HANDLE;
    if (!fits(to, bytes, to_side)) return fake_violation("a copy to where nothing is");
    if (!fits(from, bytes, from_side)) return fake_violation("a copy from where nothing is");
    return enqueue_copy(s, to, from, bytes);
}

EXPORT int cuMemcpyHtoDAsync_v2(address to, const void *from, size_t bytes, handle stream) {
    CALL_IN_CONTEXT(cuMemcpyHtoDAsync_v2);
    return copy(to, ON_DEVICE, (address)(uintptr_t)from, ON_HOST, bytes, stream);
}

EXPORT int cuMemcpyDtoHAsync_v2(void *to, address from, size_t bytes, handle stream) {
    CALL_IN_CONTEXT(cuMemcpyDtoHAsync_v2);
    return copy((address)(uintptr_t)to, ON_HOST, from, ON_DEVICE, bytes, stream);
}

EXPORT int cuMemcpyDtoDAsync_v2(address to, address from, size_t bytes, handle stream) {
    CALL_IN_CONTEXT(cuMemcpyDtoDAsync_v2);
    return copy(to, ON_DEVICE, from, ON_DEVICE, bytes, stream);
}

EXPORT int cuMemcpyAsync(address to, address from, size_t bytes, handle stream) {
    CALL_IN_CONTEXT(cuMemcpyAsync);
    return copy(to, ANYWHERE, from, ANYWHERE, bytes, stream);
}

struct location {
    int type, id;
};
struct copy_attributes {
    int order;
    struct location from, to;
    unsigned flags;
};

EXPORT int cuMemcpyBatchAsync_v2(
    address *to, address *from, size_t *bytes, size_t count, struct copy_attributes *attributes, size_t *firsts,
    size_t attribute_count, handle stream
) {
    CALL_IN_CONTEXT(cuMemcpyBatchAsync_v2);
    struct object *s = fake_stream_of(stream);
    if (!s) return INVALID_HANDLE;
    if (stream <= 2) return fake_violation("a batch on a default stream");
    if (s->capture) return CAPTURE_UNSUPPORTED;
    if (!count || attribute_count != 1 || firsts[0] != 0 || attributes[0].order != 1)
        return fake_violation("attributes of a batch");
    /* All or nothing. */
    for (size_t i = 0; i < count; i++)
        if (!fits(to[i], bytes[i], ANYWHERE) || !fits(from[i], bytes[i], ANYWHERE))
            return fake_violation("a copy of a batch where nothing is");
    for (size_t i = 0; i < count; i++) enqueue_copy(s, to[i], from[i], bytes[i]);
    return OK;
}

EXPORT int cuMemsetD8Async(address to, unsigned char value, size_t bytes, handle stream) {
    CALL_IN_CONTEXT(cuMemsetD8Async);
    struct object *s = fake_stream_of(stream);
    if (!s) return INVALID_HANDLE;
    if (!fits(to, bytes, ON_DEVICE)) return fake_violation("a fill where nothing is");
    struct op op = {.kind = FILL, .to = to, .bytes = bytes, .value = value};
    return fake_enqueue(s, &op);
}

EXPORT int cuPointerGetAttributes(unsigned count, int *attributes, void **values, address where) {
    CALL_IN_CONTEXT(cuPointerGetAttributes);
    bool pinned = holding(REGISTRATION, (address)(uintptr_t)fake_host(where), 1) != NULL;
    struct object *o = holding(ALLOCATION, where, 1);
    for (unsigned i = 0; i < count; i++) {
        switch (attributes[i]) {
        case 2: *(unsigned *)values[i] = o ? 2 : pinned ? 1 : 0; break;
        case 8: *(unsigned char *)values[i] = 0; break;
        case 9: {
            struct object *c = o ? fake_find(o->context, CONTEXT) : NULL;
            *(int *)values[i] = c ? c->device : -2;
            break;
        }
        default: return fake_violation("an attribute of pointers that nobody knows");
        }
    }
    return OK;
}
