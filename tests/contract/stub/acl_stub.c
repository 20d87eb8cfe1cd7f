/*
 * What xlite 0.2.0rc4 needs of CANN to run on a machine without an NPU: devices whose memory is the host's.
 *
 * Memory really works, so host code that fills and reads device buffers sees its own data. Streams, events and notifies
 * are handles without an order, which is enough because nothing runs in the background. Kernels register and launch
 * successfully but compute nothing: outputs keep what they held. Anything between devices or processes (HCCL, shared
 * memory, graph capture, which xlite uses for collectives only) fails, so that a test cannot mistake it for working.
 *
 * Arguments are those of CANN's public headers; functions that ignore theirs are declared without, which the calling
 * conventions of x86-64 and AArch64 allow. loader.py compiles this file.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { SUCCESS = 0, INVALID_PARAM = 100000, BAD_ALLOC = 200000, NOT_SUPPORTED = 207000 };

enum { CORES = 24, ALIGNMENT = 4096 };

/* Handles only have to be distinct from null; nothing looks inside. */
static char handle;

#define SUCCEEDS(name) \
    int name(void) { return SUCCESS; }
#define REFUSES(name) \
    int name(void) { return NOT_SUPPORTED; }
#define GIVES_HANDLE(name)        \
    int name(void **created)      \
    {                             \
        *created = &handle;       \
        return SUCCESS;           \
    }

/* ---- Device ---- */

SUCCEEDS(aclInit)
SUCCEEDS(aclFinalize)
SUCCEEDS(aclrtSetDevice)
SUCCEEDS(aclrtResetDevice)
SUCCEEDS(aclrtSetCurrentContext)
GIVES_HANDLE(aclrtGetCurrentContext)

int aclrtGetDeviceCount(uint32_t *count)
{
    *count = 8; /* as a server has */
    return SUCCESS;
}

int aclrtGetDevice(int32_t *device)
{
    *device = 0;
    return SUCCESS;
}

/* Only core counts are asked for, by either name of the function. */
int aclGetDeviceCapability(uint32_t device, int capability, int64_t *value)
{
    (void)device, (void)capability;
    *value = CORES;
    return SUCCESS;
}

int aclrtGetDeviceInfo(uint32_t device, int attribute, int64_t *value)
{
    return aclGetDeviceCapability(device, attribute, value);
}

const char *aclrtGetSocName(void) { return "Ascend910B3"; }

/* ---- Memory ---- */

int aclrtMalloc(void **memory, size_t size, int policy)
{
    (void)policy;
    if (posix_memalign(memory, ALIGNMENT, size ? size : 1) != 0) {
        *memory = NULL;
        return BAD_ALLOC;
    }
    memset(*memory, 0, size); /* a device would not; zeros make runs repeatable */
    return SUCCESS;
}

int aclrtMallocHost(void **memory, size_t size) { return aclrtMalloc(memory, size, 0); }

int rtMalloc(void **memory, uint64_t size, uint32_t type, uint16_t module)
{
    (void)type, (void)module;
    return aclrtMalloc(memory, size, 0);
}

int aclrtFree(void *memory)
{
    free(memory);
    return SUCCESS;
}

int aclrtFreeHost(void *memory) { return aclrtFree(memory); }

int aclrtMemcpy(void *to, size_t capacity, const void *from, size_t count, int kind)
{
    (void)kind;
    if (count > capacity) {
        return INVALID_PARAM;
    }
    memcpy(to, from, count);
    return SUCCESS;
}

int aclrtMemcpyAsync(void *to, size_t capacity, const void *from, size_t count, int kind, void *stream)
{
    (void)stream;
    return aclrtMemcpy(to, capacity, from, count, kind);
}

int aclrtMemset(void *memory, size_t capacity, int32_t value, size_t count)
{
    if (count > capacity) {
        return INVALID_PARAM;
    }
    memset(memory, value, count);
    return SUCCESS;
}

int aclrtMemsetAsync(void *memory, size_t capacity, int32_t value, size_t count, void *stream)
{
    (void)stream;
    return aclrtMemset(memory, capacity, value, count);
}

/* ---- Streams, events, notifies ---- */

GIVES_HANDLE(aclrtCreateStream)
GIVES_HANDLE(aclrtCreateStreamWithConfig)
GIVES_HANDLE(aclrtCtxGetCurrentDefaultStream)
GIVES_HANDLE(aclrtCreateEvent)
GIVES_HANDLE(aclrtCreateEventExWithFlag)
GIVES_HANDLE(aclrtCreateNotify)
SUCCEEDS(aclrtDestroyStream)
SUCCEEDS(aclrtDestroyEvent)
SUCCEEDS(aclrtDestroyNotify)
SUCCEEDS(aclrtSynchronizeStream)
SUCCEEDS(aclrtStreamWaitEvent)
SUCCEEDS(aclrtRecordEvent)
SUCCEEDS(aclrtResetEvent)
SUCCEEDS(aclrtRecordNotify)
SUCCEEDS(aclrtWaitAndResetNotify)

/* ---- Kernels ---- */

int rtDevBinaryRegister(const void *binary, void **registered)
{
    (void)binary;
    *registered = &handle;
    return SUCCESS;
}

int rtRegisterAllKernel(const void *binary, void **registered) { return rtDevBinaryRegister(binary, registered); }

/* The address of the cores' synchronisation memory, which kernels take as their first argument. */
int rtGetC2cCtrlAddr(uint64_t *address, uint32_t *length)
{
    *address = (uint64_t)(uintptr_t)&handle;
    *length = 0;
    return SUCCESS;
}

SUCCEEDS(rtDevBinaryUnRegister)
SUCCEEDS(rtFunctionRegister)
SUCCEEDS(rtRegStreamStateCallback)
SUCCEEDS(rtKernelLaunchWithFlagV2)
SUCCEEDS(rtKernelLaunchWithHandle)
SUCCEEDS(rtKernelLaunchWithHandleV2)
SUCCEEDS(rtVectorCoreKernelLaunchWithHandle)

/* ---- Between devices and processes ---- */

/* Between ranks nothing is exchanged either. A test that looks at launches only says that it knows. */
#define EXCHANGES_NOTHING(name) \
    int name(void) { return getenv("XLITE_STUB_EXCHANGES_NOTHING") ? SUCCESS : NOT_SUPPORTED; }

EXCHANGES_NOTHING(HcclGetRootInfo)
EXCHANGES_NOTHING(HcclAllGather)
EXCHANGES_NOTHING(HcclAllReduce)
EXCHANGES_NOTHING(HcclReduceScatter)
EXCHANGES_NOTHING(aclmdlRICaptureBegin)
EXCHANGES_NOTHING(aclmdlRIExecuteAsync)

int HcclCommInitRootInfo(uint32_t ranks, const void *root, uint32_t rank, void **communicator)
{
    (void)ranks, (void)root, (void)rank;
    *communicator = &handle;
    return HcclGetRootInfo();
}

int aclmdlRICaptureEnd(void *stream, void **model)
{
    (void)stream;
    *model = &handle;
    return aclmdlRICaptureBegin();
}

REFUSES(HcclAlltoAllV)
SUCCEEDS(HcclCommDestroy)
REFUSES(aclrtDeviceGetBareTgid)
REFUSES(aclrtIpcMemGetExportKey)
REFUSES(aclrtIpcMemImportByKey)
REFUSES(aclrtIpcMemSetImportPid)
SUCCEEDS(aclrtIpcMemClose)
SUCCEEDS(aclmdlRIDestroy)

/* ---- Logging and profiling (both off), helpers ---- */

int AlogCheckDebugLevel(void) { return 0; } /* no level is enabled */

void AlogRecord(void) {}

SUCCEEDS(MsprofRegisterCallback)
SUCCEEDS(MsprofReportApi)
SUCCEEDS(MsprofReportCompactInfo)
SUCCEEDS(MsprofReportAdditionalInfo)

uint64_t MsprofGetHashId(void) { return 0; }

uint64_t MsprofSysCycleTime(void) { return 0; }

int mmGetTid(void) { return (int)syscall(SYS_gettid); }

int strcpy_s(char *to, size_t capacity, const char *from)
{
    if (to == NULL || from == NULL || strlen(from) >= capacity) {
        return EINVAL;
    }
    memcpy(to, from, strlen(from) + 1);
    return SUCCESS;
}

/* ErrorManager::GetInstance() and ErrorManager::GetLogHeader(), which return references to an object and to a
 * std::string. In libstdc++ an empty string is: a pointer to its own buffer, length 0, buffer. */
static struct {
    const char *data;
    size_t length;
    char buffer[16];
} empty_string = {.data = empty_string.buffer};

void *_ZN12ErrorManager11GetInstanceEv(void) { return &handle; }

void *_ZN12ErrorManager12GetLogHeaderEv(void) { return &empty_string; }
