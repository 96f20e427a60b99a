//! libatoll.so: the socket API of Atoll for unmodified programs.
