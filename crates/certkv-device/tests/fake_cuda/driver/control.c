/* Faults on demand, counts, and the table of handles. */
#include "fake.h"
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum { MOST_FAULTS = 16, MOST_KERNELS = 32 };
enum { BASE = 0x60000000000, STEP = 64 };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
bool fake_deferred;
size_t fake_pinned_limit = SIZE_MAX, fake_device_limit = SIZE_MAX;
int fake_devices = 1, fake_version = 13000, fake_major = 9, fake_minor = 0;

static struct {
    uint64_t at;
    int code;
    bool lost;
} faults[MOST_FAULTS];
static uint64_t calls, injected, violations, reaped[KINDS];
static int fault_count, lost_code;
static const char *last_failed = "", *last_violation = "";
static const char **trace;
static size_t traced, trace_room;
static struct list {
    struct object **list;
    size_t count, room;
} objects, lists[LISTS];
static size_t before; /* objects of the time before the last reset */
static struct kernel kernels[MOST_KERNELS];
static int kernel_count;

void fake_lock(void) { pthread_mutex_lock(&lock); }
void fake_unlock(int *unused) {
    (void)unused;
    pthread_mutex_unlock(&lock);
}

bool fake_lost(void) { return lost_code != OK; }

/* What still works when the context is lost: nothing that needs the GPU. */
static bool outlives_the_context(const char *name) {
    static const char *const names[] = {"cuInit", "cuDriverGetVersion", "cuDevice", "cuCtxPushCurrent", "cuCtxPopCurrent"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (strncmp(name, names[i], strlen(names[i])) == 0) return true;
    return false;
}

int fake_enter(const char *name) {
    calls++;
    if (traced == trace_room) {
        trace_room = trace_room ? 2 * trace_room : 4096;
        trace = realloc(trace, trace_room * sizeof *trace);
    }
    trace[traced++] = name;
    for (int i = 0; i < fault_count; i++) {
        if (faults[i].at != calls) continue;
        injected++;
        last_failed = name;
        if (faults[i].lost) lost_code = faults[i].code;
        return faults[i].code;
    }
    return lost_code && !outlives_the_context(name) ? lost_code : OK;
}

int fake_violation(const char *what) {
    violations++;
    last_violation = what;
    return INVALID_VALUE;
}

static void put(struct list *l, struct object *o) {
    if (l->count == l->room) {
        l->room = l->room ? 2 * l->room : 64;
        l->list = realloc(l->list, l->room * sizeof *l->list);
    }
    l->list[l->count++] = o;
}

struct object *fake_make(enum kind kind, handle context) {
    struct object *o = calloc(1, sizeof *o);
    o->kind = kind;
    o->live = true;
    o->context = context;
    o->self = BASE + STEP * (handle)(before + objects.count);
    o->place = lists[kind].count;
    put(&objects, o);
    put(&lists[kind], o);
    return o;
}

struct object *fake_listed(int list, size_t i) { return i < lists[list].count ? lists[list].list[i] : NULL; }

struct object *fake_peek(handle h) {
    size_t i = (h - BASE) / STEP - before;
    return h >= BASE && h % STEP == 0 && i < objects.count ? objects.list[i] : NULL;
}

struct object *fake_find(handle h, enum kind kind) {
    struct object *o = fake_peek(h);
    if (o && o->live && o->kind == kind) return o;
    fake_violation(o && o->kind == kind ? "a handle that was destroyed" : "a handle that is none");
    return NULL;
}

void fake_kill(struct object *o) {
    o->live = false;
    struct list *l = &lists[o->kind];
    l->list[o->place] = l->list[--l->count];
    l->list[o->place]->place = o->place;
    if (o->kind == STREAM && o->ops.first < o->ops.end) {
        put(&lists[ORPHANS], o);
    } else {
        free(o->ops.list);
        memset(&o->ops, 0, sizeof o->ops);
    }
}

/* The context is gone, and with it what was left in it. */
void fake_reap(handle context) {
    for (int kind = 0; kind < KINDS; kind++) {
        for (size_t i = lists[kind].count; i-- > 0;) {
            struct object *o = lists[kind].list[i];
            if (o->context != context || kind == CONTEXT) continue;
            if (kind == ALLOCATION) free(o->memory);
            /* Pages that the library keeps mapped for ever: sweeps would fill the machine with them. */
            if (kind == REGISTRATION) madvise(o->memory, o->bytes, MADV_DONTNEED);
            if (!o->own) reaped[kind]++;
            fake_kill(o);
        }
    }
}

struct kernel *fake_kernel_named(const char *name) {
    for (int i = 0; i < kernel_count; i++)
        if (strcmp(kernels[i].name, name) == 0) return &kernels[i];
    return NULL;
}

/* Below: for tests. Nothing here is a call of the driver. */
#define GUARD                                                                                                          \
    __attribute__((cleanup(fake_unlock), unused)) int locked = 0;                                                      \
    fake_lock()

/* Forgets everything but the kernels; handles from before are none any more. */
EXPORT void fake_cuda_reset(void) {
    GUARD;
    for (size_t i = 0; i < objects.count; i++) {
        struct object *o = objects.list[i];
        if (o->live && o->kind == ALLOCATION) free(o->memory);
        free(o->ops.list);
        free(o);
    }
    before += objects.count;
    objects.count = traced = 0;
    for (int l = 0; l < LISTS; l++) lists[l].count = 0;
    calls = injected = violations = 0;
    memset(reaped, 0, sizeof reaped);
    fault_count = 0;
    lost_code = OK;
    last_failed = last_violation = "";
    fake_deferred = false;
    fake_pinned_limit = fake_device_limit = SIZE_MAX;
    fake_devices = 1, fake_version = 13000, fake_major = 9, fake_minor = 0;
}

/* The n-th call from now (1: the next one) returns `code`; `lost`: so does every later one that needs the context. */
EXPORT void fake_cuda_fail(uint64_t n, int code, int lost) {
    GUARD;
    if (fault_count == MOST_FAULTS) return;
    faults[fault_count].at = calls + n;
    faults[fault_count].code = code;
    faults[fault_count++].lost = lost != 0;
}

/* No fault is to come; a lost context stays lost. */
EXPORT void fake_cuda_calm(void) {
    GUARD;
    fault_count = 0;
}

EXPORT uint64_t fake_cuda_calls(void) {
    GUARD;
    return calls;
}

/* Name of the i-th call since the reset, from 0 on; NULL behind the last. */
EXPORT const char *fake_cuda_call(uint64_t i) {
    GUARD;
    return i < traced ? trace[i] : NULL;
}

EXPORT uint64_t fake_cuda_injected(void) {
    GUARD;
    return injected;
}

EXPORT const char *fake_cuda_last_failed_name(void) {
    GUARD;
    return last_failed;
}

/* Objects that are alive; streams of the driver's own are not counted. */
EXPORT uint64_t fake_cuda_live(int kind) {
    GUARD;
    uint64_t live = 0;
    if (kind < 0 || kind >= KINDS) return 0;
    for (size_t i = 0; i < lists[kind].count; i++) live += !lists[kind].list[i]->own;
    return live;
}

/* Objects that were alive when their context was destroyed. */
EXPORT uint64_t fake_cuda_reaped(int kind) {
    GUARD;
    return kind >= 0 && kind < KINDS ? reaped[kind] : 0;
}

EXPORT uint64_t fake_cuda_violations(void) {
    GUARD;
    return violations;
}

EXPORT const char *fake_cuda_last_violation(void) {
    GUARD;
    return last_violation;
}

EXPORT void fake_cuda_limit_pinned(size_t bytes) {
    GUARD;
    fake_pinned_limit = bytes;
}

EXPORT void fake_cuda_limit_device(size_t bytes) {
    GUARD;
    fake_device_limit = bytes;
}

/* Work waits until somebody does: a query runs one piece, a wait runs what it waits for. */
EXPORT void fake_cuda_defer(int yes) {
    GUARD;
    fake_deferred = yes != 0;
}

/* Devices, version of the driver, compute capability. */
EXPORT void fake_cuda_machine(int devices, int version, int major, int minor) {
    GUARD;
    fake_devices = devices, fake_version = version, fake_major = major, fake_minor = minor;
}

/* Every module has this kernel from now on; `run` (or NULL) is its body. */
EXPORT void fake_cuda_kernel(const char *name, size_t argument_bytes, void (*run)(const void *)) {
    GUARD;
    struct kernel *k = fake_kernel_named(name);
    if (!k && kernel_count < MOST_KERNELS) k = &kernels[kernel_count++];
    if (!k || argument_bytes > MOST_ARGUMENTS || strlen(name) >= sizeof k->name) abort();
    strcpy(k->name, name);
    k->argument_bytes = argument_bytes;
    k->run = run;
}

static const struct {
    int code;
    const char *name, *text;
} codes[] = {
    {INVALID_VALUE, "CUDA_ERROR_INVALID_VALUE", "invalid argument"},
    {OUT_OF_MEMORY, "CUDA_ERROR_OUT_OF_MEMORY", "out of memory"},
    {INVALID_CONTEXT, "CUDA_ERROR_INVALID_CONTEXT", "invalid device context"},
    {INVALID_HANDLE, "CUDA_ERROR_INVALID_HANDLE", "invalid resource handle"},
    {NOT_FOUND, "CUDA_ERROR_NOT_FOUND", "named symbol not found"},
    {NOT_READY, "CUDA_ERROR_NOT_READY", "device not ready"},
    {700, "CUDA_ERROR_ILLEGAL_ADDRESS", "an illegal memory access was encountered"},
    {719, "CUDA_ERROR_LAUNCH_FAILED", "unspecified launch failure"},
    {CAPTURE_UNSUPPORTED, "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED", "operation not permitted when stream is capturing"},
    {CAPTURE_INVALIDATED, "CUDA_ERROR_STREAM_CAPTURE_INVALIDATED", "operation failed due to a previous error during capture"},
    {999, "CUDA_ERROR_UNKNOWN", "unknown error"},
};

static int tell(int code, const char **text, bool name) {
    for (size_t i = 0; i < sizeof codes / sizeof *codes; i++)
        if (codes[i].code == code) {
            *text = name ? codes[i].name : codes[i].text;
            return OK;
        }
    *text = NULL;
    return INVALID_VALUE;
}

EXPORT int cuGetErrorName(int code, const char **text) { return tell(code, text, true); }
EXPORT int cuGetErrorString(int code, const char **text) { return tell(code, text, false); }
