//! What do few connections have? Kept aside, so that the others need not carry it.

use crate::fast_open::Early;
use crate::urgent::Urgent;

/// Made when it is first needed, and kept until the connection ends.
#[derive(Debug, Default)]
pub(crate) struct Rare {
    pub(crate) urgent: Urgent,
    pub(crate) early: Early,
}
