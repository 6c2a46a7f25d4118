/* Modules and kernels. Machine code is not looked at: a module has the kernels that the test named. */
#include "fake.h"
#include <string.h>

enum { STATIC_SHARED = 1024, BLOCK_SHARED = 232448, DEFAULT_SHARED = 49152, MOST_THREADS = 1024 };
static uint64_t launches;

/* Launches that were accepted since the library was loaded. */
EXPORT uint64_t fake_cuda_launches(void) {
    __attribute__((cleanup(fake_unlock), unused)) int locked = 0;
    fake_lock();
    return launches;
}

EXPORT int cuModuleLoadData(handle *module, const void *image) {
    CALL_IN_CONTEXT(cuModuleLoadData);
    if (memcmp(image, "\177ELF\002", 5) != 0) return INVALID_IMAGE;
    *module = fake_make(MODULE, context)->self;
    return OK;
}

EXPORT int cuModuleUnload(handle module) {
    CALL_IN_CONTEXT(cuModuleUnload);
    struct object *m = fake_find(module, MODULE);
    if (!m) return INVALID_HANDLE;
    fake_drain_all();
    fake_kill(m);
    struct object *f;
    for (size_t i = 0; (f = fake_listed(FUNCTION, i));)
        if (f->module == module) fake_kill(f);
        else i++;
    return OK;
}

EXPORT int cuModuleGetFunction(handle *function, handle module, const char *name) {
    CALL_IN_CONTEXT(cuModuleGetFunction);
    if (!fake_find(module, MODULE)) return INVALID_HANDLE;
    struct kernel *k = fake_kernel_named(name);
    if (!k) return NOT_FOUND;
    struct object *f = fake_make(FUNCTION, context);
    f->module = module;
    f->kernel = k;
    f->dynamic_shared = DEFAULT_SHARED - STATIC_SHARED;
    *function = f->self;
    return OK;
}

EXPORT int cuFuncGetAttribute(int *value, int attribute, handle function) {
    CALL_IN_CONTEXT(cuFuncGetAttribute);
    if (!fake_find(function, FUNCTION)) return INVALID_HANDLE;
    switch (attribute) {
    case 0: *value = MOST_THREADS; return OK;
    case 1: *value = STATIC_SHARED; return OK;
    case 3: *value = 0; return OK; /* local memory */
    case 4: *value = 64; return OK; /* registers */
    default: return fake_violation("an attribute of kernels that nobody knows");
    }
}

EXPORT int cuFuncSetAttribute(handle function, int attribute, int value) {
    CALL_IN_CONTEXT(cuFuncSetAttribute);
    struct object *f = fake_find(function, FUNCTION);
    if (!f) return INVALID_HANDLE;
    if (attribute == 8) {
        if (value < 0 || value > BLOCK_SHARED - STATIC_SHARED) return INVALID_VALUE;
        f->dynamic_shared = value;
        return OK;
    }
    return attribute == 9 && value >= -1 && value <= 100 ? OK : fake_violation("an attribute of kernels that nobody sets");
}

EXPORT int cuFuncGetParamInfo(handle function, size_t index, size_t *offset, size_t *bytes) {
    CALL_IN_CONTEXT(cuFuncGetParamInfo);
    struct object *f = fake_find(function, FUNCTION);
    if (!f) return INVALID_HANDLE;
    if (index > 0 || f->kernel->argument_bytes == 0) return INVALID_VALUE;
    *offset = 0;
    *bytes = f->kernel->argument_bytes;
    return OK;
}

EXPORT int cuOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, handle function, int threads, size_t shared) {
    CALL_IN_CONTEXT(cuOccupancyMaxActiveBlocksPerMultiprocessor);
    if (!fake_find(function, FUNCTION)) return INVALID_HANDLE;
    if (threads < 1 || threads > MOST_THREADS || shared > BLOCK_SHARED) return INVALID_VALUE;
    *blocks = 2048 / threads;
    return OK;
}

struct attribute {
    int id;
    char pad[4];
    union {
        char pad[64];
        struct {
            unsigned x, y, z;
        } cluster;
        int programmatic;
    } value;
};

struct config {
    unsigned grid[3], block[3], shared;
    handle stream;
    struct attribute *attributes;
    unsigned attribute_count;
};

EXPORT int cuLaunchKernelEx(const struct config *config, handle function, void **parameters, void **extra) {
    CALL_IN_CONTEXT(cuLaunchKernelEx);
    struct object *f = fake_find(function, FUNCTION), *s = fake_stream_of(config->stream);
    if (!f || !s) return INVALID_HANDLE;
    if (f->context != s->context || extra) return fake_violation("a launch in another context");
    uint64_t threads = 1;
    for (int i = 0; i < 3; i++) {
        if (!config->grid[i] || !config->block[i] || (i && config->grid[i] > 65535)) return INVALID_VALUE;
        threads *= config->block[i];
    }
    if (threads > MOST_THREADS || config->shared > (unsigned)f->dynamic_shared) return INVALID_VALUE;
    for (unsigned i = 0; i < config->attribute_count; i++) {
        const struct attribute *a = &config->attributes[i];
        if (a->id == 4) {
            bool whole = a->value.cluster.x && config->grid[0] % a->value.cluster.x == 0;
            if (fake_major < 9 || !whole || a->value.cluster.x > 8) return INVALID_VALUE;
        } else if (a->id != 0 && !(a->id == 6 && fake_major >= 9)) {
            return fake_violation("an attribute of launches that nobody knows");
        }
    }
    struct op op = {.kind = KERNEL, .object = function};
    if (f->kernel->argument_bytes) {
        if (!parameters || !parameters[0]) return fake_violation("a kernel without its arguments");
        memcpy(op.arguments, parameters[0], f->kernel->argument_bytes);
    }
    launches++;
    return fake_enqueue(s, &op);
}
