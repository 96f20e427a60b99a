use std::fs;
use std::path::{Path, PathBuf};

use super::*;

/// Counts the lines of a file that are neither blank, comment nor test.
fn lines_of(file: &Path) -> usize {
    let text = fs::read_to_string(file).expect("a source file");
    let product = text.split("#[cfg(test)]").next().unwrap_or_default();
    product.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with("//")).count()
}

fn lines_in(folder: &Path) -> usize {
    let entries: Vec<PathBuf> = fs::read_dir(folder)
        .expect("a folder of the tree")
        .map(|entry| entry.expect("readable").path())
        .collect();
    let of = |path: &PathBuf| match path.file_name().and_then(|name| name.to_str()) {
        Some("tests" | "tests.rs") => 0,
        _ if path.is_dir() => lines_in(path),
        Some(name) if name.ends_with(".rs") => lines_of(path),
        _ => 0,
    };
    entries.iter().map(of).sum()
}

#[test]
fn the_components_are_as_large_as_the_table_says() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let folders: [&[&str]; 4] = [
        &["crates/proto/tcp", "crates/servers/transport"],
        &["crates/proto/ip", "crates/servers/ip"],
        &["crates/servers/link", "crates/platform/tap", "bin/atoll/src/link"],
        &["crates/servers/connmgr"],
    ];
    let counted: Vec<(&str, f64)> = SIZES
        .iter()
        .zip(folders)
        .map(|((name, _), folders)| {
            (*name, folders.iter().map(|folder| lines_in(&root.join(folder))).sum::<usize>() as f64)
        })
        .collect();
    for (at, (name, _)) in SIZES.iter().enumerate() {
        let (said, now) = (share_of(&SIZES, at), share_of(&counted, at));
        assert!((said - now).abs() < 3.0, "{name}: {said:.1} % in the table, {now:.1} % now: {counted:?}");
    }
}

const TEXT: &str = "series,x,y
TS2LS2CM2:TSIPLSCM stateless,10,0
TS2LS2CM2:TSIPLSCM stateless,30,0
TS2LS2CM2:TSIPLSCM stateless others,20,20
TS2CM2+IP2LS2:TSCM stateless,20,5
TS2CM2+IP2LS2:TSCM stateless others,20,10
TS2CM2+IP2LS2:IPLS stateless,20,20
TS2CM2+IP2LS2:IPLS stateless,0,0
";

fn measured() -> Measured<'static> {
    Measured { lines: crate::experiments::real_lines(TEXT).collect(), here: true }
}

#[test]
fn a_fate_sums_up_deaths_and_keeps_their_spread() {
    let (own, others) = fate(&measured(), "TSCM", "stateless").expect("it was measured");
    assert_eq!((own.share(), others.share()), (0.25, 0.5));
    let (own, others) = fate(&measured(), "IPLS", "stateless").expect("it was measured");
    assert_eq!((own.deaths, own.share(), others.deaths, others.share()), (1, 1.0, 0, 1.0));
    let fate = Fate::of([(10.0, 5.0), (10.0, 10.0)].into_iter());
    assert_eq!((fate.share(), fate.low, fate.high), (0.75, 0.5, 1.0));
    assert!(matches!(
        super::fate(&measured(), "TS", "stateless"),
        Err(ExperimentError::NoDeathOf { kind, .. }) if kind == "TS"
    ));
}

#[test]
fn what_is_left_is_weighted_by_who_fails_and_how_many_there_are() {
    let expected = |form, n, weights: &[(&str, f64)]| {
        preserved(&measured(), form, n, "stateless", weights).expect("it was measured")
    };
    let even = [("TS", 1.0), ("IP", 1.0)];
    assert_eq!([1, 2, 4].map(|n| expected(Form::Single, n, &even)), [0.0, 0.5, 0.75]);
    // TCP dies in one of four processes: a quarter of the connections keep 0.25, three quarters keep 0.5.
    assert_eq!(expected(Form::Multi, 4, &[("TS", 1.0)]), 0.4375);
    assert_eq!(expected(Form::Multi, 4, &[("IP", 3.0)]), 1.0);
    assert_eq!(expected(Form::Multi, 4, &even), 0.71875);
    assert!(preserved(&measured(), Form::Apart, 1, "stateless", &even).is_err());
}
