//! The calls setsockopt(2), getsockopt(2) and ioctl(2).

use atoll_ipc::arena::INFO;
use atoll_ipc::info::Info;
use atoll_ipc::{CONGESTION_NAMES, Command, SocketOption};
use atoll_sockets::client::object::Kind;
use atoll_sockets::options::{Name, Options, Row, TABLE};
use atoll_sockets::{Errno, Failure};

use super::{Host, Outcome};

/// An option whose value getsockopt(2) returns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Known {
    /// SO_ERROR.
    Error,
    /// TCP_MAXSEG.
    MaxSegment,
    /// An option that was set, with its value if it never was.
    Set(SocketOption, i64),
    /// SO_SNDBUF or SO_RCVBUF: twice what was set (socket(7)), or the stack's size.
    Buffer(SocketOption),
    /// An option with a constant value.
    Fixed(i64),
}

impl Host {
    /// Returns the options of a socket.
    pub(super) fn options_mut(&mut self, fd: i32) -> Result<&mut Options, Errno> {
        let object = self.object(fd)?;
        Ok(&mut self.client.socket_mut(object).ok_or(Errno::ENOTSOCK)?.options)
    }

    /// Sets an option that the replica acts on.
    pub fn set_option(&mut self, fd: i32, option: SocketOption, value: u32) -> Outcome {
        let object = self.object(fd)?;
        if let Some(name) = name_of(option) {
            self.options_mut(fd)?.set(name, value.into());
        }
        match option {
            SocketOption::KeepAlive
            | SocketOption::KeepIdle
            | SocketOption::KeepInterval
            | SocketOption::KeepCount => self.client.send_keep_alive(object),
            _ => self.client.send_option(object, option, value),
        }
        self.step();
        Ok(0)
    }

    /// Returns the value of an option.
    pub fn option(&mut self, fd: i32, option: Known) -> Outcome {
        let object = self.object(fd)?;
        match option {
            Known::Error => self.take_error(fd),
            Known::Fixed(value) => Ok(value),
            Known::Set(option, default) => Ok(self.was_set(fd, option)?.map_or(default, i64::from)),
            Known::MaxSegment => match self.info_of(fd)? {
                Some(info) => Ok(info.snd_mss as i64),
                None => Ok(self.was_set(fd, SocketOption::MaxSegment)?.map_or(536, i64::from)),
            },
            Known::Buffer(option) => match self.was_set(fd, option)? {
                Some(value) => Ok(value.into()),
                None if self.is_fresh(fd) => {
                    let (send, receive) = self.buffers;
                    Ok(if option == SocketOption::SendBuffer { send } else { receive }.into())
                }
                None if option == SocketOption::SendBuffer => {
                    let (stream, ..) = self.client.stream(object).ok_or(Errno::ENOTCONN)?;
                    Ok(stream.slot().send_limit().into())
                }
                None => Ok(self.info_of(fd)?.ok_or(Errno::ENOTCONN)?.rcv_space as i64),
            },
        }
    }

    fn was_set(&mut self, fd: i32, option: SocketOption) -> Result<Option<u32>, Failure> {
        let held = name_of(option).and_then(|name| self.options_mut(fd).ok()?.set_value(name));
        Ok(held.map(|held| u32::try_from(held).unwrap_or(u32::MAX)))
    }

    /// Returns the value of TCP_CONGESTION.
    pub fn congestion(&mut self, fd: i32) -> Result<&'static str, Failure> {
        let number = self.options_mut(fd)?.value(Name::Congestion);
        Ok(CONGESTION_NAMES.get(number as usize).copied().unwrap_or_default())
    }

    /// Sets or clears SO_LINGER with a time of zero.
    pub fn set_aborts(&mut self, fd: i32, aborts: bool) -> Outcome {
        self.options_mut(fd)?.set_linger(aborts.then_some(0));
        let object = self.object(fd)?;
        if let Some((stream, ..)) = self.client.stream(object) {
            stream.set_reset_on_close(aborts);
        }
        Ok(0)
    }

    /// Returns and clears SO_ERROR.
    pub fn take_error(&mut self, fd: i32) -> Outcome {
        let object = self.object(fd)?;
        Ok(self.client.take_error(object).map_or(0, |errno| errno.0.into()))
    }

    /// Returns TCP_INFO of the connection that was opened or accepted last.
    pub fn info(&mut self) -> Option<Info> {
        let is_stream =
            |fd: &i32| self.socket_of(*fd).is_some_and(|socket| matches!(socket.kind, Kind::Stream(..)));
        let latest = self.files.keys().rev().copied().find(is_stream)?;
        self.info_of(latest).ok().flatten()
    }

    /// Returns TCP_INFO of a socket; `None` if it is not connected.
    pub fn info_of(&mut self, fd: i32) -> Result<Option<Info>, Failure> {
        self.object(fd)?;
        let Some(Kind::Stream(place, _)) = self.socket_of(fd).map(|socket| &socket.kind) else {
            return Ok(None);
        };
        let (slot, generation) = (place.slot, place.generation);
        let token = self.client.ask_one(0, &[], |token| Command::Info { token, slot, generation })?;
        self.step();
        let answer = self.client.poll_answer(token);
        self.client.answered(token);
        let replica = self.client.own().and_then(|session| session.replicas().first());
        Ok(replica.filter(|_| answer.is_ok()).map(|replica| Info::load(replica.port().memory(), INFO)))
    }
}

/// Returns the name of the option that replicas know as `option`.
fn name_of(option: SocketOption) -> Option<Name> {
    // A clamp is passed to replicas as a buffer size, which is not the option that scripts set.
    let is_it = |row: &&Row| row.told(true) == Some(option) && row.name != Name::WindowClamp;
    TABLE.iter().find(is_it).map(|row| row.name)
}
