//! Where are the small programs that tests run, and how do the C ones get compiled?

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;
use std::sync::Mutex;

/// Returns the full name of a program in `testing/system/programs`.
pub fn program(name: &str) -> String {
    format!("{}/programs/{name}", env!("CARGO_MANIFEST_DIR"))
}

/// Compiles `testing/system/programs/NAME.c` once, and returns the program's full name.
///
/// With fortification, because distributions build with it: `read` is then `__read_chk`, and so on.
pub fn compiled(name: &str) -> String {
    compiled_of(&program(&format!("{name}.c")))
}

/// Compiles a C program anywhere once, by the full name of its source, and returns the program's full name.
pub fn compiled_of(source: &str) -> String {
    compile("cc", source, "", &["-lresolv"])
}

/// Compiles `testing/system/programs/NAME.c` once as a static program, and returns its full name.
pub fn compiled_statically(name: &str) -> String {
    compile("cc", &program(&format!("{name}.c")), "-static", &["-static", "-lresolv"])
}

/// Compiles a C program by another compiler, or with other options, by the full name of its source.
pub fn compiled_by(compiler: &str, source: &str, options: &[&str]) -> String {
    compile(compiler, source, &format!("-{compiler}{}", options.concat()), options)
}

/// How a program of Go is linked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Linking {
    /// It is static.
    Static,
    /// The loader loads it, but it uses no function of the C library.
    Loaded,
    /// It uses the C library's functions, and its threads are the C library's: cgo.
    Cgo,
}

/// Builds `testing/system/programs/NAME.go` once. Returns the program's full name. It may use Go's standard
/// library alone.
pub fn of_go(name: &str, linking: Linking) -> String {
    static COMPILER: Mutex<()> = Mutex::new(());
    let _one_at_a_time = COMPILER.lock();
    let source = program(&format!("{name}.go"));
    let (suffix, with_cgo, mode) = match linking {
        Linking::Static => ("-go", "0", "-buildmode=exe"),
        Linking::Loaded => ("-go-loaded", "0", "-buildmode=pie"),
        Linking::Cgo => ("-cgo", "1", "-buildmode=exe"),
    };
    let target = crate::net::target_folder().join("tmp").join(format!("atoll-test-{name}{suffix}"));
    if !newer(&target, Path::new(&source)) {
        let mut go = Command::new("go");
        go.args(["build", mode, "-o"]).arg(&target).arg(&source);
        go.env("CGO_ENABLED", with_cgo);
        // Nothing is fetched, and no module is looked for.
        go.envs([("GO111MODULE", "off"), ("GOPROXY", "off"), ("GOFLAGS", ""), ("GOTOOLCHAIN", "local")]);
        assert!(go.status().expect("Go is installed").success(), "cannot build {source}");
    }
    target.to_string_lossy().into_owned()
}

/// Compiles `testing/system/programs/NAME.c` once as a static program that changes its group, and returns its
/// full name. Nobody can make such a program load a library, or be one that does.
pub fn compiled_apart(name: &str) -> String {
    let fixed = compiled_statically(name);
    let apart = format!("{fixed}-apart");
    static COPIER: Mutex<()> = Mutex::new(());
    let _one_at_a_time = COPIER.lock();
    if !newer(Path::new(&apart), Path::new(&fixed)) {
        copy_program(&fixed, &apart);
        std::os::unix::fs::chown(&apart, None, Some(65534)).expect("tests are run by root");
        std::fs::set_permissions(&apart, Permissions::from_mode(0o2755)).expect("it is ours");
    }
    apart
}

fn compile(compiler: &str, source: &str, suffix: &str, options: &[&str]) -> String {
    static COMPILER: Mutex<()> = Mutex::new(());
    let _one_at_a_time = COMPILER.lock();
    let name = Path::new(source).file_stem().expect("a source has a name").to_string_lossy();
    let target = crate::net::target_folder().join("tmp").join(format!("atoll-test-{name}{suffix}"));
    let headers = ["direct.h", "instruction.h"].map(program);
    if ![source, &headers[0], &headers[1]].iter().all(|source| newer(&target, Path::new(source))) {
        std::fs::create_dir_all(target.parent().expect("it lies in tmp"))
            .expect("the target folder is writable");
        let mut cc = Command::new(compiler);
        cc.args(["-O2", "-D_FORTIFY_SOURCE=2", "-D_GNU_SOURCE", "-Wall", "-Wextra", "-pthread", "-o"]);
        let status = cc.arg(&target).arg(source).args(options).status().expect("a C compiler is installed");
        assert!(status.success(), "cannot compile {source}");
    }
    target.to_string_lossy().into_owned()
}

fn newer(file: &Path, than: &Path) -> bool {
    let modified = |path: &Path| path.metadata().and_then(|metadata| metadata.modified()).ok();
    matches!((modified(file), modified(than)), (Some(file), Some(than)) if file > than)
}

/// Copies a program that is to be executed. Another process does it: this one starts others from several
/// threads, each of which would have the copy open for writing until it executes its program, and meanwhile
/// execve(2) fails with ETXTBSY.
pub fn copy_program(from: impl AsRef<std::path::Path>, to: impl AsRef<std::path::Path>) {
    let status = std::process::Command::new("cp").arg(from.as_ref()).arg(to.as_ref()).status();
    assert!(status.is_ok_and(|status| status.success()), "{} is copied", from.as_ref().display());
}
