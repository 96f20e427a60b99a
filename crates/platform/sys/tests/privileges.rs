//! Is what a process gives up really gone?

use std::fs::{self, File};
use std::io::{ErrorKind, Write};
use std::net::TcpListener;
use std::process::Command;

use atoll_sys::filesystem::{self, Confinement};
use atoll_sys::privileges::{self, CapabilitySet, Resource};
use atoll_sys::process::{self, Exit, Spawn};

/// The tests, each of which this process runs in a child process with one thread.
const TESTS: &[(&str, fn())] = &[
    ("no_file_is_reached_behind_landlock", no_file_is_reached_behind_landlock),
    ("no_file_is_reached_from_an_empty_root", no_file_is_reached_from_an_empty_root),
    ("an_empty_root_needs_no_privilege", an_empty_root_needs_no_privilege),
    ("the_best_way_out_is_taken", the_best_way_out_is_taken),
    ("capabilities_are_gone_for_good", capabilities_are_gone_for_good),
    ("kept_capabilities_are_kept_and_no_others", kept_capabilities_are_kept_and_no_others),
    ("who_becomes_another_user_stays_that", who_becomes_another_user_stays_that),
    ("limits_are_lowered_and_stay_low", limits_are_lowered_and_stay_low),
    ("what_is_hidden_leaves_no_core", what_is_hidden_leaves_no_core),
    ("standard_streams_lead_nowhere", standard_streams_lead_nowhere),
];

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if let Some((_, test)) =
        TESTS.iter().find(|(name, _)| arguments.first().is_some_and(|wanted| wanted == name))
    {
        return test();
    }
    for (name, _) in TESTS {
        let mut spawn = Spawn::this_binary("privileges").expect("its name is one");
        spawn.arg(name).expect("no zeros in it");
        let exit = spawn.start().and_then(|child| child.wait()).expect("it starts");
        assert_eq!(exit, Exit::Code(0), "{name}");
        println!("test {name} ... ok");
    }
}

fn no_file_is_reached_behind_landlock() {
    let scratch = std::env::temp_dir();
    process::set_no_new_privs().expect("always permitted");
    if !filesystem::leave_by_landlock().expect("no error but that there is none") {
        return eprintln!("skipped: this kernel has no Landlock");
    }
    let refused = |error: std::io::Error| error.kind() == ErrorKind::PermissionDenied;
    assert!(refused(File::open("/etc/passwd").expect_err("a file")));
    assert!(refused(fs::read_dir("/").expect_err("a folder")));
    assert!(refused(File::create(scratch.join("atoll-privileges-test")).expect_err("a new file")));
    assert!(Command::new("/bin/true").spawn().is_err(), "a program");
    // Since its fourth version.
    assert!(TcpListener::bind("127.0.0.1:0").map_or_else(refused, |_| true));
}

fn no_file_is_reached_from_an_empty_root() {
    match filesystem::leave_by_empty_root() {
        Ok(()) => is_in_an_empty_root(),
        Err(error) => eprintln!("skipped: no other root is permitted here ({error})"),
    }
}

fn an_empty_root_needs_no_privilege() {
    privileges::keep_capabilities(CapabilitySet::empty()).expect("always permitted");
    match filesystem::leave_by_empty_root() {
        Ok(()) => is_in_an_empty_root(),
        Err(error) => eprintln!("skipped: user namespaces are closed to this user ({error})"),
    }
    privileges::keep_capabilities(CapabilitySet::empty()).expect("those of the namespace");
    assert!(rustix::thread::capabilities(None).expect("readable").permitted.is_empty());
}

fn is_in_an_empty_root() {
    for path in ["/etc/passwd", "../etc/passwd", "../../../../../etc/passwd", "/proc/self/root/etc/passwd"] {
        assert_eq!(File::open(path).expect_err(path).kind(), ErrorKind::NotFound);
    }
    for entry in fs::read_dir("/").expect("it is a folder") {
        let name = entry.expect("readable").file_name();
        assert!(name.to_string_lossy().parse::<u32>().is_ok(), "{name:?} is no number of a descriptor");
    }
    assert!(File::create("/new").is_err());
}

fn the_best_way_out_is_taken() {
    match filesystem::leave().expect("no error but that there is none") {
        Confinement::None => eprintln!("skipped: there is no way out"),
        _ => assert!(File::open("/etc/passwd").is_err()),
    }
}

fn of_status(key: &str) -> u64 {
    let status = fs::read_to_string("/proc/self/status").expect("there is /proc");
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix(key)?.strip_prefix(":\t"))
        .expect("the kernel says it");
    u64::from_str_radix(line, 16).expect("a number")
}

const SETS: [&str; 4] = ["CapInh", "CapPrm", "CapEff", "CapAmb"];

fn capabilities_are_gone_for_good() {
    let may_lower = of_status("CapEff") & CapabilitySet::SETPCAP.bits() != 0;
    privileges::keep_capabilities(CapabilitySet::empty()).expect("always permitted");
    assert_eq!(SETS.map(of_status), [0; 4]);
    if may_lower {
        assert_eq!(of_status("CapBnd"), 0);
    }
    // A second time there is nothing to do.
    privileges::keep_capabilities(CapabilitySet::all()).expect("always permitted");
    assert_eq!(SETS.map(of_status), [0; 4]);
}

fn kept_capabilities_are_kept_and_no_others() {
    let had = of_status("CapPrm");
    let kept = CapabilitySet::BPF.union(CapabilitySet::SETPCAP);
    privileges::keep_capabilities(kept).expect("always permitted");
    let left = kept.bits() & had;
    assert_eq!(SETS.map(of_status), [0, left, left, 0]);
}

fn who_becomes_another_user_stays_that() {
    let wanted = CapabilitySet::SETUID.union(CapabilitySet::SETGID);
    if !privileges::permitted_capabilities().expect("readable").contains(wanted)
        || !process::has_other_users()
    {
        return eprintln!("skipped: this process cannot become another user");
    }
    rustix::thread::set_thread_groups(&[rustix::process::Gid::from_raw(7)]).expect("permitted");
    privileges::lower_bounding_set(CapabilitySet::empty()).expect("permitted, or there is nothing to lower");
    privileges::become_user(64_321, 64_322).expect("permitted");
    let status = fs::read_to_string("/proc/self/status").expect("there is /proc");
    let line = |key: &str| {
        status.lines().find_map(|line| line.strip_prefix(key)).expect("the kernel says it").trim()
    };
    // Real, effective, saved, and of the file system. proc_pid_status(5).
    assert_eq!(line("Uid:").split_whitespace().collect::<Vec<_>>(), ["64321"; 4]);
    assert_eq!(line("Gid:").split_whitespace().collect::<Vec<_>>(), ["64322"; 4]);
    assert_eq!(line("Groups:"), "");
    assert_eq!(SETS.map(of_status), [0; 4]);
    let (root, of_root) = (rustix::process::Uid::ROOT, rustix::process::Gid::ROOT);
    assert!(
        rustix::thread::set_thread_uid(root).is_err() && rustix::thread::set_thread_gid(of_root).is_err()
    );
    assert!(rustix::thread::set_thread_groups(&[of_root]).is_err());
}

fn limits_are_lowered_and_stay_low() {
    let limit_of = |resource| rustix::process::getrlimit(resource).maximum;
    privileges::keep_capabilities(CapabilitySet::empty()).expect("always permitted");
    privileges::limit(Resource::Nofile, 0).expect("downwards");
    assert_eq!(File::open("/dev/null").expect_err("no number is left").raw_os_error(), Some(emfile()));
    privileges::limit(Resource::Core, 1000).expect("downwards");
    privileges::limit(Resource::Core, 2000).expect("changes nothing");
    assert!(limit_of(Resource::Core).is_some_and(|core| core <= 1000));
    privileges::limit(Resource::Data, u64::MAX).expect("changes nothing");
}

/// Returns the number of EMFILE, for which the standard library has no stable name.
fn emfile() -> i32 {
    rustix::io::Errno::MFILE.raw_os_error()
}

fn what_is_hidden_leaves_no_core() {
    use rustix::process::{DumpableBehavior, dumpable_behavior};
    privileges::hide().expect("always permitted");
    assert_eq!(dumpable_behavior().expect("readable"), DumpableBehavior::NotDumpable);
}

fn standard_streams_lead_nowhere() {
    privileges::leave_standard_streams().expect("there is /dev/null");
    for number in [0, 1] {
        let link = fs::read_link(format!("/proc/self/fd/{number}")).expect("it is open");
        assert_eq!(link.to_str(), Some("/dev/null"));
    }
    std::io::stdout().write_all(b"nobody reads this").expect("it goes nowhere");
}
