//! Does `atoll paper` make what it says?

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

fn atoll(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_atoll")).args(arguments).output().expect("it was built")
}

/// Creates a folder for this test alone.
fn folder(name: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("paper-{name}-{}", std::process::id()));
    fs::create_dir_all(folder.join("real")).expect("a folder");
    folder
}

fn make(folder: &Path, name: &str) -> Output {
    atoll(&["paper", name, "--quick", "--out", folder.to_str().expect("a plain name")])
}

#[test]
fn an_experiment_writes_numbers_a_picture_and_its_sentence() {
    let folder = folder("fig13");
    let output = make(&folder, "neat-fig13");
    assert!(output.status.success(), "{output:?}");
    let said = String::from_utf8(output.stdout).expect("text");
    let sentence = said.strip_prefix("neat-fig13: ").expect("it says of what it speaks");
    assert!(sentence.starts_with("Reproduced: ") && sentence.lines().count() == 1, "{sentence}");
    let read = |ending: &str| {
        fs::read_to_string(folder.join(format!("neat-fig13{ending}"))).expect("it was written")
    };
    assert_eq!(read(".txt"), sentence);
    assert!(read(".svg").contains("TCP and IP apart, stateless"));
    let csv = read(".csv");
    let configurations: Vec<&str> = csv.lines().skip(1).filter_map(|line| line.split(',').nth(1)).collect();
    let wanted =
        ["TS1LS1CM1", "TS2LS2CM2", "TS1CM1+IP1LS1", "TS2CM2+IP2LS2", "TS1+IP1+LS1+CM1", "TS2+IP2+LS2+CM2"];
    assert_eq!(configurations, wanted);
    fs::remove_dir_all(folder).expect("it is there");
}

#[test]
fn what_was_measured_here_counts_instead_of_what_was_measured_elsewhere() {
    let folder = folder("calls");
    let real = "series,x,y\nwithout a system call,1,42\nwithout a system call,300,43\n";
    fs::write(folder.join("real/neat-calls.csv"), real).expect("a file");
    let said = String::from_utf8(make(&folder, "neat-calls").stdout).expect("text");
    assert!(
        said.starts_with("neat-calls: Not reproduced: ") && said.contains("on this machine 43.00 %"),
        "{said}"
    );
    fs::write(folder.join("real/neat-calls.csv"), "series,x,y\n").expect("a file");
    let output = make(&folder, "neat-calls");
    let error = String::from_utf8(output.stderr).expect("text");
    assert!(!output.status.success() && error.contains("neat-calls: no calls were measured"), "{error}");
    fs::remove_dir_all(folder).expect("it is there");
}

#[test]
fn the_list_has_both_papers() {
    let said = String::from_utf8(atoll(&["paper", "list"]).stdout).expect("text");
    for name in
        ["pika-fig4a", "pika-fig12", "neat-fig6", "neat-fig12", "neat-fig13", "neat-faults", "neat-table2"]
    {
        assert!(said.lines().any(|line| line.split_whitespace().next() == Some(name)), "{name}: {said}");
    }
    let output = atoll(&["paper", "neat-fig99"]);
    assert!(
        !output.status.success() && String::from_utf8_lossy(&output.stderr).contains("neat-fig99"),
        "{output:?}"
    );
}
