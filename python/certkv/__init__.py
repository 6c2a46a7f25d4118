"""Declarations of certkv's C interface for ctypes: `certkv._abi`, generated from include/certkv.h."""
