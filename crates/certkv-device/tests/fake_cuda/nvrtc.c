/* An NVRTC that compiles nothing: whatever the source, the machine code is an empty 64-bit ELF file. Its version is none
 * that NVRTC has, so that no cache takes its files for real ones. */
#include <stdlib.h>
#include <string.h>

#define EXPORT __attribute__((visibility("default")))

/* A header, one section of eight bytes and its table. */
enum { HEADER = 64, BYTES = HEADER + 8 + 64 };

static void put(unsigned char *file, int at, int value) { file[at] = (unsigned char)value; }

EXPORT int nvrtcVersion(int *major, int *minor) {
    *major = 13, *minor = 9999;
    return 0;
}

EXPORT int nvrtcGetNumSupportedArchs(int *count) {
    *count = 1;
    return 0;
}

EXPORT int nvrtcGetSupportedArchs(int *archs) {
    archs[0] = 90;
    return 0;
}

EXPORT int nvrtcCreateProgram(
    void **program, const char *source, const char *name, int count, const char *const *headers, const char *const *names
) {
    (void)source, (void)name, (void)count, (void)headers, (void)names;
    *program = calloc(1, 1);
    return *program ? 0 : 1;
}

EXPORT int nvrtcCompileProgram(void *program, int count, const char *const *options) {
    (void)count, (void)options;
    return program ? 0 : 5;
}

EXPORT int nvrtcGetProgramLogSize(void *program, size_t *bytes) {
    *bytes = 1;
    return program ? 0 : 5;
}

EXPORT int nvrtcGetProgramLog(void *program, char *log) {
    *log = 0;
    return program ? 0 : 5;
}

EXPORT int nvrtcGetCUBINSize(void *program, size_t *bytes) {
    *bytes = BYTES;
    return program ? 0 : 5;
}

EXPORT int nvrtcGetCUBIN(void *program, char *code) {
    unsigned char *file = (unsigned char *)code;
    memset(file, 0, BYTES);
    memcpy(file, "\177ELF\002", 5);
    put(file, 40, HEADER + 8), put(file, 58, 64), put(file, 60, 1);
    put(file, HEADER + 8 + 4, 1), put(file, HEADER + 8 + 24, HEADER), put(file, HEADER + 8 + 32, 8);
    return program ? 0 : 5;
}

EXPORT int nvrtcDestroyProgram(void **program) {
    free(*program);
    *program = NULL;
    return 0;
}

EXPORT const char *nvrtcGetErrorString(int code) { return code ? "an error" : "no error"; }
