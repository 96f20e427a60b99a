//! What do setsockopt(2), getsockopt(2) and ioctl(2) do?

use atoll_ipc::arena::INFO;
use atoll_ipc::info::Info;
use atoll_ipc::{CONGESTION_NAMES, Cause, Command, Event, SocketOption};
use atoll_sockets::{Errno, Failure};

use super::{Host, Kind, Outcome};

/// An option whose value getsockopt(2) tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Known {
    /// SO_ERROR.
    Error,
    /// TCP_MAXSEG.
    MaxSegment,
    /// One that was set, and what it is if it never was.
    Set(SocketOption, i64),
    /// SO_SNDBUF and SO_RCVBUF: twice what was set (socket(7)), or what the stack gives.
    Buffer(SocketOption),
    /// One that is always the same.
    Fixed(i64),
}

impl Host {
    /// An option that the replica acts on.
    pub fn set_option(&mut self, fd: i32, option: SocketOption, value: u32) -> Outcome {
        let socket = self.socket_mut(fd)?;
        socket.options.retain(|(set, _)| *set != option);
        socket.options.push((option, value));
        match socket.kind {
            Kind::Fresh | Kind::Set { .. } => {}
            Kind::Listening => {
                let lease = socket.lease;
                self.push(&Command::SetListenerOption { lease, option, value });
            }
            Kind::Stream { slot, generation, .. } | Kind::Datagram { slot, generation } => {
                self.push(&Command::SetOption { slot, generation, option, value });
            }
        }
        Ok(0)
    }

    /// The value of an option.
    pub fn option(&mut self, fd: i32, option: Known) -> Outcome {
        self.socket_mut(fd)?;
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
                    self.with_stream(fd, |stream, _| Ok(stream.slot().send_limit().into()))
                }
                None => Ok(self.info_of(fd)?.ok_or(Errno::ENOTCONN)?.rcv_space as i64),
            },
        }
    }

    fn was_set(&mut self, fd: i32, option: SocketOption) -> Result<Option<u32>, Failure> {
        let options = &self.socket_mut(fd)?.options;
        Ok(options.iter().rev().find(|(set, _)| *set == option).map(|(_, value)| *value))
    }

    /// TCP_CONGESTION.
    pub fn congestion(&mut self, fd: i32) -> Result<&'static str, Failure> {
        let number = self.was_set(fd, SocketOption::Congestion)?.unwrap_or(self.congestion);
        Ok(CONGESTION_NAMES.get(number as usize).copied().unwrap_or_default())
    }

    /// SO_LINGER with zero time, or without.
    pub fn set_aborts(&mut self, fd: i32, aborts: bool) -> Outcome {
        self.socket_mut(fd)?.aborts = aborts;
        Ok(0)
    }

    /// SO_ERROR.
    pub fn take_error(&mut self, fd: i32) -> Outcome {
        if self.is_datagram(fd) {
            return self.take_datagram_error(fd);
        }
        if matches!(self.socket_mut(fd)?.kind, Kind::Fresh | Kind::Listening) {
            return Ok(0);
        }
        self.with_stream(fd, |stream, local| Ok(stream.take_error(local).map_or(0, |errno| errno.0.into())))
    }

    /// TCP_INFO of the connection that was opened or accepted last.
    pub fn info(&mut self) -> Option<Info> {
        let is_stream = |kind: &Kind| matches!(kind, Kind::Stream { .. });
        let latest = self.sockets.iter().rev().find(|(_, socket)| is_stream(&socket.kind)).map(|(fd, _)| *fd)?;
        self.info_of(latest).ok().flatten()
    }

    /// TCP_INFO; `None` if the socket is not connected.
    pub fn info_of(&mut self, fd: i32) -> Result<Option<Info>, Failure> {
        let Kind::Stream { slot, generation, .. } = self.socket_mut(fd)?.kind else { return Ok(None) };
        self.push(&Command::Info { token: 3, slot, generation });
        let Some(reply) = self.replies.pop() else { return Ok(None) };
        let is_known = matches!(reply, Event::InfoReply { cause: Cause::None, .. });
        Ok(is_known.then(|| Info::load(self.port.memory(), INFO)))
    }
}
