//! The parts of a connection that few connections have. They are kept aside, so that the others need not
//! carry them.

use core::num::NonZeroU64;

use crate::fast_open::Early;
use crate::urgent::Urgent;

/// The rare parts of one connection. They are allocated when first needed, and kept until the connection
/// ends.
#[derive(Debug, Default)]
pub(crate) struct Rare {
    pub(crate) urgent: Urgent,
    pub(crate) early: Early,
    /// SO_MAX_PACING_RATE in octets per second.
    pub(crate) pacing_rate_max: Option<NonZeroU64>,
}
