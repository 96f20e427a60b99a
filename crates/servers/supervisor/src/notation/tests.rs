use proptest::prelude::*;

use super::*;

#[test]
fn equal_numbers_are_replicas() {
    for n in 1..=8 {
        let text = format!("TS{n}LS{n}CM{n}");
        let notation: Notation = text.parse().unwrap();
        assert_eq!((notation.replicas(), notation.to_string()), (n, text));
        assert_eq!(Some(notation), Notation::symmetric(n));
    }
    assert_eq!([0, 9].map(Notation::symmetric), [None, None]);
}

#[test]
fn however_it_is_written_it_is_printed_in_the_normal_form() {
    for (text, normal) in [
        ("CM3TS3LS3", "TS3LS3CM3"),
        ("LS1+CM2TS2", "TS2CM2+LS1"),
        ("TS2IP2LS2CM2", "TS2LS2CM2"),
        ("TS4IP4CM4+LS4", "TS4CM4+LS4"),
        ("LS1CM4TS4", "TS4LS1CM4"),
        ("TS2CM2+LS8", "TS2CM2+LS8"),
        ("TS2LS4CM2", "TS2LS4CM2"),
        ("CM1LS2TS2", "TS2LS2CM1"),
        ("TS4LS4CM2", "TS4LS4CM2"),
        ("CM1+LS8TS8", "TS8LS8+CM1"),
        ("CM2+TS2+LS2", "TS2+LS2+CM2"),
        ("TS4LS1+CM4", "TS4LS1+CM4"),
        ("TS02LS2CM2", "TS2LS2CM2"),
        ("TS2IP2+LS1+CM2", "TS2+LS1+CM2"),
        ("TS2+IP2+LS1+CM2", "TS2+IP2+LS1+CM2"),
        ("LS1IP1+CM4TS4", "TS4CM4+IP1LS1"),
        ("TS2CM2+IP2LS2", "TS2CM2+IP2LS2"),
        ("TS4CM4+IP3+LS2", "TS4CM4+IP3+LS2"),
        ("TS2CM2+LS3IP2", "TS2CM2+IP2LS3"),
    ] {
        assert_eq!(
            text.parse::<Notation>().map(|notation| notation.to_string()),
            Ok(normal.to_owned()),
            "{text}"
        );
    }
}

#[test]
fn what_cannot_work_says_why() {
    use Component::{Cm, Ip, Ls, Ts};
    for (text, error) in [
        ("TS0LS0CM0", NotationError::Zero(Ts)),
        ("TS2LS2CM2+IP0", NotationError::Zero(Ip)),
        ("TS9LS9CM9", NotationError::TooMany(Ts)),
        ("TS2CM2+LS9", NotationError::TooMany(Ls)),
        ("TS999999999999LS2CM2", NotationError::TooMany(Ts)),
        ("TS2TS2LS2CM2", NotationError::Twice(Ts)),
        ("TS2LS2CM2+LS1", NotationError::Twice(Ls)),
        ("TS2LS2", NotationError::Missing(Cm)),
        ("TS2CM2", NotationError::Missing(Ls)),
        ("LS2CM2", NotationError::Missing(Ts)),
        ("TS2CM2+IP3LS3", NotationError::IdleIp { ip: 3, ts: 2 }),
        ("TS2LS2CM2+IP2", NotationError::LinksAwayFromIp),
        ("TS2LS2+CM1+IP1", NotationError::LinksAwayFromIp),
        ("TS2LS2CM3", NotationError::IdleManagers { cm: 3, ts: 2 }),
        ("TS2LS2+CM3", NotationError::IdleManagers { cm: 3, ts: 2 }),
    ] {
        assert_eq!(text.parse::<Notation>(), Err(error), "{text}");
    }
}

#[test]
fn what_this_version_cannot_run_is_told_apart_from_nonsense() {
    for (text, error) in [
        ("TS8+LS8CM8", NotationError::ManagersWithLinks),
        ("TS2+CM1LS2", NotationError::ManagersWithLinks),
        ("TS2+IP2CM2+LS2", NotationError::ManagersWithLinks),
        ("TS4CM4IP1LS1", NotationError::IpOfOthers),
        ("TS4CM4IP2+LS1", NotationError::IpOfOthers),
    ] {
        assert_eq!(text.parse::<Notation>(), Err(error), "{text}");
        assert!(error.to_string().contains("this version"), "{text}");
    }
    for text in
        ["", "+", "2", "TS", "TS2LS2CM", "ts2ls2cm2", "TS2LS2CM2x", "TS2LS2CM2+", "+TS2LS2CM2", "Té2", "TS-1"]
    {
        assert_eq!(text.parse::<Notation>(), Err(NotationError::Syntax), "{text}");
    }
}

proptest! {
    #[test]
    fn the_normal_form_means_the_same(
        counts in prop::array::uniform4(0u8..10), apart in any::<[bool; 4]>(), ip: bool,
    ) {
        let mut text = String::new();
        for (at, component) in Component::ALL.into_iter().enumerate() {
            if component != Component::Ip || ip {
                text += if at > 0 && apart[at] { "+" } else { "" };
                text += &format!("{}{}", component.name(), counts[at]);
            }
        }
        if let Ok(notation) = text.parse::<Notation>() {
            prop_assert_eq!(notation.to_string().parse::<Notation>(), Ok(notation));
            prop_assert_eq!(notation.replicas(), counts[0]);
            prop_assert_eq!(notation.part(Component::Ls).count, counts[2]);
        }
    }

    #[test]
    fn nothing_that_is_written_makes_the_parser_panic(text in "([TILCSPM]{0,2}[0-9]{0,3}[+é]?){0,6}") {
        if let Ok(notation) = text.parse::<Notation>() {
            prop_assert_eq!(notation.to_string().parse::<Notation>(), Ok(notation));
        }
    }
}
