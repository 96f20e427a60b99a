//! Which servers make up a stack? Pika's notation (P3): `TS2LS2CM2` is two replicas, each with a transport server, a link
//! server and a connection manager in one process.

use std::fmt;
use std::str::FromStr;

use atoll_ipc::page::REPLICAS_MAX;

/// A configuration that this version can run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Notation {
    replicas: u8,
}

impl Notation {
    /// `TSnLSnCMn`; `None` unless n is 1 to [`REPLICAS_MAX`].
    pub fn symmetric(replicas: u8) -> Option<Notation> {
        (1..=REPLICAS_MAX as u8).contains(&replicas).then_some(Notation { replicas })
    }

    /// How many replicas it has.
    pub fn replicas(self) -> u8 {
        self.replicas
    }
}

impl fmt::Display for Notation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let n = self.replicas;
        write!(f, "TS{n}LS{n}CM{n}")
    }
}

impl FromStr for Notation {
    type Err = NotationError;

    fn from_str(text: &str) -> Result<Notation, NotationError> {
        let groups = text.split('+').map(parse_group).collect::<Result<Vec<_>, _>>()?;
        let [group] = groups.as_slice() else { return Err(NotationError::NotYet) };
        let count = |component| group.iter().find(|(name, _)| *name == component).map(|(_, count)| *count);
        let counts = [count("TS"), count("LS"), count("CM")];
        match counts {
            [Some(ts), Some(ls), Some(cm)] if ts == ls && ls == cm && group.len() == 3 => {
                Notation::symmetric(ts).ok_or(NotationError::Replicas(ts))
            }
            _ => Err(NotationError::NotYet),
        }
    }
}

/// The components of one process kind, in the order written: `TS2LS2` gives `[("TS", 2), ("LS", 2)]`.
fn parse_group(text: &str) -> Result<Vec<(&str, u8)>, NotationError> {
    let mut components: Vec<(&str, u8)> = Vec::new();
    let mut rest = text;
    while !rest.is_empty() {
        let name = rest.get(..2).filter(|name| COMPONENTS.contains(name)).ok_or(NotationError::Syntax)?;
        let digits = rest[2..].bytes().take_while(u8::is_ascii_digit).count();
        let count: u8 = rest[2..2 + digits].parse().map_err(|_| NotationError::Syntax)?;
        if components.iter().any(|(other, _)| *other == name) {
            return Err(NotationError::Syntax);
        }
        components.push((name, count));
        rest = &rest[2 + digits..];
    }
    if components.is_empty() { Err(NotationError::Syntax) } else { Ok(components) }
}

const COMPONENTS: [&str; 4] = ["TS", "IP", "LS", "CM"];

/// Why a configuration cannot be run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotationError {
    /// It is not in the notation at all.
    Syntax,
    /// It is a configuration, but not one that this version can run.
    NotYet,
    /// This many replicas were asked for, not 1 to [`REPLICAS_MAX`].
    Replicas(u8),
}

impl fmt::Display for NotationError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            NotationError::Syntax => f.write_str(
                "not a configuration: write the number of transport servers, link servers and connection managers, such \
                 as TS2LS2CM2",
            ),
            NotationError::NotYet => f.write_str(
                "this version runs TSnLSnCMn only, the same n three times (such as TS2LS2CM2); unequal numbers and \
                 components in processes of their own come later",
            ),
            NotationError::Replicas(n) => write!(f, "a stack has 1 to {REPLICAS_MAX} replicas, not {n}"),
        }
    }
}

impl std::error::Error for NotationError {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_numbers_are_replicas() {
        for n in 1..=8 {
            let text = format!("TS{n}LS{n}CM{n}");
            let notation: Notation = text.parse().unwrap();
            assert_eq!((notation.replicas(), notation.to_string()), (n, text));
        }
        assert_eq!("CM3TS3LS3".parse::<Notation>().unwrap().replicas(), 3);
    }

    #[test]
    fn what_this_version_cannot_run_is_told_apart_from_nonsense() {
        for text in ["TS8LS8+CM1", "TS2+IP2+LS1+CM2", "TS2LS1CM2", "TS2LS2", "TS2LS2CM2IP2"] {
            assert_eq!(text.parse::<Notation>(), Err(NotationError::NotYet), "{text}");
        }
        for text in
            ["", "+", "2", "TS", "TS2LS2CM", "ts2ls2cm2", "TS2TS2LS2CM2", "TS2LS2CM2x", "TS999LS999CM999", "Té2"]
        {
            assert_eq!(text.parse::<Notation>(), Err(NotationError::Syntax), "{text}");
        }
        assert_eq!("TS9LS9CM9".parse::<Notation>(), Err(NotationError::Replicas(9)));
        assert_eq!("TS0LS0CM0".parse::<Notation>(), Err(NotationError::Replicas(0)));
    }
}
