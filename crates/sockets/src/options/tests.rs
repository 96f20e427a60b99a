use alloc::vec;

use super::*;

fn row_of(name: Name) -> &'static Row {
    &TABLE[name as usize]
}

fn decoded(name: Name, value: &[u8]) -> Result<u64, Errno> {
    row_of(name).decode(value, row_of(name).default, true)
}

fn ints(values: &[i32]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_ne_bytes()).collect()
}

#[test]
fn every_default_is_a_value_that_can_be_set_again() {
    for row in &TABLE {
        let written = row.encode(row.default, false);
        let held = match row.codec {
            // A value that was never set is not doubled.
            Codec::Buffer(least, most) => u64::from((row.default as u32).clamp(least, most)),
            // The MSS that is reported is not one that was asked for.
            Codec::Segment => u64::from(SEGMENT),
            _ => row.default,
        };
        assert_eq!(row.decode(written.octets(), row.default, true), Ok(held), "{row:?}");
    }
}

#[test]
fn no_option_is_there_twice() {
    for row in &TABLE {
        assert_eq!(Row::find(row.level, row.number).map(|found| found.name), Some(row.name));
    }
    assert!(Row::find(SOL_SOCKET, 12345).is_none());
    assert_eq!(Row::find(SOL_SOCKET, libc::SO_SNDBUFFORCE).map(|row| row.name), Some(Name::SendBuffer));
}

/// The numbers are those of Linux 6.18.
#[test]
fn odd_values_are_read_as_linux_reads_them() {
    let [long, short] = [ints(&[1]), vec![1, 0, 0]];
    assert_eq!(decoded(Name::NoDelay, &long), Ok(1));
    assert_eq!(decoded(Name::NoDelay, &short), Err(Errno::EINVAL));
    // ip(7): an octet is enough, and an empty value is 0.
    assert_eq!(decoded(Name::TimeToLive, &[9]), Ok(9));
    assert_eq!(decoded(Name::MtuDiscover, &[]), Ok(0));
    assert_eq!(decoded(Name::TimeToLive, &ints(&[-1])), Ok(64));
    assert_eq!(decoded(Name::TimeToLive, &ints(&[0])), Err(Errno::EINVAL));
    assert_eq!(decoded(Name::TypeOfService, &ints(&[-1])), Ok(0xfc), "the marks of a connection are TCP's");
    assert_eq!(row_of(Name::TypeOfService).decode(&ints(&[0x1b9]), 0, false), Ok(0xb9));
    assert_eq!(decoded(Name::TrafficClass, &ints(&[256])), Err(Errno::EINVAL));
    assert_eq!(decoded(Name::Linger2, &ints(&[-5])), Ok(u64::from(u32::MAX)));
    assert_eq!(decoded(Name::Linger2, &ints(&[121])), Ok(120));
    for (asked, got) in [(-1, 0), (0, 0), (1, 1), (2, 3), (5, 7), (88, 127), (128, 247), (i32::MAX, 29887)] {
        assert_eq!(decoded(Name::DeferAccept, &ints(&[asked])), Ok(got), "{asked}");
    }
    for (asked, got) in [(0, Ok(0)), (87, Err(Errno::EINVAL)), (88, Ok(88)), (32768, Err(Errno::EINVAL))] {
        assert_eq!(decoded(Name::MaxSegment, &ints(&[asked])), got, "{asked}");
    }
    assert_eq!(decoded(Name::ReceiveLow, &ints(&[-1])), Ok(i32::MAX as u64));
    assert_eq!(decoded(Name::SendBuffer, &ints(&[-1])), Ok(1 << 20));
    assert_eq!(decoded(Name::WindowClamp, &ints(&[-1])), Ok(WINDOW_MIN));
    assert_eq!(decoded(Name::PacingRate, &ints(&[-1])), Ok(u64::MAX));
    assert_eq!(decoded(Name::PacingRate, &(1u64 << 33).to_ne_bytes()), Ok(1 << 33));
    assert_eq!(decoded(Name::Congestion, b"reno\0cubic"), Ok(1));
    assert_eq!(decoded(Name::Congestion, b"none"), Err(Errno::ENOENT));
    let time = |seconds: i64, micros: i64| [seconds, micros].map(i64::to_ne_bytes).concat();
    assert_eq!(decoded(Name::SendTimeout, &time(2, 500_000)), Ok(2_500_000));
    assert_eq!(decoded(Name::SendTimeout, &time(0, 1_000_000)), Err(Errno::EDOM));
    let negative = decoded(Name::SendTimeout, &time(-5, 7)).expect("it is allowed");
    assert_eq!(patience(negative), Some(Duration::ZERO));
    assert_eq!(row_of(Name::SendTimeout).encode(negative, true).octets(), [0; 16]);
    let (longest, default) =
        (decoded(Name::SendTimeout, &time(i64::MAX, 0)), decoded(Name::SendTimeout, &time(0, 0)));
    assert!(longest.is_ok_and(|longest| patience(longest) > Some(Duration::from_secs(1 << 32))));
    assert_eq!(default.map(patience), Ok(None));
    assert_eq!(decoded(Name::SendTimeout, &ints(&[1])), Err(Errno::EINVAL));
    let linger = row_of(Name::Linger);
    let held = linger.decode(&ints(&[1, 5]), 0, true).expect("a time");
    let off = linger.decode(&ints(&[0, 7]), held, true).expect("none");
    assert_eq!(linger.encode(off, true).octets(), ints(&[0, 5]));
}

#[test]
fn what_was_set_is_kept_and_shared_until_it_is_changed() {
    let mut listener = Options::default();
    assert_eq!((listener.value(Name::KeepIdle), listener.set_value(Name::KeepIdle)), (7200, None));
    for (name, value) in
        [(Name::KeepIdle, 5), (Name::NoDelay, 1), (Name::SendTimeout, 9), (Name::KeepIdle, 6)]
    {
        listener.set(name, value);
    }
    let mut accepted = listener.clone();
    accepted.set(Name::Cork, 1);
    accepted.set(Name::KeepIdle, 8);
    assert!(!listener.is_on(Name::Cork) && accepted.is_on(Name::Cork) && accepted.is_on(Name::NoDelay));
    assert_eq!((listener.value(Name::KeepIdle), accepted.value(Name::KeepIdle)), (6, 8));
    assert_eq!(
        listener.iter().map(|(row, value)| (row.name, value)).collect::<Vec<_>>(),
        [(Name::NoDelay, 1), (Name::KeepIdle, 6), (Name::SendTimeout, 9)]
    );
    assert_eq!((accepted.linger(), listener.linger()), (None, None));
    accepted.set_linger(Some(0));
    assert_eq!(accepted.linger(), Some(0));
}

#[test]
fn the_smaller_of_buffer_and_clamp_bounds_the_window() {
    let mut options = Options::default();
    let told = |options: &Options| options.told(row_of(Name::WindowClamp));
    options.set(Name::WindowClamp, 5000);
    assert_eq!(told(&options), 5000);
    options.set(Name::ReceiveBuffer, 4000);
    assert_eq!(told(&options), 4000);
    options.set(Name::WindowClamp, 0);
    assert_eq!(options.told(row_of(Name::ReceiveBuffer)), 4000);
}

#[test]
fn what_is_written_is_read_and_nothing_else() {
    let mut options = Options::default();
    for row in &TABLE {
        options.set(row.name, row.default ^ 1);
        let written = Vec::from(options.clone());
        assert_eq!(Options::try_from(written), Ok(options.clone()));
    }
    assert_eq!(Options::try_from(vec![]), Ok(Options::default()));
    let last = NAMES as u8 - 1;
    for wrong in [vec![(last + 1, 1)], vec![(255, 1)], vec![(3, 1), (3, 1)], vec![(4, 1), (3, 1)]] {
        assert!(Options::try_from(wrong.clone()).is_err(), "{wrong:?}");
    }
}

#[test]
fn an_offset_for_peeking_is_none_unless_it_was_set_and_is_not_negative() {
    let mut options = Options::default();
    assert_eq!((options.value(Name::PeekOffset), options.peek_offset()), (0xffff_ffff, None));
    options.forget_peek_offset();
    assert_eq!(options.set_value(Name::PeekOffset), None);
    for (asked, offset) in [(-5, None), (0, Some(0)), (i32::MAX, Some(i32::MAX as u32))] {
        options.set(Name::PeekOffset, decoded(Name::PeekOffset, &ints(&[asked])).expect("any number"));
        assert_eq!((options.peek_offset(), options.local().peek), (offset, offset), "{asked}");
    }
    options.forget_peek_offset();
    assert_eq!(options.peek_offset(), None);
}

#[test]
fn a_size_that_was_set_is_fixed_until_the_program_says_otherwise() {
    let mut options = Options::default();
    options.lock_buffer(Name::NoDelay);
    assert_eq!(options.set_value(Name::BufferLock), None);
    options.lock_buffer(Name::ReceiveBuffer);
    assert!(options.is_receive_locked());
    options.lock_buffer(Name::SendBuffer);
    assert_eq!(options.told(row_of(Name::BufferLock)), 3);
    options.set(Name::BufferLock, 0);
    assert!(!options.is_receive_locked());
    // A replica that has heard of a size has to hear that it is not fixed.
    assert!(row_of(Name::BufferLock).differs(0) && Name::BufferLock as u8 > Name::ReceiveBuffer as u8);
    options.set(Name::WindowClamp, 5000);
    assert_eq!(options.told(row_of(Name::BufferLock)), 2, "the buffer keeps the clamp");
}

/// sock_setbindtodevice, sock_getbindtodevice.
#[test]
fn a_device_is_named_or_numbered() {
    for (value, number) in [
        (&b""[..], Ok(0)),
        (b"\0lo", Ok(0)),
        (b"lo", Ok(1)),
        (b"lo\0xx", Ok(1)),
        (b"eth0", Ok(2)),
        (b"eth0\0 and more than fifteen octets", Ok(2)),
        (b"l", Err(Errno(libc::ENODEV))),
        (b"lo0", Err(Errno(libc::ENODEV))),
        (&[b'x'; 64], Err(Errno(libc::ENODEV))),
    ] {
        assert_eq!(interface_named(value), number, "{value:?}");
    }
    for (number, held) in
        [(0, Ok(0)), (1, Ok(1)), (2, Ok(2)), (3, Err(Errno(libc::ENODEV))), (-1, Err(Errno::EINVAL))]
    {
        assert_eq!(decoded(Name::Device, &ints(&[number])), held, "{number}");
    }
    let names = [Device::None, Device::Loopback, Device::Link].map(name_of);
    assert_eq!(names.map(|name| name.octets().to_vec()), [&b""[..], b"lo\0", b"eth0\0"]);
    let mut options = Options::default();
    assert_eq!((options.device(), options.count_for_syn()), (Device::None, false));
    options.set(Name::Device, 2);
    assert_eq!((options.device(), options.count_for_syn()), (Device::Link, true));
}

#[test]
fn an_option_for_the_answer_to_a_syn_is_there_before_it() {
    for (name, at) in [(Name::MinTtl, 0), (Name::MinHopCount, 1)] {
        let mut options = Options::default();
        options.set(name, 255);
        assert!(options.count_for_syn());
        assert_eq!((options.hops_min()[at], options.hops_min()[1 - at]), (255, 0));
        for (value, held) in [(0, Ok(0)), (255, Ok(255)), (256, Err(Errno::EINVAL)), (-1, Err(Errno::EINVAL))]
        {
            assert_eq!(decoded(name, &ints(&[value])), held, "{value}");
        }
    }
    // do_ip_setsockopt: an octet is a number, and nothing is none.
    assert_eq!((decoded(Name::MinTtl, &[9]), decoded(Name::MinTtl, &[])), (Ok(9), Err(Errno::EINVAL)));
    assert_eq!(decoded(Name::MinHopCount, &[9]), Err(Errno::EINVAL));
}
