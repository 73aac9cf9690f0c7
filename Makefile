# slay.c. `make help` lists the targets; what was found on this machine is in build/config.mk (scripts/setup.sh).
.DEFAULT_GOAL := all
PROGRAMS := train_gpt2 sample_gpt2 tokenize stories inspect

# ---- what the machine has: compilers and libraries, probed by compiling and linking
-include build/config.mk
build/config.mk: scripts/setup.sh
	@scripts/setup.sh --probe

# ---- flags
# Never -ffast-math or -ffinite-math-only: NaN checks must work. -fno-math-errno and -fno-trapping-math change no value;
# they let the compiler vectorise.
ARCH     ?= native
OPT      ?= -O3 -march=$(ARCH) -fno-math-errno -fno-trapping-math
WARNINGS := -Wall -Wextra
CFLAGS   := -std=gnu11 -g $(OPT) $(WARNINGS) $(CONFIG_CFLAGS) $(EXTRA_CFLAGS)
LDLIBS   := $(CONFIG_LIBS) -lm $(EXTRA_LIBS)

# ---- sources: everything in the three folders but programs and tests is library
PROGRAM_SOURCES := dataloader/tokenize.c dataloader/stories.c core/inspect.c
TEST_SOURCES    := $(wildcard core/test_*.c attention/test_*.c dataloader/test_*.c)
LIBRARY_SOURCES := $(filter-out $(PROGRAM_SOURCES) $(TEST_SOURCES),$(wildcard core/*.c attention/*.c dataloader/*.c))
# A test named *_gradient.c is compiled in double precision, with the library to match.
GRADIENT_TESTS  := $(patsubst %.c,build/%,$(notdir $(filter %_gradient.c,$(TEST_SOURCES))))
TESTS           := $(patsubst %.c,build/%,$(notdir $(filter-out %_gradient.c,$(TEST_SOURCES)))) build/test_gpt2
TEST_SCRIPTS    := $(wildcard core/test_*.sh attention/test_*.sh dataloader/test_*.sh scripts/test_*.sh)

OBJECTS        := $(LIBRARY_SOURCES:%.c=build/float/%.o)
DOUBLE_OBJECTS := $(LIBRARY_SOURCES:%.c=build/double/%.o)

.PHONY: all quickstart test test-programs test-interop bench clean help setup
all: $(PROGRAMS)

build/float/%.o: %.c build/config.mk
	@mkdir -p $(@D)
	$(CC) $(CFLAGS) -MMD -MP -c -o $@ $<
build/double/%.o: %.c build/config.mk
	@mkdir -p $(@D)
	$(CC) $(CFLAGS) -DREAL_IS_DOUBLE -MMD -MP -c -o $@ $<
build/libslay.a: $(OBJECTS)
	@rm -f $@
	ar rcs $@ $^
build/libslay_double.a: $(DOUBLE_OBJECTS)
	@rm -f $@
	ar rcs $@ $^

# ---- programs
train_gpt2 sample_gpt2: %: build/float/%.o build/libslay.a
	$(CC) $(CFLAGS) -o $@ $^ $(LDLIBS)
tokenize: build/float/dataloader/tokenize.o build/libslay.a
	$(CC) $(CFLAGS) -o $@ $^ $(LDLIBS)
stories: build/float/dataloader/stories.o build/libslay.a
	$(CC) $(CFLAGS) -o $@ $^ $(LDLIBS)
inspect: build/float/core/inspect.o build/libslay.a
	$(CC) $(CFLAGS) -o $@ $^ $(LDLIBS)
build/%: build/float/dev/%.o build/libslay.a
	$(CC) $(CFLAGS) -o $@ $^ $(LDLIBS)
build/%: build/float/dev/bench/%.o build/libslay.a
	$(CC) $(CFLAGS) -o $@ $^ $(LDLIBS)

# ---- tests
build/test_gpt2: build/float/test_gpt2.o build/libslay.a
	$(CC) $(CFLAGS) -o $@ $^ $(LDLIBS)
build/test_gpt2_gradient: build/double/test_gpt2.o build/libslay_double.a
	$(CC) $(CFLAGS) -o $@ $^ $(LDLIBS)
build/%_gradient: build/double/core/%_gradient.o build/libslay_double.a
	$(CC) $(CFLAGS) -o $@ $^ $(LDLIBS)
build/%_gradient: build/double/attention/%_gradient.o build/libslay_double.a
	$(CC) $(CFLAGS) -o $@ $^ $(LDLIBS)
build/test_%: build/float/core/test_%.o build/libslay.a
	$(CC) $(CFLAGS) -o $@ $^ $(LDLIBS)
build/test_%: build/float/attention/test_%.o build/libslay.a
	$(CC) $(CFLAGS) -o $@ $^ $(LDLIBS)
build/test_%: build/float/dataloader/test_%.o build/libslay.a
	$(CC) $(CFLAGS) -o $@ $^ $(LDLIBS)

setup:
	@scripts/setup.sh
test: setup
	@$(MAKE) --no-print-directory -j$$(nproc) test-programs
	@scripts/run_tests.sh $(TESTS) $(GRADIENT_TESTS) build/test_gpt2_gradient $(TEST_SCRIPTS)
test-programs: all $(TESTS) $(GRADIENT_TESTS) build/test_gpt2_gradient
test-interop: setup all
	@scripts/test_interop.sh
quickstart: setup
	@$(MAKE) --no-print-directory -j$$(nproc) all
	@scripts/quickstart.sh
bench: setup all
	@dev/bench/run.sh

clean:
	rm -rf build $(PROGRAMS)
help:
	@echo "make              the programs: $(PROGRAMS)"
	@echo "make quickstart   set up, build, train a small GPT on generated stories, show what it writes"
	@echo "                  (ATTENTION=softmax SECONDS=120)"
	@echo "make test         set up, build, run every test"
	@echo "make test-interop compare with tiktoken and transformers (makes its own Python environment)"
	@echo "make bench        side-by-side benchmarks"
	@echo "make clean        remove what make built; data/ and runs/ stay"
	@echo "variables         CC=clang  ARCH=x86-64-v3  OPT='-O1 -g'  EXTRA_CFLAGS=-fsanitize=address"

-include $(shell find build -name '*.d' 2>/dev/null)
.SECONDARY:
