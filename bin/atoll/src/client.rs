//! The command line's connection to a supervisor: it sends a request, and receives packets until the
//! supervisor says that it is done.

use std::io;
use std::path::{Path, PathBuf};

use atoll_base::Duration;
use atoll_ipc::control::{Refusal, Reply, Request};
use atoll_supervisor::{BalanceRules, CliRequest, ReportPart, ScalingReport, StackName, StatusReport};
use atoll_sys::unix::Channel;
use atoll_sys::users;

use crate::failure::{Failure, OrFail};
use crate::rows::{RowsPacket, SocketRow};
use crate::runtime;

/// A connection to the supervisor of a stack.
pub struct SupervisorClient {
    name: StackName,
    channel: Channel,
}

impl SupervisorClient {
    /// Connects to the stack `name`; returns `None` if it is not up.
    pub fn find(name: &StackName) -> Result<Option<SupervisorClient>, Failure> {
        let paths = runtime::paths(name);
        let socket = paths.admin;
        match connect(&socket) {
            Err(error) if error.kind() == io::ErrorKind::NotFound && connect(&paths.socket).is_ok() => {
                Err(Failure::new(format!(
                    "the stack \"{name}\" is of a build from before administration had a socket of its own: \
                     use the `atoll` of that build"
                )))
            }
            Ok(channel) => Ok(Some(SupervisorClient { name: name.clone(), channel })),
            Err(error)
                if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused) =>
            {
                Ok(None)
            }
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => Err(Failure::new(format!(
                "the stack \"{name}\" belongs to another user ({})",
                socket.display()
            ))),
            Err(error) => Err(unanswered(name, &error)),
        }
    }

    /// Connects to the stack `name`; the error of a stack that is not up names those that are.
    pub fn connect(name: &StackName) -> Result<SupervisorClient, Failure> {
        let missing = || {
            let up = stacks_up();
            let others = match up.as_slice() {
                [] => "no stack of yours is up; start one with `atoll up`".to_owned(),
                names => format!("up are: {}", names.join(", ")),
            };
            Failure::new(format!("there is no stack called \"{name}\": {others}"))
        };
        SupervisorClient::find(name)?.ok_or_else(missing)
    }

    /// Returns this connection with a limit on how long a send or receive waits.
    pub fn with_patience(self, time: Duration) -> Result<SupervisorClient, Failure> {
        self.channel.set_timeouts(time).map_err(|error| self.failure(error))?;
        Ok(self)
    }

    /// Returns everything that `atoll status` shows.
    pub fn status(&self) -> Result<StatusReport, Failure> {
        let mut parts = Vec::new();
        self.ask(&CliRequest::Status, |packet| {
            parts.extend(serde_json::from_slice::<ReportPart>(packet));
        })?;
        StatusReport::assemble(parts).ok_or_else(|| self.failure("it sent no report"))
    }

    /// Returns the sockets of all replicas, and the names of servers that are being restarted and have listed
    /// none.
    pub fn sockets(&self) -> Result<(Vec<SocketRow>, Vec<String>), Failure> {
        let (mut rows, mut restarting) = (Vec::new(), Vec::new());
        self.ask(&CliRequest::Ss, |packet| {
            if let Ok(ReportPart::Restarting(server)) = serde_json::from_slice(packet) {
                restarting.push(server);
            }
            rows.extend(
                serde_json::from_slice::<RowsPacket>(packet).into_iter().flat_map(|packet| packet.rows),
            );
        })?;
        Ok((rows, restarting))
    }

    /// Changes the balancing rules as `changes` says, and returns the rules that hold now.
    pub fn balance(&self, changes: &BalanceRules) -> Result<BalanceRules, Failure> {
        let mut told = None;
        self.ask(&CliRequest::Balance(changes.clone()), |packet| {
            if let Ok(ReportPart::Balance(rules)) = serde_json::from_slice::<ReportPart>(packet) {
                told = Some(rules);
            }
        })?;
        told.ok_or_else(|| self.failure("it did not say which rules hold"))
    }

    /// Asks the supervisor to replace its servers by those of the build in `file`, which was found at `path`.
    /// Calls `progress` with a line for each step.
    pub fn upgrade(&self, path: &str, mut progress: impl FnMut(&str)) -> Result<(), Failure> {
        let _ = self.channel.set_timeouts(UPGRADE_TIME);
        self.ask(&CliRequest::Upgrade { path: path.to_owned() }, |packet| {
            if let Ok(ReportPart::Progress(line)) = serde_json::from_slice(packet) {
                progress(&line);
            }
        })
    }

    /// Sets the number of processes for the replicas; with `None`, as many as the load needs. Returns the
    /// resulting placement when that is done.
    pub fn scale(&self, processes: Option<u8>) -> Result<ScalingReport, Failure> {
        self.place(&CliRequest::Scale { processes })
    }

    /// Moves these replicas to the process with the number `to`. Returns the resulting placement when that is
    /// done.
    pub fn relocate(&self, replicas: Vec<u8>, to: u8) -> Result<ScalingReport, Failure> {
        self.place(&CliRequest::Move { replicas, to })
    }

    fn place(&self, request: &CliRequest) -> Result<ScalingReport, Failure> {
        let mut told = None;
        self.channel.set_timeouts(SCALE_TIME).or_fail("setting a time limit")?;
        self.ask(request, |packet| {
            if let Ok(ReportPart::Scaling(report)) = serde_json::from_slice::<ReportPart>(packet) {
                told = Some(report);
            }
        })?;
        told.ok_or_else(|| self.failure("it did not say how many processes there are"))
    }

    /// Asks the supervisor to end the stack.
    pub fn end(&self) -> Result<(), Failure> {
        self.ask(&CliRequest::Down, |_| {})
    }

    /// Waits at most `time` until the supervisor is gone. Returns whether it is.
    pub fn wait_until_gone(&self, time: Duration) -> bool {
        let _ = self.channel.set_timeouts(time);
        loop {
            match self.channel.receive(&mut [0; 4096], &mut Vec::new()) {
                Ok(0) => return true,
                Ok(_) => {}
                Err(error) => {
                    return !matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut);
                }
            }
        }
    }

    fn ask(&self, request: &CliRequest, mut packet: impl FnMut(&[u8])) -> Result<(), Failure> {
        let bytes = serde_json::to_vec(request).or_fail("writing the request")?;
        self.channel.send(&bytes, &[]).map_err(|error| unanswered(&self.name, &error))?;
        let mut buffer = vec![0; 512 << 10];
        loop {
            let len = match self.channel.receive(&mut buffer, &mut Vec::new()) {
                Ok(0) => return Err(self.failure("it ended meanwhile")),
                Ok(len) => len,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(unanswered(&self.name, &error)),
            };
            let bytes = &buffer[..len];
            match serde_json::from_slice::<ReportPart>(bytes) {
                Ok(ReportPart::Done(_)) => return Ok(()),
                Ok(ReportPart::Error(reason)) => return Err(self.failure(reason)),
                _ => {}
            }
            match Reply::decode(bytes) {
                Ok(Reply::Refused { reason: Refusal::Permission }) => {
                    return Err(self.failure("it belongs to another user"));
                }
                Ok(Reply::Refused { reason }) => return Err(self.failure(format!("it refuses ({reason:?})"))),
                _ => packet(bytes),
            }
        }
    }

    fn failure(&self, what: impl std::fmt::Display) -> Failure {
        Failure::new(format!("stack \"{}\": {what}", self.name))
    }
}

/// Whether a program of this user can run on a stack.
pub enum Entrance {
    /// The program can join through the socket at this path.
    Open(PathBuf),
    /// There is such a stack, but it is not open to this user; the text says why, and what to do.
    Closed(String),
    /// There is no such stack.
    Nowhere,
}

/// Looks for the stack `name` of this user, and then for that of root.
pub fn for_applications(name: &StackName) -> Result<Entrance, Failure> {
    let own = runtime::paths(name).socket;
    let found = look(name, &own, "another user")?;
    let roots = runtime::roots_paths(name).map(|paths| paths.socket).filter(|roots| *roots != own);
    match (found, roots) {
        (Entrance::Nowhere, Some(roots)) => look(name, &roots, "root"),
        (found, _) => Ok(found),
    }
}

/// Asks a stack's socket for applications whether this process may have sessions, without opening one.
fn look(name: &StackName, socket: &Path, owner: &str) -> Result<Entrance, Failure> {
    let uid = rustix::process::geteuid().as_raw();
    let closed = || {
        let user = users::name_of(uid);
        let what = format!("the stack \"{name}\" belongs to {owner} ({})", socket.display());
        Entrance::Closed(format!("{what}, which has not let {user} in: atoll up --allow-user {user}"))
    };
    let channel = match connect(socket) {
        Ok(channel) => channel,
        Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused) => {
            return Ok(Entrance::Nowhere);
        }
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => return Ok(closed()),
        Err(error) => return Err(unanswered(name, &error)),
    };
    // No session has this number, so a user that may join gets the refusal NoSession.
    let _ = channel.send_as_effective(&Request::Join { session: 0, key: 0 }.encode());
    let mut packet = [0; 256];
    let mut received = channel.receive_within(ANSWER_TIME, &mut packet, &mut Vec::new());
    if matches!(&received, Err(error) if error.kind() == io::ErrorKind::ConnectionReset) {
        // The supervisor refuses a connection without reading the request, which resets it; the refusal can
        // still be read after this error.
        received = channel.receive_within(ANSWER_TIME, &mut packet, &mut Vec::new());
    }
    match received.map(|len| Reply::decode(&packet[..len])) {
        Ok(Ok(Reply::Refused { reason: Refusal::Permission })) => Ok(closed()),
        Ok(Ok(Reply::Refused { reason: Refusal::NoSession })) => Ok(Entrance::Open(socket.to_owned())),
        Ok(Ok(Reply::Refused { reason })) => Err(Failure::new(format!("stack \"{name}\": {reason}"))),
        Ok(_) => {
            Err(Failure::new(format!("stack \"{name}\": what listens at {} is no stack", socket.display())))
        }
        Err(error) => Err(unanswered(name, &error)),
    }
}

/// Returns the names of this user's stacks that are up, sorted.
pub fn stacks_up() -> Vec<String> {
    let Ok(entries) = std::fs::read_dir(runtime::directory()) else { return Vec::new() };
    let mut names: Vec<String> = entries
        .filter_map(|entry| {
            let path = entry.ok()?.path();
            let name = path.file_name()?.to_str()?.strip_suffix(".admin")?.to_owned();
            connect(&path).ok().map(|_| name)
        })
        .collect();
    names.sort();
    names
}

/// Makes a failure of an error at a stack's socket.
fn unanswered(name: &StackName, error: &io::Error) -> Failure {
    match error.kind() {
        io::ErrorKind::WouldBlock => Failure::new(format!("stack \"{name}\": it does not answer")),
        _ => Failure::new(format!("stack \"{name}\": {error}")),
    }
}

fn connect(socket: &Path) -> io::Result<Channel> {
    Channel::connect_to_own(socket, ANSWER_TIME)
}

/// How long a supervisor may say nothing between two steps of an upgrade.
const UPGRADE_TIME: Duration = Duration::from_secs(60);
/// How long a supervisor may say nothing before a command gives up.
const ANSWER_TIME: Duration = Duration::from_secs(10);
/// How long a supervisor may say nothing while replicas move, even if each of them takes all the time that it
/// has.
const SCALE_TIME: Duration = Duration::from_secs(180);
