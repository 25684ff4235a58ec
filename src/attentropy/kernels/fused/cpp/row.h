// One query at a time, with vectors along the head dimension: for decoding, and to repair rows
// whose panel met a NaN or an infinity at a hidden key (0 * NaN is NaN).
#pragma once
#include "dropout.h"

// States of W rows: maximum m, and with z = s - m the sums of e^z but for the key of m, where it is 1,
// of z e^z, (z - mid)^2 e^z and e^2z. So r = l - 1 keeps its digits where one key has nearly all the
// weight, and the entropy with it; r = -1 is a row that met nothing. About a point near the mean of
// z, squares do not cancel when the varentropy is read off.
struct Sums {
    vf m, r, t, u, mid, c;
};

// The mean of z of keys that weigh l, the key of the maximum included; 0 of no keys.
template <class V>
static inline V middle(V l, V t) {
    return t / (l < 1 ? l * 0 + 1 : l);
}
// What to add to u when its middle moves.
template <class V>
static inline V moved(V l, V t, V from, V to) {
    return (from - to) * (2 * (t - from * l) + (from - to) * l);
}

// Writes the statistics of n <= W rows and returns the factors that turn sum e v into output.
static inline vf write_rows(const Args& a, int64_t row, int n, const Sums& s, const vi& best) {
    vi blind = s.r == -1.0f;  // not !(l > 0): NaN is no blindness
    vd r = __builtin_convertvector(blind ? vf{} : s.r, vd), l = 1.0 + r, log_l = log1p(r);
    vd m = __builtin_convertvector(s.m, vd), share = __builtin_convertvector(s.t, vd) / l;
    vd square = __builtin_convertvector(s.u, vd) / l, off = share - __builtin_convertvector(s.mid, vd);
    vf inverse = __builtin_convertvector(1.0 / l, vf);
    vf taint = s.r * 0.0f;  // NaN where r is NaN or infinite: the logarithm would not say so
    vf entropy = __builtin_convertvector(log_l - share, vf) + taint;
    vf lse = __builtin_convertvector(m + log_l, vf) + taint;
    vf shift = __builtin_convertvector(log_l, vf) + taint;
    vf collision = s.c * inverse * inverse;
    vf spread = __builtin_convertvector(square - off * off, vf) + taint;
    spread = spread < 0.0f || entropy == 0.0f ? vf{} : spread;
    lse = blind ? splat(-INF) : s.m == INF || s.m == -INF ? s.m : lse;
    entropy = blind ? vf{} : entropy;
    shift = blind ? splat(INF) : shift;
    std::memcpy(a.entropy + row, &entropy, n * 4);
    std::memcpy(a.lse + row, &lse, n * 4);
    std::memcpy(a.max_logit + row, &s.m, n * 4);
    std::memcpy(a.collision + row, &collision, n * 4);
    std::memcpy(a.varentropy + row, &spread, n * 4);
    std::memcpy(a.log_l + row, &shift, n * 4);
    vl index = __builtin_convertvector(best, vl);
    std::memcpy(a.argmax + row, &index, n * 8);
    return blind ? vf{} : inverse;
}

// q times scale, and zeros up to the next vector.
template <class T>
static inline void scale_query(const T* x, int64_t D, float scale, float* q) {
    for (int64_t d = 0; d < D + W; ++d) q[d] = d < D ? to_float(x[d]) * scale : 0.0f;
}

// s[j] = q . k_j for n keys, W of them at a time; the backward pass of few queries does the same.
template <class T>
static void row_scores(const float* q, int64_t D, const T* k, int64_t stride, int64_t keys, float* s) {
    int64_t whole = D / W * W, rest = D - whole;
    for (int64_t j = 0; j < keys; j += W) {
        int n = int(std::min<int64_t>(W, keys - j));
        const T* rows = k + j * stride;
        vf r[W] = {};
        if (n == W && !rest) {  // r stays in registers
            for (int64_t d = 0; d < whole; d += W) {
                vf x = load(q + d);
#pragma GCC unroll 16
                for (int i = 0; i < W; ++i) r[i] += x * load(rows + i * stride + d);
            }
        } else {
            for (int64_t d = 0; d < D; d += W)
                for (int i = 0; i < n; ++i) {
                    const T* at = rows + i * stride + d;
                    r[i] += load(q + d) * (d < whole ? load(at) : load_part(at, int(rest)));
                }
        }
        store(s + j, sums(r));
    }
}

// Turns the scores s[j - lo] of a row into final logits, -inf where hidden; hidden[] says which keys
// do not count, slopes[] what the softcap multiplies gradients by. Returns how many count.
static int64_t finish_row(const Args& a, const Where& w, int64_t lo, int64_t hi, float* s,
                          uint8_t* hidden, float* slopes = nullptr) {
    const int64_t(&bs)[4] = a.biass, (&ms)[4] = a.masks;
    const float* b = a.bias ? a.bias + w.b * bs[0] + w.h * bs[1] + w.i0 * bs[2] : nullptr;
    const uint8_t* m = a.mask ? a.mask + w.b * ms[0] + w.h * ms[1] + w.i0 * ms[2] : nullptr;
    int64_t visible = 0;
    for (int64_t j = lo; j < hi; ++j) {
        float x = s[j - lo];
        if (a.softcap != 0) {
            float t = tanh(splat(x / float(a.softcap)))[0];
            x = t * float(a.softcap);
            if (slopes) slopes[j - lo] = 1.0f - t * t;
        }
        if (a.relative || a.slopes) x += distance_bias(a, w.h, j - (w.i0 + a.K - a.Q));
        bool hide = (m && !m[j * ms[3]]) || (b && b[j * bs[3]] == -INF);
        if (b && !hide) x += b[j * bs[3]];
        hidden[j - lo] = hide;
        s[j - lo] = hide ? -INF : x;
        visible += !hide;
    }
    return visible;
}

// o[d] = sum of s[j] x_j[d] over n keys, without those that are hidden, if any are.
template <class T>
static void mix_row(const T* x, int64_t stride, int64_t D, const float* s, int64_t n,
                    const uint8_t* hidden, float* o) {
    for (int64_t d = 0; d < D; d += 4 * W) {
        int64_t width = std::min<int64_t>(4 * W, D - d), j = 0;
        vf acc[4] = {};
        if (width == 4 * W && !hidden) {  // two chains of additions, or each waits for the last
            vf other[4] = {};
            for (; j + 2 <= n; j += 2) {
                const T* row = x + j * stride + d;
#pragma GCC unroll 4
                for (int i = 0; i < 4; ++i) {
                    acc[i] += splat(s[j]) * load(row + i * W);
                    other[i] += splat(s[j + 1]) * load(row + stride + i * W);
                }
            }
            for (int i = 0; i < 4; ++i) acc[i] += other[i];
        }
        for (; j < n; ++j) {
            if (hidden && hidden[j]) continue;
            vf p = splat(s[j]);
            const T* row = x + j * stride + d;
            if (width == 4 * W) {
                for (int i = 0; i < 4; ++i) acc[i] += p * load(row + i * W);
            } else {
                for (int i = 0; i * W < width; ++i)
                    acc[i] += p * ((i + 1) * W <= width ? load(row + i * W)
                                                        : load_part(row + i * W, int(width - i * W)));
            }
        }
        for (int i = 0; i * W < width; ++i)
            for (int l = 0; l < W && i * W + l < width; ++l) o[d + i * W + l] = acc[i][l];
    }
}

template <class T>
struct RowPass {
    const Args& a;
    float *q, *s, *o;
    uint8_t* hidden;

    static size_t room(const Args& a) {
        return Scratch::room(a.D + W) + Scratch::room(a.K + W) + Scratch::room(a.Dv + W) +
               Scratch::room(a.K + W, 1);
    }
    RowPass(const Args& a, Scratch& mem) : a(a) {
        q = mem.take<float>(a.D + W);
        s = mem.take<float>(a.K + W);
        o = mem.take<float>(a.Dv + W);
        hidden = mem.take<uint8_t>(a.K + W);
    }

    // s[j - lo] = q . k_j for j in [lo, hi); in the order of a panel, which was there before.
    template <class Op>
    void scores_of_panel(const T* x, const T* k, int64_t stride, int64_t lo, int64_t hi, float scale) {
        for (int64_t j = lo; j < hi; ++j) {
            vf acc = {};
            for (int64_t d = 0; d < a.D; d += Op::width) {
                float word, other = q[d];
                std::memcpy(&word, k + j * stride + d, 4);
                if constexpr (Op::width == 2) std::memcpy(&other, x + d, 4);
                acc = Op::step(word, splat(other), acc);
            }
            s[j - lo] = Op::width == 2 ? acc[0] * scale : acc[0];
        }
    }
    // Largest of s and its first index; false where a NaN or a lack of finite logits makes the
    // order of keys matter.
    bool peak(int64_t n, float& m, int64_t& best) const {
        vf top = splat(-INF), taint = {};
        vi where = {}, base = {};
        for (int64_t j = 0; j < n; j += W, base += 1) {
            vf x = load(s + j);
            vi up = x > top;
            top = up ? x : top;
            where = up ? base : where;
            taint += x * 0.0f != x * 0.0f && x != -INF ? splat(1.0f) : vf{};
        }
        m = -INF;
        for (int i = 0; i < W; ++i) {
            int64_t j = int64_t(where[i]) * W + i;
            if (top[i] > m || (top[i] == m && j < best)) m = top[i], best = j;
        }
        return m > -INF && sum(taint) == 0.0f;
    }
    void first_peak(int64_t n, bool masked, float& m, int64_t& best) const {
        m = -INF, best = -1;
        for (int64_t j = 0; j < n; ++j) {
            if (masked && hidden[j]) continue;
            bool nan = s[j] != s[j];
            if (best < 0 || s[j] > m || (nan && m == m)) m = s[j], best = j;
            if (nan) break;
        }
    }
    // Softmax of s in place; the weights are not divided by their sum. Hidden keys are -inf.
    Sums soften(int64_t n, bool masked, int64_t& best) {
        constexpr int64_t CHAIN = 64 * W;  // a long chain of additions would lose digits
        float m;
        for (int i = 0; i < W; ++i) s[n + i] = -INF;
        if (!peak(n, m, best)) first_peak(n, masked, m, best);
        bool apart = m - m == 0;  // the largest is: it weighs 1
        if (apart) s[best] = -INF;
        double r = apart ? 0 : -1, t = 0, u = 0, c = r + 1, mid = 0;
        for (int64_t from = 0, to; from < n; from = to) {
            to = std::min(n, from + (from ? CHAIN : W));
            double next = float(middle(1 + r, t));
            u += moved(1 + r, t, mid, next), mid = next;
            vf lb = {}, tb = {}, ub = {}, cb = {};
            for (int64_t j = from; j < to; j += W) {
                vf z = load(s + j) - m, e = exp_safe(z);
                store(s + j, e);
                lb += e;
                z = z < LOWEST ? splat(LOWEST) : z;
                vf y = z - float(mid);
                tb += e * z;
                ub += e * y * y;
                cb += e * e;
            }
            for (int i = 0; i < W; ++i) r += lb[i], t += tb[i], u += ub[i], c += cb[i];
        }
        if (apart) s[best] = 1.0f;
        return {splat(m), splat(float(r)), splat(float(t)), splat(float(u)), splat(float(mid)), splat(float(c))};
    }
    // A row by itself; OF_PANEL says whose order its scores are summed in, `Op` being the panel's.
    template <class Op, bool OF_PANEL>
    void run(const Where& w) {
        int64_t hk = w.h / (a.H / a.Hk), i = w.i0;
        int64_t lo = std::max(0, at3(a.lo, a.los, w.b, w.h, i, int32_t(0)));
        int64_t hi = std::min(int32_t(a.K), at3(a.hi, a.his, w.b, w.h, i, int32_t(a.K)));
        hi = std::max(lo, hi);
        float scale = at3(a.scale, a.scales, w.b, w.h, i, 1.0f);
        const T* x = at3<T>(a.q, a.qs, w.b, w.h, i);
        scale_query(x, a.D, scale, q);
        const T* k = at3<T>(a.k, a.ks, w.b, hk, 0);
        if constexpr (OF_PANEL)
            scores_of_panel<Op>(x, k, a.ks[2], lo, hi, scale);
        else
            row_scores(q, a.D, k + lo * a.ks[2], a.ks[2], hi - lo, s);
        bool extras = a.bias || a.mask || a.relative || a.slopes || a.softcap != 0;
        bool masked = a.bias || a.mask;
        int64_t visible = extras ? finish_row(a, w, lo, hi, s, hidden) : hi - lo, best = -1;
        T* out = const_cast<T*>(at3<T>(a.out, a.outs, w.b, w.h, i));
        if (visible == 0) {
            write_rows(a, w.row(a), 1, {splat(-INF), splat(-1.0f), vf{}, vf{}, vf{}, vf{}}, splat(-1));
            for (int64_t d = 0; d < a.Dv; ++d) put(out + d, 0.0f);
            return;
        }
        Sums sums = soften(hi - lo, masked, best);
        if (a.kept != 0) drop_row(a, w, lo, hi, s);
        mix_row(at3<T>(a.v, a.vs, w.b, hk, lo), a.vs[2], a.Dv, s, hi - lo, masked ? hidden : nullptr, o);
        float factor = write_rows(a, w.row(a), 1, sums, splat(int32_t(best + lo)))[0];
        if (a.kept != 0) factor *= float(a.kept);
        for (int64_t d = 0; d < a.Dv; ++d) put(out + d, o[d] * factor);
    }
};
