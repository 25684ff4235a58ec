// The micro-kernel: R rows x NV vectors of C in registers, one broadcast of A against NV vectors
// of B per step. It serves every product of the forward and the backward pass, so no product
// needs K or V packed: A is read in place, by rows or by columns.
#pragma once
#include "vec.h"

constexpr int ROWS = 6;
constexpr int VECS = W == 16 ? 4 : 2;

// A reduction step on 32-bit words: one float, or a pair of bf16 in the place of one.
struct F32 {
    static constexpr int width = 1;
    static inline vf step(float a, vf b, vf c) { return splat(a) * b + c; }
};
#ifdef __AVX512BF16__
struct BF16 {
    static constexpr int width = 2;
    static inline vf step(float a, vf b, vf c) {
        int32_t w;
        std::memcpy(&w, &a, 4);
        return (vf)_mm512_dpbf16_ps((__m512)c, (__m512bh)_mm512_set1_epi32(w), (__m512bh)b);
    }
};

// Two rows as bf16 one after the other, and the same as words: `low` in the lower halves.
static inline __m512i halves(vf low, vf high) {
    return (__m512i)_mm512_cvtne2ps_pbh((__m512)high, (__m512)low);
}
static inline vf interleaved(__m512i halves) {
    alignas(64) static constexpr uint16_t order[32] = {
        0, 16, 1, 17, 2,  18, 3,  19, 4,  20, 5,  21, 6,  22, 7,  23,
        8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31};
    return (vf)_mm512_permutexvar_epi16(_mm512_load_si512(order), halves);
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
