# The .cu files without a GPU: how X.cu becomes an object and a test program of a mode (README.md says what modes there
# are), and the targets that run them. Included by the Makefile; needs BUILD, LDLIBS and $(BUILD)/libslay.a from there.

# ---- what there is: library .cu files, and tests *_gpu.cu beside them
CUDNN_TEST_SOURCE    := attention/test_softmax_gpu.cu
CUDA_TEST_SOURCES    := $(filter-out $(CUDNN_TEST_SOURCE),$(wildcard $(GPU_ROOMS:%=%/test_*_gpu.cu))) test_gpt2.cu
CUDA_LIBRARY_SOURCES := $(filter-out $(CUDA_TEST_SOURCES) $(CUDNN_TEST_SOURCE),$(wildcard $(GPU_ROOMS:%=%/*.cu)))
CUDA_TESTS           := $(CUDA_TEST_SOURCES:%.cu=%)
# The progressions from naive to shipped kernels, dev/cuda/*.cu; each version is checked: make test-cuda-cases.
CUDA_CASES           := layernorm layernorm_backward linear_gelu classifier adamw gradient_norm embedding_backward \
                        attention_forward attention_backward attention_decode linear_attention
CUDA_CASE_PROGRAMS   := $(CUDA_CASES) traffic
CUDACC               := dev/cuda_on_cpu/cudacc
CUDACC_PARTS         := $(CUDACC) dev/cuda_on_cpu/rewrite_cuda.py $(wildcard dev/cuda_on_cpu/include/*.h dev/cuda_on_cpu/include/*/*.h)
CUDA_FLAGS           := -I. -Wall -Wextra -fopenmp $(filter -D%,$(CONFIG_CFLAGS)) $(EXTRA_CUDA_FLAGS)
# Empty where there are no CUDA headers; then no .cu file is compiled and the tests are counted as skipped.
CUDA_HEADERS         := $(shell dev/cuda_on_cpu/headers.sh --find)
CUDA_WHY_NOT         := $(if $(CUDA_HEADERS),,$(shell dev/cuda_on_cpu/headers.sh --why))

# What the trainer's test and the progressions compare with: train_gpt2.c under names that C++ can link to.
CUDA_TWIN            := $(BUILD)/float/dev/cuda/gpt2_twin.o
twin_of               = $(if $(filter test_gpt2%,$(1)),$(CUDA_TWIN))
# A test of minutes: make test-124M.
CUDA_124M_SOURCE     := test_gpt2_124M.cu

# ---- rules for one mode and precision: $(1) mode, $(2) suffix of the directory, $(3) flags
define cuda_rules
$(BUILD)/cuda_on_cpu/$(1)$(2)/%.o: %.cu $(CUDACC_PARTS)
	@mkdir -p $$(@D)
	$$(call say,cuda,$$@)$(CUDACC) --mode=$(1) $(CUDA_FLAGS) $(3) -c $$< -o $$@
$(BUILD)/cuda_on_cpu/$(1)$(2)/libslay_cuda.a: $(CUDA_LIBRARY_SOURCES:%.cu=$(BUILD)/cuda_on_cpu/$(1)$(2)/%.o)
	@rm -f $$@
	ar rcs $$@ $$^
$(foreach program,train_gpt2 sample_gpt2 evaluate,$(BUILD)/cuda_on_cpu/$(1)$(2)/$(program)): %: %.o \
    $(BUILD)/cuda_on_cpu/$(1)$(2)/libslay_cuda.a $(BUILD)/libslay.a $(wildcard dev/cuda_on_cpu/runtime/*)
	@mkdir -p $$(@D)
	$$(call say,link,$$@)$(CUDACC) --mode=$(1) -fopenmp $$(filter %.o %.a,$$^) $$(LDLIBS) -o $$@
$(BUILD)/cuda_on_cpu/$(1)$(2)/dev/bench/bench_gpu: $(BUILD)/cuda_on_cpu/$(1)$(2)/dev/bench/bench_gpu.o \
    $(BUILD)/cuda_on_cpu/$(1)$(2)/libslay_cuda.a $(BUILD)/libslay.a $(wildcard dev/cuda_on_cpu/runtime/*)
	@mkdir -p $$(@D)
	$$(call say,link,$$@)$(CUDACC) --mode=$(1) -fopenmp $$(filter %.o %.a,$$^) $$(LDLIBS) -o $$@
$(foreach case,$(CUDA_CASE_PROGRAMS),
$(BUILD)/cuda_on_cpu/$(1)$(2)/dev/cuda/$(case): $(BUILD)/cuda_on_cpu/$(1)$(2)/dev/cuda/$(case).o $(CUDA_TWIN) \
    $(BUILD)/cuda_on_cpu/$(1)$(2)/libslay_cuda.a $(BUILD)/libslay.a $(wildcard dev/cuda_on_cpu/runtime/*)
	@mkdir -p $$(@D)
	$$(call say,link,$$@)$(CUDACC) --mode=$(1) -fopenmp $$(filter %.o %.a,$$^) $$(LDLIBS) -o $$@
)
$(foreach test,$(CUDA_TEST_SOURCES) $(CUDA_124M_SOURCE),
$(BUILD)/cuda_on_cpu/$(1)$(2)/$(basename $(test)): $(BUILD)/cuda_on_cpu/$(1)$(2)/$(basename $(test)).o \
    $(call twin_of,$(test)) $(BUILD)/cuda_on_cpu/$(1)$(2)/libslay_cuda.a $(BUILD)/libslay.a $(wildcard dev/cuda_on_cpu/runtime/*)
	@mkdir -p $$(@D)
	$$(call say,link,$$@)$(CUDACC) --mode=$(1) -fopenmp $$(filter %.o %.a,$$^) $$(LDLIBS) -o $$@
)
endef
# Where accesses are counted line by line (bf16), whole kernels are one function, as nvcc makes them: an access is then known
# by all the calls that lead to it. That takes g++ a while.
COUNT_LIMITS         := max-inline-insns-single max-inline-insns-auto inline-unit-growth large-function-growth \
                        large-function-insns large-stack-frame-growth large-unit-insns
COUNT_INLINING       := -finline-functions $(COUNT_LIMITS:%=--param=%=100000)
$(foreach mode,fast check asan valgrind count,$(eval $(call cuda_rules,$(mode),,)))
$(foreach mode,fast check asan valgrind,$(eval $(call cuda_rules,$(mode),-bf16,-DPRECISION_BF16)))
$(eval $(call cuda_rules,count,-bf16,-DPRECISION_BF16 $(if $(findstring clang,$(CXX)),,$(COUNT_INLINING))))
$(eval $(call cuda_rules,fast,-tf32,-DALLOW_TF32)) # as make cuda TF32=1 has it

all_cuda_tests_of    = $(foreach precision,$(1) $(1)-bf16,$(CUDA_TESTS:%=$(BUILD)/cuda_on_cpu/$(precision)/%))
cuda_tests_of        = $(if $(CUDA_HEADERS),$(all_cuda_tests_of))
CUDA_FAST_TESTS     := $(call cuda_tests_of,fast)
# The programs, and the script that runs trainer and sampler (those of CUDA_MODE) beside the CPU's.
cuda_programs_of     = $(if $(CUDA_HEADERS),$(foreach program,train_gpt2 sample_gpt2 evaluate,\
                       $(BUILD)/cuda_on_cpu/$(1)/$(program) $(BUILD)/cuda_on_cpu/$(1)-bf16/$(program)))
CUDA_FAST_PROGRAMS  := $(call cuda_programs_of,fast)
CUDA_SCRIPTS        := $(if $(CUDA_HEADERS),scripts/test_train_gpu.sh)
CUDA_CHECK_TESTS    := $(call cuda_tests_of,check)
CUDA_ASAN_TESTS     := $(call cuda_tests_of,asan)
CUDA_VALGRIND_TESTS := $(call cuda_tests_of,valgrind)

# Softmax attention through cuDNN's stand-in, in mode $(1): the bf16 build with two objects of its own, where there are
# cuDNN's headers.
define cudnn_rules
$(BUILD)/cuda_on_cpu/$(1)-cudnn/attention/%.o: attention/%.cu $(CUDACC_PARTS)
	@mkdir -p $$(@D)
	$(CUDACC) --mode=$(1) $(CUDA_FLAGS) -DPRECISION_BF16 -DUSE_CUDNN -c $$< -o $$@
$(BUILD)/cuda_on_cpu/$(1)-cudnn/train_gpt2: $(BUILD)/cuda_on_cpu/$(1)-bf16/train_gpt2.o
$(BUILD)/cuda_on_cpu/$(1)-cudnn/attention/test_softmax_gpu: $(BUILD)/cuda_on_cpu/$(1)-cudnn/attention/test_softmax_gpu.o
$(BUILD)/cuda_on_cpu/$(1)-cudnn/train_gpt2 $(BUILD)/cuda_on_cpu/$(1)-cudnn/attention/test_softmax_gpu: \
    $(BUILD)/cuda_on_cpu/$(1)-cudnn/attention/softmax.o $(BUILD)/cuda_on_cpu/$(1)-cudnn/attention/softmax_cudnn.o \
    $(BUILD)/cuda_on_cpu/$(1)-bf16/libslay_cuda.a $(BUILD)/libslay.a $(wildcard dev/cuda_on_cpu/runtime/*)
	@mkdir -p $$(@D)
	$$(call say,link,$$@)$(CUDACC) --mode=$(1) -fopenmp $$(filter %.o,$$^) $$(filter %.a,$$^) $$(LDLIBS) -o $$@
endef
$(foreach mode,fast check asan,$(eval $(call cudnn_rules,$(mode))))
CUDNN_HEADER        := $(firstword $(foreach directory,$(CUDA_HEADERS),$(wildcard $(directory)/cudnn_graph.h)))
with_cudnn           = $(if $(CUDNN_HEADER),$(BUILD)/cuda_on_cpu/$(1))
CUDA_FAST_TESTS     += $(call with_cudnn,fast-cudnn/attention/test_softmax_gpu)
CUDA_CHECK_TESTS    += $(call with_cudnn,check-cudnn/attention/test_softmax_gpu)
CUDA_ASAN_TESTS     += $(call with_cudnn,asan-cudnn/attention/test_softmax_gpu)
CUDA_FAST_PROGRAMS  += $(call with_cudnn,fast-cudnn/train_gpt2)
# What run_tests.sh is told of the tests that cannot be built, in mode $(1).
cudnn_test_of        = $(BUILD)/cuda_on_cpu/$(1)-cudnn/attention/test_softmax_gpu
cuda_left_out_of     = $(if $(CUDA_HEADERS),$(if $(CUDNN_HEADER),,--left-out '$(cudnn_test_of): there is no cudnn_graph.h'),\
                       $(foreach test,$(all_cuda_tests_of) $(cudnn_test_of) scripts/test_train_gpu.sh,\
                       --left-out '$(test): $(CUDA_WHY_NOT)'))

# ---- targets
.PHONY: test-harness test-cuda test-cuda-tf32 test-124M test-cuda-cases test-cuda-check test-cuda-asan test-cuda-valgrind test-cuda-schedules test-cuda-lazy
test-harness: $(BUILD)/config.mk
	@dev/cuda_on_cpu/headers.sh >/dev/null || true
	@WITH_VALGRIND=1 scripts/run_tests.sh dev/cuda_on_cpu/test_harness.sh
test-cuda: $(CUDA_FAST_TESTS)
	@scripts/run_tests.sh $(call cuda_left_out_of,fast) $^
# Whatever a library does to the factors of its TF32 products, rounding or cutting them off.
CUDA_TF32_TESTS     := $(if $(CUDA_HEADERS),$(foreach test,fast-tf32/test_gpt2 fast-bf16/test_gpt2 fast-bf16/attention/test_linear_gpu,\
                       $(BUILD)/cuda_on_cpu/$(test)))
test-cuda-tf32: $(CUDA_TF32_TESTS)
	@failed=0; for how in round truncate; do echo "TF32: $$how" && CUDA_ON_CPU_TF32=$$how scripts/run_tests.sh \
	    $(if $(CUDA_HEADERS),,--left-out 'TF32: $(CUDA_WHY_NOT)') $(CUDA_TF32_TESTS) || failed=1; done; exit $$failed
test-124M: $(if $(CUDA_HEADERS),$(foreach precision,fast fast-bf16,$(BUILD)/cuda_on_cpu/$(precision)/$(CUDA_124M_SOURCE:%.cu=%)))
	@scripts/run_tests.sh $(if $(CUDA_HEADERS),,--left-out '$(CUDA_124M_SOURCE): $(CUDA_WHY_NOT)') $^
CUDA_CASE_TESTS     := $(foreach precision,fast fast-bf16,$(CUDA_CASES:%=$(BUILD)/cuda_on_cpu/$(precision)/dev/cuda/%))
test-cuda-cases: $(CUDA_CASE_TESTS) $(BUILD)/cuda_on_cpu/fast-bf16/dev/bench/bench_gpu $(CUDA_FAST_PROGRAMS)
	@scripts/run_tests.sh $(CUDA_CASE_TESTS) dev/bench/test_bench_gpu.sh
# The linear attentions' shapes come many times over. Where every access is looked at, each kernel of each head size runs with
# one or two of them, which takes a third of the time (CHECK_ALL=1 for all tests); so do the random orders below.
CHECK_LINEAR := test_fixtures,test_one_row,test_part_of_a_chunk,test_one_row_more_than_a_chunk,test_narrow_heads,$\
    test_special_variants,test_special_variants_of_many_segments,test_odd_head_size,test_one_sequence_of_odd_chunks,$\
    test_one_sequence_of_odd_chunks_of_slay,test_long_running_maximum,test_many_segments,test_groups_of_heads,$\
    test_documents_with_common_heads,test_documents_of_groups,test_nothing_crosses_a_boundary,test_prefill_in_segments,$\
    test_decoding_fills_the_cache,test_decoding_of_wide_heads,test_causality,test_features_are_cut_off_like_the_twins,$\
    test_unusual_constants,test_nan_in_the_input_is_not_hidden,test_bad_input_is_seen,test_floored_rows_are_counted,$\
    test_negative_sums_are_counted
linear_tests_of = $(filter %/test_linear_gpu,$(1))
# $(1) tests that were built, $(2) what could not be, $(3) what else to run
run_checked = failed=0; scripts/run_tests.sh $(2) $(filter-out $(call linear_tests_of,$(1)),$(1)) $(3) || failed=1; \
    $(if $(call linear_tests_of,$(1)),TEST_ONLY="$(if $(CHECK_ALL),,$(CHECK_LINEAR))" scripts/run_tests.sh $(call linear_tests_of,$(1)) || failed=1;) \
    [ $$failed = 0 ]
test-cuda-check: $(CUDA_CHECK_TESTS) $(call cuda_programs_of,check) $(PROGRAMS)
	@export CUDA_MODE=check; $(call run_checked,$(CUDA_CHECK_TESTS),$(call cuda_left_out_of,check),$(CUDA_SCRIPTS))
test-cuda-asan: $(CUDA_ASAN_TESTS) $(call cuda_programs_of,asan) $(PROGRAMS)
	@export CUDA_MODE=asan ASAN_OPTIONS=detect_leaks=0; $(call run_checked,$(CUDA_ASAN_TESTS),$(call cuda_left_out_of,asan),$(CUDA_SCRIPTS))
# Valgrind takes fifty times as long, and so does compute-sanitizer on a GPU: of each program the tests that launch every
# kernel, with the smallest shapes (VALGRIND_ALL=1 for all); without test_parallel_gpu, which has no kernel of its own. A name that a program does not
# know is a failure (core/base/test.h).
VALGRIND_test_linear_gpu    := test_many_segments,test_prefill_in_segments
VALGRIND_test_quadratic_gpu := heads_of_odd_size,near_pairs_keep_their_digits,steps_with_a_small_cache,$\
    levels_rise_with_weights_behind_them
VALGRIND_test_gpt2          := random_numbers,embedding,dropout,layernorm,gelu_kernels,linear,classifier,dropout_beside_its_twin,$\
    decoding_equals_forward,decoding_as_a_graph,a_bad_weight_stays_out
VALGRIND_test_gpt2-bf16     := $(VALGRIND_test_gpt2),rounding_is_fair
smallest_tests_of = $(or $(if $(findstring bf16/,$(1)),$(VALGRIND_$(notdir $(1))-bf16)),$(VALGRIND_$(notdir $(1))))
test-cuda-valgrind: $(CUDA_VALGRIND_TESTS)
	@failed=0; $(foreach test,$(filter-out %/test_parallel_gpu,$^),TEST_ONLY="$(if $(VALGRIND_ALL),,$(call smallest_tests_of,$(test)))" \
	    RUN_UNDER="valgrind --quiet --error-exitcode=99" scripts/run_tests.sh $(test) || failed=1;) exit $$failed
test-cuda-lazy: $(CUDA_FAST_TESTS) $(CUDA_FAST_PROGRAMS) $(PROGRAMS)
	@CUDA_ON_CPU_LAZY=1 scripts/run_tests.sh $(call cuda_left_out_of,fast) $(CUDA_FAST_TESTS) $(CUDA_SCRIPTS)
# Ten orders of blocks, warps and lanes; the failing one's seed is printed.
FIRST_SEED ?= 1
test-cuda-schedules: $(CUDA_FAST_TESTS)
	@set -e; for seed in $$(seq $(FIRST_SEED) $$(($(FIRST_SEED) + 9))); do \
	    echo "random order, CUDA_ON_CPU_SEED=$$seed"; \
	    export CUDA_ON_CPU_ORDER=random CUDA_ON_CPU_SEED=$$seed; $(call run_checked,$(CUDA_FAST_TESTS)); \
	done

# ---- do the tests notice broken kernels? MUTANT_OPTIONS='--only layernorm' for some, README.md for more
MUTANT_FILES ?= $(filter-out core/gpu/test_gpu.h,$(CUDA_LIBRARY_SOURCES) $(wildcard $(GPU_ROOMS:%=%/*.cuh) $(GPU_ROOMS:%=%/*_gpu.h)) \
                core/gpu/cuda_common.h train_gpt2.cu sample_gpt2.cu)
MUTANT_TESTS ?= $(filter-out %/test_parallel_gpu,$(CUDA_TESTS))
.PHONY: test-mutants
test-mutants: $(BUILD)/libslay.a $(CUDA_TWIN)
	@python3 dev/cuda_on_cpu/mutants.py --test $$(echo $(MUTANT_TESTS) | tr " " ,) $(MUTANT_OPTIONS) $(MUTANT_FILES)
# The same for the C code: a sample of 430, of which some are comparisons of floats and do not count (MUTANT_C_OPTIONS='--sample 0'
# for all), judged by the test programs and scripts.
MUTANT_C_OPTIONS ?= --sample 430 --seconds 60 --most 150
MUTANT_C_FILES   ?= train_gpt2.c $(filter-out %/naive_linear.c %/naive_quadratic.c dataloader/stories/%,$(LIBRARY_SOURCES)) \
                    $(filter-out dataloader/stories/%,$(PROGRAM_SOURCES))
MUTANT_C_SCRIPTS ?= core/model/test_inspect.sh dataloader/test_tokenize.sh scripts/test_train.sh scripts/test_sample.sh \
                    scripts/test_evaluate.sh scripts/test_llmc.sh scripts/test_hybrids.sh scripts/test_hostile.sh \
                    scripts/test_vocabulary.sh scripts/test_values.sh scripts/test_prompt.sh scripts/test_rendezvous.sh \
                    scripts/test_parallel.sh scripts/test_work_kept.sh scripts/test_full_output.sh scripts/test_install.sh \
                    dev/fuzz/test_corpora.sh
# (the bounds of test_linear_long are those of the usual flags; mutants are compiled with others)
MUTANT_C_TESTS   ?= $(patsubst $(BUILD)/%,%,$(filter-out $(BUILD)/dataloader/stories/% %/test_linear_long,$(TESTS)) $(GRADIENT_TESTS)) test_gpt2_gradient \
                    $(MUTANT_C_SCRIPTS)
.PHONY: test-mutants-c
test-mutants-c: $(BUILD)/config.mk
	@python3 dev/cuda_on_cpu/mutants.py --test $$(echo $(MUTANT_C_TESTS) | tr " " ,) $(MUTANT_C_OPTIONS) $(MUTANT_C_FILES)
