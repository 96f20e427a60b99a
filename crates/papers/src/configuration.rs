//! Which server holds which components? This module parses Pika's notation (P2), such as `TS8LS8CM8`,
//! `TS8LS8CM2`, `TS8LS8+CM1` and `TS8+LS8+CM8`, and this stack's with IP apart (N6), such as `TS2CM2+IP2LS2`.

use std::fmt;

use thiserror::Error;

/// The components of one server process, each by its number within its kind; `None` if the process lacks it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Roles {
    /// The number of its link server.
    pub ls: Option<usize>,
    /// The number of its transport server.
    pub ts: Option<usize>,
    /// The number of its IP component.
    pub ip: Option<usize>,
    /// The number of its connection manager.
    pub cm: Option<usize>,
}

/// The servers of a stack.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Configuration {
    name: String,
    servers: Vec<Roles>,
}

/// Why a text names no stack.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum ConfigurationError {
    /// The text does not follow the notation.
    #[error("{0}: not like TS8LS8+CM2")]
    Syntax(String),
    /// A kind of component appears twice, or its number is out of range.
    #[error("{text}: {kind} wants one number from 1 to 64")]
    Number {
        /// The text as it was given.
        text: String,
        /// The kind of component, such as `TS`.
        kind: String,
    },
    /// A kind of component is missing.
    #[error("{0}: TS, LS and CM are all needed")]
    Missing(String),
}

/// The components of one kind in a group of the notation, and their number.
struct Part {
    kind: String,
    count: usize,
}

impl Configuration {
    /// Creates the configuration `TSnLSnCMn`: `n` servers, each with a transport server, a link server and a
    /// connection manager.
    pub fn combined(n: usize) -> Configuration {
        Configuration::parse(&format!("TS{n}LS{n}CM{n}")).expect("combined servers work for every number")
    }

    /// Parses the notation. A kind may have 64 components at most, because a connection manager knows no more
    /// peers. Components that are written without `+` share processes: the first two servers of `TS8LS8CM2`
    /// hold all three kinds. IP is with the transport servers unless the text places it.
    pub fn parse(text: &str) -> Result<Configuration, ConfigurationError> {
        let mut servers: Vec<Roles> = Vec::new();
        for group in text.split('+') {
            let parts = parts(group).ok_or_else(|| ConfigurationError::Syntax(text.into()))?;
            let most = parts.iter().map(|part| part.count).max().unwrap_or(0);
            let first = servers.len();
            servers.resize(first + most, Roles::default());
            for part in &parts {
                let used = servers.iter().any(|roles| roles.of(&part.kind).is_some());
                if used || !(1..=64).contains(&part.count) {
                    return Err(ConfigurationError::Number { text: text.into(), kind: part.kind.clone() });
                }
                for (number, roles) in servers[first..].iter_mut().take(part.count).enumerate() {
                    *roles.of_mut(&part.kind) = Some(number);
                }
            }
        }
        if servers.iter().all(|roles| roles.ip.is_none()) {
            servers.iter_mut().for_each(|roles| roles.ip = roles.ts);
        }
        let configuration = Configuration { name: text.into(), servers };
        match configuration.counts() {
            (0, ..) | (_, 0, _) | (.., 0) => Err(ConfigurationError::Missing(text.into())),
            _ => Ok(configuration),
        }
    }

    /// Returns every server.
    pub fn servers(&self) -> &[Roles] {
        &self.servers
    }

    /// Returns the numbers of transport servers, link servers and connection managers.
    pub fn counts(&self) -> (usize, usize, usize) {
        let count = |of: fn(&Roles) -> Option<usize>| self.servers.iter().filter_map(of).count();
        (count(|roles| roles.ts), count(|roles| roles.ls), count(|roles| roles.cm))
    }
}

impl fmt::Display for Configuration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)
    }
}

impl Roles {
    fn of(&self, kind: &str) -> Option<usize> {
        match kind {
            "TS" => self.ts,
            "IP" => self.ip,
            "LS" => self.ls,
            _ => self.cm,
        }
    }

    fn of_mut(&mut self, kind: &str) -> &mut Option<usize> {
        match kind {
            "TS" => &mut self.ts,
            "IP" => &mut self.ip,
            "LS" => &mut self.ls,
            _ => &mut self.cm,
        }
    }
}

/// Splits a group such as `TS8LS8` into its parts; returns `None` if it does not follow the notation.
fn parts(group: &str) -> Option<Vec<Part>> {
    let mut rest = group;
    let mut found = Vec::new();
    while !rest.is_empty() {
        let (kind, after) =
            rest.split_at_checked(2).filter(|(kind, _)| matches!(*kind, "TS" | "IP" | "LS" | "CM"))?;
        let digits = after.find(|c: char| !c.is_ascii_digit()).unwrap_or(after.len());
        found.push(Part { kind: kind.into(), count: after[..digits].parse().ok()? });
        rest = &after[digits..];
    }
    (!found.is_empty()).then_some(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn servers(text: &str) -> Vec<String> {
        let parsed = Configuration::parse(text).expect(text);
        let name =
            |kind: &str, number: Option<usize>| number.map(|n| format!("{kind}{n}")).unwrap_or_default();
        let is_apart = text.contains("IP");
        let ip = |roles: &Roles| name("IP", roles.ip.filter(|_| is_apart));
        let of = |r: &Roles| name("TS", r.ts) + &ip(r) + &name("LS", r.ls) + &name("CM", r.cm);
        parsed.servers().iter().map(of).collect()
    }

    #[test]
    fn components_share_processes_unless_a_plus_parts_them() {
        assert_eq!(servers("TS2LS2CM2"), ["TS0LS0CM0", "TS1LS1CM1"]);
        assert_eq!(servers("TS2LS2CM1"), ["TS0LS0CM0", "TS1LS1"]);
        assert_eq!(servers("TS2LS2+CM1"), ["TS0LS0", "TS1LS1", "CM0"]);
        assert_eq!(servers("TS2+LS1+CM1"), ["TS0", "TS1", "LS0", "CM0"]);
        assert_eq!(servers("TS2CM2+LS1"), ["TS0CM0", "TS1CM1", "LS0"]);
        assert_eq!(servers("TS2CM2+IP2LS2"), ["TS0CM0", "TS1CM1", "IP0LS0", "IP1LS1"]);
        assert_eq!(servers("TS1+IP1+LS1+CM1"), ["TS0", "IP0", "LS0", "CM0"]);
        let inside = Configuration::parse("TS2CM2+LS1").expect("it works");
        assert_eq!(
            inside.servers().iter().map(|roles| roles.ip).collect::<Vec<_>>(),
            [Some(0), Some(1), None]
        );
    }

    #[test]
    fn what_cannot_work_is_refused() {
        for text in ["", "TS", "XS1LS1CM1", "TS1LS1+", "TS1LS1CM1x"] {
            assert_eq!(Configuration::parse(text), Err(ConfigurationError::Syntax(text.into())), "{text}");
        }
        for text in ["TS1", "TS1LS1"] {
            assert_eq!(Configuration::parse(text), Err(ConfigurationError::Missing(text.into())), "{text}");
        }
        for (text, kind) in [("TS1LS1CM0", "CM"), ("TS1LS1CM65", "CM"), ("TS1LS1CM1+TS1", "TS")] {
            let error = ConfigurationError::Number { text: text.into(), kind: kind.into() };
            assert_eq!(Configuration::parse(text), Err(error), "{text}");
        }
    }
}
