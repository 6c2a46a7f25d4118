/* A CUDA driver without a GPU, for tests: what its parts share.
 *
 * It keeps what a real driver promises (order of streams, contents of copies, lifetimes of handles) and checks what a real one
 * leaves undefined: a handle that is used after it was destroyed, a copy outside of an allocation, memory that is freed while a
 * recording still names it. Such a call fails with CUDA_ERROR_INVALID_VALUE and counts as a violation. Any call can be told to fail.
 *
 * Device memory is memory of the process. Pinned memory has another address on the device, so that a mix-up is seen.
 * Kernels run if the test gives them a body. One lock guards everything: threads may call, nothing runs at the same time.
 *
 * The parts: control.c (faults, counts, handles), device.c (devices, contexts), memory.c (allocations, registrations, copies),
 * stream.c (streams, events, the work in them), graph.c (recordings), kernel.c (modules, launches). */
#ifndef FAKE_CUDA_H
#define FAKE_CUDA_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    OK = 0,
    INVALID_VALUE = 1,
    OUT_OF_MEMORY = 2,
    INVALID_CONTEXT = 201,
    INVALID_IMAGE = 200,
    ALREADY_REGISTERED = 712,
    NOT_REGISTERED = 713,
    INVALID_HANDLE = 400,
    ILLEGAL_STATE = 401,
    NOT_FOUND = 500,
    NOT_READY = 600,
    CAPTURE_UNSUPPORTED = 900,
    CAPTURE_INVALIDATED = 901,
    CAPTURE_UNJOINED = 904,
    CAPTURE_ISOLATION = 905,
    CAPTURED_EVENT = 907,
};

/* Numbers of kinds are known to the tests. */
enum kind { ALLOCATION, REGISTRATION, STREAM, EVENT, GRAPH, GRAPH_EXEC, MODULE, CONTEXT, FUNCTION, CAPTURE, KINDS };

/* Beside the lists of what is alive: streams that were destroyed before their work was done. */
enum { ORPHANS = KINDS, LISTS };

/* Handles are numbers that are no address and are never used again: a stale one is recognised. */
typedef uintptr_t handle;
typedef uint64_t address;

enum { MOST_ARGUMENTS = 4096 };

/* A place in a stream: everything before it has passed once the stream has executed that many pieces of work. */
struct mark {
    handle stream;
    uint64_t place;
};

struct op {
    enum { COPY, FILL, RECORD, WAIT, KERNEL } kind;
    address to, from;
    bool to_known, from_known; /* in an allocation or a registration, when it was enqueued */
    size_t bytes;
    unsigned char value;
    handle object; /* event or function */
    struct mark mark;
    unsigned char arguments[MOST_ARGUMENTS];
};

struct ops {
    struct op *list;
    size_t first, end, room;
};

struct object {
    enum kind kind;
    bool live;
    size_t place; /* in the list of its kind */
    bool own; /* the driver's: it goes with its context and is not counted */
    handle self, context;
    /* Allocations and registrations. */
    unsigned char *memory;
    size_t bytes;
    bool portable;
    /* Streams: work that waits, and how much there was and is done. */
    struct ops ops; /* of recordings, too */
    uint64_t enqueued, executed;
    handle capture;
    uint64_t captured, joined; /* work recorded on it, and how much of that the others waited for */
    /* Events. */
    bool timing;
    struct mark mark;
    handle in_capture;
    uint64_t in_capture_place;
    double milliseconds;
    /* Captures: who began, in which thread, and whether a call spoiled it. */
    handle origin;
    bool spoiled;
    /* Functions. */
    handle module;
    struct kernel *kernel;
    int dynamic_shared;
    /* Contexts. */
    int device, retained;
    handle null_stream;
};

/* What a test says of a kernel. */
struct kernel {
    char name[64];
    size_t argument_bytes;
    void (*run)(const void *arguments);
};

extern bool fake_deferred;
extern size_t fake_pinned_limit, fake_device_limit;
extern int fake_devices, fake_version, fake_major, fake_minor;

void fake_lock(void);
void fake_unlock(int *unused);
int fake_enter(const char *name);
int fake_violation(const char *what);
struct object *fake_make(enum kind kind, handle context);
struct object *fake_find(handle h, enum kind kind);
struct object *fake_peek(handle h); /* destroyed or not; NULL for what never was */
struct object *fake_listed(int list, size_t i); /* NULL behind the last */
void fake_kill(struct object *o);
void fake_reap(handle context);
struct kernel *fake_kernel_named(const char *name);
bool fake_lost(void);

handle fake_current(void);

struct object *fake_stream_of(handle stream);
int fake_enqueue(struct object *stream, const struct op *op);
void fake_drain(struct object *stream);
void fake_drain_all(void);
bool fake_passed(struct mark mark);
void fake_reach(struct mark mark);
void fake_push(struct ops *ops, const struct op *op);
void fake_run(const struct op *op);
void fake_forbidden_while_capturing(void);

bool fake_accessible(address first, size_t bytes, bool *known);
unsigned char *fake_host(address first);
size_t fake_bytes_of(enum kind kind);

/* Begins every function of the driver: takes the lock, counts the call, and fails it if it is its turn. */
#define CALL(name)                                                                                                     \
    __attribute__((cleanup(fake_unlock), unused)) int locked = 0;                                                      \
    fake_lock();                                                                                                       \
    int injected = fake_enter(#name);                                                                                  \
    if (injected != OK) return injected

/* Of a function that needs a current context. */
#define CALL_IN_CONTEXT(name)                                                                                          \
    CALL(name);                                                                                                        \
    handle context = fake_current();                                                                                   \
    if (!context) {                                                                                                    \
        fake_violation(#name " without a current context");                                                            \
        return INVALID_CONTEXT;                                                                                        \
    }

#define EXPORT __attribute__((visibility("default")))

#endif
