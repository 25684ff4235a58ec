// Attention with its statistics on the CPU. C ABI; no Python, no libtorch. See docs/kernel.md.
#include "backward.h"

std::atomic<bool> poisoned{false};

#define EXPORT extern "C" __attribute__((visibility("default")))

EXPORT void attentropy_forward(const Args* a) {
#ifdef __AVX512BF16__
    if (a->bf16) return forward<BF16, bf16>(*a);
#endif
    forward<F32, float>(*a);
}
EXPORT void attentropy_backward(const Args* a) {
#ifdef __AVX512BF16__
    if (a->bf16) return backward<BF16, bf16>(*a);
#endif
    backward<F32, float>(*a);
}
EXPORT void attentropy_poison(int32_t on) { poisoned = on != 0; }
EXPORT int64_t attentropy_fields() { return sizeof(Args) / 8; }
