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

/// `vec![with; length]`, for memory that the machine may not have.
///
/// # Errors
/// [`OutOfMemory`].
pub fn try_filled<T: Clone>(length: usize, with: T) -> Result<Vec<T>, OutOfMemory> {
    let mut list = Vec::new();
    try_resize(&mut list, length, with)?;
    Ok(list)
}

/// As [`Iterator::collect`], for memory that the machine may not have.
///
/// # Errors
/// [`OutOfMemory`]; what came before is gone.
pub fn try_collect<T>(items: impl IntoIterator<Item = T>) -> Result<Vec<T>, OutOfMemory> {
    let (mut items, mut list) = (items.into_iter(), Vec::new());
    reserve_total(&mut list, items.size_hint().0)?;
    while let Some(item) = items.next() {
        if list.len() == list.capacity() {
            let length = list.len().saturating_add(1).saturating_add(items.size_hint().0);
            reserve_total(&mut list, length)?;
        }
        list.push(item);
    }
    Ok(list)
}

#[cfg(test)]
mod tests {
    use super::{OutOfMemory, reserve_total, try_collect, try_filled, try_resize};

    #[test]
    fn lists_are_what_they_are_elsewhere() {
        assert_eq!(try_filled(3, 7u8).unwrap(), [7; 3]);
        // Of a length that is known, and one that is not.
        assert_eq!(try_collect(0..100).unwrap(), (0..100).collect::<Vec<_>>());
        let odd = || (0..1000).filter(|n| n % 2 == 1);
        assert_eq!(try_collect(odd()).unwrap(), odd().collect::<Vec<_>>());
        assert_eq!(try_collect((0..usize::MAX).map(|n| n as u64)), Err(OutOfMemory { bytes: usize::MAX }));
    }

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
