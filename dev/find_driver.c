// find_driver: says in one line, with exit code 1, that there is no GPU here: no driver of NVIDIA's, or one that shows
// none. It needs no CUDA toolkit, so that `make test-gpu` can ask before anything is looked for or built.
#include <dlfcn.h>
#include <stdio.h>

static int complain(const char *why) {
    fprintf(stderr, "no GPU found: %s; make test runs the kernels' tests on the CPU\n", why);
    return 1;
}

int main(void) {
    int devices = 0;
    void *driver = dlopen("libcuda.so.1", RTLD_NOW);
    if (!driver) return complain("NVIDIA's driver (libcuda.so.1) is not there");
    // What dlsym returns is a function's address, which C converts only by way of a pointer to it.
    int (*initialize)(unsigned), (*count_devices)(int *);
    *(void **)&initialize = dlsym(driver, "cuInit");
    *(void **)&count_devices = dlsym(driver, "cuDeviceGetCount");
    if (!initialize || !count_devices) return complain("libcuda.so.1 is not NVIDIA's driver");
    if (initialize(0) != 0 || count_devices(&devices) != 0 || devices < 1)
        return complain("the driver shows none: look at nvidia-smi and CUDA_VISIBLE_DEVICES");
    return 0;
}
