// What each lane and register of the tensor cores' instructions holds, as the layout tables of NVIDIA's CUTLASS (CuTe)
// say, in the words of dev/cuda_on_cpu/tile_layouts.cu, which asks the twins. The tables are types: no CUDA runs here.
// Compiled and compared by test_tile_layouts.sh.
#include <cute/atom/copy_traits_sm75.hpp>
#include <cute/atom/mma_traits_sm80.hpp>

#include <cstdio>

using namespace cute;

// The lane that gives a bit of the matrices to the instruction, and the bit's place in its row: where the addresses of
// several lanes have it, the first one's is read.
template <typename Layout> static int giver_of(int bit, int *place) {
    for (int lane = 0; lane < 32; lane++)
        for (*place = 0; *place < 128; ++*place)
            if (Layout{}(lane, *place) == bit) return lane;
    return -1;
}

// Which number of which lane's row arrives in a 16-bit half of a register.
template <typename Instruction> static void print_matrices(const char *name, int registers) {
    using Traits = Copy_Traits<Instruction>;
    for (int lane = 0; lane < 32; lane++)
        for (int i = 0; i < 2 * registers; i++) {
            int place, giver = giver_of<typename Traits::SrcLayout>(typename Traits::DstLayout{}(lane, 16 * i), &place);
            std::printf("%s lane %d register %d half %d <- lane %d number %d\n", name, lane, i / 2, i % 2, giver,
                        place / 16);
        }
}

// The product's row and column of number i of a lane, from a layout of (lane, number) -> row + column * rows.
template <typename Layout> struct Places {
    int rows;
    int row(int lane, int i) const { return (int)Layout{}(lane, i) % rows; }
    int column(int lane, int i) const { return (int)Layout{}(lane, i) / rows; }
};

// Every multiplication: number i of a lane times one of b is added to which sum. `b` is kept as (column, row).
template <typename Instruction> static void print_product(const char *name) {
    using Traits = MMA_Traits<Instruction>;
    const Places<typename Traits::ALayout> a = {16};
    const Places<typename Traits::BLayout> b = {8};
    const Places<typename Traits::CLayout> sums = {16};
    const int numbers_a = size<1>(typename Traits::ALayout{}), numbers_b = size<1>(typename Traits::BLayout{});
    for (int lane_a = 0; lane_a < 32; lane_a++)
        for (int i = 0; i < numbers_a; i++)
            for (int lane = 0; lane < 32; lane++)
                for (int sum = 0; sum < 4; sum++)
                    for (int lane_b = 0; lane_b < 32; lane_b++)
                        for (int j = 0; j < numbers_b; j++)
                            if (a.row(lane_a, i) == sums.row(lane, sum) && a.column(lane_a, i) == b.column(lane_b, j) &&
                                b.row(lane_b, j) == sums.column(lane, sum))
                                std::printf("%s lane %d number %d times lane %d number %d -> lane %d sum %d\n", name,
                                            lane_a, i, lane_b, j, lane, sum);
}

// Where the numbers of fragments of 8 columns, or of one whole left one, are in their matrix.
template <typename Layout> static void print_fragments(const char *name, int count, int rows, bool is_transposed) {
    const Places<Layout> places = {rows};
    const int numbers = size<1>(Layout{});
    for (int lane = 0; lane < 32; lane++)
        for (int i = 0; i < count * numbers; i++) {
            int row = places.row(lane, i % numbers), column = places.column(lane, i % numbers);
            std::printf("%s lane %d number %d at (%d, %d)\n", name, lane, i, is_transposed ? column : row,
                        (is_transposed ? row : column) + i / numbers * 8);
        }
}

int main() {
    using Product = MMA_Traits<SM80_16x8x16_F32BF16BF16F32_TN>;
    print_matrices<SM75_U32x4_LDSM_N>("ldmatrix.x4", 4);
    print_matrices<SM75_U16x8_LDSM_T>("ldmatrix.x4.trans", 4);
    print_matrices<SM75_U32x2_LDSM_N>("ldmatrix.x2", 2);
    print_matrices<SM75_U16x4_LDSM_T>("ldmatrix.x2.trans", 2);
    print_product<SM80_16x8x16_F32BF16BF16F32_TN>("mma.m16n8k16.bf16");
    print_product<SM80_16x8x8_F32TF32TF32F32_TN>("mma.m16n8k8.tf32");
    // tile_gpu.h promises the places of the product of bf16 in both precisions, whichever way a fragment is loaded.
    for (const char *way : {"bf16", "bf16.transposed", "float", "float.transposed"}) {
        char name[64];
        std::snprintf(name, sizeof name, "load_left.%s", way);
        print_fragments<Product::ALayout>(name, 1, 16, false);
        std::snprintf(name, sizeof name, "load_right.%s", way);
        print_fragments<Product::BLayout>(name, 1, 8, true);
        std::snprintf(name, sizeof name, "load_right.pair.%s", way);
        print_fragments<Product::BLayout>(name, 2, 8, true);
    }
    print_fragments<Product::CLayout>("store_sums", 1, 16, false);
    print_fragments<Product::CLayout>("sum_row, sum_column", 1, 16, false);
}
