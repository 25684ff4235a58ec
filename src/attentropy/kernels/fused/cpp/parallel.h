// Threads and scratch memory.
#pragma once
#include <atomic>
#include <cstdlib>
#include <memory>
#include <thread>
#include <vector>

#include "args.h"
#include "vec.h"

extern std::atomic<bool> poisoned;

// Scratch of the calling thread: grows, is reused by the next call, starts with any content.
struct Scratch {
    std::unique_ptr<char, void (*)(void*)> memory{nullptr, std::free};
    size_t capacity = 0, used = 0;

    void reserve(size_t bytes) {
        used = 0;
        if (bytes > capacity) {
            memory.reset(static_cast<char*>(std::aligned_alloc(64, (bytes + 63) / 64 * 64)));
            capacity = memory ? bytes : 0;
        }
        if (poisoned)
            for (size_t i = 0; i + 4 <= capacity; i += 4)
                std::memcpy(memory.get() + i, "\xff\xff\xff\x7f", 4);  // NaN as float
    }
    template <class T>
    T* take(size_t count) {
        T* p = reinterpret_cast<T*>(memory.get() + used);
        used += (count * sizeof(T) + 63) / 64 * 64;
        return p;
    }
    static size_t room(size_t count, size_t size = 4) { return (count * size + 63) / 64 * 64; }
};

static inline Scratch& scratch() {
    static thread_local Scratch s;
    return s;
}

// body(task) for every task in [0, tasks), on up to a.threads threads, from one shared queue.
template <class Body>
void run_tasks(const Args& a, int64_t tasks, const Body& body) {
    struct Context {
        const Body& body;
        int64_t tasks;
        std::atomic<int64_t> next{0};
    } context{body, tasks};
    RangeBody drain = [](int64_t, int64_t, void* p) {
        auto& c = *static_cast<Context*>(p);
        for (int64_t t; (t = c.next.fetch_add(1, std::memory_order_relaxed)) < c.tasks;) c.body(t);
    };
    int64_t threads = a.threads < tasks ? a.threads : tasks;
    if (threads > 1 && a.parallel_for) {
        a.parallel_for(0, threads, 1, drain, &context);
    } else if (threads > 1) {
        std::vector<std::thread> others;
        for (int64_t i = 1; i < threads; ++i) others.emplace_back(drain, 0, 1, &context);
        drain(0, 1, &context);
        for (auto& t : others) t.join();
    } else {
        drain(0, 1, &context);
    }
}
