// What one GPU and its host link can do at best: the ceilings the attention kernels are measured against.
//
//   nvcc -O3 -std=c++17 -cudart static -gencode=arch=compute_90a,code=sm_90a ceilings.cu -o ceilings
//   ceilings [read|launch|link|all] [--json FILE]
//
// read    device memory: long reads, cold reads by size (a CUDA graph over slices that outgrow the L2), random pages
// launch  what a kernel costs besides its work: enqueue, round trip, graph node, flag through pinned memory
// link    pinned host memory: copies by size, page-in of small blocks by copy engine and by kernel, interference
//
// Every figure is a median; GB/s are 1e9 bytes per second. The JSON file is one array of flat objects.
#include <cuda_runtime.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <initializer_list>
#include <string>
#include <utility>
#include <vector>

#define CHECK(call)                                                                                                    \
  do {                                                                                                                 \
    cudaError_t status_ = (call);                                                                                      \
    if (status_ != cudaSuccess) {                                                                                      \
      fprintf(stderr, "%s:%d: %s: %s\n", __FILE__, __LINE__, #call, cudaGetErrorString(status_));                      \
      exit(3);                                                                                                         \
    }                                                                                                                  \
  } while (0)

namespace {

constexpr size_t KiB = size_t(1) << 10, MiB = size_t(1) << 20, GiB = size_t(1) << 30;
cudaStream_t stream;
int sms = 0;  // multiprocessors of the device

// ---------------------------------------------------------------- results

std::string json;

// Prints one result and keeps it for the JSON file.
void report(const std::string& name, std::initializer_list<std::pair<const char*, double>> values) {
  std::string line = "{\"name\": \"" + name + "\"";
  printf("%-28s", name.c_str());
  for (const auto& [key, value] : values) {
    char number[64];
    snprintf(number, sizeof number, "%.6g", value);
    printf("  %s %s", key, number);
    line += std::string(", \"") + key + "\": " + number;
  }
  printf("\n");
  json += (json.empty() ? "[\n " : ",\n ") + line + "}";
}

// ---------------------------------------------------------------- clocks

double seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

double median(std::vector<double> v) {
  std::sort(v.begin(), v.end());
  return v[v.size() / 2];
}

// Microseconds of `work` on the stream by device events: what the device spends.
double device_us(const std::function<void()>& work, int rounds = 11, int warmup = 2) {
  cudaEvent_t start, stop;
  CHECK(cudaEventCreate(&start));
  CHECK(cudaEventCreate(&stop));
  for (int i = 0; i < warmup; i++) work();
  CHECK(cudaStreamSynchronize(stream));
  std::vector<double> times;
  for (int i = 0; i < rounds; i++) {
    CHECK(cudaEventRecord(start, stream));
    work();
    CHECK(cudaEventRecord(stop, stream));
    CHECK(cudaEventSynchronize(stop));
    float ms;
    CHECK(cudaEventElapsedTime(&ms, start, stop));
    times.push_back(ms * 1e3);
  }
  CHECK(cudaGetLastError());
  CHECK(cudaEventDestroy(start));
  CHECK(cudaEventDestroy(stop));
  return median(times);
}

// Microseconds of `work` and a synchronisation by the host clock: what a caller waits.
double host_us(const std::function<void()>& work, int rounds = 11, int warmup = 2) {
  std::vector<double> times;
  for (int i = -warmup; i < rounds; i++) {
    double begin = seconds();
    work();
    CHECK(cudaStreamSynchronize(stream));
    if (i >= 0) times.push_back((seconds() - begin) * 1e6);
  }
  return median(times);
}

double gbs(double bytes, double us) { return bytes / us * 1e-3; }

// Captures `work` into a graph, times its replay, and returns microseconds per replay.
double graph_us(const std::function<void()>& work, int rounds = 11) {
  cudaGraph_t graph;
  cudaGraphExec_t exec;
  CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
  work();
  CHECK(cudaStreamEndCapture(stream, &graph));
  CHECK(cudaGraphInstantiate(&exec, graph, 0));
  double us = device_us([&] { CHECK(cudaGraphLaunch(exec, stream)); }, rounds);
  CHECK(cudaGraphExecDestroy(exec));
  CHECK(cudaGraphDestroy(graph));
  return us;
}

// ---------------------------------------------------------------- kernels

// 16 bytes, read once: no L1 allocation.
__device__ __forceinline__ uint4 load_once(const uint4* p) {
  uint4 v;
  asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0,%1,%2,%3},[%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "l"(p));
  return v;
}

// Keeps the loads alive; practically never stores.
__device__ __forceinline__ void keep(uint32_t mix, uint32_t* out) {
  if (mix == 0x12345678) *out = mix;
}

__device__ __forceinline__ uint32_t mixed(uint4 v) { return v.x ^ v.y ^ v.z ^ v.w; }

__global__ void fill(uint4* p, size_t n) {
  size_t stride = size_t(gridDim.x) * blockDim.x;
  for (size_t i = blockIdx.x * size_t(blockDim.x) + threadIdx.x; i < n; i += stride) {
    uint32_t h = uint32_t(i) * 2654435761u ^ uint32_t(i >> 17);
    p[i] = make_uint4(h, h * 3, h ^ 0x5bd1e995, h + 7);
  }
}

// Reads n 16-byte words, UNROLL loads in flight per thread. n must be a multiple of UNROLL * blockDim.x.
template <int UNROLL> __global__ void read_all(const uint4* __restrict__ p, size_t n, uint32_t* out) {
  uint32_t mix = 0;
  size_t step = size_t(gridDim.x) * blockDim.x * UNROLL;
  for (size_t base = size_t(blockIdx.x) * blockDim.x * UNROLL + threadIdx.x; base < n; base += step) {
    uint4 v[UNROLL];
#pragma unroll
    for (int u = 0; u < UNROLL; u++) v[u] = load_once(p + base + size_t(u) * blockDim.x);
#pragma unroll
    for (int u = 0; u < UNROLL; u++) mix ^= mixed(v[u]);
  }
  keep(mix, out);
}

// Each warp reads whole blocks of BYTES named by a table, as attention reads a paged cache; AHEAD blocks in flight.
template <int BYTES, int AHEAD>
__global__ void read_pages(const char* __restrict__ pool, const uint32_t* __restrict__ table, int blocks,
                           uint32_t* out) {
  constexpr int LOADS = BYTES / 512;
  int lane = threadIdx.x & 31;
  int warp = (blockIdx.x * blockDim.x + threadIdx.x) >> 5, warps = (gridDim.x * blockDim.x) >> 5;
  int share = (blocks + warps - 1) / warps, first = warp * share, last = min(blocks, first + share);
  uint32_t mix = 0;
  for (int i = first; i + AHEAD <= last; i += AHEAD) {
    uint4 v[AHEAD * LOADS];
#pragma unroll
    for (int a = 0; a < AHEAD; a++) {
      const uint4* p = reinterpret_cast<const uint4*>(pool + size_t(table[i + a]) * BYTES) + lane;
#pragma unroll
      for (int l = 0; l < LOADS; l++) v[a * LOADS + l] = load_once(p + l * 32);
    }
#pragma unroll
    for (int u = 0; u < AHEAD * LOADS; u++) mix ^= mixed(v[u]);
  }
  keep(mix, out);
}

// Page-in: each CTA copies whole blocks of pinned host memory into packed device slots.
__global__ void page_in(const char* __restrict__ host, char* __restrict__ device, const uint32_t* __restrict__ table,
                        int blocks, int bytes) {
  int words = bytes / 16, t = blockDim.x;
  for (int b = blockIdx.x; b < blocks; b += gridDim.x) {
    const uint4* from = reinterpret_cast<const uint4*>(host + size_t(table[b]) * bytes);
    uint4* to = reinterpret_cast<uint4*>(device + size_t(b) * bytes);
    int i = threadIdx.x;
    for (; i + 3 * t < words; i += 4 * t) {
      uint4 v0 = from[i], v1 = from[i + t], v2 = from[i + 2 * t], v3 = from[i + 3 * t];
      to[i] = v0, to[i + t] = v1, to[i + 2 * t] = v2, to[i + 3 * t] = v3;
    }
    for (; i < words; i += t) to[i] = from[i];
  }
}

__global__ void nothing() {}

__global__ void nothing_overlapped() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;\n griddepcontrol.launch_dependents;");
#endif
}

// Answers n flags of the host; gives up on a host that stays silent for 20 million clocks.
__global__ void ping_pong(volatile uint32_t* to_host, volatile uint32_t* to_device, int n) {
  for (int i = 1; i <= n; i++) {
    *to_host = i;
    __threadfence_system();
    for (long long begin = clock64(); *to_device < uint32_t(i);)
      if (clock64() - begin > 20000000LL) {
        *to_host = 0xffffffffu;
        return;
      }
  }
}

// ---------------------------------------------------------------- read

struct Shape {
  int ctas, threads, unroll;
};

void launch_read(const Shape& s, const char* p, size_t bytes, uint32_t* out) {
  size_t n = bytes / 16;
  int ctas = int(std::min<size_t>(s.ctas, n / (size_t(s.threads) * s.unroll)));
  const uint4* words = reinterpret_cast<const uint4*>(p);
  if (s.unroll == 4) read_all<4><<<ctas, s.threads, 0, stream>>>(words, n, out);
  if (s.unroll == 8) read_all<8><<<ctas, s.threads, 0, stream>>>(words, n, out);
}

std::vector<Shape> read_shapes(std::initializer_list<int> ctas_per_sm) {
  std::vector<Shape> shapes;
  for (int per_sm : ctas_per_sm)
    for (int threads : {256, 512})
      for (int unroll : {4, 8}) shapes.push_back({sms * per_sm, threads, unroll});
  return shapes;
}

// A random sample without repetition of `count` of `total` blocks.
std::vector<uint32_t> sample(size_t count, size_t total) {
  std::vector<uint32_t> index(total);
  for (size_t i = 0; i < total; i++) index[i] = uint32_t(i);
  uint64_t state = 88172645463325252ull;
  for (size_t i = 0; i < count; i++) {
    state ^= state << 13, state ^= state >> 7, state ^= state << 17;
    std::swap(index[i], index[i + state % (total - i)]);
  }
  index.resize(count);
  return index;
}

void read_ceilings() {
  const size_t pool = 8 * GiB;
  char* p;
  uint32_t *out, *table;
  CHECK(cudaMalloc(&p, pool));
  CHECK(cudaMalloc(&out, 64));
  fill<<<sms * 16, 512, 0, stream>>>(reinterpret_cast<uint4*>(p), pool / 16);
  // The clocks of an idle device are low; half a second of reads brings them up.
  for (double begin = seconds(); seconds() - begin < 0.5;) {
    launch_read({sms * 16, 512, 8}, p, pool, out);
    CHECK(cudaStreamSynchronize(stream));
  }

  double best = 0;
  for (size_t bytes : {512 * MiB, 2 * GiB, 8 * GiB}) {
    double here = 0;
    for (const Shape& s : read_shapes({2, 4, 8, 16, 64}))
      here = std::max(here, gbs(double(bytes), device_us([&] { launch_read(s, p, bytes, out); }, 9)));
    report("read_long", {{"bytes", double(bytes)}, {"gbs", here}});
    best = std::max(best, here);
  }
  report("read_best", {{"gbs", best}});

  // One kernel per slice, slices in turn: what a kernel that must read so many cold bytes cannot beat, launch included.
  for (size_t bytes = MiB; bytes <= 4 * GiB; bytes *= 2) {
    int slices = int(std::min<size_t>(256, std::max<size_t>(2, 512 * MiB / bytes)));
    double us = 1e30;
    for (const Shape& s : read_shapes({1, 2, 4, 8, 16})) {
      double graph = graph_us([&] {
        for (int i = 0; i < slices; i++) launch_read(s, p + i * bytes, bytes, out);
      }, 7);
      us = std::min(us, graph / slices);
    }
    report("read_cold", {{"bytes", double(bytes)}, {"us", us}, {"gbs", gbs(double(bytes), us)}});
  }

  const size_t amount = GiB;
  CHECK(cudaMalloc(&table, amount / 512 * 4));
  for (size_t block : {512, 1024, 2048, 4096}) {
    int blocks = int(amount / block);
    std::vector<uint32_t> index = sample(blocks, pool / block);
    CHECK(cudaMemcpy(table, index.data(), size_t(blocks) * 4, cudaMemcpyHostToDevice));
    double us = device_us([&] {
      int ctas = sms * 4;
      if (block == 512) read_pages<512, 8><<<ctas, 512, 0, stream>>>(p, table, blocks, out);
      if (block == 1024) read_pages<1024, 4><<<ctas, 512, 0, stream>>>(p, table, blocks, out);
      if (block == 2048) read_pages<2048, 2><<<ctas, 512, 0, stream>>>(p, table, blocks, out);
      if (block == 4096) read_pages<4096, 1><<<ctas, 512, 0, stream>>>(p, table, blocks, out);
    }, 9);
    report("read_random_pages", {{"page", double(block)}, {"gbs", gbs(double(amount), us)}});
  }
  CHECK(cudaFree(table));
  CHECK(cudaFree(out));
  CHECK(cudaFree(p));
}

// ---------------------------------------------------------------- launch

void launch_overlapped(int ctas) {
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(ctas);
  config.blockDim = dim3(256);
  config.stream = stream;
  cudaLaunchAttribute attribute;
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  config.attrs = &attribute;
  config.numAttrs = 1;
  CHECK(cudaLaunchKernelEx(&config, nothing_overlapped));
}

void launch_ceilings() {
  const int many = 20000, nodes = 200;
  double begin = seconds();
  for (int i = 0; i < many; i++) nothing<<<1, 32, 0, stream>>>();
  double enqueued = seconds();
  CHECK(cudaStreamSynchronize(stream));
  report("enqueue", {{"us", (enqueued - begin) * 1e6 / many}});
  report("launch_and_sync", {{"us", host_us([] { nothing<<<1, 32, 0, stream>>>(); }, 201, 20)}});
  for (int ctas : {1, sms, 8 * sms}) {
    double plain = graph_us([&] {
      for (int i = 0; i < nodes; i++) nothing<<<ctas, 256, 0, stream>>>();
    });
    double overlapped = graph_us([&] {
      for (int i = 0; i < nodes; i++) launch_overlapped(ctas);
    });
    report("graph_node", {{"ctas", double(ctas)}, {"us", plain / nodes}, {"overlapped_us", overlapped / nodes}});
  }

  uint32_t* pinned;
  CHECK(cudaHostAlloc(&pinned, 4 * KiB, cudaHostAllocMapped));
  memset(pinned, 0, 4 * KiB);
  volatile uint32_t *to_host = pinned, *to_device = pinned + 512;
  const uint32_t trips = 2000;
  begin = seconds();
  ping_pong<<<1, 1, 0, stream>>>(to_host, to_device, int(trips));
  uint32_t seen = 0;
  while (seen < trips && seconds() - begin < 5) {
    uint32_t value = *to_host;
    if (value == 0xffffffffu) break;
    if (value != seen) *to_device = seen = value;
  }
  double spent = seconds() - begin;
  CHECK(cudaStreamSynchronize(stream));
  if (seen == trips) report("flag_round_trip", {{"us", spent * 1e6 / trips}});
  CHECK(cudaFreeHost(pinned));
}

// ---------------------------------------------------------------- link

void link_ceilings() {
  const size_t host_bytes = 4 * GiB, device_bytes = GiB;
  char *host, *host_back, *device, *other;
  uint32_t *out, *table;
  CHECK(cudaHostAlloc(&host, host_bytes, cudaHostAllocMapped));
  CHECK(cudaHostAlloc(&host_back, device_bytes, cudaHostAllocMapped));
  memset(host, 1, host_bytes);
  memset(host_back, 3, device_bytes);
  CHECK(cudaMalloc(&device, device_bytes));
  CHECK(cudaMalloc(&other, 4 * GiB));
  CHECK(cudaMalloc(&out, 64));
  CHECK(cudaMalloc(&table, MiB));
  CHECK(cudaMemset(other, 1, 4 * GiB));

  for (size_t bytes : {4 * KiB, 64 * KiB, MiB, 16 * MiB, 64 * MiB, GiB}) {
    double in = device_us([&] { CHECK(cudaMemcpyAsync(device, host, bytes, cudaMemcpyHostToDevice, stream)); });
    double back = device_us([&] { CHECK(cudaMemcpyAsync(host_back, device, bytes, cudaMemcpyDeviceToHost, stream)); });
    report("copy", {{"bytes", double(bytes)},
                    {"to_device_us", in},
                    {"to_device_gbs", gbs(double(bytes), in)},
                    {"to_host_us", back},
                    {"to_host_gbs", gbs(double(bytes), back)}});
  }

  // Host clock with submit and synchronisation, since the submit of a batch copy is most of its cost.
  for (int bytes : {4096, 8192, 16384, 32768, 65536})
    for (int blocks : {16, 128, 1024}) {
      std::vector<uint32_t> index = sample(blocks, host_bytes / bytes);
      CHECK(cudaMemcpy(table, index.data(), size_t(blocks) * 4, cudaMemcpyHostToDevice));
      std::vector<const void*> to(blocks), from(blocks);
      std::vector<size_t> sizes(blocks, bytes);
      for (int i = 0; i < blocks; i++) {
        to[i] = device + size_t(i) * bytes;
        from[i] = host + size_t(index[i]) * bytes;
      }
      cudaMemcpyAttributes attributes = {};
      attributes.srcAccessOrder = cudaMemcpySrcAccessOrderStream;
      size_t group = 0;
      double batch = host_us([&] {
        CHECK(cudaMemcpyBatchAsync(to.data(), from.data(), sizes.data(), blocks, &attributes, &group, 1, stream));
      }, 7, 1);
      auto kernel = [&](int ctas) {
        return host_us([&] {
          page_in<<<ctas, bytes <= 4096 ? 256 : 512, 0, stream>>>(host, device, table, blocks, bytes);
        }, 7, 1);
      };
      report("page_in", {{"bytes", double(bytes)},
                         {"blocks", double(blocks)},
                         {"batch_copy_us", batch},
                         {"kernel_4_us", kernel(4)},
                         {"kernel_16_us", kernel(16)},
                         {"kernel_32_us", kernel(32)}});
    }

  // How much page-in slows a read of device memory running beside it.
  const int blocks = 8192, bytes = 8192;
  std::vector<uint32_t> index = sample(blocks, host_bytes / bytes);
  CHECK(cudaMemcpy(table, index.data(), size_t(blocks) * 4, cudaMemcpyHostToDevice));
  cudaStream_t side;
  CHECK(cudaStreamCreateWithFlags(&side, cudaStreamNonBlocking));
  auto read = [&] { launch_read({sms * 4, 512, 8}, other, 4 * GiB, out); };
  double alone = device_us(read, 9);
  for (int ctas : {0, 8, 32}) {  // 0: the copy engine
    std::vector<double> times;
    for (int i = 0; i < 7; i++) {
      for (int k = 0; k < 3; k++) {
        if (ctas == 0) CHECK(cudaMemcpyAsync(device, host, 64 * MiB, cudaMemcpyHostToDevice, side));
        if (ctas != 0) page_in<<<ctas, 512, 0, side>>>(host, device, table, blocks, bytes);
      }
      times.push_back(device_us(read, 1, 0));
      CHECK(cudaStreamSynchronize(side));
    }
    report("read_beside_page_in", {{"ctas", double(ctas)}, {"alone_us", alone}, {"beside_us", median(times)}});
  }
  CHECK(cudaStreamDestroy(side));
  for (void* p : {(void*)device, (void*)other, (void*)out, (void*)table}) CHECK(cudaFree(p));
  for (void* p : {(void*)host, (void*)host_back}) CHECK(cudaFreeHost(p));
}

}  // namespace

int main(int argc, char** argv) {
  std::string what = "all", file;
  for (int i = 1; i < argc; i++) {
    if (!strcmp(argv[i], "--json") && i + 1 < argc) file = argv[++i];
    else what = argv[i];
  }
  if (what != "read" && what != "launch" && what != "link" && what != "all") {
    fprintf(stderr, "usage: ceilings [read|launch|link|all] [--json FILE]\n");
    return 2;
  }
  cudaDeviceProp device;
  CHECK(cudaGetDeviceProperties(&device, 0));
  CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  setvbuf(stdout, nullptr, _IOLBF, 0);
  sms = device.multiProcessorCount;
  int driver = 0;
  CHECK(cudaDriverGetVersion(&driver));
  report(device.name, {{"sms", double(sms)}, {"l2_bytes", double(device.l2CacheSize)}, {"driver", double(driver)}});
  if (what == "read" || what == "all") read_ceilings();
  if (what == "launch" || what == "all") launch_ceilings();
  if (what == "link" || what == "all") link_ceilings();
  if (!file.empty()) {
    FILE* f = fopen(file.c_str(), "w");
    if (!f) {
      fprintf(stderr, "cannot write %s\n", file.c_str());
      return 2;
    }
    fprintf(f, "%s\n]\n", json.c_str());
    if (fclose(f)) return 2;
  }
  return 0;
}
