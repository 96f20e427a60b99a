//! What does each step cost in the simulated machine? The costs were measured on a real one, each with its
//! spread.

use std::collections::BTreeMap;

use serde::Deserialize;
use thiserror::Error;

/// One measured cost.
#[derive(Clone, Debug, Deserialize, PartialEq)]
#[serde(deny_unknown_fields)]
pub struct Cost {
    /// The step that costs this.
    pub what: String,
    /// The median of the runs, in nanoseconds.
    pub median: f64,
    /// The least result of a run, in nanoseconds.
    pub low: f64,
    /// The greatest result of a run, in nanoseconds.
    pub high: f64,
    /// The tool that measured it, with the number of runs.
    pub how: String,
}

macro_rules! costs {
    ($($name:ident),* $(,)?) => {
        /// The cost of each step in nanoseconds, by name. The table ([`Table`]) says what each name means.
        #[derive(Clone, Copy, Debug, PartialEq)]
        #[allow(missing_docs)] // The table says it.
        pub struct Costs {
            $(pub $name: f64,)*
        }

        impl Costs {
            /// The names that a table must have.
            pub const NAMES: &'static [&'static str] = &[$(stringify!($name)),*];

            fn of(table: &Table) -> Result<Costs, TableError> {
                Ok(Costs { $($name: table.median(stringify!($name))?,)* })
            }
        }
    };
}

costs! {
    frame_in, frame_out, ip_in, ip_out, send, receive, line, latency, poll,
    tcp_syn, tcp_ack, tcp_text, tcp_respond, tcp_reply, tcp_fin,
    cm_syn, cm_choose, cm_choose_each, cm_claimed, cm_closed, cm_asked, peer_out, peer_in,
    app_accept, app_request, app_close, app_work, app_lighttpd,
    ring, wake, suspend, kernel_connection,
}

/// The reason why a file is no table of costs.
#[derive(Clone, Debug, PartialEq, Error)]
pub enum TableError {
    /// The file is not TOML, or has unknown keys or values of the wrong kind.
    #[error(transparent)]
    Toml(#[from] toml::de::Error),
    /// The file has a cost whose name is unknown.
    #[error("nothing costs `{0}`")]
    Unknown(String),
    /// The file lacks this cost.
    #[error("`{0}` is missing")]
    Missing(&'static str),
    /// The values of this cost are not in order, or lie outside 0 to 1e9 nanoseconds.
    #[error("`{0}`: not 0 <= low <= median <= high < 1e9")]
    Unsound(&'static str),
}

/// A file of costs, by name.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Table(pub BTreeMap<String, Cost>);

impl Table {
    /// Returns the table that was measured on the machine of docs/measurements.md.
    pub fn built_in() -> Table {
        Table::parse(include_str!("costs.toml")).expect("the built-in table is whole: a test reads it")
    }

    /// Parses a file. Every cost must be present, and no other name may be.
    pub fn parse(text: &str) -> Result<Table, TableError> {
        let table = Table(toml::from_str(text)?);
        if let Some(name) = table.0.keys().find(|name| !Costs::NAMES.contains(&name.as_str())) {
            return Err(TableError::Unknown(name.clone()));
        }
        for name in Costs::NAMES {
            let cost = table.0.get(*name).ok_or(TableError::Missing(name))?;
            let is_sound =
                cost.low >= 0.0 && cost.low <= cost.median && cost.median <= cost.high && cost.high < 1e9;
            if !is_sound {
                return Err(TableError::Unsound(name));
            }
        }
        Ok(table)
    }

    /// Returns the table as a TOML file.
    pub fn to_toml(&self) -> String {
        let mut text = String::new();
        for name in Costs::NAMES {
            let Some(cost) = self.0.get(*name) else { continue };
            text += &format!(
                "[{name}]\nwhat = {:?}\nmedian = {}\nlow = {}\nhigh = {}\nhow = {:?}\n\n",
                cost.what, cost.median, cost.low, cost.high, cost.how
            );
        }
        text
    }

    /// Returns the median of each cost.
    pub fn costs(&self) -> Result<Costs, TableError> {
        Costs::of(self)
    }

    fn median(&self, name: &'static str) -> Result<f64, TableError> {
        self.0.get(name).map(|cost| cost.median).ok_or(TableError::Missing(name))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_built_in_table_is_whole_and_survives_being_written() {
        let table = Table::built_in();
        assert_eq!(Table::parse(&table.to_toml()), Ok(table.clone()));
        assert!(table.costs().is_ok_and(|costs| costs.line > 0.0));
    }

    #[test]
    fn a_table_with_a_hole_or_nonsense_is_refused_by_name() {
        let text = Table::built_in().to_toml();
        let without = text.replace("[line]", "[lines]");
        assert_eq!(Table::parse(&without), Err(TableError::Unknown("lines".into())));
        let mut table = Table::built_in();
        table.0.remove("line");
        assert_eq!(Table::parse(&table.to_toml()), Err(TableError::Missing("line")));
        let mut table = Table::built_in();
        table.0.get_mut("line").expect("there").low = 1e6;
        assert_eq!(Table::parse(&table.to_toml()), Err(TableError::Unsound("line")));
    }
}
