//! What do setsockopt(2), getsockopt(2) and ioctl(2) do?

use atoll_ipc::arena::INFO;
use atoll_ipc::info::Info;
use atoll_ipc::{CONGESTION_NAMES, Command, SocketOption};
use atoll_sockets::client::object::{Kind, Options};
use atoll_sockets::{Errno, Failure};

use super::{Host, Outcome};

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
    /// The options of a socket.
    pub(super) fn options_mut(&mut self, fd: i32) -> Result<&mut Options, Errno> {
        let object = self.object(fd)?;
        Ok(&mut self.client.socket_mut(object).ok_or(Errno::ENOTSOCK)?.options)
    }

    /// An option that the replica acts on.
    pub fn set_option(&mut self, fd: i32, option: SocketOption, value: u32) -> Outcome {
        let object = self.object(fd)?;
        let options = self.options_mut(fd)?;
        store(options, option, value);
        let options = *options;
        match option {
            SocketOption::KeepAlive | SocketOption::KeepIdle | SocketOption::KeepInterval | SocketOption::KeepCount => {
                self.client.send_keep_alive(object, &options)
            }
            _ => self.client.send_option(object, option, value),
        }
        self.step();
        Ok(0)
    }

    /// The value of an option.
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
        Ok(value_of(self.options_mut(fd)?, option))
    }

    /// TCP_CONGESTION.
    pub fn congestion(&mut self, fd: i32) -> Result<&'static str, Failure> {
        let number = self.options_mut(fd)?.congestion;
        Ok(CONGESTION_NAMES.get(usize::from(number)).copied().unwrap_or_default())
    }

    /// SO_LINGER with zero time, or without.
    pub fn set_aborts(&mut self, fd: i32, aborts: bool) -> Outcome {
        self.options_mut(fd)?.linger = aborts.then_some(0);
        let object = self.object(fd)?;
        if let Some((stream, ..)) = self.client.stream(object) {
            stream.set_reset_on_close(aborts);
        }
        Ok(0)
    }

    /// SO_ERROR.
    pub fn take_error(&mut self, fd: i32) -> Outcome {
        let object = self.object(fd)?;
        Ok(self.client.take_error(object).map_or(0, |errno| errno.0.into()))
    }

    /// TCP_INFO of the connection that was opened or accepted last.
    pub fn info(&mut self) -> Option<Info> {
        let is_stream = |fd: &i32| self.socket_of(*fd).is_some_and(|socket| matches!(socket.kind, Kind::Stream(..)));
        let latest = self.files.keys().rev().copied().find(is_stream)?;
        self.info_of(latest).ok().flatten()
    }

    /// TCP_INFO; `None` if the socket is not connected.
    pub fn info_of(&mut self, fd: i32) -> Result<Option<Info>, Failure> {
        self.object(fd)?;
        let Some(Kind::Stream(place, _)) = self.socket_of(fd).map(|socket| &socket.kind) else { return Ok(None) };
        let (slot, generation) = (place.slot, place.generation);
        let token = self.client.ask_one(0, &[], |token| Command::Info { token, slot, generation })?;
        self.step();
        let answer = self.client.poll_answer(token);
        self.client.answered(token);
        let replica = self.client.own().and_then(|session| session.replicas().first());
        Ok(replica.filter(|_| answer.is_ok()).map(|replica| Info::load(replica.port().memory(), INFO)))
    }
}

/// Keeps the value of an option.
fn store(o: &mut Options, option: SocketOption, value: u32) {
    let on = value != 0;
    match option {
        SocketOption::NoDelay => o.nodelay = on,
        SocketOption::Cork => o.cork = on,
        SocketOption::QuickAck => o.quickack = on,
        SocketOption::KeepAlive => o.keepalive = on,
        SocketOption::Broadcast => o.broadcast = on,
        SocketOption::KeepIdle => o.keep_idle = value,
        SocketOption::KeepInterval => o.keep_interval = value,
        SocketOption::KeepCount => o.keep_count = value,
        SocketOption::UserTimeout => o.user_timeout = value,
        SocketOption::MaxSegment => o.max_segment = value,
        SocketOption::ReceiveBuffer => o.receive_buffer = value,
        SocketOption::SendBuffer => o.send_buffer = value,
        SocketOption::Congestion => o.congestion = u8::try_from(value).unwrap_or_default(),
        SocketOption::Linger2 => o.linger2 = value,
        SocketOption::SynCount => o.syn_count = value,
        SocketOption::DeferAccept => o.defer_accept = value,
        SocketOption::UnsentLow => o.unsent_low = value,
        SocketOption::MaxPacingRate => o.pacing_rate = value.into(),
        SocketOption::FastOpen => o.fast_open = value,
        SocketOption::TimeToLive => o.ttl = value,
        SocketOption::TypeOfService => o.tos = value,
        SocketOption::UnicastHops => o.hops = value.wrapping_add(1),
        SocketOption::TrafficClass => o.tclass = value,
        // Scripts have no others.
        _ => {}
    }
}

/// The value of an option, if it was set to another than the default.
fn value_of(o: &Options, option: SocketOption) -> Option<u32> {
    let value = match option {
        SocketOption::NoDelay => o.nodelay.into(),
        SocketOption::Cork => o.cork.into(),
        SocketOption::QuickAck => o.quickack.into(),
        SocketOption::KeepAlive => o.keepalive.into(),
        SocketOption::Broadcast => o.broadcast.into(),
        SocketOption::KeepIdle => o.keep_idle,
        SocketOption::KeepInterval => o.keep_interval,
        SocketOption::KeepCount => o.keep_count,
        SocketOption::UserTimeout => o.user_timeout,
        SocketOption::MaxSegment => o.max_segment,
        SocketOption::ReceiveBuffer => o.receive_buffer,
        SocketOption::SendBuffer => o.send_buffer,
        SocketOption::Congestion => o.congestion.into(),
        SocketOption::Linger2 => o.linger2,
        SocketOption::SynCount => o.syn_count,
        SocketOption::DeferAccept => o.defer_accept,
        SocketOption::UnsentLow => o.unsent_low,
        SocketOption::MaxPacingRate => u32::try_from(o.pacing_rate).unwrap_or(u32::MAX),
        SocketOption::FastOpen => o.fast_open,
        SocketOption::TimeToLive => o.ttl,
        SocketOption::TypeOfService => o.tos,
        SocketOption::UnicastHops => return o.hops.checked_sub(1),
        SocketOption::TrafficClass => o.tclass,
        _ => 0,
    };
    (value != 0).then_some(value)
}
