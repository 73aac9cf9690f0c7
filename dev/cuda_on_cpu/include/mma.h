// nvcuda::wmma on the CPU: the same tiles, accumulated in float. Which element of a tile a lane holds is unspecified by
// CUDA; here element e lies in slot e / 32 of lane e % 32, which is not what any GPU does, so code that depends on the
// layout fails here.
#ifndef CUDA_ON_CPU_MMA_H
#define CUDA_ON_CPU_MMA_H

#include "cuda_on_cpu.h"

namespace nvcuda {
namespace wmma {

struct matrix_a;
struct matrix_b;
struct accumulator;
struct row_major;
struct col_major;
enum layout_t { mem_row_major, mem_col_major };
namespace precision {
struct tf32;
}

// ---- sizes and types
template <typename Use, int M, int N, int K> struct TileShape { static constexpr int rows = M, columns = N; };
template <int M, int N, int K> struct TileShape<matrix_a, M, N, K> { static constexpr int rows = M, columns = K; };
template <int M, int N, int K> struct TileShape<matrix_b, M, N, K> { static constexpr int rows = K, columns = N; };
template <typename Number> struct Stored { typedef Number type; };
template <> struct Stored<precision::tf32> { typedef float type; };

// The shapes and types that tensor cores have.
template <typename Number, int M, int N, int K> constexpr bool shape_exists() {
    if (std::is_same<Number, precision::tf32>::value) return M == 16 && N == 16 && K == 8;
    return K == 16 && ((M == 16 && N == 16) || (M == 32 && N == 8) || (M == 8 && N == 32));
}

template <typename Use, int M, int N, int K, typename Number, typename Layout = void> struct fragment {
    static constexpr bool is_accumulator = std::is_same<Use, accumulator>::value;
    static_assert(is_accumulator || shape_exists<Number, M, N, K>(), "no tensor core has this shape");
    static constexpr int rows = TileShape<Use, M, N, K>::rows, columns = TileShape<Use, M, N, K>::columns;
    static constexpr int num_elements = rows * columns / 32, num_storage_elements = num_elements;
    typedef typename Stored<Number>::type element_type;
    element_type x[num_elements];
};

inline float __float_to_tf32(float value) {
    uint32_t bits = cuda_on_cpu::same_bits<uint32_t>(value);
    if ((bits & 0x7f800000u) == 0x7f800000u) return value;
    return cuda_on_cpu::same_bits<float>((bits + 0x1000) & ~0x1fffu);
}

template <typename Fragment, typename Value> inline void fill_fragment(Fragment &tile, Value value) {
    for (int i = 0; i < Fragment::num_elements; i++) tile.x[i] = (typename Fragment::element_type)value;
}

} // namespace wmma
} // namespace nvcuda

namespace cuda_on_cpu {

// Which number of a tile is x[i] of the calling lane. CUDA does not say; here it is not what a kernel would guess, so
// that one that relies on a guess, or on lanes finding their own numbers again, is caught.
inline int element_of_tile(int i) {
    return i * 32 + 31 - lane();
}

// Tiles are read and written by whole warps.
inline void whole_warp(Place place) {
    warp_operation(WarpOperation::ballot, 0xffffffffu, 1, 0, place);
}
template <typename Fragment>
inline void load_tile(Fragment &tile, const typename Fragment::element_type *start, unsigned leading, bool by_rows,
                      Place place) {
    check_tile(start, leading, sizeof *start, place);
    whole_warp(place);
    for (int i = 0; i < Fragment::num_elements; i++) {
        int element = element_of_tile(i), row = element / Fragment::columns, column = element % Fragment::columns;
        tile.x[i] = by_rows ? start[(size_t)row * leading + column] : start[(size_t)column * leading + row];
    }
}
template <typename Fragment>
inline void store_tile(typename Fragment::element_type *start, const Fragment &tile, unsigned leading, bool by_rows,
                       Place place) {
    check_tile(start, leading, sizeof *start, place);
    whole_warp(place);
    for (int i = 0; i < Fragment::num_elements; i++) {
        int element = element_of_tile(i), row = element / Fragment::columns, column = element % Fragment::columns;
        start[by_rows ? (size_t)row * leading + column : (size_t)column * leading + row] = tile.x[i];
    }
}
// Every lane's part of a tile, put together where the whole warp can read it.
template <typename Fragment> inline void gather_tile(float *whole, const Fragment &tile) {
    for (int i = 0; i < Fragment::num_elements; i++) whole[element_of_tile(i)] = (float)tile.x[i];
}

} // namespace cuda_on_cpu

namespace nvcuda {
namespace wmma {

template <typename Use, int M, int N, int K, typename Number>
inline void load_matrix_sync(fragment<Use, M, N, K, Number, row_major> &tile,
                             const typename Stored<Number>::type *start, unsigned leading, CUDA_ON_CPU_CALLER) {
    cuda_on_cpu::load_tile(tile, start, leading, true, CUDA_ON_CPU_PLACE);
}
template <typename Use, int M, int N, int K, typename Number>
inline void load_matrix_sync(fragment<Use, M, N, K, Number, col_major> &tile,
                             const typename Stored<Number>::type *start, unsigned leading, CUDA_ON_CPU_CALLER) {
    cuda_on_cpu::load_tile(tile, start, leading, false, CUDA_ON_CPU_PLACE);
}
template <int M, int N, int K, typename Number>
inline void load_matrix_sync(fragment<accumulator, M, N, K, Number> &tile, const Number *start, unsigned leading,
                             layout_t layout, CUDA_ON_CPU_CALLER) {
    cuda_on_cpu::load_tile(tile, start, leading, layout == mem_row_major, CUDA_ON_CPU_PLACE);
}
template <int M, int N, int K, typename Number>
inline void store_matrix_sync(Number *start, const fragment<accumulator, M, N, K, Number> &tile, unsigned leading,
                              layout_t layout, CUDA_ON_CPU_CALLER) {
    cuda_on_cpu::store_tile(start, tile, leading, layout == mem_row_major, CUDA_ON_CPU_PLACE);
}

// d = a * b + c, all of one warp.
template <int M, int N, int K, typename Sum, typename Number, typename LayoutA, typename LayoutB>
inline void mma_sync(fragment<accumulator, M, N, K, Sum> &d, const fragment<matrix_a, M, N, K, Number, LayoutA> &a,
                     const fragment<matrix_b, M, N, K, Number, LayoutB> &b,
                     const fragment<accumulator, M, N, K, Sum> &c, CUDA_ON_CPU_CALLER) {
    static float whole_a[32][M * K], whole_b[32][K * N]; // by warp
    int warp = cuda_on_cpu::thread_in_block() / 32;
    cuda_on_cpu::gather_tile(whole_a[warp], a);
    cuda_on_cpu::gather_tile(whole_b[warp], b);
    cuda_on_cpu::whole_warp(CUDA_ON_CPU_PLACE);
    for (int i = 0; i < M * N / 32; i++) {
        int element = cuda_on_cpu::element_of_tile(i), row = element / N, column = element % N;
        float sum = (float)c.x[i];
        for (int k = 0; k < K; k++) sum += whole_a[warp][row * K + k] * whole_b[warp][k * N + column];
        d.x[i] = (Sum)sum;
    }
    cuda_on_cpu::whole_warp(CUDA_ON_CPU_PLACE); // nobody overwrites what another still reads
}

} // namespace wmma
} // namespace nvcuda

#endif
