//! Memory of lists ahead of what fills them.
use core::fmt;

/// The machine did not give so much memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OutOfMemory {
    /// Bytes of the list that was to grow.
    pub bytes: usize,
}

impl fmt::Display for OutOfMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "no memory for {} bytes", self.bytes)
    }
}

impl std::error::Error for OutOfMemory {}

/// Asks for the memory of `length` elements in all, of which a list that becomes no longer asks for none. What is in it stays.
///
/// # Errors
/// [`OutOfMemory`]; the list is as it was.
pub fn reserve_total<T>(list: &mut Vec<T>, length: usize) -> Result<(), OutOfMemory> {
    let none = |_| OutOfMemory { bytes: length.saturating_mul(size_of::<T>()) };
    list.try_reserve(length.saturating_sub(list.len())).map_err(none)
}

/// As [`Vec::resize`], for memory that the machine may not have.
///
/// # Errors
/// [`OutOfMemory`]; the list is as it was.
pub fn try_resize<T: Clone>(list: &mut Vec<T>, length: usize, with: T) -> Result<(), OutOfMemory> {
    reserve_total(list, length)?;
    list.resize(length, with);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::{OutOfMemory, reserve_total, try_resize};

    #[test]
    fn a_list_grows_into_its_room_and_asks_for_no_more() {
        let mut list = vec![1u8, 2, 3];
        reserve_total(&mut list, 100).unwrap();
        let (at, capacity) = (list.as_ptr(), list.capacity());
        assert!(list == [1, 2, 3] && capacity >= 100);
        list.resize(100, 7);
        reserve_total(&mut list, 50).unwrap();
        assert_eq!((list.as_ptr(), list.capacity()), (at, capacity));
    }

    #[test]
    fn a_list_that_no_machine_holds_is_refused() {
        let mut list = vec![1u64, 2, 3];
        let refused = reserve_total(&mut list, usize::MAX / 8).unwrap_err();
        assert_eq!(refused, OutOfMemory { bytes: usize::MAX / 8 * 8 });
        assert_eq!(refused.to_string(), format!("no memory for {} bytes", usize::MAX / 8 * 8));
        assert_eq!(try_resize(&mut list, usize::MAX / 8, 0), Err(refused));
        assert_eq!(list, [1, 2, 3]);
    }
}
