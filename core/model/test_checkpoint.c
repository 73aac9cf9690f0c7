// Checkpoints: they come back bit for bit, a save may be killed or fail anywhere, and no bad one is taken for good.
#define _GNU_SOURCE
#include "checkpoint.h"
#include "gpt2_config.h"
#include "core/base/memory.h"
#include "core/base/test.h"
#include "core/base/test_files.h"

#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <omp.h>
#include <signal.h>
#include <sys/wait.h>

// ---- faults: this program's own versions of the calls that change the disk stand before the C library's

static int fault_countdown; // the call that brings it to 0 is hit; 0 at rest
static int fault_errno;     // what that call fails with; 0: the process is killed there

static int fault_is_due(void) {
    if (fault_countdown == 0 || --fault_countdown > 0) return 0;
    if (fault_errno == 0) raise(SIGKILL);
    errno = fault_errno;
    return 1;
}

#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

int rename(const char *from, const char *to) {
    return fault_is_due() ? -1 : REAL(rename)(from, to);
}
int fsync(int descriptor) {
    return fault_is_due() ? -1 : REAL(fsync)(descriptor);
}
int mkdir(const char *path, mode_t mode) {
    return fault_is_due() ? -1 : REAL(mkdir)(path, mode);
}
int rmdir(const char *path) {
    return fault_is_due() ? -1 : REAL(rmdir)(path);
}
int unlinkat(int directory, const char *name, int flags) {
    return fault_is_due() ? -1 : REAL(unlinkat)(directory, name, flags);
}
FILE *fopen(const char *path, const char *mode) {
    return fault_is_due() ? NULL : REAL(fopen)(path, mode);
}
// A write that is hit leaves half of its bytes in the file.
size_t fwrite(const void *data, size_t size, size_t count, FILE *stream) {
    if (fault_countdown == 1) {
        REAL(fwrite)(data, size, count / 2, stream);
        fflush(stream);
    }
    return fault_is_due() ? count / 2 : REAL(fwrite)(data, size, count, stream);
}

// ---- a model small enough to look at every byte of its files

enum { V = 7, MAX_T = 5, C = 4, TENSORS = 17, NUMBERS = (V + MAX_T) * C + 12 * C * C + 13 * C + 2 * C + 6 };

static const struct {
    const char *name;
    int rank;
    uint64_t shape[2];
} layout[TENSORS] = {
    {"transformer.wte.weight", 2, {V, C}},
    {"transformer.wpe.weight", 2, {MAX_T, C}},
    {"transformer.h.0.ln_1.weight", 1, {C, 0}},
    {"transformer.h.0.ln_1.bias", 1, {C, 0}},
    {"transformer.h.0.attn.c_attn.weight", 2, {C, 3 * C}},
    {"transformer.h.0.attn.c_attn.bias", 1, {3 * C, 0}},
    {"transformer.h.0.attn.c_proj.weight", 2, {C, C}},
    {"transformer.h.0.attn.c_proj.bias", 1, {C, 0}},
    {"transformer.h.0.attn.omega", 2, {2, 3}}, // a constant of the attention
    {"transformer.h.0.ln_2.weight", 1, {C, 0}},
    {"transformer.h.0.ln_2.bias", 1, {C, 0}},
    {"transformer.h.0.mlp.c_fc.weight", 2, {C, 4 * C}},
    {"transformer.h.0.mlp.c_fc.bias", 1, {4 * C, 0}},
    {"transformer.h.0.mlp.c_proj.weight", 2, {4 * C, C}},
    {"transformer.h.0.mlp.c_proj.bias", 1, {C, 0}},
    {"transformer.ln_f.weight", 1, {C, 0}},
    {"transformer.ln_f.bias", 1, {C, 0}},
};

typedef struct {
    float numbers[NUMBERS], moments[2 * NUMBERS];
    Tensor model[TENSORS], optimizer[2 * TENSORS];
    char names[2 * TENSORS][64];
} TinyModel;

// Tensors that point into the numbers; `version` tells one model's numbers from another's.
static TinyModel *tiny_model(int version) {
    TinyModel *tiny = memory_allocate_zeroed(1, sizeof *tiny, "a tiny model");
    for (int i = 0; i < NUMBERS; i++) tiny->numbers[i] = (float)(version + 0.001 * i);
    for (int i = 0; i < 2 * NUMBERS; i++) tiny->moments[i] = (float)(-version - 0.001 * i);
    tiny->numbers[1] = -0.0f, tiny->moments[1] = 0x1p-149f;
    float *next = tiny->numbers, *moment = tiny->moments;
    for (int i = 0; i < TENSORS; i++) {
        tiny->model[i] =
            (Tensor){layout[i].name, DTYPE_F32, layout[i].rank, {layout[i].shape[0], layout[i].shape[1]}, next};
        uint64_t elements = tensor_elements(&tiny->model[i]);
        next += elements;
        for (int k = 0; k < 2; k++, moment += elements) {
            snprintf(tiny->names[2 * i + k], sizeof tiny->names[0], "%s.%c", layout[i].name, "mv"[k]);
            tiny->optimizer[2 * i + k] = tiny->model[i];
            tiny->optimizer[2 * i + k].name = tiny->names[2 * i + k];
            tiny->optimizer[2 * i + k].data = moment;
        }
    }
    CHECK(next == tiny->numbers + NUMBERS);
    return tiny;
}

static const GPT2Config tiny_config = {.max_T = MAX_T, .V = V, .L = 1, .NH = 2, .C = C};

// Saves version `version` of the model as `step`; takes over the reference to `attention`.
static int save_files(json_t *attention, const char *run, int64_t step, int version, const MemoryFile *files, int count,
                      Error *error) {
    TinyModel *tiny = tiny_model(version);
    json_t *config = gpt2_config_to_json(&tiny_config, attention);
    json_t *state = json_pack("{s:I, s:i, s:f}", "step", (json_int_t)step, "version", version, "loss", 1.0 / 3);
    CheckpointContents contents = {config, state, tiny->model, TENSORS, tiny->optimizer, 2 * TENSORS, files, count};
    int result = checkpoint_save(run, step, &contents, error);
    json_decref(attention);
    json_decref(config);
    json_decref(state);
    free(tiny);
    return result;
}

// `vocabulary` is the text of one, or NULL.
static int save_with(json_t *attention, const char *run, int64_t step, int version, const char *vocabulary,
                     Error *error) {
    const MemoryFile files[] = {{"tokenizer.tiktoken", (char *)vocabulary, vocabulary ? strlen(vocabulary) : 0},
                                {"tokenizer.json", "{\"model\":{}}", 12}};
    return save_files(attention, run, step, version, files, vocabulary ? 2 : 0, error);
}

static int save(const char *run, int64_t step, int version, const char *vocabulary, Error *error) {
    return save_with(json_pack("{s:s, s:i}", "name", "slay", "M", 3), run, step, version, vocabulary, error);
}

// The version that an open checkpoint holds, all of it and to the bit; -1 when anything differs.
static int version_of(const Checkpoint *checkpoint) {
    int version = (int)json_integer_value(json_object_get(checkpoint->state, "version"));
    TinyModel *expected = tiny_model(version), *found = tiny_model(0);
    Error error = {""};
    int failed = checkpoint_read_model(checkpoint, found->model, TENSORS, &error) ||
                 checkpoint_read_optimizer(checkpoint, found->optimizer, 2 * TENSORS, &error);
    if (failed) printf("    %s\n", error.text);
    failed |= memcmp(found->numbers, expected->numbers, sizeof found->numbers) != 0 ||
              memcmp(found->moments, expected->moments, sizeof found->moments) != 0;
    free(expected);
    free(found);
    return failed ? -1 : version;
}

static int version_at(const char *path) {
    Checkpoint checkpoint;
    Error error = {""};
    if (checkpoint_open_newest(&checkpoint, path, CHECKPOINT_RUN, &error)) {
        printf("    %s\n", error.text);
        return -1;
    }
    int version = version_of(&checkpoint);
    checkpoint_close(&checkpoint);
    return version;
}

static const char *fresh_run(void) {
    const char *run = test_path("run");
    if (file_exists(run)) test_remove(run);
    return run;
}

// How many entries of a directory have `part` in their name.
static int entries(const char *directory, const char *part) {
    int found = 0;
    DIR *stream = opendir(directory);
    for (struct dirent *entry; stream && (entry = readdir(stream));)
        found += entry->d_name[0] != '.' && strstr(entry->d_name, part) != NULL;
    if (stream) closedir(stream);
    return found;
}

// ---- saving and opening

static void test_round_trip(void) {
    const char *run = fresh_run();
    char path[512];
    Error error = {""};
    CHECK(save(run, 12, 3, "IQ== 0\nIg== 1\n", &error) == 0);
    snprintf(path, sizeof path, "%s/step_00000012", run);
    CHECK(entries(path, "") == 7 && entries(path, ".tmp") == 0 && entries(run, "") == 1);
    CHECK(version_at(run) == 3);
    CHECK(version_at(path) == 3);
    Checkpoint checkpoint;
    CHECK(checkpoint_open(&checkpoint, path, CHECKPOINT_ALL, &error) == 0);
    char *vocabulary = checkpoint_tokenizer(&checkpoint);
    size_t bytes = 0;
    unsigned char *text = test_read(vocabulary, &bytes);
    CHECK(bytes == 14 && memcmp(text, "IQ== 0\nIg== 1\n", 14) == 0);
    free(text);
    free(vocabulary);
    CHECK(json_integer_value(json_object_get(checkpoint.state, "step")) == 12);
    CHECK(json_real_value(json_object_get(checkpoint.state, "loss")) == 1.0 / 3);
    GPT2Config config = {0};
    CHECK(gpt2_config_from_json(&config, checkpoint.config, path, &error) == 0);
    CHECK(memcmp(&config, &tiny_config, sizeof config) == 0);
    CHECK(json_integer_value(json_object_get(gpt2_config_attention(checkpoint.config), "M")) == 3);
    checkpoint_close(&checkpoint);
    CHECK(save(run, 12, 4, NULL, &error) == 0); // the same step again
    CHECK(version_at(run) == 4 && entries(run, "") == 1 && entries(path, "") == 5);
    CHECK(checkpoint_open(&checkpoint, path, CHECKPOINT_ALL, &error) == 0);
    CHECK(checkpoint_tokenizer(&checkpoint) == NULL);
    checkpoint_close(&checkpoint);
}

// What is not needed is not looked at: it can be damaged or missing, and nothing older is taken in its place.
static void check_opens(const char *run, CheckpointNeed need, int expected_step) {
    Checkpoint checkpoint;
    Error error = {""};
    fflush(stderr);
    int saved = dup(STDERR_FILENO), quiet = open("/dev/null", O_WRONLY);
    dup2(quiet, STDERR_FILENO);
    int status = checkpoint_open_newest(&checkpoint, run, need, &error);
    dup2(saved, STDERR_FILENO);
    close(saved), close(quiet);
    CHECK(status == 0);
    CHECK(status == 0 && json_integer_value(json_object_get(checkpoint.state, "step")) == expected_step);
    CHECK(status == 0 && checkpoint.has_optimizer == (need >= CHECKPOINT_RUN));
    checkpoint_close(&checkpoint);
}

static void test_only_what_is_needed(void) {
    const char *run = fresh_run();
    char file[512];
    Error error = {""};
    for (int step = 1; step <= 3; step++) CHECK(save(run, step, step, "IQ== 0\n", &error) == 0);
    snprintf(file, sizeof file, "%s/step_00000003/tokenizer.json", run);
    test_flip_bit(file, 3, 1); // only other programs read it
    check_opens(run, CHECKPOINT_WEIGHTS, 3);
    check_opens(run, CHECKPOINT_RUN, 3);
    check_opens(run, CHECKPOINT_ALL, 2);
    snprintf(file, sizeof file, "%s/step_00000003/optimizer.safetensors", run);
    test_flip_bit(file, 6000, 2);
    check_opens(run, CHECKPOINT_WEIGHTS, 3);
    check_opens(run, CHECKPOINT_RUN, 2);
    CHECK(truncate(file, 5) == 0);
    check_opens(run, CHECKPOINT_WEIGHTS, 3);
    check_opens(run, CHECKPOINT_RUN, 2);
    CHECK(unlink(file) == 0);
    check_opens(run, CHECKPOINT_WEIGHTS, 3);
    check_opens(run, CHECKPOINT_RUN, 2);
    snprintf(file, sizeof file, "%s/step_00000003/tokenizer.tiktoken", run);
    test_flip_bit(file, 0, 1); // a model without its vocabulary is of no use
    check_opens(run, CHECKPOINT_WEIGHTS, 2);
}

// Whether a text begins with end-of-text: as the tokenizer's configuration says, or because it was trained here.
static void test_adds_bos(void) {
    static const struct {
        const char *config; // NULL: none
        int has_state, expected;
    } cases[] = {{NULL, 1, 1},
                 {NULL, 0, 0},
                 {"{\"add_bos_token\": false}", 1, 0},
                 {"{\"add_bos_token\": true}", 0, 1},
                 {"{\"model_max_length\": 1024}", 0, 0},
                 {"{\"add_bos_token\": 1}", 1, 1},
                 {"{", 1, -1}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const char *run = fresh_run();
        char path[512], file[600];
        Error error = {""};
        CHECK(save(run, 1, 1, NULL, &error) == 0);
        snprintf(path, sizeof path, "%s/step_00000001", run);
        snprintf(file, sizeof file, "%s/tokenizer_config.json", path);
        if (cases[i].config) test_write(file, cases[i].config, strlen(cases[i].config));
        snprintf(file, sizeof file, "%s/state.json", path);
        if (!cases[i].has_state) CHECK(unlink(file) == 0);
        Checkpoint checkpoint;
        int adds = -1;
        CHECK(checkpoint_open(&checkpoint, path, CHECKPOINT_WEIGHTS, &error) == 0);
        CHECK((checkpoint_adds_bos(&checkpoint, &adds, &error) == 0) == (cases[i].expected >= 0));
        CHECK(adds == cases[i].expected);
        checkpoint_close(&checkpoint);
    }
}

static void test_list_and_prune(void) {
    const char *run = fresh_run();
    Error error = {""};
    int64_t *steps = NULL;
    CHECK(checkpoint_list(&steps, run) == 0 && steps == NULL);
    for (int step = 10; step <= 60; step += 10) CHECK(save(run, step, step, NULL, &error) == 0);
    CHECK(save(run, 123456789012, 7, NULL, &error) == 0); // more than eight digits
    static const char *const others[] = {
        "step_1",        "step_00000005x",       "step_00000070.tmp", "stop_00000001", "step_00000060.old",
        "metrics.jsonl", "step_00000099.tmp.old"};
    for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
        char path[600];
        snprintf(path, sizeof path, "%s/%s", run, others[i]);
        CHECK(mkdir(path, 0777) == 0);
    }
    CHECK(checkpoint_list(&steps, run) == 7 && steps[0] == 10 && steps[5] == 60 && steps[6] == 123456789012);
    free(steps);
    CHECK(checkpoint_prune(run, -1, 2, 20, &error) == 0);
    CHECK(checkpoint_list(&steps, run) == 4 && steps[0] == 20 && steps[1] == 40 && steps[2] == 60);
    free(steps);
    CHECK(entries(run, "step_00000070.tmp") == 0 && entries(run, "step_00000060.old") == 0);
    CHECK(entries(run, "") == 4 + 5); // what is not a checkpoint's is not touched
    CHECK(checkpoint_prune(run, -1, 1, 0, &error) == 0);
    CHECK(checkpoint_list(&steps, run) == 1 && version_at(run) == 7);
    free(steps);
    CHECK(checkpoint_prune(test_path("none"), -1, 1, 0, &error) == -1);
}

// What somebody put into a checkpoint stays, and so does the checkpoint; the others go.
static void test_prune_spares_what_is_not_ours(void) {
    const char *run = fresh_run();
    Error error = {""};
    int64_t *steps = NULL;
    for (int step = 10; step <= 50; step += 10) CHECK(save(run, step, step, NULL, &error) == 0);
    char folder[600], link[600];
    snprintf(folder, sizeof folder, "%s/step_00000020/mine", run);
    snprintf(link, sizeof link, "%s/step_00000030/link", run);
    CHECK(mkdir(folder, 0777) == 0 && symlink("/", link) == 0);
    CHECK(checkpoint_prune(run, -1, 1, 0, &error) == -1);
    CHECK_CONTAINS(error.text, "step_00000020: not removed: there is more in it than a checkpoint's files");
    CHECK(checkpoint_list(&steps, run) == 3 && steps[0] == 20 && steps[1] == 30 && steps[2] == 50);
    CHECK(access(folder, F_OK) == 0);
    free(steps);
}

// The newest checkpoint that verifies is taken, and what was passed over is said.
static void test_newest_that_verifies(void) {
    const char *run = fresh_run(), *said = test_path("stderr");
    char damaged[512];
    Error error = {""};
    for (int step = 1; step <= 3; step++) CHECK(save(run, step, step, NULL, &error) == 0);
    snprintf(damaged, sizeof damaged, "%s/step_00000003/model.safetensors", run);
    test_flip_bit(damaged, 3400, 2);
    snprintf(damaged, sizeof damaged, "%s/step_00000002/state.json", run);
    CHECK(truncate(damaged, 10) == 0);
    fflush(stderr);
    int saved = dup(STDERR_FILENO), capture = open(said, O_CREAT | O_WRONLY | O_TRUNC, 0600);
    dup2(capture, STDERR_FILENO);
    int version = version_at(run);
    dup2(saved, STDERR_FILENO);
    close(capture);
    CHECK(version == 1);
    size_t size = 0;
    char *text = (char *)test_read(said, &size);
    CHECK_CONTAINS(text, "step_00000003");
    CHECK_CONTAINS(text, "expected checksum");
    CHECK_CONTAINS(text, "step_00000002");
    CHECK_CONTAINS(text, "not valid JSON");
    CHECK_CONTAINS(text, "continuing from");
    free(text);
    snprintf(damaged, sizeof damaged, "%s/step_00000001/config.json", run);
    CHECK(unlink(damaged) == 0);
    capture = open("/dev/null", O_WRONLY);
    dup2(capture, STDERR_FILENO);
    Checkpoint checkpoint;
    CHECK(checkpoint_open_newest(&checkpoint, run, CHECKPOINT_RUN, &error) == -1);
    dup2(saved, STDERR_FILENO);
    close(saved);
    close(capture);
    CHECK_CONTAINS(error.text, "step_00000001/config.json: cannot open");
}

// ---- faults

// Runs one save in a process of its own that is killed at the given call; returns 1 when it was, 0 when it finished.
static int save_and_be_killed(const char *run, int64_t step, int version, int call) {
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
        Error error;
        omp_set_num_threads(1); // threads do not survive a fork
        fault_countdown = call;
        _exit(save(run, step, version, NULL, &error) ? 2 : 0);
    }
    int status = 0;
    waitpid(child, &status, 0);
    if (WIFSIGNALED(status)) return 1;
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    return 0;
}

// Kill -9 at every call that changes the disk, then resume. `step` 1 replaces the checkpoint that is there; `step` 2
// comes beside it.
static void kill_everywhere(int64_t step) {
    int call = 1;
    for (int version = 10;; call++, version++) {
        const char *run = fresh_run();
        Error error = {""};
        CHECK(save(run, 1, 1, NULL, &error) == 0);
        int killed = save_and_be_killed(run, step, version, call), found = version_at(run);
        CHECK(found == 1 || found == version);
        CHECK(killed || found == version);
        CHECK(save(run, step, version + 1, NULL, &error) == 0); // work goes on
        CHECK(version_at(run) == version + 1);
        CHECK(entries(run, ".old") == 0 && entries(run, ".tmp") == 0);
        if (!killed) break;
    }
    printf("    %d points\n", call - 1);
    CHECK(call > 20);
}

static void test_kill_while_replacing(void) {
    kill_everywhere(1);
}
static void test_kill_while_saving_another(void) {
    kill_everywhere(2);
}

// Killed twice: the second save begins amid what the first one left.
static void test_kill_after_kill(void) {
    const char *run = fresh_run();
    Error error = {""};
    CHECK(save(run, 1, 1, NULL, &error) == 0);
    int found = 1;
    for (int call = 60; call > 0; call--) {
        save_and_be_killed(run, 1, 100 + call, call);
        int now = version_at(run);
        CHECK(now == found || now == 100 + call);
        found = now;
    }
}

// Killed from outside, at whatever moment it happens to be.
static void test_kill_at_random(void) {
    const char *run = fresh_run();
    Error error = {""};
    CHECK(save(run, 1, 1, NULL, &error) == 0);
    for (int round = 0; round < 20; round++) {
        pid_t child = fork();
        if (child == 0) {
            omp_set_num_threads(1);
            for (int version = 2;; version++)
                if (save(run, version % 3, version, NULL, &error)) _exit(2);
        }
        usleep(3000 + (unsigned)(round * 7919 % 40) * 1000);
        kill(child, SIGKILL);
        int status = 0;
        waitpid(child, &status, 0);
        CHECK(WIFSIGNALED(status));
        CHECK(version_at(run) > 0);
        CHECK(checkpoint_prune(run, -1, 1, 0, &error) == 0 && entries(run, "") == 1);
    }
}

// Every call fails once: the error says so, nothing is left behind, the checkpoint before it is whole.
static void fail_everywhere(int failure) {
    int failures = 0;
    for (int call = 1; call < 200; call++) {
        const char *run = fresh_run();
        Error error = {""};
        CHECK(save(run, 1, 1, NULL, &error) == 0);
        fault_errno = failure;
        fault_countdown = call;
        int status = save(run, 1, 2, NULL, &error), finished = fault_countdown > 0;
        fault_countdown = fault_errno = 0;
        if (status) CHECK(strlen(error.text) > 10 && entries(run, "step_00000001") > entries(run, ".old"));
        int found = version_at(run);
        CHECK(status ? found == 1 || found == 2 : found == 2);
        CHECK(save(run, 1, 3, NULL, &error) == 0 && version_at(run) == 3);
        CHECK(entries(run, "") == 1);
        failures += status != 0;
        if (finished) break;
    }
    CHECK(failures > 20);
}

static void test_no_space(void) {
    fail_everywhere(ENOSPC);
}
static void test_input_output_error(void) {
    fail_everywhere(EIO);
}

static void test_prune_killed(void) {
    for (int call = 1;; call++) {
        const char *run = fresh_run();
        Error error = {""};
        for (int step = 1; step <= 2; step++) CHECK(save(run, step, step, NULL, &error) == 0);
        fflush(stdout);
        pid_t child = fork();
        if (child == 0) {
            fault_countdown = call;
            _exit(checkpoint_prune(run, -1, 1, 0, &error) ? 2 : 0);
        }
        int status = 0;
        waitpid(child, &status, 0);
        int64_t *steps = NULL;
        int count = checkpoint_list(&steps, run);
        for (int i = 0; i < count; i++) { // whatever is listed is whole
            char *path = checkpoint_path(run, steps[i]);
            CHECK(version_at(path) == steps[i]);
            free(path);
        }
        CHECK(count >= 1 && steps[count - 1] == 2);
        free(steps);
        if (!WIFSIGNALED(status)) break;
    }
}

static void test_too_large_for_the_disk(void) {
    const char *run = fresh_run();
    Tensor huge = {"a", DTYPE_F32, 2, {1u << 30, 1u << 30}, NULL}; // its data is never looked at
    json_t *empty = json_object();
    CheckpointContents contents = {empty, empty, &huge, 1, NULL, 0, NULL, 0};
    Error error = {""};
    CHECK(checkpoint_save(run, 1, &contents, &error) == -1);
    CHECK_CONTAINS(error.text, "MB are free");
    CHECK(entries(run, "") == 0);
    json_decref(empty);
}

static void test_unwritable_place(void) {
    const char *file = test_path("plain");
    Error error = {""};
    test_write(file, "x", 1);
    CHECK(save(file, 1, 1, NULL, &error) == -1);
    CHECK_CONTAINS(error.text, file);
    const char *run = fresh_run();
    const MemoryFile vocabulary = {"no_such_folder/vocabulary", "x", 1};
    CHECK(save_files(NULL, run, 1, 1, &vocabulary, 1, &error) == -1);
    CHECK_CONTAINS(error.text, "no_such_folder/vocabulary");
    CHECK(entries(run, "") == 0);
}

// A state that names files elsewhere makes no reader open them.
static void test_file_elsewhere(void) {
    const char *run = fresh_run();
    const MemoryFile elsewhere = {"../elsewhere", "x", 1};
    Error error = {""};
    Checkpoint checkpoint;
    CHECK(save_files(NULL, run, 1, 1, &elsewhere, 1, &error) == 0);
    CHECK(checkpoint_open_newest(&checkpoint, run, CHECKPOINT_ALL, &error) == -1);
    CHECK_CONTAINS(error.text, "found ../elsewhere");
}

// ---- damage

// A bit flipped anywhere in any file is noticed.
static void test_every_flipped_bit(void) {
    static const char *const names[] = {"config.json",           "state.json",
                                        "tokenizer.tiktoken",    "model.safetensors",
                                        "optimizer.safetensors", "tokenizer.json"};
    const char *run = fresh_run();
    char directory[512], path[600];
    Error error = {""};
    CHECK(save(run, 1, 1, "IQ== 0\nIg== 1\n", &error) == 0);
    snprintf(directory, sizeof directory, "%s/step_00000001", run);
    for (int i = 0; i < 6; i++) {
        snprintf(path, sizeof path, "%s/%s", directory, names[i]);
        size_t size = 0;
        free(test_read(path, &size));
        for (size_t byte = 0; byte < size; byte++) {
            test_flip_bit(path, byte, (int)(byte % 8));
            Checkpoint checkpoint;
            int status = checkpoint_open(&checkpoint, directory, CHECKPOINT_ALL, &error);
            CHECK(status == -1 && strstr(error.text, names[i]));
            checkpoint_close(&checkpoint);
            test_flip_bit(path, byte, (int)(byte % 8));
        }
    }
    CHECK(version_at(directory) == 1);
}

static void test_missing_files(void) {
    static const char *const names[] = {"config.json", "model.safetensors", "optimizer.safetensors",
                                        "tokenizer.tiktoken", "tokenizer.json"};
    for (int i = 0; i < 5; i++) {
        const char *run = fresh_run();
        char path[600];
        Error error = {""};
        CHECK(save(run, 1, 1, "IQ== 0\n", &error) == 0);
        snprintf(path, sizeof path, "%s/step_00000001/%s", run, names[i]);
        CHECK(unlink(path) == 0);
        Checkpoint checkpoint;
        CHECK(checkpoint_open_newest(&checkpoint, run, CHECKPOINT_ALL, &error) == -1);
        CHECK_CONTAINS(error.text, names[i]);
    }
}

// ---- other people's directories

typedef struct {
    Tensor tensors[TENSORS + 4];
    int count;
} TensorList;

// Writes DIRECTORY as Hugging Face would: a configuration, a model, nothing else.
static const char *write_foreign(const TensorList *list, const char *config_text) {
    const char *directory = test_path("foreign");
    char path[600];
    Error error = {""};
    if (file_exists(directory)) test_remove(directory);
    CHECK(mkdir(directory, 0777) == 0);
    snprintf(path, sizeof path, "%s/config.json", directory);
    test_write(path, config_text, strlen(config_text));
    snprintf(path, sizeof path, "%s/model.safetensors", directory);
    CHECK(safetensors_write(path, list->tensors, list->count, NULL, &error) == 0);
    return directory;
}

// Reads the tiny model out of a directory with these tensors.
static int read_foreign(const TensorList *list, TinyModel *out, Error *error) {
    Checkpoint checkpoint;
    if (checkpoint_open_newest(&checkpoint, write_foreign(list, "{}"), CHECKPOINT_RUN, error)) return -1;
    int result = checkpoint_read_model(&checkpoint, out->model, TENSORS, error);
    checkpoint_close(&checkpoint);
    return result;
}

static TensorList list_of(const TinyModel *tiny) {
    TensorList list = {.count = TENSORS};
    memcpy(list.tensors, tiny->model, sizeof tiny->model);
    return list;
}

static void check_foreign_refused(const TensorList *list, const char *part) {
    TinyModel *out = tiny_model(0);
    Error error = {""};
    CHECK(read_foreign(list, out, &error) == -1);
    CHECK_CONTAINS(error.text, "model.safetensors");
    CHECK_CONTAINS(error.text, part);
    free(out);
}

// Names without the prefix, mask buffers, the tied head written out: what the hub's GPT-2 files have.
static void test_foreign_names(void) {
    TinyModel *tiny = tiny_model(5), *out = tiny_model(0);
    TensorList list = list_of(tiny);
    const float mask[25] = {1};
    Error error = {""};
    for (int i = 0; i < TENSORS; i++) list.tensors[i].name += strlen("transformer.");
    list.tensors[list.count++] = (Tensor){"h.0.attn.bias", DTYPE_F32, 4, {1, 1, 5, 5}, mask};
    list.tensors[list.count++] = (Tensor){"h.0.attn.masked_bias", DTYPE_F32, 0, {0}, mask};
    list.tensors[list.count] = list.tensors[0];
    list.tensors[list.count++].name = "lm_head.weight";
    CHECK(read_foreign(&list, out, &error) == 0);
    CHECK(memcmp(out->numbers, tiny->numbers, sizeof out->numbers) == 0);
    Checkpoint checkpoint;
    CHECK(checkpoint_open(&checkpoint, test_path("foreign"), CHECKPOINT_RUN, &error) == 0 && checkpoint.state == NULL);
    CHECK(checkpoint_read_optimizer(&checkpoint, out->optimizer, 2 * TENSORS, &error) == -1);
    CHECK_CONTAINS(error.text, "--init");
    checkpoint_close(&checkpoint);
    free(tiny);
    free(out);
}

static void test_foreign_dtypes(void) {
    TinyModel *tiny = tiny_model(0), *out = tiny_model(1);
    uint16_t halves[V * C], brains[MAX_T * C];
    double doubles[C];
    for (int i = 0; i < V * C; i++) halves[i] = 0x3c00;
    for (int i = 0; i < MAX_T * C; i++) brains[i] = 0x4000;
    for (int i = 0; i < C; i++) doubles[i] = 3;
    TensorList list = list_of(tiny);
    list.tensors[0].dtype = DTYPE_F16, list.tensors[0].data = halves;
    list.tensors[1].dtype = DTYPE_BF16, list.tensors[1].data = brains;
    list.tensors[2].dtype = DTYPE_F64, list.tensors[2].data = doubles;
    Error error = {""};
    CHECK(read_foreign(&list, out, &error) == 0);
    CHECK(out->numbers[0] == 1 && out->numbers[V * C] == 2 && out->numbers[(V + MAX_T) * C] == 3);
    doubles[1] = 1e300; // beyond float
    CHECK(read_foreign(&list, out, &error) == -1);
    CHECK_CONTAINS(error.text, "found infinity at index 1");
    free(tiny);
    free(out);
}

static void test_bad_tensors(void) {
    TinyModel *tiny = tiny_model(1);
    const TensorList good = list_of(tiny);
    TensorList list = good;
    list.tensors[4] = list.tensors[--list.count];
    check_foreign_refused(&list, "expected a tensor transformer.h.0.attn.c_attn.weight, found none");

    list = good;
    list.tensors[8] = list.tensors[--list.count];
    check_foreign_refused(&list, "expected a tensor transformer.h.0.attn.omega, found none");

    list = good;
    list.tensors[8].shape[1] = 2;
    check_foreign_refused(&list, "tensor transformer.h.0.attn.omega: expected shape (2,3), found (2,2)");

    list = good;
    list.tensors[4].shape[0] = 3 * C, list.tensors[4].shape[1] = C; // transposed
    check_foreign_refused(&list, "expected shape (4,12), found (12,4)");

    list = good;
    list.tensors[2].rank = 2, list.tensors[2].shape[1] = 1;
    check_foreign_refused(&list, "expected shape (4), found (4,1)");

    list = good;
    list.tensors[list.count++] = (Tensor){"transformer.h.1.ln_1.bias", DTYPE_F32, 1, {C}, tiny->numbers};
    check_foreign_refused(&list, "tensor transformer.h.1.ln_1.bias is unknown");

    list = good;
    list.tensors[list.count++] = (Tensor){"ln_f.bias", DTYPE_F32, 1, {C}, tiny->numbers};
    check_foreign_refused(&list, "is there twice");

    list = good;
    list.tensors[3].dtype = DTYPE_I32;
    check_foreign_refused(&list, "tensor transformer.h.0.ln_1.bias: expected F32, F64, F16 or BF16, found I32");

    list = good;
    list.tensors[list.count++] = (Tensor){"lm_head.weight", DTYPE_F32, 2, {V, C}, tiny->moments};
    check_foreign_refused(&list, "untied head");
    free(tiny);
}

// A model of many layers and a file of many tensors that it passes over: each name is looked up, not compared with all
// the others, which would take minutes here.
static void test_many_tensors(void) {
    enum { IN_FILE = 400000, WANTED = 16000, ENTRY_MAX = 96 };
    const char *directory = test_path("many"), *path = test_path("many/model.safetensors");
    char *header = memory_allocate((size_t)IN_FILE * ENTRY_MAX, 1, "a header"), *end = header + 8;
    char(*names)[48] = memory_allocate(WANTED, sizeof *names, "names");
    Tensor *wanted = memory_allocate_zeroed(WANTED, sizeof *wanted, "tensors");
    Checkpoint checkpoint;
    Error error = {""};
    for (int i = 0; i < IN_FILE; i++)
        end += sprintf(end, "%c\"h.%d.attn.bias\":{\"dtype\":\"F32\",\"shape\":[0],\"data_offsets\":[0,0]}",
                       i ? ',' : '{', i);
    *end++ = '}';
    uint64_t length = (uint64_t)(end - header) - 8;
    memcpy(header, &length, sizeof length);
    for (int i = 0; i < WANTED; i++) {
        snprintf(names[i], sizeof names[i], "transformer.h.%d.mlp.c_fc.bias", i);
        wanted[i] = (Tensor){names[i], DTYPE_F32, 1, {C}, NULL};
    }
    CHECK(directory_create(directory, &error) == 0);
    test_write(path, header, (size_t)(end - header));
    test_write(test_path("many/config.json"), "{}", 2);
    CHECK(checkpoint_open(&checkpoint, directory, 0, &error) == 0 && checkpoint.model.count == IN_FILE);
    CHECK(checkpoint_read_model(&checkpoint, wanted, WANTED, &error) == -1);
    CHECK_CONTAINS(error.text, "expected a tensor transformer.h.0.mlp.c_fc.bias, found none of that name");
    checkpoint_close(&checkpoint);
    free(header), free(names), free(wanted);
}

// Without a place for the numbers only names, types and shapes are looked at.
static void test_shapes_alone(void) {
    const char *run = fresh_run();
    TinyModel *tiny = tiny_model(0);
    Checkpoint checkpoint;
    Error error = {""};
    CHECK(save(run, 1, 1, NULL, &error) == 0 && checkpoint_open_newest(&checkpoint, run, CHECKPOINT_RUN, &error) == 0);
    for (int i = 0; i < TENSORS; i++) tiny->model[i].data = NULL;
    for (int i = 0; i < 2 * TENSORS; i++) tiny->optimizer[i].data = NULL;
    CHECK(checkpoint_read_model(&checkpoint, tiny->model, TENSORS, &error) == 0);
    CHECK(checkpoint_read_optimizer(&checkpoint, tiny->optimizer, 2 * TENSORS, &error) == 0);
    tiny->model[1].shape[0] = tiny->optimizer[3].shape[0] = 1 << 20;
    CHECK(checkpoint_read_model(&checkpoint, tiny->model, TENSORS, &error) == -1);
    CHECK_CONTAINS(error.text, "tensor transformer.wpe.weight: expected shape (1048576,4), found (5,4)");
    CHECK(checkpoint_read_optimizer(&checkpoint, tiny->optimizer, 2 * TENSORS, &error) == -1);
    CHECK_CONTAINS(error.text, "tensor transformer.wpe.weight.v: expected shape (1048576,4), found (5,4)");
    checkpoint_close(&checkpoint);
    free(tiny);
}

// The weights of a model with another attention can be had without its constants; a softmax model has none to leave
// out.
static void test_constants_left_out(void) {
    TinyModel *expected = tiny_model(6), *out = tiny_model(0);
    const char *run = fresh_run();
    Error error = {""};
    TensorList wanted = list_of(out);
    memmove(&wanted.tensors[8], &wanted.tensors[9], (size_t)(--wanted.count - 8) * sizeof *wanted.tensors);
    Checkpoint checkpoint;
    CHECK(save(run, 1, 6, NULL, &error) == 0 && checkpoint_open_newest(&checkpoint, run, CHECKPOINT_RUN, &error) == 0);
    CHECK(checkpoint_read_model(&checkpoint, wanted.tensors, wanted.count, &error) == 0);
    checkpoint_close(&checkpoint);
    memcpy((float *)out->model[8].data, expected->model[8].data, tensor_bytes(&out->model[8]));
    CHECK(memcmp(out->numbers, expected->numbers, sizeof out->numbers) == 0);
    CHECK(save_with(NULL, run, 1, 6, NULL, &error) == 0 &&
          checkpoint_open_newest(&checkpoint, run, CHECKPOINT_RUN, &error) == 0);
    CHECK(checkpoint_read_model(&checkpoint, wanted.tensors, wanted.count, &error) == -1);
    CHECK_CONTAINS(error.text, "tensor transformer.h.0.attn.omega is unknown");
    checkpoint_close(&checkpoint);
    free(expected);
    free(out);
}

static void test_not_finite(void) {
    for (int i = 0; i < TENSORS; i++) {
        TinyModel *tiny = tiny_model(1);
        TensorList list = list_of(tiny);
        uint64_t last = tensor_elements(&list.tensors[i]) - 1;
        char message[64];
        ((float *)list.tensors[i].data)[last] = NAN;
        snprintf(message, sizeof message, "found NaN at index %d", (int)last);
        check_foreign_refused(&list, message);
        check_foreign_refused(&list, layout[i].name);
        free(tiny);
    }
}

static void test_bad_optimizer(void) {
    TinyModel *tiny = tiny_model(1);
    json_t *empty = json_object();
    CheckpointContents contents = {empty, empty, tiny->model, TENSORS, tiny->optimizer, 2 * TENSORS - 1, NULL, 0};
    Error error = {""};
    Checkpoint checkpoint;
    const char *run = fresh_run();
    CHECK(checkpoint_save(run, 1, &contents, &error) == 0 &&
          checkpoint_open_newest(&checkpoint, run, CHECKPOINT_RUN, &error) == 0);
    CHECK(checkpoint_read_optimizer(&checkpoint, tiny->optimizer, 2 * TENSORS, &error) == -1);
    CHECK_CONTAINS(error.text, "expected a tensor transformer.ln_f.bias.v, found none");
    CHECK(checkpoint_read_optimizer(&checkpoint, tiny->optimizer, 2 * TENSORS - 2, &error) == -1);
    CHECK_CONTAINS(error.text, "tensor transformer.ln_f.bias.m is unknown");
    checkpoint_close(&checkpoint);
    tiny->optimizer[3].dtype = DTYPE_BF16;
    contents.optimizer_count = 2 * TENSORS;
    CHECK(checkpoint_save(run, 1, &contents, &error) == 0 &&
          checkpoint_open_newest(&checkpoint, run, CHECKPOINT_RUN, &error) == 0);
    CHECK(checkpoint_read_optimizer(&checkpoint, tiny->optimizer, 2 * TENSORS, &error) == -1);
    CHECK_CONTAINS(error.text, "tensor transformer.wpe.weight.v: expected F32, found BF16");
    checkpoint_close(&checkpoint);
    json_decref(empty);
    free(tiny);
}

// ---- models in several files

// Writes the tiny model as two files, `map_text` as their index.
static const char *write_parts(const TinyModel *tiny, const char *map_text) {
    TensorList first = {.count = 2}, rest = {.count = TENSORS - 2};
    char path[600], index[2000];
    Error error = {""};
    memcpy(first.tensors, tiny->model, 2 * sizeof *tiny->model);
    memcpy(rest.tensors, tiny->model + 2, (TENSORS - 2) * sizeof *tiny->model);
    const char *directory = write_foreign(&first, "{}");
    char whole[600];
    snprintf(whole, sizeof whole, "%s/model.safetensors", directory);
    snprintf(path, sizeof path, "%s/a.safetensors", directory);
    CHECK(rename(whole, path) == 0);
    snprintf(path, sizeof path, "%s/b.safetensors", directory);
    CHECK(safetensors_write(path, rest.tensors, rest.count, NULL, &error) == 0);
    snprintf(path, sizeof path, "%s/model.safetensors.index.json", directory);
    test_write(path, index, (size_t)snprintf(index, sizeof index, "{\"weight_map\": {%s}}", map_text));
    return directory;
}

// Where each tensor is: `place` for number `odd`, the right place for the others, the last one left out if `omits`.
static const char *index_text(const TinyModel *tiny, int odd, const char *place, int omits) {
    static char text[1600];
    size_t used = 0;
    for (int i = 0; i < TENSORS - omits; i++)
        used +=
            (size_t)snprintf(text + used, sizeof text - used, "%s\"%s\": \"%s\"", i ? ", " : "", tiny->model[i].name,
                             i == odd ? place
                             : i < 2  ? "a.safetensors"
                                      : "b.safetensors");
    CHECK(used < sizeof text);
    return text;
}

static void check_parts_refused(const TinyModel *tiny, const char *map_text, const char *part) {
    Checkpoint checkpoint;
    Error error = {""};
    CHECK(checkpoint_open(&checkpoint, write_parts(tiny, map_text), CHECKPOINT_WEIGHTS, &error) == -1);
    CHECK_CONTAINS(error.text, part);
}

static void test_parts(void) {
    TinyModel *tiny = tiny_model(5), *out = tiny_model(0);
    Checkpoint checkpoint;
    Error error = {""};
    const char *directory = write_parts(tiny, index_text(tiny, -1, "", 0));
    CHECK(checkpoint_open(&checkpoint, directory, CHECKPOINT_WEIGHTS, &error) == 0);
    CHECK(checkpoint_read_model(&checkpoint, out->model, TENSORS, &error) == 0);
    CHECK(memcmp(out->numbers, tiny->numbers, sizeof out->numbers) == 0);
    checkpoint_close(&checkpoint);
    check_parts_refused(tiny, index_text(tiny, 3, "a.safetensors", 0), "found none of that name");
    check_parts_refused(tiny, index_text(tiny, 3, "c.safetensors", 0), "c.safetensors");
    check_parts_refused(tiny, index_text(tiny, 3, "../b.safetensors", 0), "files beside it, found ../b.safetensors");
    check_parts_refused(tiny, index_text(tiny, -1, "", 1), "they are of another model");
    check_parts_refused(tiny, "\"x\": 3", "expected the name of a file");
    check_parts_refused(tiny, "", "expected a \"weight_map\"");
    free(tiny);
    free(out);
}

static void check_directory_refused(const char *path, const char *part) {
    Checkpoint checkpoint;
    Error error = {""};
    CHECK(checkpoint_open_newest(&checkpoint, path, CHECKPOINT_RUN, &error) == -1);
    CHECK_CONTAINS(error.text, path);
    CHECK_CONTAINS(error.text, part);
    CHECK(checkpoint.path == NULL && checkpoint.config == NULL);
}

static void test_bad_directories(void) {
    const char *directory = test_path("odd");
    char config[600], other[600], html[] = "<!DOCTYPE html><html>not here</html>";
    snprintf(config, sizeof config, "%s/config.json", directory);
    check_directory_refused(directory, "found nothing of that name");
    CHECK(mkfifo(directory, 0600) == 0);
    check_directory_refused(directory, "expected a checkpoint directory");
    CHECK(unlink(directory) == 0);
    test_write(directory, html, strlen(html));
    check_directory_refused(directory, "expected a checkpoint directory");
    CHECK(unlink(directory) == 0 && mkdir(directory, 0777) == 0);
    check_directory_refused(directory, "expected model.safetensors, found neither a model nor checkpoints");
    test_write(config, "{}", 2);
    snprintf(other, sizeof other, "%s/pytorch_model.bin", directory);
    test_write(other, "x", 1);
    check_directory_refused(directory, "safe_serialization=True");
    snprintf(other, sizeof other, "%s/model.safetensors.index.json", directory);
    test_write(other, "{}", 2);
    check_directory_refused(directory, "expected a \"weight_map\"");
    snprintf(other, sizeof other, "%s/model.safetensors", directory);
    test_write(other, html, strlen(html));
    check_directory_refused(directory, "web page");
    test_write(config, html, strlen(html));
    check_directory_refused(directory, "config.json: not valid JSON");
    test_write(config, "[]", 2);
    check_directory_refused(directory, "expected a JSON object");
    test_write(config, "{\"n_head\": 1, \"n_head\": 2}", 26);
    check_directory_refused(directory, "duplicate");
    CHECK(unlink(config) == 0 && mkfifo(config, 0600) == 0);
    check_directory_refused(directory, "expected a regular file");
    char deep[4000];
    memset(deep, '[', sizeof deep);
    CHECK(unlink(config) == 0);
    test_write(config, deep, sizeof deep);
    check_directory_refused(directory, "depth");
}

// ---- configurations

static int read_config(GPT2Config *config, json_t *json, Error *error) {
    int result = gpt2_config_from_json(config, json, "config.json", error);
    json_decref(json);
    return result;
}

// A good configuration with one entry changed has to be refused.
static void check_config_refused(const char *key, json_t *value, const char *part) {
    GPT2Config config;
    Error error = {""};
    json_t *json = gpt2_config_to_json(&tiny_config, NULL);
    if (value)
        json_object_set_new(json, key, value);
    else
        json_object_del(json, key);
    CHECK(read_config(&config, json, &error) == -1);
    CHECK_CONTAINS(error.text, "config.json");
    CHECK_CONTAINS(error.text, key);
    CHECK_CONTAINS(error.text, part);
}

static void test_config_sizes(void) {
    static const char *const keys[] = {"n_positions", "vocab_size", "n_layer", "n_head", "n_embd"};
    for (int i = 0; i < 5; i++) {
        check_config_refused(keys[i], json_integer(0), "found 0");
        check_config_refused(keys[i], json_integer(-1), "found -1");
        check_config_refused(keys[i], json_integer(2147483647), "found 2147483647");
        check_config_refused(keys[i], json_integer(4294967297), "found 4294967297");
        check_config_refused(keys[i], json_integer(INT64_MIN), "expected 1 to");
        check_config_refused(keys[i], json_real(4.0), "whole number");
        check_config_refused(keys[i], json_string("4"), "whole number");
        check_config_refused(keys[i], json_null(), "whole number");
        check_config_refused(keys[i], NULL, "found nothing");
    }
    check_config_refused("n_head", json_integer(3), "multiple of n_head = 3, found 4");
    check_config_refused("n_embd", json_integer(5), "multiple of n_head = 2, found 5");
    GPT2Config config;
    Error error = {""};
    CHECK(read_config(&config, json_integer(3), &error) == -1);
}

static void test_config_variants(void) {
    check_config_refused("activation_function", json_string("relu"), "found relu");
    check_config_refused("activation_function", json_integer(1), "expected gelu_new");
    check_config_refused("layer_norm_epsilon", json_real(1e-6), "found 1e-06");
    check_config_refused("layer_norm_epsilon", json_string("1e-5"), "expected 1e-05");
    check_config_refused("n_inner", json_integer(3 * C), "expected null or 4 * n_embd = 16");
    check_config_refused("n_inner", json_real(4 * C), "expected null");
    check_config_refused("scale_attn_weights", json_false(), "expected true");
    check_config_refused("tie_word_embeddings", json_false(), "expected true");
    check_config_refused("scale_attn_by_inverse_layer_idx", json_true(), "expected false");
    check_config_refused("reorder_and_upcast_attn", json_true(), "expected false");
    check_config_refused("add_cross_attention", json_integer(1), "expected false");
    check_config_refused("model_type", json_string("llama"), "found llama");
    check_config_refused("model_type", NULL, "found none");
    check_config_refused("model_type", json_string("slay-gpt2"), "expected another attention");
    check_config_refused("attention", json_pack("{s:s}", "name", "slay"), "found attention slay");
    check_config_refused("attention", json_pack("{s:i}", "name", 3), "an object with a name");
    check_config_refused("attention", json_string("slay"), "an object with a name");
}

static void test_config_accepted(void) {
    GPT2Config config = {0};
    Error error = {""};
    const GPT2Config small = {.max_T = 1024, .V = 50257, .L = 12, .NH = 12, .C = 768};
    // As the hub has it: no epsilon is far from the default, dropout is the trainer's affair.
    json_t *hub = json_pack("{s:s, s:i, s:i, s:i, s:i, s:i, s:f, s:f, s:s}", "model_type", "gpt2", "n_positions", 1024,
                            "vocab_size", 50257, "n_layer", 12, "n_head", 12, "n_embd", 768, "layer_norm_epsilon",
                            1e-05, "attn_pdrop", 0.1, "activation_function", "gelu_new");
    CHECK(read_config(&config, hub, &error) == 0 && memcmp(&config, &small, sizeof config) == 0);
    CHECK(gpt2_config_parameters(&small) == 124439808);
    json_t *json = gpt2_config_to_json(&tiny_config, NULL);
    json_object_set_new(json, "n_inner", json_integer(4 * C));
    json_object_set_new(json, "activation_function", json_string("gelu_pytorch_tanh"));
    CHECK(read_config(&config, json, &error) == 0 && memcmp(&config, &tiny_config, sizeof config) == 0);
}

static void test_model_type(void) {
    json_t *softmax = json_pack("{s:s}", "name", "softmax"), *slay = json_pack("{s:s, s:i}", "name", "slay", "M", 16);
    json_t *plain = gpt2_config_to_json(&tiny_config, softmax), *other = gpt2_config_to_json(&tiny_config, slay);
    CHECK(strcmp(json_string_value(json_object_get(plain, "model_type")), "gpt2") == 0);
    CHECK(gpt2_config_attention(plain) == NULL && json_object_get(plain, "attention") == NULL);
    CHECK(strcmp(json_string_value(json_object_get(other, "model_type")), "slay-gpt2") == 0);
    CHECK(json_equal(gpt2_config_attention(other), slay));
    CHECK(!json_object_get(plain, "auto_map") && json_object_get(other, "auto_map"));
    GPT2Config config;
    Error error = {""};
    CHECK(read_config(&config, plain, &error) == 0 && read_config(&config, other, &error) == 0);
    json_decref(softmax);
    json_decref(slay);
}

// Takes over the reference to `attention`.
static json_t *config_with(int positions, json_t *attention) {
    GPT2Config config = tiny_config;
    config.positions = positions;
    json_t *json = gpt2_config_to_json(&config, attention);
    json_decref(attention);
    return json;
}

// What GPT-2 does not have makes another model type: options of softmax, a list, no positions.
static void check_other_model(int positions, json_t *attention) {
    GPT2Config found, expected = tiny_config;
    Error error = {""};
    expected.positions = positions;
    json_t *copy = json_deep_copy(attention), *json = config_with(positions, attention);
    CHECK(strcmp(json_string_value(json_object_get(json, "model_type")), "slay-gpt2") == 0);
    CHECK_CONTAINS(json_string_value(json_array_get(json_object_get(json, "architectures"), 0)), "Slay");
    CHECK((json_object_get(json, "positions") != NULL) == (positions != POSITIONS_LEARNED));
    CHECK(copy ? json_equal(gpt2_config_attention(json), copy) : gpt2_config_attention(json) == NULL);
    CHECK(gpt2_config_from_json(&found, json, "config.json", &error) == 0);
    CHECK(memcmp(&found, &expected, sizeof found) == 0);
    json_object_set_new(json, "model_type", json_string("gpt2"));
    CHECK(read_config(&found, json, &error) == -1);
    CHECK_CONTAINS(error.text, "model_type gpt2 means softmax attention and learned positions");
    json_decref(copy);
}

static json_t *softmax_and_slay(void) {
    return json_pack("[{s:s, s:i}, {s:s, s:i}]", "name", "softmax", "layers", 2, "name", "slay", "M", 16);
}

static void test_other_models(void) {
    check_other_model(POSITIONS_NONE, NULL);
    check_other_model(POSITIONS_NONE, json_pack("{s:s}", "name", "slay"));
    check_other_model(POSITIONS_LEARNED, json_pack("{s:s, s:i}", "name", "softmax", "window", 8));
    check_other_model(POSITIONS_LEARNED, json_pack("{s:s, s:s}", "name", "softmax", "decay", "learned"));
    check_other_model(POSITIONS_LEARNED, json_pack("[{s:s}]", "name", "softmax"));
    check_other_model(POSITIONS_LEARNED, softmax_and_slay());
    check_other_model(POSITIONS_NONE, softmax_and_slay());
    const GPT2Config none = {.max_T = MAX_T, .V = V, .L = 1, .NH = 2, .C = C, .positions = POSITIONS_NONE};
    CHECK(gpt2_config_parameters(&none) == gpt2_config_parameters(&tiny_config) - MAX_T * C);
}

// In a model that is no GPT-2 for another reason already.
static void check_positions_refused(json_t *value) {
    GPT2Config config;
    Error error = {""};
    json_t *json = config_with(POSITIONS_LEARNED, json_pack("{s:s}", "name", "slay"));
    json_object_set_new(json, "positions", value);
    CHECK(read_config(&config, json, &error) == -1);
    CHECK_CONTAINS(error.text, "positions: expected one of learned|none, found something else");
}

static void test_hostile_positions(void) {
    static const char *const words[] = {"", "rotary", "None", "non", "nonee", "learned|none", "|"};
    for (size_t i = 0; i < sizeof words / sizeof *words; i++) check_positions_refused(json_string(words[i]));
    check_positions_refused(json_integer(1));
    check_positions_refused(json_true());
    check_positions_refused(json_null());
    check_positions_refused(json_pack("[s]", "none"));
    check_positions_refused(json_pack("{s:s}", "name", "none"));
    check_config_refused("positions", json_string("none"), "found positions of another kind");
    check_config_refused("attention", json_array(), "an object with a name");
    check_config_refused("attention", json_pack("[[{s:s}]]", "name", "slay"), "an object with a name");
    check_config_refused("attention", json_pack("[s]", "softmax"), "an object with a name");
    check_config_refused("attention", softmax_and_slay(), "found attention softmax");
}

// Its attention comes back from the disk as it was, and its constants can be left out as those of one attention can.
static void test_list_of_attentions(void) {
    const char *run = fresh_run();
    Checkpoint checkpoint;
    GPT2Config config;
    Error error = {""};
    CHECK(save_with(softmax_and_slay(), run, 1, 3, NULL, &error) == 0 && version_at(run) == 3);
    CHECK(checkpoint_open_newest(&checkpoint, run, CHECKPOINT_RUN, &error) == 0);
    json_t *expected = softmax_and_slay();
    CHECK(json_equal(gpt2_config_attention(checkpoint.config), expected));
    CHECK(gpt2_config_from_json(&config, checkpoint.config, run, &error) == 0);
    json_decref(expected);
    TinyModel *tiny = tiny_model(0);
    TensorList wanted = list_of(tiny);
    memmove(&wanted.tensors[8], &wanted.tensors[9], (size_t)(--wanted.count - 8) * sizeof *wanted.tensors);
    CHECK(checkpoint_read_model(&checkpoint, wanted.tensors, wanted.count, &error) == 0);
    checkpoint_close(&checkpoint);
    free(tiny);
}

// `test_checkpoint --make RUN` leaves a softmax run with two checkpoints, for test_inspect.sh.
static int make_run(const char *run) {
    Error error;
    for (int step = 1; step <= 2; step++) die_if(save_with(NULL, run, step, step, NULL, &error), &error);
    return 0;
}

int main(int argc, char **argv) {
    if (argc == 3 && strcmp(argv[1], "--make") == 0) return make_run(argv[2]);
    test_directory_make();
    RUN(test_round_trip);
    RUN(test_only_what_is_needed);
    RUN(test_adds_bos);
    RUN(test_list_and_prune);
    RUN(test_prune_spares_what_is_not_ours);
    RUN(test_newest_that_verifies);
    RUN(test_kill_while_replacing);
    RUN(test_kill_while_saving_another);
    RUN(test_kill_after_kill);
    RUN(test_kill_at_random);
    RUN(test_no_space);
    RUN(test_input_output_error);
    RUN(test_prune_killed);
    RUN(test_too_large_for_the_disk);
    RUN(test_unwritable_place);
    RUN(test_file_elsewhere);
    RUN(test_every_flipped_bit);
    RUN(test_missing_files);
    RUN(test_foreign_names);
    RUN(test_foreign_dtypes);
    RUN(test_bad_tensors);
    RUN(test_many_tensors);
    RUN(test_shapes_alone);
    RUN(test_constants_left_out);
    RUN(test_not_finite);
    RUN(test_bad_optimizer);
    RUN(test_parts);
    RUN(test_bad_directories);
    RUN(test_config_sizes);
    RUN(test_config_variants);
    RUN(test_config_accepted);
    RUN(test_model_type);
    RUN(test_other_models);
    RUN(test_hostile_positions);
    RUN(test_list_of_attentions);
    return test_summary();
}
