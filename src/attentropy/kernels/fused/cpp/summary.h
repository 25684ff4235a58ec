// Sums over the rows of a call for each head, which is all that a watch keeps of it. Statistics of
// the rows are there already; weights are computed again for the sampled rows, 64 keys at a time.
// attentropy/models/record/measures.py and sampled.py define the same sums in torch.
#pragma once
#include <mutex>

#include "row.h"

constexpr int64_t ALIGNED = 4;   // with fewer rows, weights by distance tell nothing
constexpr float HIDDEN = 90.0f;  // a bias hides keys whose logit is so far below the largest
constexpr double NONE = std::numeric_limits<double>::quiet_NaN();

// A sampled row: what its weights are made of, and what is summed over its keys.
struct SampledRow {
    bool counts;
    float top, lse, per_norm, visible;
    int64_t own, turn;  // its own key; how far weights move so that they stand by distance
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
static inline vf part(const float* p, int n) { return n == W ? load(p) : load_part(p, n); }

// |x| of some rows, W of them at a time.
template <class T>
static void row_norms(const T* x, int64_t stride, int64_t rows, int64_t D, float* norms) {
    for (int64_t j = 0; j < rows; j += W, x += W * stride) {
        const int n = int(std::min<int64_t>(W, rows - j));
        vf r[W] = {};
        for (int64_t d = 0; d < D; d += W)
#pragma GCC unroll 16
            for (int i = 0; i < W; ++i) {
                if (i >= n) break;
                const T* at = x + i * stride + d;
                vf y = d + W <= D ? load(at) : load_part(at, int(D - d));
                r[i] += y * y;
            }
        store(norms + j, root(sums(r)));
    }
}

// What is summed over every row that counts.
enum Read { ENTROPY, SHARE, EFFECTIVE, VARENTROPY, DENSITY, HIGHEST, LSE, COLLISION, ROOTS, NORMS, READS };

// Which rows count, all ones or 0, and what follows from the number n of their visible keys.
struct RowCounts {
    const int64_t* keys = nullptr;
    const uint8_t* chosen = nullptr;
    std::vector<int32_t> on;
    std::vector<float> per_log, per_root;  // 1 / ln n, 1 / sqrt n
    double rows, logs, visible;

    // Heads and entries that see alike share them.
    void of(const Args& a, const Summary& s, int64_t b, int64_t h) {
        const int64_t* n = s.visible + b * s.visibles[0] + h * s.visibles[1];
        const uint8_t* these = s.counted ? s.counted + b * s.counteds[0] + h * s.counteds[1] : nullptr;
        if (n == keys && these == chosen) return;
        keys = n, chosen = these, rows = logs = visible = 0;
        const int64_t size = (a.Q + W - 1) / W * W;
        on.assign(size, 0), per_log.resize(size), per_root.resize(size);
        for (int64_t i0 = s.start / W * W; i0 < a.Q; i0 += W) {
            vd k = vd{} + 2.0, one{};
            for (int64_t i = std::max(i0, s.start); i < std::min(a.Q, i0 + W); ++i) {
                if (these && !these[i * s.counteds[2]]) continue;
                on[i] = -1, one[i - i0] = 1, k[i - i0] = double(n[i * s.visibles[2]]);
            }
            const vd log_k = log(k);
            rows += sum(one), logs += sum(log_k * one), visible += sum(k * one);
            store(&per_log[i0], __builtin_convertvector(1.0 / log_k, vf));
            store(&per_root[i0], 1.0f / root(__builtin_convertvector(k, vf)));
        }
    }
};

template <class T>
struct RowSums {
    const Args& a;
    const Summary& s;
    std::vector<double> found, top, looked;  // `looked`: sampled rows that count
    std::vector<double> products;  // of the weights of pairs of heads
    std::vector<float> together, evenly;  // [H,2K] by distance: weights, and those of unit rows
    std::vector<float> line;              // a number for each row, and room for a vector
    RowCounts rows;

    RowSums(const Args& a, const Summary& s)
        : a(a), s(s), found((s.at_overlap + a.H) * a.H), top(a.H, -double(INF)), looked(a.H),
          products(a.H * (a.H + 1) / 2 + W), line(a.Q + W) {
        if (by_distance()) together.assign(a.H * turned(), 0.0f), evenly.assign(a.H * turned(), 0.0f);
    }
    bool by_distance() const { return s.position && s.samples >= ALIGNED; }
    int64_t turned() const { return 2 * a.K + W; }
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
                rows.of(a, s, b, h);
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

    // Statistics of every row that counts. Sums of floats are short.
    void every_row(int64_t b, int64_t h) {
        constexpr int64_t CHAIN = 8 * W;
        const int64_t row = (b * a.H + h) * a.Q, start = s.start / W * W;
        if (a.out) row_norms(at3<T>(a.out, a.outs, b, h, start), a.outs[2], a.Q - start, a.Dv, &line[start]);
        vd sums[READS] = {};
        vf highest = splat(-INF);
        for (int64_t from = start; from < a.Q; from += CHAIN) {
            vf some[READS] = {};
            for (int64_t i = from; i < std::min(a.Q, from + CHAIN); i += W)
                read_rows(row + i, i, int(std::min<int64_t>(W, a.Q - i)), some, highest);
            for (int x = 0; x < READS; ++x) sums[x] += wide(some[x]);
        }
        add_rows(h, sums);
        for (int l = 0; l < W; ++l)
            if (top[h] == top[h] && !(highest[l] <= top[h])) top[h] = highest[l];
    }
    void read_rows(int64_t at, int64_t i, int n, vf (&some)[READS], vf& highest) {
        const vi on = load(&rows.on[i]);
        const vf entropy = part(a.entropy + at, n), lse = part(a.lse + at, n);
        const vf best = part(a.max_logit + at, n), collision = part(a.collision + at, n);
        const vf roots = 1.0f / root(collision);
        auto tally = [&](Read x, vf value) { some[x] += on ? value : vf{}; };
        tally(ENTROPY, entropy);
        tally(SHARE, entropy * load(&rows.per_log[i]));
        tally(EFFECTIVE, exp_safe(entropy));
        tally(VARENTROPY, part(a.varentropy + at, n));
        tally(DENSITY, roots * load(&rows.per_root[i]));
        tally(HIGHEST, exp_safe(best - lse));
        tally(LSE, lse);
        tally(COLLISION, collision);
        tally(ROOTS, roots);
        tally(NORMS, load(&line[i]));
        highest = on & ~(best <= highest) & (highest == highest) ? best : highest;  // NaN stays
    }
    void add_rows(int64_t h, const vd (&sums)[READS]) {
        add(s.at_rows, h, rows.rows);
        add(s.at_log_visible, h, rows.logs);
        add(s.at_visible, h, rows.visible);
        add(s.at_entropy, h, sum(sums[ENTROPY]));
        add(s.at_normalized_entropy, h, sum(sums[SHARE]));
        add(s.at_perplexity, h, sum(sums[EFFECTIVE]));
        add(s.at_varentropy, h, sum(sums[VARENTROPY]));
        add(s.at_density, h, sum(sums[DENSITY]));
        add(s.at_top_probability, h, sum(sums[HIGHEST]));
        add(s.at_lse, h, sum(sums[LSE]));
        add(s.at_collision, h, sum(sums[COLLISION]));
        add(s.at_noise_robustness, h, sum(sums[ROOTS]) / std::sqrt(std::exp(1.0) - 1));
        add(s.at_output_norm, h, a.out || rows.rows == 0 ? sum(sums[NORMS]) : NONE);
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
        const int64_t j = first(b), count = a.Q - s.start, looked = (count + s.step - 1) / s.step;
        const int64_t i0 = s.start + (count - 1) % s.step;
        Scratch& mem = scratch();
        mem.reserve(Scratch::room(a.D + W));
        float* k = mem.take<float>(a.D + W);
        scale_query(at3<T>(a.k, a.ks, b, h / (a.H / a.Hk), j), a.D, 1.0f, k);
        row_scores(k, a.D, at3<T>(a.q, a.qs, b, h, i0), a.qs[2] * s.step, looked, line.data());
        double mass = 0;
        for (int64_t l0 = 0; l0 < looked; l0 += W) {
            alignas(64) float x[W];
            for (int l = 0; l < W; ++l) {
                const int64_t i = i0 + (l0 + l) * s.step;
                x[l] = l0 + l < looked && rows.on[i] ? logit(b, h, i, j, line[l0 + l]) : -INF;
            }
            mass += sum(wide(exp_safe(load(x))));
        }
        add(s.at_sink_mass, h, mass * double(count) / double(looked));
    }
    // The logit that a product makes, less the log of the row's sum.
    float logit(int64_t b, int64_t h, int64_t i, int64_t j, float x) const {
        if (j < at3(a.lo, a.los, b, h, i, int32_t(0))) return -INF;
        if (j >= at3(a.hi, a.his, b, h, i, int32_t(a.K))) return -INF;
        float more;
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
        row.turn = ((-row.own) % a.K + a.K) % a.K;
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
        // vectors that hold visible keys; under a causal mask of a short call, half of them
        const int from = std::min(vecs, std::max<int>(0, row.lo - int(j0)) / W);
        const int to = std::max(from, std::min(vecs, (row.hi - int(j0) + W - 1) / W));
        std::memset(p, 0, from * W * sizeof(float));
        std::memset(p + to * W, 0, (vecs - to) * W * sizeof(float));
        for (int g = from; g < to; ++g) {
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
        if (by_distance()) turn(h, j0, from, to, row, p);
    }

    // Adds weights of a row by their distance from its own key, modulo K: d and d + K are the same.
    void turn(int64_t h, int64_t j0, int from, int to, const SampledRow& row, const float* p) {
        const int64_t at = h * turned() + row.turn + j0;
        for (int g = from; g < to; ++g) {
            float *x = &together[at + g * W], *y = &evenly[at + g * W];
            const vf e = load(p + g * W);
            store(x, load(x) + e);
            store(y, load(y) + e * row.per_norm);
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

    // Inner products of the weights of all pairs of heads, W pairs at a time.
    void overlap(const float* p, int vecs) {
        const int64_t R = s.samples;
        vf r[W] = {};
        double* to = products.data();
        int pairs = 0;
        auto flush = [&] {
            alignas(64) float x[W];
            store(x, sums(r));
            for (int l = 0; l < pairs; ++l) to[l] += x[l];
            to += pairs, pairs = 0;
        };
        for (int64_t h = 0; h < a.H; ++h)
            for (int64_t o = 0; o <= h; ++o) {
                r[pairs++] = inner(p + h * R * P, p + o * R * P, vecs);
                if (pairs == W) flush();
            }
        flush();
    }
    vf inner(const float* x, const float* y, int vecs) const {
        vf even{}, odd{};
        for (int64_t r = 0; r < s.samples; ++r, x += P, y += P) {
            int g = 0;
            for (; g + 1 < vecs; g += 2) {
                even += load(x + g * W) * load(y + g * W);
                odd += load(x + g * W + W) * load(y + g * W + W);
            }
            if (vecs & 1) even += load(x + g * W) * load(y + g * W);
        }
        return even + odd;
    }

    // Sums over the sampled rows of a head, W of them at a time.
    void finish_rows(int64_t h, const SampledRow* from, double received) {
        double count = 0, spread = 0, range = 0, before = 0, distance = 0;
        for (int64_t r0 = 0; r0 < s.samples; r0 += W) {
            const int n = int(std::min<int64_t>(W, s.samples - r0));
            vf total[W] = {}, square[W] = {}, low[W] = {}, away[W] = {}, visible = splat(1.0f);
            for (int i = 0; i < n; ++i) {
                const SampledRow& row = from[r0 + i];
                if (!row.counts) continue;
                total[i] = row.total, square[i] = row.square, low[i] = row.low, away[i] = row.distance;
                visible[i] = row.visible, count += 1, before += row.before;
            }
            const vd mean = wide(sums(total)) / wide(visible);
            const vd variance = wide(sums(square)) / wide(visible) - mean * mean;
            const vf deviation = __builtin_convertvector(variance < 0 ? vd{} : variance, vf);
            const vd lowest = wide(folds(low, [](vf x, vf y) { return min(x, y); }));
            spread += sum(wide(root(deviation)));
            range += sum(mean == mean ? -lowest : vd{} + NONE);
            distance += sum(wide(sums(away)));
        }
        looked[h] += count;
        add(s.at_sampled_rows, h, count);
        add(s.at_spread, h, spread);
        add(s.at_logit_range, h, range);
        add(s.at_previous_of_sampled, h, s.position || !count ? before : NONE);
        add(s.at_distance, h, s.position || !count ? distance : NONE);
        add(s.at_received_concentration, h, count ? received / count : 0);
    }

    void finish_head(int64_t h) {
        for (int64_t o = 0; o <= h; ++o) {
            const double both = products[h * (h + 1) / 2 + o];
            add(s.at_overlap + h, o, both);
            if (o != h) add(s.at_overlap + o, h, both);
        }
        add(s.at_previous_share, h, NONE);  // known of sampled rows only
        if (by_distance())
            add(s.at_positional, h, positional(&together[h * turned()], &evenly[h * turned()]));
        else
            add(s.at_positional, h, looked[h] ? NONE : 0);
    }
    // The cosine of each sampled row's weights by distance with those of all, summed over rows.
    double positional(float* all, float* units) const {
        for (int64_t d = 0; d < a.K; ++d) all[d] += all[d + a.K], units[d] += units[d + a.K];
        vd dots{}, square{};
        for (int64_t d = 0; d < a.K; d += W) {
            const int n = int(std::min<int64_t>(W, a.K - d));
            const vd x = wide(part(all + d, n)), y = wide(part(units + d, n));
            dots += x * y, square += x * x;
        }
        const double both = sum(dots), size = sum(square);
        return size > 0 || both != both ? both / std::sqrt(size) : 0;
    }
};

template <class T>
static void sum_rows(const Args& a, const Summary& s) {
    RowSums<T>(a, s).run();
}
