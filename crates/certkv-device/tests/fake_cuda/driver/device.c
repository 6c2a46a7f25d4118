/* Devices and their primary contexts. */
#include "fake.h"
#include <string.h>

enum { DEPTH = 64 };
static _Thread_local handle stack[DEPTH];
static _Thread_local int depth;

handle fake_current(void) { return depth ? stack[depth - 1] : 0; }

/* Contexts that this thread has on its stack. */
EXPORT int fake_cuda_depth(void) { return depth; }

/* Empties it: what a failed pop left there. */
EXPORT void fake_cuda_empty_stack(void) { depth = 0; }

EXPORT int cuInit(unsigned flags) {
    CALL(cuInit);
    return flags ? fake_violation("cuInit with flags") : OK;
}

EXPORT int cuDriverGetVersion(int *version) {
    CALL(cuDriverGetVersion);
    *version = fake_version;
    return OK;
}

EXPORT int cuDeviceGetCount(int *count) {
    CALL(cuDeviceGetCount);
    *count = fake_devices;
    return OK;
}

EXPORT int cuDeviceGet(int *device, int ordinal) {
    CALL(cuDeviceGet);
    if (ordinal < 0 || ordinal >= fake_devices) return 101;
    *device = ordinal;
    return OK;
}

EXPORT int cuDeviceGetName(char *name, int room, int device) {
    CALL(cuDeviceGetName);
    if (device < 0 || device >= fake_devices || room < 1) return fake_violation("the name of no device");
    strncpy(name, "Fake GPU", (size_t)room);
    name[room - 1] = 0;
    return OK;
}

EXPORT int cuDeviceGetAttribute(int *value, int attribute, int device) {
    CALL(cuDeviceGetAttribute);
    if (device < 0 || device >= fake_devices) return fake_violation("an attribute of no device");
    switch (attribute) {
    case 16: *value = 4; return OK; /* multiprocessors */
    case 38: *value = 1 << 20; return OK; /* second-level cache */
    case 39: *value = 2048; return OK; /* threads of a multiprocessor */
    case 40: *value = 2; return OK; /* copy engines */
    case 75: *value = fake_major; return OK;
    case 76: *value = fake_minor; return OK;
    case 81: *value = 233472; return OK; /* shared memory of a multiprocessor */
    case 97: *value = 232448; return OK; /* of a block, opted in */
    default: return fake_violation("an attribute that nobody knows");
    }
}

EXPORT int cuDeviceTotalMem_v2(size_t *bytes, int device) {
    CALL(cuDeviceTotalMem_v2);
    if (device < 0 || device >= fake_devices) return fake_violation("memory of no device");
    *bytes = (size_t)1 << 34;
    return OK;
}

static struct object *primary(int device) {
    struct object *c;
    for (size_t i = 0; (c = fake_listed(CONTEXT, i)); i++)
        if (c->device == device) return c;
    return NULL;
}

EXPORT int cuDevicePrimaryCtxRetain(handle *context, int device) {
    CALL(cuDevicePrimaryCtxRetain);
    if (device < 0 || device >= fake_devices) return fake_violation("the context of no device");
    struct object *c = primary(device);
    if (!c) {
        c = fake_make(CONTEXT, 0);
        c->context = c->self;
        c->device = device;
        struct object *null = fake_make(STREAM, c->self);
        null->own = true;
        c->null_stream = null->self;
    }
    c->retained++;
    *context = c->self;
    return OK;
}

EXPORT int cuDevicePrimaryCtxRelease_v2(int device) {
    CALL(cuDevicePrimaryCtxRelease_v2);
    struct object *c = primary(device);
    if (!c) return fake_violation("a context is released that nobody retains");
    if (--c->retained == 0) {
        fake_drain_all();
        fake_reap(c->self);
        fake_kill(c);
    }
    return OK;
}

EXPORT int cuCtxPushCurrent_v2(handle context) {
    CALL(cuCtxPushCurrent_v2);
    if (!fake_find(context, CONTEXT)) return INVALID_CONTEXT;
    if (depth == DEPTH) return fake_violation("contexts pile up in a thread");
    stack[depth++] = context;
    return OK;
}

EXPORT int cuCtxPopCurrent_v2(handle *context) {
    CALL(cuCtxPopCurrent_v2);
    if (depth == 0) {
        fake_violation("a context is popped from an empty stack");
        return INVALID_CONTEXT;
    }
    *context = stack[--depth];
    return OK;
}

EXPORT int cuCtxGetStreamPriorityRange(int *least, int *greatest) {
    CALL_IN_CONTEXT(cuCtxGetStreamPriorityRange);
    *least = 0;
    *greatest = -5;
    return OK;
}
