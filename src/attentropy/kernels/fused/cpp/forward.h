// The forward pass of one panel: scores, running maximum, weights and their sums, output.
#pragma once
#include "row.h"

constexpr int KEYS = 256;  // keys of a block, at most: scores of more leave the nearest caches

// Values of one head as words of two keys, made block by block when first needed, kept by the
// thread from one panel of the head to the next.
struct PairedValues {
    std::vector<float> words;
    std::vector<uint8_t> done;
    int64_t call = 0, head = -1;
    static constexpr int64_t BLOCK = 64;

    const float* get(const Args& a, int64_t id, int64_t b, int64_t hk, int64_t j0, int64_t j1) {
        int64_t here = b * a.Hk + hk;
        if (call != id || head != here) {
            call = id, head = here;
            words.resize((a.K + 1) / 2 * a.Dv);
            if (poisoned) std::fill(words.begin(), words.end(), NAN);
            done.assign(a.K / BLOCK + 1, 0);
        }
        const bf16* v = at3<bf16>(a.v, a.vs, b, hk, 0);
        for (int64_t x = j0 / BLOCK; x * BLOCK < j1; ++x) {
            if (!done[x])
                pair_rows(v, a.vs[2], x * BLOCK, std::min(a.K, (x + 1) * BLOCK), a.Dv, words.data(), a.Dv);
            done[x] = 1;
        }
        return words.data() + j0 / 2 * a.Dv;
    }
};

static inline PairedValues& paired_values() {
    static thread_local PairedValues v;
    return v;
}

template <class Op, class T>
struct ForwardPass {
    const Args& a;
    int64_t id;  // of the call
    float *qt, *s, *o;
    alignas(64) float m[P], r[P], t[P], u[P], mid[P], c[P], best[P], decay[P], factor[P];
    alignas(64) float scale[P];
    alignas(64) int32_t tile[P], arg[P];
    Lanes lanes;
    bool started = false;  // whether o holds anything

    static size_t room(const Args& a) {
        return Scratch::room(a.D * P) + Scratch::room(KEYS * P) + Scratch::room(a.Dv * P) +
               Extras::room(a, KEYS) + RowPass<T>::room(a);
    }
    ForwardPass(const Args& a, int64_t id) : a(a), id(id) {}

    void run(const Where& w) {
        Scratch& mem = scratch();
        mem.reserve(room(a));
        qt = mem.take<float>(a.D * P);
        s = mem.take<float>(KEYS * P);
        o = mem.take<float>(a.Dv * P);
        Extras extras(a, w, mem, KEYS);
        start(w);
        lanes.spans(KEYS, 0, int(a.K), [&](const Span& span) {
            int64_t hk = w.h / (a.H / a.Hk);
            const T* k = at3<T>(a.k, a.ks, w.b, hk, span.j0);
            scores(reinterpret_cast<const float*>(k), span);
            bool plain = !span.edge && !extras.any();
            if (!plain) finish(span, extras);
            uint64_t rose = find_argmax(span);
            vec_chunks(span.v0, span.v1, [&](auto nv, int g) {
                plain ? soften<decltype(nv)::value, false>(span, g)
                      : soften<decltype(nv)::value, true>(span, g);
            });
            put_back(span, rose);
            if (a.kept != 0) drop(w, span);
            bool first = !started && span.v0 == 0 && span.v1 * W >= w.n;
            if (!first) prepare_output(span);
            started = true;
            first ? mix<false>(w, hk, span) : mix<true>(w, hk, span);
        });
        if (!started) prepare_output({0, 0, 0, 0, false});
        write(w, mem);
    }

    void start(const Where& w) {
        lanes.init(a, w);
        for (int i = 0; i < P; ++i) {
            scale[i] = i < w.n ? at3(a.scale, a.scales, w.b, w.h, w.i0 + i, 1.0f) : 0.0f;
            m[i] = -INF, r[i] = -1.0f, t[i] = u[i] = mid[i] = c[i] = 0.0f, arg[i] = -1;
        }
        pack_queries<Op>(at3<T>(a.q, a.qs, w.b, w.h, w.i0), a.qs[2], w.n, a.D, scale, qt);
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
                int64_t ld = a.ks[2] / Op::width;
                micro<Op, BY_ROWS, R, NV>(
                    k + row * ld, ld, qt + g * W, P, a.D / Op::width, [&](vf(&acc)[R][NV]) {
#pragma GCC unroll 8
                        for (int v = 0; v < NV; ++v) {
                            vf high = splat(-INF);
#pragma GCC unroll 8
                            for (int i = 0; i < R; ++i) {
                                vf x = acc[i][v];
                                if (Op::width == 2) x = x * load(scale + (g + v) * W);
                                store(s + (row + i) * P + (g + v) * W, x);
                                high = max(high, x);
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

    // Lanes whose maximum rises, as bits. Its key is lowered so far that it weighs nothing among the
    // others: its own weight is 1, beside which theirs would lose digits.
    uint64_t find_argmax(const Span& span) {
        uint64_t rose = 0;
        for (int i = span.v0 * W; i < span.v1 * W; ++i) {
            if (!(best[i] > m[i])) continue;
            int j = tile[i];
            while (s[j * P + i] != best[i]) ++j;
            arg[i] = span.j0 + j;
            s[j * P + i] = best[i] - 2.0f * std::abs(best[i]) - 1000.0f;
            rose |= uint64_t(1) << i;
        }
        return rose;
    }
    // The weights of the keys that were lowered.
    void put_back(const Span& span, uint64_t rose) {
        for (; rose; rose &= rose - 1) {
            int i = __builtin_ctzll(rose), j = arg[i] - span.j0;
            if constexpr (Op::width == 2) {
                j += span.j0 & 1;
                put(reinterpret_cast<bf16*>(s + j / 2 * P + i) + j % 2, 1.0f);
            } else {
                s[j * P + i] = 1.0f;
            }
        }
    }

    // Sums of the lanes from x on, about the maximum of what was met and of the span; its key counts
    // from here on. Returns that maximum, 0 where there is none.
    vf raise(int x) {
        vf old = load(m + x), high = load(best + x), top = max(old, high);
        vi rose = high > old;
        vf pivot = top == -INF ? vf{} : top;
        vf rise = old == -INF ? vf{} : pivot - old;
        vf fall = old == top ? splat(1.0f) : exp_cut(old - pivot);
        vf met = fall * (1.0f + load(r + x)), more = rose ? met : load(r + x);
        vf about = load(mid + x) - rise, total = fall * (load(t + x) - rise * (1.0f + load(r + x)));
        vf near = middle(1.0f + more, total);
        vf square = fall * load(u + x) + moved(met, total, about, near);
        store(m + x, top);
        store(decay + x, fall);
        store(r + x, more);
        store(t + x, total);
        store(u + x, rose ? square + near * near : square);
        store(mid + x, near);
        store(c + x, fall * fall * load(c + x) + (rose ? splat(1.0f) : vf{}));
        return pivot;
    }

    // s becomes e^(s - m), m the running maximum, as floats or as words of an even key and the
    // next; the sums move along. MASKED: -inf may occur.
    template <int NV, bool MASKED>
    void soften(const Span& span, int g) {
        vf pivot[NV], near[NV], lb[NV] = {}, tb[NV] = {}, ub[NV] = {}, cb[NV] = {};
        auto weigh = [&](int j, int v) __attribute__((always_inline)) {
            vf z = load(s + j * P + (g + v) * W) - pivot[v], e = exp_cut(z);
            if (MASKED) z = z < LOWEST ? splat(LOWEST) : z;  // a NaN reaches t, if not e
            vf y = z - near[v], ey = e * y;
            lb[v] += e;
            tb[v] += ey;
            ub[v] += ey * y;
            cb[v] += e * e;
            return e;
        };
        for (int v = 0; v < NV; ++v) {
            pivot[v] = raise((g + v) * W);
            near[v] = load(mid + (g + v) * W);
        }
        // Sums restart every so many rows: a long chain of additions would lose digits.
        constexpr int CHAIN = 64, FIRST = 8;  // the first one finds a middle
        int rows = span.rows(), start = Op::width == 2 ? -(span.j0 & 1) : 0;
        for (int from = start, to; from < rows; from = to) {
            to = std::min(rows, from + (from == start ? FIRST : CHAIN));
            for (int v = 0; v < NV; ++v) {
                int x = (g + v) * W;
                lb[v] = tb[v] = ub[v] = cb[v] = vf{};
                if (from == start) continue;
                vf l = 1.0f + load(r + x);
                near[v] = middle(l, load(t + x));
                store(u + x, load(u + x) + moved(l, load(t + x), load(mid + x), near[v]));
                store(mid + x, near[v]);
            }
            if constexpr (Op::width == 2) {
#ifdef PAIRS
                // A word row is never above the rows it is made of, so it may overwrite them.
                for (int j = from; j < to; j += 2)
#pragma GCC unroll 8
                    for (int v = 0; v < NV; ++v) {
                        vf low = j < 0 ? vf{} : weigh(j, v);
                        vf high = j + 1 < rows ? weigh(j + 1, v) : vf{};
                        store(s + (j + 1) / 2 * P + (g + v) * W, interleaved(halves(low, high)));
                    }
#endif
            } else {
                for (int j = from; j < to; ++j)
#pragma GCC unroll 8
                    for (int v = 0; v < NV; ++v) store(s + j * P + (g + v) * W, weigh(j, v));
            }
            for (int v = 0; v < NV; ++v) {
                int x = (g + v) * W;
                store(r + x, load(r + x) + lb[v]);
                store(t + x, load(t + x) + (tb[v] + near[v] * lb[v]));
                store(u + x, load(u + x) + ub[v]);
                store(c + x, load(c + x) + cb[v]);
            }
        }
    }

    // Drops weights in place; what they are multiplied by is in the factors of the output.
    void drop(const Where& w, const Span& span) {
        int odd = span.j0 & 1;
        visit_kept(a, w, span, [&](int j, int g, const vi& kept) {
            vi bits = kept;
            if (Op::width == 2) {  // the other half of a word belongs to another key
                bits = (j + odd) % 2 ? kept | 0xffff : kept | int32_t(0xffff0000);
                j = (j + odd) / 2;
            }
            float* p = s + j * P + g * W;
            store(p, as_float(as_int(load(p)) & bits));
        });
    }

    // o = (ADD: +=) e V.
    template <bool ADD>
    void mix(const Where& w, int64_t hk, const Span& span) {
        if constexpr (Op::width == 2) {
            const float* v = paired_values().get(a, id, w.b, hk, span.j0, span.j1);
            int pairs = (span.j1 + 1) / 2 - span.j0 / 2;
            gemm<Op, BY_COLUMNS, ADD>(v, a.Dv, s, P, o, P, a.Dv, span.v0, span.v1, pairs);
        } else {
            const float* v = at3<float>(a.v, a.vs, w.b, hk, span.j0);
            gemm<Op, BY_COLUMNS, ADD>(v, a.vs[2], s, P, o, P, a.Dv, span.v0, span.v1, span.rows());
        }
    }

    // Output so far, about the new maximum; zeros before the first span.
    void prepare_output(const Span& span) {
        if (!started) std::memset(o, 0, a.Dv * P * sizeof(float));
        for (int g = span.v0; g < span.v1; ++g) {
            vf f = load(decay + g * W);
            if (!any(f != 1.0f)) continue;
            for (int64_t d = 0; d < a.Dv; ++d) store(o + d * P + g * W, load(o + d * P + g * W) * f);
        }
    }

    void write(const Where& w, Scratch& mem) {
        alignas(64) float taint[P];
        for (int g = 0; g * W < w.n; ++g) {
            vf x = load(t + g * W) + load(r + g * W) + load(c + g * W);
            x = x * 0.0f;
            for (int64_t d = 0; d < a.Dv; ++d) x += load(o + d * P + g * W) * 0.0f;
            store(taint + g * W, x);
        }
        for (int i = 0; i < w.n; i += W) {
            Sums sums{load(m + i), load(r + i), load(t + i), load(u + i), load(mid + i), load(c + i)};
            vf f = write_rows(a, w.row(a) + i, std::min(W, w.n - i), sums, load(arg + i));
            store(factor + i, a.kept != 0 ? f * float(a.kept) : f);
        }
        T* out = const_cast<T*>(at3<T>(a.out, a.outs, w.b, w.h, w.i0));
        unpack_lanes(o, a.Dv, w.n, factor, out, a.outs[2]);
        RowPass<T> rows(a, mem);
        for (int i = 0; i < w.n; ++i)
            if (taint[i] != 0.0f || m[i] == -INF) rows.template run<Op, true>({w.b, w.h, w.i0 + i, 1});
    }
};

// At most this many queries are taken one by one: a panel would leave its lanes idle.
constexpr int64_t FEW = 4;

// Waking the other threads costs some microseconds, as much as this many multiply-adds.
constexpr int64_t TINY = 1 << 19;
static inline bool is_tiny(const Args& a) {
    return a.B * a.H * a.Q * a.K * (a.D + a.Dv) < TINY;
}

template <class Op, class T>
static void forward(const Args& given) {
    Args a = given;
    if (is_tiny(a)) a.threads = 1;
    if (a.Q <= FEW) {
        run_tasks(a, a.B * a.H * a.Q, [&](int64_t task) {
            Scratch& mem = scratch();
            mem.reserve(RowPass<T>::room(a));
            RowPass<T> rows(a, mem);
            rows.template run<Op, false>({task / a.Q / a.H, task / a.Q % a.H, task % a.Q, 1});
        });
        return;
    }
    static std::atomic<int64_t> calls{0};
    int64_t panels = (a.Q + P - 1) / P, id = ++calls;
    run_tasks(a, a.B * a.H * panels, [&](int64_t task) {
        // Late panels first: under a causal mask they are the long ones.
        int64_t head = task / panels, i0 = (panels - 1 - task % panels) * P;
        ForwardPass<Op, T> pass(a, id);
        pass.run({head / a.H, head % a.H, i0, int(std::min<int64_t>(P, a.Q - i0))});
    });
}
