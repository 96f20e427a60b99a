use super::arrows::{Arrow, Crate};
use super::requirements::Labels;
use super::tokens::tokens;
use super::{arrows, check, columns, errors, proofs, requirements, sizes, sources, supply};

#[test]
fn the_repository_keeps_to_its_architecture() {
    let violations = check(&crate::root()).expect("cargo metadata works where cargo test does");
    assert!(violations.is_empty(), "\n{}", violations.join("\n"));
}

fn member(folder: &str, to: &[&str]) -> Crate {
    let arrows = to.iter().map(|to| Arrow { to: (*to).into(), only_tests: false }).collect();
    Crate { name: folder.replace('/', "-"), folder: folder.into(), arrows }
}

#[test]
fn an_arrow_that_points_up_is_reported() {
    let found = arrows::check(&[member("crates/proto/tcp", &["crates/base", "crates/servers/transport"])]);
    assert_eq!(found, ["crates/proto/tcp: its arrow to crates/servers/transport does not point down"]);
}

#[test]
fn an_arrow_inside_a_storey_is_reported_unless_it_is_listed() {
    let found = arrows::check(&[
        member("crates/proto/tcp", &["crates/proto/ip"]),
        member("crates/platform/shm", &["crates/platform/sys"]),
    ]);
    assert_eq!(found, ["crates/proto/tcp: its arrow to crates/proto/ip does not point down"]);
}

#[test]
fn only_tests_may_use_what_stands_outside_the_building() {
    let mut tcp = member("crates/proto/tcp", &["testing/testkit"]);
    assert_eq!(arrows::check(&[tcp.clone()]).len(), 1);
    tcp.arrows[0].only_tests = true;
    assert!(arrows::check(&[tcp]).is_empty());
}

#[test]
fn tests_may_use_what_the_product_may_not() {
    let mut transport = member("crates/servers/transport", &["crates/sockets"]);
    assert_eq!(arrows::check(&[transport.clone()]).len(), 1);
    transport.arrows[0].only_tests = true;
    assert!(arrows::check(&[transport]).is_empty());
}

#[test]
fn a_crate_without_a_storey_is_reported() {
    assert_eq!(arrows::check(&[member("crates/misc", &[])]).len(), 1);
}

#[test]
fn metadata_of_cargo_is_understood() {
    let json = br#"{"packages": [{"name": "atoll-tcp", "manifest_path": "/r/crates/proto/tcp/Cargo.toml",
        "dependencies": [
        {"name": "atoll-base", "kind": null, "path": "/r/crates/base"},
        {"name": "atoll-testkit", "kind": "dev", "path": "/r/testing/testkit"},
        {"name": "siphasher", "kind": null}]}]}"#;
    let crates = arrows::parse_metadata(json, "/r".as_ref()).expect("it is what cargo prints");
    let base = Arrow { to: "crates/base".into(), only_tests: false };
    let testkit = Arrow { to: "testing/testkit".into(), only_tests: true };
    assert_eq!(
        crates,
        [Crate { name: "atoll-tcp".into(), folder: "crates/proto/tcp".into(), arrows: vec![base, testkit] }]
    );
}

/// Returns the number of violations that `line` adds to a file that has none.
fn violations(path: &str, line: &str) -> usize {
    sources::check_file(path, &format!("#![forbid(unsafe_code)]\n{line}\n")).len()
}

#[test]
fn unsafe_code_is_reported_outside_its_crates() {
    for path in
        ["crates/base/src/seq.rs", "bin/atoll/src/main.rs", "testing/sim/src/lib.rs", "xtask/src/main.rs"]
    {
        assert_eq!(violations(path, "fn f(p: *const u8) -> u8 { unsafe { *p } }"), 1, "{path}");
    }
    for path in ["crates/platform/shm/src/ring.rs", "bin/preload/src/lib.rs"] {
        assert_eq!(violations(path, "fn f(p: *const u8) -> u8 { unsafe { *p } }"), 0, "{path}");
    }
}

#[test]
fn a_crate_that_does_not_forbid_unsafe_code_is_reported() {
    assert_eq!(sources::check_file("crates/wire/src/lib.rs", "//! Headers.\n").len(), 1);
    assert_eq!(sources::check_file("crates/wire/src/arp.rs", "//! ARP.\n").len(), 0);
    assert_eq!(sources::check_file("crates/platform/sys/src/lib.rs", "//! Calls.\n").len(), 0);
    // An attribute in a comment has no effect.
    assert_eq!(sources::check_file("crates/wire/src/lib.rs", "// #![forbid(unsafe_code)]\n").len(), 1);
}

#[test]
fn clocks_threads_and_randomness_are_reported_below_the_platform() {
    let lines = [
        "use std::time::Instant;",
        "use std::{fmt, time::Duration};",
        "use std::{io::{self, Read}, thread};",
        "let t = Instant::now();",
        "let t = Instant :: now();",
        "let t = SystemTime::UNIX_EPOCH;",
        "let r = rand::random::<u8>();",
        "use getrandom::fill;",
        "use std::collections::HashMap;",
        "let s = RandomState::new();",
    ];
    for line in lines {
        for path in
            ["crates/base/src/a.rs", "crates/servers/supervisor/src/a.rs", "crates/sockets/src/poll.rs"]
        {
            assert!(violations(path, line) > 0, "{path}: {line}");
        }
        for path in
            ["crates/platform/sys/src/clock.rs", "bin/atoll/src/run.rs", "crates/ipc/src/ring/tests.rs"]
        {
            assert_eq!(violations(path, line), 0, "{path}: {line}");
        }
    }
}

#[test]
fn what_only_looks_like_a_violation_is_not_reported() {
    let lines = [
        "// unsafe, std::time and rand::random are for others",
        "/* unsafe /* nested */ Instant::now() */ fn f() {}",
        r##"let s = "unsafe { Instant::now() } \" unsafe"; let r = r#"a "quoted" SystemTime"#;"##,
        "let b = b\"unsafe\"; let c = '\"'; let d = '\\''; let e = 'ß'; fn f<'a>(x: &'a u8) {}",
        "use std::{fmt, io::{self, time}};",
        "use core::time::Duration;",
        "let later = now + Duration::from_millis(3); let time = cx.now;",
        "fn is_unsafe_code() {} let operand = 3; let random = rng.next_u64();",
    ];
    for line in lines {
        assert_eq!(sources::check_file("crates/base/src/a.rs", line), [""; 0], "{line}");
    }
}

#[test]
fn lines_are_counted_through_comments_and_strings() {
    let found = sources::check_file("crates/base/src/a.rs", "/*\n\n*/ let s = \"\n\"; unsafe {}\n");
    assert_eq!(found, ["crates/base/src/a.rs:4: unsafe code outside crates/platform and bin/preload"]);
    assert_eq!(tokens("a /* b").len(), 1);
}

fn judged_by(labels: &Labels, rows: &str) -> Vec<String> {
    let known = requirements::Known {
        files: [("a.rs".to_owned(), "fn obey() {}".to_owned())].into(),
        tests: ["a_test".to_owned(), "script.pkt".to_owned()].into(),
    };
    let text =
        format!("| label | what | here | code | tests |\n|---|---|---|---|---|\n{rows}\n1. Because.\n");
    let notes = "nothing refers to note 1";
    requirements::check("t.md", &text, labels, &known)
        .into_iter()
        .filter(|what| !what.ends_with(notes))
        .collect()
}

fn judged(rows: &str) -> Vec<String> {
    judged_by(&Labels::All(vec!["MUST-1".to_owned(), "MAY-1".to_owned()]), rows)
}

#[test]
fn what_a_standard_asks_for_is_kept_or_argued_about() {
    let may = "| MAY-1 | x | not ours | | |";
    let good = [
        "| MUST-1 | x | kept | `a.rs` `obey` | `a_test`, `script.pkt` |",
        "| MUST-1 | x | deviates (1) | | |",
        "| MUST-1 | x | missing (1) | `a.rs` `obey` | `a_test` |",
        "| MUST-1 | x | not ours (1) | | |",
    ];
    for row in good {
        assert_eq!(judged(&format!("{row}\n{may}")), Vec::<String>::new(), "{row}");
    }
    let bad = [
        "",
        "| MUST-1 | x | kept | | `a_test` |",
        "| MUST-1 | x | kept | `a.rs` `obey` | |",
        "| MUST-1 | x | kept | `a.rs` `disobey` | `a_test` |",
        "| MUST-1 | x | kept | `b.rs` `obey` | `a_test` |",
        "| MUST-1 | x | kept | `a.rs` `obey` | `no_test` |",
        "| MUST-1 | x | deviates | | |",
        "| MUST-1 | x | deviates (2) | | |",
        "| MUST-1 | x | kept (2) | `a.rs` `obey` | `a_test` |",
        "| MUST-1 | x | kept | `a.rs` `obey` `b.rs` | `a_test` |",
        "| MUST-1 | x | not ours | | |",
        "| MUST-1 | x | perhaps | | |",
        "| MUST-1 | x | deviates (1) | | |\n| MUST-1 | x | deviates (1) | | |",
        "| MUST-1 | x | deviates (1) | | |\n| MUST-2 | x | deviates (1) | | |",
    ];
    for row in bad {
        assert_eq!(
            judged(&format!("{row}\n{may}")).len(),
            1,
            "{row}: {:?}",
            judged(&format!("{row}\n{may}"))
        );
    }
}

#[test]
fn labels_are_sections_and_levels_where_a_standard_has_none() {
    let labels = Labels::Sections(&["5.3-R1", "2.1"]);
    let rest = "| 2.1 MUST | x | deviates (1) | | |";
    let kept = "kept | `a.rs` `obey` | `a_test` |";
    assert_eq!(
        judged_by(&labels, &format!("| 5.3-R1 SHLD | x | {kept}\n| 4a MAY | x | not ours | | |\n{rest}")),
        [""; 0]
    );
    let bad = [
        "| 5.3-R2 SHLD | x | not ours | | |",
        "| 5.3-R1 MUST | x | not ours | | |",
        "| 5.3-R1 | x | not ours | | |",
        "| 5.3-R1 PERHAPS | x | not ours | | |",
    ];
    for row in bad {
        assert!(!judged_by(&labels, &format!("{row}\n{rest}")).is_empty(), "{row}");
    }
    let unused = requirements::check("t.md", "1. Because.\n", &Labels::Sections(&[]), &nothing());
    assert_eq!(unused, ["t.md: nothing refers to note 1"]);
}

#[test]
fn the_index_counts_the_verdicts() {
    let rows = "| 1 MUST | x | kept | `a` `b` | `c` |\n| 2 MAY | x | not ours | | |\n\
                | 3 MAY | x | missing (1) | | |\n";
    let tables = [("1.md".to_owned(), rows.to_owned())].into();
    let judge = |index| requirements::check_index("i.md", index, &tables).len();
    assert_eq!(judge("| [1.md](1.md) | what | 1 | 0 | 1 | 1 |"), 0);
    for index in ["", "| [2.md](2.md) | what | 1 | 0 | 1 | 1 |", "| [1.md](1.md) | what | 1 | 1 | 0 | 1 |"] {
        assert_eq!(judge(index), 1, "{index}");
    }
}

fn nothing() -> requirements::Known {
    requirements::Known { files: [].into(), tests: [].into() }
}

#[test]
fn tests_are_found_by_their_attributes() {
    let text =
        "#[test]\nfn one() {}\nfn helper() {}\n#[test]\n#[should_panic]\nfn two() {}\n@case\ndef three():\n";
    assert_eq!(requirements::tests_in(text), ["one", "two", "three"]);
    assert_eq!(
        requirements::tests_in("on_both_stacks![\n    one,\n    two,\n];\nfn one() {}\n"),
        ["one", "two"]
    );
    assert!(matches!(Labels::of("9293"), Labels::All(all) if all.len() == 119));
}

#[test]
fn a_claim_without_a_test_that_exists_is_reported() {
    let known = ["it_holds".to_owned()].into();
    let text = |tests: &str| {
        format!(
            "## Claims\n| claim | mechanism | tests |\n|---|---|---|\n| a | b | {tests} |\n## More\n| x |\n"
        )
    };
    assert_eq!(proofs::check_claims("T.md", &text("`it_holds`"), &known), [""; 0]);
    assert_eq!(
        proofs::check_claims("T.md", &text("`it_held`"), &known),
        ["T.md:4: there is no test it_held"]
    );
    assert_eq!(proofs::check_claims("T.md", &text("fuzz"), &known), ["T.md:4: shown by which test?"]);
    assert_eq!(proofs::check_claims("T.md", "nothing", &known), ["T.md: no table of claims"]);
}

#[test]
fn a_dependency_without_a_reason_is_reported_and_a_reason_without_a_dependency() {
    let manifest = "[workspace.dependencies]\natoll-base = { path = \"b\" }\nlibc = \"0.2\"\n# no = 1\n\
                    slab.version = \"1\"\n[profile.x]\ny = 1\n";
    let text = |names: &str| format!("## Dependencies\n| crate | for |\n|---|---|\n| {names} | calls |\n");
    let found = |names: &str| proofs::check_dependencies("A.md", &text(names), &[manifest.to_owned()]);
    assert_eq!(found("`libc`, `slab`"), [""; 0]);
    assert_eq!(found("`libc`"), ["A.md: no reason for the dependency slab"]);
    assert_eq!(found("`libc`, `slab`, `nix`"), ["A.md: nix is no dependency"]);
}

#[test]
fn a_servers_crate_without_overflow_checks_is_reported_and_one_of_the_librarys_with_them() {
    let crates = [
        member("bin/atoll", &["crates/proto/tcp", "crates/ipc"]),
        member("bin/preload", &["crates/ipc"]),
        member("crates/proto/tcp", &[]),
        member("crates/ipc", &[]),
    ];
    let found = |names: &[&str]| {
        let lines: String =
            names.iter().map(|name| format!("{name} = {{ overflow-checks = true }}\n")).collect();
        proofs::check_overflow(&format!("[profile.release.package]\n{lines}\n[profile.dev]\n"), &crates)
    };
    assert_eq!(found(&["bin-atoll", "crates-proto-tcp"]), [""; 0]);
    assert_eq!(found(&["bin-atoll"]), ["Cargo.toml: no overflow checks in crates-proto-tcp"]);
    assert_eq!(
        found(&["bin-atoll", "crates-proto-tcp", "crates-ipc"]),
        ["Cargo.toml: overflow checks in crates-ipc"]
    );
}

#[test]
fn a_mutant_that_does_not_fit_or_has_no_test_is_reported() {
    let files = [("a.rs".to_owned(), "one\n    two\nthree\n".to_owned())].into();
    let tests = ["it_holds_always".to_owned()].into();
    let found = |old: &str, test: &str| {
        let text = format!("# Why.\nfile a.rs\ntest -p a --lib x::{test}\n<<<<\n{old}\n====\nnew\n>>>>\n");
        proofs::check_mutant("m", &text, &files, &tests)
    };
    assert_eq!(found("    two\nthree", "it_holds"), [""; 0]);
    assert_eq!(found("    too", "it_holds"), ["m: a.rs has its text 0 times"]);
    assert_eq!(found("one", "it_held"), ["m: there is no test x::it_held"]);
}

#[test]
fn a_crate_from_elsewhere_or_under_another_licence_or_in_two_versions_is_reported() {
    let index = "registry+https://github.com/rust-lang/crates.io-index";
    let found = |more: &str| {
        let syn = format!(
            r#"{{"id": "s2", "name": "syn", "version": "2", "source": "{index}", "license": "MIT"}},
            {{"id": "s3", "name": "syn", "version": "3", "source": "{index}", "license": "Zlib/GPL-3.0"}}"#
        );
        let metadata = format!(
            r#"{{"packages": [{{"id": "own", "name": "atoll-base", "source": null}}, {syn}, {}],
            "resolve": {{"nodes": [{{"id": "own"}}, {{"id": "s2"}}, {{"id": "s3"}}, {{"id": "x"}},
            {{"id": "y"}}]}}}}"#,
            more.replace("INDEX", index)
        );
        supply::check(metadata.as_bytes()).expect("it is what cargo prints")
    };
    let good = r#"{"id": "x", "name": "x", "version": "1", "source": "INDEX",
        "license": "(GPL-3.0 OR MIT) AND Unicode-3.0"}"#;
    assert_eq!(found(good), [""; 0]);
    assert_eq!(
        found(&good.replace("INDEX", "git+https://example.org/x")),
        ["x: comes from git+https://example.org/x"]
    );
    assert_eq!(found(&good.replace(" OR MIT", "")), ["x: its licence is `(GPL-3.0) AND Unicode-3.0`"]);
    let twice =
        format!("{good}, {}", good.replace(r#""id": "x""#, r#""id": "y""#).replace(r#""1""#, r#""2""#));
    assert_eq!(found(&twice), [r#"x: there are several versions: {"1", "2"}"#]);
    // A crate that is not built is not checked.
    assert_eq!(found(&good.replace(r#""id": "x""#, r#""id": "z""#).replace("MIT", "GPL-2.0")), [""; 0]);
}

#[test]
fn an_error_that_is_a_text_is_reported() {
    for line in [
        "fn f() -> Result<(), String> {}",
        "fn f() -> io::Result<Result<Program, String>> {}",
        "fn f() -> Result<(Vec<u8>, [u8; 2]), std::string::String,> {}",
        "fn f() -> Result<Box<dyn Fn(u8) -> u8>, &'static str> {}",
        "type Result<T> = std::result::Result<T, String>;",
        "macro_rules! m { () => { fn f() -> Result<u8, String> {} } }",
        "impl FromStr for T { type Err = &'static str; }",
        "let all = parts.collect::<Result<Vec<u8>, String>>();",
    ] {
        let found = errors::check("a.rs", &format!("\n{line}\n"));
        assert_eq!(found, ["a.rs:2: this error is a text: it wants an enum of causes"], "{line}");
    }
    for line in [
        "fn f() -> Result<String, Failure> {}",
        "fn f() -> Result<BTreeMap<u8, String>, Failure> {}",
        "fn f() -> Result<(u8, String), Vec<String>> {}",
        "fn f() -> io::Result<String> {}",
        "// fn f() -> Result<(), String>",
        "let text = \"Result<(), String>\";",
        "type Err = Failure;",
    ] {
        assert_eq!(errors::check("a.rs", line), [""; 0], "{line}");
    }
}

/// Returns what is found in these files of a crate.
fn found_in(files: &[(&str, String)]) -> Vec<String> {
    let path = |name: &str| format!("crates/proto/tcp/src/{name}");
    sizes::check(&files.iter().map(|(name, text)| (path(name), text.clone())).collect())
}

#[test]
fn what_is_too_large_is_reported_unless_it_is_listed_with_a_reason() {
    let fields = |count: usize| (0..count).map(|n| format!("f{n}: u8,")).collect::<String>();
    let structure = |count| format!("pub struct Large {{ {} }}\n", fields(count));
    assert!(found_in(&[("a.rs", structure(20))]).is_empty());
    assert_eq!(found_in(&[("a.rs", structure(21))]), ["crates/proto/tcp/src/a.rs:1: `Large` has 21 fields"]);
    let listed = |reason: &str| format!("// structure: Large: {reason}\n{}", structure(21));
    assert!(found_in(&[("a.rs", listed("a field for each option"))]).is_empty());
    assert_eq!(found_in(&[("a.rs", listed(" "))]), ["crates/proto/tcp/src/a.rs:2: `Large` has 21 fields"]);

    let function =
        |lines: usize| format!("impl A {{\n    fn long(&self) {{{}}}\n}}\n", "\n".repeat(lines - 1));
    assert!(found_in(&[("a.rs", function(70))]).is_empty());
    assert_eq!(found_in(&[("a.rs", function(71))]), ["crates/proto/tcp/src/a.rs:2: `long` has 71 lines"]);
    let parameters = |count| format!("trait T {{ fn many(&self, {}); }}", fields(count));
    assert!(found_in(&[("a.rs", parameters(6))]).is_empty());
    assert_eq!(
        found_in(&[("a.rs", parameters(7))]),
        ["crates/proto/tcp/src/a.rs:1: `many` has 7 parameters"]
    );
}

#[test]
fn tests_may_be_large_and_what_need_not_be_listed_is_reported() {
    let long = "\n".repeat(80);
    let tests = format!("#[cfg(test)]\nmod tests {{\n    fn long() {{{long}}}\n}}\n");
    assert!(found_in(&[("a.rs", tests), ("a/tests.rs", format!("fn long() {{{long}}}"))]).is_empty());
    let listed = "// structure: short: once it was long\nfn short() {}\n";
    let said = ["crates/proto/tcp/src/a.rs:1: `short` need not be listed any more"];
    assert_eq!(found_in(&[("a.rs", listed.into())]), said);
}

#[test]
fn modules_that_use_each_other_are_reported_unless_they_are_listed() {
    let lib = |list: &str| ("lib.rs", format!("{list}mod a;\nmod b;\nmod c;\n"));
    let (a, b) =
        (("a.rs", "use crate::b::B;".to_owned()), ("b/inner.rs", "fn f() { crate::c::g(); }".to_owned()));
    let b_itself = ("b.rs", "mod inner;".to_owned());
    let c = |text: &str| ("c.rs", text.to_owned());
    let to_a = "use super::{a::A, d};";
    // All uses go down only: a child may use what its parent has.
    let down = [lib(""), a.clone(), b_itself.clone(), b.clone(), c("use super::D;")];
    assert!(found_in(&down).is_empty());
    let circle = |list: &str| found_in(&[lib(list), a.clone(), b_itself.clone(), b.clone(), c(to_a)]);
    let what = "crates/proto/tcp: modules of the crate use each other: cycle of a, b, c";
    assert_eq!(circle(""), [what]);
    assert!(circle("// structure: cycle of a, b, c: they are one\n").is_empty());
    // The first list is incomplete, and names a cycle that does not exist.
    let unneeded = "crates/proto/tcp/src/lib.rs:1: this circle need not be listed any more";
    assert_eq!(circle("// structure: cycle of a, b: they are one\n"), [what, unneeded]);
    // The use is compiled for tests only.
    let for_tests = format!("#[cfg(test)]\n{to_a}\n");
    assert!(found_in(&[lib(""), a.clone(), b_itself.clone(), b.clone(), c(&for_tests)]).is_empty());
}

#[test]
fn code_and_prose_fit_a_window_and_pictures_tables_and_raw_strings_need_not() {
    let long = "word ".repeat(23);
    let found = |path, text: &str| columns::check(path, text).len();
    for (path, text, count) in [
        ("a.rs", format!("/// {long}\n"), 1),
        ("a.rs", format!("    // {long}\n"), 1),
        ("a.rs", format!("let text = \"{long}\";\n"), 1),
        ("a.rs", format!("let text = r#\"{long}\"#;\n"), 0),
        ("a.rs", format!("//! ```text\n//! {long}\n//! ```\n//! {long}\n"), 1),
        ("a.rs", format!("// ```\n// {long}\nlet end = 1;\n// {long}\n"), 1),
        ("a.rs", format!("// structure: Large: {long}\n"), 0),
        ("a.rs", format!("// {}\n", "w".repeat(120)), 0),
        ("a.md", format!("{long}\n| {long} |\n```\n{long}\n```\n"), 1),
    ] {
        assert_eq!(found(path, &text), count, "{path}: {text}");
    }
}
