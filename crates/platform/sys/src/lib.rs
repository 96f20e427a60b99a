//! System calls, clock, descriptors, scheduling.
