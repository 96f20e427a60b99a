//! What is counted?

/// Counters of a transport server; names as in `atoll_ipc::page::Stat`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs)] // The names are those of `Stat`, which documents them.
pub struct Stats {
    pub frames_dropped: u64,
    pub segments_in: u64,
    pub segments_out: u64,
    pub retransmits: u64,
    pub segments_dropped: u64,
    pub resets_out: u64,
    pub passive_opens: u64,
    pub active_opens: u64,
    pub syn_drops: u64,
    pub accept_drops: u64,
    pub offers: u64,
    pub claims: u64,
    pub claim_timeouts: u64,
    pub datagrams_in: u64,
    pub datagrams_out: u64,
    pub datagrams_dropped: u64,
    pub commands: u64,
    pub bad_commands: u64,
    pub events: u64,
    pub event_overflows: u64,
}
