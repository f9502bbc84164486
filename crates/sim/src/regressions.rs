//! Seeds that have broken a promise once, and what they showed then. A campaign from the first seed on begins with them.
//!
//! A seed stands for its world only as long as worlds are drawn in the same way; what was mended has tests of its own.

pub const REGRESSIONS: [(u64, &str); 14] = [
    (359, "a shard stood still for 68 s after a replica was killed"),
    (618, "runs never ended"),
    (1_225, "an attempt that was given up before it started was held against its successor"),
    (1_279, "a shard stood still for 196 s while the store was slow"),
    (1_313, "two attempts of a task overlapped"),
    (1_508, "a shard stood still for 60.5 s after a replica was killed"),
    (1_602, "runs never ended"),
    (1_621, "a pool of two slots held three"),
    (1_680, "two attempts of a task overlapped"),
    (1_682, "two attempts of a task overlapped"),
    (1_996, "runs never ended"),
    (1_000_277, "an attempt was given up though its node had not been silent for long enough in one go"),
    (1_000_420, "a run that was due at once waited for an hour"),
    (1_000_734, "a pool of two slots held four"),
];
