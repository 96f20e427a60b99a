//! Multi-queue TAP devices with offloads, and the steering of flow groups to their queues.
//!
//! The supervisor opens a [`Tap`], attaches [`Steering`] and hands each replica one [`Queue`], which a
//! process can use without privileges. The device exists as long as any process holds one of its queues, and
//! keeps steering without the process that set it up.
//!
//! Every frame, in both directions, is preceded by a `virtio_net_hdr` of [`VNET_HEADER_LEN`] bytes. It says
//! where a checksum is still to be computed and how a super-packet is to be cut. This crate only carries it.
//!
//! # Invariants that the `unsafe` blocks rely on
//! 1. Each ioctl request is paired with the argument type that the kernel's `if_tun.h` gives it (`ioctl.rs`).

mod device;
mod ioctl;
mod queue;
mod steering;

pub use device::{Existing, NAME_LEN_MAX, Offloads, OpenError, QUEUE_LEN, QUEUES_MAX, Tap, TapOptions};
pub use queue::{FRAME_LEN_MAX, Queue, SendOutcome, VNET_HEADER_LEN};
pub use steering::{Steering, SteeringError, Table};
