//! The calls on streams, as in `libatoll.so`.

use atoll_base::Endpoint;
use atoll_ipc::command::Protocol;
use atoll_sockets::client::Connecting;
use atoll_sockets::client::simulated::Opening;
use atoll_sockets::client::transfer::{Receiving, Sending};
use atoll_sockets::options::Name;
use atoll_sockets::urgent::Urgent;
use atoll_sockets::{Errno, Failure};

use super::{Host, Outcome, PORT};

/// The octets that scripts write.
static ZEROS: [u8; 1 << 16] = [0; 1 << 16];
/// A limit on reads: more octets than a receive buffer ever holds.
const READ_MAX: usize = 1 << 24;

impl Host {
    /// Calls bind(2), to [`PORT`] if there is no `local`.
    pub fn bind(&mut self, fd: i32, local: Option<Endpoint>) -> Outcome {
        let object = self.object(fd)?;
        let local = local.unwrap_or(Endpoint::at(self.family.any(), PORT));
        let opening = Opening::bind(&mut self.client, object, local)?;
        self.finish(opening)?;
        Ok(0)
    }

    /// Calls listen(2).
    pub fn listen(&mut self, fd: i32, backlog: u32) -> Outcome {
        let object = self.object(fd)?;
        if let Some(any) = self.client.address_to_listen(object)? {
            self.bind(fd, Some(any))?;
        }
        let opening = Opening::listen(&mut self.client, object, i32::try_from(backlog).unwrap_or(i32::MAX))?;
        self.finish(opening)?;
        // The program accepts as if a thread already waited in accept(2).
        self.client.accept_connections(object);
        self.step();
        Ok(0)
    }

    /// Calls accept4(2).
    pub fn accept(&mut self, fd: i32, nonblocking: bool) -> Outcome {
        let object = self.object(fd)?;
        self.client.check_listening(object)?;
        self.client.accept_connections(object);
        self.step();
        let accepted = self.client.accept(object, nonblocking);
        self.step();
        Ok(self.add(accepted?))
    }

    /// Calls connect(2); call again while it blocks.
    pub fn connect(&mut self, fd: i32, remote: Endpoint) -> Outcome {
        let object = self.object(fd)?;
        let (protocol, is_fast) = self
            .client
            .socket(object)
            .map(|socket| (socket.protocol, socket.options.is_on(Name::FastOpenConnect)))
            .ok_or(Errno::ENOTSOCK)?;
        if protocol == Protocol::Udp {
            return self.connect_datagrams(fd, remote);
        }
        let nonblocking = self.client.is_nonblocking(object);
        let began = if is_fast && self.is_fresh(fd) {
            if self.open_fast(object, remote)? {
                self.client.report_connected(object);
                return Ok(0);
            }
            Connecting::Begun
        } else {
            if is_fast && self.waits_for_text(object) {
                return Err(Errno::EISCONN.into());
            }
            self.client.connect(object, remote)?
        };
        self.step();
        match began {
            Connecting::Open => Ok(0),
            Connecting::Begun if nonblocking => Err(Errno::EINPROGRESS.into()),
            Connecting::GoesOn if nonblocking => Err(Errno::EALREADY.into()),
            Connecting::Begun | Connecting::GoesOn => self.client.poll_connected(object).map(|()| 0),
        }
    }

    /// Calls sendto(2) with MSG_FASTOPEN; call again while it blocks.
    pub fn send_fast(&mut self, fd: i32, len: usize, nonblocking: bool, remote: Endpoint) -> Outcome {
        let object = self.object(fd)?;
        if self.is_fresh(fd) && !self.open_fast(object, remote)? && nonblocking {
            return Err(Errno::EINPROGRESS.into());
        }
        let written = self.write(fd, len, false, false)?;
        if len == 0 && self.client.send_waiting_syn(object)? && nonblocking {
            self.step();
            return Err(Errno::EINPROGRESS.into());
        }
        // As in the library, a blocking call returns when the connection is open.
        let is_connecting = self.client.stream(object).is_some_and(|(stream, ..)| stream.is_connecting());
        if is_connecting && !nonblocking {
            self.set_written(fd, len);
            return Err(Failure::WouldBlock);
        }
        Ok(written)
    }

    /// Sets TCP_FASTOPEN_CONNECT.
    pub fn set_fast_open_connect(&mut self, fd: i32, on: bool) -> Outcome {
        self.options_mut(fd)?.set(Name::FastOpenConnect, on.into());
        Ok(0)
    }

    /// Begins to connect by Fast Open. Returns whether the SYN waits for text.
    fn open_fast(&mut self, object: u32, remote: Endpoint) -> Result<bool, Failure> {
        self.client.start_connecting(object, remote, true)?;
        self.step();
        Ok(self.waits_for_text(object))
    }

    fn waits_for_text(&mut self, object: u32) -> bool {
        self.client.stream(object).is_some_and(|(stream, ..)| stream.waits_for_text())
    }

    /// Calls read(2) or recv(2) for up to `most` octets. With `peek` they stay in the buffer.
    pub fn read(&mut self, fd: i32, most: usize, peek: bool) -> Outcome {
        if self.is_datagram(fd) {
            return self.receive_datagram(fd, most, peek);
        }
        let object = self.object(fd)?;
        let want = most.min(READ_MAX);
        let (mut bytes, mut done) = (vec![0; want], 0);
        let (target, how) = (&mut bytes[..], Receiving { peek, ..Receiving::default() });
        let received = self.client.receive_octets(object, || std::iter::once(target), want, how, &mut done);
        self.step();
        Ok(received? as i64)
    }

    /// Calls recv(2) with MSG_OOB.
    pub fn read_urgent(&mut self, fd: i32, most: usize, peek: bool) -> Outcome {
        let object = self.object(fd)?;
        let (stream, local, _) = self.client.stream(object).ok_or(Errno::ENOTCONN)?;
        match stream.receive_urgent(local, peek) {
            Ok(Urgent::Octet(_)) => Ok(most.min(1) as i64),
            Ok(Urgent::End) => Ok(0),
            // Such a call never blocks.
            Err(Failure::WouldBlock) => Err(Errno::EAGAIN.into()),
            Err(error) => Err(error),
        }
    }

    /// Calls ioctl(2) with SIOCATMARK.
    pub fn is_at_mark(&mut self, fd: i32) -> Outcome {
        let object = self.object(fd)?;
        let (stream, local, _) = self.client.stream(object).ok_or(Errno::ENOTCONN)?;
        Ok(stream.is_at_mark(local).into())
    }

    /// Sets SO_OOBINLINE.
    pub fn set_urgent_inline(&mut self, fd: i32, inline: bool) -> Outcome {
        self.options_mut(fd)?.set(Name::OobInline, inline.into());
        let object = self.object(fd)?;
        if let Some((_, local, _)) = self.client.stream(object) {
            local.urgent_inline = inline;
        }
        Ok(0)
    }

    /// Calls write(2) or send(2); call again while it blocks, with the same length. `urgent` means MSG_OOB,
    /// `more` means MSG_MORE.
    pub fn write(&mut self, fd: i32, len: usize, urgent: bool, more: bool) -> Outcome {
        let (object, nonblocking) = (self.object(fd)?, self.is_nonblocking(fd));
        let (how, mut done) = (Sending { more, urgent }, self.files.get(&fd).map_or(0, |file| file.written));
        let sources =
            || std::iter::repeat_n(&ZEROS[..], len / ZEROS.len()).chain([&ZEROS[..len % ZEROS.len()]]);
        // A call copies part by part until nothing more fits.
        let sent = loop {
            let before = done;
            match self.client.send_octets(object, sources, len, how, &mut done) {
                Err(Failure::WouldBlock) if done > before => {}
                sent => break sent,
            }
        };
        self.set_written(fd, 0);
        self.step();
        match sent {
            Ok(_) => Ok(done as i64),
            Err(Failure::WouldBlock) if nonblocking && done > 0 => Ok(done as i64),
            Err(Failure::WouldBlock) => {
                self.set_written(fd, done);
                Err(Failure::WouldBlock)
            }
            Err(error) => Err(error),
        }
    }

    fn set_written(&mut self, fd: i32, written: usize) {
        if let Some(file) = self.files.get_mut(&fd) {
            file.written = written;
        }
    }

    /// Calls shutdown(2).
    pub fn shutdown(&mut self, fd: i32, receive: bool, send: bool) -> Outcome {
        let object = self.object(fd)?;
        self.client.shutdown(object, receive, send)?;
        self.step();
        Ok(0)
    }

    /// Calls close(2).
    pub fn close(&mut self, fd: i32) -> Outcome {
        let file = self.files.remove(&fd).ok_or(Errno::EBADF)?;
        self.client.release(file.object);
        self.step();
        Ok(0)
    }

    /// Calls ioctl(2) with SIOCINQ or SIOCOUTQ.
    pub fn queued(&mut self, fd: i32, outgoing: bool) -> Outcome {
        let object = self.object(fd)?;
        let (stream, local, _) = self.client.stream(object).ok_or(Errno::ENOTCONN)?;
        Ok(if outgoing { stream.unacknowledged() } else { stream.unread(local) } as i64)
    }
}
