//! Products of pairs of 16-bit words: what integer sums are made of. Every x86-64 has an instruction for eight of them, which
//! compilers do not find in plain code; elsewhere they make what they can of that.
use crate::arch::at_once;
#[cfg(all(target_arch = "x86_64", target_feature = "sse2"))]
pub(crate) use machine::{Sums, Words};
#[cfg(not(all(target_arch = "x86_64", target_feature = "sse2")))]
pub(crate) use plain::{Sums, Words};

#[cfg(all(target_arch = "x86_64", target_feature = "sse2"))]
mod machine {
    use core::arch::x86_64::*;

    /// Eight words.
    #[derive(Debug, Clone, Copy)]
    pub(crate) struct Words(__m128i);

    impl Words {
        /// The even bytes of sixteen, and the odd ones.
        #[inline(always)]
        pub(crate) fn of_bytes(bytes: &[u8; 16]) -> [Self; 2] {
            // SAFETY: the module is compiled for machines with SSE2; sixteen bytes are read of sixteen, of any alignment.
            unsafe {
                let all = _mm_loadu_si128(bytes.as_ptr().cast());
                [Self(_mm_and_si128(all, _mm_set1_epi16(0xff))), Self(_mm_srli_epi16::<8>(all))]
            }
        }

        /// Two words, four times.
        #[inline(always)]
        pub(crate) fn pair([a, b]: [i16; 2]) -> Self {
            // SAFETY: the module is compiled for machines with SSE2.
            Self(unsafe { _mm_set1_epi32(i32::from(a) & 0xffff | i32::from(b) << 16) })
        }
    }

    /// Four sums.
    #[derive(Debug, Clone, Copy)]
    pub(crate) struct Sums(__m128i);

    impl Sums {
        /// All of them `from`.
        #[inline(always)]
        pub(crate) fn new(from: i32) -> Self {
            // SAFETY: the module is compiled for machines with SSE2.
            Self(unsafe { _mm_set1_epi32(from) })
        }

        /// Adds to each sum the products of its two words.
        #[inline(always)]
        pub(crate) fn add(&mut self, a: Words, b: Words) {
            // SAFETY: the module is compiled for machines with SSE2.
            self.0 = unsafe { _mm_add_epi32(self.0, _mm_madd_epi16(a.0, b.0)) };
        }

        /// They.
        #[inline(always)]
        pub(crate) fn get(self) -> [i32; 4] {
            let mut sums = [0; 4];
            // SAFETY: the module is compiled for machines with SSE2; sixteen bytes are written to sixteen, of any alignment.
            unsafe { _mm_storeu_si128(sums.as_mut_ptr().cast(), self.0) };
            sums
        }
    }
}

#[cfg(any(test, not(all(target_arch = "x86_64", target_feature = "sse2"))))]
mod plain {
    /// Eight words.
    #[derive(Debug, Clone, Copy)]
    pub(crate) struct Words([i16; 8]);

    impl Words {
        /// The even bytes of sixteen, and the odd ones.
        #[inline(always)]
        pub(crate) fn of_bytes(bytes: &[u8; 16]) -> [Self; 2] {
            [0, 1].map(|odd| Self(core::array::from_fn(|i| i16::from(bytes[2 * i + odd]))))
        }

        /// Two words, four times.
        #[inline(always)]
        pub(crate) fn pair(two: [i16; 2]) -> Self {
            Self(core::array::from_fn(|i| two[i % 2]))
        }
    }

    /// Four sums.
    #[derive(Debug, Clone, Copy)]
    pub(crate) struct Sums([i32; 4]);

    impl Sums {
        /// All of them `from`.
        #[inline(always)]
        pub(crate) fn new(from: i32) -> Self {
            Self([from; 4])
        }

        /// Adds to each sum the products of its two words.
        #[inline(always)]
        pub(crate) fn add(&mut self, a: Words, b: Words) {
            let product = |i: usize| i32::from(a.0[i]) * i32::from(b.0[i]);
            for (i, sum) in self.0.iter_mut().enumerate() {
                *sum = sum.wrapping_add(product(2 * i) + product(2 * i + 1));
            }
        }

        /// They.
        #[inline(always)]
        pub(crate) fn get(self) -> [i32; 4] {
            self.0
        }
    }
}

/// A line of codes is 16 outputs x 4. Adds the products of each output's four, of four outputs, with the digits of `N` heads.
#[inline(always)]
pub(crate) fn add_products<const N: usize>(codes: &[u8; 16], digits: &[[Words; 2]; N], sums: &mut [Sums; N]) {
    let [even, odd] = Words::of_bytes(codes);
    for (sum, digits) in sums.iter_mut().zip(digits) {
        sum.add(even, digits[0]);
        sum.add(odd, digits[1]);
    }
}

/// Digits of four codes as [`add_products`] takes them.
#[inline(always)]
pub(crate) fn digits_of_four([a, b, c, d]: [i16; 4]) -> [Words; 2] {
    [Words::pair([a, c]), Words::pair([b, d])]
}

/// Calls `run` with the first head and how many go side by side.
#[inline(always)]
pub(crate) fn by_heads(heads: usize, mut run: impl FnMut(usize, usize)) {
    let mut head = 0;
    while head < heads {
        let n = at_once(heads - head);
        run(head, n);
        head += n;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use certkv_core::hash::splitmix64;

    #[test]
    fn the_machine_says_what_the_plain_code_says() {
        for seed in 0..200u64 {
            let bytes: [u8; 16] =
                core::array::from_fn(|i| if seed == 0 { 255 } else { splitmix64(seed << 8 | i as u64) as u8 });
            let word = |i: u64| if seed == 0 { i16::MAX } else { splitmix64(seed << 8 | 64 | i) as i16 };
            let (four, from) = ([word(0), word(1), word(2), word(3)], splitmix64(seed) as i32 >> 4);
            let mut sums = [Sums::new(from)];
            add_products(&bytes, &[digits_of_four(four)], &mut sums);
            let mut twin = plain::Sums::new(from);
            let pairs = [[four[0], four[2]], [four[1], four[3]]].map(plain::Words::pair);
            plain::Words::of_bytes(&bytes).into_iter().zip(pairs).for_each(|(codes, digits)| twin.add(codes, digits));
            let each = |i: usize| (0..4).map(|j| i32::from(bytes[4 * i + j]) * i32::from(four[j])).sum::<i32>() + from;
            assert_eq!((sums[0].get(), twin.get()), (core::array::from_fn(each), core::array::from_fn(each)));
        }
    }
}
