//! System tests with real programs.
