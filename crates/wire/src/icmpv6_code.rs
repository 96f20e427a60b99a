//! Codes of [`Message::Unreachable`](crate::icmpv6::Message::Unreachable) and
//! [`Message::ParameterProblem`](crate::icmpv6::Message::ParameterProblem) (RFC 4443 §3.1, §3.4).

/// There is no route to the destination.
pub const NO_ROUTE: u8 = 0;
/// An administrator has forbidden the packet.
pub const PROHIBITED: u8 = 1;
/// The host does not answer.
pub const ADDRESS: u8 = 3;
/// No socket listens on the port.
pub const PORT: u8 = 4;
/// Parameter problem: a field has an invalid value.
pub const ERRONEOUS_HEADER: u8 = 0;
/// Parameter problem: the protocol, or extension header, is not supported.
pub const UNRECOGNIZED_NEXT_HEADER: u8 = 1;
/// Parameter problem: an option is not known.
pub const UNRECOGNIZED_OPTION: u8 = 2;
/// Parameter problem: a first fragment does not hold all headers (RFC 7112 §6).
pub const INCOMPLETE_CHAIN: u8 = 3;
