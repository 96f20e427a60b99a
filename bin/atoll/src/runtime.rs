//! The runtime directory, in which the stacks of this user have their files, and the locks on their names.

use std::fs::{self, DirBuilder, File, OpenOptions, TryLockError};
use std::io::{self, Read, Seek, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::thread;
use std::time::{Duration, Instant};

use atoll_supervisor::{Paths, StackName, runtime_directory};

use crate::failure::{Failure, OrFail};

/// Returns the runtime directory of this user, which may not exist.
///
/// The answer is computed once: a process that enters a user namespace is root there, but its stacks stay
/// where they were.
pub fn directory() -> PathBuf {
    static DIRECTORY: OnceLock<PathBuf> = OnceLock::new();
    let find = || match std::env::var_os(DIRECTORY_VARIABLE).filter(|path| !path.is_empty()) {
        Some(path) => path.into(),
        None => {
            let uid = rustix::process::geteuid().as_raw();
            runtime_directory(uid, std::env::var_os("XDG_RUNTIME_DIR").as_deref())
        }
    };
    DIRECTORY.get_or_init(find).clone()
}

/// The environment variable that overrides the runtime directory.
pub const DIRECTORY_VARIABLE: &str = "ATOLL_RUNTIME_DIR";

/// Returns the paths of the stack `name` of this user.
pub fn paths(name: &StackName) -> Paths {
    Paths::new(&directory(), name)
}

/// Returns the paths of the stack `name` of root; `None` if the environment overrides the runtime directory.
pub fn roots_paths(name: &StackName) -> Option<Paths> {
    let is_chosen = std::env::var_os(DIRECTORY_VARIABLE).is_some_and(|path| !path.is_empty());
    (!is_chosen).then(|| Paths::new(&runtime_directory(0, None), name))
}

/// Creates the runtime directory if it does not exist, and checks that no other user can create files in it.
/// Returns its path; the error says what to change.
pub fn prepare_directory() -> Result<PathBuf, Failure> {
    let path = directory();
    let uid = rustix::process::geteuid().as_raw();
    let mode = if uid == 0 { 0o755 } else { 0o700 };
    match DirBuilder::new().recursive(true).mode(mode).create(&path) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
            return Err(Failure::new(format!(
                "making the directory {}: {error}; set {DIRECTORY_VARIABLE} to one that you can write to",
                path.display()
            )));
        }
        _ => {}
    }
    let found = fs::symlink_metadata(&path).or_fail(path.display())?;
    if !found.is_dir() || found.uid() != uid || found.mode() & 0o022 != 0 {
        return Err(Failure::new(format!(
            "{} is not a directory that only you can write to; remove it, or set {DIRECTORY_VARIABLE} to \
             another one",
            path.display()
        )));
    }
    Ok(path)
}

/// The right to a stack's name, held while the supervisor lives. The kernel releases the lock when the
/// supervisor dies, so what a dead supervisor left behind is known to be stale.
#[derive(Debug)]
pub struct NameLock {
    paths: Paths,
    file: File,
}

/// How long to wait for the name of a stack that may be ending.
const ENDING_TIME: Duration = Duration::from_secs(1);

fn is_file_at(file: &File, path: &Path) -> bool {
    let number = |found: io::Result<fs::Metadata>| found.map(|found| (found.dev(), found.ino())).ok();
    number(file.metadata()).is_some_and(|own| Some(own) == number(fs::metadata(path)))
}

fn is_up_already(name: &StackName, mut file: File) -> Failure {
    let mut pid = String::new();
    let _ = file.read_to_string(&mut pid);
    Failure::new(format!(
        "a stack called \"{name}\" is up already (pid {}): choose another name with --name, or end it with \
         `atoll down {name}`",
        pid.trim()
    ))
}

fn write_pid(file: &mut File) -> io::Result<()> {
    file.set_len(0)?;
    file.rewind()?;
    writeln!(file, "{}", std::process::id())
}

impl NameLock {
    /// Takes the name; the error says which process has it. `directory` is what [`prepare_directory`]
    /// returned. Waits for a stack that is ending: its last process may hold the name a moment longer.
    pub fn take(directory: &Path, name: &StackName) -> Result<NameLock, Failure> {
        let paths = Paths::new(directory, name);
        let what = paths.pid.display().to_string();
        let begun = Instant::now();
        loop {
            let mut file = OpenOptions::new()
                .read(true)
                .write(true)
                .create(true)
                .truncate(false)
                // A process that can open the file can lock it, and so keep the name from this one.
                .mode(0o600)
                .open(&paths.pid)
                .or_fail(&what)?;
            match file.try_lock() {
                Ok(()) if is_file_at(&file, &paths.pid) => {
                    write_pid(&mut file).or_fail(what)?;
                    return Ok(NameLock { paths, file });
                }
                // Who had the name has removed the file meanwhile.
                Ok(()) => {}
                Err(TryLockError::WouldBlock) if begun.elapsed() < ENDING_TIME => {
                    thread::sleep(Duration::from_millis(20));
                }
                Err(TryLockError::WouldBlock) => {
                    return Err(is_up_already(name, file));
                }
                Err(TryLockError::Error(error)) => return Err(error).or_fail(what),
            }
        }
    }

    /// Continues with a name whose lock an earlier supervisor took and left.
    pub fn resume(directory: &Path, name: &StackName, lock: OwnedFd) -> Result<NameLock, Failure> {
        let paths = Paths::new(directory, name);
        let what = paths.pid.display().to_string();
        let mut file = File::from(lock);
        write_pid(&mut file).or_fail(what)?;
        Ok(NameLock { paths, file })
    }

    /// Returns the lock itself, which is held as long as any process has the descriptor.
    pub fn lock(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }

    /// Returns the stack's paths.
    pub fn paths(&self) -> &Paths {
        &self.paths
    }
}

impl Drop for NameLock {
    fn drop(&mut self) {
        // Remove the sockets first: a process that finds the name free then finds no socket of this stack.
        let _ = fs::remove_file(&self.paths.socket);
        let _ = fs::remove_file(&self.paths.admin);
        let _ = fs::remove_file(&self.paths.pid);
        // Remove an empty log, which is of no use.
        if fs::metadata(&self.paths.log).is_ok_and(|log| log.len() == 0) {
            let _ = fs::remove_file(&self.paths.log);
        }
    }
}

/// Waits for the right to decide which stack hosts a link, so that of two stacks that start at once one finds
/// the other.
pub fn lock_links(directory: &Path) -> Result<File, Failure> {
    let path = directory.join("links.lock");
    let file = OpenOptions::new().write(true).create(true).truncate(false).mode(0o600).open(&path);
    let file = file.or_fail(path.display())?;
    file.lock().or_fail(path.display())?;
    Ok(file)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_belongs_to_one_stack_until_it_ends() {
        let directory = std::env::temp_dir().join(format!("atoll-runtime-test-{}", std::process::id()));
        fs::create_dir_all(&directory).unwrap();
        let name: StackName = "web".parse().unwrap();
        let other: StackName = "db".parse().unwrap();
        let lock = NameLock::take(&directory, &name).unwrap();
        let _other = NameLock::take(&directory, &other).unwrap();
        assert_eq!(
            fs::metadata(directory.join("web.pid")).unwrap().mode() & 0o077,
            0,
            "others could lock it"
        );
        let refusal = NameLock::take(&directory, &name).unwrap_err().to_string();
        assert!(
            refusal.contains(&format!("\"web\" is up already (pid {})", std::process::id())),
            "{refusal}"
        );
        fs::write(&lock.paths().socket, "").unwrap();
        fs::write(&lock.paths().admin, "").unwrap();
        drop(lock);
        assert!(!directory.join("web.sock").exists() && !directory.join("web.admin").exists());
        assert!(!directory.join("web.pid").exists());
        // A supervisor that is ending is waited for, with its file or without.
        for removes in [true, false] {
            let guardian = File::create(directory.join("web.pid")).unwrap();
            guardian.try_lock().unwrap();
            if removes {
                fs::remove_file(directory.join("web.pid")).unwrap();
            }
            let end = thread::spawn(move || {
                thread::sleep(Duration::from_millis(200));
                drop(guardian);
            });
            drop(NameLock::take(&directory, &name).unwrap());
            end.join().unwrap();
        }
        // The files of a killed supervisor are no obstacle.
        fs::write(directory.join("web.pid"), "1\n").unwrap();
        drop(NameLock::take(&directory, &name).unwrap());
        fs::remove_dir_all(&directory).unwrap();
    }
}
