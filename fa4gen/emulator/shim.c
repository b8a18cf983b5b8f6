/* Stands in for libcute_dsl_runtime.so on a machine without a GPU or a driver.
 *
 * Host code compiled by the CuTe DSL reaches CUDA only through the `_cuda*`, `_cu*` and
 * `cuda_dialect_*` functions of that library. Here they keep the little state that the host code
 * asks back, do nothing on streams and events, and hand every kernel launch to one callback.
 * What is absent on purpose (device memory, graphs, files) leaves an undefined symbol, which the
 * loader names: better than a launch that quietly works on nothing.
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define EXPORT __attribute__((visibility("default")))
enum { SUCCESS = 0, INVALID_VALUE = 1, NOT_SUPPORTED = 801 };

/* ---- what the host code passes: the CUDA runtime's own layouts ------------------------------ */
typedef struct {
    uint32_t grid[3], block[3];
    uint64_t dynamic_smem_bytes;
    void *stream;
    const void *attributes;
    uint32_t attribute_count;
} Config;

typedef struct { int32_t id, pad; uint32_t value[16]; } Attribute; /* 72 bytes */
enum { COOPERATIVE = 2, CLUSTER_DIMENSION = 4, PROGRAMMATIC_STREAM_SERIALIZATION = 6 };

/* ---- what the callback receives --------------------------------------------------------------- */
typedef struct {
    const char *kernel;
    void *const *arguments; /* arguments[i]: the bytes of the entry's i-th .param */
    uint64_t dynamic_smem_bytes;
    uint32_t grid[3], block[3], cluster[3];
    uint32_t cooperative, programmatic;
} Launch;
typedef int (*OnLaunch)(const Launch *);

static OnLaunch on_launch;
static int32_t multiprocessors = 148, smem_optin_bytes = 232448, capability_major = 10;

/* Where launches go from now on; NULL: they fail with cudaErrorNotSupported. */
EXPORT void fa4gen_on_launch(OnLaunch callback) { on_launch = callback; }

/* What `_cudaDeviceGetAttribute` answers from now on. */
EXPORT void fa4gen_device(int32_t sms, int32_t smem_bytes, int32_t major) {
    multiprocessors = sms;
    smem_optin_bytes = smem_bytes;
    capability_major = major;
}

/* ---- libraries and kernels -------------------------------------------------------------------- */
typedef struct Kernel { struct Kernel *next; char name[]; } Kernel;
typedef struct { Kernel *kernels; } Library;

EXPORT int _cudaLibraryLoadData(void **library, const void *image, void *a, void *b, int n, void *c,
                                void *d, int m) {
    (void)image, (void)a, (void)b, (void)n, (void)c, (void)d, (void)m;
    *library = calloc(1, sizeof(Library));
    return *library ? SUCCESS : INVALID_VALUE;
}

EXPORT int _cudaLibraryGetKernel(void **kernel, void *library, const char *name) {
    Library *owner = library;
    Kernel *made = malloc(sizeof(Kernel) + strlen(name) + 1);
    if (!made) return INVALID_VALUE;
    strcpy(made->name, name);
    made->next = owner->kernels;
    *kernel = owner->kernels = made;
    return SUCCESS;
}

EXPORT int _cudaLibraryUnload(void *library) {
    Library *owner = library;
    for (Kernel *k = owner ? owner->kernels : NULL, *next; k; k = next) {
        next = k->next;
        free(k);
    }
    free(owner);
    return SUCCESS;
}

EXPORT int _cuLibraryLoadData(void **l, const void *i, void *a, void *b, int n, void *c, void *d, int m) {
    return _cudaLibraryLoadData(l, i, a, b, n, c, d, m);
}
EXPORT int _cuLibraryGetKernel(void **k, void *l, const char *n) { return _cudaLibraryGetKernel(k, l, n); }
EXPORT int _cuLibraryUnload(void *library) { return _cudaLibraryUnload(library); }

/* tvm-ffi modules load their library at the first call; callers hold the interpreter's lock. */
EXPORT int cuda_dialect_init_library_once(void **state, int (*init)(void **), int (*load)(void **, int),
                                          void *set_error) {
    (void)set_error;
    if (*state) return SUCCESS;
    void *library = NULL;
    int error = init(&library);
    if (!error) error = load(&library, 0);
    if (!error) *state = library;
    return error;
}
EXPORT void cuda_dialect_unload_library_once(void **state) {
    _cudaLibraryUnload(*state);
    *state = NULL;
}

/* ---- launches --------------------------------------------------------------------------------- */
EXPORT int _cudaLaunchKernelEx(const Config *config, void *kernel, void **arguments) {
    if (!on_launch) return NOT_SUPPORTED;
    Launch launch = {.kernel = ((Kernel *)kernel)->name,
                     .arguments = arguments,
                     .dynamic_smem_bytes = config->dynamic_smem_bytes,
                     .cluster = {1, 1, 1}};
    memcpy(launch.grid, config->grid, sizeof launch.grid);
    memcpy(launch.block, config->block, sizeof launch.block);
    const Attribute *attributes = config->attributes;
    for (uint32_t i = 0; i < config->attribute_count; i++) {
        const uint32_t *value = attributes[i].value;
        switch (attributes[i].id) {
        case CLUSTER_DIMENSION: memcpy(launch.cluster, value, sizeof launch.cluster); break;
        case COOPERATIVE: launch.cooperative = *value; break;
        case PROGRAMMATIC_STREAM_SERIALIZATION: launch.programmatic = *value; break;
        }
    }
    return on_launch(&launch);
}

EXPORT int _cudaLaunchKernel(void *kernel, uint32_t gx, uint32_t gy, uint32_t gz, uint32_t bx, uint32_t by,
                             uint32_t bz, void **arguments, uint64_t dynamic_smem_bytes, void *stream) {
    Config config = {{gx, gy, gz}, {bx, by, bz}, dynamic_smem_bytes, stream, NULL, 0};
    return _cudaLaunchKernelEx(&config, kernel, arguments);
}

/* ---- the device ------------------------------------------------------------------------------- */
EXPORT int _cudaDeviceGetAttribute(int *value, int attribute, int device) {
    (void)device;
    switch (attribute) {
    case 1: case 2: case 3: *value = 1024; break;     /* threads a block: total, x, y */
    case 4: *value = 64; break;                       /* z */
    case 5: *value = 2147483647; break;               /* grid x */
    case 6: case 7: *value = 65535; break;            /* grid y, z */
    case 8: *value = 49152; break;                    /* shared memory a block without opt-in, bytes */
    case 16: *value = multiprocessors; break;
    case 75: *value = capability_major; break;
    case 76: *value = 0; break;                       /* capability, minor */
    case 97: *value = smem_optin_bytes; break;
    default: *value = 0; return INVALID_VALUE;        /* no answer is better than a made-up one */
    }
    return SUCCESS;
}
EXPORT int _cuKernelGetAttribute(int *value, int attribute, void *kernel, int device) {
    (void)kernel, (void)device;
    *value = 0;                                       /* 1: static shared memory, which the DSL never uses */
    return attribute == 1 ? SUCCESS : INVALID_VALUE;
}
EXPORT int _cudaGetDevice(int *device) { return *device = 0, SUCCESS; }
EXPORT int _cudaSetDevice(int device) { return device ? INVALID_VALUE : SUCCESS; }
EXPORT int _cudaGetDeviceCount(int *count) { return *count = 1, SUCCESS; }
EXPORT int _cuDeviceGet(int *device, int ordinal) { return *device = ordinal, SUCCESS; }
EXPORT int _cudaFuncSetAttribute(void *f, int a, int v) { return (void)f, (void)a, (void)v, SUCCESS; }
EXPORT int _cudaKernelSetAttributeForDevice(void *k, int a, int v, int d) {
    return (void)k, (void)a, (void)v, (void)d, SUCCESS;
}
EXPORT int _cudaOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, void *f, int threads, size_t smem) {
    return (void)f, (void)threads, (void)smem, *blocks = 1, SUCCESS;
}

/* ---- streams and events: every launch is over when it returns ----------------------------------- */
EXPORT int _cudaDeviceSynchronize(void) { return SUCCESS; }
EXPORT int _cudaStreamSynchronize(void *s) { return (void)s, SUCCESS; }
EXPORT int _cudaStreamCreate(void **s) { return *s = NULL, SUCCESS; }
EXPORT int _cudaStreamDestroy(void *s) { return (void)s, SUCCESS; }
EXPORT int _cudaStreamWaitEvent(void *s, void *e) { return (void)s, (void)e, SUCCESS; }
EXPORT int _cudaEventCreate(void **e) { return *e = NULL, SUCCESS; }
EXPORT int _cudaEventRecord(void *e, void *s) { return (void)e, (void)s, SUCCESS; }
EXPORT int _cudaEventDestroy(void *e) { return (void)e, SUCCESS; }

/* ---- errors ----------------------------------------------------------------------------------- */
typedef void (*SetError)(const char *kind, const char **parts, int32_t count);

EXPORT const char *cuda_dialect_get_error_name(int error) {
    return error == SUCCESS ? "cudaSuccess" : error == NOT_SUPPORTED ? "cudaErrorNotSupported" : "cudaErrorInvalidValue";
}
EXPORT void cuda_dialect_print_on_error(int error) {
    if (error) fprintf(stderr, "launch capture: %s\n", cuda_dialect_get_error_name(error));
}
EXPORT void cuda_dialect_assert_success(int error) {
    cuda_dialect_print_on_error(error);
    if (error) abort();
}
EXPORT void CuteDSLRT_TVMFFISetRaisedCudaError(SetError set_error, int32_t code) {
    char text[64];
    snprintf(text, sizeof text, "launch capture: CUDA error %d", code);
    const char *parts[1] = {text};
    set_error("CUDADialectError", parts, 1);
}
EXPORT void CuteDSLRT_TVMFFISetRaisedCudaLaunchError(SetError set_error, int32_t code) {
    CuteDSLRT_TVMFFISetRaisedCudaError(set_error, code);
}

/* ---- tensor maps -------------------------------------------------------------------------------
 * CuTe's TMA atoms build the 128 bytes inline; `cutlass.experimental.cuda.create_tensor_map_tiled*`
 * calls this instead. The fields are those that the driver writes (swept against an H200's driver).
 */
EXPORT int _cuTensorMapEncodeTiled(uint64_t *map, int type, uint32_t rank, void *address, const uint64_t *dims,
                                   const uint64_t *strides_bytes, const uint32_t *box, const uint32_t *element_strides,
                                   int interleave, int swizzle, int l2_promotion, int oob_fill) {
    /* CUtensorMapDataType -> the map's own code; TFLOAT32 and its FTZ form are f32 with bit 16 set */
    static const uint8_t codes[] = {0, 1, 2, 3, 4, 5, 6, 7, 9, 10, 8, 7, 8};
    if (rank < 1 || rank > 5 || type < 0 || type >= (int)sizeof codes) return INVALID_VALUE;
    uint64_t stride[4] = {0}, dim[5] = {0}, edge[5] = {0}, step[5] = {0};
    for (uint32_t i = 0; i < rank; i++) {
        dim[i] = dims[i] - 1, edge[i] = box[i] - 1, step[i] = element_strides[i] - 1;
        if (i + 1 < rank) stride[i] = strides_bytes[i] / 16;
    }
    memset(map, 0, 128);
    map[0] = (uint64_t)address;
    map[1] = (uint64_t)(rank - 1) << 4 | (uint64_t)codes[type] << 7 | (uint64_t)interleave << 11 |
             (uint64_t)swizzle << 13 | (uint64_t)oob_fill << 15 | (uint64_t)(type >= 11) << 16 |
             (uint64_t)l2_promotion << 17 | stride[0] << 32;
    map[2] = (stride[1] & 0xffffffff) | stride[2] << 32;
    map[3] = stride[3] & 0xffffffff;
    for (int i = 0; i < 4; i++) map[3] |= ((stride[i] >> 32) & 15) << (32 + 4 * i);
    map[4] = dim[0] | dim[1] << 32;
    map[5] = dim[2] | dim[3] << 32;
    map[6] = dim[4] | edge[0] << 56;
    for (int i = 0; i < 5; i++) map[6] |= step[i] << (32 + 3 * i);
    for (int i = 1; i < 5; i++) map[7] |= edge[i] << (8 * (i - 1));
    return SUCCESS;
}
