/* Streams, events, and the work in them. */
#include "fake.h"
#include <stdlib.h>
#include <string.h>
#include <time.h>

void fake_push(struct ops *ops, const struct op *op) {
    if (ops->end == ops->room) {
        if (ops->first) {
            memmove(ops->list, ops->list + ops->first, (ops->end - ops->first) * sizeof *ops->list);
            ops->end -= ops->first;
            ops->first = 0;
        } else {
            ops->room = ops->room ? 2 * ops->room : 16;
            ops->list = realloc(ops->list, ops->room * sizeof *ops->list);
        }
    }
    ops->list[ops->end++] = *op;
}

/* A live stream of the current context; the small handles are the context's own stream. */
struct object *fake_stream_of(handle stream) {
    handle context = fake_current();
    if (stream <= 2) {
        struct object *c = fake_find(context, CONTEXT);
        return c ? fake_find(c->null_stream, STREAM) : NULL;
    }
    struct object *s = fake_find(stream, STREAM);
    if (s && s->context != context) {
        fake_violation("a stream of another context");
        return NULL;
    }
    return s;
}

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return 1e3 * (double)t.tv_sec + 1e-6 * (double)t.tv_nsec;
}

void fake_run(const struct op *op) {
    bool known;
    switch (op->kind) {
    case COPY: {
        bool from_known;
        bool there = fake_accessible(op->to, op->bytes, &known) && fake_accessible(op->from, op->bytes, &from_known);
        if (!there || known < op->to_known || from_known < op->from_known) {
            fake_violation("memory of a copy was freed before the copy ran");
            return;
        }
        memmove(fake_host(op->to), fake_host(op->from), op->bytes);
        return;
    }
    case FILL:
        if (!fake_accessible(op->to, op->bytes, &known) || !known) {
            fake_violation("memory of a fill was freed before the fill ran");
            return;
        }
        memset(fake_host(op->to), op->value, op->bytes);
        return;
    case RECORD: fake_peek(op->object)->milliseconds = now(); return;
    case WAIT: fake_reach(op->mark); return;
    case KERNEL: {
        struct object *f = fake_find(op->object, FUNCTION);
        if (!f || !fake_find(f->module, MODULE)) {
            fake_violation("a kernel of a module that was unloaded");
            return;
        }
        if (f->kernel->run) f->kernel->run(op->arguments);
        return;
    }
    }
}

static void run_one(struct object *s) {
    struct op op = s->ops.list[s->ops.first++];
    if (s->ops.first == s->ops.end) s->ops.first = s->ops.end = 0;
    /* Nothing runs on a GPU whose context is lost. */
    if (!fake_lost()) fake_run(&op);
    s->executed++;
}

void fake_drain(struct object *s) {
    while (s->ops.first < s->ops.end) run_one(s);
}

void fake_drain_all(void) {
    for (size_t i = 0; fake_listed(STREAM, i); i++) fake_drain(fake_listed(STREAM, i));
    for (size_t i = 0; fake_listed(ORPHANS, i); i++) fake_drain(fake_listed(ORPHANS, i));
}

bool fake_passed(struct mark mark) {
    struct object *s = mark.stream ? fake_peek(mark.stream) : NULL;
    return !s || s->executed >= mark.place;
}

void fake_reach(struct mark mark) {
    struct object *s = mark.stream ? fake_peek(mark.stream) : NULL;
    while (s && s->executed < mark.place && s->ops.first < s->ops.end) run_one(s);
}

int fake_enqueue(struct object *s, const struct op *op) {
    if (s->capture) {
        struct object *c = fake_find(s->capture, CAPTURE);
        if (!c) return INVALID_HANDLE;
        if (c->spoiled) return CAPTURE_INVALIDATED;
        fake_push(&c->ops, op);
        s->captured++;
        return OK;
    }
    fake_push(&s->ops, op);
    s->enqueued++;
    if (!fake_deferred) fake_drain(s);
    return OK;
}

EXPORT int cuStreamCreateWithPriority(handle *stream, unsigned flags, int priority) {
    CALL_IN_CONTEXT(cuStreamCreateWithPriority);
    if (flags > 1 || priority > 0 || priority < -5) return fake_violation("flags or priority of a stream");
    *stream = fake_make(STREAM, context)->self;
    return OK;
}

EXPORT int cuStreamDestroy_v2(handle stream) {
    CALL_IN_CONTEXT(cuStreamDestroy_v2);
    if (stream <= 2) return fake_violation("destroyed a stream of the driver");
    struct object *s = fake_stream_of(stream);
    if (!s) return INVALID_HANDLE;
    if (s->capture) {
        struct object *c = fake_find(s->capture, CAPTURE);
        if (c) c->spoiled = true;
    }
    /* Its work goes on. */
    fake_kill(s);
    return OK;
}

EXPORT int cuStreamGetCtx(handle stream, handle *context_of) {
    CALL_IN_CONTEXT(cuStreamGetCtx);
    if (stream <= 2) {
        *context_of = context;
        return OK;
    }
    struct object *s = fake_find(stream, STREAM);
    if (!s) return INVALID_HANDLE;
    *context_of = s->context;
    return OK;
}

/* A wait for a stream that records: it cannot be, and spoils the recording. */
static bool spoils(struct object *s) {
    if (!s->capture) return false;
    struct object *c = fake_find(s->capture, CAPTURE);
    if (c) c->spoiled = true;
    return true;
}

EXPORT int cuStreamSynchronize(handle stream) {
    CALL_IN_CONTEXT(cuStreamSynchronize);
    struct object *s = fake_stream_of(stream);
    if (!s) return INVALID_HANDLE;
    if (spoils(s)) return CAPTURE_UNSUPPORTED;
    fake_drain(s);
    return OK;
}

EXPORT int cuStreamQuery(handle stream) {
    CALL_IN_CONTEXT(cuStreamQuery);
    struct object *s = fake_stream_of(stream);
    if (!s) return INVALID_HANDLE;
    if (spoils(s)) return CAPTURE_UNSUPPORTED;
    if (s->ops.first == s->ops.end) return OK;
    run_one(s);
    return NOT_READY;
}

EXPORT int cuStreamWaitEvent(handle stream, handle event, unsigned flags) {
    CALL_IN_CONTEXT(cuStreamWaitEvent);
    struct object *s = fake_stream_of(stream), *e = fake_find(event, EVENT);
    if (!s || !e || flags) return s && e ? fake_violation("flags of a wait") : INVALID_HANDLE;
    if (e->in_capture) {
        struct object *c = fake_find(e->in_capture, CAPTURE);
        if (!c) return INVALID_HANDLE;
        if (s->capture && s->capture != e->in_capture) return CAPTURE_ISOLATION;
        if (!s->capture) {
            s->capture = e->in_capture;
            s->captured = s->joined = 0;
        }
        struct object *from = fake_peek(e->mark.stream);
        if (from && from != s && from->joined < e->in_capture_place) from->joined = e->in_capture_place;
        s->captured++;
        return OK;
    }
    if (s->capture) return CAPTURE_ISOLATION;
    struct op op = {.kind = WAIT, .mark = e->mark};
    return fake_enqueue(s, &op);
}

EXPORT int cuEventCreate(handle *event, unsigned flags) {
    CALL_IN_CONTEXT(cuEventCreate);
    if (flags & ~7u) return fake_violation("flags of an event");
    struct object *e = fake_make(EVENT, context);
    e->timing = !(flags & 2);
    *event = e->self;
    return OK;
}

EXPORT int cuEventDestroy_v2(handle event) {
    CALL_IN_CONTEXT(cuEventDestroy_v2);
    struct object *e = fake_find(event, EVENT);
    if (!e) return INVALID_HANDLE;
    fake_kill(e);
    return OK;
}

EXPORT int cuEventRecord(handle event, handle stream) {
    CALL_IN_CONTEXT(cuEventRecord);
    struct object *s = fake_stream_of(stream), *e = fake_find(event, EVENT);
    if (!s || !e) return INVALID_HANDLE;
    if (e->context != s->context) return fake_violation("an event of another context");
    e->in_capture = s->capture;
    if (s->capture) {
        e->in_capture_place = s->captured;
        e->mark.stream = s->self;
        return OK;
    }
    e->mark.stream = s->self;
    e->mark.place = s->enqueued + 1;
    struct op op = {.kind = RECORD, .object = e->self};
    return fake_enqueue(s, &op);
}

EXPORT int cuEventQuery(handle event) {
    CALL_IN_CONTEXT(cuEventQuery);
    struct object *e = fake_find(event, EVENT);
    if (!e) return INVALID_HANDLE;
    if (e->in_capture) return CAPTURED_EVENT;
    if (fake_passed(e->mark)) return OK;
    run_one(fake_peek(e->mark.stream));
    return NOT_READY;
}

EXPORT int cuEventSynchronize(handle event) {
    CALL_IN_CONTEXT(cuEventSynchronize);
    struct object *e = fake_find(event, EVENT);
    if (!e) return INVALID_HANDLE;
    if (e->in_capture) return CAPTURED_EVENT;
    fake_reach(e->mark);
    return OK;
}

EXPORT int cuEventElapsedTime_v2(float *milliseconds, handle start, handle stop) {
    CALL_IN_CONTEXT(cuEventElapsedTime_v2);
    struct object *a = fake_find(start, EVENT), *b = fake_find(stop, EVENT);
    if (!a || !b || !a->timing || !b->timing || !a->mark.stream || !b->mark.stream) return INVALID_HANDLE;
    if (!fake_passed(a->mark) || !fake_passed(b->mark)) return NOT_READY;
    *milliseconds = (float)(b->milliseconds - a->milliseconds);
    return OK;
}
