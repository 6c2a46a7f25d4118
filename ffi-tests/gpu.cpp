// What needs a GPU: Ring, Capture, streams and device memory. A cache on the host refuses all of it; success is in device.cpp.
#include "check.hpp"

static_assert(moves_only<certkv::Ring> && moves_only<certkv::Capture>);

static void rings(const certkv::Cache &cache)
{
    REFUSED(CERTKV_UNSUPPORTED, "not on a GPU", cache.open_ring());
    certkv::Ring ring, other = std::move(ring);
    certkv_published_step shape{};
    std::vector<certkv_published_head> heads(4);
    TRUE(!ring && !other && ring.get() == nullptr && other.detach() == nullptr);
    REFUSED(CERTKV_NULL_POINTER, "ring", ring.published());
    REFUSED(CERTKV_NULL_POINTER, "ring", ring.read(0, heads, shape));
    TRUE(shape.struct_size == sizeof shape && shape.layers == 0);
    OK(ring.close());
    // A number that nobody gave out is refused, not followed.
    ring = certkv::Ring(reinterpret_cast<certkv_ring *>(&shape));
    other = std::move(ring);
    REFUSED(CERTKV_INVALID_HANDLE, "ring", other.published());
    REFUSED(CERTKV_INVALID_HANDLE, "ring", other.read(0, heads, shape));
    REFUSED(CERTKV_INVALID_HANDLE, "ring", other.close());
    TRUE(!ring && !other);
    const certkv::Ring dropped(reinterpret_cast<certkv_ring *>(&shape)); // Its destructor drops the error.
}

static void steps(certkv::Step &step)
{
    std::vector<certkv_certificate> certificates(Q_HEADS);
    std::vector<float> out(Q);
    const std::vector<float> k(KV), v(KV), q(Q);
    REFUSED(CERTKV_UNSUPPORTED, "not on a GPU", step.append_device(0, k.data(), v.data(), KV, CERTKV_F32));
    REFUSED(CERTKV_UNSUPPORTED, "not on a GPU", step.attend_device(0, q.data(), out.data(), Q));
    REFUSED(CERTKV_UNSUPPORTED, "not on a GPU", step.attend_device(0, q.data(), out.data(), Q, certificates));
    REFUSED(CERTKV_UNSUPPORTED, "not on a GPU", step.certificates(0, certificates));
    REFUSED(CERTKV_UNSUPPORTED, "not on a GPU", step.after_stream(nullptr));
    REFUSED(CERTKV_UNSUPPORTED, "not on a GPU", step.before_stream(nullptr));
    REFUSED(CERTKV_UNSUPPORTED, "not on a GPU", step.publish(reinterpret_cast<certkv_published_memory *>(out.data()), 1024));
    REFUSED(CERTKV_NULL_POINTER, "memory", step.publish(nullptr, 1024));
    REFUSED(CERTKV_UNSUPPORTED, "not on a GPU", step.number());
    REFUSED(CERTKV_UNSUPPORTED, "not on a GPU", step.captured(nullptr));
    REFUSED(CERTKV_ORDER, "layer 0", step.plan(0));
    TRUE(step); // Not over.
    certkv::Capture capture, other = std::move(capture);
    REFUSED(CERTKV_NULL_POINTER, "capture", step.replayed(other));
    OK(capture.close());
    capture = certkv::Capture(reinterpret_cast<certkv_capture *>(&step));
    other = std::move(capture);
    TRUE(other && !capture && other.get() != nullptr);
    REFUSED(CERTKV_INVALID_HANDLE, "capture", step.replayed(other));
    REFUSED(CERTKV_INVALID_HANDLE, "capture", other.close());
    TRUE(!other && other.detach() == nullptr);
    OK(other.close());
    OK(step.abort());
    REFUSED(CERTKV_NULL_POINTER, "step", step.captured(nullptr));
    REFUSED(CERTKV_NULL_POINTER, "step", step.number());
}

int main()
{
    const certkv::Cache cache = *certkv::Cache::create(small());
    const certkv::Sequence sequence = *cache.create_sequence();
    rings(cache);
    certkv::Step step = *cache.begin(sequence);
    steps(step);
    return report();
}
