// Attention with its statistics on the CPU. C ABI; no Python, no libtorch. See docs/kernel.md.
#include "backward.h"

std::atomic<bool> poisoned{false};

#define EXPORT extern "C" __attribute__((visibility("default")))

EXPORT void attentropy_forward(const Args* a) { forward<F32, float>(*a); }
EXPORT void attentropy_backward(const Args* a) { backward<F32, float>(*a); }
EXPORT void attentropy_poison(int32_t on) { poisoned = on != 0; }
EXPORT int64_t attentropy_fields() { return sizeof(Args) / 8; }
