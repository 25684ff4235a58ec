// What the two backward passes share: the gradients of keys and values of one head of keys, and the
// terms of a row. With z = ln p, y = z + H, and gradients dO, dLSE, dH, dC, dV of output, lse,
// entropy, collision and varentropy, the gradient of a logit is
//     ds = p (dP - c - dH z + 2 dC p + dV y (y + 2)),   dP = dO v,
//     c = dO.O + dH H - dLSE + 2 dC C + dV V.
#pragma once
#include "forward.h"

constexpr int BACK_KEYS = 192;  // keys of a block, at most
constexpr int64_t CHUNK = 256;  // keys owned at a time when several tasks share one head

static inline int64_t padded(int64_t n) { return (n + W - 1) / W * W; }

// Which keys a task owns: chunks `part`, `part + parts`, ... so that causal work is even.
struct Share {
    int64_t part, parts, K;
    template <class Visit>
    void ranges(Visit&& visit) const {
        if (parts == 1) return visit(int64_t(0), K);
        for (int64_t j = part * CHUNK; j < K; j += parts * CHUNK) visit(j, std::min(K, j + CHUNK));
    }
};

// dk and dv of the keys that a task owns: in place where rows of floats are whole vectors, else in
// scratch memory until the end.
template <class T>
struct KeyGradients {
    const Args& a;
    Share share;
    float *dk = nullptr, *dv = nullptr;
    int64_t ldk = 0, ldv = 0;

    static bool direct(int64_t D) { return sizeof(T) == 4 && D % W == 0; }
    static size_t room(const Args& a) {
        return (direct(a.D) ? 0 : Scratch::room(a.K * padded(a.D))) +
               (direct(a.Dv) ? 0 : Scratch::room(a.K * padded(a.Dv)));
    }
    void begin(Scratch& mem, int64_t b, int64_t hk) {
        dk = accumulator(mem, a.dk, a.dks, b, hk, a.D, ldk);
        dv = accumulator(mem, a.dv, a.dvs, b, hk, a.Dv, ldv);
    }
    void end(int64_t b, int64_t hk) {
        if (!direct(a.D)) write(dk, ldk, a.dk, a.dks, b, hk, a.D);
        if (!direct(a.Dv)) write(dv, ldv, a.dv, a.dvs, b, hk, a.Dv);
    }

    float* accumulator(Scratch& mem, char* out, const int64_t (&strides)[3], int64_t b, int64_t hk,
                       int64_t D, int64_t& ld) {
        float* p;
        if (direct(D)) {
            p = const_cast<float*>(at3<float>(out, strides, b, hk, 0));
            ld = strides[2];
        } else {
            ld = padded(D);
            p = mem.take<float>(a.K * ld);
        }
        share.ranges([&](int64_t j0, int64_t j1) {
            for (int64_t j = j0; j < j1; ++j) std::memset(p + j * ld, 0, (direct(D) ? D : ld) * 4);
        });
        return p;
    }
    void write(const float* p, int64_t ld, char* out, const int64_t (&strides)[3], int64_t b,
               int64_t hk, int64_t D) {
        share.ranges([&](int64_t j0, int64_t j1) {
            for (int64_t j = j0; j < j1; ++j) {
                T* row = const_cast<T*>(at3<T>(out, strides, b, hk, j));
                for (int64_t d = 0; d < D; ++d) put(row + d, p[j * ld + d]);
            }
        });
    }
};

// Whether rows of x hold a NaN or an infinity.
template <class T>
static bool tainted(const T* x, int64_t stride, int64_t rows, int64_t D) {
    vf t = {};
    for (int64_t j = 0; j < rows; ++j) {
        int64_t d = 0;
        for (; d + W <= D; d += W) t += load(x + j * stride + d) * 0.0f;
        if (d < D) t += load_part(x + j * stride + d, int(D - d)) * 0.0f;
    }
    return any(t != 0.0f);
}

// What ds of a row depends on beside its logits; those of a row that sees nothing make p = 0, and
// those of a row whose visible logits are all -inf make it NaN.
struct RowTerms {
    float top = 0, shift = INF, c = 0, dh = 0, dc = 0, ve = 0, entropy = 0;
};

// r: the row among all; g: the gradient of its output.
template <class T>
static RowTerms row_terms(const Args& a, int64_t r, const T* out, const T* g) {
    RowTerms t;
    vf acc = {};
    float delta = 0.0f;
    int64_t d = 0;
    for (; d + W <= a.Dv; d += W) acc += load(out + d) * load(g + d);
    for (; d < a.Dv; ++d) delta += to_float(out[d]) * to_float(g[d]);
    delta += sum(acc);
    bool lost = a.entropy[r] != a.entropy[r];
    if (lost || a.max_logit[r] != -INF) t.top = a.max_logit[r], t.shift = lost ? NAN : a.log_l[r];
    t.dh = a.dentropy ? a.dentropy[r] : 0.0f;
    t.dc = a.dcollision ? 2.0f * a.dcollision[r] : 0.0f;
    t.c = delta + t.dh * a.entropy[r] - (a.dlse ? a.dlse[r] : 0.0f) + t.dc * a.collision[r];
    if (!a.dvarentropy) return t;
    t.ve = a.dvarentropy[r], t.entropy = a.entropy[r];
    t.c += t.ve * a.varentropy[r] - t.dh * t.entropy;
    t.dh -= 2.0f * t.ve;
    return t;
}

// p and ds of one vector of logits s with gradients dp of their weights. VARENTROPY: it has a
// gradient; -dH y is then with its term of y.
struct Terms {
    vf top, shift, c, dh, dc, ve, entropy;
};
template <bool VARENTROPY>
static inline void soften_vector(const Terms& t, float* s, float* dp) {
    vf z = (load(s) - t.top) - t.shift, p = exp_safe(z);
    vf y = VARENTROPY ? z + t.entropy : z, slope = VARENTROPY ? t.dh - t.ve * y : t.dh;
    vf x = load(dp) - t.c - slope * y + t.dc * p;
    store(s, p);
    store(dp, z < LOWEST ? vf{} : p * x);
}
