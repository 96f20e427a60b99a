//! Where are the small programs that tests run, and how do the C ones get compiled?

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
    compile(source, "", &[])
}

/// Compiles `testing/system/programs/NAME.c` once as a static program, and returns its full name.
pub fn compiled_statically(name: &str) -> String {
    compile(&program(&format!("{name}.c")), "-static", &["-static"])
}

fn compile(source: &str, suffix: &str, options: &[&str]) -> String {
    static COMPILER: Mutex<()> = Mutex::new(());
    let _one_at_a_time = COMPILER.lock();
    let name = Path::new(source).file_stem().expect("a source has a name").to_string_lossy();
    let target = crate::net::target_folder().join("tmp").join(format!("atoll-test-{name}{suffix}"));
    let headers = ["direct.h", "instruction.h"].map(program);
    if ![source, &headers[0], &headers[1]].iter().all(|source| newer(&target, Path::new(source))) {
        std::fs::create_dir_all(target.parent().expect("it lies in tmp"))
            .expect("the target folder is writable");
        let mut cc = Command::new("cc");
        cc.args(["-O2", "-D_FORTIFY_SOURCE=2", "-D_GNU_SOURCE", "-Wall", "-Wextra", "-pthread", "-o"]);
        let status = cc
            .arg(&target)
            .arg(source)
            .args(options)
            .arg("-lresolv")
            .status()
            .expect("a C compiler is installed");
        assert!(status.success(), "cannot compile {source}");
    }
    target.to_string_lossy().into_owned()
}

fn newer(file: &Path, than: &Path) -> bool {
    let modified = |path: &Path| path.metadata().and_then(|metadata| metadata.modified()).ok();
    matches!((modified(file), modified(than)), (Some(file), Some(than)) if file > than)
}
