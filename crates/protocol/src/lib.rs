//! The protocol as a model: leases that run out at any moment, takeovers, fences, attempts that are bound, claimed,
//! reported, withdrawn and reaped, over a network that loses, repeats and reorders, with processes that crash and that
//! freeze for as long as they like. A checker visits every state that can be reached.
//!
//! Each step names the place in the code that it stands for. [`Mutant`]s are the same model with one rule left out: the
//! checker must find each of them, or it would not have found the defect either.
//!
//! Time. There is no clock. A lease can run out at any moment, and at that moment whoever counts from when its
//! calls were *sent* has stopped as well: that order is all that the arithmetic of durations has to give. In the same way a
//! node has fenced itself before anybody takes it for silent. A process that is frozen simply does not move, and what it
//! had sent before arrives whenever it likes.

mod canonical;
mod lease;
mod model;
mod mutant;
mod report;
mod state;
mod work;

pub use model::{Action, Backend, Event, Protocol, Size};
pub use mutant::Mutant;
pub use report::{Exploration, Found, Summary, explore, hunt, stopwatch};
pub use state::{State, Trouble};
