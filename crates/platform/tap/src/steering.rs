//! The steering of flow groups to queues: the table is a map of the program `bpf/steer.c`, and names the
//! queue for each group.

use std::error::Error;
use std::fmt;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use atoll_base::{FLOW_GROUPS, FlowGroup, FlowKey};
use aya::maps::{Array, Map, MapData};
use aya::programs::SocketFilter;
use aya::{Ebpf, EbpfLoader, Pod};

use crate::ioctl;

/// The queue of each flow group. Numbers beyond the device's queues wrap around, which is the kernel's rule.
pub type Table = [u8; FLOW_GROUPS];

/// The steering of one device. It stays in force after this is dropped, until the device goes or
/// [`Steering::detach`] is called; [`Steering::from_table`] takes it up again.
pub struct Steering {
    map: Array<MapData, u32>,
    /// A second descriptor of `map`, because the library aya lends none.
    map_fd: OwnedFd,
    /// The table as the kernel has it, so that [`Steering::set_all`] writes only what changes.
    table: Box<Table>,
}

impl Steering {
    /// Steers the device of `queue` (any of its queues) by `table`, with the hash keyed by `key`. This
    /// replaces any earlier steering.
    ///
    /// Loading a program needs CAP_BPF in the first user namespace. Without it the error is
    /// [`SteeringError::NotPermitted`]; frames then go to queues of the kernel's choice, and replicas must
    /// forward them.
    /// forward them.
    pub fn attach(queue: impl AsFd, key: FlowKey, table: &Table) -> Result<Steering, SteeringError> {
        let mut loaded = load(key)?;
        let map = loaded.take_map("steering_table").ok_or(SteeringError::BadProgram)?;
        let Map::Array(map) = map else { return Err(SteeringError::BadProgram) };
        let map_fd = duplicate(map.fd().as_fd())?;
        let mut steering = Steering::over(map_fd)?;
        for (group, &queue) in (0..).zip(table) {
            steering.write(group, queue)?;
        }
        let program = steer_program(&mut loaded)?;
        let fd = program.fd().map_err(|error| cause("finding the program", &error))?;
        // From here on the driver holds the program, and the program holds its maps.
        ioctl::set_steering(queue.as_fd(), fd.as_fd().as_raw_fd()).map_err(|error| match error {
            rustix::io::Errno::INVAL | rustix::io::Errno::NOTTY => SteeringError::Unsupported,
            other => SteeringError::Other("TUNSETSTEERINGEBPF", other.raw_os_error()),
        })?;
        Ok(steering)
    }

    /// Takes up the steering that another process has attached; `fd` is a copy of its [`Steering::table_fd`].
    pub fn from_table(fd: OwnedFd) -> Result<Steering, SteeringError> {
        let mut steering = Steering::over(fd)?;
        for group in 0..FLOW_GROUPS {
            let read = steering.map.get(&(group as u32), 0);
            let queue = read.map_err(|error| cause("reading the steering table", &error))?;
            steering.table[group] = u8::try_from(queue).map_err(|_| SteeringError::BadProgram)?;
        }
        Ok(steering)
    }

    /// Lets the kernel's own hash choose the queues of the device again.
    pub fn detach(queue: impl AsFd) -> io::Result<()> {
        Ok(ioctl::set_steering(queue.as_fd(), -1)?)
    }

    /// Returns the table in force.
    pub fn table(&self) -> &Table {
        &self.table
    }

    /// Returns the table's descriptor, which is all that another process needs to change the table.
    pub fn table_fd(&self) -> BorrowedFd<'_> {
        self.map_fd.as_fd()
    }

    /// Sends the frames of `group` to `queue` from now on; frames that are in a queue already stay there.
    /// Takes about 1 us.
    ///
    /// Fails with [`SteeringError::BadGroup`] if the group is outside the table.
    pub fn set(&mut self, group: FlowGroup, queue: u8) -> Result<(), SteeringError> {
        match self.table.get(usize::from(group.0)) {
            None => Err(SteeringError::BadGroup),
            Some(&current) if current == queue => Ok(()),
            Some(_) => self.write(group.0, queue),
        }
    }

    /// Changes the groups that differ from `table`, one by one. If this fails, the groups before the failure
    /// have changed, and [`Steering::table`] shows which.
    pub fn set_all(&mut self, table: &Table) -> Result<(), SteeringError> {
        (0..).zip(table).try_for_each(|(group, &queue)| self.set(FlowGroup(group), queue))
    }

    fn write(&mut self, group: u16, queue: u8) -> Result<(), SteeringError> {
        let written = self.map.set(u32::from(group), u32::from(queue), 0);
        written.map_err(|error| cause("writing the steering table", &error))?;
        self.table[usize::from(group)] = queue;
        Ok(())
    }

    fn over(fd: OwnedFd) -> Result<Steering, SteeringError> {
        let map_fd = duplicate(fd.as_fd())?;
        let map = MapData::from_fd(fd).map_err(|error| cause("reading the steering table", &error))?;
        let map =
            Array::try_from(Map::Array(map)).map_err(|error| cause("reading the steering table", &error))?;
        if map.len() as usize != FLOW_GROUPS {
            return Err(SteeringError::BadProgram);
        }
        Ok(Steering { map, map_fd, table: Box::new([0; FLOW_GROUPS]) })
    }
}

impl fmt::Debug for Steering {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Steering").field("map_fd", &self.map_fd).finish_non_exhaustive()
    }
}

/// The key of the hash, as `struct flow_key` of the program.
#[repr(C)]
#[derive(Clone, Copy)]
struct ProgramKey {
    k0: u32,
    k1: u32,
}

// SAFETY: two u32 without padding; every value of the bytes is valid.
unsafe impl Pod for ProgramKey {}

/// Loads the program with its key in place, but does not attach it.
fn load(key: FlowKey) -> Result<Ebpf, SteeringError> {
    const OBJECT: &[u8] = aya::include_bytes_aligned!(concat!(env!("OUT_DIR"), "/steer.o"));
    // The kernel's type information is not used, because parsing it takes milliseconds and the program looks
    // only at packets.
    let mut loaded = EbpfLoader::new().load(OBJECT).map_err(|error| cause("creating the maps", &error))?;
    let map = loaded.map_mut("flow_key").ok_or(SteeringError::BadProgram)?;
    let mut map: Array<_, ProgramKey> =
        Array::try_from(map).map_err(|error| cause("finding the key", &error))?;
    let key = ProgramKey { k0: key.k0, k1: key.k1 };
    map.set(0, key, 0).map_err(|error| cause("writing the key", &error))?;
    steer_program(&mut loaded)?.load().map_err(|error| cause("loading the program", &error))?;
    Ok(loaded)
}

fn steer_program(loaded: &mut Ebpf) -> Result<&mut SocketFilter, SteeringError> {
    let program = loaded.program_mut("steer").ok_or(SteeringError::BadProgram)?;
    program.try_into().map_err(|_| SteeringError::BadProgram)
}

fn duplicate(fd: BorrowedFd<'_>) -> Result<OwnedFd, SteeringError> {
    fd.try_clone_to_owned().map_err(|error| cause("copying a descriptor", &error))
}

/// Converts a chain of errors; the errno at its end decides what the caller can do.
fn cause(step: &'static str, error: &(dyn Error + 'static)) -> SteeringError {
    let mut at = Some(error);
    while let Some(error) = at {
        match error.downcast_ref::<io::Error>().and_then(io::Error::raw_os_error) {
            Some(libc::EPERM | libc::EACCES) => return SteeringError::NotPermitted,
            Some(libc::ENOSYS) => return SteeringError::Unsupported,
            Some(errno) => return SteeringError::Other(step, errno),
            None => at = error.source(),
        }
    }
    SteeringError::BadProgram
}

/// Why frames are not steered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SteeringError {
    /// This process may not load BPF programs: steer in software.
    #[error(
        "not permitted to load the steering program: it needs CAP_BPF outside of user namespaces; without it \
         flows are steered in software"
    )]
    NotPermitted,
    /// The kernel has no BPF, or no TAP steering (before 4.16): steer in software.
    #[error("the kernel cannot steer TAP queues by a BPF program")]
    Unsupported,
    /// There is no such flow group.
    #[error("there are only {FLOW_GROUPS} flow groups")]
    BadGroup,
    /// The program or the table is not the one this version was built with.
    #[error("the steering program or table is not the one of this version")]
    BadProgram,
    /// The named step failed with this errno.
    #[error("steering failed at {0}: {error}", error = io::Error::from_raw_os_error(*.1))]
    Other(&'static str, i32),
}

#[cfg(test)]
mod tests;
