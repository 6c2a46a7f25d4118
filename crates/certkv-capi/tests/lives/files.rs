//! Into files and back.
use super::*;
use core::ffi::{c_char, c_void};

#[test]
fn a_restored_sequence_returns_what_it_would_have_returned() {
    let dir = folder("restored");
    let path = c_path(&dir.join("a b+c \u{e4}.seq"));
    let scope = save_scope(b"weights", Some(&[5; 32]));
    let (cache, other) = (Cache::new(&config()), Cache::new(&config()));
    let a = cache.create();
    cache.append(a, 45, 3);
    let bytes = cache.save(a, &scope, &path).unwrap();
    assert_eq!(fs::metadata(dir.join("a b+c \u{e4}.seq")).unwrap().len(), bytes);
    // The same file from a sequence that is away.
    // SAFETY: NULL is allowed.
    assert_eq!(unsafe { certkv_sequence_swap_out(cache.0, a, ptr::null_mut()) }, CERTKV_OK);
    let again = c_path(&dir.join("again"));
    assert_eq!(cache.save(a, &scope, &again), Ok(bytes));
    assert_eq!(fs::read(dir.join("again")).unwrap(), fs::read(dir.join("a b+c \u{e4}.seq")).unwrap());
    // SAFETY: as above.
    assert_eq!(unsafe { certkv_sequence_swap_in(cache.0, a, ptr::null_mut()) }, CERTKV_OK);
    let [here, there] = [&cache, &other].map(|cache| cache.restore(&scope, &path).unwrap());
    let next = cache.append(a, 1, 4);
    assert_eq!(cache.append(here, 1, 4), next);
    assert_eq!(other.append(there, 1, 4), next);
    let seen = cache.snapshot();
    assert_eq!((seen.saves.done, seen.saves.bytes, seen.restores.done), (2, 2 * bytes, 1));
}

#[test]
fn a_file_of_another_kind_is_refused_with_its_name_and_the_reason() {
    let dir = folder("refused");
    let (path, file) = (c_path(&dir.join("file")), dir.join("file"));
    let scope = save_scope(b"weights", None);
    let cache = Cache::new(&config());
    let a = cache.create();
    cache.append(a, 20, 3);
    cache.save(a, &scope, &path).unwrap();
    let whole = fs::read(&file).unwrap();
    let before = cache.snapshot();
    let refused = |scope: &certkv_save_scope, status| {
        assert_eq!(cache.restore(scope, &path), Err(status));
        assert!(message().contains(path.to_str().unwrap()), "{}", message());
    };
    refused(&save_scope(b"other", None), CERTKV_FILE_REFUSED);
    assert!(message().contains("model"), "{}", message());
    refused(&save_scope(b"weights", Some(&[1; 32])), CERTKV_FILE_DAMAGED);
    let other = Cache::new(&certkv_config { format: c"k8-v8g32-b16".as_ptr(), ..config() });
    assert_eq!(other.restore(&scope, &path), Err(CERTKV_FILE_REFUSED));
    fs::write(&file, &whole[..whole.len() - 9]).unwrap();
    refused(&scope, CERTKV_FILE_DAMAGED);
    for at in (0..whole.len()).step_by(whole.len() / 61) {
        let mut bad = whole.clone();
        bad[at] ^= 0x10;
        fs::write(&file, &bad).unwrap();
        let status = cache.restore(&scope, &path).unwrap_err();
        assert!(matches!(status, CERTKV_FILE_DAMAGED | CERTKV_FILE_REFUSED), "byte {at}: {status:?}");
    }
    fs::write(&file, b"not a saved sequence, however long it is").unwrap();
    refused(&scope, CERTKV_FILE_REFUSED);
    let after = cache.snapshot();
    assert_eq!((after.sequences, after.host_pages.live), (before.sequences, before.host_pages.live));
    fs::write(&file, &whole).unwrap();
    cache.release(cache.restore(&scope, &path).unwrap());
    // No such file, no such folder, a folder.
    let missing = c_path(&dir.join("none"));
    assert_eq!(cache.restore(&scope, &missing), Err(CERTKV_FILE));
    for path in [dir.join("none/file"), dir.clone()] {
        assert_eq!(cache.save(a, &scope, &c_path(&path)), Err(CERTKV_FILE));
    }
    // A save that is refused leaves the file that was there.
    assert_eq!(cache.save(99, &scope, &path), Err(CERTKV_UNKNOWN_SEQUENCE));
    assert_eq!(fs::read(&file).unwrap(), whole);
    assert_eq!(fs::read_dir(&dir).unwrap().count(), 1, "nothing half-written stays");
}

#[test]
fn a_file_says_what_is_wrong_with_each_argument() {
    let dir = folder("arguments");
    let path = c_path(&dir.join("file"));
    let cache = Cache::new(&config());
    let (a, words) = (cache.create(), [0u64; 8]);
    let odd = words.as_ptr().cast::<u8>().wrapping_add(1).cast_mut();
    let scope = save_scope(b"weights", None);
    cache.save(a, &scope, &path).unwrap();
    let both = |scope: *const certkv_save_scope, path: *const c_char, status| {
        let (mut bytes, mut made) = (7, 7);
        // SAFETY: locals; what is refused is not followed.
        unsafe {
            assert_eq!(certkv_sequence_save(cache.0, a, scope, path, &mut bytes), status);
            assert_eq!(certkv_sequence_restore(cache.0, scope, path, &mut made), status);
        }
        assert_eq!((bytes, made), (7, CERTKV_NO_SEQUENCE));
    };
    let at = path.as_ptr();
    both(ptr::null(), at, CERTKV_NULL_POINTER);
    both(odd.cast(), at, CERTKV_MISALIGNED);
    for size in [0, 8, 20, 4097, u32::MAX] {
        both(&certkv_save_scope { struct_size: size, ..scope }, at, CERTKV_STRUCT_SIZE);
    }
    both(&certkv_save_scope { reserved: 1, ..scope }, at, CERTKV_RESERVED);
    for bytes in [4097, 1 << 40, u64::MAX] {
        both(&certkv_save_scope { model_bytes: bytes, ..scope }, at, CERTKV_INVALID_ARGUMENT);
    }
    both(&certkv_save_scope { model: ptr::null(), ..scope }, at, CERTKV_NULL_POINTER);
    let high = ptr::without_provenance::<c_void>(usize::MAX - 1);
    both(&certkv_save_scope { model: high, ..scope }, at, CERTKV_INVALID_ARGUMENT);
    both(&certkv_save_scope { key: high.cast(), ..scope }, at, CERTKV_INVALID_ARGUMENT);
    both(&scope, ptr::null(), CERTKV_NULL_POINTER);
    both(&scope, c"".as_ptr(), CERTKV_INVALID_ARGUMENT);
    both(&scope, c"/tmp/\xff\xfe".as_ptr(), CERTKV_INVALID_ARGUMENT);
    let long = [b'x'; 4096]; // Not terminated: nothing is read behind it.
    both(&scope, long.as_ptr().cast(), CERTKV_INVALID_ARGUMENT);
    assert!(message().contains("path"), "{}", message());
    // An older header has no key.
    let older = certkv_save_scope { struct_size: 24, key: high.cast(), ..scope };
    cache.release(cache.restore(&older, &path).unwrap());
    // SAFETY: locals; what is refused is not written.
    unsafe {
        assert_eq!(certkv_sequence_restore(cache.0, &scope, at, ptr::null_mut()), CERTKV_NULL_POINTER);
        assert_eq!(certkv_sequence_restore(cache.0, &scope, at, odd.cast()), CERTKV_MISALIGNED);
        assert_eq!(certkv_sequence_save(cache.0, a, &scope, at, odd.cast()), CERTKV_MISALIGNED);
        assert_eq!(certkv_sequence_save(cache.0, a, &scope, at, ptr::null_mut()), CERTKV_OK);
        let mut made = 7;
        for (handle, status) in no_caches() {
            assert_eq!(certkv_sequence_save(handle, a, &scope, at, ptr::null_mut()), status);
            assert_eq!(certkv_sequence_restore(handle, &scope, at, &mut made), status);
        }
        let step = cache.begin(a, 1).unwrap();
        assert_eq!(cache.save(a, &scope, &path), Err(CERTKV_BUSY_SEQUENCE));
        assert_eq!(certkv_step_abort(step), CERTKV_OK);
    }
    let made: Vec<_> = (0..3).map(|_| cache.restore(&scope, &path).unwrap()).collect();
    assert_eq!(cache.restore(&scope, &path), Err(CERTKV_TOO_MANY_SEQUENCES));
    made.into_iter().for_each(|sequence| cache.release(sequence));
}
