//! Codes of [`Message::Unreachable`](crate::icmpv6::Message::Unreachable) and
//! [`Message::ParameterProblem`](crate::icmpv6::Message::ParameterProblem) (RFC 4443 §3.1, §3.4).

/// No route to the destination.
pub const NO_ROUTE: u8 = 0;
/// Forbidden by an administrator.
pub const PROHIBITED: u8 = 1;
/// The host does not answer.
pub const ADDRESS: u8 = 3;
/// Nobody listens on the port.
pub const PORT: u8 = 4;
/// Problem: a field has a value that makes no sense.
pub const ERRONEOUS_HEADER: u8 = 0;
/// Problem: the protocol, or extension header, is not spoken.
pub const UNRECOGNIZED_NEXT_HEADER: u8 = 1;
/// Problem: an option is not known.
pub const UNRECOGNIZED_OPTION: u8 = 2;
/// Problem: a first fragment does not hold all headers (RFC 7112 §6).
pub const INCOMPLETE_CHAIN: u8 = 3;
