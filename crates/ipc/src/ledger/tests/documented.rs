//! Tests that docs/ledger.md says of each field where it is, and of nothing else.

use alloc::string::String;

use super::*;
use crate::layout::Record;

const DOCUMENT: &str = include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/ledger.md"));

/// A field: its name, offset and size, and the version from which on records have it, if that is documented.
type Row = (String, usize, usize, Option<u32>);

/// Returns the size of a type as the document writes it: `u16`, `u8 × 16`, `(u32, u32) × 4`.
fn size_of_type(text: &str) -> usize {
    if let Some((one, count)) = text.split_once(" × ") {
        return size_of_type(one) * count.parse::<usize>().expect("a number of values");
    }
    match text {
        "u8" => 1,
        "u16" => 2,
        "u32" => 4,
        "u64" | "i64" | "(u32, u32)" => 8,
        other => panic!("no type: {other}"),
    }
}

/// Returns the fields in the table under a heading.
fn documented(heading: &str) -> Vec<Row> {
    let (_, section) =
        DOCUMENT.split_once(&alloc::format!("\n## {heading}\n")).expect("there is the heading");
    let section = section.split("\n## ").next().expect("there is a first part");
    let mut lines = section.lines().skip_while(|line| !line.starts_with("| offset | field | type |"));
    let has_version = lines.next().expect("there is the table").contains("| version |");
    let mut rows = Vec::new();
    for line in lines.skip(1).take_while(|line| line.starts_with('|')) {
        let cells: Vec<&str> = line.split('|').map(str::trim).collect();
        let mut offset = cells[1].parse().expect("an offset");
        let version = has_version.then(|| cells[4].parse().expect("a version"));
        let names: Vec<&str> = cells[2].split(", ").collect();
        let types = if names.len() == 1 { alloc::vec![cells[3]] } else { cells[3].split(", ").collect() };
        assert_eq!(names.len(), types.len(), "{line}");
        for (name, one) in names.into_iter().zip(types) {
            rows.push((name.into(), offset, size_of_type(one), version));
            offset += size_of_type(one);
        }
    }
    rows
}

fn defined<T: Record>() -> Vec<Row> {
    T::FIELDS.iter().map(|&(name, offset, size)| (name.into(), offset, size, None)).collect()
}

#[test]
fn the_tables_in_the_document_are_those_in_the_code() {
    let mut connections = defined::<connection::Written>();
    for (name, _, _, version) in &mut connections {
        *version = Some(if name.starts_with("beyond") { connection::WITH_BEYOND } else { connection::FIRST });
    }
    for (heading, defined) in [
        ("Header", defined::<Header>()),
        ("Work", defined::<work::Word>()),
        ("Suspects", defined::<work::Suspect>()),
        ("Journal", defined::<Entry>()),
        ("Connections", connections),
        ("Requests", defined::<request::Written>()),
        ("Text", defined::<text::Unit>()),
        ("TIME-WAIT", defined::<time_wait::Written>()),
    ] {
        assert_eq!(documented(heading), defined, "of {heading}");
    }
}

#[test]
fn the_kinds_of_work_in_the_document_are_those_in_the_code() {
    let (_, table) = DOCUMENT.split_once("\n| kind | work | number |\n").expect("there is the table");
    let rows = table.lines().skip(1).map_while(|line| line.strip_prefix("| ")).map(|line| {
        let (number, rest) = line.split_once(" | ").expect("a number");
        let name = rest.split([' ', ':']).next().expect("a name");
        (number.parse().expect("a number"), name.into())
    });
    let kinds =
        (0..=u8::MAX).filter_map(|n| Some((n, alloc::format!("{:?}", layout::number::<work::Kind>(n)?))));
    assert_eq!(rows.collect::<Vec<(u8, String)>>(), kinds.collect::<Vec<_>>());
}

#[test]
fn the_regions_in_the_document_are_those_in_the_code() {
    let LedgerConfig { connections, requests, text_units } = LedgerConfig::STACK;
    assert_eq!((connections, requests, text_units), (1 << 20, 1 << 18, 1 << 16));
    let thousands = |n: usize| match (n / 1_000_000, n / 1000 % 1000, n % 1000) {
        (0, 0, ones) => alloc::format!("{ones}"),
        (0, thousands, ones) if n < 10_000 => alloc::format!("{thousands}{ones:03}"),
        (0, thousands, ones) => alloc::format!("{thousands},{ones:03}"),
        (millions, thousands, ones) => alloc::format!("{millions},{thousands:03},{ones:03}"),
    };
    let layout = LedgerConfig::STACK.layout();
    let (header, journal) = (thousands(TOUCHED), thousands(JOURNAL_MAX as usize));
    for row in [
        alloc::format!("| 0 | {header} | header |"),
        alloc::format!("| {header} | 4 × {} | touched", thousands(TOUCHED_MAX)),
        alloc::format!("| {} | {ENTRY_BYTES} × {journal} | journal |", thousands(JOURNAL)),
        alloc::format!("| {} | {CONNECTION_BYTES} × connections |", thousands(layout.connections)),
        alloc::format!("| {REQUEST_BYTES} × requests |"),
        alloc::format!("| {TEXT_UNIT_BYTES} × units |"),
        alloc::format!("| {TIME_WAIT_BYTES} × entries |"),
        alloc::format!("{} octets", thousands(LEDGER_BYTES)),
    ] {
        assert!(DOCUMENT.contains(&row), "{row}");
    }
}
