// The backward pass of at most FEW queries, row by row along the keys: a panel would leave its lanes
// idle. Scores are summed in the order of row.h, as the forward pass of few queries sums them.
#pragma once
#include "gradients.h"

template <class T>
struct FewPass {
    static constexpr int64_t LD = BACK_KEYS + W;  // a row of a block of keys

    struct Row {
        Where w;
        RowTerms terms;
        float scale;
        int64_t lo, hi;  // keys that it sees, but for masks
        bool tainted;    // a NaN or an infinity in what its weights or gradients are multiplied by
        float *q, *g, *dq, *p, *ds;
        uint8_t* hidden;
    };

    const Args& a;
    Share share;
    KeyGradients<T> keys;
    float *partial, *tables;  // dq of this part; gradients of relative of this part, by head
    int64_t count, ldq, ldg;
    Row* rows = nullptr;
    float *slopes = nullptr, *drops = nullptr, *mixed = nullptr;
    bool masked, extras;  // a mask or bias may hide keys; logits are more than scaled scores

    FewPass(const Args& a, Share share, float* partial, float* tables)
        : a(a), share(share), keys{a, share}, partial(partial), tables(tables) {
        count = a.H / a.Hk * a.Q;
        ldq = padded(a.D) + W, ldg = padded(a.Dv) + W;
        masked = a.mask || a.bias;
        extras = masked || a.relative || a.slopes || a.softcap != 0;
    }
    size_t room() const {
        return Scratch::room(count, sizeof(Row)) + 2 * Scratch::room(count * ldq) +
               Scratch::room(count * ldg) + 2 * Scratch::room(count * LD) + 2 * Scratch::room(LD) +
               Scratch::room(ldq) + Scratch::room(count * LD, 1) + KeyGradients<T>::room(a);
    }

    void run(int64_t b, int64_t hk) {
        Scratch& mem = scratch();
        mem.reserve(room());
        start(mem, b, hk);
        keys.begin(mem, b, hk);
        const T* k = at3<T>(a.k, a.ks, b, hk, 0);
        const T* v = at3<T>(a.v, a.vs, b, hk, 0);
        share.ranges([&](int64_t from, int64_t to) {
            for (int64_t j = from; j < to; j += BACK_KEYS) block(k, v, j, std::min(to, j + BACK_KEYS));
        });
        for (int64_t r = 0; r < count; ++r) write(rows[r]);
        keys.end(b, hk);
    }

    void start(Scratch& mem, int64_t b, int64_t hk) {
        rows = mem.take<Row>(count);
        float *q = mem.take<float>(count * ldq), *dq = mem.take<float>(count * ldq);
        float *g = mem.take<float>(count * ldg), *p = mem.take<float>(count * LD);
        float* ds = mem.take<float>(count * LD);
        slopes = mem.take<float>(LD), drops = mem.take<float>(LD), mixed = mem.take<float>(ldq);
        uint8_t* hidden = mem.take<uint8_t>(count * LD);
        std::memset(dq, 0, count * ldq * 4);
        std::memset(hidden, 0, count * LD);
        for (int64_t r = 0; r < count; ++r) {
            Where w{b, hk * (a.H / a.Hk) + r / a.Q, r % a.Q, 1};
            Row row{w,           {},         1.0f,        0,           0,           false,
                    q + r * ldq, g + r * ldg, dq + r * ldq, p + r * LD, ds + r * LD, hidden + r * LD};
            describe(row);
            rows[r] = row;
        }
    }
    void describe(Row& row) {
        const Where& w = row.w;
        const T* q = at3<T>(a.q, a.qs, w.b, w.h, w.i0);
        const T* g = at3<T>(a.dout, a.douts, w.b, w.h, w.i0);
        row.terms = row_terms(a, w.row(a), at3<T>(a.out, a.outs, w.b, w.h, w.i0), g);
        row.scale = at3(a.scale, a.scales, w.b, w.h, w.i0, 1.0f);
        row.lo = std::max(0, at3(a.lo, a.los, w.b, w.h, w.i0, int32_t(0)));
        row.hi = std::min(int32_t(a.K), at3(a.hi, a.his, w.b, w.h, w.i0, int32_t(a.K)));
        scale_query(q, a.D, row.scale, row.q);
        scale_query(g, a.Dv, 1.0f, row.g);
        float t = (row.terms.c + row.terms.dh + row.terms.top) * 0.0f;
        row.tainted = t != 0.0f || tainted(row.q, 0, 1, a.D) || tainted(g, 0, 1, a.Dv);
    }

    // Keys [j0, j1): p and ds of every row, then dq of each, and dk and dv of all together.
    void block(const T* k, const T* v, int64_t j0, int64_t j1) {
        bool met = false, careful = false;
        for (int64_t r = 0; r < count; ++r) {
            Row& row = rows[r];
            int64_t lo = std::max(j0, row.lo), hi = std::max(lo, std::min(j1, row.hi));
            if (lo < hi) weigh(row, k, v, j0, lo, hi);
            for (float* x : {row.p, row.ds}) {
                std::fill(x, x + std::min(lo, j1) - j0, 0.0f);
                std::fill(x + std::min(hi, j1) - j0, x + (j1 - j0), 0.0f);
            }
            met |= lo < hi;
            careful |= row.tainted && (masked || lo > j0 || hi < j1);
        }
        if (!met) return;
        float *dk = keys.dk + j0 * keys.ldk, *dv = keys.dv + j0 * keys.ldv;
        if (careful) return add_carefully(j0, j1);
        gemm<F32, BY_COLUMNS, true>(rows[0].ds, LD, rows[0].q, ldq, dk, keys.ldk, j1 - j0, 0,
                                    int(padded(a.D) / W), count);
        gemm<F32, BY_COLUMNS, true>(rows[0].p, LD, rows[0].g, ldg, dv, keys.ldv, j1 - j0, 0,
                                    int(padded(a.Dv) / W), count);
    }

    // p and ds of the keys [lo, hi) of a block that begins at j0, and what they add to dq, to
    // biases and to the relative table.
    void weigh(Row& row, const T* k, const T* v, int64_t j0, int64_t lo, int64_t hi) {
        int64_t n = hi - lo;
        float *p = row.p + (lo - j0), *ds = row.ds + (lo - j0);
        uint8_t* hidden = row.hidden + (lo - j0);
        row_scores(row.q, a.D, k + lo * a.ks[2], a.ks[2], n, p);
        row_scores(row.g, a.Dv, v + lo * a.vs[2], a.vs[2], n, ds);
        if (extras) finish_row(a, row.w, lo, hi, p, hidden, slopes);
        if (a.kept != 0) {
            std::fill(drops, drops + n, float(a.kept));
            drop_row(a, row.w, lo, hi, drops);
            for (int64_t j = 0; j < n; ++j) ds[j] *= drops[j];
        }
        a.dvarentropy ? soften<true>(row, p, ds, n) : soften<false>(row, p, ds, n);
        if (masked)
            for (int64_t j = 0; j < n; ++j)
                if (hidden[j]) p[j] = ds[j] = 0.0f;
        if (tables) add_table(row, lo, hi, ds);
        if (a.dbias) add_bias(row, lo, hi, ds);
        if (a.softcap != 0)
            for (int64_t j = 0; j < n; ++j) ds[j] = ds[j] == 0.0f ? 0.0f : ds[j] * slopes[j];
        if (a.kept != 0)
            for (int64_t j = 0; j < n; ++j) p[j] *= drops[j];
        mix_row(k + lo * a.ks[2], a.ks[2], a.D, ds, n, masked ? hidden : nullptr, mixed);
        for (int64_t d = 0; d < a.D; ++d) row.dq[d] += mixed[d];
    }
    template <bool VARENTROPY>
    static void soften(const Row& row, float* p, float* ds, int64_t n) {
        const RowTerms& t = row.terms;
        Terms terms{splat(t.top), splat(t.shift), splat(t.c),      splat(t.dh),
                    splat(t.dc),  splat(t.ve),    splat(t.entropy)};
        for (int64_t j = 0; j < n; j += W) soften_vector<VARENTROPY>(terms, p + j, ds + j);
    }
    void add_table(const Row& row, int64_t lo, int64_t hi, const float* ds) {
        float* to = tables + row.w.h * share.parts * (2 * a.reach + 1);
        int64_t at = row.w.i0 + a.K - a.Q;
        for (int64_t j = lo; j < hi; ++j) to[std::clamp(j - at, -a.reach, a.reach) + a.reach] += ds[j - lo];
    }
    void add_bias(const Row& row, int64_t lo, int64_t hi, const float* ds) {
        const int64_t(&bs)[4] = a.dbiass;
        float* to = a.dbias + row.w.b * bs[0] + row.w.h * bs[1] + row.w.i0 * bs[2];
        for (int64_t j = lo; j < hi; ++j) to[j * bs[3]] += ds[j - lo];
    }
    // A key that a row does not see gets nothing of it, not even 0 * NaN.
    void add_carefully(int64_t j0, int64_t j1) {
        for (int64_t r = 0; r < count; ++r) {
            const Row& row = rows[r];
            for (int64_t j = std::max(j0, row.lo); j < std::min(j1, row.hi); ++j) {
                if (masked && row.hidden[j - j0]) continue;
                float p = row.p[j - j0], ds = row.ds[j - j0];
                for (int64_t d = 0; d < a.Dv; ++d) keys.dv[j * keys.ldv + d] += p * row.g[d];
                for (int64_t d = 0; d < a.D; ++d) keys.dk[j * keys.ldk + d] += ds * row.q[d];
            }
        }
    }

    void write(const Row& row) {
        const Where& w = row.w;
        if (a.dscale) {
            const T* q = at3<T>(a.q, a.qs, w.b, w.h, w.i0);
            float x = 0.0f;
            for (int64_t d = 0; d < a.D; ++d) x += to_float(q[d]) * row.dq[d];
            float* to = partial ? partial + a.B * a.H * a.Q * a.D : a.dscale;
            to[w.row(a)] = x;
        }
        T* dq = const_cast<T*>(at3<T>(a.dq, a.dqs, w.b, w.h, w.i0));
        for (int64_t d = 0; d < a.D; ++d) {
            float x = row.dq[d] * row.scale;
            if (partial)
                partial[w.row(a) * a.D + d] = x;
            else
                put(dq + d, x);
        }
    }
};
