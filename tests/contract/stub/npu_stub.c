/*
 * What torch_npu 2.10.0.post4 needs of CANN beyond what acl_stub.c has, to be imported and to hold tensors on a machine
 * without an NPU. It is linked with acl_stub.c into one library by loader.py.
 *
 * Memory works in every form in which torch_npu's allocator asks for it; events take no time. Operators are
 * refused, so that a test cannot mistake memory that nothing wrote for a result: its tensors live on the CPU.
 */
#define _GNU_SOURCE
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>

enum { SUCCESS = 0, BAD_ALLOC = 200000, NOT_SUPPORTED = 207000 };

/* As an Atlas A2 with 64 GB reports itself. */
static const size_t TOTAL_MEMORY = (size_t)64 << 30;

static char handle;

int aclrtMalloc(void **memory, size_t size, int policy);

#define SUCCEEDS(name) \
    int name(void) { return SUCCESS; }
#define REFUSES(name) \
    int name(void) { return NOT_SUPPORTED; }
#define GIVES_HANDLE(name) \
    void *name(void) { return &handle; }

/* ---- Memory ---- */

int aclrtMallocAlign32(void **memory, size_t size, int policy) { return aclrtMalloc(memory, size, policy); }

/* The attribute names a kind of memory; a device of ours has one. */
int aclrtGetMemInfo(int attribute, size_t *available, size_t *total)
{
    (void)attribute;
    *available = TOTAL_MEMORY;
    *total = TOTAL_MEMORY;
    return SUCCESS;
}

/*
 * Expandable segments: addresses are reserved, and physical memory is mapped to parts of them later. The host's kernel
 * does the same behind the reservation's back, so mapping has nothing to do.
 */
int aclrtReserveMemAddress(void **address, size_t size, size_t alignment, void *expected, uint64_t flags)
{
    (void)alignment, (void)expected, (void)flags;
    int kind = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
    size_t *start = mmap(NULL, size + 4096, PROT_READ | PROT_WRITE, kind, -1, 0);
    if (start == MAP_FAILED) {
        *address = NULL;
        return BAD_ALLOC;
    }
    *start = size + 4096; /* for its release */
    *address = (char *)start + 4096;
    return SUCCESS;
}

int aclrtReleaseMemAddress(void *address)
{
    size_t *start = (size_t *)((char *)address - 4096);
    return munmap(start, *start) == 0 ? SUCCESS : BAD_ALLOC;
}

int aclrtMallocPhysical(void **created, size_t size, const void *properties, uint64_t flags)
{
    (void)size, (void)properties, (void)flags;
    *created = &handle;
    return SUCCESS;
}

SUCCEEDS(aclrtFreePhysical)
SUCCEEDS(aclrtMapMem)
SUCCEEDS(aclrtUnmapMem)

/* ---- Streams and events ---- */

int aclrtCreateEventWithFlag(void **created, uint32_t flag)
{
    (void)flag;
    *created = &handle;
    return SUCCESS;
}

int aclrtEventElapsedTime(float *milliseconds, void *start, void *end)
{
    (void)start, (void)end;
    *milliseconds = 0;
    return SUCCESS;
}

/* 1 is "complete" of an event's recorded status. */
int aclrtQueryEventStatus(void *event, int *status)
{
    (void)event;
    *status = 1;
    return SUCCESS;
}

SUCCEEDS(aclrtSynchronizeEvent)
SUCCEEDS(aclrtProcessReport)
SUCCEEDS(aclrtSynchronizeDevice)
SUCCEEDS(aclrtSynchronizeStreamWithTimeout)
SUCCEEDS(aclrtDestroyStreamForce)
SUCCEEDS(aclrtSetOpWaitTimeout)
SUCCEEDS(aclrtSetOpExecuteTimeOut)
SUCCEEDS(aclrtCtxSetSysParamOpt)
SUCCEEDS(aclrtSetDeviceSatMode)
SUCCEEDS(aclrtSetStreamOverflowSwitch)

/* ---- Descriptions of tensors and attributes of operators: made and released, never read ---- */

GIVES_HANDLE(aclCreateDataBuffer)
GIVES_HANDLE(aclCreateTensorDesc)
GIVES_HANDLE(aclopCreateAttr)
SUCCEEDS(aclDestroyDataBuffer)
void aclDestroyTensorDesc(void) {}
void aclopDestroyAttr(void) {}
void aclSetTensorDescName(void) {}
SUCCEEDS(aclSetTensorFormat)
SUCCEEDS(aclSetTensorPlaceMent)
SUCCEEDS(aclSetTensorShape)
REFUSES(aclGetTensorDescDimV2)
SUCCEEDS(aclGetTensorDescFormat)
size_t aclGetTensorDescNumDims(void) { return 0; }
SUCCEEDS(aclGetTensorDescType)
SUCCEEDS(aclopSetAttrBool)
SUCCEEDS(aclopSetAttrDataType)
SUCCEEDS(aclopSetAttrFloat)
SUCCEEDS(aclopSetAttrInt)
SUCCEEDS(aclopSetAttrListBool)
SUCCEEDS(aclopSetAttrListFloat)
SUCCEEDS(aclopSetAttrListInt)
SUCCEEDS(aclopSetAttrListListInt)
SUCCEEDS(aclopSetAttrString)

/* ---- What only a device can do ---- */

REFUSES(aclopCompileAndExecute)
REFUSES(aclopCompileAndExecuteV2)
REFUSES(rtKernelLaunch)
REFUSES(aclrtDeviceEnablePeerAccess)
REFUSES(aclrtMemExportToShareableHandle)
REFUSES(aclrtMemImportFromShareableHandle)
REFUSES(aclrtMemSetPidToShareableHandle)

int aclrtDeviceCanAccessPeer(int32_t *possible)
{
    *possible = 0;
    return SUCCESS;
}

/* ---- Settings, logging, dumps ---- */

SUCCEEDS(aclSetCompileopt)
SUCCEEDS(aclmdlInitDump)
SUCCEEDS(aclmdlSetDump)
SUCCEEDS(aclmdlFinalizeDump)
void aclAppLog(void) {}

const char *aclGetRecentErrMsg(void) { return ""; }
