// Attention with its statistics on the CPU. C ABI; no Python, no libtorch. See docs/kernel.md.
#include <ctime>

#include "backward.h"
#include "summary.h"

std::atomic<bool> poisoned{false};

#define EXPORT extern "C" __attribute__((visibility("default")))

EXPORT void attentropy_forward(const Args* a) {
#ifdef PAIRS
    if (a->bf16) return forward<BF16, bf16>(*a);
#endif
    forward<F32, float>(*a);
}
EXPORT void attentropy_backward(const Args* a) {
#ifdef PAIRS
    if (a->bf16) return backward<BF16, bf16>(*a);
#endif
    backward<F32, float>(*a);
}
EXPORT void attentropy_summary(const Args* a, const Summary* s) {
    if (a->bf16) return sum_rows<bf16>(*a, *s);
    sum_rows<float>(*a, *s);
}

static Args placed(const Args& plan, const Places& at, float* rows) {
    Args a = plan;
    int64_t n = a.B * a.H * a.Q;
    float* row = rows + 2 * n;
    for (float** to : {&a.entropy, &a.lse, &a.max_logit, &a.collision, &a.varentropy, &a.log_l})
        *to = row, row += n;
    a.argmax = reinterpret_cast<int64_t*>(rows);
    a.q = at.q, a.k = at.k, a.v = at.v, a.out = at.out;
    a.dout = at.dout, a.dq = at.dq, a.dk = at.dk, a.dv = at.dv;
    a.threads = at.threads, a.parallel_for = at.parallel_for;
    return a;
}
EXPORT void attentropy_planned_forward(const Args* plan, const Places* at) {
    static thread_local std::vector<int64_t> unkept;
    if (!at->rows) unkept.resize(4 * plan->B * plan->H * plan->Q);
    Args a = placed(*plan, *at, at->rows ? at->rows : reinterpret_cast<float*>(unkept.data()));
    attentropy_forward(&a);
    if (!at->summary) return;
    Summary s = *at->summary;
    s.sums = at->sums, s.top = at->top;
    attentropy_summary(&a, &s);
}
EXPORT void attentropy_planned_backward(const Args* plan, const Places* at) {
    Args a = placed(*plan, *at, at->rows);
    attentropy_backward(&a);
}
static double thread_seconds() {
    timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return double(t.tv_sec) + 1e-9 * double(t.tv_nsec);
}

// Operations per second of one thread: the best of a few short runs of multiply-adds that touch
// registers only.
EXPORT double attentropy_peak() {
    constexpr int64_t STEPS = 200000;
    constexpr int R = ROWS, NV = VECS;
    double best = 0;
    alignas(64) float b[NV * W] = {}, a[R] = {};
    for (int run = 0; run < 20; ++run) {
        double start = thread_seconds();
        float kept = 0;
        asm volatile("" : : "r"(a), "r"(b) : "memory");  // hides that they are zeros
        micro<F32, BY_COLUMNS, R, NV>(a, 0, b, 0, STEPS, [&](vf(&acc)[R][NV]) {
            for (auto& row : acc)
                for (auto& x : row) kept += x[0];
        });
        asm volatile("" : : "r"(&kept) : "memory");
        best = std::max(best, 2.0 * STEPS * R * NV * W / (thread_seconds() - start));
    }
    return best;
}
EXPORT void attentropy_poison(int32_t on) { poisoned = on != 0; }

// Which struct Args, and which sources and flags, this library was compiled from; see build.py.
EXPORT const char* attentropy_interface() { return "attentropy interface " ATTENTROPY_INTERFACE; }
EXPORT const char* attentropy_sources() { return "attentropy sources " ATTENTROPY_SOURCES; }
