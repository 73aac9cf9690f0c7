# The GPU programs, by nvcc. Nothing here runs unless one of these goals is asked for.
#   make cuda          train_gpt2_cuda (bf16) and train_gpt2_cuda_fp32 for the architectures in CUDA_ARCH, and PTX
#   make test-gpu      every .cu test on a real GPU, the programs, NCCL where there are two GPUs, and compute-sanitizer where
#                      it is installed; without a GPU it says so in one line, before anything is looked for or built
#   make bench-gpu     measures attentions, training and decoding on a real GPU; prints tables ready to paste
#   make cuda-report   registers, issue slots, bytes and bounds of every kernel and a model of a step, into docs/cuda_report.md
# Variables: CUDA_ARCH=80 for one architecture, TF32=1 for TF32 products in the fp32 programs, CUDA_HOME for another toolkit.
NVCC_GOALS := cuda test-gpu bench-gpu cuda-report
ifneq ($(filter cuda cuda-report nvcc-programs nvcc-tests nvcc-bench nvcc-report nvcc-report-code nvcc-find-gpu,$(MAKECMDGOALS)),)
-include $(BUILD)/cuda.mk
-include $(shell find $(BUILD)/cuda -name '*.dep' 2>/dev/null)
endif
# Until scripts/setup_cuda.sh has seen which of them nvcc knows.
CUDA_ARCH ?= 80 90 100 120
$(BUILD)/cuda.mk: scripts/setup_cuda.sh
	@scripts/setup_cuda.sh

NVCC_GENCODE := $(foreach arch,$(CUDA_ARCH),-gencode arch=compute_$(arch),code=sm_$(arch)) \
    -gencode arch=compute_$(lastword $(CUDA_ARCH)),code=compute_$(lastword $(CUDA_ARCH))
NVCC_LANGUAGE = -std=c++17 -O3 -lineinfo -I. $(NVCC_FOUND)
NVCC_OPTIONS  = $(NVCC_LANGUAGE) -Xcompiler -Wall,-Wextra $(NVCC_GENCODE)
comma        := ,
NVCC_LINK     = $(call say,link,$@)$(NVCC) -o $@ $(filter %.o,$^) $(BUILD)/libslay.a $(patsubst -Wl$(comma)%,-Xlinker %,$(CONFIG_LIBS)) -lm \
    -Xcompiler -fopenmp $(NVCC_LIBS) \
    $(subst -pthread,-Xcompiler -pthread,$(patsubst -Wl$(comma)%,-Xlinker %,$(CONFIG_MPI_LIBS)))
NVCC_TEST_SOURCES := $(wildcard $(GPU_ROOMS:%=%/test_*_gpu.cu))
NVCC_LIBRARY := $(filter-out $(NVCC_TEST_SOURCES),$(wildcard $(GPU_ROOMS:%=%/*.cu)))
NVCC_ROOM_TESTS := $(NVCC_TEST_SOURCES:%.cu=%)
NVCC_TWIN_TESTS := test_gpt2 test_gpt2_124M
NVCC_TESTS   := $(NVCC_ROOM_TESTS) $(NVCC_TWIN_TESTS)
NVCC_RANK_TESTS := $(filter core/ranks/%,$(NVCC_ROOM_TESTS))
NVCC_CASES   := $(patsubst dev/cuda/%.cu,%,$(filter-out %/traffic.cu,$(wildcard dev/cuda/*.cu)))
NVCC_SOURCES  = $(NVCC_LIBRARY) dev/find_gpu.cu $(NVCC_TEST_SOURCES) $(wildcard dev/cuda/*.cu dev/bench/*.cu *.cu)
NVCC_PROGRAMS := $(patsubst %.cu,%_cuda,$(wildcard train_gpt2.cu sample_gpt2.cu evaluate.cu))
NVCC_bf16    := -DPRECISION_BF16
NVCC_fp32    := $(if $(TF32),-DALLOW_TF32)

# What objects are made for: another choice makes them anew.
NVCC_CHOICE  := $(BUILD)/cuda/choice
.PHONY: nvcc-choice
$(NVCC_CHOICE): nvcc-choice
	@mkdir -p $(@D)
	@echo '$(strip $(CUDA_ARCH)) $(TF32)' | cmp -s - $@ || echo '$(strip $(CUDA_ARCH)) $(TF32)' >$@

# Static rules: patterns that match each other's results would make `make` search without end.
# One set of rules for each precision: $(1) its name, $(2) what the programs' names end in.
define nvcc_rules
$(NVCC_SOURCES:%.cu=$(BUILD)/cuda/$(1)/%.o): $(BUILD)/cuda/$(1)/%.o: %.cu $(BUILD)/cuda.mk $(NVCC_CHOICE)
	@mkdir -p $$(@D)
	$$(call say,nvcc,$$@)$$(NVCC) $$(NVCC_OPTIONS) $$(NVCC_$(1)) -MMD -MP -MF $$(@:.o=.dep) -Xptxas -v -c -o $$@ $$< 2>$$(@:.o=.ptxas) || \
	    { cat $$(@:.o=.ptxas); false; }
	@grep -A 3 'warning' $$(@:.o=.ptxas) || true
NVCC_OBJECTS_$(1) := $(NVCC_LIBRARY:%.cu=$(BUILD)/cuda/$(1)/%.o)
train_gpt2_cuda$(2) sample_gpt2_cuda$(2) evaluate_cuda$(2): %_cuda$(2): $(BUILD)/cuda/$(1)/%.o $$(NVCC_OBJECTS_$(1)) $(BUILD)/libslay.a
	$$(NVCC_LINK)
$(NVCC_ROOM_TESTS:%=$(BUILD)/cuda/$(1)/%): %: %.o $$(NVCC_OBJECTS_$(1)) $(BUILD)/libslay.a
	$$(NVCC_LINK)
$(NVCC_TWIN_TESTS:%=$(BUILD)/cuda/$(1)/%): %: %.o $(BUILD)/float/dev/cuda/gpt2_twin.o $$(NVCC_OBJECTS_$(1)) $(BUILD)/libslay.a
	$$(NVCC_LINK)
$(NVCC_CASES:%=$(BUILD)/cuda/$(1)/dev/cuda/%): %: %.o $(BUILD)/float/dev/cuda/gpt2_twin.o $$(NVCC_OBJECTS_$(1)) $(BUILD)/libslay.a
	$$(NVCC_LINK)
$(BUILD)/cuda/$(1)/dev/bench/bench_gpu: $(BUILD)/cuda/$(1)/dev/bench/bench_gpu.o $$(NVCC_OBJECTS_$(1)) $(BUILD)/libslay.a
	$$(NVCC_LINK)
endef
$(eval $(call nvcc_rules,bf16,))
$(eval $(call nvcc_rules,fp32,_fp32))

$(BUILD)/cuda/find_gpu: $(BUILD)/cuda/fp32/dev/find_gpu.o $(BUILD)/cuda/fp32/core/gpu/cuda_common.o
	$(NVCC) -o $@ $^ $(NVCC_LIBS)

.PHONY: $(NVCC_GOALS) nvcc-programs nvcc-tests nvcc-bench nvcc-report nvcc-report-code nvcc-find-gpu
cuda: $(BUILD)/cuda.mk $(BUILD)/config.mk
	@$(info GPUs       sm $(strip $(CUDA_ARCH)))
	@$(MAKE) --no-print-directory nvcc-programs
nvcc-programs: $(NVCC_PROGRAMS) $(NVCC_PROGRAMS:%=%_fp32)
nvcc-tests: $(foreach precision,fp32 bf16,$(NVCC_TESTS:%=$(BUILD)/cuda/$(precision)/%))
nvcc-bench: $(NVCC_PROGRAMS) $(NVCC_PROGRAMS:%=%_fp32) $(foreach case,bench/bench_gpu $(NVCC_CASES:%=cuda/%),$(BUILD)/cuda/bf16/dev/$(case)) stories tokenize
nvcc-find-gpu: $(BUILD)/cuda/find_gpu
$(BUILD)/cuda/find_driver: dev/find_driver.c
	@mkdir -p $(@D) && $(CC) -Wall -Wextra -o $@ $< -ldl
SANITIZED    := $(foreach precision,fp32 bf16,$(patsubst %,$(BUILD)/cuda/$(precision)/%,\
                $(filter-out %/test_parallel_gpu %_124M,$(NVCC_TESTS))))
test-gpu: $(BUILD)/cuda/find_driver
	@$(BUILD)/cuda/find_driver
	@$(MAKE) --no-print-directory -s nvcc-find-gpu && $(BUILD)/cuda/find_gpu
	@$(MAKE) --no-print-directory -s nvcc-tests nvcc-programs all
	@GPU_TRAIN_FP32=./train_gpt2_cuda_fp32 GPU_TRAIN_BF16=./train_gpt2_cuda \
	    GPU_SAMPLE_FP32=./sample_gpt2_cuda_fp32 GPU_SAMPLE_BF16=./sample_gpt2_cuda \
	    TWO_GPU_PROGRAMS="$(foreach precision,fp32 bf16,$(NVCC_RANK_TESTS:%=$(BUILD)/cuda/$(precision)/%))" \
	    SANITIZER_TESTS="$(foreach test,$(SANITIZED),$(test)=$(call smallest_tests_of,$(test)))" \
	    scripts/run_tests.sh $(foreach precision,fp32 bf16,$(NVCC_TESTS:%=$(BUILD)/cuda/$(precision)/%)) \
	    scripts/test_train_gpu.sh scripts/test_two_gpus.sh \
	    scripts/test_sanitizer.sh
bench-gpu: $(BUILD)/cuda/find_driver
	@$(BUILD)/cuda/find_driver
	@$(MAKE) --no-print-directory -s nvcc-find-gpu && $(BUILD)/cuda/find_gpu
	@$(MAKE) --no-print-directory -s nvcc-bench
	@dev/bench/bench_gpu.sh
cuda-report: $(BUILD)/cuda.mk $(BUILD)/config.mk
	@$(MAKE) --no-print-directory nvcc-report
# CUDA_ARCH=80 REPORT_BUILDS=bf16 make a page of one architecture and one precision, in an eighth of the time. Machine code alone is
# compiled for it, architecture by architecture, and every file of it and every count is kept: what was interrupted goes on.
REPORT_BUILDS ?= bf16 fp32
REPORT_SOURCES := $(NVCC_LIBRARY) train_gpt2.cu sample_gpt2.cu
COUNT_bf16   := count-bf16
COUNT_fp32   := count
# $(1) architecture, $(2) precision
define report_rules
REPORT_CODE += $(REPORT_SOURCES:%.cu=$(BUILD)/cuda/report/sm_$(1)/$(2)/%.cubin)
$(REPORT_SOURCES:%.cu=$(BUILD)/cuda/report/sm_$(1)/$(2)/%.cubin): $(BUILD)/cuda/report/sm_$(1)/$(2)/%.cubin: %.cu $(BUILD)/cuda.mk
	@mkdir -p $$(@D)
	$$(call say,nvcc,$$@)$$(NVCC) $$(NVCC_LANGUAGE) -arch=sm_$(1) $$(NVCC_$(2)) -MMD -MP -MF $$(@:.cubin=.dep) -Xptxas -v -cubin -o $$@ $$< \
	    2>$$(@:.cubin=.ptxas) || { cat $$(@:.cubin=.ptxas); false; }
endef
$(foreach precision,$(REPORT_BUILDS),$(foreach arch,$(CUDA_ARCH),$(eval $(call report_rules,$(arch),$(precision)))))
nvcc-report-code: $(REPORT_CODE)
nvcc-report: $(REPORT_CODE) $(foreach precision,$(REPORT_BUILDS),$(BUILD)/cuda_on_cpu/$(COUNT_$(precision))/dev/cuda/traffic)
	@CUDA_ARCH="$(strip $(CUDA_ARCH))" REPORT_BUILDS="$(strip $(REPORT_BUILDS))" dev/cuda/report.py --build $(BUILD)/cuda/report \
	    --objects $(BUILD)/cuda/report --count $(BUILD)/cuda_on_cpu --out docs/cuda_report.md
