//! Compiles `bpf/steer.c`, the steering program, for the kernel's virtual machine.

use std::path::Path;
use std::process::{Command, exit};
use std::{env, io};

fn main() {
    let source = Path::new("../../../bpf/steer.c");
    println!("cargo::rerun-if-changed=../../../bpf/steer.c");
    println!("cargo::rerun-if-changed=../../../bpf/types.h");
    println!("cargo::rerun-if-env-changed=CLANG");
    let clang = env::var("CLANG").unwrap_or_else(|_| "clang".to_owned());
    let object = Path::new(&env::var_os("OUT_DIR").expect("cargo sets OUT_DIR")).join("steer.o");
    // -g is for BTF, which describes the maps to the loader. The folder of the build has no place in it.
    let mut command = Command::new(&clang);
    command
        .args([
            "-O2",
            "-g",
            "-fdebug-compilation-dir=.",
            "-target",
            "bpf",
            "-Wall",
            "-Wextra",
            "-Werror",
            "-c",
        ])
        .arg(source)
        .arg("-o")
        .arg(&object);
    match command.status() {
        Ok(status) if status.success() => {}
        Ok(status) => {
            fail(&format!("{clang} could not compile bpf/steer.c ({status}); its messages are above"))
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => fail(&format!(
            "the C compiler `{clang}` is missing: install the Debian package clang, or set CLANG"
        )),
        Err(error) => fail(&format!("cannot run {clang}: {error}")),
    }
}

fn fail(why: &str) -> ! {
    println!("cargo::error={why}");
    exit(1)
}
