// Device functions that are plain arithmetic: cached loads and stores, fast mathematics, bit tricks, min and max.
#ifndef CUDA_ON_CPU_DEVICE_MATH_H
#define CUDA_ON_CPU_DEVICE_MATH_H

#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <type_traits>

// ---- loads and stores with a cache hint
#define CUDA_ON_CPU_LOAD(name)                                                                                         \
    template <typename Value> inline Value name(const Value *address) {                                                \
        return *address;                                                                                               \
    }
#define CUDA_ON_CPU_STORE(name)                                                                                        \
    template <typename Value> inline void name(Value *address, Value value) {                                          \
        *address = value;                                                                                              \
    }
CUDA_ON_CPU_LOAD(__ldg)
CUDA_ON_CPU_LOAD(__ldcs)
CUDA_ON_CPU_LOAD(__ldcg)
CUDA_ON_CPU_LOAD(__ldca)
CUDA_ON_CPU_LOAD(__ldlu)
CUDA_ON_CPU_LOAD(__ldcv)
CUDA_ON_CPU_STORE(__stcs)
CUDA_ON_CPU_STORE(__stcg)
CUDA_ON_CPU_STORE(__stwb)
CUDA_ON_CPU_STORE(__stwt)
#undef CUDA_ON_CPU_LOAD
#undef CUDA_ON_CPU_STORE

// ---- float and double functions that only CUDA has
inline float rsqrtf(float x) {
    return 1.0f / sqrtf(x);
}
inline double rsqrt(double x) {
    return 1.0 / sqrt(x);
}
inline void sincospif(float x, float *sine, float *cosine) {
    *sine = sinf(3.14159265f * x), *cosine = cosf(3.14159265f * x);
}
inline float sinpif(float x) {
    return sinf(3.14159265f * x);
}
inline float cospif(float x) {
    return cosf(3.14159265f * x);
}
inline float normcdff(float x) {
    return 0.5f * erfcf(-x * 0.70710678f);
}
inline float __expf(float x) {
    return expf(x);
}
inline float __exp10f(float x) {
    return powf(10.0f, x);
}
inline float __logf(float x) {
    return logf(x);
}
inline float __log2f(float x) {
    return log2f(x);
}
inline float __log10f(float x) {
    return log10f(x);
}
inline float __powf(float x, float y) {
    return powf(x, y);
}
inline float __sinf(float x) {
    return sinf(x);
}
inline float __cosf(float x) {
    return cosf(x);
}
inline float __tanf(float x) {
    return tanf(x);
}
inline void __sincosf(float x, float *sine, float *cosine) {
    *sine = sinf(x), *cosine = cosf(x);
}
inline float __fdividef(float a, float b) {
    return a / b;
}
inline float __frcp_rn(float a) {
    return 1.0f / a;
}
inline float __fsqrt_rn(float a) {
    return sqrtf(a);
}
inline float __frsqrt_rn(float a) {
    return 1.0f / sqrtf(a);
}
inline float __fmaf_rn(float a, float b, float c) {
    return fmaf(a, b, c);
}
inline float __fmul_rn(float a, float b) {
    return a * b;
}
inline float __fadd_rn(float a, float b) {
    return a + b;
}
inline float __fsub_rn(float a, float b) {
    return a - b;
}
inline float __fdiv_rn(float a, float b) {
    return a / b;
}
inline float __saturatef(float x) {
    return x < 0 ? 0 : x > 1 ? 1 : x;
}

// ---- the same bits as another type
namespace cuda_on_cpu {
template <typename To, typename From> inline To same_bits(From from) {
    static_assert(sizeof(To) == sizeof(From), "types of one size");
    To to;
    memcpy(&to, &from, sizeof to);
    return to;
}
} // namespace cuda_on_cpu
inline unsigned __float_as_uint(float x) {
    return cuda_on_cpu::same_bits<unsigned>(x);
}
inline int __float_as_int(float x) {
    return cuda_on_cpu::same_bits<int>(x);
}
inline float __uint_as_float(unsigned x) {
    return cuda_on_cpu::same_bits<float>(x);
}
inline float __int_as_float(int x) {
    return cuda_on_cpu::same_bits<float>(x);
}
inline long long __double_as_longlong(double x) {
    return cuda_on_cpu::same_bits<long long>(x);
}
inline double __longlong_as_double(long long x) {
    return cuda_on_cpu::same_bits<double>(x);
}

// ---- conversions and integers
inline int __float2int_rn(float x) {
    return (int)rintf(x);
}
inline int __float2int_rd(float x) {
    return (int)floorf(x);
}
inline int __float2int_ru(float x) {
    return (int)ceilf(x);
}
inline int __float2int_rz(float x) {
    return (int)x;
}
inline float __int2float_rn(int x) {
    return (float)x;
}
inline float __uint2float_rn(unsigned x) {
    return (float)x;
}
inline int __popc(unsigned x) {
    return __builtin_popcount(x);
}
inline int __popcll(unsigned long long x) {
    return __builtin_popcountll(x);
}
inline int __clz(int x) {
    return x ? __builtin_clz((unsigned)x) : 32;
}
inline int __clzll(long long x) {
    return x ? __builtin_clzll((unsigned long long)x) : 64;
}
inline int __ffs(int x) {
    return __builtin_ffs(x);
}
inline int __ffsll(long long x) {
    return __builtin_ffsll(x);
}
inline unsigned __brev(unsigned x) {
    unsigned reversed = 0;
    for (int bit = 0; bit < 32; bit++) reversed |= (x >> bit & 1u) << (31 - bit);
    return reversed;
}
inline int __mulhi(int a, int b) {
    return (int)(((int64_t)a * b) >> 32);
}
inline unsigned __umulhi(unsigned a, unsigned b) {
    return (unsigned)(((uint64_t)a * b) >> 32);
}
inline unsigned long long __umul64hi(unsigned long long a, unsigned long long b) {
    return (unsigned long long)(((unsigned __int128)a * b) >> 64);
}
inline unsigned __funnelshift_l(unsigned low, unsigned high, unsigned shift) {
    return (unsigned)(((((uint64_t)high << 32) | low) << (shift & 31)) >> 32);
}
inline unsigned __funnelshift_r(unsigned low, unsigned high, unsigned shift) {
    return (unsigned)((((uint64_t)high << 32) | low) >> (shift & 31));
}
inline long long clock64() {
    return (long long)__builtin_ia32_rdtsc();
}
inline void __nanosleep(unsigned) {}
[[noreturn]] inline void __trap() {
    abort();
}

// ---- CUDA's min and max at global scope take mixed types
template <typename A, typename B> inline typename std::common_type<A, B>::type max(A a, B b) {
    typedef typename std::common_type<A, B>::type Common;
    return (Common)a < (Common)b ? (Common)b : (Common)a;
}
template <typename A, typename B> inline typename std::common_type<A, B>::type min(A a, B b) {
    typedef typename std::common_type<A, B>::type Common;
    return (Common)b < (Common)a ? (Common)b : (Common)a;
}

#endif
