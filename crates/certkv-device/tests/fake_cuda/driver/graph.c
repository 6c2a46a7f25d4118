/* Recordings: a stream's work goes into a list, and the list runs as often as it is launched. */
#include "fake.h"

/* What this thread records. */
static _Thread_local handle begun;

/* A call that the recording of this thread does not survive. */
void fake_forbidden_while_capturing(void) {
    struct object *c = fake_peek(begun);
    if (c) c->spoiled = true;
}

EXPORT int cuStreamBeginCapture_v2(handle stream, int mode) {
    CALL_IN_CONTEXT(cuStreamBeginCapture_v2);
    struct object *s = fake_stream_of(stream);
    if (!s) return INVALID_HANDLE;
    if (stream <= 2) return CAPTURE_UNSUPPORTED;
    if (s->capture || mode < 0 || mode > 2) return fake_violation("began to record twice");
    struct object *c = fake_make(CAPTURE, context);
    c->origin = s->self;
    s->capture = c->self;
    s->captured = s->joined = 0;
    begun = c->self;
    return OK;
}

EXPORT int cuStreamEndCapture(handle stream, handle *graph) {
    CALL_IN_CONTEXT(cuStreamEndCapture);
    *graph = 0;
    struct object *s = fake_stream_of(stream);
    if (!s) return INVALID_HANDLE;
    struct object *c = s->capture ? fake_find(s->capture, CAPTURE) : NULL;
    if (!c) return ILLEGAL_STATE;
    if (c->origin != s->self) return fake_violation("ended a recording that another stream began");
    bool unjoined = false;
    struct object *o;
    for (size_t i = 0; (o = fake_listed(STREAM, i)); i++) {
        if (o->capture != c->self) continue;
        unjoined |= o != s && o->joined < o->captured;
        o->capture = 0;
    }
    for (size_t i = 0; (o = fake_listed(EVENT, i)); i++)
        if (o->in_capture == c->self) o->in_capture = 0, o->mark.stream = 0;
    begun = 0;
    int result = c->spoiled ? CAPTURE_INVALIDATED : unjoined ? CAPTURE_UNJOINED : OK;
    if (result == OK) {
        struct object *g = fake_make(GRAPH, context);
        for (size_t i = c->ops.first; i < c->ops.end; i++) fake_push(&g->ops, &c->ops.list[i]);
        *graph = g->self;
    }
    fake_kill(c);
    return result;
}

EXPORT int cuStreamIsCapturing(handle stream, int *status) {
    CALL_IN_CONTEXT(cuStreamIsCapturing);
    struct object *s = fake_stream_of(stream);
    if (!s) return INVALID_HANDLE;
    struct object *c = s->capture ? fake_find(s->capture, CAPTURE) : NULL;
    *status = c ? (c->spoiled ? 2 : 1) : 0;
    return OK;
}

EXPORT int cuGraphGetNodes(handle graph, handle *nodes, size_t *count) {
    CALL_IN_CONTEXT(cuGraphGetNodes);
    struct object *g = fake_find(graph, GRAPH);
    if (!g) return INVALID_HANDLE;
    if (nodes) return fake_violation("nodes are not listed here");
    *count = g->ops.end - g->ops.first;
    return OK;
}

EXPORT int cuGraphInstantiateWithFlags(handle *exec, handle graph, unsigned long long flags) {
    CALL_IN_CONTEXT(cuGraphInstantiateWithFlags);
    struct object *g = fake_find(graph, GRAPH);
    if (!g || flags) return INVALID_HANDLE;
    struct object *x = fake_make(GRAPH_EXEC, context);
    for (size_t i = g->ops.first; i < g->ops.end; i++) fake_push(&x->ops, &g->ops.list[i]);
    *exec = x->self;
    return OK;
}

EXPORT int cuGraphDestroy(handle graph) {
    CALL_IN_CONTEXT(cuGraphDestroy);
    struct object *g = fake_find(graph, GRAPH);
    if (!g) return INVALID_HANDLE;
    fake_kill(g);
    return OK;
}

EXPORT int cuGraphLaunch(handle exec, handle stream) {
    CALL_IN_CONTEXT(cuGraphLaunch);
    struct object *x = fake_find(exec, GRAPH_EXEC), *s = fake_stream_of(stream);
    if (!x || !s) return INVALID_HANDLE;
    if (x->context != s->context) return fake_violation("a recording of another context");
    for (size_t i = x->ops.first; i < x->ops.end; i++) fake_enqueue(s, &x->ops.list[i]);
    return OK;
}

EXPORT int cuGraphUpload(handle exec, handle stream) {
    CALL_IN_CONTEXT(cuGraphUpload);
    return fake_find(exec, GRAPH_EXEC) && fake_stream_of(stream) ? OK : INVALID_HANDLE;
}

EXPORT int cuGraphExecDestroy(handle exec) {
    CALL_IN_CONTEXT(cuGraphExecDestroy);
    struct object *x = fake_find(exec, GRAPH_EXEC);
    if (!x) return INVALID_HANDLE;
    fake_kill(x);
    return OK;
}
