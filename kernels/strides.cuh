// Rows of a caller that need not follow each other. The twin in Rust is `Strides`.
#pragma once

// Where the rows of a tensor of tokens are: head h of token t begins `t * token + h * head` elements behind the first. Rows that are read begin at
// multiples of 16 bytes.
struct CkvStrides {
    u32 token, head;
};
CKV_FN u64 row_at(const CkvStrides& s, u32 token, u32 head) { return (u64)token * s.token + (u64)head * s.head; }
