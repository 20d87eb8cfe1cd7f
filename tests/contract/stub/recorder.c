/*
 * Records the kernel launches of xlite in the order in which its host code makes them.
 *
 * Every aclrtlaunch_<kernel> of xlite's kernel libraries packs its arguments into one buffer and calls, through the
 * dynamic linker, launch_and_profiling_<kernel>(key, cores, stream, buffer, size). recorder.py appends a definition of
 * each of these to this file, one RECORD line per symbol that the libraries export, and loads the result before xlite, so
 * that the linker finds ours first. Nothing is computed; the arguments are kept as they were packed.
 */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

static unsigned char *records;
static size_t used, capacity;

const void *recorded(void) { return records; }

size_t recorded_size(void) { return used; }

void forget(void) { used = 0; }

/* name length, cores, argument bytes; name; arguments */
static void record(const char *name, uint32_t cores, const void *arguments, uint32_t size)
{
    uint32_t head[3] = {(uint32_t)strlen(name), cores, size};
    size_t needed = used + sizeof head + head[0] + size;
    if (needed > capacity) {
        capacity = 2 * needed + 65536;
        records = realloc(records, capacity);
        if (records == NULL) {
            abort();
        }
    }
    memcpy(records + used, head, sizeof head);
    memcpy(records + used + sizeof head, name, head[0]);
    memcpy(records + used + sizeof head + head[0], arguments, size);
    used = needed;
}

#define RECORD(symbol, name)                                                                        \
    uint32_t symbol(uint64_t key, uint32_t cores, void *stream, void **arguments, uint32_t size) \
    {                                                                                               \
        (void)key, (void)stream;                                                                    \
        record(name, cores, arguments, size);                                                       \
        return 0;                                                                                   \
    }
