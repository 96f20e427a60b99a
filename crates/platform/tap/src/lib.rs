//! Multi-queue TAP devices with offloads and steering.
