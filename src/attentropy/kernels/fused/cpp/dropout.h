// Dropout: the same draws as kernels/noise.py, in the lanes. Philox4x32-10 with the seed as its key
// and (key / 4, query, head, batch) as its counter gives four words, one for each of four keys.
#pragma once
#include "panel.h"

typedef uint64_t vq __attribute__((vector_size(W * 4)));  // words of 32 bits in the low halves

// The product of low halves; what stands in high halves does not matter.
static inline vq times(vq a, uint32_t b) {
#if defined(__AVX512F__)
    return (vq)_mm512_mul_epu32((__m512i)a, _mm512_set1_epi64(b));
#elif defined(__AVX2__)
    return (vq)_mm256_mul_epu32((__m256i)a, _mm256_set1_epi64x(b));
#else
    return (a & 0xffffffff) * uint64_t(b);
#endif
}
static inline uint64_t times(uint64_t a, uint32_t b) { return (a & 0xffffffff) * b; }

constexpr uint32_t FACTOR[2] = {0xD2511F53, 0xCD9E8D57}, STEP[2] = {0x9E3779B9, 0xBB67AE85};

// Rounds [from, 10) of N counters at once, so that their chains of operations overlap.
template <class V, int N>
static inline void philox(uint64_t seed, int from, V (&c)[N][4]) {
    uint32_t k0 = uint32_t(seed) + from * STEP[0], k1 = uint32_t(seed >> 32) + from * STEP[1];
#pragma GCC unroll 10
    for (int round = from; round < 10; ++round) {
#pragma GCC unroll 8
        for (int n = 0; n < N; ++n) {
            V x = times(c[n][0], FACTOR[0]), y = times(c[n][2], FACTOR[1]);
            c[n][0] = (y >> 32) ^ c[n][1] ^ uint64_t(k0);
            c[n][2] = (x >> 32) ^ c[n][3] ^ uint64_t(k1);
            c[n][1] = y, c[n][3] = x;
        }
        k0 += STEP[0], k1 += STEP[1];
    }
}

// All ones where a weight is kept, for N groups of lanes from query i on and the keys 4 * four + x.
// Lanes differ in the query only, so that four of the first six products are the same for all.
template <int N>
static inline void kept_lanes(const Args& a, const Where& w, int64_t i, int64_t four, vi (&kept)[N][4]) {
    uint64_t k0 = uint32_t(a.seed), k1 = uint64_t(a.seed) >> 32;
    uint64_t x = times(uint64_t(four), FACTOR[0]), y = times(uint64_t(w.h), FACTOR[1]);
    uint64_t z = times((x >> 32) ^ uint64_t(w.b) ^ k1, FACTOR[1]);
    uint64_t u = times((z >> 32) ^ y ^ uint32_t(k0 + STEP[0]), FACTOR[0]);
    vi lane;
    for (int n = 0; n < W; ++n) lane[n] = n;
    vq c[2 * N][4];
#pragma GCC unroll 8
    for (int n = 0; n < 2 * N; ++n) {
        vq query = (vq)(lane + int32_t(i + n / 2 * W));
        vq p = times((n % 2 ? query >> 32 : query) ^ (y >> 32) ^ k0, FACTOR[0]);
        vq r = times((p >> 32) ^ x ^ uint32_t(k1 + STEP[1]), FACTOR[1]);
        c[n][0] = (r >> 32) ^ z ^ uint32_t(k0 + 2 * STEP[0]);
        c[n][1] = r;
        c[n][2] = p ^ (u >> 32) ^ uint32_t(k1 + 2 * STEP[1]);
        c[n][3] = vq{} + u;
    }
    philox(uint64_t(a.seed), 3, c);
    vu least = vu{} + uint32_t(a.least);
#pragma GCC unroll 8
    for (int n = 0; n < N; ++n)
#pragma GCC unroll 8
        for (int k = 0; k < 4; ++k) {
            vq word = (c[2 * n][k] & 0xffffffff) | (c[2 * n + 1][k] << 32);
            kept[n][k] = (vi)((vu)word >= least);
        }
}

// visit(key, group, kept) for every key of a span and every group of lanes that meets it.
template <class Visit>
static inline void visit_kept(const Args& a, const Where& w, const Span& span, Visit&& visit) {
    for (int64_t four = span.j0 / 4; four * 4 < span.j1; ++four)
        for (int g = span.v0; g < span.v1; g += 2) {
            vi kept[2][4];
            kept_lanes<2>(a, w, w.i0 + g * W, four, kept);
            for (int n = 0; n < 2 && g + n < span.v1; ++n)
                for (int x = 0; x < 4; ++x) {
                    int64_t key = four * 4 + x;
                    if (key >= span.j0 && key < span.j1) visit(int(key - span.j0), g + n, kept[n][x]);
                }
        }
}

// Drops weights of one row: s[j - lo] for j in [lo, hi).
static inline void drop_row(const Args& a, const Where& w, int64_t lo, int64_t hi, float* s) {
    for (int64_t four = lo / 4; four * 4 < hi; ++four) {
        uint64_t c[1][4] = {{uint64_t(four), uint64_t(w.i0), uint64_t(w.h), uint64_t(w.b)}};
        philox(uint64_t(a.seed), 0, c);
        for (int64_t j = std::max(lo, four * 4); j < std::min(hi, four * 4 + 4); ++j)
            if (uint32_t(c[0][j % 4]) < uint32_t(a.least)) s[j - lo] = 0.0f;
    }
}
