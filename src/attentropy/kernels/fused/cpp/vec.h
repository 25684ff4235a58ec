// One vector of the widest registers that the build allows, and what the kernel does with it.
#pragma once
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <utility>

#if defined(__AVX2__)
#include <immintrin.h>
#elif defined(__ARM_NEON)
#include <arm_neon.h>
#endif

// W: floats in a vector.
#if defined(__AVX512F__)
constexpr int W = 16;
#elif defined(__AVX2__)
constexpr int W = 8;
#else
constexpr int W = 4;
#endif

typedef float vf __attribute__((vector_size(W * 4)));
typedef int32_t vi __attribute__((vector_size(W * 4)));

constexpr float INF = std::numeric_limits<float>::infinity();

static inline vf load(const float* p) {
    vf x;
    std::memcpy(&x, p, sizeof x);
    return x;
}
static inline vi load(const int32_t* p) {
    vi x;
    std::memcpy(&x, p, sizeof x);
    return x;
}
static inline void store(float* p, vf x) { std::memcpy(p, &x, sizeof x); }
static inline void store(int32_t* p, vi x) { std::memcpy(p, &x, sizeof x); }
static inline vf splat(float x) { return x - vf{}; }  // x + 0 would lose the sign of -0
static inline vi splat(int32_t x) { return x - vi{}; }
// The second operand where either is NaN, as the instruction does.
static inline vf max(vf a, vf b) {
#if defined(__AVX512F__)
    return (vf)_mm512_max_ps((__m512)a, (__m512)b);
#elif defined(__AVX2__)
    return (vf)_mm256_max_ps((__m256)a, (__m256)b);
#else
    return a > b ? a : b;
#endif
}

static inline vf min(vf a, vf b) { return a < b ? a : b; }
static inline vf root(vf x) {
#if defined(__AVX512F__)
    return (vf)_mm512_sqrt_ps((__m512)x);
#elif defined(__AVX2__)
    return (vf)_mm256_sqrt_ps((__m256)x);
#else
    for (int i = 0; i < W; ++i) x[i] = __builtin_sqrtf(x[i]);
    return x;
#endif
}

static inline vi as_int(vf x) { return (vi)x; }
// The bits of any float, NaN included: sums of them may wrap around.
typedef uint32_t vu __attribute__((vector_size(W * 4)));
static inline vu bits(vf x) { return (vu)x; }
static inline vf as_float(vi x) { return (vf)x; }

// bf16 is the upper half of a float.
typedef uint16_t bf16;
typedef uint16_t vh __attribute__((vector_size(W * 2)));
static inline vf load(const bf16* p) {
    vh x;
    std::memcpy(&x, p, sizeof x);
    return as_float(__builtin_convertvector(x, vi) << 16);
}
// The first n of W elements, zeros after them.
template <class T>
static inline vf load_part(const T* p, int n) {
    T buffer[W] = {};
    std::memcpy(buffer, p, n * sizeof(T));
    return load(buffer);
}
static inline float to_float(float x) { return x; }
static inline float to_float(bf16 x) {
    uint32_t w = uint32_t(x) << 16;
    float f;
    std::memcpy(&f, &w, 4);
    return f;
}
static inline void put(float* p, float x) { *p = x; }
static inline void put(bf16* p, float x) {  // to nearest, ties to even; NaN stays NaN
    uint32_t w;
    std::memcpy(&w, &x, 4);
    *p = x != x ? 0x7fc0 : uint16_t((w + 0x7fff + ((w >> 16) & 1)) >> 16);
}
static inline void put(float* p, vf x) { store(p, x); }
static inline void put(bf16* p, vf x) {
    vu w = bits(x);
    vi r = (vi)((w + 0x7fff + ((w >> 16) & 1)) >> 16);
    vh h = __builtin_convertvector(x != x ? splat(0x7fc0) : r, vh);
    std::memcpy(p, &h, sizeof h);
}

static inline float sum(vf x) {
    float s = 0;
    for (int i = 0; i < W; ++i) s += x[i];
    return s;
}
static inline bool any(vi x) {
    int32_t s = 0;
    for (int i = 0; i < W; ++i) s |= x[i];
    return s != 0;
}

constexpr float LOG2E = 1.44269504088896341f;
constexpr float LOWEST = -87.0f;  // e^LOWEST is the smallest weight kept; below it the weight is 0

// e^z for z <= 0, and exactly 1 at 0, without the cut at LOWEST. The argument stays in natural
// units until here: shifted logits are then exact differences, whatever their offset.
static inline vf exp_uncut(vf z) {
    const vf magic = splat(12582912.0f);  // 1.5 * 2^23: adding it rounds to an integer
    vf t = z * LOG2E + magic;
    vf f = z * LOG2E - (t - magic);
    vf p = splat(0.0013274564407765865f);
    p = p * f + 0.009671962819993496f;
    p = p * f + 0.055506788194179535f;
    p = p * f + 0.24022234976291656f;
    p = p * f + 0.6931470632553101f;
    p = p * f + 1.0f;
    return (vf)(bits(p) + (bits(t) << 23));
}

// 0 below LOWEST, so at -inf too. Of NaN it makes anything: the exponent is added as an integer.
static inline vf exp_cut(vf z) {
    vf e = exp_uncut(z);
    return z < LOWEST ? vf{} : e;
}
// The same, and NaN stays NaN: max gives its second operand then.
static inline vf exp_safe(vf z) {
    vf e = exp_uncut(z);
    return z >= LOWEST ? e : max(vf{}, z);
}

// tanh, accurate near 0 (polynomial of Cephes) and through exp elsewhere.
static inline vf tanh(vf x) {
    vf a = x < 0 ? -x : x;
    vf y = x * x;
    vf p = splat(-5.70498872745e-3f);
    p = p * y + 2.06390887954e-2f;
    p = p * y - 5.37397155531e-2f;
    p = p * y + 1.33314422036e-1f;
    p = p * y - 3.33332819422e-1f;
    vf near = p * y * x + x;
    vf e = exp_safe(-2.0f * a);
    vf far = (1.0f - e) / (1.0f + e);
    far = x < 0 ? -far : far;
    return a < 0.625f ? near : far;
}

// ln(1 + r) in double, of r > -1 to its own digits: 2 atanh((x - 1) / (x + 1)) about a power of 2.
typedef double vd __attribute__((vector_size(W * 8)));
typedef int64_t vl __attribute__((vector_size(W * 8)));
static inline vd log1p(vd r) {
    vl bits = (vl)(1.0 + r);
    vl e = ((bits - 0x3fe6a09e667f3bcd) >> 52);  // so that the mantissa is in [sqrt 1/2, sqrt 2)
    vd m = (vd)(bits - (e << 52));
    vd s = (e == 0 ? r : m - 1.0) / (m + 1.0), y = s * s;
    vd p = y * (1.0 / 13) + 1.0 / 11;
    p = p * y + 1.0 / 9;
    p = p * y + 1.0 / 7;
    p = p * y + 1.0 / 5;
    p = p * y + 1.0 / 3;
    return __builtin_convertvector(e, vd) * 0.69314718055994530942 + 2.0 * s * (p * y + 1.0);
}
static inline vd log(vd x) { return log1p(x - 1.0); }

template <int S, int... L>
static inline void swap_stage(vf& a, vf& b, std::integer_sequence<int, L...>) {
    vf x = __builtin_shufflevector(a, b, ((L & S) ? W + L - S : L)...);
    vf y = __builtin_shufflevector(a, b, ((L & S) ? W + L : L + S)...);
    a = x;
    b = y;
}
template <int S>
static inline void transpose_stage(vf (&r)[W]) {
#pragma GCC unroll 16
    for (int i = 0; i < W; ++i)
        if (!(i & S)) swap_stage<S>(r[i], r[i + S], std::make_integer_sequence<int, W>{});
}
// Lane i of the result is what `both` makes of all lanes of r[i]: halves of two vectors are joined
// until one is left.
template <int S = W / 2, class Both>
static inline vf folds(vf (&r)[W], const Both& both) {
#pragma GCC unroll 16
    for (int i = 0; i < S; ++i) {
        swap_stage<S>(r[i], r[i + S], std::make_integer_sequence<int, W>{});
        r[i] = both(r[i], r[i + S]);
    }
    if constexpr (S > 1)
        return folds<S / 2>(r, both);
    else
        return r[0];
}
static inline vf sums(vf (&r)[W]) {
    return folds(r, [](vf a, vf b) { return a + b; });
}
static inline void transpose(vf (&r)[W]) {
    transpose_stage<1>(r);
    transpose_stage<2>(r);
    if constexpr (W >= 8) transpose_stage<4>(r);
    if constexpr (W >= 16) transpose_stage<8>(r);
}
