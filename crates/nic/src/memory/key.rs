//! Keys that cannot be guessed. A key is 24 bits of scrambled slot number and 8 bits of variant, as in mlx5.
