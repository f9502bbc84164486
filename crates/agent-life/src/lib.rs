//! What an agent decides, without the machine that it runs on.
//!
//! Which assignments it takes, which epochs it refuses, when a claim lets an attempt begin, how an attempt ended that
//! nobody watched, how long it insists on being heard, and how long a task may run without contact. `tenure-agent` gives
//! it disks and processes, the simulator gives it virtual ones: the decisions are the same.

mod book;
mod claim;
mod contact;
mod control;
mod ending;
mod epochs;

pub use book::{AssignError, Book, Handle, Taken};
pub use claim::{Claim, claim};
pub use contact::Contact;
pub use control::{Backoff, ControlPlane, submit_until_heard};
pub use ending::{Ending, Witness, unwatched};
pub use epochs::{Admission, EpochMemory, Highest};
