//! Arenas, rings and sessions in shared memory.
