//! Seeds that have broken a promise once, and what was mended then. Every campaign begins with them.
//!
//! A seed stands for its world only as long as worlds are drawn in the same way, so each defect has a test of its own as
//! well, named in docs/verification.md.

pub const REGRESSIONS: [(u64, &str); 7] = [
    (359, "an attempt that a user had ended ran beside the next one of the task"),
    (1_279, "a run that was queued and then ended by a user counted as work left undone"),
    (1_621, "the room of a run that was not written was given away"),
    (1_682, "an attempt was cleared while its node was away, and ran twice"),
    (1_000_277, "a node that spoke for a moment between two silences was judged as if it had been heard"),
    (1_000_420, "a run that was triggered by a clock an hour ahead waited for an hour"),
    (1_000_734, "the room of a run that was not written was given away"),
];
