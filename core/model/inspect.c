// inspect: says what a run, a checkpoint, a model file or a token shard holds, and verifies it.
#include "attention/stack.h"
#include "dataloader/shard.h"
#include "checkpoint.h"
#include "core/base/file.h"
#include "gpt2_config.h"
#include "gpt2_parameters.h"
#include "core/base/json.h"
#include "llmc_model.h"
#include "core/base/memory.h"
#include "core/base/options.h"
#include "safetensors.h"
#include "strict.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

// ---- tables

enum { LABEL_WIDTH = 28, NAME_WIDTH = 60 };

// Text from a file, without control characters, cut to the buffer.
static const char *printable(const char *text, char *clean, size_t size) {
    size_t i = 0;
    for (; text[i] && i < size - 1; i++) clean[i] = text[i] >= 32 && text[i] < 127 ? text[i] : '?';
    clean[i] = 0;
    return clean;
}

static void print_text(const char *label, const char *text) {
    char clean_label[NAME_WIDTH + 1], clean_text[512];
    printf("  %-*s %s\n", LABEL_WIDTH, printable(label, clean_label, sizeof clean_label),
           printable(text, clean_text, sizeof clean_text));
}

static void print_count(const char *label, uint64_t count) {
    printf("  %-*s %" PRIu64 "\n", LABEL_WIDTH, label, count);
}

// A JSON value on one line, text without its quotes; objects are opened up, one line for each of their entries.
static void print_json(const char *label, const json_t *value) {
    if (json_is_object(value)) {
        const char *key;
        json_t *item;
        json_object_foreach((json_t *)value, key, item) {
            char inner[256];
            snprintf(inner, sizeof inner, "%.120s.%.120s", label, key);
            print_json(inner, item);
        }
        return;
    }
    if (json_is_string(value)) {
        print_text(label, json_string_value(value));
        return;
    }
    char *text = json_print(value, JSON_COMPACT | JSON_ENCODE_ANY | JSON_REAL_PRECISION(9) | JSON_ENSURE_ASCII);
    print_text(label, text);
    free(text);
}

// ---- tensors

typedef struct {
    double mean, deviation, least, most;
    uint64_t not_finite;
} Statistics;

static Statistics measure(const Tensor *tensor, float *buffer) {
    uint64_t count = tensor_elements(tensor);
    double sum = 0, squares = 0, least = INFINITY, most = -INFINITY;
    uint64_t finite = 0;
    tensor_to_floats(buffer, tensor);
#pragma omp parallel for reduction(+ : sum, squares, finite) reduction(min : least) reduction(max : most)
    for (uint64_t i = 0; i < count; i++) {
        double value = buffer[i];
        if (!isfinite(value)) continue;
        sum += value, squares += value * value, finite++;
        least = fmin(least, value), most = fmax(most, value);
    }
    double mean = sum / (double)finite, variance = squares / (double)finite - mean * mean;
    return (Statistics){mean, sqrt(fmax(variance, 0)), least, most, count - finite};
}

static int widest_name(const Tensor *tensors, int count) {
    size_t widest = 6;
    for (int i = 0; i < count; i++)
        if (strlen(tensors[i].name) > widest) widest = strlen(tensors[i].name);
    return (int)(widest < NAME_WIDTH ? widest : NAME_WIDTH);
}

// A table with one line for each tensor; *damaged names the first one with numbers that are not finite, or is NULL.
static void print_tensors(const char *title, const Tensor *tensors, int count, const char **damaged) {
    int width = widest_name(tensors, count);
    uint64_t most = 0;
    *damaged = NULL;
    for (int i = 0; i < count; i++)
        if (tensor_elements(&tensors[i]) > most) most = tensor_elements(&tensors[i]);
    float *buffer = memory_allocate(most, sizeof *buffer, "a tensor");
    printf("\n%s\n%-*s %-5s %-16s %11s %11s %11s %11s\n", title, width, "name", "dtype", "shape", "mean", "std", "min",
           "max");
    for (int i = 0; i < count; i++) {
        const Tensor *tensor = &tensors[i];
        char name[NAME_WIDTH + 1], shape[192];
        printf("%-*s %-5s %-16s", width, printable(tensor->name, name, sizeof name), dtype_name(tensor->dtype),
               tensor_shape_text(tensor, shape, sizeof shape));
        Statistics s = measure(tensor, buffer);
        if (tensor_elements(tensor) > s.not_finite)
            printf(" %11.4g %11.4g %11.4g %11.4g", s.mean, s.deviation, s.least, s.most);
        if (s.not_finite) printf("  %" PRIu64 " not finite", s.not_finite);
        printf("\n");
        if (s.not_finite && !*damaged) *damaged = tensor->name;
    }
    free(buffer);
}

static uint64_t count_numbers(const Safetensors *file) {
    uint64_t total = 0;
    for (int i = 0; i < file->count; i++) total += tensor_elements(&file->tensors[i]);
    return total;
}

static const char *checksum_verdict(const Safetensors *file) {
    return safetensors_has_checksums(file) ? "every tensor verified" : "none for some or all tensors";
}

static void refuse_not_finite(const char *path, const char *tensor) {
    if (tensor)
        die("%s: tensor %s: expected finite numbers, found NaN or infinity; use an earlier checkpoint", path, tensor);
}

// ---- a checkpoint

static void print_sizes(const GPT2Config *config, uint64_t parameters) {
    print_count("context max_T", (uint64_t)config->max_T);
    if (config->positions == POSITIONS_NONE) print_text("positions", "none");
    print_count("vocabulary V", (uint64_t)config->V);
    print_count("layers L", (uint64_t)config->L);
    print_count("heads NH", (uint64_t)config->NH);
    print_count("channels C", (uint64_t)config->C);
    print_count("parameters", parameters);
}

// A list over the layers: its name, then each entry's options.
static void print_stack(const AttentionStack *stack, const json_t *json) {
    char text[256];
    if (!json_is_array(json)) {
        print_json("attention", json);
        return;
    }
    print_text("attention", attention_stack_name(stack, text, sizeof text));
    for (size_t i = 0; i < json_array_size(json); i++) {
        snprintf(text, sizeof text, "attention.%zu", i + 1);
        print_json(text, json_array_get(json, i));
    }
}

static int print_model(const json_t *config_json, const GPT2Config *config, const char *path, Error *error) {
    const json_t *json = gpt2_config_attention(config_json);
    AttentionConfig sizes = {
        .B = 1, .T = 1, .C = config->C, .NH = config->NH, .HS = config->C / config->NH, .max_T = config->max_T};
    AttentionStack stack = attention_stack_of(attention_find("softmax"), &sizes);
    if (json && attention_stack_from_json(&stack, &sizes, json, error)) return error_prefix(error, path);
    print_json("model_type", json_object_get(config_json, "model_type"));
    print_sizes(config, gpt2_count_parameters(config, &stack));
    if (json)
        print_stack(&stack, json);
    else
        print_text("attention", "softmax");
    return 0;
}

static int print_config(const Checkpoint *checkpoint, Error *error) {
    GPT2Config config;
    char *path = path_join(checkpoint->path, "config.json");
    int failed = gpt2_config_from_json(&config, checkpoint->config, path, error) ||
                 print_model(checkpoint->config, &config, path, error);
    free(path);
    return failed;
}

static void print_state(const json_t *state) {
    const char *key;
    json_t *value;
    printf("\nstate\n");
    if (!state) printf("  none: a model to start from, not a run to continue\n");
    json_object_foreach((json_t *)state, key, value) {
        if (strcmp(key, "files") != 0 && strcmp(key, "checksum") != 0) print_json(key, value);
    }
}

// Opens as much of a checkpoint as is unharmed: everything, what a run needs, or what the model needs. `damage` is
// empty, or says what is wrong with the rest.
static int open_unharmed(Checkpoint *checkpoint, const char *path, Error *damage, Error *error) {
    int has_damage = checkpoint_open(checkpoint, path, CHECKPOINT_ALL, damage);
    if (!has_damage) damage->text[0] = 0;
    if (!has_damage || checkpoint_open(checkpoint, path, CHECKPOINT_RUN, error) == 0) return 0;
    return checkpoint_open(checkpoint, path, CHECKPOINT_WEIGHTS, error);
}

static void print_optimizer(const Checkpoint *checkpoint, const Error *damage) {
    if (damage->text[0]) print_text("damaged beside the model", damage->text);
    if (checkpoint->has_optimizer)
        print_text("checksums of the optimizer", checksum_verdict(&checkpoint->optimizer));
    else if (!damage->text[0])
        print_text("optimizer", "none");
}

static int inspect_checkpoint(const char *path, Error *error) {
    Checkpoint checkpoint;
    Error damage;
    const char *damaged = NULL, *damaged_moment = NULL;
    if (open_unharmed(&checkpoint, path, &damage, error)) return -1;
    printf("checkpoint %s\n", path);
    if (print_config(&checkpoint, error)) {
        checkpoint_close(&checkpoint);
        return -1;
    }
    print_count("numbers in the model file", count_numbers(&checkpoint.model));
    print_text("checksums of the model", checksum_verdict(&checkpoint.model));
    print_optimizer(&checkpoint, &damage);
    print_state(checkpoint.state);
    print_tensors("model.safetensors", checkpoint.model.tensors, checkpoint.model.count, &damaged);
    if (checkpoint.has_optimizer)
        print_tensors("optimizer.safetensors", checkpoint.optimizer.tensors, checkpoint.optimizer.count,
                      &damaged_moment);
    refuse_not_finite(checkpoint.model.path, damaged);
    if (damaged_moment) refuse_not_finite(checkpoint.optimizer.path, damaged_moment);
    checkpoint_close(&checkpoint);
    return damage.text[0] ? error_set(error, "%s", damage.text) : 0;
}

// ---- a run

static double checkpoint_megabytes(const Checkpoint *checkpoint) {
    return (double)(safetensors_bytes(&checkpoint->model) + safetensors_bytes(&checkpoint->optimizer)) / 1e6;
}

static void print_number_or_dash(const json_t *value, int width, const char *format) {
    char text[64] = "-";
    if (json_is_number(value)) snprintf(text, sizeof text, format, json_number_value(value));
    printf(" %*s", width, text);
}

// A line of the run's table; returns -1 when the checkpoint is damaged.
static int print_run_line(const char *run, int64_t step) {
    Checkpoint checkpoint;
    Error error, damage;
    char *path = checkpoint_path(run, step), why[sizeof error.text];
    int failed = open_unharmed(&checkpoint, path, &damage, &error);
    free(path);
    printf("%12" PRId64, step);
    if (failed) {
        printf(" %14s %10s %10s  damaged: %s\n", "-", "-", "-", printable(error.text, why, sizeof why));
        return -1;
    }
    const json_t *loss = json_object_get(checkpoint.state, "loss");
    if (!loss) loss = json_object_get(checkpoint.state, "validation_loss");
    print_number_or_dash(json_object_get(checkpoint.state, "tokens"), 14, "%.0f");
    print_number_or_dash(loss, 10, "%.6f");
    printf(" %10.1f  ", checkpoint_megabytes(&checkpoint));
    if (damage.text[0])
        printf("the model verified, damaged: %s\n", printable(damage.text, why, sizeof why));
    else
        printf("verified\n");
    checkpoint_close(&checkpoint);
    return damage.text[0] ? -1 : 0;
}

static int inspect_run(const char *path, const int64_t *steps, int count, Error *error) {
    int damaged = 0;
    printf("run %s: %d checkpoint%s\n\n", path, count, count == 1 ? "" : "s");
    printf("%12s %14s %10s %10s  %s\n", "step", "tokens", "loss", "MB", "state");
    for (int i = 0; i < count; i++) damaged += print_run_line(path, steps[i]) != 0;
    if (damaged == 0) return 0;
    return error_set(error, "%.700s: %d of %d checkpoints damaged; --resume takes the newest that verifies", path,
                     damaged, count);
}

// ---- single files

static int inspect_safetensors(const char *path, Error *error) {
    Safetensors file;
    const char *damaged = NULL, *format;
    if (safetensors_open(&file, path, error)) return -1;
    if (safetensors_verify(&file, error) ||
        strict_check(safetensors_has_checksums(&file), path, "tensors without", error)) {
        safetensors_close(&file);
        return -1;
    }
    printf("safetensors %s\n", path);
    print_count("tensors", (uint64_t)file.count);
    print_count("numbers", count_numbers(&file));
    if ((format = safetensors_metadata(&file, "format"))) print_text("format", format);
    print_text("checksums", checksum_verdict(&file));
    print_tensors("tensors", file.tensors, file.count, &damaged);
    refuse_not_finite(path, damaged);
    safetensors_close(&file);
    return 0;
}

static int inspect_llmc(const char *path, Error *error) {
    LlmcModel model;
    if (llmc_model_open(&model, path, error)) return -1;
    printf("llm.c model %s\n", path);
    print_text("numbers", model.dtype == DTYPE_F32 ? "float (version 3)" : "bfloat16 (version 5)");
    print_sizes(&model.config, gpt2_config_parameters(&model.config));
    print_count("vocabulary with padding", (uint64_t)model.padded_V);
    print_text("size", "as the header says (these files have no checksums)");
    llmc_model_close(&model);
    return 0;
}

static int inspect_shard(const char *path, Error *error) {
    Shard shard;
    if (shard_open(&shard, path, error)) return -1;
    printf("token shard %s\n", path);
    print_count("tokens", shard.count);
    shard_close(&shard);
    return 0;
}

static int inspect_directory(const char *path, Error *error) {
    int64_t *steps = NULL;
    char *config = path_join(path, "config.json");
    int count = file_exists(config) ? 0 : checkpoint_list(&steps, path);
    int result = count ? inspect_run(path, steps, count, error) : inspect_checkpoint(path, error);
    free(config);
    free(steps);
    return result;
}

int main(int argc, char **argv) {
    error_set_program(argv[0]);
    Options options = {
        .usage = "usage: inspect PATH [options]\n\n"
                 "Says what PATH holds and verifies it. PATH is a run, a checkpoint, a Hugging Face GPT-2 directory,\n"
                 "a .safetensors file, an llm.c model or a token shard. Ends with exit code 1 when it is damaged.",
    };
    const char *path = NULL;
    int given = 0;
    Error error;
    strict_add_option(&options, "program");
    die_if(options_parse(&options, argc, argv, &path, 1, &given, &error), &error);
    if (given == 0) die("expected a path to inspect, found none; see --help");
    int result;
    if (file_is_directory(path))
        result = inspect_directory(path, &error);
    else if (file_magic(path) == LLMC_MAGIC)
        result = inspect_llmc(path, &error);
    else if (file_magic(path) == SHARD_MAGIC)
        result = inspect_shard(path, &error);
    else
        result = inspect_safetensors(path, &error);
    die_if(result, &error);
    return 0;
}
