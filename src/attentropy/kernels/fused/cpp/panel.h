// A panel is 64 queries of one head, one per lane: logits are held transposed, [key][lane], so
// the maximum, the sums and the interval test of a row never cross lanes.
#pragma once
#include <algorithm>
#include <climits>

#include "gemm.h"
#include "parallel.h"

constexpr int P = 64;     // lanes of a panel
constexpr int G = P / W;  // its vectors, called groups

struct Where {
    int64_t b, h, i0;  // batch, query head, first query
    int n;             // queries in this panel
    int64_t row(const Args& a) const { return (b * a.H + h) * a.Q + i0; }
};

template <class T>
static inline const T* at3(const char* p, const int64_t (&s)[3], int64_t b, int64_t h, int64_t i) {
    return reinterpret_cast<const T*>(p) + b * s[0] + h * s[1] + i * s[2];
}
template <class T>
static inline T at3(const T* p, const int64_t (&s)[3], int64_t b, int64_t h, int64_t i, T other) {
    return p ? p[b * s[0] + h * s[1] + i * s[2]] : other;
}

// Keys [j0, j1) met by groups [v0, v1); `edge` when some lane there does not see all of them.
struct Span {
    int j0, j1, v0, v1;
    bool edge;
    int rows() const { return j1 - j0; }
};

// The interval of keys of each lane, and its hull and core per group.
struct Lanes {
    alignas(64) int32_t lo[P], hi[P];
    int first[G], last[G], core_lo[G], core_hi[G];
    int all_lo = 0, all_hi = INT_MAX;

    void init(const Args& a, const Where& w) {
        for (int g = 0; g < G; ++g) {
            first[g] = INT_MAX, last[g] = 0, core_lo[g] = 0, core_hi[g] = INT_MAX;
            for (int i = g * W; i < (g + 1) * W; ++i) {
                lo[i] = hi[i] = 0;
                if (i < w.n) lane(a, w, i, g);
            }
            all_lo = std::max(all_lo, core_lo[g]);
            all_hi = std::min(all_hi, core_hi[g]);
        }
    }
    void lane(const Args& a, const Where& w, int i, int g) {
        lo[i] = std::max(0, at3(a.lo, a.los, w.b, w.h, w.i0 + i, int32_t(0)));
        hi[i] = std::min(int32_t(a.K), at3(a.hi, a.his, w.b, w.h, w.i0 + i, int32_t(a.K)));
        core_lo[g] = std::max(core_lo[g], lo[i]);
        core_hi[g] = std::min(core_hi[g], lo[i] < hi[i] ? hi[i] : 0);
        if (lo[i] >= hi[i]) return;
        first[g] = std::min(first[g], lo[i]);
        last[g] = std::max(last[g], hi[i]);
    }

    // visit(Span) over the keys [from, to) in order. Keys that no lane sees are skipped, and so
    // are groups of lanes that see none of a span.
    template <class Visit>
    void spans(int block, int from, int to, Visit&& visit) const {
        int j = std::max(from, *std::min_element(first, first + G));
        int end = std::min(to, *std::max_element(last, last + G));
        while (j < end) {
            Span s{j, std::min(end, j + block), G, 0, false};
            for (int g = 0; g < G; ++g) {
                if (first[g] <= j && j < last[g]) {
                    s.v0 = std::min(s.v0, g), s.v1 = g + 1, s.j1 = std::min(s.j1, last[g]);
                } else if (first[g] > j) {
                    s.j1 = std::min(s.j1, first[g]);
                }
            }
            // Cut where all lanes begin or cease to see everything, if that leaves enough.
            if (j < all_lo && all_lo < s.j1 && s.j1 - all_lo >= W) s.j1 = all_lo;
            if (j < all_hi && all_hi < s.j1 && all_hi - j >= W) s.j1 = all_hi;
            for (int g = s.v0; g < s.v1; ++g)
                s.edge |= first[g] < last[g] && (s.j0 < core_lo[g] || s.j1 > core_hi[g]);
            if (s.v0 < s.v1) visit(s);
            j = s.j1;
        }
    }
};

// B[d][lane] from rows of T, times `factor` per lane; idle lanes hold 0.
template <class T>
static void pack_lanes(const T* x, int64_t stride, int n, int64_t D, const float* factor,
                       float* B) {
    for (int g = 0; g < G; ++g) {
        int i0 = g * W, d = 0;
        vf f = load(factor + i0);
        if (i0 >= n)
            for (; d < D; ++d) store(B + d * P + i0, vf{});
        if (i0 + W <= n)
            for (; d + W <= D; d += W) {
                vf r[W];
                for (int i = 0; i < W; ++i) r[i] = load(x + (i0 + i) * stride + d);
                transpose(r);
                for (int i = 0; i < W; ++i) store(B + (d + i) * P + i0, r[i] * f);
            }
        for (; d < D; ++d)
            for (int i = 0; i < W; ++i)
                B[d * P + i0 + i] = i0 + i < n ? to_float(x[(i0 + i) * stride + d]) * f[i] : 0.0f;
    }
}

// The same for words, whose bits stay as they are. D, stride: in words.
static inline void pack_words(const float* x, int64_t stride, int n, int64_t D, float* B) {
    for (int g = 0; g < G; ++g) {
        int i0 = g * W;
        int64_t d = 0;
        if (i0 + W <= n)
            for (; d + W <= D; d += W) {
                vf r[W];
                for (int i = 0; i < W; ++i) r[i] = load(x + (i0 + i) * stride + d);
                transpose(r);
                for (int i = 0; i < W; ++i) store(B + (d + i) * P + i0, r[i]);
            }
        for (; d < D; ++d)
            for (int i = i0; i < i0 + W; ++i) {
                if (i < n)
                    std::memcpy(B + d * P + i, x + i * stride + d, 4);
                else
                    B[d * P + i] = 0.0f;
            }
    }
}

// Lanes of q for a product with keys: floats are scaled here, pairs of bf16 after the product.
template <class Op, class T>
static void pack_queries(const T* x, int64_t stride, int n, int64_t D, const float* scale, float* B) {
    if constexpr (Op::width == 2)
        pack_words(reinterpret_cast<const float*>(x), stride / 2, n, D / 2, B);
    else
        pack_lanes(x, stride, n, D, scale, B);
}

// rows of T from C[d][lane], times `factor` per lane.
template <class T>
static void unpack_lanes(const float* C, int64_t D, int n, const float* factor, T* x,
                         int64_t stride) {
    for (int g = 0; g < G && g * W < n; ++g) {
        int i0 = g * W, d = 0;
        vf f = load(factor + i0);
        if (i0 + W <= n)
            for (; d + W <= D; d += W) {
                vf r[W];
                for (int i = 0; i < W; ++i) r[i] = load(C + (d + i) * P + i0) * f;
                transpose(r);
                for (int i = 0; i < W; ++i) put(x + (i0 + i) * stride + d, r[i]);
            }
        for (; d < D; ++d)
            for (int i = i0; i < std::min(n, i0 + W); ++i)
                put(x + i * stride + d, C[d * P + i] * factor[i]);
    }
}

// What a relative table and ALiBi add at distance d. Not inlined: contracted with the sum that it is
// added to, a product would be rounded in one pass otherwise than in another.
__attribute__((noinline)) static float distance_bias(const Args& a, int64_t h, int64_t d) {
    float x = a.slopes ? -a.slopes[h] * float(std::abs(d)) : 0.0f;
    if (!a.relative) return x;
    return x + a.relative[h * a.relatives + std::clamp(d, -a.reach, a.reach) + a.reach];
}

// What is added to the scaled score of a span beyond the interval test, or nothing.
struct Extras {
    const Args& a;
    Where w;
    bool tile, table;  // bias or mask tensor; relative or ALiBi bias
    float *tiles, *tables, *rows;

    static size_t room(const Args& a, int block) {
        size_t tile = a.mask || a.bias ? Scratch::room(block * P) * 2 : 0;
        return tile + Scratch::room(a.relative || a.slopes ? block + P + W : 0);
    }
    Extras(const Args& a, const Where& w, Scratch& mem, int block)
        : a(a), w(w), tile(a.mask || a.bias), table(a.relative || a.slopes) {
        tiles = mem.take<float>(tile ? block * P : 0);
        rows = mem.take<float>(tile ? block * P : 0);
        tables = mem.take<float>(table ? block + P + W : 0);
    }
    bool any() const { return tile || table || a.softcap != 0; }

    // The distance of the key at position p of the table of a span.
    int64_t distance(const Span& s, int p) const { return s.j1 - 1 - w.i0 - (a.K - a.Q) - p; }

    void prepare(const Span& s) {
        if (table) fill_table(s);
        if (tile) fill_tile(s);
    }
    void fill_table(const Span& s) {
        for (int p = 0; p < s.rows() + P; ++p) tables[p] = distance_bias(a, w.h, distance(s, p));
    }
    // rows[i][key] = bias, or -inf where hidden; then transposed into tiles[key][lane].
    void fill_tile(const Span& s) {
        int64_t n = s.rows(), ld = (n + W - 1) / W * W;
        const int64_t(&bs)[4] = a.biass, (&ms)[4] = a.masks;
        for (int i = s.v0 * W; i < s.v1 * W; ++i) {
            float* r = rows + i * ld;
            if (i >= w.n) {
                for (int64_t j = 0; j < ld; ++j) r[j] = 0;
                continue;
            }
            int64_t q = w.i0 + i;
            if (a.bias) {
                const float* b = a.bias + w.b * bs[0] + w.h * bs[1] + q * bs[2] + s.j0 * bs[3];
                for (int64_t j = 0; j < n; ++j) r[j] = b[j * bs[3]];
            } else {
                for (int64_t j = 0; j < n; ++j) r[j] = 0;
            }
            if (a.mask) {
                const uint8_t* m = a.mask + w.b * ms[0] + w.h * ms[1] + q * ms[2] + s.j0 * ms[3];
                for (int64_t j = 0; j < n; ++j) r[j] = m[j * ms[3]] ? r[j] : -INF;
            }
            for (int64_t j = n; j < ld; ++j) r[j] = 0;
        }
        for (int g = s.v0; g < s.v1; ++g)
            for (int64_t j = 0; j < ld; j += W) {
                vf r[W];
                for (int i = 0; i < W; ++i) r[i] = load(rows + (g * W + i) * ld + j);
                transpose(r);
                for (int i = 0; i < W && j + i < n; ++i) store(tiles + (j + i) * P + g * W, r[i]);
            }
    }
    // The final logit of key row j (counted from s.j0), -inf where hidden, and the slope of the
    // softcap there.
    vf finish(const Span& s, const Lanes& lanes, int j, int v, vf x, vf& slope) const {
        slope = splat(1.0f);
        if (a.softcap != 0) {
            float cap = float(a.softcap);
            vf t = tanh(x / cap);
            x = t * cap;
            slope = 1.0f - t * t;
        }
        if (table) x = x + load(tables + v * W + (s.rows() - 1 - j));
        if (tile) x = x + load(tiles + j * P + v * W);
        return tile || s.edge ? (seen(s, lanes, j, v) ? x : splat(-INF)) : x;
    }
    // All ones in the lanes that see key row j.
    vi seen(const Span& s, const Lanes& lanes, int j, int v) const {
        vi key = splat(int32_t(s.j0 + j));
        vi inside = (key >= load(lanes.lo + v * W)) & (key < load(lanes.hi + v * W));
        return tile ? inside & (load(tiles + j * P + v * W) != -INF) : inside;
    }
};
