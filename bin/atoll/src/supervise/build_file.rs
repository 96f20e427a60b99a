//! Opens the file that servers are to be started from. Only root and the stack's user may have written it,
//! and its content cannot change afterwards.

use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{MetadataExt, PermissionsExt};

use rustix::fs::{MemfdFlags, Mode, OFlags, SealFlags};
use rustix::io::Errno;
use thiserror::Error;

use super::memory::open_for_reading;
use crate::failure::{Failure, OrFail};

/// Opens the build at `path` once, checks what was opened, and returns it in a form that cannot change any
/// more. `own` is the stack's user.
///
/// The descriptor is checked, so it does not matter if the path names another file meanwhile. The file is
/// copied into sealed memory, because a process that opened it for writing before it was made safe could
/// change it after the check.
pub fn open(path: &str, own: u32) -> Result<OwnedFd, Failure> {
    // The flags prevent waiting, should it be a pipe.
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let file = match rustix::fs::open(path, flags, Mode::empty()) {
        Err(Errno::LOOP) => return Err(Failure::new(FileFault::Link)),
        opened => File::from(opened.map_err(|error| Failure::new(io::Error::from(error)))?),
    };
    judge(&file.metadata().or_fail("looking at it")?, own).map_err(Failure::new)?;
    match sealed(&file) {
        // Memory must not be executed here (sysctl vm.memfd_noexec): use the file itself, which only its
        // owner can change.
        Err(error) if matches!(error.raw_os_error(), Some(libc::EACCES | libc::EPERM)) => Ok(file.into()),
        copied => copied.or_fail("copying it into memory"),
    }
}

/// The fault of a file from which servers were to be started.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
enum FileFault {
    #[error("is a symbolic link: name the file itself")]
    Link,
    #[error("is not a regular file")]
    Kind,
    #[error("belongs to user {owner}: a build has to belong to root or to the user of the stack ({own})")]
    Owner { owner: u32, own: u32 },
    #[error("can be written by others than its owner (mode {0:04o}): chmod go-w")]
    Writable(u32),
    #[error("is not a program (mode {0:04o})")]
    NotExecutable(u32),
    #[error("has {0} octets, which is more than a program has")]
    Size(u64),
}

/// Checks the file of a build.
fn judge(found: &std::fs::Metadata, own: u32) -> Result<(), FileFault> {
    let (owner, mode) = (found.uid(), found.permissions().mode() & 0o7777);
    if !found.is_file() {
        return Err(FileFault::Kind);
    }
    if owner != 0 && owner != own {
        return Err(FileFault::Owner { owner, own });
    }
    if mode & 0o022 != 0 {
        return Err(FileFault::Writable(mode));
    }
    if mode & 0o111 == 0 {
        return Err(FileFault::NotExecutable(mode));
    }
    if found.len() > BYTES_MAX {
        return Err(FileFault::Size(found.len()));
    }
    Ok(())
}

/// Returns a copy of the file in sealed memory, open for reading.
fn sealed(file: &File) -> io::Result<OwnedFd> {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let memory = match rustix::fs::memfd_create("atoll", flags | MemfdFlags::EXEC) {
        // Kernels before 6.3 do not know the flag, and allow execution without it.
        Err(Errno::INVAL) => rustix::fs::memfd_create("atoll", flags),
        made => made,
    }?;
    rustix::fs::fchmod(&memory, Mode::RUSR | Mode::XUSR)?;
    let mut memory = File::from(memory);
    io::copy(&mut file.take(BYTES_MAX), &mut memory)?;
    rustix::fs::fcntl_add_seals(
        &memory,
        SealFlags::SEAL | SealFlags::SHRINK | SealFlags::GROW | SealFlags::WRITE,
    )?;
    open_for_reading(memory.as_fd())
}

/// The largest size of a build in bytes, with all debug information.
const BYTES_MAX: u64 = 1 << 30;

#[cfg(test)]
mod tests {
    use std::fs::{self, OpenOptions, Permissions};
    use std::io::{Seek, Write};
    use std::path::PathBuf;

    use super::*;

    struct Folder(PathBuf);

    impl Folder {
        fn new(name: &str) -> Folder {
            let path = std::env::temp_dir().join(format!("atoll-build-{name}-{}", std::process::id()));
            fs::create_dir_all(&path).unwrap();
            Folder(path)
        }

        fn file(&self, name: &str, mode: u32) -> String {
            let path = self.0.join(name);
            fs::write(&path, "#!/bin/sh\n").unwrap();
            fs::set_permissions(&path, Permissions::from_mode(mode)).unwrap();
            path.to_string_lossy().into_owned()
        }
    }

    impl Drop for Folder {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    fn own() -> u32 {
        rustix::process::geteuid().as_raw()
    }

    #[test]
    fn only_programs_that_nobody_else_can_write_are_taken() {
        let folder = Folder::new("judged");
        let good = folder.file("good", 0o755);
        assert!(open(&good, own()).is_ok());
        for (mode, reason) in
            [(0o775, "written by others"), (0o757, "written by others"), (0o644, "not a program")]
        {
            let refusal = open(&folder.file("bad", mode), own()).unwrap_err().to_string();
            assert!(refusal.contains(reason), "{refusal}");
        }
        let link = folder.0.join("link");
        std::os::unix::fs::symlink(&good, &link).unwrap();
        assert!(open(&link.to_string_lossy(), own()).unwrap_err().to_string().contains("symbolic link"));
        assert!(
            open(&folder.0.to_string_lossy(), own()).unwrap_err().to_string().contains("not a regular file")
        );
        assert!(open("/dev/null", own()).unwrap_err().to_string().contains("not a regular file"));
        if own() == 0 {
            std::os::unix::fs::chown(&good, Some(33), None).unwrap();
            assert!(open(&good, 0).unwrap_err().to_string().contains("belongs to user 33"));
            assert!(open(&good, 33).is_ok(), "it is the stack's user's own");
        }
    }

    /// Another process opened the file for writing while that was permitted.
    #[test]
    fn what_was_judged_does_not_change() {
        let folder = Folder::new("sealed");
        let path = folder.file("build", 0o755);
        let mut writer = OpenOptions::new().write(true).open(&path).unwrap();
        let mut build = File::from(open(&path, own()).unwrap());
        writer.write_all(b"#!/bin/no\n").unwrap();
        let mut text = String::new();
        build.read_to_string(&mut text).unwrap();
        assert_eq!(text, "#!/bin/sh\n");
        // A process that gets the descriptor cannot change it either.
        let again = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&build));
        if let Ok(mut again) = OpenOptions::new().write(true).open(again) {
            assert!(again.write_all(b"x").is_err() && again.set_len(0).is_err());
        }
        build.rewind().unwrap();
        assert!(build.write_all(b"x").is_err());
    }
}
