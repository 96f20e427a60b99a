//! The file actions of posix_spawn(3), as glibc keeps them.

use std::ffi::{CStr, c_char, c_int};

use libc::posix_spawn_file_actions_t;

use crate::table;

/// One file action, as glibc has it since 2.1 (sysdeps/unix/sysv/linux/spawn_int.h); the union begins at
/// offset 8.
#[repr(C)]
struct Action {
    tag: c_int,
    _padding: c_int,
    fd: c_int,
    new: c_int,
    _rest: [u32; 4],
}

impl Action {
    /// Returns the path of a chdir, which is the first in the union.
    fn path(&self) -> *const c_char {
        // SAFETY: the union begins here, and is as large as a pointer at least.
        unsafe { (&raw const self.fd).cast::<*const c_char>().read() }
    }
}

// The tags of `struct __spawn_action`.
const CLOSE: c_int = 0;
const DUP2: c_int = 1;
const OPEN: c_int = 2;
const CHDIR: c_int = 3;
const FCHDIR: c_int = 4;
const CLOSEFROM: c_int = 5;

/// The `posix_spawn_file_actions_t` of glibc.
#[repr(C)]
struct Actions {
    allocated: c_int,
    used: c_int,
    list: *const Action,
}

/// Returns the actions; none if `actions` is null.
///
/// # Safety
/// `actions` is null or initialised by the C library.
unsafe fn all<'a>(actions: *const posix_spawn_file_actions_t) -> &'a [Action] {
    // SAFETY: the caller's promise.
    match unsafe { actions.cast::<Actions>().as_ref() } {
        Some(actions) if actions.used > 0 && !actions.list.is_null() => {
            // SAFETY: the list has `used` entries.
            unsafe { std::slice::from_raw_parts(actions.list, actions.used as usize) }
        }
        _ => &[],
    }
}

/// A change of the working directory.
#[derive(Clone, Copy, Debug)]
pub enum Change<'a> {
    /// To a path.
    To(&'a CStr),
    /// To an open folder.
    ToOpen(c_int),
}

/// Returns the changes of the working directory among the actions.
///
/// # Safety
/// `actions` is null or initialised by the C library.
pub unsafe fn folders<'a>(actions: *const posix_spawn_file_actions_t) -> impl Iterator<Item = Change<'a>> {
    // SAFETY: the caller's promise.
    unsafe { all(actions) }.iter().filter_map(|action| match action.tag {
        // SAFETY: the C library has copied the path.
        CHDIR => Some(Change::To(unsafe { CStr::from_ptr(action.path()) })),
        FCHDIR => Some(Change::ToOpen(action.fd)),
        _ => None,
    })
}

/// Returns what becomes of the descriptors `open`, each with an object and whether it closes on exec.
///
/// # Safety
/// `actions` is null or initialised by the C library.
unsafe fn applied(
    actions: *const posix_spawn_file_actions_t,
    mut open: Vec<(c_int, u32, bool)>,
) -> Vec<(c_int, u32, bool)> {
    // SAFETY: the caller's promise.
    for action in unsafe { all(actions) } {
        let (fd, new) = (action.fd, action.new);
        match action.tag {
            CLOSE | OPEN => open.retain(|(open, ..)| *open != fd),
            DUP2 => {
                let source = open.iter().find(|(open, ..)| *open == fd).map(|(_, object, _)| *object);
                open.retain(|(open, ..)| *open != new);
                open.extend(source.map(|object| (new, object, false)));
            }
            CLOSEFROM => open.retain(|(open, ..)| *open < fd),
            _ => {}
        }
    }
    open
}

/// Returns the sockets that a spawned program has: those that do not close on exec, changed by the actions.
///
/// # Safety
/// `actions` is null or initialised by the C library.
pub unsafe fn sockets_after(actions: *const posix_spawn_file_actions_t) -> Vec<(c_int, u32)> {
    let open =
        table::objects_between(0, u32::MAX).map(|(fd, object)| (fd, object, table::closes_on_exec(fd)));
    // SAFETY: the caller's promise.
    let open = unsafe { applied(actions, open.collect()) };
    open.into_iter().filter(|(.., closes)| !closes).map(|(fd, object, _)| (fd, object)).collect()
}

const _: () = assert!(size_of::<Action>() == 32);
