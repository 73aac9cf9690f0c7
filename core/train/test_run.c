// A run's files: what its state may say, and metrics that nothing is left out of.
#define _GNU_SOURCE
#include "core/base/file.h"
#include "core/base/json.h"
#include "run.h"
#include "core/base/test.h"
#include "core/base/test_files.h"

// ---- state.json

static int read_state(RunState *state, const char *text, Error *error) {
    json_t *json = json_loads(text, 0, NULL);
    int status = run_state_from_json(state, json, "RUN/step_00000001", error);
    CHECK(json != NULL);
    json_decref(json);
    return status;
}

static void state_is_read(void) {
    RunState state;
    Error error = {""};
    CHECK(read_state(&state, "{\"step\": 3, \"tokens\": 96, \"seconds\": 1.5, \"ranks\": 4}", &error) == 0);
    CHECK(state.step == 3 && state.tokens == 96 && state.seconds == 1.5 && state.ranks == 4);
    CHECK(read_state(&state, "{\"step\": 1000000000000, \"tokens\": 1000000000000000000}", &error) == 0);
    CHECK(state.step == 1000000000000 && state.tokens == 1000000000000000000);
    CHECK(state.seconds == 0 && state.ranks == 1 && state.rate_factor == 1 && state.rollbacks == 0);
    CHECK(read_state(&state, "{\"step\": 3, \"tokens\": 96, \"rate_factor\": 0.25, \"rollbacks\": 2}", &error) == 0);
    CHECK(state.rate_factor == 0.25 && state.rollbacks == 2);
}

static void bad_states_are_refused(void) {
    static const struct {
        const char *text, *part;
    } cases[] = {
        {"{}", "\"step\": expected a whole number, found none"},
        {"{\"step\": 1}", "\"tokens\": expected a whole number, found none"},
        {"{\"step\": 1.0, \"tokens\": 1}", "\"step\": expected a whole number, found something else"},
        {"{\"step\": -1, \"tokens\": 1}", "\"step\": expected 0 to 1000000000000, found -1"},
        {"{\"step\": 9223372036854775807, \"tokens\": 1}", "found 9223372036854775807"},
        {"{\"step\": 1, \"tokens\": -1}", "\"tokens\": expected 0 to 1000000000000000000, found -1"},
        {"{\"step\": 1, \"tokens\": 9223372036854775807}", "\"tokens\": expected 0 to"},
        {"{\"step\": 1, \"tokens\": \"1\"}", "\"tokens\": expected a whole number, found something else"},
        {"{\"step\": 1, \"tokens\": 1, \"ranks\": 0}", "\"ranks\": expected 1 to 1048576, found 0"},
        {"{\"step\": 1, \"tokens\": 1, \"ranks\": 4294967297}", "\"ranks\": expected 1 to 1048576"},
        {"{\"step\": 1, \"tokens\": 1, \"ranks\": null}", "\"ranks\": expected a whole number"},
        {"{\"step\": 1, \"tokens\": 1, \"seconds\": -1}", "\"seconds\": expected a number from 0"},
        {"{\"step\": 1, \"tokens\": 1, \"seconds\": 1e300}", "\"seconds\": expected a number from 0"},
        {"{\"step\": 1, \"tokens\": 1, \"seconds\": \"1\"}", "\"seconds\": expected a number from 0"},
        {"{\"step\": 1, \"tokens\": 1, \"rollbacks\": -1}", "\"rollbacks\": expected 0 to"},
        {"{\"step\": 1, \"tokens\": 1, \"rate_factor\": 1.5}", "\"rate_factor\": expected a number from 0 to 1"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        RunState state;
        Error error = {""};
        CHECK(read_state(&state, cases[i].text, &error) == -1);
        CHECK_CONTAINS(error.text, "RUN/step_00000001/state.json: ");
        CHECK_CONTAINS(error.text, cases[i].part);
    }
}

// ---- metrics.jsonl

static char *metrics_of(const char *run) {
    size_t size;
    char *path = path_join(run, "metrics.jsonl"), *text = (char *)test_read(path, &size);
    free(path);
    return text;
}

// A path of a run may hold any bytes: its event is told all the same.
static void events_of_any_text(void) {
    const char *directory = test_path("run");
    json_t *configuration = json_pack("{s:s}", "type", "configuration");
    Error error = {""};
    Run run;
    CHECK(run_open(&run, directory, &error) == 0 && run_create(&run, &error) == 0);
    CHECK(run_open_metrics(&run, configuration, 0, &error) == 0);
    run.quiet = 1;
    run_report_event(&run, 3, "saved", "saved r\xc3\xa4n/step_00000003");
    run_report_event(&run, 4, "saved", "saved \xff\xfe/step_00000004");
    run_close(&run);
    char *text = metrics_of(directory);
    CHECK(!strcmp(
        text, "{\"type\": \"configuration\"}\n"
              "{\"type\": \"event\", \"step\": 3, \"event\": \"saved\", \"text\": \"saved r\xc3\xa4n/step_00000003\"}\n"
              "{\"type\": \"event\", \"step\": 4, \"event\": \"saved\", \"text\": \"saved %FF%FE/step_00000004\"}\n"));
    free(text), json_decref(configuration);
}

// Opening a fifo would wait for somebody to read it.
static void metrics_are_a_file(void) {
    const char *directory = test_path("fifo_run");
    json_t *configuration = json_pack("{s:s}", "type", "configuration");
    Error error = {""};
    Run run;
    CHECK(directory_create(directory, &error) == 0 && mkfifo(test_path("fifo_run/metrics.jsonl"), 0600) == 0);
    CHECK(run_open(&run, directory, &error) == 0);
    for (int step = 0; step < 2; step++) { // a new run, and one that continues
        CHECK(run_open_metrics(&run, configuration, step, &error) == -1);
        CHECK_CONTAINS(error.text, "metrics.jsonl: expected a regular file, found a pipe");
    }
    run_close(&run);
    json_decref(configuration);
}

static void machine_is_known(void) {
    json_t *machine = run_machine();
    static const char *const texts[] = {"processor", "system", "blas", "compiler", "precision", "started"};
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        const char *text = json_string_value(json_object_get(machine, texts[i]));
        CHECK(text && text[0]);
    }
    CHECK(json_real_value(json_object_get(machine, "memory_gb")) > 0);
    json_decref(machine);
}

int main(void) {
    test_directory_make();
    RUN(state_is_read);
    RUN(bad_states_are_refused);
    RUN(events_of_any_text);
    RUN(metrics_are_a_file);
    RUN(machine_is_known);
    return test_summary();
}
