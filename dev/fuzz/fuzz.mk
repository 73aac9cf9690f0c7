# Fuzzing (docs/testing.md): `make fuzz` builds the targets with clang, libFuzzer and sanitizers in build/fuzz; the test
# dev/fuzz/test_corpora.sh builds them with this machine's compiler and replays what is kept in dev/fuzz/corpus.
FUZZ_NAMES   := $(patsubst dev/fuzz/fuzz_%.c,%,$(wildcard dev/fuzz/fuzz_*.c))
# FUZZ_DRIVER: what calls the target, libFuzzer with mutators of our own or replay.c
FUZZ_DRIVER  ?= replay
FUZZ_OBJECTS := $(patsubst %,$(BUILD)/float/dev/fuzz/%.o,memory_files json_memory $(FUZZ_DRIVER))

$(FUZZ_OBJECTS): # mentioned, or make takes a rule without them while one of them is missing

.PHONY: fuzz fuzz-programs
fuzz-programs: $(FUZZ_NAMES:%=$(BUILD)/dev/fuzz/fuzz_%)
$(BUILD)/dev/fuzz/fuzz_%: $(BUILD)/float/dev/fuzz/fuzz_%.o $(FUZZ_OBJECTS) $(BUILD)/libslay.a
	@mkdir -p $(@D)
	$(LINK)
fuzz:
	@dev/fuzz/run.sh $(if $(MINUTES),--minutes $(MINUTES)) $(FUZZ_OPTIONS)
