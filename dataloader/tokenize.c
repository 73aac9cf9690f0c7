// tokenize: text to token shards and back, and training of vocabularies. docs/tokenizer.md tells the whole story.
#define _GNU_SOURCE
#include "dataloader.h"
#include "shard.h"
#include "text_reader.h"
#include "tokenizer.h"
#include "tokenizer_train.h"
#include "core/base/json.h"
#include "core/base/memory.h"
#include "core/base/options.h"
#include "core/base/progress.h"
#include "core/base/random.h"

#include <errno.h>
#include <math.h>
#include <omp.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <xxhash.h>

typedef struct { // what the subcommands share
    const char *vocab_file, *out, *validation_file, *floor_file;
    int vocab, threads, ids, null_separated, validation_every;
    float validation;
    int64_t shard_tokens, seed;
    const char **files; // ends with NULL
    int file_count;
} Arguments;

// ---- small things

static int is_option_given(Options *options, const char *name) {
    return options_find(options, name)->given;
}

static void require_option(const void *value, const char *name, const char *hint) {
    if (!value) die("option --%s is needed: %s; see --help", name, hint);
}

// Parses a subcommand's options (argv[0] is its name); words that are no options are files.
static void parse_arguments(Arguments *arguments, Options *options, int argc, char **argv) {
    Error error;
    arguments->files = memory_allocate_zeroed((size_t)argc + 1, sizeof(char *), "the file names");
    die_if(options_parse(options, argc, argv, arguments->files, argc, &arguments->file_count, &error), &error);
    if (arguments->threads < 1) arguments->threads = omp_get_max_threads();
}

static Tokenizer *load_tokenizer(const Arguments *arguments) {
    Error error;
    Tokenizer *tokenizer;
    require_option(arguments->vocab_file, "vocab-file",
                   "a vocabulary in tiktoken's format (tokenize train makes one, scripts/get_gpt2_vocab.sh fetches "
                   "GPT-2's)");
    die_if(tokenizer_load(&tokenizer, arguments->vocab_file, arguments->vocab, &error), &error);
    return tokenizer;
}

// The directory that a file will be in must be there, and is made; `path` may have no directory.
static void create_parent(const char *path) {
    Error error;
    char *parent = memory_copy_string(path), *slash = strrchr(parent, '/');
    if (slash && slash != parent) {
        *slash = 0;
        die_if(directory_create(parent, &error), &error);
    }
    free(parent);
}

static void write_output(const void *data, size_t bytes) {
    if (bytes && fwrite(data, 1, bytes, stdout) != bytes) die("standard output: cannot write: %s", strerror(errno));
}

static void close_output(void) {
    if (fflush(stdout) != 0) die("standard output: cannot write: %s", strerror(errno));
}

// Progress with the remaining time; from a pipe, whose end nobody knows, only how far it has come.
static void show_progress(Progress *progress, const TextReader *reader) {
    if (reader->bytes_total)
        progress_update(progress, (double)reader->bytes_read);
    else if (clock_seconds() - progress->last_shown > 10) {
        fprintf(stderr, "%s  %.1f MB so far\n", progress->what, (double)reader->bytes_read / 1e6);
        progress->last_shown = clock_seconds();
    }
}

#define OPTION_VOCAB_FILE(arguments)                                                                                   \
    {                                                                                                                  \
        "vocabulary", "vocab-file", 0, OPTION_STRING, &(arguments)->vocab_file, 0, 0, "FILE", "in tiktoken's format",  \
            0, ""                                                                                                      \
    }
#define OPTION_VOCAB(arguments, help)                                                                                  \
    { "vocabulary", "vocab", 0, OPTION_INT, &(arguments)->vocab, 0, 0, NULL, help, 0, "" }
#define OPTION_THREADS(arguments)                                                                                      \
    { "speed", "threads", 'j', OPTION_INT, &(arguments)->threads, 0, 256, NULL, "threads; 0: one for each core", 0, "" }
#define ADD_OPTIONS(options, items) options_add(options, items, (int)(sizeof(items) / sizeof *(items)))

// ---- train

static void count_pieces(PieceCounts *counts, const Arguments *arguments) {
    Error error;
    TextReader reader;
    Progress progress;
    PieceCounts **of_thread = memory_allocate_zeroed((size_t)arguments->threads, sizeof *of_thread, "the threads");
    for (int i = 0; i < arguments->threads; i++) of_thread[i] = piece_counts_create();
    die_if(text_reader_open(&reader, arguments->files, 0, &error), &error);
    progress_start(&progress, "read", (double)reader.bytes_total, 1e6, "MB");
    int more;
    while ((more = text_reader_next(&reader, &error)) > 0) {
#pragma omp parallel for schedule(dynamic) num_threads(arguments->threads)
        for (size_t i = 0; i < reader.block_count; i++)
            piece_counts_add(of_thread[omp_get_thread_num()], reader.blocks[i].text, reader.blocks[i].bytes);
        show_progress(&progress, &reader);
    }
    die_if(more, &error);
    progress_end(&progress);
    for (int i = 0; i < arguments->threads; i++) {
        piece_counts_merge(counts, of_thread[i]);
        piece_counts_free(of_thread[i]);
    }
    free(of_thread);
    text_reader_close(&reader);
}

static void run_train(int argc, char **argv) {
    Arguments arguments = {0};
    Error error;
    Options options = {.usage = "tokenize train --vocab N --out FILE [TEXT...]\n"
                                "Learns a vocabulary from text files (or standard input), in tiktoken's format.",
                       .closing = "example: tokenize train --vocab 4096 --out data/novels.tiktoken data/novels/*.txt"};
    Option items[] = {
        OPTION_VOCAB(&arguments, "tokens in all, 257 to 65536; 256 are the bytes, one is end-of-text"),
        {"vocabulary", "out", 'o', OPTION_STRING, &arguments.out, 0, 0, "FILE", "the vocabulary to write", 0, ""},
        OPTION_THREADS(&arguments),
    };
    ADD_OPTIONS(&options, items);
    parse_arguments(&arguments, &options, argc, argv);
    require_option(arguments.out, "out", "the vocabulary file to write");
    if (!is_option_given(&options, "vocab")) die("option --vocab is needed: how many tokens; see --help");
    if (arguments.vocab < TOKENIZER_VOCAB_MIN || arguments.vocab > TOKENIZER_VOCAB_MAX)
        die("option --vocab: expected %d (the bytes and end-of-text) to %d (shards hold 16-bit ids), found %d",
            TOKENIZER_VOCAB_MIN, TOKENIZER_VOCAB_MAX, arguments.vocab);
    double start = clock_seconds();
    PieceCounts *counts = piece_counts_create();
    count_pieces(counts, &arguments);
    create_parent(arguments.out);
    die_if(tokenizer_train(counts, arguments.vocab, arguments.out, &error), &error);
    printf("%s: a vocabulary of %d from %zu different pieces, %.1f s\n", arguments.out, arguments.vocab,
           piece_counts_different(counts), clock_seconds() - start);
    piece_counts_free(counts);
    free(arguments.files);
}

// ---- encode: the shards of one split. They all stay temporary files until every one is complete.

typedef struct {
    const char *name; // "train", "val"
    ShardWriter *shards;
    int shard_count, committed;
    uint64_t tokens, documents, text_bytes;
} Split;

typedef struct {
    const char *prefix;
    uint64_t shard_tokens;
    Split splits[2]; // train, val
} ShardSet;

enum { SPLIT_TRAIN, SPLIT_VALIDATION };

static char *shard_path(const ShardSet *set, const Split *split, int index) {
    size_t size = strlen(set->prefix) + 64;
    char *path = memory_resize(NULL, size, 1, "a path");
    snprintf(path, size, "%s_%s_%06d.bin", set->prefix, split->name, index);
    return path;
}

// Removes every temporary file, and shards that were already put in place by a commit that then failed: better no set
// than one of old and new shards.
static void shard_set_abort(ShardSet *set) {
    for (int s = 0; s < 2; s++) {
        Split *split = &set->splits[s];
        for (int i = 0; i < split->shard_count; i++) {
            char *path = shard_path(set, split, i);
            if (i < split->committed)
                unlink(path);
            else
                shard_writer_abort(&split->shards[i]);
            free(path);
        }
        free(split->shards);
        *split = (Split){0};
    }
}

static int open_next_shard(ShardSet *set, Split *split, Error *error) {
    size_t count = (size_t)split->shard_count + 1;
    split->shards = memory_resize(split->shards, count, sizeof(ShardWriter), "the shards");
    char *path = shard_path(set, split, split->shard_count);
    split->shards[split->shard_count++] = (ShardWriter){0};
    int status = shard_writer_open(&split->shards[split->shard_count - 1], path, error);
    free(path);
    return status;
}

// On the disk, but not yet under its name: a full disk shows here, before anything is replaced.
static int flush_last_shard(Split *split, Error *error) {
    if (split->shard_count == 0) return 0;
    FileWriter *writer = &split->shards[split->shard_count - 1].writer;
    if (fflush(writer->stream) == 0 && fsync(fileno(writer->stream)) == 0) return 0;
    return error_set(error, "%.700s: cannot write: %s; free some space; nothing was changed", writer->path,
                     strerror(errno));
}

static int shard_set_write(ShardSet *set, Split *split, const uint32_t *tokens, size_t count, Error *error) {
    uint16_t narrow[4096];
    while (count > 0) {
        uint64_t room = set->shard_tokens - split->tokens % set->shard_tokens;
        if (room == set->shard_tokens && (flush_last_shard(split, error) || open_next_shard(set, split, error)))
            return -1;
        size_t n = count < 4096 ? count : 4096;
        if (n > room) n = (size_t)room;
        for (size_t i = 0; i < n; i++) narrow[i] = (uint16_t)tokens[i];
        if (shard_write(&split->shards[split->shard_count - 1], narrow, n, error)) return -1;
        split->tokens += n;
        tokens += n;
        count -= n;
    }
    return 0;
}

// Shards of an earlier run with the same prefix and higher numbers would be read together with the new ones.
static void remove_left_over(const ShardSet *set, const Split *split) {
    for (int i = split->shard_count;; i++) {
        char *path = shard_path(set, split, i);
        int removed = unlink(path) == 0;
        free(path);
        if (!removed) return;
    }
}

static int shard_set_commit(ShardSet *set, Error *error) {
    for (int s = 0; s < 2; s++)
        if (flush_last_shard(&set->splits[s], error)) return -1;
    for (int s = 0; s < 2; s++) {
        Split *split = &set->splits[s];
        for (; split->committed < split->shard_count; split->committed++)
            if (shard_writer_commit(&split->shards[split->committed], error)) return -1;
    }
    for (int s = 0; s < 2; s++) remove_left_over(set, &set->splits[s]);
    return 0;
}

// ---- encode: blocks of text in parallel, their tokens in order

typedef struct {
    TokenizerEncoder *encoder;
    uint32_t *tokens; // of the blocks that this thread took from the batch
    size_t count, capacity;
} Worker;

typedef struct {
    int worker;
    size_t first, count; // in the worker's tokens
} BlockTokens;

typedef struct {
    const Arguments *arguments;
    const Tokenizer *tokenizer;
    Worker *workers; // (threads)
    BlockTokens *of_block;
    size_t of_block_capacity;
    ShardSet *set;
    int all_validation; // the file of --validation-file: every document is for validation
} EncodeJob;

static void encode_blocks(EncodeJob *job, const TextReader *reader) {
    if (reader->block_count > job->of_block_capacity) {
        job->of_block_capacity = 2 * reader->block_count;
        job->of_block = memory_resize(job->of_block, job->of_block_capacity, sizeof(BlockTokens), "the blocks");
    }
    for (int i = 0; i < job->arguments->threads; i++) job->workers[i].count = 0;
#pragma omp parallel for schedule(dynamic) num_threads(job->arguments->threads)
    for (size_t i = 0; i < reader->block_count; i++) {
        Worker *worker = &job->workers[omp_get_thread_num()];
        size_t first = worker->count;
        worker->count = tokenizer_encoder_append(worker->encoder, reader->blocks[i].text, reader->blocks[i].bytes,
                                                 &worker->tokens, first, &worker->capacity);
        job->of_block[i] = (BlockTokens){omp_get_thread_num(), first, worker->count - first};
    }
}

// Which split a document belongs to: a pure function of its number and the seed.
static int split_of(const EncodeJob *job, int64_t document) {
    const Arguments *arguments = job->arguments;
    if (job->all_validation) return SPLIT_VALIDATION;
    if (arguments->validation_every) return (document + 1) % arguments->validation_every == 0;
    uint64_t key = random_key((uint64_t)arguments->seed, "validation", 0);
    return random_uniform(key, (uint64_t)document) < (double)arguments->validation;
}

static int write_shards(EncodeJob *job, const TextReader *reader, Error *error) {
    uint32_t end_of_text = tokenizer_end_of_text(job->tokenizer);
    for (size_t i = 0; i < reader->block_count; i++) {
        const TextBlock *block = &reader->blocks[i];
        const BlockTokens *encoded = &job->of_block[i];
        Split *split = &job->set->splits[split_of(job, block->document)];
        if (block->bytes == 0) continue;
        if (block->starts_document && shard_set_write(job->set, split, &end_of_text, 1, error)) return -1;
        const uint32_t *tokens = job->workers[encoded->worker].tokens + encoded->first;
        if (shard_set_write(job->set, split, tokens, encoded->count, error)) return -1;
        split->documents += (uint64_t)block->starts_document;
        split->text_bytes += block->bytes;
    }
    return 0;
}

// One line of ids for each document; a document may come in several blocks.
static void print_ids(const EncodeJob *job, const TextReader *reader) {
    for (size_t i = 0; i < reader->block_count; i++) {
        const BlockTokens *encoded = &job->of_block[i];
        const uint32_t *tokens = job->workers[encoded->worker].tokens + encoded->first;
        int starts = reader->blocks[i].starts_document;
        if (starts && reader->blocks[i].document > 0) write_output("\n", 1);
        for (size_t k = 0; k < encoded->count; k++) {
            char number[16];
            write_output(number, (size_t)snprintf(number, sizeof number, starts && k == 0 ? "%u" : " %u", tokens[k]));
        }
    }
}

static int encode_files(EncodeJob *job, const char *const *files, Error *error) {
    TextReader reader;
    Progress progress;
    if (text_reader_open(&reader, files, job->arguments->null_separated, error)) return -1;
    progress_start(&progress, "encode", (double)reader.bytes_total, 1e6, "MB");
    int more, status = 0;
    while (status == 0 && (more = text_reader_next(&reader, error)) != 0) {
        if (more > 0) encode_blocks(job, &reader);
        if (more < 0)
            status = -1;
        else if (job->set)
            status = write_shards(job, &reader, error);
        else
            print_ids(job, &reader);
        show_progress(&progress, &reader);
    }
    progress_end(&progress);
    if (!job->set && reader.documents > 0) write_output("\n", 1);
    text_reader_close(&reader);
    return status;
}

static EncodeJob encode_job_create(const Arguments *arguments, const Tokenizer *tokenizer, ShardSet *set) {
    EncodeJob job = {.arguments = arguments, .tokenizer = tokenizer, .set = set};
    job.workers = memory_allocate_zeroed((size_t)arguments->threads, sizeof(Worker), "the threads");
    for (int i = 0; i < arguments->threads; i++) job.workers[i].encoder = tokenizer_encoder_create(tokenizer);
    return job;
}

static void encode_job_free(EncodeJob *job) {
    for (int i = 0; i < job->arguments->threads; i++) {
        tokenizer_encoder_free(job->workers[i].encoder);
        free(job->workers[i].tokens);
    }
    free(job->workers);
    free(job->of_block);
}

// ---- encode: PREFIX.json, which says what the shards hold

static json_t *split_to_json(const Split *split) {
    return json_pack("{s:I, s:I, s:I, s:i}", "tokens", (json_int_t)split->tokens, "documents",
                     (json_int_t)split->documents, "text_bytes", (json_int_t)split->text_bytes, "shards",
                     split->shard_count);
}

enum { FLOOR_BYTES_MAX = 1 << 20 }; // of a file with a few numbers

// The number "floor_bits" of a JSON file that the generator of the text wrote: no model can do better.
static int read_floor(json_t **floor_bits, const char *path, Error *error) {
    json_error_t problem;
    char *text;
    size_t size;
    if (file_read(&text, &size, path, FLOOR_BYTES_MAX, error)) return -1;
    json_t *json = json_loadb(text, size, JSON_REJECT_DUPLICATES, &problem);
    free(text);
    if (!json)
        return error_set(error, "%.600s: not a JSON file: line %d: %.150s; give the one that stories has written", path,
                         problem.line, problem.text);
    json_t *value = json_object_get(json, "floor_bits");
    int is_number = json_is_number(value) && isfinite(json_number_value(value));
    *floor_bits = is_number ? json_incref(value) : NULL;
    json_decref(json);
    return is_number
               ? 0
               : error_set(error, "%.700s: expected a number \"floor_bits\" in it; stories writes such a file", path);
}

static int write_description(const Arguments *arguments, const Tokenizer *tokenizer, const ShardSet *set,
                             json_t *floor_bits, Error *error) {
    char checksum[32];
    int vocab = tokenizer_vocab_size(tokenizer);
    snprintf(checksum, sizeof checksum, "%016llx", (unsigned long long)tokenizer_checksum(tokenizer, vocab - 1));
    json_t *json = json_object();
    json_put(json, "vocab_file", json_bytes(arguments->vocab_file));
    json_put(json, "vocab_checksum", json_string(checksum));
    json_put(json, "n_vocab", json_integer(vocab));
    for (int s = 0; s < 2; s++)
        if (set->splits[s].tokens) json_put(json, set->splits[s].name, split_to_json(&set->splits[s]));
    if (floor_bits) json_put(json, "floor_bits", json_incref(floor_bits));
    char *text = json_print(json, JSON_INDENT(2));
    size_t size = strlen(set->prefix) + sizeof ".json";
    char *path = memory_resize(NULL, size, 1, "a path");
    snprintf(path, size, "%s.json", set->prefix);
    int status = file_replace(path, text, strlen(text), error);
    free(path);
    free(text);
    json_decref(json);
    return status;
}

// ---- encode: the command

static int check_splits(const Arguments *arguments, const ShardSet *set, Error *error) {
    const Split *train = &set->splits[SPLIT_TRAIN], *validation = &set->splits[SPLIT_VALIDATION];
    int wants_validation = arguments->validation > 0 || arguments->validation_every || arguments->validation_file;
    if (train->tokens + validation->tokens == 0) return error_set(error, "there is no text to encode");
    if (wants_validation && (train->tokens == 0 || validation->tokens == 0))
        return error_set(error,
                         "all %llu documents fell to the %s split; put lines of %s between documents, or choose "
                         "another --validation, --validation-every or --validation-file",
                         (unsigned long long)(train->documents + validation->documents),
                         train->tokens ? "train" : "val", END_OF_TEXT_LINE);
    return 0;
}

static int encode_to_shards(const Arguments *arguments, const Tokenizer *tokenizer, ShardSet *set, Error *error) {
    json_t *floor_bits = NULL;
    if (arguments->floor_file && read_floor(&floor_bits, arguments->floor_file, error)) return -1;
    EncodeJob job = encode_job_create(arguments, tokenizer, set);
    int status = encode_files(&job, arguments->files, error);
    if (status == 0 && arguments->validation_file) {
        job.all_validation = 1;
        status = encode_files(&job, (const char *[]){arguments->validation_file, NULL}, error);
    }
    encode_job_free(&job);
    if (status == 0) status = check_splits(arguments, set, error);
    if (status == 0) status = shard_set_commit(set, error);
    if (status) shard_set_abort(set);
    if (status == 0 && write_description(arguments, tokenizer, set, floor_bits, error))
        status = error_prefix(error, "all shards are in their places, their description is not");
    json_decref(floor_bits);
    return status;
}

static void report_shards(const ShardSet *set, double seconds) {
    double bytes = (double)(set->splits[0].text_bytes + set->splits[1].text_bytes);
    for (int s = 0; s < 2; s++) {
        const Split *split = &set->splits[s];
        if (!split->tokens) continue;
        printf("%-5s %12llu tokens %9llu documents  %.3f bytes per token  %s_%s_*.bin (%d)\n", split->name,
               (unsigned long long)split->tokens, (unsigned long long)split->documents,
               (double)split->text_bytes / (double)split->tokens, set->prefix, split->name, split->shard_count);
    }
    printf("%.1f MB in %.1f s, %.0f MB/s\n", bytes / 1e6, seconds, bytes / 1e6 / seconds);
}

static void add_encode_options(Options *options, Arguments *arguments) {
    Option items[] = {
        OPTION_VOCAB_FILE(arguments),
        OPTION_VOCAB(arguments, "take only the first N - 1 ranks of the file (0: all)"),
        {"output", "out", 'o', OPTION_STRING, &arguments->out, 0, 0, "PREFIX",
         "writes PREFIX_train_000000.bin, ..., PREFIX.json", 0, ""},
        {"output", "shard-tokens", 0, OPTION_LONG, &arguments->shard_tokens, 1, 1e12, NULL, "tokens in a full shard", 0,
         ""},
        {"output", "ids", 0, OPTION_FLAG, &arguments->ids, 0, 0, NULL,
         "print ids instead, a line for each document, without end-of-text", 0, ""},
        {"documents", "null", '0', OPTION_FLAG, &arguments->null_separated, 0, 0, NULL,
         "documents end at a 0 byte, not at a line " END_OF_TEXT_LINE, 0, ""},
        {"documents", "validation", 0, OPTION_FLOAT, &arguments->validation, 0, 1, NULL,
         "share of the documents that go to PREFIX_val_*.bin", 0, ""},
        {"documents", "validation-every", 0, OPTION_INT, &arguments->validation_every, 0, 2e9, NULL,
         "every N-th document goes there instead", 0, ""},
        {"documents", "validation-file", 0, OPTION_STRING, &arguments->validation_file, 0, 0, "FILE",
         "this file goes there", 0, ""},
        {"documents", "seed", 0, OPTION_LONG, &arguments->seed, 0, 9e15, NULL, "of the choice by --validation", 0, ""},
        {"documents", "floor", 0, OPTION_STRING, &arguments->floor_file, 0, 0, "FILE.json",
         "copies its \"floor_bits\" into PREFIX.json", 0, ""},
        OPTION_THREADS(arguments),
    };
    ADD_OPTIONS(options, items);
}

static void run_encode(int argc, char **argv) {
    Arguments arguments = {.shard_tokens = 100000000, .seed = 1337};
    Error error;
    Options options = {.usage = "tokenize encode --vocab-file FILE --out PREFIX [TEXT...]\n"
                                "Turns text files (or standard input) into token shards, end-of-text before every "
                                "document.",
                       .closing = "example: tokenize encode --vocab-file data/gpt2.tiktoken --out data/novels "
                                  "--validation 0.05 data/novels/*.txt"};
    add_encode_options(&options, &arguments);
    parse_arguments(&arguments, &options, argc, argv);
    if (arguments.validation > 0 && arguments.validation_every)
        die("give --validation or --validation-every, not both");
    if (!arguments.ids) require_option(arguments.out, "out", "where the shards go (or --ids to print ids)");
    Tokenizer *tokenizer = load_tokenizer(&arguments);
    if (arguments.ids) {
        EncodeJob job = encode_job_create(&arguments, tokenizer, NULL);
        die_if(encode_files(&job, arguments.files, &error), &error);
        close_output();
        encode_job_free(&job);
    } else {
        double start = clock_seconds();
        ShardSet set = {.prefix = arguments.out, .shard_tokens = (uint64_t)arguments.shard_tokens};
        set.splits[SPLIT_TRAIN].name = "train";
        set.splits[SPLIT_VALIDATION].name = "val";
        create_parent(arguments.out);
        die_if(encode_to_shards(&arguments, tokenizer, &set, &error), &error);
        report_shards(&set, clock_seconds() - start);
        for (int s = 0; s < 2; s++) free(set.splits[s].shards);
    }
    tokenizer_free(tokenizer);
    free(arguments.files);
}

// ---- decode

typedef struct {
    const Tokenizer *tokenizer;
    int started; // something was written, or a document begun
} Decoder;

// A document begins. Nothing stands before the first one: encoding puts end-of-text there by itself.
static void decode_separator(Decoder *decoder, int null_separated) {
    static const char line[] = "\n" END_OF_TEXT_LINE "\n";
    if (null_separated)
        write_output("", 1);
    else if (decoder->started)
        write_output(line, sizeof line - 1);
    decoder->started = 1;
}

static void decode_token(Decoder *decoder, uint64_t id, const char *name) {
    if (id == tokenizer_end_of_text(decoder->tokenizer)) {
        decode_separator(decoder, 0);
        return;
    }
    if (id > tokenizer_end_of_text(decoder->tokenizer))
        die("%s: token %llu is not in the vocabulary of %d; is it the one that the text was encoded with?", name,
            (unsigned long long)id, tokenizer_vocab_size(decoder->tokenizer));
    size_t bytes;
    const char *text = tokenizer_token(decoder->tokenizer, (uint32_t)id, &bytes);
    write_output(text, bytes);
    decoder->started = 1;
}

static void decode_shard(Decoder *decoder, const char *path) {
    Error error;
    Shard shard;
    uint16_t tokens[4096];
    die_if(shard_open(&shard, path, &error), &error);
    for (uint64_t at = 0; at < shard.count;) {
        size_t n = shard.count - at < 4096 ? (size_t)(shard.count - at) : 4096;
        die_if(shard_read(&shard, at, n, tokens, &error), &error);
        for (size_t i = 0; i < n; i++) decode_token(decoder, tokens[i], path);
        at += n;
    }
    shard_close(&shard);
}

// Text of ids: a line is a document.
static void decode_ids(Decoder *decoder, FILE *stream, const char *name, int null_separated) {
    int c = getc(stream), line_started = 0;
    while (c != EOF) {
        if (c >= '0' && c <= '9') {
            if (!line_started && !null_separated) decode_separator(decoder, 0);
            uint64_t id = 0;
            for (; c >= '0' && c <= '9'; c = getc(stream))
                if (id < UINT32_MAX) id = id * 10 + (uint64_t)(c - '0');
            decode_token(decoder, id, name);
            line_started = 1;
            continue;
        }
        if (c == '\n') {
            if (null_separated) decode_separator(decoder, 1);
            line_started = 0;
        } else if (c != ' ' && c != '\t' && c != '\r') {
            die("%s: expected ids in decimal and spaces, found the byte %d", name, c);
        }
        c = getc(stream);
    }
    if (ferror(stream)) die("%s: cannot read: %s", name, strerror(errno));
}

static void decode_ids_file(Decoder *decoder, const char *path, int null_separated) {
    FILE *stream = fopen(path, "rb");
    if (!stream) die("%s: cannot open: %s", path, strerror(errno));
    decode_ids(decoder, stream, path, null_separated);
    fclose(stream);
}

static void run_decode(int argc, char **argv) {
    Arguments arguments = {0};
    Options options = {.usage = "tokenize decode --vocab-file FILE SHARD...\n"
                                "Writes the text of shards on standard output, a line " END_OF_TEXT_LINE
                                " between documents.",
                       .closing = "example: tokenize decode --vocab-file data/gpt2.tiktoken data/novels_val_*.bin"};
    Option items[] = {
        OPTION_VOCAB_FILE(&arguments),
        OPTION_VOCAB(&arguments, "as it was given to encode (0: all of the file)"),
        {"input", "ids", 0, OPTION_FLAG, &arguments.ids, 0, 0, NULL,
         "the files (or standard input) are ids as text, a line for each document", 0, ""},
        {"input", "null", '0', OPTION_FLAG, &arguments.null_separated, 0, 0, NULL,
         "with --ids: a 0 byte after every document", 0, ""},
    };
    ADD_OPTIONS(&options, items);
    parse_arguments(&arguments, &options, argc, argv);
    Tokenizer *tokenizer = load_tokenizer(&arguments);
    if (!arguments.ids && arguments.file_count == 0) die("name the shards to decode, or give --ids; see --help");
    Decoder decoder = {.tokenizer = tokenizer};
    for (int i = 0; i < arguments.file_count; i++) {
        if (arguments.ids)
            decode_ids_file(&decoder, arguments.files[i], arguments.null_separated);
        else
            decode_shard(&decoder, arguments.files[i]);
    }
    if (arguments.file_count == 0) decode_ids(&decoder, stdin, "standard input", arguments.null_separated);
    close_output();
    tokenizer_free(tokenizer);
    free(arguments.files);
}

// ---- info

static void info_shard(const char *path, const Tokenizer *tokenizer) {
    Error error;
    Shard shard;
    die_if(shard_open(&shard, path, &error), &error);
    if (tokenizer) die_if(shard_check(&shard, 0, shard.count, tokenizer_vocab_size(tokenizer), &error), &error);
    uint64_t documents = 0, text_bytes = 0;
    uint32_t highest = 0, end_of_text = tokenizer ? tokenizer_end_of_text(tokenizer) : UINT32_MAX;
    uint16_t tokens[4096];
    XXH3_state_t *hash = XXH3_createState();
    XXH3_64bits_reset(hash);
    for (uint64_t at = 0; at < shard.count;) {
        size_t n = shard.count - at < 4096 ? (size_t)(shard.count - at) : 4096, bytes = 0;
        die_if(shard_read(&shard, at, n, tokens, &error), &error);
        XXH3_64bits_update(hash, tokens, n * sizeof *tokens);
        for (size_t i = 0; i < n; i++) {
            if (tokens[i] > highest) highest = tokens[i];
            if (tokenizer) tokenizer_token(tokenizer, tokens[i], &bytes);
            text_bytes += bytes;
            documents += tokens[i] == end_of_text;
        }
        at += n;
    }
    printf("%s\n  shard        %llu tokens, highest id %u\n", path, (unsigned long long)shard.count, highest);
    if (tokenizer)
        printf("  documents    %llu (end-of-text is %u)\n  text         %llu bytes, %.4f bytes per token\n",
               (unsigned long long)documents, end_of_text, (unsigned long long)text_bytes,
               (double)text_bytes / (double)shard.count);
    else
        printf("  documents    give --vocab-file to count them and the bytes per token\n");
    printf("  checksum     xxh3 %016llx\n", (unsigned long long)XXH3_64bits_digest(hash));
    XXH3_freeState(hash);
    shard_close(&shard);
}

// Checksums of the beginnings of GPT-2's vocabulary.
static const struct {
    int ranks;
    uint64_t checksum;
} gpt2_prefixes[] = {
    {256, 0xdb61d4cc3b3b2121},   {512, 0x11230c6486091467},   {1024, 0x5668f87680c6a829},
    {2048, 0xba8a88b044404342},  {4096, 0x13b1f2b64bf777bd},  {8192, 0xbe60074840dd79bc},
    {16384, 0xdf558e21e407c415}, {32768, 0x387553cc41a41fd2}, {50256, 0x9d5711293056f310},
};

static int gpt2_ranks(const Tokenizer *tokenizer) {
    int known = 0;
    for (size_t i = 0; i < sizeof gpt2_prefixes / sizeof *gpt2_prefixes; i++) {
        if (gpt2_prefixes[i].ranks >= tokenizer_vocab_size(tokenizer)) break;
        if (tokenizer_checksum(tokenizer, gpt2_prefixes[i].ranks) != gpt2_prefixes[i].checksum) break;
        known = gpt2_prefixes[i].ranks;
    }
    return known;
}

static void print_token(const char *bytes, size_t length) {
    putchar('"');
    for (size_t i = 0; i < length; i++) {
        unsigned char byte = (unsigned char)bytes[i];
        if (byte >= 32 && byte < 127 && byte != '"' && byte != '\\')
            putchar(byte);
        else
            printf("\\x%02x", byte);
        if (i == 39 && length > 40) {
            printf("...");
            break;
        }
    }
    putchar('"');
}

static void info_vocabulary(const char *path, int vocab) {
    Error error;
    Tokenizer *tokenizer;
    die_if(tokenizer_load(&tokenizer, path, vocab, &error), &error);
    uint32_t longest = 0, ranks = tokenizer_end_of_text(tokenizer);
    size_t length, longest_length = 0, sum = 0;
    for (uint32_t id = 0; id < ranks; id++) {
        tokenizer_token(tokenizer, id, &length);
        sum += length;
        if (length > longest_length) longest_length = length, longest = id;
    }
    printf("%s\n  vocabulary   %u tokens (%u ranks and end-of-text %u)\n", path, ranks + 1, ranks, ranks);
    printf("  tokens       %.2f bytes on average, longest %zu: rank %u ", (double)sum / ranks, longest_length, longest);
    print_token(tokenizer_token(tokenizer, longest, &length), longest_length);
    int known = gpt2_ranks(tokenizer);
    if (known == 50256)
        printf("\n  GPT-2's      all of it%s", ranks > 50256 ? ", and more" : "");
    else if (known)
        printf("\n  GPT-2's      the first %d ranks at least", known);
    else
        printf("\n  GPT-2's      no");
    printf("\n  checksum     xxh3 %016llx\n", (unsigned long long)tokenizer_checksum(tokenizer, (int)ranks));
    tokenizer_free(tokenizer);
}

// A shard begins with its magic number; a vocabulary is text.
static int looks_like_shard(const char *path) {
    size_t length = strlen(path);
    return file_magic(path) == SHARD_MAGIC || (length > 4 && !strcmp(path + length - 4, ".bin"));
}

static void run_info(int argc, char **argv) {
    Arguments arguments = {0};
    Options options = {.usage = "tokenize info [--vocab-file FILE] FILE...\n"
                                "Says what shards and vocabularies hold.",
                       .closing = "example: tokenize info --vocab-file data/gpt2.tiktoken data/novels_*.bin"};
    Option items[] = {
        OPTION_VOCAB_FILE(&arguments),
        OPTION_VOCAB(&arguments, "take only the first N - 1 ranks of vocabularies (0: all)"),
    };
    ADD_OPTIONS(&options, items);
    parse_arguments(&arguments, &options, argc, argv);
    if (arguments.file_count == 0) die("name shards or vocabularies; see --help");
    Tokenizer *tokenizer = arguments.vocab_file ? load_tokenizer(&arguments) : NULL;
    for (int i = 0; i < arguments.file_count; i++) {
        if (looks_like_shard(arguments.files[i]))
            info_shard(arguments.files[i], tokenizer);
        else
            info_vocabulary(arguments.files[i], arguments.vocab);
    }
    close_output();
    tokenizer_free(tokenizer);
    free(arguments.files);
}

// ---- export

static void run_export(int argc, char **argv) {
    Arguments arguments = {0};
    Error error;
    Options options = {.usage = "tokenize export --vocab-file FILE --out DIRECTORY\n"
                                "Writes vocab.json, merges.txt and tokenizer_config.json, which Hugging Face's "
                                "AutoTokenizer opens."};
    Option items[] = {
        OPTION_VOCAB_FILE(&arguments),
        OPTION_VOCAB(&arguments, "take only the first N - 1 ranks of the file (0: all)"),
        {"output", "out", 'o', OPTION_STRING, &arguments.out, 0, 0, "DIRECTORY", "made if it is not there", 0, ""},
    };
    ADD_OPTIONS(&options, items);
    parse_arguments(&arguments, &options, argc, argv);
    if (arguments.file_count) die("unexpected word \"%.200s\"; export takes options only", arguments.files[0]);
    require_option(arguments.out, "out", "the directory to write");
    Tokenizer *tokenizer = load_tokenizer(&arguments);
    die_if(tokenizer_export(tokenizer, arguments.out, &error), &error);
    printf("%s: a vocabulary of %d for Hugging Face\n", arguments.out, tokenizer_vocab_size(tokenizer));
    tokenizer_free(tokenizer);
    free(arguments.files);
}

// ---- main

static const Command commands[] = {
    {"train", "learn a vocabulary from text"},
    {"encode", "text to token shards"},
    {"decode", "token shards to text"},
    {"info", "what shards and vocabularies hold"},
    {"export", "a vocabulary as Hugging Face's files"},
};
static void (*const run_command[])(int argc, char **argv) = {run_train, run_encode, run_decode, run_info, run_export};
enum { COMMANDS = sizeof commands / sizeof *commands };

static void print_help(HelpFormat format, FILE *out) {
    static const Options options = {.usage =
                                        "tokenize COMMAND [options] [FILE...]\n"
                                        "Byte-level BPE with GPT-2's splitting rule: text to token shards and back.",
                                    .closing = "tokenize COMMAND --help lists the options of a command.",
                                    .commands = commands,
                                    .command_count = COMMANDS};
    options_help(&options, format, out);
}

int main(int argc, char **argv) {
    error_set_program(argv[0]);
    HelpFormat format = options_ask_for_help(argc > 2 ? 2 : argc, argv);
    if (format) {
        print_help(format, stdout);
        return 0;
    }
    for (int i = 0; argc > 1 && i < COMMANDS; i++) {
        if (strcmp(argv[1], commands[i].name) != 0) continue;
        run_command[i](argc - 1, argv + 1);
        return 0;
    }
    if (argc > 1)
        die("unknown command \"%.100s\"; expected train, encode, decode, info or export; see --help", argv[1]);
    print_help(HELP_TEXT, stderr);
    return 1;
}
