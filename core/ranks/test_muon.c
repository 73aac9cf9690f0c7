// Muon's step against its definition in double: momentum, Nesterov, each block of columns made orthogonal for itself,
// the scale, the decay; which tensors are Muon's; a rank that updates a part of a tensor.
#include "muon.h"
#include "core/base/memory.h"
#include "core/base/random.h"
#include "core/base/test.h"
#include "core/math/newton_schulz.h"

enum { C = 8, L = 2 };
static const double MOMENTUM = 0.9, SCALE = 0.5, RATE = 0.02, KEEP = 0.99;

static Parameter *make_model(int *count) {
    GPT2Config config = {.max_T = 4, .V = 11, .L = L, .NH = 2, .C = C};
    AttentionStack stack = attention_stack_of(attention_find("softmax"), &(AttentionConfig){.C = C, .NH = 2});
    Parameter *list = gpt2_list_parameters(&config, &stack, count);
    gpt2_choose_muon(list, *count);
    for (int i = 0; i < *count; i++) {
        real **slots[] = {&list[i].value, &list[i].gradient, &list[i].m};
        for (int k = 0; k < 3; k++) {
            *slots[k] = memory_allocate(list[i].count, sizeof(real), "a tensor");
            random_fill_normal(*slots[k], list[i].count, random_key((uint64_t)k, list[i].name, 0), 0.3);
        }
    }
    return list;
}

static void free_model(Parameter *list, int count) {
    for (int i = 0; i < count; i++) free(list[i].value), free(list[i].gradient), free(list[i].m);
    free(list);
}

static void which_tensors(void) {
    int count, blocks = 0, tensors = 0;
    Parameter *list = make_model(&count);
    for (int i = 0; i < count; i++) {
        const Parameter *p = &list[i];
        int is_matrix = p->layer >= 0 && p->rank == 2;
        CHECK((p->muon_blocks > 0) == is_matrix);
        CHECK(p->muon_blocks != 3 || strstr(p->name, "c_attn.weight"));
        blocks += p->muon_blocks, tensors += p->muon_blocks > 0;
    }
    CHECK(tensors == 4 * L && blocks == 6 * L);
    free_model(list, count);
}

// What becomes of one tensor; the iteration itself has a test of its own.
static void expected_step(const Parameter *p, double *value, double *m) {
    size_t rows = p->shape[0], stride = p->shape[1], columns = stride / (size_t)p->muon_blocks;
    real *work = memory_allocate(newton_schulz_work((int)rows, (int)columns), sizeof *work, "scratch");
    real *block = memory_allocate(rows * columns, sizeof *block, "a block");
    for (size_t b = 0; b < (size_t)p->muon_blocks; b++) {
        for (size_t i = 0; i < rows * columns; i++) {
            size_t j = i / columns * stride + b * columns + i % columns;
            double g = SCALE * (double)p->gradient[j];
            m[j] = MOMENTUM * (double)p->m[j] + (1 - MOMENTUM) * g;
            block[i] = (real)(MOMENTUM * m[j] + (1 - MOMENTUM) * g);
        }
        newton_schulz(block, (int)rows, (int)columns, work);
        for (size_t i = 0; i < rows * columns; i++) {
            size_t j = i / columns * stride + b * columns + i % columns;
            double scale = columns > rows ? sqrt((double)columns / (double)rows) : 1;
            value[j] = KEEP * (double)p->value[j] - RATE * scale * (double)block[i];
        }
    }
    free(work), free(block);
}

static void step(Parameter *list, int count, Parameter *updated, int updated_count) {
    real *work = memory_allocate(muon_work(C), sizeof *work, "scratch");
    muon_directions(updated, updated_count, (real)MOMENTUM, (real)SCALE);
    muon_orthogonalize(list, count, updated, updated_count, work);
    muon_apply(updated, updated_count, (real)RATE, (real)KEEP);
    free(work);
}

static void the_step(void) {
    int count;
    Parameter *list = make_model(&count), *before = make_model(&count);
    step(list, count, list, count);
    for (int i = 0; i < count; i++) {
        double value[4 * C * C], m[4 * C * C];
        if (!list[i].muon_blocks) { // AdamW's
            CHECK(!memcmp(list[i].value, before[i].value, list[i].count * sizeof(real)));
            CHECK(!memcmp(list[i].m, before[i].m, list[i].count * sizeof(real)));
            continue;
        }
        expected_step(&before[i], value, m);
        for (size_t j = 0; j < list[i].count; j++) {
            CHECK_CLOSE(list[i].value[j], value[j], 1e-6);
            CHECK_CLOSE(list[i].m[j], m[j], 1e-6);
        }
    }
    free_model(list, count), free_model(before, count);
}

// Two ranks, each with a part of a matrix: after the directions are gathered, both parts are what one rank makes.
static void parts_of_a_tensor(void) {
    int count, i = 0;
    Parameter *whole = make_model(&count), *shared = make_model(&count);
    while (whole[i].muon_blocks != 3) i++;
    step(whole, count, whole, count);
    size_t first = 37, sizes[] = {first, shared[i].count - first};
    Parameter parts[2] = {shared[i], shared[i]};
    parts[0].count = sizes[0], parts[1].count = sizes[1];
    parts[1].value += first, parts[1].gradient += first, parts[1].m += first;
    muon_directions(parts, 2, (real)MOMENTUM, (real)SCALE); // both: as after exchange_gradients
    real *gathered = memory_allocate(shared[i].count, sizeof *gathered, "directions");
    real *work = memory_allocate(muon_work(C), sizeof *work, "scratch");
    memcpy(gathered, shared[i].gradient, shared[i].count * sizeof *gathered);
    for (int rank = 0; rank < 2; rank++) {
        memcpy(shared[i].gradient, gathered, shared[i].count * sizeof *gathered);
        muon_orthogonalize(shared, count, &parts[rank], 1, work);
        muon_apply(&parts[rank], 1, (real)RATE, (real)KEEP);
    }
    CHECK(!memcmp(whole[i].value, shared[i].value, shared[i].count * sizeof(real)));
    CHECK(!memcmp(whole[i].m, shared[i].m, shared[i].count * sizeof(real)));
    free(gathered), free(work), free_model(whole, count), free_model(shared, count);
}

int main(void) {
    RUN(which_tensors);
    RUN(the_step);
    RUN(parts_of_a_tensor);
    return test_summary();
}
