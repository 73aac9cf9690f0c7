# slay.c. `make help` lists the targets; what was found on this machine is in build/config.mk (scripts/setup.sh).
.DEFAULT_GOAL := all
BUILD ?= build
export BUILD
PROGRAMS := train_gpt2 sample_gpt2 evaluate tokenize stories inspect export_gguf export_llmc

# ---- what the machine has: compilers and libraries, probed by compiling and linking
# (targets that set the machine up themselves first look afterwards, in a make of their own)
SET_UP_FIRST := setup test quickstart compare experiments bench test-interop test-faults test-soak test-sanitized coverage test-gpu bench-gpu fuzz clean help
ifneq ($(filter-out $(SET_UP_FIRST),$(or $(MAKECMDGOALS),all)),)
-include $(BUILD)/config.mk
endif
$(BUILD)/config.mk: scripts/setup.sh
	@scripts/setup.sh --probe

# ---- flags
# Never -ffast-math or -ffinite-math-only: NaN checks must work. -fno-math-errno and -fno-trapping-math change no value;
# they let the compiler vectorise.
ARCH     ?= native
OPT      ?= -O3 -march=$(ARCH) -fno-math-errno -fno-trapping-math
WARNINGS := -Wall -Wextra
CFLAGS   := -std=gnu11 -g -I. $(OPT) $(WARNINGS) $(CONFIG_CFLAGS) $(EXTRA_CFLAGS)
# MPI goes only into programs that call it.
LDLIBS   := $(CONFIG_LIBS) -lm $(EXTRA_LIBS) -Wl,--as-needed $(CONFIG_MPI_LIBS) -Wl,--no-as-needed

# ---- quick start
ATTENTION ?= softmax
SECONDS   ?= 200

# ---- compare: options for scripts/compare, and what it measures with
COMPARE       ?=
COMPARE_TOOLS := $(BUILD)/dev/bench/bench_decode_position $(BUILD)/dev/attention_eval
TASK_PROGRAM := $(BUILD)/dev/attention_task

# ---- experiments on the kernel: options for dev/experiments/kernel/run
EXPERIMENTS ?=

# ---- sources: everything in the rooms but programs and tests is library; the house is described in CONTRIBUTING.md
ROOMS           := core/base core/math core/model core/ranks core/train core/sample attention dataloader dataloader/stories
GPU_ROOMS       := core/gpu core/model core/ranks attention
PROGRAM_SOURCES := dataloader/tokenize.c dataloader/stories/stories.c core/model/inspect.c core/model/export_gguf.c \
                   core/model/export_llmc.c
TEST_SOURCES    := $(wildcard $(ROOMS:%=%/test_*.c))
LIBRARY_SOURCES := $(filter-out $(PROGRAM_SOURCES) $(TEST_SOURCES),$(wildcard $(ROOMS:%=%/*.c)))
# A test named *_gradient.c is compiled in double precision, with the library to match.
GRADIENT_TESTS  := $(patsubst %.c,$(BUILD)/%,$(filter %_gradient.c,$(TEST_SOURCES)))
TESTS           := $(patsubst %.c,$(BUILD)/%,$(filter-out %_gradient.c,$(TEST_SOURCES))) $(BUILD)/test_gpt2
TEST_SCRIPTS    := $(filter-out scripts/test_interop.sh scripts/test_train_gpu.sh scripts/test_two_gpus.sh scripts/test_sanitizer.sh,\
                   $(wildcard $(ROOMS:%=%/test_*.sh) core/gpu/test_*.sh scripts/test_*.sh)) dev/cuda_on_cpu/test_harness.sh \
                   dev/fuzz/test_corpora.sh

OBJECTS        := $(LIBRARY_SOURCES:%.c=$(BUILD)/float/%.o)
DOUBLE_OBJECTS := $(LIBRARY_SOURCES:%.c=$(BUILD)/double/%.o)

.PHONY: all check quickstart compare experiments kernel-programs test test-programs run-tests test-interop test-faults test-soak
.PHONY: test-sanitized coverage
.PHONY: bench clean help setup flags install uninstall
all: $(PROGRAMS)

# Objects depend on the flags that they were built with: other flags build them anew.
FLAGS_FILE := $(BUILD)/flags
$(FLAGS_FILE): flags
	@mkdir -p $(@D)
	@echo '$(CC) $(CFLAGS) $(LDLIBS)' | cmp -s - $@ || echo '$(CC) $(CFLAGS) $(LDLIBS)' >$@

# A command as one short line; V=1 shows it whole, make -s nothing.
say = @printf '%-9s%s\n' $(1) $(2);
ifdef V
say =
else ifneq (,$(findstring s,$(firstword -$(MAKEFLAGS))))
say = @
endif
LINK = $(call say,link,$@)$(CC) $(CFLAGS) -o $@ $(filter %.o,$^) $(filter %.a,$^) $(LDLIBS)

$(BUILD)/float/%.o: %.c $(BUILD)/config.mk $(FLAGS_FILE)
	@mkdir -p $(@D)
	$(call say,compile,$<)$(CC) $(CFLAGS) -MMD -MP -c -o $@ $<
$(BUILD)/double/%.o: %.c $(BUILD)/config.mk $(FLAGS_FILE)
	@mkdir -p $(@D)
	$(call say,compile,$<)$(CC) $(CFLAGS) -DREAL_IS_DOUBLE -MMD -MP -c -o $@ $<
$(BUILD)/float/core/model/modeling.o $(BUILD)/double/core/model/modeling.o: scripts/slay_attention.py
$(BUILD)/libslay.a: $(OBJECTS)
	@rm -f $@
	$(call say,archive,$@)ar rcs $@ $^
$(BUILD)/libslay_double.a: $(DOUBLE_OBJECTS)
	@rm -f $@
	$(call say,archive,$@)ar rcs $@ $^

# ---- programs
train_gpt2 sample_gpt2 evaluate: %: $(BUILD)/float/%.o $(BUILD)/libslay.a
	$(LINK)
tokenize stories inspect export_gguf export_llmc: $(BUILD)/libslay.a
	$(LINK)
tokenize: $(BUILD)/float/dataloader/tokenize.o
stories: $(BUILD)/float/dataloader/stories/stories.o
inspect: $(BUILD)/float/core/model/inspect.o
export_gguf: $(BUILD)/float/core/model/export_gguf.o
export_llmc: $(BUILD)/float/core/model/export_llmc.o

# ---- tests and developers' tools: ROOM/NAME.c becomes build/ROOM/NAME
$(BUILD)/%: $(BUILD)/float/%.o $(BUILD)/libslay.a
	@mkdir -p $(@D)
	$(LINK)
$(BUILD)/%_gradient: $(BUILD)/double/%_gradient.o $(BUILD)/libslay_double.a
	@mkdir -p $(@D)
	$(LINK)
$(BUILD)/%_double: $(BUILD)/double/%.o $(BUILD)/libslay_double.a
	@mkdir -p $(@D)
	$(LINK)
$(BUILD)/test_gpt2_gradient: $(BUILD)/double/test_gpt2.o $(BUILD)/libslay_double.a
	$(LINK)

# ---- experiments on the kernel: in double precision but for those that hold a whole model or measure time
KERNEL_EXPERIMENTS := $(patsubst %.c,$(BUILD)/%,$(filter-out %/probe.c,$(wildcard dev/experiments/kernel/*.c)))
PROBE := dev/experiments/kernel/probe.o
FLOAT_EXPERIMENTS := $(filter %/patterns %/extreme %/latency,$(KERNEL_EXPERIMENTS))
$(filter-out $(FLOAT_EXPERIMENTS),$(KERNEL_EXPERIMENTS)): $(BUILD)/%: $(BUILD)/double/%.o $(BUILD)/double/$(PROBE) $(BUILD)/libslay_double.a
	@mkdir -p $(@D)
	$(LINK)
$(FLOAT_EXPERIMENTS): $(BUILD)/%: $(BUILD)/float/%.o $(BUILD)/float/$(PROBE) $(BUILD)/libslay.a
	@mkdir -p $(@D)
	$(LINK)

ifneq ($(MAKECMDGOALS),help)
include dev/cuda_on_cpu/harness.mk
include core/gpu/cuda.mk
include dev/fuzz/fuzz.mk
endif

setup:
	@scripts/setup.sh
test:
	@scripts/setup.sh --tests
	@dev/cuda_on_cpu/headers.sh >/dev/null || true
	@$(MAKE) --no-print-directory -s -j$$(nproc) test-programs
	@$(MAKE) --no-print-directory -s run-tests
test-programs: all kernel-programs $(TESTS) $(GRADIENT_TESTS) $(BUILD)/test_gpt2_gradient $(CUDA_FAST_TESTS) $(CUDA_FAST_PROGRAMS) $(COMPARE_TOOLS) $(TASK_PROGRAM) fuzz-programs
run-tests:
	@scripts/run_tests.sh $(call cuda_left_out_of,fast) $(TESTS) $(GRADIENT_TESTS) $(BUILD)/test_gpt2_gradient $(CUDA_FAST_TESTS) \
	    $(CUDA_SCRIPTS) $(TEST_SCRIPTS)
test-interop: setup
	@$(MAKE) --no-print-directory -s -j$$(nproc) all
	@scripts/test_interop.sh
test-faults: setup
	@$(MAKE) --no-print-directory -s -j$$(nproc) all
	@dev/faults/test_faults.py
test-soak: setup
	@$(MAKE) --no-print-directory -s -j$$(nproc) all
	@dev/faults/soak.py --minutes "$(or $(MINUTES),60)"
test-sanitized:
	@dev/sanitized/run.sh
coverage:
	@dev/sanitized/run.sh coverage
quickstart: setup
	@$(MAKE) --no-print-directory -s -j$$(nproc) all
	@scripts/quickstart.sh "$(ATTENTION)" "$(SECONDS)"
compare: setup
	@$(MAKE) --no-print-directory -s -j$$(nproc) all $(COMPARE_TOOLS)
	@scripts/compare $(COMPARE)
experiments: setup
	@$(MAKE) --no-print-directory -s -j$$(nproc) all kernel-programs
	@dev/experiments/kernel/run $(EXPERIMENTS)
kernel-programs: $(KERNEL_EXPERIMENTS)
bench: setup
	@$(MAKE) --no-print-directory -s -j$$(nproc) all
	@dev/bench/run.sh

# Every source compiled with warnings as errors; for `make check CC=clang BUILD=build/clang`.
check:
	@$(MAKE) --no-print-directory -s -j$$(nproc) EXTRA_CFLAGS="$(EXTRA_CFLAGS) -Werror" $(OBJECTS) $(DOUBLE_OBJECTS) \
	    $(patsubst %.c,$(BUILD)/float/%.o,$(PROGRAM_SOURCES) $(filter-out %_gradient.c,$(TEST_SOURCES)) \
	    train_gpt2.c sample_gpt2.c evaluate.c test_gpt2.c dev/cuda/gpt2_twin.c $(wildcard dev/*.c dev/bench/*.c dev/experiments/kernel/*.c)) \
	    $(patsubst %.c,$(BUILD)/double/%.o,$(filter %_gradient.c,$(TEST_SOURCES)) test_gpt2.c)

# The programs are for this processor unless ARCH says otherwise (for packages: make ARCH=x86-64-v3, then install).
PREFIX ?= /usr/local
export DESTDIR
install: all
	@scripts/install.sh "$(PREFIX)"
uninstall: all
	@scripts/install.sh --remove "$(PREFIX)"

clean:
	rm -rf $(BUILD) $(PROGRAMS) $(PROGRAMS:%=%_cuda) $(PROGRAMS:%=%_cuda_fp32)
help:
	@echo "make              the programs: $(PROGRAMS)"
	@echo "make quickstart   set up, build, train a small GPT on generated stories, show what it writes"
	@echo "                  (ATTENTION=$(ATTENTION) SECONDS=$(SECONDS)); earlier runs stay"
	@echo "make compare      train all attentions with two seeds, test the differences, draw a page (COMPARE='--seeds 3 ...';"
	@echo "                  scripts/compare --help)"
	@echo "make experiments  every table and figure of the paper about the kernel: docs/results/kernel (EXPERIMENTS='fidelity ...';"
	@echo "                  dev/experiments/kernel/run --help)"
	@echo "make test         set up, build, run every test; what cannot run here is listed and counted as skipped"
	@echo "make test-cuda    the GPU's tests on the CPU; -check, -asan, -schedules, -lazy, -valgrind: dev/cuda_on_cpu/README.md"
	@echo "make test-124M    one step of GPT-2 124M by the GPU's code on the CPU, beside the C trainer (minutes, 8 GB)"
	@echo "make test-faults  every allocation and call on files fails once, in every program; kills and signals at each (15 minutes)"
	@echo "make test-soak    2000 steps, ended and resumed 20 times, then an hour of sampling under random input (MINUTES=60)"
	@echo "make test-sanitized  the CPU's tests under address, undefined-behaviour and thread sanitizers, a tiny model under valgrind"
	@echo "make fuzz         every reader of files and options under libFuzzer and sanitizers (MINUTES=2 each)"
	@echo "make coverage     what the CPU's tests execute, by gcov: docs/coverage.md and docs/refusals.md"
	@echo "make check        compile everything with warnings as errors"
	@echo "make test-interop compare with tiktoken, transformers, llama.cpp, lm-eval, TensorBoard (makes its own Python environments)"
	@echo "make bench        side-by-side benchmarks"
	@echo "make cuda         the GPU programs (needs nvcc); make test-gpu bench-gpu cuda-report: docs/gpu.md"
	@echo "make install      programs, man pages, shell completion (PREFIX=$(PREFIX), DESTDIR=); make uninstall"
	@echo "make clean        remove what make built; data/ and runs/ stay"
	@echo "variables         CC=clang  ARCH=x86-64-v3  OPT='-O1 -g'  EXTRA_CFLAGS=-fsanitize=address  V=1 (whole commands)"

-include $(shell find $(BUILD) -name '*.d' 2>/dev/null)
.SECONDARY:
