// The C ABI: one block of 8-byte fields, in the order in which fused.py lists them.
#pragma once
#include <cstdint>

typedef void (*RangeBody)(int64_t begin, int64_t end, void* context);
typedef int32_t (*ParallelFor)(int64_t begin, int64_t end, int64_t grain, RangeBody, void* context);

struct Args {
    int64_t B, H, Hk, Q, K, D, Dv;
    const char *q, *k, *v;
    int64_t qs[3], ks[3], vs[3];  // strides of batch, head, token, in elements
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
    char* out;
    int64_t outs[3];
    // Rows are contiguous [B,H,Q]. `shift` is ln of the sum of e^(s - max_logit): the backward
    // pass needs ln p = (s - max_logit) - shift without the rounding of lse.
    float *entropy, *lse, *max_logit, *collision, *shift;
    int64_t* argmax;
    const char* dout;
    int64_t douts[3];
    const float *dentropy, *dlse, *dcollision;
    char *dq, *dk, *dv;
    int64_t dqs[3], dks[3], dvs[3];
    float* dscale;  // [B,H,Q], or null
    float* dbias;
    int64_t dbiass[4];  // 0 where the bias is broadcast; `dbias` comes zeroed
    float* drelative;   // [H, 2 * reach + 1], zeroed, or null
    int64_t bf16, threads;
    ParallelFor parallel_for;
};
