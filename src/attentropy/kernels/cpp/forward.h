// The forward pass of one panel: scores, running maximum, weights and their sums, output.
#pragma once
#include "row.h"

constexpr int KEYS = 256;  // keys of a block, at most

template <class Op, class T>
struct ForwardPass {
    const Args& a;
    float *qt, *s, *o;
    alignas(64) float m[P], l[P], t[P], c[P], best[P], decay[P], factor[P], scale[P];
    alignas(64) int32_t tile[P], arg[P];
    Lanes lanes;

    static size_t room(const Args& a) {
        return Scratch::room(a.D * P) + Scratch::room(KEYS * P) + Scratch::room(a.Dv * P) +
               Extras::room(a, KEYS) + RowPass<T>::room(a);
    }
    explicit ForwardPass(const Args& a) : a(a) {}

    void run(const Where& w) {
        Scratch& mem = scratch();
        mem.reserve(room(a));
        qt = mem.take<float>(a.D * P);
        s = mem.take<float>(KEYS * P);
        o = mem.take<float>(a.Dv * P);
        Extras extras(a, w, mem, KEYS);
        start(w);
        lanes.spans(KEYS, 0, int(a.K), [&](const Span& span) {
            const T* k = at3<T>(a.k, a.ks, w.b, w.h / (a.H / a.Hk), span.j0);
            const T* v = at3<T>(a.v, a.vs, w.b, w.h / (a.H / a.Hk), span.j0);
            scores(reinterpret_cast<const float*>(k), span);
            bool plain = !span.edge && !extras.any();
            if (!plain) finish(span, extras);
            find_argmax(span);
            vec_chunks(span.v0, span.v1, [&](auto nv, int g) {
                plain ? soften<decltype(nv)::value, false>(span, g)
                      : soften<decltype(nv)::value, true>(span, g);
            });
            rescale(span);
            gemm<Op, BY_COLUMNS, true>(reinterpret_cast<const float*>(v), a.vs[2], s, P, o, P, a.Dv,
                                       span.v0, span.v1, span.rows());
        });
        write(w, mem);
    }

    void start(const Where& w) {
        lanes.init(a, w);
        for (int i = 0; i < P; ++i) {
            scale[i] = i < w.n ? at3(a.scale, a.scales, w.b, w.h, w.i0 + i, 1.0f) : 0.0f;
            m[i] = -INF, l[i] = t[i] = c[i] = 0.0f, arg[i] = -1;
        }
        pack_lanes(at3<T>(a.q, a.qs, w.b, w.h, w.i0), a.qs[2], w.n, a.D, scale, qt);
        std::memset(o, 0, a.Dv * P * sizeof(float));
    }

    // s = K q^T, with the maximum of each lane and the tile of rows where it was first met.
    void scores(const float* k, const Span& span) {
        vec_chunks(span.v0, span.v1, [&](auto nv, int g) {
            constexpr int NV = decltype(nv)::value;
            vf top[NV];
            vi where[NV] = {};
            for (int v = 0; v < NV; ++v) top[v] = splat(-INF);
            row_tiles(span.rows(), [&](auto r, int64_t row) {
                constexpr int R = decltype(r)::value;
                micro<Op, BY_ROWS, R, NV>(
                    k + row * a.ks[2], a.ks[2], qt + g * W, P, a.D, [&](vf(&acc)[R][NV]) {
#pragma GCC unroll 8
                        for (int v = 0; v < NV; ++v) {
                            vf high = acc[0][v];
#pragma GCC unroll 8
                            for (int i = 0; i < R; ++i) {
                                store(s + (row + i) * P + (g + v) * W, acc[i][v]);
                                high = max(high, acc[i][v]);
                            }
                            vi up = high > top[v];
                            top[v] = up ? high : top[v];
                            where[v] = up ? splat(int32_t(row)) : where[v];
                        }
                    });
            });
            for (int v = 0; v < NV; ++v) {
                store(best + (g + v) * W, top[v]);
                store(tile + (g + v) * W, where[v]);
            }
        });
    }

    // Biases, softcap and hidden keys; maxima again.
    void finish(const Span& span, Extras& extras) {
        extras.prepare(span);
        for (int g = span.v0; g < span.v1; ++g) {
            vf top = splat(-INF), slope;
            vi where = {};
            for (int j = 0; j < span.rows(); ++j) {
                float* p = s + j * P + g * W;
                vf x = extras.finish(span, lanes, j, g, load(p), slope);
                store(p, x);
                vi up = x > top;
                top = up ? x : top;
                where = up ? splat(int32_t(j)) : where;
            }
            store(best + g * W, top);
            store(tile + g * W, where);
        }
    }

    void find_argmax(const Span& span) {
        for (int i = span.v0 * W; i < span.v1 * W; ++i) {
            if (!(best[i] > m[i])) continue;
            int j = tile[i];
            while (s[j * P + i] != best[i]) ++j;
            arg[i] = span.j0 + j;
        }
    }

    // s becomes e^(s - m), m the running maximum; the sums move along. MASKED: -inf may occur.
    template <int NV, bool MASKED>
    void soften(const Span& span, int g) {
        vf pivot[NV], lb[NV] = {}, tb[NV] = {}, cb[NV] = {};
        for (int v = 0; v < NV; ++v) {
            int x = (g + v) * W;
            vf old = load(m + x), top = max(old, load(best + x));
            pivot[v] = top == -INF ? vf{} : top;
            vf rise = old == -INF ? vf{} : pivot[v] - old;
            vf fall = old == top ? splat(1.0f) : exp_cut(old - pivot[v]);
            store(m + x, top);
            store(decay + x, fall);
            store(t + x, fall * (load(t + x) - rise * load(l + x)));
            store(l + x, fall * load(l + x));
            store(c + x, fall * fall * load(c + x));
        }
        for (int j = 0; j < span.rows(); ++j) {
            float* p = s + j * P + g * W;
#pragma GCC unroll 8
            for (int v = 0; v < NV; ++v) {
                vf z = load(p + v * W) - pivot[v], e = exp_cut(z);
                if (MASKED) z = z < LOWEST ? splat(LOWEST) : z;
                store(p + v * W, e);
                lb[v] += e;
                tb[v] += e * z;
                cb[v] += e * e;
            }
        }
        for (int v = 0; v < NV; ++v) {
            int x = (g + v) * W;
            store(l + x, load(l + x) + lb[v]);
            store(t + x, load(t + x) + tb[v]);
            store(c + x, load(c + x) + cb[v]);
        }
    }

    void rescale(const Span& span) {
        for (int g = span.v0; g < span.v1; ++g) {
            vf f = load(decay + g * W);
            if (!any(f != 1.0f)) continue;
            for (int64_t d = 0; d < a.Dv; ++d) store(o + d * P + g * W, load(o + d * P + g * W) * f);
        }
    }

    void write(const Where& w, Scratch& mem) {
        alignas(64) float taint[P];
        for (int g = 0; g < G; ++g) {
            vf x = load(t + g * W) + load(l + g * W) + load(c + g * W);
            x = x * 0.0f;
            for (int64_t d = 0; d < a.Dv; ++d) x += load(o + d * P + g * W) * 0.0f;
            store(taint + g * W, x);
        }
        for (int i = 0; i < P; ++i)
            factor[i] = i < w.n ? write_row(a, w.row(a) + i, {m[i], l[i], t[i], c[i]}, arg[i]) : 0;
        T* out = const_cast<T*>(at3<T>(a.out, a.outs, w.b, w.h, w.i0));
        unpack_lanes(o, a.Dv, w.n, factor, out, a.outs[2]);
        RowPass<T> rows(a, mem);
        for (int i = 0; i < w.n; ++i)
            if (taint[i] != 0.0f || m[i] == -INF) rows.run({w.b, w.h, w.i0 + i, 1});
    }
};

// At most this many queries are taken one by one: a panel would leave its lanes idle.
constexpr int64_t FEW = 4;

template <class Op, class T>
static void forward(const Args& a) {
    if (a.Q <= FEW) {
        run_tasks(a, a.B * a.H * a.Q, [&](int64_t task) {
            Scratch& mem = scratch();
            mem.reserve(RowPass<T>::room(a));
            RowPass<T> rows(a, mem);
            rows.run({task / a.Q / a.H, task / a.Q % a.H, task % a.Q, 1});
        });
        return;
    }
    int64_t panels = (a.Q + P - 1) / P;
    run_tasks(a, a.B * a.H * panels, [&](int64_t task) {
        // Late panels first: under a causal mask they are the long ones.
        int64_t head = task / panels, i0 = (panels - 1 - task % panels) * P;
        ForwardPass<Op, T> pass(a);
        pass.run({head / a.H, head % a.H, i0, int(std::min<int64_t>(P, a.Q - i0))});
    });
}
