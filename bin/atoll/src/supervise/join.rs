//! Joins two stacks by shared memory. The one that starts first makes the memory, the other one asks for it.
//!
//! ```text
//!   host (started first)                                guest
//!     makes: rings, the guest's stack page and bells
//!     its replicas start with these                       connects to the host's socket for administration
//!                                     <-- {"cmd":"join_link"} --
//!     -- rings, guest's stack page, host's stack page, -->
//!        guest's bells, host's bells                      uses page and bells as its own, writes its facts
//!     replicas see the facts: the link is up              replicas start: the link is up
//!   guest's connection closes: the facts are erased,
//!   the link is down, and another guest may come
//! ```
//! Nothing has to be passed to a running replica. A host that ends takes the link with it: its guest must be
//! started again, because the memory of the rings is the host's.

use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::rc::Rc;

use atoll_ipc::page::{REPLICAS_MAX, STACK_PAGE_BYTES, StackPage};
use atoll_ipc::{LAYOUT_VERSION, Memory};
use atoll_shm::{Access, ShmMemory};
use atoll_supervisor::{CliRequest, Config, ReportPart, StackName};
use atoll_sys::create_memfd;
use atoll_sys::unix::Channel;
use serde::{Deserialize, Serialize};
use thiserror::Error;

use super::memory;
use crate::failure::{Failure, OrFail};
use crate::setup::LINK_BYTES;

/// A link that this stack made.
#[derive(Debug)]
pub struct HostedLink {
    rings: Rc<OwnedFd>,
    guest_page: StackPage<ShmMemory>,
    guest_page_write: Rc<OwnedFd>,
    guest_page_read: Rc<OwnedFd>,
    guest_bells: Vec<Rc<OwnedFd>>,
    /// Doorbells of this stack's replicas, for the guest; padded to the largest number of replicas.
    own_bells: Vec<Rc<OwnedFd>>,
    own_page_read: Rc<OwnedFd>,
    has_guest: bool,
}

/// The end of a shared-memory link that this stack has, if it has one.
#[derive(Debug, Default)]
pub struct Link {
    /// The link that this stack hosts.
    hosted: Option<HostedLink>,
    /// The connection to the stack that hosts the link.
    host: Option<Channel>,
}

impl Link {
    /// Creates the state of a link that this stack hosts or has joined.
    pub fn new(hosted: Option<HostedLink>, host: Option<Channel>) -> Link {
        Link { hosted, host }
    }

    /// Returns the link that this stack hosts.
    pub fn hosted(&mut self, config: &Config) -> Result<&mut HostedLink, JoinError> {
        self.hosted.as_mut().ok_or_else(|| match &self.host {
            Some(_) => JoinError::IsGuest(config.name.clone()),
            None => JoinError::NoLink(config.name.clone()),
        })
    }

    /// Handles the end of the guest's connection.
    pub fn guest_left(&mut self) {
        if let Some(hosted) = &mut self.hosted {
            hosted.guest_left();
        }
    }

    /// Returns whether the other stack is present; returns `None` if there is no link.
    pub fn is_peer_present(&self) -> Option<bool> {
        match (&self.hosted, &self.host) {
            (Some(hosted), _) => Some(hosted.has_guest()),
            (None, Some(host)) => Some(is_connected(host)),
            (None, None) => None,
        }
    }
}

/// The guest's part of a link that it has joined.
#[derive(Debug)]
pub struct JoinedLink {
    /// The connection by which each end notices the end of the other.
    pub host: Channel,
    /// The memory for the guest's own stack page.
    pub stack_page: OwnedFd,
    /// The doorbells for the guest's own replicas, [`REPLICAS_MAX`] of them.
    pub bells: Vec<Rc<OwnedFd>>,
    /// The host's stack page.
    pub host_page: StackPage<ShmMemory>,
    /// The descriptors that the guest's own replicas inherit, in the order of `setup.rs`.
    pub for_replicas: Vec<Rc<OwnedFd>>,
}

#[derive(Serialize, Deserialize)]
struct Joined {
    joined: JoinedFacts,
}

#[derive(Serialize, Deserialize)]
struct JoinedFacts {
    replicas: u8,
}

impl HostedLink {
    /// Makes a link for a guest to come. `own_bells` and `own_page_read` are this stack's.
    pub fn create(own_bells: &[Rc<OwnedFd>], own_page_read: Rc<OwnedFd>) -> io::Result<HostedLink> {
        let page = create_memfd("atoll-guest-stack", STACK_PAGE_BYTES)?;
        let last = own_bells.last().cloned();
        let padded = own_bells.iter().cloned().chain(last.into_iter().cycle()).take(REPLICAS_MAX);
        Ok(HostedLink {
            rings: Rc::new(create_memfd("atoll-link", LINK_BYTES)?),
            guest_page: StackPage(ShmMemory::map(&page, STACK_PAGE_BYTES, Access::ReadWrite)?),
            guest_page_read: Rc::new(memory::open_for_reading(std::os::fd::AsFd::as_fd(&page))?),
            guest_page_write: Rc::new(page),
            guest_bells: memory::bells(REPLICAS_MAX)?,
            own_bells: padded.collect(),
            own_page_read,
            has_guest: false,
        })
    }

    /// Returns the descriptors that the host's own replicas inherit, in the order of `setup.rs`.
    pub fn for_replicas(&self) -> Vec<Rc<OwnedFd>> {
        let mut fds = vec![self.rings.clone(), self.guest_page_read.clone()];
        fds.extend(self.guest_bells.iter().cloned());
        fds
    }

    /// Lets the stack `from` join. Returns the answer with its descriptors.
    pub fn join(
        &mut self,
        config: &Config,
        own: &StackPage<ShmMemory>,
        from: &str,
        layout_version: u32,
    ) -> Result<(Vec<u8>, Vec<Rc<OwnedFd>>), JoinError> {
        let name = || config.name.clone();
        let expected = config.link.peer.as_ref().map(StackName::as_str).unwrap_or_default();
        if from != expected {
            let (expected, from) = (expected.to_owned(), from.to_owned());
            return Err(JoinError::ForAnother { name: name(), expected, from });
        }
        if layout_version != LAYOUT_VERSION {
            return Err(JoinError::OtherVersion(name()));
        }
        if self.has_guest {
            return Err(JoinError::InUse(name()));
        }
        let facts = own.facts().ok_or_else(|| JoinError::NotReady(name()))?;
        self.has_guest = true;
        let mut fds = vec![self.rings.clone(), self.guest_page_write.clone(), self.own_page_read.clone()];
        fds.extend(self.guest_bells.iter().chain(&self.own_bells).cloned());
        let packet = Joined { joined: JoinedFacts { replicas: facts.replicas } };
        Ok((serde_json::to_vec(&packet).expect("plain data has a JSON form"), fds))
    }

    /// Handles the end of the guest's connection.
    pub fn guest_left(&mut self) {
        self.has_guest = false;
        // Without the magic number at its start the page has no facts.
        self.guest_page.0.store32_release(0, 0);
    }

    /// Returns whether there is a guest.
    pub fn has_guest(&self) -> bool {
        self.has_guest
    }
}

/// Why a stack lets another one not join; the text is for the one that asked.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum JoinError {
    /// The stack has no link of that kind.
    #[error("stack \"{0}\" has no link of type \"shm\" (link.type)")]
    NoLink(StackName),
    /// The stack itself has joined a link, whose host has come back since.
    #[error(
        "stack \"{0}\" joined a link of an earlier stack: restart \"{0}\", the stack that came back hosts now"
    )]
    IsGuest(StackName),
    /// The configuration names another guest.
    #[error("the link of stack \"{name}\" is for \"{expected}\", not for \"{from}\" (link.peer)")]
    ForAnother {
        /// The stack that was asked.
        name: StackName,
        /// The stack that its configuration names.
        expected: String,
        /// The stack that asked.
        from: String,
    },
    /// The two stacks lay out their memory differently.
    #[error("stack \"{0}\" runs another version of atoll: restart it")]
    OtherVersion(StackName),
    /// Another guest has joined.
    #[error("the link of stack \"{0}\" is in use")]
    InUse(StackName),
    /// The stack has not written its facts yet.
    #[error("stack \"{0}\" is not ready yet")]
    NotReady(StackName),
}

/// Asks the stack whose socket for administration is at `socket` for its link; returns `None` if no such
/// stack is up.
pub fn ask(socket: &Path, own_name: &StackName) -> Result<Option<JoinedLink>, Failure> {
    // The other stack may be starting: until it is ready, the request waits in its socket.
    let host = match Channel::connect_to_own(socket, HOST_TIME) {
        Ok(host) => host,
        Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused) => {
            return Ok(None);
        }
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Err(silent(socket)),
        Err(error) => return Err(error).or_fail(format!("connecting to {}", socket.display())),
    };
    let what = "joining the link of the other stack";
    let request = CliRequest::JoinLink { from: own_name.to_string(), layout_version: LAYOUT_VERSION };
    host.send(&serde_json::to_vec(&request).or_fail(what)?, &[]).or_fail(what)?;
    let (mut buffer, mut fds) = (vec![0; 4096], Vec::new());
    let len = match host.receive_within(HOST_TIME, &mut buffer, &mut fds) {
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Err(silent(socket)),
        received => received.or_fail(what)?,
    };
    if let Ok(ReportPart::Error(reason)) = serde_json::from_slice(&buffer[..len]) {
        return Err(Failure::new(reason));
    }
    let _: Joined = serde_json::from_slice(&buffer[..len]).or_fail(what)?;
    if fds.len() != 3 + 2 * REPLICAS_MAX {
        return Err(Failure::new(format!("{what}: it sent {} descriptors", fds.len())));
    }
    let mut fds = fds.into_iter();
    let mut next = || Rc::new(fds.next().expect("counted above"));
    let (rings, stack_page, host_page) = (next(), next(), next());
    let bells: Vec<_> = (0..REPLICAS_MAX).map(|_| next()).collect();
    let mut for_replicas = vec![rings, host_page.clone()];
    for_replicas.extend((0..REPLICAS_MAX).map(|_| next()));
    let host_page = StackPage(ShmMemory::map(&*host_page, STACK_PAGE_BYTES, Access::ReadOnly).or_fail(what)?);
    let stack_page = Rc::into_inner(stack_page).expect("not shared yet");
    Ok(Some(JoinedLink { host, stack_page, bells, host_page, for_replicas }))
}

/// Returns whether the other end of an idle connection still exists.
pub fn is_connected(channel: &Channel) -> bool {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    let mut set = [PollFd::new(channel, PollFlags::RDHUP)];
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    poll(&mut set, Some(&now)).is_ok() && !set[0].revents().intersects(PollFlags::HUP | PollFlags::RDHUP)
}

/// Returns the error for a stack that is too busy, or hangs; that may pass.
fn silent(socket: &Path) -> Failure {
    Failure::of_shortage(format!("the stack at {} does not answer", socket.display()))
}

/// How long the other stack may take to answer.
const HOST_TIME: atoll_base::Duration = atoll_base::Duration::from_secs(15);

#[cfg(test)]
mod tests {
    use atoll_ipc::page::StackFacts;
    use atoll_supervisor::ConfigFile;

    use super::*;

    #[test]
    fn one_guest_at_a_time_and_only_the_named_one() {
        let text = "name = \"a\"\n[link]\ntype = \"shm\"\npeer = \"b\"";
        let config = ConfigFile::parse(text).unwrap().validate().unwrap();
        let own = memory::StackMemory::create(memory::bells(2).unwrap(), None).unwrap();
        let bells: Vec<_> = own.replicas().iter().map(|replica| replica.bell.clone()).collect();
        let mut link = HostedLink::create(&bells, own.stack_read.clone()).unwrap();
        let name = || config.name.clone();
        let mut join = |from, version| link.join(&config, &own.stack, from, version);
        assert_eq!(join("b", LAYOUT_VERSION).unwrap_err(), JoinError::NotReady(name()));
        let facts = StackFacts { replicas: 2, ..StackFacts::default() };
        own.stack.write_facts(&facts);
        let other = join("c", LAYOUT_VERSION).unwrap_err();
        assert_eq!(other.to_string(), "the link of stack \"a\" is for \"b\", not for \"c\" (link.peer)");
        assert_eq!(join("b", LAYOUT_VERSION + 1).unwrap_err(), JoinError::OtherVersion(name()));

        let (_, fds) = join("b", LAYOUT_VERSION).unwrap();
        assert_eq!(fds.len(), 3 + 2 * REPLICAS_MAX);
        assert_eq!(join("b", LAYOUT_VERSION).unwrap_err(), JoinError::InUse(name()));

        // The host's replicas read what the guest writes on its page, until the guest leaves.
        let theirs = StackPage(ShmMemory::map(&*fds[1], STACK_PAGE_BYTES, Access::ReadWrite).unwrap());
        let for_replicas = link.for_replicas();
        let seen = StackPage(ShmMemory::map(&*for_replicas[1], STACK_PAGE_BYTES, Access::ReadOnly).unwrap());
        theirs.write_facts(&facts);
        assert_eq!(seen.facts(), Some(facts));
        link.guest_left();
        assert_eq!(seen.facts(), None);
        assert!(link.join(&config, &own.stack, "b", LAYOUT_VERSION).is_ok());
    }
}
