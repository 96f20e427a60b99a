use super::*;

use rustix::fs::fstat;

/// Reads one byte as another process would see it.
fn peek(mapping: &Mapping, offset: usize) -> u8 {
    let address = mapping.range(offset, 1).unwrap();
    // SAFETY: `range` checked the bounds, and this test is the only writer.
    unsafe { address.read_volatile() }
}

fn poke(mapping: &Mapping, offset: usize, value: u8) {
    let address = mapping.range(offset, 1).unwrap();
    // SAFETY: `range` checked the bounds, and the mappings written to in these tests are writable.
    unsafe { address.write_volatile(value) }
}

#[test]
fn two_mappings_share_the_memory() {
    let (fd, writer) = Mapping::create("atoll-test", 8192, Prefault::Yes).unwrap();
    let reader = Mapping::new(&fd, 8192, Access::ReadOnly, Prefault::No).unwrap();
    poke(&writer, 5000, 42);
    assert_eq!(peek(&reader, 5000), 42);
}

#[test]
fn the_size_is_sealed() {
    let fd = create_memfd("atoll-test", 4096).unwrap();
    assert!(ftruncate(&fd, 0).is_err());
    assert!(ftruncate(&fd, 8192).is_err());
    assert!(fcntl_add_seals(&fd, SealFlags::WRITE).is_err());
}

/// Other users cannot open the memory for writing through /proc, whatever descriptor they have.
#[test]
fn memory_is_its_owners_alone() {
    let own = Mapping::create_own("atoll-test", 4096).unwrap().0;
    for fd in [create_memfd("atoll-test", 4096).unwrap(), own] {
        assert_eq!(fstat(&fd).unwrap().st_mode & 0o777, 0o600);
    }
}

#[test]
fn memory_that_could_shrink_is_refused() {
    let fd = memfd_create("atoll-test", MemfdFlags::ALLOW_SEALING).unwrap();
    ftruncate(&fd, 4096).unwrap();
    let error = Mapping::new(&fd, 4096, Access::ReadOnly, Prefault::No).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::InvalidInput);
}

#[test]
fn memory_shorter_than_promised_is_refused() {
    let fd = create_memfd("atoll-test", 4096).unwrap();
    assert!(Mapping::new(&fd, 4097, Access::ReadOnly, Prefault::No).is_err());
    assert!(Mapping::new(&fd, 0, Access::ReadOnly, Prefault::No).is_err());
}

#[test]
fn ranges_are_checked() {
    let (_fd, mapping) = Mapping::create("atoll-test", 4096, Prefault::No).unwrap();
    assert!(mapping.range(0, 4096).is_ok());
    assert!(mapping.range(4096, 0).is_ok());
    assert_eq!(mapping.range(4096, 1), Err(OutOfBounds));
    assert_eq!(mapping.range(usize::MAX, 2), Err(OutOfBounds));
}

#[test]
fn a_hole_frees_whole_pages_only() {
    let page = page_size();
    let (fd, mapping) = Mapping::create("atoll-test", 4 * page, Prefault::No).unwrap();
    for offset in 0..4 {
        poke(&mapping, offset * page, 7);
    }
    mapping.punch_hole(1..3 * page + 1).unwrap();
    assert_eq!(fstat(&fd).unwrap().st_blocks as usize * 512, 2 * page, "two pages remain allocated");
    let seen: Vec<u8> = (0..4).map(|i| peek(&mapping, i * page)).collect();
    assert_eq!(seen, [7, 0, 0, 7]);
    assert!(mapping.punch_hole(0..4 * page + 1).is_err());
}
