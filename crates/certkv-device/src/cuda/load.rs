//! Tables of the functions of a CUDA library, looked up when the library is first used.
//!
//! cudarc finds the library and declares the types, but its functions panic when a symbol is missing and return result
//! codes as a Rust `enum`, in which a code of a newer driver would be undefined behaviour. So we look the symbols up
//! ourselves, with codes as integers; that each signature agrees with cudarc's is checked by the compiler.

/// `T in sys { fn name(types); optional { fn name(types); } }` makes a struct `T` of function pointers with
/// `T::load() -> Result<T, CudaError>`. `checked as R` names the result type of cudarc's declarations.
macro_rules! function_table {
    (
        $(#[$meta:meta])*
        $table:ident in $sys:ident, named $library:literal, missing is $missing:expr, checked as $result:ident {
            $(fn $name:ident($($arg:ty),* $(,)?);)*
            optional { $(fn $opt:ident($($opt_arg:ty),* $(,)?);)* }
        }
    ) => {
        $(#[$meta])*
        #[allow(non_snake_case, reason = "names of the library")]
        pub(super) struct $table {
            $(pub(super) $name: unsafe extern "C" fn($($arg),*) -> i32,)*
            $(pub(super) $opt: Option<unsafe extern "C" fn($($opt_arg),*) -> i32>,)*
        }

        $(const _: unsafe fn($($arg),*) -> $sys::$result = $sys::$name;)*
        $(const _: unsafe fn($($opt_arg),*) -> $sys::$result = $sys::$opt;)*

        impl $table {
            /// Loads the library and looks every function up.
            fn load() -> Result<Self, $crate::cuda::CudaError> {
                // SAFETY: runs the initialisers of the vendor's own library, which expect nothing of the process.
                if !unsafe { $sys::is_culib_present() } {
                    return Err($missing);
                }
                // SAFETY: as above; the library was just seen, so the call does not panic. It stays loaded for ever.
                let library = unsafe { $sys::culib() };
                Ok(Self {
                    $(
                        // SAFETY: the type is the library's declaration of the function, checked against cudarc's.
                        $name: *unsafe { library.get(concat!(stringify!($name), "\0").as_bytes()) }.map_err(|_| {
                            $crate::cuda::CudaError::MissingSymbol { library: $library, symbol: stringify!($name) }
                        })?,
                    )*
                    $(
                        // SAFETY: as above.
                        $opt: unsafe { library.get(concat!(stringify!($opt), "\0").as_bytes()) }.ok().map(|f| *f),
                    )*
                })
            }

            /// The table, loaded on first use. A failure is remembered for the life of the process.
            pub(super) fn get() -> Result<&'static Self, $crate::cuda::CudaError> {
                static TABLE: std::sync::OnceLock<Result<$table, $crate::cuda::CudaError>> = std::sync::OnceLock::new();
                TABLE.get_or_init(Self::load).as_ref().map_err(Clone::clone)
            }
        }
    };
}
pub(super) use function_table;
