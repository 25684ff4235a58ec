// The C ABI: one block of 8-byte fields. This is the only description of its layout: block.py reads
// the names below and fills the fields by name, and a library tells by a hash of this struct which
// one it was compiled with. An array belongs to the pointer before it: strides in elements, of
// batch, head and token, or of the four dimensions of a table of pairs; 0 where it is broadcast.
#pragma once
#include <cstdint>

typedef void (*RangeBody)(int64_t begin, int64_t end, void* context);
typedef int32_t (*ParallelFor)(int64_t begin, int64_t end, int64_t grain, RangeBody, void* context);

struct Args {
    int64_t B, H, Hk, Q, K, D, Dv;
    const char* q;
    int64_t qs[3];
    const char* k;
    int64_t ks[3];
    const char* v;
    int64_t vs[3];
    const float* scale;
    int64_t scales[3];
    const int32_t* lo;
    int64_t los[3];
    const int32_t* hi;
    int64_t his[3];
    const uint8_t* mask;
    int64_t masks[4];
    const float* bias;
    int64_t biass[4];
    const float* relative;
    int64_t relatives, reach;  // stride of heads; the table holds 2 * reach + 1 distances
    const float* slopes;
    double softcap;  // 0: none
    // Dropout: weights whose word is below `least` become 0, others are multiplied by `kept`.
    double kept;  // 0: no dropout
    int64_t least, seed;
    char* out;
    int64_t outs[3];
    // Rows are contiguous [B,H,Q]. `log_l` is ln of the sum of e^(s - max_logit): the backward
    // pass needs ln p = (s - max_logit) - log_l without the rounding of lse.
    float *entropy, *lse, *max_logit, *collision, *varentropy, *log_l;
    int64_t* argmax;
    const char* dout;
    int64_t douts[3];
    const float *dentropy, *dlse, *dcollision, *dvarentropy;
    char* dq;
    int64_t dqs[3];
    char* dk;
    int64_t dks[3];
    char* dv;
    int64_t dvs[3];
    float* dscale;  // [B,H,Q], or null
    float* dbias;   // comes zeroed
    int64_t dbiass[4];
    float* drelative;  // [H, 2 * reach + 1], zeroed, or null
    int64_t bf16, threads;
    ParallelFor parallel_for;
};

// What a watch sums over the rows of a call, after its forward pass; see summary.h.
struct Summary {
    const int64_t* visible;  // visible keys of each row
    int64_t visibles[3];
    const uint8_t* counted;  // rows that count; null: all from `start` on
    int64_t counteds[3];
    int64_t start;
    const int64_t* sampled;  // queries whose weights are looked at one by one
    int64_t samples;
    const int64_t* position;  // of each query among the keys; null: none
    const int64_t* first;     // the first key that anyone sees; null: key 0
    int64_t firsts[1];        // stride of batch entries
    int64_t step;             // the first key is looked at in one row in so many
    double* sums;             // [N + H,H], added to; a negative place is not written
    double* top;              // [H], the largest logit so far
    int64_t at_rows, at_log_visible, at_visible, at_entropy, at_normalized_entropy, at_perplexity;
    int64_t at_varentropy, at_density, at_top_probability, at_output_norm, at_noise_robustness;
    int64_t at_lse, at_collision, at_sink_mass, at_previous_share, at_sampled_rows;
    int64_t at_previous_of_sampled, at_distance, at_spread, at_received_concentration;
    int64_t at_logit_range, at_positional, at_overlap;
};

// What differs between calls of one plan, which is struct Args without these. Rows are [8,B,H,Q]:
// argmax takes the first two, then come entropy, lse, max_logit, collision, varentropy, log_l.
struct Places {
    int64_t threads;
    ParallelFor parallel_for;
    const char *q, *k, *v;
    char* out;
    float* rows;             // null: they are summed, and not kept
    const Summary* summary;  // what is summed over the rows; null: nothing
    double *sums, *top;      // where, in place of those of the summary
    const char* dout;        // the backward pass only, like the fields below
    char *dq, *dk, *dv;
};
