/* What a certificate promises of an output that may be used. */
#ifndef HELD_H
#define HELD_H
#include <certkv.h>

/* Computed from originals, or what compression costs is within the tolerance. The last digits of a difference of doubles are not part of it. */
static inline int held(const certkv_certificate *c)
{
    return c->status == CERTKV_EXACT || (c->status == CERTKV_CERTIFIED && c->bound - c->e_arith <= c->tol * (1 + 1e-9));
}
#endif
