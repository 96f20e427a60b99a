use super::*;
use crate::handlers;

/// Three pages, of which the second has no rights and the third may be read.
fn pages() -> *mut u8 {
    handlers::keep_faults();
    let none = std::ptr::null_mut();
    let (rights, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
    // SAFETY: new pages.
    unsafe {
        let pages = libc::mmap(none, 3 * PAGE, rights, flags, -1, 0);
        assert_ne!(pages, libc::MAP_FAILED);
        assert_eq!(libc::mprotect(pages.add(PAGE), PAGE, libc::PROT_NONE), 0);
        assert_eq!(libc::mprotect(pages.add(2 * PAGE), PAGE, libc::PROT_READ), 0);
        pages.cast()
    }
}

#[test]
fn what_is_there_is_found() {
    let pages = pages();
    let near_the_end = pages.wrapping_add(PAGE - 8);
    assert!(can_read(pages, PAGE) && can_write(pages, PAGE));
    assert!(can_read(near_the_end, 8) && can_write(near_the_end, 8));
    assert!(!can_read(near_the_end, 9) && !can_write(near_the_end, 9));
    assert_eq!(writable(near_the_end, 100), 8);
    assert_eq!(writable(pages.wrapping_add(PAGE), 1), 0);
    let read_only = pages.wrapping_add(2 * PAGE);
    assert!(can_read(read_only, PAGE) && !can_write(read_only, 1));
    assert!(can_read(std::ptr::null::<u8>(), 0), "nothing is everywhere");
}

#[test]
fn odd_addresses_are_nowhere() {
    pages();
    for address in [0usize, 0x40, 0xdead_0000_0000_0000, usize::MAX - 3, 0xffff_ffff_8100_0000] {
        let pointer = std::ptr::without_provenance_mut::<u8>(address);
        assert!(!can_read(pointer, 8), "{address:x}");
        assert!(!can_write(pointer, 8), "{address:x}");
    }
    let all = pages();
    assert!(!can_read(all, usize::MAX));
}

#[test]
fn touching_changes_nothing() {
    let pages = pages();
    // SAFETY: a page of our own.
    unsafe { pages.write(0xa5) };
    assert!(can_write(pages, 1) && can_overwrite(pages, PAGE) && !can_overwrite(pages, PAGE + 1));
    // SAFETY: as above.
    assert_eq!(unsafe { pages.read() }, 0xa5);
    // SAFETY: as above, and not aligned.
    assert_eq!(unsafe { get(pages.wrapping_add(1).cast::<u32>()) }, Ok(0));
    assert_eq!(put(pages.wrapping_add(PAGE - 3).cast::<u32>(), 1), Err(Errno::EFAULT));
}
