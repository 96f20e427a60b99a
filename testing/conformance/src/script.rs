//! What can a script say?

/// Microseconds of the script's clock.
pub type Micros = i64;

/// When an event happens, or may happen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Time {
    /// Since the start of the script.
    At(Micros),
    /// After the event before.
    After(Micros),
    /// Whenever it comes (`*`).
    Any,
    /// Not before the one, not after the other; the bool: after the event before.
    Between(Micros, Micros, bool),
}

/// A whole script.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Script {
    /// `--name=value` in front: line, name, value.
    pub options: Vec<(usize, String, String)>,
    /// The back-quoted command before the first event.
    pub setup: Option<(usize, String)>,
    /// What happens.
    pub events: Vec<Event>,
}

/// One event.
#[derive(Clone, Debug, PartialEq)]
pub struct Event {
    /// Line of the script, from 1.
    pub line: usize,
    /// Its time.
    pub time: Time,
    /// What happens.
    pub action: Action,
}

/// What happens in an event.
#[derive(Clone, Debug, PartialEq)]
pub enum Action {
    /// A segment reaches the stack.
    Inject(Packet),
    /// An ICMP message about a segment of the stack's reaches it.
    InjectIcmp(Icmp),
    /// The stack sends a segment.
    Expect(Packet),
    /// The program calls.
    Call(Call),
    /// A back-quoted command.
    Command(String),
    /// `%{ }%`.
    Code(String),
}

/// An ICMP message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Icmp {
    /// Its type.
    pub kind: u8,
    /// Its code.
    pub code: u8,
    /// The MTU of the next hop, if it tells one.
    pub mtu: u16,
    /// The sequence number of the segment that it is about.
    pub seq: u32,
    /// And its octets of text.
    pub len: u16,
}

/// A TCP segment in the script's numbers: both ends start at 0.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Packet {
    /// The bits of ECN, if the script names them.
    pub ecn: Option<u8>,
    /// Control bits, as in the header.
    pub flags: u8,
    /// First sequence number.
    pub seq: u32,
    /// Octets of text.
    pub len: u32,
    /// Acknowledgement number.
    pub ack: Option<u32>,
    /// Window as in the header.
    pub window: Option<u16>,
    /// Urgent pointer.
    pub urgent: Option<u16>,
    /// Options in their order; `None`: any (`<...>`).
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
    /// A Fast Open cookie; empty: the wish for one.
    FastOpen(Vec<u8>),
    /// Another: kind, octets.
    Other(u8, Vec<u8>),
}

impl TcpOption {
    /// How long it is in a header.
    pub fn octets(&self) -> usize {
        match self {
            TcpOption::Nop | TcpOption::End => 1,
            TcpOption::Mss(_) => 4,
            TcpOption::WindowScale(_) => 3,
            TcpOption::SackOk => 2,
            TcpOption::Sack(blocks) => 2 + 8 * blocks.len(),
            TcpOption::Timestamps { .. } => 10,
            TcpOption::FastOpen(octets) | TcpOption::Other(_, octets) => 2 + octets.len(),
        }
    }
}

/// A system call.
#[derive(Clone, Debug, PartialEq)]
pub struct Call {
    /// When it returns, if it blocks: on the clock that its time is on.
    pub ends: Option<Micros>,
    /// The function.
    pub name: String,
    /// Its arguments.
    pub arguments: Vec<Value>,
    /// What it returns.
    pub result: Value,
    /// The error that comes with -1.
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
