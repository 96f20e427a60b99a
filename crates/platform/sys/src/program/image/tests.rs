use super::*;

fn read(file: &[u8]) -> Option<Image> {
    Image::read(|at, into| {
        let rest = file.get(usize::try_from(at).ok()?..).unwrap_or_default();
        let n = rest.len().min(into.len());
        into[..n].copy_from_slice(&rest[..n]);
        Some(n)
    })
}

/// Returns a file with these headers: type, flags, offset, address, length in the file, length, alignment.
fn file(kind: u16, headers: &[[u64; 7]]) -> Vec<u8> {
    let mut file = vec![0; 64];
    file[..6].copy_from_slice(b"\x7fELF\x02\x01");
    file[16..18].copy_from_slice(&kind.to_le_bytes());
    file[18..20].copy_from_slice(&MACHINE.0.to_le_bytes());
    file[24..32].copy_from_slice(&0x40_1000u64.to_le_bytes());
    file[32..40].copy_from_slice(&64u64.to_le_bytes());
    file[54..56].copy_from_slice(&56u16.to_le_bytes());
    file[56..58].copy_from_slice(&(headers.len() as u16).to_le_bytes());
    for [kind, flags, offset, address, file_len, len, align] in headers {
        file.extend((*kind as u32).to_le_bytes());
        file.extend((*flags as u32).to_le_bytes());
        [offset, address, address, file_len, len, align].iter().for_each(|word| {
            file.extend(word.to_le_bytes());
        });
    }
    file
}

const TEXT: [u64; 7] = [1, 5, 0, 0x40_0000, 0x2345, 0x2345, 4096];
const DATA: [u64; 7] = [1, 6, 0x2ff0, 0x40_3ff0, 0x10, 0x5000, 4096];

#[test]
fn a_fixed_program_is_where_its_headers_say() {
    let image = read(&file(ET_EXEC, &[TEXT, DATA, [0x6474_e551, 6, 0, 0, 0, 0, 16]])).expect("it is sound");
    assert!(!image.is_movable && !image.executable_stack);
    assert_eq!((image.entry, image.headers, image.header_count), (0x40_1000, 0x40_0040, 3));
    assert_eq!(image.range(), 0x40_0000..0x40_9000);
    let access = Access { read: true, write: true, execute: false };
    let data = Segment { address: 0x40_3ff0, offset: 0x2ff0, file_len: 0x10, len: 0x5000, access };
    assert_eq!(image.segments[1], data);
}

#[test]
fn what_cannot_be_mapped_is_no_image() {
    let is_sound = |headers: &[[u64; 7]]| read(&file(ET_DYN, headers)).is_some();
    assert!(is_sound(&[TEXT, DATA]));
    let refused: [(&str, Vec<[u64; 7]>); 8] = [
        ("nothing to map", vec![[4, 4, 0, 0, 8, 8, 4]]),
        ("a loader", vec![TEXT, [3, 4, 0, 0x40_0000, 8, 8, 1]]),
        ("overlap", vec![TEXT, [1, 6, 0x2000, 0x40_2000, 8, 8, 4096]]),
        ("order", vec![DATA, TEXT]),
        ("more in the file than in memory", vec![[1, 5, 0, 0, 9, 8, 4096]]),
        ("an offset that does not fit the address", vec![[1, 5, 16, 0x40_0000, 8, 8, 4096]]),
        ("beyond all addresses", vec![[1, 5, 0, 0x7fff_ffff_f000, 0x1001, 0x1001, 4096]]),
        ("around the end", vec![[1, 5, 0, 0xffff_ffff_ffff_f000, 8, 0x2000, 4096]]),
    ];
    for (what, headers) in refused {
        assert!(!is_sound(&headers), "{what}");
    }
    let whole = file(ET_EXEC, &[TEXT, DATA]);
    for len in [0, 3, 63, 64, 120, whole.len() - 1] {
        assert_eq!(read(&whole[..len]), None, "{len} octets");
    }
    assert_eq!(read(&file(1, &[TEXT])), None, "an object file");
}
