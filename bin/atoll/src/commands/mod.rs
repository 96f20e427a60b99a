//! The commands, a file each.

pub mod balance;
pub mod config;
pub mod down;
pub mod options;
pub mod paper;
pub mod run;
pub mod scale;
pub mod ss;
pub mod status;
pub mod up;
