//! The basis of the system tests: networks of namespaces, with the kernel's stack or Atoll at their server's
//! end, and processes that do not outlive their test.
//!
//! Every test runs on both stacks. The kernel shows that the test is right; Atoll must then pass it as well.
#![forbid(unsafe_code)]

mod events;
mod kernel_use;
mod net;
mod process;
mod programs;
mod turn;
mod wire;

pub use events::Events;
pub use net::{Impairments, Net, NoNet, Stack, atoll, fresh_name, soak, usual_configuration};
pub use process::{Proc, Scratch, until};
pub use programs::{
    Linking, compiled, compiled_apart, compiled_by, compiled_of, compiled_statically, copy_program, of_go,
    program,
};
pub use turn::{Alone, Turn, alone, beside};
pub use wire::{complete_checksum, is_ecn_capable, mark_congestion, open_end};
