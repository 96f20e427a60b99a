//! The syntax tree of a script.

/// A time of the script's clock, in microseconds.
pub type Micros = i64;

/// When an event happens, or may happen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Time {
    /// At this time since the start of the script.
    At(Micros),
    /// This long after the previous event.
    After(Micros),
    /// At any time (`*`).
    Any,
    /// The event happens no earlier than the first time, and no later than the second. The bool says that
    /// both count from the previous event.
    Between(Micros, Micros, bool),
}

/// A whole script.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Script {
    /// The options in front, `--name=value`: line, name, value.
    pub options: Vec<(usize, String, String)>,
    /// The back-quoted command before the first event.
    pub setup: Option<(usize, String)>,
    /// The events of the script.
    pub events: Vec<Event>,
}

/// One event.
#[derive(Clone, Debug, PartialEq)]
pub struct Event {
    /// The line of the script, from 1.
    pub line: usize,
    /// When the event happens.
    pub time: Time,
    /// The action of the event.
    pub action: Action,
}

/// The action of an event.
#[derive(Clone, Debug, PartialEq)]
pub enum Action {
    /// A packet reaches the stack.
    Inject(Message),
    /// The stack sends a packet.
    Expect(Message),
    /// The program makes a call.
    Call(Call),
    /// A back-quoted command is run.
    Command(String),
    /// The assertions in `%{ }%` are checked.
    Code(String),
}

/// A packet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Message {
    /// A TCP segment.
    Tcp(Packet),
    /// A UDP datagram.
    Udp(Datagram),
    /// An ICMP message, of either version.
    Icmp(Icmp),
}

impl Message {
    /// Returns the IP header of the packet.
    pub fn ip(&self) -> &IpFacts {
        match self {
            Message::Tcp(Packet { ip, .. })
            | Message::Udp(Datagram { ip, .. })
            | Message::Icmp(Icmp { ip, .. }) => ip,
        }
    }

    /// Returns the IP header of the packet, to be changed.
    pub fn ip_mut(&mut self) -> &mut IpFacts {
        match self {
            Message::Tcp(Packet { ip, .. })
            | Message::Udp(Datagram { ip, .. })
            | Message::Icmp(Icmp { ip, .. }) => ip,
        }
    }
}

/// The fields of the IP header, as far as the script mentions them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct IpFacts {
    /// The type of service (IPv4) or traffic class (IPv6): value, and the bits of it that count.
    pub tos: Option<(u8, u8)>,
    /// Whether the mark may be ECT(0) or ECT(1) (`[ect01]`).
    pub any_ect: bool,
    /// The TTL or hop limit.
    pub ttl: Option<u8>,
    /// The flow label (IPv6).
    pub flow_label: Option<u32>,
}

/// The ports in the script: of the sender, of the receiver.
pub type Ports = Option<(u16, u16)>;

/// A UDP datagram.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Datagram {
    /// The IP header.
    pub ip: IpFacts,
    /// The ports of the datagram.
    pub ports: Ports,
    /// Octets of payload.
    pub len: u16,
}

/// An ICMP message.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Icmp {
    /// The IP header.
    pub ip: IpFacts,
    /// The ICMP type.
    pub kind: u8,
    /// The ICMP code.
    pub code: u8,
    /// The MTU of the next hop, if the message has one.
    pub mtu: Option<u32>,
    /// The packet that the message is about.
    pub echoed: Option<Echoed>,
}

/// The packet that an ICMP message is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Echoed {
    /// A segment: its first sequence number, and its octets of text.
    Tcp(u32, u16),
    /// A datagram: its octets of payload.
    Udp(u16),
}

/// A TCP segment in the script's numbers: both ends start at 0.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Packet {
    /// The IP header.
    pub ip: IpFacts,
    /// The ports of the segment.
    pub ports: Ports,
    /// The control bits as in the header: nine of them (RFC 9768 has added one).
    pub flags: u16,
    /// First sequence number.
    pub seq: u32,
    /// Octets of text.
    pub len: u32,
    /// Acknowledgement number.
    pub ack: Option<u32>,
    /// The window as in the header.
    pub window: Option<u16>,
    /// Urgent pointer.
    pub urgent: Option<u16>,
    /// The options in their order; `None` for any (`<...>`).
    pub options: Option<Vec<TcpOption>>,
}

/// A TCP option.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TcpOption {
    /// Padding.
    Nop,
    /// The end of the options.
    End,
    /// Maximum segment size.
    Mss(u16),
    /// Window scale.
    WindowScale(u8),
    /// SACK permitted.
    SackOk,
    /// SACK blocks.
    Sack(Vec<(u32, u32)>),
    /// Timestamps.
    Timestamps {
        /// The sender's clock.
        value: u32,
        /// The clock of the other end that the sender saw last.
        echo: u32,
    },
    /// A Fast Open cookie; an empty one requests a cookie.
    FastOpen(Vec<u8>),
    /// A Fast Open cookie in the experimental option (RFC 6994).
    FastOpenExperimental(Vec<u8>),
    /// The counters of accurate ECN (RFC 9768 §3.2.3): the kind, and up to three counters of 24 bits each.
    AccurateEcn(u8, Vec<u32>),
    /// Another option: kind, octets.
    Other(u8, Vec<u8>),
}

impl TcpOption {
    /// Returns the length of the option in a header, in octets.
    pub fn octets(&self) -> usize {
        match self {
            TcpOption::Nop | TcpOption::End => 1,
            TcpOption::Mss(_) => 4,
            TcpOption::WindowScale(_) => 3,
            TcpOption::SackOk => 2,
            TcpOption::Sack(blocks) => 2 + 8 * blocks.len(),
            TcpOption::Timestamps { .. } => 10,
            TcpOption::FastOpen(octets) | TcpOption::Other(_, octets) => 2 + octets.len(),
            TcpOption::FastOpenExperimental(octets) => 4 + octets.len(),
            TcpOption::AccurateEcn(_, counters) => 2 + 3 * counters.len(),
        }
    }
}

/// A system call.
#[derive(Clone, Debug, PartialEq)]
pub struct Call {
    /// When the call returns if it blocks, on the same clock as the event's time.
    pub ends: Option<Micros>,
    /// The function.
    pub name: String,
    /// The arguments of the call.
    pub arguments: Vec<Value>,
    /// The expected result.
    pub result: Value,
    /// The expected error if the result is -1.
    pub errno: Option<String>,
}

/// An argument or result.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    /// `...`: the runner chooses.
    Whatever,
    /// A number.
    Number(i64),
    /// A name, or several joined by `|`.
    Symbol(String),
    /// A string.
    Text(String),
    /// `[ ]`.
    List(Vec<Value>),
    /// `{ }`: names (empty where there is none) and values.
    Fields(Vec<(String, Value)>),
}
