// The backward pass of the heads that share one head of keys, in panels.
#pragma once
#include <numeric>

#include "few.h"

template <class Op, class T>
struct BackwardPass {
    const Args& a;
    Share share;
    KeyGradients<T> keys;
    float *partial, *tables;     // dq of this part; gradients of relative of this part, by head
    float* drelative = nullptr;  // those of the present head
    float *qt, *qn, *gt, *gn, *s, *dp, *dqt, *slopes, *dtable, *drops;
    float *pw, *dw, *dj, *kp;  // pairs: p and ds by rows, ds by pairs of keys, k by pairs
    bool keys_tainted = false, rows_tainted = false;
    alignas(64) float top[P], shift[P], c[P], dh[P], dc[P], ve[P], entropy[P];
    alignas(64) float scale[P], one[P];
    Lanes lanes;

    static size_t room(const Args& a) {
        size_t d = padded(a.D), e = padded(a.Dv), tile = BACK_KEYS * P;
        return Scratch::room(a.D * P) * 2 + Scratch::room(d * P) + Scratch::room(a.Dv * P) +
               Scratch::room(e * P) + Scratch::room(tile) * 3 + Scratch::room(BACK_KEYS + P + W) +
               (a.kept != 0 ? Scratch::room(tile) : 0) +
               (Op::width == 2 ? Scratch::room(tile / 2 + P) * 3 + Scratch::room((a.K + 1) / 2 * a.D) : 0) +
               KeyGradients<T>::room(a) + Extras::room(a, BACK_KEYS);
    }

    BackwardPass(const Args& a, Share share, float* partial, float* tables)
        : a(a), share(share), keys{a, share}, partial(partial), tables(tables) {
        std::fill(one, one + P, 1.0f);
    }

    void run(int64_t b, int64_t hk) {
        Scratch& mem = scratch();
        mem.reserve(room(a));
        qt = mem.take<float>(a.D * P);
        dqt = mem.take<float>(a.D * P);
        qn = mem.take<float>(padded(a.D) * P);
        gt = mem.take<float>(a.Dv * P);
        gn = mem.take<float>(padded(a.Dv) * P);
        s = mem.take<float>(BACK_KEYS * P);
        dp = mem.take<float>(BACK_KEYS * P);
        slopes = mem.take<float>(BACK_KEYS * P);
        dtable = mem.take<float>(BACK_KEYS + P + W);
        drops = mem.take<float>(a.kept != 0 ? BACK_KEYS * P : 0);
        keys.begin(mem, b, hk);
        const T* k = at3<T>(a.k, a.ks, b, hk, 0);
        const T* v = at3<T>(a.v, a.vs, b, hk, 0);
        if constexpr (Op::width == 2) {
            for (float** p : {&pw, &dw, &dj}) *p = mem.take<float>(BACK_KEYS * P / 2 + P);
            kp = mem.take<float>((a.K + 1) / 2 * a.D);
            pair_rows(k, a.ks[2], 0, a.K, a.D, kp, a.D);
        }
        keys_tainted = tainted(k, a.ks[2], a.K, a.D) || tainted(v, a.vs[2], a.K, a.Dv);
        int64_t group = a.H / a.Hk;
        size_t mark = mem.used;
        for (int64_t h = hk * group; h < (hk + 1) * group; ++h)
            for (int64_t i0 = 0; i0 < a.Q; i0 += P) {
                mem.used = mark;
                if (tables) drelative = tables + h * share.parts * (2 * a.reach + 1);
                panel({b, h, i0, int(std::min<int64_t>(P, a.Q - i0))}, k, v, mem);
            }
        keys.end(b, hk);
    }

    void panel(const Where& w, const T* k, const T* v, Scratch& mem) {
        Extras extras(a, w, mem, BACK_KEYS);
        start(w);
        share.ranges([&](int64_t from, int64_t to) {
            lanes.spans(BACK_KEYS, int(from), int(to), [&](const Span& span) {
                const float* kj = reinterpret_cast<const float*>(k + span.j0 * a.ks[2]);
                const float* vj = reinterpret_cast<const float*>(v + span.j0 * a.vs[2]);
                constexpr int X = Op::width;
                gemm<Op, BY_ROWS, false>(kj, a.ks[2] / X, qt, P, s, P, span.rows(), span.v0, span.v1,
                                         a.D / X, scale);
                gemm<Op, BY_ROWS, false>(vj, a.vs[2] / X, gt, P, dp, P, span.rows(), span.v0, span.v1,
                                         a.Dv / X);
                if (a.kept != 0) draw(w, span);
                logit_gradients(w, span, extras);
                if (a.kept != 0) drop(span, s);
                bool hides = span.edge || extras.tile;
                if (hides && (keys_tainted || rows_tainted))
                    accumulate_carefully(w, span, extras, k);
                else
                    accumulate(w, span, kj);
            });
        });
        write_queries(w);
    }

    void start(const Where& w) {
        lanes.init(a, w);
        const T* q = at3<T>(a.q, a.qs, w.b, w.h, w.i0);
        const T* g = at3<T>(a.dout, a.douts, w.b, w.h, w.i0);
        for (int i = 0; i < P; ++i) {
            scale[i] = i < w.n ? at3(a.scale, a.scales, w.b, w.h, w.i0 + i, 1.0f) : 0.0f;
            RowTerms r;
            if (i < w.n)
                r = row_terms(a, w.row(a) + i, at3<T>(a.out, a.outs, w.b, w.h, w.i0 + i), g + i * a.douts[2]);
            top[i] = r.top, shift[i] = r.shift, c[i] = r.c, dh[i] = r.dh, dc[i] = r.dc;
            ve[i] = r.ve, entropy[i] = r.entropy;
        }
        pack_queries<Op>(q, a.qs[2], w.n, a.D, scale, qt);
        pack_queries<Op>(g, a.douts[2], w.n, a.Dv, one, gt);
        if constexpr (Op::width == 2) {
            pair_rows(q, a.qs[2], 0, w.n, a.D, qn, padded(a.D));
            pair_rows(g, a.douts[2], 0, w.n, a.Dv, gn, padded(a.Dv));
        } else {
            copy_rows(q, a.qs[2], w.n, a.D, scale, qn);
            copy_rows(g, a.douts[2], w.n, a.Dv, one, gn);
        }
        vf t = {};
        for (int i = 0; i < P; i += W) t += (load(c + i) + load(dh + i) + load(top + i)) * 0.0f;
        rows_tainted = any(t != 0.0f) || tainted(q, a.qs[2], w.n, a.D) ||
                       tainted(g, a.douts[2], w.n, a.Dv);
        std::memset(dqt, 0, a.D * P * sizeof(float));
    }
    // Factors of dropout of a span; they act on dP here, and on p once ds is made of it.
    void draw(const Where& w, const Span& span) {
        visit_kept(a, w, span, [&](int j, int g, const vi& kept) {
            store(drops + j * P + g * W, kept ? splat(float(a.kept)) : vf{});
        });
        drop(span, dp);
    }
    void drop(const Span& span, float* x) {
        for (int j = 0; j < span.rows(); ++j)
            for (int at = j * P + span.v0 * W, v = span.v0; v < span.v1; ++v, at += W)
                store(x + at, load(x + at) * load(drops + at));
    }
    static void copy_rows(const T* x, int64_t stride, int n, int64_t D, const float* factor,
                          float* to) {
        int64_t ld = padded(D);
        for (int i = 0; i < n; ++i)
            for (int64_t d = 0; d < ld; d += W) {
                const T* p = x + i * stride + d;
                store(to + i * ld + d, (d + W <= D ? load(p) : load_part(p, int(D - d))) * factor[i]);
            }
    }

    // s becomes p, dp becomes ds; biases take their share of ds here.
    void logit_gradients(const Where& w, const Span& span, Extras& extras) {
        bool plain = !span.edge && !extras.any();
        if (!plain) {
            extras.prepare(span);
            vf slope;
            for (int j = 0; j < span.rows(); ++j)
                for (int x = j * P + span.v0 * W, v = span.v0; v < span.v1; ++v, x += W) {
                    store(s + x, extras.finish(span, lanes, j, v, load(s + x), slope));
                    if (a.softcap != 0) store(slopes + x, slope);
                }
        }
        vec_chunks(span.v0, span.v1, [&](auto nv, int g) {
            a.dvarentropy ? soften<decltype(nv)::value, true>(span, g)
                          : soften<decltype(nv)::value, false>(span, g);
        });
        if (!plain && rows_tainted) scrub(span, extras);
        if (drelative) add_table(w, span, extras);
        if (a.dbias) add_bias(w, span, extras);
        if (a.softcap != 0)
            for (int j = 0; j < span.rows(); ++j)
                for (int x = j * P + span.v0 * W, v = span.v0; v < span.v1; ++v, x += W) {
                    vf d = load(dp + x);  // 0 where hidden, whose slope may be NaN
                    store(dp + x, d == 0.0f ? vf{} : d * load(slopes + x));
                }
    }
    template <int NV, bool VARENTROPY>
    void soften(const Span& span, int g) {
        Terms terms[NV];
        for (int v = 0; v < NV; ++v) {
            int x = (g + v) * W;
            terms[v] = {load(top + x), load(shift + x), load(c + x),      load(dh + x),
                        load(dc + x),  load(ve + x),    load(entropy + x)};
        }
        for (int j = 0; j < span.rows(); ++j)
#pragma GCC unroll 8
            for (int v = 0; v < NV; ++v) {
                int x = j * P + (g + v) * W;
                soften_vector<VARENTROPY>(terms[v], s + x, dp + x);
            }
    }
    // In a row of NaN hidden keys have weight NaN; make it 0.
    void scrub(const Span& span, const Extras& extras) {
        for (int j = 0; j < span.rows(); ++j)
            for (int x = j * P + span.v0 * W, v = span.v0; v < span.v1; ++v, x += W) {
                vi seen = extras.seen(span, lanes, j, v);
                store(s + x, seen ? load(s + x) : vf{});
                store(dp + x, seen ? load(dp + x) : vf{});
            }
    }
    void add_table(const Where&, const Span& span, const Extras& extras) {
        std::memset(dtable, 0, (span.rows() + P) * sizeof(float));
        for (int j = 0; j < span.rows(); ++j)
            for (int v = span.v0; v < span.v1; ++v) {
                float* p = dtable + v * W + (span.rows() - 1 - j);
                store(p, load(p) + load(dp + j * P + v * W));
            }
        for (int p = 0; p < span.rows() + P; ++p)
            drelative[std::clamp(extras.distance(span, p), -a.reach, a.reach) + a.reach] += dtable[p];
    }
    void add_bias(const Where& w, const Span& span, Extras& extras) {
        const int64_t(&bs)[4] = a.dbiass;
        int64_t n = span.rows(), ld = padded(n);
        for (int g = span.v0; g < span.v1; ++g)
            for (int64_t j = 0; j < n; j += W) {
                vf r[W];
                for (int i = 0; i < W; ++i) r[i] = load(dp + std::min(j + i, n - 1) * P + g * W);
                transpose(r);
                for (int i = 0; i < W; ++i) store(extras.rows + (g * W + i) * ld + j, r[i]);
            }
        for (int i = span.v0 * W; i < std::min(w.n, span.v1 * W); ++i) {
            const float* r = extras.rows + i * ld;
            float* to = a.dbias + w.b * bs[0] + w.h * bs[1] + (w.i0 + i) * bs[2] + span.j0 * bs[3];
            if (bs[3] == 1) {
                for (int64_t j = 0; j < n; ++j) to[j] += r[j];
            } else {
                for (int64_t j = 0; j < n; ++j) to[j * bs[3]] += r[j];
            }
        }
    }

    // dv += p dO, dk += ds q, dq += ds k. Scale: in q for floats, in ds for pairs.
    void accumulate(const Where& w, const Span& span, const float* k) {
        int i0 = span.v0 * W, n = std::min(w.n, span.v1 * W) - i0, rows = span.rows();
        int64_t e = padded(a.Dv), d = padded(a.D);
        int64_t ldk = keys.ldk, ldv = keys.ldv;
        float *dvj = keys.dv + span.j0 * ldv, *dkj = keys.dk + span.j0 * ldk;
        if constexpr (Op::width == 2) {
            pair_weights(span);
            int64_t x = i0 / 2, steps = (n + 1) / 2, pairs = (span.j1 + 1) / 2 - span.j0 / 2;
            gemm<Op, BY_ROWS, true>(pw + x, P / 2, gn + x * e, e, dvj, ldv, rows, 0, int(e / W), steps);
            gemm<Op, BY_ROWS, true>(dw + x, P / 2, qn + x * d, d, dkj, ldk, rows, 0, int(d / W), steps);
            gemm<Op, BY_COLUMNS, true>(kp + span.j0 / 2 * a.D, a.D, dj, P, dqt, P, a.D, span.v0,
                                       span.v1, pairs);
        } else {
            gemm<Op, BY_ROWS, true>(s + i0, P, gn + i0 * e, e, dvj, ldv, rows, 0, int(e / W), n);
            gemm<Op, BY_ROWS, true>(dp + i0, P, qn + i0 * d, d, dkj, ldk, rows, 0, int(d / W), n);
            gemm<Op, BY_COLUMNS, true>(k, a.ks[2], dp, P, dqt, P, a.D, span.v0, span.v1, rows);
        }
    }
    // p and ds as bf16: by rows (words of two lanes), and ds also as words of two keys.
    void pair_weights(const Span& span) {
#ifdef PAIRS
        int rows = span.rows();
        for (int v = span.v0; v < span.v1; ++v) {
            vf f = load(scale + v * W);
            for (int j = -(span.j0 & 1); j < rows; j += 2) {
                bool first = j >= 0, second = j + 1 < rows;
                const float *x = s + j * P + v * W, *y = dp + j * P + v * W;
                vhh p = halves(first ? load(x) : vf{}, second ? load(x + P) : vf{});
                vhh ds = halves(first ? load(y) * f : vf{}, second ? load(y + P) * f : vf{});
                store(dj + (j + 1) / 2 * P + v * W, interleaved(ds));
                int64_t at = j * (P / 2) + v * (W / 2);
                if (first) {
                    std::memcpy(pw + at, &p, W * 2);
                    std::memcpy(dw + at, &ds, W * 2);
                }
                if (second) {
                    std::memcpy(pw + at + P / 2, reinterpret_cast<char*>(&p) + W * 2, W * 2);
                    std::memcpy(dw + at + P / 2, reinterpret_cast<char*>(&ds) + W * 2, W * 2);
                }
            }
        }
#else
        (void)span;
#endif
    }
    // As accumulate, but a hidden key gets and adds nothing, not even 0 * NaN.
    void accumulate_carefully(const Where& w, const Span& span, const Extras& extras, const T* k) {
        for (int i = span.v0 * W; i < std::min(w.n, span.v1 * W); ++i) {
            const T* q = at3<T>(a.q, a.qs, w.b, w.h, w.i0 + i);
            const T* g = at3<T>(a.dout, a.douts, w.b, w.h, w.i0 + i);
            for (int j = 0; j < span.rows(); ++j) {
                int64_t key = span.j0 + j;
                if (key < lanes.lo[i] || key >= lanes.hi[i]) continue;
                if (extras.tile && extras.tiles[j * P + i] == -INF) continue;
                float p = s[j * P + i], ds = dp[j * P + i];
                float scaled = ds * scale[i], dx = Op::width == 2 ? scaled : ds;
                for (int64_t x = 0; x < a.Dv; ++x) keys.dv[key * keys.ldv + x] += p * to_float(g[x]);
                for (int64_t x = 0; x < a.D; ++x) {
                    keys.dk[key * keys.ldk + x] += scaled * to_float(q[x]);
                    dqt[x * P + i] += dx * to_float(k[key * a.ks[2] + x]);
                }
            }
        }
    }

    void write_queries(const Where& w) {
        const float* factor = Op::width == 2 ? one : scale;
        if (a.dscale) {  // never for pairs: there the scale is in dqt already
            for (int i = 0; i < w.n; ++i) {
                const T* q = at3<T>(a.q, a.qs, w.b, w.h, w.i0 + i);
                float x = 0.0f;
                for (int64_t d = 0; d < a.D; ++d) x += to_float(q[d]) * dqt[d * P + i];
                float* to = partial ? partial + a.B * a.H * a.Q * a.D : a.dscale;
                to[w.row(a) + i] = x;
            }
        }
        if (partial) {
            unpack_lanes(dqt, a.D, w.n, factor, partial + w.row(a) * a.D, a.D);
        } else {
            T* dq = const_cast<T*>(at3<T>(a.dq, a.dqs, w.b, w.h, w.i0));
            unpack_lanes(dqt, a.D, w.n, factor, dq, a.dqs[2]);
        }
    }
};

// How the work is cut: units that may run at the same time, and parts of the keys of each.
struct Cut {
    int64_t batches, heads, parts;  // units are batches x heads; a 1 stands for a loop inside
    explicit Cut(const Args& a) {
        bool shared_b = a.dbias && a.dbiass[0] == 0, shared_h = a.dbias && a.dbiass[1] == 0;
        batches = shared_b ? 1 : a.B;
        heads = shared_h ? 1 : a.Hk;
        parts = 1;
        int64_t units = batches * heads, chunks = (a.K + CHUNK - 1) / CHUNK;
        bool keys_shared = a.dbias && a.dbiass[3] == 0 && a.K > 1;
        if (units >= 4 * a.threads || units % a.threads == 0 || keys_shared) return;
        parts = std::min({a.threads / std::gcd(units, a.threads), chunks, int64_t(8)});
    }
};

// dq, and dscale after it, are the sums over parts, in their order.
template <class T>
static void sum_parts(const Args& a, const float* partials, int64_t parts, int64_t size) {
    int64_t rows = a.B * a.H * a.Q;
    run_tasks(a, a.B * a.H, [&](int64_t head) {
        for (int64_t i = 0; i < a.Q; ++i) {
            int64_t row = head * a.Q + i;
            T* dq = const_cast<T*>(at3<T>(a.dq, a.dqs, head / a.H, head % a.H, i));
            for (int64_t d = 0; d < a.D; ++d) {
                float x = 0.0f;
                for (int64_t p = 0; p < parts; ++p) x += partials[p * size + row * a.D + d];
                put(dq + d, x);
            }
            if (!a.dscale) continue;
            a.dscale[row] = 0.0f;
            for (int64_t p = 0; p < parts; ++p) a.dscale[row] += partials[p * size + rows * a.D + row];
        }
    });
}

template <class Op, class T>
static void backward(const Args& given) {
    Args a = given;
    if (is_tiny(a)) a.threads = 1;
    Cut cut(a);
    int64_t table = 2 * a.reach + 1, rows = a.B * a.H * a.Q, size = rows * (a.D + 1);
    std::unique_ptr<float, void (*)(void*)> partials(nullptr, std::free);
    if (cut.parts > 1) partials.reset(static_cast<float*>(std::malloc(cut.parts * size * 4)));
    std::vector<float> tables(a.drelative ? a.B * a.H * cut.parts * table : 0, 0.0f);
    run_tasks(a, cut.batches * cut.heads * cut.parts, [&](int64_t task) {
        int64_t part = task % cut.parts, unit = task / cut.parts;
        int64_t b0 = unit / cut.heads, h0 = unit % cut.heads;
        for (int64_t b = b0; b < a.B; b += cut.batches)
            for (int64_t hk = h0; hk < a.Hk; hk += cut.heads) {
                float* partial = cut.parts > 1 ? partials.get() + part * size : nullptr;
                float* first = a.drelative ? &tables[(b * a.H * cut.parts + part) * table] : nullptr;
                Share share{part, cut.parts, a.K};
                if (a.Q <= FEW)
                    FewPass<T>(a, share, partial, first).run(b, hk);
                else
                    BackwardPass<Op, T>(a, share, partial, first).run(b, hk);
            }
    });
    if (cut.parts > 1) sum_parts<T>(a, partials.get(), cut.parts, size);
    for (int64_t i = 0; i < int64_t(tables.size()); ++i) {
        int64_t h = i / table / cut.parts % a.H;
        a.drelative[h * table + i % table] += tables[i];
    }
}
