#define _GNU_SOURCE
#include "checkpoint.h"
#include "gpt2_config.h"
#include "modeling.h"
#include "strict.h"
#include "core/base/json.h"
#include "core/base/memory.h"

#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <xxhash.h>

#define CONFIG_FILE           "config.json"
#define MODEL_FILE            "model.safetensors"
#define INDEX_FILE            "model.safetensors.index.json"
#define OPTIMIZER_FILE        "optimizer.safetensors"
#define STATE_FILE            "state.json"
#define TOKENIZER_FILE        "tokenizer.tiktoken"
#define TOKENIZER_CONFIG_FILE "tokenizer_config.json"

enum { TEMPORARY_PLACES = 9 };
static const size_t JSON_BYTES_MAX = 16 << 20;

// ---- names

static char *step_path(const char *run, int64_t step, const char *suffix) {
    char name[64];
    snprintf(name, sizeof name, "step_%08" PRId64 "%s", step, suffix);
    return path_join(run, name);
}

// The step in a name like step_00001000 or step_00001000.old; -1 for any other name, also for temporary directories.
static int64_t step_of_name(const char *name) {
    if (strncmp(name, "step_", 5) != 0) return -1;
    const char *digits = name + 5, *end = digits;
    while (isdigit((unsigned char)*end)) end++;
    if (end - digits < 8 || end - digits > 18) return -1; // 18 digits always fit 63 bits
    return *end == 0 || strcmp(end, ".old") == 0 ? strtoll(digits, NULL, 10) : -1;
}

char *checkpoint_path(const char *run, int64_t step) {
    char *path = step_path(run, step, "");
    if (file_exists(path)) return path;
    char *old = step_path(run, step, ".old");
    int interrupted = file_exists(old);
    free(interrupted ? path : old);
    return interrupted ? old : path;
}

static int compare_steps(const void *left, const void *right) {
    int64_t a = *(const int64_t *)left, b = *(const int64_t *)right;
    return (a > b) - (a < b);
}

int checkpoint_list(int64_t **steps, const char *run) {
    DIR *directory = opendir(run);
    if (!directory && errno != ENOENT && errno != ENOTDIR) // a run that is there must not look empty
        die("%.700s: cannot open the directory: %s", run, strerror(errno));
    int64_t *list = NULL;
    size_t found = 0, kept = 0;
    for (struct dirent *entry; directory && (entry = readdir(directory));) {
        int64_t step = step_of_name(entry->d_name);
        if (step < 0) continue;
        if ((found & (found + 1)) == 0) list = memory_resize(list, 2 * found + 2, sizeof *list, "a list of steps");
        list[found++] = step;
    }
    if (directory) closedir(directory);
    if (found) qsort(list, found, sizeof *list, compare_steps);
    for (size_t i = 0; i < found; i++) // a step may be there twice, once as .old
        if (i == 0 || list[i] != list[i - 1]) list[kept++] = list[i];
    *steps = list;
    return (int)kept;
}

static int has_file(const char *directory, const char *name) {
    char *path = path_join(directory, name);
    int exists = file_exists(path);
    free(path);
    return exists;
}

static int rename_directory(const char *from, const char *to, Error *error) {
    if (rename(from, to) == 0) return 0;
    return error_set(error, "%.400s: cannot rename to %.400s: %s", from, to, strerror(errno));
}

int checkpoint_is(const char *path) {
    char *config = path_join(path, CONFIG_FILE);
    int found = file_look(config);
    if (found < 0) // a run taken for a checkpoint, or the reverse, would be written to in the wrong place
        die("%.700s: expected the disk to say whether it is there, found: %s; try again", config, strerror(errno));
    free(config);
    return found;
}

int checkpoint_move(const char *run, int64_t step, const char *to, Error *error) {
    char *from = checkpoint_path(run, step), *place = step_path(to, step, "");
    int result = rename_directory(from, place, error);
    free(from), free(place);
    return result;
}

// ---- saving

// A file's entry in the state: "xxh3" of all its bytes, or "header_xxh3" for safetensors.
static void add_checksum(json_t *files, const char *name, const char *key, uint64_t checksum) {
    json_put(files, name, json_pack("{s:s}", key, checksum_text(checksum).text));
}

static int write_text(const char *directory, const char *name, const void *text, size_t bytes, json_t *files,
                      Error *error) {
    char *path = path_join(directory, name);
    int result = file_replace(path, text, bytes, error);
    free(path);
    add_checksum(files, name, "xxh3", XXH3_64bits(text, bytes));
    return result;
}

// Readable text with a line end; free() it.
static char *json_to_text(const json_t *json) {
    char *text = json_print(json, JSON_INDENT(2));
    size_t length = strlen(text);
    text = memory_resize(text, length + 2, 1, "JSON text");
    memcpy(text + length, "\n", 2);
    return text;
}

static int write_config(const char *directory, const json_t *config, json_t *files, Error *error) {
    char *text = json_to_text(config);
    int result = write_text(directory, CONFIG_FILE, text, strlen(text), files, error);
    free(text);
    return result;
}

// Writes the tensors and opens the file again: its header is checked as every reader will check it.
static int write_tensors(const char *directory, const char *name, const Tensor *tensors, int count, json_t *files,
                         Error *error) {
    char *path = path_join(directory, name);
    Safetensors written = {0};
    int failed = safetensors_write(path, tensors, count, NULL, error) || safetensors_open(&written, path, error);
    if (!failed) add_checksum(files, name, "header_xxh3", safetensors_header_checksum(&written));
    safetensors_close(&written);
    free(path);
    return failed ? -1 : 0;
}

// The state's own checksum is of its compact text without the entry "checksum".
static uint64_t state_checksum(const json_t *state) {
    json_t *rest = json_made(json_copy((json_t *)state), "a state");
    json_object_del(rest, "checksum");
    char *text = json_print(rest, JSON_COMPACT | JSON_SORT_KEYS);
    uint64_t checksum = XXH3_64bits(text, strlen(text));
    free(text);
    json_decref(rest);
    return checksum;
}

static int write_state(const char *directory, const json_t *given, json_t *files, Error *error) {
    json_t *state = given ? json_copy((json_t *)given) : json_object();
    json_put(state, "files", json_incref(files));
    json_put(state, "checksum", json_string(checksum_text(state_checksum(state)).text));
    char *text = json_to_text(state), *path = path_join(directory, STATE_FILE);
    int result = file_replace(path, text, strlen(text), error);
    json_decref(state);
    free(text);
    free(path);
    return result;
}

static int write_contents(const char *directory, const CheckpointContents *contents, Error *error) {
    json_t *files = json_object();
    int failed = write_config(directory, contents->config, files, error) ||
                 write_tensors(directory, MODEL_FILE, contents->model, contents->model_count, files, error);
    if (!failed && contents->optimizer_count)
        failed = write_tensors(directory, OPTIMIZER_FILE, contents->optimizer, contents->optimizer_count, files, error);
    for (int i = 0; i < contents->file_count && !failed; i++) {
        const MemoryFile *file = &contents->files[i];
        failed = write_text(directory, file->name, file->text, file->bytes, files, error);
    }
    if (!failed && json_object_get(contents->config, "auto_map"))
        failed = write_text(directory, MODELING_FILE, modeling_begin, modeling_bytes(), files, error);
    if (!failed) failed = write_state(directory, contents->state, files, error) || directory_sync(directory, error);
    json_decref(files);
    return failed ? -1 : 0;
}

// The bytes that saving will need, with room for headers and JSON.
static uint64_t contents_bytes(const CheckpointContents *contents) {
    uint64_t total = 1 << 20;
    for (int i = 0; i < contents->model_count; i++) total += tensor_bytes(&contents->model[i]) + 512;
    for (int i = 0; i < contents->optimizer_count; i++) total += tensor_bytes(&contents->optimizer[i]) + 512;
    for (int i = 0; i < contents->file_count; i++) total += contents->files[i].bytes;
    return total;
}

static int remove_if_there(const char *path, Error *error) {
    return file_exists(path) ? directory_remove(path, error) : 0;
}

// Puts the finished directory `fresh` in the place of `final`. Whenever this is interrupted, `final` or `old` is a
// complete checkpoint.
static int install(const char *fresh, const char *final, const char *old, const char *run, Error *error) {
    int replaces = file_exists(final);
    if (replaces && (remove_if_there(old, error) || rename_directory(final, old, error))) return -1;
    if (rename_directory(fresh, final, error)) {
        Error second; // the first error is the one to report
        if (replaces) rename_directory(old, final, &second);
        return -1;
    }
    if (directory_sync(run, error)) return -1;
    Error ignored; // the checkpoint is in its place; what is left of the one before goes with the next pruning
    remove_if_there(old, &ignored);
    return 0;
}

// A place to write a checkpoint in: step_N.tmp, or step_N.tmp2 and so on where what an earlier save left there cannot
// be removed. Fresh memory; NULL when all are taken.
static char *temporary_place(const char *run, int64_t step, Error *error) {
    for (int number = 1; number <= TEMPORARY_PLACES; number++) {
        char suffix[16] = ".tmp";
        if (number > 1) snprintf(suffix, sizeof suffix, ".tmp%d", number);
        char *path = step_path(run, step, suffix);
        if (remove_if_there(path, error) == 0) return path;
        free(path);
    }
    return NULL;
}

int checkpoint_save(const char *run, int64_t step, const CheckpointContents *contents, Error *error) {
    if (directory_create(run, error)) return -1;
    char *fresh = temporary_place(run, step, error);
    if (!fresh) return -1;
    char *final = step_path(run, step, ""), *old = step_path(run, step, ".old");
    int failed = file_check_space(final, contents_bytes(contents), error) || directory_create(fresh, error);
    if (!failed && (write_contents(fresh, contents, error) || install(fresh, final, old, run, error))) {
        Error second;
        remove_if_there(fresh, &second);
        failed = 1;
    }
    free(fresh);
    free(final);
    free(old);
    return failed ? -1 : 0;
}

// Whether a directory holds nothing but plain files: what somebody else put there is not ours to remove.
static int is_ours(const char *path) {
    DIR *directory = opendir(path);
    int ours = directory != NULL;
    for (struct dirent *entry; ours && (entry = readdir(directory));) {
        struct stat status;
        if (!strcmp(entry->d_name, ".") || !strcmp(entry->d_name, "..")) continue;
        ours = fstatat(dirfd(directory), entry->d_name, &status, AT_SYMLINK_NOFOLLOW) == 0 && S_ISREG(status.st_mode);
    }
    if (directory) closedir(directory);
    return ours;
}

// A checkpoint loses its name first, so that one half removed is never taken for a whole one.
static int remove_checkpoint(const char *run, int64_t step, Error *error) {
    char *path = checkpoint_path(run, step), *doomed = NULL;
    int failed = 0;
    if (!is_ours(path))
        failed = error_set(error, "%.700s: not removed: there is more in it than a checkpoint's files", path);
    else if (!(doomed = temporary_place(run, step, error)))
        failed = -1;
    else
        failed = rename_directory(path, doomed, error) || directory_remove(doomed, error);
    free(path);
    free(doomed);
    return failed ? -1 : 0;
}

// step_00001000.tmp, .tmp2, ...: what an interrupted save or removal left; and .old where the step itself is there.
static int is_leftover(const char *run, const char *name) {
    char step[64];
    const char *suffix = strchr(name, '.');
    if (!suffix || (size_t)(suffix - name) >= sizeof step) return 0;
    snprintf(step, sizeof step, "%.*s", (int)(suffix - name), name);
    if (step_of_name(step) < 0) return 0;
    int is_temporary =
        strncmp(suffix, ".tmp", 4) == 0 && (!suffix[4] || (isdigit((unsigned char)suffix[4]) && !suffix[5]));
    return is_temporary || (strcmp(suffix, ".old") == 0 && has_file(run, step));
}

// Goes through all of them; the first failure is the one reported.
static int remove_leftovers(const char *run, Error *error) {
    DIR *directory = opendir(run);
    if (!directory) return error_set(error, "%.700s: cannot open the directory: %s", run, strerror(errno));
    int failed = 0;
    for (struct dirent *entry; (entry = readdir(directory));) {
        Error here;
        if (!is_leftover(run, entry->d_name)) continue;
        char *path = path_join(run, entry->d_name);
        if (directory_remove(path, &here) && !failed) failed = 1, *error = here;
        free(path);
    }
    closedir(directory);
    return failed;
}

int checkpoint_prune(const char *run, int64_t saved, int keep_last, int64_t keep_every, Error *error) {
    int64_t *steps = NULL;
    int failed = remove_leftovers(run, error), count = checkpoint_list(&steps, run);
    for (int i = 0; i < count - keep_last; i++) {
        Error here;
        if (steps[i] == saved || (keep_every > 0 && steps[i] % keep_every == 0)) continue;
        if (remove_checkpoint(run, steps[i], &here) && !failed) failed = 1, *error = here;
    }
    free(steps);
    return failed ? -1 : 0;
}

// ---- opening

// Reads DIRECTORY/NAME as a JSON object; `checksum` receives the XXH3 of its text.
static int read_json(json_t **json, uint64_t *checksum, const char *directory, const char *name, Error *error) {
    char *path = path_join(directory, name), *text = NULL;
    size_t bytes = 0;
    json_error_t why;
    int failed = file_read(&text, &bytes, path, JSON_BYTES_MAX, error);
    if (!failed) {
        *checksum = XXH3_64bits(text, bytes);
        *json = json_loadb(text, bytes, JSON_REJECT_DUPLICATES, &why);
        if (!*json)
            failed = error_set(error, "%.500s: not valid JSON: %.200s (line %d); the file is damaged: use another copy",
                               path, why.text, why.line);
        else if (!json_is_object(*json))
            failed = error_set(error, "%.700s: expected a JSON object; the file is damaged: use another copy", path);
    }
    free(text);
    free(path);
    return failed;
}

// Explains a directory without tensors.
static int refuse_without_model(const char *path, Error *error) {
    const char *found = "neither a model nor checkpoints of a run (step_*)";
    if (has_file(path, "pytorch_model.bin"))
        found = "only pytorch_model.bin; convert it with "
                "from_pretrained(dir).save_pretrained(dir, safe_serialization=True)";
    return error_set(error, "%.600s: expected " MODEL_FILE ", found %s", path, found);
}

static int check_file_checksum(const Checkpoint *checkpoint, const char *name, const char *key, uint64_t found,
                               Error *error) {
    const json_t *entry = json_object_get(json_object_get(checkpoint->state, "files"), name);
    const char *expected = json_string_value(json_object_get(entry, key));
    ChecksumText text = checksum_text(found);
    if (expected && strcmp(expected, text.text) == 0) return 0;
    return error_set(error,
                     "%.500s/%s: expected %s %.16s as " STATE_FILE
                     " says, found %s; use another checkpoint, or remove " STATE_FILE
                     " if the file was changed on purpose",
                     checkpoint->path, name, key, expected ? expected : "(none)", text.text);
}

static int check_whole_file(const Checkpoint *checkpoint, const char *name, Error *error) {
    char *path = path_join(checkpoint->path, name);
    FileMap map = {0};
    int failed = strchr(name, '/') ? error_set(error,
                                               "%.500s/" STATE_FILE ": expected names of files beside it, found "
                                               "%.200s; use another checkpoint",
                                               checkpoint->path, name)
                                   : file_map(&map, path, error);
    if (!failed) failed = check_file_checksum(checkpoint, name, "xxh3", XXH3_64bits(map.data, map.size), error);
    file_unmap(&map);
    free(path);
    return failed;
}

// The vocabulary is always needed; the other files beside the tensors are needed only to vouch for everything.
static int check_whole_files(const Checkpoint *checkpoint, CheckpointNeed need, Error *error) {
    const char *name;
    json_t *entry;
    json_object_foreach(json_object_get(checkpoint->state, "files"), name, entry) {
        int is_checked = !strcmp(name, CONFIG_FILE) || !strcmp(name, MODEL_FILE) || !strcmp(name, OPTIMIZER_FILE);
        int is_needed = need == CHECKPOINT_ALL || !strcmp(name, TOKENIZER_FILE);
        if (!is_checked && is_needed && check_whole_file(checkpoint, name, error)) return -1;
    }
    return 0;
}

static int check_state(const Checkpoint *checkpoint, Error *error) {
    const char *expected = json_string_value(json_object_get(checkpoint->state, "checksum"));
    ChecksumText found = checksum_text(state_checksum(checkpoint->state));
    if (expected && strcmp(expected, found.text) == 0) return 0;
    return error_set(error,
                     "%.500s/" STATE_FILE ": expected checksum %.16s, found %s; the file is damaged: use another "
                     "checkpoint",
                     checkpoint->path, expected ? expected : "(none)", found.text);
}

// Checks what the state says about the other files; the tensors' own checksums stand in the files' headers.
static int check_files(const Checkpoint *checkpoint, CheckpointNeed need, uint64_t config_checksum, Error *error) {
    const json_t *files = json_object_get(checkpoint->state, "files");
    if (checkpoint->model.part_count)
        return error_set(error,
                         "%.600s: expected " MODEL_FILE " as " STATE_FILE " says, found " INDEX_FILE
                         "; remove " STATE_FILE " if the model was replaced on purpose",
                         checkpoint->path);
    uint64_t model = safetensors_header_checksum(&checkpoint->model);
    if (check_file_checksum(checkpoint, CONFIG_FILE, "xxh3", config_checksum, error)) return -1;
    if (check_file_checksum(checkpoint, MODEL_FILE, "header_xxh3", model, error)) return -1;
    if (need >= CHECKPOINT_RUN && json_object_get(files, OPTIMIZER_FILE) && !checkpoint->has_optimizer)
        return error_set(error, "%.600s: expected " OPTIMIZER_FILE ", found none; use another checkpoint",
                         checkpoint->path);
    if (checkpoint->has_optimizer) {
        uint64_t optimizer = safetensors_header_checksum(&checkpoint->optimizer);
        if (check_file_checksum(checkpoint, OPTIMIZER_FILE, "header_xxh3", optimizer, error)) return -1;
    }
    return check_whole_files(checkpoint, need, error);
}

static int open_tensors(Safetensors *file, const char *directory, const char *name, Error *error) {
    char *path = path_join(directory, name);
    int result = safetensors_open(file, path, error);
    free(path);
    return result;
}

// The index of a model in several files: "weight_map" says which tensor is in which.
static int open_parts(Safetensors *model, const char *directory, Error *error) {
    json_t *index = NULL;
    uint64_t unused;
    char *path = path_join(directory, INDEX_FILE);
    int failed = read_json(&index, &unused, directory, INDEX_FILE, error) ||
                 safetensors_open_parts(model, path, directory, json_object_get(index, "weight_map"), error);
    json_decref(index);
    free(path);
    return failed ? -1 : 0;
}

// The state vouches for the configuration and the headers, these for the tensors.
static int check_strictly(const Checkpoint *checkpoint, Error *error) {
    int has_optimizers = !checkpoint->has_optimizer || safetensors_has_checksums(&checkpoint->optimizer);
    if (strict_check(checkpoint->state != NULL, checkpoint->path, "no " STATE_FILE " with them", error)) return -1;
    return strict_check(safetensors_has_checksums(&checkpoint->model) && has_optimizers, checkpoint->path,
                        "tensors without", error);
}

static int open_files(Checkpoint *checkpoint, CheckpointNeed need, Error *error) {
    const char *path = checkpoint->path;
    uint64_t config_checksum = 0, unused = 0;
    int is_whole = has_file(path, MODEL_FILE);
    if (!is_whole && !has_file(path, INDEX_FILE)) return refuse_without_model(path, error);
    if (read_json(&checkpoint->config, &config_checksum, path, CONFIG_FILE, error)) return -1;
    if (has_file(path, STATE_FILE) &&
        (read_json(&checkpoint->state, &unused, path, STATE_FILE, error) || check_state(checkpoint, error)))
        return -1;
    if (is_whole ? open_tensors(&checkpoint->model, path, MODEL_FILE, error)
                 : open_parts(&checkpoint->model, path, error))
        return -1;
    checkpoint->has_optimizer = need >= CHECKPOINT_RUN && has_file(path, OPTIMIZER_FILE);
    if (checkpoint->has_optimizer && open_tensors(&checkpoint->optimizer, path, OPTIMIZER_FILE, error)) return -1;
    if (checkpoint->state && check_files(checkpoint, need, config_checksum, error)) return -1;
    if (safetensors_verify(&checkpoint->model, error) || check_strictly(checkpoint, error)) return -1;
    return checkpoint->has_optimizer ? safetensors_verify(&checkpoint->optimizer, error) : 0;
}

int checkpoint_open(Checkpoint *checkpoint, const char *path, CheckpointNeed need, Error *error) {
    *checkpoint = (Checkpoint){0};
    if (!file_exists(path)) return error_set(error, "%.700s: expected a checkpoint, found nothing of that name", path);
    if (!file_is_directory(path))
        return error_set(error, "%.700s: expected a checkpoint directory, found something else", path);
    checkpoint->path = memory_copy_string(path);
    if (open_files(checkpoint, need, error) == 0) return 0;
    checkpoint_close(checkpoint);
    return -1;
}

void checkpoint_close(Checkpoint *checkpoint) {
    free(checkpoint->path);
    json_decref(checkpoint->config);
    json_decref(checkpoint->state);
    safetensors_close(&checkpoint->model);
    safetensors_close(&checkpoint->optimizer);
    *checkpoint = (Checkpoint){0};
}

int checkpoint_open_newest(Checkpoint *checkpoint, const char *path, CheckpointNeed need, Error *error) {
    int64_t *steps = NULL;
    int count = has_file(path, CONFIG_FILE) ? 0 : checkpoint_list(&steps, path);
    if (count == 0) {
        free(steps);
        return checkpoint_open(checkpoint, path, need, error);
    }
    int result = -1;
    for (int i = count - 1; i >= 0 && result != 0; i--) {
        char *candidate = checkpoint_path(path, steps[i]);
        result = checkpoint_open(checkpoint, candidate, need, error);
        if (result == 0 && i < count - 1) warn("continuing from %s, the newest checkpoint that verifies", candidate);
        if (result != 0 && i > 0) warn("%s (trying the checkpoint before it)", error->text);
        free(candidate);
    }
    free(steps);
    return result;
}

// ---- reading

char *checkpoint_tokenizer(const Checkpoint *checkpoint) {
    return has_file(checkpoint->path, TOKENIZER_FILE) ? path_join(checkpoint->path, TOKENIZER_FILE) : NULL;
}

int checkpoint_adds_bos(const Checkpoint *checkpoint, int *adds, Error *error) {
    json_t *config = NULL;
    uint64_t unused;
    if (has_file(checkpoint->path, TOKENIZER_CONFIG_FILE) &&
        read_json(&config, &unused, checkpoint->path, TOKENIZER_CONFIG_FILE, error)) {
        json_decref(config);
        return -1;
    }
    const json_t *said = json_object_get(config, "add_bos_token");
    *adds = json_is_boolean(said) ? json_is_true(said) : checkpoint->state != NULL;
    json_decref(config);
    return 0;
}

static const char *without_prefix(const char *name) {
    static const char prefix[] = "transformer.";
    return strncmp(name, prefix, sizeof prefix - 1) == 0 ? name + sizeof prefix - 1 : name;
}

static int ends_with(const char *text, const char *end) {
    size_t length = strlen(text), tail = strlen(end);
    return length >= tail && strcmp(text + length - tail, end) == 0;
}

// The causal masks that older versions of transformers saved as if they were weights.
static int is_mask_buffer(const char *name) {
    return ends_with(name, ".attn.bias") || ends_with(name, ".attn.masked_bias");
}

// A constant of an attention: h.LAYER.attn.NAME, where the weights of that place have one part more.
static int is_attention_constant(const char *name) {
    int layer = 0, used = 0;
    name = without_prefix(name);
    return sscanf(name, "h.%9d.attn.%n", &layer, &used) == 1 && used > 0 && !strchr(name + used, '.');
}

// Are the constants to be passed over? Yes, if the model's attention is not softmax and only its weights are wanted, to
// go on with another mechanism.
static int skips_constants(const Checkpoint *checkpoint, const Tensor *wanted, int count) {
    for (int i = 0; i < count; i++)
        if (is_attention_constant(wanted[i].name)) return 0;
    return gpt2_config_attention(checkpoint->config) != NULL;
}

// A wanted tensor and the file's tensor of that name, prefix aside; NULL until it is found.
typedef struct {
    const Tensor *wanted, *found;
} Match;

static int compare_names(const void *left, const void *right) {
    const Match *a = left, *b = right;
    return strcmp(without_prefix(a->wanted->name), without_prefix(b->wanted->name));
}

// In order of their names, for find_match: a file may have hundreds of thousands of tensors. free() the list.
static Match *list_matches(const Tensor *wanted, int count) {
    Match *matches = memory_allocate_zeroed((size_t)count, sizeof *matches, "a tensor list");
    for (int i = 0; i < count; i++) matches[i].wanted = &wanted[i];
    qsort(matches, (size_t)count, sizeof *matches, compare_names);
    return matches;
}

static Match *find_match(Match *matches, int count, const Tensor *tensor) {
    const Match key = {.wanted = tensor};
    return bsearch(&key, matches, (size_t)count, sizeof *matches, compare_names);
}

static int check_tied_head(const Safetensors *file, const Tensor *head, Error *error) {
    const Tensor *wte = safetensors_find(file, "transformer.wte.weight");
    if (!wte) wte = safetensors_find(file, "wte.weight");
    if (wte && wte->dtype == head->dtype && tensor_bytes(wte) == tensor_bytes(head) &&
        memcmp(wte->data, head->data, tensor_bytes(head)) == 0)
        return 0;
    return error_set(error,
                     "%.600s: tensor lm_head.weight: expected the same numbers as wte.weight, found others; models "
                     "with an untied head are not supported",
                     file->path);
}

// Is it all right that nobody wants this tensor of the file?
static int check_unwanted(const Safetensors *file, const Tensor *tensor, int skip_constants, Error *error) {
    if (strcmp(tensor->name, "lm_head.weight") == 0) return check_tied_head(file, tensor, error);
    if (is_mask_buffer(tensor->name) || (skip_constants && is_attention_constant(tensor->name))) return 0;
    return error_set(error, "%.500s: tensor %s is unknown to this model; is it one of another kind?", file->path,
                     tensor->name);
}

// Finds the file's tensor for each that is wanted.
static int match_tensors(Match *matches, int count, const Safetensors *file, int skip_constants, Error *error) {
    for (int i = 0; i < file->count; i++) {
        const Tensor *tensor = &file->tensors[i];
        Match *match = find_match(matches, count, tensor);
        if (match && match->found)
            return error_set(error,
                             "%.500s: tensor %s is there twice, with and without its prefix; the file is damaged",
                             file->path, tensor->name);
        if (match)
            match->found = tensor;
        else if (check_unwanted(file, tensor, skip_constants, error))
            return -1;
    }
    for (int i = 0; i < count; i++)
        if (!matches[i].found)
            return error_set(error,
                             "%.500s: expected a tensor %.255s, found none of that name; the model is incomplete or "
                             "of another kind",
                             file->path, matches[i].wanted->name);
    return 0;
}

static int check_tensor(const Tensor *wanted, const Tensor *found, const char *path, Error *error) {
    if (!tensor_is_float(found))
        return error_set(error, "%.500s: tensor %s: expected F32, F64, F16 or BF16, found %s", path, found->name,
                         dtype_name(found->dtype));
    if (found->rank != wanted->rank ||
        memcmp(found->shape, wanted->shape, (size_t)found->rank * sizeof *found->shape) != 0) {
        char expected[192], is[192];
        return error_set(error,
                         "%.300s: tensor %s: expected shape %s, found %s; the sizes in config.json are of another "
                         "model",
                         path, found->name, tensor_shape_text(wanted, expected, sizeof expected),
                         tensor_shape_text(found, is, sizeof is));
    }
    return 0;
}

static int read_tensor(const Tensor *wanted, const Tensor *found, const char *path, Error *error) {
    tensor_to_floats((float *)wanted->data, found);
    return floats_check_finite(wanted->data, tensor_elements(found), path, found->name, error);
}

// All names and shapes first, then the numbers of those tensors that have a place to go to.
static int read_tensors(const Safetensors *file, const Tensor *wanted, int count, int skip_constants, Error *error) {
    Match *matches = list_matches(wanted, count);
    int failed = match_tensors(matches, count, file, skip_constants, error);
    for (int i = 0; i < count && !failed; i++)
        failed = check_tensor(matches[i].wanted, matches[i].found, file->path, error);
    for (int i = 0; i < count && !failed; i++)
        if (matches[i].wanted->data) failed = read_tensor(matches[i].wanted, matches[i].found, file->path, error);
    free(matches);
    return failed;
}

int checkpoint_read_model(const Checkpoint *checkpoint, const Tensor *wanted, int count, Error *error) {
    return read_tensors(&checkpoint->model, wanted, count, skips_constants(checkpoint, wanted, count), error);
}

int checkpoint_read_optimizer(const Checkpoint *checkpoint, const Tensor *wanted, int count, Error *error) {
    if (!checkpoint->has_optimizer)
        return error_set(error,
                         "%.600s: expected " OPTIMIZER_FILE ", found none; a model without it can start a run "
                         "(--init) but not continue one (--resume)",
                         checkpoint->path);
    const Safetensors *file = &checkpoint->optimizer;
    for (int i = 0; i < file->count; i++)
        if (file->tensors[i].dtype != DTYPE_F32)
            return error_set(error,
                             "%.500s: tensor %s: expected F32, found %s; the optimizer's state is read exactly or not "
                             "at all",
                             file->path, file->tensors[i].name, dtype_name(file->tensors[i].dtype));
    return read_tensors(file, wanted, count, 0, error);
}
