//! The numbers of users and groups (getpwnam(3), getgrnam(3)), and what the calling thread may do.

use std::ffi::{CStr, CString, c_char};
use std::io;
use std::mem::MaybeUninit;
use std::ptr;

use rustix::thread::{CapabilitySet, capabilities};

/// Returns whether the calling thread has CAP_NET_RAW now (capabilities(7)).
pub fn may_use_raw_sockets() -> bool {
    capabilities(None).is_ok_and(|sets| sets.effective.contains(CapabilitySet::NET_RAW))
}

/// Returns the number of the user called `name`, or `None` if there is none. A decimal number is the number
/// itself.
pub fn user(name: &str) -> io::Result<Option<u32>> {
    if let Ok(number) = name.parse() {
        return Ok(Some(number));
    }
    let Ok(name) = CString::new(name) else { return Ok(None) };
    with_room(|room: &mut [c_char]| {
        let mut entry = MaybeUninit::<libc::passwd>::uninit();
        let mut found = ptr::null_mut();
        // SAFETY: the name is a NUL-terminated string, and the room is as long as it says; all outlive the
        // call.
        let error = unsafe {
            libc::getpwnam_r(name.as_ptr(), entry.as_mut_ptr(), room.as_mut_ptr(), room.len(), &raw mut found)
        };
        // SAFETY: `found` is null, or points to the entry, which was filled in then.
        (error, unsafe { found.as_ref() }.map(|found| found.pw_uid))
    })
}

/// Returns the numbers of the user called `name` and of its primary group, or `None` if there is no such
/// user. A number without an entry is taken for that of a user whose group has the same number.
pub fn account(name: &str) -> io::Result<Option<(u32, u32)>> {
    let Some(uid) = user(name)? else { return Ok(None) };
    let gid = with_room(|room: &mut [c_char]| {
        let mut entry = MaybeUninit::<libc::passwd>::uninit();
        let mut found = ptr::null_mut();
        // SAFETY: the room is as long as it says; all outlive the call.
        let error = unsafe {
            libc::getpwuid_r(uid, entry.as_mut_ptr(), room.as_mut_ptr(), room.len(), &raw mut found)
        };
        // SAFETY: `found` is null, or points to the entry, which was filled in then.
        (error, unsafe { found.as_ref() }.map(|found| found.pw_gid))
    })?;
    Ok(Some((uid, gid.unwrap_or(uid))))
}

/// Returns the number of the group called `name`, and the users that are listed as its members; `None` if
/// there is no such group. Other members have it as their primary group. A decimal number is the number
/// itself, without a list.
pub fn group(name: &str) -> io::Result<Option<(u32, Vec<u32>)>> {
    if let Ok(number) = name.parse() {
        return Ok(Some((number, Vec::new())));
    }
    let Ok(name) = CString::new(name) else { return Ok(None) };
    let found = with_room(|room: &mut [c_char]| {
        let mut entry = MaybeUninit::<libc::group>::uninit();
        let mut found = ptr::null_mut();
        // SAFETY: the name is a NUL-terminated string, and the room is as long as it says; all outlive the
        // call.
        let error = unsafe {
            libc::getgrnam_r(name.as_ptr(), entry.as_mut_ptr(), room.as_mut_ptr(), room.len(), &raw mut found)
        };
        // SAFETY: `found` is null, or points to the entry, which was filled in then.
        let found = unsafe { found.as_ref() }.map(|found| {
            let (mut names, mut at) = (Vec::new(), found.gr_mem);
            // SAFETY: `at` points into a list of strings that ends with a null pointer, inside the room.
            while let Some(member) = unsafe { at.as_ref() }.filter(|member| !member.is_null()) {
                // SAFETY: the member is a NUL-terminated string inside the room.
                names.push(unsafe { CStr::from_ptr(*member) }.to_string_lossy().into_owned());
                // SAFETY: the end of the list is not reached.
                at = unsafe { at.add(1) };
            }
            (found.gr_gid, names)
        });
        (error, found)
    })?;
    let Some((gid, names)) = found else { return Ok(None) };
    let mut members = Vec::new();
    for name in names {
        // A listed member that does not exist (any more) is skipped.
        members.extend(user(&name)?);
    }
    Ok(Some((gid, members)))
}

/// Returns the name of a user, or its number if it has none.
pub fn name_of(uid: u32) -> String {
    let found = with_room(|room: &mut [c_char]| {
        let mut entry = MaybeUninit::<libc::passwd>::uninit();
        let mut found = ptr::null_mut();
        // SAFETY: the room is as long as it says; all outlive the call.
        let error = unsafe {
            libc::getpwuid_r(uid, entry.as_mut_ptr(), room.as_mut_ptr(), room.len(), &raw mut found)
        };
        // SAFETY: `found` is null, or points to the entry, which was filled in then.
        let name = unsafe { found.as_ref() }
            // SAFETY: the name is a NUL-terminated string inside the room.
            .map(|found| unsafe { CStr::from_ptr(found.pw_name) }.to_string_lossy().into_owned());
        (error, name)
    });
    found.ok().flatten().unwrap_or_else(|| uid.to_string())
}

/// Calls `ask` with more and more room, until it suffices.
fn with_room<T>(mut ask: impl FnMut(&mut [c_char]) -> (libc::c_int, Option<T>)) -> io::Result<Option<T>> {
    let mut room = vec![0; 1 << 12];
    loop {
        match ask(&mut room) {
            (0, found) => return Ok(found),
            (libc::ERANGE, _) if room.len() < ROOM_MAX => room.resize(room.len() * 4, 0),
            (libc::EINTR, _) => {}
            // The manual page says that these errors may mean that there is no such entry.
            (libc::ENOENT | libc::ESRCH | libc::EBADF | libc::EPERM, _) => return Ok(None),
            (error, _) => return Err(io::Error::from_raw_os_error(error)),
        }
    }
}

/// The limit of the room in `c_char`s, which no group's entry exceeds.
const ROOM_MAX: usize = 1 << 24;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_numbers_are_found() {
        assert_eq!((user("root").unwrap(), user("4711").unwrap()), (Some(0), Some(4711)));
        assert_eq!((user("no such user").unwrap(), user("nul\0").unwrap()), (None, None));
        assert_eq!((name_of(0), name_of(4_000_000_000)), ("root".into(), "4000000000".into()));
        assert_eq!((account("root").unwrap(), account("4711").unwrap()), (Some((0, 0)), Some((4711, 4711))));
        // The group of `games` has another number than the user: 60 (base-passwd).
        assert_eq!((account("games").unwrap(), account("5").unwrap()), (Some((5, 60)), Some((5, 60))));
        assert_eq!(account("no such user").unwrap(), None);
        assert_eq!(group("root").unwrap().map(|(gid, _)| gid), Some(0));
        assert_eq!((group("17").unwrap(), group("no such group").unwrap()), (Some((17, Vec::new())), None));
    }
}
