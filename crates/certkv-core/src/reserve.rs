//! Memory of lists ahead of what fills them.

/// Asks for the memory of `length` elements in all, of which a list that becomes no longer asks for none. What is in it stays.
pub fn reserve_total<T>(list: &mut Vec<T>, length: usize) {
    list.reserve(length.saturating_sub(list.len()));
}

#[cfg(test)]
mod tests {
    use super::reserve_total;

    #[test]
    fn a_list_grows_into_its_room_and_asks_for_no_more() {
        let mut list = vec![1u8, 2, 3];
        reserve_total(&mut list, 100);
        let (at, capacity) = (list.as_ptr(), list.capacity());
        assert!(list == [1, 2, 3] && capacity >= 100);
        list.resize(100, 7);
        reserve_total(&mut list, 50);
        assert_eq!((list.as_ptr(), list.capacity()), (at, capacity));
    }
}
