//! The memory pool: huge-page arenas that are registered once, and buffers cut from them without a lock that threads share. It may not lend bytes that a
//! peer can write: they are copied in and out.
