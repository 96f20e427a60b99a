//! What do calls do to a stream? As in `libatoll.so`.

use atoll_base::Endpoint;
use atoll_ipc::command::{CloseMode, Protocol};
use atoll_ipc::{Command, Event, HeapMemory, SocketOption};
use atoll_sockets::listener::{self, Claim, Offer};
use atoll_sockets::stream::{Local, Stream};
use atoll_sockets::urgent::Urgent;
use atoll_sockets::{Errno, Failure};

use super::{BELL, Host, Kind, Outcome, PORT, Socket, check};

impl Host {
    /// bind(2) to [`PORT`], or another.
    pub fn bind(&mut self, fd: i32, local: Option<Endpoint>) -> Outcome {
        let family = self.family;
        let socket = self.socket_mut(fd)?;
        if socket.local.port != 0 {
            return Err(Errno::EINVAL.into());
        }
        let (lease, protocol) = (socket.lease, socket.protocol);
        let local = local.unwrap_or(Endpoint::at(family.any(), PORT));
        self.push(&Command::Bind {
            token: 1,
            lease,
            protocol,
            local,
            reuse_addr: true,
            reuse_port: false,
            v6_only: false,
        });
        let Some(Event::BindReply { cause, port, .. }) = self.replies.pop() else { return Err(Failure::WouldBlock) };
        check(cause)?;
        self.socket_mut(fd)?.local = Endpoint::at(local.addr, port);
        if protocol == Protocol::Udp {
            self.open_datagrams(fd, Endpoint::default())?;
        }
        Ok(0)
    }

    /// listen(2).
    pub fn listen(&mut self, fd: i32, backlog: u32) -> Outcome {
        let socket = self.socket_mut(fd)?;
        let (lease, local, options) = (socket.lease, socket.local, socket.options.clone());
        self.push(&Command::Listen {
            token: 2,
            lease,
            local,
            backlog,
            reuse_port: false,
            defer_accept: 0,
            v6_only: false,
        });
        let Some(Event::ListenReply { cause, .. }) = self.replies.pop() else { return Err(Failure::WouldBlock) };
        check(cause)?;
        self.socket_mut(fd)?.kind = Kind::Listening;
        for (option, value) in options {
            self.push(&Command::SetListenerOption { lease, option, value });
        }
        self.push(&Command::AcceptConnection { lease });
        self.accepting = true;
        Ok(0)
    }

    /// accept4(2).
    pub fn accept(&mut self, fd: i32, nonblocking: bool) -> Outcome {
        let socket = self.socket_mut(fd)?;
        let lease = socket.lease;
        if !matches!(socket.kind, Kind::Listening) {
            return Err(Errno::EINVAL.into());
        }
        if !self.accepting {
            self.accepting = true;
            self.push(&Command::AcceptConnection { lease });
        }
        loop {
            if let Some(offer) = self.claimed {
                match self.verdict.take() {
                    Some(true) => {
                        self.claimed = None;
                        return self.take(&offer, nonblocking);
                    }
                    Some(false) => self.claimed = None,
                    None => return Err(Failure::WouldBlock),
                }
            }
            let at = self.offers.iter().position(|(of, _)| *of == lease).ok_or(Failure::WouldBlock)?;
            let (_, offer) = self.offers.remove(at).ok_or(Failure::WouldBlock)?;
            let claim = listener::claim(&self.port, &offer, 0, BELL);
            if claim == Claim::Gone {
                continue;
            }
            if claim == Claim::Doubtful {
                self.claimed = Some(offer);
            }
            self.push(&Command::Claim { slot: offer.slot, generation: offer.generation });
            if claim == Claim::Held {
                return self.take(&offer, nonblocking);
            }
        }
    }

    fn take(&mut self, offer: &Offer, nonblocking: bool) -> Outcome {
        let (slot, generation) = (offer.slot, offer.generation);
        let kind = Kind::Stream { slot, generation, local: Local::default(), reported: true };
        let fd = self.add(kind, Protocol::Tcp);
        self.socket_mut(fd as i32)?.nonblocking = nonblocking;
        Ok(fd)
    }

    /// connect(2) to [`PORT`] of the other end. Called again while it blocks.
    pub fn connect(&mut self, fd: i32, remote: Endpoint) -> Outcome {
        let socket = self.socket_mut(fd)?;
        if socket.protocol == Protocol::Udp {
            return self.connect_datagrams(fd, remote);
        }
        let (nonblocking, fast) = (socket.nonblocking, socket.fast_open);
        match socket.kind {
            Kind::Stream { .. } => return self.connected(fd),
            Kind::Fresh => {}
            _ => return Err(Errno::EISCONN.into()),
        }
        self.open(fd, fast, remote)?;
        if fast && self.waits_for_text(fd)? {
            return Ok(0);
        }
        if nonblocking { Err(Errno::EINPROGRESS.into()) } else { self.connected(fd) }
    }

    /// sendto(2) with MSG_FASTOPEN. Called again while it blocks.
    pub fn send_fast(&mut self, fd: i32, len: usize, nonblocking: bool, remote: Endpoint) -> Outcome {
        if self.is_fresh(fd) {
            self.open(fd, true, remote)?;
            if !self.waits_for_text(fd)? && nonblocking {
                return Err(Errno::EINPROGRESS.into());
            }
        }
        let written = self.write(fd, len, false, false)?;
        // As in the library: a call that blocks comes back when the connection is open.
        let is_connecting = self.with_stream(fd, |stream, _| Ok(stream.is_connecting()))?;
        if is_connecting && !nonblocking {
            self.socket_mut(fd)?.written = len;
            return Err(Failure::WouldBlock);
        }
        Ok(written)
    }

    /// TCP_FASTOPEN_CONNECT.
    pub fn set_fast_open_connect(&mut self, fd: i32, on: bool) -> Outcome {
        self.socket_mut(fd)?.fast_open = on;
        Ok(0)
    }

    fn waits_for_text(&mut self, fd: i32) -> Result<bool, Failure> {
        self.with_stream(fd, |stream, _| Ok(stream.waits_for_text()))
    }

    /// Begins to connect; `fast`: by Fast Open.
    fn open(&mut self, fd: i32, fast: bool, remote: Endpoint) -> Result<(), Failure> {
        let socket = self.socket_mut(fd)?;
        let (lease, local, options) = (socket.lease, socket.local, socket.options.clone());
        let (slot, generation) = self.port.allocate_slot().ok_or(Errno::ENOBUFS)?;
        if let Some(view) = self.port.slot(slot) {
            view.set_holders(1);
            view.set_bell(BELL);
        }
        self.socket_mut(fd)?.kind = Kind::Stream { slot, generation, local: Local::default(), reported: false };
        if fast {
            self.with_stream(fd, |stream, _| {
                stream.ask_for_fast_open();
                Ok(())
            })?;
        }
        let connect = Command::Connect { slot, generation, lease, local, remote };
        assert!(self.port.push(&connect), "the command ring is full");
        for (option, value) in options {
            assert!(
                self.port.push(&Command::SetOption { slot, generation, option, value }),
                "the command ring is full"
            );
        }
        self.step();
        Ok(())
    }

    /// Whether a connection that is opened is open.
    fn connected(&mut self, fd: i32) -> Outcome {
        let nonblocking = self.socket_mut(fd)?.nonblocking;
        let was_reported = matches!(self.socket_mut(fd)?.kind, Kind::Stream { reported: true, .. });
        let done = self.with_stream(fd, |stream, local| {
            if stream.is_closed() {
                return Err(stream.take_error(local).unwrap_or(Errno::ECONNABORTED).into());
            }
            if stream.is_connecting() {
                return Err(if nonblocking { Errno::EALREADY.into() } else { Failure::WouldBlock });
            }
            if was_reported { Err(Errno::EISCONN.into()) } else { Ok(0) }
        });
        if let (Ok(_), Kind::Stream { reported, .. }) = (&done, &mut self.socket_mut(fd)?.kind) {
            *reported = true;
        }
        done
    }

    pub(super) fn with_stream<T>(
        &mut self,
        fd: i32,
        act: impl FnOnce(&Stream<'_, HeapMemory>, &mut Local) -> Result<T, Failure>,
    ) -> Result<T, Failure> {
        let socket = self.sockets.get_mut(&fd).ok_or(Errno::EBADF)?;
        let Kind::Stream { slot, generation, local, .. } = &mut socket.kind else {
            return Err(Errno::ENOTCONN.into());
        };
        let stream = Stream::new(&self.port, *slot, *generation).ok_or(Errno::EBADF)?;
        act(&stream, local)
    }

    fn kick(&mut self, fd: i32) {
        if let Some(Socket { kind: Kind::Stream { slot, generation, .. }, .. }) = self.sockets.get(&fd) {
            self.push(&Command::Kick { slot: *slot, generation: *generation });
        }
    }

    /// read(2), recv(2): up to `most` octets. With `peek` they stay.
    pub fn read(&mut self, fd: i32, most: usize, peek: bool) -> Outcome {
        if self.is_datagram(fd) {
            return self.receive_datagram(fd, most, peek);
        }
        let (len, kick) = self.with_stream(fd, |stream, local| {
            let found = stream.readable(local);
            if local.pass.is_some() {
                return found.map(|_| (0, !peek && stream.pass(local)));
            }
            let readable = found?;
            let len = readable.len.min(most as u64);
            let mut bytes = vec![0; len as usize];
            assert!(stream.copy_out(&readable, readable.head, &mut bytes), "published octets are covered");
            Ok((len, !peek && len > 0 && stream.consume(readable.head + len)))
        })?;
        if kick {
            self.kick(fd);
        }
        Ok(len as i64)
    }

    /// recv(2) with MSG_OOB.
    pub fn read_urgent(&mut self, fd: i32, most: usize, peek: bool) -> Outcome {
        let found = self.with_stream(fd, |stream, local| stream.receive_urgent(local, peek));
        match found {
            Ok(Urgent::Octet(_)) => Ok(most.min(1) as i64),
            Ok(Urgent::End) => Ok(0),
            // It never blocks.
            Err(Failure::WouldBlock) => Err(Errno::EAGAIN.into()),
            Err(error) => Err(error),
        }
    }

    /// SIOCATMARK.
    pub fn is_at_mark(&mut self, fd: i32) -> Outcome {
        self.with_stream(fd, |stream, local| Ok(stream.is_at_mark(local).into()))
    }

    /// SO_OOBINLINE of a connection.
    pub fn set_urgent_inline(&mut self, fd: i32, inline: bool) -> Outcome {
        self.with_stream(fd, |_, local| {
            local.urgent_inline = inline;
            Ok(0)
        })
    }

    /// write(2), send(2). Called again while it blocks, with the same length. `urgent`: MSG_OOB; `more`: MSG_MORE.
    pub fn write(&mut self, fd: i32, len: usize, urgent: bool, more: bool) -> Outcome {
        loop {
            let socket = self.socket_mut(fd)?;
            let (left, nonblocking) = (len - socket.written.min(len), socket.nonblocking);
            let now = if left == 0 {
                Ok(0)
            } else {
                self.with_stream(fd, |stream, local| {
                    let room = stream.writable(local, left)?;
                    stream.copy_in(&room, 0, &vec![0; room.len]);
                    if urgent {
                        stream.commit_urgent(&room, room.len);
                    } else {
                        stream.commit(&room, room.len);
                    }
                    Ok(room.len)
                })
            };
            match now {
                Ok(taken) => {
                    let written = self.socket_mut(fd)?.written + taken;
                    self.socket_mut(fd)?.written = written;
                    // As the library does: the replica hears of it when nothing more fits, or all is in.
                    if written >= len {
                        self.socket_mut(fd)?.written = 0;
                        if more {
                            self.set_more(fd, true)?;
                        }
                        self.kick(fd);
                        if !more && len > 0 {
                            self.set_more(fd, false)?;
                        }
                        return Ok(len as i64);
                    }
                }
                Err(Failure::WouldBlock) => {
                    self.kick(fd);
                    let written = self.socket_mut(fd)?.written;
                    if nonblocking && written > 0 {
                        self.socket_mut(fd)?.written = 0;
                        return Ok(written as i64);
                    }
                    return Err(Failure::WouldBlock);
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// MSG_MORE, as in the library: as if the socket were corked until the next call without it.
    fn set_more(&mut self, fd: i32, more: bool) -> Result<(), Failure> {
        let socket = self.socket_mut(fd)?;
        let is_corked = socket.options.iter().rev().find(|(option, _)| *option == SocketOption::Cork);
        let is_corked = is_corked.is_some_and(|(_, value)| *value != 0);
        if is_corked || socket.more == more {
            return Ok(());
        }
        socket.more = more;
        if let Kind::Stream { slot, generation, .. } = socket.kind {
            let option = SocketOption::Cork;
            self.push(&Command::SetOption { slot, generation, option, value: more.into() });
        }
        Ok(())
    }

    /// shutdown(2).
    pub fn shutdown(&mut self, fd: i32, receive: bool, send: bool) -> Outcome {
        self.with_stream(fd, |stream, _| stream.shutdown(receive, send).map_err(Failure::from))?;
        self.kick(fd);
        Ok(0)
    }

    /// close(2).
    pub fn close(&mut self, fd: i32) -> Outcome {
        self.socket_mut(fd)?;
        self.forget_watches(fd);
        let socket = self.sockets.remove(&fd).ok_or(Errno::EBADF)?;
        let lease = socket.lease;
        match socket.kind {
            Kind::Fresh => self.push(&Command::Release { lease }),
            Kind::Listening => {
                self.accepting = false;
                self.push(&Command::StopAccepting { lease });
                self.push(&Command::Release { lease });
            }
            Kind::Set { .. } => {}
            Kind::Datagram { slot, generation } => {
                self.port.mark_closing(slot, generation);
                self.push(&Command::Close { slot, generation, mode: CloseMode::Graceful });
                self.push(&Command::Release { lease });
            }
            Kind::Stream { slot, generation, .. } => {
                let mode = if socket.aborts { CloseMode::Abort } else { CloseMode::Graceful };
                self.port.mark_closing(slot, generation);
                self.push(&Command::Close { slot, generation, mode });
            }
        }
        Ok(0)
    }

    /// SIOCINQ and SIOCOUTQ.
    pub fn queued(&mut self, fd: i32, outgoing: bool) -> Outcome {
        self.with_stream(fd, |stream, local| {
            Ok(if outgoing { stream.unacknowledged() } else { stream.unread(local) } as i64)
        })
    }
}
