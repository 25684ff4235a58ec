// Sums over the rows of a call for each head, which is all that a watch keeps of it. Statistics of
// the rows are there already; weights are computed again for the sampled rows, 64 keys at a time.
// attentropy/models/record/measures.py and sampled.py define the same sums in torch.
#pragma once
#include <mutex>

#include "panel.h"

constexpr int64_t ALIGNED = 4;   // with fewer rows, weights by distance tell nothing
constexpr float HIDDEN = 90.0f;  // a bias hides keys whose logit is so far below the largest
constexpr double NONE = std::numeric_limits<double>::quiet_NaN();

// A sampled row: what its weights are made of, and what is summed over its keys.
struct SampledRow {
    bool counts;
    float top, lse, per_norm, visible;
    int64_t own;
    int32_t lo, hi;
    vf total{}, square{}, low{}, distance{};
    float before = 0.0f;
};

static inline vd wide(vf x) { return __builtin_convertvector(x, vd); }
static inline double sum(vd x) {
    double s = 0;
    for (int i = 0; i < W; ++i) s += x[i];
    return s;
}
// Sums in pairs, which takes a few steps; those of `sum` wait for one another.
static inline float folded(vf x) {
    alignas(64) float s[W];
    store(s, x);
#pragma GCC unroll 4
    for (int half = W / 2; half; half /= 2)
        for (int i = 0; i < half; ++i) s[i] += s[i + half];
    return s[0];
}
static inline float least(vf x) {
    float s = x[0];
    for (int i = 1; i < W; ++i) s = x[i] < s ? x[i] : s;
    return s;
}
static inline vf part(const float* p, int n) { return n == W ? load(p) : load_part(p, n); }

template <class T>
static inline double dot(const T* x, const T* y, int64_t n) {
    vf s{};
    int64_t d = 0;
    for (; d + W <= n; d += W) s += load(x + d) * load(y + d);
    double rest = folded(s);
    for (; d < n; ++d) rest += double(to_float(x[d])) * to_float(y[d]);
    return rest;
}

// e^x, as accurate as float.
static inline vd power(vd x) { return wide(exp_safe(__builtin_convertvector(x, vf))); }

template <class T>
struct RowSums {
    const Args& a;
    const Summary& s;
    std::vector<double> found, top, looked;  // `looked`: sampled rows that count
    std::vector<float> together, evenly;  // [H,K] by distance: weights, and those of unit rows

    RowSums(const Args& a, const Summary& s)
        : a(a), s(s), found((s.at_overlap + a.H) * a.H), top(a.H, -double(INF)), looked(a.H) {
        if (by_distance()) together.assign(a.H * a.K, 0.0f), evenly.assign(a.H * a.K, 0.0f);
    }
    bool by_distance() const { return s.position && s.samples >= ALIGNED; }
    void add(int64_t place, int64_t h, double x) {
        if (place >= 0) found[place * a.H + h] += x;
    }
    bool counts(int64_t b, int64_t h, int64_t i) const {
        return i >= s.start && at3(s.counted, s.counteds, b, h, i, uint8_t(1));
    }
    int64_t first(int64_t b) const {
        return s.first ? std::min(s.first[b * s.firsts[0]], a.K - 1) : 0;
    }

    void run() {
        for (int64_t b = 0; b < a.B; ++b) {
            for (int64_t h = 0; h < a.H; ++h) {
                every_row(b, h);
                first_key(b, h);
            }
            if (s.samples) sampled(b);
        }
        for (int64_t h = 0; h < a.H; ++h) finish_head(h);
        static std::mutex lock;
        std::lock_guard<std::mutex> alone(lock);
        for (size_t i = 0; i < found.size(); ++i) s.sums[i] += found[i];
        for (int64_t h = 0; h < a.H; ++h)
            if (!(s.top[h] >= top[h]) && s.top[h] == s.top[h]) s.top[h] = top[h];
    }

    // Statistics of every row that counts.
    void every_row(int64_t b, int64_t h) {
        const int64_t row = (b * a.H + h) * a.Q;
        vd n{}, logs{}, visible{}, H{}, share{}, effective{}, V{}, dense{}, high{}, lse{}, c{},
            roots{}, norms{};
        for (int64_t i0 = s.start; i0 < a.Q; i0 += W) {
            const int64_t at = row + i0, count = std::min<int64_t>(W, a.Q - i0);
            alignas(64) int64_t counting[W] = {};
            alignas(64) double keys[W], norm[W] = {};
            std::fill(keys, keys + W, 2.0);
            for (int l = 0; l < count; ++l) {
                if (!counts(b, h, i0 + l)) continue;
                counting[l] = -1;
                keys[l] = double(at3(s.visible, s.visibles, b, h, i0 + l, int64_t(2)));
                const T* o = a.out ? at3<T>(a.out, a.outs, b, h, i0 + l) : nullptr;
                if (o) norm[l] = std::sqrt(dot(o, o, a.Dv));
            }
            vl on;
            vd k, norm_of;
            std::memcpy(&on, counting, sizeof on), std::memcpy(&k, keys, sizeof k);
            std::memcpy(&norm_of, norm, sizeof norm_of);
            vf entropy = part(a.entropy + at, count), logsum = part(a.lse + at, count);
            vf best = part(a.max_logit + at, count);
            vd collision = wide(part(a.collision + at, count)), log_k = log(k);
            vd log_c = log(collision) + collision * 0.0;  // NaN stays NaN
            auto tally = [&](vd& sum, vd x) { sum += on ? x : vd{}; };
            tally(n, vd{} + 1.0);
            tally(logs, log_k);
            tally(visible, k);
            tally(H, wide(entropy));
            tally(share, wide(entropy) / log_k);
            tally(effective, wide(exp_safe(entropy)));
            tally(V, wide(part(a.varentropy + at, count)));
            tally(dense, power(-0.5 * (log_c + log_k)));
            tally(high, wide(exp_safe(best - logsum)));
            tally(lse, wide(logsum));
            tally(c, collision);
            tally(roots, power(-0.5 * log_c));
            tally(norms, norm_of);
            for (int l = 0; l < count; ++l)
                if (on[l] && top[h] == top[h] && !(best[l] <= top[h])) top[h] = best[l];
        }
        const double rows = sum(n);
        add(s.at_rows, h, rows);
        add(s.at_log_visible, h, sum(logs));
        add(s.at_visible, h, sum(visible));
        add(s.at_entropy, h, sum(H));
        add(s.at_normalized_entropy, h, sum(share));
        add(s.at_perplexity, h, sum(effective));
        add(s.at_varentropy, h, sum(V));
        add(s.at_density, h, sum(dense));
        add(s.at_top_probability, h, sum(high));
        add(s.at_lse, h, sum(lse));
        add(s.at_collision, h, sum(c));
        add(s.at_noise_robustness, h, sum(roots) / std::sqrt(std::exp(1.0) - 1));
        add(s.at_output_norm, h, a.out || rows == 0 ? sum(norms) : NONE);
    }

    // Bias of some keys of a row, -inf where a table hides them; returns whether there is any.
    bool extra(int64_t b, int64_t h, int64_t i, int64_t j0, int n, float* x) const {
        if (!a.bias && !a.mask) return false;
        const int64_t(&bs)[4] = a.biass, (&ms)[4] = a.masks;
        const float* bias = a.bias + b * bs[0] + h * bs[1] + i * bs[2] + j0 * bs[3];
        const uint8_t* mask = a.mask + b * ms[0] + h * ms[1] + i * ms[2] + j0 * ms[3];
        for (int j = 0; j < n; ++j) x[j] = a.bias ? bias[j * bs[3]] : 0.0f;
        if (a.mask)
            for (int j = 0; j < n; ++j) x[j] = mask[j * ms[3]] ? x[j] : -INF;
        return true;
    }

    // The weight of the first key, in one row of `step`, which stands for the others.
    void first_key(int64_t b, int64_t h) {
        const int64_t j = first(b), rows = a.Q - s.start, looked = (rows + s.step - 1) / s.step;
        const T* k = at3<T>(a.k, a.ks, b, h / (a.H / a.Hk), j);
        alignas(64) float x[W];
        double mass = 0;
        for (int64_t l0 = 0; l0 < looked; l0 += W) {
            for (int l = 0; l < W; ++l) {
                int64_t i = s.start + (rows - 1) % s.step + (l0 + l) * s.step;
                x[l] = l0 + l < looked && counts(b, h, i) ? logit(b, h, i, j, k) : -INF;
            }
            mass += sum(exp_safe(load(x)));
        }
        add(s.at_sink_mass, h, mass * double(rows) / double(looked));
    }
    // The logit of one key less the log of the row's sum.
    float logit(int64_t b, int64_t h, int64_t i, int64_t j, const T* k) const {
        if (j < at3(a.lo, a.los, b, h, i, int32_t(0))) return -INF;
        if (j >= at3(a.hi, a.his, b, h, i, int32_t(a.K))) return -INF;
        float x = float(dot(at3<T>(a.q, a.qs, b, h, i), k, a.D)), more;
        x *= at3(a.scale, a.scales, b, h, i, 1.0f);
        if (a.softcap != 0) x = float(a.softcap * std::tanh(x / a.softcap));
        if (extra(b, h, i, j, 1, &more)) x += more;
        return x - a.lse[(b * a.H + h) * a.Q + i];
    }

    // Weights of the sampled rows of all heads of an entry, a block of keys after the other.
    void sampled(int64_t b) {
        const int64_t R = s.samples, group = a.H / a.Hk;
        Scratch& mem = scratch();
        mem.reserve(Scratch::room(a.H * R * a.D) + Scratch::room(a.D * P) + Scratch::room(a.H * R * P));
        float *q = mem.take<float>(a.H * R * a.D), *kt = mem.take<float>(a.D * P);
        float *p = mem.take<float>(a.H * R * P), ones[P];
        std::fill(ones, ones + P, 1.0f);
        std::vector<SampledRow> rows(a.H * R);
        std::vector<double> received(a.H, 0.0);
        for (int64_t h = 0; h < a.H; ++h)
            for (int64_t r = 0; r < R; ++r) {
                rows[h * R + r] = start_row(b, h, s.sampled[r]);
                const T* x = at3<T>(a.q, a.qs, b, h, s.sampled[r]);
                float f = at3(a.scale, a.scales, b, h, s.sampled[r], 1.0f);
                for (int64_t d = 0; d < a.D; ++d) q[(h * R + r) * a.D + d] = to_float(x[d]) * f;
            }
        for (int64_t j0 = 0; j0 < a.K; j0 += P) {
            const int n = int(std::min<int64_t>(P, a.K - j0)), vecs = (n + W - 1) / W;
            for (int64_t h = 0; h < a.H; ++h) {
                if (h % group == 0)
                    pack_lanes(at3<T>(a.k, a.ks, b, h / group, j0), a.ks[2], n, a.D, ones, kt);
                float* block = p + h * R * P;
                gemm<F32, BY_ROWS, false>(q + h * R * a.D, a.D, kt, P, block, P, R, 0, vecs, a.D);
                for (int64_t r = 0; r < R; ++r)
                    weigh(b, h, s.sampled[r], j0, vecs, rows[h * R + r], block + r * P);
                received[h] += block_received(block, vecs);
            }
            overlap(p, vecs);
        }
        for (int64_t h = 0; h < a.H; ++h) finish_rows(h, &rows[h * R], received[h]);
    }

    SampledRow start_row(int64_t b, int64_t h, int64_t i) const {
        const int64_t at = (b * a.H + h) * a.Q + i;
        SampledRow row{};
        row.counts = counts(b, h, i);
        row.top = a.max_logit[at], row.lse = a.lse[at];
        row.per_norm = 1 / std::sqrt(a.collision[at]);
        row.visible = float(at3(s.visible, s.visibles, b, h, i, int64_t(1)));
        row.own = s.position ? s.position[i] : 0;
        row.lo = std::max(0, at3(a.lo, a.los, b, h, i, int32_t(0)));
        row.hi = std::min(int32_t(a.K), at3(a.hi, a.his, b, h, i, int32_t(a.K)));
        return row;
    }

    // Products become weights, 0 where a key is hidden, and their sums move along.
    void weigh(int64_t b, int64_t h, int64_t i, int64_t j0, int vecs, SampledRow& row, float* p) {
        const int n = int(std::min<int64_t>(P, a.K - j0));
        if (!row.counts || j0 >= row.hi || j0 + n <= row.lo) {
            std::memset(p, 0, vecs * W * sizeof(float));
            return;
        }
        alignas(64) float more[P] = {};
        const bool extras = extra(b, h, i, j0, n, more);
        alignas(64) static constexpr int32_t STEPS[16] = {0, 1, 2,  3,  4,  5,  6,  7,
                                                          8, 9, 10, 11, 12, 13, 14, 15};
        const vf own = splat(float(row.own - j0)), shift = splat(row.top - row.lse);
        for (int g = 0; g < vecs; ++g) {
            vi step = load(STEPS) + g * W, key = step + int32_t(j0);
            vf x = load(p + g * W);
            if (a.softcap != 0) x = tanh(x / float(a.softcap)) * float(a.softcap);
            vi seen = (key >= row.lo) & (key < row.hi);
            if (extras) x += load(more + g * W), seen &= x != -INF;
            if (a.bias) seen &= ~((x <= row.top - HIDDEN) & (x < row.top));
            vf z = x - row.top, e = exp_safe(z + shift);
            e = seen ? e : vf{};
            z = seen & (z != -INF) ? z : vf{};
            store(p + g * W, e);
            vf away = own - __builtin_convertvector(step, vf);
            row.total += z;
            row.square += z * z;
            row.low = z < row.low ? z : row.low;
            row.distance += e * (away < 0 ? -away : away);
        }
        const int64_t before = row.own - 1 - j0;
        if (s.position && before >= 0 && before < n) row.before = p[before];
        if (by_distance()) turn(h, j0, n, row, p);
    }

    // Adds weights of a row by their distance from its own key, modulo K.
    void turn(int64_t h, int64_t j0, int n, const SampledRow& row, const float* p) {
        int64_t at = ((j0 - row.own) % a.K + a.K) % a.K;
        float *sums = together.data() + h * a.K, *units = evenly.data() + h * a.K;
        const float f = row.per_norm;
        for (int j = 0; j < n; at = 0) {
            const int m = int(std::min<int64_t>(n - j, a.K - at));
            float *__restrict x = sums + at, *__restrict y = units + at;
            for (int i = 0; i < m; ++i) x[i] += p[j + i], y[i] += p[j + i] * f;
            j += m;
        }
    }

    // sum_j r_j^2, with r_j what the keys of a block receive from these rows.
    double block_received(const float* p, int vecs) const {
        vf square{};
        for (int g = 0; g < vecs; ++g) {
            vf total{};
            for (int64_t r = 0; r < s.samples; ++r) total += load(p + r * P + g * W);
            square += total * total;
        }
        return sum(square);
    }

    // Inner products of the weights of all pairs of heads.
    void overlap(const float* p, int vecs) {
        const int64_t R = s.samples;
        for (int64_t h = 0; h < a.H; ++h)
            for (int64_t o = 0; o <= h; ++o) {
                const float *x = p + h * R * P, *y = p + o * R * P;
                vf even{}, odd{};
                for (int64_t r = 0; r < R; ++r) {
                    int64_t at = r * P;
                    for (int g = 0; g + 1 < vecs; g += 2, at += 2 * W) {
                        even += load(x + at) * load(y + at);
                        odd += load(x + at + W) * load(y + at + W);
                    }
                    if (vecs & 1) even += load(x + at) * load(y + at);
                }
                const double both = sum(wide(even) + wide(odd));
                add(s.at_overlap + h, o, both);
                if (o != h) add(s.at_overlap + o, h, both);
            }
    }

    void finish_rows(int64_t h, const SampledRow* rows, double received) {
        double count = 0;
        for (int64_t r = 0; r < s.samples; ++r) {
            const SampledRow& row = rows[r];
            if (!row.counts) continue;
            const double mean = sum(row.total) / row.visible, square = sum(row.square) / row.visible;
            const double variance = square - mean * mean;
            count += 1;
            add(s.at_spread, h, variance < 0 ? 0 : std::sqrt(variance));
            add(s.at_logit_range, h, mean == mean ? -least(row.low) : NONE);
            add(s.at_previous_of_sampled, h, s.position ? row.before : NONE);
            add(s.at_distance, h, s.position ? sum(row.distance) : NONE);
        }
        looked[h] += count;
        add(s.at_sampled_rows, h, count);
        add(s.at_received_concentration, h, count ? received / count : 0);
    }

    // The cosine of each sampled row's weights by distance with those of all, summed over rows.
    void finish_head(int64_t h) {
        add(s.at_previous_share, h, NONE);  // known of sampled rows only
        if (!by_distance()) return add(s.at_positional, h, looked[h] ? NONE : 0);
        double dots = 0, square = 0;
        for (int64_t d = h * a.K; d < (h + 1) * a.K; ++d) {
            dots += double(evenly[d]) * together[d];
            square += double(together[d]) * together[d];
        }
        add(s.at_positional, h, square > 0 || dots != dots ? dots / std::sqrt(square) : 0);
    }
};

template <class T>
static void sum_rows(const Args& a, const Summary& s) {
    RowSums<T>(a, s).run();
}
