//! System tests with real programs.
#![forbid(unsafe_code)]
