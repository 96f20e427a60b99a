use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;

use super::*;

fn c(path: impl AsRef<OsStr>) -> CString {
    CString::new(path.as_ref().as_bytes()).expect("a path without zeros")
}

fn judge(path: impl AsRef<OsStr>) -> Option<Unserved> {
    why_unserved(File::at(&c(path)), &Identity::own())
}

fn by_descriptor(directory: BorrowedFd<'_>, path: &CStr, flags: i32) -> Option<Unserved> {
    why_unserved(File { directory, path, flags, working: CWD }, &Identity::own())
}

/// A folder that is removed at the end of a test.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Folder {
        let path = std::env::temp_dir().join(format!("atoll-program-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&path).expect("a folder");
        Folder(path)
    }

    fn program(&self, name: &str, contents: &[u8], mode: u32) -> PathBuf {
        let path = self.0.join(name);
        std::fs::write(&path, contents).expect("a file");
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).expect("its mode");
        path
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Returns an ELF file of this processor with a loader, or none, behind `padding` octets.
fn elf(loader: Option<&[u8]>, padding: usize) -> Vec<u8> {
    let machine: u16 = if cfg!(target_arch = "x86_64") { 62 } else { 183 };
    let mut file = vec![0; 64];
    file[..6].copy_from_slice(b"\x7fELF\x02\x01");
    file[16..18].copy_from_slice(&3u16.to_le_bytes());
    file[18..20].copy_from_slice(&machine.to_le_bytes());
    file[32..40].copy_from_slice(&(64 + padding as u64).to_le_bytes());
    file[54..56].copy_from_slice(&56u16.to_le_bytes());
    file[56..58].copy_from_slice(&2u16.to_le_bytes());
    file.resize(64 + padding, 0);
    let mut table = [0; 112];
    table[..4].copy_from_slice(&1u32.to_le_bytes());
    if let Some(loader) = loader {
        table[56..60].copy_from_slice(&3u32.to_le_bytes());
        table[64..72].copy_from_slice(&(64 + padding as u64 + 112).to_le_bytes());
        table[88..96].copy_from_slice(&(loader.len() as u64 + 1).to_le_bytes());
    }
    file.extend(table);
    file.extend(loader.unwrap_or_default());
    file.push(0);
    file
}

fn format_of(file: &[u8]) -> Option<Format> {
    format::read(|at, into| {
        let rest = file.get(usize::try_from(at).ok()?..).unwrap_or_default();
        let n = rest.len().min(into.len());
        into[..n].copy_from_slice(&rest[..n]);
        Some(n)
    })
}

#[test]
fn dynamic_programs_are_served() {
    assert_eq!(judge("/bin/sh"), None);
    assert_eq!(judge(std::env::current_exe().expect("this test")), None);
    assert_eq!(judge("/no/such/program"), None);
    assert_eq!(judge("/lib64/ld-linux-x86-64.so.2"), None);
    assert_eq!(find(CWD, c"sh", None), Some(c"/bin/sh".to_owned()));
    assert_eq!(find(CWD, c"sh", Some(OsStr::new("/nowhere:/bin"))), Some(c"/bin/sh".to_owned()));
    assert_eq!(find(CWD, c"no-such-program", None), None);
}

#[test]
fn programs_say_by_their_headers_what_they_are() {
    let folder = Folder::new("headers");
    let program = |name, contents: &[u8]| judge(folder.program(name, contents, 0o755));
    let own = std::fs::read(std::env::current_exe().expect("this test")).expect("this test");
    assert_eq!(program("own", &own), None);
    assert_eq!(program("static", &elf(None, 0)), Some(Unserved::Static));
    // The headers may be anywhere in the file.
    let ours: &[u8] =
        if cfg!(target_arch = "x86_64") { b"/x/ld-linux-x86-64.so.2" } else { b"ld-linux-aarch64.so.1" };
    assert_eq!(program("far", &elf(Some(ours), 100_000)), None);
    assert_eq!(program("musl", &elf(Some(b"/lib/ld-musl-x86_64.so.1"), 9)), Some(Unserved::OtherLoader));
    let mut of_32_bits = elf(None, 0);
    of_32_bits[4] = 1;
    assert_eq!(program("32", &of_32_bits), Some(Unserved::OtherArchitecture));
    let mut foreign = elf(Some(ours), 0);
    foreign[18] = 8;
    assert_eq!(program("mips", &foreign), Some(Unserved::OtherArchitecture));
    assert_eq!(program("text", b"echo\n"), None);
    assert_eq!(judge(folder.program("not-executable", &elf(None, 0), 0o644)), None);
}

#[test]
fn scripts_are_their_interpreters() {
    let folder = Folder::new("scripts");
    let fixed = folder.program("static", &elf(None, 0), 0o755);
    let script = |name: &str, line: &str| folder.program(name, line.as_bytes(), 0o755);
    assert_eq!(judge(script("shell", "#!/bin/sh\n")), None);
    let mut last = script("0", &format!("#! \t{} -a b\n", fixed.display()));
    assert_eq!(judge(&last), Some(Unserved::Static));
    // execve(2) follows five scripts, and fails at a sixth.
    for n in 1..=4 {
        last = script(&n.to_string(), &format!("#!{}", last.display()));
        assert_eq!(judge(&last), Some(Unserved::Static), "{n}");
        assert!(!is_loop(&last), "{n}");
    }
    last = script("5", &format!("#!{}", last.display()));
    assert_eq!(judge(&last), None);
    assert!(is_loop(&last));
    for line in ["#!", "#!\n/bin/sh", "#! \t \n", &format!("#!/{}", "a".repeat(300))] {
        assert_eq!(format_of(line.as_bytes()), Some(Format::Other), "{line}");
    }
    let long = format!("#!/bin/{} {}", "a".repeat(200), "b".repeat(300));
    let interpreter = format!("/bin/{}", "a".repeat(200)).into_bytes();
    // The kernel reads 256 octets of the line.
    let argument = Some("b".repeat(256 - 8 - 200).into_bytes());
    assert_eq!(format_of(long.as_bytes()), Some(Format::Script { interpreter, argument }));
}

/// Returns whether the kernel says of a script that it has too many interpreters.
fn is_loop(path: &std::path::Path) -> bool {
    let ran = std::process::Command::new(path).status();
    ran.is_err_and(|error| error.raw_os_error() == Some(libc::ELOOP))
}

#[test]
fn what_is_no_file_is_not_opened() {
    let folder = Folder::new("special");
    let fifo = folder.0.join("fifo");
    rustix::fs::mknodat(CWD, &fifo, FileType::Fifo, Mode::from_raw_mode(0o755), 0).expect("a fifo");
    assert_eq!(judge(&fifo), None);
    assert_eq!(judge("/dev/null"), None);
    assert_eq!(judge("/"), None);
    // By its descriptor, as fexecve(3) names a program.
    let file = std::fs::File::open(folder.program("static", &elf(None, 0), 0o755)).expect("it is there");
    let judged = by_descriptor(file.as_fd(), c"", libc::AT_EMPTY_PATH);
    assert_eq!(judged, Some(Unserved::Static));
    let at = std::fs::File::open(&folder.0).expect("the folder");
    let judged = by_descriptor(at.as_fd(), c"static", 0);
    assert_eq!(judged, Some(Unserved::Static));
}

#[test]
fn headers_are_read_without_trust() {
    let whole = elf(Some(b"/lib64/ld-linux-x86-64.so.2"), 300);
    for len in 0..whole.len() {
        assert!(format_of(&whole[..len]).is_some(), "{len}");
    }
    for (at, octets) in [(32, &[0xff; 8][..]), (56, &[0xff; 2]), (54, &[0; 2]), (364 + 56 + 32, &[0xff; 8])] {
        let mut file = whole.clone();
        file[at..at + octets.len()].copy_from_slice(octets);
        assert_eq!(format_of(&file), Some(Format::Other), "{at}");
    }
    assert_eq!(format::read(|_, _| None), None);
}

#[test]
fn rights_keep_the_library_out() {
    let user = Identity { users: [1000; 2], groups: [1000; 2], no_new_privileges: false };
    let root = Identity { users: [0; 2], groups: [0; 2], no_new_privileges: false };
    let (of_root, set_user) = ([0, 0], Some(Unserved::SetUser));
    assert_eq!(user.secures(0o755, of_root, false), None);
    assert_eq!(user.secures(0o4755, of_root, false), set_user);
    assert_eq!(user.secures(0o4755, [1000, 0], false), None);
    assert_eq!(root.secures(0o4755, of_root, false), None);
    assert_eq!(root.secures(0o4755, [1000, 0], false), set_user);
    assert_eq!(root.secures(0o2755, [0, 42], false), set_user);
    // Without the right to execute, the bit means something else.
    assert_eq!(root.secures(0o2745, [0, 42], false), None);
    assert_eq!(user.secures(0o755, of_root, true), Some(Unserved::Capabilities));
    assert_eq!(root.secures(0o755, of_root, true), None);
    let modest = Identity { no_new_privileges: true, ..user };
    assert_eq!(modest.secures(0o6755, of_root, false), None);
    assert_eq!(modest.secures(0o6755, of_root, true), Some(Unserved::Capabilities));
    let lowered = Identity { users: [0, 1000], ..root };
    assert_eq!(lowered.secures(0o755, of_root, false), Some(Unserved::OtherUser));
}
