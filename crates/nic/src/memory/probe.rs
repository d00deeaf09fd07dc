//! Whether a range is mapped with the needed rights, asked once at registration.
