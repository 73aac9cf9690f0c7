// A tool that NVTX loads in Nsight's place (NVTX_INJECTION64_PATH): at the end it writes every range's name and how
// often it was opened to NVTX_RECORD, and `unbalanced N` when N ranges were left open.
#include <nvtx3/nvToolsExt.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { NAMES_MAX = 256 };
static struct {
    const char *name;
    long count;
} ranges[NAMES_MAX];
static int names, depth;

static int on_push(const char *name) {
    int i = 0;
    while (i < names && strcmp(ranges[i].name, name)) i++;
    if (i == names && names < NAMES_MAX) ranges[names++].name = strdup(name);
    if (i < names) ranges[i].count++;
    return depth++;
}

static int on_pop(void) {
    return --depth;
}

static void write_record(void) {
    const char *path = getenv("NVTX_RECORD");
    FILE *out = path ? fopen(path, "w") : NULL;
    if (!out) return;
    for (int i = 0; i < names; i++) fprintf(out, "%ld %s\n", ranges[i].count, ranges[i].name);
    if (depth) fprintf(out, "unbalanced %d\n", depth);
    fclose(out);
}

int InitializeInjectionNvtx2(NvtxGetExportTableFunc_t get_table);
int InitializeInjectionNvtx2(NvtxGetExportTableFunc_t get_table) {
    NvtxFunctionTable functions = NULL;
    unsigned size = 0;
    const NvtxExportTableCallbacks *callbacks = get_table(NVTX_ETID_CALLBACKS);
    if (!callbacks || !callbacks->GetModuleFunctionTable(NVTX_CB_MODULE_CORE, &functions, &size)) return 0;
    if (size <= NVTX_CBID_CORE_RangePop) return 0;
    *functions[NVTX_CBID_CORE_RangePushA] = (NvtxFunctionPointer)on_push;
    *functions[NVTX_CBID_CORE_RangePop] = (NvtxFunctionPointer)on_pop;
    atexit(write_record);
    return 1;
}
