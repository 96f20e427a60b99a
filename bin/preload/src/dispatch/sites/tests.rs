use super::*;

const RECV: u16 = libc::SYS_recvfrom as u16;

fn is_led(number: u16) -> bool {
    number == RECV
}

/// `mov eax, NUMBER; syscall`.
fn call(number: u32) -> Vec<u8> {
    [&[0xb8][..], &number.to_le_bytes(), &SYSCALL].concat()
}

fn octets_of(pattern: &Pattern) -> Vec<u8> {
    pattern.octets.iter().map(|octet| u8::try_from(*octet).unwrap_or(0x5a)).collect()
}

#[test]
fn a_call_with_a_fixed_number_is_found_and_one_instruction_is_replaced() {
    let code = [&[NOP; 3][..], &call(RECV.into()), &[0xc3]].concat();
    assert_eq!(find(&code, is_led), [Site { replaced: 3..8, syscall: 8 }]);
    let other = [&call(39)[..], &call(u32::from(RECV) + 0x1_0000), &call(RECV.into())[1..]].concat();
    assert_eq!(find(&other, is_led), [], "another number, a longer one, and half of an instruction");
    // Between the number and the call is another instruction.
    let mut apart = call(RECV.into());
    apart.insert(5, NOP);
    assert_eq!(find(&apart, is_led), []);
}

#[test]
fn another_instruction_that_ends_like_the_number_is_left_alone() {
    // mov r8d, NUMBER; movabs; mov ax; each with a syscall, or what looks like one, behind it.
    for prefix in [0x41, 0x48, 0x66] {
        let code = [&[NOP, prefix][..], &call(RECV.into())].concat();
        assert_eq!(find(&code, is_led), [], "{prefix:x}");
    }
}

#[test]
fn code_that_is_cut_anywhere_is_read_to_its_end_and_no_further() {
    for pattern in KNOWN.iter().chain([&NUMBERED]) {
        let whole = octets_of(pattern);
        for cut in 0..whole.len() {
            assert_eq!(find(&whole[..cut], |_| true), [], "{cut} octets");
        }
        assert_eq!(find(&whole, |_| true).len(), 1);
    }
    assert_eq!(find(&[], |_| true), []);
    assert_eq!(find(&SYSCALL, |_| true), []);
}

#[test]
fn a_known_function_with_one_octet_changed_is_not_known() {
    for pattern in &KNOWN {
        let whole = octets_of(pattern);
        for at in (0..whole.len()).filter(|at| pattern.octets[*at] != ANY) {
            let mut changed = whole.clone();
            changed[at] ^= 0x20;
            assert_eq!(find(&changed, |_| false), [], "octet {at}");
        }
    }
}

#[test]
fn sites_do_not_overlap() {
    // What is read as a call begins in the middle of the one before.
    let code = [&call(RECV.into())[..], &call(RECV.into())].concat();
    let sites = find(&code, is_led);
    assert_eq!(sites.len(), 2);
    assert!(sites[0].end() <= sites[1].replaced.start);
}

#[test]
fn patterns_replace_whole_instructions_that_a_jump_fits_into() {
    for pattern in KNOWN.iter().chain([&NUMBERED]) {
        assert!(pattern.replaced.len() >= JUMP_LEN);
        assert!(pattern.replaced.start < pattern.syscall);
        assert_eq!(pattern.octets[pattern.syscall..][..2], [0x0f, 0x05]);
        // The syscall is replaced wholly or not at all.
        assert!(pattern.replaced.end <= pattern.syscall || pattern.replaced.end >= pattern.syscall + 2);
    }
}

#[test]
fn a_bridge_does_what_was_replaced_and_goes_back_behind_it() {
    let (base, at, enter) = (0x40_0000, 0x3f_0100, 0x3f_0000);
    for pattern in KNOWN.iter().chain([&NUMBERED]) {
        let code = [&[NOP; 7][..], &octets_of(pattern), &[NOP; 7]].concat();
        let site = find(&code, |_| true).remove(0);
        let bridge = site.bridge(&code, base, at, enter).unwrap();
        assert!(bridge.len() <= BRIDGE_MAX);
        let before = site.syscall - site.replaced.start;
        assert_eq!(bridge[..before], code[site.replaced.start..site.syscall]);
        let word = |at: usize| i32::from_le_bytes(bridge[at..][..4].try_into().unwrap()) as isize;
        // The address of the word that is jumped by.
        assert_eq!(bridge[before + 7..][..2], [0xff, 0x25]);
        assert_eq!(at.wrapping_add_signed(before as isize + 13 + word(before + 9)), enter);
        // The address that `rcx` gets is behind the bridge's own syscall.
        assert_eq!(before + 7 + word(before + 3) as usize, before + 15);
        assert_eq!(bridge[before + 13..][..2], SYSCALL);
        let after = site.end() - site.syscall - 2;
        assert_eq!(bridge[before + 15..][..after], code[site.syscall + 2..site.end()]);
        let end = bridge.len();
        assert_eq!((bridge[end - 5], end), (0xe9, before + 15 + after + 5));
        assert_eq!(at.wrapping_add_signed(end as isize + word(end - 4)), base + site.end());
        let jump = site.jump(base, at).unwrap();
        assert_eq!((jump[0], jump.len()), (0xe9, site.replaced.len()));
        let far = i32::from_le_bytes(jump[1..5].try_into().unwrap()) as isize;
        assert_eq!((base + site.replaced.start + 5).wrapping_add_signed(far), at);
        assert!(jump[5..].iter().all(|octet| *octet == NOP));
    }
}

#[test]
fn what_is_too_far_away_is_left_alone() {
    let code = call(RECV.into());
    let site = find(&code, is_led).remove(0);
    let far = 0x40_0000 + (1 << 31) + 64;
    assert_eq!(site.jump(0x40_0000, far), None);
    assert_eq!(site.bridge(&code, 0x40_0000, far, far), None);
    assert!(site.jump(0x40_0000, 0x40_0000 + (1 << 31) - 64).is_some());
}
