// certkv for C++17 and later: the functions of certkv.h as types that own what they hold. Header only; link libcertkv.
// Long because it is one file: that is what a server copies, and what certkv.h is.
//
// The contract of every call (arguments, memory, threads, stream, capture, errors) is in certkv.h under the C name that is given here.
//
// Results. Every call that can fail returns a Result: a value, or an Error with a status and a text of its own. Nothing throws, unless a
// Result is asked to: `Cache::create(config).value_or_throw()`. There is no macro for that, so files that ask and files that do not see
// the same classes and link together. Without exceptions (-fno-exceptions -fno-rtti) all else is there.
// Ownership. Objects move and do not copy. A moved-from or closed object is empty: ending it again is no error, other calls on it return
// CERTKV_NULL_POINTER. Destructors end what the object holds and drop errors; close(), release() and abort() return them.
// Order of ending. A Sequence or Step must not outlive its Cache: declare the Cache first. The library refuses one that does, as no
// handle is ever given out twice, but what it held has ended with the cache.
// Cost. Nothing is allocated here. Optimised, a call that succeeds costs a test of its status; the text of an error is copied when there is
// one.
// Threads. No state is kept here. What is const may be called from any thread at any time: all of Cache, Sequence, Store, Calibration, Scales, Ring and Capture
// but moving and ending them. A Step is for one thread at a time.

#ifndef CERTKV_HPP
#define CERTKV_HPP

#include "certkv.h"

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <memory>
#include <optional>
#include <string_view>
#include <type_traits>
#include <utility>

namespace certkv {

// A borrowed array. It is not std::span even where there is one: signatures would differ between files of C++17 and of C++20 that are
// linked together. It is made from any lvalue with data() and size(), from C arrays, from std::span and, read-only, from temporaries.
template <class T>
class span {
    template <class Container>
    using pointee = std::remove_pointer_t<decltype(std::declval<Container &>().data())>;
    // Qualifiers may be added, but no derived class becomes its base: the stride would be wrong.
    template <class Container, class = decltype(std::declval<Container &>().size())>
    using if_fits = std::enable_if_t<std::is_convertible_v<pointee<Container> (*)[], T (*)[]>>;

public:
    using element_type = T;

    constexpr span() noexcept = default;
    constexpr span(T *data, std::size_t size) noexcept : data_(data), size_(size) {}
    template <std::size_t N>
    constexpr span(T (&array)[N]) noexcept : data_(array), size_(N) {}
    template <class Container, class = if_fits<Container>>
    constexpr span(Container &container) noexcept : data_(container.data()), size_(container.size()) {}
    template <class Container, class = if_fits<const Container>>
    constexpr span(const Container &container) noexcept : data_(container.data()), size_(container.size()) {}

    [[nodiscard]] constexpr T *data() const noexcept { return data_; }
    [[nodiscard]] constexpr std::size_t size() const noexcept { return size_; }
    [[nodiscard]] constexpr bool empty() const noexcept { return size_ == 0; }
    [[nodiscard]] constexpr T *begin() const noexcept { return data_; }
    [[nodiscard]] constexpr T *end() const noexcept { return data_ + size_; }
    [[nodiscard]] constexpr T &operator[](std::size_t at) const noexcept { return data_[at]; }

private:
    T *data_ = nullptr;
    std::size_t size_ = 0;
};

// Version of the running library: certkv_version, certkv_version_number.
[[nodiscard]] inline const char *version() noexcept { return certkv_version(); }
[[nodiscard]] inline std::uint32_t version_number() noexcept { return certkv_version_number(); }

// Name of a status: certkv_status_name.
[[nodiscard]] inline const char *status_name(certkv_status status) noexcept { return certkv_status_name(status); }

// What went wrong. It has its own copy of the text, since the thread's next failure (a destructor's, say) replaces the library's; a text
// of more than 247 bytes is cut.
class [[nodiscard]] Error {
public:
    // No error.
    Error() noexcept : status_(CERTKV_OK), cuda_result_(0) {}
    Error(certkv_status status, const char *message, std::int32_t cuda_result = 0) noexcept : status_(status), cuda_result_(cuda_result)
    {
        copy(message);
    }
    Error(const Error &other) noexcept : status_(other.status_), cuda_result_(other.cuda_result_) { copy_if_any(other); }
    Error &operator=(const Error &other) noexcept
    {
        if (this != &other) {
            status_ = other.status_;
            cuda_result_ = other.cuda_result_;
            copy_if_any(other);
        }
        return *this;
    }
    ~Error() = default;

    // The calling thread's latest failure: certkv_last_error.
    static Error latest() noexcept
    {
        certkv_error_info info{};
        info.struct_size = static_cast<std::uint32_t>(sizeof info);
        if (certkv_last_error(&info) != CERTKV_OK || info.message == nullptr) {
            return {};
        }
        return {info.status, info.message, info.cuda_result};
    }
    // A call of this thread has just returned `status`.
    static Error of(certkv_status status) noexcept
    {
        const Error last = latest();
        return last.status_ == status ? last : Error(status, certkv_status_name(status));
    }

    [[nodiscard]] certkv_status status() const noexcept { return status_; }
    // CUresult behind it; 0 if no CUDA call was.
    [[nodiscard]] std::int32_t cuda_result() const noexcept { return cuda_result_; }
    // Ends with a 0 byte; valid as long as this object.
    [[nodiscard]] const char *message() const noexcept { return status_ == CERTKV_OK ? "" : message_; }
    [[nodiscard]] const char *name() const noexcept { return certkv_status_name(status_); }

private:
    void copy(const char *text) noexcept
    {
        std::size_t size = 0;
        while (size < sizeof message_ - 1 && text[size] != '\0') {
            size++;
        }
        // A character of several bytes is kept whole or not at all.
        while (size > 0 && (static_cast<unsigned char>(text[size]) & 0xc0u) == 0x80u) {
            size--;
        }
        std::memcpy(message_, text, size);
        message_[size] = '\0';
    }
    // Without an error the text was never written.
    void copy_if_any(const Error &other) noexcept
    {
        if (other.status_ != CERTKV_OK) {
            std::memcpy(message_, other.message_, std::strlen(other.message_) + 1);
        }
    }

    certkv_status status_;
    std::int32_t cuda_result_;
    char message_[248];
};

// A value, or why there is none. Reading the value of a failed one ends the program (std::abort): there is nothing to read.
template <class T>
class [[nodiscard]] Result {
public:
    Result(T value) noexcept : value_(std::move(value)) {}
    Result(const Error &error) noexcept : error_(error) {}

    [[nodiscard]] bool ok() const noexcept { return value_.has_value(); }
    [[nodiscard]] explicit operator bool() const noexcept { return ok(); }
    [[nodiscard]] certkv_status status() const noexcept { return error_.status(); }
    [[nodiscard]] const Error &error() const noexcept { return error_; }

    [[nodiscard]] T &operator*() &noexcept { return there(), *value_; }
    [[nodiscard]] const T &operator*() const &noexcept { return there(), *value_; }
    [[nodiscard]] T &&operator*() &&noexcept { return there(), std::move(*value_); }
    [[nodiscard]] T *operator->() noexcept { return there(), &*value_; }
    [[nodiscard]] const T *operator->() const noexcept { return there(), &*value_; }
    [[nodiscard]] T value_or(T other) &&noexcept { return ok() ? std::move(*value_) : std::move(other); }
    // Throws an Exception instead. Not there where exceptions are off.
    [[nodiscard]] inline T value_or_throw() &&;

private:
    void there() const noexcept
    {
        if (!ok()) {
            std::abort();
        }
    }

    Error error_;
    std::optional<T> value_;
};

// Success, or why not.
template <>
class [[nodiscard]] Result<void> {
public:
    Result() noexcept = default;
    Result(const Error &error) noexcept : error_(error) {}

    [[nodiscard]] bool ok() const noexcept { return error_.status() == CERTKV_OK; }
    [[nodiscard]] explicit operator bool() const noexcept { return ok(); }
    [[nodiscard]] certkv_status status() const noexcept { return error_.status(); }
    [[nodiscard]] const Error &error() const noexcept { return error_; }
    // Throws an Exception instead. Not there where exceptions are off.
    inline void value_or_throw() const;

private:
    Error error_;
};

#ifdef __cpp_exceptions
// What value_or_throw throws.
class Exception : public std::exception {
public:
    explicit Exception(const Error &error) noexcept : error_(error) {}
    [[nodiscard]] const Error &error() const noexcept { return error_; }
    [[nodiscard]] const char *what() const noexcept override { return error_.message(); }

private:
    Error error_;
};

template <class T>
T Result<T>::value_or_throw() &&
{
    if (!ok()) {
        throw Exception(error_);
    }
    return std::move(*value_);
}

inline void Result<void>::value_or_throw() const
{
    if (!ok()) {
        throw Exception(error_);
    }
}
#endif

namespace detail {

inline Result<void> done(certkv_status status) noexcept
{
    if (status != CERTKV_OK) {
        return Error::of(status);
    }
    return {};
}

template <class T>
Result<T> done(certkv_status status, T &value) noexcept
{
    if (status != CERTKV_OK) {
        return Error::of(status);
    }
    return std::move(value);
}

// A struct that says its size.
template <class Struct>
Struct sized() noexcept
{
    Struct made{};
    made.struct_size = static_cast<std::uint32_t>(sizeof made);
    return made;
}

// Bytes of a name that is there, if only as no byte at all.
inline const void *bytes(std::string_view name) noexcept { return name.data() == nullptr ? "" : name.data(); }

// A pointer from the library and the function that ends it.
template <class T, certkv_status (*End)(T *)>
class Handle {
public:
    Handle() noexcept = default;
    // Owns from now on what the library gave.
    explicit Handle(T *handle) noexcept : handle_(handle) {}
    Handle(Handle &&other) noexcept : handle_(other.detach()) {}
    Handle &operator=(Handle &&other) noexcept
    {
        if (this != &other) {
            end();
            handle_ = other.detach();
        }
        return *this;
    }
    Handle(const Handle &) = delete;
    Handle &operator=(const Handle &) = delete;
    ~Handle() { end(); }

    [[nodiscard]] explicit operator bool() const noexcept { return handle_ != nullptr; }
    // For C calls; stays owned.
    [[nodiscard]] T *get() const noexcept { return handle_; }
    // Gives it up without ending it.
    [[nodiscard]] T *detach() noexcept { return std::exchange(handle_, nullptr); }

protected:
    // Empty afterwards, unless the call has to be made again (CERTKV_BUSY_STEP).
    Result<void> ended() noexcept
    {
        const certkv_status status = End(handle_);
        if (status == CERTKV_OK || status == CERTKV_INVALID_HANDLE) {
            handle_ = nullptr;
        }
        return done(status);
    }

    T *handle_ = nullptr;

private:
    void end() noexcept
    {
        if (handle_ != nullptr) {
            static_cast<void>(End(handle_));
        }
    }
};

} // namespace detail

// certkv_capabilities_describe: what the library can use of this machine.
[[nodiscard]] inline Result<certkv_capabilities> capabilities() noexcept
{
    certkv_capabilities seen = detail::sized<certkv_capabilities>();
    return detail::done(certkv_capabilities_describe(&seen), seen);
}
// certkv_gpu_describe, of a Config::device.
[[nodiscard]] inline Result<certkv_gpu_info> describe_gpu(std::uint32_t device = CERTKV_DEVICE_CUDA) noexcept
{
    certkv_gpu_info info = detail::sized<certkv_gpu_info>();
    return detail::done(certkv_gpu_describe(device, &info), info);
}

// certkv_config with its defaults set (certkv_config_init): the geometry and max_tokens remain to be said.
struct Config : certkv_config {
    Config() noexcept : certkv_config(detail::sized<certkv_config>())
    {
        // It refuses only a size that this is not; then 0 in every field means the default, too.
        static_cast<void>(certkv_config_init(this, struct_size));
    }
    // certkv_config_plan_requests: so many requests of so many tokens, with scratch for a share of all sides.
    [[nodiscard]] Result<certkv_requests_plan> plan_requests(std::uint64_t count, std::uint64_t tokens, double scratch = 0) const noexcept
    {
        certkv_requests requests = detail::sized<certkv_requests>();
        requests.count = count;
        requests.tokens = tokens;
        requests.scratch = scratch;
        certkv_requests_plan answer = detail::sized<certkv_requests_plan>();
        return detail::done(certkv_config_plan_requests(this, &requests, &answer), answer);
    }
    // certkv_prepare: kernels found or made before a cache needs them.
    [[nodiscard]] Result<certkv_prepared> prepare() const noexcept
    {
        certkv_prepared prepared = detail::sized<certkv_prepared>();
        return detail::done(certkv_prepare(this, &prepared), prepared);
    }
    // certkv_config_plan.
    [[nodiscard]] Result<certkv_plan> plan() const noexcept
    {
        certkv_plan plan = detail::sized<certkv_plan>();
        return detail::done(certkv_config_plan(this, &plan), plan);
    }
};

// certkv_control with its defaults set (certkv_control_init), and a budget: Config::control, which borrows it.
struct Control : certkv_control {
    explicit Control(double budget) noexcept : certkv_control(detail::sized<certkv_control>())
    {
        // It refuses only a size that this is not.
        static_cast<void>(certkv_control_init(this, struct_size));
        bytes_per_token = budget;
    }
};

// certkv_retention with its defaults set (certkv_retention_init), and a budget: Config::retention, which borrows it.
struct Retention : certkv_retention {
    explicit Retention(double budget) noexcept : certkv_retention(detail::sized<certkv_retention>())
    {
        static_cast<void>(certkv_retention_init(this, struct_size));
        bytes_per_token = budget;
    }
};

// certkv_bound_budget with its defaults set (certkv_bound_budget_init), and a budget: Config::bound_budget, which borrows it.
struct BoundBudget : certkv_bound_budget {
    explicit BoundBudget(double budget) noexcept : certkv_bound_budget(detail::sized<certkv_bound_budget>())
    {
        static_cast<void>(certkv_bound_budget_init(this, struct_size));
        bytes_per_token = budget;
    }
};

// A policy for the steps that are begun with it: certkv_step_options.
struct StepOptions : certkv_step_options {
    explicit StepOptions(certkv_policy wanted = CERTKV_POLICY_CERTIFIED, double relative_tolerance = 0) noexcept
        : certkv_step_options(detail::sized<certkv_step_options>())
    {
        policy = wanted;
        tolerance = relative_tolerance;
    }
};

// Where rows lie: certkv_tensor. Borrows what it is given; strides of 0 are those of rows that follow each other.
struct Tensor : certkv_tensor {
    // Of 32 bits in host memory. What is read only may be const, as nothing is written to it.
    explicit Tensor(const float *first) noexcept : Tensor(first, CERTKV_F32) {}
    // Of any type, anywhere.
    Tensor(const void *first, certkv_dtype type, certkv_space where = CERTKV_SPACE_HOST, std::uint64_t stride_of_tokens = 0,
           std::uint64_t stride_of_heads = 0) noexcept
        : certkv_tensor(detail::sized<certkv_tensor>())
    {
        dtype = type;
        space = where;
        data = const_cast<void *>(first);
        token_stride = stride_of_tokens;
        head_stride = stride_of_heads;
    }
};

// Whose sequences files hold: certkv_save_scope. Borrows what it is given.
struct SaveScope : certkv_save_scope {
    explicit SaveScope(std::string_view model_name) noexcept : certkv_save_scope(detail::sized<certkv_save_scope>())
    {
        model = detail::bytes(model_name);
        model_bytes = model_name.size();
    }
    SaveScope &with_key(const std::array<std::uint8_t, 32> &secret) noexcept
    {
        key = secret.data();
        return *this;
    }
    SaveScope &with_key(const std::array<std::uint8_t, 32> &&) = delete; // It would be gone before the call.
};

// Who may share cached prefixes: certkv_prefix_scope. Borrows what it is given; `tolerance_class` and `first_position` are set as they are.
struct PrefixScope : certkv_prefix_scope {
    PrefixScope(std::string_view domain_name, std::string_view model_name) noexcept
        : certkv_prefix_scope(detail::sized<certkv_prefix_scope>())
    {
        domain = detail::bytes(domain_name);
        domain_bytes = domain_name.size();
        model = detail::bytes(model_name);
        model_bytes = model_name.size();
    }
    // One without a name is not none.
    PrefixScope &with_adapter(std::string_view name) noexcept
    {
        adapter = detail::bytes(name);
        adapter_bytes = name.size();
        return *this;
    }
    // What the tokens of the next prompt do not tell: it is borrowed until then.
    PrefixScope &with_marks(span<const certkv_mark> of_the_prompt) noexcept
    {
        marks = of_the_prompt.data();
        n_marks = of_the_prompt.size();
        return *this;
    }
    PrefixScope &with_salt(std::string_view name) noexcept
    {
        salt = detail::bytes(name);
        salt_bytes = name.size();
        return *this;
    }
};

namespace detail {

// Makes a call that may throw; what it had not done by then stays undone. Not there where exceptions are off.
template <class Call>
inline void caught(Call &&call) noexcept;

#ifdef __cpp_exceptions
template <class Call>
void caught(Call &&call) noexcept
{
    try {
        call();
    } catch (...) {
        // Items whose result was not set say that they failed.
    }
}
#endif

// Makes a call of the program's own, as `Throws` says it is.
template <bool Throws>
struct Log {
    template <class Call>
    static void run(Call &&call) noexcept
    {
        if constexpr (Throws) {
            caught(call);
        } else {
            call();
        }
    }
};

// The functions of a class for certkv_store_callbacks.
template <class Backend>
struct Calls {
    static Backend &of(void *context) noexcept { return *static_cast<Backend *>(context); }
    template <class Item>
    static span<Item> batch(Item *items, std::uint64_t n) noexcept
    {
        return span<Item>(items, static_cast<std::size_t>(n));
    }
    template <bool Throws, class Call>
    static void run(Call &&call) noexcept
    {
        if constexpr (Throws) {
            caught(call);
        } else {
            call();
        }
    }
    static void put(void *context, certkv_put_item *items, std::uint64_t n) noexcept
    {
        run<!noexcept(of(context).put(batch(items, n)))>([&] { of(context).put(batch(items, n)); });
    }
    static void get(void *context, certkv_get_item *items, std::uint64_t n) noexcept
    {
        run<!noexcept(of(context).get(batch(items, n)))>([&] { of(context).get(batch(items, n)); });
    }
    static void exists(void *context, certkv_key_item *items, std::uint64_t n) noexcept
    {
        run<!noexcept(of(context).exists(batch(items, n)))>([&] { of(context).exists(batch(items, n)); });
    }
    static void remove(void *context, certkv_key_item *items, std::uint64_t n) noexcept
    {
        run<!noexcept(of(context).remove(batch(items, n)))>([&] { of(context).remove(batch(items, n)); });
    }
    static void destroy(void *context) noexcept { delete static_cast<Backend *>(context); }
};

// Of a sink's type: what C calls.
template <class Sink>
certkv_log_callback log_callback() noexcept
{
    return [](void *user, certkv_log_level said, const char *target, const char *message) noexcept {
        Sink &heard = *static_cast<Sink *>(user);
        Log<!noexcept(heard(said, std::string_view(target), std::string_view(message)))>::run(
            [&]() noexcept(noexcept(heard(said, std::string_view(target), std::string_view(message)))) {
                heard(said, std::string_view(target), std::string_view(message));
            });
    };
}

// Of a function's type that hears of decisions: what C calls.
template <class Function>
certkv_control_log_callback control_log_callback() noexcept
{
    return [](void *user, const certkv_control_entry *entry) noexcept {
        Function &told = *static_cast<Function *>(user);
        Log<!noexcept(told(*entry))>::run([&]() noexcept(noexcept(told(*entry))) { told(*entry); });
    };
}

} // namespace detail

// Gives what the library has to say, up to `level`, to `sink(level, target, message)`, two std::string_view: certkv_log_set. It is called on the
// threads that call the library, several at once, and must be there until unset_log() or the next set_log() has returned. What it throws ends
// there. Where exceptions are off it is noexcept.
template <class Sink>
[[nodiscard]] Result<void> set_log(certkv_log_level level, Sink &sink) noexcept
{
    return detail::done(certkv_log_set(level, detail::log_callback<Sink>(), &sink));
}
// Nothing is said any more, and no sink is on any thread: certkv_log_set.
[[nodiscard]] inline Result<void> unset_log() noexcept { return detail::done(certkv_log_set(CERTKV_LOG_OFF, nullptr, nullptr)); }

// A cache's own log: certkv_log, for Config::log, where it is copied.
struct CacheLog : certkv_log {
    // Of the cache nothing is said.
    CacheLog() noexcept : certkv_log(detail::sized<certkv_log>()) {}
    // A sink as for set_log. It must be there until the cache, its steps and the calls on it are over.
    template <class Sink>
    CacheLog(certkv_log_level up_to, Sink &sink) noexcept : CacheLog()
    {
        level = up_to;
        callback = detail::log_callback<Sink>();
        user = &sink;
    }
};

// Owns a handle of a store (Tier-3): for Config::spill_store, and for Cache::export_prefix. Caches that spill to it keep the store itself. Any thread.
class [[nodiscard]] Store : public detail::Handle<certkv_store, certkv_store_destroy> {
public:
    using Handle::Handle;
    // certkv_store_create of a class of the program's own, with these functions, which are called on threads of the library, several at once:
    //     void put(certkv::span<certkv_put_item>);
    //     void get(certkv::span<certkv_get_item>);
    //     void exists(certkv::span<certkv_key_item>);
    //     void remove(certkv::span<certkv_key_item>);
    // They set the result of each item; certkv_store_callbacks has the contract. What they throw ends there, and items that were not done by then
    // have failed. Where exceptions are off they are noexcept. The object is the store's from now on, also if this fails, and is deleted with it.
    template <class Backend>
    [[nodiscard]] static Result<Store> of(std::unique_ptr<Backend> backend) noexcept
    {
        if (backend == nullptr) {
            return Error(CERTKV_NULL_POINTER, "backend is empty");
        }
        certkv_store_callbacks callbacks = detail::sized<certkv_store_callbacks>();
        callbacks.context = backend.get();
        callbacks.put = detail::Calls<Backend>::put;
        callbacks.get = detail::Calls<Backend>::get;
        callbacks.exists = detail::Calls<Backend>::exists;
        callbacks.remove = detail::Calls<Backend>::remove;
        callbacks.destroy = detail::Calls<Backend>::destroy;
        certkv_store *made = nullptr;
        const certkv_status status = certkv_store_create(&callbacks, &made);
        if (status == CERTKV_OK) {
            static_cast<void>(backend.release());
        }
        Store owned(made);
        return detail::done(status, owned);
    }
    // certkv_store_open_files, at a path in UTF-8 that ends with a 0 byte.
    [[nodiscard]] static Result<Store> files(const char *path, std::uint64_t quota = 0, std::uint32_t flags = 0) noexcept
    {
        certkv_store *made = nullptr;
        const certkv_status status = certkv_store_open_files(path, quota, flags, &made);
        Store owned(made);
        return detail::done(status, owned);
    }
    // certkv_store_create_memory.
    [[nodiscard]] static Result<Store> memory(std::uint64_t quota = 0) noexcept
    {
        certkv_store *made = nullptr;
        const certkv_status status = certkv_store_create_memory(quota, &made);
        Store owned(made);
        return detail::done(status, owned);
    }
    // certkv_store_destroy.
    [[nodiscard]] Result<void> close() noexcept { return ended(); }
};

// What a model's keys are coded by, for formats that need it: Config::calibration. Caches keep what they need of it.
class [[nodiscard]] Calibration : public detail::Handle<certkv_calibration, certkv_calibration_destroy> {
public:
    using Handle::Handle;

    // certkv_calibration_open, at a path in UTF-8 that ends with a 0 byte; of whatever model.
    [[nodiscard]] static Result<Calibration> open(const char *path) noexcept { return opened(path, nullptr); }
    // The same for the model with this digest, and no other.
    [[nodiscard]] static Result<Calibration> open(const char *path, const std::array<std::uint8_t, 32> &model) noexcept
    {
        return opened(path, model.data());
    }
    // certkv_calibration_read, from the bytes of such a file.
    [[nodiscard]] static Result<Calibration> read(span<const std::uint8_t> bytes) noexcept { return had(bytes, nullptr); }
    [[nodiscard]] static Result<Calibration> read(span<const std::uint8_t> bytes, const std::array<std::uint8_t, 32> &model) noexcept
    {
        return had(bytes, model.data());
    }
    // certkv_calibration_describe.
    [[nodiscard]] Result<certkv_calibration_info> describe() const noexcept
    {
        certkv_calibration_info info = detail::sized<certkv_calibration_info>();
        return detail::done(certkv_calibration_describe(get(), &info), info);
    }
    // certkv_calibration_destroy.
    [[nodiscard]] Result<void> close() noexcept { return ended(); }

private:
    static Result<Calibration> opened(const char *path, const std::uint8_t *model) noexcept
    {
        certkv_calibration *made = nullptr;
        const certkv_status status = certkv_calibration_open(path, model, &made);
        Calibration owned(made);
        return detail::done(status, owned);
    }
    static Result<Calibration> had(span<const std::uint8_t> bytes, const std::uint8_t *model) noexcept
    {
        certkv_calibration *made = nullptr;
        const certkv_status status = certkv_calibration_read(bytes.data(), bytes.size(), model, &made);
        Calibration owned(made);
        return detail::done(status, owned);
    }
};

// Fixed scales of a model's keys and values, for formats with one scale per block: Config::scales. Caches keep what they need of it.
class [[nodiscard]] Scales : public detail::Handle<certkv_scales, certkv_scales_destroy> {
public:
    using Handle::Handle;

    // certkv_scales_open, at a path in UTF-8 that ends with a 0 byte; of whatever model.
    [[nodiscard]] static Result<Scales> open(const char *path) noexcept { return opened(path, nullptr); }
    // The same for the model with this digest, and no other.
    [[nodiscard]] static Result<Scales> open(const char *path, const std::array<std::uint8_t, 32> &model) noexcept
    {
        return opened(path, model.data());
    }
    // certkv_scales_read, from the bytes of such a file.
    [[nodiscard]] static Result<Scales> read(span<const std::uint8_t> bytes) noexcept { return had(bytes, nullptr); }
    [[nodiscard]] static Result<Scales> read(span<const std::uint8_t> bytes, const std::array<std::uint8_t, 32> &model) noexcept
    {
        return had(bytes, model.data());
    }
    // certkv_scales_describe.
    [[nodiscard]] Result<certkv_scales_info> describe() const noexcept
    {
        certkv_scales_info info = detail::sized<certkv_scales_info>();
        return detail::done(certkv_scales_describe(get(), &info), info);
    }
    // certkv_scales_destroy.
    [[nodiscard]] Result<void> close() noexcept { return ended(); }

private:
    static Result<Scales> opened(const char *path, const std::uint8_t *model) noexcept
    {
        certkv_scales *made = nullptr;
        const certkv_status status = certkv_scales_open(path, model, &made);
        Scales owned(made);
        return detail::done(status, owned);
    }
    static Result<Scales> had(span<const std::uint8_t> bytes, const std::uint8_t *model) noexcept
    {
        certkv_scales *made = nullptr;
        const certkv_status status = certkv_scales_read(bytes.data(), bytes.size(), model, &made);
        Scales owned(made);
        return detail::done(status, owned);
    }
};

// Units of a prompt that a cache lacks, and how many of them a store has, from the first on.
struct Missing {
    std::uint64_t missing;
    std::uint64_t stored;
};

// Owns a sequence of a Cache, which it must not outlive. Calls may come from any thread. One that is destroyed while a step has it, or on a
// GPU while any step is open, stays in its cache until that ends: release() says so.
class [[nodiscard]] Sequence {
public:
    Sequence() noexcept = default;
    // Owns from now on what the library gave.
    Sequence(certkv_cache *cache, certkv_sequence id) noexcept : cache_(cache), id_(id) {}
    Sequence(Sequence &&other) noexcept : cache_(other.cache_), id_(other.detach()) {}
    Sequence &operator=(Sequence &&other) noexcept
    {
        if (this != &other) {
            end();
            cache_ = other.cache_;
            id_ = other.detach();
        }
        return *this;
    }
    Sequence(const Sequence &) = delete;
    Sequence &operator=(const Sequence &) = delete;
    ~Sequence() { end(); }

    [[nodiscard]] explicit operator bool() const noexcept { return id_ != CERTKV_NO_SEQUENCE; }
    // For C calls; stays owned.
    [[nodiscard]] certkv_sequence id() const noexcept { return id_; }
    // Gives it up without releasing it.
    [[nodiscard]] certkv_sequence detach() noexcept
    {
        cache_ = nullptr;
        return std::exchange(id_, static_cast<certkv_sequence>(CERTKV_NO_SEQUENCE));
    }
    // Its part of a step of several sequences, see Cache::begin.
    [[nodiscard]] certkv_chunk chunk(std::uint64_t tokens = 1) const noexcept { return certkv_chunk{id_, tokens}; }

    // certkv_sequence_release. Empty afterwards, unless the call has to be made again (CERTKV_BUSY_SEQUENCE, CERTKV_BUSY_STEP).
    [[nodiscard]] Result<void> release() noexcept
    {
        if (id_ == CERTKV_NO_SEQUENCE) {
            return {};
        }
        const certkv_status status = certkv_sequence_release(cache_, id_);
        if (status == CERTKV_OK || status == CERTKV_UNKNOWN_SEQUENCE || status == CERTKV_INVALID_HANDLE) {
            static_cast<void>(detach());
        }
        return detail::done(status);
    }
    // certkv_sequence_fork.
    [[nodiscard]] Result<Sequence> fork() const noexcept
    {
        certkv_sequence made = CERTKV_NO_SEQUENCE;
        const certkv_status status = certkv_sequence_fork(cache_, id_, &made);
        Sequence owned(cache_, made);
        return detail::done(status, owned);
    }
    // certkv_sequence_truncate.
    [[nodiscard]] Result<void> truncate(std::uint64_t length) const noexcept
    {
        return detail::done(certkv_sequence_truncate(cache_, id_, length));
    }
    // certkv_sequence_length.
    [[nodiscard]] Result<std::uint64_t> length() const noexcept
    {
        std::uint64_t tokens = 0;
        return detail::done(certkv_sequence_length(cache_, id_, &tokens), tokens);
    }
    // certkv_cache_admit of more tokens.
    [[nodiscard]] Result<certkv_admission> admit(std::uint64_t tokens) const noexcept
    {
        certkv_admission admission = detail::sized<certkv_admission>();
        return detail::done(certkv_cache_admit(cache_, id_, tokens, &admission), admission);
    }
    // certkv_sequence_swap_out; the bytes moved.
    [[nodiscard]] Result<std::uint64_t> swap_out() const noexcept
    {
        std::uint64_t moved = 0;
        return detail::done(certkv_sequence_swap_out(cache_, id_, &moved), moved);
    }
    // certkv_sequence_swap_in; the bytes moved.
    [[nodiscard]] Result<std::uint64_t> swap_in() const noexcept
    {
        std::uint64_t moved = 0;
        return detail::done(certkv_sequence_swap_in(cache_, id_, &moved), moved);
    }
    // certkv_sequence_prefetch: what its next step is expected to read of a store, before it is waited for.
    [[nodiscard]] Result<certkv_prefetched> prefetch() const noexcept
    {
        certkv_prefetched prefetched = detail::sized<certkv_prefetched>();
        return detail::done(certkv_sequence_prefetch(cache_, id_, &prefetched), prefetched);
    }
    // certkv_sequence_is_swapped_out.
    [[nodiscard]] Result<bool> is_swapped_out() const noexcept
    {
        std::uint32_t out = 0;
        const certkv_status status = certkv_sequence_is_swapped_out(cache_, id_, &out);
        bool is = out != 0;
        return detail::done(status, is);
    }
    // certkv_sequence_level.
    [[nodiscard]] Result<std::uint32_t> level(std::uint32_t layer, std::uint64_t block) const noexcept
    {
        std::uint32_t found = 0;
        return detail::done(certkv_sequence_level(cache_, id_, layer, block, &found), found);
    }
    // certkv_sequence_change_level.
    [[nodiscard]] Result<void> change_level(std::uint32_t layer, std::uint64_t block, std::uint32_t level) const noexcept
    {
        return detail::done(certkv_sequence_change_level(cache_, id_, layer, block, level));
    }
    // certkv_sequence_head_level.
    [[nodiscard]] Result<std::uint32_t> head_level(std::uint32_t layer, std::uint32_t kv_head, std::uint64_t block) const noexcept
    {
        std::uint32_t found = 0;
        return detail::done(certkv_sequence_head_level(cache_, id_, layer, kv_head, block, &found), found);
    }
    // certkv_sequence_change_head_level.
    [[nodiscard]] Result<void> change_head_level(std::uint32_t layer, std::uint32_t kv_head, std::uint64_t block, std::uint32_t level) const noexcept
    {
        return detail::done(certkv_sequence_change_head_level(cache_, id_, layer, kv_head, block, level));
    }
    // certkv_sequence_set_levels.
    [[nodiscard]] Result<certkv_controlled> set_levels(span<const std::uint32_t> levels) const noexcept
    {
        certkv_controlled controlled = detail::sized<certkv_controlled>();
        return detail::done(certkv_sequence_set_levels(cache_, id_, levels.data(), levels.size(), &controlled), controlled);
    }
    // certkv_sequence_plan_levels; without `levels` what the plan comes to alone, with no limit in bytes unless one is given.
    [[nodiscard]] Result<certkv_level_plan> plan_levels(double epsilon, std::uint64_t bytes = UINT64_MAX, span<std::uint32_t> levels = {}) const noexcept
    {
        certkv_level_plan plan = detail::sized<certkv_level_plan>();
        return detail::done(certkv_sequence_plan_levels(cache_, id_, epsilon, bytes, levels.data(), levels.size(), &plan), plan);
    }
    // certkv_sequence_control: what Config::control, Config::retention or Config::bound_budget did.
    [[nodiscard]] Result<certkv_controlled> control() const noexcept
    {
        certkv_controlled controlled = detail::sized<certkv_controlled>();
        return detail::done(certkv_sequence_control(cache_, id_, &controlled), controlled);
    }
    // certkv_sequence_control_logged: `log(entry)` is told of each layer, a const certkv_control_entry & that is borrowed. What it throws ends there.
    // Where exceptions are off it is noexcept.
    template <class Function>
    [[nodiscard]] Result<certkv_controlled> control(Function &&log) const noexcept
    {
        certkv_controlled controlled = detail::sized<certkv_controlled>();
        const certkv_control_log_callback told = detail::control_log_callback<std::remove_reference_t<Function>>();
        void *user = const_cast<void *>(static_cast<const void *>(std::addressof(log)));
        return detail::done(certkv_sequence_control_logged(cache_, id_, told, user, &controlled), controlled);
    }
    // certkv_sequence_save, to a path in UTF-8 that ends with a 0 byte; the bytes written.
    [[nodiscard]] Result<std::uint64_t> save(const certkv_save_scope &scope, const char *path) const noexcept
    {
        std::uint64_t written = 0;
        return detail::done(certkv_sequence_save(cache_, id_, &scope, path, &written), written);
    }
    // certkv_cache_publish.
    [[nodiscard]] Result<certkv_publication> publish(const certkv_prefix_scope &scope, span<const std::uint32_t> tokens) const noexcept
    {
        certkv_publication published = detail::sized<certkv_publication>();
        return detail::done(certkv_cache_publish(cache_, id_, &scope, tokens.data(), tokens.size(), &published), published);
    }

private:
    void end() noexcept
    {
        if (id_ != CERTKV_NO_SEQUENCE) {
            static_cast<void>(certkv_sequence_release(cache_, id_));
        }
    }

    certkv_cache *cache_ = nullptr;
    certkv_sequence id_ = CERTKV_NO_SEQUENCE;
};

// A sequence that continues from a cached prefix, and the tokens that it holds by that.
struct [[nodiscard]] Continued {
    Sequence sequence;
    std::uint64_t found;
};

// What a recorded step holds of a cache; it must outlive its graph. Any thread, no stream.
class [[nodiscard]] Capture : public detail::Handle<certkv_capture, certkv_capture_destroy> {
public:
    using Handle::Handle;
    // certkv_capture_destroy.
    [[nodiscard]] Result<void> close() noexcept { return ended(); }
};

// Certificates of the last steps of a cache on a GPU, also after the cache's end. Any thread; reads of one take turns. No call waits.
class [[nodiscard]] Ring : public detail::Handle<certkv_ring, certkv_ring_destroy> {
public:
    using Handle::Handle;
    // certkv_ring_destroy.
    [[nodiscard]] Result<void> close() noexcept { return ended(); }
    // certkv_ring_published.
    [[nodiscard]] Result<std::uint64_t> published() const noexcept
    {
        std::uint64_t steps = 0;
        return detail::done(certkv_ring_published(handle_, &steps), steps);
    }
    // certkv_ring_read. `shape` is filled, also where `heads` has too little room (CERTKV_SHAPE).
    [[nodiscard]] Result<void> read(std::uint64_t number, span<certkv_published_head> heads, certkv_published_step &shape) const noexcept
    {
        shape.struct_size = static_cast<std::uint32_t>(sizeof shape);
        return detail::done(certkv_ring_read(handle_, number, heads.data(), heads.size(), &shape));
    }
};

// A step in progress, of a Cache that it must not outlive: what it borrows is the cache's, and goes with it. One thread at a time. finish()
// makes its tokens part of their sequences; one that is destroyed before that leaves no trace. Calls with host memory return when they are
// done; those with device memory enqueue on the cache's stream, which after_stream() and before_stream() order with the caller's.
class [[nodiscard]] Step : public detail::Handle<certkv_step, certkv_step_abort> {
public:
    using Handle::Handle;
    // certkv_step_append of f32 in host memory.
    [[nodiscard]] Result<void> append(std::uint32_t layer, span<const float> keys, span<const float> values) noexcept
    {
        return rows(layer, keys, values, CERTKV_F32);
    }
    // certkv_step_append of 16-bit patterns in host memory, CERTKV_F16 or CERTKV_BF16.
    [[nodiscard]] Result<void> append(std::uint32_t layer, span<const std::uint16_t> keys, span<const std::uint16_t> values,
                                      certkv_dtype dtype) noexcept
    {
        if (dtype == CERTKV_F32) {
            return Error(CERTKV_INVALID_ARGUMENT, "dtype is CERTKV_F32, and keys and values are of 16 bits");
        }
        return rows(layer, keys, values, dtype);
    }
    // certkv_step_append of device memory, `elements` numbers in each buffer.
    [[nodiscard]] Result<void> append_device(std::uint32_t layer, const void *keys, const void *values, std::uint64_t elements,
                                             certkv_dtype dtype) noexcept
    {
        return detail::done(certkv_step_append(handle_, layer, keys, values, elements, dtype, CERTKV_SPACE_DEVICE));
    }
    // certkv_step_attend in host memory; without `certificates` none are returned.
    [[nodiscard]] Result<void> attend(std::uint32_t layer, span<const float> queries, span<float> out,
                                      span<certkv_certificate> certificates = {}) noexcept
    {
        if (queries.size() != out.size()) {
            return Error(CERTKV_SHAPE, "queries and out differ in size");
        }
        return detail::done(certkv_step_attend(handle_, layer, queries.data(), out.data(), out.size(), certificates.data(),
                                               certificates.size(), CERTKV_SPACE_HOST));
    }
    // certkv_step_attend in device memory, `elements` numbers in each buffer. With `certificates`, which are host memory, it waits.
    [[nodiscard]] Result<void> attend_device(std::uint32_t layer, const float *queries, float *out, std::uint64_t elements,
                                             span<certkv_certificate> certificates = {}) noexcept
    {
        return detail::done(certkv_step_attend(handle_, layer, queries, out, elements, certificates.data(), certificates.size(),
                                               CERTKV_SPACE_DEVICE));
    }
    // certkv_step_append_tensors.
    [[nodiscard]] Result<void> append_tensors(std::uint32_t layer, const certkv_tensor &keys, const certkv_tensor &values) noexcept
    {
        return detail::done(certkv_step_append_tensors(handle_, layer, &keys, &values));
    }
    // certkv_step_attend_tensors; without `certificates` none are returned.
    [[nodiscard]] Result<void> attend_tensors(std::uint32_t layer, const certkv_tensor &queries, const certkv_tensor &out,
                                              span<certkv_certificate> certificates = {}) noexcept
    {
        return detail::done(
            certkv_step_attend_tensors(handle_, layer, &queries, &out, certificates.data(), certificates.size()));
    }
    // certkv_step_set_tolerances: none for the policy's, one for all query heads, or one for each.
    [[nodiscard]] Result<void> set_tolerances(span<const certkv_tolerance> tolerances) noexcept
    {
        return detail::done(certkv_step_set_tolerances(handle_, tolerances.data(), tolerances.size()));
    }
    // certkv_step_certificates. Waits.
    [[nodiscard]] Result<void> certificates(std::uint32_t layer, span<certkv_certificate> filled) noexcept
    {
        return detail::done(certkv_step_certificates(handle_, layer, filled.data(), filled.size()));
    }
    // certkv_step_plan: what the next step reads exactly in a layer, beside what the caller enqueues next (Config::plan_apart).
    [[nodiscard]] Result<void> plan(std::uint32_t layer) noexcept { return detail::done(certkv_step_plan(handle_, layer)); }
    // certkv_step_after_stream.
    [[nodiscard]] Result<void> after_stream(void *stream) noexcept
    {
        return detail::done(certkv_step_after_stream(handle_, stream));
    }
    // certkv_step_before_stream.
    [[nodiscard]] Result<void> before_stream(void *stream) noexcept
    {
        return detail::done(certkv_step_before_stream(handle_, stream));
    }
    // certkv_step_publish: certificates to device memory.
    [[nodiscard]] Result<void> publish(certkv_published_memory *memory, std::uint64_t bytes) const noexcept
    {
        return detail::done(certkv_step_publish(handle_, memory, bytes));
    }
    // certkv_step_number.
    [[nodiscard]] Result<std::uint64_t> number() noexcept
    {
        std::uint64_t number = 0;
        return detail::done(certkv_step_number(handle_, &number), number);
    }
    // certkv_step_finish. The step is over, and this object empty, unless an error leaves certkv_step_abort due.
    [[nodiscard]] Result<void> finish() noexcept
    {
        const certkv_status status = certkv_step_finish(handle_);
        // Others keep the handle, unknown ones too: aborting a step that is over does nothing.
        if (status == CERTKV_OK || status == CERTKV_ORDER || status == CERTKV_DEVICE || status == CERTKV_INTERNAL ||
            status == CERTKV_INVALID_HANDLE) {
            handle_ = nullptr;
        }
        return detail::done(status);
    }
    // certkv_step_abort. Empty afterwards, unless another thread is inside a call on the step (CERTKV_BUSY_STEP).
    [[nodiscard]] Result<void> abort() noexcept { return ended(); }
    // certkv_step_captured. The step is over, and this object empty, if it succeeds.
    [[nodiscard]] Result<Capture> captured(void *stream) noexcept
    {
        certkv_capture *made = nullptr;
        const certkv_status status = certkv_step_captured(handle_, stream, &made);
        if (status == CERTKV_OK) {
            handle_ = nullptr;
        }
        Capture owned(made);
        return detail::done(status, owned);
    }
    // certkv_step_replayed.
    [[nodiscard]] Result<void> replayed(const Capture &capture) noexcept
    {
        return detail::done(certkv_step_replayed(handle_, capture.get()));
    }

private:
    template <class T>
    [[nodiscard]] Result<void> rows(std::uint32_t layer, span<T> keys, span<T> values, certkv_dtype dtype) noexcept
    {
        if (keys.size() != values.size()) {
            return Error(CERTKV_SHAPE, "keys and values differ in size");
        }
        return detail::done(
            certkv_step_append(handle_, layer, keys.data(), values.data(), keys.size(), dtype, CERTKV_SPACE_HOST));
    }
};

// Owns a cache. Calls may come from any thread at any time; on a GPU its work goes to a stream of its own.
class [[nodiscard]] Cache : public detail::Handle<certkv_cache, certkv_cache_destroy> {
public:
    using Handle::Handle;
    // certkv_cache_create.
    [[nodiscard]] static Result<Cache> create(const certkv_config &config) noexcept
    {
        certkv_cache *made = nullptr;
        const certkv_status status = certkv_cache_create(&config, &made);
        Cache owned(made);
        return detail::done(status, owned);
    }
    // certkv_cache_destroy.
    [[nodiscard]] Result<void> close() noexcept { return ended(); }
    // certkv_sequence_create.
    [[nodiscard]] Result<Sequence> create_sequence() const noexcept
    {
        certkv_sequence made = CERTKV_NO_SEQUENCE;
        const certkv_status status = certkv_sequence_create(handle_, &made);
        Sequence owned(handle_, made);
        return detail::done(status, owned);
    }
    // certkv_sequence_create_from.
    [[nodiscard]] Result<Continued> create_from(const certkv_prefix_scope &scope, span<const std::uint32_t> tokens) const noexcept
    {
        certkv_sequence made = CERTKV_NO_SEQUENCE;
        std::uint64_t found = 0;
        const certkv_status status = certkv_sequence_create_from(handle_, &scope, tokens.data(), tokens.size(), &made, &found);
        Continued owned{Sequence(handle_, made), found};
        return detail::done(status, owned);
    }
    // certkv_sequence_restore, from a path in UTF-8 that ends with a 0 byte.
    [[nodiscard]] Result<Sequence> restore(const certkv_save_scope &scope, const char *path) const noexcept
    {
        certkv_sequence made = CERTKV_NO_SEQUENCE;
        const certkv_status status = certkv_sequence_restore(handle_, &scope, path, &made);
        Sequence owned(handle_, made);
        return detail::done(status, owned);
    }
    // certkv_cache_admit of a new sequence.
    [[nodiscard]] Result<certkv_admission> admit(std::uint64_t tokens) const noexcept
    {
        certkv_admission admission = detail::sized<certkv_admission>();
        return detail::done(certkv_cache_admit(handle_, CERTKV_NO_SEQUENCE, tokens, &admission), admission);
    }
    // certkv_cache_scrub, of at least so many pages; damage that could not be mended goes to `damages` as far as it has room.
    [[nodiscard]] Result<certkv_scrubbed> scrub(std::uint64_t pages, bool originals = false, span<certkv_damage> damages = {}) const noexcept
    {
        certkv_scrubbed scrubbed = detail::sized<certkv_scrubbed>();
        const certkv_status status = certkv_cache_scrub(handle_, pages, originals ? 1 : 0, damages.data(), damages.size(), &scrubbed);
        return detail::done(status, scrubbed);
    }
    // certkv_cache_residue.
    [[nodiscard]] Result<std::uint64_t> residue() const noexcept
    {
        std::uint64_t bytes = 0;
        return detail::done(certkv_cache_residue(handle_, &bytes), bytes);
    }
    // certkv_cache_evict_prefixes; how many went.
    [[nodiscard]] Result<std::uint64_t> evict_prefixes(std::uint64_t units = UINT64_MAX) const noexcept
    {
        std::uint64_t evicted = 0;
        return detail::done(certkv_cache_evict_prefixes(handle_, units, &evicted), evicted);
    }
    // certkv_cache_export_prefix; the units that are in the store by this.
    [[nodiscard]] Result<std::uint64_t> export_prefix(const Store &store, const certkv_prefix_scope &scope, span<const std::uint32_t> tokens,
                                                      std::uint64_t first_unit = 0, std::uint32_t timeout_ms = 0) const noexcept
    {
        std::uint64_t units = 0;
        const certkv_status status =
            certkv_cache_export_prefix(handle_, store.get(), &scope, tokens.data(), tokens.size(), first_unit, timeout_ms, &units);
        return detail::done(status, units);
    }
    // certkv_cache_missing_prefix, without a store; the units that the cache lacks.
    [[nodiscard]] Result<std::uint64_t> missing_prefix(const certkv_prefix_scope &scope, span<const std::uint32_t> tokens) const noexcept
    {
        std::uint64_t units = 0;
        const certkv_status status =
            certkv_cache_missing_prefix(handle_, nullptr, &scope, tokens.data(), tokens.size(), 0, &units, nullptr);
        return detail::done(status, units);
    }
    // certkv_cache_missing_prefix.
    [[nodiscard]] Result<Missing> missing_prefix(const Store &store, const certkv_prefix_scope &scope, span<const std::uint32_t> tokens,
                                                 std::uint32_t timeout_ms = 0) const noexcept
    {
        Missing units{};
        const certkv_status status = certkv_cache_missing_prefix(handle_, store.get(), &scope, tokens.data(), tokens.size(), timeout_ms,
                                                                 &units.missing, &units.stored);
        return detail::done(status, units);
    }
    // certkv_cache_import_prefix; the tokens that are cached now.
    [[nodiscard]] Result<std::uint64_t> import_prefix(const Store &store, const certkv_prefix_scope &scope, span<const std::uint32_t> tokens,
                                                      std::uint32_t timeout_ms = 0) const noexcept
    {
        std::uint64_t cached = 0;
        const certkv_status status =
            certkv_cache_import_prefix(handle_, store.get(), &scope, tokens.data(), tokens.size(), timeout_ms, &cached);
        return detail::done(status, cached);
    }
    // certkv_cache_events, of what is there from number `from` on; without `tokens` none are copied.
    [[nodiscard]] Result<certkv_events_read> events(std::uint64_t from, span<certkv_prefix_event> filled,
                                                    span<std::uint32_t> tokens = {}) const noexcept
    {
        certkv_events_read read = detail::sized<certkv_events_read>();
        const certkv_status status =
            certkv_cache_events(handle_, from, filled.data(), filled.size(), tokens.data(), tokens.size(), &read);
        return detail::done(status, read);
    }
    // certkv_cache_moves, of what is there from number `from` on.
    [[nodiscard]] Result<certkv_events_read> moves(std::uint64_t from, span<certkv_move_event> filled) const noexcept
    {
        certkv_events_read read = detail::sized<certkv_events_read>();
        return detail::done(certkv_cache_moves(handle_, from, filled.data(), filled.size(), &read), read);
    }
    // certkv_cache_cached_prefixes. `read` is filled, also where there is too little room (CERTKV_SHAPE).
    [[nodiscard]] Result<void> cached_prefixes(span<certkv_prefix_event> filled, span<std::uint32_t> tokens,
                                               certkv_events_read &read) const noexcept
    {
        read.struct_size = static_cast<std::uint32_t>(sizeof read);
        return detail::done(
            certkv_cache_cached_prefixes(handle_, filled.data(), filled.size(), tokens.data(), tokens.size(), &read));
    }
    // certkv_cache_prefix_key: the name of the last full unit of a prompt.
    [[nodiscard]] Result<certkv_store_key> prefix_key(const certkv_prefix_scope &scope, span<const std::uint32_t> tokens) const noexcept
    {
        certkv_store_key key{};
        return detail::done(certkv_cache_prefix_key(handle_, &scope, tokens.data(), tokens.size(), &key), key);
    }
    // certkv_step_begin, of one sequence or of several (Sequence::chunk).
    [[nodiscard]] Result<Step> begin(span<const certkv_chunk> chunks) const noexcept
    {
        certkv_step *made = nullptr;
        const certkv_status status = certkv_step_begin(handle_, chunks.data(), chunks.size(), &made);
        Step owned(made);
        return detail::done(status, owned);
    }
    [[nodiscard]] Result<Step> begin(const Sequence &sequence, std::uint64_t tokens = 1) const noexcept
    {
        const certkv_chunk chunk = sequence.chunk(tokens);
        return begin(span<const certkv_chunk>(&chunk, 1));
    }
    // certkv_step_begin_with, the same under a policy of their own.
    [[nodiscard]] Result<Step> begin(span<const certkv_chunk> chunks, const certkv_step_options &options) const noexcept
    {
        certkv_step *made = nullptr;
        const certkv_status status = certkv_step_begin_with(handle_, chunks.data(), chunks.size(), &options, &made);
        Step owned(made);
        return detail::done(status, owned);
    }
    [[nodiscard]] Result<Step> begin(const Sequence &sequence, std::uint64_t tokens, const certkv_step_options &options) const noexcept
    {
        const certkv_chunk chunk = sequence.chunk(tokens);
        return begin(span<const certkv_chunk>(&chunk, 1), options);
    }
    // certkv_ring_open.
    [[nodiscard]] Result<Ring> open_ring() const noexcept
    {
        certkv_ring *made = nullptr;
        const certkv_status status = certkv_ring_open(handle_, &made);
        Ring owned(made);
        return detail::done(status, owned);
    }
    // certkv_cache_memory.
    [[nodiscard]] Result<certkv_memory> memory() const noexcept
    {
        certkv_memory memory = detail::sized<certkv_memory>();
        return detail::done(certkv_cache_memory(handle_, &memory), memory);
    }
    // certkv_cache_metrics, to `text`; the bytes of it without the 0 at its end. Without room, the bytes that there are.
    [[nodiscard]] Result<std::uint64_t> metrics(std::string_view name, span<char> text) const noexcept
    {
        std::uint64_t bytes = 0;
        const void *named = detail::bytes(name);
        return detail::done(certkv_cache_metrics(handle_, named, name.size(), text.data(), text.size(), &bytes), bytes);
    }
    // certkv_cache_snapshot.
    [[nodiscard]] Result<certkv_snapshot> snapshot() const noexcept
    {
        certkv_snapshot snapshot = detail::sized<certkv_snapshot>();
        return detail::done(certkv_cache_snapshot(handle_, &snapshot), snapshot);
    }
};

} // namespace certkv

#endif // CERTKV_HPP
