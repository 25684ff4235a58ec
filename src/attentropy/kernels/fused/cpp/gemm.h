// The micro-kernel: R rows x NV vectors of C in registers, one broadcast of A against NV vectors
// of B per step. It serves every product of the forward and the backward pass, so no product
// needs K or V packed: A is read in place, by rows or by columns.
#pragma once
#include "vec.h"

constexpr int ROWS = 6;
constexpr int VECS = W == 8 ? 2 : 4;  // AVX2 has 16 registers, AVX-512 and NEON have 32

// A reduction step on 32-bit words: one float, or a pair of bf16 in the place of one.
struct F32 {
    static constexpr int width = 1;
    static inline vf step(float a, vf b, vf c) { return splat(a) * b + c; }
};
// Pairs of bf16, where the CPU multiplies them: PAIRS is defined there. `halves` rounds two rows,
// one after the other.
typedef uint16_t vhh __attribute__((vector_size(W * 4)));
#if defined(__AVX512BF16__)
#define PAIRS
static inline vf dot_pairs(vf a, vf b, vf c) {
    return (vf)_mm512_dpbf16_ps((__m512)c, (__m512bh)a, (__m512bh)b);
}
static inline vhh halves(vf low, vf high) {
    return (vhh)_mm512_cvtne2ps_pbh((__m512)high, (__m512)low);
}
#elif defined(__ARM_FEATURE_BF16_VECTOR_ARITHMETIC)
#define PAIRS
static inline vf dot_pairs(vf a, vf b, vf c) {
    return (vf)vbfdotq_f32((float32x4_t)c, (bfloat16x8_t)a, (bfloat16x8_t)b);
}
static inline vhh halves(vf low, vf high) {
    return (vhh)vcvtq_high_bf16_f32(vcvtq_low_bf16_f32((float32x4_t)low), (float32x4_t)high);
}
#endif

#ifdef PAIRS
struct BF16 {
    static constexpr int width = 2;
    static inline vf step(float a, vf b, vf c) {
        int32_t w;
        std::memcpy(&w, &a, 4);
        return dot_pairs((vf)splat(w), b, c);
    }
};

// The same as words: `low` in the lower halves.
template <int... L>
static inline vf interleave(vhh x, std::integer_sequence<int, L...>) {
    return (vf)__builtin_shufflevector(x, x, (L % 2 * W + L / 2)...);
}
static inline vf interleaved(vhh x) {
    return interleave(x, std::make_integer_sequence<int, 2 * W>{});
}
#endif

// Words [pair][D] from rows [from, to) of x, two rows to a word, `from` even; a missing last row
// counts as 0.
static inline void pair_rows(const bf16* x, int64_t stride, int64_t from, int64_t to, int64_t D,
                             float* words, int64_t ld) {
    for (int64_t j = from; j < to; j += 2) {
        const bf16 *low = x + j * stride, *high = j + 1 < to ? low + stride : nullptr;
        float* w = words + j / 2 * ld;
        for (int64_t d = 0; d < D; d += W) {
            int n = int(D - d < W ? D - d : W);
            vf a = n == W ? load(low + d) : load_part(low + d, n), b = {};
            if (high) b = n == W ? load(high + d) : load_part(high + d, n);
            vf pair = as_float(((as_int(a) >> 16) & 0xffff) | as_int(b));
            std::memcpy(w + d, &pair, n * 4);
        }
    }
}

enum Layout { BY_ROWS, BY_COLUMNS };  // the direction in which A has stride 1: its steps or its rows

template <class Op, Layout L, int R, int NV, class End>
static inline void micro(const float* A, int64_t lda, const float* B, int64_t ldb, int64_t steps,
                         End&& end) {
    vf acc[R][NV] = {};
    for (int64_t k = 0; k < steps; ++k) {
        vf b[NV];
#pragma GCC unroll 8
        for (int v = 0; v < NV; ++v) b[v] = load(B + v * W);
#pragma GCC unroll 8
        for (int r = 0; r < R; ++r) {
            float x = L == BY_ROWS ? A[r * lda] : A[r];
#pragma GCC unroll 8
            for (int v = 0; v < NV; ++v) acc[r][v] = Op::step(x, b[v], acc[r][v]);
        }
        A += L == BY_ROWS ? 1 : lda;
        B += ldb;
    }
    end(acc);
}

// Calls tile(std::integral_constant R, row) over `rows` cut into tiles as equal as possible.
template <class Tile>
static inline void row_tiles(int64_t rows, Tile&& tile) {
    int64_t count = (rows + ROWS - 1) / ROWS;
    for (int64_t i = 0, row = 0; i < count; ++i) {
        int64_t r = (rows - row + count - i - 1) / (count - i);
        switch (r) {
            case 1: tile(std::integral_constant<int, 1>{}, row); break;
            case 2: tile(std::integral_constant<int, 2>{}, row); break;
            case 3: tile(std::integral_constant<int, 3>{}, row); break;
            case 4: tile(std::integral_constant<int, 4>{}, row); break;
            case 5: tile(std::integral_constant<int, 5>{}, row); break;
            default: tile(std::integral_constant<int, 6>{}, row); break;
        }
        row += r;
    }
}

// Calls chunk(std::integral_constant NV, first vector) over vectors [v0, v1).
template <class Chunk>
static inline void vec_chunks(int v0, int v1, Chunk&& chunk) {
    for (int v = v0; v < v1;) {
        int n = v1 - v < VECS ? v1 - v : VECS;
        if constexpr (VECS == 4) {
            if (n == 4) chunk(std::integral_constant<int, 4>{}, v);
            if (n == 3) chunk(std::integral_constant<int, 3>{}, v);
        }
        if (n == 2) chunk(std::integral_constant<int, 2>{}, v);
        if (n == 1) chunk(std::integral_constant<int, 1>{}, v);
        v += n;
    }
}

// C[rows, v0*W .. v1*W) = (ADD: +=) A B, times `factor` per lane for pairs. ldc counts floats, lda
// and ldb words.
template <class Op, Layout L, bool ADD>
static void gemm(const float* A, int64_t lda, const float* B, int64_t ldb, float* C, int64_t ldc,
                 int64_t rows, int v0, int v1, int64_t steps, const float* factor = nullptr) {
    vec_chunks(v0, v1, [&](auto nv, int v) {
        row_tiles(rows, [&](auto r, int64_t row) {
            constexpr int NV = decltype(nv)::value, R = decltype(r)::value;
            const float* a = A + (L == BY_ROWS ? row * lda : row);
            micro<Op, L, R, NV>(a, lda, B + v * W, ldb, steps, [&](vf(&acc)[R][NV]) {
                float* c = C + row * ldc + v * W;
#pragma GCC unroll 8
                for (int i = 0; i < R; ++i)
#pragma GCC unroll 8
                    for (int j = 0; j < NV; ++j) {
                        float* p = c + i * ldc + j * W;
                        vf x = acc[i][j];
                        if (Op::width == 2 && factor) x = x * load(factor + (v + j) * W);
                        store(p, ADD ? load(p) + x : x);
                    }
            });
        });
    });
}
