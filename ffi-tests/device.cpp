// What the calls for a GPU hand to the library, and what they make of success, without a GPU: this program has those functions of the
// library itself, and they come before the library's.
#include "check.hpp"
#include <string>

static std::string said;
static certkv_status answer = CERTKV_OK;
static int place[8]; // Its addresses stand for handles and memory.

template <class T>
static T *at(int which)
{
    return reinterpret_cast<T *>(&place[which]);
}

static void note(const char *call, std::initializer_list<const void *> pointers, std::initializer_list<std::uint64_t> numbers)
{
    said += call;
    for (const void *pointer : pointers) {
        said += pointer == nullptr ? " -" : " p" + std::to_string(static_cast<const int *>(pointer) - place);
    }
    for (std::uint64_t number : numbers) {
        said += " " + std::to_string(number);
    }
    said += ";";
}

static bool heard(const char *expected)
{
    const bool same = said == expected;
    if (!same) {
        std::printf("%s\n", said.c_str());
    }
    said.clear();
    return same;
}

extern "C" {
certkv_status certkv_step_append(certkv_step *step, std::uint32_t layer, const void *keys, const void *values, std::uint64_t elements,
                                 certkv_dtype dtype, certkv_space space)
{
    note("append", {step, keys, values}, {layer, elements, static_cast<std::uint64_t>(dtype), static_cast<std::uint64_t>(space)});
    return answer;
}
certkv_status certkv_step_attend(certkv_step *step, std::uint32_t layer, const float *queries, float *out, std::uint64_t elements,
                                 certkv_certificate *certificates, std::uint64_t n, certkv_space space)
{
    note("attend", {step, queries, out, certificates}, {layer, elements, n, static_cast<std::uint64_t>(space)});
    return answer;
}
certkv_status certkv_step_append_tensors(certkv_step *step, std::uint32_t layer, const certkv_tensor *keys, const certkv_tensor *values)
{
    note("append tensors", {step, keys->data, values->data},
         {layer, static_cast<std::uint64_t>(keys->dtype), static_cast<std::uint64_t>(keys->space), keys->token_stride, keys->head_stride,
          values->token_stride, values->head_stride});
    return answer;
}
certkv_status certkv_step_certificates(certkv_step *step, std::uint32_t layer, certkv_certificate *certificates, std::uint64_t n)
{
    note("certificates", {step, certificates}, {layer, n});
    return answer;
}
certkv_status certkv_step_after_stream(certkv_step *step, void *stream)
{
    note("after", {step, stream}, {});
    return answer;
}
certkv_status certkv_step_before_stream(certkv_step *step, void *stream)
{
    note("before", {step, stream}, {});
    return answer;
}
certkv_status certkv_step_plan(certkv_step *step, std::uint32_t layer)
{
    note("plan", {step}, {layer});
    return answer;
}
certkv_status certkv_step_publish(certkv_step *step, certkv_published_memory *memory, std::uint64_t bytes)
{
    note("publish", {step, memory}, {bytes});
    return answer;
}
certkv_status certkv_step_number(const certkv_step *step, std::uint64_t *number)
{
    note("number", {step}, {});
    *number = 77;
    return answer;
}
certkv_status certkv_step_finish(certkv_step *step)
{
    note("finish", {step}, {});
    return answer;
}
certkv_status certkv_step_abort(certkv_step *step)
{
    note("abort", {step}, {});
    return answer;
}
certkv_status certkv_step_captured(certkv_step *step, void *stream, certkv_capture **capture)
{
    note("captured", {step, stream}, {});
    *capture = answer == CERTKV_OK ? at<certkv_capture>(3) : nullptr;
    return answer;
}
certkv_status certkv_step_replayed(certkv_step *step, const certkv_capture *capture)
{
    note("replayed", {step, capture}, {});
    return answer;
}
certkv_status certkv_capture_destroy(certkv_capture *capture)
{
    note("capture ends", {capture}, {});
    return answer;
}
certkv_status certkv_ring_open(const certkv_cache *cache, certkv_ring **ring)
{
    note("open", {cache}, {});
    *ring = answer == CERTKV_OK ? at<certkv_ring>(4) : nullptr;
    return answer;
}
certkv_status certkv_ring_published(const certkv_ring *ring, std::uint64_t *steps)
{
    note("published", {ring}, {});
    *steps = 5;
    return answer;
}
certkv_status certkv_ring_read(const certkv_ring *ring, std::uint64_t number, certkv_published_head *heads, std::uint64_t capacity,
                               certkv_published_step *step)
{
    note("read", {ring, heads}, {number, capacity, step->struct_size});
    step->layers = 9;
    return answer;
}
certkv_status certkv_ring_destroy(certkv_ring *ring)
{
    note("ring ends", {ring}, {});
    return answer;
}
certkv_status certkv_last_error(certkv_error_info *info)
{
    info->status = answer;
    info->cuda_result = 700;
    info->message = info->struct_size == sizeof *info ? "stand-in" : "";
    return CERTKV_OK;
}
certkv_status certkv_cache_destroy(certkv_cache *cache)
{
    note("cache ends", {cache}, {});
    return answer;
}
}

static void rings()
{
    certkv::Cache cache(at<certkv_cache>(1));
    const certkv::span<certkv_published_head> heads(at<certkv_published_head>(2), 6);
    certkv_published_step shape{};
    {
        auto ring = cache.open_ring();
        TRUE(ring && ring->get() == at<certkv_ring>(4) && *ring->published() == 5 && ring->read(8, heads, shape));
        TRUE(heard("open p1;published p4;read p4 p2 8 6 16;") && shape.layers == 9);
        answer = CERTKV_SHAPE;
        const auto none = ring->published();
        REFUSED(CERTKV_SHAPE, "stand-in", none);
        TRUE(none.error().cuda_result() == 700 && ring->read(8, {}, shape).status() == CERTKV_SHAPE && shape.layers == 9);
        answer = CERTKV_OK;
        TRUE(heard("published p4;read p4 - 8 0 16;"));
        certkv::Ring other = *std::move(ring);
        OK(other.close());
        TRUE(!other && heard("ring ends p4;"));
        OK(other.close());
        TRUE(heard("ring ends -;"));
        other = *cache.open_ring();
    }
    TRUE(heard("open p1;ring ends p4;"));
    answer = CERTKV_UNSUPPORTED;
    TRUE(cache.open_ring().status() == CERTKV_UNSUPPORTED);
    answer = CERTKV_OK;
    TRUE(heard("open p1;")); // Nothing to end.
    OK(cache.close());
    TRUE(!cache && heard("cache ends p1;"));
}

static void steps()
{
    certkv::Step step(at<certkv_step>(0));
    const certkv::span<certkv_certificate> certificates(at<certkv_certificate>(2), 3);
    OK(step.after_stream(at<void>(7)));
    OK(step.append_device(1, at<void>(5), at<void>(6), 128, CERTKV_BF16));
    // Slices of a fused buffer.
    const certkv::Tensor keys(at<void>(5), CERTKV_F16, CERTKV_SPACE_DEVICE, 768), values(at<void>(6), CERTKV_F16, CERTKV_SPACE_DEVICE, 776, 64);
    OK(step.append_tensors(2, keys, values));
    OK(step.attend_device(1, at<float>(5), at<float>(6), 256));
    OK(step.attend_device(1, at<float>(5), at<float>(6), 256, certificates));
    OK(step.certificates(1, certificates));
    OK(step.plan(1));
    OK(step.before_stream(nullptr));
    TRUE(*step.number() == 77);
    OK(step.publish(at<certkv_published_memory>(4), 1024));
    TRUE(heard("after p0 p7;append p0 p5 p6 1 128 3 2;append tensors p0 p5 p6 2 2 2 768 0 776 64;attend p0 p5 p6 - 1 256 0 2;attend p0 p5 p6 p2 1 256 3 2;certificates p0 p2 1 3;"
               "plan p0 1;before p0 -;number p0;publish p0 p4 1024;"));
    answer = CERTKV_ORDER; // Not recording: the step goes on.
    TRUE(step.captured(at<void>(7)).status() == CERTKV_ORDER && step);
    answer = CERTKV_OK;
    TRUE(heard("captured p0 p7;"));
    {
        auto capture = step.captured(at<void>(7));
        TRUE(capture && !step && heard("captured p0 p7;")); // Over: nothing is left to abort.
        step = certkv::Step(at<certkv_step>(0));
        OK(step.replayed(*capture));
        TRUE(heard("replayed p0 p3;"));
    }
    TRUE(heard("capture ends p3;"));
}

// After which errors a step is still to be aborted, as certkv.h has it.
static void ends()
{
    for (certkv_status status : {CERTKV_OK, CERTKV_ORDER, CERTKV_DEVICE, CERTKV_INTERNAL, CERTKV_INVALID_HANDLE}) {
        {
            certkv::Step step(at<certkv_step>(0));
            answer = status;
            TRUE(step.finish().status() == status && !step);
        }
        TRUE(heard("finish p0;"));
    }
    for (certkv_status status : {CERTKV_BUSY_STEP, CERTKV_PANIC, CERTKV_POISONED}) {
        {
            certkv::Step step(at<certkv_step>(0));
            answer = status;
            TRUE(step.finish().status() == status && step);
        }
        TRUE(heard("finish p0;abort p0;"));
    }
    {
        certkv::Step step(at<certkv_step>(0));
        answer = CERTKV_BUSY_STEP;
        TRUE(step.abort().status() == CERTKV_BUSY_STEP && step);
        answer = CERTKV_OK;
        OK(step.abort());
        TRUE(!step);
    }
    TRUE(heard("abort p0;abort p0;"));
}

int main()
{
    rings();
    steps();
    TRUE(heard("abort p0;")); // The one that was replayed and not finished.
    ends();
    return report();
}
