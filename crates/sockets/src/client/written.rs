//! How types of other crates are written down by serde, for [`super::exec_state`].

use alloc::vec::Vec;

use atoll_base::{Addr, Endpoint, SlotId};
use atoll_ipc::command::Protocol;
use atoll_ipc::lease::Voucher;
use serde::{Deserialize, Serialize};

/// The written form of an [`Addr`]: its octets.
#[derive(Serialize, Deserialize)]
#[serde(remote = "Addr")]
pub struct AddrForm(#[serde(getter = "octets")] [u8; 16]);

fn octets(addr: &Addr) -> [u8; 16] {
    addr.octets()
}

impl From<AddrForm> for Addr {
    fn from(form: AddrForm) -> Addr {
        Addr::from_octets(form.0)
    }
}

/// The written form of an [`Endpoint`].
#[derive(Serialize, Deserialize)]
#[serde(remote = "Endpoint")]
pub struct EndpointForm {
    #[serde(with = "AddrForm")]
    addr: Addr,
    port: u16,
}

/// The written form of a [`SlotId`].
#[derive(Serialize, Deserialize)]
#[serde(remote = "SlotId")]
pub struct SlotForm(u32);

/// The written form of a [`Protocol`].
#[derive(Serialize, Deserialize)]
#[serde(remote = "Protocol")]
pub enum ProtocolForm {
    Tcp,
    Udp,
    Icmp,
    Raw,
}

/// The written form of a [`Voucher`].
#[derive(Serialize, Deserialize)]
#[serde(remote = "Voucher")]
pub struct VoucherForm {
    uid: u32,
    flags: u8,
    granted: u64,
    seal: u64,
}

/// The written form of the groups of a socket: the address of each, and whether it is on the loopback.
pub mod groups {
    use serde::{Deserializer, Serializer};

    use super::{Addr, AddrForm, Deserialize, Serialize, Vec};

    #[derive(Serialize, Deserialize)]
    struct Group(#[serde(with = "AddrForm")] Addr, bool);

    pub fn serialize<S: Serializer>(groups: &[(Addr, bool)], to: S) -> Result<S::Ok, S::Error> {
        to.collect_seq(groups.iter().map(|(addr, inside)| Group(*addr, *inside)))
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<(Addr, bool)>, D::Error> {
        let groups = Vec::<Group>::deserialize(from)?;
        Ok(groups.into_iter().map(|Group(addr, inside)| (addr, inside)).collect())
    }
}

/// The written form of a supervisor's [`Reply`](atoll_ipc::control::Reply): its packet, which is judged when
/// it is read.
pub mod reply {
    use atoll_ipc::control::Reply;
    use serde::de::Error;
    use serde::{Deserialize, Deserializer, Serializer};

    pub fn serialize<S: Serializer>(reply: &Reply, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_bytes(&reply.encode())
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Reply, D::Error> {
        Reply::decode(<&[u8]>::deserialize(from)?).map_err(|_| D::Error::custom("no reply of a supervisor"))
    }
}
