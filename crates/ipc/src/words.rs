//! Readers and writers of the fields of a 56-byte message.

/// The payload of one ring entry in bytes.
pub const MESSAGE_BYTES: usize = 56;

/// The bytes of one message, written field by field.
pub(crate) struct Writer {
    pub(crate) bytes: [u8; MESSAGE_BYTES],
    at: usize,
}

impl Writer {
    #[inline]
    pub(crate) fn new(kind: u8) -> Writer {
        let mut bytes = [0; MESSAGE_BYTES];
        bytes[0] = kind;
        Writer { bytes, at: 1 }
    }

    #[inline]
    pub(crate) fn u8(mut self, value: u8) -> Writer {
        self.bytes[self.at] = value;
        self.at += 1;
        self
    }

    #[inline]
    pub(crate) fn u16(mut self, value: u16) -> Writer {
        self.bytes[self.at..self.at + 2].copy_from_slice(&value.to_le_bytes());
        self.at += 2;
        self
    }

    #[inline]
    pub(crate) fn u32(mut self, value: u32) -> Writer {
        self.bytes[self.at..self.at + 4].copy_from_slice(&value.to_le_bytes());
        self.at += 4;
        self
    }

    #[inline]
    pub(crate) fn u64(mut self, value: u64) -> Writer {
        self.bytes[self.at..self.at + 8].copy_from_slice(&value.to_le_bytes());
        self.at += 8;
        self
    }

    #[inline]
    pub(crate) fn array<const N: usize>(mut self, value: [u8; N]) -> Writer {
        self.bytes[self.at..self.at + N].copy_from_slice(&value);
        self.at += N;
        self
    }

    #[inline]
    pub(crate) fn addr(self, value: atoll_base::Addr) -> Writer {
        self.array(value.octets())
    }

    #[inline]
    pub(crate) fn endpoint(self, value: atoll_base::Endpoint) -> Writer {
        self.addr(value.addr).u16(value.port)
    }
}

/// Reads the fields of a message in the order in which [`Writer`] wrote them. Every message fits by
/// construction, so reading past the end is a programming error that the round-trip test of each message
/// would show.
pub(crate) struct Reader<'a> {
    bytes: &'a [u8; MESSAGE_BYTES],
    at: usize,
}

impl<'a> Reader<'a> {
    #[inline]
    pub(crate) fn new(bytes: &'a [u8; MESSAGE_BYTES]) -> (u8, Reader<'a>) {
        (bytes[0], Reader { bytes, at: 1 })
    }

    #[inline]
    pub(crate) fn array<const N: usize>(&mut self) -> [u8; N] {
        let mut out = [0; N];
        out.copy_from_slice(&self.bytes[self.at..self.at + N]);
        self.at += N;
        out
    }

    #[inline]
    pub(crate) fn u8(&mut self) -> u8 {
        self.array::<1>()[0]
    }

    #[inline]
    pub(crate) fn u16(&mut self) -> u16 {
        u16::from_le_bytes(self.array())
    }

    #[inline]
    pub(crate) fn u32(&mut self) -> u32 {
        u32::from_le_bytes(self.array())
    }

    #[inline]
    pub(crate) fn u64(&mut self) -> u64 {
        u64::from_le_bytes(self.array())
    }

    #[inline]
    pub(crate) fn addr(&mut self) -> atoll_base::Addr {
        atoll_base::Addr::from_octets(self.array())
    }

    #[inline]
    pub(crate) fn endpoint(&mut self) -> atoll_base::Endpoint {
        atoll_base::Endpoint { addr: self.addr(), port: self.u16() }
    }
}
