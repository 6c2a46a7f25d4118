/* Certified decode on a GPU beside dense attention on the host: rows, queries and outputs of 40 steps in device memory, ordered with
 * the caller's stream; from the middle on as a CUDA graph of the caller's, recorded once. Certificates come from the steps, and once more
 * from the cache's ring, where they are read without waiting. Prints how many outputs were compared with their bounds.
 *
 * cc -std=c11 gpu_decode.c -lcertkv -ldl -lm -o gpu_decode && ./gpu_decode [folder for compiled kernels]
 * Exit code 0: all within their bounds; 1: not; 3: no GPU, with the reason.
 */
#include <certkv.h>
#include <dlfcn.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { LAYERS = 2, Q_HEADS = 8, KV_HEADS = 2, DIM = 128, PROMPT = 300, STEPS = 40 };
enum { KV = KV_HEADS * DIM, Q = Q_HEADS * DIM };

/* The driver's calls that a server has anyway. */
typedef unsigned long long address;
static int (*init)(unsigned), (*device_get)(int *, int), (*retain)(void **, int), (*set_current)(void *);
static int (*make_stream)(void **, unsigned), (*wait_stream)(void *), (*allocate)(address *, size_t);
static int (*begin_capture)(void *, int), (*end_capture)(void *, void **), (*launch)(void *, void *);
static int (*instantiate)(void **, void *, unsigned long long), (*graph_end)(void *), (*run_end)(void *);
static int (*to_device)(address, const void *, size_t, void *), (*to_host)(void *, address, size_t, void *);
static int (*move)(address, address, size_t, void *);

static float number(void)
{
    static uint32_t state = 7;
    state = state * 1664525u + 1013904223u;
    return (float)(state >> 8) / 8388608.0f - 1.0f;
}

static void fill(float *to, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        to[i] = number();
    }
}

static void check(int32_t status)
{
    certkv_error_info info;
    if (status != CERTKV_OK) {
        info.struct_size = (uint32_t)sizeof info;
        certkv_last_error(&info);
        fprintf(stderr, "%s: %s\n", certkv_status_name(status), info.message);
        exit(status == CERTKV_DEVICE ? 3 : 1);
    }
}

static void cuda(int result, const char *what)
{
    if (result != 0) {
        fprintf(stderr, "%s: CUresult %d\n", what, result);
        exit(1);
    }
}

static void *symbol(void *library, const char *name)
{
    void *found = dlsym(library, name);
    if (!found) {
        fprintf(stderr, "%s is missing\n", name);
        exit(1);
    }
    return found;
}

/* POSIX gives functions as object pointers; C does not convert them. */
#define LOAD(library, function, name) \
    do { void *found = symbol(library, name); memcpy(&(function), &found, sizeof found); } while (0)

/* Keys, values, queries and outputs: those of each layer, and where the cache finds them. */
static const size_t sizes[4] = {KV, KV, Q, Q};
static address boxes[LAYERS][4], rows[4];

/* All layers of a step on `stream`. Copies stand for what a model computes between its attention layers. */
static void layers(certkv_step *step, void *stream)
{
    for (uint32_t layer = 0; layer < LAYERS; layer++) {
        for (int i = 0; i < 3; i++) {
            cuda(move(rows[i], boxes[layer][i], sizes[i] * sizeof(float), stream), "rows");
        }
        check(certkv_step_after_stream(step, stream));
        check(certkv_step_append(step, layer, (void *)(uintptr_t)rows[0], (void *)(uintptr_t)rows[1], KV, CERTKV_F32,
                                 CERTKV_SPACE_DEVICE));
        check(certkv_step_attend(step, layer, (float *)(uintptr_t)rows[2], (float *)(uintptr_t)rows[3], Q, NULL, 0,
                                 CERTKV_SPACE_DEVICE));
        check(certkv_step_before_stream(step, stream));
        cuda(move(boxes[layer][3], rows[3], sizes[3] * sizeof(float), stream), "outputs");
    }
}

/* The same as a graph: recorded by a step that leaves no trace. */
static void *record(certkv_cache *cache, const certkv_chunk *chunk, void *stream, certkv_capture **capture)
{
    certkv_step *step;
    void *graph = NULL, *run = NULL;
    check(certkv_step_begin(cache, chunk, 1, &step));
    cuda(begin_capture(stream, 1), "cuStreamBeginCapture");
    layers(step, stream);
    check(certkv_step_captured(step, stream, capture));
    cuda(end_capture(stream, &graph), "cuStreamEndCapture");
    cuda(instantiate(&run, graph, 0), "cuGraphInstantiate");
    cuda(graph_end(graph), "cuGraphDestroy");
    return run;
}

static certkv_cache *make(uint32_t device, int32_t policy, const char *kernels)
{
    certkv_config config;
    certkv_cache *cache = NULL;
    check(certkv_config_init(&config, (uint32_t)sizeof config));
    config.layers = LAYERS;
    config.q_heads = Q_HEADS;
    config.kv_heads = KV_HEADS;
    config.head_dim = DIM;
    config.max_tokens = 512;
    config.policy = policy;
    config.device = device;
    config.kernels = kernels;
    config.certificate_ring = device == CERTKV_DEVICE_HOST ? 0 : 4;
    check(certkv_cache_create(&config, &cache));
    return cache;
}

/* How many heads of step `number` the ring shows otherwise than the step itself, whose certificates are `found`. */
static int published(const certkv_ring *ring, uint64_t number, certkv_certificate found[LAYERS][Q_HEADS])
{
    certkv_published_head heads[LAYERS * Q_HEADS];
    certkv_published_step shape;
    uint64_t steps = 0;
    int different = 0;
    for (long tries = 0; steps <= number && tries < 100000000; tries++) {
        /* The GPU is about to. A server would look again later; if it never does, the read below says so. */
        check(certkv_ring_published(ring, &steps));
    }
    shape.struct_size = (uint32_t)sizeof shape;
    check(certkv_ring_read(ring, number, heads, LAYERS * Q_HEADS, &shape));
    different += shape.layers != LAYERS || shape.sequences != 1 || shape.q_heads != Q_HEADS;
    for (int i = 0; i < LAYERS * Q_HEADS; i++) {
        const certkv_certificate *own = &found[i / Q_HEADS][i % Q_HEADS];
        /* The step adds up the parts of the bound, the ring has the GPU's own sum, which is rounded up. */
        const double more = heads[i].bound - own->bound;
        different += !(more >= -1e-6 * own->bound && more <= 1e-4 * own->bound) || heads[i].status != own->status || heads[i].rung != own->rung;
    }
    return different;
}

int main(int argc, char **argv)
{
    /* The GPU first: without one there is nothing to compare. */
    certkv_cache *caches[2];
    certkv_sequence sequences[2];
    caches[0] = make(CERTKV_DEVICE_CUDA, CERTKV_POLICY_CERTIFIED, argc > 1 ? argv[1] : NULL);
    caches[1] = make(CERTKV_DEVICE_HOST, CERTKV_POLICY_DENSE, NULL);
    void *library = dlopen("libcuda.so.1", RTLD_NOW), *context = NULL, *stream = NULL;
    int device = 0;
    LOAD(library, init, "cuInit");
    LOAD(library, device_get, "cuDeviceGet");
    LOAD(library, retain, "cuDevicePrimaryCtxRetain");
    LOAD(library, set_current, "cuCtxSetCurrent");
    LOAD(library, make_stream, "cuStreamCreate");
    LOAD(library, wait_stream, "cuStreamSynchronize");
    LOAD(library, allocate, "cuMemAlloc_v2");
    LOAD(library, begin_capture, "cuStreamBeginCapture_v2");
    LOAD(library, end_capture, "cuStreamEndCapture");
    LOAD(library, instantiate, "cuGraphInstantiateWithFlags");
    LOAD(library, launch, "cuGraphLaunch");
    LOAD(library, graph_end, "cuGraphDestroy");
    LOAD(library, run_end, "cuGraphExecDestroy");
    LOAD(library, to_device, "cuMemcpyHtoDAsync_v2");
    LOAD(library, to_host, "cuMemcpyDtoHAsync_v2");
    LOAD(library, move, "cuMemcpyDtoDAsync_v2");
    cuda(init(0), "cuInit");
    cuda(device_get(&device, 0), "cuDeviceGet");
    cuda(retain(&context, device), "cuDevicePrimaryCtxRetain");
    cuda(set_current(context), "cuCtxSetCurrent");
    cuda(make_stream(&stream, 1), "cuStreamCreate");
    for (int i = 0; i < 4; i++) {
        cuda(allocate(&rows[i], sizes[i] * sizeof(float)), "cuMemAlloc");
        for (int layer = 0; layer < LAYERS; layer++) {
            cuda(allocate(&boxes[layer][i], sizes[i] * sizeof(float)), "cuMemAlloc");
        }
    }

    static float k[PROMPT * KV], v[PROMPT * KV], out[Q], exact[Q];
    certkv_step *steps[2];
    certkv_certificate found[LAYERS][Q_HEADS];
    certkv_ring *ring = NULL;
    check(certkv_ring_open(caches[0], &ring));
    for (int c = 0; c < 2; c++) {
        check(certkv_sequence_create(caches[c], &sequences[c]));
        certkv_chunk chunk = {sequences[c], PROMPT};
        check(certkv_step_begin(caches[c], &chunk, 1, &steps[c]));
    }
    for (uint32_t layer = 0; layer < LAYERS; layer++) {
        fill(k, PROMPT * KV);
        fill(v, PROMPT * KV);
        for (int c = 0; c < 2; c++) {
            check(certkv_step_append(steps[c], layer, k, v, PROMPT * KV, CERTKV_F32, CERTKV_SPACE_HOST));
        }
    }
    for (int c = 0; c < 2; c++) {
        check(certkv_step_finish(steps[c]));
    }

    static float inputs[LAYERS][3][Q];
    int compared = 0, beyond = 0, different = 0;
    double widest = 0.0;
    certkv_capture *capture = NULL;
    void *run = NULL;
    for (int t = 0; t < STEPS; t++) {
        certkv_chunk chunks[2] = {{sequences[0], 1}, {sequences[1], 1}};
        if (t == STEPS / 2) {
            run = record(caches[0], &chunks[0], stream, &capture);
        }
        memset(out, 0xff, Q * sizeof(float));
        for (int layer = 0; layer < LAYERS; layer++) {
            for (int i = 0; i < 3; i++) {
                fill(inputs[layer][i], sizes[i]);
                cuda(to_device(boxes[layer][i], inputs[layer][i], sizes[i] * sizeof(float), stream), "inputs");
            }
            cuda(to_device(boxes[layer][3], out, Q * sizeof(float), stream), "poison");
        }
        for (int c = 0; c < 2; c++) {
            check(certkv_step_begin(caches[c], &chunks[c], 1, &steps[c]));
        }
        if (run) {
            check(certkv_step_before_stream(steps[0], stream));
            cuda(launch(run, stream), "cuGraphLaunch");
            check(certkv_step_after_stream(steps[0], stream));
            check(certkv_step_replayed(steps[0], capture));
        } else {
            layers(steps[0], stream);
        }
        for (uint32_t layer = 0; layer < LAYERS; layer++) {
            const float *k1 = inputs[layer][0], *v1 = inputs[layer][1];
            cuda(to_host(out, boxes[layer][3], Q * sizeof(float), stream), "out");
            cuda(wait_stream(stream), "cuStreamSynchronize");
            check(certkv_step_certificates(steps[0], layer, found[layer], Q_HEADS));
            check(certkv_step_append(steps[1], layer, k1, v1, KV, CERTKV_F32, CERTKV_SPACE_HOST));
            check(certkv_step_attend(steps[1], layer, inputs[layer][2], exact, Q, NULL, 0, CERTKV_SPACE_HOST));
            for (int h = 0; h < Q_HEADS; h++) {
                double error = 0.0, norm = 0.0;
                for (int i = h * DIM; i < (h + 1) * DIM; i++) {
                    error += ((double)out[i] - exact[i]) * ((double)out[i] - exact[i]);
                    norm += (double)exact[i] * exact[i];
                }
                /* The dense outputs are in single precision themselves. NaN is beyond every bound. */
                beyond += !(sqrt(error) <= found[layer][h].bound + 1e-5 * sqrt(norm));
                widest = fmax(widest, found[layer][h].bound / sqrt(norm));
                compared++;
            }
        }
        uint64_t number = 0;
        check(certkv_step_number(steps[0], &number));
        for (int c = 0; c < 2; c++) {
            check(certkv_step_finish(steps[c]));
        }
        different += published(ring, number, found);
    }
    check(certkv_ring_destroy(ring));
    cuda(run_end(run), "cuGraphExecDestroy");
    check(certkv_capture_destroy(capture));
    printf("certkv %s: %d outputs on the GPU, %d beyond their bound, widest bound %.3f of the norm; %d certificates differ in the ring\n",
           certkv_version(), compared, beyond, widest, different);
    for (int c = 0; c < 2; c++) {
        check(certkv_cache_destroy(caches[c]));
    }
    return beyond != 0 || different != 0;
}
